"""The rows of one table file, whatever its format: where it may be cut, and the rows of one cut as plain values.

Knows no media and no samples. Memory is that of one row, or one record batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

MAX_ROW_BYTES = 256 << 20
"""Longest row of a text table. A longer one is damage (a quote or bracket that was never closed)."""

CUT_BYTES = 64 << 20
"""A cut of a text table ends at the first row that begins this many bytes after its start."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A run of rows that is read in one go: `place` is JSON and means something to the reader of that format only."""

    first_row: int
    count: int
    place: dict[str, int]


class Row(NamedTuple):
    """One row, or the reason why it cannot be read."""

    number: int
    """Zero-based; in JSONL the line, so that blank lines count."""
    values: dict[str, Any]
    where: str
    """For messages: `line 12`, `row 3`."""
    error: str | None = None


class RowReader(Protocol):
    """A format. Offsets are bytes from the start of the file."""

    def columns(self) -> list[str]:
        """Names of the columns: all of them, or in formats without a schema those of the first rows."""
        ...

    def cuts(self, rows: int) -> Iterator[Cut]:
        """Cuts of about `rows` rows each, in order. Raises FormatError when the file is not of this format."""
        ...

    def rows(self, cut: Cut) -> Iterator[Row]:
        """Rows of one cut, in order. A bad row has `error` set and does not disturb its neighbours."""
        ...
