"""Training, adapting and loading."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from . import _core
from ._core import Error
from .constraint import Constraint
from .dataset import Dataset
from .denoisers import Denoiser, denoiser_of
from .model import Model
from .outside import outside
from .progress import display
from .settings import as_settings, seconds

#: Where a model comes from: itself, its run folder or a file.
Base = "Model | str | os.PathLike[str]"


def train(
    data: Dataset,
    constraint: Constraint | None = None,
    method: str | None = "vanilla",
    out: str | os.PathLike[str] | None = None,
    budget: float | str | None = "10m",
    *,
    config: str | os.PathLike[str] | None = None,
    preset: str | None = None,
    progress: bool = True,
    **settings: object,
) -> Model:
    """Trains a model on `data`.

    `method` is "vanilla" (no equation), "scd" (the equation from the start) or another one of `preset` or of the file
    `config`. Network and schedule are sized to `budget`, the time for training and adapting together ("90s", "10m",
    "2h"); with `None`, a preset or a file these say them. `out` is the run folder: if it holds an interrupted run of
    the same settings, that one goes on. Without it nothing is left on the disk. Settings are those of the program's
    configuration: `train={"iterations": 1000}` or `train__iterations=1000`.

    Ctrl-C ends the training after its step and leaves a checkpoint in `out`.
    """
    size = None if config is not None or preset is not None else seconds(budget)
    text = "" if constraint is None else constraint.to_toml()
    with ExitStack() as stack:
        folder = _folder(out, stack)
        wishes = _wishes(data, text, method, folder, config, preset, settings, size, "softly.train(…)")
        with display(progress, "steps") as shown:
            core = _core.train(data._data(), json.dumps(wishes), shown)
        return Model(core, None if out is None else folder)


def adapt(
    base: Model | str | os.PathLike[str] | None = None,
    data: Dataset | None = None,
    constraint: Constraint | None = None,
    *,
    denoiser: Denoiser | Callable[..., Any] | Mapping[str, object] | None = None,
    vjp: Callable[..., Any] | None = None,
    sigma_data: float = 0.5,
    units: Mapping[str, tuple[float, float]] | str = "std",
    method: str | None = "adapt",
    out: str | os.PathLike[str] | None = None,
    config: str | os.PathLike[str] | None = None,
    preset: str | None = None,
    progress: bool = True,
    **settings: object,
) -> Model:
    """Puts `constraint` softly on a denoiser that is trained already and stays as it is.

    The denoiser is `base` (a model, its run folder, a snapshot or an EDM2 file), or `denoiser`, a function `f(x,
    sigma)` of arrays `[N, C, H, W]` and `[N]` in the order of the data's fields; `softly.denoisers` has other
    conventions. Torch modules are called with tensors on their device. The function is called on this thread, one
    call at a time, once for every share of a batch.

    `sigma_data` and `units` say how the denoiser's numbers come from physical ones: physical = mean + scale · number.
    `units` is a dictionary from fields to (mean, scale), "std" (mean 0 and deviation sigma_data in the training data)
    or "none". `vjp(x, sigma, cotangent)` is the denoiser's transposed Jacobian, which likelihoods need; for torch
    modules it is known.

    `method` is "adapt", or "adapt-learn", which also learns all parameters that are plain numbers. Other settings are
    those of the program's configuration: `train={"iterations": 1000}` or `train__iterations=1000`; those of its table
    `denoiser` beside a function are written `denoiser__scd__directions=["kalman"]`.
    """
    if data is None:
        raise Error("data: expected a Dataset, found none\nhint: softly.adapt(model, data, constraint)")
    if isinstance(denoiser, Mapping):
        # The configuration's table of this name, as `train` takes it.
        settings, denoiser = {"denoiser": denoiser, **settings}, None
    if (base is None) == (denoiser is None):
        found = "neither" if base is None else "both"
        raise Error(f"base: expected either a model or `denoiser`, a function, found {found}")
    text = "" if constraint is None else constraint.to_toml()
    function = None if denoiser is None else outside(denoiser_of(denoiser, vjp))
    outer = None if denoiser is None else json.dumps(_outside(data, sigma_data, units))
    model = load(base) if isinstance(base, (str, os.PathLike)) else base
    if function is not None:
        settings = {"train__shares": 1, **settings}
    with ExitStack() as stack:
        folder = _folder(out, stack)
        wishes = _wishes(data, text, method, folder, config, preset, settings, None, "softly.adapt(…)")
        core = None if model is None else model._core
        with display(progress, "steps") as shown:
            adapted = _core.adapt(core, function, outer, data._data(), json.dumps(wishes), shown)
        return Model(adapted, None if out is None else folder)


def load(
    path: str | os.PathLike[str],
    *,
    denoiser: Denoiser | Callable[..., Any] | None = None,
    vjp: Callable[..., Any] | None = None,
) -> Model:
    """A model from its run folder, its snapshot file or an EDM2 file.

    A model that was adapted on a function needs it again, as `denoiser`.
    """
    place = os.fspath(path)
    function = None if denoiser is None else outside(denoiser_of(denoiser, vjp))
    return Model(_core.load(place, function), place if os.path.isdir(place) else None)


def _folder(out: str | os.PathLike[str] | None, stack: ExitStack) -> str:
    if out is not None:
        return os.fspath(out)
    return os.path.join(stack.enter_context(tempfile.TemporaryDirectory(prefix="softly-")), "run")


def _wishes(
    data: Dataset,
    text: str,
    method: str | None,
    out: str,
    config: str | os.PathLike[str] | None,
    preset: str | None,
    settings: Mapping[str, object],
    budget: float | None,
    command: str,
) -> dict[str, Any]:
    if not isinstance(data, Dataset):
        raise Error(f"data: expected a Dataset, found {type(data).__name__}\nhint: softly.Dataset.from_arrays(u=array)")
    words = as_settings(settings)
    if data.path is not None:
        words.insert(0, f"data.path={json.dumps(data.path)}")
    return {
        "preset": preset,
        "file": None if config is None else os.fspath(config),
        "text": text or None,
        "method": method,
        "settings": words,
        "budget": budget,
        "out": out,
        "command": command,
    }


def _outside(data: Dataset, sigma_data: float, units: Mapping[str, tuple[float, float]] | str) -> dict[str, Any]:
    if not (isinstance(sigma_data, (int, float)) and sigma_data > 0):
        raise Error(f"sigma_data: expected a positive number, found {sigma_data!r}")
    if isinstance(units, str):
        if units not in ("std", "none"):
            raise Error(f"units: expected 'std', 'none' or a dictionary from fields to (mean, scale), found {units!r}")
        known = None if units == "std" else {"mean": [0.0] * len(data.fields), "scale": [1.0] * len(data.fields)}
        return {"sigma_data": float(sigma_data), "units": known}
    if set(units) != set(data.fields):
        raise Error(f"units: expected (mean, scale) for {', '.join(data.fields)}, found {', '.join(units) or 'none'}")
    pairs = [units[name] for name in data.fields]
    mean, scale = [float(pair[0]) for pair in pairs], [float(pair[1]) for pair in pairs]
    return {"sigma_data": float(sigma_data), "units": {"mean": mean, "scale": scale}}
