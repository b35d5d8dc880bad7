"""Progress: a bar on a terminal and in notebooks, nothing elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType

WIDTH = 30


def in_notebook() -> bool:
    """Whether output goes to a notebook."""
    shell = sys.modules.get("IPython")
    kernel = shell.get_ipython() if shell is not None else None
    return type(kernel).__name__ == "ZMQInteractiveShell"


class Bar:
    """A line that is written over: `bar, done/total unit, time left, status`."""

    def __init__(self, unit: str) -> None:
        self.unit = unit
        self.start = time.monotonic()
        self.first: int | None = None
        self.length = 0

    def note(self, text: str) -> None:
        """A line that stays."""
        self._write("\r" + text.ljust(self.length) + "\n")
        self.length = 0

    def show(self, done: int, total: int, status: str) -> None:
        """The line as it is now."""
        if total == 0:
            line = status
        else:
            self.first = min(done, self.first if self.first is not None else done)
            gone = time.monotonic() - self.start
            rate = (done - self.first) / gone if gone > 0 else 0.0
            left = f", {clock((total - done) / rate)} left" if rate > 0 and done < total else ""
            full = min(WIDTH, WIDTH * done // total)
            bar = "█" * full + "░" * (WIDTH - full)
            line = f"{bar} {done}/{total} {self.unit}, {clock(gone)} gone{left}  {status}".rstrip()
        self._write("\r" + line.ljust(self.length))
        self.length = len(line)

    def close(self) -> None:
        """The line is taken away."""
        if self.length:
            self._write("\r" + " " * self.length + "\r")

    @staticmethod
    def _write(text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()


def clock(seconds: float) -> str:
    """A time in words.

    >>> clock(3.2), clock(200), clock(9000)
    ('3 s', '3:20', '2:30:00')
    """
    whole = int(seconds + 0.5)
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    if hours:
        return f"{hours}:{minutes:02}:{rest:02}"
    return f"{minutes}:{rest:02}" if minutes else f"{rest} s"


class display:
    """A bar where somebody looks at it, `None` elsewhere; gone at the end."""

    def __init__(self, wanted: bool, unit: str) -> None:
        seen = wanted and (in_notebook() or (hasattr(sys.stderr, "isatty") and sys.stderr.isatty()))
        self.bar = Bar(unit) if seen else None

    def __enter__(self) -> Bar | None:
        return self.bar

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar is not None:
            self.bar.close()
