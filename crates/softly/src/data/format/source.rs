//! Samples of files, read block by block.

use std::collections::HashMap;
use std::ops::Range;
use std::path::PathBuf;

use rayon::prelude::*;

use super::layout::{AxisGuess, Coordinates, FieldSource, Layout, Piece, Role, Scalar};
use super::options::ImportOptions;
use super::plan::{Picked, Plan, Use};
use super::stored::strides;
use super::{ArrayFile, open};
use crate::error::{Error, Result};
use crate::memory;

/// Bytes of numbers that are read at once, over all fields.
const BLOCK_BYTES: usize = 96 << 20;
/// The same where samples are interleaved (MATLAB's order), so that every block reads the whole file.
const LARGE_BLOCK_BYTES: usize = 256 << 20;

/// Bytes that one sample may need.
const MOST_SAMPLE_BYTES: usize = 1 << 30;

/// One sample.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// The fields `[C, H, W]`, row-major.
    pub values: Vec<f32>,
    /// The scalars.
    pub scalars: Vec<f64>,
}

/// The samples of files.
pub struct FileSource {
    plan: Plan,
    axes: [AxisGuess; 2],
    /// Name and values (one for all samples, or one each) of the scalars.
    scalars: Vec<(String, Vec<f64>)>,
    groups: Vec<Group>,
    /// The samples that are left after dropping those with NaN.
    kept: Option<Vec<usize>>,
    notes: Vec<String>,
}

impl FileSource {
    /// Opens the samples of a layout.
    pub fn open(layout: Layout, options: &ImportOptions) -> Result<Self> {
        let plan = Plan::new(layout, options)?;
        let axes = plan.axes()?;
        // Each sample has a number of its own for each scalar; files without numbers can promise any number of samples.
        let numbers = plan.layout.samples as f64 * plan.frames() as f64 * (plan.layout.scalars.len() + 1) as f64;
        memory::check("data import", size_of::<f64>() as f64 * numbers)?;
        let groups = groups(&plan);
        let scalars = plan.scalars().into_iter().map(|s| (s.name, s.values)).collect();
        let notes = plan.layout.notes.clone();
        let mut source = Self { plan, axes, scalars, groups, kept: None, notes };
        if source.count() == 0 {
            return Err(Error::input("data import", "the files hold no samples"));
        }
        let bytes = source.groups.iter().fold(0usize, |sum, g| sum.saturating_add(g.sample_bytes(&source.plan)));
        if bytes > MOST_SAMPLE_BYTES {
            let [rows, columns] = [source.axes[0].nodes, source.axes[1].nodes];
            let problem = format!("one sample of {rows} × {columns} needs {} GB", bytes >> 30);
            return Err(Error::input("data import", problem).hint("take fewer entries by --stride, or repair the file"));
        }
        source.note_frames();
        source.check_ends()?;
        if options.drop_nan {
            source.drop_nan()?;
        }
        Ok(source)
    }

    /// Number of samples.
    pub fn count(&self) -> usize {
        self.kept.as_ref().map_or(self.plan.layout.samples * self.plan.frames(), Vec::len)
    }

    /// How many samples come from the first `samples` of the layout, whose frames and NaN may make more or fewer.
    pub fn left_of(&self, samples: usize) -> usize {
        let end = samples * self.plan.frames();
        self.kept.as_ref().map_or(end, |kept| kept.partition_point(|&i| i < end))
    }

    /// Names of the fields, in the order of the channels.
    pub fn fields(&self) -> Vec<String> {
        self.plan.layout.fields.iter().map(|f| f.name.clone()).collect()
    }

    /// What the files are taken for.
    pub fn layout_name(&self) -> &str {
        &self.plan.layout.name
    }

    /// Rows and columns of the grid.
    pub fn axes(&self) -> &[AxisGuess; 2] {
        &self.axes
    }

    /// Names of the scalars.
    pub fn scalars(&self) -> Vec<String> {
        self.scalars.iter().map(|(name, _)| name.clone()).collect()
    }

