"""Settings of a configuration as keyword arguments."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ._core import Error


def toml_value(key: str, value: object) -> str:
    """A value as TOML.

    >>> toml_value("x", {"kind": "dps", "scale": 0.1}), toml_value("x", [True, 2])
    ('{kind = "dps", scale = 0.1}', '[true, 2]')
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name} = {toml_value(f'{key}.{name}', part)}" for name, part in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(toml_value(key, part) for part in value) + "]"
    if hasattr(value, "item"):
        return toml_value(key, value.item())
    raise Error(f"{key}: expected a number, text, a list or a dictionary, found {type(value).__name__}")


def as_settings(given: Mapping[str, Any]) -> list[str]:
    """Keyword arguments as settings `a.b=c`: dictionaries are tables, and two underscores are a dot.

    >>> as_settings({"train": {"iterations": 100}, "sampler__steps": 8})
    ['train.iterations=100', 'sampler.steps=8']
    """
    found = []
    for name, value in given.items():
        key = name.replace("__", ".")
        if isinstance(value, Mapping) and "." not in key:
            found += [f"{key}.{part}={toml_value(f'{key}.{part}', inner)}" for part, inner in value.items()]
        else:
            found.append(f"{key}={toml_value(key, value)}")
    return found


def seconds(budget: float | str | None) -> float | None:
    """A time such as "90s", "30m" or "2h" in seconds; numbers are seconds.

    >>> seconds("10m"), seconds(90), seconds(None)
    (600.0, 90.0, None)
    """
    if budget is None:
        return None
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    try:
        found = float(budget[:-1]) * units[budget[-1]] if isinstance(budget, str) else float(budget)
    except (KeyError, ValueError, IndexError, TypeError):
        found = 0.0
    if not 1 <= found <= 1e7:
        raise Error(f"budget: expected a time of a second or more such as '90s', '30m' or '2h', found {budget!r}")
    return found
