//! Writing files so that a crash leaves either the old one or the new one, never half of one.

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

/// Makes a folder and its parents.
pub fn make_folder(path: &Path) -> Result<()> {
    fs::create_dir_all(path).map_err(Error::io("create", path))
}
