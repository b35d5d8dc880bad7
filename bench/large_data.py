#!/usr/bin/env python3
"""What a training takes of memory when its data are larger: peak resident memory of `data import` and `train` on 0.2 and 20 GB.

    cargo build --release
    python3 bench/large_data.py [--gigabytes 0.2 20] [--folder FOLDER] [--out results/scale]

Fields p and K of 64×64 nodes, waves that repeat themselves, are written to a scratch folder as NumPy arrays, completed by
`softly data import`, trained on with the paper's Darcy network and batch 8 in two shares, and removed. Writes large-data.json. Needs
Python and room for the data.
"""

import argparse
import array
import json
import math
import os
import subprocess
import tempfile
import time
from pathlib import Path

SIDE = 64
PERIOD = 512
TRAINING = [
    "--threads", "1", "train", "--preset", "darcy-paper", "--method", "vanilla", "--out", "run", "--set", "data.path='data'",
    "--set", "train.batch=8", "--set", "train.shares=2",
]


def waves(phase):
    """PERIOD samples of one field, positive and smooth."""
    numbers = array.array("f")
    for k in range(PERIOD):
        row = [2 + math.sin(0.1 * (i + k) + phase) for i in range(SIDE)]
        column = [math.cos(0.07 * i * (1 + k % 5) + phase) for i in range(SIDE)]
        for a in column:
            numbers.extend(b + 0.3 * a for b in row)
    return numbers.tobytes()


def write(path, samples, block):
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({samples}, {SIDE}, {SIDE}), }}"
    header = header.ljust((10 + len(header) + 1 + 63) // 64 * 64 - 11) + "\n"
    sample = 4 * SIDE * SIDE
    with open(path, "wb") as out:
        out.write(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode())
        for first in range(0, samples, PERIOD):
            out.write(block[: min(PERIOD, samples - first) * sample])


def run(words, folder):
    """Seconds, and the most memory that was resident at any time."""
    begin = time.monotonic()
    done = subprocess.Popen(words, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    said = done.stderr.read()
    _, status, usage = os.wait4(done.pid, 0)
    if status != 0:
        raise SystemExit(f"{' '.join(words)} failed:\n{said}")
    return round(time.monotonic() - begin, 1), usage.ru_maxrss / 1024


def measure(program, gigabytes, steps, scratch):
    with tempfile.TemporaryDirectory(dir=scratch) as home:
        samples = int(gigabytes * 1e9 / (2 * 4 * SIDE * SIDE))
        for split, count in (("train", samples), ("valid", 100)):
            (Path(home) / "data" / split).mkdir(parents=True)
            for field, phase in (("p", 0.0), ("K", 1.0)):
                write(Path(home) / "data" / split / f"{field}.npy", count, waves(phase))
        (Path(home) / "data" / "dataset.toml").write_text("fields = ['p', 'K']\n")
        importing = run([program, "data", "import", "data"], home)
        training = run([program, *TRAINING, "--set", f"train.iterations={steps}"], home)
        begun = next(line for line in (Path(home) / "run" / "log.txt").read_text().splitlines() if " loss " in line)
    return {
        "gigabytes": gigabytes, "samples": samples, "steps": steps, "log": begun,
        "import_seconds": importing[0], "import_peak_mb": round(importing[1]),
        "train_seconds": training[0], "train_peak_mb": round(training[1]),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", default="target/release/softly")
    parser.add_argument("--gigabytes", type=float, nargs="+", default=[0.2, 20.0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--folder", default=None)
    parser.add_argument("--out", type=Path, default=Path("results/scale"))
    args = parser.parse_args()
    program = str(Path(args.program).resolve())
    rows = []
    for gigabytes in args.gigabytes:
        rows.append(measure(program, gigabytes, args.steps, args.folder))
        print(json.dumps(rows[-1]), flush=True)
    about = json.loads(subprocess.run([program, "--json", "info"], check=True, capture_output=True, text=True).stdout)
    about = {key: about[key] for key in ("version", "commit") if key in about}
    about["load"] = os.getloadavg()
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "large-data.json").write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
