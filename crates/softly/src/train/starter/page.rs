//! The text of a first configuration, with comments.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use softly_pde::grid::{Axis, Grid, Placement};

use super::{Law, Sizes, Times, VANILLA_SHARE, rounded};
use crate::config::layers::UNKNOWN;
use crate::config::paths::seen_from;
use crate::constraint::config::{ConstraintConfig, ParameterConfig, Residuals};
use crate::data::folder::DatasetFolder;

/// The file to be written.
pub(super) struct Page<'a> {
    pub grid: &'a Grid,
    /// Training samples.
    pub train: usize,
    pub law: Option<&'a Law>,
    pub sizes: &'a Sizes,
    pub times: &'a Times,
    pub iterations: u64,
    pub budget: Duration,
}

impl Page<'_> {
    /// The text of `file` for the dataset in `folder`.
    pub fn text(&self, folder: &DatasetFolder, file: &Path) -> String {
        let [head, data, law] = [Self::head(folder, file), Self::data(folder, file), self.law(folder)];
        [head, data, self.network(), self.training(), law, self.methods()].join("\n")
    }

    /// The text without data and equation.
    pub fn sizes(&self) -> String {
        [self.network(), self.training(), self.methods()].join("\n")
    }

    fn head(folder: &DatasetFolder, file: &Path) -> String {
        let description = &folder.description;
        let file = file.display();
        format!(
            "# {} training and {} held-out samples of {}\n# on {}.\n#\n\
             # Written by `softly init`; change what you like. Settings that are not here come from the preset `fields`,\n\
             # which `softly presets fields` prints. What comes next:\n\
             #   softly train --config {file} --method vanilla --out runs/vanilla\n\
             #   softly adapt runs/vanilla --config {file} --method adapt --out runs/adapted\n\
             #   softly report runs/vanilla runs/adapted --out report.html\n",
            description.train,
            description.valid,
            folder.fields().join(", "),
            grid_words(&description.grid),
        )
    }

    fn data(folder: &DatasetFolder, file: &Path) -> String {
        let path = seen_from(file.parent().unwrap_or(Path::new("")), &folder.path).display().to_string();
        format!(
            "[data]\npath = {}  # seen from this file's folder\n\
             normalise = \"std\"  # the network sees every field with mean 0 and the same scatter\n",
            toml::Value::String(path)
        )
    }

    fn network(&self) -> String {
        let (sizes, grid) = (self.sizes, self.grid);
        let step = 1 << (sizes.levels - 1);
        let [rows, cols] = [grid.rows(), grid.cols()].map(|side| side.div_ceil(step));
        format!(
            "# {} levels, the deepest with {rows} × {cols} nodes; {} numbers to learn.\n[denoiser]\n\
             backbone = {{ kind = \"unet\", channels = {}, multipliers = {:?}, blocks = 1, head = 32 }}\n\n\
             # ln σ of the noise in training, in units of the normalised data: wide, and the higher the finer the grid.\n\
             [objective]\n\
             noise = {{ kind = \"trunc-log-normal\", mean = {:?}, std = 1.7, stratified = true }}\n",
            sizes.levels,
            self.times.parameters,
            sizes.channels,
            sizes.multipliers(),
            sizes.noise,
        )
    }

    fn training(&self) -> String {
        let Self { sizes, times, iterations, .. } = self;
        let threads = rayon::current_num_threads();
        let passes = *iterations as f64 * sizes.batch as f64 / self.train as f64;
        // Longer runs bear a smaller rate.
        let rate = 5e-2 * (2500.0 / *iterations as f64).min(1.0).sqrt();
        format!(
            "# A step took {} when this file was written, with this network and batch on {threads} threads:\n\
             # {iterations} steps are {} of the {} that there are, and see every sample {passes:.1} times.\n[train]\n\
             iterations = {iterations}\nbatch = {}\n\
             shares = {}  # parts of a batch that are worked on side by side\nrate = {}\n\
             schedule = {{ kind = \"cosine\", warmup = {} }}  # down to zero at the last step\n\
             log_every = {}\ncheckpoint_every = {}\n\n[sampler]\nsteps = 24  # network calls of a sample\n",
            seconds(times.step),
            seconds(*iterations as f64 * times.step),
            seconds(self.budget.as_secs_f64()),
            sizes.batch,
            sizes.shares,
            (1e4 * rate).round() / 1e4,
            (iterations / 25).clamp(10, 200),
            (iterations / 50).max(1),
            (iterations / 10).max(1),
        )
    }

    fn law(&self, folder: &DatasetFolder) -> String {
        let names = toml::Value::from(folder.fields());
        let Some(law) = self.law else {
            return format!(
                "# The equation: a formula that is zero where it holds. `softly data inspect` says how well it does.\n\
                 # [constraint]\n# fields = {names}\n# residual = \"…\"\n"
            );
        };
        if law.own {
            let table = BTreeMap::from([("constraint", &law.constraint)]);
            let text = toml::to_string(&table).unwrap_or_default();
            return format!("# The equation that the dataset brought along.\n{text}");
        }
        let ConstraintConfig { fields, residual, stencil, parameters, .. } = &law.constraint;
        let fields = toml::Value::from(fields.clone());
        let mut text =
            "# The equation: zero where it holds. `softly data inspect` says how well it does on the data.\n"
                .to_string();
        write!(text, "[constraint]\nfields = {fields}\n").expect("text grows");
        let quoted = |formula: &str| toml::Value::String(formula.to_string());
        match residual {
            Residuals::One(formula) => writeln!(text, "residual = {}", quoted(formula)).expect("text grows"),
            Residuals::Many(many) => {
                let lines = many.iter().map(|one| format!("    {{ formula = {} }},\n", quoted(&one.formula)));
                writeln!(text, "residual = [\n{}]", lines.collect::<String>()).expect("text grows");
            }
        }
        if let Ok(stencil) = toml::Value::try_from(stencil) {
            writeln!(text, "stencil = {stencil}  # how derivatives are taken, as the axes ask").expect("text grows");
        }
        if !parameters.is_empty() {
            text += "\n[constraint.parameters]\n";
        }
        for (name, parameter) in parameters {
            match parameter {
                ParameterConfig::Number(number) => writeln!(text, "{name} = {number:?}").expect("text grows"),
                _ => writeln!(text, "{name} = \"{UNKNOWN}\"  # fill in a number").expect("text grows"),
            }
        }
        text
    }

    fn methods(&self) -> String {
        let mut text =
            "# Methods, chosen with --method: `vanilla` knows no equation, `scd` is trained with it, `adapt` puts it\n\
             # on a trained vanilla, `adapt-learn` also learns the equation's parameters that are plain numbers.\n"
                .to_string();
        let left = (1.0 - VANILLA_SHARE) * self.budget.as_secs_f64();
        let (iterations, said) = match self.times.adapt {
            Some([measuring, step]) => {
                let steps = rounded((left - measuring) / step).clamp(100, 2000);
                let all = seconds(measuring + steps as f64 * step);
                (steps, format!("A step of adapting took {}: {steps} are {all}, measurements included.", seconds(step)))
            }
            None => (600, "The time of adapting was not measured.".to_string()),
        };
        writeln!(text, "# {said}").expect("text grows");
        for method in ["adapt", "adapt-learn"] {
            let (batch, shares) = (self.sizes.batch, self.sizes.shares);
            let sizes = format!("iterations = {iterations}\nbatch = {batch}\nshares = {shares}");
            write!(text, "[methods.{method}.train]\n{sizes}\n").expect("text grows");
        }
        text
    }
}

/// A time in words.
fn seconds(time: f64) -> String {
    match time {
        ..0.1 => format!("{:.1} ms", 1e3 * time),
        ..100.0 => format!("{time:.1} s"),
        ..6000.0 => format!("{:.1} minutes", time / 60.0),
        _ => format!("{:.1} hours", time / 3600.0),
    }
}

/// A grid in words.
fn grid_words(grid: &Grid) -> String {
    let axis = |axis: &Axis| {
        let points = if axis.placement == Placement::Cells { "cells" } else { "nodes" };
        let periodic = if axis.periodic { " (periodic)" } else { "" };
        format!("{} {points} along {} from {} to {}{periodic}", axis.nodes, axis.name, axis.first, axis.last)
    };
    grid.axes.iter().map(axis).collect::<Vec<_>>().join(" and ")
}
