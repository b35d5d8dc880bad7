//! The sections of the page of trainings.

use softly::error::Result;
use softly::statistics::OverSamples;
use softly::{
    ConstraintConfig, FieldComparison, FieldEvaluator, FieldMetrics, Metrics, Nearest, PairedDifference, PairedRatio,
    ParameterConfig, ParameterInterval, Split, StoredFields,
};
use softly_figures::axis::Scale;
use softly_figures::charts::Point;
use softly_figures::page::{Block, Cell, Section, Table, duration, readable};

use crate::fields::figures::{DATA, residual_histogram, spectrum_chart};
use crate::runs::evidence::{difference, equation_names, evidence};
use crate::runs::figures::{
    Named, banded, by_level, by_step, exact, neighbours_figure, outlines, samples_figure, steps,
};
use crate::runs::gallery::Gallery;
use crate::runs::judge::{Judged, Judgement, drawing};
use crate::runs::record::Record;
use crate::runs::verdict::{Evidence, digits, sentences};

/// Most panels in a row of sample fields.
const PANELS: usize = 7;
/// Pairs of a sample and its nearest training sample that are shown.
const PAIRS: usize = 4;
/// Values of a field that a histogram counts.
const COUNTED: usize = 200_000;

/// What the page is made of.
pub struct Report<'a> {
    records: &'a [Record],
    notes: &'a [String],
    judged: Option<Shown<'a>>,
}

/// The models that were judged.
struct Shown<'a> {
    judgement: &'a Judgement,
    evaluator: FieldEvaluator<'a>,
    /// On the constraint of every model that uses one.
    evidence: Vec<Evidence>,
}

/// What the page is about, in a paragraph.
pub fn lead(judgement: &Judgement) -> String {
    let Judgement { data, truth, origin, .. } = judgement;
    let axes: Vec<String> = data.grid.axes.iter().map(|axis| format!("{} ({})", axis.nodes, axis.name)).collect();
    let samples = format!(
        "{} on a grid of {} points; {} training and {} held-out samples.",
        data.fields.join(", "),
        axes.join(" × "),
        data.train_count(),
        data.valid_count()
    );
    match truth {
        Some(truth) => format!("{samples} Residuals R are of {origin}: {}.", formulas(truth)),
        None => format!("{samples} Neither the data nor the runs bring an equation, so there are no residuals."),
    }
}

/// The formulas of an equation and the numbers in them.
fn formulas(equation: &ConstraintConfig) -> String {
    let number = |(name, parameter): (&String, &ParameterConfig)| match parameter {
        ParameterConfig::Number(number) => Some(format!("{name} = {}", digits(*number))),
        ParameterConfig::Learn { learn } => Some(format!("{name} = {} (its start)", digits(*learn))),
        _ => None,
    };
    let numbers: Vec<String> = equation.parameters.iter().filter_map(number).collect();
    let with = if numbers.is_empty() { String::new() } else { format!(" with {}", numbers.join(", ")) };
    format!("{}{with}", equation_names(equation).join("; "))
}

