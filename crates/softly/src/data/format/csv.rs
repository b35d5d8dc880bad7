//! Numbers as text, one row per line, separated by commas, semicolons, tabs or spaces.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use rayon::prelude::*;

use super::number::{Kind, NumberType, Real};
use super::{ArrayFile, ArrayInfo, Type, Value};
use crate::error::{Error, Result};

/// Opens a table of numbers; its only array `[rows, columns]` is called after the file.
pub fn open(path: &Path, head: &[u8]) -> Result<Box<dyn ArrayFile>> {
    let name = path.file_stem().map_or_else(|| "table".into(), |s| s.to_string_lossy().into_owned());
    let separator = separator(head);
    let mut rows = rows(path)?;
    if rows.is_empty() {
        return Err(Error::input(path.display(), "the table has no rows").hint("copy or save it again"));
    }
    let mut table =
        Table { path: path.to_path_buf(), arrays: Vec::new(), attributes: Vec::new(), rows: Vec::new(), separator };
    let first = table.text(&rows[..1])?;
    let cells: Vec<&str> = cells(line(&first), separator).collect();
    let columns = cells.len();
    if cells.iter().all(|cell| cell.replace(',', ".").parse::<f64>().is_err()) {
        if cells.iter().any(|cell| cell.chars().any(char::is_control)) || rows.len() == 1 {
            let kinds = ".npy, .npz, .csv, .mat, HDF5 or NetCDF-4";
            return Err(Error::input(path.display(), format!("expected {kinds}, found text without numbers"))
                .hint("the first line holds no number and no table follows"));
        }
        let names = cells.iter().map(|cell| cell.trim_matches('"').to_string()).collect();
        table.attributes.push(("header".into(), Value::Texts(names)));
        rows.remove(0);
    }
    let number = NumberType::new(Kind::Float, 8, false).expect("doubles exist");
    let info = ArrayInfo::new(name, vec![rows.len(), columns], Type::Number(number));
    table.arrays.push(ArrayInfo { chunk: vec![1, columns], ..info });
    table.rows = rows;
    Ok(Box::new(table))
}

/// A line that holds a row: where it begins and ends, and its number counted from one.
#[derive(Clone, Copy)]
struct Row {
    begin: u64,
    end: u64,
    line: usize,
}

/// The lines of a file that are neither blank nor comments.
fn rows(path: &Path) -> Result<Vec<Row>> {
    let mut input = BufReader::with_capacity(1 << 20, File::open(path).map_err(Error::io("read", path))?);
    let mut rows = Vec::new();
    let (mut begin, mut line, mut text) = (0, 0, Vec::new());
    loop {
        text.clear();
        let length = input.read_until(b'\n', &mut text).map_err(Error::io("read", path))? as u64;
        if length == 0 {
            return Ok(rows);
        }
        line += 1;
        let content = text.trim_ascii();
        if !content.is_empty() && content[0] != b'#' && content[0] != b'%' {
            rows.push(Row { begin, end: begin + length, line });
        }
        begin += length;
    }
}

/// The separator of a table by its first row: whichever of `;`, tab and `,` occurs; spaces otherwise.
fn separator(head: &[u8]) -> Option<char> {
    let first = head.split(|&b| b == b'\n').find(|l| !l.trim_ascii().is_empty() && !l.starts_with(b"#"));
    [';', '\t', ','].into_iter().find(|&c| first.is_some_and(|line| line.contains(&(c as u8))))
}

fn line(raw: &[u8]) -> &str {
    // The mark of byte order that some programs put before UTF-8.
    let raw = raw.strip_prefix(b"\xef\xbb\xbf").unwrap_or(raw).trim_ascii();
    std::str::from_utf8(raw).unwrap_or("\u{fffd}")
}

/// The cells of a line, without blanks around them and without an empty one after a last separator.
fn cells(line: &str, separator: Option<char>) -> Box<dyn Iterator<Item = &str> + '_> {
    match separator {
        Some(c) => Box::new(line.strip_suffix(c).unwrap_or(line).split(c).map(str::trim)),
        None => Box::new(line.split_whitespace()),
    }
}

struct Table {
    path: PathBuf,
    arrays: Vec<ArrayInfo>,
    attributes: Vec<(String, Value)>,
    rows: Vec<Row>,
    separator: Option<char>,
}

impl Table {
    /// The bytes from the first to the last of `rows`.
    fn text(&self, rows: &[Row]) -> Result<Vec<u8>> {
        let (begin, end) = (rows[0].begin, rows[rows.len() - 1].end);
        let mut text = vec![0; (end - begin) as usize];
        let mut file = File::open(&self.path).map_err(Error::io("read", &self.path))?;
        file.seek(SeekFrom::Start(begin)).map_err(Error::io("read", &self.path))?;
        file.read_exact(&mut text).map_err(Error::io("read", &self.path))?;
        Ok(text)
    }

    fn fill<T: Real>(&self, start: &[usize], count: &[usize]) -> Result<Vec<T>> {
        let mut out = vec![T::default(); count[0] * count[1]];
        if out.is_empty() {
            return Ok(out);
        }
        let rows = &self.rows[start[0]..start[0] + count[0]];
        let text = self.text(rows)?;
        out.par_chunks_mut(count[1]).zip(rows).try_for_each(|(out, row)| {
            let [begin, end] = [row.begin, row.end].map(|at| (at - rows[0].begin) as usize);
            self.parse(line(&text[begin..end]), row.line, start[1], out)
        })?;
        Ok(out)
    }

    /// Reads the cells from `first` on of a line into `out`.
    fn parse<T: Real>(&self, text: &str, line: usize, first: usize, out: &mut [T]) -> Result<()> {
        let columns = self.arrays[0].shape[1];
        let place = || format!("{}, line {line}", self.path.display());
        let mut found = 0;
        for (column, cell) in cells(text, self.separator).enumerate() {
            found += 1;
            if column < first || column >= first + out.len() {
                continue;
            }
            let value = cell.parse::<f64>().map_err(|_| {
                let problem = format!("column {}: expected a number, found \"{cell}\"", column + 1);
                let comma = cell.contains(',') && cell.replace(',', ".").parse::<f64>().is_ok();
                let hint = if comma {
                    "write numbers with a decimal point"
                } else {
                    "write NaN where a value is missing, and drop such samples with --drop-nan"
                };
                Error::input(place(), problem).hint(hint)
            })?;
            out[column - first] = T::from_f64(value);
        }
        if found != columns {
            return Err(Error::input(
                place(),
                format!("expected {columns} columns as in the first row, found {found}"),
            )
            .hint("every row holds the same number of values; the file may be truncated"));
        }
        Ok(())
    }
}

impl ArrayFile for Table {
    fn arrays(&self) -> &[ArrayInfo] {
        &self.arrays
    }

    fn attributes(&self) -> &[(String, Value)] {
        &self.attributes
    }

    fn read_f32(&mut self, _array: usize, start: &[usize], count: &[usize]) -> Result<Vec<f32>> {
        self.fill(start, count)
    }

    fn read_f64(&mut self, _array: usize, start: &[usize], count: &[usize]) -> Result<Vec<f64>> {
        self.fill(start, count)
    }
}
