//! A Python function as a denoiser.

use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};

use burn::tensor::{DType, TensorData};
use numpy::{IntoPyArray, PyArrayDyn, PyArrayMethods, PyReadonlyArrayDyn};
use pyo3::prelude::*;
use softly::Estimator;

use crate::error::refuse;
use crate::watch::Board;

/// A call of a function that a working thread waits for.
pub struct Request {
    /// `[N, C, H, W]`.
    x: TensorData,
    sigma: Vec<f64>,
    /// Of Jᵀ·cotangent, if that is asked for, `[N, C, H, W]`.
    cotangent: Option<TensorData>,
    /// Where the answer goes; none if the function failed.
    pub reply: SyncSender<Option<TensorData>>,
}

/// A Python function `f(x, sigma)` and perhaps `vjp(x, sigma, cotangent)`. Arrays are C-contiguous and `[N, C, H, W]`, of the same
/// shape and of type float32 or float64 in both directions.
#[pyclass(frozen, module = "softly._core")]
pub struct Callable {
    function: Py<PyAny>,
    vjp: Option<Py<PyAny>>,
    /// Where working threads leave their calls.
    pub board: Arc<Board>,
}

#[pymethods]
impl Callable {
    #[new]
    #[pyo3(signature = (function, vjp=None))]
    fn new(function: Py<PyAny>, vjp: Option<Py<PyAny>>) -> Self {
        Self { function, vjp, board: Arc::default() }
    }
}

impl Callable {
    /// The function as the library calls it.
    pub fn estimator(&self) -> Arc<dyn Estimator> {
        Arc::new(Remote(self.board.clone()))
    }

    /// Whether D can be differentiated.
    pub fn has_vjp(&self) -> bool {
        self.vjp.is_some()
    }

    /// Calls the function on the caller's thread.
    pub fn answer(&self, py: Python<'_>, request: &Request) -> PyResult<TensorData> {
        let shape: Vec<usize> = request.x.shape().to_vec();
        let (x, sigma) = (array(py, request.x.clone())?, request.sigma.clone().into_pyarray(py));
        let answer = match (&request.cotangent, &self.vjp) {
            (None, _) => self.function.call1(py, (x, sigma))?,
            (Some(cotangent), Some(vjp)) => vjp.call1(py, (x, sigma, array(py, cotangent.clone())?))?,
            (Some(_), None) => {
                return Err(refuse(
                    "denoiser",
                    "its derivative is needed, and it comes without a vjp",
                    "give vjp=, or a torch module: its derivative is known",
                ));
            }
        };
        numbers(answer.bind(py), shape)
    }
}

/// Numbers `[N, C, H, W]` as a NumPy array, without a copy.
fn array(py: Python<'_>, data: TensorData) -> PyResult<Bound<'_, PyAny>> {
    let shape = data.shape().to_vec();
    Ok(match data.dtype() {
        DType::F64 => data.try_into_vec::<f64>().expect("f64").into_pyarray(py).reshape(shape)?.into_any(),
        _ => data.convert::<f32>().try_into_vec::<f32>().expect("f32").into_pyarray(py).reshape(shape)?.into_any(),
    })
}

/// The numbers of a NumPy array of the given shape.
fn numbers(answer: &Bound<'_, PyAny>, shape: Vec<usize>) -> PyResult<TensorData> {
    match answer.cast::<PyArrayDyn<f32>>() {
        Ok(array) => contiguous(&array.readonly(), shape),
        Err(_) => contiguous(&answer.cast::<PyArrayDyn<f64>>()?.readonly(), shape),
    }
}

fn contiguous<T: numpy::Element + burn::tensor::Element>(
    array: &PyReadonlyArrayDyn<'_, T>,
    shape: Vec<usize>,
) -> PyResult<TensorData> {
    match array.as_slice() {
        Ok(values) if values.len() == shape.iter().product::<usize>() => Ok(TensorData::new(values.to_vec(), shape)),
        _ => Err(refuse("denoiser", format!("expected a contiguous array {shape:?}, found another"), "")),
    }
}

/// The function as a working thread sees it.
struct Remote(Arc<Board>);

/// The end of work whose function has failed; the exception itself is with the caller's thread.
struct FunctionFailed;

impl Remote {
    fn ask(&self, x: TensorData, sigma: &[f64], cotangent: Option<TensorData>) -> Option<TensorData> {
        let (reply, answer) = sync_channel(1);
        self.0.push(Request { x, sigma: sigma.to_vec(), cotangent, reply });
        answer.recv().ok().flatten()
    }
}

impl Estimator for Remote {
    fn estimate(&self, x: TensorData, sigma: &[f64]) -> TensorData {
        // Without an estimate there is nothing to go on with: the work ends here, and nothing of this step is written.
        self.ask(x, sigma, None).unwrap_or_else(|| std::panic::resume_unwind(Box::new(FunctionFailed)))
    }

    fn transposed(&self, x: TensorData, sigma: &[f64], cotangent: TensorData) -> TensorData {
        // The graph is being walked and is left whole: the work stops after this step.
        let zeros = cotangent.clone();
        self.ask(x, sigma, Some(cotangent)).unwrap_or(zeros)
    }
}
