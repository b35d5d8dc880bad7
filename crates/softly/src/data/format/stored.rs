//! Arrays whose numbers lie one after the other in a file or in a compressed stream.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use flate2::read::{DeflateDecoder, ZlibDecoder};

use super::number::{NumberType, Real};

/// Bytes that are read from a file at once, at most.
const BUFFER: usize = 1 << 18;

/// Bytes that are read at once from a part of `length` bytes.
fn buffer(length: u64) -> usize {
    length.clamp(1 << 12, BUFFER as u64) as usize
}

/// Bytes at a distance from a beginning: a part of a file, or what a compressed part unfolds to.
pub trait Bytes: Send {
    /// Fills `out` with the bytes from `offset` on.
    fn read_at(&mut self, offset: u64, out: &mut [u8]) -> io::Result<()>;
}

/// The bytes of a file from `base` on.
#[derive(Debug)]
pub struct FileBytes {
    input: BufReader<File>,
    base: u64,
    position: u64,
}

impl FileBytes {
    /// Opens a file for reading from `base` on.
    pub fn open(path: &Path, base: u64) -> io::Result<Self> {
        let file = File::open(path)?;
        let length = file.metadata()?.len();
        let mut input = BufReader::with_capacity(buffer(length), file);
        input.seek(SeekFrom::Start(base))?;
        Ok(Self { input, base, position: base })
    }
}

impl Bytes for FileBytes {
    fn read_at(&mut self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let target = self.base + offset;
        // Short ways stay inside the buffer.
        self.input.seek_relative(target as i64 - self.position as i64)?;
        self.position = target;
        self.input.read_exact(out)?;
        self.position += out.len() as u64;
        Ok(())
    }
}

/// How a part of a file is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// Deflate with zlib's header (MATLAB).
    Zlib,
    /// Deflate alone (zip).
    Deflate,
}

/// The bytes that a compressed part of a file unfolds to. Reading goes forwards; a step back starts again.
pub struct Inflated {
    path: PathBuf,
    compression: Compression,
    base: u64,
    length: u64,
    stream: BufReader<Box<dyn Read + Send>>,
    position: u64,
}

impl Inflated {
    /// Opens the `length` compressed bytes of a file from `base` on.
    pub fn open(path: &Path, compression: Compression, base: u64, length: u64) -> io::Result<Self> {
        let stream = Self::start(path, compression, base, length)?;
        Ok(Self { path: path.to_path_buf(), compression, base, length, stream, position: 0 })
    }

    fn start(
        path: &Path,
        compression: Compression,
        base: u64,
        length: u64,
    ) -> io::Result<BufReader<Box<dyn Read + Send>>> {
        let mut file = File::open(path)?;
        file.seek(SeekFrom::Start(base))?;
        let part = BufReader::with_capacity(buffer(length), file).take(length);
        let stream: Box<dyn Read + Send> = match compression {
            Compression::Zlib => Box::new(ZlibDecoder::new(part)),
            Compression::Deflate => Box::new(DeflateDecoder::new(part)),
        };
        Ok(BufReader::with_capacity(buffer(length), stream))
    }
}

impl Bytes for Inflated {
    fn read_at(&mut self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if offset < self.position {
            self.stream = Self::start(&self.path, self.compression, self.base, self.length)?;
            self.position = 0;
        }
        while self.position < offset {
            let held = self.stream.fill_buf()?.len();
            if held == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let skipped = held.min((offset - self.position) as usize);
            self.stream.consume(skipped);
            self.position += skipped as u64;
        }
        self.stream.read_exact(out)?;
        self.position += out.len() as u64;
        Ok(())
    }
}

/// Where the numbers of an array lie.
#[derive(Debug, Clone)]
pub struct Stored {
    /// Size along each axis, as NumPy shows it.
    pub shape: Vec<usize>,
    /// Whether the first axis runs fastest (Fortran, MATLAB) instead of the last.
    pub fortran: bool,
    /// The type of a number.
    pub number: NumberType,
    /// Bytes before the first number.
    pub offset: u64,
}

impl Stored {
    /// Bytes of all numbers, if a computer can count them.
    pub fn bytes(&self) -> Option<u64> {
        self.shape.iter().try_fold(self.number.size() as u64, |bytes, &n| bytes.checked_mul(n as u64))
    }

