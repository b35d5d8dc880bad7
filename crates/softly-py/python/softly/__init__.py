"""Diffusion models of PDE solutions that know their PDE softly.

>>> import numpy as np, softly
>>> heat = softly.Constraint("dt(u) - nu*dxx(u)", axes=("t", "x"), nu=0.1)
>>> t, x = np.meshgrid(np.linspace(0, 1, 9), np.linspace(0, 1, 17), indexing="ij")
>>> float(abs(heat.residual(u=t + 5 * x**2)).max().round(9))  # zero: u solves the heat equation
0.0

Equations are formulas (`Constraint`), data are named arrays (`Dataset`), models are trained (`train`), loaded
(`load`) or made from a denoiser that you already have (`adapt`, with the conventions of `softly.denoisers`).
`softly.torch` needs PyTorch.
"""

import os as _os

# The allocator reads its settings when it is loaded: freed memory is kept for a while, because training uses it again.
_before = _os.environ.get("MIMALLOC_PURGE_DELAY")
_os.environ.setdefault("MIMALLOC_PURGE_DELAY", "10000")
from . import _core  # noqa: E402

if _before is None:
    del _os.environ["MIMALLOC_PURGE_DELAY"]
del _os, _before

from . import denoisers  # noqa: E402
from ._core import Error, set_threads, threads  # noqa: E402
from .audit import Audit, Fit, FittedParameter  # noqa: E402
from .axes import Axis  # noqa: E402
from .constraint import Constraint, Equation, learn, normal  # noqa: E402
from .dataset import Dataset  # noqa: E402
from .denoisers import Denoiser  # noqa: E402
from .model import Evaluation, Explained, Likelihood, Model, Parameter, report  # noqa: E402
from .training import adapt, load, train  # noqa: E402

__version__: str = _core.version()

__all__ = [
    "Audit",
    "Axis",
    "Constraint",
    "Dataset",
    "Denoiser",
    "Equation",
    "Error",
    "Evaluation",
    "Explained",
    "Fit",
    "FittedParameter",
    "Likelihood",
    "Model",
    "Parameter",
    "adapt",
    "denoisers",
    "learn",
    "load",
    "normal",
    "report",
    "set_threads",
    "threads",
    "train",
]
