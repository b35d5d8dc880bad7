"""Time to quality: residual and likelihood of samples against minutes of training, for a plain denoiser and for one that is adapted
at several points of its training.

    cargo build --release
    target/release/softly train --preset darcy-long --method vanilla --out runs/vanilla     # keeps snapshots on its way
    python3 bench/time_to_quality.py runs/vanilla --preset darcy-long [--count 128] [--threads 1] [--out results/time-to-quality/NAME]

A point's minutes are those of the base's training up to its snapshot (steps are equally long), plus those of adapting, measured
on this machine with the same number of threads. PyTorch's minutes for the same network are the base's times `--pytorch RATIO`, the
ratio of step times that bench/compare_pytorch.py measures: the recipe is the same, so the quality is. Finished points are kept in
FOLDER/points, so that the same command goes on. Writes time-to-quality.json and table.md.
"""

import argparse
import json
import pathlib

from program import about, kept, softly


def quality(args, model):
    found = json.loads(softly(args, "eval", model, "--count", args.count, "--metrics", "nll", "--json"))["model"]
    metrics = found["metrics"]
    return {
        "residual": metrics["residual"]["mean"],
        "nll": (found.get("likelihood") or {}).get("normalised"),
        "std": {field["name"]: field["samples"]["std"] / field["data"]["std"] for field in metrics["fields"]},
    }


def points(args):
    info = json.loads((args.base / "run.json").read_text())
    steps = sorted(int(file.stem.removeprefix("step-")) for file in (args.base / "snapshots").glob("step-*.safetensors"))
    snapshots = [(step, args.base / "snapshots" / f"step-{step}.safetensors") for step in steps]
    last = json.loads((args.base / "metrics.jsonl").read_text().splitlines()[-1])["step"]
    if last not in steps:
        snapshots.append((last, args.base / "snapshots" / "final.safetensors"))
    work = args.base.parent / f"{args.base.name}-points"
    for step, snapshot in snapshots:
        minutes = info["seconds"] * step / last / 60
        row = kept(work / f"vanilla-{step}.json", lambda: quality(args, snapshot))
        yield {"method": "vanilla", "steps": step, "minutes": minutes} | row
        if args.pytorch:
            yield {"method": "vanilla, PyTorch's time", "steps": step, "minutes": minutes * args.pytorch} | row

        def adapt():
            run = work / f"adapt-{step}"
            softly(args, "adapt", snapshot, "--preset", args.preset, "--method", "adapt", "--out", run)
            return {"seconds": json.loads((run / "run.json").read_text())["seconds"]} | quality(args, run)

        row = kept(work / f"adapt-{step}.json", adapt)
        yield {"method": "adapted", "steps": step, "minutes": minutes + row["seconds"] / 60} | row


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("base", type=pathlib.Path)
    parser.add_argument("--preset", required=True)
    parser.add_argument("--program", default="target/release/softly")
    parser.add_argument("--count", type=int, default=128)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--pytorch", type=float, help="step time of PyTorch over softly's")
    parser.add_argument("--out", type=pathlib.Path)
    args = parser.parse_args()
    rows = []
    for row in points(args):
        rows.append(row)
        print({key: value for key, value in row.items() if key != "std"}, flush=True)
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        origin = about(args) | {"preset": args.preset, "count": args.count}
        (args.out / "time-to-quality.json").write_text(json.dumps({"about": origin, "rows": rows}, indent=1) + "\n")
        lines = ["| method | steps of the base | minutes | mean \\|R\\| | NLL |", "|---|---|---|---|---|"]
        for row in sorted(rows, key=lambda row: (row["method"], row["steps"])):
            nll = f"{row['nll']:.3f}" if row["nll"] is not None else ""
            lines.append(f"| {row['method']} | {row['steps']} | {row['minutes']:.1f} | {row['residual']:.4f} | {nll} |")
        (args.out / "table.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
