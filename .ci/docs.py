#!/usr/bin/env python3
"""Do the commands of the README and of the book work?

    .ci/docs.py                      # all pages
    .ci/docs.py -v book/src/adapt.md # one page, with the time of every command

Every page has a scratch folder of its own. From top to bottom, a ```toml block whose first line is `# NAME.toml` is written
to that file, and every command of a ```sh block is run; the first one that fails ends the run with its output. SOFTLY_REDUCED
makes the program cut trainings down to seconds, so the commands are tried and their results mean nothing. The program is
cargo's release build, or the one that SOFTLY_PROGRAM names.

Commands in SKIPPED build, test or need more than a Rust toolchain; those in LARGE take hours even when they are cut down.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
SKIPPED = ("alias ", "cargo build", "cargo test", "cargo run --release --example", "mdbook ", "mpirun ", "pip ", "python3 ")
LARGE = re.compile(r"--scale[ =](cpu|long|paper)\b")
CARGO_RUN = re.compile(r"^cargo run --release( --quiet)? -- ")
FENCE = re.compile(r"^```(\S*)\s*$")
FILE_NAME = re.compile(r"^# ([\w-]+\.toml)$")
HEREDOC = re.compile(r"<<-?\s*['\"]?(\w+)['\"]?")


def blocks(text):
    """Language and lines of every fenced block."""
    language, lines = None, []
    for line in text.splitlines():
        fence = FENCE.match(line)
        if language is None and fence:
            language, lines = fence[1], []
        elif language is not None and line.strip() == "```":
            yield language, lines
            language = None
        elif language is not None:
            lines.append(line)
    if language is not None:
        raise SystemExit(f"a ```{language} block has no end")


def commands(lines):
    """The commands of a shell block: lines, joined where they end in a backslash or open a here-document."""
    waiting = iter(lines)
    for line in waiting:
        command, heredoc = [line], HEREDOC.search(line)
        while command[-1].endswith("\\") or (heredoc and command[-1].strip() != heredoc[1]):
            more = next(waiting, None)
            if more is None:
                sys.exit(f"a command has no end: {line}")
            command.append(more)
        text = "\n".join(command)
        if text.strip() and not text.lstrip().startswith("#"):
            yield text


def run_page(page, folder, environment):
    """Numbers of commands that were run, skipped and too large."""
    ran = skipped = large = 0
    for language, lines in blocks(page.read_text(encoding="utf-8")):
        name = FILE_NAME.match(lines[0]) if lines else None
        if language == "toml" and name:
            (folder / name[1]).write_text("\n".join(lines) + "\n", encoding="utf-8")
        for command in commands(lines) if language == "sh" else ():
            if command.startswith(SKIPPED):
                skipped += 1
            elif LARGE.search(command):
                large += 1
            else:
                run(page, CARGO_RUN.sub("softly ", command), folder, environment)
                ran += 1
    return ran, skipped, large


def run(page, command, folder, environment):
    start = time.monotonic()
    done = subprocess.run(
        ["bash", "-c", "set -euo pipefail\n" + command],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if "-v" in sys.argv:
        print(f"    {time.monotonic() - start:6.1f} s  {command.splitlines()[0]}", flush=True)
    if done.returncode != 0:
        sys.exit(f"{page.relative_to(ROOT)}: a command ended with {done.returncode}\n\n{command}\n\n{done.stdout}")


def main():
    built = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"), "release", "softly")
    program = pathlib.Path(os.environ.get("SOFTLY_PROGRAM", built)).resolve()
    if not program.is_file():
        sys.exit(f"there is no program {program}: run `cargo build --release` first, or set SOFTLY_PROGRAM")
    names = [name for name in sys.argv[1:] if name != "-v"]
    pages = [ROOT / "README.md", *sorted((ROOT / "book" / "src").glob("*.md"))]
    pages = [pathlib.Path(name).resolve() for name in names] or pages
    totals, start = [0, 0, 0], time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        binaries = pathlib.Path(scratch, "bin")
        binaries.mkdir()
        (binaries / "softly").symlink_to(program)
        environment = {**os.environ, "PATH": f"{binaries}:{os.environ['PATH']}", "SOFTLY_REDUCED": "1"}
        for page in pages:
            folder = pathlib.Path(scratch, page.stem)
            folder.mkdir()
            # Pages speak as if the reader stood in the project's folder.
            (folder / "examples").symlink_to(ROOT / "examples")
            before = time.monotonic()
            counts = run_page(page, folder, environment)
            totals = [sum(pair) for pair in zip(totals, counts)]
            if any(counts):
                tell(page.relative_to(ROOT), counts, time.monotonic() - before)
    tell("all pages", totals, time.monotonic() - start)


def tell(name, counts, seconds):
    ran, skipped, large = counts
    print(f"{name!s:32} {ran:3} run, {skipped} skipped, {large} too large, {seconds:6.1f} s", flush=True)


if __name__ == "__main__":
    main()
