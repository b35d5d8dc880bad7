"""Trained models."""

from __future__ import annotations

import html
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

import numpy as np
import numpy.typing as npt

from . import _core
from ._core import Error
from .arrays import Array, doubles, finite, numbers
from .axes import Axis, axes_of
from .constraint import Constraint
from .dataset import Dataset
from .progress import display
from .settings import as_settings

Floats = npt.NDArray[np.float32]

#: What was measured: tables of sensors, and arrays by field or formula.
Observed = Union[str, "os.PathLike[str]", Mapping[str, Array], Sequence[Union[str, "os.PathLike[str]", Mapping[str, Array]]]]

#: Numbers that one call may draw: 8 GB of them while they are made.
MOST_NUMBERS = 1 << 30


@dataclass(frozen=True)
class Likelihood:
    """−log₂ p of held-out samples in bits per dimension, in the network's units and in physical ones.

    `standard_error` is that of the mean over samples, `samples` has the number of every one, and `found` has all the
    rest.
    """

    bits_per_dim: float
    bits_per_dim_physical: float
    standard_error: float | None
    samples: npt.NDArray[np.float64]
    found: dict[str, Any]

    def __repr__(self) -> str:
        error = "" if self.standard_error is None else f" ± {2 * self.standard_error:.3f}"
        return f"NLL {self.bits_per_dim:.3f}{error} bits/dim ({len(self.samples)} held-out samples)"


class Evaluation:
    """Samples of a model against data; `found` has every number that `softly eval --json` prints."""

    def __init__(self, found: dict[str, Any]) -> None:
        self.found = found

    @property
    def residual(self) -> float | None:
        """Mean |R| of samples with the true equation, if there is one."""
        return _mean(self.found["model"]["metrics"])

    @property
    def references(self) -> dict[str, float | None]:
        """Mean |R| of what samples may be compared with: the data, and more."""
        return {row["name"]: _mean(row["metrics"]) for row in self.found["references"]}

    @property
    def nll(self) -> float | None:
        """−log₂ p of held-out samples in bits per dimension, in the network's units, if it was asked for."""
        bits = self.found["model"].get("likelihood")
        return None if bits is None else float(bits["normalised"])

    @property
    def scatter(self) -> dict[str, float]:
        """The standard deviation of samples over that of the data, by field."""
        fields = self.found["model"]["metrics"]["fields"]
        return {field["name"]: field["samples"]["std"] / field["data"]["std"] for field in fields}

    def _rows(self) -> list[tuple[str, str]]:
        def number(value: float | None) -> str:
            return "–" if value is None else f"{value:.4g}"

        rows = [("mean |R|", number(self.residual))]
        rows += [(f"mean |R| of {name}", number(value)) for name, value in self.references.items()]
        rows += [(f"std of {name} / data's", number(value)) for name, value in self.scatter.items()]
        return rows + ([] if self.nll is None else [("NLL, bits/dim", number(self.nll))])

    def __repr__(self) -> str:
        width = max(len(name) for name, _ in self._rows())
        return "\n".join(f"{name:{width}}  {value}" for name, value in self._rows())

    def _repr_html_(self) -> str:
        cells = (f"<tr><td>{html.escape(name)}</td><td>{value}</td></tr>" for name, value in self._rows())
        return f"<table>{''.join(cells)}</table>"


def _mean(metrics: Mapping[str, Any]) -> float | None:
    residual = metrics.get("residual")
    if residual is None:
        return None
    return float(residual["summary"]["mean"] if "summary" in residual else residual["mean"])


class Explained:
    """The share of the denoiser's error that the directions of an equation explain, by noise level: is it worth a
    training?"""

    def __init__(self, found: dict[str, Any]) -> None:
        self.found = found

    @property
    def directions(self) -> list[str]:
        """Names of the directions."""
        return [str(name) for name in self.found["directions"]]

    @property
    def sigmas(self) -> list[float]:
        """The noise levels."""
        return [float(level["sigma"]) for level in self.found["levels"]]

    @property
    def span(self) -> list[float]:
        """The share that all directions explain together, by noise level."""
        return [float(level["span"]) for level in self.found["levels"]]

    def __repr__(self) -> str:
        head = ["σ", "error", *self.directions, "together"]
        rows = []
        for level in self.found["levels"]:
            shares = [f"{100 * share:.1f} %" for share in [*level["alone"], level["span"]]]
            rows.append([f"{level['sigma']:.3g}", f"{level['error']:.2e}", *shares])
        widths = [max(len(row[k]) for row in [head, *rows]) for k in range(len(head))]
        return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in [head, *rows])


