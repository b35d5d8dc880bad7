//! Where something is measured: a point between nodes, a stretch of an axis, or all of it.

use softly_pde::grid::{Axis, Grid, Placement};

/// The part of an axis that a measurement is of.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Extent {
    /// The value at a coordinate, linear between nodes.
    Point(f64),
    /// The mean from one coordinate to another.
    Range(f64, f64),
    /// The mean over the whole axis.
    Whole,
}

impl Extent {
    /// Reads a coordinate, a range `a:b`, or nothing (or `*`) for the whole axis.
    pub fn parse(text: &str) -> Result<Self, String> {
        let number = |text: &str| {
            let number = text.trim().parse::<f64>().ok().filter(|v| v.is_finite());
            number.ok_or_else(|| format!("expected a coordinate, a range a:b or nothing, found `{text}`"))
        };
        match text.trim() {
            "" | "*" => Ok(Self::Whole),
            text => match text.split_once(':') {
                Some((first, last)) => Ok(Self::Range(number(first)?, number(last)?)),
                None => Ok(Self::Point(number(text)?)),
            },
        }
    }

    /// The weights of the points of `axis`, which sum to 1.
    fn weights(self, axis: &Axis) -> Result<Vec<(usize, f64)>, String> {
        let slack = 1e-9 * axis.length();
        let inside = |c: f64| (axis.first - slack..=axis.last + slack).contains(&c);
        let outside = |c: f64| {
            Err(format!("{} = {c} is outside of the domain, which is {} to {}", axis.name, axis.first, axis.last))
        };
        match self {
            Self::Point(c) if !inside(c) => outside(c),
            Self::Point(c) => Ok(between_points(axis, c)),
            Self::Whole => Ok(axis.weights().into_iter().enumerate().collect()),
            Self::Range(a, b) if !inside(a) || !inside(b) => outside(if inside(a) { b } else { a }),
            Self::Range(a, b) => {
                let within = |i: &usize| (a - slack..=b + slack).contains(&axis.coordinate(*i));
                // The end of a periodic axis is its first node again.
                let count = axis.nodes + usize::from(axis.periodic && axis.placement == Placement::Nodes);
                let chosen: Vec<usize> = (0..count).filter(within).collect();
                let [Some(&first), Some(&last)] = [chosen.first(), chosen.last()] else {
                    return Err(format!("no node lies in {} = {a}:{b}", axis.name));
                };
                // The trapezoid rule between nodes; cells count whole.
                let half = |i: usize| axis.placement == Placement::Nodes && first != last && (i == first || i == last);
                let weight = |i: usize| if half(i) { 0.5 } else { 1.0 };
                let sum: f64 = chosen.iter().map(|&i| weight(i)).sum();
                Ok(chosen.into_iter().map(|i| (i % axis.nodes, weight(i) / sum)).collect())
            }
        }
    }
}

/// The two points around the coordinate `c` with the weights of linear interpolation; beyond the outermost cells' centres the
/// outermost value holds.
fn between_points(axis: &Axis, c: f64) -> Vec<(usize, f64)> {
    let n = axis.nodes;
    let place = (c - axis.coordinate(0)) / axis.spacing();
    let place = if axis.periodic { place.rem_euclid(n as f64) } else { place.clamp(0.0, (n - 1) as f64) };
    // Rounding must not make two neighbours of a node.
    let place = if (place - place.round()).abs() < 1e-9 { place.round() } else { place };
    let (low, share) = (place.floor() as usize % n, place.fract());
    let high = if axis.periodic { (low + 1) % n } else { (low + 1).min(n - 1) };
    if share == 0.0 { vec![(low, 1.0)] } else { vec![(low, 1.0 - share), (high, share)] }
}

