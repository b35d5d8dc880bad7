//! Constraints: formulas on tensors against a second interpreter, gradients against finite differences.

use std::collections::BTreeMap;

use softly::tensors::to_vec_f64;
use softly::units::Units;
use softly::{ConstraintConfig, Norm, ParameterConfig, Region, ResidualConfig, Residuals, SoftConstraint};
use softly_pde::derivative::Scheme;
use softly_pde::grid::{Axis, Grid};
use softly_pde::region::End;
use softly_pde::stencil::Stencil;

use crate::common::{compiled, field, law, normals};

/// Formulas of p and K with the number c and the array f.
const FORMULAS: [&str; 21] = [
    "K*laplacian(p) + dot(grad(K), grad(p)) + f",
    "div(K*grad(p)) + f",
    "laplacian(p) + c^2*p - K",
    "(sqrt(p^2 + K^2) - 1)^2",
    "p^2 + K^2 - 1.7",
    "sqrt(0.2 + p^2)*K",
    "exp(0.3*p) - 2*K",
    "log(2 + K^2)*dx(p)",
    "sin(p)*cos(K) - tanh(p*K) + 0.3",
    "abs(p) + 0.5*K",
    "p^3 - (1.5 + tanh(K))^1.7",
    "p/(2 + cos(K)) - x*y",
    "max(x, 0.4)*p + min(y, c)",
    "p*K - p/K + 0.1",
    "dxx(p) - dyy(K) + dx(dy(p))",
    "div(grad(p))*p - 1/(3 + K^2)",
    "dot(grad(p), grad(p)) - (x < 0.6)",
    "p*(K^2 + 1)^(-0.5) - 2",
    "p*dx(p) + K*dy(p) - 0.05*laplacian(p)",
    "c - f*p",
    "(p - K)^4 - K^-1",
];

const NORMS: [Norm; 4] = [Norm::L1Mean, Norm::L1Sum, Norm::L2, Norm::HalfSquares];

/// The data's channels; the constraint names two of them, in another order.
const CHANNELS: [&str; 3] = ["K", "spare", "p"];

struct Case {
    name: String,
    grid: Grid,
    units: Units,
    constraint: SoftConstraint,
    norm: Norm,
    /// Region and weight of each part.
    parts: Vec<(Region, f64)>,
}

fn inside(region: &Region, node: usize, grid: &Grid) -> bool {
    let (row, col) = (node / grid.cols(), node % grid.cols());
    let columns_end = !grid.axes[1].periodic && (col == 0 || col == grid.cols() - 1);
    match region {
        Region::All => true,
        Region::Interior => row > 0 && row < grid.rows() - 1 && !columns_end,
        Region::Border => !inside(&Region::Interior, node, grid),
        Region::End { axis, end } => {
            let (place, nodes) = if *axis == grid.axes[0].name { (row, grid.rows()) } else { (col, grid.cols()) };
            place == if *end == End::First { 0 } else { nodes - 1 }
        }
    }
}

/// Nodes, cells, a periodic axis, each with schemes that suit it along both axes.
fn grids() -> Vec<(Grid, Vec<[Scheme; 2]>)> {
    use Scheme::{Mirror, OneSided2, OneSided4, Periodic, Periodic4, Spectral, Zero};
    let (x, y) = (Axis::new("x", 7, 0.0, 2.0), Axis::new("y", 6, -0.5, 1.0));
    let open = vec![[OneSided2, Mirror], [OneSided4, Zero], [Mirror, OneSided2]];
    vec![
        (Grid { axes: vec![x.clone(), y.clone()] }, open.clone()),
        (Grid { axes: vec![x.clone().cells(), y.clone().cells()] }, open),
        (Grid { axes: vec![x, y.periodic()] }, vec![[OneSided2, Periodic], [Zero, Periodic4], [Mirror, Spectral]]),
    ]
}

fn by_axis(schemes: [Scheme; 2]) -> Stencil {
    Stencil::PerAxis(BTreeMap::from([("x".to_string(), schemes[0]), ("y".to_string(), schemes[1])]))
}

