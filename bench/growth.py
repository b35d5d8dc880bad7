#!/usr/bin/env python3
"""How time and memory of a training step and of a denoiser call grow with the grid, the channels, the batch and the threads.

    cargo build --release
    python3 bench/growth.py [--rounds 3] [--out results/unet]

One thing changes at a time, starting from a U-Net of the preset `darcy-long` with 32 channels on 64×64 nodes, a batch of 8 and two
threads. A time is the median over rounds; memory is the peak of the whole process. Writes growth.json and growth.md. Needs Python
alone, and an otherwise idle machine.
"""

import argparse
import json
import pathlib

from program import about, softly

START = {"grid": 64, "channels": 32, "batch": 8, "threads": 2}
STEPS = {"grid": [16, 32, 64, 128, 256], "channels": [8, 16, 32, 64], "batch": [1, 2, 4, 8, 16], "threads": [1, 2]}
WORK = {"train-step": "training step", "denoise": "denoiser call"}


def measure(args, work, case):
    """What `softly bench` says of one case."""
    args.threads = case["threads"]
    settings = [f"data.generator.size={case['grid']}", f"denoiser.backbone.channels={case['channels']}"]
    words = ["bench", work, "--preset", "darcy-long", "--method", "vanilla", "--batch", case["batch"], "--rounds", args.rounds]
    found = json.loads(softly(args, *words, *(word for text in settings for word in ("--set", text)), "--json"))
    return {key: found[key] for key in ["seconds_median", "peak_rss_bytes", "parameters"]}


def markdown(result):
    """One table for each thing that changes."""
    lines = ["# Growth of time and memory", ""]
    about = result["about"]
    lines += [f"`python3 bench/growth.py --rounds {about['rounds']}`, softly {about['commit']}; {about['cpu']}.", ""]
    for what, values in STEPS.items():
        rest = ", ".join(f"{name} {value}" for name, value in START.items() if name != what)
        lines += [f"| {what} ({rest}) | parameters | " + " | ".join(f"{name}: ms, MB" for name in WORK.values()) + " |", "|---|---|---|---|"]
        for value in values:
            row = next(r for r in result["rows"] if r["case"] == START | {what: value})
            cells = [f"{1e3 * row[work]['seconds_median']:.1f}, {row[work]['peak_rss_bytes'] / 1e6:.0f}" for work in WORK]
            lines.append(f"| {value} | {row['train-step']['parameters']:,} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="target/release/softly")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("results/unet"))
    args = parser.parse_args()
    args.threads = None
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.split(":")[1].strip() for line in lines if "model name" in line), "unknown processor")
    cases = {tuple((START | {what: value}).values()) for what, values in STEPS.items() for value in values}
    rows = []
    for case in sorted(cases):
        case = dict(zip(START, case))
        rows.append({"case": case} | {work: measure(args, work, case) for work in WORK})
        print(json.dumps(rows[-1]), flush=True)
    result = {"about": about(args) | {"cpu": cpu, "rounds": args.rounds}, "rows": rows}
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "growth.json").write_text(json.dumps(result, indent=1) + "\n")
    (args.out / "growth.md").write_text(markdown(result))


if __name__ == "__main__":
    main()
