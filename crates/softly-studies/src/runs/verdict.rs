//! The verdict on a constraint in plain words: does it help, at which noise levels, is it wrong and in which way.
//!
//! Everything here is a function of numbers: no file is read and nothing is computed.

use softly::{Identification, PairedDifference, PairedRatio, ParameterInterval};

/// A share of the denoiser's squared error below which a correction is as good as none.
const SMALL: f64 = 0.01;
/// The data obey an equation if their residual is this fraction of what a model without it leaves.
const OBEYED: f64 = 0.1;
/// From this fraction on an equation says nothing about the data that a model does not know without it.
const BROKEN: f64 = 0.5;
/// A factor between residuals that is beyond doubt.
const CLEARLY: f64 = 2.0;
/// A change of a field's scatter that is worth a sentence.
const SCATTER: f64 = 0.05;
/// Samples nearer to training data than this fraction of held-out data's distance are copies.
const COPIES: f64 = 0.5;

/// What is known of a run with a constraint, beside one without.
#[derive(Debug, Clone, Default)]
pub struct Evidence {
    /// The run.
    pub run: String,
    /// What it is compared with: a run without the constraint, or its own frozen base.
    pub baseline: Option<String>,
    /// Its residual over the baseline's.
    pub residual: Option<PairedRatio>,
    /// Whether that residual is of the run's own equation, given or learned, for want of a known truth.
    pub own_claim: bool,
    /// Its negative log-likelihood of held-out data, bits per dimension, less the baseline's.
    pub likelihood: Option<PairedDifference>,
    /// The share of the base denoiser's squared error on held-out data that the correction takes away, by noise level;
    /// negative where it adds to it.
    pub levels: Vec<(f64, f64)>,
    /// The equations that samples are judged by.
    pub equations: Vec<EquationEvidence>,
    /// The equations that the run was given.
    pub given: Vec<GivenEvidence>,
    /// Parameters that it learned.
    pub parameters: Vec<ParameterEvidence>,
    /// The scatter of its fields.
    pub scatter: Vec<ScatterEvidence>,
    /// Median distance of its samples to the training data over held-out data's.
    pub neighbours: Option<f64>,
}

/// Samples under one equation.
#[derive(Debug, Clone, PartialEq)]
pub struct EquationEvidence {
    /// The equation.
    pub equation: String,
    /// Mean |R| of the run's samples.
    pub run: f64,
    /// Mean |R| of the baseline's.
    pub baseline: f64,
}

/// Held-out data under one equation that the run was given.
#[derive(Debug, Clone, PartialEq)]
pub struct GivenEvidence {
    /// The equation.
    pub equation: String,
    /// Mean |R| of held-out data.
    pub data: f64,
    /// Mean |R| of samples that know nothing of it.
    pub baseline: f64,
    /// The share of the data's R² that is the same in every sample.
    pub systematic: Option<f64>,
    /// The equation that samples are judged by, where it is another one, and mean |R| of held-out data under it.
    pub known: Option<(String, f64)>,
}

impl GivenEvidence {
    /// Whether the data are hardly closer to the equation than samples that know nothing of it.
    fn is_broken(&self) -> bool {
        self.data >= BROKEN * self.baseline
    }
}

/// A parameter that was learned.
#[derive(Debug, Clone, PartialEq)]
pub struct ParameterEvidence {
    /// The value that it was given to start from.
    pub given: f64,
    /// What held-out data say.
    pub found: ParameterInterval,
}

/// The standard deviation of a field over the data's.
#[derive(Debug, Clone, PartialEq)]
pub struct ScatterEvidence {
    /// The field.
    pub field: String,
    /// Of the run's samples.
    pub run: f64,
    /// Of the baseline's.
    pub baseline: f64,
}

/// All that can be said, the most important first.
pub fn sentences(evidence: &Evidence) -> Vec<String> {
    let mut all = vec![help(evidence)];
    all.extend(noise_levels(evidence));
    all.extend(evidence.given.iter().map(|given| wrong(evidence, given)));
    all.extend(evidence.parameters.iter().map(parameter));
    all.extend(equation_by_equation(evidence));
    all.extend(scatter(evidence));
    all.extend(copies(evidence));
    all
}

