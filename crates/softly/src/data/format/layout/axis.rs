//! Axes as files describe them.

/// The coordinates that a file has along an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coordinates {
    /// None: the domain is an assumption.
    None,
    /// Evenly spaced ones.
    Even,
    /// Unevenly spaced ones, which no grid of softly has.
    Uneven,
}

/// An axis and the domain along it.
#[derive(Debug, Clone, PartialEq)]
pub struct AxisGuess {
    /// Name.
    pub name: String,
    /// Number of nodes or cells.
    pub nodes: usize,
    /// First end of the domain.
    pub first: f64,
    /// Last end of the domain.
    pub last: f64,
    /// Whether the last end is the first one again.
    pub periodic: bool,
    /// Whether numbers sit in the middle of cells; on nodes otherwise.
    pub cells: bool,
    /// Whether the file has coordinates, and which.
    pub coordinates: Coordinates,
    /// Where the numbers come from.
    pub from: String,
}

impl AxisGuess {
    /// An axis of known ends.
    pub fn new(name: &str, nodes: usize, ends: [f64; 2], from: impl Into<String>) -> Self {
        let [first, last] = ends;
        let (name, from) = (name.into(), from.into());
        Self { name, nodes, first, last, periodic: false, cells: false, coordinates: Coordinates::None, from }
    }

    /// The axis through coordinates c_0 … c_{n−1} of spacing h. The domain of cells is [c_0 − h/2, c_{n−1} + h/2], of
    /// periodic nodes [c_0, c_{n−1} + h], of other nodes [c_0, c_{n−1}]. An axis without coordinates has no domain.
    pub fn through(name: &str, coordinates: &[f64], periodic: bool, cells: bool, from: impl Into<String>) -> Self {
        let nodes = coordinates.len();
        let [Some(&c0), Some(&c1)] = [coordinates.first(), coordinates.last()] else {
            return Self::new(name, 0, [0.0, 0.0], from);
        };
        let h = spacing(coordinates);
        let scale = c0.abs().max(c1.abs());
        let even = h != 0.0
            && coordinates.iter().enumerate().all(|(i, c)| {
                (c - (c0 + i as f64 * h)).abs() <= 1e-3 * h.abs() + 4.0 * f64::from(f32::EPSILON) * scale
            });
        let (first, last) = match (cells, periodic) {
            (true, _) => (c0 - h / 2.0, c1 + h / 2.0),
            (false, true) => (c0, c1 + h),
            (false, false) => (c0, c1),
        };
        let extent = (last - first).abs();
        let ends = [round(first, extent), round(last, extent)];
        let coordinates = if even { Coordinates::Even } else { Coordinates::Uneven };
        Self { periodic, cells, coordinates, ..Self::new(name, nodes, ends, from) }
    }

    /// The coordinate of entry `i`.
    pub fn coordinate(&self, i: f64) -> f64 {
        let extent = self.last - self.first;
        let n = self.nodes as f64;
        match (self.cells, self.periodic) {
            (true, _) => self.first + (i + 0.5) * extent / n,
            (false, true) => self.first + i * extent / n,
            (false, false) => self.first + i * extent / (n - 1.0).max(1.0),
        }
    }
}

/// The mean distance of neighbours; zero for a single coordinate.
pub fn spacing(coordinates: &[f64]) -> f64 {
    let n = coordinates.len();
    if n < 2 { 0.0 } else { (coordinates[n - 1] - coordinates[0]) / (n - 1) as f64 }
}

/// Whether coordinates are the middles of cells of a domain that begins at zero.
pub fn begins_half_a_cell_from_zero(coordinates: &[f64]) -> bool {
    let h = spacing(coordinates);
    h > 0.0 && (coordinates[0] - h / 2.0).abs() < 1e-3 * h
}

/// The number of few digits that single precision may have meant; `value` itself if there is none.
fn round(value: f64, extent: f64) -> f64 {
    if extent == 0.0 || !extent.is_finite() {
        return value;
    }
    let digits = 3 - extent.log10().floor() as i32;
    let power = 10f64.powi(digits.abs());
    let rounded = if digits >= 0 { (value * power).round() / power } else { (value / power).round() * power };
    // Adding zero makes −0 a 0.
    if (value - rounded).abs() <= 2e-6 * extent { rounded + 0.0 } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn domains_follow_from_coordinates() {
        let centres: Vec<f64> = (0..8).map(|i| f64::from((i as f32 + 0.5) / 8.0)).collect();
        let axis = AxisGuess::through("x", &centres, false, true, "");
        assert_eq!((axis.first, axis.last, axis.coordinates), (0.0, 1.0, Coordinates::Even));
        let nodes: Vec<f64> = (0..8).map(|i| f64::from(i) * std::f64::consts::TAU / 8.0).collect();
        let axis = AxisGuess::through("x", &nodes, true, false, "");
        assert!((axis.last - std::f64::consts::TAU).abs() < 1e-14 && axis.first == 0.0);
        assert!((axis.coordinate(3.0) - nodes[3]).abs() < 1e-14);
        let axis = AxisGuess::through("t", &[0.5, 1.0, 1.5], false, false, "");
        assert_eq!((axis.first, axis.last, axis.coordinate(1.0)), (0.5, 1.5, 1.0));
        let coordinates = |c: &[f64]| AxisGuess::through("t", c, false, false, "").coordinates;
        assert_eq!(coordinates(&[1.0, 2.0, 4.0]), Coordinates::Uneven);
        assert_eq!(coordinates(&[1.0, 1.0]), Coordinates::Uneven, "no extent");
        assert_eq!(AxisGuess::through("x", &[], true, true, "").nodes, 0);
    }
}
