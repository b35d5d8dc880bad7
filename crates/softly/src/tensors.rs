//! Tensors from numbers and numbers from tensors.

use burn::tensor::{DType, Device, Tensor, TensorData};
use softly_pde::grid::Grid;

use crate::device::state_dtype;

/// A batch of fields `[N, C, H, W]` in the device's best precision from row-major values.
pub fn field_batch(values: Vec<f64>, [c, h, w]: [usize; 3], device: &Device) -> Tensor<4> {
    let n = values.len() / (c * h * w);
    Tensor::from_data(TensorData::new(values, [n, c, h, w]), (device, state_dtype(device)))
}

/// One number per sample as `[N, 1, 1, 1]`, a constant of the same type and device as `like`.
pub fn per_sample(values: impl Iterator<Item = f64>, like: &Tensor<4>) -> Tensor<4> {
    let values: Vec<f64> = values.collect();
    let n = values.len();
    let device = like.device().without_autodiff();
    Tensor::from_data(TensorData::new(values, [n, 1, 1, 1]), (&device, like.dtype()))
}

/// `x` in numbers of the type `dtype`.
pub(crate) fn in_type<const D: usize>(x: &Tensor<D>, dtype: DType) -> Tensor<D> {
    if x.dtype() == dtype { x.clone() } else { x.clone().cast(dtype) }
}

/// One number per node as a tensor `[1, H, W]` of the type and device of `like`.
pub(crate) fn per_node(values: Vec<f64>, grid: &Grid, like: &Tensor<4>) -> Tensor<3> {
    let options = (&like.device().without_autodiff(), like.dtype());
    Tensor::from_data(TensorData::new(values, [1, grid.rows(), grid.cols()]), options)
}

/// The row-major values of a tensor as `f32`.
pub fn to_vec_f32<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().convert::<f32>().try_into_vec().expect("converted to f32")
}

/// The row-major values of a tensor as `f64`.
pub fn to_vec_f64<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    tensor.into_data().convert::<f64>().try_into_vec().expect("converted to f64")
}
