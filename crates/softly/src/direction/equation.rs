//! Which equations determine which fields, and what they leave open.

use burn::tensor::{Device, Tensor};
use softly_pde::algebra::{F64Algebra, Value};
use softly_pde::grid::{AxisId, Grid};
use softly_pde::operator::OperatorKind;
use softly_pde::region::Region;

use crate::constraint::SoftConstraint;
use crate::constraint::config::ConstraintConfig;
use crate::direction::Site;
use crate::direction::symbol::{AxisSymbol, short_wave};
use crate::error::{Error, Result, nearest};
use crate::tensors::{field_batch, to_vec_f64};

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
    /// The residual `residual` at `site`, the only one that contains the field at `slot`.
    pub fn of(site: Site<'_>, residual: usize, slot: usize) -> Result<Self> {
        match &site.formulas.residuals()[residual].region {
            Region::All => Ok(Self { residual, slot, inner: false }),
            Region::Interior => Ok(Self { residual, slot, inner: true }),
            region => Err(undetermined(&site.formulas.fields[slot], region)),
        }
    }
}

/// Refuses `fields`, about which there is an equation on `region` at most.
pub(crate) fn undetermined(fields: &str, region: &Region) -> Error {
    let problem = format!("the equations with `{fields}` hold on {region} only, which does not determine a field");
    Error::input("denoiser.scd.solve_for", problem).hint("add an equation on the whole grid or its interior")
}

/// Refuses grids that are too small for the direction called `direction`.
pub(crate) fn check_nodes(grid: &Grid, direction: &str) -> Result<()> {
    if grid.rows() < 4 || grid.cols() < 4 {
        let problem =
            format!("`{direction}` needs 4 nodes along each axis, the grid has {} × {}", grid.rows(), grid.cols());
        return Err(Error::input("denoiser.scd.directions", problem).hint(format!("leave `{direction}` out")));
    }
    Ok(())
}

/// The residuals at `site` that contain any of the fields `slots`, by place; every field is in one of them.
pub(crate) fn residuals_with(site: Site<'_>, slots: &[usize]) -> Result<Vec<usize>> {
    let parts = &site.constraint.parts;
    for &slot in slots {
        if !parts.iter().any(|part| part.program.uses(slot)) {
            let problem = format!("no residual contains `{}`", site.formulas.fields[slot]);
            return Err(Error::input("denoiser.scd.solve_for", problem));
        }
    }
    Ok((0..parts.len()).filter(|&part| slots.iter().any(|&slot| parts[part].program.uses(slot))).collect())
}

/// The fields that the equations at `site` are solved for, by slot: the ones that the settings name, else of every equation on
/// the whole grid or its interior the field with the highest derivatives.
pub(crate) fn unknowns(site: Site<'_>) -> Result<Vec<usize>> {
    let place = "denoiser.scd.solve_for";
    if let Some(named) = &site.settings.solve_for {
        return named.names().iter().map(|name| slot_of(site.formulas, "solve_for", name)).collect();
    }
    let fields = &site.formulas.fields;
    let mut found: Vec<usize> = Vec::new();
    for (part, residual) in site.formulas.residuals().into_iter().enumerate() {
        if !matches!(residual.region, Region::All | Region::Interior) {
            continue;
        }
        let roles = roles(site.constraint, part, site.fields.len());
        let highest = roles.iter().flatten().map(|role| role.order).max();
        let leading: Vec<usize> =
            (0..roles.len()).filter(|&slot| roles[slot].as_ref().map(|role| role.order) == highest).collect();
        match leading[..] {
            [slot] if found.contains(&slot) => {}
            [slot] => found.push(slot),
            _ => {
                let names = leading.iter().map(|&slot| fields[slot].as_str()).collect::<Vec<_>>();
                let problem = format!(
                    "`{}` could be solved for {}: which fields are unknown is not clear",
                    residual.formula,
                    names.join(" or ")
                );
                let hint = format!("name one or several, e.g. denoiser.scd.solve_for={names:?}");
                return Err(Error::input(place, problem).hint(hint));
            }
        }
    }
    if found.is_empty() {
        let problem = "no equation on the whole grid or its interior determines a field";
        return Err(Error::input(place, problem).hint("leave out `newton`, or add such an equation"));
    }
    Ok(found)
}

/// The highest derivative of a field in an equation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Order {
    Zeroth,
    First,
    Second,
}

/// How a field enters an equation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Role {
    /// The highest derivative.
    pub order: Order,
    /// Mean size of the coefficient of second derivatives, in normalised units.
    size: f64,
    /// The equation looks at its neighbourhood only.
    local: bool,
}

