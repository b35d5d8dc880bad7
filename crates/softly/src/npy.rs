//! `.npy` arrays of `f4` and `f8` in C order, little-endian.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use npyz::{AutoSerialize, DType, NpyHeader, TypeChar, WriterBuilder};

use crate::error::{Error, Result};
use crate::files::write_atomically;

/// An array of any rank, row-major.
#[derive(Debug, Clone, PartialEq)]
pub struct Array {
    /// Size along each axis.
    pub shape: Vec<usize>,
    /// Values, row-major.
    pub values: Vec<f64>,
}

/// Reads an `f4` or `f8` array.
pub fn read(path: &Path) -> Result<Array> {
    let mut reader = Reader::open(path)?;
    let mut values = vec![0.0; reader.shape.iter().product()];
    reader.read(&mut values)?;
    Ok(Array { shape: reader.shape, values })
}

/// An `f4` or `f8` array that is read piece by piece.
#[derive(Debug)]
pub struct Reader {
    /// Size along each axis.
    pub shape: Vec<usize>,
    path: PathBuf,
    /// Bytes per number, 4 or 8.
    width: usize,
    /// Bytes before the first number.
    start: u64,
    input: BufReader<File>,
}

impl Reader {
    /// Opens an array; refuses what is no array, what is not `f4` or `f8`, and files that end too early.
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(Error::io("read", path))?;
        let length = file.metadata().map_err(Error::io("read", path))?.len();
        let mut input = BufReader::with_capacity(1 << 16, file);
        let place = path.display();
        let head = input.fill_buf().map_err(Error::io("read", path))?;
        if let Some(other) = other_format(head) {
            return Err(Error::input(&place, format!("expected a .npy array, found {other}"))
                .hint("`softly data import` makes a dataset of it; `softly data describe` lists its arrays"));
        }
        let header = read_header(&mut input).map_err(|e| {
            Error::input(&place, format!("expected a .npy array, found something else ({e})"))
                .hint("save it with numpy.save")
        })?;
        let shape: Vec<usize> = header.shape().iter().map(|&n| n as usize).collect();
        if header.order() == npyz::Order::Fortran && shape.len() > 1 {
            return Err(Error::input(&place, "expected C order, found Fortran order")
                .hint("save numpy.ascontiguousarray(array)"));
        }
        let dtype = header.dtype();
        let width = match &dtype {
            DType::Plain(ts) if ts.type_char() == TypeChar::Float && ts.endianness() != npyz::Endianness::Big => {
                ts.size_field() as usize
            }
            _ => 0,
        };
        if width != 4 && width != 8 {
            let problem = format!("expected little-endian f4 or f8 numbers, found {}", dtype.descr());
            return Err(Error::input(&place, problem).hint("save array.astype('<f4')"));
        }
        let start = input.stream_position().map_err(Error::io("read", path))?;
        let promised = shape.iter().try_fold(width as u64, |bytes, &n| bytes.checked_mul(n as u64));
        if promised.is_none_or(|bytes| length - start < bytes) {
            let held = (length - start) / width as u64;
            let problem = format!("the file ends after {held} numbers; its header promises the shape {shape:?}");
            return Err(Error::input(&place, problem).hint("the file is truncated: copy or save it again"));
        }
        Ok(Self { shape, path: path.to_path_buf(), width, start, input })
    }

    /// Reads the next numbers, row-major.
    pub fn read(&mut self, values: &mut [f64]) -> Result<()> {
        let mut bytes = vec![0; values.len() * self.width];
        self.input.read_exact(&mut bytes).map_err(Error::io("read", &self.path))?;
        if self.width == 4 {
            for (value, &bytes) in values.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *value = f64::from(f32::from_le_bytes(bytes));
            }
        } else {
            for (value, &bytes) in values.iter_mut().zip(bytes.as_chunks::<8>().0) {
                *value = f64::from_le_bytes(bytes);
            }
        }
        Ok(())
    }

    /// The same array, read anywhere.
    pub fn by_position(self) -> Positioned {
        Positioned { path: self.path, width: self.width, start: self.start, file: Mutex::new(self.input.into_inner()) }
    }
}

/// An `f4` or `f8` array that is read anywhere, as `f4`.
#[derive(Debug)]
pub struct Positioned {
    path: PathBuf,
    width: usize,
    start: u64,
    file: Mutex<File>,
}

impl Positioned {
    /// `count` numbers from number `first` on, row-major.
    pub fn read(&self, first: usize, count: usize) -> Result<Vec<f32>> {
        let mut bytes = vec![0; count * self.width];
        let place = SeekFrom::Start(self.start + first as u64 * self.width as u64);
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.seek(place).and_then(|_| file.read_exact(&mut bytes)).map_err(Error::io("read", &self.path))?;
        drop(file);
        Ok(if self.width == 4 {
            bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
        } else {
            bytes.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes) as f32).collect()
        })
    }
}

