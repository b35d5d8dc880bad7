//! What the studies of fields set out to reach, and whether they did.

use serde::{Deserialize, Serialize};

use crate::fields::ablation::Ablation;
use crate::fields::study::{Equation, FieldStudy, Told};
use crate::fields::table::{FieldTable, Line, Verdict, pairs, residual_ratio, rows_of};
use crate::scale::StudyScale;
use softly::PairedRatio;

/// One thing to reach.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Target {
    /// What is measured.
    pub what: String,
    /// What it should be.
    pub target: String,
    /// What it is.
    pub found: String,
    /// Whether that is so.
    pub met: bool,
}

/// The targets that apply to `table`, judged by it; none for the main tables of a demonstration.
pub(crate) fn targets(study: &FieldStudy, table: &FieldTable) -> Vec<Target> {
    let judge = Judge { study, table };
    let all = match study.ablation {
        None if study.scale == StudyScale::Demo => Vec::new(),
        None => judge.main(),
        Some(Ablation::Noise) => vec![judge.truncation()],
        Some(_) => Vec::new(),
    };
    all.into_iter().flatten().collect()
}

struct Judge<'a> {
    study: &'a FieldStudy,
    table: &'a FieldTable,
}

/// A method's settings of the sampler are named after a comma.
fn method_of(line: &Verdict) -> &str {
    line.method.split(", ").next().unwrap_or_default()
}

impl<'a> Judge<'a> {
    fn main(&self) -> Vec<Option<Target>> {
        let truth = self.study.equation.truth();
        let (at_truth, elsewhere, bits) = match self.study.equation {
            Equation::Darcy => (0.70, 0.80, 0.05),
            Equation::Helmholtz => (0.75, 0.75, 0.1),
        };
        let usual: Vec<Told> = self.study.told.iter().copied().filter(|told| told.is_usual()).collect();
        let mut all = Vec::new();
        for &told in &usual {
            let limit = if told == truth { at_truth } else { elsewhere };
            all.extend([self.to_vanilla("scd", told, limit), self.best_ratio(told, limit)]);
        }
        let controls = [("scd", "post-hoc jacobi 2"), ("adapt", "post-hoc newton 0.3"), ("adapt", "post-hoc kalman 1")];
        for (method, control) in controls {
            all.extend(usual.iter().map(|&told| self.against_control(method, control, told)));
        }
        all.push(self.likelihood(&["scd"], Told::is_usual, bits));
        // Not only what all methods are told: what is learned has more starts.
        let mut every: Vec<Told> = Vec::new();
        for verdict in &self.table.verdicts {
            if !every.contains(&verdict.told) {
                every.push(verdict.told);
            }
        }
        for told in every {
            all.push(self.to_vanilla("adapt", told, if told == truth { 0.35 } else { 0.90 }));
            all.push(self.to_vanilla("adapt-learn", told, 0.40));
        }
        all.push(self.likelihood(&["adapt", "adapt-learn"], |_| true, 0.02));
        all.push(self.marginals());
        all.push(self.learned());
        if self.study.equation == Equation::Darcy {
            all.extend(self.pidm());
        }
        all
    }

