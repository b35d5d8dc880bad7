//! The table of a study of fields: its rows, what they say against vanilla, and the files it is kept in.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use softly::error::{Error, Result};
use softly::files::{read_record, read_text, write_record, write_text};
use softly::{FieldEval, FieldMetrics, FieldResult, PairedRatio, PerSample, ReferenceRow, npy};

use crate::fields::ablation::Ablation;
use crate::fields::study::{Cell, Claim, Equation, FieldStudy, Variant};
use crate::fields::targets::{Target, targets};
use crate::method::{Method, Trained};
use crate::scale::StudyScale;

/// A row of results: one method with one claim and one seed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Row {
    /// Method.
    pub method: Method,
    /// What it was given.
    #[serde(rename = "told")]
    pub claim: Claim,
    /// Training seed.
    pub seed: u64,
    /// Training steps behind it.
    pub iterations: u64,
    /// Smallest noise level of the sampler.
    pub sigma_min: f64,
    /// Steps of the sampler.
    pub steps: usize,
    /// Learned constraint parameters by name.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub learned: Vec<(String, f64)>,
    /// What was measured.
    pub result: FieldResult,
    /// Seconds of training.
    pub train_seconds: f64,
}

impl Row {
    /// Reads the file of one row.
    pub(crate) fn read(file: &Path) -> Result<Self> {
        read_record(file)
    }

    /// Writes the file of one row.
    pub(crate) fn write(&self, file: &Path) -> Result<()> {
        write_record(file, self)
    }

    /// The training and the evaluation behind it.
    pub fn origin(&self, study: &FieldStudy) -> Option<(Cell, Variant)> {
        let of = |cell: Cell| {
            let is_it = |v: &&Variant| v.method == self.method && v.claim == self.claim;
            let variant = cell.variants.iter().find(is_it).filter(|_| cell.seed == self.seed)?.clone();
            Some((cell, variant))
        };
        study.cells().into_iter().find_map(of)
    }

    /// Its first samples in physical units, `[keep, C, H, W]`, if the study's folder `out` has them.
    pub fn samples(&self, study: &FieldStudy, out: &Path) -> Result<Option<Vec<f32>>> {
        let Some((cell, variant)) = self.origin(study) else { return Ok(None) };
        let path = cell.samples_file(out, &variant);
        if !path.exists() {
            return Ok(None);
        }
        Ok(Some(npy::read(&path)?.values.into_iter().map(|v| v as f32).collect()))
    }
}

/// The residual of one method against vanilla's on the same seeds.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Verdict {
    /// Method.
    pub method: Method,
    /// What it was given.
    #[serde(rename = "told")]
    pub claim: Claim,
    /// Mean |R| over seeds.
    pub residual: f64,
    /// Against vanilla's.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ratio: Option<PairedRatio>,
    /// −log2 p per dimension less vanilla's on the same data: mean over seeds, and its standard error over data.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub likelihood_difference: Option<[f64; 2]>,
    /// In words.
    pub sentence: String,
}

/// `table.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FieldTable {
    /// `darcy` or `helmholtz`.
    pub study: Equation,
    /// How much of it was run.
    pub scale: StudyScale,
    /// The ablation, if it is one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ablation: Option<Ablation>,
    /// The command line behind it.
    pub command: String,
    /// Commit of the program.
    pub commit: String,
    /// Nodes of the grid, `[rows, columns]`.
    pub grid: [usize; 2],
    /// How rows were measured.
    pub eval: FieldEval,
    /// Rows to compare with: the data, no solution, somebody else's solution.
    pub references: Vec<ReferenceRow>,
    /// Every method and seed.
    pub rows: Vec<Row>,
    /// Every method against vanilla.
    pub verdicts: Vec<Verdict>,
    /// What the study had to reach.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub targets: Vec<Target>,
    /// Seconds of all trainings and evaluations, added up over cells.
    pub cell_seconds: f64,
}

impl FieldTable {
    /// The table's file in the study's folder `out`: `table.json`, or `table-NAME.json` of an ablation.
    pub fn file(out: &Path, ablation: Option<Ablation>) -> PathBuf {
        out.join(ablation.map_or_else(|| "table.json".into(), |a| format!("table-{}.json", a.name())))
    }

    /// The study behind it.
    pub fn study(&self) -> FieldStudy {
        let seeds: BTreeSet<u64> = self.rows.iter().map(|r| r.seed).collect();
        FieldStudy::new(self.study, self.scale, Some(seeds.len().max(1) as u64), self.ablation)
    }

    /// Compares the rows anew.
    pub(crate) fn judge(&mut self) {
        self.verdicts = verdicts(self.study, &self.rows);
        self.targets = targets(&self.study(), self);
    }

