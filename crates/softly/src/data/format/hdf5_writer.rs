//! A small writer of HDF5 files: groups, attributes and contiguous arrays, whose numbers are filled in afterwards.
//!
//! The file is a superblock, one object header per group and array, one heap for texts, and the arrays. Sizes of
//! headers do not depend on addresses, so addresses are dealt out first and everything is written once.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;

use hdf5_reader::checksum::jenkins_lookup3;

/// The address of nothing.
const UNDEFINED: u64 = u64::MAX;
const SUPERBLOCK_BYTES: u64 = 48;

/// The value of an attribute.
#[derive(Debug, Clone)]
pub enum Attribute {
    /// A number.
    Number(f64),
    /// A count.
    Count(i64),
    /// A truth value.
    Truth(bool),
    /// A list of truth values.
    Truths(Vec<bool>),
    /// A text.
    Text(String),
    /// A list of texts.
    Texts(Vec<String>),
}

/// A group or an array, with its attributes.
#[derive(Debug, Clone, Default)]
pub struct Node {
    attributes: Vec<(String, Attribute)>,
    children: Vec<(String, Node)>,
    /// Shape of an array of `f32`; a group has none.
    shape: Option<Vec<usize>>,
}

impl Node {
    /// A group.
    pub fn group(children: Vec<(&str, Self)>) -> Self {
        let children = children.into_iter().map(|(name, child)| (name.to_string(), child)).collect();
        Self { children, ..Self::default() }
    }

    /// An array of `f32`.
    pub fn array(shape: &[usize]) -> Self {
        Self { shape: Some(shape.to_vec()), ..Self::default() }
    }

    /// Adds an attribute.
    #[must_use]
    pub fn with(mut self, name: &str, value: Attribute) -> Self {
        self.attributes.push((name.into(), value));
        self
    }

    /// Adds a child.
    pub fn add(&mut self, name: &str, child: Self) {
        self.children.push((name.into(), child));
    }
}

/// A file whose arrays are being filled.
pub struct Hdf5Writer {
    file: File,
    /// Path, first byte and number of entries of each array.
    arrays: Vec<(String, u64, usize)>,
}

impl Hdf5Writer {
    /// Creates a file with the groups, arrays and attributes of `root`; all numbers are zero.
    pub fn create(path: &Path, root: &Node) -> io::Result<Self> {
        let mut layout = Layout { headers: Vec::new(), texts: Vec::new(), arrays: Vec::new(), heap: 0, data: 0 };
        // Addresses come last, so a first pass with none of them finds the sizes.
        layout.place(root, "");
        layout.heap = SUPERBLOCK_BYTES + layout.headers.iter().map(|h| h.len() as u64).sum::<u64>();
        layout.data = layout.heap + heap(&layout.texts).len() as u64;
        let (heap_address, data) = (layout.heap, layout.data);
        let mut layout =
            Layout { headers: Vec::new(), texts: Vec::new(), arrays: Vec::new(), heap: heap_address, data };
        let root_address = layout.place(root, "");
        let end = layout.arrays.last().map_or(layout.data, |(_, first, count)| first + 4 * *count as u64);
        let mut file = File::create(path)?;
        file.write_all(&superblock(end, root_address))?;
        for header in &layout.headers {
            file.write_all(header)?;
        }
        file.write_all(&heap(&layout.texts))?;
        file.set_len(end)?;
        Ok(Self { file, arrays: layout.arrays })
    }

    /// Writes numbers of an array (by its path) from entry `first` on.
    pub fn write(&mut self, array: &str, first: usize, numbers: &[f32]) -> io::Result<()> {
        let found = self.arrays.iter().find(|(path, ..)| path == array);
        let (_, begin, count) = found.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, array.to_string()))?;
        if first + numbers.len() > *count {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{array} holds {count} numbers")));
        }
        self.file.seek(SeekFrom::Start(begin + 4 * first as u64))?;
        let bytes: Vec<u8> = numbers.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.file.write_all(&bytes)
    }

    /// Makes the file safe against a crash of the machine.
    pub fn finish(self) -> io::Result<()> {
        self.file.sync_all()
    }
}

fn superblock(end: u64, root: u64) -> Vec<u8> {
    let mut block = b"\x89HDF\r\n\x1a\n\x02\x08\x08\x00".to_vec();
    for address in [0, UNDEFINED, end, root] {
        block.extend(address.to_le_bytes());
    }
    block.extend(jenkins_lookup3(&block).to_le_bytes());
    block
}

/// Headers in the order of the file, and what they refer to.
struct Layout {
    headers: Vec<Vec<u8>>,
    texts: Vec<String>,
    arrays: Vec<(String, u64, usize)>,
    heap: u64,
    data: u64,
}

