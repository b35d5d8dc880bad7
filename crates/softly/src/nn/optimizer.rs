//! Adam, learning-rate schedules and running averages of the weights.
//!
//! The optimiser lives on the host and holds the master copy of the weights: one implementation for every device,
//! and its bytes are the checkpoint.

use burn::tensor::{DType, Device, Gradients, Tensor, TensorData};
use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use softly_kernels::adam::{self as kernels, AdamStep};
use softly_kernels::norm::normalize_rows;

use crate::host::is_host;
use crate::nn::parameter::Parameters;
use crate::ranks::Ranks;
use crate::tensors::{downloaded_together, uploaded};

/// How the learning rate changes over the run. `step` counts from 0.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Schedule {
    /// Always the same.
    Constant,
    /// 1/√max(step/reference, 1) after a linear warm-up, as EDM2.
    InverseSqrt {
        /// Steps at the full rate before the decay.
        reference: f64,
        /// Steps of linear warm-up.
        #[serde(default)]
        warmup: f64,
    },
    /// Half a cosine down to zero at the last step, after a linear warm-up.
    Cosine {
        /// Steps of linear warm-up.
        #[serde(default)]
        warmup: f64,
    },
}

impl Schedule {
    /// The factor on the learning rate at `step` of `total`.
    pub fn factor(self, step: u64, total: u64) -> f64 {
        let step = step as f64;
        let warm = |warmup: f64| if warmup > 0.0 { ((step + 1.0) / warmup).min(1.0) } else { 1.0 };
        match self {
            Self::Constant => 1.0,
            Self::InverseSqrt { reference, warmup } => warm(warmup) / (step / reference).max(1.0).sqrt(),
            Self::Cosine { warmup } => {
                let done = ((step - warmup) / (total as f64 - warmup).max(1.0)).clamp(0.0, 1.0);
                warm(warmup) * 0.5 * (1.0 + (std::f64::consts::PI * done).cos())
            }
        }
    }
}

/// How the running average of the weights forgets.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Ema {
    /// A constant decay per step.
    Constant {
        /// Weight of the past, e.g. 0.99.
        decay: f64,
    },
    /// EDM2's power function: the window grows with the run to the relative width `sigma_rel`.
    Power {
        /// Relative standard deviation of the averaging window, below 0.28.
        sigma_rel: f64,
    },
}

impl Ema {
    /// Weight of the past at the update after `step` steps (the first update has step 1).
    pub fn decay(self, step: u64) -> f64 {
        match self {
            // At most (1+n)/(10+n): a young average must not remember the initial weights.
            Self::Constant { decay } => decay.min((1.0 + step as f64) / (10.0 + step as f64)),
            Self::Power { sigma_rel } => (1.0 - 1.0 / step as f64).powf(power_exponent(sigma_rel) + 1.0),
        }
    }
}

/// The γ with σ_rel² = (γ+1)/((γ+2)²(γ+3)).
fn power_exponent(sigma_rel: f64) -> f64 {
    let width2 = |gamma: f64| (gamma + 1.0) / ((gamma + 2.0).powi(2) * (gamma + 3.0));
    let (mut low, mut high) = (0.0, 1e6);
    for _ in 0..200 {
        let middle = 0.5 * (low + high);
        if width2(middle) > sigma_rel * sigma_rel { low = middle } else { high = middle }
    }
    0.5 * (low + high)
}

/// Adam's constants.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Adam {
    /// Forgetting factors of the first and second moment.
    pub betas: [f64; 2],
    /// Added to the denominator.
    pub eps: f64,
}

/// One parameter with its optimiser state.
#[derive(Debug, Clone, PartialEq)]
pub struct Slot {
    /// The parameter's name.
    pub name: String,
    /// Size along each axis.
    pub shape: Vec<usize>,
    /// Current values.
    pub value: Vec<f32>,
    /// Whether they change. If not, all that follows is empty.
    pub trainable: bool,
    /// Running mean of the gradient.
    pub mean: Vec<f32>,
    /// Running mean of the squared gradient.
    pub square: Vec<f32>,
    /// Running average of the values: what samples are drawn with.
    pub average: Vec<f32>,
    /// Learning rate as a multiple of the run's.
    pub rate: f64,
    /// Whether every row is kept at unit root mean square.
    pub unit_rows: bool,
}