    /// The scalars with their values: one if all samples share it, else one per sample.
    pub fn scalar_values(&self) -> Vec<Scalar> {
        let kept = |values: &[f64]| -> Vec<f64> {
            let each: Vec<f64> = match &self.kept {
                Some(kept) if values.len() > 1 => kept.iter().map(|&i| values[i]).collect(),
                _ => values.to_vec(),
            };
            if each.iter().all(|v| *v == each[0]) { each[..1].to_vec() } else { each }
        };
        self.scalars.iter().map(|(name, values)| Scalar { name: name.clone(), values: kept(values) }).collect()
    }

    /// The axis whose entries became samples; its coordinate is a scalar.
    pub fn frame_axis(&self) -> Option<&str> {
        self.plan.frame_axis().map(|axis| self.plan.layout.axes[axis].name.as_str())
    }

    /// What a user should know about how the files are taken.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Number of samples that are best read at once.
    pub fn block(&mut self) -> Result<usize> {
        let frames = self.plan.frames();
        let bytes: usize = self.groups.iter().map(|g| g.sample_bytes(&self.plan)).sum();
        // Whole chunks of samples, so that none is unfolded twice.
        let mut chunk = frames;
        for group in &mut self.groups {
            chunk = chunk.max(group.chunk()?.saturating_mul(frames));
        }
        let fitting = |limit: usize| (limit / bytes.max(1)).max(1);
        let small = fitting(BLOCK_BYTES);
        let fitting = if small < chunk { fitting(LARGE_BLOCK_BYTES) } else { small };
        let unit = [chunk, frames, 1].into_iter().find(|unit| *unit <= fitting).unwrap_or(1);
        Ok(fitting / unit * unit)
    }

    /// Reads samples; numbers that are not finite are an error.
    pub fn read(&mut self, range: Range<usize>) -> Result<Vec<Sample>> {
        let samples = match &self.kept {
            None => self.read_raw(range.clone())?,
            Some(kept) => {
                let wanted = kept[range.clone()].to_vec();
                let Some((&first, &last)) = wanted.first().zip(wanted.last()) else {
                    return Ok(Vec::new());
                };
                let all = self.read_raw(first..last + 1)?;
                let is_wanted = |i: &usize| wanted.binary_search(&(first + i)).is_ok();
                all.into_iter().enumerate().filter(|(i, _)| is_wanted(i)).map(|(_, sample)| sample).collect()
            }
        };
        if let Some((i, k)) = samples.iter().enumerate().find_map(|(i, s)| Some((i, first_bad_scalar(s)?))) {
            let place = format!("number {} of samples", self.scalars[k].0);
            let (sample, value) = (range.start + i, samples[i].scalars[k]);
            return Err(Error::input(place, format!("found {value} in sample {sample} (counted from 0)"))
                .hint("leave such samples out with --drop-nan, or the number with --scalars"));
        }
        let area = self.area();
        let bad = samples.par_iter().enumerate().find_map_first(|(i, s)| Some((i, first_not_finite(s, area)?)));
        match bad {
            None => Ok(samples),
            Some((i, (channel, value))) => Err(self.not_finite(range.start + i, channel, value)),
        }
    }

    /// Numbers of a field.
    fn area(&self) -> usize {
        self.axes[0].nodes * self.axes[1].nodes
    }

    fn not_finite(&self, sample: usize, channel: usize, value: f32) -> Error {
        let field = &self.plan.layout.fields[channel];
        let place = format!("field {} ({})", field.name, field.pieces[0].file.display());
        let what = if value.is_nan() { "NaN" } else { "an infinite number, or one beyond single precision," };
        Error::input(place, format!("found {what} in sample {sample} (counted from 0)"))
            .hint("leave such samples out with --drop-nan, or repair the file")
    }

