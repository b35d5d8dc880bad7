//! The audit of a dataset as text.

use softly_pde::audit::{Band, EquationAudit, Fit, Identifiability, Outlier, interval, number, percent};

use crate::data::audit::DataAudit;
use crate::text::text_table;

/// Outliers that are listed.
const LISTED: usize = 5;

/// The audit in lines: a table of each equation, fitted parameters, then the verdict.
pub fn lines(found: &DataAudit) -> Vec<String> {
    let mut lines = Vec::new();
    let several = found.audit.equations.len() > 1;
    for (e, equation) in found.audit.equations.iter().enumerate() {
        lines.push(String::new());
        let title = if several { format!("Equation {}", e + 1) } else { "Equation".into() };
        lines.push(format!("{title}: {} ({})", equation.formula, place(equation)));
        lines.push(text_table(&terms(equation), 1));
        lines.extend(places(equation));
        if let Some(outliers) = found.outliers.get(e).filter(|outliers| !outliers.is_empty()) {
            lines.push(format!("outliers: {}", outlier_words(outliers)));
        }
    }
    lines.push(String::new());
    if found.audit.samples < found.of {
        lines.push(format!("The audit looked at {} of {} training samples.", found.audit.samples, found.of));
    }
    if let Some(fit) = &found.fit {
        lines.extend([text_table(&fitted(fit), 5), String::new()]);
    }
    lines.push(format!("Verdict: {}", found.audit.verdict));
    lines
}

/// Where an equation counts.
pub fn place(equation: &EquationAudit) -> String {
    if equation.region == "all" { "everywhere".into() } else { format!("on {}", equation.region) }
}

/// The terms and the residual of an equation, one per row.
fn terms(equation: &EquationAudit) -> Vec<Vec<String>> {
    let relative = |rms: f64| if equation.scale > 0.0 { percent(rms / equation.scale) } else { String::new() };
    let mut rows = vec![["", "mean |·|", "rms", "of largest", "best factor"].map(String::from).to_vec()];
    for term in &equation.terms {
        rows.push(vec![
            term.text.clone(),
            format!("{:.4e}", term.mean_abs),
            format!("{:.4e}", term.rms),
            relative(term.rms),
            term.factor.map_or_else(String::new, |factor| format!("{factor:.3}")),
        ]);
    }
    let own = equation.relative.map_or_else(String::new, percent);
    rows.push(vec![
        "residual R".into(),
        format!("{:.4e}", equation.mean_abs),
        format!("{:.4e}", equation.rms),
        own,
        String::new(),
    ]);
    rows
}

/// Where the residual is, and what it may be compared with.
fn places(equation: &EquationAudit) -> Vec<String> {
    let mut lines = Vec::new();
    let regions: Vec<String> =
        equation.regions.iter().map(|share| format!("{} {:.2e}", share.region, share.mean_abs)).collect();
    if !regions.is_empty() {
        lines.push(format!("mean |R| by region: {}", regions.join(", ")));
    }
    let bands: Vec<String> =
        equation.wavelengths.iter().map(|band| format!("{} {}", span(band), share(band))).collect();
    if !bands.is_empty() {
        lines.push(format!("R beside the largest term by wavelength: {}", bands.join(", ")));
    }
    let yardsticks = [
        ("shuffled pairs", equation.yardsticks.shuffled),
        ("zero fields", equation.yardsticks.zero),
        ("the mean field", equation.yardsticks.mean_field),
    ];
    let known: Vec<String> =
        yardsticks.iter().filter_map(|(name, size)| size.map(|size| format!("{name} {size:.2e}"))).collect();
    if !known.is_empty() {
        lines.push(format!("mean |R| for comparison: {}", known.join(", ")));
    }
    lines
}

/// The wavelengths of a band in grid spacings h.
pub fn span(band: &Band) -> String {
    match band.to {
        Some(to) => format!("{}–{} h", band.from, to),
        None => format!("≥ {} h", band.from),
    }
}

/// The residual of a band relative to the largest term there.
pub fn share(band: &Band) -> String {
    // Where the largest term has no waves to speak of there is nothing to compare with.
    if band.largest > 1e-3 * band.residual { percent(band.residual / band.largest) } else { "–".into() }
}

/// The outliers in words.
pub fn outlier_words(outliers: &[Outlier]) -> String {
    let one = |outlier: &Outlier| format!("sample {} ({:.1} times the median)", outlier.sample, outlier.times_median);
    let listed: Vec<String> = outliers.iter().take(LISTED).map(one).collect();
    let more = outliers.len().saturating_sub(LISTED);
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{} of the training data{rest}", listed.join(", "))
}

/// The fitted parameters, one per row after a header.
pub fn fitted(fit: &Fit) -> Vec<Vec<String>> {
    let mut rows = vec![["parameter", "given", "fitted", "95 % interval", "verdict"].map(String::from).to_vec()];
    for parameter in &fit.parameters {
        let interval = parameter.interval.map_or_else(|| "none".into(), interval);
        let verdict = match &parameter.verdict {
            Identifiability::Determined => "determined by the data".into(),
            Identifiability::Weak => "hardly determined by the data".into(),
            Identifiability::SameAs(other) => format!("cannot be told apart from {other}"),
            Identifiability::Absent => "has no effect on the residual".into(),
        };
        let [given, value] = [parameter.given, parameter.value].map(number);
        rows.push(vec![parameter.name.clone(), given, value, interval, verdict]);
    }
    rows
}