fn cases() -> Vec<Case> {
    let units = Units { mean: vec![1.6, 9.0, 0.3], scale: vec![0.4, 3.0, 0.7] };
    let channels = CHANNELS.map(String::from);
    let at = |axis: &str, end: End| Region::End { axis: axis.into(), end };
    let regions = |grid: &Grid| {
        let mut last = vec![(Region::Border, 1.0), (at("x", End::First), -1.5), (at("x", End::Last), 1.0)];
        last.extend((!grid.axes[1].periodic).then(|| (at("y", End::Last), 0.1)));
        [vec![(Region::All, 1.0)], vec![(Region::Interior, 2.0), (at("x", End::First), 0.5)], last]
    };
    let mut cases = Vec::new();
    for (i, formula) in FORMULAS.iter().enumerate() {
        for (j, norm) in NORMS.into_iter().enumerate() {
            let (grid, schemes) = grids().swap_remove((i + j) % 3);
            let stencil = schemes[i % 3];
            let parts = regions(&grid)[(i + 2 * j) % 3].clone();
            let residual = if parts.len() == 1 {
                Residuals::One((*formula).to_string())
            } else {
                // The second part is another formula, so that parts cannot be mixed up.
                let text = |k: usize| FORMULAS[(i + 5 * k) % FORMULAS.len()].to_string();
                let part = |(k, (region, weight)): (usize, &(Region, f64))| ResidualConfig {
                    formula: text(k),
                    region: region.clone(),
                    weight: *weight,
                    name: None,
                };
                Residuals::Many(parts.iter().enumerate().map(part).collect())
            };
            let mut config = law(&["p", "K"], residual, norm);
            config.stencil = by_axis(stencil);
            config.stencils = BTreeMap::from([("K".to_string(), by_axis(schemes[(i + 1) % 3]))]);
            config.parameters = BTreeMap::from([
                ("c".to_string(), ParameterConfig::Number(2.5)),
                ("f".to_string(), ParameterConfig::Formula("sin(pi*x) + c*y".into())),
            ]);
            let constraint = SoftConstraint::new(&config, &channels, &grid, &units).unwrap();
            let name = format!("{formula} {stencil:?} {norm:?} {parts:?}");
            cases.push(Case { name, grid, units: units.clone(), constraint, norm, parts });
        }
    }
    cases
}

/// Normalised random fields `[C, H, W]` of a sample.
fn random_fields(grid: &Grid, index: u64) -> Vec<f64> {
    normals(17, index, CHANNELS.len() * grid.len())
}

impl Case {
    fn shape(&self) -> [usize; 3] {
        [CHANNELS.len(), self.grid.rows(), self.grid.cols()]
    }

    /// The physical p and K of a normalised sample.
    fn physical(&self, sample: &[f64]) -> Vec<Vec<f64>> {
        let n = self.grid.len();
        let field = |c: usize| {
            sample[c * n..(c + 1) * n].iter().map(|v| self.units.mean[c] + self.units.scale[c] * v).collect()
        };
        vec![field(2), field(0)]
    }

    /// ‖R‖ from its definition.
    fn norm_by_hand(&self, sample: &[f64]) -> f64 {
        let values = self.constraint.residual_values(&self.physical(sample)).concat();
        let sum = |f: fn(f64) -> f64| values.iter().map(|&v| f(v)).sum::<f64>();
        match self.norm {
            Norm::L1Mean => sum(f64::abs) / values.len() as f64,
            Norm::L1Sum => sum(f64::abs),
            Norm::L2 => sum(|v| v * v).sqrt(),
            Norm::HalfSquares => 0.5 * sum(|v| v * v),
        }
    }
}

#[test]
fn formulas_on_tensors_agree_with_formulas_on_f64_arrays() {
    for case in cases() {
        let n = case.grid.len();
        let samples = [random_fields(&case.grid, 0), random_fields(&case.grid, 1)];
        let x = field(&samples.concat(), case.shape());
        let tensors: Vec<Vec<f64>> = case.constraint.residuals(&x).into_iter().map(to_vec_f64).collect();
        let norms = to_vec_f64(case.constraint.norm(x));
        for (s, sample) in samples.iter().enumerate() {
            let expected = case.constraint.residual_values(&case.physical(sample));
            assert_eq!(expected.len(), case.parts.len());
            for ((tensor, expected), (region, _)) in tensors.iter().zip(&expected).zip(&case.parts) {
                let all = &tensor[s * n..(s + 1) * n];
                let (here, outside): (Vec<usize>, Vec<usize>) = (0..n).partition(|&i| inside(region, i, &case.grid));
                assert!(outside.iter().all(|&i| all[i] == 0.0), "{}", case.name);
                assert_eq!(here.len(), expected.len(), "{}", case.name);
                let size = expected.iter().fold(1.0f64, |m, v| m.max(v.abs()));
                for (&i, e) in here.iter().zip(expected) {
                    assert!((all[i] - e).abs() < 1e-12 * size, "{}: {} against {e}", case.name, all[i]);
                }
            }
            let by_hand = case.norm_by_hand(sample);
            assert!((norms[s] / by_hand - 1.0).abs() < 1e-12, "{}: {} against {by_hand}", case.name, norms[s]);
        }
    }
}

