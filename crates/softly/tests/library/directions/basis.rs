//! The bases of the directions: orthonormal, diagonal, and the spectrum of data in them.

use softly::{Basis, Family, data_spectrum};
use softly_pde::derivative::{Order, Scheme};
use softly_pde::grid::Axis;
use softly_pde::matrix::Matrix;

use crate::common::normals;
use crate::directions::dense_basis;

const FAMILIES: [Family; 5] =
    [Family::Cosine, Family::MirroredCosine, Family::Sine, Family::InnerSine, Family::Fourier];

/// a · b for row-major `[n, n]`.
fn product(a: &[f64], b: &[f64], n: usize) -> Vec<f64> {
    (0..n * n).map(|i| (0..n).map(|k| a[i / n * n + k] * b[k * n + i % n]).sum()).collect()
}

#[test]
fn analysis_inverts_synthesis_and_families_are_orthonormal() {
    for family in FAMILIES {
        for n in [4, 7, 12] {
            let (analysis, synthesis) = (family.analysis(n), family.synthesis(n));
            for (i, v) in product(&analysis, &synthesis, n).into_iter().enumerate() {
                let identity = if i / n == i % n { 1.0 } else { 0.0 };
                assert!((v - identity).abs() < 1e-12, "{family:?} {n}: {v}");
            }
            if family != Family::MirroredCosine {
                for (i, a) in analysis.iter().enumerate() {
                    assert!((a - synthesis[i % n * n + i / n]).abs() < 1e-12, "{family:?} {n} is not orthonormal");
                }
            }
        }
    }
    for family in [Family::Cosine, Family::Fourier] {
        assert_eq!(family.synthesis(1), [1.0], "{family:?} of a lone point");
    }
}

/// An axis made of cells, or periodic, or as it is.
type Kind = fn(Axis) -> Axis;

#[test]
fn families_diagonalise_the_second_derivative_of_their_scheme() {
    let (nodes, cells) = (std::convert::identity as Kind, Axis::cells as Kind);
    for (family, scheme, kind) in [
        (Family::MirroredCosine, Scheme::Mirror, nodes),
        (Family::Sine, Scheme::Zero, nodes),
        (Family::Cosine, Scheme::Mirror, cells),
        (Family::CellSine, Scheme::Zero, cells),
        (Family::InnerSine, Scheme::OneSided2, nodes),
        (Family::Fourier, Scheme::Periodic, Axis::periodic as Kind),
        (Family::Fourier, Scheme::Periodic4, Axis::periodic),
        (Family::Fourier, Scheme::Spectral, Axis::periodic),
    ] {
        for n in [8, 11] {
            let derivative = Matrix::derivative(scheme, Order::Second, &kind(Axis::new("x", n, 0.0, n as f64))).dense();
            let in_basis = product(&product(&family.analysis(n), &derivative, n), &family.synthesis(n), n);
            // The inner sines stand for inner nodes only.
            let inner = if family == Family::InnerSine { n - 2 } else { n };
            for (i, v) in in_basis.iter().enumerate() {
                let (row, col) = (i / n, i % n);
                if row < inner && col < inner && row != col {
                    assert!(v.abs() < 1e-11, "{family:?} of {scheme:?}, {n} nodes: {v} at {row}, {col}");
                }
            }
        }
    }
}

#[test]
fn the_spectrum_is_the_variance_of_every_coefficient() {
    let families = [Family::Cosine, Family::InnerSine];
    let basis = Basis::new(families.iter().map(|&family| [family; 2]).collect(), 6, 5);
    // Two samples mean ± deviation have exactly that deviation; one coefficient of each channel never varies.
    let deviations: Vec<f64> = (0..60).map(|i| if i % 30 == 7 { 0.0 } else { 0.1 + 0.05 * f64::from(i) }).collect();
    let means = normals(3, 0, 60);
    let mut values = Vec::new();
    for sign in [1.0, -1.0] {
        for (c, &family) in families.iter().enumerate() {
            let functions = dense_basis([family; 2], 6, 5);
            values.extend((0..30).map(|node| {
                let coefficient = |k: usize| means[c * 30 + k] + sign * deviations[c * 30 + k];
                (0..30).map(|k| coefficient(k) * functions[k][node]).sum::<f64>() as f32
            }));
        }
    }
    let spectrum = data_spectrum(values.chunks_exact(60).map(<[f32]>::to_vec), &basis);
    assert_eq!(spectrum.len(), 60);
    for (s, d) in spectrum.iter().zip(&deviations) {
        assert!(*s > 0.0);
        assert!((f64::from(*s) - d * d).abs() < 1e-5 * (1.0 + d * d), "{s} against {}", d * d);
    }
}
