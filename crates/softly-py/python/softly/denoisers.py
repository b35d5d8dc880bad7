"""Denoisers that exist elsewhere, as softly calls them: D(x; σ), the clean field behind x, a field plus noise of
deviation σ.

Whatever a network predicts, its denoiser is affine around it:

    D(x; σ) = a(σ) x + b(σ) F(c(σ) x, τ(σ))

Every convention of this module is such a quadruple (a, b, c, τ). Networks take and return NumPy arrays, or torch
tensors if they are torch modules (or wrapped in `softly.torch.function`).

>>> import numpy as np
>>> noise = epsilon(lambda x, t: x, alphas_cumprod=np.linspace(0.99, 0.01, 100))
>>> D = noise(np.ones((1, 1, 2, 2)), np.array([1.0]))  # D = x (1 - σ/√(1 + σ²)), as ε = x_t
>>> round(float(D[0, 0, 0, 0]), 6)
0.292893
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ._core import Error

#: a, b, c and τ of one noise level.
Coefficients = tuple[float, float, float, float]
#: `f(x, t)` of arrays `[N, C, H, W]` and `[N]`.
Network = Callable[..., Any]


class Denoiser:
    """D(x; σ) = a x + b F(c x, τ) around a network F, whose coefficients depend on σ.

    `coefficients(sigma)` gives (a, b, c, τ) of one noise level. `vjp(x, t, cotangent)` is the product of the
    network's transposed Jacobian with a cotangent; torch modules need none. `options` are further keyword arguments
    of the network, and `pick` takes the array out of what it returns.
    """

    def __init__(
        self,
        network: Network,
        coefficients: Callable[[float], Coefficients],
        vjp: Callable[..., Any] | None = None,
        options: dict[str, Any] | None = None,
        pick: Callable[[Any], Any] | None = None,
    ) -> None:
        if not callable(network):
            raise Error(f"denoiser: expected a function f(x, sigma), found {type(network).__name__}")
        self.network = network
        self.coefficients = coefficients
        self._vjp = vjp
        self._options = options or {}
        self._pick = pick

    @property
    def torch_module(self) -> Any:
        """The torch module inside, if the network is one."""
        module = getattr(self.network, "__softly_torch__", self.network)
        names = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(module).__mro__}
        return module if "torch.nn.modules.module.Module" in names or hasattr(module, "softly_device") else None

    @property
    def has_vjp(self) -> bool:
        """Whether D can be differentiated."""
        return self._vjp is not None or self.torch_module is not None

    def __call__(self, x: Any, sigma: Any) -> Any:
        """D(x; σ) of `x` `[N, C, H, W]` with one σ per sample, arrays of the network's own kind."""
        a, b, c, t = self._at(x, sigma)
        estimate = self._run(c * x if self._scales else x, t)
        return a * x + b * estimate if self._mixes else estimate

    def vjp(self, x: Any, sigma: Any, cotangent: Any) -> Any:
        """Jᵀ·cotangent with J = ∂D/∂x: a w + c·F's vjp of b w."""
        if self._vjp is None:
            raise Error("denoiser: it came without a vjp\nhint: give vjp=")
        a, b, c, t = self._at(x, sigma)
        return a * cotangent + c * self._vjp(c * x, t, b * cotangent, **self._options)

    _scales = True
    _mixes = True

    def _run(self, x: Any, t: Any) -> Any:
        found = self.network(x, t, **self._options)
        return found if self._pick is None else self._pick(found)

    def _at(self, x: Any, sigma: Any) -> tuple[Any, Any, Any, Any]:
        """The coefficients as arrays of the kind of `x`: a, b and c `[N, 1, 1, 1]`, and τ `[N]`, which NumPy's networks
        get in double precision."""
        levels = [float(s) for s in sigma]
        table = np.array([self.coefficients(s) for s in levels], dtype=np.float64)
        shape = (-1,) + (1,) * (x.ndim - 1)
        a, b, c = (_like(x, table[:, k]).reshape(shape) for k in range(3))
        return a, b, c, table[:, 3].copy() if isinstance(x, np.ndarray) else _like(x, table[:, 3])


