"""Fields and models that several tests share. Everything is small: a training takes seconds."""

from __future__ import annotations

import numpy as np
import pytest

import softly


def darcy_like(count: int, nodes: int = 16, seed: int = 0, source: float = 10.0) -> dict[str, np.ndarray]:
    """Solutions of K Δp + f = 0 with one K per sample and p = 0 on the border: p = (f/K) g, where −Δ_h g = 1."""
    rng = np.random.default_rng(seed)
    h = 1 / (nodes - 1)
    inner = nodes - 2
    line = (2 * np.eye(inner) - np.eye(inner, k=1) - np.eye(inner, k=-1)) / h**2
    matrix = np.kron(line, np.eye(inner)) + np.kron(np.eye(inner), line)
    g = np.zeros((nodes, nodes))
    g[1:-1, 1:-1] = np.linalg.solve(matrix, np.ones(inner**2)).reshape(inner, inner)
    K = np.exp(rng.normal(size=(count, 1, 1)) * 0.3) * np.ones((count, nodes, nodes))
    return {"p": source / K * g, "K": K}


@pytest.fixture(scope="session")
def data() -> softly.Dataset:
    return softly.Dataset.from_arrays(**darcy_like(64))


def poisson(f: float = 10.0, **more: object) -> softly.Constraint:
    """K Δp + f = 0 in the interior."""
    equation = softly.Equation("K*laplacian(p) + f", region="interior")
    return softly.Constraint(equation, fields=("p", "K"), f=f, **more)  # type: ignore[arg-type]


SHORT = {
    "denoiser": {"backbone": {"kind": "unet", "channels": 4, "multipliers": [1, 1], "blocks": 1, "head": 4}},
    "train": {"iterations": 8, "batch": 4, "log_every": 4, "checkpoint_every": 4},
    "sampler": {"steps": 6},
}


@pytest.fixture(scope="session")
def base(data: softly.Dataset, tmp_path_factory: pytest.TempPathFactory) -> softly.Model:
    """A plain denoiser after eight steps."""
    return softly.train(data, budget=None, out=tmp_path_factory.mktemp("runs") / "base", **SHORT)


ADAPT = {"train": {"iterations": 6, "batch": 4, "log_every": 3, "checkpoint_every": 3}}


@pytest.fixture(scope="session")
def adapted(base: softly.Model, data: softly.Dataset, tmp_path_factory: pytest.TempPathFactory) -> softly.Model:
    """The same with a soft constraint that learns f from 15."""
    out = tmp_path_factory.mktemp("runs") / "adapted"
    return softly.adapt(base, data, poisson(15.0), method="adapt-learn", out=out, **ADAPT)


def gaussian(s: float):  # type: ignore[no-untyped-def]
    """The exact denoiser of fields whose numbers are independent and normal with deviation s, and its transposed
    Jacobian."""

    def denoise(x: np.ndarray, sigma: np.ndarray) -> np.ndarray:
        return x * (s * s / (s * s + sigma**2)).reshape(-1, 1, 1, 1).astype(x.dtype)

    def vjp(x: np.ndarray, sigma: np.ndarray, w: np.ndarray) -> np.ndarray:
        return denoise(w, sigma)

    return denoise, vjp
