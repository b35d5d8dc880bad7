"""The magnitude-preserving U-Net in PyTorch, the opponent of `compare_pytorch.py`: our own, written from the formulas.

    venv/bin/python bench/edm2_unet.py [--check crates/softly/tests/data/edm2_16_c32.safetensors]

prints the sizes of the paper's networks; with --check it compares output, log-variance and gradients with reference
numbers. Names of parameters are those of EDM2, so weights exchange with softly through `.safetensors`. Needs torch,
numpy and safetensors; never needed by tests.
"""

import argparse
import json
import math
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch.nn import functional


@dataclass
class Architecture:
    """Widths, depth and attention of a network; `resolution` is the side of its square grid."""

    resolution: int
    channels: int = 24
    multipliers: list = field(default_factory=lambda: [1, 2, 3, 4])
    blocks: int = 8
    attention: list = field(default_factory=lambda: [16, 8])
    fields: int = 2
    sigma_data: float = 0.5

    @classmethod
    def read(cls, path):
        """The architecture in the header of a weights file."""
        with safe_open(path, "pt") as file:
            header = {key: json.loads(value) for key, value in file.metadata().items()}
        return cls(
            resolution=header["img_resolution"],
            channels=header["model_channels"],
            multipliers=header["channel_mult"],
            blocks=header["num_blocks"],
            attention=header["attn_resolutions"],
            fields=header["img_channels"],
            sigma_data=header["sigma_data"],
        )

    def header(self):
        """The same as text for the header of a weights file."""
        header = {
            "img_resolution": self.resolution,
            "model_channels": self.channels,
            "channel_mult": self.multipliers,
            "num_blocks": self.blocks,
            "attn_resolutions": self.attention,
            "img_channels": self.fields,
            "sigma_data": self.sigma_data,
        }
        return {key: json.dumps(value) for key, value in header.items()}


DARCY = Architecture(64)
HELMHOLTZ = Architecture(128, channels=32, attention=[32, 16])
SMALL = Architecture(32, channels=16, multipliers=[1, 2, 2], blocks=2, attention=[])


def normalize(x, dims):
    """x / (1e-4 + rms of x over dims)."""
    return x / (1e-4 + x.square().mean(dims, keepdim=True).sqrt())


def mp_silu(x):
    return functional.silu(x) / 0.596


def mp_sum(a, b, t):
    scale = math.hypot(1 - t, t)
    return torch.lerp(a, b, t) / scale


def mp_cat(a, b, t=0.5):
    na, nb = a.shape[1], b.shape[1]
    size = math.sqrt((na + nb) / ((1 - t) ** 2 + t**2))
    return torch.cat([a * (size * (1 - t) / math.sqrt(na)), b * (size * t / math.sqrt(nb))], 1)


class Fourier(torch.nn.Module):
    """sqrt(2) cos(2 pi (f x + phase)) of one number per sample; both buffers hold the factor 2 pi already."""

    def __init__(self, features):
        super().__init__()
        self.register_buffer("freqs", 2 * math.pi * torch.randn(features))
        self.register_buffer("phases", 2 * math.pi * torch.rand(features))

    def forward(self, x):
        return math.sqrt(2) * torch.cos(torch.outer(x, self.freqs) + self.phases)


