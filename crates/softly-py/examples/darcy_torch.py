# %% [markdown]
# # Put your equation on your PyTorch model
#
# A small U-Net is trained on Darcy fields with PyTorch alone. softly then puts Darcy's equation on it, with a source that
# is wrong by half, and learns the right one. `python examples/darcy_torch.py` runs it; `.ci/notebook.py` makes a
# notebook of it.

# %%
from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

import softly

SEED = int(os.environ.get("SEED", "0"))
REDUCED = "SOFTLY_REDUCED" in os.environ
STEPS = 20 if REDUCED else int(os.environ.get("STEPS", "3000"))
torch.manual_seed(SEED)

# %% [markdown]
# Data: pressure p and permeability K on 16 × 16 nodes with a source of strength 10. The program that comes with the
# package makes them.

# %%
folder = Path(os.environ.get("DATA", "data/darcy"))
if not folder.exists():
    command = [sys.executable, "-m", "softly", "data", "generate", "--preset", "darcy-demo", "--out", str(folder)]
    subprocess.run(command, check=True)
data = softly.Dataset.open(folder)
print(data)

# %% [markdown]
# Is the equation right? An audit says so before any training: it is given f = 15.

# %%
source = "f*(x<=0.125)*(y<=0.125) - f*(x>=0.875)*(y>=0.875)"
darcy = softly.Constraint(
    f"K*laplacian(p) + dot(grad(K), grad(p)) + {source}",
    fields=("p", "K"),
    stencil="one-sided-2",
    stencils={"p": "mirror"},
    norm="l2",
    f=15.0,
)
print(darcy.audit(data, fit="f"))

# %% [markdown]
# The model that you already have: a U-Net D(x, σ) in EDM's convention, trained with the denoising loss.


