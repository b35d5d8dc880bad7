//! Layouts of files: which arrays are fields, which of their axes are samples, time and space, and the domain's ends.

mod axis;
mod generic;
mod operator;
mod pdebench;
mod the_well;

use std::path::{Path, PathBuf};

pub use axis::{AxisGuess, Coordinates};
use generic::Names;

use super::options::{FieldOption, ImportOptions};
use super::{ArrayFile, ArrayInfo, Value, find, open};
use crate::error::{Error, Result, nearest};

/// What files are taken for.
#[derive(Debug, Clone, PartialEq)]
pub struct Layout {
    /// Name of the layout.
    pub name: String,
    /// The fields.
    pub fields: Vec<FieldSource>,
    /// All axes of the fields besides samples and components.
    pub axes: Vec<AxisGuess>,
    /// Numbers that belong to samples.
    pub scalars: Vec<Scalar>,
    /// Number of samples; a sample may have frames.
    pub samples: usize,
    /// What else a user should know.
    pub notes: Vec<String>,
}

/// A field and where its numbers are.
#[derive(Debug, Clone, PartialEq)]
pub struct FieldSource {
    /// Name of the field.
    pub name: String,
    /// Arrays that hold its samples, one after the other.
    pub pieces: Vec<Piece>,
    /// The meaning of each axis of these arrays. An axis of the layout that does not occur is one that the field does
    /// not depend on.
    pub roles: Vec<Role>,
}

/// An array with some samples of a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// The file.
    pub file: PathBuf,
    /// Name of the array.
    pub array: String,
    /// Number of samples; all are equal if none of the array's axes are samples.
    pub samples: usize,
}

/// The meaning of an array's axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Samples.
    Sample,
    /// An axis of the layout, by position.
    Axis(usize),
    /// Two axes of the layout, by position, one row of the first after the other.
    Flat(usize, usize),
    /// Components, of which one is the field.
    Component(usize),
}

/// A named number, one for all samples or one for each.
#[derive(Debug, Clone, PartialEq)]
pub struct Scalar {
    /// Its name.
    pub name: String,
    /// One value, or as many as samples.
    pub values: Vec<f64>,
}

/// Numbers of the longest list that is read for an axis or for samples.
const MOST_NUMBERS: usize = 1 << 22;

/// What `files` (or the options' fields) are taken for.
pub fn recognise(files: &[PathBuf], options: &ImportOptions) -> Result<Layout> {
    let mut numbers = Vec::new();
    let layouts = match (files.is_empty(), options.fields.is_empty()) {
        (false, true) => files.iter().map(|path| of_file(path, options)).collect::<Result<Vec<_>>>()?,
        (true, false) => {
            let mut layouts = Vec::new();
            for field in &options.fields {
                match numbers_of(field)? {
                    Some(values) => numbers.push((&field.file, Scalar { name: field.name.clone(), values })),
                    None => layouts.push(of_field(field, options)?),
                }
            }
            layouts
        }
        (true, true) => {
            return Err(
                Error::input("data import", "expected a file").hint("name files, or fields as --field u=FILE:ARRAY")
            );
        }
        (false, false) => {
            return Err(Error::input("--field", "expected either files or fields, found both")
                .hint("name the file inside each field: --field u=FILE:ARRAY"));
        }
    };
    let mut layouts = layouts.into_iter();
    let mut whole = layouts.next().ok_or_else(|| {
        Error::input("--field", "expected a field [N, H, W], found arrays with one number per sample only")
            .hint("a field needs two axes of space or time")
    })?;
    for layout in layouts {
        whole = combine(whole, layout)?;
    }
    for (file, scalar) in numbers {
        let (found, samples) = (scalar.values.len(), whole.samples);
        if found != 1 && found != samples {
            let problem = format!("expected one number {} per sample, {samples} in all, found {found}", scalar.name);
            return Err(Error::input(file.display(), problem)
                .hint("a field needs two axes of space or time; a number of samples has one value for each"));
        }
        whole.scalars.retain(|other| other.name != scalar.name);
        whole.scalars.push(scalar);
    }
    Ok(whole)
}

