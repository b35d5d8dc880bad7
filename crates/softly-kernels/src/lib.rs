//! CPU kernels on plain `f32` slices. The only crate of the workspace with `unsafe` code.