    /// Reads samples by their position in the files, with NaN.
    fn read_raw(&mut self, range: Range<usize>) -> Result<Vec<Sample>> {
        let plan = &self.plan;
        let blocks: Vec<Vec<f32>> =
            self.groups.par_iter_mut().map(|group| group.read(plan, range.clone())).collect::<Result<_>>()?;
        let area = self.area();
        let channels = plan.layout.fields.len();
        let scalars = &self.scalars;
        let places: Vec<Vec<usize>> =
            self.groups.iter().map(|g| g.members.iter().map(|member| member.channel).collect()).collect();
        let sample = |i: usize| {
            let mut values = vec![0.0; channels * area];
            for (places, block) in places.iter().zip(&blocks) {
                for (m, channel) in places.iter().enumerate() {
                    let from = (i * places.len() + m) * area;
                    values[channel * area..][..area].copy_from_slice(&block[from..from + area]);
                }
            }
            let index = range.start + i;
            let scalars = scalars.iter().map(|(_, v)| if v.len() == 1 { v[0] } else { v[index] }).collect();
            Sample { values, scalars }
        };
        Ok((0..range.len()).into_par_iter().map(sample).collect())
    }

    fn note_frames(&mut self) {
        let Some(axis) = self.plan.frame_axis() else { return };
        let (name, frames) = (&self.plan.layout.axes[axis].name, self.plan.frames());
        self.notes.push(format!(
            "each of the {frames} entries along {name} is a sample; --slice of a space axis keeps {name} as an axis instead"
        ));
    }

    /// Drops the last node of periodic axes on which the first one is repeated, and says where ends are equal.
    fn check_ends(&mut self) -> Result<()> {
        let sample = self.read_raw(0..1)?.remove(0);
        let shape = [self.axes[0].nodes, self.axes[1].nodes];
        for position in 0..2 {
            let axis = &self.axes[position];
            if axis.cells || axis.nodes < 4 || !ends_repeat(&sample, shape, position) {
                continue;
            }
            let name = axis.name.clone();
            if axis.periodic {
                // The end that coordinates gave lies one spacing too far; an end that was stated is right.
                if axis.coordinates == Coordinates::Even {
                    self.axes[position].last = axis.coordinate((axis.nodes - 1) as f64);
                }
                self.axes[position].nodes -= 1;
                let whole = self.plan.grid_axis(position);
                self.plan.picked[whole].count -= 1;
                self.notes.push(format!(
                    "the last entry along {name} repeats the first, as periodic data may: it is left out"
                ));
            } else {
                self.notes.push(format!(
                    "the first and the last entry along {name} are equal: if {name} is periodic, say --periodic {name}"
                ));
            }
        }
        Ok(())
    }

    fn drop_nan(&mut self) -> Result<()> {
        let (count, block) = (self.count(), self.block()?);
        let area = self.area();
        let is_finite = |s: &Sample| first_not_finite(s, area).is_none() && first_bad_scalar(s).is_none();
        let mut kept = Vec::new();
        for start in (0..count).step_by(block) {
            let samples = self.read_raw(start..count.min(start + block))?;
            kept.extend((start..).zip(&samples).filter(|(_, s)| is_finite(s)).map(|(i, _)| i));
        }
        if kept.is_empty() {
            return Err(Error::input("--drop-nan", format!("all {count} samples hold NaN or infinite numbers")));
        }
        if kept.len() < count {
            self.notes.push(format!(
                "{} of {count} samples hold NaN or infinite numbers and are left out",
                count - kept.len()
            ));
            self.kept = Some(kept);
        }
        Ok(())
    }
}

/// Whether the first and last rows (columns) of all fields agree to single precision, and the second do not.
fn ends_repeat(sample: &Sample, [rows, columns]: [usize; 2], position: usize) -> bool {
    let (n, other) = if position == 0 { (rows, columns) } else { (columns, rows) };
    let mut varies = false;
    for field in sample.values.chunks(rows * columns) {
        let at = |i: usize, j: usize| if position == 0 { field[i * columns + j] } else { field[j * columns + i] };
        let size = field.iter().fold(0f32, |m, v| m.max(v.abs()));
        let apart = |a: usize, b: usize| (0..other).map(|j| (at(a, j) - at(b, j)).abs()).fold(0f32, f32::max);
        if apart(0, n - 1) > 1e-6 * size {
            return false;
        }
        varies |= apart(0, 1) > 1e-5 * size || apart(0, n / 2) > 1e-5 * size;
    }
    varies
}

