"""What an audit of data finds."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class FittedParameter:
    """A parameter fitted to data: its value, the given one, a 95 % interval and whether the data determine it."""

    name: str
    value: float
    given: float
    interval: tuple[float, float] | None
    verdict: str


class Fit:
    """Parameters fitted to data by least squares: `fit["nu"].value`."""

    def __init__(self, found: Mapping[str, Any]) -> None:
        self.found: dict[str, Any] = dict(found)
        self.parameters: dict[str, FittedParameter] = {}
        for entry in found["parameters"]:
            ends, verdict = entry["interval"], entry["verdict"]
            words = verdict if isinstance(verdict, str) else " ".join(f"{k} {v}" for k, v in verdict.items())
            interval = None if ends is None else (float(ends[0]), float(ends[1]))
            name, value, given = entry["name"], entry["value"], entry["given"]
            self.parameters[name] = FittedParameter(name, value, given, interval, words)

    def __getitem__(self, name: str) -> FittedParameter:
        return self.parameters[name]

    def __iter__(self) -> Iterator[FittedParameter]:
        return iter(self.parameters.values())

    def __len__(self) -> int:
        return len(self.parameters)

    def __repr__(self) -> str:
        def words(p: FittedParameter) -> str:
            ends = "" if p.interval is None else f" [{p.interval[0]:.6g}, {p.interval[1]:.6g}]"
            return f"{p.name} = {p.value:.6g}{ends}, given {p.given:.6g}: {p.verdict}"

        return "\n".join(words(p) for p in self)


class Audit:
    """Does an equation hold for data? `print(audit)` says so in words; `audit.found` has every number."""

    def __init__(self, found: dict[str, Any], text: str) -> None:
        self.found = found
        self.text = text

    @property
    def verdict(self) -> str:
        """The verdict in words."""
        return str(self.found["verdict"])

    @property
    def relative(self) -> list[float | None]:
        """The root mean square of each residual over that of its largest term; none where all terms are zero."""
        return [equation["relative"] for equation in self.found["equations"]]

    @property
    def fit(self) -> Fit | None:
        """Fitted parameters, if they were asked for."""
        return Fit(self.found["fit"]) if self.found.get("fit") else None

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        def row(cells: list[str], tag: str = "td") -> str:
            return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

        parts = []
        for equation in self.found["equations"]:
            parts.append(f"<p><code>{html.escape(equation['formula'])}</code> on {html.escape(equation['region'])}</p>")
            rows = [[t["text"], f"{t['mean_abs']:.4g}", f"{t['rms']:.4g}"] for t in equation["terms"]]
            rows.append(["residual R", f"{equation['mean_abs']:.4g}", f"{equation['rms']:.4g}"])
            body = row(["", "mean |·|", "rms"], "th") + "".join(row(cells) for cells in rows)
            parts.append(f"<table>{body}</table>")
        return "".join(parts) + f"<p><b>{html.escape(self.verdict)}</b></p>"
