//! Where tensors live: the CPU, or a GPU back end that was compiled in.

use burn::tensor::{DType, Device};

use crate::error::{Error, Result, nearest};

/// Names of the devices in this build.
pub const NAMES: &[&str] = &[
    "cpu",
    #[cfg(feature = "wgpu")]
    "wgpu",
    #[cfg(feature = "vulkan")]
    "vulkan",
    #[cfg(feature = "metal")]
    "metal",
    #[cfg(feature = "cuda")]
    "cuda",
    #[cfg(feature = "rocm")]
    "rocm",
];

/// The device called `name`.
pub fn by_name(name: &str) -> Result<Device> {
    match name {
        "cpu" => Ok(Device::flex()),
        #[cfg(feature = "wgpu")]
        "wgpu" => Ok(Device::wgpu(burn::tensor::DeviceKind::DefaultDevice)),
        #[cfg(feature = "vulkan")]
        "vulkan" => Ok(Device::vulkan(burn::tensor::DeviceKind::DefaultDevice)),
        #[cfg(feature = "metal")]
        "metal" => Ok(Device::metal(burn::tensor::DeviceKind::DefaultDevice)),
        #[cfg(feature = "cuda")]
        "cuda" => Ok(Device::cuda(0usize)),
        #[cfg(feature = "rocm")]
        "rocm" => Ok(Device::rocm(0usize)),
        _ => {
            let gpu = ["wgpu", "vulkan", "metal", "cuda", "rocm"].contains(&name);
            let hint = if gpu {
                format!("build with `--features {name}`")
            } else {
                nearest(name, NAMES.iter().copied()).map_or(String::new(), |n| format!("did you mean `{n}`?"))
            };
            Err(Error::input("--device", format!("this build has no device `{name}`; it has: {}", NAMES.join(", ")))
                .hint(hint))
        }
    }
}

/// The precision of a sampler's state on `device`: f64 where the device has it.
pub fn state_dtype(device: &Device) -> DType {
    if device.supports_dtype(DType::F64) { DType::F64 } else { DType::F32 }
}
