//! Writing files so that a crash leaves either the old one or the new one, never half of one.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::LazyLock;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::{Error, Result};

/// The key of a record's checksum.
const CHECKSUM: &str = "checksum";

/// Writes a file under a temporary name in the same folder, syncs it and renames it.
pub fn write_atomically(path: &Path, write: impl FnOnce(&mut BufWriter<&File>) -> std::io::Result<()>) -> Result<()> {
    let name = path.file_name().map_or_else(|| "file".into(), |n| n.to_string_lossy().into_owned());
    let temporary = path.with_file_name(format!(".{name}.{}-{}.tmp", std::process::id(), machine()));
    let attempt = || -> std::io::Result<()> {
        let file = File::create(&temporary)?;
        let mut buffered = BufWriter::new(&file);
        write(&mut buffered)?;
        buffered.flush()?;
        drop(buffered);
        file.sync_all()?;
        fs::rename(&temporary, path)
    };
    attempt().map_err(|source| {
        // Best effort: the error that matters is the first one.
        let _ = fs::remove_file(&temporary);
        Error::Io { action: "write", path: path.to_path_buf(), source }
    })
}

/// Writes a text file as a whole.
pub fn write_text(path: &Path, text: &str) -> Result<()> {
    write_atomically(path, |out| out.write_all(text.as_bytes()))
}

/// Reads a text file as a whole.
pub fn read_text(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(Error::io("read", path))
}

/// Writes a JSON object that a later command relies on, with a checksum beside its keys.
pub fn write_record(path: &Path, value: &impl Serialize) -> Result<()> {
    let mut record = serde_json::to_value(value).expect("numbers and texts are valid JSON");
    let checksum = checksum(&record);
    if let Value::Object(entries) = &mut record {
        entries.insert(CHECKSUM.into(), checksum.into());
    }
    write_text(path, &format!("{record:#}\n"))
}

/// Reads what [`write_record`] wrote; refuses everything else.
pub fn read_record<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let damaged = |what: String| Error::input(path.display(), what).hint("delete the file and run again");
    let mut record: Value = serde_json::from_str(&read_text(path)?).map_err(|e| damaged(format!("is damaged: {e}")))?;
    let recorded = record.as_object_mut().and_then(|entries| entries.remove(CHECKSUM));
    if recorded != Some(checksum(&record).into()) {
        return Err(damaged("its contents do not match their checksum".into()));
    }
    serde_json::from_value(record).map_err(|e| damaged(format!("is damaged: {e}")))
}

/// BLAKE3 of a record; its keys are sorted and its numbers are written the same way every time.
fn checksum(record: &Value) -> String {
    blake3::hash(record.to_string().as_bytes()).to_hex().to_string()
}

/// Makes a folder and its parents; temporary files in it that a process of before left behind are removed.
pub fn make_folder(path: &Path) -> Result<()> {
    fs::create_dir_all(path).map_err(Error::io("create", path))?;
    remove_leftovers(path);
    Ok(())
}

/// Removes temporary files from a folder whose processes have ended.
pub(crate) fn remove_leftovers(path: &Path) {
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if writer_of(&entry.file_name()).is_some_and(|writer| !writer.is_running()) {
            // Best effort: an old file that cannot be removed does no harm.
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// The same in all folders below.
pub fn remove_leftovers_below(path: &Path) {
    remove_leftovers(path);
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        // Links may lead anywhere.
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_leftovers_below(&entry.path());
        }
    }
}

/// Whether a folder holds nothing, or nothing but temporary files, which a killed process leaves.
pub fn is_vacant(path: &Path) -> bool {
    let foreign = |entry: &fs::DirEntry| writer_of(&entry.file_name()).is_none();
    !fs::read_dir(path).is_ok_and(|mut entries| entries.any(|entry| entry.is_ok_and(|entry| foreign(&entry))))
}

/// Makes this process the only one that holds the file `path`, until the file is dropped or the process ends, however it ends; `None`
/// if another one holds it.
pub fn claim(path: &Path) -> Result<Option<File>> {
    let file = OpenOptions::new().create(true).append(true).open(path).map_err(Error::io("write", path))?;
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Ok(None),
        // Not every file system has locks; there it is up to the user.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(Some(file)),
    }
}

/// The process that writes a temporary file.
pub(crate) struct Writer {
    process: u32,
    /// Empty if it is this one.
    machine: String,
}

