"""One training step of the toy SCD (batch 128): softly against eager PyTorch on one thread, alternating in one run.

    cargo build --release
    python -m venv venv && venv/bin/pip install torch
    venv/bin/python bench/toy_train_step.py [--rounds 5] [--out results/circle/train-step.json]

The PyTorch network is our own, written from the same formulas: three linear layers 2-128-128-2, hidden ones modulated
by eight Fourier features of the noise level, EDM preconditioning, the soft constraint with a two-layer gamma, Adam, EMA.
Never needed by tests.
"""

import argparse
import json
import math
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import torch

SIGMA_DATA = math.sqrt(0.5)


class Modulated(torch.nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear = torch.nn.Linear(inputs, outputs)
        self.scale = torch.nn.Linear(8, outputs, bias=False)
        self.shift = torch.nn.Linear(8, outputs, bias=False)

    def forward(self, x, e):
        return torch.nn.functional.silu(self.linear(x) * (1 + self.scale(e)) + self.shift(e))


def embedding(noise):
    waves = noise[:, None] * (math.pi * torch.tensor([0.25, 0.5, 1.0, 2.0]))
    return math.sqrt(2) * torch.cat([waves.cos(), waves.sin()], 1)


class Denoiser(torch.nn.Module):
    def __init__(self, scd):
        super().__init__()
        self.first, self.second, self.last = Modulated(2, 128), Modulated(128, 128), torch.nn.Linear(128, 2)
        self.gamma = torch.nn.Sequential(torch.nn.Linear(10, 100), torch.nn.SiLU(), torch.nn.Linear(100, 1)) if scd else None

    def forward(self, x, sigma):
        total = sigma**2 + SIGMA_DATA**2
        scaled = x / total.sqrt()[:, None]
        e = embedding(sigma.log() / 4)
        f = self.last(self.second(self.first(scaled, e), e))
        base = x * (SIGMA_DATA**2 / total)[:, None] + f * (sigma * SIGMA_DATA / total.sqrt())[:, None]
        if self.gamma is None:
            return base
        r = (base.square().sum(1, keepdim=True) + 1e-24).sqrt()
        gradient = -2 * (r - 1) * base / r
        gamma = self.gamma(torch.cat([scaled, e], 1))
        return base + torch.exp(-sigma)[:, None] * gamma * gradient


def pytorch_seconds(scd, steps):
    """Seconds per step of a plain eager training loop."""
    torch.manual_seed(0)
    angle = torch.rand(10_000) * 2 * math.pi
    data = torch.stack([angle.cos(), angle.sin()], 1)
    model = Denoiser(scd)
    average = [p.detach().clone() for p in model.parameters()]
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-4)
    normal = torch.distributions.Normal(0.0, 1.0)
    low = normal.cdf(torch.tensor((math.log(0.002) + 2) / 1.7)).item()

    def step():
        clean = data[torch.randint(0, 10_000, (128,))]
        u = low + (1 - low) * torch.rand(128)
        sigma = (-2 + 1.7 * normal.icdf(u.clamp(max=1 - 1e-7))).exp()
        noisy = clean + sigma[:, None] * torch.randn_like(clean)
        weight = (sigma**2 + SIGMA_DATA**2) / (sigma * SIGMA_DATA) ** 2
        loss = (weight[:, None] * (model(noisy, sigma) - clean).square()).mean()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        with torch.no_grad():
            torch._foreach_lerp_(average, list(model.parameters()), 0.01)
        return loss.item()

    for _ in range(50):
        step()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    return (time.perf_counter() - start) / steps


def softly_seconds(program, scd, steps):
    """Seconds per step of `softly train`: two lengths, so that start-up cancels."""

    def run(iterations):
        with tempfile.TemporaryDirectory() as folder:
            command = [program, "--threads", "1", "train", "--preset", "circle-paper", "--method", "scd" if scd else "vanilla"]
            command += ["--set", f"train.iterations={iterations}", "--out", f"{folder}/run"]
            start = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            return time.perf_counter() - start

    return (run(steps + 200) - run(200)) / steps


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="target/release/softly")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for method, scd in [("vanilla", False), ("scd", True)]:
        times = {"pytorch": [], "softly": []}
        for _ in range(arguments.rounds):
            times["pytorch"].append(1e3 * pytorch_seconds(scd, arguments.steps))
            times["softly"].append(1e3 * softly_seconds(arguments.program, scd, arguments.steps))
        ratios = [p / s for p, s in zip(times["pytorch"], times["softly"])]
        rows.append(
            {
                "method": method,
                "pytorch_ms": {k: round(f(times["pytorch"]), 4) for k, f in [("min", min), ("median", statistics.median)]},
                "softly_ms": {k: round(f(times["softly"]), 4) for k, f in [("min", min), ("median", statistics.median)]},
                "speedup_median": round(statistics.median(ratios), 3),
                "speedup_range": [round(min(ratios), 3), round(max(ratios), 3)],
            }
        )
        print(json.dumps(rows[-1]))
    result = {
        "what": "one training step, toy network, batch 128, one thread, eager PyTorch against softly, alternating",
        "torch": torch.__version__,
        "rounds": arguments.rounds,
        "steps": arguments.steps,
        "rows": rows,
    }
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
