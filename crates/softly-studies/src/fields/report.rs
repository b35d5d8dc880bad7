//! Table and page of the studies of fields.

use std::path::{Path, PathBuf};

use softly::error::{Error, Result};
use softly::files::write_text;
use softly::statistics::{AtLevel, OverSamples};
use softly::units::Units;
use softly::{Bits, DatasetFolder, FieldComparison, FieldMetrics, METRICS, SampleMetric, SoftConstraint, Split};
use softly_figures::axis::Scale;
use softly_figures::charts::{Axes, LineChart, Point, Series, Spread};
use softly_figures::field_grid::Quantity;
use softly_figures::page::{Block, Cell, Origin, Page, Section, Table, duration, render};
use softly_figures::svg::Colours;

use crate::fields::ablation::Ablation;
use crate::fields::figures::{
    DATA, MethodSample, gamma_chart, misspecification_chart, path_chart, residual_histogram, sample_figure, series,
    spectrum_chart,
};
use crate::fields::study::{Claim, Equation, FieldStudy, Variant};
use crate::fields::table::{FieldTable, Row, Verdict};
use crate::fields::targets::Target;
use crate::method::Trained;
use crate::paper;

/// Methods of the main table, in this order; others vary a sampler.
const MAIN: [Trained; 11] = [
    Trained::Vanilla,
    Trained::Scd,
    Trained::ScdUnit,
    Trained::ScdPaper,
    Trained::ScdPaperNorm,
    Trained::Pidm,
    Trained::PidmPublished,
    Trained::PidmDdpm,
    Trained::Fundps,
    Trained::Adapt,
    Trained::AdaptLearn,
];

/// Methods of the figures by sample and noise level.
const PICTURED: [Trained; 7] = [
    Trained::Vanilla,
    Trained::Scd,
    Trained::ScdPaper,
    Trained::Pidm,
    Trained::PidmDdpm,
    Trained::Adapt,
    Trained::AdaptLearn,
];

/// One line per method and claim: means over seeds.
struct Line<'a> {
    verdict: &'a Verdict,
    rows: Vec<&'a Row>,
}

impl<'a> Line<'a> {
    fn all(table: &'a FieldTable) -> Vec<Self> {
        let line = |verdict: &'a Verdict| {
            let rows = table.rows.iter().filter(|r| r.method == verdict.method && r.claim == verdict.claim);
            Self { verdict, rows: rows.collect() }
        };
        table.verdicts.iter().map(line).collect()
    }

    /// Mean over seeds of what `pick` finds in each row; `None` if a row has none.
    fn mean(&self, pick: impl Fn(&Row) -> Option<f64>) -> Option<f64> {
        let values = self.rows.iter().map(|r| pick(r)).collect::<Option<Vec<f64>>>()?;
        Some(values.iter().sum::<f64>() / values.len() as f64)
    }

    /// The texts of the line's columns after method and claim.
    fn columns(&self) -> Vec<String> {
        let spread =
            self.mean(|r| r.result.metrics.residual.map(|residual| residual.summary.two_sd)).unwrap_or(f64::NAN);
        let ratio = self
            .verdict
            .ratio
            .as_ref()
            .map_or_else(String::new, |r| format!("{:.2} [{:.2}, {:.2}]", r.ratio, r.interval[0], r.interval[1]));
        let number = |value: Option<f64>, digits: usize| value.map_or_else(String::new, |v| format!("{v:.digits$}"));
        let solver = |m: &FieldMetrics| m.solver.as_ref().and_then(|s| s.error.as_ref()).map(|e| e.median);
        let difference = self
            .verdict
            .likelihood_difference
            .map_or_else(String::new, |[mean, error]| format!("{mean:+.3} ± {:.3}", 2.0 * error));
        let learned = self.rows.first().and_then(|r| r.learned.first()).map_or_else(String::new, |(name, _)| {
            let of = |r: &Row| r.learned.first().map(|(_, value)| *value);
            format!("{name} = {}", number(self.mean(of), 3))
        });
        let other = |name: &str| self.mean(|r| r.result.metrics.others.get(name).map(|o| o.summary.mean));
        let mut columns = vec![
            format!("{:.4} ± {spread:.4}", self.verdict.residual),
            ratio,
            number(self.mean(|r| solver(&r.result.metrics)), 4),
            if self.rows.iter().any(|r| r.result.no_likelihood.is_some()) {
                "none: its paths diverge".into()
            } else {
                number(self.mean(|r| r.result.likelihood.map(|b: Bits| b.normalised)), 3)
            },
            difference,
            number(self.mean(|r| r.result.bound.map(|b: Bits| b.normalised)), 3),
        ];
        columns.extend(self.rows.iter().take(1).flat_map(|r| shown_metrics(r)).map(|m| number(other(m.name()), 4)));
        let fields = self.rows.first().map_or(0, |r| r.result.metrics.fields.len());
        for field in 0..fields {
            let at = |pick: fn(&FieldComparison) -> f64| {
                self.mean(|r| r.result.metrics.fields.get(field).map(pick)).unwrap_or(f64::NAN)
            };
            columns.push(format!("{:.3}", at(|f| f.samples.std / f.data.std)));
            columns.push(format!("{:.2}", at(|f| f.w1 / f.w1_floor)));
        }
        columns.push(number(self.mean(|r| r.result.metrics.neighbours.ratio), 2));
        columns.push(learned);
        columns
    }
}

