//! Parameters of a constraint whose values are known only when it is evaluated: drawn, learned, or computed from such.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use burn::tensor::{Tensor, TensorData};
use softly_pde::algebra::{F64Algebra, Value};
use softly_pde::program::Program;

use crate::constraint::smooth_field::SmoothField;
use crate::constraint::tensor_algebra::{TensorAlgebra, TensorValue};
use crate::host::{host, is_host};
use crate::nn::parameter::{Parameter, Visitor};
use crate::random::{Purpose, Stream};
use crate::tensors::{constant, to_vec_f64, uploaded};

/// Where a value comes from.
#[derive(Clone)]
pub(crate) enum Source {
    /// A normal number per sample and evaluation.
    Drawn { mean: f64, std: f64 },
    /// A learned number. Shared: whoever visits it changes it for every clone.
    Learned(Arc<RwLock<Parameter<1>>>),
    /// A learned field by its coefficients, shared likewise.
    LearnedField(Arc<RwLock<Parameter<1>>>, Arc<SmoothField>),
    /// A formula of the coordinates and of drawn and learned numbers.
    Computed(Arc<Program>),
}

impl Source {
    /// A number that is learned from `start` on.
    pub fn learned(start: f64) -> Self {
        Self::Learned(Arc::new(RwLock::new(Parameter::fixed(vec![start as f32], [1], &host()))))
    }

    /// A field that is learned; its coefficients start at 0 and are of size 1.
    pub fn learned_field(field: SmoothField) -> Self {
        let n = field.coefficients();
        let parameter = Parameter::fixed(vec![0.0; n], [n], &host());
        Self::LearnedField(Arc::new(RwLock::new(parameter)), Arc::new(field))
    }

    /// What is learned of it.
    fn learned_part(&self) -> Option<&RwLock<Parameter<1>>> {
        match self {
            Self::Learned(parameter) | Self::LearnedField(parameter, _) => Some(parameter),
            Self::Drawn { .. } | Self::Computed(_) => None,
        }
    }
}

fn get(parameter: &RwLock<Parameter<1>>) -> Tensor<1> {
    parameter.read().unwrap_or_else(PoisonError::into_inner).get()
}

/// What is learned, which is on the CPU, as numbers of the type and on the device of `x`.
fn placed(learned: Tensor<1>, x: &Tensor<4>) -> Tensor<1> {
    let device = x.device();
    if is_host(&device) {
        return learned.cast(x.dtype());
    }
    let shape = learned.dims();
    let values = learned.into_data().convert::<f64>().try_into_vec().expect("converted to f64");
    constant(values, shape, &device, x.dtype())
}

/// The run-time parameters of a constraint by name: the inputs of its programs after the fields, in this order.
#[derive(Clone, Default)]
pub(crate) struct RuntimeParameters(pub BTreeMap<String, Source>);

impl RuntimeParameters {
    /// The values for normalised fields `x` `[N, C, H, W]`, each a batch that broadcasts against `[N, H, W]`.
    ///
    /// A drawn number is a function of the field that the constraint is evaluated at: its stream's seed is a hash of the
    /// sample's values. Another field has another draw; the same field has the same one in every direction of a
    /// correction, whatever the batch, after a resumption, on any number of threads.
    pub fn values(&self, algebra: &TensorAlgebra<'_>, x: &Tensor<4>) -> Vec<TensorValue> {
        let mut hashes: Option<Vec<u64>> = None;
        self.resolve(
            |index, source| match source {
                Source::Drawn { mean, std } => {
                    let hashes = hashes.get_or_insert_with(|| sample_hashes(x));
                    let draw = |&hash: &u64| mean + std * Stream::new(hash, Purpose::Parameters, index as u64).normal();
                    let draws = TensorData::new(hashes.iter().map(draw).collect(), [hashes.len(), 1, 1]);
                    Some(TensorValue::Tensor(uploaded(draws, &x.device().without_autodiff(), x.dtype())))
                }
                Source::Learned(parameter) => Some(TensorValue::Tensor(placed(get(parameter), x).reshape([1, 1, 1]))),
                Source::LearnedField(parameter, field) => {
                    Some(TensorValue::Tensor(field.tensor(placed(get(parameter), x), x)))
                }
                Source::Computed(_) => None,
            },
            |program, known| program.forward(algebra, known).output().clone(),
        )
    }

    /// Whether any is learned.
    pub fn learn(&self) -> bool {
        self.0.values().any(|source| source.learned_part().is_some())
    }

    /// The learned parameter `name` if `learned` is what is learned of it: a number, or a field.
    pub fn learned_value(&self, name: &str, learned: &[f32]) -> Option<Value> {
        match self.0.get(name)? {
            Source::Learned(_) => learned.first().map(|&number| Value::Number(f64::from(number))),
            Source::LearnedField(_, field) => {
                let z: Vec<f64> = learned.iter().map(|&z| f64::from(z)).collect();
                Some(Value::from(field.values(&z)))
            }
            Source::Drawn { .. } | Source::Computed(_) => None,
        }
    }

    /// The values in f64: means of drawn numbers.
    pub fn numbers(&self, algebra: &F64Algebra) -> Vec<Value> {
        self.resolve(
            |_, source| match source {
                Source::Drawn { mean, .. } => Some(Value::Number(*mean)),
                Source::Learned(parameter) => Some(Value::Number(to_vec_f64(get(parameter))[0])),
                Source::LearnedField(parameter, field) => Some(Value::from(field.values(&to_vec_f64(get(parameter))))),
                Source::Computed(_) => None,
            },
            |program, known| program.forward(algebra, known).output().clone(),
        )
    }

    /// First what needs no other, `None` being what does; then what is computed from that.
    fn resolve<V: Clone>(
        &self,
        mut given: impl FnMut(usize, &Source) -> Option<V>,
        compute: impl Fn(&Program, &[V]) -> V,
    ) -> Vec<V> {
        let values: Vec<Option<V>> = self.0.values().enumerate().map(|(i, source)| given(i, source)).collect();
        let known: Vec<V> = values.iter().flatten().cloned().collect();
        let value = |(value, source): (Option<V>, &Source)| match (value, source) {
            (None, Source::Computed(program)) => Some(compute(program, &known)),
            (value, _) => value,
        };
        values.into_iter().zip(self.0.values()).filter_map(value).collect()
    }

    /// Visits what is learned.
    pub fn visit(&self, prefix: &str, visit: &mut Visitor<'_>) {
        for (name, source) in &self.0 {
            if let Some(parameter) = source.learned_part() {
                let mut parameter = parameter.write().unwrap_or_else(PoisonError::into_inner);
                visit(&format!("{prefix}{name}"), &mut *parameter);
            }
        }
    }
}

/// A hash of every sample's values.
fn sample_hashes(x: &Tensor<4>) -> Vec<u64> {
    let n = x.dims()[0];
    let values = to_vec_f64(x.clone().without_autodiff());
    let hash = |sample: &[f64]| {
        let mut hasher = blake3::Hasher::new();
        for value in sample {
            hasher.update(&value.to_le_bytes());
        }
        let bytes = hasher.finalize();
        u64::from_le_bytes(bytes.as_bytes()[..8].try_into().expect("eight bytes"))
    };
    values.chunks_exact(values.len() / n.max(1)).map(hash).collect()
}
