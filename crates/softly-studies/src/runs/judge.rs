//! Evaluations of runs: those that `softly eval` has left in their folders if they are fresh, and modest ones made now
//! if not.

use softly::error::{Error, Result};
use softly::job::Job;
use softly::units::Units;
use softly::{
    ConstraintConfig, Dataset, Directions, Explained, ExplainedReport, FieldEval, FieldEvaluator, HeldOut, MadeOf,
    ParameterConfig, ParameterInterval, Split, StoredFields, Trained, is_reduced, parameter_intervals, read_fields,
    read_stored, write_fields, write_stored,
};

use crate::runs::record::Record;

/// What is measured of a run that nobody has measured.
const MODEST: FieldEval =
    FieldEval { samples: 64, batch: 16, likelihood: 32, likelihood_steps: 32, loss: 64, keep: 64 };
/// Held-out samples on which the correction and learned parameters are judged.
const HELD_OUT: usize = 64;
/// The setting that takes a soft constraint off its base.
const BASE: &str = "denoiser.scd.compliance=0";

/// A model on the page.
pub struct Judged {
    /// Its name.
    pub name: String,
    /// Its place among the records; none for the frozen base of one.
    pub record: Option<usize>,
    /// What was measured of its samples.
    pub fields: StoredFields,
    /// Samples in physical units, `[N, C, H, W]`.
    pub samples: Vec<f32>,
    /// The parts of its γ by name.
    pub parts: Vec<String>,
    /// What its correction takes away of the base's error.
    pub explained: Option<ExplainedReport>,
    /// What held-out data say about numbers that it learned.
    pub parameters: Vec<ParameterInterval>,
    /// The equation that it was given, if it uses one.
    pub given: Option<ConstraintConfig>,
    /// The place of what it is compared with, if it uses a constraint and there is such a thing.
    pub baseline: Option<usize>,
}

/// All models on the page, judged by one set of data and one equation.
pub struct Judgement {
    /// The data.
    pub data: Dataset,
    /// Units in which distances between samples are taken.
    pub units: Units,
    /// The equation that residuals are of, if one is known.
    pub truth: Option<ConstraintConfig>,
    /// Where that equation comes from.
    pub origin: String,
    /// The place among the records of the run that claims it, if nobody else does.
    pub claimed: Option<usize>,
    /// The models.
    pub models: Vec<Judged>,
}

/// Judges those of `records` that can be judged together, and says why the others cannot.
pub fn judge(records: &[Record], job: &Job<'_>) -> Result<(Option<Judgement>, Vec<String>)> {
    let mut notes = Vec::new();
    let mut chosen: Vec<usize> = Vec::new();
    for (k, record) in records.iter().enumerate() {
        let name = &record.name;
        match chosen.first() {
            _ if !record.is_trained() => notes.push(format!("{name} has no snapshot yet: only its training is shown.")),
            Some(&first) if records[first].info.dataset_hash != record.info.dataset_hash => notes.push(format!(
                "{name} was trained on other data than {}: only its training is shown. Give it a page of its own.",
                records[first].name
            )),
            _ => chosen.push(k),
        }
    }
    let Some(&first) = chosen.first() else { return Ok((None, notes)) };
    let data = match Dataset::from_config(&records[first].config.data) {
        Ok(data) => data,
        Err(error) => {
            let text = error.to_string();
            let why = text.lines().next().unwrap_or_default();
            notes
                .push(format!("The data of {} cannot be read ({why}): only trainings are shown.", records[first].name));
            return Ok((None, notes));
        }
    };
    if data.grid.is_point() {
        notes.push("Models of points are judged by `softly eval`: only their trainings are shown.".into());
        return Ok((None, notes));
    }
    if data.hash() != records[first].info.dataset_hash {
        notes.push("The data have changed since the training: numbers below are of the new ones.".into());
    }
    let judge = Judge::new(records, &chosen, data, job)?;
    Ok((Some(judge.run(&chosen)?), notes))
}

/// The work of judging.
struct Judge<'a> {
    records: &'a [Record],
    data: Dataset,
    units: Units,
    truth: Option<ConstraintConfig>,
    origin: String,
    claimed: Option<usize>,
    eval: FieldEval,
    job: &'a Job<'a>,
}

impl<'a> Judge<'a> {
    fn new(records: &'a [Record], chosen: &[usize], data: Dataset, job: &'a Job<'a>) -> Result<Self> {
        let (units, _) = data.units(&records[chosen[0]].config.data)?;
        let (truth, origin, claimed) = match known(records, chosen, &data) {
            Some((truth, origin)) => (Some(truth), origin, None),
            None => match claim(records, chosen) {
                Some((truth, origin, by)) => (Some(truth), origin, Some(by)),
                None => (None, String::new(), None),
            },
        };
        Ok(Self { records, data, units, truth, origin, claimed, eval: MODEST.unless_reduced(), job })
    }

