#!/usr/bin/env python3
"""Least-squares parameters of Burgers data by NumPy alone: the numbers in `tests/audit.rs`.

    python3 least_squares.py

The data are closed forms (Cole and Hopf), the stencils second-order differences: one-sided at the ends of t, periodic in x.
"""

import numpy as np

NU, STEPS, NODES, SAMPLES = 0.2, 24, 32, 12


def any_number(i, k):
    return ((i * 37 + k * 101) * 0.618033988749895 + 0.1) % 1.0


def burgers(i, t, x):
    c = 0.5 + any_number(i, 3)
    x = x - c * t
    phi, slope = 1.6, 0.0
    for k in range(1, 4):
        size = 0.5 * (0.3 + any_number(i, k)) / k * np.exp(-NU * k * k * t)
        angle = k * x + 2 * np.pi * any_number(i, k + 5)
        phi = phi + size * np.cos(angle)
        slope = slope - size * k * np.sin(angle)
    return c - 2 * NU * slope / phi


h_t, h_x = 1 / (STEPS - 1), 2 * np.pi / NODES
t, x = np.meshgrid(h_t * np.arange(STEPS), h_x * np.arange(NODES), indexing="ij")
u = np.stack([burgers(i, t, x) for i in range(SAMPLES)]).astype(np.float32).astype(np.float64)

dt = np.gradient(u, h_t, axis=1, edge_order=2)
dx = (np.roll(u, -1, 2) - np.roll(u, 1, 2)) / (2 * h_x)
dxx = (np.roll(u, -1, 2) - 2 * u + np.roll(u, 1, 2)) / h_x**2

# dt + u dx - nu dxx = 0
nu, *_ = np.linalg.lstsq(dxx.reshape(-1, 1), (dt + u * dx).ravel(), rcond=None)
print(f"nu alone: {nu[0]:.12g}")
# dt + a u dx - nu dxx = 0
columns = np.stack([(u * dx).ravel(), -dxx.ravel()], axis=1)
both, *_ = np.linalg.lstsq(columns, -dt.ravel(), rcond=None)
print(f"a and nu: {both[0]:.12g} {both[1]:.12g}")
