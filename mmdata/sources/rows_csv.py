"""Rows of CSV (RFC 4180) and TSV files, read in place, quoted line ends included. A bad row costs itself only."""

from __future__ import annotations

import csv
import sys
from collections import deque
from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple

from mmdata.errors import FormatError
from mmdata.sources.contract import encodable
from mmdata.sources.rows import CUT_BYTES, MAX_ROW_BYTES, Cut, Row

_MAX_RECORD_LINES = 1000
"""Lines one quoted record may span. Past them a quote was never closed, and reading goes on at the line after it."""


class _Record(NamedTuple):
    start: int
    end: int
    line: int
    """Zero-based line at which the record starts."""
    cells: list[str]
    error: str | None


class Csv:
    """A delimited table with a header line."""

    def __init__(self, open_file: Callable[[], BinaryIO], name: str, tabs: bool) -> None:
        self._open = open_file
        self._name = name
        self._tabs = tabs
        self._header: _Record | None = None
        self._delimiter = "\t" if tabs else ","

    def columns(self) -> list[str]:
        return self._read_header().cells

    def cuts(self, rows: int) -> Iterator[Cut]:
        header = self._read_header()
        start, first, number, end, line = header.end, 0, 0, header.end, 0
        for record in self._records(header.end, None, 0, len(header.cells)):
            if number > first and (number - first >= rows or record.start - start >= CUT_BYTES):
                yield Cut(first, number - first, {"start": start, "end": end, "line": line})
                first = number
            if number == first:
                start, line = record.start, record.line
            end = record.end
            number += 1
        if number > first:
            yield Cut(first, number - first, {"start": start, "end": end, "line": line})

    def rows(self, cut: Cut) -> Iterator[Row]:
        header = self._read_header()
        records = self._records(cut.place["start"], cut.place["end"], cut.place["line"], len(header.cells))
        for number, record in enumerate(records, cut.first_row):
            where = f"line {record.line + header.line + 1}"
            if record.error is not None:
                yield Row(number, {}, where, f"{where}: {record.error}")
            else:
                yield Row(number, dict(zip(header.cells, record.cells, strict=True)), where)

    def _read_header(self) -> _Record:
        """The header. Its `line` is the number of lines it takes, that is, the line of the first row."""
        if self._header is not None:
            return self._header
        with self._open() as file:
            first = file.readline(MAX_ROW_BYTES).decode("utf-8-sig", "replace")
        if not self._tabs:
            # A tie is won by the comma, which stands first.
            self._delimiter = max(",;\t", key=first.count)
        found = next(self._records(0, None, 0, None), None)
        if found is None:
            raise FormatError(f"{self._name} is empty; a table starts with a line of column names")
        if found.error is not None:
            raise FormatError(f"{self._name}: the header line cannot be read: {found.error}")
        cells = [cell.strip() for cell in found.cells]
        cells[0] = cells[0].removeprefix("\ufeff").strip('"') if cells[0].startswith("\ufeff") else cells[0]
        twice = next((cell for cell in cells if cells.count(cell) > 1), None)
        if twice is not None:
            raise FormatError(f"{self._name}: the column {twice!r} occurs twice in the header")
        with self._open() as file:
            lines = file.read(found.end).count(b"\n")
        self._header = _Record(found.start, found.end, lines, cells, None)
        return self._header

    def _records(self, start: int, end: int | None, line: int, width: int | None) -> Iterator[_Record]:
        """Records from byte `start` to `end`. `line` is the number of the first line, `width` the number of cells."""
        csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
        with self._open() as file:
            lines = _Lines(file, start, end, line)
            while (data := lines.take()) is not None:
                began, number = lines.position - len(data), lines.line - 1
                if not data.strip(b"\r\n"):
                    continue
                text = _decode(data)
                if '"' not in text:
                    cells, error = text.rstrip("\r\n").split(self._delimiter), None
                else:
                    cells, error = self._quoted(data, lines, width)
                if error is None and not all(map(encodable, cells)):
                    error = "not UTF-8 text; save the table as UTF-8"
                if error is None and width is not None and len(cells) != width:
                    error = f"{len(cells)} cells where the header has {width}"
                yield _Record(began, lines.position, number, cells, error)

    def _quoted(self, first: bytes, lines: _Lines, width: int | None) -> tuple[list[str], str | None]:
        """Cells of a record that holds quotes; takes more lines when a quote spans them."""
        taken = [first]
        size = len(first)

        def feed() -> Iterator[str]:
            nonlocal size
            yield _decode(first)
            while len(taken) < _MAX_RECORD_LINES and size < MAX_ROW_BYTES and (more := lines.take()) is not None:
                taken.append(more)
                size += len(more)
                yield _decode(more)

        try:
            return next(csv.reader(feed(), delimiter=self._delimiter, strict=True)), None
        except csv.Error as error:
            lines.give_back(taken[1:])
            text = _decode(first).rstrip("\r\n")
            if self._tabs:
                # Many TSV files know no quoting at all.
                return text.split("\t"), None
            if len(taken) == 1 and "unexpected end" not in str(error):
                # A quote inside a cell, or text after a closing quote: read as other tools do, if it fits the header.
                cells = self._lenient(text)
                if cells and (width is None or len(cells) == width):
                    return cells, None
            return [], "a quote is never closed, or stands inside a cell"

    def _lenient(self, text: str) -> list[str]:
        try:
            return next(csv.reader([text], delimiter=self._delimiter), [])
        except csv.Error:  # a lone carriage return
            return []


class _Lines:
    """Lines of a binary file with their place, and with push-back."""

    def __init__(self, file: BinaryIO, start: int, end: int | None, line: int) -> None:
        self._file, self._end = file, end
        self._again: deque[bytes] = deque()
        self.position = file.seek(start)
        self.line = line

    def take(self) -> bytes | None:
        if self._end is not None and self.position >= self._end:
            return None
        data = self._again.popleft() if self._again else self._file.readline(MAX_ROW_BYTES)
        if not data:
            return None
        self.position += len(data)
        self.line += 1
        return data

    def give_back(self, lines: list[bytes]) -> None:
        self._again.extendleft(reversed(lines))
        self.position -= sum(map(len, lines))
        self.line -= len(lines)


def _decode(data: bytes) -> str:
    """UTF-8; bytes that are not become surrogates, which `encodable` finds later."""
    return data.decode("utf-8", "surrogateescape")