/// The channel and the value of the first number that is not finite.
fn first_not_finite(sample: &Sample, area: usize) -> Option<(usize, f32)> {
    sample.values.iter().position(|v| !v.is_finite()).map(|i| (i / area, sample.values[i]))
}

/// The position of the first scalar that is not finite in single precision.
fn first_bad_scalar(sample: &Sample) -> Option<usize> {
    sample.scalars.iter().position(|v| !(*v as f32).is_finite())
}

/// A field of a group.
struct Member {
    channel: usize,
    components: Vec<usize>,
}

/// Fields that are components of the same arrays, which are read together.
struct Group {
    roles: Vec<Role>,
    pieces: Vec<Piece>,
    members: Vec<Member>,
    open: Option<OpenFile>,
}

struct OpenFile {
    path: PathBuf,
    file: Box<dyn ArrayFile>,
    positions: HashMap<String, usize>,
}

fn components(field: &FieldSource) -> Vec<usize> {
    field.roles.iter().filter_map(|r| if let Role::Component(k) = r { Some(*k) } else { None }).collect()
}

fn groups(plan: &Plan) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for (channel, field) in plan.layout.fields.iter().enumerate() {
        let roles: Vec<Role> =
            field.roles.iter().map(|r| if matches!(r, Role::Component(_)) { Role::Component(0) } else { *r }).collect();
        let member = Member { channel, components: components(field) };
        match groups.iter_mut().find(|g| g.roles == roles && g.pieces == field.pieces) {
            Some(group) => group.members.push(member),
            None => groups.push(Group { roles, pieces: field.pieces.clone(), members: vec![member], open: None }),
        }
    }
    groups
}

/// The part of an array that samples need, and what it costs to step through it.
struct Block {
    start: Vec<usize>,
    count: Vec<usize>,
}

impl Group {
    /// The first component read and their number, along the `k`-th axis of components.
    fn component_range(&self, k: usize) -> (usize, usize) {
        let first = self.members.iter().map(|m| m.components[k]).min().unwrap_or(0);
        let last = self.members.iter().map(|m| m.components[k]).max().unwrap_or(0);
        (first, last - first + 1)
    }

    /// The part of an array for `samples` (of the piece) and `frames`.
    fn part(&self, plan: &Plan, samples: Range<usize>, frames: Range<usize>) -> Block {
        let picked = &plan.picked;
        let span = |p: Picked, count: usize| (count - 1) * p.step + 1;
        let mut axis_of_components = 0;
        let (start, count) = self
            .roles
            .iter()
            .map(|role| match *role {
                Role::Sample => (samples.start, samples.len()),
                Role::Axis(i) if picked[i].used == Use::Frames => {
                    (picked[i].start + frames.start * picked[i].step, span(picked[i], frames.len()))
                }
                Role::Axis(i) => (picked[i].start, span(picked[i], picked[i].count)),
                Role::Flat(i, j) => (0, plan.layout.axes[i].nodes * plan.layout.axes[j].nodes),
                Role::Component(_) => {
                    axis_of_components += 1;
                    self.component_range(axis_of_components - 1)
                }
            })
            .unzip();
        Block { start, count }
    }

    /// Bytes that are read for one sample.
    fn sample_bytes(&self, plan: &Plan) -> usize {
        let size = |counts: &[usize]| counts.iter().fold(4usize, |size, &n| size.saturating_mul(n));
        let grid = [0, 1].map(|k| plan.picked[plan.grid_axis(k)].count);
        size(&self.part(plan, 0..1, 0..1).count).saturating_add(size(&[self.members.len(), grid[0], grid[1]]))
    }