/// The numbers of an array that is a list (one number per sample) or a single number, or of a table's column; `None` for
/// arrays of more axes.
fn numbers_of(field: &FieldOption) -> Result<Option<Vec<f64>>> {
    let mut contents = Contents { path: &field.file, file: open(&field.file)? };
    let header = contents.attribute("header").map(|v| v.texts().to_vec()).unwrap_or_default();
    let column = field.array.as_ref().and_then(|name| header.iter().position(|title| title == name));
    if let (Some(column), [table]) = (column, contents.arrays()) {
        let rows = table.shape[0];
        return contents.file.read_f64(0, &[0, column], &[rows, 1]).map(Some);
    }
    let array = match (&field.array, contents.arrays()) {
        (Some(name), _) => name.clone(),
        (None, [only]) => only.name.clone(),
        (None, _) => return Ok(None),
    };
    let Some(info) = contents.array(&array) else { return Ok(None) };
    let is_list = info.shape.iter().filter(|&&n| n > 1).count() <= 1 && info.size() > 0;
    if is_list { contents.numbers(&array) } else { Ok(None) }
}

/// A file's arrays, at hand for recognition.
pub struct Contents<'a> {
    path: &'a Path,
    file: Box<dyn ArrayFile>,
}

impl Contents<'_> {
    fn arrays(&self) -> &[ArrayInfo] {
        self.file.arrays()
    }

    fn array(&self, name: &str) -> Option<&ArrayInfo> {
        self.arrays().iter().find(|a| a.name == name && a.is_numeric())
    }

    fn attribute(&self, name: &str) -> Option<&Value> {
        find(self.file.attributes(), name)
    }

    /// The shape of an array; empty if there is none of this name.
    fn shape(&self, name: &str) -> Vec<usize> {
        self.array(name).map_or_else(Vec::new, |a| a.shape.clone())
    }

    /// All numbers of a small array such as a list of coordinates; none if there is none of this name.
    fn numbers(&mut self, name: &str) -> Result<Option<Vec<f64>>> {
        let Some(position) = self.arrays().iter().position(|a| a.name == name && a.is_numeric()) else {
            return Ok(None);
        };
        let shape = self.arrays()[position].shape.clone();
        // Coordinates of a grid that changes between samples may be large; only lists are needed.
        if self.arrays()[position].size() > MOST_NUMBERS {
            return Ok(None);
        }
        self.file.read_f64(position, &vec![0; shape.len()], &shape).map(Some)
    }

    /// The field of an array whose axes have these roles.
    fn field(&self, name: &str, array: &str, roles: Vec<Role>) -> FieldSource {
        let shape = self.shape(array);
        let samples = roles.iter().position(|r| *r == Role::Sample).map_or(1, |axis| shape[axis]);
        let pieces = vec![Piece { file: self.path.to_path_buf(), array: array.into(), samples }];
        FieldSource { name: name.into(), pieces, roles }
    }
}

/// The file's layout: the first that fits.
fn of_file(path: &Path, options: &ImportOptions) -> Result<Layout> {
    let mut contents = Contents { path, file: open(path)? };
    for recogniser in [pdebench::arrays, pdebench::groups, the_well::recognise, operator::recognise] {
        if let Some(layout) = recogniser(&mut contents)? {
            return Ok(layout);
        }
    }
    generic::recognise(&mut contents, &Names(&options.axes), None)
}

/// The layout of one array, with a known layout's axes if the file has one.
fn of_field(field: &FieldOption, options: &ImportOptions) -> Result<Layout> {
    let mut contents = Contents { path: &field.file, file: open(&field.file)? };
    let names: Vec<&str> = contents.arrays().iter().map(|a| a.name.as_str()).collect();
    let array = match &field.array {
        Some(array) if names.contains(&array.as_str()) => array.clone(),
        Some(array) => return Err(no_such_array(&field.file, array, &names)),
        None if names.len() == 1 => names[0].to_string(),
        None => {
            let problem = format!("the file has several arrays: {}", list(&names));
            return Err(Error::input(field.file.display(), problem).hint(format!(
                "say which: --field {}={}:ARRAY",
                field.name,
                field.file.display()
            )));
        }
    };
    let info = contents.arrays().iter().find(|a| a.name == array).expect("the name is in the list");
    if !info.is_numeric() {
        return Err(info.unreadable(&field.file));
    }
    let known = of_file(&field.file, &ImportOptions::default()).ok();
    if let Some(mut layout) = known.filter(|l| l.name != generic::NAME) {
        layout.fields.retain(|f| f.pieces[0].array == array);
        if layout.fields.len() == 1 {
            layout.fields[0].name.clone_from(&field.name);
            return Ok(layout);
        }
    }
    let mut layout = generic::recognise(&mut contents, &Names(&options.axes), Some(&array))?;
    let several = layout.fields.len() > 1;
    for (i, source) in layout.fields.iter_mut().enumerate() {
        source.name = if several { format!("{}_{i}", field.name) } else { field.name.clone() };
    }
    Ok(layout)
}

