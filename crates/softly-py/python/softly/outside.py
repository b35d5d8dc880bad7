"""A denoiser of the user as the core calls it: NumPy arrays in, NumPy arrays out, with errors that name what was
wrong."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _core
from ._core import Error
from .denoisers import Denoiser

Array = npt.NDArray[Any]


def outside(denoiser: Denoiser) -> _core.Callable:
    """The denoiser for the core."""
    estimate: Callable[..., Any] = denoiser
    derivative: Callable[..., Any] | None = denoiser.vjp if denoiser.has_vjp else None
    if denoiser.torch_module is not None:
        # Only here: NumPy is all that the package needs.
        bridge = importlib.import_module("softly.torch")
        estimate, derivative = bridge.as_functions(denoiser, denoiser.torch_module)
    return _core.Callable(_checked(estimate, "denoiser"), None if derivative is None else _checked(derivative, "vjp"))


def _checked(function: Callable[..., Any], name: str) -> Callable[..., Array]:
    def call(x: Array, *others: Array) -> Array:
        found = function(x, *others)
        if type(found).__module__.split(".")[0] == "torch":
            hint = "wrap it: softly.torch.function(f, device='cpu')"
            raise Error(f"{name}: expected a NumPy array, found a torch tensor\nhint: {hint}")
        if not isinstance(found, np.ndarray):
            raise Error(f"{name}: expected a NumPy array, found {type(found).__name__}")
        if found.shape != x.shape:
            raise Error(f"{name}: expected the shape of x, {list(x.shape)}, found {list(found.shape)}")
        if found.dtype not in (np.float32, np.float64):
            if found.dtype.kind != "f":
                raise Error(f"{name}: expected floating-point numbers, found {found.dtype}")
            found = found.astype(np.float32)
        if not np.isfinite(found).all():
            sample = int(np.argwhere(~np.isfinite(found))[0][0])
            level = f" at sigma = {others[0][sample]:.4g}" if others else ""
            raise Error(f"{name}: expected finite numbers, found others in sample {sample}{level}")
        return np.ascontiguousarray(found)

    return call
