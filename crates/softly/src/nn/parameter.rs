//! Learned tensors with names, reachable one by one: for the optimiser, for averages and for files.

use burn::tensor::{DType, Device, Gradients, Tensor, TensorData};

use crate::tensors::{to_vec_f32, uploaded};

/// One learned tensor, or one that is only stored.
#[derive(Debug, Clone)]
pub struct Parameter<const D: usize> {
    tensor: Tensor<D>,
    trainable: bool,
    unit_rows: bool,
    rate: f64,
}

impl<const D: usize> Parameter<D> {
    /// A parameter with the given row-major values. Gradients are tracked when the device does so.
    pub fn new(values: Vec<f32>, shape: [usize; D], device: &Device) -> Self {
        let tensor = uploaded(TensorData::new(values, shape), device, DType::F32);
        let tensor = if device.is_autodiff() { tensor.require_grad() } else { tensor };
        Self { tensor, trainable: true, unit_rows: false, rate: 1.0 }
    }

    /// Values that belong to the model and its files but are not learned.
    pub fn fixed(values: Vec<f32>, shape: [usize; D], device: &Device) -> Self {
        let tensor = uploaded(TensorData::new(values, shape), &device.clone().without_autodiff(), DType::F32);
        Self { tensor, trainable: false, unit_rows: false, rate: 1.0 }
    }

    /// Every row (all but the first axis) is brought to unit root mean square after each training step.
    #[must_use]
    pub fn with_unit_rows(self) -> Self {
        Self { unit_rows: true, ..self }
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
    /// Whether training changes the values.
    fn trainable(&self) -> bool;
    /// Whether gradients with respect to the values are tracked.
    fn tracked(&self) -> bool;
    /// Stops training from changing the values. No operation that needs nothing else is tracked from now on.
    fn freeze(&mut self);
    /// Whether training keeps every row at unit root mean square.
    fn unit_rows(&self) -> bool;
    /// Its learning rate, as a multiple of the run's; 1 at first.
    fn rate(&self) -> f64;
    /// Changes its learning rate.
    fn set_rate(&mut self, rate: f64);
    /// Where the values are.
    fn device(&self) -> Device;
    /// Replaces the values by those of `all` from `first` on, which are on the parameter's device.
    fn set_part(&mut self, all: &Tensor<1>, first: usize);
    /// Takes the parameter's gradient, flat, out of `gradients`; `None` if the loss does not depend on it.
    fn take_flat_gradient(&self, gradients: &mut Gradients) -> Option<Tensor<1>>;
    /// The same as numbers.
    fn take_gradient(&self, gradients: &mut Gradients) -> Option<Vec<f32>> {
        self.take_flat_gradient(gradients).map(to_vec_f32)
    }
}

impl<const D: usize> AnyParameter for Parameter<D> {
    fn shape(&self) -> Vec<usize> {
        self.tensor.dims().to_vec()
    }

    fn values(&self) -> Vec<f32> {
        to_vec_f32(self.tensor.clone())
    }

    fn set(&mut self, values: Vec<f32>) {
        let (shape, device) = (self.tensor.dims(), self.tensor.device());
        let new = if self.trainable { Self::new } else { Self::fixed };
        *self = Self { unit_rows: self.unit_rows, rate: self.rate, ..new(values, shape, &device) };
    }

    fn trainable(&self) -> bool {
        self.trainable
    }

    fn tracked(&self) -> bool {
        self.trainable && self.tensor.device().is_autodiff()
    }

    fn freeze(&mut self) {
        *self = Self { tensor: self.tensor.clone().without_autodiff(), trainable: false, ..self.clone() };
    }

    fn unit_rows(&self) -> bool {
        self.unit_rows
    }

    fn rate(&self) -> f64 {
        self.rate
    }

    fn set_rate(&mut self, rate: f64) {
        self.rate = rate;
    }

    fn device(&self) -> Device {
        self.tensor.device()
    }

    fn set_part(&mut self, all: &Tensor<1>, first: usize) {
        let shape = self.tensor.dims();
        let part = all.clone().narrow(0, first, shape.iter().product()).reshape(shape);
        self.tensor = if self.tracked() { part.autodiff().require_grad() } else { part };
    }

    fn take_flat_gradient(&self, gradients: &mut Gradients) -> Option<Tensor<1>> {
        let gradient = if self.trainable { self.tensor.grad_remove(gradients) } else { None };
        gradient.map(|gradient| gradient.reshape([self.tensor.dims().iter().product::<usize>()]))
    }
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
        self.visit("", &mut |_, p| total += if p.trainable() { p.shape().iter().product::<usize>() } else { 0 });
        total
    }
}
