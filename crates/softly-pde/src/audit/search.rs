//! Smallest values of functions without derivatives, for a handful of unknowns.

/// The minimiser of `f` between `low` and `high` by golden sections.
pub(super) fn golden(mut low: f64, mut high: f64, steps: usize, mut f: impl FnMut(f64) -> f64) -> (f64, f64) {
    let ratio = (5.0_f64.sqrt() - 1.0) / 2.0;
    let (mut a, mut b) = (high - ratio * (high - low), low + ratio * (high - low));
    let (mut fa, mut fb) = (f(a), f(b));
    for _ in 0..steps {
        if fa < fb {
            (high, b, fb) = (b, a, fa);
            a = high - ratio * (high - low);
            fa = f(a);
        } else {
            (low, a, fa) = (a, b, fb);
            b = low + ratio * (high - low);
            fb = f(b);
        }
    }
    if fa < fb { (a, fa) } else { (b, fb) }
}

/// The minimiser of `f` near `start` by the simplex method of Nelder and Mead, with first steps of length `size`.
pub(super) fn simplex(start: &[f64], size: f64, steps: usize, mut f: impl FnMut(&[f64]) -> f64) -> (Vec<f64>, f64) {
    let n = start.len();
    let mut corners: Vec<(Vec<f64>, f64)> = Vec::with_capacity(n + 1);
    for k in 0..=n {
        let mut corner = start.to_vec();
        if k > 0 {
            corner[k - 1] += size;
        }
        let value = f(&corner);
        corners.push((corner, value));
    }
    for _ in 0..steps {
        corners.sort_by(|a, b| a.1.total_cmp(&b.1));
        let centre: Vec<f64> =
            (0..n).map(|i| corners[..n].iter().map(|(corner, _)| corner[i]).sum::<f64>() / n as f64).collect();
        let mut along = |worst: &[f64], factor: f64| {
            let corner: Vec<f64> = centre.iter().zip(worst).map(|(c, w)| c + factor * (w - c)).collect();
            let value = f(&corner);
            (corner, value)
        };
        let worst = corners[n].clone();
        let reflected = along(&worst.0, -1.0);
        let new = if reflected.1 < corners[0].1 {
            let further = along(&worst.0, -2.0);
            if further.1 < reflected.1 { further } else { reflected }
        } else if reflected.1 < corners[n - 1].1 {
            reflected
        } else {
            along(&worst.0, if reflected.1 < worst.1 { -0.5 } else { 0.5 })
        };
        if new.1 < worst.1 {
            corners[n] = new;
            continue;
        }
        // Nothing along this line: every corner moves half-way to the best one.
        let best = corners[0].0.clone();
        for corner in &mut corners[1..] {
            corner.0.iter_mut().zip(&best).for_each(|(c, b)| *c = f64::midpoint(*c, *b));
            corner.1 = f(&corner.0);
        }
    }
    corners.sort_by(|a, b| a.1.total_cmp(&b.1));
    corners.swap_remove(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minima_are_found() {
        let (x, value) = golden(-2.0, 5.0, 60, |x| (x - 1.25).powi(2) + 3.0);
        assert!((x - 1.25).abs() < 1e-6 && (value - 3.0).abs() < 1e-12);
        let valley = |p: &[f64]| (1.0 - p[0]).powi(2) + 100.0 * (p[1] - p[0] * p[0]).powi(2);
        let (p, value) = simplex(&[-1.2, 1.0], 0.5, 400, valley);
        assert!(value < 1e-10 && (p[0] - 1.0).abs() < 1e-4, "{p:?} {value}");
    }
}
