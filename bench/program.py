"""The program as scripts call it, and records of work that is done once."""

import json
import subprocess


def softly(args, *arguments):
    """What `args.program` prints, with `args.threads` threads if that is a number."""
    threads = ["--threads", str(args.threads)] if args.threads else []
    done = subprocess.run([args.program, *threads, *map(str, arguments)], check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return done.stdout


def kept(path, make):
    """The record in `path`, made if it is not there."""
    if not path.exists():
        record = make()
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(record))
        partial.rename(path)
    return json.loads(path.read_text())


def about(args):
    """Version and commit of the program, for results."""
    info = json.loads(softly(args, "info", "--json"))
    return {"version": info["version"], "commit": info["commit"]}