/// The nodes of `grid` that a measurement is of, with weights that sum to 1; a lone point has one node.
pub fn nodes(place: &[Extent], grid: &Grid) -> Result<Vec<(usize, f64)>, String> {
    let [rows, cols] = match (place, &grid.axes[..]) {
        ([x, y], [first, second]) => [x.weights(first)?, y.weights(second)?],
        _ => return Ok(vec![(0, 1.0)]),
    };
    let width = grid.cols();
    Ok(rows.iter().flat_map(|(i, a)| cols.iter().map(move |(j, b)| (i * width + j, a * b))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(place: [Extent; 2], grid: &Grid, field: impl Fn(f64, f64) -> f64) -> f64 {
        let (rows, cols) = (&grid.axes[0], &grid.axes[1]);
        let value = |(node, weight): (usize, f64)| {
            weight * field(rows.coordinate(node / grid.cols()), cols.coordinate(node % grid.cols()))
        };
        nodes(&place, grid).unwrap().into_iter().map(value).sum()
    }

    #[test]
    fn bilinear_fields_are_met_exactly_and_means_are_trapezoids() {
        let grid = Grid { axes: vec![Axis::new("x", 5, 0.0, 2.0), Axis::new("y", 4, -1.0, 1.0)] };
        let field = |x: f64, y: f64| 1.0 + 2.0 * x - y + 0.5 * x * y;
        for (x, y) in [(0.0, -1.0), (0.3, 0.1), (1.99, 0.99), (2.0, 1.0), (0.5, 1.0 / 3.0)] {
            assert!((at([Extent::Point(x), Extent::Point(y)], &grid, field) - field(x, y)).abs() < 1e-12);
        }
        let mean = at([Extent::Range(0.5, 1.5), Extent::Whole], &grid, field);
        assert!((mean - field(1.0, 0.0)).abs() < 1e-12, "{mean}");
        let to_the_end = at([Extent::Range(1.0, 2.0), Extent::Point(0.5)], &grid, field);
        assert!((to_the_end - field(1.5, 0.5)).abs() < 1e-12, "{to_the_end}");
    }

    #[test]
    fn periodic_axes_go_round_and_cells_hold_their_outermost_value() {
        let periodic = Axis::new("x", 4, 0.0, 1.0).periodic();
        assert_eq!(between_points(&periodic, 0.875), [(3, 0.5), (0, 0.5)]);
        assert_eq!(between_points(&periodic, 1.0), [(0, 1.0)]);
        let mean = |extent: Extent| -> f64 {
            let weights = extent.weights(&periodic).unwrap();
            weights.into_iter().map(|(i, weight)| weight * [0.0, 1.0, 5.0, 2.0][i]).sum()
        };
        // Up to the end, where the first node's 0 stands again.
        assert_eq!(mean(Extent::Range(0.0, 1.0)), mean(Extent::Whole));
        assert_eq!(mean(Extent::Range(0.5, 1.0)), 0.5 * (0.5 * 5.0 + 2.0));
        let cells = Axis::new("x", 4, 0.0, 1.0).cells();
        assert_eq!(between_points(&cells, 0.05), [(0, 1.0)]);
        assert_eq!(between_points(&cells, 0.25), [(0, 0.5), (1, 0.5)]);
    }

    #[test]
    fn places_outside_of_the_domain_are_refused() {
        let grid = Grid::unit(4, 4);
        for (place, part) in [
            ([Extent::Point(1.2), Extent::Point(0.0)], "x = 1.2 is outside of the domain, which is 0 to 1"),
            ([Extent::Whole, Extent::Range(0.5, 3.0)], "y = 3 is outside"),
            ([Extent::Range(0.4, 0.5), Extent::Whole], "no node lies in x = 0.4:0.5"),
        ] {
            let said = nodes(&place, &grid).unwrap_err();
            assert!(said.contains(part), "{said}");
        }
        assert!(Extent::parse("left").unwrap_err().contains("`left`"));
        assert_eq!(Extent::parse(" 0.2:0.4 "), Ok(Extent::Range(0.2, 0.4)));
        assert_eq!(Extent::parse("*"), Ok(Extent::Whole));
    }
}
