"""How far does a wrong parameter pull an adapted model off the data? Against the steps of adapting and the training of the base.

    cargo build --release
    python3 bench/pull.py [--only darcy] [--count 64] [--threads 1] [--work runs/pull] [--out results/pull]

Every base is adapted twice for a number of steps, given the data's parameter and given a wrong one. A least-squares fit of the
parameter to the samples of both says

    pull = (fit(given wrong) − fit(given right)) / (wrong − right):

0 where the samples follow the data, 1 where they follow the claim. The difference takes away what the network's own errors do to
such a fit. Finished cells are kept in the working folder, so that the same command goes on. Writes pull.json and table.md.
"""

import argparse
import json
import pathlib

from program import about, kept, softly

# Preset, parameter, what is right and what is wrong, fields, settings over the preset's, and the axes of its samples.
SMALL_BURGERS = ["data.generator.size=32", "data.generator.viscosity=0.02", "data.generator.modes=16"]
PROBLEMS = {
    "darcy": ("darcy-demo", "flow", 10.0, 15.0, ["p", "K"], [], []),
    "helmholtz": ("helmholtz-demo", "k", 1.0, 3.0, ["a", "u"], [], []),
    "burgers": ("burgers-demo", "nu", 0.02, 0.05, ["u"], SMALL_BURGERS, ["--axes", "t,x", "--periodic", "x"]),
}
BASES = [500, 2500]
ADAPTING = [30, 200, 1000]


def sets(settings):
    return [word for setting in settings for word in ("--set", setting)]


def measure(args, problem, run, folder):
    """The parameter that fits the samples of a run best, and their residual in the data's equation."""
    _, parameter, right, _, fields, _, axes = PROBLEMS[problem]
    samples, data = folder / "samples", folder / "data"
    if not data.exists():
        softly(args, "sample", run, "--count", args.count, "--out", samples)
        arrays = [word for field in fields for word in ("--field", f"{field}={samples / field}.npy")]
        softly(args, "data", "import", *arrays, *axes, "--out", data)
    truth = folder / "truth.toml"
    truth.write_text(softly(args, "presets", PROBLEMS[problem][0]).replace(f"\n{parameter} = ", f"\n{parameter} = {right} # "))
    found = json.loads(softly(args, "data", "inspect", data, "--config", truth, "--fit", parameter, "--json"))["audit"]
    (equation,) = found["equations"]
    fit = next(row for row in found["fit"]["parameters"] if row["name"] == parameter)
    return {"fit": fit["value"], "residual": equation["mean_abs"]}


def rows(args, problem):
    preset, parameter, right, wrong, _, settings, _ = PROBLEMS[problem]
    truth = f"constraint.parameters.{parameter}={right}"
    data = args.work / f"{problem}-data"
    softly(args, "data", "generate", "--preset", preset, "--out", data, *sets(settings))
    path = f"data.path='{data.resolve()}'"
    for steps in BASES:
        folder = args.work / f"{problem}-{steps}"
        base = folder / "base"
        train = [path, truth, f"train.iterations={steps}"]

        def vanilla():
            softly(args, "train", "--preset", preset, "--method", "vanilla", "--out", base, *sets(train))
            return measure(args, problem, base, folder)

        plain = kept(folder / "vanilla.json", vanilla)
        yield {"problem": problem, "base": steps, "adapting": 0, "given": None} | plain
        for adapting in ADAPTING:
            for given in (right, wrong):
                cell = folder / f"{adapting}-{given}"

                def adapt():
                    claim = [path, f"constraint.parameters.{parameter}={given}", f"train.iterations={adapting}"]
                    softly(args, "adapt", base, "--preset", preset, "--method", "adapt", "--out", cell / "run", *sets(claim))
                    return measure(args, problem, cell / "run", cell)

                yield {"problem": problem, "base": steps, "adapting": adapting, "given": given} | kept(cell / "row.json", adapt)


def table(found):
    """Markdown: a line for every base and number of steps."""
    lines = ["| equation | base's steps | adapting | fit, given right | fit, given wrong | pull | mean \\|R\\| of vanilla's: right, wrong |",
             "|---|---|---|---|---|---|---|"]
    keyed = {(row["problem"], row["base"], row["adapting"], row["given"]): row for row in found}
    for problem, (_, parameter, right, wrong, *_) in PROBLEMS.items():
        for base in BASES:
            for adapting in ADAPTING:
                plain = keyed.get((problem, base, 0, None))
                pair = [keyed.get((problem, base, adapting, given)) for given in (right, wrong)]
                if plain is None or None in pair:
                    continue
                a, b = pair
                pull = (b["fit"] - a["fit"]) / (wrong - right)
                ratios = ", ".join(f"{row['residual'] / plain['residual']:.2f}" for row in pair)
                lines.append(f"| {problem}, {parameter}: {right:g}, given {wrong:g} | {base} | {adapting} | {a['fit']:.4g} | {b['fit']:.4g} | {pull:+.3f} | {ratios} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", choices=PROBLEMS)
    parser.add_argument("--program", default="target/release/softly")
    parser.add_argument("--count", type=int, default=64)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("runs/pull"))
    parser.add_argument("--out", type=pathlib.Path)
    args = parser.parse_args()
    found = []
    for problem in [args.only] if args.only else PROBLEMS:
        for row in rows(args, problem):
            found.append(row)
            print(row, flush=True)
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        origin = about(args) | {"count": args.count}
        (args.out / "pull.json").write_text(json.dumps({"about": origin, "rows": found}, indent=1) + "\n")
        (args.out / "table.md").write_text(table(found))


if __name__ == "__main__":
    main()
