//! The equation that is solved for a field: which residual it is, and what it leaves open.

use softly_pde::algebra::{F64Algebra, Value};
use softly_pde::region::Region;

use crate::constraint::SoftConstraint;
use crate::constraint::config::ConstraintConfig;
use crate::direction::Site;
use crate::error::{Error, Result, nearest};

/// The residual that determines a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Equation {
    /// Place of the residual in the constraint.
    pub residual: usize,
    /// Place of the field in the constraint.
    pub slot: usize,
    /// The residual holds in the interior only; nodes of the border keep their values.
    pub inner: bool,
}

impl Equation {
    /// The first residual at `site` that contains the field `solve_for`, for the direction called `direction`.
    pub fn of(site: Site<'_>, direction: &str) -> Result<Self> {
        let solve_for = site.settings.solve_for.as_deref().unwrap_or_default();
        let slot = slot_of(site.formulas, "solve_for", solve_for)?;
        let mut parts = site.constraint.parts.iter();
        let residual = parts.position(|part| part.program.uses(slot)).ok_or_else(|| {
            let problem = format!("no residual contains `{solve_for}`");
            Error::input("denoiser.scd.solve_for", problem)
        })?;
        let inner = match &site.formulas.residuals()[residual].region {
            Region::All => false,
            Region::Interior => true,
            region => {
                let problem = format!(
                    "the first residual with `{solve_for}` holds on {region} only, which does not determine a field"
                );
                let hint = "list the equation of the whole grid or its interior before boundary conditions";
                return Err(Error::input("denoiser.scd.solve_for", problem).hint(hint));
            }
        };
        let grid = site.grid;
        if grid.rows() < 4 || grid.cols() < 4 {
            let problem =
                format!("`{direction}` needs 4 nodes along each axis, the grid has {} × {}", grid.rows(), grid.cols());
            return Err(Error::input("denoiser.scd.directions", problem).hint(format!("leave `{direction}` out")));
        }
        Ok(Self { residual, slot, inner })
    }
}

/// The place of the field `name` in `constraint`; `key` of the soft constraint named it.
pub(crate) fn slot_of(constraint: &ConstraintConfig, key: &str, name: &str) -> Result<usize> {
    constraint.fields.iter().position(|f| f == name).ok_or_else(|| {
        let problem = format!("`{name}` is no field of the constraint; it has {}", constraint.fields.join(", "));
        let hint = nearest(name, constraint.fields.iter().map(String::as_str));
        let hint = hint.map_or_else(|| "name one of them".to_string(), |near| format!("did you mean `{near}`?"));
        Error::input(format!("denoiser.scd.{key}"), problem).hint(hint)
    })
}

/// Whether residual `part` of `constraint` stays the same when a constant is added to field `slot`.
pub(crate) fn ignores_constants(constraint: &SoftConstraint, part: usize, slot: usize) -> bool {
    let algebra = F64Algebra::new(constraint.grid.clone());
    let program = &constraint.parts[part].program;
    let count = constraint.fields.len() + program.runtime_parameters().len();
    // Any fields do, as long as they are positive and rough.
    let value = |i: usize, node: usize| 1.0 + 0.3 * ((i + 1) as f64 * 1.7 + node as f64 * 2.3).sin();
    let field = |i: usize| Value::from((0..constraint.grid.len()).map(|node| value(i, node)).collect::<Vec<_>>());
    let tape = program.forward(&algebra, &(0..count).map(field).collect::<Vec<_>>());
    let largest_change = |direction: Value| {
        let mut directions = vec![None; constraint.fields.len()];
        directions[slot] = Some(direction);
        let change = program.tangent(&algebra, &tape, &directions);
        change.map_or(0.0, |change| change.numbers().iter().fold(0.0, |max: f64, v| max.max(v.abs())))
    };
    largest_change(Value::Number(1.0)) <= 1e-9 * largest_change(field(count))
}