# %%
class Block(nn.Module):
    """Two convolutions, modulated by the noise level."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inside, outside, 3, padding=1)
        self.second = nn.Conv2d(outside, outside, 3, padding=1)
        self.skip = nn.Conv2d(inside, outside, 1)
        self.level = nn.Linear(32, outside)
        self.norm = nn.GroupNorm(4, outside)

    def forward(self, x: torch.Tensor, level: torch.Tensor) -> torch.Tensor:
        inner = nn.functional.silu(self.norm(self.first(x)) + self.level(level)[:, :, None, None])
        found: torch.Tensor = self.skip(x) + self.second(inner)
        return found


class UNet(nn.Module):
    """EDM's preconditioning around a U-Net with two levels."""

    def __init__(self, fields: int, width: int = 32, sigma_data: float = 0.5) -> None:
        super().__init__()
        self.sigma_data = sigma_data
        self.register_buffer("waves", torch.randn(16) * 2)
        self.enter = nn.Conv2d(fields + 2, width, 3, padding=1)
        self.down = Block(width, width)
        self.deep = nn.ModuleList([Block(width, 2 * width), Block(2 * width, 2 * width)])
        self.up = Block(3 * width, width)
        self.leave = nn.Conv2d(width, fields, 3, padding=1)
        nn.init.zeros_(self.leave.weight)

    def network(self, x: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        waves: torch.Tensor = self.waves  # type: ignore[assignment]
        angle = noise[:, None] * waves
        level = torch.cat([angle.cos(), angle.sin()], 1)
        rows = torch.linspace(-1, 1, x.shape[2], dtype=x.dtype)
        place = torch.stack(torch.meshgrid(rows, rows, indexing="ij")).expand(len(x), -1, -1, -1)
        fine = self.down(self.enter(torch.cat([x, place], 1)), level)
        coarse = nn.functional.avg_pool2d(fine, 2)
        for block in self.deep:
            coarse = block(coarse, level)
        wide = nn.functional.interpolate(coarse, scale_factor=2)
        found: torch.Tensor = self.leave(nn.functional.silu(self.up(torch.cat([fine, wide], 1), level)))
        return found

    def forward(self, x: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
        s, d = sigma.reshape(-1, 1, 1, 1), self.sigma_data
        total = (s**2 + d**2).sqrt()
        return (d / total) ** 2 * x + s * d / total * self.network(x / total, sigma.log() / 4)


units = {name: (float(data[name].mean()), float(data[name].std()) / 0.5) for name in data.fields}
clean = torch.tensor(np.stack([(data[n] - m) / s for n, (m, s) in units.items()], 1), dtype=torch.float32)
network = UNet(len(data.fields))
optimiser = torch.optim.Adam(network.parameters(), 2e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, STEPS)
start = time.time()
for step in range(STEPS):
    batch = clean[torch.randint(len(clean), (32,))]
    sigma = torch.exp(-1.2 + 1.7 * torch.randn(len(batch)))
    noisy = batch + sigma.reshape(-1, 1, 1, 1) * torch.randn_like(batch)
    weight = (sigma**2 + 0.25) / (0.5 * sigma) ** 2
    loss = (weight * (network(noisy, sigma) - batch).square().mean((1, 2, 3))).mean()
    optimiser.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(network.parameters(), 1.0)
    optimiser.step()
    schedule.step()
network.eval()
print(f"{STEPS} steps in {time.time() - start:.0f} s, last loss {loss.item():.3f}")

# %% [markdown]
# Adapt it: the network stays as it is, the weights of three directions of the equation are learned on top of it, and
# so is f.

# %%
start = time.time()
settings: dict[str, object] = {"train": {"iterations": 10 if REDUCED else 600, "batch": 16}, "progress": False}
model = softly.adapt(denoiser=network, units=units, data=data, constraint=darcy, method="adapt", **settings)  # type: ignore[arg-type]
learned = softly.adapt(denoiser=network, units=units, data=data, constraint=darcy, method="adapt-learn", **settings)  # type: ignore[arg-type]
print(f"adapted twice in {time.time() - start:.0f} s; f learned from 15: {learned.parameters['f'].value:.3f}")

# %% [markdown]
# Residuals are taken with the data's own equation, f = 10; `compliance=0` is the network alone.

# %%
count, likelihoods = (4, 2) if REDUCED else (64, 32)
rows = {
    "network": model.evaluate(data, samples=count, compliance=0, progress=False),
    "adapted, given f = 15": model.evaluate(data, samples=count, progress=False),
    "adapted, f learned": learned.evaluate(data, samples=count, progress=False),
}
bits = {
    "network": model.nll(data, count=likelihoods, compliance=0, progress=False),
    "adapted, given f = 15": model.nll(data, count=likelihoods, progress=False),
    "adapted, f learned": learned.nll(data, count=likelihoods, progress=False),
}
reference = rows["network"].residual or float("nan")
table = []
for name, found in rows.items():
    residual = found.residual or float("nan")
    difference = bits[name].samples - bits["network"].samples
    error = 2 * float(difference.std(ddof=1)) / len(difference) ** 0.5
    table.append(
        {
            "model": name,
            "mean_abs_residual": residual,
            "of_network": residual / reference,
            "nll_minus_network": float(difference.mean()),
            "nll_two_standard_errors": error,
            "scatter": found.scatter,
        }
    )
    print(f"{name:22}  mean |R| {residual:.4f}  ({residual / reference:.2f})  ΔNLL {difference.mean():+.3f} ± {error:.3f}")

# %%
if "RESULT" in os.environ:
    result = {"seed": SEED, "steps": STEPS, "learned_f": learned.parameters["f"].value, "rows": table}
    Path(os.environ["RESULT"]).write_text(json.dumps(result, indent=1) + "\n")

# %% [markdown]
# Samples of the network and of the adapted model from the same noise, with their residuals.

# %%
try:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
except ImportError:
    print("no figure: matplotlib is not installed")
else:
    truth = softly.Constraint(
        f"K*laplacian(p) + dot(grad(K), grad(p)) + {source}", fields=("p", "K"), stencil="one-sided-2", stencils={"p": "mirror"}, f=10.0
    )
    figure, axes = plt.subplots(2, 3, figsize=(7, 4), constrained_layout=True)
    for row, (name, fields) in zip(axes, {"network": model.sample(1, compliance=0), "adapted": learned.sample(1)}.items()):
        residual_map = truth.residual(p=fields["p"], K=fields["K"])[0]
        for axis, image, title in zip(row, (fields["p"][0], fields["K"][0], residual_map), ("p", "K", "R")):
            limit = dict(vmin=-1, vmax=1, cmap="RdBu") if title == "R" else {}
            figure.colorbar(axis.imshow(image, **limit), ax=axis)
            axis.set_title(f"{name}: {title}", fontsize=8)
            axis.axis("off")
    figure.savefig("darcy_torch.png", dpi=70)
