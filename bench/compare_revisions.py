#!/usr/bin/env python3
"""Do two revisions of softly compute the same bytes?

    bench/compare_revisions.py fc1d4e1 HEAD
    bench/compare_revisions.py HEAD~1 .          # "." is the working tree

Each revision is built in a folder of its own and runs the same short commands: a dataset of every generator, trainings of the
toy's network and of a U-Net (one and two shares, PIDM as a DDPM), adaptations along four directions with a given and with a
learned parameter, samples, evaluations, and the toy study with its trainings cut short. Compared are SHA-256 sums of every
tensor of the snapshots and checkpoints and of arrays, and the numbers in metrics, tables and evaluations to twelve digits. Times,
command lines and commits differ between any two runs and are left out, and so are numbers that only one of the revisions writes
(they are listed).

Needs git, cargo and Python's standard library. Takes about five minutes on two cores besides the builds.
"""

import argparse
import hashlib
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile

# Keys of JSON files that say when, where and how long, not what.
INCIDENTAL = {"seconds", "train_seconds", "eval_seconds", "cell_seconds", "commit", "command", "files", "run", "snapshot"}

SHORT_UNET = ["--set", "train.iterations=50", "--set", "train.log_every=10", "--set", "data.count=256", "--set", "data.valid=16"]
SHORT_ADAPT = ["--set", "train.iterations=120", "--set", "train.log_every=20", "--set", "data.count=256", "--set", "data.valid=16"]
LEARN = ["--set", "constraint.parameters.flow={ learn = 15.0 }"]
CELLS = [(curve, method) for curve in ("circle", "dent") for method in ("vanilla", "scd", "pidm")]


def commands():
    """Every command by the name of what it leaves behind; `None` as program means softly."""
    for study in ("circle", "darcy", "helmholtz"):
        yield f"data-{study}", ["data", "generate", "--preset", f"{study}-demo", "--set", "data.count=40", "--set", "data.valid=8"]
    yield "toy-scd", ["train", "--preset", "circle-demo", "--method", "scd", "--set", "train.iterations=600"]
    for shares in (1, 2):
        yield f"unet-{shares}", ["train", "--preset", "darcy-demo", "--method", "vanilla", "--set", f"train.shares={shares}", *SHORT_UNET]
    yield "unet-scd", ["train", "--preset", "darcy-demo", "--method", "scd", *SHORT_UNET]
    yield "pidm-ddpm", ["train", "--preset", "darcy-demo", "--method", "pidm-ddpm", *SHORT_UNET]
    yield "adapt", ["adapt", "{unet-1}", "--preset", "darcy-demo", "--method", "adapt", *SHORT_ADAPT]
    yield "adapt-learn", ["adapt", "{unet-1}", "--preset", "darcy-demo", "--method", "adapt-learn", *LEARN, *SHORT_ADAPT]
    for run in ("toy-scd", "unet-1", "unet-scd", "pidm-ddpm", "adapt", "adapt-learn"):
        yield f"samples-{run}", ["sample", "{" + run + "}", "--count", "6", "--seed", "3"]
    yield "samples-guided", ["sample", "{unet-1}", "--count", "4", "--guidance", "1e-4"]
    yield "samples-full", ["sample", "{adapt}", "--count", "4", "--compliance", "full"]


def evaluations():
    """Commands that print JSON."""
    yield "eval-toy", ["eval", "{toy-scd}", "--count", "200", "--sets", "2", "--json"]
    yield "eval-adapt", ["eval", "{adapt}", "--count", "8", "--metrics", "residual,nll", "--json"]
    yield "explained", ["eval", "{adapt}", "--count", "8", "--metrics", "explained", "--json"]
    yield "parameters", ["eval", "{adapt-learn}", "--count", "8", "--metrics", "parameters", "--json"]


def build(revision, work):
    """Compiles `revision` and returns its program."""
    if revision == ".":
        tree = pathlib.Path(__file__).resolve().parent.parent
    else:
        tree = work / "tree"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(tree), revision], check=True)
    # A folder of its own for each: two checkouts that share one take each other's compiled crates for their own.
    target = tree / "target"
    environment = {**os.environ, "CARGO_TARGET_DIR": str(target)}
    subprocess.run(["cargo", "build", "--release", "--locked", "--quiet"], cwd=tree, env=environment, check=True)
    program = work / "softly"
    shutil.copy(target / "release" / "softly", program)
    return program


