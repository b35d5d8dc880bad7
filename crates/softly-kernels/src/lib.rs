//! CPU kernels on plain `f32` slices. The only crate of the workspace with `unsafe` code.
//!
//! Images are contiguous in the order batch, channel, row, column. Every function overwrites its outputs completely,
//! uses the threads of the current rayon pool, and returns the same bits for every number of threads. Slices whose
//! length does not fit the shape are programmer errors and panic.

// Kernels must be compiled inside the function that enables the instruction set, hence forced inlining.
#![allow(clippy::inline_always)]
// For the same reason loops over small arrays are not written with closures.
#![allow(clippy::needless_range_loop)]

pub mod activation;
pub mod adam;
pub mod attention;
pub mod axis;
pub mod conv1x1;
pub mod conv3x3;
mod elementwise;
mod gemm;
mod interleave;
pub mod matmul;
pub mod mp;
pub mod norm;
pub mod peak;
pub mod resample;
pub mod scratch;
pub mod shape;
pub mod simd;
mod winograd;
