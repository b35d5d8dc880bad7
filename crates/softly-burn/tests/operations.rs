//! Tensor operations in the forms in which constraints and directions use them: a GPU back end computes what the CPU computes.
#![cfg(feature = "wgpu")]

use burn_tensor::{DType, Device, DeviceKind, Tensor, TensorData, activation};

/// Numbers between −2 and 2 without a pattern, `[…]`.
fn numbers<const D: usize>(seed: u64, shape: [usize; D], device: &Device) -> Tensor<D> {
    let mut state = seed.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 51) as f64 - 2.0
    };
    let values: Vec<f64> = (0..shape.iter().product()).map(|_| next()).collect();
    Tensor::from_data(TensorData::new(values, shape), (device, DType::F32))
}

/// The values of every operation on n fields of m × m nodes, with its name.
fn operations(d: &Device, n: usize, m: usize) -> Vec<(&'static str, Vec<f64>)> {
    let x = || numbers(0, [n, 2, m, m], d);
    // A channel of a batch is a view with holes.
    let field = |channel: usize| x().narrow(1, channel, 1).reshape([n, m, m]);
    let matrix = || numbers(1, [1, m, m], d);
    let matrices = || numbers(2, [1, 2, m, m], d);
    let number = || numbers(3, [1, 1, 1], d);
    let column = |seed: u64, size: usize| numbers(seed, [n, size], d);
    let size = || numbers(4, [n, 2, 1, 1], d);
    let flat = |x: Tensor<4>| x.reshape([n, 2 * m * m]);
    vec![
        ("derivatives along rows", flat3(matrix().matmul(field(1)))),
        ("derivatives along columns", flat3(field(1).matmul(matrix()))),
        ("second derivatives", flat3(matrix().matmul(matrix().matmul(field(1) * 2.0)))),
        ("derivatives of one field for all", flat3(matrix().matmul(matrix().expand([n, m, m])))),
        ("derivatives of a number", flat3(number().expand([n, m, m]).matmul(matrix()))),
        ("transforms", flat4(matrices().matmul(x()).matmul(matrices().swap_dims(2, 3)))),
        ("measurements between levels", flat2(column(5, 16).matmul(numbers(6, [16, 2 * m * m], d)))),
        ("first layer of γ", flat2(activation::silu(column(5, 11).matmul(numbers(6, [100, 11], d).transpose())))),
        ("last layer of γ", flat2(column(5, 100).matmul(numbers(6, [2, 100], d).transpose()))),
        ("features side by side", flat2(Tensor::cat(vec![column(5, 1), column(6, 1), column(7, 8)], 1))),
        ("γ of a channel", flat4(x() + column(5, 8).narrow(1, 2, 2).reshape([n, 2, 1, 1]) * x())),
        ("sum of squares", flat2(flat(x() * x()).sum_dim(1))),
        ("mean of a channel", flat4((x() * x()).reshape([n, 2, m * m]).mean_dim(2).reshape([n, 2, 1, 1]))),
        ("local steps", flat4(x().abs().max_pair((size().abs() * 1e-3).clamp_min(1e-20)).recip())),
        ("powers", flat4(x().powf_scalar(3.0) + x().powi_scalar(2) + x().abs().powf_scalar(0.5))),
        ("signs", flat4(x().sign() + x().greater_equal_elem(0.0).float().cast(DType::F32) * 0.5)),
        ("functions", flat4(x().exp() + x().abs().log() + x().sin() * x().cos() + x().tanh())),
        ("channels side by side", flat3(Tensor::cat(vec![field(1), field(0)], 1))),
        ("fields times a field", flat3(numbers(8, [1, m, m], d) * field(1))),
        ("a field for all samples", flat3(numbers(8, [1, m, m], d).expand([n, m, m]) + 1.0)),
    ]
}

fn flat2(x: Tensor<2>) -> Vec<f64> {
    x.into_data().convert::<f64>().try_into_vec().unwrap()
}

fn flat3(x: Tensor<3>) -> Vec<f64> {
    let [a, b, c] = x.dims();
    flat2(x.reshape([a, b * c]))
}

fn flat4(x: Tensor<4>) -> Vec<f64> {
    let [a, b, c, d] = x.dims();
    flat2(x.reshape([a, b * c * d]))
}

#[test]
fn operations_of_constraints_agree_with_the_cpu() {
    let device = Device::wgpu(DeviceKind::DefaultDevice);
    for (n, m) in [(4, 16), (3, 9)] {
        for ((name, found), (_, expected)) in operations(&device, n, m).iter().zip(operations(&Device::flex(), n, m)) {
            let largest = expected.iter().fold(0.0f64, |largest, v| largest.max(v.abs()));
            let close = found.iter().zip(&expected).all(|(a, b)| (a - b).abs() <= 1e-5 * largest);
            assert!(found.len() == expected.len() && close, "{name}, {n} fields of {m}×{m} nodes");
        }
    }
}
