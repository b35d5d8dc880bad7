//! The part of Burn that softly uses, under Burn's own paths: tensors, and what binds kernels of our own to them.
//!
//! Burn's umbrella crate also compiles modules, records, data loaders and layers, a tenth of a fresh build. Burn's macro for
//! own kernels writes paths that start with `burn::`, so crates depend on this one under that name.

/// Tensors on any device.
pub mod tensor {
    pub use burn_tensor::*;
}

/// Back ends, their dispatch, and the macro for kernels of our own.
pub mod backend {
    pub use burn_backend::*;
    pub use burn_backend_extension::backend_extension;
    pub use burn_dispatch::backend::*;
    pub use burn_dispatch::backends::*;
    pub use burn_dispatch::device::*;
    pub use burn_dispatch::devices::*;
    pub use burn_dispatch::tensor::*;
}
