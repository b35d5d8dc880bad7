"""softly in PyTorch: residuals that can be differentiated, torch denoisers for softly, softly models for torch.

>>> import torch, softly
>>> from softly.torch import Residual
>>> residual = Residual(softly.Constraint("dxx(u) + dyy(u)"))
>>> u = torch.rand(4, 16, 16, dtype=torch.float64, requires_grad=True)
>>> residual(u=u).square().mean().backward()  # a loss that knows the equation
>>> u.grad.shape
torch.Size([4, 16, 16])
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ._core import Error
from .constraint import Constraint
from .denoisers import Denoiser
from .model import Model

__all__ = ["ModelDenoiser", "Residual", "function"]


def _array(tensor: Tensor) -> Any:
    """A tensor as NumPy's: without a copy on the CPU."""
    return tensor.detach().cpu().numpy()


def _double(tensor: Tensor) -> Any:
    return tensor.detach().to("cpu", torch.float64).numpy()


class _Transposed(torch.autograd.Function):
    """Jᵀ w of all fields; its own derivatives are J v (by w) and the change of Jᵀ w along v (by the fields)."""

    @staticmethod
    def forward(ctx: Any, constraint: Constraint, weights: Tensor, *fields: Tensor) -> tuple[Tensor, ...]:
        ctx.constraint = constraint
        ctx.save_for_backward(weights, *fields)
        arrays = {name: _double(field) for name, field in zip(constraint.fields, fields)}
        found = constraint.vjp(_double(weights), **arrays)
        return tuple(torch.from_numpy(found[name]).to(field) for name, field in zip(constraint.fields, fields))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *directions: Tensor | None) -> tuple[Tensor | None, ...]:
        weights, *fields = ctx.saved_tensors
        names = ctx.constraint.fields
        arrays = {name: _double(field) for name, field in zip(names, fields)}
        along = {name: _double(v) for name, v in zip(names, directions) if v is not None}
        by_weights = torch.from_numpy(ctx.constraint.jvp(along, **arrays)).to(weights)
        change = ctx.constraint.curvature(_double(weights), along, **arrays)
        return None, by_weights, *(torch.from_numpy(change[name]).to(field) for name, field in zip(names, fields))


class _Residual(torch.autograd.Function):
    """R of all fields; its derivative is `_Transposed`, so that it can be differentiated twice."""

    @staticmethod
    def forward(ctx: Any, constraint: Constraint, *fields: Tensor) -> Tensor:
        ctx.constraint = constraint
        ctx.save_for_backward(*fields)
        arrays = {name: _double(field) for name, field in zip(constraint.fields, fields)}
        return torch.from_numpy(constraint.residual(**arrays)).to(fields[0])

    @staticmethod
    def backward(ctx: Any, weights: Tensor) -> tuple[Tensor | None, ...]:
        return None, *_Transposed.apply(ctx.constraint, weights, *ctx.saved_tensors)


class Residual(torch.nn.Module):
    """R of tensors `[N, H, W]` (or `[H, W]`) as an operation of torch that can be differentiated twice.

    Computed in double precision on the CPU; the result has the type and the device of the first field.
    """

    def __init__(self, constraint: Constraint) -> None:
        super().__init__()
        self.constraint = constraint

    def forward(self, **fields: Tensor) -> Tensor:
        """R of every sample and node."""
        names = self.constraint.fields
        if set(fields) != set(names):
            raise Error(f"fields: expected {', '.join(names)}, found {', '.join(fields) or 'none'}")
        tensors = [fields[name] for name in names]
        for name, tensor in zip(names, tensors):
            if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
                raise Error(f"{name}: expected a tensor of floating-point numbers")
            if tensor.shape != tensors[0].shape:
                raise Error(f"{name}: expected the shape {list(tensors[0].shape)}, found {list(tensor.shape)}")
        found: Tensor = _Residual.apply(self.constraint, *tensors)
        return found


class _Function:
    """A plain function of tensors with a device and a type."""

    def __init__(self, call: Callable[..., Any], device: Any, dtype: torch.dtype) -> None:
        self.call = call
        self.softly_device = torch.device(device)
        self.softly_dtype = dtype

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self.call(*arguments, **options)


def function(call: Callable[..., Any], device: Any = "cpu", dtype: torch.dtype = torch.float32) -> Callable[..., Any]:
    """A function of torch tensors for `softly.adapt(denoiser=…)` and `softly.denoisers`: softly hands it tensors of
    this device and type.

    Modules need no wrapping: their parameters say where they live.
    """
    return _Function(call, device, dtype)


def as_functions(denoiser: Denoiser, module: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """D and its vjp on NumPy arrays, computed by torch."""
    if isinstance(module, _Function):
        device, dtype = module.softly_device, module.softly_dtype
    else:
        first = next(iter(module.parameters()), None)
        device, dtype = (torch.device("cpu"), torch.float32) if first is None else (first.device, first.dtype)

    def tensor(array: Any) -> Tensor:
        # torch shares the memory of writable arrays of its own type.
        return torch.from_numpy(array).to(device, dtype)

    def back(found: Any, x: Any) -> Any:
        if not isinstance(found, Tensor):
            raise Error(f"denoiser: expected a torch tensor, found {type(found).__name__}")
        array = _array(found.float() if found.dtype in (torch.float16, torch.bfloat16) else found)
        return array.astype(np.result_type(array.dtype, x.dtype), copy=False)

    def estimate(x: Any, sigma: Any) -> Any:
        with torch.no_grad():
            return back(denoiser(tensor(x), tensor(sigma)), x)

    def vjp(x: Any, sigma: Any, cotangent: Any) -> Any:
        with torch.enable_grad():
            noisy = tensor(x).detach().requires_grad_(True)
            found = denoiser(noisy, tensor(sigma))
            (gradient,) = torch.autograd.grad(found, noisy, tensor(cotangent))
        return back(gradient, x)

    return estimate, vjp


class _Denoise(torch.autograd.Function):
    """D(x; σ) of a softly model."""

    @staticmethod
    def forward(ctx: Any, model: Model, x: Tensor, sigma: Tensor) -> Tensor:
        ctx.model = model
        ctx.save_for_backward(x, sigma)
        array = _array(x.float() if x.dtype in (torch.float16, torch.bfloat16) else x)
        return torch.from_numpy(model.denoise(array, _double(sigma))).to(x)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, weights: Tensor) -> tuple[Tensor | None, ...]:
        x, sigma = ctx.saved_tensors
        return None, torch.from_numpy(ctx.model.vjp(_double(x), _double(sigma), _double(weights))).to(x), None


class ModelDenoiser(torch.nn.Module):
    """A softly model as a torch callable: D(x; σ) of tensors `[N, C, H, W]` and `[N]`, differentiable by x."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, sigma: Tensor | float) -> Tensor:
        """D(x; σ) in the network's units."""
        levels = torch.as_tensor(sigma, dtype=torch.float64).reshape(-1)
        levels = levels.expand(len(x)) if len(levels) == 1 else levels
        found: Tensor = _Denoise.apply(self.model, x, levels)
        return found
