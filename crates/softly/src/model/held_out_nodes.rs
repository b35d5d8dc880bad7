//! Observed nodes of held-out fields, for guidance that compares samples with them.

use burn::tensor::Device;

use crate::data::dataset::Dataset;
use crate::data::split::Split;
use crate::error::{Error, Result, nearest};
use crate::random::{Purpose, Stream};
use crate::sampler::guidance::{ObservedNodes, Observing};
use crate::tensors::field_batch;
use crate::units::Units;

/// Seed of the choice of nodes.
const NODES_SEED: u64 = 500;

/// Held-out fields in normalised units, and the weights of their observed nodes.
pub(crate) struct HeldOutNodes {
    /// `[N, C, H, W]`.
    values: Vec<f64>,
    /// `[C, H, W]`: weight of a squared misfit, zero where nothing is observed.
    weights: Vec<f64>,
}

impl HeldOutNodes {
    /// The observations that `observing` asks for, of the held-out samples of `data`.
    pub fn new(observing: Observing<'_>, data: &Dataset, units: &Units) -> Result<Self> {
        let nodes = data.grid.len();
        let mut weights = vec![0.0; data.sample_len()];
        for (field, weight) in observing.weights {
            let Some(channel) = data.fields.iter().position(|name| name == field) else {
                let problem = format!("the data have no field `{field}`; they have {}", data.fields.join(", "));
                let near = nearest(field, data.fields.iter().map(String::as_str));
                let hint = near.map_or_else(|| "name a field".to_string(), |near| format!("did you mean `{near}`?"));
                return Err(Error::input("sampler.guidance.observe", problem).hint(hint));
            };
            let count = ((observing.share * nodes as f64).round() as usize).clamp(1, nodes);
            let chosen = Stream::new(NODES_SEED, Purpose::Metric, channel as u64).permutation(nodes);
            for node in &chosen[..count] {
                weights[channel * nodes + node] = weight / count as f64;
            }
        }
        let indices: Vec<usize> = (0..data.valid_count()).collect();
        let values = data.batch(Split::Valid, &indices, units)?;
        Ok(Self { values: values.into_iter().map(f64::from).collect(), weights })
    }

    /// The observations of samples `indices` of `shape` `[C, H, W]`: sample i is compared with held-out sample i,
    /// counted anew after the last one.
    pub fn of(&self, indices: &[u64], shape: [usize; 3], device: &Device) -> ObservedNodes {
        let size = self.weights.len();
        let count = (self.values.len() / size) as u64;
        let sample = |&i: &u64| {
            let first = (i % count) as usize * size;
            self.values[first..first + size].iter().copied()
        };
        ObservedNodes {
            values: field_batch(indices.iter().flat_map(sample).collect(), shape, device),
            weights: field_batch(self.weights.clone(), shape, device),
        }
    }
}
