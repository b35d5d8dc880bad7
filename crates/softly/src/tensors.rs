//! Tensors from numbers and numbers from tensors: all transfers between the host and a device.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use burn::tensor::{DType, Device, Tensor, TensorData, Transaction};
use softly_pde::grid::Grid;

use crate::device::state_dtype;
use crate::host::is_host;

/// A batch of fields `[N, C, H, W]` in the device's best precision from row-major values.
pub fn field_batch(values: Vec<f64>, [c, h, w]: [usize; 3], device: &Device) -> Tensor<4> {
    let n = values.len() / (c * h * w);
    uploaded(TensorData::new(values, [n, c, h, w]), device, state_dtype(device))
}

/// One number per sample as `[N, 1, 1, 1]`, a constant of the same type and device as `like`.
pub fn per_sample(values: impl Iterator<Item = f64>, like: &Tensor<4>) -> Tensor<4> {
    let values: Vec<f64> = values.collect();
    let n = values.len();
    constant(values, [n, 1, 1, 1], &like.device(), like.dtype())
}

/// `x` in numbers of the type `dtype`.
pub(crate) fn in_type<const D: usize>(x: &Tensor<D>, dtype: DType) -> Tensor<D> {
    if x.dtype() == dtype { x.clone() } else { x.clone().cast(dtype) }
}

/// One number per node as a tensor `[1, H, W]` of the type and device of `like`.
pub(crate) fn per_node(values: Vec<f64>, grid: &Grid, like: &Tensor<4>) -> Tensor<3> {
    constant(values, [1, grid.rows(), grid.cols()], &like.device(), like.dtype())
}

/// `data` on `device`, as numbers of the type `dtype`.
pub(crate) fn uploaded<const D: usize>(data: TensorData, device: &Device, dtype: DType) -> Tensor<D> {
    if !is_host(device) {
        count_transfers(1, 0);
    }
    Tensor::from_data(data, (device, dtype))
}

/// Flat constants of one device by their type and the bits of their values.
type Constants = HashMap<(DType, Vec<u64>), Tensor<1>>;

/// Constants on devices, and their numbers in all.
#[derive(Default)]
struct Known {
    /// By device: there is one in all but tests.
    tensors: Vec<(Device, Constants)>,
    numbers: usize,
}

static KNOWN: Mutex<Option<Known>> = Mutex::new(None);

/// Numbers and constants that are kept on devices, at most: 64 MB.
const MOST_NUMBERS: usize = 1 << 24;
const MOST_CONSTANTS: usize = 1 << 14;

/// Row-major `values` of the given shape that are not differentiated. Another device than the CPU keeps them, and is not sent the same
/// numbers twice.
pub(crate) fn constant<const D: usize>(
    values: Vec<f64>,
    shape: [usize; D],
    device: &Device,
    dtype: DType,
) -> Tensor<D> {
    let device = device.clone().without_autodiff();
    if is_host(&device) {
        return Tensor::from_data(TensorData::new(values, shape), (&device, dtype));
    }
    let sent = |sent: &Sent| {
        let mut columns = sent.columns.iter().filter(|_| sent.device == device && dtype == DType::F32);
        columns.find(|(column, _)| *column == values).map(|(_, tensor)| tensor.clone())
    };
    if let Some(column) = SENT.with_borrow(|now| now.as_ref().and_then(sent)) {
        return column.reshape(shape);
    }
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let known = known.get_or_insert_default();
    let constants: usize = known.tensors.iter().map(|(_, constants)| constants.len()).sum();
    if known.numbers + values.len() > MOST_NUMBERS || constants >= MOST_CONSTANTS {
        *known = Known::default();
    }
    let key = (dtype, values.iter().map(|value| value.to_bits()).collect::<Vec<u64>>());
    let at = known.tensors.iter().position(|(place, _)| *place == device).unwrap_or_else(|| {
        known.tensors.push((device.clone(), HashMap::new()));
        known.tensors.len() - 1
    });
    let len = values.len();
    let found = known.tensors[at].1.entry(key).or_insert_with(|| {
        known.numbers += len;
        uploaded(TensorData::new(values, [len]), &device, dtype)
    });
    found.clone().reshape(shape)
}

/// Constants that travelled with a batch.
struct Sent {
    device: Device,
    columns: Vec<(Vec<f64>, Tensor<1>)>,
}

thread_local! {
    static SENT: RefCell<Option<Sent>> = const { RefCell::new(None) };
}

/// `work` with `values` of the given shape on `device`. Constants that this thread wants meanwhile are not sent if they are among
/// `columns`, which travel with the values, in one transfer.
pub(crate) fn sent_along<R>(
    mut values: Vec<f32>,
    shape: [usize; 4],
    columns: Vec<Vec<f64>>,
    device: &Device,
    work: impl FnOnce(Tensor<4>) -> R,
) -> R {
    if is_host(device) {
        return work(uploaded(TensorData::new(values, shape), device, DType::F32));
    }
    let len = values.len();
    values.extend(columns.iter().flatten().map(|&value| value as f32));
    let count = values.len();
    let all: Tensor<1> = uploaded(TensorData::new(values, [count]), device, DType::F32);
    let mut first = len;
    let part = |column: Vec<f64>| {
        let own = all.clone().narrow(0, first, column.len());
        first += column.len();
        (column, own)
    };
    let columns = columns.into_iter().map(part).collect();
    let before = SENT.replace(Some(Sent { device: device.clone().without_autodiff(), columns }));
    let result = work(all.narrow(0, 0, len).reshape(shape));
    SENT.replace(before);
    result
}

/// Transfers between the host and other devices.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Transfers {
    /// To devices.
    pub up: u64,
    /// From devices: each waits for all work before it.
    pub down: u64,
}

thread_local! {
    static TRANSFERS: Cell<Transfers> = const { Cell::new(Transfers { up: 0, down: 0 }) };
}

/// The transfers of this thread so far.
pub fn transfers() -> Transfers {
    TRANSFERS.get()
}

/// Counts transfers that are made elsewhere.
pub(crate) fn count_transfers(up: u64, down: u64) {
    let before = TRANSFERS.get();
    TRANSFERS.set(Transfers { up: before.up + up, down: before.down + down });
}

/// The numbers of a tensor on the host.
fn downloaded<const D: usize>(tensor: Tensor<D>) -> TensorData {
    if !is_host(&tensor.device()) {
        count_transfers(0, 1);
    }
    tensor.into_data()
}

/// The values of several flat tensors of one device, in one transfer.
pub(crate) fn downloaded_together(tensors: Vec<Tensor<1>>) -> Vec<Vec<f32>> {
    let Some(first) = tensors.first() else { return Vec::new() };
    if !is_host(&first.device()) {
        count_transfers(0, 1);
    }
    let all = tensors.into_iter().fold(Transaction::default(), Transaction::register);
    let values = |data: TensorData| data.convert::<f32>().try_into_vec().expect("converted to f32");
    all.execute().into_iter().map(values).collect()
}

/// The row-major values of a tensor as `f32`.
pub fn to_vec_f32<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    downloaded(tensor).convert::<f32>().try_into_vec().expect("converted to f32")
}

/// The row-major values of a tensor as `f64`.
pub fn to_vec_f64<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    downloaded(tensor).convert::<f64>().try_into_vec().expect("converted to f64")
}