@dataclass(frozen=True)
class Parameter:
    """A learned parameter: its value, and with held-out data a 95 % interval and whether they identify it."""

    name: str
    value: float | Array
    interval: tuple[float, float] | None = None
    estimate: float | None = None
    verdict: str | None = None


class Model:
    """A denoiser with or without a soft constraint, as `train`, `adapt` and `load` return it."""

    def __init__(self, core: _core.Model, run: str | None) -> None:
        self._core = core
        self._info: dict[str, Any] = json.loads(core.info())
        #: The run folder, if there is one.
        self.run: str | None = run

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields, in the order of the channels."""
        return tuple(self._info["fields"])

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The axes: rows, then columns."""
        return axes_of(self._info["grid"])

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, rows and columns of a sample."""
        rows, columns = [axis.nodes or 1 for axis in self.axes] or [1, 1]
        return len(self.fields), rows, columns

    @property
    def sigma_data(self) -> float:
        """The standard deviation of the data in the network's units."""
        return float(self._info["sigma_data"])

    @property
    def units(self) -> dict[str, tuple[float, float]]:
        """Mean and scale of every field: physical = mean + scale · the network's number."""
        units = self._info["units"]
        return {name: (mean, scale) for name, mean, scale in zip(self.fields, units["mean"], units["scale"])}

    @property
    def constraint(self) -> Constraint | None:
        """The equation that the model was given, if any."""
        known = self._info["constraint"]
        return None if known is None or not self.axes else Constraint._from_config(known, self.axes)

    @property
    def config(self) -> str:
        """The whole configuration, as TOML."""
        return self._core.config()

    @property
    def parameters(self) -> dict[str, Parameter]:
        """Learned parameters of the equation; `intervals` says how well data know them."""
        def value(numbers: list[float]) -> float | Array:
            return numbers[0] if len(numbers) == 1 else np.array(numbers).reshape(self.shape[1:])

        return {name: Parameter(name, value(found)) for name, found in self._info["learned"].items()}

    def intervals(self, data: Dataset, *, count: int = 64, progress: bool = True) -> dict[str, Parameter]:
        """Learned numbers with the 95 % interval that held-out samples of `data` leave them."""
        with display(progress, "samples") as shown:
            found = json.loads(self._core.intervals(data._data(), count, shown))

        def parameter(entry: Mapping[str, Any]) -> Parameter:
            ends = entry["interval"]
            interval = None if ends is None else (float(ends[0]), float(ends[1]))
            return Parameter(entry["name"], float(entry["value"]), interval, entry["estimate"], entry["verdict"])

        return {entry["name"]: parameter(entry) for entry in found}

    def denoise(self, x: Array, sigma: float | Array | Sequence[float]) -> Array:
        """D(x; σ) of `x` `[N, C, H, W]` in the network's units, with one σ for all or one per sample; float32 stays
        float32."""
        fields, levels = self._noisy(x, sigma)
        return self._core.denoise(np.ascontiguousarray(fields), levels).reshape(fields.shape)

    def vjp(self, x: Array, sigma: float | Array | Sequence[float], cotangent: Array) -> npt.NDArray[np.float64]:
        """Jᵀ·cotangent with J = ∂D/∂x at `x` `[N, C, H, W]`."""
        fields, levels = self._noisy(x, sigma)
        weights = numbers("cotangent", cotangent)
        if weights.shape != fields.shape:
            raise Error(f"cotangent: expected the shape of x, {list(fields.shape)}, found {list(weights.shape)}")
        return self._core.vjp(doubles(fields), levels, doubles(weights)).reshape(fields.shape)

    def normalised(self, **fields: Array) -> npt.NDArray[np.float64]:
        """Fields `[N, H, W]` in physical units as one array `[N, C, H, W]` in the network's."""
        missing = set(self.fields) ^ set(fields)
        if missing:
            raise Error(f"fields: expected {', '.join(self.fields)}, found {', '.join(fields)}")
        parts = [(numbers(name, fields[name]) - mean) / scale for name, (mean, scale) in self.units.items()]
        return np.stack(parts, axis=1).astype(np.float64)

    def sample(
        self,
        n: int,
        seed: int = 0,
        *,
        first: int = 0,
        steps: int | None = None,
        compliance: float | str | None = None,
        observe: Observed | None = None,
        noise: float | str | Mapping[str, float | str] | None = None,
        conditioning: str | None = None,
        data: Dataset | None = None,
        batch: int = 64,
        progress: bool = True,
        **settings: object,
    ) -> dict[str, Floats]:
        """`n` samples as named arrays `[n, H, W]` in physical units; sample i depends on (seed, i) alone.

        `compliance` turns the soft constraint down (0) or up ("full"); other settings of the sampler are written as in
        `sampler={"solver": "heun"}` or `sampler__rho=5`.

        `observe` draws samples given measurements: a table of sensors (a path), a dictionary from fields or formulas
        to arrays `[H, W]` with NaN where nothing is known, or a list of these. `noise` is the standard deviation of
        readings that do not say their own: `{"p": 0.01}` in the field's units, `{"p": "1%"}` of its deviation in the
        training data, or `"1%"` for all. `conditioning` names another method than "kalman". With arrays
        `[M, H, W]`, or a table of M samples, the result is `[M, n, H, W]`. The denoiser's errors are measured on the
        training data, from `data` if these were arrays in memory.
        """
        for name, number, least in (("n", n, 1), ("seed", seed, 0), ("first", first, 0), ("batch", batch, 1)):
            if not isinstance(number, (int, np.integer)) or isinstance(number, bool) or number < least:
                raise Error(f"{name}: expected a whole number of at least {least}, found {number!r}")
        most = MOST_NUMBERS // int(np.prod(self.shape))
        if n > most:
            hint = "draw them in parts with first="
            raise Error(f"n: expected at most {most} samples of this model at a time, found {n}\nhint: {hint}")
        words = _settings(settings, compliance) + ([] if steps is None else [f"sampler.steps={steps}"])
        which = int(n), int(first), int(seed)
        if observe is not None:
            given = _sources(observe), which, int(batch), _levels(noise), conditioning, words
            with display(progress, "sample-steps") as shown:
                cases, flat = self._core.posterior(*given, None if data is None else data._data(), shown)
            shape = (int(n),) if cases == 1 else (cases, int(n))
            values = flat.reshape(*shape, *self.shape)
            return {name: values[..., channel, :, :] for channel, name in enumerate(self.fields)}
        for name, value in (("noise", noise), ("conditioning", conditioning), ("data", data)):
            if value is not None:
                raise Error(f"{name}: goes with observe=, and nothing is observed")
        with display(progress, "sample-steps") as shown:
            flat = self._core.sample(which, int(batch), words, shown)
        values = flat.reshape(int(n), *self.shape)
        return {name: values[:, channel] for channel, name in enumerate(self.fields)}

    def nll(
        self,
        data: Dataset,
        *,
        count: int = 64,
        probes: int = 1,
        seed: int = 0,
        compliance: float | str | None = None,
        progress: bool = True,
        **settings: object,
    ) -> Likelihood:
        """−log₂ p of held-out samples of `data`, by the probability-flow ODE with `probes` probes of its divergence.

        With `compliance=0` it is the likelihood of the denoiser below the constraint.
        """
        words = _settings(settings, compliance)
        with display(progress, "hundredths of samples") as shown:
            found = json.loads(self._core.nll(data._data(), (count, probes, seed), words, shown))
        samples = np.array([sample["bits_per_dim"] for sample in found["samples"]])
        bits = found["bits_per_dim"], found["bits_per_dim_physical"]
        return Likelihood(*bits, found["standard_error"], samples, found)

    def evaluate(
        self,
        data: Dataset,
        *,
        samples: int = 64,
        nll: int = 0,
        compliance: float | str | None = None,
        progress: bool = True,
        **settings: object,
    ) -> Evaluation:
        """Draws `samples` and compares them with `data`: residuals, scatter, spectra; with `nll` also that many
        likelihoods.

        With `compliance=0` it is the evaluation of the denoiser below the constraint.
        """
        words = _settings(settings, compliance)
        with display(progress, "calls") as shown:
            found = self._core.evaluate(data._data(), samples, nll, words, shown)
        return Evaluation(json.loads(found))

    def explained(
        self, data: Dataset, *, count: int = 64, seed: int = 0, progress: bool = True, **settings: object
    ) -> Explained:
        """How much of the denoiser's error on held-out samples the directions of its equation explain, by noise
        level."""
        with display(progress, "calls") as shown:
            found = self._core.explained(data._data(), count, seed, as_settings(settings), shown)
        return Explained(json.loads(found))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the weights, with all that is needed to use them, to a file (`.safetensors`) that `load` and the
        program read."""
        self._core.save(os.fspath(path))

    def report(self, path: str | os.PathLike[str], *, progress: bool = True) -> None:
        """Writes the page of the model's run folder: samples, residuals, spectra, γ, learned parameters and a
        verdict."""
        report([self], path, progress=progress)

    def __repr__(self) -> str:
        kind = "softly constrained" if self._info["soft"] else "plain"
        base = " on a function" if self._info["external"] else ""
        axes = ", ".join(f"{axis.nodes} {axis.name}" for axis in self.axes)
        return f"Model({kind}{base}, {', '.join(self.fields)} [{axes}], {self._info['step']} steps)"

    def _noisy(self, x: Array, sigma: float | Array | Sequence[float]) -> tuple[Array, npt.NDArray[np.float64]]:
        fields = numbers("x", x)
        if fields.ndim != 4 or len(fields) == 0 or fields.shape[1:] != self.shape:
            expected = ["N", *self.shape]
            raise Error(f"x: expected {expected} with N ≥ 1 for this model, found {list(fields.shape)}")
        finite("x", fields)
        try:
            levels = np.asarray(sigma, dtype=np.float64)
        except (TypeError, ValueError):
            raise Error(f"sigma: expected a number or one per sample, found {sigma!r}") from None
        if levels.ndim == 0:
            levels = np.full(len(fields), levels)
        if levels.shape != (len(fields),):
            found = list(levels.shape)
            raise Error(f"sigma: expected one number, or one for each of {len(fields)} samples, found {found}")
        if not (np.isfinite(levels) & (levels > 0)).all():
            bad = float(levels[~(np.isfinite(levels) & (levels > 0))][0])
            raise Error(f"sigma: expected positive numbers, found {bad}")
        return fields, np.ascontiguousarray(levels)


def _sources(observe: Observed) -> list[tuple[str, npt.NDArray[np.float64] | None]]:
    """Measurements as the core reads them: the path of a table, or a quantity with its array."""
    listed = [observe] if isinstance(observe, (str, os.PathLike, Mapping)) else list(observe)
    found: list[tuple[str, npt.NDArray[np.float64] | None]] = []
    for source in listed:
        if isinstance(source, (str, os.PathLike)):
            found.append((os.fspath(source), None))
        elif isinstance(source, Mapping):
            found += [(name, doubles(numbers(f"observe[{name!r}]", array))) for name, array in source.items()]
        else:
            raise Error(f"observe: expected a path or a dictionary of arrays, found {type(source).__name__}")
    return found


def _levels(noise: float | str | Mapping[str, float | str] | None) -> list[str]:
    """Noise as the program writes it."""
    if noise is None:
        return []
    if isinstance(noise, Mapping):
        return [f"{name}={level}" for name, level in noise.items()]
    return [str(noise)]


def _settings(settings: Mapping[str, object], compliance: float | str | None) -> list[str]:
    return as_settings(settings) + ([] if compliance is None else [f"denoiser.scd.compliance={compliance}"])


def report(models: Sequence[Model], path: str | os.PathLike[str], *, progress: bool = True) -> None:
    """Writes one page of several models side by side; each needs a run folder, that is, `out=` when it was trained."""
    folders = []
    for model in models:
        if model.run is None or not os.path.isdir(model.run):
            hint = "train or adapt it with out='runs/NAME', or load that folder"
            raise Error(f"report: this model has no run folder\nhint: {hint}")
        if model._info["external"]:
            problem = "the denoiser of this model is a function, which the page cannot call"
            raise Error(f"report: {problem}\nhint: use evaluate()")
        folders.append(model.run)
    with display(progress, "calls") as shown:
        _core.Model.report(folders, os.fspath(path), shown)