fn no_such_array(path: &Path, array: &str, names: &[&str]) -> Error {
    let hint = match nearest(array, names.iter().copied()) {
        Some(name) => format!("did you mean {name}?"),
        None => "`softly data describe` lists the arrays of a file".into(),
    };
    Error::input(path.display(), format!("there is no array {array}; the file has {}", list(names))).hint(hint)
}

/// Components that an array may have: each is a field.
const MOST_COMPONENTS: usize = 64;

/// Refuses an array of more components than any has.
fn check_components(contents: &Contents, array: &str, count: usize) -> Result<()> {
    if count <= MOST_COMPONENTS {
        return Ok(());
    }
    let problem = format!("expected at most {MOST_COMPONENTS} components, found an axis of {count}");
    Err(Error::input(format!("{}:{array}", contents.path.display()), problem)
        .hint("name its axes with --field NAME=FILE:ARRAY --axes …"))
}

/// At most twenty names.
fn list(names: &[&str]) -> String {
    let more = if names.len() > 20 { format!(" and {} more", names.len() - 20) } else { String::new() };
    format!("{}{more}", names[..names.len().min(20)].join(", "))
}

/// Two layouts as one: more samples of the same fields, or more fields of the same samples.
fn combine(mut a: Layout, b: Layout) -> Result<Layout> {
    let place = |l: &Layout| l.fields[0].pieces[0].file.display().to_string();
    let (first, second) = (place(&a), place(&b));
    for (x, y) in a.axes.iter().zip(&b.axes) {
        if x.nodes != y.nodes || x.name != y.name {
            let problem = format!("axis {} has {} entries, but {} of {first} has {}", y.name, y.nodes, x.name, x.nodes);
            return Err(Error::input(second, problem).hint("fields of a dataset share one grid"));
        }
    }
    if a.axes.len() != b.axes.len() {
        let names = |l: &Layout| l.axes.iter().map(|x| x.name.clone()).collect::<Vec<_>>().join(", ");
        let problem = format!("its axes are {}; those of {first} are {}", names(&b), names(&a));
        return Err(Error::input(second, problem).hint("fields of a dataset share one grid"));
    }
    for (x, y) in a.axes.iter().zip(&b.axes) {
        if [x.first, x.last] != [y.first, y.last] && x.coordinates != y.coordinates {
            let note = format!(
                "axis {} is {} to {} in {first} and {} to {} in {second}",
                x.name, x.first, x.last, y.first, y.last
            );
            a.notes.push(format!("{note}; the first is taken"));
        }
    }
    let same_fields = a.fields.len() == b.fields.len()
        && a.fields.iter().zip(&b.fields).all(|(x, y)| x.name == y.name && x.roles == y.roles);
    if same_fields {
        for (x, y) in a.fields.iter_mut().zip(b.fields) {
            x.pieces.extend(y.pieces);
        }
        a.scalars = joined_scalars(&a.scalars, a.samples, &b.scalars, b.samples, &second)?;
        a.samples = a.samples.saturating_add(b.samples);
        return Ok(a);
    }
    if let Some(twice) = b.fields.iter().find(|y| a.fields.iter().any(|x| x.name == y.name)) {
        return Err(Error::input(second, format!("the field {} is in {first} as well", twice.name))
            .hint("name fields by --field NAME=FILE:ARRAY"));
    }
    if a.samples != b.samples {
        let problem = format!("expected {} samples as in {first}, found {}", a.samples, b.samples);
        return Err(Error::input(second, problem).hint("fields of a dataset have the same samples"));
    }
    a.fields.extend(b.fields);
    a.notes.extend(b.notes.into_iter().filter(|note| !a.notes.contains(note)).collect::<Vec<_>>());
    let new: Vec<Scalar> = b.scalars.into_iter().filter(|s| a.scalars.iter().all(|t| t.name != s.name)).collect();
    a.scalars.extend(new);
    Ok(a)
}

/// Scalars of the samples of two files, one after the other.
fn joined_scalars(a: &[Scalar], n: usize, b: &[Scalar], m: usize, place: &str) -> Result<Vec<Scalar>> {
    let each = |values: &[f64], n: usize| if values.len() == 1 { vec![values[0]; n] } else { values.to_vec() };
    a.iter()
        .map(|x| {
            let y = b.iter().find(|y| y.name == x.name).ok_or_else(|| {
                Error::input(place, format!("the number {} of the first file is missing", x.name))
                    .hint("import files of the same kind together")
            })?;
            let values = if x.values.len() == 1 && x.values == y.values {
                x.values.clone()
            } else {
                [each(&x.values, n), each(&y.values, m)].concat()
            };
            Ok(Scalar { name: x.name.clone(), values })
        })
        .collect()
}
