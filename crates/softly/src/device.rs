//! Where tensors live: the CPU, or a GPU back end that was compiled in.

use burn::tensor::{DType, Device, Tensor};
use softly_kernels::simd::{Level, SETTING};

use crate::error::{Error, Result, nearest};
use crate::failure;
use crate::host::host;

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
        "cpu" => Ok(host()),
        #[cfg(feature = "wgpu")]
        "wgpu" => started(name, Device::wgpu(burn::tensor::DeviceKind::DefaultDevice)),
        #[cfg(feature = "vulkan")]
        "vulkan" => started(name, Device::vulkan(burn::tensor::DeviceKind::DefaultDevice)),
        #[cfg(feature = "metal")]
        "metal" => started(name, Device::metal(burn::tensor::DeviceKind::DefaultDevice)),
        #[cfg(feature = "cuda")]
        "cuda" => started(name, Device::cuda(0usize)),
        #[cfg(feature = "rocm")]
        "rocm" => started(name, Device::rocm(0usize)),
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

/// `device` after it has computed something: back ends start at their first use, and say by a panic that they cannot.
#[cfg_attr(
    not(any(feature = "wgpu", feature = "vulkan", feature = "metal", feature = "cuda", feature = "rocm")),
    allow(dead_code)
)]
fn started(name: &str, device: Device) -> Result<Device> {
    let first = || Tensor::<1>::from_data([1.0f32, 2.0], &device).sum().into_scalar::<f32>();
    let problem = match failure::heard(first) {
        Ok(3.0) => {
            failure::device_is_at_work();
            return Ok(device);
        }
        Ok(sum) => format!("`{name}` says that 1 + 2 is {sum}"),
        Err(why) => format!("`{name}` does not start: {why}"),
    };
    Err(Error::input("--device", problem).hint(
        "is there such a device, and its driver? Without a GPU, Debian's package mesa-vulkan-drivers gives wgpu and vulkan one in \
         software; or compute on the CPU",
    ))
}

/// The precision of a sampler's state and of the physics on `device`: f64 on the CPU alone.
///
/// Most GPUs have none. Those that do need not have its functions: shaders define exponentials of f32 only, and on software
/// Vulkan exp of f64 is off by all of its value, without an error.
pub fn state_dtype(device: &Device) -> DType {
    if device.clone().without_autodiff() == host() { DType::F64 } else { DType::F32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_does_not_compute_is_refused_by_name() {
        assert_eq!(started("cpu", Device::flex()).unwrap(), Device::flex());
        let said = failure::heard::<()>(|| panic!("no adapter")).unwrap_err();
        assert_eq!(said, "no adapter");
    }

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
