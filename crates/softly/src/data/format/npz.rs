//! NumPy's `.npz` archives: zip files of `.npy` arrays, stored or deflated.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use super::npy;
use super::stored::{Bytes, Compression, FileBytes, Inflated};
use super::streams::{Streams, entry};
use super::{ArrayFile, truncated};
use crate::error::{Error, Result};

/// A file inside an archive.
struct Member {
    name: String,
    encrypted: bool,
    method: u16,
    compressed: u64,
    uncompressed: u64,
    local_header: u64,
}

/// Opens an archive; its arrays are the members whose names end in `.npy`.
pub fn open(path: &Path) -> Result<Box<dyn ArrayFile>> {
    let mut file = File::open(path).map_err(Error::io("read", path))?;
    let members = members(&mut file).map_err(|e| damaged(path, &e))?;
    let mut entries = Vec::new();
    for member in members {
        let Some(name) = member.name.strip_suffix(".npy") else {
            continue;
        };
        if member.encrypted {
            return Err(Error::input(path.display(), format!("{name} is encrypted"))
                .hint("unpack the archive with its password and save the arrays with numpy.savez"));
        }
        let begin = data_begin(&mut file, member.local_header).map_err(|e| damaged(path, &e))?;
        let open = || -> io::Result<Box<dyn Bytes>> {
            Ok(match member.method {
                0 => Box::new(FileBytes::open(path, begin)?),
                _ => Box::new(Inflated::open(path, Compression::Deflate, begin, member.compressed)?),
            })
        };
        if !matches!(member.method, 0 | 8) {
            return Err(Error::input(
                path.display(),
                format!("{name} is compressed by zip method {}; 0 (stored) and 8 (deflate) can be read", member.method),
            )
            .hint("save it with numpy.savez or numpy.savez_compressed"));
        }
        let bytes = open().map_err(Error::io("read", path))?;
        let mut begin_of_stream = Sequential { bytes, position: 0 };
        let (info, stored) = npy::header(&mut begin_of_stream, path, name)?;
        if let Some(stored) = &stored
            && stored.bytes().and_then(|bytes| bytes.checked_add(stored.offset)) != Some(member.uncompressed)
        {
            let what = format!("{name} of shape {:?} does not fit its {} bytes", info.shape, member.uncompressed);
            return Err(truncated(path, what));
        }
        entries.push(entry(info, stored, begin_of_stream.bytes));
    }
    if entries.is_empty() {
        return Err(Error::input(path.display(), "the archive holds no .npy arrays").hint("save it with numpy.savez"));
    }
    Ok(Box::new(Streams::new(path, entries)))
}

fn damaged(path: &Path, error: &io::Error) -> Error {
    truncated(path, format!("its table of contents cannot be read ({error})"))
}

/// Reads one byte range after the other.
struct Sequential {
    bytes: Box<dyn Bytes>,
    position: u64,
}

impl Read for Sequential {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.bytes.read_at(self.position, out)?;
        self.position += out.len() as u64;
        Ok(out.len())
    }
}

/// The archive's table of contents, which lies at its end.
fn members(file: &mut File) -> io::Result<Vec<Member>> {
    let length = file.metadata()?.len();
    // The last record is 22 bytes and a comment of at most 65535.
    let tail_length = length.min(22 + 65_535);
    let tail = read(file, length - tail_length, tail_length as usize)?;
    let end = tail.windows(4).rposition(|w| w == b"PK\x05\x06").ok_or_else(|| bad("no end record"))?;
    let mut count = u64::from(u16_at(&tail, end + 10)?);
    let mut table_length = u64::from(u32_at(&tail, end + 12)?);
    let mut offset = u64::from(u32_at(&tail, end + 16)?);
    if end >= 20 && tail[end - 20..end - 16] == *b"PK\x06\x07" {
        let wide = read(file, u64_at(&tail, end - 12)?, 56)?;
        count = u64_at(&wide, 32)?;
        table_length = u64_at(&wide, 40)?;
        offset = u64_at(&wide, 48)?;
    }
    if offset.checked_add(table_length).is_none_or(|end| end > length) {
        return Err(bad("the table lies beyond the end"));
    }
    let table = read(file, offset, table_length as usize)?;
    let mut at = 0;
    let mut members = Vec::new();
    for _ in 0..count {
        if table.get(at..at + 4) != Some(b"PK\x01\x02") {
            return Err(bad("an entry is missing"));
        }
        let [name, extra, comment] = [28, 30, 32].map(|o| u16_at(&table, at + o).map(usize::from));
        let (name, extra, comment) = (name?, extra?, comment?);
        let slice = |from: usize, n: usize| table.get(from..from + n).ok_or_else(|| bad("an entry ends too early"));
        let mut sizes = [u32_at(&table, at + 24)?, u32_at(&table, at + 20)?, u32_at(&table, at + 42)?].map(u64::from);
        widen(&mut sizes, slice(at + 46 + name, extra)?)?;
        members.push(Member {
            name: String::from_utf8_lossy(slice(at + 46, name)?).into_owned(),
            encrypted: u16_at(&table, at + 8)? & 1 == 1,
            method: u16_at(&table, at + 10)?,
            uncompressed: sizes[0],
            compressed: sizes[1],
            local_header: sizes[2],
        });
        at += 46 + name + extra + comment;
    }
    Ok(members)
}

/// Replaces sizes that do not fit 32 bits by those of the zip64 field, which lists them in the same order.
fn widen(sizes: &mut [u64; 3], extra: &[u8]) -> io::Result<()> {
    let mut at = 0;
    while at + 4 <= extra.len() {
        let (id, length) = (u16_at(extra, at)?, usize::from(u16_at(extra, at + 2)?));
        if id == 1 {
            let mut from = at + 4;
            for size in sizes.iter_mut().filter(|s| **s == u64::from(u32::MAX)) {
                *size = u64_at(extra, from)?;
                from += 8;
            }
        }
        at += 4 + length;
    }
    Ok(())
}

/// Where a member's bytes begin: after its own header, whose length only that header knows.
fn data_begin(file: &mut File, local_header: u64) -> io::Result<u64> {
    let header = read(file, local_header, 30)?;
    if header[..4] != *b"PK\x03\x04" {
        return Err(bad("a member's header is missing"));
    }
    Ok(local_header + 30 + u64::from(u16_at(&header, 26)?) + u64::from(u16_at(&header, 28)?))
}

fn read(file: &mut File, offset: u64, length: usize) -> io::Result<Vec<u8>> {
    file.seek(SeekFrom::Start(offset))?;
    let mut bytes = vec![0; length];
    file.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn bad(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

fn bytes_at<const N: usize>(bytes: &[u8], at: usize) -> io::Result<[u8; N]> {
    bytes.get(at..at + N).and_then(|b| b.try_into().ok()).ok_or_else(|| bad("a record ends too early"))
}

fn u16_at(bytes: &[u8], at: usize) -> io::Result<u16> {
    bytes_at(bytes, at).map(u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> io::Result<u32> {
    bytes_at(bytes, at).map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> io::Result<u64> {
    bytes_at(bytes, at).map(u64::from_le_bytes)
}
