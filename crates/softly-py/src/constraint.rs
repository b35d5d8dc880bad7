//! Constraints on arrays.

use std::sync::{Arc, Mutex};

use numpy::{IntoPyArray, PyArray1, PyReadonlyArrayDyn};
use pyo3::prelude::*;
use softly::error::{Error, Result};
use softly::tensors::{field_batch, to_vec_f64};
use softly::units::Units;
use softly::{ConstraintConfig, SoftConstraint, audit_dataset, audit_text, fit_dataset};
use softly_pde::grid::Grid;
use softly_pde::mention::mentions;

use crate::data::Data;
use crate::error::{raise, refuse};
use crate::watch::{locked, pool, watch};

/// An array of doubles that comes in.
type Array<'py> = PyReadonlyArrayDyn<'py, f64>;
/// A flat array of doubles that goes out.
type Flat<'py> = Bound<'py, PyArray1<f64>>;

/// A constraint, compiled for the grid of the newest arrays. Arrays are C-contiguous; fields are `[N, H, W]`, residuals
/// `[N, E, H, W]` for E equations. Results are flat.
#[pyclass(frozen, module = "softly._core")]
pub struct Constraint {
    /// As in a configuration.
    pub config: ConstraintConfig,
    compiled: Mutex<Option<Arc<SoftConstraint>>>,
}

/// The grid of a JSON list of axes.
pub fn grid_of(axes: &str) -> Result<Grid> {
    serde_json::from_str(axes).map_err(|e| Error::input("axes", e))
}

/// Names in a formula that are no functions, axes or π, in their order.
#[pyfunction]
pub fn names(formula: &str, axes: &str) -> PyResult<Vec<String>> {
    let grid = grid_of(axes).map_err(raise)?;
    let found = mentions(formula, &grid).map_err(|e| refuse("constraint.residual", e, ""))?;
    let is_open = |name: &String| grid.find(name).is_none() && name != "pi";
    Ok(found.into_iter().map(|mention| mention.name).filter(is_open).collect())
}

impl Constraint {
    /// The constraint for fields on the grid of `axes`.
    fn compile(&self, axes: &str) -> Result<Arc<SoftConstraint>> {
        let grid = grid_of(axes)?;
        let mut compiled = locked(&self.compiled);
        match &*compiled {
            Some(ready) if *ready.grid() == grid => Ok(ready.clone()),
            _ => {
                let fields = &self.config.fields;
                let units = Units::identity(fields.len());
                let ready = Arc::new(SoftConstraint::new(&self.config, fields, &grid, &units)?);
                *compiled = Some(ready.clone());
                Ok(ready)
            }
        }
    }

    /// `work` on the compiled constraint, with the interpreter free for others.
    fn run<T: Send>(&self, py: Python<'_>, axes: &str, work: impl FnOnce(&SoftConstraint) -> T + Send) -> PyResult<T> {
        let (compiled, pool) = (self.compile(axes).map_err(raise)?, pool()?);
        Ok(py.detach(|| pool.install(|| work(&compiled))))
    }
}

