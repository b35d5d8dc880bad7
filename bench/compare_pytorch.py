"""The magnitude-preserving U-Net: softly against PyTorch on the same processor, alternating in one run.

    cargo build --release
    python -m venv venv && venv/bin/pip install torch numpy safetensors
    venv/bin/python bench/compare_pytorch.py [--rounds 5] [--out results/unet]

First both sides denoise the same input with the same weights, which must agree. Then every case runs in turns: softly,
and PyTorch eager, in channels-last layout and compiled, each in a process of its own, so that its peak of memory is its
own as well. The fastest PyTorch variant counts. A training step is noise, forward, backward, Adam, running average
and forced weight normalisation; a forward pass is one denoiser call without gradients. Both sides normalise the weights
in every call. Never needed by tests.

Writes ratios.json and ratios.md. With `--vectors avx2` both sides are kept to AVX2, and the files are ratios-avx2. A ratio above 1 means that softly is faster (or smaller); it is the median over rounds,
with the range over rounds. Run it on an otherwise idle machine.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

import edm2_unet

VARIANTS = ["eager", "channels-last", "compiled"]
NETWORKS = {"darcy": edm2_unet.DARCY, "small": edm2_unet.SMALL}

# How both sides are kept to an instruction set on a machine that has more; workers of PyTorch inherit it.
VECTORS = {"best": {}, "avx2": {"SOFTLY_VECTORS": "avx2", "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}}


@dataclass(frozen=True)
class Case:
    work: str
    network: str
    batch: int
    threads: int

    def title(self):
        what = {"train-step": "training step", "denoise": "forward pass"}[self.work]
        name = {"darcy": "paper's Darcy network", "small": "small network"}[self.network]
        return f"{what}, {name}, batch {self.batch}, {self.threads} thread{'s' * (self.threads > 1)}"


CASES = [
    Case("train-step", "darcy", 4, 2),
    Case("train-step", "darcy", 8, 2),
    Case("denoise", "darcy", 4, 2),
    Case("denoise", "darcy", 8, 2),
    Case("train-step", "small", 32, 2),
    Case("denoise", "small", 32, 2),
    # For the gain from a second thread.
    Case("train-step", "darcy", 4, 1),
    Case("denoise", "darcy", 4, 1),
]

# The goals of the project, as ratios on two threads.
GOALS = {("train-step", "darcy"): 2.5, ("denoise", "darcy"): 2.5, ("train-step", "small"): 2.5}


def status(key):
    """A number of bytes in the process's status, e.g. its peak of memory."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key))
    return int(line.split()[1]) * 1024


# PyTorch's side: a process that runs rounds on demand.


def new_model(architecture, seed=0):
    """Random weights whose every part matters: the gains start at 0 otherwise."""
    torch.manual_seed(seed)
    model = edm2_unet.Denoiser(architecture)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("gain"):
                parameter.copy_(0.5 + 0.5 * torch.rand([]))
    return model


def training_step(model, architecture, batch, layout, compiled):
    """A function that takes one training step."""
    sd, side = architecture.sigma_data, architecture.resolution
    data = sd * torch.randn(64, architecture.fields, side, side)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.99), fused=True)
    parameters = list(model.parameters())
    average = [p.detach().clone() for p in parameters]

    def loss_of(clean, noise, sigma):
        s = sigma.reshape(-1, 1, 1, 1)
        weight = (s**2 + sd**2) / (s * sd) ** 2
        return (weight * (model(clean + s * noise, sigma) - clean).square()).mean()

    force_norm = model.force_norm
    if compiled:
        loss_of, force_norm = torch.compile(loss_of), torch.compile(force_norm)

    def step():
        clean = data[torch.randint(0, len(data), (batch,))].contiguous(memory_format=layout)
        sigma = (-1.2 + 1.2 * torch.randn(batch)).exp()
        loss = loss_of(clean, torch.randn_like(clean), sigma)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        with torch.no_grad():
            torch._foreach_lerp_(average, parameters, 0.01)
        force_norm()
        return loss.item()

    return step


