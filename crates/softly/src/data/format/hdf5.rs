//! HDF5 files, and what is built on them: NetCDF-4 and MATLAB 7.3.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use hdf5_reader::group::Group;
use hdf5_reader::{
    Attribute, ByteOrder, Dataset, Datatype, FilterRegistry, H5Type, Hdf5File, OpenOptions, SliceInfo, SliceInfoElem,
    VarLenKind,
};

use super::number::{Kind, NumberType, Real};
use super::stored::strides;
use super::{ArrayFile, ArrayInfo, Type, Value, find, lzf, truncated};
use crate::error::{Error, Result};

/// The first bytes of the format.
pub const SIGNATURE: &[u8] = b"\x89HDF\r\n\x1a\n";
/// Where they may be: other programs put a block of their own before (MATLAB 512 bytes).
pub const SIGNATURE_PLACES: [usize; 2] = [0, 512];

/// Unfolded chunks that are kept, in bytes.
const CACHE: usize = 32 << 20;
/// Bytes of files that are read at once; larger ones are read piece by piece.
const SMALL: u64 = 1 << 20;
/// Bytes that a damaged file may ask for at once.
const MOST: usize = 2 << 30;
const LZF_FILTER: u16 = 32000;

/// Opens an HDF5 file; MATLAB's files show their axes as MATLAB does, which is the reverse of what is stored.
pub fn open(path: &Path, matlab: bool) -> Result<Box<dyn ArrayFile>> {
    let mut filters = FilterRegistry::new();
    filters.register(
        LZF_FILTER,
        Box::new(|filter, data, _| {
            // The third parameter is the size of a chunk.
            let limit = filter.client_data.get(2).map_or(data.len() * 264, |&n| n as usize);
            lzf::unfold(data, limit)
                .ok_or_else(|| hdf5_reader::error::Error::DecompressionError("damaged LZF chunk".into()))
        }),
    );
    let options =
        OpenOptions::default().with_filter_registry(filters).with_chunk_cache_bytes(CACHE).with_max_read_bytes(MOST);
    let fail = |e| failure(path, &e);
    let held = path.metadata().map_err(Error::io("read", path))?.len();
    let file = if held <= SMALL {
        Hdf5File::from_vec_with_options(fs::read(path).map_err(Error::io("read", path))?, options)
    } else {
        Hdf5File::open_with_options(path, options)
    };
    let file = file.map_err(fail)?;
    let promised = file.superblock().eof_address;
    if promised != u64::MAX && promised > held {
        return Err(truncated(path, format!("it holds {held} bytes of {promised}")));
    }
    let root = file.root_group().map_err(fail)?;
    let attributes = values(&root.attributes().map_err(fail)?);
    let mut listing = Listing { matlab, arrays: Vec::new(), datasets: Vec::new(), seen: HashSet::new() };
    listing.walk(&root, "").map_err(fail)?;
    listing.name_dimensions();
    if listing.arrays.is_empty() {
        return Err(Error::input(path.display(), "the file holds no datasets").hint("save arrays in it"));
    }
    let Listing { arrays, datasets, .. } = listing;
    Ok(Box::new(Hdf5 { path: path.to_path_buf(), file, matlab, arrays, datasets, attributes }))
}

fn failure(path: &Path, error: &hdf5_reader::error::Error) -> Error {
    use hdf5_reader::error::Error as Cause;
    let text = error.to_string();
    let mut inner = error;
    while let Cause::Context { source, .. } = inner {
        inner = source;
    }
    match inner {
        Cause::UnsupportedFilter(filter) => {
            let known = [
                ("32001", "Blosc"),
                ("32004", "LZ4"),
                ("32008", "bitshuffle"),
                ("32013", "ZFP"),
                ("32015", "Zstandard"),
            ];
            let name = known.iter().find(|(id, _)| filter.ends_with(id)).map_or("", |(_, name)| name);
            Error::input(
                path.display(),
                format!("its numbers are compressed by {filter} {name}; gzip, szip and LZF can be read"),
            )
            .hint("convert it with `h5repack -f GZIP=4 in.h5 out.h5`")
        }
        Cause::UnsupportedLayoutClass(3) => {
            Error::input(path.display(), "the dataset is virtual: its numbers are in other files")
                .hint("import those files, or convert it with `h5repack in.h5 out.h5`")
        }
        Cause::UnsupportedEncoding(_) | Cause::ResourceLimit(_) | Cause::UnsupportedDatatypeClass(_) => {
            Error::input(path.display(), text).hint("convert it with `h5repack -f GZIP=4 in.h5 out.h5`")
        }
        Cause::Io(_) => Error::input(path.display(), text),
        _ => truncated(path, text),
    }
}