    fn line(verdict: &Verdict) -> Line<'_> {
        (&verdict.method, verdict.told)
    }

    fn verdict(&self, method: &str, told: Told) -> Option<&'a Verdict> {
        self.table.verdicts.iter().find(|v| v.method == method && v.told == told)
    }

    /// The lowest residual among the `methods` and their settings of the sampler that have as many seeds as any of them.
    fn best(&self, methods: &[&str], told: Told) -> Option<&'a Verdict> {
        let seeds = |v: &Verdict| rows_of(&self.table.rows, Self::line(v)).len();
        let own = || self.table.verdicts.iter().filter(|v| v.told == told && methods.contains(&method_of(v)));
        let most = own().map(seeds).max()?;
        own().filter(|v| seeds(v) == most).min_by(|a, b| a.residual.total_cmp(&b.residual))
    }

    /// The ratio of two lines: paired if single samples are at hand, else of the means, with an unknown interval.
    fn ratio(&self, first: &Verdict, second: &Verdict) -> (f64, [f64; 2], String) {
        let names = format!("{} / {}", first.method, second.method);
        let paired = residual_ratio(&self.table.rows, Self::line(first), Self::line(second));
        if let Some(PairedRatio { ratio, interval: [low, high], .. }) = paired {
            return (ratio, [low, high], format!("{ratio:.3} [{low:.3}, {high:.3}], {names}"));
        }
        let ratio = first.residual / second.residual;
        (ratio, [ratio; 2], format!("{ratio:.3}, {names}"))
    }

    fn best_ratio(&self, told: Told, limit: f64) -> Option<Target> {
        let scd = self.best(&["scd", "scd-unit", "scd-paper"], told)?;
        let vanilla = self.best(&["vanilla"], self.study.equation.truth())?;
        let (ratio, _, found) = self.ratio(scd, vanilla);
        let told = self.study.equation.told(told);
        let what = format!("SCD / vanilla residual, {told}, both at their best sampling setting");
        Some(Target { what, target: format!("≤ {limit:.2}"), found, met: ratio <= limit })
    }

    fn against_control(&self, method: &str, control: &str, told: Told) -> Option<Target> {
        let (_, [low, high], found) = self.ratio(self.verdict(method, told)?, self.verdict(control, told)?);
        let (target, met) =
            if told == self.study.equation.truth() { ("not worse", low <= 1.0) } else { ("better", high < 1.0) };
        let what = format!("{method} against {control}, {}", self.study.equation.told(told));
        Some(Target { what, target: target.into(), found, met })
    }

    /// A method against vanilla, both sampled as the preset has it.
    fn to_vanilla(&self, method: &str, told: Told, limit: f64) -> Option<Target> {
        let vanilla = self.verdict("vanilla", self.study.equation.truth())?;
        let (ratio, _, found) = self.ratio(self.verdict(method, told)?, vanilla);
        let what = format!("{method} / vanilla residual, {}", self.study.equation.told(told));
        Some(Target { what, target: format!("≤ {limit:.2}"), found, met: ratio <= limit })
    }

    /// The learned parameter: the value furthest from the truth over all starts and seeds.
    fn learned(&self) -> Option<Target> {
        let (name, truth, limit) = match self.study.equation {
            Equation::Darcy => ("f", 10.0, 0.01),
            Equation::Helmholtz => ("k", 1.0, 0.02),
        };
        let off = |value: f64| (value / truth - 1.0).abs();
        let learned = self.table.rows.iter().flat_map(|row| row.learned.iter().map(move |(_, value)| (*value, row)));
        let (value, row) = learned.max_by(|(a, _), (b, _)| off(*a).total_cmp(&off(*b)))?;
        Some(Target {
            what: format!("learned {name}, the furthest from the truth over starts and seeds"),
            target: format!("{truth} ± {} %", 100.0 * limit),
            found: format!("{value:.3}, from {}, seed {}", row.told.number(), row.seed),
            met: off(value) <= limit,
        })
    }

    /// How single values of the fields are distributed: the largest of the adapted rows' distances from the data's, as a
    /// ratio to vanilla's of the same field and seeds.
    fn marginals(&self) -> Option<Target> {
        let vanilla = self.verdict("vanilla", self.study.equation.truth())?;
        let adapted = self.table.verdicts.iter().filter(|v| ["adapt", "adapt-learn"].contains(&v.method.as_str()));
        let fields = &self.table.rows.first()?.result.metrics.fields;
        let ratios = adapted.flat_map(|v| {
            let pairs = pairs(&self.table.rows, Self::line(v), Self::line(vanilla));
            let distance = move |side: usize, field: usize| -> Option<f64> {
                pairs.iter().map(|pair| Some(pair[side].result.metrics.fields.get(field)?.w1)).sum()
            };
            let ratio = move |field| Some((distance(0, field)? / distance(1, field)?, field, v));
            (0..fields.len()).filter_map(ratio)
        });
        let (ratio, field, verdict) = ratios.max_by(|(a, ..), (b, ..)| a.total_cmp(b))?;
        let field = &fields[field].name;
        Some(Target {
            what: "marginal W1 of adapt and adapt-learn / vanilla's, highest over fields and what is told".into(),
            target: "≤ 1.05".into(),
            found: format!("{ratio:.2}, {field}, {}, {}", verdict.method, self.study.equation.told(verdict.told)),
            met: ratio <= 1.05,
        })
    }

    fn likelihood(&self, methods: &[&str], counts: fn(Told) -> bool, limit: f64) -> Option<Target> {
        let own = self.table.verdicts.iter().filter(|v| methods.contains(&v.method.as_str()) && counts(v.told));
        let differences = own.filter_map(|v| Some((v.likelihood_difference?, v.told)));
        let ([mean, error], told) = differences.max_by(|(a, _), (b, _)| a[0].total_cmp(&b[0]))?;
        Some(Target {
            what: format!("NLL of {} − vanilla's, bits/dim, highest over what is told", methods.join(" and ")),
            target: format!("≤ +{limit}"),
            found: format!("{mean:+.3} ± {:.3}, {}", 2.0 * error, self.study.equation.told(told)),
            met: mean <= limit,
        })
    }

    fn pidm(&self) -> [Option<Target>; 3] {
        let (truth, wrong) = (self.study.equation.truth(), self.study.most_wrong());
        // PIDM has the first seed alone.
        let lowest = |methods: &[&str], told: Told| {
            let own = self.table.verdicts.iter().filter(|v| v.told == told && methods.contains(&method_of(v)));
            own.min_by(|a, b| a.residual.total_cmp(&b.residual))
        };
        let near_best = || {
            let pidm = lowest(&["pidm", "pidm-published", "pidm-ddpm"], truth)?;
            let (ratio, _, found) = self.ratio(pidm, lowest(&["vanilla", "scd", "scd-unit", "scd-paper"], truth)?);
            let what = format!("PIDM's best residual / best of vanilla and SCD, {}", self.study.equation.told(truth));
            Some(Target { what, target: "≤ 1.05".into(), found, met: ratio <= 1.05 })
        };
        let misled = || {
            let (_, [low, _], found) = self.ratio(self.verdict("pidm", wrong)?, self.verdict("vanilla", truth)?);
            let what = format!("PIDM / vanilla residual, {}", self.study.equation.told(wrong));
            Some(Target { what, target: "> 1".into(), found, met: low > 1.0 })
        };
        let unlikely = || {
            let [mean, error] = self.verdict("pidm", truth)?.likelihood_difference?;
            Some(Target {
                what: format!("NLL of PIDM − vanilla's, bits/dim, {}", self.study.equation.told(truth)),
                target: "> 0".into(),
                found: format!("{mean:+.3} ± {:.3}", 2.0 * error),
                met: mean - 2.0 * error > 0.0,
            })
        };
        [near_best(), misled(), unlikely()]
    }

    fn truncation(&self) -> Option<Target> {
        let truth = self.study.equation.truth();
        let (ratio, _, found) =
            self.ratio(self.verdict("vanilla", truth)?, self.verdict("vanilla, log-normal", truth)?);
        let what = "vanilla's residual, truncated / plain log-normal noise".into();
        Some(Target { what, target: "≤ 0.5".into(), found, met: ratio <= 0.5 })
    }
}