/// The process that writes a file under the temporary name `name`; `None` for other names.
pub(crate) fn writer_of(name: &OsStr) -> Option<Writer> {
    let inner = name.to_str()?.strip_prefix('.')?.strip_suffix(".tmp")?;
    let writer = inner.rsplit_once('.')?.1;
    let (process, machine) = writer.split_once('-').unwrap_or((writer, ""));
    Some(Writer { process: process.parse().ok()?, machine: machine.to_string() })
}

/// The name of this machine as temporary files have it; empty where the system does not tell.
fn machine() -> &'static str {
    static NAME: LazyLock<String> = LazyLock::new(|| {
        let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        name.chars().filter(char::is_ascii_alphanumeric).collect()
    });
    &NAME
}

impl Writer {
    /// Whether the process may still be running; nobody knows that of another machine's.
    fn is_running(&self) -> bool {
        !["", machine()].contains(&self.machine.as_str()) || is_running(self.process)
    }
}

/// Whether a process may still be running; only Linux tells. One that has been killed and is on its way out, or that nobody has
/// asked for its exit code yet, is not: its files are closed.
fn is_running(process: u32) -> bool {
    if !Path::new("/proc/self").exists() {
        return true;
    }
    let Ok(line) = fs::read_to_string(format!("/proc/{process}/stat")) else { return false };
    // The name, in brackets, may hold anything; then come the state, five numbers and the flags.
    let mut fields = line.rsplit_once(')').map_or("", |(_, rest)| rest).split_ascii_whitespace();
    let is_dead = matches!(fields.next(), Some("Z" | "X"));
    let is_leaving =
        fields.nth(5).and_then(|flags| flags.parse::<u64>().ok()).is_some_and(|flags| flags & EXITING != 0);
    !is_dead && !is_leaving
}

/// The flag of Linux's processes on their way out.
const EXITING: u64 = 4;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn leftovers_of_a_dead_process_are_removed_though_it_is_still_listed() {
        let home = tempfile::tempdir().unwrap();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let [theirs, ours] = [child.id(), std::process::id()].map(|id| home.path().join(format!(".x.npy.{id}.tmp")));
        for file in [&theirs, &ours] {
            fs::write(file, "half").unwrap();
        }
        remove_leftovers(home.path());
        assert!(theirs.exists() && ours.exists());
        child.kill().unwrap();
        // Nobody waits for it yet: it stays in the list of processes.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while theirs.exists() && std::time::Instant::now() < deadline {
            remove_leftovers(home.path());
        }
        assert!(Path::new("/proc").join(child.id().to_string()).exists() && !theirs.exists() && ours.exists());
        child.wait().unwrap();
        // Another machine's process has nothing to do with ours of that number.
        let elsewhere = home.path().join(format!(".x.npy.{}-{}elsewhere.tmp", 1 << 23, machine()));
        let here = home.path().join(format!(".x.npy.{}-{}.tmp", 1 << 23, machine()));
        for file in [&elsewhere, &here] {
            fs::write(file, "half").unwrap();
        }
        remove_leftovers(home.path());
        assert!(elsewhere.exists() && !here.exists());
    }

    #[test]
    fn a_claim_is_held_by_one_until_it_is_dropped() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("cell");
        let held = claim(&path).unwrap();
        assert!(held.is_some() && claim(&path).unwrap().is_none());
        drop(held);
        assert!(claim(&path).unwrap().is_some());
    }

    #[test]
    fn a_record_is_read_as_it_was_written_and_no_flipped_bit_changes_it() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("record.json");
        let written: BTreeMap<String, Vec<f64>> =
            [("a".into(), vec![0.1, -1e-300, 3.0]), ("b".into(), vec![f64::from(0.3f32), 1e22])].into();
        write_record(&path, &written).unwrap();
        assert_eq!(read_record::<BTreeMap<String, Vec<f64>>>(&path).unwrap(), written);
        let good = fs::read(&path).unwrap();
        for at in 0..good.len() {
            for bit in 0..8 {
                let mut flipped = good.clone();
                flipped[at] ^= 1 << bit;
                fs::write(&path, flipped).unwrap();
                // Blanks between values may change; values may not.
                match read_record::<BTreeMap<String, Vec<f64>>>(&path) {
                    Ok(read) => assert_eq!(read, written, "bit {bit} of byte {at}"),
                    Err(error) => assert_eq!(error.exit_code(), 2, "{error}"),
                }
            }
        }
        fs::write(&path, "{\"a\": [0.1]}").unwrap();
        assert!(read_record::<BTreeMap<String, Vec<f64>>>(&path).unwrap_err().to_string().contains("checksum"));
    }
}
