//! What a training has left in its folder.

use std::path::{Path, PathBuf};

use softly::error::{Error, Result};
use softly::files::read_text;
use softly::{Config, Layers, Metrics, RunFolder, RunInfo};

/// One training.
pub struct Record {
    /// Its name on the page: the folder's, or its whole path where two folders have the same name.
    pub name: String,
    /// Its folder.
    pub folder: RunFolder,
    /// Who made it, how, and whether it is finished.
    pub info: RunInfo,
    /// Its resolved configuration.
    pub config: Config,
    /// The same as text.
    pub config_text: String,
    /// Its metrics by step.
    pub metrics: Vec<Metrics>,
}

impl Record {
    /// Reads the runs in `folders`.
    pub fn read_all(folders: &[PathBuf]) -> Result<Vec<Self>> {
        let short = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
        let name = |path: &PathBuf| {
            let own = short(path).filter(|own| folders.iter().filter(|f| short(f).as_ref() == Some(own)).count() == 1);
            own.unwrap_or_else(|| path.display().to_string())
        };
        folders.iter().map(|path| Self::read(path, name(path))).collect()
    }

    fn read(path: &Path, name: String) -> Result<Self> {
        let folder = RunFolder::new(path);
        if !folder.info().exists() {
            return Err(Error::input(
                path.display(),
                "expected a folder with `run.json` or `table.json`, found neither",
            )
            .hint("name the folder of a training or of a study"));
        }
        let config_text = read_text(&folder.config())?;
        let location = folder.config().display().to_string();
        Ok(Self {
            name,
            info: folder.read_info()?,
            config: Layers::new().file(&folder.config())?.finish(&location)?,
            config_text,
            metrics: folder.read_metrics()?,
            folder,
        })
    }

    /// Whether there is a model to judge.
    pub fn is_trained(&self) -> bool {
        self.folder.snapshot().exists()
    }

    /// Whether the run uses a constraint: in its denoiser, its loss or its sampler.
    pub fn is_constrained(&self) -> bool {
        let Config { denoiser, objective, sampler, .. } = &self.config;
        denoiser.scd.is_some() || objective.regulariser.is_some() || sampler.guidance.is_some()
    }

    /// Whether the denoiser below the constraint was trained before it and then frozen (`softly adapt`).
    pub fn is_adapted(&self) -> bool {
        let verb = self.info.command.split_whitespace().find(|word| ["train", "adapt"].contains(word));
        self.config.denoiser.scd.is_some() && verb == Some("adapt")
    }
}
