//! Fixed linear maps of fields as single operations of the autodiff graph: CPU kernels forth and back.

use std::fmt::Debug;
use std::sync::Arc;

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, Flex, TensorMetadata, backend_extension};
use burn::tensor::{DType, Tensor, TensorData};
use burn_flex::FlexTensor;
use softly_kernels::axis::{BothAxes, Sparse};

use crate::nn::ops::{fused, record, values};

/// A linear map y = A x between arrays of the same shape, any number of samples one after the other.
pub(crate) trait LinearMap: Debug + Send + Sync {
    /// y = A x, of the type and shape of `x`.
    fn forth(&self, x: &FlexTensor) -> FlexTensor;
    /// x = Aᵀ y.
    fn back(&self, y: &FlexTensor) -> FlexTensor;
}

/// A x for a tensor `[N, …]` by a kernel; `None` on devices that have no kernels of ours.
pub(crate) fn mapped<const D: usize>(x: &Tensor<D>, map: &Arc<dyn LinearMap>) -> Option<Tensor<D>> {
    let kernel = fused(x) && matches!(x.dtype(), DType::F32 | DType::F64);
    kernel.then(|| Tensor::from_dispatch(<Dispatch as Maps>::linear_map(x.clone().into_dispatch(), map.clone())))
}

/// Matrices in both precisions: those of a network and of a sampler's state.
#[derive(Debug)]
struct Both<A, B> {
    single: A,
    double: B,
}

/// A sparse matrix along the rows' axis of fields `[N, H, W]`, or along the columns'.
#[derive(Debug)]
pub(crate) struct AlongAxis {
    matrix: Both<Sparse<f32>, Sparse<f64>>,
    transposed: Both<Sparse<f32>, Sparse<f64>>,
    /// W along the rows' axis.
    width: Option<usize>,
}

impl AlongAxis {
    /// The matrix with the given `(column, value)` entries by row along the columns' axis, or along the rows' axis of fields
    /// of `width` columns.
    pub fn new(rows: Vec<Vec<(usize, f64)>>, width: Option<usize>) -> Self {
        let single = rows.iter().map(|row| row.iter().map(|&(j, v)| (j, v as f32)).collect()).collect();
        let matrix = Both { single: Sparse::new(single), double: Sparse::new(rows) };
        let transposed = Both { single: matrix.single.transposed(), double: matrix.double.transposed() };
        Self { matrix, transposed, width }
    }

    fn apply(&self, matrix: &Both<Sparse<f32>, Sparse<f64>>, x: &FlexTensor) -> FlexTensor {
        match self.width {
            Some(width) => filled(x, |x, y| matrix.single.down(width, x, y), |x, y| matrix.double.down(width, x, y)),
            None => filled(x, |x, y| matrix.single.across(x, y), |x, y| matrix.double.across(x, y)),
        }
    }
}

impl LinearMap for AlongAxis {
    fn forth(&self, x: &FlexTensor) -> FlexTensor {
        self.apply(&self.matrix, x)
    }

    fn back(&self, y: &FlexTensor) -> FlexTensor {
        self.apply(&self.transposed, y)
    }
}

/// Matrices along both axes of fields `[N, C, H, W]`.
#[derive(Debug)]
pub(crate) struct AlongBoth {
    matrices: Both<BothAxes<f32>, BothAxes<f64>>,
    transposed: Both<BothAxes<f32>, BothAxes<f64>>,
}

impl AlongBoth {
    /// x ↦ L x R of every channel: `shape` is `[C, H, W]`, `left` `[C, H, H]` and `right` `[C, W, W]`.
    pub fn new(shape: [usize; 3], left: Vec<f64>, right: Vec<f64>) -> Self {
        let single = |matrices: &[f64]| matrices.iter().map(|&v| v as f32).collect();
        let single = BothAxes { shape, left: single(&left), right: single(&right) };
        let matrices = Both { single, double: BothAxes { shape, left, right } };
        let transposed = Both { single: matrices.single.transposed(), double: matrices.double.transposed() };
        Self { matrices, transposed }
    }
}

impl LinearMap for AlongBoth {
    fn forth(&self, x: &FlexTensor) -> FlexTensor {
        filled(x, |x, y| self.matrices.single.apply(x, y), |x, y| self.matrices.double.apply(x, y))
    }

    fn back(&self, y: &FlexTensor) -> FlexTensor {
        filled(y, |y, x| self.transposed.single.apply(y, x), |y, x| self.transposed.double.apply(y, x))
    }
}

/// The operation as a back end sees it.
#[backend_extension(Flex, Autodiff)]
pub(crate) trait Maps: Backend {
    /// See [`mapped`].
    fn linear_map(x: FloatTensor<Self>, map: Arc<dyn LinearMap>) -> FloatTensor<Self>;
}

impl Maps for Flex {
    fn linear_map(x: FlexTensor, map: Arc<dyn LinearMap>) -> FlexTensor {
        map.forth(&x.to_contiguous())
    }
}

impl<C: CheckpointStrategy> Maps for Autodiff<Flex, C> {
    fn linear_map(x: FloatTensor<Self>, map: Arc<dyn LinearMap>) -> FloatTensor<Self> {
        let node = x.node();
        let y = Flex::linear_map(x.into_primitive(), map.clone());
        record::<C, 1>([node], y, move |dy, [wanted]| [wanted.then(|| map.back(dy))])
    }
}

/// A tensor of the type and shape of `x`, which `single` or `double` fills.
fn filled(
    x: &FlexTensor,
    single: impl FnOnce(&[f32], &mut [f32]),
    double: impl FnOnce(&[f64], &mut [f64]),
) -> FlexTensor {
    let data = if let Some(x_values) = x.as_slice::<f64>().filter(|_| x.dtype() == DType::F64) {
        let mut y = vec![0.0; x_values.len()];
        double(x_values, &mut y);
        TensorData::new(y, x.shape())
    } else {
        let mut y = vec![0.0; values(x).len()];
        single(values(x), &mut y);
        TensorData::new(y, x.shape())
    };
    FlexTensor::from_data(data)
}
