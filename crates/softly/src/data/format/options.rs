//! What a user may say about files that are imported.

use std::path::PathBuf;

use crate::error::{Error, Result};

/// What overrides the guesses about files.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ImportOptions {
    /// Fields by name, in the order of the channels; all recognised ones if empty.
    pub fields: Vec<FieldOption>,
    /// Names of the axes. As many as an unknown array has besides samples (`sample` and `channel` may be among them),
    /// or the two that are kept of a known layout.
    pub axes: Vec<String>,
    /// Ends of the domain by axis.
    pub domain: Vec<(String, [f64; 2])>,
    /// Periodic axes.
    pub periodic: Vec<String>,
    /// Whether numbers along the space axes sit in the middle of cells (true) or on nodes.
    pub cells: Option<bool>,
    /// Every how manieth entry is kept, by axis.
    pub stride: Vec<(String, usize)>,
    /// Axes of which one entry is kept, counted from zero.
    pub slice: Vec<(String, usize)>,
    /// First and last frame (entry along `t`) that are kept, counted from zero.
    pub frames: Option<[usize; 2]>,
    /// Whether samples with NaN or infinite values are left out instead of refused.
    pub drop_nan: bool,
    /// The numbers of samples that are kept, by name; all but the time of frames if it is not said.
    pub scalars: Option<Vec<String>>,
}

/// A field and where it comes from.
#[derive(Debug, Clone, PartialEq)]
pub struct FieldOption {
    /// Name of the field.
    pub name: String,
    /// The file.
    pub file: PathBuf,
    /// The array in it; needed if it has several.
    pub array: Option<String>,
}

impl FieldOption {
    /// Reads `NAME=FILE` or `NAME=FILE:ARRAY`.
    pub fn parse(text: &str) -> Result<Self> {
        let usage = || Error::input("--field", format!("expected NAME=FILE or NAME=FILE:ARRAY, found \"{text}\""));
        let (name, rest) = text.split_once('=').ok_or_else(usage)?;
        if name.is_empty() || rest.is_empty() {
            return Err(usage());
        }
        // A colon may belong to the file's name.
        let whole = PathBuf::from(rest);
        let (file, array) = match rest.rsplit_once(':') {
            Some((file, array)) if !whole.exists() && !file.is_empty() && !array.is_empty() => {
                (PathBuf::from(file), Some(array.trim_start_matches('/').to_string()))
            }
            _ => (whole, None),
        };
        Ok(Self { name: name.into(), file, array })
    }
}

impl ImportOptions {
    /// Reads `AXIS=FIRST:LAST`.
    pub fn parse_domain(text: &str) -> Result<(String, [f64; 2])> {
        let usage = || Error::input("--domain", format!("expected AXIS=FIRST:LAST as in x=0:1, found \"{text}\""));
        let (axis, ends) = text.split_once('=').ok_or_else(usage)?;
        let (first, last) = ends.split_once(':').ok_or_else(usage)?;
        let [first, last] = [first, last].map(|end| end.trim().parse::<f64>().ok().filter(|v| v.is_finite()));
        let (first, last) = (first.ok_or_else(usage)?, last.ok_or_else(usage)?);
        if first >= last {
            return Err(Error::input("--domain", format!("expected FIRST < LAST, found {first} and {last}")));
        }
        Ok((axis.into(), [first, last]))
    }

    /// Reads `AXIS=N` with N of at least `least`; `flag` is named in errors.
    pub fn parse_count(flag: &str, text: &str, least: usize) -> Result<(String, usize)> {
        let parsed = text.split_once('=').and_then(|(axis, n)| Some((axis, n.parse().ok()?)));
        match parsed {
            Some((axis, n)) if !axis.is_empty() && n >= least => Ok((axis.into(), n)),
            _ => Err(Error::input(flag, format!("expected AXIS=N with N ≥ {least} as in t=4, found \"{text}\""))),
        }
    }

    /// Reads `A-B`, or `A` for one frame.
    pub fn parse_frames(text: &str) -> Result<[usize; 2]> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        match (first.parse(), last.parse()) {
            (Ok(first), Ok(last)) if first <= last => Ok([first, last]),
            _ => {
                Err(Error::input("--frames", format!("expected A-B with A ≤ B, both counted from 0, found \"{text}\"")))
            }
        }
    }
}
