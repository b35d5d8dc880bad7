"""Running the program, with or without faults, and comparing what it leaves."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from typing import NamedTuple

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent

# Seconds after which a command counts as hanging.
PATIENCE = 120


class Outcome(NamedTuple):
    """How a command ended; `code` is negative if a signal ended it."""

    code: int
    out: str
    err: str
    seconds: float
    cpu: float
    kilobytes: int


class Lab:
    """A scratch folder and the program."""

    def __init__(self, program, home, seed):
        self.program, self.home, self.seed = pathlib.Path(program).resolve(), pathlib.Path(home).resolve(), seed
        self.shim = self.home / "faults.so"
        self.made = 0
        self.lock = threading.Lock()
        source = str(HERE / "faults.c")
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", str(self.shim), source, "-ldl"], check=True)

    def folder(self):
        """A fresh folder."""
        with self.lock:
            self.made += 1
            path = self.home / f"trial-{self.made}"
        path.mkdir()
        return path

    def start(self, arguments, folder, environment=None):
        """A process in a group of its own, with its output in files."""
        own = {"MIMALLOC_PURGE_DELAY": "10000", "PATH": os.environ.get("PATH", ""), "HOME": str(self.home), "NO_COLOR": "1"}
        out, err = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        command = [str(self.program), "--threads", "1", *arguments]
        process = subprocess.Popen(command, cwd=folder, env=own | (environment or {}), stdin=subprocess.DEVNULL,
                                   stdout=out, stderr=err, start_new_session=True)
        return process, out, err, time.monotonic()

    def end(self, started, patience=PATIENCE):
        """Waits for a process; one that hangs is killed and has the code None."""
        process, out, err, begin = started
        late = threading.Event()

        def stop():
            late.set()
            process.kill()

        timer = threading.Timer(patience, stop)
        timer.start()
        _, status, usage = os.wait4(process.pid, 0)
        timer.cancel()
        code = process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.monotonic() - begin
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
            file.close()
        cpu = usage.ru_utime + usage.ru_stime
        return Outcome(None if late.is_set() else code, *texts, seconds, cpu, usage.ru_maxrss)

    def run(self, arguments, folder, environment=None, patience=PATIENCE):
        return self.end(self.start(arguments, folder, environment), patience)

    def kill(self, arguments, folder, after, environment=None, group=True):
        """Kills a command after so many seconds: the process alone, or all of its group."""
        started = self.start(arguments, folder, environment)
        time.sleep(after)
        try:
            os.killpg(started[0].pid, signal.SIGKILL) if group else os.kill(started[0].pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        return self.end(started)

    def faulty(self, arguments, folder, kind, at, environment=None):
        """Runs a command whose `at`-th file operation is spoiled; also returns the number of operations."""
        counter = self.home / f"{folder.name}.counter"
        counter.write_bytes(bytes(8))
        faults = {"LD_PRELOAD": str(self.shim), "FAULTS_ROOT": str(folder), "FAULTS_COUNTER": str(counter),
                  "FAULTS_AT": str(at), "FAULTS_KIND": kind}
        outcome = self.run(arguments, folder, faults | (environment or {}))
        operations = int.from_bytes(counter.read_bytes(), "little")
        counter.unlink()
        return outcome, operations


def without_times(value):
    """JSON without durations, and without the checksums over them."""
    if isinstance(value, dict):
        return {k: without_times(v) for k, v in value.items() if not k.endswith("seconds") and k != "checksum"}
    return [without_times(v) for v in value] if isinstance(value, list) else value


def contents(folder):
    """Every file below a folder by its path; notes of the clock are left out: logs, pages, durations in JSON files."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != "log.txt" and path.suffix != ".html":
            data = path.read_bytes()
            found[str(path.relative_to(folder))] = timeless(data) if path.suffix == ".json" else data
    return found


def timeless(data):
    """JSON without durations; other bytes as they are."""
    try:
        return json.dumps(without_times(json.loads(data)), sort_keys=True).encode()
    except ValueError:
        return data


def difference(found, expected):
    """The names of files that differ, are missing or should not be there."""
    return sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))


def copy(source, target):
    shutil.copytree(source, target, symlinks=True)
