//! Fields of any size for networks that halve their grid: more nodes around a field, and their removal.

use burn::tensor::{DType, Device, Tensor};

use crate::tensors::constant;

/// How fields `[N, C, H, W]` are extended to sides that are multiples of a step.
///
/// Half of the new nodes lie before the first and half behind the last node. Along a periodic axis the field goes on where it
/// begins again. Along any other axis it is mirrored at its outermost nodes: a mirror image of noise is noise of the same
/// deviation from node to node, as the network knows it, whereas repeated end values would be stripes that no field has,
/// and zeros a jump.
pub(crate) struct Padding {
    /// Of rows and columns.
    axes: [AxisPadding; 2],
}

struct AxisPadding {
    nodes: usize,
    /// New nodes before the first.
    before: usize,
    /// The node of the field that each node of the extended field repeats; empty if there are no new ones.
    sources: Vec<i64>,
}

impl AxisPadding {
    fn new(nodes: usize, periodic: bool, step: usize) -> Self {
        let padded = nodes.next_multiple_of(step);
        let before = (padded - nodes) / 2;
        let source = |i: usize| {
            let place = i as i64 - before as i64;
            let count = nodes as i64;
            if periodic {
                return place.rem_euclid(count);
            }
            // Forth and back over all nodes: 0 1 2 3 2 1 | 0 1 …
            let place = place.rem_euclid((2 * (count - 1)).max(1));
            place.min(2 * (count - 1) - place)
        };
        let sources = if padded == nodes { Vec::new() } else { (0..padded).map(source).collect() };
        Self { nodes, before, sources }
    }

    fn padded(&self) -> usize {
        if self.sources.is_empty() { self.nodes } else { self.sources.len() }
    }

    fn pad(&self, x: Tensor<4>, dim: usize, device: &Device) -> Tensor<4> {
        if self.sources.is_empty() {
            return x;
        }
        let sources = self.sources.iter().map(|&source| source as f64).collect();
        x.select(dim, constant::<1>(sources, [self.sources.len()], device, DType::F32).int())
    }

    fn crop(&self, x: Tensor<4>, dim: usize) -> Tensor<4> {
        if self.sources.is_empty() { x } else { x.narrow(dim, self.before, self.nodes) }
    }
}

impl Padding {
    /// The extension of fields with the given `sides` to multiples of `step`.
    pub fn new(sides: [usize; 2], periodic: [bool; 2], step: usize) -> Self {
        Self { axes: [0, 1].map(|axis| AxisPadding::new(sides[axis], periodic[axis], step)) }
    }

    /// Rows and columns of an extended field.
    pub fn sides(&self) -> [usize; 2] {
        [self.axes[0].padded(), self.axes[1].padded()]
    }

    /// Fields `[N, C, H, W]` → extended ones.
    pub fn pad(&self, x: Tensor<4>) -> Tensor<4> {
        let device = x.device().without_autodiff();
        let [rows, cols] = &self.axes;
        cols.pad(rows.pad(x, 2, &device), 3, &device)
    }

    /// Extended fields → the part `[N, C, H, W]` that [`Padding::pad`] took.
    pub fn crop(&self, x: Tensor<4>) -> Tensor<4> {
        let [rows, cols] = &self.axes;
        cols.crop(rows.crop(x, 2), 3)
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::TensorData;

    use super::*;
    use crate::tensors::to_vec_f64;

    fn row(padding: &Padding, values: &[f64]) -> Vec<f64> {
        let x: Tensor<4> =
            Tensor::from_data(TensorData::new(values.to_vec(), [1, 1, 1, values.len()]), &Device::flex());
        let padded = padding.pad(x);
        assert_eq!(to_vec_f64(padding.crop(padded.clone())), values);
        to_vec_f64(padded)
    }

    #[test]
    fn ends_are_mirrored_and_periods_go_on() {
        let at = |nodes: usize, periodic: bool, step: usize| AxisPadding::new(nodes, periodic, step).sources;
        assert_eq!(at(5, false, 8), [1, 0, 1, 2, 3, 4, 3, 2]);
        assert_eq!(at(5, true, 8), [4, 0, 1, 2, 3, 4, 0, 1]);
        // More new nodes than old ones: to and fro.
        assert_eq!(at(3, false, 8), [2, 1, 0, 1, 2, 1, 0, 1]);
        assert_eq!(at(3, true, 8), [1, 2, 0, 1, 2, 0, 1, 2]);
        assert_eq!(at(1, false, 4), [0; 4]);
        assert!(at(8, false, 8).is_empty());
        let one_row = |periodic| Padding { axes: [AxisPadding::new(1, false, 1), AxisPadding::new(3, periodic, 4)] };
        assert_eq!(row(&one_row(false), &[1.0, 2.0, 4.0]), [1.0, 2.0, 4.0, 2.0]);
        assert_eq!(row(&one_row(true), &[1.0, 2.0, 4.0]), [1.0, 2.0, 4.0, 1.0]);
        assert_eq!(Padding::new([421, 101], [false, true], 8).sides(), [424, 104]);
    }
}