class _Plain(Denoiser):
    """D(x; σ) itself."""

    _scales = False
    _mixes = False


def _like(x: Any, values: npt.NDArray[np.float64]) -> Any:
    """Numbers as an array of the kind, type and device of `x`."""
    if isinstance(x, np.ndarray):
        return values.astype(x.dtype)
    return x.new_tensor(values.tolist())


def edm(
    denoiser: Network,
    *,
    vjp: Callable[..., Any] | None = None,
    pick: Callable[[Any], Any] | None = None,
    **options: Any,
) -> Denoiser:
    """D(x, σ) as EDM, k-diffusion and PhysicsNeMo's preconditioners have it: the clean field itself.

    `options` are handed to every call, for example `condition=None` or `class_labels=None`.
    """
    return _Plain(denoiser, lambda sigma: (0.0, 1.0, 1.0, sigma), vjp, options, pick)


def edm_network(
    network: Network, *, sigma_data: float = 0.5, vjp: Callable[..., Any] | None = None, **options: Any
) -> Denoiser:
    """EDM's preconditioning around a bare network F(c_in x, ln(σ)/4)."""

    def coefficients(sigma: float) -> Coefficients:
        total = math.hypot(sigma, sigma_data)
        return (sigma_data / total) ** 2, sigma * sigma_data / total, 1 / total, math.log(sigma) / 4

    return Denoiser(network, coefficients, vjp, options)


class Schedule:
    """The noise levels σ_k = √((1 − ᾱ_k)/ᾱ_k) of a DDPM: `time(sigma)` is the (fractional) step with that level.

    Between two levels the step is interpolated in ln σ; beyond the first and the last one it stays there. With
    `whole` steps are rounded to whole numbers, for networks that know no others.

    >>> Schedule([0.8, 0.5, 0.2]).time(1.0)
    1.0
    """

    def __init__(self, alphas_cumprod: Sequence[float] | npt.NDArray[Any], whole: bool = False) -> None:
        alphas = np.asarray([float(a) for a in alphas_cumprod], dtype=np.float64)
        inside = ((alphas > 0) & (alphas < 1)).all()
        if len(alphas) < 2 or not inside or not (np.diff(alphas) < 0).all():
            raise Error("alphas_cumprod: expected at least two falling numbers between 0 and 1")
        self.log_sigmas = 0.5 * (np.log1p(-alphas) - np.log(alphas))
        self.whole = whole

    def time(self, sigma: float) -> float:
        """The step whose noise level is σ."""
        step = float(np.interp(math.log(sigma), self.log_sigmas, np.arange(len(self.log_sigmas))))
        return round(step) if self.whole else step


def epsilon(
    network: Network,
    *,
    alphas_cumprod: Sequence[float] | npt.NDArray[Any],
    whole: bool = False,
    vjp: Callable[..., Any] | None = None,
    pick: Callable[[Any], Any] | None = None,
    **options: Any,
) -> Denoiser:
    """A DDPM that predicts the noise ε from x_t = √ᾱ x₀ + √(1−ᾱ) ε and its step: D = x − σ ε, x_t = x/√(1+σ²)."""
    schedule = Schedule(alphas_cumprod, whole)
    return Denoiser(
        network, lambda s: (1.0, -s, 1 / math.hypot(1, s), schedule.time(s)), vjp, options, pick
    )


def velocity(
    network: Network,
    *,
    alphas_cumprod: Sequence[float] | npt.NDArray[Any],
    whole: bool = False,
    vjp: Callable[..., Any] | None = None,
    pick: Callable[[Any], Any] | None = None,
    **options: Any,
) -> Denoiser:
    """A DDPM that predicts v = √ᾱ ε − √(1−ᾱ) x₀: D = ᾱ x − √(1−ᾱ) v with ᾱ = 1/(1+σ²)."""
    schedule = Schedule(alphas_cumprod, whole)

    def coefficients(sigma: float) -> Coefficients:
        root = 1 / math.hypot(1, sigma)
        return root * root, -sigma * root, root, schedule.time(sigma)

    return Denoiser(network, coefficients, vjp, options, pick)