/// Does it help?
fn help(evidence: &Evidence) -> String {
    let Evidence { run, baseline, residual, likelihood, own_claim, .. } = evidence;
    let Some(baseline) = baseline else {
        return format!(
            "Whether the constraint of {run} helps cannot be said from {run} alone: its network was trained together \
             with it. Name a run without the constraint first, as in: softly report VANILLA {run} --out page.html"
        );
    };
    // Samples that are closer to an equation which the data do not obey are no better for it.
    let disobeyed = *own_claim && !evidence.given.is_empty() && evidence.given.iter().all(GivenEvidence::is_broken);
    let residual_relation = residual.as_ref().filter(|_| !disobeyed).map(PairedRatio::relation);
    let headline = match (residual_relation, likelihood.as_ref().map(PairedDifference::relation)) {
        (Some("lower"), Some("higher")) => "The constraint lowers the residual at the price of the likelihood",
        (Some("lower"), Some(_)) => "The constraint helps",
        (Some("lower"), None) => "The constraint lowers the residual",
        (Some("higher"), Some("lower")) => "The constraint makes the data more likely, but raises the residual",
        (Some("higher"), _) | (_, Some("higher")) => "The constraint does harm",
        (None, Some("lower")) if disobeyed => "The data do not obey the constraint, yet it makes them more likely",
        (None, _) if disobeyed => "The data do not obey the constraint, and it gains nothing",
        (_, Some("lower")) => "The constraint helps the likelihood, not the residual",
        (None, None) => "Nothing can be said of the constraint: there is neither a residual nor a likelihood",
        _ => "The constraint makes no clear difference",
    };
    let mut parts = Vec::new();
    if let Some(PairedRatio { ratio, interval: [low, high], pairs, .. }) = residual {
        let of = if *own_claim { " (of its own equation, for the data bring none)" } else { "" };
        parts.push(format!(
            "the residual of {run} is {ratio:.2} of that of {baseline}{of}, 95 % interval {low:.2} to {high:.2} over \
             {pairs} pairs"
        ));
    }
    if let Some(difference) = likelihood {
        let words = match difference.relation() {
            "lower" => "held-out data are more likely",
            "higher" => "held-out data are less likely",
            _ => "held-out data are as likely as before",
        };
        let PairedDifference { mean, error, pairs } = difference;
        parts.push(format!("{words} (NLL {mean:+.3} ± {:.3} bits/dim, {pairs} samples)", 2.0 * error));
    }
    if parts.is_empty() { format!("{headline}.") } else { format!("{headline}: {}.", parts.join("; ")) }
}

/// At which noise levels?
fn noise_levels(evidence: &Evidence) -> Option<String> {
    let levels = &evidence.levels;
    let best = levels.iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
    let worst = levels.iter().min_by(|a, b| a.1.total_cmp(&b.1))?;
    let said = if best.1 < SMALL {
        let most = percent(best.1.max(0.0));
        format!(
            "It is hardly used: at no noise level does it take away more than {most} of the squared error of the \
             denoiser below it on held-out data."
        )
    } else {
        let acts = levels.iter().filter(|level| level.1 >= SMALL);
        format!(
            "It acts at noise levels σ {}, most at σ = {}, where it takes away {} of the squared error of the denoiser \
             below it on held-out data.",
            range(acts.map(|level| level.0)),
            digits(best.0),
            percent(best.1)
        )
    };
    if worst.1 > -SMALL {
        return Some(said);
    }
    let harmed = range(levels.iter().filter(|level| level.1 <= -SMALL).map(|level| level.0));
    Some(format!("{said} At σ {harmed} it does harm and adds up to {} to that error.", percent(-worst.1)))
}

