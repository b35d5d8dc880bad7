"""The `softly` program: `softly --help`, or `python -m softly --help`."""

import sys

from . import _core


def main() -> int:
    """Runs the program with the words of the command line; returns its exit code."""
    return _core.run_program(["softly", *sys.argv[1:]], sys.executable)


if __name__ == "__main__":
    sys.exit(main())
