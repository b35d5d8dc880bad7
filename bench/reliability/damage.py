"""Damaged files: each is refused, or leaves no trace in the result."""

import shutil
from typing import NamedTuple

from lab import contents, copy, difference
from scenarios import FIELDS, GENERATED, POINTS, REDUCED, points, settings


class Victim(NamedTuple):
    """A file that a command relies on: the folder that it lies in, its names there, and the command."""

    name: str
    folder: str
    files: tuple
    arguments: list
    environment: dict = {}
    # What is said of a change of texts for people, which no result depends on but those `noted`.
    said: str = ""
    noted: tuple = ()
    # A command that reads the result and has to refuse it, if the first one only moved it.
    reader: list = []


def victims(lab):
    """Every kind of file that a later command relies on; makes the folders that are not templates."""
    home = lab.home / "templates"
    on_data = FIELDS | {"data.path": "data"}
    generate = ["data", "generate", "--preset", "darcy-demo", *settings(GENERATED, data__count=70), "--out", "partial"]
    moved = [*generate[:-1], "moving"]
    interrupted(lab, home, "partial", generate, False)
    interrupted(lab, home, "moving", moved, True)
    kept = ["report", "fields", "--out", "page.html"]
    study = ["reproduce", "circle", "--out", "study"]
    for command in (kept, study):
        outcome = lab.run(command, home, REDUCED)
        assert outcome.code == 0, f"{command}: {outcome.err}"
    shutil.rmtree(home / "page-figures")
    (home / "page.html").unlink()
    longer = points("scd", "begun")
    arrays = tuple(f"{split}/{field}.npy" for split in ("train", "valid") for field in "pK")
    parts = tuple(f".partial/{name}" for name in ("train/p.npy", "train/K.npy", "progress.toml"))
    cells = tuple(str(path.relative_to(home / "study")) for path in sorted((home / "study").glob("*/eval.json")))
    train = ["train", "--config", "data.toml", "--out", "out"]
    (home / "data.toml").write_text(toml_of(on_data))
    return [
        Victim("snapshot", "base", ("snapshots/final.safetensors",), ["sample", "base", "--count", "8", "--out", "out"]),
        Victim("base", "base", ("snapshots/final.safetensors",),
               ["adapt", "base", "--preset", "circle-demo", "--method", "scd", "--out", "out", *settings(POINTS)]),
        Victim("checkpoint", "begun", ("checkpoints/latest.safetensors",), longer),
        Victim("configuration", "begun", ("config.toml",), longer),
        Victim("metrics", "begun", ("metrics.jsonl",), longer, {}, "were changed or lost",
               ("begun/metrics.jsonl", "begun/checkpoints/latest.safetensors")),
        Victim("arrays", "data", arrays, train),
        Victim("description", "data", ("dataset.toml",), train),
        Victim("unfinished dataset", "partial", parts, generate),
        Victim("complete dataset on its way", "moving", (*parts[:2], ".partial/dataset.toml"), moved,
               reader=["data", "inspect", "moving"]),
        Victim("kept evaluation", "fields", ("eval/report.json", "eval/report.npy"), kept, REDUCED),
        Victim("study", "study", cells, study, REDUCED),
    ]


def toml_of(table):
    """The preset's equation and these settings as a configuration file."""
    law = 'constraint = { fields = ["p", "K"], residual = "K*laplacian(p) + dot(grad(K), grad(p)) + f", parameters = { f = 1.0 } }'
    lines = [f"{key} = {value if key != 'data.path' else repr(value)}" for key, value in table.items()]
    drop = ("data.generator", "data.count", "data.valid")
    return "\n".join([law, *(line for line in lines if not line.startswith(drop))]) + "\n"


def interrupted(lab, home, name, generate, complete):
    """The dataset `name` whose making was killed as late as possible: before its description was written, or after."""
    aside = home / "aside"
    aside.mkdir()
    total = lab.faulty(generate, aside, "none", 0)[1]
    shutil.rmtree(aside)
    for at in range(total, 0, -1):
        shutil.rmtree(home / name, ignore_errors=True)
        lab.faulty(generate, home, "kill", at)
        partial = home / name / ".partial"
        arrays = all((partial / "train" / f"{field}.npy").exists() for field in "pK")
        if arrays and (partial / "dataset.toml").exists() == complete and (partial / "progress.toml").exists():
            return
    raise AssertionError("no moment leaves such a dataset")


def damaged(data, random):
    """The bytes with one kind of damage; never the same."""
    while True:
        changed = bytearray(data)
        kind = random.choice(["bit", "bit", "bits", "zeros", "noise", "cut", "swap", "longer", "empty"])
        at = random.randrange(len(data)) if data else 0
        size = random.choice([16, 64, 512])
        if kind in ("bit", "bits"):
            for _ in range(1 if kind == "bit" else random.randint(2, 40)):
                changed[random.randrange(len(data))] ^= 1 << random.randrange(8)
        elif kind in ("zeros", "noise"):
            part = changed[at:at + size]
            changed[at:at + size] = bytes(len(part)) if kind == "zeros" else random.randbytes(len(part))
        elif kind == "cut":
            del changed[at:]
        elif kind == "swap":
            first, second = (random.randrange(0, max(1, len(data) - size)) for _ in range(2))
            changed[first:first + size], changed[second:second + size] = (
                changed[second:second + size], changed[first:first + size])
        elif kind == "longer":
            changed += random.randbytes(size)
        else:
            changed.clear()
        if changed != data:
            return kind, bytes(changed)


def begin(lab, victim):
    folder = lab.folder()
    templates = lab.home / "templates"
    copy(templates / victim.folder, folder / victim.folder)
    if "data.toml" in victim.arguments:
        shutil.copy(templates / "data.toml", folder)
    return folder


def expectation(lab, victim):
    folder = begin(lab, victim)
    outcome = lab.run(victim.arguments, folder, victim.environment)
    assert outcome.code == 0, f"{victim.name}: {outcome.err}"
    found = contents(folder)
    shutil.rmtree(folder)
    return found


def trial(lab, victim, expected, random):
    """Damages a file and runs the command that relies on it."""
    folder = begin(lab, victim)
    name = random.choice(victim.files)
    path = folder / victim.folder / name
    kind, data = damaged(path.read_bytes(), random)
    path.write_bytes(data)
    outcome = lab.run(victim.arguments, folder, victim.environment)
    counts = {"damaged": 1}
    place = f"{victim.name} ({name}, {kind})"
    if "panicked" in outcome.err or outcome.code not in (0, 2):
        return folder, counts | {"failed": 1}, f"{place}: {outcome.code} {outcome.err.strip()[-300:]}"
    if outcome.code == 2:
        return folder, counts | {"refused": 1}, None
    found = contents(folder)
    whole = f"{victim.folder}/{name}"
    if found.get(whole) == data:
        # The file itself stays as it was left: it had no part in the result.
        found.pop(whole)
        expected = {k: v for k, v in expected.items() if k != whole}
    names = difference(found, expected)
    if not names:
        return folder, counts | {"without effect": 1}, None
    if victim.said and set(names) <= set(victim.noted) and victim.said in outcome.err:
        return folder, counts | {"said": 1}, None
    if victim.reader and lab.run(victim.reader, folder).code == 2:
        return folder, counts | {"refused": 1}, None
    return folder, counts | {"silently used": 1}, f"{place} is silently used: {', '.join(names)}"