    /// Samples of one chunk of the first array.
    fn chunk(&mut self) -> Result<usize> {
        let Some(axis) = self.roles.iter().position(|r| *r == Role::Sample) else {
            return Ok(1);
        };
        let piece = self.pieces[0].clone();
        let position = self.find(&piece)?;
        let file = &self.open.as_ref().expect("the file was just opened").file;
        Ok(file.arrays()[position].chunk[axis].max(1))
    }

    /// Opens the file of a piece, unless it is open, and finds its array.
    fn find(&mut self, piece: &Piece) -> Result<usize> {
        if self.open.as_ref().is_none_or(|o| o.path != piece.file) {
            let file = open(&piece.file)?;
            let positions = file.arrays().iter().enumerate().map(|(i, a)| (a.name.clone(), i)).collect();
            self.open = Some(OpenFile { path: piece.file.clone(), file, positions });
        }
        let found = self.open.as_ref().and_then(|o| o.positions.get(&piece.array).copied());
        found.ok_or_else(|| Error::input(piece.file.display(), format!("the array {} has vanished", piece.array)))
    }

    /// The fields of samples, `[n, members, H, W]`.
    fn read(&mut self, plan: &Plan, range: Range<usize>) -> Result<Vec<f32>> {
        let frames = plan.frames();
        let area: usize = (0..2).map(|k| plan.picked[plan.grid_axis(k)].count).product();
        let per_sample = self.members.len() * area;
        let mut out = vec![0.0; range.len() * per_sample];
        // Frames of the first sample, whole samples, frames of the last sample.
        let whole = range.start.next_multiple_of(frames).min(range.end);
        let last = (range.end / frames * frames).max(whole);
        for part in [range.start..whole, whole..last, last..range.end] {
            if !part.is_empty() {
                let out = &mut out[(part.start - range.start) * per_sample..][..part.len() * per_sample];
                self.read_part(plan, part, out)?;
            }
        }
        Ok(out)
    }

    /// Reads whole samples, or frames of one sample.
    fn read_part(&mut self, plan: &Plan, range: Range<usize>, out: &mut [f32]) -> Result<()> {
        let frames = plan.frames();
        let per_sample = out.len() / range.len();
        let wanted = range.start / frames..(range.end - 1) / frames + 1;
        let frame_range = range.start % frames..(range.end - 1) % frames + 1;
        let mut before = 0;
        for piece in self.pieces.clone() {
            let held = before..before + piece.samples;
            before = held.end;
            let samples = wanted.start.max(held.start)..wanted.end.min(held.end);
            if samples.is_empty() {
                continue;
            }
            let block = self.part(plan, samples.start - held.start..samples.end - held.start, frame_range.clone());
            let position = self.find(&piece)?;
            let file = &mut self.open.as_mut().expect("the file was just opened").file;
            check_shape(&file.arrays()[position].shape, &self.roles, &plan.layout.axes, &piece)?;
            let numbers = file.read_f32(position, &block.start, &block.count)?;
            if numbers.is_empty() {
                let problem = format!("the array {} has an axis without points", piece.array);
                return Err(
                    Error::input(piece.file.display(), problem).hint("name another array: `softly data describe`")
                );
            }
            let steps = self.steps(plan, &block.count);
            let first = samples.start * frames + frame_range.start - range.start;
            let targets = out[first * per_sample..].chunks_mut(per_sample);
            for (k, target) in targets.take(samples.len() * frame_range.len()).enumerate() {
                let (sample, frame) = (k / frame_range.len(), k % frame_range.len());
                self.copy(&numbers[sample * steps.sample + frame * steps.frame..], &steps, target);
            }
        }
        Ok(())
    }

    /// Copies the fields of one sample, `[members, H, W]`.
    fn copy(&self, numbers: &[f32], steps: &Steps, out: &mut [f32]) {
        let area = out.len() / self.members.len();
        for (member, out) in self.members.iter().zip(out.chunks_mut(area)) {
            let distance = |k: usize| (member.components[k] - self.component_range(k).0) * steps.components[k];
            let offset: usize = (0..member.components.len()).map(distance).sum();
            steps.copy(&numbers[offset..], out);
        }
    }

