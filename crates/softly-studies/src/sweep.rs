//! A study cut into cells that several processes do, on one machine or on many with a common folder.

use std::fs::File;
use std::path::Path;
use std::str::FromStr;
use std::thread::sleep;
use std::time::Duration;

use serde::Serialize;
use softly::error::{Error, Result, nearest};
use softly::files::{claim, make_folder};
use softly::job::Job;

/// The cells of a study that a process does.
#[derive(Debug, Clone, Default)]
pub enum Selection {
    /// All of them.
    #[default]
    All,
    /// One, by its name.
    Only(String),
    /// Every n-th.
    Shard(Shard),
}

/// Cells i, i + n, i + 2n and so on, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard {
    index: usize,
    count: usize,
}

/// A cell of a study in its folder.
#[derive(Debug, Clone, Serialize)]
pub struct CellState {
    /// Its name.
    pub cell: String,
    /// The cell whose trained denoiser it is put on, if there is one: that one comes first.
    pub base: Option<String>,
    /// Whether all of it is done.
    pub done: bool,
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let number = |text: &str| text.parse::<usize>().ok();
        let parts = text.split_once('/').and_then(|(i, n)| Some((number(i)?, number(n)?)));
        match parts {
            Some((index, count)) if (1..=count).contains(&index) => Ok(Self { index, count }),
            _ => Err("expected i/n with i from 1 to n, for example 1/8".into()),
        }
    }
}

impl Selection {
    /// Whether the cell called `name`, which is number `position` from 0, is among them.
    pub(crate) fn includes(&self, position: usize, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(only) => only == name,
            Self::Shard(Shard { index, count }) => position % count == index - 1,
        }
    }

    /// Refuses the name of a cell that a study of `cells` does not have.
    pub fn check(&self, cells: &[CellState]) -> Result<()> {
        let Self::Only(only) = self else { return Ok(()) };
        let names = || cells.iter().map(|state| state.cell.as_str());
        if names().any(|name| name == only) {
            return Ok(());
        }
        let near = nearest(only, names()).map_or(String::new(), |near| format!("did you mean `{near}`? "));
        Err(Error::input("--only", format!("this study has no cell `{only}`"))
            .hint(format!("{near}--list-cells shows all")))
    }
}

/// How long a cell of another process is left alone before it is looked at again.
const PAUSE: Duration = Duration::from_millis(200);

/// The right to work on a part of the study in `out`, which no other process has as long as this one holds the file; `None` after a
/// while if another one has it.
pub(crate) fn right_to(out: &Path, part: &str, job: &Job<'_>) -> Result<Option<File>> {
    let locks = out.join("locks");
    if !locks.exists() {
        make_folder(&locks)?;
    }
    let right = claim(&locks.join(part))?;
    if right.is_none() {
        job.go_on("run the same command again to go on")?;
        sleep(PAUSE);
    }
    Ok(right)
}

/// Does `work` on a part of the study in `out`, unless it is `done`. A part that another process works on is waited for; if that one
/// dies, this one takes over.
pub(crate) fn once(
    out: &Path,
    part: &str,
    job: &Job<'_>,
    done: impl Fn() -> bool,
    work: impl FnOnce() -> Result<()>,
) -> Result<()> {
    while !done() {
        if let Some(_right) = right_to(out, part, job)? {
            return if done() { Ok(()) } else { work() };
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_cut_without_gap_or_overlap() {
        for text in ["0/3", "4/3", "1", "1/0", "a/b", "-1/3", "1/3/2", ""] {
            assert!(text.parse::<Shard>().is_err(), "{text}");
        }
        let shards: Vec<Selection> = (1..=3).map(|i| Selection::Shard(format!("{i}/3").parse().unwrap())).collect();
        for position in 0..10 {
            let doing: Vec<usize> = (0..3).filter(|&i| shards[i].includes(position, "x")).collect();
            assert_eq!(doing, [position % 3]);
        }
    }

    #[test]
    fn a_cell_that_is_not_there_is_named_with_its_neighbour() {
        let state = |cell: &str| CellState { cell: cell.into(), base: None, done: false };
        let cells = [state("circle-scd-0"), state("dent-scd-0")];
        Selection::Only("dent-scd-0".into()).check(&cells).unwrap();
        let error = Selection::Only("dent-scd-1".into()).check(&cells).unwrap_err();
        assert!(error.exit_code() == 2 && error.to_string().contains("did you mean `dent-scd-0`?"), "{error}");
    }
}