impl<'a> Report<'a> {
    /// The report of `records` and of what was found of them.
    pub fn new(records: &'a [Record], judgement: Option<&'a Judgement>, notes: &'a [String]) -> Result<Self> {
        let shown = |judgement: &'a Judgement| {
            let evaluator = FieldEvaluator::new(&judgement.data, judgement.truth.as_ref(), &judgement.units)?;
            let constrained = judgement.models.iter().filter(|model| model.given.is_some());
            let evidence = constrained.map(|model| evidence(judgement, model)).collect::<Result<_>>()?;
            Ok(Shown { judgement, evaluator, evidence })
        };
        Ok(Self { records, notes, judged: judgement.map(shown).transpose()? })
    }

    /// All sections.
    pub fn sections(&self, gallery: &mut Gallery) -> Result<Vec<Section>> {
        let mut sections = Vec::new();
        if let Some(shown) = &self.judged {
            sections.extend(shown.verdicts());
            sections.push(shown.numbers());
            sections.push(shown.samples(gallery)?);
            sections.push(shown.distributions(gallery)?);
            sections.push(shown.noise_levels(gallery));
            sections.extend(shown.parameters(self.records));
        }
        sections.push(self.trainings(gallery));
        sections.extend(self.records.iter().map(|record| Section {
            heading: format!("How {} was made", record.name),
            text: Vec::new(),
            blocks: vec![
                Block::Preformatted(record.info.command.clone()),
                Block::Preformatted(record.config_text.trim_end().into()),
            ],
        }));
        Ok(sections)
    }

    /// The trainings themselves: loss and gradient by step.
    fn trainings(&self, gallery: &mut Gallery) -> Section {
        let row = |record: &Record| {
            let last = record.metrics.last();
            let learned = last.map_or_else(String::new, |m| {
                m.constraint.iter().map(|(name, value)| format!("{name} = {value:.4}")).collect::<Vec<_>>().join(", ")
            });
            vec![
                Cell::text(&*record.name),
                Cell::text(&*record.info.status),
                Cell::number(record.info.seed.to_string()),
                Cell::number(last.map_or_else(String::new, |m| m.step.to_string())),
                Cell::number(last.map_or_else(String::new, |m| format!("{:.5}", m.loss))),
                Cell::text(learned),
                Cell::text(readable(duration(record.info.seconds))),
                Cell::text(format!("{}, {} threads", record.info.device, record.info.threads)),
                Cell::text(&*record.info.commit),
            ]
        };
        let header = ["run", "status", "seed", "steps", "loss", "learned", "time", "device", "commit"];
        let mut blocks = vec![Block::Table(Table {
            caption: "Trainings; the loss is the mean over the steps of the last line of metrics.jsonl.".into(),
            header: header.map(String::from).to_vec(),
            rows: self.records.iter().map(row).collect(),
            origin: None,
        })];
        let mut charts = Vec::new();
        let mut chart = |title: &str, pick: &dyn Fn(&Metrics) -> Option<f64>| {
            let curves = self.records.iter().map(|record| (record.name.as_str(), steps(&record.metrics, pick)));
            let curves: Vec<(&str, Vec<Point>)> = curves.filter(|(_, points)| !points.is_empty()).collect();
            if !curves.is_empty() {
                let svg = by_step(title, Scale::Log, &curves, Vec::new(), &mut gallery.colours);
                charts.push(gallery.chart(&title.to_lowercase(), svg, ""));
            }
        };
        chart("Loss", &|m| Some(m.loss));
        chart("Regulariser", &|m| m.terms.get("residual").copied());
        chart("Gradient norm", &|m| Some(m.gradient_norm));
        blocks.push(Block::Figures(charts));
        Section { heading: "Trainings".into(), text: self.notes.to_vec(), blocks }
    }
}