#[test]
fn a_residuals_weight_is_a_factor() {
    let grid = Grid::unit(4, 4);
    let values = |weight: f64| {
        let part = ResidualConfig { formula: "p^2 - x".into(), region: Region::Interior, weight, name: None };
        let config = law(&["p"], Residuals::Many(vec![part]), Norm::L2);
        let constraint = compiled(&config, &grid, &Units::identity(1));
        constraint.residual_values(&[normals(1, 0, 16)]).concat()
    };
    assert_eq!(values(1.0).len(), 4);
    assert_eq!(values(-3.0), values(1.0).iter().map(|v| -3.0 * v).collect::<Vec<_>>());
}

#[test]
fn absurd_exponents_are_computed_as_they_stand() {
    let law = law(&["p", "K"], Residuals::One("p^1e19 + K".into()), Norm::L1Mean);
    let constraint = compiled(&law, &Grid::unit(4, 4), &Units::identity(2));
    let x = field(&[vec![1.0; 16], vec![2.0; 16]].concat(), [2, 4, 4]);
    assert_eq!(to_vec_f64(constraint.norm_and_gradient(&x).0), [3.0]);
}

#[test]
fn names_in_a_constraint_cannot_lead_out_of_a_folder() {
    for name in ["../p", "a/b", "/p", "..", ""] {
        let law = law(&[name, "K"], Residuals::One("K".into()), Norm::L1Mean);
        let error = SoftConstraint::new(&law, &law.fields, &Grid::unit(4, 4), &Units::identity(2)).err();
        let error = error.expect("refused");
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains(&format!("`{name}` cannot be a field's name")), "{error}");
    }
}

#[test]
fn the_constraints_gradient_matches_finite_differences_under_every_norm() {
    for case in cases() {
        let h = 1e-6;
        // Fields away from the kinks of |R| and |p|, or a difference would step over one.
        let smooth = |sample: &Vec<f64>| {
            let fields = case.physical(sample);
            let residuals = case.constraint.residual_values(&fields).concat();
            // A residual that is exactly zero, such as a mirrored slope at an end, stays so.
            let steady = |v: &f64| *v == 0.0 || v.abs() > 5e-4;
            fields[0].iter().all(|v| v.abs() > 5e-4) && residuals.iter().all(steady)
        };
        let sample = (0..1_000).map(|i| random_fields(&case.grid, i)).find(smooth).expect("smooth fields");
        let (norm, gradient) = case.constraint.norm_and_gradient(&field(&sample, case.shape()));
        assert!((to_vec_f64(norm)[0] / case.norm_by_hand(&sample) - 1.0).abs() < 1e-12, "{}", case.name);
        let gradient = to_vec_f64(gradient);
        // One batch with every entry moved up and down.
        let moved = (0..sample.len()).flat_map(|i| [h, -h].map(|step| (i, step))).flat_map(|(i, step)| {
            let mut moved = sample.clone();
            moved[i] += step;
            moved
        });
        let norms = to_vec_f64(case.constraint.norm(field(&moved.collect::<Vec<_>>(), case.shape())));
        let size = gradient.iter().fold(0.0f64, |m, g| m.max(g.abs()));
        assert!(size > 0.0, "{}", case.name);
        for (i, (g, pair)) in gradient.iter().zip(norms.chunks_exact(2)).enumerate() {
            let difference = (pair[0] - pair[1]) / (2.0 * h);
            assert!((g + difference).abs() < 2e-7 * size, "{} at {i}: {g} against {}", case.name, -difference);
        }
        // The field that the constraint does not name gets no push.
        let n = case.grid.len();
        assert!(gradient[n..2 * n].iter().all(|&g| g == 0.0));
    }
}

#[test]
fn what_is_wrong_in_a_list_of_equations_is_said() {
    for (residual, part) in [
        ("[{ formula = 'u', region = 'middle' }]", "`middle` is no region"),
        ("[{ formula = 'u', regoin = 'border' }]", "unknown field `regoin`"),
        ("[{ region = 'border' }]", "missing field `formula`"),
        ("['u', 'dx(u)']", "a table such as"),
        ("3", "a formula in quotes, or a list of tables"),
    ] {
        let text = format!("fields = ['u']\nresidual = {residual}");
        let said = toml::from_str::<ConstraintConfig>(&text).unwrap_err().to_string();
        assert!(said.contains(part), "{residual}: {said}");
    }
}
