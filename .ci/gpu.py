#!/usr/bin/env python3
"""Does a GPU compute what the CPU does (book/src/many-machines.md)? Mesa's software Vulkan is device enough.

    .ci/gpu.py                  # builds with the feature `wgpu`, runs the parity tests, then everything below
    .ci/gpu.py --parity         # the parity tests, the count of transfers and a device that is not there alone
    .ci/gpu.py --program        # without the parity tests
    SOFTLY_PROGRAM=FILE .ci/gpu.py     # a build with the feature, made before; without the parity tests

Trains, adapts along all directions, learns a parameter, samples, evaluates with likelihood, stops and goes on, trains the point study's
method, and asks for a device that is not there, each on the CPU and on the GPU, and compares the numbers. Debian's
mesa-vulkan-drivers are installed if there is no Vulkan driver. What only GPUs need is built unoptimised (.ci/gpu.toml).
"""

import glob
import json
import math
import os
import pathlib
import signal
import struct
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
CARGO = ["cargo", "--config", str(ROOT / ".ci" / "gpu.toml")]
DEVICE = "wgpu"
PATIENCE = 600
FIELDS = [
    "denoiser.backbone={kind='unet', channels=8, multipliers=[1, 2], blocks=1, head=8}", "data.generator.size=16", "data.count=40",
    "data.valid=8", "train.batch=4", "train.iterations=40", "train.log_every=5", "sampler.steps=8",
]
FOUR = "denoiser.scd={directions=['gradient', 'spectral', 'newton', 'kalman'], solve_for='p', scale='unit', input='features'}"
POINTS = ["denoiser.backbone={kind='mlp', hidden=16}", "data.count=200", "data.valid=20", "train.iterations=60", "train.batch=16",
          "train.log_every=10"]
# Steps enough that a signal after a checkpoint comes before the end.
LONG = [*POINTS, "train.iterations=400", "train.checkpoint_every=20"]
ROWS = []


def install():
    if glob.glob("/usr/share/vulkan/icd.d/*.json") or glob.glob("/etc/vulkan/icd.d/*.json"):
        return
    print("gpu: installing Debian's mesa-vulkan-drivers", flush=True)
    subprocess.run(["apt-get", "update", "-qq"], check=True)
    words = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "mesa-vulkan-drivers"]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


def fail(why):
    sys.exit(f"gpu: {why}")


def sets(settings):
    return [word for setting in settings for word in ("--set", setting)]


def numbers(path):
    """The values of a .npy file of f4 or f8."""
    data = path.read_bytes()
    length = struct.unpack("<H", data[8:10])[0]
    header, body = data[10:10 + length].decode(), data[10 + length:]
    kind, size = ("f", 4) if "<f4" in header else ("d", 8)
    return struct.unpack(f"<{len(body) // size}{kind}", body)


def write(path, values, shape):
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}"
    header += " " * (-(len(header) + 11) % 64) + "\n"
    body = struct.pack(f"<{len(values)}f", *values)
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + body)


def deviation(found, expected):
    """The largest difference over the largest value."""
    if len(found) != len(expected) or not all(map(math.isfinite, found)):
        return math.inf
    return max(abs(a - b) for a, b in zip(found, expected)) / max(map(abs, expected))