/// Whether a line is of a method rather than of a sampler.
fn is_main(line: &Line<'_>) -> bool {
    line.verdict.method.trained().is_some_and(|method| MAIN.contains(&method))
}

/// Whether a line is on the study's main axis.
fn on_main_axis(line: &Line<'_>) -> bool {
    line.verdict.claim.on_main_axis()
}

/// The metrics of single samples that a row has.
fn shown_metrics(row: &Row) -> impl Iterator<Item = &'static &'static dyn SampleMetric> + '_ {
    METRICS.iter().filter(|metric| row.result.metrics.others.contains_key(metric.name()))
}

fn header(table: &FieldTable) -> Vec<String> {
    let mut header: Vec<String> =
        ["mean |R|", "ratio to vanilla", "solver error", "NLL", "NLL − vanilla's", "bound"].map(String::from).to_vec();
    if let Some(row) = table.rows.first() {
        header.extend(shown_metrics(row).map(|metric| metric.title().to_string()));
        for field in &row.result.metrics.fields {
            header.push(format!("std {}", field.name));
            header.push(format!("W1 {}", field.name));
        }
    }
    header.extend(["neighbour".into(), "learned".into()]);
    header
}

/// The residual of a reference row.
fn reference_text(residual: Option<&OverSamples>) -> String {
    let text = |residual: &OverSamples| format!("{:.4} ± {:.4}", residual.summary.mean, residual.summary.two_sd);
    residual.map_or_else(String::new, text)
}

/// The table as text.
pub fn text_table(study: &FieldStudy, table: &FieldTable) -> String {
    let parameter = study.equation.parameter();
    let mut rows = vec![[vec!["method".to_string(), parameter.into(), "seeds".into()], header(table)].concat()];
    for reference in &table.references {
        rows.push(vec![
            reference.name.clone(),
            String::new(),
            String::new(),
            reference_text(reference.metrics.residual.as_ref()),
        ]);
    }
    for line in Line::all(table) {
        let Verdict { method, claim, .. } = line.verdict;
        rows.push([vec![method.to_string(), claim.to_string(), line.rows.len().to_string()], line.columns()].concat());
    }
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| rows.iter().filter_map(|r| r.get(c)).map(|t| t.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = format!(
        "{} study, scale {} ({}×{} nodes): {} samples per row; ± is two standard deviations over samples\n",
        table.study.name(),
        table.scale.name(),
        table.grid[0],
        table.grid[1],
        table.eval.samples
    );
    for row in rows {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(t, w)| format!("{t:w$}")).collect();
        text += cells.join("  ").trim_end();
        text.push('\n');
    }
    for target in &table.targets {
        let Target { what, target, found, met } = target;
        let outcome = if *met { "met" } else { "missed" };
        text += &[outcome, ": ", what, " ", target, ": ", found, "\n"].concat();
    }
    text + "NLL: bits per dimension, normalised units, density of data + σ_min noise; its difference is paired, ± two \
            standard errors.\nstd: standard deviation over that of the data. W1: distance of the marginals over that of \
            as many true samples.\nneighbour: median distance to the training set over that of held-out data."
}