/// Is it wrong, and in which way?
fn wrong(evidence: &Evidence, given: &GivenEvidence) -> String {
    let GivenEvidence { equation, data, baseline, systematic, known } = given;
    let name =
        if evidence.given.len() > 1 { format!("the given equation {equation}") } else { "the given equation".into() };
    let Some(other) = &evidence.baseline else {
        return format!("Held-out data miss {name} by a mean |R| of {}.", digits(*data));
    };
    let fraction = data / baseline;
    let sizes = format!(
        "their mean |R| is {}, {} of that of samples of {other}, {}",
        digits(*data),
        percent(fraction),
        digits(*baseline)
    );
    let verdict = if fraction <= OBEYED {
        format!("Held-out data obey {name}: {sizes}.")
    } else if !given.is_broken() {
        format!("Held-out data obey {name} only roughly: {sizes}.")
    } else {
        format!("Held-out data do not obey {name}: {sizes}.")
    };
    let way = systematic.filter(|_| fraction > OBEYED).map_or_else(String::new, way);
    let compared = known.as_ref().filter(|(_, known)| *known > 0.0 && data / known >= CLEARLY).map_or_else(
        String::new,
        |(origin, known)| {
            let factor = digits(data / known);
            format!(" Under {origin} it is {}, {factor} times smaller: the given equation is wrong.", digits(*known))
        },
    );
    format!("{verdict}{way}{compared}")
}

/// What a residual looks like of which the given share is the same in every sample.
fn way(systematic: f64) -> String {
    let share = percent(systematic);
    match systematic {
        most if most >= 0.5 => format!(
            " Most of it ({share} of R²) is the same in every sample, as a wrong source, border value or constant \
             would have it."
        ),
        part if part >= 0.1 => format!(
            " Part of it ({share} of R²) is the same in every sample, as a wrong source or constant would have it; \
             the rest changes with the fields, as a wrong coefficient, noise or coarse differences would have it."
        ),
        _ => " It changes from sample to sample, as a wrong coefficient, noise in the data or differences that are \
              too coarse would have it."
            .into(),
    }
}

/// What was learned of a parameter?
fn parameter(evidence: &ParameterEvidence) -> String {
    let ParameterEvidence { given, found } = evidence;
    let ParameterInterval { name, value, estimate, interval, verdict, .. } = found;
    let start = format!("{name} was given as {} and learned as {}", precise(*given), precise(*value));
    match (verdict, interval, estimate) {
        (Identification::Identified, Some([low, high]), _) => {
            let range = format!("95 % interval {} to {}", precise(*low), precise(*high));
            if (*low..=*high).contains(given) {
                return format!("{start} ({range}): the data agree with the given value.");
            }
            let factor = given / value;
            let wrong = if factor.is_finite() && factor > 0.0 {
                format!("wrong by a factor of {}", digits(factor.max(1.0 / factor)))
            } else {
                "wrong".into()
            };
            format!("{start} ({range}): the given value is {wrong}.")
        }
        (Identification::Elsewhere, Some([low, high]), Some(estimate)) => format!(
            "{start}, but held-out data prefer {} (95 % interval {} to {}): they are not like the training data.",
            precise(*estimate),
            precise(*low),
            precise(*high)
        ),
        _ => format!("{start}, but the data hardly know it: the residual does not depend on it."),
    }
}

/// Which equations are met better, if there are several?
fn equation_by_equation(evidence: &Evidence) -> Option<String> {
    let baseline = evidence.baseline.as_ref()?;
    if evidence.equations.len() < 2 {
        return None;
    }
    let one = |e: &EquationEvidence| {
        let ratio = e.run / e.baseline;
        let remark = if ratio > 0.95 { " (no better)" } else { "" };
        format!("{} for {}{remark}", digits(ratio), e.equation)
    };
    let all: Vec<String> = evidence.equations.iter().map(one).collect();
    Some(format!(
        "Equation by equation the residual of {} is that of {baseline} times {}.",
        evidence.run,
        all.join(", ")
    ))
}

