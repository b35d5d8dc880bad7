//! Trained models.

use std::path::PathBuf;
use std::sync::Arc;

use burn::tensor::{DType, Device, Tensor, TensorData};
use numpy::{IntoPyArray, PyArrayDyn, PyArrayMethods, PyReadonlyArrayDyn, PyUntypedArrayMethods};
use pyo3::prelude::*;
use serde_json::json;
use softly::error::{Error, Result};
use softly::job::Job;
use softly::tensors::{to_vec_f32, to_vec_f64};
use softly::{
    Dataset, Denoiser, Directions, Draw, Estimator, Explained, FieldEval, FieldEvaluator, HeldOut, Likelihood, Noise,
    Observations, Probes, Snapshot, Split, Trained, conditioned, observed_array, observed_together,
    parameter_intervals, read_observations, snapshot_file,
};

use crate::callable::Callable;
use crate::data::Data;
use crate::error::{raise, refuse};
use crate::watch::watch;

/// Samples that go through the network together.
const BATCH: usize = 64;

/// A trained model, on a Python function if its denoiser is one.
#[pyclass(frozen, module = "softly._core")]
pub struct Model {
    /// The weights.
    pub snapshot: Snapshot,
    /// Their file, which may be gone.
    pub path: PathBuf,
    /// The function that its denoiser is.
    pub function: Option<Py<Callable>>,
    trained: Arc<Trained>,
}

/// Loads a run folder, a snapshot or the weights of an EDM2 network; `function` is the denoiser of a model that was adapted on one.
#[pyfunction]
#[pyo3(signature = (path, function=None))]
pub fn load(py: Python<'_>, path: PathBuf, function: Option<Py<Callable>>) -> PyResult<Model> {
    let (snapshot, file) = py
        .detach(|| -> Result<_> {
            let file = snapshot_file(&path)?;
            Ok((Snapshot::read(&file)?, file))
        })
        .map_err(raise)?;
    if function.is_some() && !snapshot.is_external() {
        let problem = "this model has a network of its own, and a function is given in its place";
        return Err(refuse(&file.display().to_string(), problem, "leave out `denoiser`"));
    }
    Model::new(py, snapshot, file, function)
}

impl Model {
    /// The model of a snapshot.
    pub fn new(py: Python<'_>, snapshot: Snapshot, path: PathBuf, function: Option<Py<Callable>>) -> PyResult<Self> {
        let estimator = function.as_ref().map(|f| f.get().estimator());
        let build = || Trained::of(snapshot.clone(), path.clone(), estimator.as_ref(), &Device::flex());
        let trained = Arc::new(py.detach(build).map_err(raise)?);
        Ok(Self { snapshot, path, function, trained })
    }

    fn callable(&self) -> Option<&Callable> {
        self.function.as_ref().map(Py::get)
    }

    fn estimator(&self) -> Option<Arc<dyn Estimator>> {
        self.callable().map(Callable::estimator)
    }

    /// The model under changed settings.
    fn changed(&self, settings: &[String]) -> Result<Arc<Trained>> {
        if settings.is_empty() {
            return Ok(self.trained.clone());
        }
        let mut snapshot = self.snapshot.clone();
        snapshot.change(settings, &self.path)?;
        Ok(Arc::new(Trained::of(snapshot, self.path.clone(), self.estimator().as_ref(), &Device::flex())?))
    }

    /// Refuses other fields or another grid than the model's.
    fn check(&self, dataset: &Dataset) -> Result<()> {
        dataset.check()?;
        let own = &self.snapshot.blueprint.data;
        if dataset.fields == own.fields && dataset.grid == own.grid {
            return Ok(());
        }
        let words = |fields: &[String], grid: &softly_pde::grid::Grid| {
            let axes: Vec<&str> = grid.axes.iter().map(|axis| axis.name.as_str()).collect();
            format!("{} on {} × {} nodes ({})", fields.join(", "), grid.rows(), grid.cols(), axes.join(", "))
        };
        let (expected, found) = (words(&own.fields, &own.grid), words(&dataset.fields, &dataset.grid));
        Err(Error::input("data", format!("expected {expected}, found {found}"))
            .hint("use data with the model's fields and grid"))
    }

