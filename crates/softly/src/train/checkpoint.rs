//! Checkpoints: everything that a training needs to go on, byte for byte.

use std::collections::HashMap;
use std::path::Path;

use crate::config::Config;
use crate::error::{Error, Result};
use crate::model::run_folder::RunFolder;
use crate::model::tensor_file::{self, TensorFile, View, Width};
use crate::train::Training;

/// BLAKE3 of the configuration behind `file`, with paths as they lead from its folder. The number of steps is not part of it:
/// a run may be extended. Nor is the path of the data, which have a fingerprint of their own.
pub(super) fn fingerprint_of_config(config: &Config, file: &Path) -> String {
    let mut config = config.clone();
    config.train.iterations = 0;
    config.data.path = None;
    let config = config.for_folder(file.parent().unwrap_or(Path::new("")));
    fingerprint(&config.to_toml())
}

/// BLAKE3 of a text.
pub(super) fn fingerprint(text: &str) -> String {
    blake3::hash(text.as_bytes()).to_hex().to_string()
}

impl Training {
    /// Writes everything needed to go on.
    pub fn write_checkpoint(&self, path: &Path) -> Result<()> {
        let mut tensors = Vec::new();
        for slot in &self.optimizer.slots {
            let all =
                [("value", &slot.value), ("mean", &slot.mean), ("square", &slot.square), ("average", &slot.average)];
            for (kind, values) in &all[..if slot.trainable { 4 } else { 1 }] {
                tensors.push(View { name: format!("{kind}/{}", slot.name), shape: &slot.shape, values });
            }
        }
        let metadata = HashMap::from([
            ("step".to_string(), self.optimizer.step.to_string()),
            ("configuration".to_string(), fingerprint_of_config(&self.blueprint.config, path)),
            ("dataset".to_string(), fingerprint(&self.blueprint.data.to_json())),
            ("sums".to_string(), serde_json::to_string(&self.sums).expect("numbers are valid JSON")),
            ("metrics".to_string(), self.history.clone()),
        ]);
        tensor_file::write(path, &metadata, &tensors, Width::Single)
    }

    /// Refuses a file of `folder`, whose weights are called `prefix`…, if it was made on top of another frozen denoiser.
    pub(super) fn check_base(&mut self, prefix: &str, file: &TensorFile, folder: &RunFolder) -> Result<()> {
        let mut same = true;
        self.model.visit_base(&mut |name, parameter| {
            if !parameter.trainable() {
                let name = format!("{prefix}{name}");
                let found = file.tensors.iter().find(|(n, _, _)| *n == name);
                same &= found.is_none_or(|(_, _, values)| *values == parameter.values());
            }
        });
        if same {
            return Ok(());
        }
        Err(Error::input(folder.path.display(), "this folder holds a run on top of another denoiser")
            .hint("choose another --out, or adapt the same snapshot"))
    }

    /// Goes on from a checkpoint of the same configuration.
    pub fn read_checkpoint(&mut self, path: &Path) -> Result<()> {
        let mut file = TensorFile::read(path)?;
        let broken = |what: &str| Error::input(path.display(), format!("the header's `{what}` is broken"));
        let step = file.text("step", path)?.parse().map_err(|_| broken("step"))?;
        self.sums = serde_json::from_str(file.text("sums", path)?).map_err(|_| broken("sums"))?;
        self.history = file.text("metrics", path)?.to_string();
        for slot in &mut self.optimizer.slots {
            let mut take = |kind: &str| file.take(&format!("{kind}/{}", slot.name), &slot.shape, path);
            slot.value = take("value")?;
            if slot.trainable {
                (slot.mean, slot.square, slot.average) = (take("mean")?, take("square")?, take("average")?);
            }
        }
        self.optimizer.step = step;
        self.set_weights();
        Ok(())
    }
}
