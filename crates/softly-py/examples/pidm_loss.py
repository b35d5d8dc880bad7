"""PIDM's loss with an equation of one's own: the residual of the estimate is a term of the training loss.

    python examples/pidm_loss.py

Data are solutions of u' ' = −k² u in two directions; the network sees them with noise and learns to take it away.
"""

from __future__ import annotations

import math

import torch

import softly
from softly.torch import Residual

torch.manual_seed(0)
residual = Residual(softly.Constraint("laplacian(u) + 2*k^2*u", k=math.pi))
grid = torch.linspace(0, 1, 24)
wave = torch.sin(math.pi * grid)[:, None] * torch.sin(math.pi * grid)[None, :]
network = torch.nn.Sequential(torch.nn.Conv2d(1, 16, 5, padding=2), torch.nn.SiLU(), torch.nn.Conv2d(16, 1, 5, padding=2))
optimiser = torch.optim.Adam(network.parameters(), 3e-3)

for step in range(200):
    clean = torch.randn(16, 1, 1, 1) * wave
    sigma = 0.2
    estimate = network(clean + sigma * torch.randn_like(clean))
    r = residual(u=estimate[:, 0])
    # PIDM: the denoising loss, and the residual weighted by the variance of the noise.
    loss = (estimate - clean).square().mean() / sigma**2 + 1e-5 / sigma**2 * r.square().mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    if step % 50 == 0:
        print(f"step {step}: loss {loss.item():.4f}, mean |R| {r.abs().mean().item():.3f}")
