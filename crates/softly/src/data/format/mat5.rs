//! MATLAB's v5 (`-v6`) and compressed v7 (`-v7`) files, read without unpacking them to memory.
//!
//! A file is a header of 128 bytes and a list of elements, each a type, a length and bytes; an array is an element of
//! elements (flags, size, name, numbers), possibly behind zlib. Numbers lie column after column.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use super::number::{Kind, NumberType};
use super::stored::{Bytes, Compression, FileBytes, Inflated, Stored};
use super::streams::{Entry, Streams, entry};
use super::{ArrayFile, ArrayInfo, Type, truncated};
use crate::error::{Error, Result};

const MATRIX: u32 = 14;
const COMPRESSED: u32 = 15;

/// Opens a MATLAB v5 or v7 file.
pub fn open(path: &Path) -> Result<Box<dyn ArrayFile>> {
    let mut file = File::open(path).map_err(Error::io("read", path))?;
    let length = file.metadata().map_err(Error::io("read", path))?.len();
    let mut header = [0; 128];
    file.read_exact(&mut header).map_err(|_| truncated(path, "its header ends too early"))?;
    let big_endian = match &header[126..] {
        b"IM" => false,
        b"MI" => true,
        _ => return Err(truncated(path, "its header lacks the byte order")),
    };
    let mut entries = Vec::new();
    let mut at = 128;
    while at < length {
        let mut tag = [0; 8];
        file.seek(SeekFrom::Start(at)).map_err(Error::io("read", path))?;
        file.read_exact(&mut tag).map_err(|_| truncated(path, "an element's header ends too early"))?;
        let [kind, bytes] = [0, 4].map(|o| word(&tag, o, big_endian));
        let end = at + 8 + u64::from(bytes);
        if end > length {
            let read: Vec<String> = entries.iter().map(|e: &Entry| e.name().to_string()).collect();
            let before =
                if read.is_empty() { "the first array".into() } else { format!("the array after {}", read.join(", ")) };
            return Err(truncated(path, format!("{before} needs {} bytes more", end - length)));
        }
        if kind == COMPRESSED {
            let inflated = Inflated::open(path, Compression::Zlib, at + 8, u64::from(bytes));
            // Deflate makes at most 1032 bytes of one.
            let most = 1032 * u64::from(bytes) + 64;
            entries.extend(array(Box::new(inflated.map_err(Error::io("read", path))?), most, big_endian, path)?);
        } else if kind == MATRIX {
            let plain = FileBytes::open(path, at).map_err(Error::io("read", path))?;
            entries.extend(array(Box::new(plain), 8 + u64::from(bytes), big_endian, path)?);
        }
        at = end;
    }
    if entries.is_empty() {
        return Err(Error::input(path.display(), "the file holds no arrays").hint("save variables with -v7"));
    }
    Ok(Box::new(Streams::new(path, entries)))
}

/// The array that an element of at most `most` bytes is; none for unnamed ones, which MATLAB adds for itself.
fn array(mut bytes: Box<dyn Bytes>, most: u64, big_endian: bool, path: &Path) -> Result<Option<Entry>> {
    // Its parts begin after its own type and length.
    let parts = parts(bytes.as_mut(), 8, big_endian)
        .map_err(|e| truncated(path, format!("an array's description cannot be read ({e})")))?;
    if parts.name.is_empty() {
        return Ok(None);
    }
    let other = |reason: &str| Type::Other(reason.to_string());
    let dtype = match parts.class {
        _ if parts.complex => other("complex numbers"),
        1 => other("a cell array"),
        2 => other("a struct"),
        3 => other("an object"),
        4 => other("text"),
        5 => other("a sparse matrix"),
        6..=15 => number_type(parts.number, big_endian).map_or_else(|| other("unknown numbers"), Type::Number),
        _ => other("a function or an unknown class"),
    };
    let Type::Number(number) = dtype else {
        return Ok(Some(entry(ArrayInfo::new(parts.name, parts.shape, dtype), None, bytes)));
    };
    let stored = Stored { shape: parts.shape.clone(), fortran: true, number, offset: parts.offset };
    if stored.bytes() != Some(u64::from(parts.bytes)) || parts.offset + u64::from(parts.bytes) > most {
        let what = format!("{} of shape {:?} holds {} bytes of {number}", parts.name, parts.shape, parts.bytes);
        return Err(truncated(path, what));
    }
    let chunk = stored.chunk();
    let info = ArrayInfo { chunk, ..ArrayInfo::new(parts.name, parts.shape, dtype) };
    Ok(Some(entry(info, Some(stored), bytes)))
}

