//! A `dataset.toml` that a user wrote: fields and axes, without counts, statistics and hashes; and the arrays beside it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use softly_pde::grid::Placement;
use toml::{Table, Value};

use crate::constraint::config::ConstraintConfig;
use crate::data::folder::{SCALARS, check_equation, check_name};
use crate::data::format::{self, AxisGuess, FieldSource, Layout, Piece, Role, Scalar};
use crate::data::generator::{FieldSpec, GeneratorConfig};
use crate::data::split::Split;
use crate::error::{Error, Result};
use crate::files::read_text;

/// What has to be found out anew, whatever a complete `dataset.toml` says.
const MEASURED: [&str; 5] = ["format", "train", "valid", "hash", "blocks"];

/// `dataset.toml` as a user writes it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Draft {
    fields: Vec<DraftField>,
    #[serde(default = "square", alias = "grid")]
    axes: Vec<DraftAxis>,
    /// Numbers that all samples share.
    #[serde(default)]
    pub constants: BTreeMap<String, f64>,
    /// Seed of generated samples.
    pub seed: Option<u64>,
    /// The generator, if one made the samples.
    pub generator: Option<GeneratorConfig>,
    /// Where the samples come from, if they were not generated.
    pub origin: Option<Table>,
    /// The equation that they obey, if it is known.
    pub equation: Option<ConstraintConfig>,
}

/// A field: its name, or a table.
#[derive(Debug, Clone, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a name such as \"u\", or a table { name = \"u\", quantity = \"…\", unit = \"…\" }"
)]
enum DraftField {
    Name(String),
    Whole(WholeField),
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct WholeField {
    name: String,
    #[serde(default)]
    quantity: String,
    #[serde(default)]
    unit: String,
    #[serde(default)]
    scalar: bool,
    /// Of a complete dataset; found out anew.
    #[serde(rename = "statistics")]
    _statistics: Option<Table>,
}

/// An axis: its name, or a table.
#[derive(Debug, Clone, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a name such as \"x\", or a table { name = \"x\", first = 0.0, last = 1.0, periodic = true, \
                 placement = \"cells\" }"
)]
enum DraftAxis {
    Name(String),
    Whole(WholeAxis),
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct WholeAxis {
    name: String,
    nodes: Option<usize>,
    #[serde(default)]
    first: f64,
    #[serde(default = "one")]
    last: f64,
    #[serde(default)]
    periodic: bool,
    #[serde(default)]
    placement: Placement,
}

fn one() -> f64 {
    1.0
}

fn square() -> Vec<DraftAxis> {
    vec![DraftAxis::Name("x".into()), DraftAxis::Name("y".into())]
}

impl DraftField {
    fn whole(&self) -> WholeField {
        match self {
            Self::Whole(whole) => whole.clone(),
            Self::Name(name) => {
                let (name, empty) = (name.clone(), String::new);
                WholeField { name, quantity: empty(), unit: empty(), scalar: false, _statistics: None }
            }
        }
    }
}

impl DraftAxis {
    fn whole(&self) -> WholeAxis {
        match self {
            Self::Whole(whole) => whole.clone(),
            Self::Name(name) => WholeAxis {
                name: name.clone(),
                nodes: None,
                first: 0.0,
                last: 1.0,
                periodic: false,
                placement: Placement::Nodes,
            },
        }
    }
}

/// A folder with a draft and arrays.
#[derive(Debug, Clone)]
pub struct HandMade {
    /// Its `dataset.toml`.
    pub draft: Draft,
    /// The arrays as a layout; training samples first.
    pub layout: Layout,
    /// Training samples, if the folder has them apart from held-out ones.
    pub train: Option<usize>,
    /// All array files.
    pub files: Vec<PathBuf>,
}

impl Draft {
    /// Reads the `dataset.toml` of `folder`.
    pub fn read(folder: &Path) -> Result<Self> {
        let place = folder.join("dataset.toml");
        if !place.exists() {
            return Err(Error::input(folder.display(), "expected a dataset.toml in this folder, found none").hint(
                "write one with two lines, fields = [\"u\"] and axes = [\"t\", \"x\"], or name the files instead of the folder",
            ));
        }
        let broken = |e: toml::de::Error| Error::input(place.display(), e.to_string().trim_end());
        let mut table: Table = toml::from_str(&read_text(&place)?).map_err(broken)?;
        table.retain(|key, _| !MEASURED.contains(&key));
        let draft: Self = Value::Table(table)
            .try_into()
            .map_err(|e: toml::de::Error| broken(e).hint("fields = [\"u\"] and axes = [\"t\", \"x\"] are enough"))?;
        if draft.axes.len() != 2 {
            let problem = format!("expected two axes, found {}", draft.axes.len());
            return Err(Error::input(place.display(), problem).hint("axes = [\"t\", \"x\"] names rows and columns"));
        }
        draft
            .check_names()
            .and_then(|()| draft.equation.as_ref().map_or(Ok(()), check_equation))
            .map_err(|problem| Error::input(place.display(), problem))?;
        Ok(draft)
    }

