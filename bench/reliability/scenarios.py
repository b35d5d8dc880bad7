"""The commands that are disturbed, each small enough to take a fraction of a second."""

from typing import NamedTuple

from lab import contents, copy, timeless

POINTS = {
    "denoiser.backbone": "{kind='mlp', hidden=8}", "train.iterations": 20, "train.batch": 4, "train.log_every": 4,
    "train.checkpoint_every": 6, "data.count": 20, "data.valid": 10, "sampler.steps": 4,
}
GENERATED = {"data.count": 6, "data.valid": 3, "data.generator.size": 8}
NETWORK = {"denoiser.backbone": "{kind='unet', channels=8, multipliers=[1], blocks=1, attention=[], head=8}"}
FIELDS = GENERATED | NETWORK | {
    "train.iterations": 4, "train.batch": 2, "train.log_every": 2, "train.checkpoint_every": 2, "sampler.steps": 2,
}
REDUCED = {"SOFTLY_REDUCED": "1"}


def settings(table, **more):
    """The `--set` options of a table; underscores of `more` are dots."""
    table = table | {key.replace("__", "."): value for key, value in more.items()}
    return [word for key, value in table.items() for word in ("--set", f"{key}={value}")]


class Scenario(NamedTuple):
    """A command, the folders that it starts from, the one that it makes, and the environment."""

    name: str
    arguments: list
    inputs: tuple = ()
    output: str = "out"
    environment: dict = {}

    def prepare(self, lab):
        """A fresh folder with the inputs."""
        folder = lab.folder()
        for name in self.inputs:
            copy(lab.home / "templates" / name, folder / name)
        return folder

    def result(self, folder, outcome):
        """What must not depend on faults: every file, and the output of evaluations."""
        found = contents(folder)
        if self.name == "eval":
            found["standard output"] = timeless(outcome.out.encode())
        return found

    def whole(self, lab):
        """The undisturbed result, how long it takes, and its number of file operations."""
        folder = self.prepare(lab)
        outcome = lab.run(self.arguments, folder, self.environment)
        assert outcome.code == 0, f"{self.name}: {outcome.err}"
        expected = self.result(folder, outcome)
        folder = self.prepare(lab)
        again, operations = lab.faulty(self.arguments, folder, "none", 0, self.environment)
        assert again.code == 0 and self.result(folder, again) == expected, f"{self.name} differs by itself"
        return expected, outcome.seconds, operations


def points(method, out, **more):
    return ["train", "--preset", "circle-demo", "--method", method, "--out", out, *settings(POINTS, **more)]


def templates(lab):
    """Runs and datasets that scenarios start from."""
    home = lab.home / "templates"
    home.mkdir()
    data = ["data", "generate", "--preset", "darcy-demo", *settings(GENERATED), "--out", "data"]
    commands = [
        points("vanilla", "base"),
        points("scd", "begun", train__iterations=14),
        ["train", "--preset", "darcy-demo", "--method", "vanilla", *settings(FIELDS), "--out", "fields"],
        data,
    ]
    for command in commands:
        outcome = lab.run(command, home)
        assert outcome.code == 0, f"{command}: {outcome.err}"
    return home


def scenarios():
    generate = ["data", "generate", "--preset", "darcy-demo", *settings(GENERATED, data__count=70), "--out", "out"]
    return [
        Scenario("train", points("scd", "out")),
        Scenario("adapt", ["adapt", "base", "--preset", "circle-demo", "--method", "scd", "--out", "out",
                           *settings(POINTS)], ("base",)),
        Scenario("generate", generate),
        Scenario("sample", ["sample", "base", "--count", "20", "--out", "out"], ("base",)),
        Scenario("eval", ["eval", "fields", "--count", "4", "--json"], ("fields",), "fields"),
        Scenario("reproduce", ["reproduce", "circle", "--out", "out"], (), "out", REDUCED),
    ]
