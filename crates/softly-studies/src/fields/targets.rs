//! What the studies of fields set out to reach, and whether they did.

use serde::{Deserialize, Serialize};
use softly::PairedRatio;

use crate::fields::ablation::Ablation;
use crate::fields::study::{Claim, Equation, FieldStudy};
use crate::fields::table::{FieldTable, Line, Verdict, pairs, residual_ratio, rows_of};
use crate::method::{Correction, Kind, Method, Trained};
use crate::scale::StudyScale;

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
        None if study.scale == StudyScale::Long => judge.long(),
        None => judge.main(),
        Some(Ablation::Noise) => vec![judge.truncation()],
        Some(_) => Vec::new(),
    };
    all.into_iter().flatten().collect()
}

/// Methods on top of the frozen vanilla denoiser.
const ADAPTED: [Trained; 2] = [Trained::Adapt, Trained::AdaptLearn];

/// Whether a line is of one of `methods`, in any variation.
fn is_one_of(line: &Verdict, methods: &[Trained]) -> bool {
    matches!(line.method.kind, Kind::Trained(trained) if methods.contains(&trained))
}

struct Judge<'a> {
    study: &'a FieldStudy,
    table: &'a FieldTable,
}

impl<'a> Judge<'a> {
    fn main(&self) -> Vec<Option<Target>> {
        let truth = self.study.equation.truth();
        let (at_truth, elsewhere, bits) = match self.study.equation {
            Equation::Darcy => (0.70, 0.80, 0.05),
            Equation::Helmholtz => (0.75, 0.75, 0.1),
        };
        let usual: Vec<Claim> = self.study.claims.iter().copied().filter(|claim| claim.on_main_axis()).collect();
        let mut all = Vec::new();
        for &claim in &usual {
            let limit = if claim == truth { at_truth } else { elsewhere };
            all.extend([self.to_vanilla(Trained::Scd, claim, limit), self.best_ratio(claim, limit)]);
        }
        let controls = [
            (Trained::Scd, Correction::Jacobi, 2.0),
            (Trained::Adapt, Correction::Newton, 0.3),
            (Trained::Adapt, Correction::Kalman, 1.0),
        ];
        for (method, correction, weight) in controls {
            let control = Method::from(Kind::PostHoc { correction, weight });
            all.extend(usual.iter().map(|&claim| self.against_control(method, &control, claim)));
        }
        all.push(self.likelihood(&[Trained::Scd], Claim::on_main_axis, bits));
        // Not only the claims of all methods: learned parameters have more starts.
        let mut every: Vec<Claim> = Vec::new();
        for verdict in &self.table.verdicts {
            if !every.contains(&verdict.claim) {
                every.push(verdict.claim);
            }
        }
        for claim in every {
            all.push(self.to_vanilla(Trained::Adapt, claim, if claim == truth { 0.35 } else { 0.90 }));
            all.push(self.to_vanilla(Trained::AdaptLearn, claim, 0.40));
        }
        all.push(self.likelihood(&ADAPTED, |_| true, 0.02));
        all.push(self.marginals());
        all.push(self.learned());
        if self.study.equation == Equation::Darcy {
            all.extend(self.pidm());
        }
        all
    }

    /// What trainings that have converged have to reach.
    fn long(&self) -> Vec<Option<Target>> {
        let truth = self.study.equation.truth();
        let mut all =
            vec![self.plateau(0.15), self.best_ratio(truth, 0.70), self.to_vanilla(Trained::Scd, truth, 0.70)];
        for &claim in &self.study.claims {
            all.push(self.to_vanilla(Trained::Adapt, claim, if claim == truth { 0.20 } else { 0.30 }));
            all.push(self.to_vanilla(Trained::AdaptLearn, claim, 0.25));
        }
        all.push(self.likelihood(&ADAPTED, |_| true, 0.0));
        all.push(self.learned());
        all
    }

    /// Vanilla's residual at the end of its training, which p ≡ 0 must not beat; of Darcy flow alone.
    fn plateau(&self, limit: f64) -> Option<Target> {
        let Equation::Darcy = self.study.equation else { return None };
        let vanilla = self.verdict(Trained::Vanilla, self.study.equation.truth())?;
        Some(Target {
            what: "vanilla's mean |R| at the end of its training".into(),
            target: format!("≤ {limit:.2}"),
            found: format!("{:.3}", vanilla.residual),
            met: vanilla.residual <= limit,
        })
    }