/// The page's file beside the table's: `report.html`, or `report-NAME.html` of an ablation.
pub fn file(out: &Path, ablation: Option<Ablation>) -> PathBuf {
    out.join(ablation.map_or_else(|| "report.html".into(), |a| format!("report-{}.html", a.name())))
}

/// Writes the study's page; samples come from the study's folder `out`, if it has them.
pub fn write(study: &FieldStudy, table: &FieldTable, out: &Path, path: &Path) -> Result<()> {
    let mut colours = Colours::default();
    let (title, lead) = match study.equation {
        Equation::Darcy => (
            "Darcy flow",
            "Pressure p and permeability K obey ∇·(K∇p) + f = 0 with a source of strength 10 in one corner and a sink \
             in the other. Methods are given a strength that may be wrong. A good method uses the equation where it \
             helps and follows the data where it is wrong.",
        ),
        Equation::Helmholtz => (
            "Helmholtz equation",
            "A source a and its wave u obey ∇²u + k²u = a with k = 1. Methods are given a wave number that is drawn \
             anew around 1 with standard deviation σ_obs at every use, or one that is wrong.",
        ),
    };
    let size = format!("{}×{} nodes (scale {})", table.grid[0], table.grid[1], table.scale.name());
    let page = match study.ablation {
        None => {
            let mut sections = vec![results(study, table), pictures(study, table, out, &mut colours)?];
            sections.push(misspecification(study, table, &mut colours));
            sections.extend(wave_numbers(study, table, &mut colours));
            sections.extend([controls(study, table), noise_levels(study, table, &mut colours)]);
            sections.extend(learning_curves(study, table, &mut colours));
            sections.extend(targets(study, table).map(|block| Section {
                heading: "Targets".into(),
                text: Vec::new(),
                blocks: vec![block],
            }));
            sections.push(reading());
            Page { title: format!("{title}: {size}"), lead: lead.into(), sections }
        }
        Some(ablation) => {
            let sections = vec![ablated(study, table), noise_levels(study, table, &mut colours), reading()];
            let title = format!("{title}, ablation of {}: {size}", ablation.name());
            Page { title, lead: ablation.question().into(), sections }
        }
    };
    write_text(path, &render(&page))
}

fn origin(study: &FieldStudy, table: &FieldTable) -> Origin {
    Origin {
        command: table.command.clone(),
        seeds: study.seeds.clone(),
        commit: table.commit.clone(),
        time: duration(table.cell_seconds),
    }
}

