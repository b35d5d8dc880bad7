//! Trainings as processes of their own, so that several small ones run side by side at full speed: in one process they
//! would wait for one another at the tensor library's locks.

use std::ffi::OsString;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use softly::error::{Error, Result};
use softly::files::{make_folder, write_text};
use softly::{Config, RunFolder};

use crate::interrupt::STOP_WITH_PARENT;

/// A program and the words before its arguments.
pub type Program = (PathBuf, Vec<OsString>);

/// What starts this program: its own file unless someone has said otherwise.
pub static PROGRAM: OnceLock<Program> = OnceLock::new();

/// Runs `softly train`, or `softly adapt` on a base, on one thread and the named device until it is done or `stop` is set.
pub fn train(
    config: &Config,
    folder: &RunFolder,
    base: Option<&RunFolder>,
    device: &str,
    stop: &AtomicBool,
    advance: &mut dyn FnMut(u64),
) -> Result<()> {
    // Appended: what follows a dot in the folder's name belongs to it.
    let mut file = folder.path.clone().into_os_string();
    file.push(".toml");
    let file = PathBuf::from(file);
    if folder.snapshot().exists() {
        // Left over if this program was killed while the training ended.
        remove(&file)?;
        folder.note_finished()?;
        advance(config.train.iterations);
        return Ok(());
    }
    // Paths in a file lead from its folder.
    let parent = file.parent().unwrap_or(Path::new(""));
    make_folder(parent)?;
    write_text(&file, &config.clone().for_folder(parent).to_toml())?;
    let (program, words) = match PROGRAM.get() {
        Some(program) => program.clone(),
        None => (std::env::current_exe().map_err(Error::io("start", "softly".as_ref()))?, Vec::new()),
    };
    let mut command = Command::new(&program);
    command.args(words).args(["--threads", "1"]);
    match base {
        Some(base) => command.arg("adapt").arg(&base.path),
        None => command.arg("train"),
    };
    command.args(["--device", device, "--config"]).arg(&file).arg("--out").arg(&folder.path);
    // The child stops when its input ends: whatever ends this process ends its trainings, too.
    command.env(STOP_WITH_PARENT, "1");
    let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let mut child = child.map_err(Error::io("start", &program))?;
    let finished = wait(&mut child, folder, stop, advance)?;
    // The run folder holds its own resolved configuration by now.
    remove(&file)?;
    let mut said = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        // Whatever it said before it ended is only a help for the reader.
        let _ = stderr.read_to_string(&mut said);
    }
    if !finished {
        return Err(Error::Interrupted { hint: "run the same command again to go on".into() });
    }
    let said = said.split("error: ").last().unwrap_or_default().trim();
    if folder.snapshot().exists() {
        folder.note_finished()?;
        advance(config.train.iterations);
        return Ok(());
    }
    Err(Error::Failed { what: format!("training {}", folder.path.display()), why: said.to_string() })
}

/// Removes a file, if it is there.
fn remove(file: &Path) -> Result<()> {
    match std::fs::remove_file(file) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::io("remove", file)(error)),
        _ => Ok(()),
    }
}

/// Waits for the child, telling its progress; false if it was stopped.
fn wait(child: &mut Child, folder: &RunFolder, stop: &AtomicBool, advance: &mut dyn FnMut(u64)) -> Result<bool> {
    let ended = |child: &mut Child| child.try_wait().map_err(Error::io("wait for", &folder.path));
    while ended(child)?.is_none() {
        if stop.load(Ordering::Relaxed) {
            // Ctrl-C reaches the child, too: it saves a checkpoint. If only this process was told, its last one serves.
            let deadline = Instant::now() + Duration::from_secs(2);
            while ended(child)?.is_none() && Instant::now() < deadline {
                sleep(Duration::from_millis(20));
            }
            let _ = child.kill();
            let _ = child.wait();
            return Ok(false);
        }
        advance(folder.step());
        sleep(Duration::from_millis(100));
    }
    Ok(true)
}
