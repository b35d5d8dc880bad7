//! How much of a study is run, and the folder that it is run in.

use std::path::Path;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use softly::error::{Error, Result};
use softly::files::{is_vacant, make_folder, read_text, remove_leftovers_below, write_text};

/// How much of a study is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StudyScale {
    /// The smallest that still means something: minutes.
    Demo,
    /// Reduced grids and trainings, several seeds: for a processor.
    Cpu,
    /// The same grids with trainings until the learning curve is flat: hours on one core each.
    Long,
    /// As in the paper.
    Paper,
}

impl FromStr for StudyScale {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|scale| scale.name() == text)
            .ok_or_else(|| "expected demo, cpu, long or paper".into())
    }
}

impl StudyScale {
    /// Every scale, the smallest first.
    pub const ALL: [Self; 4] = [Self::Demo, Self::Cpu, Self::Long, Self::Paper];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Demo => "demo",
            Self::Cpu => "cpu",
            Self::Long => "long",
            Self::Paper => "paper",
        }
    }

    /// Makes `out` the folder of the study `name` at this scale; refuses a folder that holds something else.
    pub fn claim_folder(self, out: &Path, name: &str) -> Result<()> {
        let marker = out.join("study.txt");
        let text = format!("{name} {}\n", self.name());
        // Before the marker is looked for: another process that begins the study at the same time may write it in between.
        let vacant = is_vacant(out);
        if marker.exists() {
            let found = read_text(&marker)?;
            if found != text {
                let problem = format!("this folder holds the study `{}`", found.trim());
                return Err(Error::input(out.display(), problem).hint("choose another --out"));
            }
            // Finished cells are not trained in again, so nothing else tidies up their folders.
            remove_leftovers_below(out);
            return Ok(());
        }
        if !vacant {
            return Err(
                Error::input(out.display(), "this folder is not empty and holds no study").hint("choose another --out")
            );
        }
        make_folder(out)?;
        write_text(&marker, &text)
    }
}
