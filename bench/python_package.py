#!/usr/bin/env python3
"""What the Python package costs: residuals beside NumPy's, calls of a function, adapting a function beside adapting a
model.

    .ci/python --torch                       # or: pip install the wheel and numpy; torch for the last part
    python bench/python_package.py --out results/python/speed.json

Ratios come from rounds that alternate in one run; medians over rounds are told, with the smallest and the largest.
"""

import argparse
import json
import statistics
import time

import numpy as np

import softly


def seconds(work):
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def alternating(rounds, **works):
    """Seconds of every work in every round, after one that warms up."""
    found = {name: [] for name in works}
    for round_ in range(rounds + 1):
        for name, work in works.items():
            took = seconds(work)
            if round_:
                found[name].append(took)
    return found


def ratio(found, a, b):
    ratios = [x / y for x, y in zip(found[a], found[b])]
    return {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)}


def numpy_darcy(p, K, h, f):
    """K Δp + ∇K·∇p + f with second-order stencils, as one would write it."""

    def d(u, axis):
        return np.gradient(u, h, axis=axis, edge_order=2)

    def d2(u, axis):
        u = np.moveaxis(u, axis, -1)
        out = np.empty_like(u)
        out[..., 1:-1] = (u[..., 2:] - 2 * u[..., 1:-1] + u[..., :-2]) / h**2
        out[..., 0] = (2 * u[..., 0] - 5 * u[..., 1] + 4 * u[..., 2] - u[..., 3]) / h**2
        out[..., -1] = (2 * u[..., -1] - 5 * u[..., -2] + 4 * u[..., -3] - u[..., -4]) / h**2
        return np.moveaxis(out, -1, axis)

    return K * (d2(p, 1) + d2(p, 2)) + d(K, 1) * d(p, 1) + d(K, 2) * d(p, 2) + f


def residuals(rounds):
    """`residual` and `vjp` beside the bare Rust call and beside NumPy, at 64 × 64 × 64."""
    rng = np.random.default_rng(0)
    p, K, w = (rng.normal(size=(64, 64, 64)) for _ in range(3))
    darcy = softly.Constraint("K*laplacian(p) + dot(grad(K), grad(p)) + f", fields=("p", "K"), f=10.0)
    np.testing.assert_allclose(darcy.residual(p=p, K=K), numpy_darcy(p, K, 1 / 63, 10.0), rtol=1e-9, atol=1e-7)
    from softly.axes import grid_json

    grid = grid_json(darcy.axes, (64, 64))
    found = alternating(
        rounds,
        residual=lambda: darcy.residual(p=p, K=K),
        residual_core=lambda: darcy._core.residual(grid, [p, K]),
        numpy=lambda: numpy_darcy(p, K, 1 / 63, 10.0),
        vjp=lambda: darcy.vjp(w, p=p, K=K),
        vjp_core=lambda: darcy._core.vjp(grid, [p, K], w),
    )
    return {
        "seconds": {name: statistics.median(times) for name, times in found.items()},
        "residual / Rust call": ratio(found, "residual", "residual_core"),
        "vjp / Rust call": ratio(found, "vjp", "vjp_core"),
        "residual / NumPy": ratio(found, "residual", "numpy"),
    }


def calls(rounds):
    """Milliseconds of a call of a function beside the function itself: sampling at 64 × 64 × 2 in a batch of 16."""
    rng = np.random.default_rng(0)
    data = softly.Dataset.from_arrays(u=rng.normal(size=(32, 64, 64)), v=rng.normal(size=(32, 64, 64)))
    inside, count = [0.0], [0]

    def denoise(x, sigma):
        start = time.perf_counter()
        found = x * (0.25 / (0.25 + sigma**2)).reshape(-1, 1, 1, 1).astype(x.dtype)
        inside[0] += time.perf_counter() - start
        count[0] += 1
        return found

    settings = {"train": {"iterations": 1, "batch": 4}, "denoiser__scd__directions": ["gradient"]}
    model = softly.adapt(denoiser=denoise, data=data, constraint=softly.Constraint("u - v"), **settings)
    x = rng.normal(size=(16, 2, 64, 64))
    found = []
    for _ in range(rounds):
        inside[0], count[0] = 0.0, 0
        took = seconds(lambda: [model.denoise(x, 0.5) for _ in range(20)])
        found.append(1e3 * (took - inside[0]) / count[0])
    plain = alternating(rounds, call=lambda: model.sample(16, steps=8, compliance=0))
    per_call = [1e3 * took / 16 for took in plain["call"]]
    return {
        "denoise with the gradient's correction, ms per call beside the function": statistics.median(found),
        "sampler's step with nothing on top, ms per call": statistics.median(per_call),
    }


def adapting(rounds):
    """Adapting a softly model natively and as a function, and the time inside the function."""
    rng = np.random.default_rng(0)
    x = np.linspace(0, 1, 32)
    waves = np.stack([np.outer(np.sin(m * np.pi * x), np.sin(n * np.pi * x)) for m in (1, 2) for n in (1, 2)])
    u = np.einsum("nk,kij->nij", rng.normal(size=(128, 4)), waves)
    data = softly.Dataset.from_arrays(u=u, q=3 * u)
    base = softly.train(data, budget=None, train={"iterations": 5, "batch": 8})
    settings = {"train": {"iterations": 40, "batch": 16, "shares": 1}, "progress": False}
    law = softly.Constraint("q - k*u", k=2.0)
    inside = []

    def denoise(x, sigma):
        start = time.perf_counter()
        found = base.denoise(x, sigma)
        inside[-1] += time.perf_counter() - start
        return found

    def function():
        inside.append(0.0)
        softly.adapt(denoiser=denoise, units=base.units, data=data, constraint=law, **settings)

    found = alternating(rounds, native=lambda: softly.adapt(base, data, law, **settings), function=function)
    beside = [total - own for total, own in zip(found["function"], inside[1:])]
    bound = [total / (1.15 * native + own) for total, native, own in zip(found["function"], found["native"], inside[1:])]
    return {
        "seconds native": statistics.median(found["native"]),
        "seconds function": statistics.median(found["function"]),
        "of which inside the function": statistics.median(inside[1:]),
        "beside the function / native": statistics.median([b / n for b, n in zip(beside, found["native"])]),
        "function / (1.15 native + inside)": statistics.median(bound),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out")
    arguments = parser.parse_args()
    result = {
        "version": softly.__version__,
        "threads": softly.threads(),
        "rounds": arguments.rounds,
        "residuals": residuals(3 * arguments.rounds),
        "calls": calls(arguments.rounds),
        "adapting": adapting(arguments.rounds),
    }
    text = json.dumps(result, indent=1)
    print(text)
    if arguments.out:
        with open(arguments.out, "w") as file:
            file.write(text + "\n")


if __name__ == "__main__":
    main()