/// Bytes of the longest header: room for a shape of any rank.
const LONGEST_HEADER: usize = 1 << 16;

/// Brackets within brackets that a header may have; structured types need four. Parsing takes a multiple of the time for each.
const DEEPEST_HEADER: usize = 6;

/// Reads the header of an array; one that says to be longer than any is refused before room for it is made, and one with more
/// brackets within brackets than any before it is parsed.
pub(crate) fn read_header(mut input: impl Read) -> io::Result<NpyHeader> {
    let refused = |problem: String| Err(io::Error::new(io::ErrorKind::InvalidData, problem));
    // Magic, version and length; from version 2 on the length has four bytes.
    let mut start = vec![0; 10];
    input.read_exact(&mut start)?;
    let length = if start.starts_with(b"\x93NUMPY") && start[6] > 1 {
        start.resize(12, 0);
        input.read_exact(&mut start[10..])?;
        u32::from_le_bytes([start[8], start[9], start[10], start[11]]) as usize
    } else {
        usize::from(u16::from_le_bytes([start[8], start[9]]))
    };
    if length > LONGEST_HEADER {
        return refused(format!("a header of {length} bytes, where {LONGEST_HEADER} are the most"));
    }
    let mut text = Vec::new();
    input.take(length as u64).read_to_end(&mut text)?;
    let (mut depth, mut deepest) = (0_usize, 0);
    for byte in &text {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    if deepest > DEEPEST_HEADER {
        return refused(format!("{deepest} brackets within brackets, where {DEEPEST_HEADER} are the most"));
    }
    NpyHeader::from_reader(start.chain(&text[..]))
}

/// The format of a file of arrays that begins with `head` and is no `.npy`, in words.
fn other_format(head: &[u8]) -> Option<&'static str> {
    let known: [(&[u8], &str); 4] = [
        (b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
        (b"PK\x03\x04", "an .npz archive"),
        (b"MATLAB 5.0", "a MATLAB file"),
        (b"MATLAB 7.3", "a MATLAB file"),
    ];
    known.iter().find(|(magic, _)| head.starts_with(magic)).map(|(_, words)| *words)
}

/// The header of an `f4` array of the given shape, for files that are written piece by piece.
pub fn header_f32(shape: &[usize]) -> Vec<u8> {
    let shape = shape.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let dictionary = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({shape},), }}");
    // Magic, version, length and dictionary fill a multiple of 64 bytes, the last of which ends the line.
    let length = (10 + dictionary.len() + 1).next_multiple_of(64) - 10;
    let mut header = b"\x93NUMPY\x01\x00".to_vec();
    header.extend((length as u16).to_le_bytes());
    header.extend(format!("{dictionary:<width$}\n", width = length - 1).into_bytes());
    header
}

/// Writes `f4` values of the given shape.
pub fn write_f32(path: &Path, shape: &[usize], values: impl Iterator<Item = f32>) -> Result<()> {
    write(path, shape, values)
}

/// Writes `f8` values of the given shape.
pub fn write_f64(path: &Path, shape: &[usize], values: impl Iterator<Item = f64>) -> Result<()> {
    write(path, shape, values)
}

fn write<T: AutoSerialize>(path: &Path, shape: &[usize], values: impl Iterator<Item = T>) -> Result<()> {
    write_atomically(path, |out| {
        let shape: Vec<u64> = shape.iter().map(|&n| n as u64).collect();
        let mut writer =
            npyz::WriteOptions::new().default_dtype().shape(&shape).writer(out as &mut dyn Write).begin_nd()?;
        writer.extend(values)?;
        writer.finish()
    })
}

/// Reads points `[N, 2]`.
pub fn read_points(path: &Path) -> Result<Vec<[f64; 2]>> {
    let array = read(path)?;
    if array.shape.len() != 2 || array.shape[1] != 2 {
        return Err(Error::input(path.display(), format!("expected points [N, 2], found shape {:?}", array.shape)));
    }
    if array.shape[0] == 0 {
        return Err(Error::input(path.display(), "expected at least one point, found none"));
    }
    if let Some(bad) = array.values.iter().position(|v| !v.is_finite()) {
        let problem = format!("expected finite coordinates, found {} in point {}", array.values[bad], bad / 2);
        return Err(Error::input(path.display(), problem).hint("drop or repair such points"));
    }
    Ok(array.values.chunks_exact(2).map(|p| [p[0], p[1]]).collect())
}
