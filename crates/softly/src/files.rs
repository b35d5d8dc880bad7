//! Writing files so that a crash leaves either the old one or the new one, never half of one.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;

use crate::error::{Error, Result};

/// Writes a file under a temporary name in the same folder, syncs it and renames it.
pub fn write_atomically(path: &Path, write: impl FnOnce(&mut BufWriter<&File>) -> std::io::Result<()>) -> Result<()> {
    let name = path.file_name().map_or_else(|| "file".into(), |n| n.to_string_lossy().into_owned());
    let temporary = path.with_file_name(format!(".{name}.{}.tmp", std::process::id()));
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

/// Makes a folder and its parents; temporary files in it that a process of before left behind are removed.
pub fn make_folder(path: &Path) -> Result<()> {
    fs::create_dir_all(path).map_err(Error::io("create", path))?;
    remove_leftovers(path);
    Ok(())
}

/// Removes temporary files from a folder whose processes have ended.
pub(crate) fn remove_leftovers(path: &Path) {
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if writer_of(&entry.file_name()).is_some_and(|process| !is_running(process)) {
            // Best effort: an old file that cannot be removed does no harm.
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Whether a folder holds nothing, or nothing but temporary files, which a killed process leaves.
pub fn is_vacant(path: &Path) -> bool {
    let foreign = |entry: &fs::DirEntry| writer_of(&entry.file_name()).is_none();
    !fs::read_dir(path).is_ok_and(|mut entries| entries.any(|entry| entry.is_ok_and(|entry| foreign(&entry))))
}

/// The process that writes a file under the temporary name `name`; `None` for other names.
pub(crate) fn writer_of(name: &OsStr) -> Option<u32> {
    let inner = name.to_str()?.strip_prefix('.')?.strip_suffix(".tmp")?;
    inner.rsplit_once('.')?.1.parse().ok()
}

/// Whether a process may still be running; only Linux tells.
fn is_running(process: u32) -> bool {
    !Path::new("/proc/self").exists() || Path::new("/proc").join(process.to_string()).exists()
}