class Weight(torch.nn.Module):
    """A convolution, or a linear layer if `kernel` is 0, with a normalised weight and no bias."""

    def __init__(self, inputs, outputs, kernel=0):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(outputs, inputs, *([kernel] * 2 if kernel else [])))

    def forward(self, x, gain=1.0):
        w = self.weight
        w = normalize(w, list(range(1, w.ndim))) * (gain / math.sqrt(w[0].numel()))
        return x @ w.T if w.ndim == 2 else functional.conv2d(x, w, padding=w.shape[-1] // 2)

    def force_norm(self):
        """Forced weight normalisation, after every step."""
        self.weight.copy_(normalize(self.weight, list(range(1, self.weight.ndim))))


class Block(torch.nn.Module):
    """A residual block, with attention if `heads` is not 0."""

    def __init__(self, inputs, outputs, embedding, flavor, resample="keep", attention=False):
        super().__init__()
        self.flavor, self.resample = flavor, resample
        self.heads = outputs // 64 if attention else 0
        self.emb_gain = torch.nn.Parameter(torch.zeros([]))
        self.conv_res0 = Weight(outputs if flavor == "enc" else inputs, outputs, 3)
        self.emb_linear = Weight(embedding, outputs)
        self.conv_res1 = Weight(outputs, outputs, 3)
        self.conv_skip = Weight(inputs, outputs, 1) if inputs != outputs else None
        self.attn_qkv = Weight(outputs, 3 * outputs, 1) if self.heads else None
        self.attn_proj = Weight(outputs, outputs, 1) if self.heads else None

    def forward(self, x, embedding):
        if self.resample == "down":
            x = functional.avg_pool2d(x, 2)
        elif self.resample == "up":
            x = functional.interpolate(x, scale_factor=2, mode="nearest")
        if self.flavor == "enc":
            if self.conv_skip is not None:
                x = self.conv_skip(x)
            x = normalize(x, [1])
        scale = self.emb_linear(embedding, self.emb_gain) + 1
        y = self.conv_res0(mp_silu(x))
        y = self.conv_res1(mp_silu(y * scale[:, :, None, None]))
        if self.flavor == "dec" and self.conv_skip is not None:
            x = self.conv_skip(x)
        x = mp_sum(x, y, 0.3)
        if self.heads:
            x = mp_sum(x, self.attend(x), 0.3)
        return x.clip(-256, 256)

    def attend(self, x):
        """Cosine attention; the channels of qkv are ordered head, channel, (q, k, v)."""
        n, c, h, w = x.shape
        qkv = self.attn_qkv(x).reshape(n, self.heads, c // self.heads, 3, h * w)
        q, k, v = normalize(qkv, [2]).unbind(3)
        q, k, v = (a.transpose(2, 3) for a in (q, k, v))
        y = functional.scaled_dot_product_attention(q, k, v)
        return self.attn_proj(y.transpose(2, 3).reshape(n, c, h, w))


class UNet(torch.nn.Module):
    def __init__(self, a):
        super().__init__()
        widths = [a.channels * m for m in a.multipliers]
        embedding = max(widths)
        self.out_gain = torch.nn.Parameter(torch.zeros([]))
        self.emb_fourier = Fourier(widths[0])
        self.emb_noise = Weight(widths[0], embedding)
        self.enc, self.dec = torch.nn.ModuleDict(), torch.nn.ModuleDict()
        skips = []
        sides = [a.resolution >> level for level in range(len(widths))]
        now = a.fields + 1
        for side, width in zip(sides, widths):
            if side == a.resolution:
                self.enc[f"{side}x{side}_conv"] = Weight(now, width, 3)
                now = width
            else:
                self.enc[f"{side}x{side}_down"] = Block(now, now, embedding, "enc", resample="down")
            skips.append(now)
            for i in range(a.blocks):
                self.enc[f"{side}x{side}_block{i}"] = Block(now, width, embedding, "enc", attention=side in a.attention)
                now = width
                skips.append(now)
        for side, width in zip(reversed(sides), reversed(widths)):
            if side == sides[-1]:
                self.dec[f"{side}x{side}_in0"] = Block(now, now, embedding, "dec", attention=True)
                self.dec[f"{side}x{side}_in1"] = Block(now, now, embedding, "dec")
            else:
                self.dec[f"{side}x{side}_up"] = Block(now, now, embedding, "dec", resample="up")
            for i in range(a.blocks + 1):
                inputs = now + skips.pop()
                self.dec[f"{side}x{side}_block{i}"] = Block(inputs, width, embedding, "dec", attention=side in a.attention)
                now = width
        self.out_conv = Weight(now, a.fields, 3)

    def forward(self, x, noise):
        embedding = mp_silu(self.emb_noise(self.emb_fourier(noise)))
        x = torch.cat([x, torch.ones_like(x[:, :1])], 1)
        skips = []
        for block in self.enc.values():
            x = block(x) if isinstance(block, Weight) else block(x, embedding)
            skips.append(x)
        for name, block in self.dec.items():
            if "block" in name:
                x = mp_cat(x, skips.pop())
            x = block(x, embedding)
        return self.out_conv(x, self.out_gain)


class Denoiser(torch.nn.Module):
    """EDM's preconditioning around the U-Net, and the log-variance of the loss."""

    def __init__(self, architecture):
        super().__init__()
        self.sigma_data = architecture.sigma_data
        self.unet = UNet(architecture)
        self.logvar_fourier = Fourier(128)
        self.logvar_linear = Weight(128, 1)

    def forward(self, x, sigma):
        s, sd = sigma.reshape(-1, 1, 1, 1), self.sigma_data
        total = s**2 + sd**2
        f = self.unet(x / total.sqrt(), sigma.log() / 4)
        return x * (sd**2 / total) + f * (s * sd / total.sqrt())

    def log_variance(self, sigma):
        return self.logvar_linear(self.logvar_fourier(sigma.log() / 4))[:, 0]

    @torch.no_grad()
    def force_norm(self):
        for module in self.modules():
            if isinstance(module, Weight):
                module.force_norm()

    def write(self, path, architecture):
        """Writes weights that `softly denoise` reads."""
        save_file({name: t.contiguous() for name, t in self.state_dict().items()}, path, architecture.header())


def check(path):
    """Largest relative deviation (of each tensor's maximum) from the reference numbers in `path`."""
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}
    model = Denoiser(Architecture.read(path))
    weights = {name.removeprefix("net."): t for name, t in tensors.items() if name.startswith("net.")}
    print(model.load_state_dict(weights, strict=True))
    x, sigma = tensors["io.x"].requires_grad_(), tensors["io.sigma"]
    denoised = model(x, sigma)
    (tensors["io.v"] * denoised).sum().backward()
    found = {"io.denoised": denoised, "io.logvar": model.log_variance(sigma), "io.grad_x": x.grad}
    found |= {f"grad.{name}": p.grad for name, p in model.named_parameters()}
    worst = 0.0
    for name, expected in tensors.items():
        if name in found:
            error = ((found[name] - expected).abs().max() / expected.abs().max()).item()
            worst = max(worst, error)
            print(f"{name:45} {error:.1e}")
    print(f"largest deviation {worst:.1e}")
    assert worst <= 1e-5
    return worst


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    for name, architecture in [("Darcy", DARCY), ("Helmholtz", HELMHOLTZ), ("small", SMALL)]:
        count = sum(p.numel() for p in Denoiser(architecture).parameters())
        print(f"{name:10} {count:>10} parameters")
    if arguments.check:
        check(arguments.check)


if __name__ == "__main__":
    main()