/// The description of an array.
struct Parts {
    class: u32,
    complex: bool,
    shape: Vec<usize>,
    name: String,
    /// Type, length and place of the numbers.
    number: u32,
    bytes: u32,
    offset: u64,
}

fn parts(bytes: &mut dyn Bytes, at: u64, big_endian: bool) -> io::Result<Parts> {
    let bad = |what| io::Error::new(io::ErrorKind::InvalidData, what);
    let mut at = at;
    let mut next = |bytes: &mut dyn Bytes, limit: u32| -> io::Result<Vec<u8>> {
        let part = tag(bytes, at, big_endian)?;
        if part.bytes > limit {
            return Err(bad("a part is too long"));
        }
        let mut content = vec![0; part.bytes as usize];
        bytes.read_at(part.offset, &mut content)?;
        at = part.next;
        Ok(content)
    };
    let flags = next(bytes, 8)?;
    let shape = next(bytes, 4 * 64)?;
    let name = next(bytes, 4096)?;
    if flags.len() < 4 {
        return Err(bad("the flags are missing"));
    }
    let flags = word(&flags, 0, big_endian);
    let shape = shape.as_chunks::<4>().0.iter().map(|n| word(n, 0, big_endian) as usize).collect();
    let class = flags & 0xff;
    // Other classes have other parts in the place of numbers.
    let numbers = if (6..=15).contains(&class) { tag(bytes, at, big_endian)? } else { Tag::default() };
    Ok(Parts {
        class,
        complex: flags & 0x800 != 0,
        shape,
        name: String::from_utf8_lossy(&name).into_owned(),
        number: numbers.kind,
        bytes: numbers.bytes,
        offset: numbers.offset,
    })
}

/// The beginning of an element: its type, its length, where its bytes are and where the next element begins.
#[derive(Default)]
struct Tag {
    kind: u32,
    bytes: u32,
    offset: u64,
    next: u64,
}

fn tag(bytes: &mut dyn Bytes, at: u64, big_endian: bool) -> io::Result<Tag> {
    let mut raw = [0; 8];
    bytes.read_at(at, &mut raw)?;
    let first = word(&raw, 0, big_endian);
    // Up to four bytes are kept inside the tag; their number is then in the upper half of the first word.
    if first >> 16 != 0 {
        return Ok(Tag { kind: first & 0xffff, bytes: first >> 16, offset: at + 4, next: at + 8 });
    }
    let length = word(&raw, 4, big_endian);
    Ok(Tag { kind: first, bytes: length, offset: at + 8, next: at + 8 + u64::from(length).next_multiple_of(8) })
}

fn word(bytes: &[u8], at: usize, big_endian: bool) -> u32 {
    let raw = [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
    if big_endian { u32::from_be_bytes(raw) } else { u32::from_le_bytes(raw) }
}

/// The stored type, which may be smaller than the array's class: whole doubles are kept as integers.
fn number_type(kind: u32, big_endian: bool) -> Option<NumberType> {
    let (kind, bytes) = match kind {
        1 => (Kind::Signed, 1),
        2 => (Kind::Unsigned, 1),
        3 => (Kind::Signed, 2),
        4 => (Kind::Unsigned, 2),
        5 => (Kind::Signed, 4),
        6 => (Kind::Unsigned, 4),
        7 => (Kind::Float, 4),
        9 => (Kind::Float, 8),
        12 => (Kind::Signed, 8),
        13 => (Kind::Unsigned, 8),
        _ => return None,
    };
    NumberType::new(kind, bytes, big_endian)
}
