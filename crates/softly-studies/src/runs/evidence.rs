//! From evaluations to the evidence that a verdict is made of.

use softly::error::Result;
use softly::{
    ConstraintConfig, FormulaResidual, Misfit, PairedDifference, PairedRatio, ParameterConfig, ParameterInterval,
    Region, ResidualConfig, Split, misfit,
};

use crate::runs::judge::{Judged, Judgement};
use crate::runs::verdict::{EquationEvidence, Evidence, GivenEvidence, ParameterEvidence, ScatterEvidence};

/// The evidence on the constraint of `model`.
pub fn evidence(judgement: &Judgement, model: &Judged) -> Result<Evidence> {
    let baseline = model.baseline.map(|k| &judgement.models[k]);
    let metrics = &model.fields.result.metrics;
    let own = |m: &Judged| m.fields.result.metrics.per_sample.residual.clone();
    let levels = model.explained.iter().flat_map(|report| &report.levels);
    Ok(Evidence {
        run: model.name.clone(),
        baseline: baseline.map(|b| b.name.clone()),
        residual: baseline.and_then(|b| PairedRatio::new(&[(&own(model), &own(b))], 0)),
        own_claim: judgement.claimed.is_some() && judgement.claimed == model.record,
        likelihood: baseline.and_then(|b| difference(model, b)),
        levels: levels.filter_map(|level| Some((level.sigma, level.learned?))).collect(),
        equations: baseline
            .zip(judgement.truth.as_ref())
            .map_or_else(Vec::new, |(baseline, truth)| equations(truth, model, baseline)),
        given: given(judgement, model, baseline)?,
        parameters: model.parameters.iter().filter_map(|found| parameter(model, found)).collect(),
        scatter: baseline.map_or_else(Vec::new, |b| scatter(model, b)),
        neighbours: metrics.neighbours.ratio,
    })
}

/// The negative log-likelihood of a model less another's, over the same held-out samples.
pub fn difference(model: &Judged, baseline: &Judged) -> Option<PairedDifference> {
    PairedDifference::new(&model.fields.result.likelihood_samples, &baseline.fields.result.likelihood_samples)
}

/// The equations of a constraint with the places where they hold.
pub fn equation_names(equation: &ConstraintConfig) -> Vec<String> {
    let name = |residual: ResidualConfig| match residual.region {
        Region::All => format!("{} = 0", residual.formula),
        region => format!("{} = 0 ({region})", residual.formula),
    };
    equation.residuals().into_iter().map(name).collect()
}

fn equations(truth: &ConstraintConfig, model: &Judged, baseline: &Judged) -> Vec<EquationEvidence> {
    let pairs = model.fields.result.metrics.formulas.iter().zip(&baseline.fields.result.metrics.formulas);
    let one = |(equation, (run, base)): (String, (&FormulaResidual, &FormulaResidual))| EquationEvidence {
        equation,
        run: run.residual.summary.mean,
        baseline: base.residual.summary.mean,
    };
    equation_names(truth).into_iter().zip(pairs).map(one).collect()
}

/// Held-out data and samples of the baseline under the equations that the model was given.
fn given(judgement: &Judgement, model: &Judged, baseline: Option<&Judged>) -> Result<Vec<GivenEvidence>> {
    let Some(claim) = &model.given else { return Ok(Vec::new()) };
    let valid = judgement.data.all(Split::Valid)?;
    let of_data = misfit(claim, &judgement.data, &valid)?;
    let of_samples = baseline.map(|b| misfit(claim, &judgement.data, &b.samples)).transpose()?;
    // Where the equations are others, but as many.
    let known = judgement.truth.as_ref().filter(|truth| *truth != claim && truth.residuals().len() == of_data.len());
    let known = known.map(|truth| misfit(truth, &judgement.data, &valid)).transpose()?;
    let names = equation_names(claim);
    let one = |(k, found): (usize, Misfit)| GivenEvidence {
        equation: names[k].clone(),
        data: found.mean_abs,
        baseline: of_samples.as_ref().map_or(f64::NAN, |samples| samples[k].mean_abs),
        systematic: found.systematic,
        known: known.as_ref().map(|known| (judgement.origin.clone(), known[k].mean_abs)),
    };
    Ok(of_data.into_iter().enumerate().map(one).collect())
}

fn parameter(model: &Judged, found: &ParameterInterval) -> Option<ParameterEvidence> {
    match model.given.as_ref()?.parameters.get(&found.name)? {
        ParameterConfig::Learn { learn } => Some(ParameterEvidence { given: *learn, found: found.clone() }),
        _ => None,
    }
}

fn scatter(model: &Judged, baseline: &Judged) -> Vec<ScatterEvidence> {
    let pairs = model.fields.result.metrics.fields.iter().zip(&baseline.fields.result.metrics.fields);
    let one = |(run, base): (&softly::FieldComparison, &softly::FieldComparison)| ScatterEvidence {
        field: run.name.clone(),
        run: run.samples.std / run.data.std,
        baseline: base.samples.std / base.data.std,
    };
    pairs.map(one).collect()
}