impl Shown<'_> {
    fn models(&self) -> &[Judged] {
        &self.judgement.models
    }

    /// The verdict on every constraint.
    fn verdicts(&self) -> Vec<Section> {
        let section = |evidence: &Evidence| {
            let mut said = sentences(evidence).into_iter();
            let mut blocks: Vec<Block> = said.next().map(Block::Verdict).into_iter().collect();
            blocks.extend(said.map(Block::Text));
            Section { heading: format!("Verdict on the constraint of {}", evidence.run), text: Vec::new(), blocks }
        };
        self.evidence.iter().map(section).collect()
    }

    /// The table of all numbers.
    fn numbers(&self) -> Section {
        let StoredFields { result, references, .. } = &self.models()[0].fields;
        let residuals = result.metrics.residual.is_some();
        let compared = self.models().iter().any(|model| model.baseline.is_some());
        let mut header = vec![String::new()];
        header.extend(residuals.then(|| "mean |R|".into()));
        header.extend((residuals && compared).then(|| "ratio".into()));
        header.push("NLL".into());
        header.extend(compared.then(|| "difference".into()));
        header.push("neighbours".into());
        let residual_of = |metrics: &FieldMetrics, ratio: String| {
            let size = |r: OverSamples| format!("{} ± {}", digits(r.summary.mean), digits(r.summary.two_sd));
            let mut texts: Vec<String> = metrics.residual.map(size).into_iter().collect();
            texts.extend(Some(ratio).filter(|_| residuals && compared));
            texts
        };
        let row = |name: &str, texts: Vec<String>| {
            let mut cells = vec![Cell::text(name)];
            cells.extend(texts.into_iter().map(Cell::number));
            cells.resize_with(header.len(), Cell::default);
            cells
        };
        let model = |model: &Judged| {
            let result = &model.fields.result;
            let (ratio, gap) = self.comparison(model);
            let mut texts = residual_of(&result.metrics, ratio);
            texts.push(match (&result.likelihood, &result.no_likelihood) {
                (Some(bits), _) => format!("{:.3}", bits.normalised),
                (None, Some(_)) => "none".into(),
                (None, None) => String::new(),
            });
            texts.extend(compared.then_some(gap));
            texts.push(result.metrics.neighbours.ratio.map_or_else(String::new, |r| format!("{r:.2}")));
            row(&model.name, texts)
        };
        // The first row says how columns are aligned, so models come before what has no numbers in some of them.
        let mut rows: Vec<Vec<Cell>> = self.models().iter().map(model).collect();
        let references = references.iter().filter(|_| residuals);
        rows.extend(references.map(|r| row(&r.name, residual_of(&r.metrics, String::new()))));
        let caption = numbers_caption(result.metrics.count, residuals, compared);
        let mut blocks = vec![Block::Table(Table { caption, header, rows, origin: None })];
        blocks.extend(self.equations());
        Section { heading: "Numbers".into(), text: Vec::new(), blocks }
    }

    /// The residual of every equation by itself, if there are several.
    fn equations(&self) -> Option<Block> {
        let names = equation_names(self.judgement.truth.as_ref()?);
        if names.len() < 2 {
            return None;
        }
        let references = self.models()[0].fields.references.iter().filter(|row| row.name == DATA);
        let columns: Vec<(&str, &FieldMetrics)> = (self.models().iter())
            .map(|m| (m.name.as_str(), &m.fields.result.metrics))
            .chain(references.map(|row| (DATA, &row.metrics)))
            .collect();
        let row = |(k, name): (usize, String)| {
            let mean = |(_, metrics): &(&str, &FieldMetrics)| {
                metrics.formulas.get(k).map_or_else(String::new, |f| digits(f.residual.summary.mean))
            };
            let mut cells = vec![Cell::text(format!("{}: {name}", k + 1))];
            cells.extend(columns.iter().map(mean).map(Cell::number));
            cells
        };
        let mut header = vec!["equation".to_string()];
        header.extend(columns.iter().map(|(name, _)| (*name).to_string()));
        Some(Block::Table(Table {
            caption: "Mean |R| of each equation over its nodes and the samples.".into(),
            header,
            rows: names.into_iter().enumerate().map(row).collect(),
            origin: None,
        }))
    }

    /// The residual of a model over its baseline's, and the difference of their likelihoods, as texts.
    fn comparison(&self, model: &Judged) -> (String, String) {
        let Some(baseline) = model.baseline.map(|k| &self.models()[k]) else { return Default::default() };
        let own = |m: &Judged| m.fields.result.metrics.per_sample.residual.clone();
        let ratio = PairedRatio::new(&[(&own(model), &own(baseline))], 0);
        let gap = |PairedDifference { mean, error, .. }: PairedDifference| format!("{mean:+.3} ± {:.3}", 2.0 * error);
        (
            ratio.map_or_else(String::new, |r| format!("{:.2} [{:.2}, {:.2}]", r.ratio, r.interval[0], r.interval[1])),
            difference(model, baseline).map_or_else(String::new, gap),
        )
    }

    /// Samples beside data, with their residuals.
    fn samples(&self, gallery: &mut Gallery) -> Result<Section> {
        let Judgement { data, .. } = self.judgement;
        let length = data.sample_len();
        // As many of the data as of each model.
        let each = (PANELS / (1 + self.models().len())).clamp(1, 3);
        let mut named: Vec<Named<'_>> = Vec::new();
        let valid = data.samples(Split::Valid, 0..each.min(data.valid_count()))?;
        for (name, samples) in
            std::iter::once((DATA, &valid[..])).chain(self.models().iter().map(|m| (m.name.as_str(), &m.samples[..])))
        {
            for (k, sample) in samples.chunks_exact(length).take(each).enumerate() {
                let name = if each == 1 { name.to_string() } else { format!("{name} #{k}") };
                named.push(Named { name, sample });
            }
        }
        let svg = samples_figure("Samples beside held-out data", &data.fields, &data.grid, &self.evaluator, &named);
        let caption = "Every row has one colour scale; models that share a seed start from the same noise.";
        let mut blocks = vec![gallery.show("samples", svg.map_err(drawing)?, caption)];
        let of = |m: &Judged| m.fields.result.metrics.per_sample.residual.iter().flatten().copied().collect::<Vec<_>>();
        let held_out = self.models()[0].fields.references.iter().find(|row| row.name == DATA);
        let data_residuals: Vec<f64> =
            held_out.map_or_else(Vec::new, |row| row.metrics.per_sample.residual.iter().flatten().copied().collect());
        let mut sets = vec![(DATA, data_residuals)];
        sets.extend(self.models().iter().map(|m| (m.name.as_str(), of(m))));
        let sets: Vec<(&str, &[f64])> =
            sets.iter().filter(|(_, values)| !values.is_empty()).map(|(n, v)| (*n, v.as_slice())).collect();
        if !sets.is_empty() {
            let svg = residual_histogram("Residuals of single samples", &sets, &mut gallery.colours);
            blocks.push(gallery.show("residuals", svg, "Broken lines mark medians."));
        }
        Ok(Section { heading: "Samples beside data".into(), text: Vec::new(), blocks })
    }

    /// Marginals, spectra and nearest neighbours.
    fn distributions(&self, gallery: &mut Gallery) -> Result<Section> {
        let data = &self.judgement.data;
        let mut charts = Vec::new();
        let valid = data.all(Split::Valid)?;
        for (channel, name) in data.fields.iter().enumerate() {
            let mut sets = vec![(DATA, self.pooled(&valid, channel))];
            sets.extend(self.models().iter().map(|m| (m.name.as_str(), self.pooled(&m.samples, channel))));
            let title = format!("Values of {name}");
            let svg = outlines(&title, name, Scale::Linear, &sets, &mut gallery.colours);
            charts.push(gallery.chart(&format!("values-{name}"), svg, "At all nodes; broken lines mark medians."));
            let of = |m: &'_ Judged| m.fields.result.metrics.fields[channel].clone();
            let all: Vec<(&str, FieldComparison)> = self.models().iter().map(|m| (m.name.as_str(), of(m))).collect();
            let mut spectra: Vec<(&str, &[f64])> = vec![(DATA, &all[0].1.data_spectrum)];
            spectra.extend(all.iter().map(|(name, field)| (*name, &field.spectrum[..])));
            let svg = spectrum_chart(name, &spectra, &mut gallery.colours);
            charts.push(gallery.chart(&format!("spectrum-{name}"), svg, "Means over samples."));
        }
        let mut blocks = vec![Block::Table(self.distances()), Block::Figures(charts)];
        blocks.extend(self.neighbours(gallery)?);
        Ok(Section { heading: "Distributions".into(), text: Vec::new(), blocks })
    }

    /// Every field of every model against the data.
    fn distances(&self) -> Table {
        let row = |(model, f): (&Judged, &FieldComparison)| {
            let texts = [
                format!("{:.3}", f.samples.std / f.data.std),
                digits(f.w1),
                digits(f.w1_floor),
                format!("{:.2}", f.spectral_distance),
                format!("{:.2}", f.spectral_floor),
            ];
            [Cell::text(&*model.name), Cell::text(&*f.name)].into_iter().chain(texts.map(Cell::number)).collect()
        };
        let all = self.models().iter().flat_map(|m| m.fields.result.metrics.fields.iter().map(move |f| (m, f)));
        let header = ["", "field", "std / data's", "W1", "its floor", "spectral distance [dB]", "its floor"];
        Table {
            caption: "Samples against held-out data. W1: distance between the values at all nodes, in the field's \
                      unit. Floors are what as many training samples score: chance alone."
                .into(),
            header: header.map(String::from).to_vec(),
            rows: all.map(row).collect(),
            origin: None,
        }
    }

    /// Some of the values of one field of `samples` `[N, C, H, W]`, evenly chosen.
    fn pooled(&self, samples: &[f32], channel: usize) -> Vec<f64> {
        let data = &self.judgement.data;
        let fields = samples.chunks_exact(data.grid.len()).skip(channel).step_by(data.fields.len());
        let every = (samples.len() / data.fields.len()).div_ceil(COUNTED).max(1);
        fields.flatten().step_by(every).map(|&v| f64::from(v)).collect()
    }

    /// How far samples are from the training data, and the pairs that are nearest.
    fn neighbours(&self, gallery: &mut Gallery) -> Result<Vec<Block>> {
        let data = &self.judgement.data;
        let distances = |found: &[Nearest]| found.iter().map(|nearest| nearest.distance).collect::<Vec<f64>>();
        let mut sets = vec![(DATA, distances(&self.evaluator.nearest(&data.all(Split::Valid)?)?))];
        let mut pairs: Vec<(Nearest, String, &[f32])> = Vec::new();
        let length = data.sample_len();
        for model in self.models() {
            let found = self.evaluator.nearest(&model.samples)?;
            for (k, (sample, nearest)) in model.samples.chunks_exact(length).zip(&found).enumerate() {
                pairs.push((*nearest, format!("{} #{k}", model.name), sample));
            }
            sets.push((model.name.as_str(), distances(&found)));
        }
        let title = "Distance to the nearest training sample";
        let svg =
            outlines(title, "root mean square difference, normalised", Scale::Linear, &sets, &mut gallery.colours);
        let caption = "Of held-out data and of samples. Copies of training data would pile up at 0.";
        let mut blocks = vec![gallery.show("neighbours", svg, caption)];
        pairs.sort_by(|a, b| a.0.distance.total_cmp(&b.0.distance));
        pairs.truncate(PAIRS);
        let training =
            |(nearest, ..): &(Nearest, String, &[f32])| data.samples(Split::Train, nearest.index..nearest.index + 1);
        let training = pairs.iter().map(training).collect::<Result<Vec<_>>>()?;
        let shown: Vec<(String, [&[f32]; 2])> = pairs
            .iter()
            .zip(&training)
            .map(|((nearest, name, sample), training)| {
                (format!("{name}: {}", digits(nearest.distance)), [*sample, &training[..]])
            })
            .collect();
        let svg = neighbours_figure(&data.fields[0], &data.grid, &shown).map_err(drawing)?;
        blocks.push(gallery.show(
            "nearest",
            svg,
            "The samples that are nearest to any training sample, with their distance.",
        ));
        Ok(blocks)
    }

    /// Residual, γ, the correction's share and the loss by noise level.
    fn noise_levels(&self, gallery: &mut Gallery) -> Section {
        let mut charts = Vec::new();
        let curves = |of: &dyn Fn(&Judged) -> Vec<Point>| -> Vec<(&str, Vec<Point>)> {
            let all = self.models().iter().map(|m| (m.name.as_str(), of(m)));
            all.filter(|(_, points)| !points.is_empty()).collect()
        };
        let path = curves(&|m| exact(&m.fields.result.path));
        if !path.is_empty() {
            let title = "Residual along the sampling path";
            let svg = by_level(title, "mean |R| of the denoised sample", Scale::Log, &path, &mut gallery.colours);
            charts.push(gallery.chart("residual-by-noise", svg, "Sampling runs from right to left."));
        }
        let share = |m: &Judged| -> Vec<Point> {
            let levels = m.explained.iter().flat_map(|report| &report.levels);
            levels.filter_map(|l| Some(Point::exact(l.sigma, 100.0 * l.learned?))).collect()
        };
        let shares = curves(&share);
        if !shares.is_empty() {
            let title = "What the correction takes away";
            let svg = by_level(title, "% of the base's squared error", Scale::Linear, &shares, &mut gallery.colours);
            let caption = "On noisy held-out data, as learned; below 0 it does harm.";
            charts.push(gallery.chart("correction-by-noise", svg, caption));
        }
        let mut parts: Vec<&String> = Vec::new();
        for part in self.models().iter().flat_map(|m| &m.parts) {
            if !parts.contains(&part) {
                parts.push(part);
            }
        }
        for part in parts {
            let gamma = curves(&|m| {
                let at = m.parts.iter().position(|p| p == part);
                at.and_then(|at| m.fields.result.gamma.get(at)).map_or_else(Vec::new, |levels| banded(levels))
            });
            if !gamma.is_empty() {
                let title = format!("Learned γ of the direction {part}");
                let svg = by_level(&title, "γ", Scale::Linear, &gamma, &mut gallery.colours);
                let caption = "On noisy held-out data: mean, and the range from the 10th to the 90th percentile.";
                charts.push(gallery.chart(&format!("gamma-{part}"), svg, caption));
            }
        }
        let loss = curves(&|m| exact(&m.fields.result.loss));
        if !loss.is_empty() {
            let title = "Denoising loss on held-out data";
            let svg = by_level(title, "squared error, EDM's weight", Scale::Log, &loss, &mut gallery.colours);
            charts.push(gallery.chart("loss-by-noise", svg, "The same noise for every model."));
        }
        Section { heading: "By noise level".into(), text: Vec::new(), blocks: vec![Block::Figures(charts)] }
    }

    /// Learned parameters and their intervals.
    fn parameters(&self, records: &[Record]) -> Option<Section> {
        let mut rows = Vec::new();
        for (record, model) in self.models().iter().filter_map(|m| Some((&records[m.record?], m))) {
            for found in &model.parameters {
                let given = model.given.as_ref().and_then(|constraint| constraint.parameters.get(&found.name));
                if let Some(ParameterConfig::Learn { learn }) = given {
                    rows.push(interval_row(record, *learn, found));
                }
            }
        }
        let header =
            ["run", "parameter", "given", "way of the fit", "learned", "held-out data prefer", "95 % interval"];
        let table = Table {
            caption: "Numbers that were fitted to the training data, step by step; intervals are bootstraps over held-out samples."
                .into(),
            header: header.map(String::from).to_vec(),
            rows,
            origin: None,
        };
        let blocks = vec![Block::Table(table)];
        (!self.models().iter().all(|model| model.parameters.is_empty())).then(|| Section {
            heading: "Learned parameters".into(),
            text: Vec::new(),
            blocks,
        })
    }
}

