#!/usr/bin/env python3
"""Writes steady states of a substance that a flow carries and that spreads, as a MATLAB file.

    pip install numpy scipy
    python3 make.py --count 2200 flow.mat

Three fields on 32 x 32 nodes of the unit square: the velocity (vx, vy), which has no divergence, and the concentration c with

    vx c_x + vy c_y = 0.05 (c_xx + c_yy) + 1,      c = 0 on the border.

The velocity comes from a stream function, a sum of 4 x 4 sines with normal amplitudes, so that it is exact at the nodes. The
concentration is solved with second differences on 63 x 63 nodes, once more on 125 x 125, and extrapolated to order four.

Arrays of the file: `vx`, `vy`, `c`, each [N, 32, 32] (axis 1 is x); `kappa`.
"""

import argparse

import numpy as np
from scipy.io import savemat
from scipy.sparse import diags, eye, kron
from scipy.sparse.linalg import spsolve

NODES, WAVES, KAPPA, SPEED = 32, 4, 0.05, 0.15


def velocity(amplitudes, nodes):
    """(vx, vy) = (psi_y, -psi_x) at nodes x nodes."""
    s = np.linspace(0, 1, nodes)
    k = np.pi * np.arange(1, WAVES + 1)
    sine, slope = np.sin(np.outer(s, k)), np.cos(np.outer(s, k)) * k
    return sine @ amplitudes @ slope.T, -(slope @ amplitudes @ sine.T)


def concentration(amplitudes, nodes):
    """c at nodes x nodes by second differences."""
    h = 1 / (nodes - 1)
    vx, vy = (v[1:-1, 1:-1].ravel() for v in velocity(amplitudes, nodes))
    n = nodes - 2
    first = diags([-1.0, 1.0], [-1, 1], (n, n)) / (2 * h)
    second = diags([1.0, -2.0, 1.0], [-1, 0, 1], (n, n)) / h**2
    one = eye(n)
    matrix = diags(vx) @ kron(first, one) + diags(vy) @ kron(one, first)
    matrix = matrix - KAPPA * (kron(second, one) + kron(one, second))
    c = np.zeros((nodes, nodes))
    c[1:-1, 1:-1] = spsolve(matrix.tocsc(), np.ones(n * n)).reshape(n, n)
    return c


def main():
    parser = argparse.ArgumentParser(description="A substance in a steady flow.")
    parser.add_argument("file")
    parser.add_argument("--count", type=int, default=2200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    k = np.arange(1, WAVES + 1)
    size = SPEED / (k[:, None] ** 2 + k[None, :] ** 2) * 2
    vx, vy, c = (np.empty((options.count, NODES, NODES)) for _ in range(3))
    for i in range(options.count):
        amplitudes = rng.normal(size=(WAVES, WAVES)) * size
        vx[i], vy[i] = velocity(amplitudes, NODES)
        coarse, fine = concentration(amplitudes, 63)[::2, ::2], concentration(amplitudes, 125)[::4, ::4]
        c[i] = fine + (fine - coarse) / 3
    fields = {"vx": vx.astype("f4"), "vy": vy.astype("f4"), "c": c.astype("f4")}
    savemat(options.file, {**fields, "kappa": KAPPA}, do_compression=True)


if __name__ == "__main__":
    main()