impl Slot {
    /// The values to draw samples with.
    pub fn averaged(&self) -> &[f32] {
        if self.trainable { &self.average } else { &self.value }
    }
}

/// The state of an optimisation.
#[derive(Debug, Clone, PartialEq)]
pub struct Optimizer {
    /// One entry per parameter, in the model's order.
    pub slots: Vec<Slot>,
    /// Steps taken.
    pub step: u64,
}

/// What one optimiser step saw.
#[derive(Debug, Clone, Copy)]
pub struct StepReport {
    /// Euclidean norm of the whole gradient, before clipping.
    pub gradient_norm: f64,
    /// Gradient entries that were not finite and were taken as zero.
    pub replaced: usize,
}

impl Optimizer {
    /// Starts from the model's current weights.
    pub fn new(model: &mut dyn Parameters) -> Self {
        let mut slots = Vec::new();
        model.visit("", &mut |name, parameter| {
            let value = parameter.values();
            let trainable = parameter.trainable();
            let zeros = vec![0.0; if trainable { value.len() } else { 0 }];
            slots.push(Slot {
                name: name.to_string(),
                shape: parameter.shape(),
                unit_rows: parameter.unit_rows(),
                trainable,
                average: if trainable { value.clone() } else { Vec::new() },
                mean: zeros.clone(),
                square: zeros,
                rate: parameter.rate(),
                value,
            });
        });
        Self { slots, step: 0 }
    }

    /// One step of Adam along `gradients` with learning rate `rate`, clipped to `clip` in total norm.
    pub fn step(&mut self, gradients: GradientList, adam: Adam, rate: f64, clip: Option<f64>, ema: Ema) -> StepReport {
        let mut all = gradients.0;
        let norm = |all: &[Option<Vec<f32>>]| all.iter().flatten().map(|g| squares(g)).sum::<f64>().sqrt();
        let mut gradient_norm = norm(&all);
        let mut replaced = 0;
        // Squares of f32 do not overflow in f64: the norm is finite if and only if every entry is.
        if !gradient_norm.is_finite() {
            for v in all.iter_mut().flatten().flatten().filter(|v| !v.is_finite()) {
                *v = 0.0;
                replaced += 1;
            }
            gradient_norm = norm(&all);
        }
        if let Some(clip) = clip
            && gradient_norm > clip
        {
            let scale = (clip / gradient_norm) as f32;
            for v in all.iter_mut().flatten().flatten() {
                *v *= scale;
            }
        }

        self.step += 1;
        let [b1, b2] = adam.betas;
        let numbers = AdamStep {
            learning_rate: rate as f32,
            beta1: b1 as f32,
            beta2: b2 as f32,
            epsilon: adam.eps as f32,
            correction1: (1.0 - b1.powf(self.step as f64)) as f32,
            correction2: (1.0 - b2.powf(self.step as f64)) as f32,
        };
        let keep = ema.decay(self.step) as f32;
        for (slot, gradient) in self.slots.iter_mut().zip(&all).filter(|(slot, _)| slot.trainable) {
            if let Some(gradient) = gradient {
                let numbers = AdamStep { learning_rate: (rate * slot.rate) as f32, ..numbers };
                kernels::adam(numbers, gradient, &mut slot.value, &mut slot.mean, &mut slot.square);
            }
            if slot.unit_rows {
                normalize_rows(slot.value.len() / slot.shape[0], &mut slot.value);
            }
            kernels::ema(keep, &slot.value, &mut slot.average);
        }
        StepReport { gradient_norm, replaced }
    }