    /// Refuses names that cannot be used, and those that mean two things.
    fn check_names(&self) -> std::result::Result<(), String> {
        let fields = self.fields.iter().map(|field| field.whole().name);
        let mut taken: Vec<String> = self.axes.iter().map(|axis| axis.whole().name).collect();
        for name in fields.chain(self.constants.keys().cloned()) {
            check_name(&name)?;
            if taken.contains(&name) {
                return Err(format!("`{name}` is the name of two of the fields, axes and constants"));
            }
            taken.push(name);
        }
        Ok(())
    }

    /// A field with the words of the draft.
    pub fn spec(&self, name: &str) -> FieldSpec {
        let known = self.fields.iter().map(DraftField::whole).find(|field| field.name == name);
        let (quantity, unit) = known.map(|field| (field.quantity, field.unit)).unwrap_or_default();
        FieldSpec { name: name.into(), quantity, unit }
    }
}

impl HandMade {
    /// The dataset that a user wrote in `folder`.
    pub fn open(folder: &Path) -> Result<Self> {
        let draft = Draft::read(folder)?;
        let parts = parts(folder, &draft)?;
        let mut hand_made = Self {
            layout: Layout {
                name: "a folder with dataset.toml".into(),
                fields: Vec::new(),
                axes: Vec::new(),
                scalars: Vec::new(),
                samples: 0,
                notes: Vec::new(),
            },
            train: None,
            files: Vec::new(),
            draft,
        };
        let mut counts = Vec::new();
        for part in &parts {
            counts.push(hand_made.add_part(part)?);
        }
        hand_made.layout.samples = counts.iter().sum();
        hand_made.train = (parts.len() == 2).then(|| counts[0]);
        let no_fields =
            || Error::input(folder.join("dataset.toml").display(), "expected at least one field [N, H, W], found none");
        let first = hand_made.layout.fields.first().ok_or_else(no_fields)?.pieces[0].clone();
        let shape = array(&first.file)?.1;
        hand_made.layout.axes = axes(folder, &hand_made.draft, &shape, &first.file)?;
        Ok(hand_made)
    }

    /// The scalars that are columns of `scalars.npy`.
    pub fn table(&self) -> Vec<FieldSpec> {
        let in_table = self.draft.fields.iter().map(DraftField::whole).filter(|field| field.scalar);
        in_table.map(|field| self.draft.spec(&field.name)).collect()
    }

    /// Takes the arrays of a folder; gives the number of samples.
    fn add_part(&mut self, folder: &Path) -> Result<usize> {
        let mut seen: Option<(PathBuf, Vec<usize>)> = None;
        let fields: Vec<WholeField> = self.draft.fields.iter().map(DraftField::whole).collect();
        let in_table: Vec<String> = fields.iter().filter(|f| f.scalar).map(|f| f.name.clone()).collect();
        for field in fields.iter().filter(|f| !f.scalar) {
            let path = folder.join(format!("{}.npy", field.name));
            let (name, shape) = array(&path)?;
            self.files.push(path.clone());
            if matches!(shape[..], [_] | [_, 1]) {
                self.add_numbers(&field.name, read_all(&path, &shape)?);
                continue;
            }
            if shape.len() != 3 {
                let problem = format!("expected [N, H, W] (or one number per sample, [N]), found the shape {shape:?}");
                return Err(Error::input(path.display(), problem).hint("a single field [H, W]: save array[None]"));
            }
            if let Some((other, before)) = &seen
                && *before != shape
            {
                let turned = before[0] == shape[0] && before[1] == shape[2] && before[2] == shape[1];
                let hint =
                    if turned { "one of them is transposed" } else { "fields of a dataset share samples and grid" };
                let problem = format!("expected the shape {before:?} of {}, found {shape:?}", other.display());
                return Err(Error::input(path.display(), problem).hint(hint));
            }
            let piece = Piece { file: path.clone(), array: name, samples: shape[0] };
            match self.layout.fields.iter_mut().find(|known| known.name == field.name) {
                Some(known) => known.pieces.push(piece),
                None => self.layout.fields.push(FieldSource {
                    name: field.name.clone(),
                    pieces: vec![piece],
                    roles: vec![Role::Sample, Role::Axis(0), Role::Axis(1)],
                }),
            }
            seen = Some((path, shape));
        }
        let samples = seen.map_or(0, |(_, shape)| shape[0]);
        if !in_table.is_empty() {
            self.add_table(&folder.join(format!("{SCALARS}.npy")), &in_table, samples)?;
        }
        let all = self.layout.fields.first().map_or(0, |f| f.pieces.iter().map(|p| p.samples).sum());
        if let Some(short) = self.layout.scalars.iter().find(|s| s.values.len() != all) {
            let path = folder.join(format!("{}.npy", short.name));
            let found = (short.values.len() + samples).saturating_sub(all);
            let problem = format!("expected {samples} numbers, one per sample, found {found}");
            return Err(Error::input(path.display(), problem));
        }
        Ok(samples)
    }