/// What the columns of the table of numbers mean.
fn numbers_caption(count: usize, residuals: bool, compared: bool) -> String {
    let mut said = vec![format!("{count} samples of each model.")];
    if residuals {
        said.push("|R|: mean over nodes and samples ± two standard deviations over samples.".into());
    }
    if residuals && compared {
        said.push("ratio: |R| over that of the model without the constraint, with its 95 % interval.".into());
    }
    said.push("NLL: bits per dimension of held-out data in normalised units.".into());
    if compared {
        let what =
            "difference: NLL less that of the model without the constraint, sample by sample, ± two standard errors.";
        said.push(what.into());
    }
    said.push("neighbours: median distance to the nearest training sample, over that of held-out data.".into());
    said.join(" ")
}

fn interval_row(record: &Record, given: f64, found: &ParameterInterval) -> Vec<Cell> {
    let range = found.interval.map_or("unbounded".into(), |[low, high]| format!("{} to {}", digits(low), digits(high)));
    let mut way: Vec<String> =
        record.info.fit.iter().filter_map(|step| Some(digits(*step.get(&found.name)?))).collect();
    // The last steps change digits that are not shown.
    way.dedup();
    vec![
        Cell::text(&*record.name),
        Cell::text(&*found.name),
        Cell::number(digits(given)),
        Cell::text(way.join(" → ")),
        Cell::number(digits(found.value)),
        Cell::number(found.estimate.map_or_else(String::new, digits)),
        Cell::number(range),
    ]
}