/// The datasets of a file.
struct Listing {
    matlab: bool,
    arrays: Vec<ArrayInfo>,
    datasets: Vec<Option<Dataset>>,
    /// The groups whose datasets are listed.
    seen: HashSet<u64>,
}

/// Groups within groups that are listed.
const DEEPEST: usize = 16;

impl Listing {
    fn walk(&mut self, group: &Group, prefix: &str) -> hdf5_reader::error::Result<()> {
        // Groups may contain themselves, and each other along many paths.
        if prefix.matches('/').count() > DEEPEST || !self.seen.insert(group.address()) {
            return Ok(());
        }
        let (groups, datasets) = group.member_names()?;
        for name in datasets {
            let path = format!("{prefix}{name}");
            match group.dataset(&name) {
                Ok(dataset) => self.add(path, dataset),
                Err(e) => {
                    self.arrays.push(ArrayInfo::new(
                        path,
                        Vec::new(),
                        Type::Other(format!("a dataset that cannot be opened ({e})")),
                    ));
                    self.datasets.push(None);
                }
            }
        }
        for name in groups {
            // MATLAB keeps the contents of cells and objects there.
            if !(self.matlab && name.starts_with('#')) {
                self.walk(&group.group(&name)?, &format!("{prefix}{name}/"))?;
            }
        }
        Ok(())
    }

    fn add(&mut self, name: String, dataset: Dataset) {
        let attributes = values(&dataset.attributes());
        let is_bare_dimension = find(&attributes, "NAME")
            .is_some_and(|v| v.texts().iter().any(|t| t.starts_with("This is a netCDF dimension but not")));
        if is_bare_dimension {
            return;
        }
        let in_order =
            |sizes: Vec<usize>| -> Vec<usize> { if self.matlab { sizes.into_iter().rev().collect() } else { sizes } };
        let shape = in_order(dataset.shape().iter().map(|&n| n as usize).collect());
        let chunk = dataset.chunks().map(|c| in_order(c.into_iter().map(|n| n as usize).collect()));
        let class = find(&attributes, "MATLAB_class").and_then(|v| v.texts().first().cloned());
        let dtype = match class.as_deref() {
            Some("char") => Type::Other("text".into()),
            Some("cell") => Type::Other("a cell array".into()),
            Some("struct") => Type::Other("a struct".into()),
            _ => value_type(dataset.dtype()),
        };
        let mut info = ArrayInfo { attributes, ..ArrayInfo::new(name, shape, dtype) };
        if let Some(chunk) = chunk.filter(|c| c.len() == info.shape.len()) {
            info.chunk = chunk;
        } else if self.matlab && !info.shape.is_empty() {
            // Samples that are the first axis of MATLAB run fastest in the file.
            info.chunk[0] = info.shape[0];
        }
        self.arrays.push(info);
        self.datasets.push(Some(dataset));
    }

    /// Names the axes of arrays by the dimension scales attached to them.
    fn name_dimensions(&mut self) {
        let names: HashMap<u64, String> = self
            .datasets
            .iter()
            .zip(&self.arrays)
            .filter_map(|(dataset, info)| Some((dataset.as_ref()?.address(), info.name.clone())))
            .collect();
        for (dataset, info) in self.datasets.iter().zip(&mut self.arrays) {
            let Some(dataset) = dataset else { continue };
            let Some(list) = dataset.attributes().into_iter().find(|a| a.name == "DIMENSION_LIST") else { continue };
            let size = dataset.vlen_reference_size();
            let name = |reference: &[u8]| -> Option<String> {
                let address = dataset.resolve_vlen_reference_bytes(reference, 8).ok()?;
                let address = u64::from_le_bytes(address.get(..8)?.try_into().ok()?);
                let name = names.get(&address)?;
                Some(name.rsplit('/').next().unwrap_or(name).to_string())
            };
            let dimensions: Option<Vec<String>> = list.raw_data.chunks_exact(size.max(1)).map(name).collect();
            info.dimensions = dimensions.filter(|d| d.len() == info.shape.len()).unwrap_or_default();
        }
    }
}