impl Layout {
    /// Appends the headers of a node and its children, children first; gives the node's address.
    fn place(&mut self, node: &Node, path: &str) -> u64 {
        let mut messages = Vec::new();
        if let Some(shape) = &node.shape {
            let count = shape.iter().product();
            let first = self.arrays.last().map_or(self.data, |(_, first, count)| first + 4 * *count as u64);
            self.arrays.push((path.to_string(), first, count));
            messages.push(message(1, &dataspace(shape)));
            messages.push(message(3, &float(4)));
            // Numbers are allocated at once and are zero before they are written.
            messages.push(message(5, &[3, 0x09]));
            let place = [first, 4 * count as u64].map(u64::to_le_bytes).concat();
            messages.push(message(8, &[&[3, 1], &place[..]].concat()));
        } else {
            let none = [UNDEFINED; 2].map(u64::to_le_bytes).concat();
            messages.push(message(2, &[&[0, 0], &none[..]].concat()));
            messages.push(message(10, &[0, 0]));
        }
        for (name, child) in &node.children {
            let inner = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
            let address = self.place(child, &inner);
            // Version, a name in UTF-8, its length in one byte.
            let mut link = vec![1, 0x10, 1, name.len() as u8];
            link.extend(name.bytes());
            link.extend(address.to_le_bytes());
            messages.push(message(6, &link));
        }
        for (name, value) in &node.attributes {
            messages.push(self.attribute(name, value));
        }
        let address = SUPERBLOCK_BYTES + self.headers.iter().map(|h| h.len() as u64).sum::<u64>();
        let messages = messages.concat();
        let mut header = b"OHDR\x02\x02".to_vec();
        header.extend((messages.len() as u32).to_le_bytes());
        header.extend(messages);
        header.extend(jenkins_lookup3(&header).to_le_bytes());
        self.headers.push(header);
        address
    }

    fn attribute(&mut self, name: &str, value: &Attribute) -> Vec<u8> {
        let (datatype, space, data) = match value {
            Attribute::Number(v) => (float(8), dataspace(&[]), v.to_le_bytes().to_vec()),
            Attribute::Count(v) => (integer(8, true), dataspace(&[]), v.to_le_bytes().to_vec()),
            Attribute::Truth(v) => (truth(), dataspace(&[]), vec![u8::from(*v)]),
            Attribute::Truths(v) => (truth(), dataspace(&[v.len()]), v.iter().map(|&v| u8::from(v)).collect()),
            Attribute::Text(v) => (text(), dataspace(&[]), self.references(std::slice::from_ref(v))),
            Attribute::Texts(v) => (text(), dataspace(&[v.len()]), self.references(v)),
        };
        let mut content = vec![3, 0];
        for length in [name.len() + 1, datatype.len(), space.len()] {
            content.extend((length as u16).to_le_bytes());
        }
        content.push(1);
        content.extend(name.bytes().chain([0]));
        content.extend([datatype, space, data].concat());
        message(12, &content)
    }

    /// Lengths and places in the heap of texts.
    fn references(&mut self, texts: &[String]) -> Vec<u8> {
        let mut references = Vec::new();
        for text in texts {
            self.texts.push(text.clone());
            references.extend((text.len() as u32).to_le_bytes());
            references.extend(self.heap.to_le_bytes());
            references.extend((self.texts.len() as u32).to_le_bytes());
        }
        references
    }
}

/// The heap of all texts, numbered from one; number zero is the free rest.
fn heap(texts: &[String]) -> Vec<u8> {
    let mut objects = Vec::new();
    for (i, text) in texts.iter().enumerate() {
        objects.extend([i as u16 + 1, 1].map(u16::to_le_bytes).concat());
        objects.extend([0; 4]);
        objects.extend((text.len() as u64).to_le_bytes());
        objects.extend(text.bytes());
        objects.resize(objects.len().next_multiple_of(8), 0);
    }
    let size = (16 + objects.len() + 16).max(4096);
    let free = size - 16 - objects.len();
    let mut heap = b"GCOL\x01\0\0\0".to_vec();
    heap.extend((size as u64).to_le_bytes());
    heap.extend(objects);
    heap.extend([0; 8]);
    heap.extend((free as u64).to_le_bytes());
    heap.resize(size, 0);
    heap
}

fn message(kind: u8, content: &[u8]) -> Vec<u8> {
    let length = (content.len() as u16).to_le_bytes();
    [&[kind, length[0], length[1], 0], content].concat()
}

fn dataspace(shape: &[usize]) -> Vec<u8> {
    let mut space = vec![2, shape.len() as u8, 0, u8::from(!shape.is_empty())];
    space.extend(shape.iter().flat_map(|&n| (n as u64).to_le_bytes()));
    space
}

/// IEEE 754, little-endian: places and sizes in bits of sign, exponent and fraction.
fn float(bytes: u32) -> Vec<u8> {
    let bits = bytes as u16 * 8;
    let (exponent, bias) = if bytes == 4 { (8u8, 127u32) } else { (11, 1023) };
    let fraction = bits as u8 - 1 - exponent;
    let mut datatype = vec![0x11, 0x20, bits as u8 - 1, 0];
    datatype.extend(bytes.to_le_bytes());
    datatype.extend([0u16, bits].map(u16::to_le_bytes).concat());
    datatype.extend([fraction, exponent, 0, fraction]);
    datatype.extend(bias.to_le_bytes());
    datatype
}

fn integer(bytes: u32, signed: bool) -> Vec<u8> {
    let mut datatype = vec![0x10, if signed { 0x08 } else { 0 }, 0, 0];
    datatype.extend(bytes.to_le_bytes());
    datatype.extend([0u16, bytes as u16 * 8].map(u16::to_le_bytes).concat());
    datatype
}

/// An enumeration of FALSE and TRUE, as h5py writes truth values.
fn truth() -> Vec<u8> {
    let mut datatype = vec![0x38, 2, 0, 0];
    datatype.extend(1u32.to_le_bytes());
    datatype.extend(integer(1, true));
    datatype.extend(b"FALSE\0TRUE\0\x00\x01");
    datatype
}

/// A text in UTF-8 of any length.
fn text() -> Vec<u8> {
    let mut datatype = vec![0x19, 0x01, 0x01, 0];
    datatype.extend(16u32.to_le_bytes());
    datatype.extend(integer(1, false));
    datatype
}