class Lab:
    def __init__(self, program, folder):
        self.program, self.folder = program, folder

    def run(self, words, **more):
        environment = {**os.environ, **more}
        return subprocess.run([str(self.program), *words], cwd=self.folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=PATIENCE)

    def on(self, device, words):
        done = self.run([*words, "--device", device])
        if done.returncode != 0:
            fail(f"ended with {done.returncode}: {' '.join(words)} --device {device}\n{done.stderr}")
        return done.stdout

    def both(self, words, outputs):
        """What `outputs` reads after the command on the CPU and on the GPU; OUT in a word is a place of its own on each."""
        found = {}
        for device in ("cpu", DEVICE):
            own = [word.replace("OUT", device) for word in words]
            begin = time.monotonic()
            said = self.on(device, own)
            found[device] = (outputs(device, said), time.monotonic() - begin)
        return found["cpu"], found[DEVICE]

    def compare(self, name, goal, words, outputs):
        (expected, seconds), (found, more) = self.both(words, outputs)
        row(name, deviation(found, expected), goal, f"{seconds:.1f} s, {more:.1f} s")

    def metrics(self, run):
        """Losses, norms of gradients and learned parameters of a training."""
        lines = [json.loads(line) for line in (self.folder / run / "metrics.jsonl").read_text().splitlines()]
        return [line[key] for line in lines for key in ("loss", "gradient_norm")] + \
               [value for line in lines for value in line.get("constraint", {}).values()]


def row(name, found, goal, note=""):
    ROWS.append((name, found, goal))
    print(f"{'' if found <= goal else 'TOO FAR '}{name:58} {found:8.1e}  {goal:7.0e}  {note}", flush=True)


def leaves(value, key):
    """All numbers called `key` within JSON."""
    if isinstance(value, dict):
        own = [number for name, number in value.items() if name == key and isinstance(number, (int, float))]
        return own + [leaf for inner in value.values() for leaf in leaves(inner, key)]
    return [leaf for inner in value for leaf in leaves(inner, key)] if isinstance(value, list) else []


def trainings(lab):
    field = lambda name, method, more=(): (
        f"train, {name}", 1e-3,
        ["train", "--preset", "darcy-demo", "--method", method, "--out", f"OUT/{name}", *sets([*FIELDS, *more])],
        lambda device, _: lab.metrics(f"{device}/{name}"))
    lab.compare(*field("vanilla", "vanilla"))
    lab.compare(*field("scd", "scd"))
    lab.compare(*field("learned", "scd", ["constraint.parameters.flow={learn=12.0}"]))
    words = ["adapt", "cpu/vanilla", "--out", "OUT/adapted", *sets([FOUR, "train.iterations=20"])]
    lab.compare("adapt, four directions, Kalman's measured on each device", 1e-2, words,
                lambda device, _: lab.metrics(f"{device}/adapted"))
    words = ["train", "--preset", "circle-demo", "--method", "scd", "--out", "OUT/points", *sets(POINTS)]
    lab.compare("train, point study's scd", 1e-3, words, lambda device, _: lab.metrics(f"{device}/points"))


def trained(lab):
    """Models of the CPU, on both devices."""
    levels = [0.02, 0.05, 0.3, 2.0, 20.0]
    state = 12345
    values = []
    for level in levels:
        for i in range(2 * 16 * 16):
            state = (1103515245 * state + 12345) % 2**31
            values.append(0.5 * math.sin(0.05 * i) + level * (3.4 * state / 2**31 - 1.7))
    write(lab.folder / "x.npy", values, (len(levels), 2, 16, 16))
    write(lab.folder / "s.npy", levels, (len(levels),))
    for name in ("vanilla", "scd", "learned", "adapted"):
        out = lambda device, _: worst_level(numbers(lab.folder / device / "d.npy"))
        words = ["denoise", f"cpu/{name}", "--input", "x.npy", "--sigma", "s.npy", "--out", "OUT/d.npy"]
        lab.compare(f"denoise, {name}", 1e-4, words, out)
        words = ["sample", f"cpu/{name}", "--count", "4", "--out", f"OUT/samples-{name}"]
        fields = lambda device, _: [v for path in sorted((lab.folder / device / f"samples-{name}").glob("*.npy")) for v in
                                    scaled(numbers(path))]
        lab.compare(f"sample, {name}", 1e-3, words, fields)
    for name in ("vanilla", "adapted"):
        words = ["--json", "eval", f"cpu/{name}", "--count", "4", "--metrics", "nll", "--set", "sampler.steps=6"]
        lab.compare(f"eval with likelihood, {name}: bits per dimension", 1e-3, words,
                    lambda _, said: leaves(json.loads(said), "normalised"))


