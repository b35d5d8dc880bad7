//! CPU kernels on plain `f32` slices. The only crate of the workspace with `unsafe` code.
//!
//! Images are contiguous in the order batch, channel, row, column. Every function overwrites its outputs completely,
//! uses the threads of the current rayon pool, and returns the same bits for every number of threads. Slices whose
//! length does not fit the shape are programmer errors and panic.

// Kernels must be compiled inside the function that enables the instruction set, hence forced inlining.
#![allow(clippy::inline_always)]

pub mod conv1x1;
pub mod conv3x3;
mod gemm;
pub mod matmul;
mod scratch;
pub mod shape;
pub mod simd;