    /// The part that is read at once without reading anything twice: one entry along the slowest axis.
    pub fn chunk(&self) -> Vec<usize> {
        let mut chunk = self.shape.clone();
        let slowest = if self.fortran { chunk.last_mut() } else { chunk.first_mut() };
        if let Some(n) = slowest {
            *n = 1;
        }
        chunk
    }

    /// Reads the block of `count` entries from `start` on along each axis into `out`, row-major.
    pub fn read<T: Real>(
        &self,
        bytes: &mut dyn Bytes,
        start: &[usize],
        count: &[usize],
        out: &mut [T],
    ) -> io::Result<()> {
        let rank = self.shape.len();
        if out.is_empty() {
            return Ok(());
        }
        let strides = strides(&self.shape, self.fortran);
        let out_strides = self::strides(count, false);
        // The fastest axes that are read whole form one run of bytes; in Fortran order a run is one axis.
        let mut outer: Vec<usize> = if self.fortran { (0..rank).rev().collect() } else { (0..rank).collect() };
        let mut run = 1;
        let mut spacing = 1;
        while let Some(axis) = outer.pop() {
            run *= count[axis];
            spacing = if self.fortran { out_strides[axis] } else { 1 };
            if self.fortran || count[axis] != self.shape[axis] {
                break;
            }
        }
        let size = self.number.size();
        let mut raw = vec![0; run * size];
        let mut index = vec![0; rank];
        loop {
            // Past the end of any file for a shape that no file holds.
            let position =
                (0..rank).fold(0usize, |sum, a| sum.saturating_add((start[a] + index[a]).saturating_mul(strides[a])));
            let target: usize = (0..rank).map(|a| index[a] * out_strides[a]).sum();
            bytes.read_at(self.offset.saturating_add(position.saturating_mul(size) as u64), &mut raw)?;
            self.number.decode(&raw, &mut out[target..], spacing);
            if !advance(&mut index, &outer, count) {
                return Ok(());
            }
        }
    }
}

/// Distance between neighbours along each axis.
pub fn strides(shape: &[usize], fortran: bool) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    let mut step = 1usize;
    for i in 0..shape.len() {
        let axis = if fortran { i } else { shape.len() - 1 - i };
        strides[axis] = step;
        step = step.saturating_mul(shape[axis]);
    }
    strides
}

/// The next index along `axes` (slowest first); false after the last one.
fn advance(index: &mut [usize], axes: &[usize], count: &[usize]) -> bool {
    for &axis in axes.iter().rev() {
        index[axis] += 1;
        if index[axis] < count[axis] {
            return true;
        }
        index[axis] = 0;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::format::number::Kind;

    struct Memory(Vec<u8>);

    impl Bytes for Memory {
        fn read_at(&mut self, offset: u64, out: &mut [u8]) -> io::Result<()> {
            let from = offset as usize;
            out.copy_from_slice(&self.0[from..from + out.len()]);
            Ok(())
        }
    }

    #[test]
    fn every_block_of_both_orders_holds_its_numbers() {
        let shape = vec![3, 4, 5];
        for fortran in [false, true] {
            let place = strides(&shape, fortran);
            let mut raw = vec![0; 7 + 60];
            let value = |i: usize, j: usize, k: usize| (i * 20 + j * 5 + k) as f32;
            for (i, j, k) in (0..60).map(|n| (n / 20, n / 5 % 4, n % 5)) {
                raw[7 + i * place[0] + j * place[1] + k * place[2]] = value(i, j, k) as u8;
            }
            let number = NumberType::new(Kind::Unsigned, 1, false).unwrap();
            let stored = Stored { shape: shape.clone(), fortran, number, offset: 7 };
            for (start, count) in
                [([0, 0, 0], [3, 4, 5]), ([1, 0, 0], [2, 4, 5]), ([0, 1, 2], [3, 2, 3]), ([2, 3, 4], [1, 1, 1])]
            {
                let mut out = vec![0f32; count.iter().product()];
                stored.read(&mut Memory(raw.clone()), &start, &count, &mut out).unwrap();
                let expected: Vec<f32> = (0..out.len())
                    .map(|n| {
                        let (i, j, k) = (n / (count[1] * count[2]), n / count[2] % count[1], n % count[2]);
                        value(start[0] + i, start[1] + j, start[2] + k)
                    })
                    .collect();
                assert_eq!(out, expected, "fortran {fortran}, {start:?} {count:?}");
            }
        }
    }
}
