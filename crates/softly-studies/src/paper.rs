//! Numbers of the paper, to stand beside ours.

use crate::fields::study::{Claim, Equation};
use crate::method::{Kind, Method, Trained};

/// The paper's W1 of the toy study as mean and two standard deviations: its Table 1 and, for the chop's other angles, its figure.
/// (Its estimator is not determinable.)
pub fn toy_w1(data: &str, method: &Method) -> Option<[f64; 2]> {
    let value = match (data, method.kind) {
        ("circle", Kind::Trained(Trained::Vanilla)) => [3.91e-3, 0.18e-3],
        ("circle", Kind::Dps { .. }) => [3.97e-3, 0.65e-3],
        ("circle", Kind::Trained(Trained::PidmDdpm)) => [4.04e-3, 0.20e-3],
        ("circle", Kind::Trained(Trained::ScdPaper)) => [2.16e-3, 0.15e-3],
        ("dent", Kind::Trained(Trained::Vanilla)) => [7.53e-3, 0.46e-3],
        ("dent", Kind::Dps { .. }) => [6.27e-3, 0.63e-3],
        ("dent", Kind::Trained(Trained::PidmDdpm)) => [6.65e-3, 1.44e-3],
        ("dent", Kind::Trained(Trained::ScdPaper)) => [5.6e-3, 0.44e-3],
        ("chop-pi2", Kind::Trained(Trained::Vanilla)) => [3.34e-3, 0.11e-3],
        ("chop-pi2", Kind::Dps { .. }) => [10.2e-3, 3.21e-3],
        ("chop-pi2", Kind::Trained(Trained::PidmDdpm)) => [33.75e-3, 3.37e-3],
        ("chop-pi2", Kind::Trained(Trained::ScdPaper)) => [2.42e-3, 0.16e-3],
        ("chop-pi4", Kind::Trained(Trained::Vanilla)) => [4.5e-3, 0.1e-3],
        ("chop-pi4", Kind::Trained(Trained::ScdPaper)) => [3.4e-3, 0.2e-3],
        ("chop-pi3", Kind::Trained(Trained::Vanilla)) => [5.8e-3, 0.2e-3],
        ("chop-pi3", Kind::Trained(Trained::ScdPaper)) => [4.4e-3, 0.4e-3],
        _ => return None,
    };
    Some(value)
}

/// The residual of a method over vanilla's in the paper's tables of fields.
pub fn residual_ratio(equation: Equation, method: &Method, claim: Claim) -> Option<f64> {
    let vanilla = if equation == Equation::Darcy { 0.157 } else { 0.035 };
    let rows: &[(f64, f64)] = match (equation, method.trained()?) {
        (Equation::Darcy, Trained::Scd) => &[(7.5, 0.113), (10.0, 0.106), (12.5, 0.111), (15.0, 0.105)],
        (Equation::Darcy, Trained::Pidm) => &[(7.5, 0.184), (10.0, 0.025), (12.5, 0.129), (15.0, 0.205)],
        (Equation::Helmholtz, Trained::Scd) => &[(0.0, 0.025), (0.05, 0.024), (0.1, 0.024), (0.5, 0.023)],
        _ => &[],
    };
    rows.iter().find(|(value, _)| *value == claim.number()).map(|(_, residual)| residual / vanilla)
}