def forward_pass(model, architecture, batch, layout, compiled):
    """A function that calls the denoiser once."""
    side = architecture.resolution
    x = torch.randn(batch, architecture.fields, side, side).contiguous(memory_format=layout)
    sigma = torch.rand(batch) + 0.5
    denoise = torch.compile(model) if compiled else model

    def call():
        with torch.inference_mode():
            return denoise(x, sigma)

    return call


def worker(case, variant):
    """Answers every line on stdin, a number of rounds, with their times."""
    torch.set_num_threads(case.threads)
    imported = status("VmRSS:")
    architecture = NETWORKS[case.network]
    layout = torch.channels_last if variant == "channels-last" else torch.contiguous_format
    model = new_model(architecture).to(memory_format=layout)
    make = training_step if case.work == "train-step" else forward_pass
    work = make(model, architecture, case.batch, layout, variant == "compiled")
    for line in sys.stdin:
        seconds = []
        for _ in range(int(line)):
            start = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - start)
        print(json.dumps({"seconds": seconds, "imported_rss_bytes": imported, "peak_rss_bytes": status("VmHWM:")}), flush=True)


class Torch:
    """A worker with one variant of one case."""

    def __init__(self, case, variant):
        command = [sys.executable, __file__, "--worker", json.dumps([case.work, case.network, case.batch, case.threads]), variant]
        environment = os.environ | {"OMP_NUM_THREADS": str(case.threads)}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)

    def rounds(self, count, limit):
        """Runs rounds; raises TimeoutError after `limit` seconds, as compiling may take for ever."""
        timer = threading.Timer(limit, self.process.kill)
        timer.start()
        try:
            self.process.stdin.write(f"{count}\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        finally:
            timer.cancel()
        if not answer:
            raise TimeoutError(f"no answer within {limit} s")
        return json.loads(answer)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


# softly's side: the program.


def configuration(network):
    """The options that give softly the network of a case."""
    a = NETWORKS[network]
    backbone = f"{{kind='unet', channels={a.channels}, multipliers={a.multipliers}, blocks={a.blocks}, attention={a.attention}, head=64}}"
    preset = {"darcy": "darcy-paper", "small": "darcy-cpu"}[network]
    return ["--preset", preset, "--method", "vanilla", "--set", f"denoiser.backbone={backbone}"]


def softly(program, case, rounds):
    command = [program, "bench", case.work, *configuration(case.network)]
    command += ["--batch", str(case.batch), "--threads", str(case.threads), "--rounds", str(rounds), "--json"]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def same_output(program, network, folder):
    """Largest deviation of softly's denoiser from PyTorch's with the same weights, relative to the largest value."""
    architecture = NETWORKS[network]
    model = new_model(architecture, seed=1)
    model.write(f"{folder}/weights.safetensors", architecture)
    side = architecture.resolution
    sigma = torch.tensor([0.01, 0.3, 2.0, 40.0])
    x = architecture.sigma_data * torch.randn(4, architecture.fields, side, side)
    x = x + sigma.reshape(-1, 1, 1, 1) * torch.randn_like(x)
    np.save(f"{folder}/x.npy", x.numpy())
    np.save(f"{folder}/sigma.npy", sigma.numpy())
    command = [program, "denoise", f"{folder}/weights.safetensors", "--input", f"{folder}/x.npy"]
    command += ["--sigma", f"{folder}/sigma.npy", "--out", f"{folder}/d.npy"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    with torch.inference_mode():
        expected = model(x, sigma).numpy()
    # Sample by sample: at high noise the network dominates, at low noise the input.
    error = np.abs(np.load(f"{folder}/d.npy") - expected).max((1, 2, 3)) / np.abs(expected).max((1, 2, 3))
    return float(error.max())


def compare(program, case, variants, rounds, steps, limit):
    """Runs one case in turns and sums it up."""
    # Before any of them is timed, every variant is compiled and warm.
    workers, refused = {}, {}
    for variant in variants:
        started = Torch(case, variant)
        try:
            started.rounds(2, limit)
            workers[variant] = started
        except (TimeoutError, BrokenPipeError) as error:
            refused[variant] = str(error)
    ours, theirs = [], {variant: [] for variant in workers}
    for _ in range(rounds):
        ours.append(softly(program, case, steps))
        for variant, process in workers.items():
            theirs[variant].append(process.rounds(steps, limit))
    for process in workers.values():
        process.close()
    middle = {variant: [statistics.median(r["seconds"]) for r in all_rounds] for variant, all_rounds in theirs.items()}
    best = min(middle, key=lambda variant: statistics.median(middle[variant]))
    ratios = [t / o["seconds_median"] for t, o in zip(middle[best], ours)]
    peak = {variant: max(r["peak_rss_bytes"] for r in all_rounds) for variant, all_rounds in theirs.items()}
    our_peak = max(o["peak_rss_bytes"] for o in ours)
    imported = max(r["imported_rss_bytes"] for r in theirs[best])
    summary = lambda least, medians: {  # noqa: E731
        "min": round(1e3 * least, 3),
        "median": round(1e3 * statistics.median(medians), 3),
        "round_medians": [round(1e3 * m, 3) for m in medians],
    }
    return {
        **case.__dict__,
        "parameters": ours[0]["parameters"],
        "softly_ms": summary(min(o["seconds_min"] for o in ours), [o["seconds_median"] for o in ours]),
        "pytorch_ms": {
            variant: summary(min(min(r["seconds"]) for r in theirs[variant]), middle[variant]) for variant in workers
        },
        "pytorch_refused": refused,
        "best": best,
        "ratio": round(statistics.median(ratios), 3),
        "ratio_range": [round(min(ratios), 3), round(max(ratios), 3)],
        "ratio_of_minima": round(min(min(r["seconds"]) for r in theirs[best]) / min(o["seconds_min"] for o in ours), 3),
        "softly_peak_rss_bytes": our_peak,
        "pytorch_peak_rss_bytes": peak,
        "pytorch_imported_rss_bytes": imported,
        "memory_ratio": round(min(peak.values()) / our_peak, 3),
        "memory_ratio_without_imports": round((min(peak.values()) - imported) / our_peak, 3),
    }


def machine():
    model = next((l.split(":")[1].strip() for l in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in l), "")
    flags = Path("/proc/cpuinfo").read_text()
    compiler = subprocess.run(["g++", "--version"], capture_output=True, text=True).stdout.splitlines()
    return {
        "cpu": model or platform.processor(),
        "cores": os.cpu_count(),
        "instructions": [f for f in ["avx2", "fma", "avx512f"] if f" {f} " in flags],
        "torch": torch.__version__,
        "python": platform.python_version(),
        "compiler": compiler[0] if compiler else None,
        "load_before": os.getloadavg()[0],
    }


def markdown(result):
    """The table for readers."""
    facts = result["machine"]
    lines = [
        f"### {facts['cpu']}, kernels in {result['softly']['vectors']}",
        "",
        f"Made by `bench/compare_pytorch.py` with softly {result['softly']['version']} ({result['softly']['commit']}) and PyTorch",
        f"{facts['torch']} on {facts['cores']} cores of {facts['cpu']} ({', '.join(facts['instructions'])}); {facts['compiler']}.",
        f"{result['rounds']} rounds of {result['steps']} steps each, in turns. A ratio above 1 means that softly is faster; it is the",
        "median over rounds of PyTorch's time over softly's, with the range over rounds in brackets. The fastest PyTorch",
        "variant counts. Both sides denoise the same weights to the same output: largest relative deviation "
        + ", ".join(f"{error:.0e} ({name})" for name, error in result["deviation"].items())
        + ".",
        "",
        "| work | softly ms | PyTorch ms: " + ", ".join(VARIANTS) + " | ratio | goal | memory: softly, PyTorch (of it imports) |",
        "|---|---|---|---|---|---|",
    ]
    megabytes = lambda b: f"{b / 1e6:.0f}"  # noqa: E731
    for row in result["rows"]:
        case = Case(row["work"], row["network"], row["batch"], row["threads"])
        goal = GOALS.get((case.work, case.network)) if case.threads == 2 else None
        times = ", ".join(
            f"{'**' * (v == row['best'])}{row['pytorch_ms'][v]['median']:.1f}{'**' * (v == row['best'])}"
            if v in row["pytorch_ms"]
            else "–"
            for v in VARIANTS
        )
        memory = f"{megabytes(row['softly_peak_rss_bytes'])}, {megabytes(min(row['pytorch_peak_rss_bytes'].values()))} MB"
        memory += f" ({megabytes(row['pytorch_imported_rss_bytes'])})"
        low, high = row["ratio_range"]
        lines.append(
            f"| {case.title()} | {row['softly_ms']['median']:.1f} | {times} | **{row['ratio']:.2f}** ({low:.2f}–{high:.2f})"
            f" | {f'≥ {goal}' if goal else ''} | {memory} |"
        )
    lines += ["", "| scaling from 1 to 2 threads | softly | PyTorch |", "|---|---|---|"]
    for name, ours, theirs in result["scaling"]:
        lines.append(f"| {name} | {ours:.2f} | {theirs:.2f} |")
    return "\n".join(lines) + "\n"


def scaling(rows):
    """One thread's time over two threads', of softly and of the best PyTorch variants."""
    found = {(r["work"], r["network"], r["batch"], r["threads"]): r for r in rows}
    table = []
    for (work, network, batch, threads), two in found.items():
        one = found.get((work, network, batch, 1))
        if threads == 2 and one:
            best = lambda row: row["pytorch_ms"][row["best"]]["median"]  # noqa: E731
            ours = one["softly_ms"]["median"] / two["softly_ms"]["median"]
            title = Case(work, network, batch, 2).title().removesuffix(", 2 threads")
            table.append([title, round(ours, 3), round(best(one) / best(two), 3)])
    return table


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="target/release/softly")
    parser.add_argument("--rounds", type=int, default=5, help="turns of every variant")
    parser.add_argument("--steps", type=int, default=3, help="timed steps per turn")
    parser.add_argument("--compile-limit", type=float, default=1200, help="seconds to wait for a compiled variant; 0: none")
    parser.add_argument("--only", default="", help="only cases whose title contains this text")
    parser.add_argument("--vectors", choices=VECTORS, default="best", help="instruction set of both sides")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return worker(Case(*json.loads(arguments.worker[0])), arguments.worker[1])
    os.environ |= VECTORS[arguments.vectors]
    program = str(Path(arguments.program).resolve())
    facts = machine()
    if facts["load_before"] > 0.5:
        print(f"warning: the machine is busy (load {facts['load_before']:.1f})", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        deviation = {network: same_output(program, network, folder) for network in NETWORKS}
    print(json.dumps({"deviation": deviation}))
    assert max(deviation.values()) < 1e-4, "both sides must be the same network"
    rows = []
    for case in CASES:
        if arguments.only not in case.title():
            continue
        # Compiling takes minutes and has nothing to do with threads: on one thread, which is for scaling, it is left out.
        compiles = arguments.compile_limit > 0 and case.threads == 2
        variants = VARIANTS if compiles else VARIANTS[:2]
        # Short steps are repeated more often.
        steps = arguments.steps * (5 if case.network == "small" or case.work == "denoise" else 1)
        rows.append(compare(program, case, variants, arguments.rounds, steps, arguments.compile_limit or 1200))
        print(json.dumps(rows[-1]), flush=True)
    info = json.loads(subprocess.run([program, "info", "--json"], check=True, capture_output=True).stdout)
    result = {
        "what": "softly against PyTorch, alternating in one run; ratio = PyTorch's time over softly's",
        "machine": facts,
        "softly": {key: info[key] for key in ["version", "commit", "device", "vectors"]},
        "rounds": arguments.rounds,
        "steps": arguments.steps,
        "deviation": deviation,
        "rows": rows,
        "scaling": scaling(rows),
    }
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        name = "ratios" if arguments.vectors == "best" else f"ratios-{arguments.vectors}"
        (arguments.out / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n")
        (arguments.out / f"{name}.md").write_text(markdown(result))


if __name__ == "__main__":
    main()