    fn run(self, chosen: &[usize]) -> Result<Judgement> {
        let plain = chosen.iter().copied().find(|&k| !self.records[k].is_constrained());
        // Frozen bases stand in for a run without a constraint.
        let based = |k: usize| plain.is_none() && self.records[k].is_adapted();
        let steps = |k: usize| self.records[k].config.sampler.steps;
        let total: u64 = chosen.iter().map(|&k| self.eval.units(steps(k)) * if based(k) { 2 } else { 1 }).sum();
        self.job.reporter.begin(total, 0);
        let evaluator = FieldEvaluator::new(&self.data, self.truth.as_ref(), &self.units)?;
        let mut models: Vec<Judged> = Vec::new();
        for &k in chosen {
            let record = &self.records[k];
            let own_base = if based(k) {
                models.push(self.base(record, &evaluator)?);
                Some(models.len() - 1)
            } else {
                None
            };
            let mut model = self.model(k, &evaluator)?;
            if record.is_constrained() {
                model.baseline = plain.and_then(|p| models.iter().position(|m| m.record == Some(p))).or(own_base);
            }
            models.push(model);
        }
        // A run without a constraint may come after those that it is compared with.
        if let Some(at) = plain.and_then(|p| models.iter().position(|m| m.record == Some(p))) {
            for model in models.iter_mut().filter(|m| m.record.is_some_and(|k| self.records[k].is_constrained())) {
                model.baseline = Some(at);
            }
        }
        drop(evaluator);
        let Self { data, units, truth, origin, claimed, .. } = self;
        Ok(Judgement { data, units, truth, origin, claimed, models })
    }

    /// The frozen denoiser below the constraint of a run.
    fn base(&self, record: &Record, evaluator: &FieldEvaluator<'_>) -> Result<Judged> {
        let settings = [BASE.to_string()];
        let (fields, samples) = self.fields(record, &settings, &["report-base"], evaluator)?;
        Ok(Judged {
            name: format!("{} without it", record.name),
            record: None,
            fields,
            samples,
            parts: Vec::new(),
            explained: None,
            parameters: Vec::new(),
            given: None,
            baseline: None,
        })
    }

    fn model(&self, index: usize, evaluator: &FieldEvaluator<'_>) -> Result<Judged> {
        let record = &self.records[index];
        let (fields, samples) = self.fields(record, &[], &["fields", "report"], evaluator)?;
        let scd = record.config.denoiser.scd.as_ref();
        let given = record.config.constraint.clone().filter(|_| record.is_constrained());
        Ok(Judged {
            name: record.name.clone(),
            record: Some(index),
            fields,
            samples,
            parts: scd.map_or_else(Vec::new, |scd| scd.parts(&self.data.fields)),
            explained: self.explained(record)?,
            parameters: self.parameters(record)?,
            given,
            baseline: None,
        })
    }

    fn load(&self, record: &Record, settings: &[String]) -> Result<Trained> {
        Trained::load_with(&record.folder.path, settings, self.job.device)
    }

    /// Samples and what is measured of them: kept under one of `names`, or made now and kept under the last.
    fn fields(
        &self,
        record: &Record,
        settings: &[String],
        names: &[&str],
        evaluator: &FieldEvaluator<'_>,
    ) -> Result<(StoredFields, Vec<f32>)> {
        let made_of = MadeOf::new(&record.folder, &self.data, self.truth.as_ref(), settings)?;
        let enough = |found: &StoredFields| {
            let likelihood = found.result.likelihood.is_some() || found.result.no_likelihood.is_some();
            found.eval.samples >= self.eval.samples && likelihood
        };
        let kept = names.iter().find_map(|name| {
            let (found, samples) = read_fields(&record.folder, name, &made_of)?;
            (enough(&found) && !samples.is_empty()).then_some((found, samples))
        });
        if let Some(kept) = kept {
            self.job.reporter.advance(self.eval.units(record.config.sampler.steps));
            return Ok(kept);
        }
        let without = if settings.is_empty() { "" } else { " without its constraint" };
        self.job.reporter.note(&format!("measuring {}{without}: {} samples", record.name, self.eval.samples));
        let trained = self.load(record, settings)?;
        let (result, samples) = self.eval.run(&trained, evaluator, &self.data, self.job)?;
        let found = StoredFields { eval: self.eval, result, references: evaluator.references()? };
        let name = names.last().copied().unwrap_or("report");
        self.keep(write_fields(&record.folder, name, &made_of, found.clone(), (&samples, self.data.shape())));
        Ok((found, samples.iter().map(|&v| v as f32).collect()))
    }

