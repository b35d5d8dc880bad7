#!/usr/bin/env python3
"""Do several ranks under mpirun keep their promises (book/src/many-machines.md)?

    .ci/ranks.py                 # builds with the feature `mpi` and tries everything, one to two minutes on two idle cores
    SOFTLY_PROGRAM=FILE SOFTLY_PLAIN=FILE .ci/ranks.py     # a build with the feature and one without, made before

Any number of ranks and threads writes the same bytes of trainings, samples, evaluations and data; a killed rank ends the job within ten seconds; Ctrl-C, or a signal to any
rank, stops all of them at one step; any other number of ranks goes on; what cannot work together is refused with one message.
Debian's libopenmpi-dev, openmpi-bin and libclang-dev are installed if mpicc or libclang is missing.
"""

import glob
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGES = ["libopenmpi-dev", "openmpi-bin", "libclang-dev"]
TINY = [
    "denoiser.backbone={kind='mlp', hidden=16}", "data.count=100", "data.valid=10", "train.iterations=60", "train.batch=16",
    "train.shares=4", "train.log_every=7", "train.checkpoint_every=20",
]
# Steps of some milliseconds, so that a signal after a checkpoint comes seconds before the end on any machine.
LONG = TINY + [
    "denoiser.backbone={kind='mlp', hidden=256}", "data.count=10000", "train.batch=1024", "train.iterations=600", "train.checkpoint_every=10",
]
# Open MPI refuses to run as root, and more ranks than cores, unless told otherwise; ranks that share a core have to leave it to the others.
ENVIRONMENT = {
    **os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
}
# A job that waits for a rank that is gone never ends by itself.
PATIENCE = 120


def install():
    has_clang = glob.glob("/usr/lib/*/libclang*.so*") or glob.glob("/usr/lib/*/lib/libclang*.so*") or os.environ.get("LIBCLANG_PATH")
    if shutil.which("mpicc") and shutil.which("mpirun") and has_clang:
        return
    print(f"ranks: installing Debian's {', '.join(PACKAGES)}", flush=True)
    subprocess.run(["apt-get", "update", "-qq"], check=True)
    subprocess.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *PACKAGES], check=True, stdout=subprocess.DEVNULL)


def build(folder):
    """The program with MPI and the one without, which goes back to its place: both share everything but the program's own crate."""
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    subprocess.run(["cargo", "build", "--release", "--features", "mpi"], cwd=ROOT, check=True)
    program = folder / "softly-mpi"
    shutil.copy2(target / "release" / "softly", program)
    subprocess.run(["cargo", "build", "--release"], cwd=ROOT, check=True)
    return program, target / "release" / "softly"