    /// What the file holds: six digits, no numbers of single samples, and curves by noise level and wave number only of
    /// rows that figures show. The whole of a row is in its cell's folder.
    pub fn condensed(&self) -> Value {
        let mut table = self.clone();
        let first = table.rows.first().map_or(0, |r| r.seed);
        for metrics in table.references.iter_mut().map(|r| &mut r.metrics) {
            metrics.per_sample = PerSample::default();
            drop_spectra(metrics);
        }
        for row in &mut table.rows {
            let result = &mut row.result;
            result.metrics.per_sample = PerSample::default();
            result.likelihood_samples.clear();
            if row.seed != first || result.likelihood.is_none() {
                drop_spectra(&mut result.metrics);
                result.loss.clear();
                result.gamma.clear();
                result.path.clear();
            }
        }
        let mut value = serde_json::to_value(&table).expect("numbers are valid JSON");
        round(&mut value);
        value
    }

    /// Writes it into the study's folder.
    pub(crate) fn write(&self, out: &Path) -> Result<()> {
        write_text(&Self::file(out, self.ablation), &(self.condensed().to_string() + "\n"))
    }

    /// Reads a table, and what it leaves out from the folders of its cells if they are beside it.
    pub fn read(file: &Path) -> Result<Self> {
        let mut table: Self = serde_json::from_str(&read_text(file)?)
            .map_err(|e| Error::input(file.display(), format!("is no table of a study of fields: {e}")))?;
        let study = table.study();
        let out = file.parent().unwrap_or(Path::new("."));
        let mut whole = true;
        for row in &mut table.rows {
            let origin = row.origin(&study).map(|(cell, variant)| cell.result_file(out, &variant));
            if let Some(file) = origin.filter(|f| f.exists()) {
                *row = Row::read(&file)?;
            }
            whole &= !row.result.metrics.per_sample.residual.is_empty();
        }
        if whole {
            table.judge();
        }
        Ok(table)
    }
}

fn drop_spectra(metrics: &mut FieldMetrics) {
    for field in &mut metrics.fields {
        field.spectrum.clear();
        field.data_spectrum.clear();
    }
}

/// Rounds every number that is no integer to six digits.
fn round(value: &mut Value) {
    match value {
        Value::Number(number) if number.is_f64() => {
            if let Some(rounded) = number.as_f64().and_then(|v| format!("{v:.5e}").parse::<f64>().ok()) {
                *value = rounded.into();
            }
        }
        Value::Array(values) => values.iter_mut().for_each(round),
        Value::Object(entries) => entries.values_mut().for_each(round),
        _ => {}
    }
}

/// A method and what it was given.
pub type Line<'a> = (&'a Method, Claim);

/// The rows of a line, one per seed.
pub(crate) fn rows_of<'a>(rows: &'a [Row], (method, claim): Line<'_>) -> Vec<&'a Row> {
    rows.iter().filter(|r| r.method == *method && r.claim == claim).collect()
}

/// Rows of two lines with the same seeds.
pub(crate) fn pairs<'a>(rows: &'a [Row], first: Line<'_>, second: Line<'_>) -> Vec<[&'a Row; 2]> {
    let second = rows_of(rows, second);
    let partner = |r: &'a Row| Some([r, *second.iter().find(|s| s.seed == r.seed)?]);
    rows_of(rows, first).into_iter().filter_map(partner).collect()
}

/// The residual of one line over the residual of another, paired by seed and sample.
pub fn residual_ratio(rows: &[Row], first: Line<'_>, second: Line<'_>) -> Option<PairedRatio> {
    let residuals = |r: &'_ Row| r.result.metrics.per_sample.residual.clone();
    let values: Vec<_> = pairs(rows, first, second).into_iter().map(|pair| pair.map(residuals)).collect();
    let slices: Vec<_> = values.iter().map(|[a, b]| (a.as_slice(), b.as_slice())).collect();
    PairedRatio::new(&slices, 0)
}

/// Every method against vanilla with the same seeds.
fn verdicts(equation: Equation, rows: &[Row]) -> Vec<Verdict> {
    let mut lines: Vec<Line<'_>> = Vec::new();
    for row in rows {
        if !lines.contains(&(&row.method, row.claim)) {
            lines.push((&row.method, row.claim));
        }
    }
    let vanilla = (&Method::from(Trained::Vanilla), equation.truth());
    let verdict = |line: Line<'_>| {
        let (method, claim) = line;
        let same = rows_of(rows, line);
        let residual = same.iter().map(|r| r.result.metrics.mean_residual()).sum::<f64>() / same.len() as f64;
        let ratio = if line == vanilla { None } else { residual_ratio(rows, line, vanilla) };
        let differences: Vec<f64> = pairs(rows, line, vanilla)
            .iter()
            .flat_map(|[a, b]| a.result.likelihood_samples.iter().zip(&b.result.likelihood_samples))
            .map(|(a, b)| a - b)
            .collect();
        let n = differences.len() as f64;
        let likelihood_difference = (line != vanilla && n > 1.0).then(|| {
            let mean = differences.iter().sum::<f64>() / n;
            let variance = differences.iter().map(|d| (d - mean).powi(2)).sum::<f64>() / (n - 1.0);
            [mean, (variance / n).sqrt()]
        });
        let name = format!("{method} ({})", equation.in_words(claim));
        let sentence = ratio.as_ref().map_or_else(String::new, |r| r.sentence("residual", &name, "vanilla"));
        Verdict { method: method.clone(), claim, residual, ratio, likelihood_difference, sentence }
    };
    lines.into_iter().map(verdict).collect()
}
