//! A dataset in memory as a source for the writer.

use std::collections::BTreeMap;
use std::ops::Range;

use softly_pde::grid::Grid;
use toml::{Table, Value};

use crate::constraint::config::ConstraintConfig;
use crate::data::dataset::Dataset;
use crate::data::generator::FieldSpec;
use crate::data::split::Split;
use crate::data::writer::{Plan, Source};
use crate::error::Result;

/// Samples in memory; the scalars among their channels come last.
pub struct InMemory<'a> {
    dataset: &'a Dataset,
    plan: Plan,
}

impl<'a> InMemory<'a> {
    /// The samples of `dataset`.
    pub fn new(dataset: &'a Dataset) -> Self {
        let text = |text: &str| Value::String(text.to_string());
        let origin = [("layout".into(), text("arrays in memory")), ("hash".into(), text(&dataset.hash()))];
        let plan = Plan {
            train: dataset.train_count(),
            valid: dataset.valid_count(),
            seed: None,
            generator: None,
            origin: Some(Table::from_iter(origin)),
        };
        Self { dataset, plan }
    }
}

/// A field of which only the name is known.
fn plain(name: &str) -> FieldSpec {
    FieldSpec { name: name.to_string(), quantity: String::new(), unit: String::new() }
}

impl Source for InMemory<'_> {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn fields(&self) -> Vec<FieldSpec> {
        let Dataset { fields, scalars, .. } = self.dataset;
        fields.iter().filter(|name| !scalars.contains(name)).map(|name| plain(name)).collect()
    }

    fn grid(&self) -> Grid {
        self.dataset.grid.clone()
    }

    fn equation(&self) -> Option<ConstraintConfig> {
        self.dataset.equation.clone()
    }

    fn scalars(&self) -> Vec<FieldSpec> {
        self.dataset.scalars.iter().map(|name| plain(name)).collect()
    }

    fn constants(&self) -> BTreeMap<String, f64> {
        self.dataset.constants.clone()
    }

    fn samples(&self, split: Split, range: Range<usize>) -> Result<Vec<Vec<f32>>> {
        let (len, nodes) = (self.dataset.sample_len(), self.dataset.grid.len());
        let fields = (self.dataset.fields.len() - self.dataset.scalars.len()) * nodes;
        let stored = |sample: &[f32]| {
            let scalars = sample[fields..].iter().step_by(nodes);
            sample[..fields].iter().chain(scalars).copied().collect()
        };
        Ok(self.dataset.samples(split, range)?.chunks_exact(len).map(stored).collect())
    }
}
