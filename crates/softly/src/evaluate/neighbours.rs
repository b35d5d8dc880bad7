//! Nearest neighbours: how far samples are from the data they might be copies of.

use std::borrow::Cow;

use rayon::prelude::*;
use softly_kernels::matmul::{MatmulShape, matmul_nt};

use crate::error::Result;
use crate::units::Units;

/// Candidates that are compared with all points at a time.
const BLOCK: usize = 256;

/// Squared distances from products in single precision are off by less than this fraction of the squared lengths.
const SLACK: f64 = 1e-5;

/// The nearest of some candidates.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Nearest {
    /// Root of the mean square difference, in normalised units; infinite without candidates.
    pub distance: f64,
    /// Which candidate it is.
    pub index: usize,
}

/// For each of `points` `[N, C, H, W]` the nearest of `candidates`, which come in pieces `[M, C, H, W]`, `[N]`; both are physical,
/// with `nodes` = H · W.
///
/// A matrix product per block, `|a − b|² = |a|² + |b|² − 2 a·b`, tells which candidates can be nearest at all; those
/// are compared in double precision, so that a copy has distance 0.
pub fn nearest<'a>(
    points: &[f32],
    candidates: impl IntoIterator<Item = Result<Cow<'a, [f32]>>>,
    nodes: usize,
    units: &Units,
) -> Result<Vec<Nearest>> {
    let length = nodes * units.mean.len();
    let n = points.len() / length;
    let points = units.normalised_numbers(points.to_vec(), nodes);
    let squares: Vec<f64> = points.par_chunks_exact(length).map(square).collect();
    // Squared distances for now.
    let mut best = vec![Nearest { distance: f64::INFINITY, index: 0 }; n];
    let mut products = vec![0.0; n * BLOCK];
    let mut start = 0;
    let mut compare = |block: &[f32]| {
        let block = units.normalised_numbers(block.to_vec(), nodes);
        let block_squares: Vec<f64> = block.par_chunks_exact(length).map(square).collect();
        let count = block_squares.len();
        let products = &mut products[..n * count];
        matmul_nt(MatmulShape { m: n, n: count, k: length }, &points, &block, products, false);
        best.par_iter_mut().zip(products.par_chunks_exact(count)).enumerate().for_each(|(i, (best, row))| {
            let rough = |j: usize| squares[i] + block_squares[j] - 2.0 * f64::from(row[j]);
            let slack = |j: usize| SLACK * (squares[i] + block_squares[j]);
            let nearest = (0..count).map(|j| rough(j) + slack(j)).fold(best.distance, f64::min);
            for j in (0..count).filter(|&j| rough(j) - slack(j) <= nearest) {
                let pairs = points[i * length..].iter().zip(&block[j * length..(j + 1) * length]);
                let distance: f64 = pairs.map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)).sum();
                if distance < best.distance {
                    *best = Nearest { distance, index: start + j };
                }
            }
        });
        start += count;
    };
    for piece in candidates {
        piece?.chunks(BLOCK * length).for_each(&mut compare);
    }
    let root = |best: Nearest| Nearest { distance: (best.distance / length as f64).sqrt(), ..best };
    Ok(best.into_iter().map(root).collect())
}

fn square(values: &[f32]) -> f64 {
    values.iter().map(|v| f64::from(*v).powi(2)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Purpose, Stream};

    fn normals(n: usize, index: u64) -> Vec<f32> {
        Stream::new(1, Purpose::Metric, index).normals(n).iter().map(|&v| v as f32).collect()
    }

    #[test]
    fn agrees_with_all_pairs() {
        let (nodes, n, m) = (5, 7, 600);
        let units = Units { mean: vec![100.0, -3.0], scale: vec![2.0, 0.1] };
        let (mut points, candidates) = (normals(10 * n, 0), normals(10 * m, 1));
        // Exact copies among the points, in the first and in a later block.
        points[20..30].copy_from_slice(&candidates[30..40]);
        points[50..60].copy_from_slice(&candidates[5550..5560]);
        // In two pieces, the first of which is no multiple of a block.
        let pieces = || candidates.chunks(10 * 400).map(|piece| Ok(piece.into()));
        let which = nearest(&points, pieces(), nodes, &units).unwrap();
        assert_eq!((which[2].index, which[5].index), (3, 555));
        let found: Vec<f64> = which.iter().map(|nearest| nearest.distance).collect();
        assert_eq!((found[2], found[5]), (0.0, 0.0));
        for (a, found) in points.chunks_exact(10).zip(found) {
            let distance = |b: &[f32]| {
                let gap = |i: usize| (f64::from(a[i]) - f64::from(b[i])) / units.scale[i / nodes];
                ((0..10).map(|i| gap(i).powi(2)).sum::<f64>() / 10.0).sqrt()
            };
            let expected = candidates.chunks_exact(10).map(distance).fold(f64::INFINITY, f64::min);
            // Normalised numbers are rounded to single precision, which the offset of 100 makes felt.
            assert!((found - expected).abs() < 1e-5 * (1.0 + expected), "{found} instead of {expected}");
        }
        assert_eq!(nearest(&points[..10], [], nodes, &units).unwrap()[0].distance, f64::INFINITY);
    }
}