fn table_of(study: &FieldStudy, table: &FieldTable, caption: &str, keep: impl Fn(&Line<'_>) -> bool) -> Table {
    let head = [vec!["method".to_string(), study.equation.parameter().into(), "seeds".into()], header(table)].concat();
    let mut rows: Vec<Vec<Cell>> = table
        .references
        .iter()
        .map(|reference| {
            let residual = Cell::number(reference_text(reference.metrics.residual.as_ref()));
            let mut cells = vec![Cell::text(&*reference.name), Cell::text(""), Cell::text(""), residual];
            cells.resize_with(head.len(), Cell::default);
            cells
        })
        .collect();
    for line in Line::all(table).into_iter().filter(keep) {
        let Verdict { method, claim, .. } = line.verdict;
        let mut cells = vec![Cell::text(method.to_string()), Cell::number(claim.to_string())];
        cells.push(Cell::number(line.rows.len().to_string()));
        cells.extend(line.columns().into_iter().map(Cell::number));
        rows.push(cells);
    }
    Table { caption: caption.into(), header: head, rows, origin: Some(origin(study, table)) }
}

fn results(study: &FieldStudy, table: &FieldTable) -> Section {
    let caption = format!(
        "Residual with the true parameters, {} samples per row: mean over nodes and samples ± two standard deviations \
         over samples; ratio of means to vanilla's with its 95 % bootstrap interval over seeds and samples. Solver \
         error: median relative distance of the sampled solution from the one that the reference solver finds for the \
         sampled coefficients.",
        table.eval.samples
    );
    let mut blocks = vec![Block::Table(table_of(study, table, &caption, |l| is_main(l) && on_main_axis(l)))];
    let (truth, wrong) = (study.equation.truth(), study.most_wrong());
    let headline = |v: &&Verdict| {
        let Some(method) = v.method.trained() else { return false };
        let right = v.claim == truth && [Trained::Scd, Trained::Adapt].contains(&method);
        right || v.claim == wrong && [Trained::Scd, Trained::Adapt, Trained::AdaptLearn].contains(&method)
    };
    let sentences = table.verdicts.iter().filter(headline).map(|v| v.sentence.clone());
    blocks.extend(sentences.filter(|s| !s.is_empty()).map(Block::Verdict));
    blocks.push(Block::Table(verdicts(study, table)));
    Section { heading: "Results".into(), text: Vec::new(), blocks }
}

/// What was to be reached.
fn targets(study: &FieldStudy, table: &FieldTable) -> Option<Block> {
    let row = |target: &Target| {
        let met = if target.met { Cell::text("met") } else { Cell::text("missed").strong() };
        vec![Cell::text(&*target.what), Cell::text(&*target.target), Cell::text(&*target.found), met]
    };
    let rows: Vec<Vec<Cell>> = table.targets.iter().map(row).collect();
    (!rows.is_empty()).then(|| {
        Block::Table(Table {
            caption: "What this study set out to reach. Ratios are of mean |R|, with their 95 % interval.".into(),
            header: ["what", "target", "found", ""].map(String::from).to_vec(),
            rows,
            origin: Some(origin(study, table)),
        })
    })
}

/// Every method of the main table against vanilla.
fn verdicts(study: &FieldStudy, table: &FieldTable) -> Table {
    let row = |line: &Line<'_>| {
        let Verdict { method, claim, ratio, .. } = line.verdict;
        let ratio = ratio.as_ref()?;
        let each: Vec<String> = ratio.per_seed.iter().map(|r| format!("{r:.2}")).collect();
        let paper =
            paper::residual_ratio(study.equation, method, *claim).map_or_else(String::new, |r| format!("{r:.2}"));
        Some(vec![
            Cell::text(method.to_string()),
            Cell::number(claim.to_string()),
            Cell::text(ratio.relation()),
            Cell::number(format!("{:.3} [{:.3}, {:.3}]", ratio.ratio, ratio.interval[0], ratio.interval[1])),
            Cell::number(each.join(", ")),
            Cell::number(ratio.pairs.to_string()),
            Cell::number(paper),
        ])
    };
    let parameter = study.equation.parameter();
    let header = ["method", parameter, "residual", "ratio to vanilla's", "by seed", "pairs", "the paper's ratio"];
    Table {
        caption:
            "Verdicts: a residual is lower or higher than vanilla's if the 95 % interval of the ratio says so. The \
                  paper's ratios are those of its larger grid and network."
                .into(),
        header: header.map(String::from).to_vec(),
        rows: Line::all(table).iter().filter(|l| is_main(l) && on_main_axis(l)).filter_map(row).collect(),
        origin: None,
    }
}

/// An ablation's table.
fn ablated(study: &FieldStudy, table: &FieldTable) -> Section {
    let caption = "Residual with the true parameters: mean ± two standard deviations over samples; ratio to the main study's \
                   vanilla with its 95 % interval over samples of one training.";
    let mut blocks: Vec<Block> = targets(study, table).into_iter().collect();
    blocks.push(Block::Table(table_of(study, table, caption, |_| true)));
    Section { heading: "Results".into(), text: Vec::new(), blocks }
}