def run(program, work):
    """Runs every command in `work` and returns the SHA-256 of all that it made, by name."""
    folders = {}
    for name, arguments in commands():
        folders[name] = work / name
        call(program, arguments, folders, "--out", str(folders[name]))
    sums = {}
    for name, arguments in evaluations():
        output = call(program, arguments, folders)
        sums.update(numbers(name, json.loads(output)))
    toy_study(program, work / "circle")
    for path in sorted(work.rglob("*")):
        if "tree" in path.relative_to(work).parts or not path.is_file():
            continue
        name = str(path.relative_to(work))
        if path.suffix == ".safetensors":
            sums.update(tensors(name, path))
        elif path.suffix == ".npy":
            sums[name] = digest(path.read_bytes())
        elif path.name == "metrics.jsonl":
            for line in path.read_text().splitlines():
                line = json.loads(line)
                sums.update(numbers(f"{name} step {line['step']}", line))
        elif path.name in ("eval.json", "table.json"):
            sums.update(numbers(name, json.loads(path.read_text())))
    return sums


def toy_study(program, out):
    """The toy study, its trainings cut short: `reproduce` takes finished trainings as they are."""
    out.mkdir()
    (out / "study.txt").write_text("circle demo\n")
    for curve, method in CELLS:
        cell = ["train", "--preset", "circle-demo", "--method", method, "--set", f"data.generator.curve.shape={curve}"]
        call(program, [*cell, "--set", "train.iterations=300"], {}, "--out", str(out / f"{curve}-{method}-0"))
    call(program, ["reproduce", "circle", "--out", str(out)], {})


def call(program, arguments, folders, *more):
    arguments = [folders[a[1:-1]] if a.startswith("{") and a[1:-1] in folders else a for a in arguments]
    done = subprocess.run([program, *map(str, arguments), *more], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{program} {' '.join(map(str, arguments))} failed:\n{done.stderr}")
    return done.stdout


def digest(data):
    return hashlib.sha256(data).hexdigest()


def tensors(name, path):
    """The SHA-256 of every tensor of a safetensors file; its header holds the configuration as text, which may be rephrased."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    body = data[8 + length :]
    return {f"{name} {key} {entry['shape']}": digest(body[slice(*entry["data_offsets"])]) for key, entry in header.items()}


def numbers(name, value):
    """Every number and text of a JSON value by its path, without what is incidental."""
    if isinstance(value, dict):
        return {k: v for key, part in value.items() if key not in INCIDENTAL for k, v in numbers(f"{name}/{key}", part).items()}
    if isinstance(value, list):
        return {k: v for i, part in enumerate(value) for k, v in numbers(f"{name}/{i}", part).items()}
    return {name: f"{value:.12g}" if isinstance(value, float) else repr(value)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", help="a git revision, or . for the working tree")
    parser.add_argument("after", help="likewise")
    parser.add_argument("--keep", type=pathlib.Path, help="keep the first revision's sums in this file, or use them if it is there")
    arguments = parser.parse_args()
    sums = []
    for revision, keep in ((arguments.before, arguments.keep), (arguments.after, None)):
        if keep and keep.exists():
            sums.append(json.loads(keep.read_text()))
            continue
        with tempfile.TemporaryDirectory() as folder:
            work = pathlib.Path(folder)
            try:
                program = build(revision, work)
                sums.append(run(program, work))
            finally:
                if (work / "tree").exists():
                    subprocess.run(["git", "worktree", "remove", "--force", str(work / "tree")], check=False)
        if keep:
            keep.write_text(json.dumps(sums[-1], indent=0))
    before, after = sums
    both = sorted(before.keys() & after.keys())
    different = [name for name in both if before[name] != after[name]]
    for title, names in (("only before", before.keys() - after.keys()), ("only after", after.keys() - before.keys())):
        for name in sorted(names)[:20]:
            print(f"{title}: {name}")
        if len(names) > 20:
            print(f"{title}: … {len(names) - 20} more")
    for name in different[:40]:
        print(f"different: {name}: {before[name][:24]} {after[name][:24]}")
    print(f"{len(both) - len(different)} of {len(both)} recorded values are equal, {len(different)} differ")
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
