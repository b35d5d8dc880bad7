"""Every public name is documented, and the program comes along."""

import inspect
import subprocess
import sys

import softly
from softly import denoisers


def test_every_public_name_has_a_docstring():
    for module in (softly, denoisers):
        for name in [n for n in vars(module) if not n.startswith("_")] if module is denoisers else softly.__all__:
            value = getattr(module, name)
            if inspect.ismodule(value) or not getattr(value, "__module__", "").startswith("softly"):
                continue
            assert value.__doc__, name
            if inspect.isclass(value) and not issubclass(value, Exception):
                for member, what in vars(value).items():
                    if not member.startswith("_") and (callable(what) or isinstance(what, (property, classmethod))):
                        assert inspect.getdoc(getattr(value, member)), f"{name}.{member}"


def test_the_program_comes_along(tmp_path):
    def run(*words):
        return subprocess.run([sys.executable, "-m", "softly", *words], capture_output=True, text=True, cwd=tmp_path)

    assert run("--version").stdout.split()[-1] == softly.__version__
    assert "--help" in run("--help").stdout and run("--help").returncode == 0
    wrong = run("traim")
    assert wrong.returncode == 2 and "train" in wrong.stderr
    bad = run("sample", "nowhere", "--out", "x")
    assert bad.returncode == 2 and "nowhere" in bad.stderr and "Traceback" not in bad.stderr


def test_the_program_starts_itself_as_its_children(tmp_path):
    command = [sys.executable, "-m", "softly", "reproduce", "circle", "--out", "study"]
    env = {"SOFTLY_REDUCED": "1", "PATH": ""}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "study" / "report.html").exists()
