//! Learned tensors with names, reachable one by one: for the optimiser, for averages and for files.

use burn::tensor::{Device, Gradients, Tensor, TensorData};

/// One learned tensor.
#[derive(Debug, Clone)]
pub struct Parameter<const D: usize> {
    tensor: Tensor<D>,
    rate: f64,
}

impl<const D: usize> Parameter<D> {
    /// A parameter with the given row-major values. Gradients are tracked when the device does so.
    pub fn new(values: Vec<f32>, shape: [usize; D], device: &Device) -> Self {
        let tensor = Tensor::from_data(TensorData::new(values, shape), device);
        Self { tensor: if device.is_autodiff() { tensor.require_grad() } else { tensor }, rate: 1.0 }
    }

    /// The value, to compute with.
    pub fn get(&self) -> Tensor<D> {
        self.tensor.clone()
    }
}

/// A parameter of any rank.
pub trait AnyParameter {
    /// Size along each axis.
    fn shape(&self) -> Vec<usize>;
    /// Values, row-major.
    fn values(&self) -> Vec<f32>;
    /// Replaces the values, row-major.
    fn set(&mut self, values: Vec<f32>);
    /// Its learning rate, as a multiple of the run's; 1 at first.
    fn rate(&self) -> f64;
    /// Changes its learning rate.
    fn set_rate(&mut self, rate: f64);
    /// Takes the parameter's gradient out of `gradients`; `None` if the loss does not depend on it.
    fn take_gradient(&self, gradients: &mut Gradients) -> Option<Vec<f32>>;
}

impl<const D: usize> AnyParameter for Parameter<D> {
    fn shape(&self) -> Vec<usize> {
        self.tensor.dims().to_vec()
    }

    fn values(&self) -> Vec<f32> {
        to_vec(self.tensor.clone())
    }

    fn set(&mut self, values: Vec<f32>) {
        *self = Self { rate: self.rate, ..Self::new(values, self.tensor.dims(), &self.tensor.device()) };
    }

    fn rate(&self) -> f64 {
        self.rate
    }

    fn set_rate(&mut self, rate: f64) {
        self.rate = rate;
    }

    fn take_gradient(&self, gradients: &mut Gradients) -> Option<Vec<f32>> {
        self.tensor.grad_remove(gradients).map(to_vec)
    }
}

/// The row-major values of a tensor as `f32`.
pub fn to_vec<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().convert::<f32>().try_into_vec().expect("converted to f32")
}

/// The row-major values of a tensor as `f64`.
pub fn to_vec_f64<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    tensor.into_data().convert::<f64>().try_into_vec().expect("converted to f64")
}

/// What a visitor is called with: the parameter's full name and the parameter.
pub type Visitor<'a> = dyn FnMut(&str, &mut dyn AnyParameter) + 'a;

/// Something that holds parameters.
pub trait Parameters {
    /// Calls `visit` with every parameter, always in the same order, its name prefixed with `prefix`.
    fn visit(&mut self, prefix: &str, visit: &mut Visitor<'_>);

    /// Number of learned values.
    fn count_parameters(&mut self) -> usize {
        let mut total = 0;
        self.visit("", &mut |_, p| total += p.shape().iter().product::<usize>());
        total
    }
}
