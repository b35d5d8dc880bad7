//! Weights of EDM2 networks from elsewhere: PyTorch's names and layout, the architecture in the file's header.

use std::collections::BTreeMap;
use std::path::Path;

use serde::de::DeserializeOwned;
use softly_pde::grid::Grid;

use crate::auto::NumberOrAuto;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::model::blueprint::{Blueprint, DataSpec};
use crate::model::snapshot::Snapshot;
use crate::model::tensor_file::TensorFile;
use crate::nn::backbone::BackboneConfig;
use crate::nn::precision::Precision;
use crate::nn::unet::UNetConfig;
use crate::units::Units;

/// Channels per attention head of every published network.
const HEAD: usize = 64;

/// Whether the header of a file describes an EDM2 network.
pub fn is_edm2(file: &TensorFile) -> bool {
    file.metadata.contains_key("model_channels")
}

/// The network of a file: its header gives `img_resolution`, `img_channels`, `model_channels`, `channel_mult`,
/// `num_blocks`, `attn_resolutions` and `sigma_data` as JSON texts.
///
/// Weights are called `unet.…`, or `net.unet.…`, and then all that is not called `net.…` is passed over.
pub fn snapshot(mut file: TensorFile, path: &Path) -> Result<Snapshot> {
    if file.tensors.iter().any(|(name, _, _)| name.starts_with("net.")) {
        file.tensors.retain_mut(|(name, _, _)| {
            let rest = name.strip_prefix("net.").map(ToString::to_string);
            rest.inspect(|rest| name.clone_from(rest)).is_some()
        });
    }
    let resolution: usize = number(&file, "img_resolution", path)?;
    let fields: usize = number(&file, "img_channels", path)?;
    let channels: usize = number(&file, "model_channels", path)?;
    let multipliers: Vec<usize> = number(&file, "channel_mult", path)?;
    let blocks: usize = number(&file, "num_blocks", path)?;
    let attention: Vec<usize> = number(&file, "attn_resolutions", path)?;
    check_sizes(&file, path, [fields, resolution], channels, &multipliers, blocks)?;
    let log_variance = file.tensors.iter().any(|(name, _, _)| name == "logvar_linear.weight");
    let mut config = Config::default();
    config.data.sigma_data = NumberOrAuto::Number(number(&file, "sigma_data", path)?);
    config.denoiser.backbone = BackboneConfig::Unet(UNetConfig {
        channels,
        multipliers,
        blocks,
        attention,
        head: HEAD,
        log_variance,
        precision: Precision::F32,
    });
    config.check().map_err(|e| Error::input(path.display(), e))?;
    let data = DataSpec {
        fields: (0..fields).map(|i| format!("field{i}")).collect(),
        grid: Grid::unit(resolution, resolution),
        units: Units::identity(fields),
        scalars: Vec::new(),
        hash: String::new(),
        floors: BTreeMap::new(),
    };
    Ok(Snapshot { blueprint: Blueprint { config, data }, step: 0, weights: file.tensors })
}

/// The value of the header's `key`.
fn number<T: DeserializeOwned>(file: &TensorFile, key: &str, path: &Path) -> Result<T> {
    let text = file.text(key, path)?;
    serde_json::from_str(text)
        .map_err(|e| Error::input(path.display(), format!("the header's `{key}` is broken: found `{text}` ({e})")))
}

/// Refuses a header that promises larger weights than the file has, before a network of that size is built.
fn check_sizes(
    file: &TensorFile,
    path: &Path,
    [fields, resolution]: [usize; 2],
    channels: usize,
    multipliers: &[usize],
    blocks: usize,
) -> Result<()> {
    if fields == 0 || multipliers.is_empty() || blocks == 0 {
        let problem = "the header's `img_channels`, `channel_mult` and `num_blocks` must be at least 1";
        return Err(Error::input(path.display(), problem));
    }
    for (level, multiplier) in multipliers.iter().enumerate() {
        let (side, width) = (resolution.checked_shr(level as u32).unwrap_or(0), channels.saturating_mul(*multiplier));
        if level == 0 {
            file.find("unet.out_conv.weight", &[fields, width, 3, 3], path)?;
        }
        for block in 0..blocks {
            let name = format!("unet.enc.{side}x{side}_block{block}.conv_res1.weight");
            file.find(&name, &[width, width, 3, 3], path)?;
        }
    }
    Ok(())
}
