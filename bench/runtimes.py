"""Training step, denoiser call and sampling of the paper's Darcy network, as ratios to vanilla, beside the paper's own.

    cargo build --release
    python3 bench/runtimes.py [--rounds 5] [--batch 4] [--threads N] [--out results/runtimes]

Methods take turns in every round, so that whatever else the machine does hits all of them; a ratio is the median over
rounds of a method's time over vanilla's in the same round. Writes runtimes.json and README.md. Needs Python alone.
"""

import argparse
import json
import statistics
import subprocess
from pathlib import Path

METHODS = {
    "vanilla": ["--method", "vanilla"],
    "SCD, the paper's scale": ["--method", "scd-paper"],
    "SCD, jacobi": ["--method", "scd"],
    "one direction: gradient": ["--method", "adapt", "--set", "denoiser.scd.directions=['gradient']"],
    "two: gradient, spectral": ["--method", "adapt", "--set", "denoiser.scd.directions=['gradient', 'spectral']"],
    "three: gradient, spectral, newton": [
        "--method", "adapt", "--set", "denoiser.scd.directions=['gradient', 'spectral', 'newton']"
    ],
    "four: with kalman": ["--method", "adapt"],
}
# Kalman knows the errors of a trained network: there is no training step of the two together.
ADAPTED_ONLY = ["four: with kalman"]
# Of SCD, on an NVIDIA H200: 148/110 ms per training step, 10.3/7.79 s per 100 steps of sampling.
PAPER = {"train-step": 1.35, "sample": 1.32}
WORK = {"train-step": "training step", "denoise": "denoiser call", "sample": "sampling"}


def measure(program, work, method, args):
    command = [program, "--json", "bench", work, "--preset", args.preset, *METHODS[method], "--batch", str(args.batch)]
    command += ["--rounds", str(args.inner)]
    if work == "sample":
        command += ["--set", f"sampler.steps={args.steps}"]
    if args.threads:
        command[1:1] = ["--threads", str(args.threads)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def summary(times, work, method):
    own, base = times[work][method], times[work]["vanilla"]
    if not own:
        return None
    ratios = [a / b for a, b in zip(own, base)]
    return {
        "seconds": own,
        "seconds_median": statistics.median(own),
        "ratio": statistics.median(ratios),
        "ratio_range": [min(ratios), max(ratios)],
    }


def readme(result):
    about = result["about"]
    lines = [
        f"# Runtimes of the network of `{result['preset']}`",
        "",
        f"- Command: `{result['command']}`",
        f"- Commit {about['commit']}, {about['device']}, {about['threads']} threads, {about['parameters']:,} parameters (vanilla),"
        f" batch {about['batch']}, {result['rounds']} rounds of alternating methods.",
        f"- Sampling: {result['steps']} Heun steps ({2 * result['steps'] - 1} denoiser calls); all steps cost the same, so the ratio is that of"
        " 100 steps.",
        "- Ratios: median over rounds, with the lowest and the highest. Directions are trained together with the whole network",
        "  here; `softly adapt` freezes it, which is cheaper.",
        "",
        "| | training step | ratio | denoiser call | ratio | sampling | ratio |",
        "|---|---|---|---|---|---|---|",
    ]
    for method in METHODS:
        cells = []
        for work in WORK:
            m = result["results"][work][method]
            if m is None:
                cells += ["–", "–"]
                continue
            low, high = m["ratio_range"]
            cells += [f"{m['seconds_median']:.2f} s", f"{m['ratio']:.3f} ({low:.3f} to {high:.3f})" if method != "vanilla" else "1"]
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
    lines.append(f"| the paper's SCD, H200 | 0.148 s | {PAPER['train-step']} | | | 10.3 s (100 steps) | {PAPER['sample']} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", default="target/release/softly")
    parser.add_argument("--preset", default="darcy-paper")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5, help="turns of every method")
    parser.add_argument("--inner", type=int, default=2, help="measurements per turn, after a warm-up")
    parser.add_argument("--steps", type=int, default=3, help="Heun steps of sampling")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--out", type=Path, default=Path("results/runtimes"))
    args = parser.parse_args()
    times = {work: {method: [] for method in METHODS} for work in WORK}
    about = None
    for turn in range(args.rounds):
        for work in WORK:
            for method in METHODS:
                if work == "train-step" and method in ADAPTED_ONLY:
                    continue
                measured = measure(args.program, work, method, args)
                about = about or measured
                times[work][method].append(measured["seconds_min"])
                print(f"round {turn + 1}/{args.rounds}  {WORK[work]:13}  {method:34} {measured['seconds_min']:8.3f} s", flush=True)
    result = {
        "command": f"python3 bench/runtimes.py --preset {args.preset} --batch {args.batch} --rounds {args.rounds} --inner {args.inner}"
        f" --steps {args.steps}" + (f" --threads {args.threads}" if args.threads else ""),
        "preset": args.preset,
        "rounds": args.rounds,
        "steps": args.steps,
        "about": {key: about[key] for key in ("commit", "device", "threads", "parameters", "batch", "shape", "version")},
        "paper": PAPER,
        "results": {work: {method: summary(times, work, method) for method in METHODS} for work in WORK},
    }
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "runtimes.json").write_text(json.dumps(result, indent=1) + "\n")
    (args.out / "README.md").write_text(readme(result))
    for work in WORK:
        for method in METHODS:
            m = result["results"][work][method]
            if m is None:
                continue
            print(f"{WORK[work]:13}  {method:34} {m['seconds_median']:8.3f} s  {m['ratio']:.3f} of vanilla's")
        if work in PAPER:
            print(f"{WORK[work]:13}  {'SCD in the paper':34} {'':10}  {PAPER[work]:.3f}")


if __name__ == "__main__":
    main()