    /// A reverse pass needs the derivative of the function below the constraint.
    fn needs_derivative(&self, what: &str) -> PyResult<()> {
        match self.callable() {
            Some(callable) if !callable.has_vjp() => {
                let problem = format!("{what} needs the derivative of the denoiser, which came without one");
                Err(refuse("denoiser", problem, "give vjp=, or a torch module: its derivative is known"))
            }
            _ => Ok(()),
        }
    }

    /// `of` every batch of flat fields with their noise levels.
    fn in_batches<T: Send>(
        &self,
        py: Python<'_>,
        sigma: &[f64],
        of: impl Fn(&Trained, std::ops::Range<usize>) -> Vec<T> + Sync + Send,
    ) -> PyResult<Vec<T>> {
        watch(py, self.callable(), None, |job| {
            let mut all = Vec::new();
            for first in (0..sigma.len()).step_by(BATCH) {
                job.go_on("")?;
                all.extend(of(&self.trained, first..(first + BATCH).min(sigma.len())));
            }
            Ok(all)
        })
    }

    /// D of fields in their precision.
    fn denoised(&self, x: TensorData, dtype: DType, sigma: &[f64]) -> Tensor<4> {
        self.trained.model.denoise(Tensor::from_data(x, (&Device::flex(), dtype)), sigma)
    }

    /// Held-out samples in the model's units, `count` at most.
    fn held_out(&self, dataset: &Dataset, count: usize) -> Result<Vec<f32>> {
        let indices: Vec<usize> = (0..dataset.valid_count().min(count)).collect();
        let units = &self.snapshot.blueprint.data.units;
        dataset.batch(Split::Valid, &indices, units)
    }

    fn shape(&self, n: usize) -> [usize; 4] {
        let [c, h, w] = self.trained.model.shape;
        [n, c, h, w]
    }
}

/// Exact noise levels, one per sample.
fn levels(sigma: &PyReadonlyArrayDyn<'_, f64>) -> PyResult<Vec<f64>> {
    sigma.as_slice().map(<[f64]>::to_vec).map_err(|e| refuse("sigma", e, ""))
}

#[pymethods]
impl Model {
    /// What the model is, as JSON.
    fn info(&self) -> String {
        let blueprint = &self.snapshot.blueprint;
        let data = &blueprint.data;
        json!({
            "path": self.path, "step": self.snapshot.step, "sigma_data": blueprint.sigma_data(), "fields": data.fields,
            "scalars": data.scalars, "grid": data.grid, "units": data.units, "hash": data.hash,
            "constraint": blueprint.config.constraint, "soft": blueprint.config.denoiser.scd.is_some(),
            "external": self.snapshot.is_external(), "sampler": blueprint.config.sampler,
            "learned": self.trained.model.learned(),
        })
        .to_string()
    }

    /// The configuration, as TOML.
    fn config(&self) -> String {
        self.snapshot.blueprint.config.to_toml()
    }

