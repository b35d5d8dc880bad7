"""Samples of fields on a grid."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _core
from ._core import Error
from .arrays import Array, finite, numbers
from .axes import Axes, Axis, axes_of, two_axes
from .constraint import Constraint
from .progress import display

Floats = npt.NDArray[np.float32]
Path = "str | os.PathLike[str]"


class Dataset:
    """Training and held-out samples of named fields on two axes.

    Made by `Dataset.from_arrays`, `Dataset.open` and `Dataset.import_`. `data["u"]` is the array `[N, H, W]` of the
    training samples, `data.held_out("u")` that of the others: float32, mapped from the file if the dataset lies in a
    folder.
    """

    def __init__(
        self, train: dict[str, Floats], valid: dict[str, Floats], description: dict[str, Any], path: str | None
    ) -> None:
        self._train = train
        self._valid = valid
        self._description = description
        self.path: str | None = path

    @classmethod
    def from_arrays(
        cls,
        *,
        axes: Axes | None = None,
        valid: float | Mapping[str, Array] = 0.1,
        constants: Mapping[str, float] | None = None,
        equation: Constraint | None = None,
        **fields: Array,
    ) -> Dataset:
        """A dataset of arrays: `[N, H, W]` for a field, `[N]` for a number of every sample.

        `axes` names the axes, rows then columns. The last share `valid` of the samples is held out, or `valid` holds
        arrays of their own. `constants` are numbers that formulas may use by name, `equation` is the one that the
        samples are known to obey. Arrays are kept in single precision: float32 ones are not copied.

        >>> data = Dataset.from_arrays(u=np.random.default_rng(0).normal(size=(10, 4, 6)), axes=("t", "x"))
        >>> data
        Dataset(u [9 + 1 held out, 4 t, 6 x])
        >>> data["u"].shape, data.held_out("u").shape
        ((9, 4, 6), (1, 4, 6))
        """
        if not fields:
            raise Error("data: expected at least one field, found none\nhint: Dataset.from_arrays(u=array)")
        train = {name: _checked(name, array) for name, array in fields.items()}
        shaped = [name for name, array in train.items() if array.ndim == 3]
        if not shaped:
            raise Error("data: expected at least one array [N, H, W], found numbers of samples only")
        first = train[shaped[0]]
        if isinstance(valid, Mapping):
            if set(valid) != set(train):
                raise Error(f"valid: expected arrays for {', '.join(train)}, found {', '.join(valid) or 'none'}")
            held_out = {name: _checked(f"valid {name}", valid[name]) for name in train}
        else:
            kept = _share(len(first), float(valid))
            held_out = {name: array[kept:] for name, array in train.items()}
            train = {name: array[:kept] for name, array in train.items()}
        for name, (array, other) in {name: (train[name], held_out[name]) for name in train}.items():
            for which, part, reference in ((name, array, train), (f"valid {name}", other, held_out)):
                count = len(reference[shaped[0]])
                expected = (count, *first.shape[1:]) if part.ndim == 3 else (count,)
                if part.shape != expected:
                    raise Error(f"{which}: expected the shape {list(expected)}, found {list(part.shape)}")
        rows, columns = two_axes(axes)
        grid = [rows.described(first.shape[1]), columns.described(first.shape[2])]
        scalars = [name for name, array in train.items() if array.ndim == 1]
        names = [name for name in train if name not in scalars] + scalars
        description = {
            "fields": names,
            "scalars": scalars,
            "constants": {name: float(value) for name, value in (constants or {}).items()},
            "grid": grid,
            "equation": None if equation is None else equation._config,
        }
        return cls({name: train[name] for name in names}, {name: held_out[name] for name in names}, description, None)

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Dataset:
        """The dataset in a folder, as `softly data import` and `Dataset.save` write it. Its arrays are mapped, not
        read."""
        path = os.fspath(folder)
        found = json.loads(_core.open_folder(path))
        names = [entry["name"] for entry in found["fields"]]
        scalars = [entry["name"] for entry in found["fields"] if entry.get("scalar")]

        def arrays(split: str) -> dict[str, Floats]:
            def mapped(name: str) -> Any:
                return np.load(os.path.join(path, split, f"{name}.npy"), mmap_mode="r")

            plain = {name: mapped(name) for name in names if name not in scalars}
            if scalars:
                table = mapped("scalars")
                plain |= {name: table[:, column] for column, name in enumerate(scalars)}
            return plain

        description = {
            "fields": names,
            "scalars": scalars,
            "constants": found.get("constants", {}),
            "grid": found["grid"],
            "equation": found.get("equation"),
        }
        return cls(arrays("train"), arrays("valid"), description, path)

    @classmethod
    def import_(
        cls,
        *files: str | os.PathLike[str],
        out: str | os.PathLike[str],
        fields: Mapping[str, str] | None = None,
        axes: Sequence[str] = (),
        domain: Mapping[str, tuple[float, float]] | None = None,
        periodic: Sequence[str] = (),
        placement: str | None = None,
        stride: Mapping[str, int] | None = None,
        slice: Mapping[str, int] | None = None,
        frames: tuple[int, int] | None = None,
        drop_nan: bool = False,
        scalars: Sequence[str] | None = None,
        valid: float = 0.1,
        progress: bool = True,
    ) -> Dataset:
        """The dataset of files of other programs (HDF5, MATLAB, NumPy, CSV), written to the folder `out`.

        Options are those of `softly data import`; `fields` maps names to `FILE` or `FILE:ARRAY`.
        """
        if placement not in (None, "nodes", "cells"):
            raise Error(f"placement: expected 'nodes' or 'cells', found {placement!r}")
        wishes = {
            "files": [os.fspath(file) for file in files],
            "fields": [f"{name}={place}" for name, place in (fields or {}).items()],
            "axes": list(axes),
            "domain": {name: list(ends) for name, ends in (domain or {}).items()},
            "periodic": list(periodic),
            "cells": None if placement is None else placement == "cells",
            "stride": dict(stride or {}),
            "slice": dict(slice or {}),
            "frames": frames,
            "drop_nan": drop_nan,
            "scalars": None if scalars is None else list(scalars),
            "valid": valid,
        }
        with display(progress, "samples") as shown:
            _core.import_files(json.dumps(wishes), os.fspath(out), shown)
        return cls.open(out)

    def save(self, folder: str | os.PathLike[str], progress: bool = True) -> Dataset:
        """Writes the dataset to a folder, for the program and for other people; returns the dataset in it."""
        with display(progress, "samples") as shown:
            _core.save(self._data(), os.fspath(folder), shown)
        return Dataset.open(folder)

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields, in the order of the channels."""
        return tuple(self._description["fields"])

    @property
    def scalars(self) -> tuple[str, ...]:
        """Names of the fields that are one number per sample."""
        return tuple(self._description["scalars"])

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The axes: rows, then columns."""
        return axes_of(self._description["grid"])

    @property
    def constants(self) -> dict[str, float]:
        """Numbers that all samples share, by their names in formulas."""
        return dict(self._description["constants"])

    @property
    def equation(self) -> Constraint | None:
        """The equation that the samples are known to obey, if there is one."""
        known = self._description["equation"]
        return None if known is None else Constraint._from_config(known, self.axes)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, rows and columns of a sample."""
        rows, columns = (axis.nodes or 0 for axis in self.axes)
        return len(self.fields), rows, columns

    def held_out(self, name: str) -> Floats:
        """The held-out samples of a field."""
        return self._of(self._valid, name)

    def statistics(self) -> dict[str, dict[str, float]]:
        """Mean, standard deviation and extremes of the training samples of every field.

        >>> Dataset.from_arrays(u=np.full((4, 2, 2), 3.0)).statistics()["u"]["mean"]
        3.0
        """
        def of(array: Floats) -> dict[str, float]:
            mean, std = float(array.mean(dtype=np.float64)), float(array.std(dtype=np.float64))
            return {"mean": mean, "std": std, "min": float(array.min()), "max": float(array.max())}

        return {name: of(array) for name, array in self._train.items()}

    def __getitem__(self, name: str) -> Floats:
        return self._of(self._train, name)

    def __len__(self) -> int:
        return len(next(iter(self._train.values())))

    def __repr__(self) -> str:
        counts = f"{len(self)} + {len(next(iter(self._valid.values())))} held out"
        axes = ", ".join(f"{axis.nodes} {axis.name}" for axis in self.axes)
        place = "" if self.path is None else f" in {self.path}"
        return f"Dataset({', '.join(self.fields)} [{counts}, {axes}]{place})"

    def _of(self, arrays: dict[str, Floats], name: str) -> Floats:
        if name not in arrays:
            raise Error(f"{name}: the data have no field `{name}`; they have {', '.join(self.fields)}")
        return arrays[name]

    def _data(self) -> _core.Data:
        """The samples as the core takes them."""
        if self.path is not None:
            return _core.Data.folder(self.path)
        arrays = [[np.ascontiguousarray(split[name]) for name in self.fields] for split in (self._train, self._valid)]
        return _core.Data.arrays(json.dumps(self._description), *arrays)


def _checked(name: str, array: object) -> Floats:
    found = numbers(name, array)
    if found.ndim not in (1, 3) or 0 in found.shape:
        raise Error(f"{name}: expected an array [N, H, W], or [N] for a number per sample, found {list(found.shape)}")
    finite(name, found)
    with np.errstate(over="ignore"):
        single = found.astype(np.float32, copy=False)
    finite(f"{name} in single precision", single)
    return single


def _share(count: int, valid: float) -> int:
    if not 0 < valid < 1:
        raise Error(f"valid: expected a share between 0 and 1, found {valid}")
    if count < 2:
        raise Error(f"data: expected at least 2 samples, found {count}\nhint: one to train on and one to hold out")
    return count - min(max(round(count * valid), 1), count - 1)