    /// `measure` of a run on held-out data: kept under `name`, or made now and kept under `report-NAME`.
    fn on_held_out<T: serde::Serialize + serde::de::DeserializeOwned>(
        &self,
        record: &Record,
        name: &str,
        measure: impl FnOnce(&Trained, HeldOut<'_>) -> Result<T>,
    ) -> Result<T> {
        let made_of = MadeOf::new(&record.folder, &self.data, None, &[])?;
        let own = format!("report-{name}");
        if let Some(kept) = [name, &own].into_iter().find_map(|name| read_stored(&record.folder, name, &made_of)) {
            return Ok(kept);
        }
        let trained = self.load(record, &[])?;
        let units = &trained.blueprint.data.units;
        let most = if is_reduced() { 4 } else { HELD_OUT };
        let indices: Vec<usize> = (0..self.data.valid_count().min(most)).collect();
        let values = self.data.batch(Split::Valid, &indices, units)?;
        let found = measure(&trained, HeldOut { values: &values, shape: self.data.shape(), units })?;
        self.keep(write_stored(&record.folder, &own, &made_of, &found));
        Ok(found)
    }

    /// Says so if something could not be kept: a run may be in a place where nothing can be written.
    fn keep(&self, outcome: Result<()>) {
        if let Err(error) = outcome {
            self.job.reporter.note(&format!("not kept for the next time: {error}"));
        }
    }

    /// What the correction of a run takes away of the error of its base, by noise level; none without a soft
    /// constraint.
    fn explained(&self, record: &Record) -> Result<Option<ExplainedReport>> {
        let Some(scd) = &record.config.denoiser.scd else { return Ok(None) };
        let measure = |trained: &Trained, held_out: HeldOut<'_>| {
            // Directions themselves are not asked for: to build them would take longer than all else.
            let directions = Directions { all: Vec::new(), learned: scd.directions.len() };
            let settings = Explained { batch: self.eval.batch, ..Explained::for_model(&trained.blueprint.config) };
            let silent = softly::job::Silent;
            settings.evaluate(&trained.model, &directions, held_out, 0, &self.job.reporting_to(&silent))
        };
        self.on_held_out(record, "explained", measure).map(Some)
    }

    /// What held-out data say about the numbers that a run has learned.
    fn parameters(&self, record: &Record) -> Result<Vec<ParameterInterval>> {
        let parameters = record.config.constraint.iter().flat_map(|constraint| constraint.parameters.values());
        let learned = parameters.filter(|parameter| matches!(parameter, ParameterConfig::Learn { .. })).count();
        if learned == 0 || record.config.denoiser.scd.is_none() {
            return Ok(Vec::new());
        }
        let measure = |trained: &Trained, held_out: HeldOut<'_>| {
            parameter_intervals(&trained.model, held_out, &self.job.reporting_to(&softly::job::Silent))
        };
        self.on_held_out(record, "parameters", measure)
    }
}

/// The equation that the data are known to obey, and who says so: a run's [truth] is that of its data unless it was
/// given.
fn known(records: &[Record], chosen: &[usize], data: &Dataset) -> Option<(ConstraintConfig, String)> {
    chosen.iter().find_map(|&k| {
        let truth = records[k].config.truth.clone()?;
        let own = data.equation.as_ref().is_some_and(|equation| data.complete(equation) == truth);
        let origin = if own { "the data's own equation".into() } else { format!("the [truth] of {}", records[k].name) };
        Some((truth, origin))
    })
}

/// The equation that a run claims, who claims it and its place: the first one without learned parameters, else the
/// first one with the numbers that were learned.
fn claim(records: &[Record], chosen: &[usize]) -> Option<(ConstraintConfig, String, usize)> {
    let claims = || chosen.iter().filter_map(|&k| Some((records[k].config.constraint.clone()?, k)));
    let learns = |claim: &ConstraintConfig| claim.parameters.values().any(ParameterConfig::is_learned);
    if let Some((claim, k)) = claims().find(|(claim, _)| !learns(claim)) {
        return Some((claim, format!("the equation given to {}", records[k].name), k));
    }
    let (mut claim, k) = claims().next()?;
    for (name, parameter) in &mut claim.parameters {
        let learned = records[k].metrics.last().and_then(|line| line.constraint.get(name));
        if let (ParameterConfig::Learn { .. }, Some(&learned)) = (&*parameter, learned) {
            *parameter = ParameterConfig::Number(learned);
        }
    }
    Some((claim, format!("the equation that {} has learned", records[k].name), k))
}

/// An error of drawing.
pub fn drawing(error: impl std::fmt::Display) -> Error {
    Error::Failed { what: "the report".into(), why: error.to_string() }
}