    /// Gives a model the weights that change, in one transfer if it is not on the CPU.
    pub fn write_into(&self, model: &mut dyn Parameters) {
        let mut slots = self.slots.iter();
        let mut sent: Option<Tensor<1>> = None;
        let mut first = 0;
        model.visit("", &mut |_, parameter| {
            let Some(slot) = slots.next().filter(|slot| slot.trainable) else { return };
            let device = parameter.device().without_autodiff();
            if is_host(&device) {
                return parameter.set(slot.value.clone());
            }
            parameter.set_part(sent.get_or_insert_with(|| self.all_that_change(&device)), first);
            first += slot.value.len();
        });
    }

    /// The values of all slots that change, one after the other.
    fn all_that_change(&self, device: &Device) -> Tensor<1> {
        let all: Vec<f32> = self.slots.iter().filter(|slot| slot.trainable).flat_map(|s| s.value.clone()).collect();
        let count = all.len();
        uploaded(TensorData::new(all, [count]), device, DType::F32)
    }
}

/// The gradients of a model's parameters in its order, `None` where the loss does not depend on one.
pub struct GradientList(Vec<Option<Vec<f32>>>);

impl GradientList {
    /// The gradients of `model` in `gradients`.
    pub fn of(model: &mut dyn Parameters, gradients: &mut Gradients) -> Self {
        Self::beside(Vec::new(), model, gradients).1
    }

    /// The same with a few `numbers` of the same device, all in one transfer.
    pub fn beside(numbers: Vec<Tensor<1>>, model: &mut dyn Parameters, gradients: &mut Gradients) -> (Vec<f64>, Self) {
        let (mut all, mut present) = (numbers, Vec::new());
        let count = all.len();
        model.visit("", &mut |_, parameter| {
            let gradient = parameter.take_flat_gradient(gradients);
            present.push(gradient.is_some());
            all.extend(gradient);
        });
        let mut values = downloaded_together(all).into_iter();
        let numbers = values.by_ref().take(count).flatten().map(f64::from).collect();
        (numbers, Self(present.into_iter().map(|present| if present { values.next() } else { None }).collect()))
    }

    /// The gradients of a loss so many times as large.
    #[must_use]
    pub fn scaled(mut self, factor: f64) -> Self {
        self.0.iter_mut().flatten().flatten().for_each(|gradient| *gradient *= factor as f32);
        self
    }

    /// The sum of the gradients of a model on the shares of a batch, one share after the other: all of `lists` and those of other ranks.
    pub fn added(mut lists: Vec<Self>, ranks: &dyn Ranks) -> Self {
        if ranks.count() == 1 {
            let mut sum = lists.remove(0);
            for list in lists {
                sum.add(list);
            }
            return sum;
        }
        let lengths: Vec<Option<usize>> = lists[0].0.iter().map(|gradient| gradient.as_ref().map(Vec::len)).collect();
        let flat = |list: Self| list.0.into_iter().flatten().collect::<Vec<_>>().concat();
        let mut rest = &ranks.add(lists.into_iter().map(flat).collect())[..];
        let mut take = |len: usize| {
            let (first, others) = rest.split_at(len);
            rest = others;
            first.to_vec()
        };
        Self(lengths.into_iter().map(|len| len.map(&mut take)).collect())
    }

    /// Adds the gradients of the same model on other data.
    fn add(&mut self, other: Self) {
        self.0.par_iter_mut().zip(other.0).for_each(|(sum, other)| match (sum, other) {
            (Some(sum), Some(other)) => sum.iter_mut().zip(&other).for_each(|(a, b)| *a += b),
            (sum, other) => *sum = sum.take().or(other),
        });
    }
}

