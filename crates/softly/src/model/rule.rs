//! The rule of a model's fitted steps, measured once and kept beside it: `solver/fitted-HASH.safetensors` of a run.
//!
//! The hash is of the weights, the equation and the noise levels: another of them is another file.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::files::make_folder;
use crate::job::Job;
use crate::model::tensor_file::TensorFile;
use crate::model::trained::Trained;
use crate::nn::backbone::BackboneConfig;
use crate::sampler::Sampler;
use crate::sampler::solver::SolverKind;
use crate::sampler::solver::fitted::Rule;

/// Version of the files and of how rules are measured.
const FORMAT: u32 = 1;

impl Trained {
    /// The configured sampler, with noise levels and steps fitted to this model if it wants them: read from a file beside the model,
    /// or measured and written.
    pub fn fitted_sampler(&self, job: &Job<'_>) -> Result<Sampler> {
        let (target, shape) = (self.model.target(), self.model.shape);
        let sampler = self.blueprint.config.sampler.with_density(target, job)?;
        let levels = sampler.levels();
        let has_rule = sampler.rule.as_ref().is_some_and(|rule| rule.is_for(&levels, shape));
        // A function outside may be another one tomorrow.
        let outside = matches!(self.blueprint.config.denoiser.backbone, BackboneConfig::External(_));
        if sampler.solver != SolverKind::Fitted || has_rule || outside {
            return sampler.with_rule(target, job);
        }
        let file = self.measured_file("solver", "fitted", FORMAT, &format!("{levels:?} {shape:?}"))?;
        let kept = |file: &Path| read(file, &levels, shape).ok();
        let with = |rule: Rule| Sampler { rule: Some(Arc::new(rule)), ..sampler.clone() };
        if let Some(rule) = file.exists().then(|| kept(&file)).flatten() {
            return Ok(with(rule));
        }
        let measured = sampler.clone().with_rule(target, job)?;
        let rule = measured.rule.as_ref().expect("a sampler of fitted steps has a rule now");
        // As a second command finds it: in single precision.
        let rounded = rounded(rule);
        if job.ranks.leads()
            && let Err(error) = write(&file, &rounded)
        {
            job.reporter.note(&format!("the fitted solver is not kept: {error}"));
        }
        Ok(with(rounded))
    }
}

fn rounded(rule: &Rule) -> Rule {
    let round = |numbers: &Vec<f64>| numbers.iter().map(|&c| f64::from(c as f32)).collect();
    Rule { steps: rule.steps.iter().map(round).collect(), ..rule.clone() }
}

fn write(path: &Path, rule: &Rule) -> Result<()> {
    make_folder(path.parent().unwrap_or(Path::new(".")))?;
    let tensor = |(k, numbers): (usize, &Vec<f64>)| {
        (format!("step-{k}"), vec![numbers.len()], numbers.iter().map(|&c| c as f32).collect())
    };
    let tensors = rule.steps.iter().enumerate().map(tensor).collect();
    TensorFile { metadata: HashMap::new(), tensors }.write(path)
}

fn read(path: &Path, levels: &[f64], shape: [usize; 3]) -> Result<Rule> {
    let file = TensorFile::read(path)?;
    let steps = (0..file.tensors.len()).filter_map(|k| {
        let (_, _, values) = file.tensors.iter().find(|(name, _, _)| *name == format!("step-{k}"))?;
        Some(values.iter().map(|&c| f64::from(c)).collect())
    });
    let starts = levels.split_last().map_or(&[][..], |(_, starts)| starts);
    let rule = Rule { levels: starts.to_vec(), shape, steps: steps.collect() };
    if rule.is_for(levels, shape) { Ok(rule) } else { Err(Error::input(path.display(), "is damaged")) }
}
