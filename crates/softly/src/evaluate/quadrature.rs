//! Integrals of functions that are known at nodes only.

/// Second divided difference g[a, b, c]: half the curvature of the parabola through three points (node, value).
pub fn divided_difference(a: (f64, f64), b: (f64, f64), c: (f64, f64)) -> f64 {
    let slope = |p: (f64, f64), q: (f64, f64)| (q.1 - p.1) / (q.0 - p.0);
    (slope(b, c) - slope(a, b)) / (c.0 - a.0)
}

/// ∫ g du over ascending `nodes` `[n]` with the `values` `[n]` there.
///
/// On every panel the trapezium less H³/6 times the mean of the neighbouring second divided differences, that is the
/// mean of the parabolas to its left and right: exact for parabolas, and for cubics on even nodes but for the ends.
pub fn integrate(nodes: &[f64], values: &[f64]) -> f64 {
    let at = |i: usize| (nodes[i], values[i]);
    let last = nodes.len().saturating_sub(1);
    let panel = |i: usize| {
        let width = nodes[i + 1] - nodes[i];
        let left = (i > 0).then(|| divided_difference(at(i - 1), at(i), at(i + 1)));
        let right = (i + 1 < last).then(|| divided_difference(at(i), at(i + 1), at(i + 2)));
        let bend = match (left, right) {
            (Some(left), Some(right)) => 0.5 * (left + right),
            (left, right) => left.or(right).unwrap_or(0.0),
        };
        width * 0.5 * (values[i] + values[i + 1]) - width.powi(3) / 6.0 * bend
    };
    (0..last).map(panel).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parabolas_are_integrated_exactly_on_uneven_nodes() {
        let nodes = [-1.0, -0.7, 0.1, 0.2, 1.5, 2.0];
        let values = nodes.map(|u: f64| 3.0 * u * u - 2.0 * u + 5.0);
        let primitive = |u: f64| u.powi(3) - u * u + 5.0 * u;
        assert!((integrate(&nodes, &values) - (primitive(2.0) - primitive(-1.0))).abs() < 1e-12);
        // Two nodes: the trapezium; one: nothing.
        assert_eq!(integrate(&nodes[..2], &values[..2]), 0.5 * (values[0] + values[1]) * (nodes[1] - nodes[0]));
        assert_eq!(integrate(&nodes[..1], &values[..1]), 0.0);
    }

    #[test]
    fn the_error_falls_with_the_fourth_power_of_the_spacing() {
        let error = |n: usize| {
            let nodes: Vec<f64> = (0..=n).map(|i| 2.0 * i as f64 / n as f64).collect();
            let values: Vec<f64> = nodes.iter().map(|u| u.exp()).collect();
            (integrate(&nodes, &values) - (2f64.exp() - 1.0)).abs()
        };
        let order = (error(20) / error(40)).log2();
        assert!((order - 4.0).abs() < 0.3, "order {order}");
    }
}