    fn add_numbers(&mut self, name: &str, values: Vec<f64>) {
        match self.layout.scalars.iter_mut().find(|known| known.name == name) {
            Some(known) => known.values.extend(values),
            None => self.layout.scalars.push(Scalar { name: name.into(), values }),
        }
    }

    /// Takes the columns of a `scalars.npy`, `[N, S]`.
    fn add_table(&mut self, path: &Path, names: &[String], samples: usize) -> Result<()> {
        let (_, shape) = array(path)?;
        if shape != [samples, names.len()] {
            let expected = format!("[{samples}, {}], a column for each of {}", names.len(), names.join(", "));
            return Err(Error::input(path.display(), format!("expected {expected}, found the shape {shape:?}")));
        }
        let values = read_all(path, &shape)?;
        for (k, name) in names.iter().enumerate() {
            self.add_numbers(name, values.iter().skip(k).step_by(names.len()).copied().collect());
        }
        self.files.push(path.to_path_buf());
        Ok(())
    }
}

/// The folders that hold the arrays: `train` and `valid`, or the dataset's own.
fn parts(folder: &Path, draft: &Draft) -> Result<Vec<PathBuf>> {
    let split = Split::BOTH.map(|split| folder.join(split.name()));
    let Some(first) = draft.fields.iter().map(DraftField::whole).find(|field| !field.scalar) else {
        return Ok(vec![folder.to_path_buf()]);
    };
    let file = format!("{}.npy", first.name);
    let [flat, train, valid] = [folder, &split[0], &split[1]].map(|part| part.join(&file));
    // A half-done completion has moved its arrays already.
    let under_way = folder.join(".partial").exists();
    match (flat.exists(), train.exists(), valid.exists()) {
        (true, true, _) | (true, _, true) if !under_way => {
            let problem = format!("found both {} and arrays in train or valid", flat.display());
            Err(Error::input(folder.display(), problem)
                .hint(format!("remove train and valid to make them again from {file}, or remove {file}")))
        }
        (true, ..) => Ok(vec![folder.to_path_buf()]),
        (false, true, true) => Ok(split.to_vec()),
        (false, true, false) => {
            let problem = format!("expected held-out samples as well, found no {}", valid.display());
            Err(Error::input(folder.display(), problem).hint(format!(
                "move some samples there, or put {file} beside dataset.toml, so that a share of it is held out (--valid)"
            )))
        }
        (false, ..) => {
            let problem = format!("expected {} and {}, or {}", train.display(), valid.display(), flat.display());
            Err(Error::input(folder.display(), problem).hint("a field's array has the field's name"))
        }
    }
}

/// Name and shape of the only array of a file, which holds real numbers.
fn array(path: &Path) -> Result<(String, Vec<usize>)> {
    let file = format::open(path)?;
    match file.arrays() {
        [only] if only.is_numeric() => Ok((only.name.clone(), only.shape.clone())),
        [only] => Err(only.unreadable(path)),
        several => {
            let names: Vec<&str> = several.iter().map(|a| a.name.as_str()).collect();
            let problem = format!("expected a .npy array, found a file of several arrays: {}", names.join(", "));
            Err(Error::input(path.display(), problem)
                .hint("import that file itself: `softly data import FILE --out DIR`"))
        }
    }
}

fn read_all(path: &Path, shape: &[usize]) -> Result<Vec<f64>> {
    format::open(path)?.read_f64(0, &vec![0; shape.len()], shape)
}

/// The axes of arrays of `shape` `[N, H, W]`, as the draft describes them.
fn axes(folder: &Path, draft: &Draft, shape: &[usize], file: &Path) -> Result<Vec<AxisGuess>> {
    let axes: Vec<WholeAxis> = draft.axes.iter().map(DraftAxis::whole).collect();
    let stated = axes.iter().map(|axis| axis.nodes).collect::<Vec<_>>();
    let fits = |nodes: [usize; 2]| stated.iter().zip(nodes).all(|(stated, n)| stated.is_none_or(|s| s == n));
    if !fits([shape[1], shape[2]]) {
        let wanted: Vec<String> = axes.iter().filter_map(|a| Some(format!("{} along {}", a.nodes?, a.name))).collect();
        let problem = format!("dataset.toml says {} nodes, the array has the shape {shape:?}", wanted.join(" and "));
        let hint = if fits([shape[2], shape[1]]) {
            "the array is transposed: exchange the axes in dataset.toml, or transpose the arrays"
        } else {
            "leave out `nodes`: the arrays say how many there are"
        };
        return Err(Error::input(file.display(), problem).hint(hint));
    }
    let place = folder.join("dataset.toml").display().to_string();
    let guess = |(axis, nodes): (WholeAxis, usize)| AxisGuess {
        periodic: axis.periodic,
        cells: axis.placement == Placement::Cells,
        ..AxisGuess::new(&axis.name, nodes, [axis.first, axis.last], place.clone())
    };
    Ok(axes.into_iter().zip([shape[1], shape[2]]).map(guess).collect())
}