def worst_level(values):
    """Estimates of every level over their largest value, so that no level hides behind another."""
    size = 2 * 16 * 16
    return [v for k in range(0, len(values), size) for v in scaled(values[k:k + size])]


def scaled(values):
    largest = max(map(abs, values))
    return [value / largest for value in values]


def stops(lab):
    """A training that is told to stop and gone on with has the numbers of one undisturbed."""
    words = lambda out: ["train", "--preset", "circle-demo", "--method", "scd", "--out", out, "--device", DEVICE, *sets(LONG)]
    job = subprocess.Popen([str(lab.program), *words("stopped")], cwd=lab.folder, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    checkpoint, deadline = lab.folder / "stopped" / "checkpoints" / "latest.safetensors", time.monotonic() + PATIENCE
    while not checkpoint.exists():
        if job.poll() is not None or time.monotonic() > deadline:
            fail("a training writes no checkpoint")
        time.sleep(0.05)
    job.send_signal(signal.SIGTERM)
    said = job.communicate(timeout=PATIENCE)[1].decode()
    if job.returncode != 130:
        fail(f"a training that is told to stop ended with {job.returncode}\n{said}")
    for out in ("stopped", "undisturbed"):
        done = lab.run(words(out))
        if done.returncode != 0:
            fail(f"{out} ended with {done.returncode}\n{done.stderr}")
    row("stopped by SIGTERM and gone on with, against undisturbed", deviation(lab.metrics("stopped"), lab.metrics("undisturbed")), 1e-6)


def refusals(lab):
    """No device: one message, exit code 2, nothing written."""
    words = ["train", "--preset", "circle-demo", "--method", "scd", "--out", "refused", "--device", DEVICE, *sets(POINTS)]
    # Without a Vulkan driver wgpu turns to OpenGL.
    hidden = ["VK_DRIVER_FILES", "VK_ICD_FILENAMES", "__EGL_VENDOR_LIBRARY_FILENAMES", "LIBGL_DRIVERS_PATH"]
    done = lab.run(words, **dict.fromkeys(hidden, "/nonexistent"))
    errors = [line for line in done.stderr.splitlines() if "error:" in line]
    if done.returncode != 2 or len(errors) != 1 or "--device" not in done.stderr or "panicked" in done.stderr:
        fail(f"without a device it ended with {done.returncode}\n{done.stderr}")
    if (lab.folder / "refused").exists():
        fail("a refused training left a folder")
    print(f"no device: {errors[0]}")


def program():
    """The program, after the parity tests unless it was named. Both are built by one command, or shared crates would be built twice."""
    named = os.environ.get("SOFTLY_PROGRAM")
    if named:
        return pathlib.Path(named).resolve()
    words = ["build", "--release", "--features", DEVICE, "--bin", "softly", "--test", "library", "--message-format", "json-render-diagnostics"]
    said = subprocess.run([*CARGO, *words], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    made = [json.loads(line) for line in said.splitlines()]
    executables = {m["target"]["name"]: m["executable"] for m in made if m.get("executable")}
    if "--program" not in sys.argv:
        subprocess.run([executables["library"], "parity", "transfers"], cwd=ROOT / "crates" / "softly", check=True)
    return pathlib.Path(executables["softly"])


def main():
    install()
    built = program()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        lab = Lab(built, pathlib.Path(scratch))
        refusals(lab)
        if "--parity" in sys.argv:
            return
        print(f"{'':58} {'differs':>8}  {'goal':>7}  CPU, GPU")
        trainings(lab)
        trained(lab)
        stops(lab)
    far = [name for name, found, goal in ROWS if not found <= goal]
    if far:
        fail(f"too far from the CPU: {', '.join(far)}")
    print(f"gpu: all well in {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