    /// D(x; σ) of contiguous fields `[N, C, H, W]` in their precision, flat.
    fn denoise<'py>(
        &self,
        py: Python<'py>,
        x: &Bound<'py, PyAny>,
        sigma: PyReadonlyArrayDyn<'py, f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let sigma = levels(&sigma)?;
        let len = self.trained.model.shape.iter().product::<usize>();
        let piece = |range: &std::ops::Range<usize>| range.start * len..range.end * len;
        if let Ok(x) = x.cast::<PyArrayDyn<f32>>() {
            let x = x.readonly();
            let x = x.as_slice().map_err(|e| refuse("x", e, ""))?;
            let values = self.in_batches(py, &sigma, |_, range| {
                let data = TensorData::new(x[piece(&range)].to_vec(), self.shape(range.len()));
                to_vec_f32(self.denoised(data, DType::F32, &sigma[range]))
            })?;
            return Ok(values.into_pyarray(py).into_any());
        }
        let x = x.cast::<PyArrayDyn<f64>>()?.readonly();
        let x = x.as_slice().map_err(|e| refuse("x", e, ""))?;
        let values = self.in_batches(py, &sigma, |_, range| {
            let data = TensorData::new(x[piece(&range)].to_vec(), self.shape(range.len()));
            to_vec_f64(self.denoised(data, DType::F64, &sigma[range]))
        })?;
        Ok(values.into_pyarray(py).into_any())
    }

    /// Jᵀ·cotangent with J = ∂D/∂x at contiguous fields `[N, C, H, W]`, flat.
    fn vjp<'py>(
        &self,
        py: Python<'py>,
        x: PyReadonlyArrayDyn<'py, f64>,
        sigma: PyReadonlyArrayDyn<'py, f64>,
        cotangent: PyReadonlyArrayDyn<'py, f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.needs_derivative("vjp")?;
        let sigma = levels(&sigma)?;
        let [x, cotangent] = [&x, &cotangent].map(|array| array.as_slice().map_err(|e| refuse("x", e, "")));
        let (x, cotangent) = (x?, cotangent?);
        let len = self.trained.model.shape.iter().product::<usize>();
        let values = self.in_batches(py, &sigma, |trained, range| {
            let device = Device::flex().autodiff();
            let piece = |all: &[f64]| {
                TensorData::new(all[range.start * len..range.end * len].to_vec(), self.shape(range.len()))
            };
            let x: Tensor<4> = Tensor::from_data(piece(x), (&device, DType::F64)).require_grad();
            let w: Tensor<4> = Tensor::from_data(piece(cotangent), (&Device::flex(), DType::F64));
            let estimate = trained.model.denoise(x.clone(), &sigma[range.clone()]);
            let gradients = (estimate * w).sum().backward();
            x.grad(&gradients).map_or_else(|| vec![0.0; range.len() * len], to_vec_f64)
        })?;
        Ok(values.into_pyarray(py).into_any())
    }

    /// Samples `first..first + n` of a seed in physical units `[N, C, H, W]`, flat, `batch` at a time.
    #[pyo3(signature = (which, batch, settings, progress=None))]
    fn sample<'py>(
        &self,
        py: Python<'py>,
        which: (u64, u64, u64),
        batch: usize,
        settings: Vec<String>,
        progress: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (n, first, seed) = which;
        let values = watch(py, self.callable(), progress.as_ref(), |job| {
            let trained = self.changed(&settings)?;
            let indices: Vec<u64> = (first..first + n).collect();
            job.reporter.begin(n * trained.blueprint.config.sampler.steps as u64, 0);
            if trained.observes() {
                let problem = "guidance by observed nodes is for studies, which the program runs";
                return Err(Error::input("sampler.guidance", problem).hint("use `softly sample`"));
            }
            let values = trained.samples(&Draw { seed, indices: &indices, batch, observed: None }, job)?;
            Ok(values.into_iter().map(|value| value as f32).collect::<Vec<f32>>())
        })?;
        Ok(values.into_pyarray(py).into_any())
    }

    /// Samples `first..first + n` of a seed given measurements, physical and flat, and the number of cases: `[cases, N, C, H, W]`.
    /// Every source is a table (a path and no array) or a quantity with an array `[H, W]` or `[N, H, W]`. The denoiser's errors
    /// are measured on `data`, or on the data that the model was trained on.
    #[pyo3(signature = (sources, which, batch, noise, conditioning, settings, data=None, progress=None))]
    #[expect(clippy::too_many_arguments, reason = "they come from Python one by one")]
    fn posterior<'py>(
        &self,
        py: Python<'py>,
        sources: Vec<(String, Option<PyReadonlyArrayDyn<'py, f64>>)>,
        which: (u64, u64, u64),
        batch: usize,
        noise: Vec<String>,
        conditioning: Option<&str>,
        settings: Vec<String>,
        data: Option<&Data>,
        progress: Option<Bound<'py, PyAny>>,
    ) -> PyResult<(usize, Bound<'py, PyAny>)> {
        let (n, first, seed) = which;
        let grid = &self.snapshot.blueprint.data.grid;
        let read = |(name, array): &(String, Option<PyReadonlyArrayDyn<'py, f64>>)| {
            let cases = match array {
                None => read_observations(std::slice::from_ref(name), grid),
                Some(array) => {
                    let values = array.as_slice().map_err(|e| Error::input(name, e))?;
                    observed_array(name, &format!("observe[{name:?}]"), array.shape(), values, grid)
                }
            };
            Ok((name.clone(), cases?))
        };
        let readings =
            sources.iter().map(read).collect::<Result<Vec<_>>>().and_then(observed_together).map_err(raise)?;
        let dataset = data.map(|data| data.dataset(py)).transpose()?;
        let samples = watch(py, self.callable(), progress.as_ref(), |job| {
            let trained = self.changed(&conditioned(conditioning, settings))?;
            let dataset = match dataset {
                Some(dataset) => dataset,
                None if trained.blueprint.config.data.path.is_none()
                    && trained.blueprint.config.data.generator.is_none() =>
                {
                    let problem = "the denoiser's errors are measured on data, and this model's were arrays in memory";
                    return Err(Error::input("data", problem).hint("give them again: data=dataset"));
                }
                None => trained.own_data()?,
            };
            self.check(&dataset)?;
            let noise = Noise::parse(&noise)?;
            let cases = readings.iter().map(|case| Observations::new(case, &noise, trained.measured()));
            let cases = cases.collect::<Result<Vec<_>>>()?;
            let config = &trained.blueprint.config;
            let knowledge = trained.knowledge(config.conditioning.method().needs(), &dataset, job)?;
            job.reporter.begin(n * (cases.len() * config.sampler.steps) as u64, 0);
            let indices: Vec<u64> = (first..first + n).collect();
            let draw = Draw { seed, indices: &indices, batch, observed: None };
            let posterior = trained.posterior(&cases, &knowledge, &draw, job)?;
            Ok(posterior.samples.into_iter().map(|value| value as f32).collect::<Vec<f32>>())
        })?;
        Ok((readings.len(), samples.into_pyarray(py).into_any()))
    }

    /// The likelihood of held-out samples, as JSON; `how` is the number of samples, that of probes, and the seed.
    #[pyo3(signature = (data, how, settings, progress=None))]
    fn nll(
        &self,
        py: Python<'_>,
        data: &Data,
        how: (usize, usize, u64),
        settings: Vec<String>,
        progress: Option<Bound<'_, PyAny>>,
    ) -> PyResult<String> {
        self.needs_derivative("a likelihood")?;
        let (count, probes, seed) = how;
        let dataset = data.dataset(py)?;
        let report = watch(py, self.callable(), progress.as_ref(), |job| {
            self.check(&dataset)?;
            let values = self.held_out(&dataset, count)?;
            let held_out =
                HeldOut { values: &values, shape: dataset.shape(), units: &self.snapshot.blueprint.data.units };
            job.reporter.begin((held_out.count() * softly::PROGRESS_PER_SAMPLE) as u64, 0);
            let trained = self.changed(&settings)?;
            let settings = Likelihood::for_model(&trained.blueprint.config);
            let settings = Likelihood { probes: Probes::Rademacher { count: probes }, ..settings };
            settings.evaluate(&trained.model, held_out, seed, job)
        })?;
        Ok(crate::data::json(&report))
    }

    /// The evaluation of samples against data, as JSON.
    #[pyo3(signature = (data, samples, likelihood, settings, progress=None))]
    fn evaluate(
        &self,
        py: Python<'_>,
        data: &Data,
        samples: usize,
        likelihood: usize,
        settings: Vec<String>,
        progress: Option<Bound<'_, PyAny>>,
    ) -> PyResult<String> {
        if likelihood > 0 {
            self.needs_derivative("a likelihood")?;
        }
        let dataset = data.dataset(py)?;
        // Arrays in memory say themselves which equation they obey.
        let other = data.path().is_none_or(|path| Some(path) != self.snapshot.blueprint.config.data.path.as_ref());
        let result = watch(py, self.callable(), progress.as_ref(), |job| {
            self.check(&dataset)?;
            let trained = self.changed(&settings)?;
            let loss = 4 * likelihood;
            let eval = FieldEval { samples, batch: BATCH, likelihood, likelihood_steps: 64, loss, keep: 0 };
            let eval = eval.unless_reduced();
            job.reporter.begin(eval.units(trained.blueprint.config.sampler.steps), 0);
            let evaluator = FieldEvaluator::for_model(&trained, &dataset, other)?;
            let (result, _) = eval.run(&trained, &evaluator, &dataset, job)?;
            Ok(json!({ "model": result, "references": evaluator.references()? }))
        })?;
        Ok(result.to_string())
    }

    /// What the directions of the constraint explain of the denoiser's error on `count` held-out samples, as JSON.
    #[pyo3(signature = (data, count, seed, settings, progress=None))]
    fn explained(
        &self,
        py: Python<'_>,
        data: &Data,
        count: usize,
        seed: u64,
        settings: Vec<String>,
        progress: Option<Bound<'_, PyAny>>,
    ) -> PyResult<String> {
        let dataset = data.dataset(py)?;
        let report = watch(py, self.callable(), progress.as_ref(), |job| {
            self.check(&dataset)?;
            let (snapshot, path, estimator) = (self.snapshot.clone(), self.path.clone(), self.estimator());
            let (trained, scd) = Trained::to_judge(snapshot, path, &settings, estimator.as_ref(), job.device)?;
            let blueprint = &trained.blueprint;
            let directions = Directions::of(blueprint, &scd, &trained.model, &dataset, job.device)?;
            let explained = Explained { batch: BATCH, ..Explained::for_model(&blueprint.config) };
            let values = self.held_out(&dataset, count)?;
            let held_out = HeldOut { values: &values, shape: dataset.shape(), units: &blueprint.data.units };
            job.reporter.begin((held_out.count() * explained.sigmas.len()) as u64, 0);
            explained.evaluate(&trained.model, &directions, held_out, seed, job)
        })?;
        Ok(crate::data::json(&report))
    }

    /// The intervals of learned numbers on `count` held-out samples, as JSON.
    #[pyo3(signature = (data, count, progress=None))]
    fn intervals(
        &self,
        py: Python<'_>,
        data: &Data,
        count: usize,
        progress: Option<Bound<'_, PyAny>>,
    ) -> PyResult<String> {
        let dataset = data.dataset(py)?;
        let found = watch(py, self.callable(), progress.as_ref(), |job: &Job<'_>| {
            self.check(&dataset)?;
            let values = self.held_out(&dataset, count)?;
            let held_out =
                HeldOut { values: &values, shape: dataset.shape(), units: &self.snapshot.blueprint.data.units };
            job.reporter.begin(held_out.count() as u64, 0);
            parameter_intervals(&self.trained.model, held_out, job)
        })?;
        Ok(crate::data::json(&found))
    }

    /// Writes the snapshot to a file.
    fn save(&self, path: PathBuf) -> PyResult<()> {
        self.snapshot.write(&path).map_err(raise)
    }

    /// Writes the page of run folders to a file.
    #[staticmethod]
    #[pyo3(signature = (folders, page, progress=None))]
    fn report(
        py: Python<'_>,
        folders: Vec<PathBuf>,
        page: PathBuf,
        progress: Option<Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        watch(py, None, progress.as_ref(), |job| softly_studies::write_runs_page(&folders, &page, job).map(|_| ()))
    }
}
