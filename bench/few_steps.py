"""Quality against network calls: samples of few steps beside those of Heun's 100 steps (199 calls) from the same noise.

    pip install numpy
    cargo build --release
    python3 bench/few_steps.py --model "vanilla=runs/vanilla" --model "adapted=runs/adapted" [--count 64] [--threads 1] [--out results/few-steps/NAME]

Every number is a deviation from Heun's: residual (mean |R| over samples), solver error (its median), std (the field that deviates
most), W1 to the held-out data (in units of the data's std, the field that deviates most), spectrum (mean |power ratio − 1| over the
rings, the field that deviates most), and the relative L2 distance sample by sample. Writes few-steps.json and README.md.
"""

import argparse
import json
import pathlib
import tempfile
import time

import numpy as np
from program import about, softly

REFERENCE = ("heun", "karras", 100)
SETTINGS = [
    ("heun", "karras", 12),
    ("dpm-2m", "log-uniform", 24),
    ("dpm-3m", "log-uniform", 24),
    ("unipc", "log-uniform", 24),
    ("fitted", "log-uniform", 24),
    ("unipc", "log-uniform", 12),
    ("unipc", "fitted", 12),
    ("fitted", "log-uniform", 12),
    ("fitted", "log-uniform", 8),
]
COLUMNS = ["residual", "solver error", "std", "W1", "spectrum"]


def answer(args, *arguments):
    return json.loads(softly(args, *arguments, "--json"))


def measure(args, run, setting, settings, folder):
    """Metrics and arrays of the samples of `run` with a solver, a grid and a number of steps."""
    solver, grid, steps = setting
    flags = ["--solver", solver, "--spacing", grid, "--steps", steps, "--count", args.count]
    flags += [flag for text in settings for flag in ("--set", text)]
    start = time.monotonic()
    drawn = answer(args, "sample", run, *flags, "--out", folder)
    seconds = time.monotonic() - start
    density = [] if grid != "fitted" else ["--set", f"sampler.density={drawn['density']}"]
    metrics = answer(args, "eval", run, *flags, *density)["model"]["metrics"]
    arrays = [np.load(file).astype(float) for file in sorted(drawn["files"])]
    return {"calls": drawn["calls"], "levels": drawn["levels"], "seconds": seconds, "metrics": metrics}, arrays


def deviation(row, reference, arrays, exact):
    """Every column of the table, relative to the reference."""
    found, base = row["metrics"], reference["metrics"]
    fields = list(zip(found["fields"], base["fields"]))
    ratio = lambda a, b: a / b - 1.0
    spectrum = lambda a, b: float(np.mean([abs(ratio(x, y)) for x, y in zip(a["spectrum"], b["spectrum"]) if y > 0]))
    columns = {
        "std": max((ratio(a["samples"]["std"], b["samples"]["std"]) for a, b in fields), key=abs),
        "W1": max(((a["w1"] - b["w1"]) / b["data"]["std"] for a, b in fields), key=abs),
        "spectrum": max(spectrum(a, b) for a, b in fields),
    }
    if found.get("residual"):
        columns["residual"] = ratio(found["residual"]["mean"], base["residual"]["mean"])
    if (found.get("solver") or {}).get("error"):
        columns["solver error"] = ratio(found["solver"]["error"]["median"], base["solver"]["error"]["median"])
    squares = [((a - e) ** 2).sum() / (e**2).sum() for a, e in zip(arrays, exact)]
    return columns | {"distance": float(np.sqrt(np.mean(squares)))}


def within(row, limit):
    return all(abs(row["deviation"].get(column, 0.0)) <= limit for column in COLUMNS)


def table(result):
    reference = result["reference"]["metrics"]
    residual = f"mean |R| {reference['residual']['mean']:.4g}; " if reference.get("residual") else ""
    lines = [
        f"### {result['name']}",
        "",
        f"{result['run']}; Heun's 100 steps: {residual}{result['reference']['seconds']:.1f} s for {result['count']} samples.",
        "",
        "| solver | grid | calls | " + " | ".join(COLUMNS) + " | distance | all within |",
        "|---|---|---|" + "---|" * (len(COLUMNS) + 2),
    ]
    for row in result["rows"]:
        cells = [f"{100 * row['deviation'][c]:+.2f} %" if c in row["deviation"] else "" for c in COLUMNS]
        limits = [text for limit, text in ((0.005, "0.5 %"), (0.03, "3 %")) if within(row, limit)]
        lines.append(
            f"| {row['solver']} | {row['grid']} | {row['calls']} | {' | '.join(cells)} "
            f"| {100 * row['deviation']['distance']:.2f} % | {limits[0] if limits else ''} |"
        )
    return lines + [""]


def compare(args, name, run, settings):
    result = {"name": name, "run": pathlib.Path(run).name, "count": args.count, "settings": settings, "rows": []}
    with tempfile.TemporaryDirectory() as folder:
        reference, exact = measure(args, run, REFERENCE, settings, pathlib.Path(folder) / "heun")
        result["reference"] = reference
        for k, setting in enumerate(args.settings):
            row, arrays = measure(args, run, setting, settings, pathlib.Path(folder) / str(k))
            row["deviation"] = deviation(row, reference, arrays, exact)
            row |= dict(zip(("solver", "grid", "steps"), setting))
            result["rows"].append(row)
            print(name, setting, {k: f"{100 * v:+.2f} %" for k, v in row["deviation"].items()}, flush=True)
    for row in [result["reference"], *result["rows"]]:
        row["metrics"] = {k: v for k, v in row["metrics"].items() if k in ("residual", "solver", "count", "not_finite")}
    return result


def write(folder, origin, results, count, seconds):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "few-steps.json").write_text(json.dumps({"about": origin, "results": results}, indent=1) + "\n")
    head = [
        f"# Quality against network calls: {folder.name}",
        "",
        f"Made by `bench/few_steps.py` with softly {origin['version']} ({origin['commit']}), {count} samples per row from the same",
        f"noise (seed 0), {seconds:.0f} s in all. Columns are deviations from Heun's 100 steps (199 calls); the script says how they are taken.",
        "",
    ]
    (folder / "README.md").write_text("\n".join(head + [line for result in results for line in table(result)]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", default="target/release/softly")
    parser.add_argument("--model", action="append", required=True, metavar="NAME=RUN")
    parser.add_argument("--count", type=int, default=64)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for every sample, such as sampler.sigma_min=0.01")
    parser.add_argument("--only", action="append", help="a solver; may be repeated")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    args = parser.parse_args()
    args.settings = [s for s in SETTINGS if not args.only or s[0] in args.only]
    origin = about(args)
    start = time.monotonic()
    results = []
    for model in args.model:
        results.append(compare(args, *model.split("=", 1), args.set))
        write(args.out, origin, results, args.count, time.monotonic() - start)


if __name__ == "__main__":
    main()
