"""Exact W1 of two point clouds: `softly distance w1` against POT's `emd2`, alternating in one run.

    cargo build --release
    python -m venv venv && venv/bin/pip install POT numpy
    venv/bin/python bench/w1_pot.py [--out results/circle/w1-speed.json]

softly's time is that of the whole program, reading the files included. Never needed by tests.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np  # noqa: E402
import ot  # noqa: E402


def clouds(kind, n, rng):
    if kind == "gauss":
        return rng.normal(size=(n, 2)), rng.normal(size=(n, 2))
    angles = rng.uniform(-np.pi, np.pi, size=(2, n))
    return tuple(np.stack([np.cos(a), np.sin(a)], 1) for a in angles)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="target/release/softly")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for kind in ["gauss", "circle"]:
            for n in [100, 1000, 2000]:
                times = {"softly": [], "pot": []}
                for _ in range(arguments.rounds):
                    a, b = clouds(kind, n, rng)
                    np.save(f"{folder}/a.npy", a)
                    np.save(f"{folder}/b.npy", b)
                    start = time.perf_counter()
                    command = [arguments.program, "--threads", "1", "distance", "w1", f"{folder}/a.npy", f"{folder}/b.npy"]
                    ours = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)["w1"]
                    times["softly"].append(time.perf_counter() - start)
                    start = time.perf_counter()
                    theirs = ot.emd2([], [], ot.dist(a, b, metric="euclidean"), numItermax=10_000_000)
                    times["pot"].append(time.perf_counter() - start)
                    assert abs(ours - theirs) < 1e-9, (ours, theirs)
                row = {"cloud": kind, "n": n}
                row |= {f"{who}_seconds_median": round(statistics.median(t), 5) for who, t in times.items()}
                row["softly_over_pot"] = round(statistics.median(s / p for s, p in zip(times["softly"], times["pot"])), 3)
                rows.append(row)
                print(json.dumps(row))
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps({"pot": ot.__version__, "rounds": arguments.rounds, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
