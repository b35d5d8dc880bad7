//! Networks: parameters, layers, their fused kernels, the optimiser.

pub mod backbone;
pub mod external;
pub mod lanes;
mod layers;
pub(crate) mod linear_map;
pub mod mlp;
pub mod mp_ops;
pub mod operator;
pub mod ops;
pub mod optimizer;
mod padding;
pub mod parameter;
pub mod precision;
pub mod recompute;
pub mod unet;
