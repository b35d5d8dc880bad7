#!/usr/bin/env python3
"""What further ranks gain, and what their talk costs: 1, 2 and 4 ranks with one thread each, for the paper's Darcy network.

    cargo build --release --features mpi
    python3 bench/ranks.py [--rounds 3] [--out results/scale]

Strong scaling keeps the batch and deals its shares to more ranks; weak scaling keeps two samples a rank. One rank and several take
turns, so that whatever else the machine does hits both; a gain is the median over rounds of one rank's time over several ranks' (per
sample, in weak scaling). `communication` is the share of rank 0's time that it talks or waits for others. Writes ranks.json. Needs
Python and MPI.
"""

import argparse
import json
import os
import statistics
import subprocess
from pathlib import Path

# Kind, ranks, batch, shares, measurements per turn.
CASES = [
    ("strong", 2, 8, 2, 2),
    ("strong", 4, 8, 4, 2),
    ("weak", 2, 4, 2, 2),
    ("weak", 4, 8, 4, 2),
]
ENVIRONMENT = {
    **os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
}


def measure(program, ranks, batch, shares, inner):
    command = ["mpirun", "-n", str(ranks)] if ranks > 1 else []
    command += [program, "--json", "--threads", "1", "bench", "train-step", "--preset", "darcy-paper", "--method", "vanilla", "--profile"]
    command += ["--batch", str(batch), "--rounds", str(inner), "--set", f"train.shares={shares}"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True, env=ENVIRONMENT).stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", default="target/release/softly")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("results/scale"))
    args = parser.parse_args()
    rows = []
    for kind, ranks, batch, shares, inner in CASES:
        alone = batch if kind == "strong" else batch // ranks
        one = (1, alone, shares if kind == "strong" else shares // ranks)
        turns = [[measure(args.program, *case, inner) for case in (one, (ranks, batch, shares))] for _ in range(args.rounds)]
        seconds = [[turn["seconds_median"] for turn in pair] for pair in turns]
        gains = [batch / alone * first / several for first, several in seconds]
        talk = [pair[1]["profile"].get("communication", 0.0) for pair in turns]
        rows.append({
            "kind": kind, "ranks": ranks, "batch": batch, "shares": shares,
            "gain": round(statistics.median(gains), 3),
            "gain_range": [round(min(gains), 3), round(max(gains), 3)],
            "communication": round(statistics.median(talk), 4),
            "seconds": [[round(s, 4) for s in pair] for pair in seconds],
            "peak_rss_bytes": turns[0][1]["peak_rss_bytes"],
        })
        row = rows[-1]
        print(f"{kind:6}  {ranks} ranks  batch {batch}, {shares} shares  gain {row['gain']:.2f} "
              f"({min(gains):.2f} to {max(gains):.2f}), {100 * row['communication']:.1f} % talk", flush=True)
    about = {key: turns[0][0][key] for key in ("commit", "version", "device", "parameters")}
    about["load"] = os.getloadavg()
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "ranks.json").write_text(json.dumps({"about": about, "rounds": args.rounds, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