def clean(
    network: Network,
    *,
    alphas_cumprod: Sequence[float] | npt.NDArray[Any],
    whole: bool = False,
    vjp: Callable[..., Any] | None = None,
    pick: Callable[[Any], Any] | None = None,
    **options: Any,
) -> Denoiser:
    """A DDPM that predicts the clean field x₀ from x_t = √ᾱ x₀ + √(1−ᾱ) ε and its step."""
    schedule = Schedule(alphas_cumprod, whole)
    return Denoiser(network, lambda s: (0.0, 1.0, 1 / math.hypot(1, s), schedule.time(s)), vjp, options, pick)


def diffusers(network: Network, scheduler: Any, *, whole: bool = False, **options: Any) -> Denoiser:
    """A network with a scheduler of diffusers: ε, v or x₀ as `scheduler.config.prediction_type` says.

    The network is called as `network(x_t, step, **options)`; of what it returns `.sample` is taken if there is one.
    """
    config = scheduler.config
    kind = config["prediction_type"] if isinstance(config, dict) else config.prediction_type
    kinds = {"epsilon": epsilon, "v_prediction": velocity, "sample": clean}
    if kind not in kinds:
        raise Error(f"scheduler: expected the prediction type {', '.join(kinds)}, found {kind!r}")
    return kinds[kind](
        network,
        alphas_cumprod=scheduler.alphas_cumprod,
        whole=whole,
        pick=lambda found: getattr(found, "sample", found),
        **options,
    )


def flow_matching(
    network: Network, *, vjp: Callable[..., Any] | None = None, reverse: bool = False, **options: Any
) -> Denoiser:
    """A flow with x_t = (1−t) x₀ + t ε that predicts its velocity ε − x₀: D = x_t − t v, where t = σ/(1+σ) and x_t =
    (1−t) x.

    With `reverse` time runs the other way (noise at 0, data at 1), and the network predicts x₀ − ε.
    """

    def coefficients(sigma: float) -> Coefficients:
        t = sigma / (1 + sigma)
        return 1 - t, t if reverse else -t, 1 - t, 1 - t if reverse else t

    return Denoiser(network, coefficients, vjp, options)


def score(network: Network, *, vjp: Callable[..., Any] | None = None, **options: Any) -> Denoiser:
    """A score ∇ log p(x; σ) of fields with noise of deviation σ: D = x + σ² s(x, σ)."""
    return Denoiser(network, lambda sigma: (1.0, sigma * sigma, 1.0, sigma), vjp, options)


def azula(denoiser: Any, **options: Any) -> Denoiser:
    """A denoiser of azula: `denoiser(x_t, t)` with x_t = α_t x₀ + σ_t ε gives a posterior whose mean is the clean
    field.

    The time of a noise level σ = σ_t/α_t is found by bisection of the denoiser's schedule.
    """
    schedule = denoiser.schedule

    def at(t: float) -> tuple[float, float]:
        argument = _argument(denoiser, t)
        alpha, sigma = schedule(argument)
        return float(alpha), float(sigma)

    def coefficients(sigma: float) -> Coefficients:
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = 0.5 * (low + high)
            alpha, noise = at(middle)
            low, high = (middle, high) if noise < sigma * alpha else (low, middle)
        t = 0.5 * (low + high)
        return 0.0, 1.0, at(t)[0], t

    return Denoiser(denoiser, coefficients, None, options, lambda posterior: posterior.mean)


def _argument(denoiser: Any, t: float) -> Any:
    """A time as the schedule of a torch module takes it; a plain number otherwise."""
    if not hasattr(denoiser, "parameters"):
        return t
    torch = importlib.import_module("torch")
    return torch.tensor(t, dtype=torch.float64)


def denoiser_of(function: Any, vjp: Callable[..., Any] | None) -> Denoiser:
    """A user's denoiser: one of this module, or D(x, σ) itself."""
    if isinstance(function, Denoiser):
        if vjp is not None:
            raise Error("vjp: give it to the convention of the denoiser, which knows the network's")
        return function
    return edm(function, vjp=vjp)
