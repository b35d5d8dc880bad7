"""Axes of grids."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

from ._core import Error


@dataclass(frozen=True)
class Axis:
    """A named coordinate with points at equal distances from `first` to `last`.

    A periodic axis repeats itself after `last - first`. `placement` is "nodes" (points at the ends and between them)
    or "cells" (points in the centres of cells). `nodes`, the number of points, comes from the arrays.

    >>> Axis("x", 0, 2, periodic=True)
    Axis(name='x', first=0.0, last=2.0, periodic=True, placement='nodes', nodes=None)
    """

    name: str
    first: float = 0.0
    last: float = 1.0
    periodic: bool = False
    placement: str = "nodes"
    nodes: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            hint = "axes=('t', 'x'), or Axis objects"
            raise Error(f"axes: expected the name of an axis, found {self.name!r}\nhint: {hint}")
        if self.placement not in ("nodes", "cells"):
            raise Error(f"axis {self.name}: expected placement 'nodes' or 'cells', found {self.placement!r}")
        object.__setattr__(self, "first", float(self.first))
        object.__setattr__(self, "last", float(self.last))

    def described(self, nodes: int) -> dict[str, Any]:
        """The axis with its number of points, as files have it."""
        if self.nodes is not None and self.nodes != nodes:
            raise Error(f"axis {self.name}: expected arrays with {self.nodes} points along it, found {nodes}")
        return {
            "name": self.name,
            "nodes": nodes,
            "first": self.first,
            "last": self.last,
            "periodic": bool(self.periodic),
            "placement": self.placement,
        }


#: Two axes: names, `Axis` objects, or a mapping from names to ends.
Axes = Union[Sequence[Union[str, Axis]], Mapping[str, tuple[float, float]]]


def two_axes(axes: Axes | None) -> tuple[Axis, Axis]:
    """The axes of arrays `[..., H, W]`: rows, then columns; x and y on the unit square by default."""
    if axes is None:
        return Axis("x"), Axis("y")
    if isinstance(axes, Mapping):
        listed = [Axis(name, *ends) for name, ends in axes.items()]
    elif isinstance(axes, str):
        raise Error(f"axes: expected two axes such as ('t', 'x'), found the text {axes!r}")
    else:
        listed = [axis if isinstance(axis, Axis) else Axis(axis) for axis in axes]
    if len(listed) != 2:
        problem = f"expected two axes, rows then columns, found {len(listed)}"
        raise Error(f"axes: {problem}\nhint: for example axes=('t', 'x')")
    return listed[0], listed[1]


def grid_json(axes: tuple[Axis, Axis], shape: tuple[int, int]) -> str:
    """The grid of arrays `[..., H, W]` as the core reads it."""
    return json.dumps([axis.described(nodes) for axis, nodes in zip(axes, shape)])


def sketch_json(axes: tuple[Axis, Axis]) -> str:
    """A grid to check formulas on: axes that do not know their number of points yet get eight."""
    rows, columns = (axis.nodes or 8 for axis in axes)
    return grid_json(axes, (rows, columns))


def axes_of(grid: Sequence[Mapping[str, Any]]) -> tuple[Axis, ...]:
    """The axes of a grid as files have it."""
    return tuple(Axis(**axis) for axis in grid)
