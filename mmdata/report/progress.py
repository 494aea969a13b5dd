"""Progress of a running job on a terminal: a bar, counts, rate, and the work in flight for longest when that is long.

Elsewhere than on a terminal nothing is written at all. Knows no job, only its numbers.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

SLOW_S = 10.0
"""Work in flight for longer is named."""


class Progress:
    """A progress bar on standard error when that is a terminal, otherwise nothing."""

    def __init__(self, verb: str, unit: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._verb, self._unit, self._clock = verb, unit, clock
        self._bar: Any = None
        self._task: Any = None
        self._first: tuple[int, float] | None = None

    def __enter__(self) -> Progress:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[counts]}", markup=False),
                TimeElapsedColumn(),
                TextColumn("{task.fields[slow]}", markup=False),
            )
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task(self._verb, total=None, counts="starting", slow="")
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def counts(self, done: int, total: int | None, bad: int) -> str:
        """`1,200 of 5,000 samples, 3 bad, 410/s`; the rate is that of this run."""
        now = self._clock()
        if self._first is None:
            self._first = (done, now)
        done_before, since = self._first
        rate = (done - done_before) / (now - since) if now - since >= 1 else 0.0
        parts = [f"{done:,}{f' of {total:,}' if total is not None else ''} {self._unit}"]
        parts += [f"{bad:,} bad"] if bad else []
        parts += [f"{rate:,.3g}/s" if rate < 100 else f"{rate:,.0f}/s"] if rate > 0 else []
        return ", ".join(parts)

    def waiting(self, name: str, age_s: float) -> None:
        """Work `name` has been in flight for longest, for `age_s` seconds."""
        if self._bar is not None:
            self._bar.update(self._task, slow=f"oldest: {name}, {age_s:.0f} s" if age_s >= SLOW_S else "")

    def scan(self, done: int, bad: int) -> None:
        """Progress of a scan, whose end is not known."""
        self._show(done, None, bad)

    def build(self, done: int, total: int, dropped: int) -> None:
        """Progress of a build."""
        self._show(done, total, dropped)

    def count(self, done: int, total: int) -> None:
        """Progress of a plain count."""
        self._show(done, total, 0)

    def _show(self, done: int, total: int | None, bad: int) -> None:
        counts = self.counts(done, total, bad)
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total, counts=counts)