fn value_type(datatype: &Datatype) -> Type {
    if let Some(number) = number_type(datatype) {
        return Type::Number(number);
    }
    Type::Other(
        match datatype {
            Datatype::String { .. } | Datatype::VarLen { kind: VarLenKind::String, .. } => "text",
            Datatype::Compound { fields, .. }
                if fields.len() == 2 && fields.iter().all(|f| is_complex_part(&f.name)) =>
            {
                "complex numbers"
            }
            Datatype::Compound { .. } => "records",
            Datatype::VarLen { .. } => "lists of varying length",
            Datatype::Array { .. } => "small arrays as values",
            Datatype::Reference { .. } => "references",
            _ => "opaque bytes",
        }
        .into(),
    )
}

fn is_complex_part(name: &str) -> bool {
    matches!(name, "r" | "i" | "real" | "imag")
}

fn number_type(datatype: &Datatype) -> Option<NumberType> {
    match datatype {
        Datatype::FixedPoint { size, signed, byte_order } => {
            let kind = if *signed { Kind::Signed } else { Kind::Unsigned };
            NumberType::new(kind, usize::from(*size), *byte_order == ByteOrder::BigEndian)
        }
        Datatype::FloatingPoint { size, byte_order } => {
            NumberType::new(Kind::Float, usize::from(*size), *byte_order == ByteOrder::BigEndian)
        }
        // Truth values are an enumeration of FALSE and TRUE.
        Datatype::Enum { base, .. } => number_type(base),
        _ => None,
    }
}

fn values(attributes: &[Attribute]) -> Vec<(String, Value)> {
    attributes.iter().filter_map(|a| Some((a.name.clone(), value(a)?))).collect()
}

fn value(attribute: &Attribute) -> Option<Value> {
    if let Some(number) = number_type(&attribute.datatype) {
        let mut numbers = vec![0.0; attribute.raw_data.len() / number.size()];
        number.decode(&attribute.raw_data, &mut numbers, 1);
        return Some(Value::Numbers(numbers));
    }
    let texts = attribute.read_strings().or_else(|_| attribute.read_string().map(|text| vec![text])).ok()?;
    Some(Value::Texts(texts))
}

/// A number of any stored type, as the reading library wants it.
#[derive(Clone)]
#[repr(transparent)]
struct Number<T>(T);

impl<T: Real> H5Type for Number<T> {
    fn hdf5_type() -> Datatype {
        f64::hdf5_type()
    }

    fn from_bytes(bytes: &[u8], datatype: &Datatype) -> hdf5_reader::error::Result<Self> {
        let mut values = Self::decode_vec(bytes, datatype, 1).unwrap_or_else(|| Err(not_a_number(datatype)))?;
        values.pop().ok_or_else(|| not_a_number(datatype))
    }

    fn element_size(datatype: &Datatype) -> usize {
        number_type(datatype).map_or(0, NumberType::size)
    }

    fn decode_vec(raw: &[u8], datatype: &Datatype, count: usize) -> Option<hdf5_reader::error::Result<Vec<Self>>> {
        let Some(number) = number_type(datatype) else {
            return Some(Err(not_a_number(datatype)));
        };
        let mut values = vec![T::default(); count.min(raw.len() / number.size())];
        number.decode(raw, &mut values, 1);
        Some(Ok(values.into_iter().map(Self).collect()))
    }
}

fn not_a_number(datatype: &Datatype) -> hdf5_reader::error::Error {
    hdf5_reader::error::Error::TypeMismatch { expected: "a number".into(), actual: format!("{datatype:?}") }
}

struct Hdf5 {
    path: PathBuf,
    file: Hdf5File,
    matlab: bool,
    arrays: Vec<ArrayInfo>,
    datasets: Vec<Option<Dataset>>,
    attributes: Vec<(String, Value)>,
}

