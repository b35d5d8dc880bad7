"""What a second thread gains: one thread's time over two threads', for the paper's Darcy network.

    cargo build --release
    python3 bench/scaling.py [--rounds 5] [--out results/unet]

One and two threads take turns, so that whatever else the machine does hits both; the gain is the median over rounds. Writes
scaling.json. Needs Python alone.
"""

import argparse
import json
import statistics
import subprocess
from pathlib import Path

GOAL = 1.8
# Work, batch, settings, measurements per turn.
CASES = [
    ("denoise", 4, [], 8),
    ("denoise", 8, [], 6),
    ("train-step", 4, ["--set", "train.shares=2"], 4),
    ("train-step", 8, ["--set", "train.shares=2"], 3),
]


def measure(program, work, batch, settings, inner, threads):
    command = [program, "--json", "--threads", str(threads), "bench", work, "--preset", "darcy-paper", "--method", "vanilla"]
    command += ["--batch", str(batch), "--rounds", str(inner), *settings]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", default="target/release/softly")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("results/unet"))
    args = parser.parse_args()
    rows = []
    for work, batch, settings, inner in CASES:
        turns = [[measure(args.program, work, batch, settings, inner, t) for t in (1, 2)] for _ in range(args.rounds)]
        seconds = [[turn["seconds_median"] for turn in pair] for pair in turns]
        gains = [one / two for one, two in seconds]
        rows.append({
            "work": work,
            "batch": batch,
            "settings": settings,
            "gain": round(statistics.median(gains), 3),
            "gain_range": [round(min(gains), 3), round(max(gains), 3)],
            "goal": GOAL,
            "seconds": [[round(s, 4) for s in pair] for pair in seconds],
        })
        print(f"{work:10}  batch {batch}  gain {rows[-1]['gain']:.2f} ({min(gains):.2f} to {max(gains):.2f}), goal {GOAL}", flush=True)
    about = {key: turns[0][0][key] for key in ("commit", "version", "device", "parameters")}
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "scaling.json").write_text(json.dumps({"about": about, "rounds": args.rounds, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
