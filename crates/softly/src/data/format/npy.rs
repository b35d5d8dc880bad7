//! NumPy's `.npy` arrays: any order, any byte order, floats and integers.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use npyz::{DType, Endianness, Order, TypeChar};

use super::number::{Kind, NumberType};
use super::stored::{FileBytes, Stored};
use super::streams::{Streams, entry};
use super::{ArrayFile, ArrayInfo, Type, truncated};
use crate::error::{Error, Result};
use crate::npy::read_header;

/// Opens a `.npy` file; its only array is called after the file.
pub fn open(path: &Path) -> Result<Box<dyn ArrayFile>> {
    let file = File::open(path).map_err(Error::io("read", path))?;
    let length = file.metadata().map_err(Error::io("read", path))?.len();
    let name = path.file_stem().map_or_else(|| "array".into(), |s| s.to_string_lossy().into_owned());
    let (info, stored) = header(&mut BufReader::new(file), path, &name)?;
    if let Some(stored) = &stored {
        let held = length.saturating_sub(stored.offset);
        if stored.bytes().is_none_or(|bytes| bytes > held) {
            let numbers = held / stored.number.size() as u64;
            return Err(truncated(
                path,
                format!("it holds {numbers} numbers; its header promises the shape {:?}", info.shape),
            ));
        }
    }
    let bytes = FileBytes::open(path, 0).map_err(Error::io("read", path))?;
    Ok(Box::new(Streams::new(path, vec![entry(info, stored, Box::new(bytes))])))
}

/// Reads a header: the array `name` and, if its numbers can be read, where they begin after the input's first byte.
pub fn header(input: &mut dyn Read, path: &Path, name: &str) -> Result<(ArrayInfo, Option<Stored>)> {
    let mut counted = Counted { input, bytes: 0 };
    let header = read_header(&mut counted).map_err(|e| {
        Error::input(path.display(), format!("{name} is no readable .npy array ({e})")).hint("save it with numpy.save")
    })?;
    let offset = counted.bytes;
    let shape: Vec<usize> = header.shape().iter().map(|&n| n as usize).collect();
    let fortran = header.order() == Order::Fortran && shape.len() > 1;
    match number_type(&header.dtype()) {
        Ok(number) => {
            let stored = Stored { shape: shape.clone(), fortran, number, offset };
            let chunk = stored.chunk();
            let info = ArrayInfo { chunk, ..ArrayInfo::new(name, shape, Type::Number(number)) };
            Ok((info, Some(stored)))
        }
        Err(reason) => Ok((ArrayInfo::new(name, shape, Type::Other(reason)), None)),
    }
}

fn number_type(dtype: &DType) -> std::result::Result<NumberType, String> {
    let other = || Err(format!("{} values", dtype.descr()));
    let DType::Plain(plain) = dtype else {
        return other();
    };
    let kind = match plain.type_char() {
        TypeChar::Float => Kind::Float,
        TypeChar::Int => Kind::Signed,
        TypeChar::Uint | TypeChar::Bool => Kind::Unsigned,
        TypeChar::Complex => return Err("complex numbers".into()),
        TypeChar::ByteStr | TypeChar::UnicodeStr => return Err("text".into()),
        TypeChar::Object => return Err("Python objects".into()),
        _ => return other(),
    };
    NumberType::new(kind, plain.size_field() as usize, plain.endianness() == Endianness::Big).map_or_else(other, Ok)
}

/// A reader that counts its bytes.
struct Counted<'a> {
    input: &'a mut dyn Read,
    bytes: u64,
}

impl Read for Counted<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let read = self.input.read(out)?;
        self.bytes += read as u64;
        Ok(read)
    }
}
