//! Figures of a page, which are also files of their own.

use std::fs;
use std::path::{Path, PathBuf};

use softly::error::{Error, Result};
use softly::files::{make_folder, write_text};
use softly_figures::page::Block;
use softly_figures::svg::{Colours, Svg};

/// Figures with the names of their files, and the colours of runs.
#[derive(Default)]
pub struct Gallery {
    figures: Vec<(String, Svg)>,
    /// One colour per run in all figures.
    pub colours: Colours,
}

impl Gallery {
    /// A figure with its caption, which is also the file `NAME.svg`.
    pub fn chart(&mut self, name: &str, svg: Svg, caption: &str) -> (Svg, String) {
        let fit = |c: char| if c.is_alphanumeric() { c } else { '-' };
        self.figures.push((name.chars().map(fit).collect(), svg.clone()));
        (svg, caption.into())
    }

    /// The same with a row of the page to itself.
    pub fn show(&mut self, name: &str, svg: Svg, caption: &str) -> Block {
        let (svg, caption) = self.chart(name, svg, caption);
        Block::Figure { svg, caption }
    }

    /// Writes the files into the folder `PAGE-figures` beside the page and returns it. Figures of an earlier page go.
    pub fn write(&self, page: &Path) -> Result<PathBuf> {
        let stem = page.file_stem().map_or_else(|| "report".into(), |stem| stem.to_string_lossy().into_owned());
        let folder = page.with_file_name(format!("{stem}-figures"));
        make_folder(&folder)?;
        for entry in fs::read_dir(&folder).map_err(Error::io("read", &folder))?.flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|ending| ending == "svg") {
                fs::remove_file(&path).map_err(Error::io("remove", &path))?;
            }
        }
        for (k, (name, svg)) in self.figures.iter().enumerate() {
            let alone = Svg::tile(name, 1, std::slice::from_ref(svg));
            write_text(&folder.join(format!("{:02}-{name}.svg", k + 1)), &alone.to_string())?;
        }
        Ok(folder)
    }
}
