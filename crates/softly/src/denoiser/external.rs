//! A denoiser outside of softly: a function of plain numbers, with its transposed Jacobian if it is known.

use std::sync::Arc;

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, Flex, backend_extension};
use burn::tensor::{Tensor, TensorData};
use burn_flex::FlexTensor;

use crate::denoiser::Denoiser;
use crate::host::on_host;
use crate::nn::ops::record;
use crate::nn::parameter::{Parameters, Visitor};

/// D(x; σ) of numbers. Arrays are `[N, C, H, W]`, in single precision while training and in double precision while sampling;
/// answers may have either.
pub trait Estimator: Send + Sync {
    /// D(x; σ), one σ per sample.
    fn estimate(&self, x: TensorData, sigma: &[f64]) -> TensorData;

    /// Jᵀ·`cotangent` with J = ∂D/∂x at x.
    fn transposed(&self, x: TensorData, sigma: &[f64], cotangent: TensorData) -> TensorData;
}

/// A denoiser outside of softly.
pub struct External(pub Arc<dyn Estimator>);

/// One call of an [`Estimator`].
#[derive(Clone)]
pub struct Call {
    estimator: Arc<dyn Estimator>,
    sigma: Arc<[f64]>,
}

impl Parameters for External {
    fn visit(&mut self, _prefix: &str, _visit: &mut Visitor<'_>) {}
}

impl Denoiser for External {
    fn denoise(&self, x: Tensor<4>, sigma: &[f64]) -> Tensor<4> {
        let call = Call { estimator: self.0.clone(), sigma: sigma.into() };
        on_host(x.dtype(), &x, |_, x| {
            Tensor::from_dispatch(<Dispatch as OutsideCall>::outside(x.clone().into_dispatch(), call))
        })
    }
}

impl Call {
    fn estimate(&self, x: TensorData) -> TensorData {
        self.estimator.estimate(x, &self.sigma)
    }

    fn forward(&self, x: &FlexTensor) -> FlexTensor {
        let dtype = x.dtype();
        FlexTensor::from_data(self.estimate(x.clone().into_data()).convert_dtype(dtype))
    }

    fn backward(&self, x: &FlexTensor, dy: &FlexTensor) -> FlexTensor {
        let (data, dy) = (x.clone().into_data(), dy.clone().into_data());
        FlexTensor::from_data(self.estimator.transposed(data, &self.sigma, dy).convert_dtype(x.dtype()))
    }
}

/// The call as a back end sees it.
#[backend_extension(Flex, Autodiff)]
pub trait OutsideCall: Backend {
    /// D(x; σ) of `x` `[N, C, H, W]`.
    fn outside(x: FloatTensor<Self>, call: Call) -> FloatTensor<Self>;
}

impl OutsideCall for Flex {
    fn outside(x: FlexTensor, call: Call) -> FlexTensor {
        call.forward(&x.to_contiguous())
    }
}

impl<C: CheckpointStrategy> OutsideCall for Autodiff<Flex, C> {
    fn outside(x: FloatTensor<Self>, call: Call) -> FloatTensor<Self> {
        let node = x.node();
        let x = x.into_primitive().to_contiguous();
        let y = call.forward(&x);
        record::<C, 1>([node], y, move |dy, _| [Some(call.backward(&x, dy))])
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{DType, Device};

    use super::*;
    use crate::tensors::{field_batch, to_vec_f64};

    /// D = σ x².
    struct Square;

    impl Estimator for Square {
        fn estimate(&self, x: TensorData, sigma: &[f64]) -> TensorData {
            let shape = x.shape().clone();
            let values: Vec<f64> = x.convert::<f64>().try_into_vec().unwrap();
            TensorData::new(values.iter().map(|v| sigma[0] * v * v).collect::<Vec<f64>>(), shape)
        }

        fn transposed(&self, x: TensorData, sigma: &[f64], cotangent: TensorData) -> TensorData {
            let shape = x.shape().clone();
            let [x, w]: [Vec<f64>; 2] = [x, cotangent].map(|data| data.convert::<f64>().try_into_vec().unwrap());
            TensorData::new(x.iter().zip(&w).map(|(x, w)| 2.0 * sigma[0] * x * w).collect::<Vec<f64>>(), shape)
        }
    }

    #[test]
    fn a_function_outside_is_called_and_differentiated_in_either_precision() {
        let device = Device::flex().autodiff();
        for dtype in [DType::F32, DType::F64] {
            let x = field_batch(vec![1.0, -2.0, 3.0, 0.5], [1, 2, 2], &device).cast(dtype).detach().require_grad();
            let y = External(Arc::new(Square)).denoise(x.clone(), &[0.25]);
            assert_eq!(y.dtype(), dtype);
            assert_eq!(to_vec_f64(y.clone()), [0.25, 1.0, 2.25, 0.0625]);
            // d/dx of Σ y² = 4 σ² x³.
            let gradients = (y.clone() * y).sum().backward();
            assert_eq!(to_vec_f64(x.grad(&gradients).unwrap()), [0.25, -2.0, 6.75, 0.03125]);
        }
    }
}
