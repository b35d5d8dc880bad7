"""A soft constraint on a denoiser that you already have, with NumPy alone.

    python examples/own_denoiser.py

The denoiser is a function of arrays; here the best linear one of the data, in place of a network. The equation has
the wrong source.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import softly

# Solutions of u'' + u_yy + f = 0 with amplitudes a of a few waves; the source is f = 2π² a sin(πx) sin(πy) +
# noise-free modes.
rng = np.random.default_rng(0)
x = np.linspace(0, 1, 16)
waves = np.stack([np.outer(np.sin(m * np.pi * x), np.sin(n * np.pi * x)) for m in (1, 2) for n in (1, 2)])
u = np.einsum("nk,kij->nij", rng.normal(size=(256, 4)), waves)
data = softly.Dataset.from_arrays(u=u, q=2 * np.pi**2 * u)

# The best linear denoiser in the network's units: mean 0, deviation 0.5.
stacked = np.stack([data[name] / data[name].std() * 0.5 for name in data.fields], axis=1).reshape(len(data), -1)
values, vectors = np.linalg.eigh(stacked.T @ stacked / len(stacked))


def denoise(noisy: npt.NDArray[Any], sigma: npt.NDArray[np.float64]) -> npt.NDArray[Any]:
    """D(x; σ) = C (C + σ²)⁻¹ x for data with the covariance C."""
    gain = np.maximum(values, 0) / (np.maximum(values, 0) + sigma[:, None] ** 2)
    flat: npt.NDArray[Any] = noisy.reshape(len(noisy), -1) @ vectors * gain @ vectors.T
    return flat.reshape(noisy.shape).astype(noisy.dtype)


units = {name: (0.0, float(data[name].std()) / 0.5) for name in data.fields}
equation = softly.Constraint("laplacian(u) + k*q", k=1.5, norm="l2")
model = softly.adapt(denoiser=denoise, units=units, data=data, constraint=equation, train__iterations=40)
print(model)
print(model.evaluate(data, samples=16))