    fn line(verdict: &Verdict) -> Line<'_> {
        (&verdict.method, verdict.claim)
    }

    fn verdict(&self, method: impl Into<Method>, claim: Claim) -> Option<&'a Verdict> {
        let method = method.into();
        self.table.verdicts.iter().find(|v| v.method == method && v.claim == claim)
    }

    /// The lowest residual among the `methods` and their settings of the sampler that have as many seeds as any of them.
    fn best(&self, methods: &[Trained], claim: Claim) -> Option<&'a Verdict> {
        let seeds = |v: &Verdict| rows_of(&self.table.rows, Self::line(v)).len();
        let own = || self.table.verdicts.iter().filter(|v| v.claim == claim && is_one_of(v, methods));
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

    fn best_ratio(&self, claim: Claim, limit: f64) -> Option<Target> {
        let forms = [Trained::Scd, Trained::ScdUnit, Trained::ScdPaper, Trained::ScdPaperNorm];
        let scd = self.best(&forms, claim)?;
        let vanilla = self.best(&[Trained::Vanilla], self.study.equation.truth())?;
        let (ratio, _, found) = self.ratio(scd, vanilla);
        let claim = self.study.equation.in_words(claim);
        let what = format!("SCD / vanilla residual, {claim}, both at their best sampling setting");
        Some(Target { what, target: format!("≤ {limit:.2}"), found, met: ratio <= limit })
    }

    fn against_control(&self, method: Trained, control: &Method, claim: Claim) -> Option<Target> {
        let (_, [low, high], found) = self.ratio(self.verdict(method, claim)?, self.verdict(control.clone(), claim)?);
        let (target, met) =
            if claim == self.study.equation.truth() { ("not worse", low <= 1.0) } else { ("better", high < 1.0) };
        let what = format!("{} against {control}, {}", method.name(), self.study.equation.in_words(claim));
        Some(Target { what, target: target.into(), found, met })
    }

    /// A method against vanilla, both sampled as the preset has it.
    fn to_vanilla(&self, method: Trained, claim: Claim, limit: f64) -> Option<Target> {
        let vanilla = self.verdict(Trained::Vanilla, self.study.equation.truth())?;
        let (ratio, _, found) = self.ratio(self.verdict(method, claim)?, vanilla);
        let what = format!("{} / vanilla residual, {}", method.name(), self.study.equation.in_words(claim));
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
            found: format!("{value:.3}, from {}, seed {}", row.claim.number(), row.seed),
            met: off(value) <= limit,
        })
    }

    /// How single values of the fields are distributed: the largest of the adapted rows' distances from the data's, as a
    /// ratio to vanilla's of the same field and seeds.
    fn marginals(&self) -> Option<Target> {
        let vanilla = self.verdict(Trained::Vanilla, self.study.equation.truth())?;
        let adapted = self.table.verdicts.iter().filter(|v| v.method.trained().is_some_and(|m| ADAPTED.contains(&m)));
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
            what: "marginal W1 of adapt and adapt-learn / vanilla's, highest over fields and claims".into(),
            target: "≤ 1.05".into(),
            found: format!("{ratio:.2}, {field}, {}, {}", verdict.method, self.study.equation.in_words(verdict.claim)),
            met: ratio <= 1.05,
        })
    }

    fn likelihood(&self, methods: &[Trained], counts: fn(Claim) -> bool, limit: f64) -> Option<Target> {
        let names = methods.iter().map(|m| m.name()).collect::<Vec<_>>().join(" and ");
        let own = self
            .table
            .verdicts
            .iter()
            .filter(|v| v.method.trained().is_some_and(|m| methods.contains(&m)) && counts(v.claim));
        let differences = own.filter_map(|v| Some((v.likelihood_difference?, v.claim)));
        let ([mean, error], claim) = differences.max_by(|(a, _), (b, _)| a[0].total_cmp(&b[0]))?;
        Some(Target {
            what: format!("NLL of {names} − vanilla's, bits/dim, highest over claims"),
            target: format!("≤ +{limit}"),
            found: format!("{mean:+.3} ± {:.3}, {}", 2.0 * error, self.study.equation.in_words(claim)),
            met: mean <= limit,
        })
    }

    fn pidm(&self) -> [Option<Target>; 3] {
        let (truth, wrong) = (self.study.equation.truth(), self.study.most_wrong());
        // PIDM has the first seed alone.
        let lowest = |methods: &[Trained], claim: Claim| {
            let own = self.table.verdicts.iter().filter(|v| v.claim == claim && is_one_of(v, methods));
            own.min_by(|a, b| a.residual.total_cmp(&b.residual))
        };
        let near_best = || {
            let pidm = lowest(&[Trained::Pidm, Trained::PidmPublished, Trained::PidmDdpm], truth)?;
            let others = [Trained::Vanilla, Trained::Scd, Trained::ScdUnit, Trained::ScdPaper];
            let (ratio, _, found) = self.ratio(pidm, lowest(&others, truth)?);
            let what =
                format!("PIDM's best residual / best of vanilla and SCD, {}", self.study.equation.in_words(truth));
            Some(Target { what, target: "≤ 1.05".into(), found, met: ratio <= 1.05 })
        };
        let misled = || {
            let (_, [low, _], found) =
                self.ratio(self.verdict(Trained::Pidm, wrong)?, self.verdict(Trained::Vanilla, truth)?);
            let what = format!("PIDM / vanilla residual, {}", self.study.equation.in_words(wrong));
            Some(Target { what, target: "> 1".into(), found, met: low > 1.0 })
        };
        let unlikely = || {
            let [mean, error] = self.verdict(Trained::Pidm, truth)?.likelihood_difference?;
            Some(Target {
                what: format!("NLL of PIDM − vanilla's, bits/dim, {}", self.study.equation.in_words(truth)),
                target: "> 0".into(),
                found: format!("{mean:+.3} ± {:.3}", 2.0 * error),
                met: mean - 2.0 * error > 0.0,
            })
        };
        [near_best(), misled(), unlikely()]
    }

    fn truncation(&self) -> Option<Target> {
        let truth = self.study.equation.truth();
        let (ratio, _, found) = self.ratio(
            self.verdict(Trained::Vanilla, truth)?,
            self.verdict(Method::from(Trained::Vanilla).with("log-normal"), truth)?,
        );
        let what = "vanilla's residual, truncated / plain log-normal noise".into();
        Some(Target { what, target: "≤ 0.5".into(), found, met: ratio <= 0.5 })
    }
}