/// Is the scatter of a field further from the data's than without the constraint?
fn scatter(evidence: &Evidence) -> Option<String> {
    let baseline = evidence.baseline.as_ref()?;
    let off = |ratio: f64| (ratio - 1.0).abs();
    let worse = |s: &&ScatterEvidence| (s.run / s.baseline - 1.0).abs() > SCATTER && off(s.run) > off(s.baseline);
    let found: Vec<&ScatterEvidence> = evidence.scatter.iter().filter(worse).collect();
    let flatter = found.iter().any(|s| s.run < s.baseline);
    let one = |s: &&ScatterEvidence| format!("{} {:.2} ({baseline}: {:.2})", s.field, s.run, s.baseline);
    let all = found.iter().map(one).collect::<Vec<_>>().join(", ");
    let remark = if flatter { "; flatter fields have smaller residuals for nothing" } else { "" };
    let said = "With it fields scatter less like the data than without it; standard deviations over the data's:";
    (!found.is_empty()).then(|| format!("{said} {all}{remark}."))
}

/// Are samples copies of training data?
fn copies(evidence: &Evidence) -> Option<String> {
    let ratio = evidence.neighbours.filter(|ratio| *ratio < COPIES)?;
    Some(format!(
        "Samples of {} lie {ratio:.2} times as far from the training data as held-out data do: some are copies, so \
         more data or less training is called for.",
        evidence.run
    ))
}

/// "from 0.1 to 2", or "= 2".
fn range(values: impl Iterator<Item = f64>) -> String {
    let [low, high] = values.fold([f64::INFINITY, f64::NEG_INFINITY], |[low, high], v| [low.min(v), high.max(v)]);
    if low == high { format!("= {}", digits(low)) } else { format!("from {} to {}", digits(low), digits(high)) }
}

/// A share in per cent.
fn percent(share: f64) -> String {
    let percent = 100.0 * share;
    if percent >= 9.95 || percent == 0.0 { format!("{percent:.0} %") } else { format!("{} %", digits(percent)) }
}

/// A number with about three digits.
pub fn digits(value: f64) -> String {
    rounded(value, 3)
}

/// A number with about four digits.
pub fn precise(value: f64) -> String {
    rounded(value, 4)
}