/// Sample fields and their residuals, one column per method; none if the folder has no data.
fn samples(study: &FieldStudy, rows: &[&Row], out: &Path) -> Result<Option<Block>> {
    let folder = out.join("data");
    if !folder.join("dataset.toml").exists() {
        return Ok(None);
    }
    let data = DatasetFolder::open(&folder)?.load()?;
    let config = study.cells()[0].config(study, &folder)?;
    let truth = config.truth.as_ref().or(data.equation.as_ref()).or(config.constraint.as_ref());
    let truth = truth.ok_or_else(|| Error::input("constraint", "the study's preset has none"))?;
    let constraint = SoftConstraint::new(truth, &data.fields, &data.grid, &Units::identity(data.fields.len()))?;
    let (length, nodes) = (data.sample_len(), data.grid.len());
    let mut names = vec![DATA.to_string()];
    let mut samples = vec![data.samples(Split::Valid, 0..1)?.into_owned()];
    for row in rows {
        if let Some(kept) = row.samples(study, out)? {
            names.push(name_of(study, row));
            samples.push(kept[..length].to_vec());
        }
    }
    let wide = |values: &[f32]| -> Vec<f64> { values.iter().map(|&v| f64::from(v)).collect() };
    let fields: Vec<Vec<Vec<f64>>> = samples.iter().map(|s| s.chunks_exact(nodes).map(wide).collect()).collect();
    let channel = |name: &String| data.fields.iter().position(|f| f == name).unwrap_or(0);
    let residual = |sample: &Vec<Vec<f64>>| {
        let fields: Vec<Vec<f64>> = truth.fields.iter().map(|f| sample[channel(f)].clone()).collect();
        constraint.residual_maps(&fields).swap_remove(0)
    };
    let residuals: Vec<Vec<f64>> = fields.iter().map(residual).collect();
    let shown: Vec<MethodSample<'_>> = names
        .iter()
        .zip(&fields)
        .zip(&residuals)
        .map(|((name, fields), residual)| MethodSample {
            name,
            fields: fields.iter().map(Vec::as_slice).collect(),
            residual,
        })
        .collect();
    let quantities: Vec<Quantity> = data.fields.iter().map(|f| Quantity::new(f.clone(), "")).collect();
    let svg = sample_figure("One sample of each method", &data.grid, &quantities, &shown).map_err(drawing)?;
    let caption = "The first sample of each method with the first seed; methods that share a denoiser start from the \
                   same noise. Every row has one colour scale.";
    Ok(Some(Block::Figure { svg, caption: caption.into() }))
}

/// Samples, their residuals and their spectra.
fn pictures(study: &FieldStudy, table: &FieldTable, out: &Path, colours: &mut Colours) -> Result<Section> {
    let rows: Vec<&Row> = pictured(study, table);
    let mut blocks: Vec<Block> = samples(study, &rows, out)?.into_iter().collect();
    let values: Vec<(String, Vec<f64>)> = rows
        .iter()
        .map(|r| (name_of(study, r), r.result.metrics.per_sample.residual.iter().flatten().copied().collect()))
        .collect();
    let sets = values.iter().map(|(name, values)| (name.as_str(), values.as_slice()));
    let sets: Vec<(&str, &[f64])> = sets.filter(|(_, values)| !values.is_empty()).collect();
    if !sets.is_empty() {
        blocks.push(Block::Figure {
            svg: residual_histogram("Residuals of single samples", &sets, colours),
            caption: format!("{} samples of each method, first seed, true parameters.", table.eval.samples),
        });
    }
    let fields = rows.first().map_or(&[][..], |r| &r.result.metrics.fields);
    for (f, first) in fields.iter().enumerate() {
        let mut spectra = vec![(DATA.to_string(), first.data_spectrum.clone())];
        let of = |r: &&Row| Some((name_of(study, r), r.result.metrics.fields.get(f)?.spectrum.clone()));
        spectra.extend(rows.iter().filter_map(of));
        let curves: Vec<(&str, &[f64])> = spectra.iter().map(|(n, s)| (n.as_str(), s.as_slice())).collect();
        blocks.push(Block::Figure {
            svg: spectrum_chart(&first.name, &curves, colours),
            caption: "Mean over samples, first seed.".into(),
        });
    }
    Ok(Section { heading: "Samples and residuals".into(), text: Vec::new(), blocks })
}

fn drawing(error: impl std::fmt::Display) -> Error {
    Error::Failed { what: "the report".into(), why: error.to_string() }
}

/// Whether a mean |R| is so far above vanilla's that it would leave no room for others in a figure.
fn diverged(table: &FieldTable, residual: f64) -> bool {
    let vanilla = table.verdicts.iter().find(|verdict| verdict.method.trained() == Some(Trained::Vanilla));
    vanilla.is_some_and(|vanilla| residual > 100.0 * vanilla.residual)
}