/// Σ v² in f64, eight partial sums at a time: a single one would wait for itself.
fn squares(values: &[f32]) -> f64 {
    let (blocks, rest) = values.as_chunks::<8>();
    let mut sums = [0.0; 8];
    for block in blocks {
        for (sum, &v) in sums.iter_mut().zip(block) {
            *sum += f64::from(v) * f64::from(v);
        }
    }
    sums.iter().sum::<f64>() + rest.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::parameter::{Parameter, Visitor};
    use burn::tensor::Device;

    #[test]
    fn schedules_match_the_reference_rates() {
        // EDM2 with reference rate 2e-3, batch 64 and reference 70,000 batches, no warm-up.
        let schedule = Schedule::InverseSqrt { reference: 70_000.0, warmup: 0.0 };
        for (step, rate) in
            [(10_000, 2.00e-3), (70_000, 2.00e-3), (100_000, 1.67e-3), (200_000, 1.18e-3), (300_000, 9.66e-4)]
        {
            assert!((2e-3 * schedule.factor(step, 300_000) / rate - 1.0).abs() < 5e-3);
        }
        // With EDM2's warm-up over ten million images (156,250 batches of 64).
        let schedule = Schedule::InverseSqrt { reference: 70_000.0, warmup: 156_250.0 };
        for (step, rate) in [(10_000, 1.28e-4), (70_000, 8.96e-4), (156_250, 1.34e-3)] {
            assert!((2e-3 * schedule.factor(step, 300_000) / rate - 1.0).abs() < 5e-3);
        }
        let cosine = Schedule::Cosine { warmup: 10.0 };
        assert!((cosine.factor(0, 110) - 0.1).abs() < 1e-12);
        assert!((cosine.factor(60, 110) - 0.5).abs() < 1e-12);
        assert!(cosine.factor(110, 110) < 1e-12);
    }

    #[test]
    fn power_averages_have_the_published_exponents() {
        assert!((power_exponent(0.05) - 16.97).abs() < 0.01);
        assert!((power_exponent(0.10) - 6.94).abs() < 0.01);
    }

    struct Quadratic(Parameter<1>);

    impl Parameters for Quadratic {
        fn visit(&mut self, prefix: &str, visit: &mut Visitor<'_>) {
            visit(&format!("{prefix}x"), &mut self.0);
        }
    }

    #[test]
    fn adam_steps_match_the_formula_and_find_the_minimum() {
        let device = Device::flex().autodiff();
        let mut model = Quadratic(Parameter::new(vec![3.0], [1], &device));
        let mut optimizer = Optimizer::new(&mut model);
        let adam = Adam { betas: [0.9, 0.999], eps: 1e-8 };
        let (mut x, mut m, mut v) = (3.0f64, 0.0, 0.0);
        for step in 1..=300 {
            let loss = (model.0.get() - 1.0).powi_scalar(2).sum();
            let gradients = GradientList::of(&mut model, &mut loss.backward());
            optimizer.step(gradients, adam, 0.05, None, Ema::Constant { decay: 0.9 });
            optimizer.write_into(&mut model);
            let g = 2.0 * (x - 1.0);
            m = 0.9 * m + 0.1 * g;
            v = 0.999 * v + 0.001 * g * g;
            let corrected = (v / (1.0 - 0.999f64.powi(step))).sqrt();
            x -= 0.05 * m / (1.0 - 0.9f64.powi(step)) / (corrected + 1e-8);
            assert!((f64::from(optimizer.slots[0].value[0]) - x).abs() < 1e-4, "step {step}");
        }
        assert!((x - 1.0).abs() < 1e-2);
    }

    #[test]
    fn clipping_limits_the_norm_and_bad_entries_count_as_zero() {
        let device = Device::flex().autodiff();
        let mut model = Quadratic(Parameter::new(vec![0.0, 4.0], [2], &device));
        let mut optimizer = Optimizer::new(&mut model);
        let adam = Adam { betas: [0.0, 0.0], eps: 1.0 };
        // d/dx √x is infinite at 0.
        let loss = model.0.get().sqrt().sum() * 8.0;
        let gradients = GradientList::of(&mut model, &mut loss.backward());
        let report = optimizer.step(gradients, adam, 1.0, Some(1.0), Ema::Constant { decay: 0.9 });
        assert_eq!(report.replaced, 1);
        assert!((report.gradient_norm - 2.0).abs() < 1e-6);
        assert_eq!(optimizer.slots[0].value, [0.0, 3.5]);
    }
}