class Lab:
    def __init__(self, program, plain, folder):
        self.program, self.plain, self.folder = program, plain, folder

    def words(self, ranks, words, threads=1):
        return ["mpirun", "-n", str(ranks), str(self.program), "--threads", str(threads), *words]

    def run(self, words):
        begin = time.monotonic()
        done = subprocess.run(words, cwd=self.folder, env=ENVIRONMENT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE)
        if "-v" in sys.argv:
            print(f"    {time.monotonic() - begin:6.1f} s  {' '.join(words[1:])[:150]}", flush=True)
        return done

    def succeed(self, words):
        done = self.run(words)
        if done.returncode != 0:
            sys.exit(f"ended with {done.returncode}: {' '.join(words)}\n{done.stderr}")
        return done

    def refuse(self, words, *needles):
        """One message with all needles, exit code 2."""
        done = self.run(words)
        errors = [line for line in done.stderr.splitlines() if "error:" in line]
        check(done.returncode == 2, f"{words} ended with {done.returncode}, not 2\n{done.stderr}")
        check(len(errors) == 1, f"{words} gave {len(errors)} errors\n{done.stderr}")
        check(all(needle in done.stderr for needle in needles), f"{words} does not say {needles}\n{done.stderr}")

    def files(self, folder):
        """The bytes of all files below a folder, by name."""
        found = sorted(path for path in (self.folder / folder).rglob("*") if path.is_file())
        return {str(path.relative_to(self.folder / folder)): path.read_bytes() for path in found}

    def products(self, run):
        names = ["snapshots/final.safetensors", "metrics.jsonl", "checkpoints/latest.safetensors"]
        return [(self.folder / run / name).read_bytes() for name in names]

    def going_on(self, ranks):
        """A job of so many ranks, begun or gone on with, that has written a checkpoint."""
        path = self.folder / "stopped" / "checkpoints" / "latest.safetensors"
        age = lambda: path.stat().st_mtime_ns if path.exists() else None
        before, deadline = age(), time.monotonic() + PATIENCE
        words = self.words(ranks, train("stopped", LONG))
        job = subprocess.Popen(words, cwd=self.folder, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        while age() == before:
            check(job.poll() is None and time.monotonic() < deadline, f"{ranks} ranks write no checkpoint")
            time.sleep(0.02)
        return job


def check(holds, otherwise):
    if not holds:
        sys.exit(f"ranks: {otherwise}")


def train(out, settings, method="scd", preset="circle-demo"):
    return ["train", "--preset", preset, "--method", method, "--out", out, *(w for s in settings for w in ("--set", s))]


def adapt(out, settings):
    law = "constraint={fields=['x', 'y'], residual='sqrt(x^2 + y^2) - r', norm='l2', parameters={r={learn=1.3}}}"
    scd = "denoiser.scd={scale='polyak', input='features', directions=['gradient']}"
    return ["adapt", "base", "--out", out, *(w for s in (law, scd, *settings) for w in ("--set", s))]


def same_bytes(lab):
    """Trainings, adaptations and samples of 1 to 4 ranks with one thread and two."""
    lab.succeed([str(lab.program), *train("base", TINY, "vanilla")])
    for name, words in (("train", train), ("adapt", adapt)):
        lab.succeed([str(lab.program), "--threads", "1", *words(f"{name}-1", TINY)])
        expected = lab.products(f"{name}-1")
        for ranks, threads in ((2, 1), (3, 1), (4, 1), (2, 2)):
            out = f"{name}-{ranks}-{threads}"
            lab.succeed(lab.words(ranks, words(out, TINY), threads))
            check(lab.products(out) == expected, f"{name}: {ranks} ranks of {threads} threads write other bytes")
    lab.succeed([str(lab.program), "sample", "train-1", "--count", "50", "--out", "samples-1"])
    lab.succeed(lab.words(3, ["sample", "train-1", "--count", "50", "--out", "samples-3"]))
    points = [(lab.folder / f"samples-{n}" / "points.npy").read_bytes() for n in (1, 3)]
    check(points[0] == points[1], "three ranks draw other samples")


def measured(lab, words):
    """What an evaluation prints, without the time that it took."""
    found = json.loads(lab.succeed(words).stdout)
    found["model"].pop("seconds", None)
    return found


def data_and_evaluations(lab):
    """Data that several ranks generate, and what they measure of a model: samples, likelihood, loss and their path."""
    size = ["data.generator.size=8", "data.count=150", "data.valid=20"]
    words = ["data", "generate", "--preset", "darcy-demo", *(w for s in size for w in ("--set", s))]
    lab.succeed([str(lab.program), *words, "--out", "data-1"])
    for ranks in (2, 3, 4):
        lab.succeed(lab.words(ranks, [*words, "--out", f"data-{ranks}"]))
        check(lab.files(f"data-{ranks}") == lab.files("data-1"), f"data generate: {ranks} ranks write other bytes")
    network = "denoiser.backbone={kind='unet', channels=8, multipliers=[1, 2], blocks=1}"
    small = ["data.path='data-1'", network, "train.iterations=4", "train.batch=4", "train.shares=2", "sampler.steps=4"]
    lab.succeed([str(lab.program), *train("field", small, preset="darcy-demo")])
    words = ["--json", "eval", "field", "--count", "7", "--batch", "2", "--metrics", "nll"]
    expected = measured(lab, [str(lab.program), "--threads", "1", *words])
    for ranks in (2, 4):
        check(measured(lab, lab.words(ranks, words)) == expected, f"eval: {ranks} ranks measure other numbers")


def ranks_of(job, count):
    """Their processes; a job's checkpoint is newer than they are."""
    ranks = subprocess.run(["pgrep", "-P", str(job.pid)], capture_output=True, text=True, check=True).stdout.split()
    check(len(ranks) == count, f"found {len(ranks)} ranks of {count}")
    return [int(rank) for rank in ranks]


def stops(lab):
    """Ctrl-C, a rank that is told to stop and one that is killed, each gone on with by another number of ranks; the end is that of one
    rank undisturbed."""
    job = lab.going_on(2)
    job.send_signal(signal.SIGINT)
    said = job.communicate(timeout=PATIENCE)[1]
    status = json.loads((lab.folder / "stopped" / "run.json").read_text())["status"]
    # Open MPI may let go of a rank's words before it is done.
    check(job.returncode != 0 and status == "interrupted", f"Ctrl-C: {job.returncode}, {status}\n{said}")
    job = lab.going_on(4)
    os.kill(ranks_of(job, 4)[2], signal.SIGTERM)
    said = job.communicate(timeout=PATIENCE)[1]
    check(job.returncode == 130 and "is saved; run the same command again" in said, f"SIGTERM: {job.returncode}\n{said}")
    job = lab.going_on(3)
    ranks = ranks_of(job, 3)
    begin = time.monotonic()
    os.kill(int(ranks[-1]), signal.SIGKILL)
    said = job.communicate(timeout=PATIENCE)[1]
    seconds = time.monotonic() - begin
    check(job.returncode != 0 and "signal 9" in said, f"a killed rank: {job.returncode}\n{said}")
    check(seconds < 10, f"a killed rank ended the job after {seconds:.1f} s")
    lab.succeed(lab.words(4, train("stopped", LONG)))
    lab.succeed([str(lab.program), "--threads", "1", *train("undisturbed", LONG)])
    check(lab.products("stopped") == lab.products("undisturbed"), "stopped, killed and gone on with: other bytes")
    return seconds


def refusals(lab):
    lab.refuse(lab.words(2, train("many", [*TINY, "train.shares=17"])), "train.shares", "1 to 16")
    lab.refuse(["mpirun", "-n", "2", str(lab.plain), *train("plain", TINY)], "knows nothing of MPI", "--features mpi")
    other_programs(lab)
    unshared(lab)
    lab.refuse(lab.words(4, train("few", [*TINY, "train.shares=3"])), "train.shares", "4 ranks")
    lab.refuse(lab.words(2, ["info"]), "one process")
    one, other = (["-n", "1", str(lab.program), *train("unlike", [*TINY, f"train.rate={rate}"])] for rate in ("1e-3", "2e-3"))
    lab.refuse(["mpirun", *one, ":", *other], "rank 1", "`rate = 0.001`", "`rate = 0.002`")
    lab.refuse(["mpirun", *one, ":", *other[:-1], "train.rates=1"], "rank 1", "train.rates")
    (lab.folder / "file").write_text("in the way")
    done = lab.run(lab.words(2, train("file/run", TINY)))
    check(done.returncode != 0 and done.stderr.count("error:") == 1, f"a folder that cannot be made: {done.stderr}")
    check(not any((lab.folder / name).exists() for name in ("few", "unlike")), "a refused job left a folder")


def other_programs(lab):
    """A rank whose program was built from another commit."""
    commit = json.loads(lab.succeed([str(lab.program), "--json", "info"]).stdout)["commit"]
    bytes_ = lab.program.read_bytes()
    check(len(commit) > 5 and commit.encode() in bytes_, f"the program does not hold its commit `{commit}`")
    other = lab.folder / "softly-other"
    other.write_bytes(bytes_.replace(commit.encode(), commit[::-1].encode()))
    other.chmod(0o755)
    words = train("programs", TINY)
    lab.refuse(["mpirun", "-n", "1", str(lab.program), *words, ":", "-n", "1", str(other), *words], "rank 1", "program", commit)


def unshared(lab):
    """Ranks in two folders that are not the same: other data, no data, another model."""
    for home, seed in (("here", 0), ("there", 1)):
        (lab.folder / home).mkdir()
        out = f"{home}/data"
        size = ["data.generator.size=8", "data.count=20", "data.valid=4"]
        lab.succeed([str(lab.program), "data", "generate", "--preset", "darcy-demo", "--seed", str(seed), "--out", out,
                     *(w for s in size for w in ("--set", s))])
        run = train(f"{home}/model", [*TINY, "data.path='data'", f"train.seed={seed}"], preset="darcy-demo")
        run[run.index("--out") + 1] = "model"
        done = subprocess.run([str(lab.program), *run], cwd=lab.folder / home, env=ENVIRONMENT, capture_output=True, text=True)
        check(done.returncode == 0, done.stderr)

    def refuse(words, *needles):
        parts = [["-n", "1", "-wdir", str(lab.folder / home), str(lab.program), *words] for home in ("here", "there")]
        lab.refuse(["mpirun", *parts[0], ":", *parts[1]], "rank 1", *needles)

    words = train("run", [*TINY, "data.path='data'"], preset="darcy-demo")
    refuse(words, "data")
    refuse(["sample", "model", "--count", "8", "--out", "samples"], "snapshot")
    shutil.rmtree(lab.folder / "there" / "data")
    refuse(words, "expected a dataset folder")
    left = [name for name in ("run", "samples") for home in ("here", "there") if (lab.folder / home / name).exists()]
    check(not left, f"a refused job left {left}")


def main():
    install()
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        named = os.environ.get("SOFTLY_PROGRAM")
        plain = os.environ.get("SOFTLY_PLAIN", ROOT / "target" / "release" / "softly")
        lab = Lab(*((pathlib.Path(named).resolve(), pathlib.Path(plain).resolve()) if named else build(folder)), folder)
        begin = time.monotonic()
        same_bytes(lab)
        print(f"ranks: 1 to 4 write the same bytes ({time.monotonic() - begin:.0f} s)", flush=True)
        data_and_evaluations(lab)
        print(f"ranks: the same data and the same evaluations ({time.monotonic() - begin:.0f} s)", flush=True)
        seconds = stops(lab)
        print(f"ranks: stopped, killed and gone on with, the same bytes ({time.monotonic() - begin:.0f} s)", flush=True)
        refusals(lab)
        print(f"ranks: all well in {time.monotonic() - begin:.0f} s; a killed rank ended the job after {seconds:.1f} s")


if __name__ == "__main__":
    main()