/// The rows of the first seed that figures show: those given the truth or the claim furthest from it; of an ablation, all that
/// were measured in full. Rows that diverged are left out.
fn pictured<'a>(study: &FieldStudy, table: &'a FieldTable) -> Vec<&'a Row> {
    let ends = [study.equation.truth(), study.most_wrong()];
    let shown = |r: &&Row| match study.ablation {
        Some(_) => r.result.likelihood.is_some(),
        None => ends.contains(&r.claim) && r.method.trained().is_some_and(|m| PICTURED.contains(&m)),
    };
    let finite = |r: &&Row| !diverged(table, r.result.metrics.mean_residual());
    table.rows.iter().filter(|r| r.seed == study.seeds[0]).filter(shown).filter(finite).collect()
}

/// The name of a row in figures: the method, and its claim where that is wrong.
fn name_of(study: &FieldStudy, row: &Row) -> String {
    if row.claim == study.equation.truth() {
        return row.method.to_string();
    }
    format!("{}, given {} (wrong)", row.method, study.equation.in_words(row.claim))
}

/// Residual and likelihood against the claims.
fn misspecification(study: &FieldStudy, table: &FieldTable, colours: &mut Colours) -> Section {
    let claims = study.claims.iter().filter(|claim| claim.on_main_axis());
    let usual = claims.map(|&claim| (claim.number(), claim)).collect();
    let x_label =
        format!("{} that methods are given (true: {})", study.equation.parameter(), study.equation.truth().number());
    let blocks = against_claims(table, usual, &x_label, colours);
    Section { heading: "When the constraint is wrong".into(), text: Vec::new(), blocks }
}

/// The same for wave numbers that are wrong and certain, if the study has any.
fn wave_numbers(study: &FieldStudy, table: &FieldTable, colours: &mut Colours) -> Option<Section> {
    let wrong = study.claims.iter().filter(|claim| !claim.on_main_axis()).map(|&claim| (claim.number(), claim));
    let claims: Vec<(f64, Claim)> = [(1.0, study.equation.truth())].into_iter().chain(wrong).collect();
    if claims.len() == 1 {
        return None;
    }
    let caption = "Residual with the true wave number, as above.";
    let mut blocks = vec![Block::Table(table_of(study, table, caption, |line| !on_main_axis(line)))];
    blocks.extend(against_claims(table, claims, "k that methods are given (true: 1)", colours));
    let text = "The wave is so small beside its second derivatives that a wave number around 1 changes the equation little, \
                however much it scatters. A larger one does: the first eigenvalue of the square lies at k = 4.44, so that a solution \
                for k = 4 has its long waves five times too large, and for k = 6 with the wrong sign.";
    Some(Section { heading: "When the wave number is far off".into(), text: vec![text.into()], blocks })
}

/// Residual and likelihood by claim, each with its place on the x axis.
fn against_claims(
    table: &FieldTable,
    mut claims: Vec<(f64, Claim)>,
    x_label: &str,
    colours: &mut Colours,
) -> Vec<Block> {
    let lines = Line::all(table);
    claims.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    let curves = |pick: &dyn Fn(&Line<'_>) -> Option<[f64; 3]>| -> Vec<(&'static str, Vec<Point>)> {
        let curve = |method: Trained| {
            let point = |&(x, claim): &(f64, Claim)| {
                // Vanilla knows nothing of the equation: it is the same everywhere.
                let is_it = |l: &&Line<'_>| {
                    let same = l.verdict.claim == claim || method == Trained::Vanilla;
                    l.verdict.method.trained() == Some(method) && same
                };
                let [y, low, high] = pick(lines.iter().find(is_it)?)?;
                Some(Point { x, y, low, high })
            };
            (method.name(), claims.iter().filter_map(point).collect::<Vec<_>>())
        };
        MAIN.iter().map(|&method| curve(method)).filter(|(_, points)| !points.is_empty()).collect()
    };
    let residual = |line: &Line<'_>| {
        if diverged(table, line.verdict.residual) {
            return None;
        }
        let each: Vec<f64> = line.rows.iter().map(|r| r.result.metrics.mean_residual()).collect();
        let ends = each.iter().fold([f64::INFINITY, f64::NEG_INFINITY], |[a, b], &v| [a.min(v), b.max(v)]);
        Some([line.verdict.residual, ends[0], ends[1]])
    };
    let likelihood = |line: &Line<'_>| {
        let [mean, error] = line.verdict.likelihood_difference?;
        Some([mean, mean - 2.0 * error, mean + 2.0 * error])
    };
    let axes = |title: &str, y_label: &str, y_scale, levels| Axes {
        title: title.into(),
        x_label: x_label.into(),
        y_label: y_label.into(),
        y_scale,
        levels,
        ..Axes::default()
    };
    let levels = table.references.iter().map(|r| (r.name.clone(), r.metrics.mean_residual())).collect();
    let residuals = axes("Residual of samples", "mean |R|, true parameters", Scale::Log, levels);
    let bits = axes("Negative log-likelihood", "bits/dim over vanilla's", Scale::Linear, Vec::new());
    vec![
        Block::Figure {
            svg: misspecification_chart(residuals, &curves(&residual), colours),
            caption: "Mean over seeds; bars show the range over seeds. What diverged is left out.".into(),
        },
        Block::Figure {
            svg: misspecification_chart(bits, &curves(&likelihood), colours),
            caption: "Paired over held-out samples; bars are two standard errors.".into(),
        },
    ]
}

