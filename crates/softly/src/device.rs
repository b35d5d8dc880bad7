//! Where tensors live: the CPU, or a GPU back end that was compiled in.

use burn::tensor::{DType, Device};
use softly_kernels::simd::{Level, SETTING};

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

/// Every GPU back end, each a cargo feature of that name.
const GPUS: [&str; 5] = ["wgpu", "vulkan", "metal", "cuda", "rocm"];

/// The instruction set of the CPU's kernels.
pub fn vectors() -> Result<&'static str> {
    check_vectors().map(|()| Level::current().name())
}

/// Refuses an instruction set that the environment names and this machine does not have.
fn check_vectors() -> Result<()> {
    Level::asked_for().map(|_| ()).map_err(|found| {
        let known: Vec<&str> = Level::supported().into_iter().map(Level::name).collect();
        let problem = format!("expected an instruction set of this machine ({}), found `{found}`", known.join(", "));
        Error::input(SETTING, problem).hint("without the environment variable the best one is used")
    })
}

/// The device called `name`.
pub fn by_name(name: &str) -> Result<Device> {
    check_vectors()?;
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
        _ if GPUS.contains(&name) => {
            let problem = format!("this build has no device `{name}`; it has: {}", NAMES.join(", "));
            Err(Error::input("--device", problem)
                .hint(format!("build with the cargo feature `{name}`: cargo build --release --features {name}")))
        }
        _ => {
            let known = || std::iter::once("cpu").chain(GPUS);
            let problem =
                format!("there is no device `{name}`; expected one of {}", known().collect::<Vec<_>>().join(", "));
            let hint = nearest(name, known()).map_or(String::new(), |n| format!("did you mean `{n}`?"));
            Err(Error::input("--device", problem).hint(hint))
        }
    }
}

/// The precision of a sampler's state and of the physics on `device`: f64 on the CPU alone.
///
/// Most GPUs have none. Those that do need not have its functions: shaders define exponentials of f32 only, and on software
/// Vulkan exp of f64 is off by all of its value, without an error.
pub fn state_dtype(device: &Device) -> DType {
    if device.clone().without_autodiff() == Device::flex() { DType::F64 } else { DType::F32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_have_names_and_missing_ones_say_why() {
        for name in NAMES {
            let expected = if *name == "cpu" { DType::F64 } else { DType::F32 };
            assert_eq!(state_dtype(&by_name(name).unwrap()), expected, "{name}");
        }
        assert_eq!(by_name("cpu").unwrap(), Device::flex());
        for name in GPUS.iter().filter(|name| !NAMES.contains(name)) {
            let said = by_name(name).unwrap_err().to_string();
            assert!(said.contains("--device") && said.contains(&format!("--features {name}")), "{said}");
        }
        assert!(by_name("cuba").unwrap_err().to_string().contains("did you mean `cuda`?"));
        assert!(by_name("toaster").unwrap_err().to_string().contains("expected one of cpu, wgpu"));
    }
}
