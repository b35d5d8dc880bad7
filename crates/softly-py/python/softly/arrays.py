"""Arrays that come in: checked with words that help, and copied only in pieces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ._core import Error

Array = npt.NDArray[Any]
Doubles = npt.NDArray[np.float64]

#: Bytes that are converted at a time: an array that cannot be used as it is gets copied in pieces of this size.
PIECE = 1 << 26


def numbers(name: str, array: object) -> Array:
    """The array itself, if it holds real floating-point numbers."""
    if type(array).__module__.split(".")[0] == "torch":
        raise Error(f"{name}: expected a NumPy array, found a torch tensor\nhint: tensor.numpy(), or use softly.torch")
    if not isinstance(array, np.ndarray):
        raise Error(f"{name}: expected a NumPy array, found {type(array).__name__}\nhint: np.asarray(…)")
    if array.dtype not in (np.float32, np.float64):
        parts = "take its real and imaginary part as two fields"
        hint = parts if array.dtype.kind == "c" else "array.astype(np.float64)"
        raise Error(f"{name}: expected float32 or float64, found {array.dtype}\nhint: {hint}")
    return array


def all_finite(array: Array) -> bool:
    """Whether all numbers are finite. A sum of squares tells most of the time; only if it does not, every number is
    looked at."""
    with np.errstate(all="ignore"):
        flat = array.reshape(-1) if array.flags.c_contiguous else None
        total = array.sum() if flat is None else np.dot(flat, flat)
    return bool(np.isfinite(total)) or bool(np.isfinite(array).all())


def finite(name: str, array: Array) -> None:
    """Refuses numbers that are not finite."""
    if not all_finite(array):
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        problem = f"expected finite numbers, found {array[where]} at {where}"
        raise Error(f"{name}: {problem}\nhint: drop or repair that sample")


def batch(name: str, array: Array) -> Array:
    """A field as `[N, H, W]`; a single one `[H, W]` is a batch of one."""
    if array.ndim == 2:
        array = array[None]
    if array.ndim != 3 or 0 in array.shape:
        raise Error(f"{name}: expected an array [H, W] or [N, H, W], found the shape {list(array.shape)}")
    return array


def fields_of(names: tuple[str, ...], given: Mapping[str, object], what: str = "field") -> tuple[list[Array], bool]:
    """The named fields as `[N, H, W]` of one shape, and whether all of them were single ones."""
    for name in given:
        if name not in names:
            raise Error(f"{name}: the constraint has no {what} `{name}`; it has {', '.join(names)}")
    for name in names:
        if name not in given:
            raise Error(f"{name}: no array is given for the {what} `{name}`\nhint: add {name}=array")
    arrays = {name: numbers(name, given[name]) for name in names}
    single = all(array.ndim == 2 for array in arrays.values())
    batches = {name: batch(name, array) for name, array in arrays.items()}
    largest = max(len(array) for array in batches.values())
    first = names[0]
    size = batches[first].shape[1:]
    for name, array in batches.items():
        if array.shape[1:] != size or len(array) not in (1, largest):
            shapes = f"{list(batches[first].shape)} as `{first}`, found {list(array.shape)}"
            raise Error(f"{name}: expected the shape {shapes}")
        finite(name, array)
    return [np.broadcast_to(array, (largest, *size)) for array in batches.values()], single


def doubles(array: Array) -> Doubles:
    """C-contiguous float64, the array itself if it is that."""
    return np.ascontiguousarray(array, dtype=np.float64)


def is_ready(array: Array) -> bool:
    """Whether an array needs no copy."""
    return array.dtype == np.float64 and array.flags.c_contiguous