fn controls(study: &FieldStudy, table: &FieldTable) -> Section {
    let caption = "Vanilla with guidance (DPS), with the same corrections put on it at sampling time with a constant \
                   weight (post-hoc: nothing is trained), and other last noise levels of the sampler.";
    Section {
        heading: "Controls".into(),
        text: vec![
            "A claim about a learned correction has to beat the same correction with a weight picked by hand.".into(),
        ],
        blocks: vec![Block::Table(table_of(study, table, caption, |line| !is_main(line) && on_main_axis(line)))],
    }
}

/// Residual and likelihood against the steps of a training, if snapshots on its way were measured.
fn learning_curves(study: &FieldStudy, table: &FieldTable, colours: &mut Colours) -> Option<Section> {
    let (first, truth) = (study.seeds[0], study.equation.truth());
    let curve = |method: Trained, pick: &dyn Fn(&Row) -> Option<f64>| {
        let on_way = |r: &&Row| {
            let stages = [method.into(), Variant::on_the_way(method, truth, r.iterations).method];
            r.seed == first && r.claim == truth && stages.contains(&r.method)
        };
        let mut points: Vec<Point> = table
            .rows
            .iter()
            .filter(on_way)
            .filter_map(|r| pick(r).map(|y| Point::exact(r.iterations as f64, y)))
            .collect();
        points.sort_unstable_by(|a, b| a.x.total_cmp(&b.x));
        (method.name(), points)
    };
    let curves = |pick: &dyn Fn(&Row) -> Option<f64>| -> Vec<(&'static str, Vec<Point>)> {
        MAIN.iter().map(|&method| curve(method, pick)).filter(|(_, points)| points.len() > 1).collect()
    };
    let residuals = curves(&|r| Some(r.result.metrics.mean_residual()));
    if residuals.is_empty() {
        return None;
    }
    let bits = curves(&|r| r.result.likelihood.map(|b| b.normalised));
    let axes = |title: &str, y_label: &str, y_scale, levels| Axes {
        title: title.into(),
        x_label: "training steps".into(),
        y_label: y_label.into(),
        x_scale: Scale::Log,
        y_scale,
        levels,
        ..Axes::default()
    };
    let levels = table.references.iter().map(|r| (r.name.clone(), r.metrics.mean_residual())).collect();
    let pace = table.rows.iter().find(|r| r.method.trained() == Some(Trained::Vanilla) && r.seed == first);
    let pace = pace.map_or_else(String::new, |r| {
        format!("1000 steps of vanilla took {:.1} minutes. ", 1000.0 / 60.0 * r.train_seconds / r.iterations as f64)
    });
    let figure = |axes: Axes, curves: &[(&str, Vec<Point>)], colours: &mut Colours, caption: &str| Block::Figure {
        svg: LineChart { axes, series: series(curves, colours), spread: Spread::Bars }.svg(),
        caption: caption.into(),
    };
    let caption =
        "Averaged weights on the way of the training with the first seed; its rate falls to zero at the last step.";
    let blocks = vec![
        figure(
            axes("Residual of samples", "mean |R|, true parameters", Scale::Log, levels),
            &residuals,
            colours,
            caption,
        ),
        figure(axes("Negative log-likelihood", "bits/dim", Scale::Linear, Vec::new()), &bits, colours, caption),
    ];
    let text = format!("{pace}A curve that is flat at its end has little left to gain from more of the same steps.");
    Some(Section { heading: "Learning curves".into(), text: vec![text], blocks })
}

