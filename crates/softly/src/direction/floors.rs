//! Values that fields are kept above before an equation is solved: a permeability has to be positive.

use burn::tensor::{Tensor, activation};

use crate::constraint::tensor_algebra::TensorValue;
use crate::direction::Site;
use crate::direction::equation::slot_of;
use crate::error::{Error, Result};

/// Floors of fields that are not solved for, by slot.
pub(crate) struct Floors(Vec<(usize, f64)>);

impl Floors {
    /// The floors of all fields but the solved ones, `unknowns` by slot: the configured ones, or the floors of the data.
    pub fn of(site: Site<'_>, unknowns: &[usize]) -> Result<Self> {
        let solved = |field: &String| unknowns.iter().any(|&slot| site.formulas.fields[slot] == *field);
        let of_data = || {
            let others = site.formulas.fields.iter().filter(|field| !solved(field));
            others.filter_map(|field| Some((field.clone(), *site.floors.get(field)?))).collect()
        };
        let floors = site.settings.newton.floor.clone().unwrap_or_else(of_data);
        let floor = |(name, floor): (&String, &f64)| {
            if !(floor.is_finite() && *floor > 0.0) {
                let problem = format!("expected a positive number for `{name}`, found {floor}");
                return Err(Error::input("denoiser.scd.newton.floor", problem));
            }
            Ok((slot_of(site.formulas, "newton.floor", name)?, *floor))
        };
        Ok(Self(floors.iter().map(floor).collect::<Result<_>>()?))
    }

    /// Lifts physical fields `[N, H, W]`, by slot.
    pub fn lift(&self, fields: &mut [TensorValue]) {
        for &(slot, floor) in &self.0 {
            if let TensorValue::Tensor(field) = &fields[slot] {
                fields[slot] = TensorValue::Tensor(smoothly_above(field.clone(), floor));
            }
        }
    }
}

/// floor + τ ln(1 + e^{(x − floor)/τ}) with τ = floor/4: at least the floor, and x itself from twice the floor on (to 1 %).
fn smoothly_above(x: Tensor<3>, floor: f64) -> Tensor<3> {
    let softness = 0.25 * floor;
    let above = x - floor;
    // The exponent is never positive, so nothing overflows.
    activation::relu(above.clone()) + (above.abs() / -softness).exp().log1p() * softness + floor
}
