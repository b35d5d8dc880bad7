"""Equations on arrays."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Union

import numpy as np

from . import _core
from ._core import Error
from .arrays import PIECE, Array, Doubles, all_finite, batch, doubles, fields_of, finite, is_ready, numbers
from .audit import Audit, Fit
from .axes import Axes, Axis, grid_json, sketch_json, two_axes
from .progress import display

if TYPE_CHECKING:
    from .dataset import Dataset

#: What a parameter may be: a number, a formula of the coordinates, a file of an array, `learn(…)` or `normal(…)`.
ParameterValue = Union[float, str, "os.PathLike[str]", Mapping[str, Any]]


@dataclass(frozen=True)
class Equation:
    """A formula that is zero where the equation holds, and where it counts.

    `region` is "all", "interior", "border", "t=first", "x=last", …; `weight` multiplies the residual; `name` is for
    tables.

    >>> Equation("u - 1", region="border", weight=2.0)
    Equation(formula='u - 1', region='border', weight=2.0, name=None)
    """

    formula: str
    region: str = "all"
    weight: float = 1.0
    name: str | None = None


def learn(start: float, length: float | None = None, size: float | None = None) -> dict[str, float]:
    """A parameter that training finds, from its first value on; with `length` and `size` a smooth field.

    >>> learn(0.05)
    {'learn': 0.05}
    """
    if (length is None) != (size is None):
        raise Error("learn: a field needs both `length` and `size`, a number needs neither")
    found = {"learn": float(start)}
    return found if length is None or size is None else {**found, "length": float(length), "size": float(size)}


def normal(mean: float, std: float) -> dict[str, list[float]]:
    """A parameter that is drawn anew for every sample.

    >>> normal(1.0, 0.1)
    {'normal': [1.0, 0.1]}
    """
    return {"normal": [float(mean), float(std)]}


def _parameter(name: str, value: ParameterValue) -> Any:
    if isinstance(value, np.ndarray) and value.ndim:
        hint = f"np.save('{name}.npy', array), then {name}=pathlib.Path('{name}.npy'); or make it a field"
        raise Error(f"{name}: expected a number, a formula or a file, found an array {list(value.shape)}\nhint: {hint}")
    if isinstance(value, (str, Mapping)):
        return value
    if isinstance(value, os.PathLike):
        return {"file": os.path.abspath(value)}
    try:
        return float(value)
    except (TypeError, ValueError):
        raise Error(f"{name}: expected a number, a formula or a file, found {value!r}") from None


class Constraint:
    """An equation, or several, on fields of a grid.

    `formula` is zero where the equation holds: text, an `Equation`, or a list of them. `axes` names the axes of
    arrays `[N, H, W]`, rows then columns, and says where they end. Names in formulas that are neither axes nor given
    as parameters are fields, unless `fields` lists these. `stencil` is one scheme ("periodic", "one-sided-2",
    "mirror", …) or one per axis, `stencils` one per field; by default an axis says how derivatives are taken. `norm`
    sums residuals up for `gradient`.

    >>> darcy = Constraint("K*laplacian(p) + dot(grad(K), grad(p)) + f", f=10.0)
    >>> darcy.fields
    ('K', 'p')
    >>> float(darcy.residual(K=np.ones((5, 5)), p=np.zeros((5, 5)))[2, 2])
    10.0
    """

    def __init__(
        self,
        formula: str | Equation | Sequence[str | Equation],
        /,
        *,
        axes: Axes | None = None,
        fields: Sequence[str] | None = None,
        stencil: str | Mapping[str, str] | None = None,
        stencils: Mapping[str, str | Mapping[str, str]] | None = None,
        norm: str = "l1-mean",
        **parameters: ParameterValue,
    ) -> None:
        self.axes: tuple[Axis, Axis] = two_axes(axes)
        one = not isinstance(formula, (list, tuple))
        listed = [formula] if one else list(formula)  # type: ignore[arg-type]
        equations = [e if isinstance(e, Equation) else Equation(e) for e in listed]  # type: ignore[arg-type]
        for equation in equations:
            if not isinstance(equation.formula, str):
                raise Error(f"constraint: expected a formula as text, found {equation.formula!r}")
        self.equations: tuple[Equation, ...] = tuple(equations)
        self.parameters: dict[str, Any] = {name: _parameter(name, value) for name, value in parameters.items()}
        self._is_single = one
        if fields is None:
            grid = sketch_json(self.axes)
            found = [name for e in equations for name in _core.names(e.formula, grid)]
            fields = [name for name in dict.fromkeys(found) if name not in self.parameters]
        self.fields: tuple[str, ...] = tuple(fields)
        residual = [
            {"formula": e.formula, "region": e.region, "weight": e.weight} | ({"name": e.name} if e.name else {})
            for e in equations
        ]
        config: dict[str, Any] = {"fields": list(self.fields), "residual": residual, "norm": norm}
        config["parameters"] = self.parameters
        if one and residual[0] == {"formula": equations[0].formula, "region": "all", "weight": 1.0}:
            config["residual"] = equations[0].formula
        config |= {"stencil": stencil} if stencil else {}
        config |= {"stencils": dict(stencils)} if stencils else {}
        self._config = config
        self._core = _core.Constraint(json.dumps(config))
        # An array from a file fits the grid of the fields, which is known when they come.
        if not any(isinstance(value, Mapping) and "file" in value for value in self.parameters.values()):
            self._core.check(sketch_json(self.axes))

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str], axes: Axes | None = None) -> Constraint:
        """The table `[constraint]` of a configuration file of the program (Python 3.11 or later)."""
        import tomllib  # type: ignore[import-not-found, unused-ignore]

        with open(path, "rb") as file:
            table = tomllib.load(file).get("constraint")
        if table is None:
            raise Error(f"{os.fspath(path)}: expected a [constraint] table, found none")
        return cls._from_config(table, axes)

    @classmethod
    def _from_config(cls, table: Mapping[str, Any], axes: Axes | None) -> Constraint:
        residual = table["residual"]
        formula = residual if isinstance(residual, str) else [Equation(**part) for part in residual]
        known = {key: table[key] for key in ("fields", "stencil", "stencils", "norm") if key in table}
        return cls(formula, axes=axes, **known, **table.get("parameters", {}))

    def to_toml(self) -> str:
        """The constraint as the table `[constraint]` of a configuration file of the program.

        >>> print(Constraint("dxx(u) - q", q=4.0).to_toml().strip())
        [constraint]
        fields = ["u"]
        residual = "dxx(u) - q"
        norm = "l1-mean"
        <BLANKLINE>
        [constraint.parameters]
        q = 4.0
        """
        return self._core.toml()

    def __repr__(self) -> str:
        formulas = " and ".join(e.formula + ("" if e.region == "all" else f" on {e.region}") for e in self.equations)
        return f"Constraint({formulas} = 0 for {', '.join(self.fields)} on {self.axes[0].name}, {self.axes[1].name})"

    def residual(self, **fields: Array) -> Doubles:
        """R of every sample and node, zero outside of an equation's region.

        Fields are `[H, W]` or `[N, H, W]`, and so is the result; a constraint that was given as a list of E equations
        has one more axis, `[E, H, W]` or `[N, E, H, W]`.

        >>> x = np.linspace(0, 1, 4)
        >>> Constraint("dx(u) - 2").residual(u=np.outer(2 * x, np.ones(4)))[1].round(9) + 0.0
        array([0., 0., 0., 0.])
        """
        arrays, single = fields_of(self.fields, fields)
        shape = (len(arrays[0]), len(self.equations), *arrays[0].shape[1:])
        found = self._pieces(arrays, [], lambda grid, parts, _: [self._core.residual(grid, parts)], [shape])[0]
        self._check_result(found)
        return self._shaped(found, single)

    def jvp(self, directions: Mapping[str, Array], **fields: Array) -> Doubles:
        """J·directions: the change of R as fields move along their directions, shaped like R. Fields without one
        stand still.

        >>> square = Constraint("u^2")
        >>> float(square.jvp({"u": np.ones((2, 2))}, u=np.full((2, 2), 3.0))[0, 0])
        6.0
        """
        arrays, single = fields_of(self.fields, fields)
        along = self._directions(directions, arrays[0].shape)
        shape = (len(arrays[0]), len(self.equations), *arrays[0].shape[1:])

        def work(grid: str, parts: list[Doubles], more: list[Doubles | None]) -> list[Doubles]:
            return [self._core.jvp(grid, parts, more)]

        return self._shaped(self._pieces(arrays, along, work, [shape])[0], single)

    def vjp(self, cotangent: Array, /, **fields: Array) -> dict[str, Doubles]:
        """Jᵀ·cotangent for every field, where `cotangent` is shaped like R.

        >>> float(Constraint("u^2").vjp(np.ones((2, 2)), u=np.full((2, 2), 3.0))["u"][0, 0])
        6.0
        """
        arrays, single = fields_of(self.fields, fields)
        weights = self._cotangent(cotangent, arrays[0].shape, single)

        def work(grid: str, parts: list[Doubles], more: list[Doubles | None]) -> list[Doubles]:
            assert more[0] is not None
            return self._core.vjp(grid, parts, more[0])

        found = self._pieces(arrays, [weights], work, [arrays[0].shape] * len(arrays))
        return {name: array[0] if single else array for name, array in zip(self.fields, found)}

    def curvature(self, cotangent: Array, directions: Mapping[str, Array], /, **fields: Array) -> dict[str, Doubles]:
        """The change of Jᵀ·cotangent as fields move along their directions: what second derivatives are made of.

        >>> float(Constraint("u^3").curvature(np.ones((2, 2)), {"u": np.ones((2, 2))}, u=np.full((2, 2), 2.0))["u"][0, 0])
        12.0
        """
        arrays, single = fields_of(self.fields, fields)
        weights = self._cotangent(cotangent, arrays[0].shape, single)
        along = self._directions(directions, arrays[0].shape)

        def work(grid: str, parts: list[Doubles], more: list[Doubles | None]) -> list[Doubles]:
            assert more[0] is not None
            return self._core.curvature(grid, parts, more[0], more[1:])

        found = self._pieces(arrays, [weights, *along], work, [arrays[0].shape] * len(arrays))
        return {name: array[0] if single else array for name, array in zip(self.fields, found)}

    def gradient(self, **fields: Array) -> dict[str, Doubles]:
        """The gradient of log l_c = −‖R‖ for every field, in the constraint's norm.

        >>> float(Constraint("u - 1", norm="half-squares").gradient(u=np.full((2, 2), 3.0))["u"][0, 0])
        -2.0
        """
        arrays, single = fields_of(self.fields, fields)

        def work(grid: str, parts: list[Doubles], _: list[Doubles | None]) -> list[Doubles]:
            return self._core.gradient(grid, parts)[1]

        found = self._pieces(arrays, [], work, [arrays[0].shape] * len(arrays))
        return {name: array[0] if single else array for name, array in zip(self.fields, found)}

    def audit(self, data: Dataset, *, fit: str | Sequence[str] = (), progress: bool = True) -> Audit:
        """Does this equation hold for the training samples? What `softly data inspect` finds; `fit` names parameters
        to fit."""
        names = [fit] if isinstance(fit, str) else list(fit)
        with display(progress, "samples") as shown:
            found, text = self._core.audit(data._data(), names, shown)
        return Audit(json.loads(found), text)

    def fit(self, data: Dataset, /, *names: str, progress: bool = True) -> Fit:
        """The parameters `names` (all plain numbers if none is named) by least squares of the residual of training
        samples.

        >>> import softly
        >>> u = np.random.default_rng(0).normal(size=(8, 6, 6))
        >>> data = softly.Dataset.from_arrays(u=u, v=3 * u)
        >>> round(Constraint("v - k*u", k=1.0).fit(data, "k")["k"].value, 6)
        3.0
        """
        chosen = list(names) or [name for name, value in self.parameters.items() if isinstance(value, float)]
        if not chosen:
            raise Error("fit: the constraint has no parameter that is a number")
        with display(progress, "samples") as shown:
            return Fit(json.loads(self._core.fit(data._data(), chosen, shown)))

    def _shaped(self, found: Doubles, single: bool) -> Doubles:
        found = found[:, 0] if self._is_single else found
        return found[0] if single else found

    @staticmethod
    def _check_result(found: Doubles) -> None:
        if not all_finite(found):
            sample = int(np.argwhere(~np.isfinite(found))[0][0])
            hint = "the formula divides by zero or takes a root or logarithm of a negative number there"
            problem = f"expected finite residuals, found others in sample {sample}"
            raise Error(f"constraint.residual: {problem}\nhint: {hint}")

    def _directions(self, directions: Mapping[str, Array], shape: tuple[int, ...]) -> list[Array | None]:
        for name in directions:
            if name not in self.fields:
                raise Error(f"{name}: the constraint has no field `{name}`; it has {', '.join(self.fields)}")
        found: list[Array | None] = []
        for name in self.fields:
            if name not in directions:
                found.append(None)
                continue
            array = batch(f"direction of {name}", numbers(f"direction of {name}", directions[name]))
            if array.shape[1:] != shape[1:] or len(array) not in (1, shape[0]):
                raise Error(f"direction of {name}: expected the shape {list(shape)}, found {list(array.shape)}")
            finite(f"direction of {name}", array)
            found.append(np.broadcast_to(array, shape))
        return found

    def _cotangent(self, cotangent: Array, shape: tuple[int, ...], single: bool) -> Array:
        array = numbers("cotangent", cotangent)
        equations = len(self.equations)
        expected = (equations, *shape[1:]) if not self._is_single else shape[1:]
        if array.shape != (expected if single else (shape[0], *expected)):
            wanted = list(expected if single else (shape[0], *expected))
            raise Error(f"cotangent: expected the shape of the residual, {wanted}, found {list(array.shape)}")
        finite("cotangent", array)
        return array.reshape(shape[0], equations, *shape[1:])

    def _pieces(
        self, arrays: list[Array], more: Sequence[Array | None], work: Any, shapes: Sequence[tuple[int, ...]]
    ) -> list[Doubles]:
        """`work(grid, arrays, more)` of all samples, in pieces if arrays have to be copied."""
        count = len(arrays[0])
        grid = grid_json(self.axes, (arrays[0].shape[1], arrays[0].shape[2]))
        given = [*arrays, *(array for array in more if array is not None)]
        if all(is_ready(array) for array in given) or sum(8 * array.size for array in given) <= PIECE:
            found = work(grid, [doubles(a) for a in arrays], [None if a is None else doubles(a) for a in more])
            return [flat.reshape(shape) for flat, shape in zip(found, shapes)]
        results = [np.empty(shape) for shape in shapes]
        for part in _parts(count, max(1, PIECE * count // sum(8 * array.size for array in given))):
            others = [None if a is None else doubles(a[part]) for a in more]
            found = work(grid, [doubles(a[part]) for a in arrays], others)
            for result, flat in zip(results, found):
                result[part] = flat.reshape(result[part].shape)
        return results


def _parts(count: int, size: int) -> Iterator[slice]:
    return (slice(first, first + size) for first in range(0, count, size))