/// The numbers of arrays.
fn slices<'a>(arrays: &'a [Array<'_>]) -> PyResult<Vec<&'a [f64]>> {
    let slice = |array: &'a Array<'_>| array.as_slice().map_err(|e| refuse("array", e, ""));
    arrays.iter().map(slice).collect()
}

/// The same of arrays that may be missing.
fn perhaps<'a>(arrays: &'a [Option<Array<'_>>]) -> PyResult<Vec<Option<&'a [f64]>>> {
    let slice = |array: &'a Option<Array<'_>>| {
        array.as_ref().map(|array| array.as_slice().map_err(|e| refuse("array", e, ""))).transpose()
    };
    arrays.iter().map(slice).collect()
}

#[pymethods]
impl Constraint {
    /// A constraint from JSON as in the table `[constraint]`.
    #[new]
    fn new(config: &str) -> PyResult<Self> {
        let config = serde_json::from_str(config).map_err(|e| refuse("constraint", e, ""))?;
        Ok(Self { config, compiled: Mutex::new(None) })
    }

    /// The constraint as TOML.
    fn toml(&self) -> String {
        softly::constraint_toml(&self.config)
    }

    /// Refuses a constraint that does not fit fields on the grid of `axes`.
    fn check(&self, axes: &str) -> PyResult<()> {
        self.compile(axes).map(|_| ()).map_err(raise)
    }

    /// R `[N, E, H, W]`.
    fn residual<'py>(&self, py: Python<'py>, axes: &str, fields: Vec<Array<'py>>) -> PyResult<Flat<'py>> {
        let fields = slices(&fields)?;
        Ok(self.run(py, axes, |constraint| constraint.residual_arrays(&fields))?.into_pyarray(py))
    }

    /// J·directions `[N, E, H, W]`.
    fn jvp<'py>(
        &self,
        py: Python<'py>,
        axes: &str,
        fields: Vec<Array<'py>>,
        directions: Vec<Option<Array<'py>>>,
    ) -> PyResult<Flat<'py>> {
        let (fields, directions) = (slices(&fields)?, perhaps(&directions)?);
        Ok(self.run(py, axes, |constraint| constraint.product_arrays(&fields, &directions))?.into_pyarray(py))
    }

    /// Jᵀ·cotangent, one array `[N, H, W]` per field.
    fn vjp<'py>(
        &self,
        py: Python<'py>,
        axes: &str,
        fields: Vec<Array<'py>>,
        cotangent: Array<'py>,
    ) -> PyResult<Vec<Flat<'py>>> {
        let (fields, cotangent) = (slices(&fields)?, cotangent.as_slice().map_err(|e| refuse("cotangent", e, ""))?);
        let all = self.run(py, axes, |constraint| constraint.transposed_arrays(&fields, cotangent))?;
        Ok(all.into_iter().map(|values| values.into_pyarray(py)).collect())
    }

    /// The change of Jᵀ·cotangent along directions, one array `[N, H, W]` per field.
    fn curvature<'py>(
        &self,
        py: Python<'py>,
        axes: &str,
        fields: Vec<Array<'py>>,
        cotangent: Array<'py>,
        directions: Vec<Option<Array<'py>>>,
    ) -> PyResult<Vec<Flat<'py>>> {
        let (fields, directions) = (slices(&fields)?, perhaps(&directions)?);
        let cotangent = cotangent.as_slice().map_err(|e| refuse("cotangent", e, ""))?;
        let all = self.run(py, axes, |constraint| constraint.curvature_arrays(&fields, cotangent, &directions))?;
        Ok(all.into_iter().map(|values| values.into_pyarray(py)).collect())
    }

    /// log l_c = −‖R‖ `[N]` and its gradient, one array `[N, H, W]` per field.
    fn gradient<'py>(
        &self,
        py: Python<'py>,
        axes: &str,
        fields: Vec<Array<'py>>,
    ) -> PyResult<(Flat<'py>, Vec<Flat<'py>>)> {
        let fields = slices(&fields)?;
        let (norm, gradient, nodes) = self.run(py, axes, |constraint| {
            let nodes = constraint.grid().len();
            let (c, n) = (fields.len(), fields[0].len() / nodes);
            let values = (0..n).flat_map(|i| fields.iter().flat_map(move |f| &f[i * nodes..(i + 1) * nodes])).copied();
            let shape = [c, constraint.grid().rows(), constraint.grid().cols()];
            let x = field_batch(values.collect(), shape, &burn::tensor::Device::flex());
            let (norm, gradient) = constraint.norm_and_gradient(&x);
            (to_vec_f64(norm), to_vec_f64(gradient), nodes)
        })?;
        let of_field = |k: usize| {
            let values: Vec<f64> =
                gradient.chunks_exact(nodes).skip(k).step_by(fields.len()).flatten().copied().collect();
            values.into_pyarray(py)
        };
        let log_likelihood: Vec<f64> = norm.into_iter().map(|norm| -norm).collect();
        Ok((log_likelihood.into_pyarray(py), (0..fields.len()).map(of_field).collect()))
    }

    /// The audit of training samples with parameters fitted to them: as JSON and as text.
    #[pyo3(signature = (data, fit, progress=None))]
    fn audit(
        &self,
        py: Python<'_>,
        data: &Data,
        fit: Vec<String>,
        progress: Option<Bound<'_, PyAny>>,
    ) -> PyResult<(String, String)> {
        let dataset = data.dataset(py)?;
        let config = &self.config;
        let found = watch(py, None, progress.as_ref(), |job| audit_dataset(config, &dataset, &fit, job))?;
        Ok((crate::data::json(&found), audit_text::lines(&found).join("\n").trim_start().to_string()))
    }

    /// Parameters fitted to training samples, as JSON.
    #[pyo3(signature = (data, names, progress=None))]
    fn fit(
        &self,
        py: Python<'_>,
        data: &Data,
        names: Vec<String>,
        progress: Option<Bound<'_, PyAny>>,
    ) -> PyResult<String> {
        let dataset = data.dataset(py)?;
        let config = &self.config;
        let found = watch(py, None, progress.as_ref(), |job| fit_dataset(config, &dataset, &names, job))?;
        Ok(crate::data::json(&found))
    }
}
