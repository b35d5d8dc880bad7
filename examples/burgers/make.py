#!/usr/bin/env python3
"""Writes solutions of Burgers' equation in space and time as PDEBench lays them out: `1D_Burgers_Sols_Nu*.hdf5`.

    pip install numpy h5py
    python3 make.py --count 2200 burgers.hdf5

u_t + u u_x = nu u_xx on 0 <= x < 1, periodic, 0 <= t <= 1, nu = 0.02. The start is a sum of the waves 1 to 3 with normal
amplitudes. The solver is pseudo-spectral on 128 points with the 2/3 rule, and Runge-Kutta of order four with the viscous term
integrated exactly; every second point and 64 frames are kept.

Datasets of the file: `tensor` [N, t, x] f4, `x-coordinate` [64] (cell centres), `t-coordinate` [65] (one entry more than there
are frames, as in PDEBench's own files); attribute `Nu`.
"""

import argparse

import h5py
import numpy as np

POINTS, STRIDE, FRAMES, SUBSTEPS = 128, 2, 64, 16


def solve(start, nu):
    """Solutions [N, t, x] at all points for starts [N, x]."""
    k = 2 * np.pi * np.fft.rfftfreq(POINTS, 1 / POINTS)
    keep = k < 2 / 3 * k[-1]
    dt = 1 / (FRAMES - 1) / SUBSTEPS
    half, whole = np.exp(-nu * k**2 * dt / 2), np.exp(-nu * k**2 * dt)

    def flux(v):
        u = np.fft.irfft(v, POINTS)
        return -0.5j * k * keep * np.fft.rfft(u * u)

    v = np.fft.rfft(start) * keep
    frames = [start]
    for _ in range(FRAMES - 1):
        for _ in range(SUBSTEPS):
            a = dt * flux(v)
            b = dt * flux(half * (v + a / 2))
            c = dt * flux(half * v + b / 2)
            d = dt * flux(whole * v + half * c)
            v = whole * v + (whole * a + 2 * half * (b + c) + d) / 6
        frames.append(np.fft.irfft(v, POINTS))
    return np.stack(frames, axis=1)


def main():
    parser = argparse.ArgumentParser(description="Burgers' equation in PDEBench's layout.")
    parser.add_argument("file")
    parser.add_argument("--count", type=int, default=2200)
    parser.add_argument("--nu", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    x = (np.arange(POINTS) + 0.5 * STRIDE) / POINTS
    waves = np.arange(1, 4)
    amplitudes = rng.normal(size=(options.count, 2, 3)) * 0.35 / waves
    angles = 2 * np.pi * np.outer(waves, x)
    start = amplitudes[:, 0] @ np.sin(angles) + amplitudes[:, 1] @ np.cos(angles)
    u = np.concatenate([solve(part, options.nu) for part in np.array_split(start, max(1, options.count // 100))])
    with h5py.File(options.file, "w") as file:
        kept = u[:, :, ::STRIDE].astype("f4")
        chunks = (1, FRAMES, POINTS // STRIDE)
        file.create_dataset("tensor", data=kept, chunks=chunks, compression="gzip", shuffle=True)
        file["x-coordinate"] = x[::STRIDE].astype("f4")
        file["t-coordinate"] = (np.arange(FRAMES + 1) / (FRAMES - 1)).astype("f4")
        file.attrs["Nu"] = options.nu


if __name__ == "__main__":
    main()
