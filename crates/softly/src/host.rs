//! The CPU, where double precision and our kernels are, beside another device that has neither.

use std::cell::Cell;

use burn::tensor::{DType, Device, Tensor};

use crate::tensors::count_transfers;

thread_local! {
    static COMPOSED: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work` with the CPU taken for another device on this thread: operations are composed of ordinary tensor operations, and
/// transfers are made and counted.
pub fn composed<T>(work: impl FnOnce() -> T) -> T {
    let before = COMPOSED.replace(true);
    let result = work();
    COMPOSED.set(before);
    result
}

/// The CPU.
pub(crate) fn host() -> Device {
    Device::flex()
}

/// Whether `device` is the CPU, with autodiff or without, and not taken for another device.
pub(crate) fn is_host(device: &Device) -> bool {
    !COMPOSED.get() && device.clone().without_autodiff() == host()
}

/// A tensor on the CPU, in double precision if it comes from another device.
pub(crate) fn to_host<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    if is_host(&x.device()) {
        return x;
    }
    count_transfers(0, 1);
    x.to_device(&host()).cast(DType::F64)
}

/// `work` of `x`, both `[N, C, H, W]`, and of the type to work in: on the CPU and in double precision if `x` is on another device,
/// else where `x` is and in `working`.
///
/// For what rounding errors are too large for in single precision: conjugate gradients stop after a fixed number of iterations, long
/// before an error is forgotten. One transfer down and one up; gradients take the same way back.
pub(crate) fn on_host(working: DType, x: &Tensor<4>, work: impl FnOnce(DType, &Tensor<4>) -> Tensor<4>) -> Tensor<4> {
    let device = x.device();
    if is_host(&device) {
        return work(working, x);
    }
    let there = to_host(x.clone());
    // The CPU is itself again, with its kernels.
    let before = COMPOSED.replace(false);
    let result = work(there.dtype(), &there);
    COMPOSED.set(before);
    count_transfers(1, 0);
    result.cast(x.dtype()).to_device(&device)
}