impl Role {
    /// The mean size of the coefficient of second derivatives if they lead and say how the equation acts at a node, else zero.
    pub fn laplacian(&self) -> f64 {
        if self.order == Order::Second && self.local { self.size } else { 0.0 }
    }
}

/// The role of every field of `constraint` in residual `part`, by slot, for data with so many `channels`; `None` for fields that
/// the residual does not contain.
pub(crate) fn roles(constraint: &SoftConstraint, part: usize, channels: usize) -> Vec<Option<Role>> {
    let grid = constraint.grid();
    let mut values = vec![0.0; channels * grid.len()];
    for (slot, field) in constraint.fields.iter().enumerate() {
        let own = values[field.channel * grid.len()..].iter_mut().take(grid.len()).enumerate();
        own.for_each(|(node, value)| *value = (made_up(slot, node) - field.mean) / field.scale);
    }
    let base: Tensor<4> = field_batch(values, [channels, grid.rows(), grid.cols()], &Device::flex());
    let linearised = constraint.linearised(part, &base, |_| {});
    let program = &constraint.parts[part].program;
    let far = |kind: OperatorKind| matches!(kind, OperatorKind::Mean | OperatorKind::At(_));
    let local = !program.operators().iter().any(|operator| far(operator.kind));
    let nodes = telling_nodes(constraint, part);
    let mean = |x: &Tensor<3>| {
        let values = to_vec_f64(x.clone().without_autodiff());
        nodes.iter().map(|&node| values[node].abs()).sum::<f64>() / nodes.len().max(1) as f64
    };
    let role = |slot: usize| {
        let symbol = AxisSymbol::of(&linearised, slot, grid, &base);
        let second = AxisId::BOTH.map(|id| mean(&symbol.second[id as usize]));
        let even: f64 = AxisId::BOTH.iter().map(|&id| second[id as usize] * -short_wave(grid, id)).sum();
        let odd: f64 = AxisId::BOTH.iter().map(|&id| mean(&symbol.first[id as usize]) / grid.spacing(id)).sum();
        let zeroth = mean(&symbol.zeroth);
        // An average over neighbours, c (u₋ + 2u + u₊)/4, looks like a second derivative of half of c.
        let noise = 1e-6 * (even + odd + zeroth);
        let order = match () {
            () if even > 2.0 * zeroth && even > noise => Order::Second,
            () if odd > noise => Order::First,
            () => Order::Zeroth,
        };
        Role { order, size: second.iter().sum(), local }
    };
    (0..constraint.fields.len()).map(|slot| program.uses(slot).then(|| role(slot))).collect()
}

/// Nodes of the region of residual `part` whose stencils are not one-sided, if there are any, else all nodes of the region.
fn telling_nodes(constraint: &SoftConstraint, part: usize) -> Vec<usize> {
    let grid = constraint.grid();
    let inside = constraint.counts(part);
    let central = |node: usize| {
        [(AxisId::Rows, node / grid.cols()), (AxisId::Cols, node % grid.cols())].into_iter().all(|(id, place)| {
            let n = grid.nodes(id);
            let reach = if n < 6 { 1 } else { 2 };
            grid.axis(id).periodic || (place >= reach && place + reach < n)
        })
    };
    let region: Vec<usize> = (0..grid.len()).filter(|&node| inside[node]).collect();
    let nodes: Vec<usize> = region.iter().copied().filter(|&node| central(node)).collect();
    if nodes.is_empty() { region } else { nodes }
}

/// Values of field `i` at node `node` to probe an equation with. Any fields do, as long as they are positive and rough.
fn made_up(i: usize, node: usize) -> f64 {
    1.0 + 0.3 * ((i + 1) as f64 * 1.7 + node as f64 * 2.3).sin()
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
    let field = |i: usize| Value::from((0..constraint.grid.len()).map(|node| made_up(i, node)).collect::<Vec<_>>());
    let tape = program.forward(&algebra, &(0..count).map(field).collect::<Vec<_>>());
    let largest_change = |direction: Value| {
        let mut directions = vec![None; constraint.fields.len()];
        directions[slot] = Some(direction);
        let change = program.tangent(&algebra, &tape, &directions);
        change.map_or(0.0, |change| change.numbers().iter().fold(0.0, |max: f64, v| max.max(v.abs())))
    };
    largest_change(Value::Number(1.0)) <= 1e-9 * largest_change(field(count))
}