/// γ, loss and residual by noise level.
fn noise_levels(study: &FieldStudy, table: &FieldTable, colours: &mut Colours) -> Section {
    let rows = pictured(study, table);
    let names: Vec<String> = rows.iter().map(|r| name_of(study, r)).collect();
    let points = |levels: &[AtLevel]| -> Vec<Point> {
        levels.iter().map(|l| Point { x: l.sigma, y: l.mean, low: l.low, high: l.high }).collect()
    };
    let curves = |of: &dyn Fn(&Row) -> Vec<Point>| -> Vec<(&str, Vec<Point>)> {
        let all = names.iter().zip(&rows).map(|(name, row)| (name.as_str(), of(row)));
        all.filter(|(_, points)| !points.is_empty()).collect()
    };
    let path = curves(&|r| r.result.path.iter().map(|l| Point::exact(l.sigma, l.mean)).collect());
    let loss = curves(&|r| r.result.loss.iter().map(|l| Point::exact(l.sigma, l.mean)).collect());
    let series = loss.iter().map(|(name, points)| Series {
        name: (*name).into(),
        colour: colours.index(name),
        points: points.clone(),
    });
    let series = series.collect();
    let axes = Axes {
        title: "Denoising loss on held-out data".into(),
        x_label: "noise level σ".into(),
        y_label: "squared error, EDM's weight".into(),
        x_scale: Scale::Log,
        y_scale: Scale::Log,
        ..Axes::default()
    };
    let mut blocks = vec![
        Block::Figure {
            svg: path_chart("Residual along the sampling path", &path, colours),
            caption: "With the true parameters, first seed.".into(),
        },
        Block::Figure {
            svg: LineChart { axes, series, spread: Spread::Bars }.svg(),
            caption: "The same noise for every method, first seed.".into(),
        },
    ];
    let parts: Vec<Vec<String>> = rows.iter().map(|r| gamma_parts(study, r)).collect();
    let mut shown: Vec<&String> = Vec::new();
    for part in parts.iter().flatten() {
        if !shown.contains(&part) {
            shown.push(part);
        }
    }
    for part in shown {
        let of =
            |parts: &Vec<String>, row: &Row| Some(points(row.result.gamma.get(parts.iter().position(|p| p == part)?)?));
        let all = names.iter().zip(parts.iter().zip(&rows));
        let gamma: Vec<(&str, Vec<Point>)> =
            all.filter_map(|(name, (parts, row))| Some((name.as_str(), of(parts, row)?))).collect();
        if !gamma.is_empty() {
            let caption = "On noisy held-out data: mean, and the range from the 10th to the 90th percentile.";
            let svg = gamma_chart(&format!("Learned γ of the direction {part}"), &gamma, colours);
            blocks.push(Block::Figure { svg, caption: caption.into() });
        }
    }
    Section { heading: "By noise level".into(), text: Vec::new(), blocks }
}

/// The parts of a row's γ by name.
fn gamma_parts(study: &FieldStudy, row: &Row) -> Vec<String> {
    let config = row.origin(study).and_then(|(cell, _)| cell.config(study, Path::new("data")).ok());
    let fields: Vec<String> = row.result.metrics.fields.iter().map(|f| f.name.clone()).collect();
    config.and_then(|c| c.denoiser.scd).map_or_else(Vec::new, |scd| scd.parts(&fields))
}

fn reading() -> Section {
    let text = [
        "mean |R| alone can be lowered by shrinking the fields: read it beside their standard deviations and the \
         distance from the solver's solution, which does not use the stencils of training.",
        "The likelihood is that of data + σ_min noise under the probability-flow ODE, in bits per dimension of \
         normalised fields, for the same held-out samples and probes in every row.",
        "post-hoc rows are given the same as the trained ones. Where the constraint is right they may win: a projection \
         cannot be beaten on its own residual. Where it is wrong they follow it.",
        "Rows whose residual is over a hundred times vanilla's diverged: they are in the tables, and figures leave them out.",
    ];
    Section { heading: "How to read this".into(), text: text.map(String::from).to_vec(), blocks: Vec::new() }
}