fn rounded(value: f64, digits: i32) -> String {
    let size = value.abs();
    if value == 0.0 || !value.is_finite() {
        return format!("{value}");
    }
    if !(1e-3..1e5).contains(&size) {
        return format!("{value:.*e}", digits as usize - 1);
    }
    let decimals = (digits - 1 - size.log10().floor() as i32).max(0) as usize;
    let text = format!("{value:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_string() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratio(ratio: f64, low: f64, high: f64) -> PairedRatio {
        PairedRatio { ratio, interval: [low, high], per_seed: vec![ratio], student: None, pairs: 64 }
    }

    fn bits(mean: f64, error: f64) -> PairedDifference {
        PairedDifference { mean, error, pairs: 32 }
    }

    fn evidence() -> Evidence {
        Evidence { run: "adapted".into(), baseline: Some("vanilla".into()), ..Evidence::default() }
    }

    fn helped(residual: Option<PairedRatio>, likelihood: Option<PairedDifference>) -> String {
        help(&Evidence { residual, likelihood, ..evidence() })
    }

    #[test]
    fn numbers_have_three_digits() {
        let found = [0.0, 0.25, 12.0, 9.996, 1234.5, 0.012_345, 1e-7, -2.5].map(digits);
        assert_eq!(found, ["0", "0.25", "12", "10", "1234", "0.0123", "1.00e-7", "-2.5"]);
        assert_eq!([0.0, 0.005, 0.0712, 0.5].map(percent), ["0 %", "0.5 %", "7.12 %", "50 %"]);
    }

    #[test]
    fn help_is_residual_and_likelihood_together() {
        let both = helped(Some(ratio(0.27, 0.25, 0.29)), Some(bits(-0.06, 0.01)));
        assert_eq!(
            both,
            "The constraint helps: the residual of adapted is 0.27 of that of vanilla, 95 % interval 0.25 to 0.29 \
             over 64 pairs; held-out data are more likely (NLL -0.060 ± 0.020 bits/dim, 32 samples)."
        );
        let [low, same, high] =
            [(0.5, 0.4, 0.6), (1.0, 0.9, 1.1), (1.5, 1.4, 1.6)].map(|(r, l, h)| Some(ratio(r, l, h)));
        let [better, equal, worse] = [-0.1, 0.01, 0.1].map(|mean| Some(bits(mean, 0.01)));
        let start = |residual: &Option<PairedRatio>, likelihood, expected: &str| {
            let said = helped(residual.clone(), likelihood);
            assert!(said.starts_with(expected), "{said}");
        };
        start(&low, equal, "The constraint helps: ");
        start(&low, None, "The constraint lowers the residual: ");
        start(&low, worse, "The constraint lowers the residual at the price of the likelihood: ");
        start(&same, better, "The constraint helps the likelihood, not the residual: ");
        start(&same, equal, "The constraint makes no clear difference: ");
        start(&same, None, "The constraint makes no clear difference: ");
        start(&same, worse, "The constraint does harm: ");
        start(&high, equal, "The constraint does harm: ");
        start(&high, better, "The constraint makes the data more likely, but raises the residual: ");
        start(&None, worse, "The constraint does harm: held-out data are less likely");
        start(&None, None, "Nothing can be said of the constraint");
        let alone = help(&Evidence { baseline: None, ..evidence() });
        assert!(
            alone.contains("cannot be said from adapted alone") && alone.contains("softly report VANILLA"),
            "{alone}"
        );
        let broken =
            GivenEvidence { equation: "u = 0".into(), data: 0.8, baseline: 1.0, systematic: None, known: None };
        let pulled = |likelihood, own_claim| {
            let given = vec![broken.clone()];
            help(&Evidence { residual: low.clone(), likelihood, own_claim, given, ..evidence() })
        };
        assert!(
            pulled(better, true).starts_with("The data do not obey the constraint, yet it makes them more likely: ")
        );
        assert!(pulled(equal, true).starts_with("The data do not obey the constraint, and it gains nothing: "));
        assert!(pulled(worse, true).starts_with("The constraint does harm: "));
        // Under an equation that is known to be true a lower residual is a gain, whatever the run was given.
        assert!(pulled(equal, false).starts_with("The constraint helps: "));
        let own = help(&Evidence { own_claim: true, residual: low, ..evidence() });
        assert!(own.contains("of its own equation, for the data bring none"), "{own}");
    }

    #[test]
    fn noise_levels_are_named_where_the_correction_acts() {
        let said = |levels: &[(f64, f64)]| noise_levels(&Evidence { levels: levels.to_vec(), ..evidence() });
        assert_eq!(said(&[]), None);
        assert_eq!(
            said(&[(0.01, 0.001), (0.1, 0.02), (0.5, 0.34), (2.0, 0.05), (10.0, 0.0)]).unwrap(),
            "It acts at noise levels σ from 0.1 to 2, most at σ = 0.5, where it takes away 34 % of the squared error of \
             the denoiser below it on held-out data."
        );
        let unused = said(&[(0.1, 0.004), (1.0, -0.002)]).unwrap();
        assert!(
            unused.starts_with("It is hardly used: at no noise level does it take away more than 0.4 %"),
            "{unused}"
        );
        let harm = said(&[(0.1, 0.2), (1.0, -0.03), (5.0, -0.05)]).unwrap();
        assert!(harm.ends_with("At σ from 1 to 5 it does harm and adds up to 5 % to that error."), "{harm}");
    }

    #[test]
    fn a_wrong_equation_is_told_from_a_right_one_and_how_it_is_wrong() {
        let given = |data, systematic| GivenEvidence {
            equation: "dt(u) = 0".into(),
            data,
            baseline: 1.0,
            systematic,
            known: None,
        };
        let said = |given: GivenEvidence| wrong(&Evidence { given: vec![given.clone()], ..evidence() }, &given);
        assert_eq!(
            said(given(0.02, Some(0.9))),
            "Held-out data obey the given equation: their mean |R| is 0.02, 2 % of that of samples of vanilla, 1."
        );
        assert!(said(given(0.3, Some(0.02))).starts_with("Held-out data obey the given equation only roughly: "));
        let source = said(given(2.0, Some(0.97)));
        assert!(
            source.starts_with("Held-out data do not obey the given equation: their mean |R| is 2, 200 %"),
            "{source}"
        );
        assert!(source.contains("97 % of R²") && source.contains("wrong source, border value or constant"), "{source}");
        assert!(said(given(2.0, Some(0.3))).contains("Part of it (30 % of R²)"));
        let coefficient = said(given(2.0, Some(0.01)));
        assert!(coefficient.contains("changes from sample to sample, as a wrong coefficient"), "{coefficient}");
        assert!(said(given(2.0, None)).ends_with("vanilla, 1."));
        let known = |data: f64| Some(("the data's own equation".to_string(), data));
        let compared = said(GivenEvidence { known: known(0.004), ..given(0.2, None) });
        let expected = " Under the data's own equation it is 0.004, 50 times smaller: the given equation is wrong.";
        assert!(compared.ends_with(expected), "{compared}");
        assert!(!said(GivenEvidence { known: known(0.15), ..given(0.2, None) }).contains("wrong"));
        let alone = Evidence { baseline: None, given: vec![given(2.0, None)], ..evidence() };
        assert_eq!(wrong(&alone, &alone.given[0]), "Held-out data miss the given equation by a mean |R| of 2.");
        let two = Evidence { given: vec![given(0.02, None), given(0.5, None)], ..evidence() };
        assert!(wrong(&two, &two.given[1]).contains("the given equation dt(u) = 0"));
    }

    #[test]
    fn learned_parameters_are_compared_with_what_was_given() {
        let found = |interval, estimate, verdict| ParameterEvidence {
            given: 15.0,
            found: ParameterInterval { name: "flow".into(), value: 10.0, estimate, interval, verdict, count: 64 },
        };
        assert_eq!(
            parameter(&found(Some([9.8, 10.3]), Some(10.1), Identification::Identified)),
            "flow was given as 15 and learned as 10 (95 % interval 9.8 to 10.3): the given value is wrong by a \
             factor of 1.5."
        );
        let agree = parameter(&found(Some([8.0, 16.0]), Some(10.1), Identification::Identified));
        assert!(agree.ends_with("the data agree with the given value."), "{agree}");
        let elsewhere = parameter(&found(Some([11.0, 12.0]), Some(11.5), Identification::Elsewhere));
        assert!(elsewhere.contains("prefer 11.5 (95 % interval 11 to 12): they are not like"), "{elsewhere}");
        let unknown = parameter(&found(None, None, Identification::NotIdentifiable));
        assert!(unknown.contains("the data hardly know it"), "{unknown}");
        let sign = ParameterEvidence { given: -1.0, ..found(Some([9.8, 10.3]), None, Identification::Identified) };
        assert!(parameter(&sign).ends_with("the given value is wrong."));
    }

    #[test]
    fn equations_scatter_and_copies_are_named_only_where_there_is_something_to_say() {
        let equation = |formula: &str, run| EquationEvidence { equation: formula.into(), run, baseline: 2.0 };
        let field = |run| ScatterEvidence { field: "u".into(), run, baseline: 0.93 };
        let quiet = Evidence {
            equations: vec![equation("a = 0", 1.0)],
            // Closer to the data's than the baseline's is nothing to warn of.
            scatter: vec![field(0.95), field(1.01)],
            neighbours: Some(0.97),
            ..evidence()
        };
        assert_eq!(sentences(&quiet).len(), 1);
        let loud = Evidence {
            equations: vec![equation("a = 0", 0.6), equation("b = 0", 1.98)],
            scatter: vec![field(0.84)],
            neighbours: Some(0.2),
            ..evidence()
        };
        let said = sentences(&loud);
        assert_eq!(said.len(), 4);
        assert_eq!(
            said[1],
            "Equation by equation the residual of adapted is that of vanilla times 0.3 for a = 0, 0.99 for b = 0 (no \
             better)."
        );
        assert!(said[2].contains("u 0.84 (vanilla: 0.93); flatter fields"), "{}", said[2]);
        assert!(said[3].contains("0.20 times as far") && said[3].contains("copies"), "{}", said[3]);
    }
}