impl Hdf5 {
    fn dataset(&self, array: usize) -> Result<&Dataset> {
        match &self.datasets[array] {
            Some(dataset) if self.arrays[array].is_numeric() => Ok(dataset),
            _ => Err(self.arrays[array].unreadable(&self.path)),
        }
    }

    /// The block of a dataset, row-major in the order of axes that is shown.
    fn block<T: Real, S: H5Type>(
        &self,
        array: usize,
        start: &[usize],
        count: &[usize],
        number: impl Fn(S) -> T,
    ) -> Result<Vec<T>> {
        let dataset = self.dataset(array)?;
        let slice = |(&start, &count): (&usize, &usize)| SliceInfoElem::Slice {
            start: start as u64,
            end: (start + count) as u64,
            step: 1,
        };
        let mut selections: Vec<SliceInfoElem> = start.iter().zip(count).map(slice).collect();
        if self.matlab {
            selections.reverse();
        }
        let block = dataset.read_slice_parallel::<S>(&SliceInfo { selections }).map_err(|e| failure(&self.path, &e))?;
        let (values, offset) = block.into_raw_vec_and_offset();
        debug_assert!(offset.unwrap_or(0) == 0, "blocks are read whole");
        let mut values: Vec<T> = values.into_iter().map(number).collect();
        if self.matlab {
            values = row_major(&values, count);
        }
        Ok(values)
    }

    /// Applies what the attributes of packed and masked arrays say (the CF conventions of NetCDF): scale, offset, and
    /// NaN for missing values.
    fn unpack<T: Real + Into<f64>>(&self, array: usize, values: &mut [T]) {
        let number = |name| self.arrays[array].attribute(name).and_then(Value::number);
        let (scale, offset) = (number("scale_factor"), number("add_offset"));
        // The mark of missing values is compared as it was read.
        let fill: Option<f64> =
            number("_FillValue").or_else(|| number("missing_value")).map(|fill| T::from_f64(fill).into());
        if scale.is_none() && offset.is_none() && fill.is_none() {
            return;
        }
        for value in values {
            let stored: f64 = (*value).into();
            let is_missing = fill.is_some_and(|fill| fill == stored);
            *value =
                T::from_f64(if is_missing { f64::NAN } else { stored * scale.unwrap_or(1.0) + offset.unwrap_or(0.0) });
        }
    }
}

impl ArrayFile for Hdf5 {
    fn arrays(&self) -> &[ArrayInfo] {
        &self.arrays
    }

    fn attributes(&self) -> &[(String, Value)] {
        &self.attributes
    }

    fn group_attributes(&self, group: &str) -> Result<Vec<(String, Value)>> {
        let attributes = self.file.group(group).and_then(|g| g.attributes()).map_err(|e| failure(&self.path, &e))?;
        Ok(values(&attributes))
    }

    fn read_f32(&mut self, array: usize, start: &[usize], count: &[usize]) -> Result<Vec<f32>> {
        let mut values = match self.arrays[array].dtype {
            Type::Number(number) if number.is_native_f32() => self.block(array, start, count, |v: f32| v)?,
            _ => self.block(array, start, count, |v: Number<f32>| v.0)?,
        };
        self.unpack(array, &mut values);
        Ok(values)
    }

    fn read_f64(&mut self, array: usize, start: &[usize], count: &[usize]) -> Result<Vec<f64>> {
        let mut values = self.block(array, start, count, |v: Number<f64>| v.0)?;
        self.unpack(array, &mut values);
        Ok(values)
    }
}

/// The row-major order of values whose first axis runs fastest.
fn row_major<T: Real>(values: &[T], shape: &[usize]) -> Vec<T> {
    let mut out = vec![T::default(); values.len()];
    let Some((&run, outer)) = shape.split_first() else {
        return values.to_vec();
    };
    let steps = strides(shape, false);
    for (n, values) in values.chunks(run.max(1)).enumerate() {
        let (mut rest, mut target) = (n, 0);
        for (axis, &size) in outer.iter().enumerate() {
            target += rest % size * steps[axis + 1];
            rest /= size;
        }
        for (i, &value) in values.iter().enumerate() {
            out[target + i * steps[0]] = value;
        }
    }
    out
}
