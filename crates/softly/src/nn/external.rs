//! A network outside of softly, as a Python program may bring one: softly has no weights of it.

use burn::tensor::Device;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::nn::backbone::{Backbone, BuildBackbone, FieldShape, Footprint};
use crate::random::Stream;

/// A denoiser outside of softly; it has no settings here.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExternalConfig {}

impl BuildBackbone for ExternalConfig {
    fn check(&self) -> Result<()> {
        Ok(())
    }

    fn footprint(&self, _shape: [usize; 3]) -> Footprint {
        Footprint { weights: 0.0, activations: 0.0 }
    }

    fn build(&self, _shape: FieldShape, _stream: &mut Stream, _device: &Device) -> Result<Box<dyn Backbone>> {
        let problem =
            "the denoiser below this soft constraint lives outside of softly: its weights are not in the file";
        Err(Error::input("denoiser.backbone", problem).hint("hand it over in Python: softly.load(path, denoiser=f)"))
    }
}