    fn steps(&self, plan: &Plan, count: &[usize]) -> Steps {
        let strides = strides(count, false);
        let distance = |i: usize| -> usize {
            let along = |(role, stride): (&Role, &usize)| match *role {
                Role::Axis(axis) if axis == i => *stride,
                Role::Flat(slow, fast) if slow == i => stride * plan.layout.axes[fast].nodes,
                Role::Flat(_, fast) if fast == i => *stride,
                _ => 0,
            };
            self.roles.iter().zip(&strides).map(along).sum()
        };
        // A flat axis is read from its beginning.
        let skipped = |role: &Role| match *role {
            Role::Flat(i, j) => plan.picked[i].start * distance(i) + plan.picked[j].start * distance(j),
            _ => 0,
        };
        let picked = |i: usize| distance(i) * plan.picked[i].step;
        let is_component = |i: &usize| matches!(self.roles[*i], Role::Component(_));
        Steps {
            first: self.roles.iter().map(skipped).sum(),
            sample: self.roles.iter().position(|r| *r == Role::Sample).map_or(0, |axis| strides[axis]),
            frame: plan.frame_axis().map_or(0, picked),
            row: picked(plan.grid_axis(0)),
            column: picked(plan.grid_axis(1)),
            columns: plan.picked[plan.grid_axis(1)].count,
            components: (0..self.roles.len()).filter(is_component).map(|i| strides[i]).collect(),
        }
    }
}

/// Refuses an array that has other sizes along its axes than the layout.
fn check_shape(shape: &[usize], roles: &[Role], axes: &[AxisGuess], piece: &Piece) -> Result<()> {
    let expected = |role: &Role| match *role {
        Role::Axis(i) => Some(axes[i].nodes),
        Role::Flat(i, j) => Some(axes[i].nodes * axes[j].nodes),
        Role::Sample | Role::Component(_) => None,
    };
    let place = || format!("{}:{}", piece.file.display(), piece.array);
    if shape.len() != roles.len() {
        return Err(Error::input(place(), format!("expected {} axes, found the shape {shape:?}", roles.len())));
    }
    let sizes: Vec<(usize, usize)> = roles.iter().zip(shape).filter_map(|(r, &n)| Some((expected(r)?, n))).collect();
    if sizes.iter().all(|(expected, found)| expected == found) {
        return Ok(());
    }
    let [mut wanted, mut found]: [Vec<usize>; 2] =
        [sizes.iter().map(|s| s.0).collect(), sizes.iter().map(|s| s.1).collect()];
    let names: Vec<String> = axes.iter().map(|a| format!("{} along {}", a.nodes, a.name)).collect();
    let problem = format!("its shape is {shape:?}, but the file has coordinates of {}", names.join(", "));
    wanted.sort_unstable();
    found.sort_unstable();
    let hint = if wanted == found {
        "the array is transposed: its axes are in another order than its coordinates"
    } else {
        "the file is not laid out as it was taken for: name the fields by --field NAME=FILE:ARRAY --axes …"
    };
    Err(Error::input(place(), problem).hint(hint))
}

/// Distances in a block between neighbours; zero along axes that a field does not depend on.
struct Steps {
    first: usize,
    sample: usize,
    frame: usize,
    row: usize,
    column: usize,
    columns: usize,
    components: Vec<usize>,
}

impl Steps {
    /// Copies the field `[H, W]` that begins at the first of `numbers`.
    fn copy(&self, numbers: &[f32], out: &mut [f32]) {
        for (i, row) in out.chunks_mut(self.columns).enumerate() {
            let from = &numbers[self.first + i * self.row..];
            if self.column == 1 {
                row.copy_from_slice(&from[..row.len()]);
            } else {
                for (j, value) in row.iter_mut().enumerate() {
                    *value = from[j * self.column];
                }
            }
        }
    }
}
