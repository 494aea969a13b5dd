"""Rows of JSON Lines and of JSON arrays, read in place. A bad row costs itself only."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from mmdata.errors import FormatError, InvalidSample
from mmdata.sources.rows import CUT_BYTES, MAX_ROW_BYTES, Cut, Row
from mmdata.sources.text import parse_json

_CHUNK = 1 << 20
_SAMPLE_ROWS = 100
"""Rows that are looked at to learn the names of columns."""


class JsonLines:
    """One JSON object a line. Blank lines are passed over and counted."""

    def __init__(self, open_file: Callable[[], BinaryIO]) -> None:
        self._open = open_file

    def columns(self) -> list[str]:
        return _names(self.rows(Cut(0, 0, {"start": 0, "end": 64 << 20})))

    def cuts(self, rows: int) -> Iterator[Cut]:
        """Counts line ends, which reads the whole file but parses nothing."""
        import numpy as np

        start = first = position = line = 0
        with self._open() as file:
            while chunk := file.read(4 * _CHUNK):
                ends = np.flatnonzero(np.frombuffer(chunk, np.uint8) == 10) + position + 1
                while True:
                    by_rows = first + rows - line - 1
                    by_bytes = int(np.searchsorted(ends, start + CUT_BYTES))
                    index = min(by_rows, by_bytes)
                    if index >= len(ends):
                        break
                    yield Cut(first, line + index + 1 - first, {"start": start, "end": int(ends[index])})
                    start, first, line = int(ends[index]), line + index + 1, line + index + 1
                    ends = ends[index + 1 :]
                line += len(ends)
                position += len(chunk)
                tail = chunk[-1:] != b"\n"
        if position > start:
            yield Cut(first, line + tail - first, {"start": start, "end": position})

    def rows(self, cut: Cut) -> Iterator[Row]:
        number = cut.first_row
        end = cut.place["end"]
        with self._open() as file:
            position = file.seek(cut.place["start"])
            while position < end:
                line = file.readline(MAX_ROW_BYTES)
                if not line:
                    return
                position += len(line)
                if len(line) == MAX_ROW_BYTES and not line.endswith(b"\n"):
                    position += _skip_line(file)
                    yield Row(number, {}, f"line {number + 1}", f"the line is longer than {MAX_ROW_BYTES} bytes")
                elif line.strip():
                    yield _row(number, line, f"line {number + 1}")
                number += 1


class JsonArray:
    """One array of objects, as in `llava.json`; each element is found by its brackets, without parsing the whole."""

    def __init__(self, open_file: Callable[[], BinaryIO], name: str) -> None:
        self._open = open_file
        self._name = name

    def columns(self) -> list[str]:
        with self._open() as file:
            found = (_element_row(number, *element) for number, element in enumerate(_elements(file, self._name)))
            return _names(found)

    def cuts(self, rows: int) -> Iterator[Cut]:
        first = number = start = end = 0
        with self._open() as file:
            for number, (at, data, error) in enumerate(_elements(file, self._name)):
                # What is wrong behind an element shows only when reading begins at or before that element.
                enough = number - first >= rows or at - start >= CUT_BYTES
                if number > first and enough and error is None:
                    yield Cut(first, number - first, {"start": start, "end": end})
                    first, start = number, at
                end = at + len(data)
        if end > start:
            yield Cut(first, number + 1 - first, {"start": start, "end": end})

    def rows(self, cut: Cut) -> Iterator[Row]:
        with self._open() as file:
            start = file.seek(cut.place["start"])
            elements = itertools.islice(_elements(file, self._name, start or None), cut.count)
            for number, element in enumerate(elements, cut.first_row):
                yield _element_row(number, *element)


def json_reader(open_file: Callable[[], BinaryIO], name: str) -> JsonLines | JsonArray:
    """Reader for a `.json` file: an array, or JSON Lines under that name. Raises FormatError for anything else."""
    with open_file() as file:
        head = file.read(_CHUNK).removeprefix(b"\xef\xbb\xbf").lstrip()
    if head[:1] == b"[":
        return JsonArray(open_file, name)
    if head[:1] != b"{":
        raise FormatError(f"{name} holds neither a JSON array nor JSON lines")
    first_line = head.partition(b"\n")[0]
    try:
        parse_json(first_line, name)
    except InvalidSample as error:
        raise FormatError(
            f"{name} is one JSON object; a table is an array of objects, or one object a line (.jsonl)"
        ) from error
    return JsonLines(open_file)


def _row(number: int, data: bytes, where: str) -> Row:
    try:
        value = parse_json(data, where)
    except InvalidSample as error:
        return Row(number, {}, where, str(error))
    if not isinstance(value, dict):
        return Row(number, {}, where, f"{where}: a row is a JSON object, not {type(value).__name__}")
    return Row(number, value, where)


def _element_row(number: int, at: int, data: bytes, error: str | None) -> Row:
    where = f"row {number} (byte {at})"
    return Row(number, {}, where, f"{where}: {error}") if error else _row(number, data, where)


def _names(rows: Iterator[Row]) -> list[str]:
    names: dict[str, Any] = {}
    for row in itertools.islice(rows, _SAMPLE_ROWS):
        names.update(dict.fromkeys(row.values))
    return list(names)


def _skip_line(file: BinaryIO) -> int:
    """Reads to the next line end; the number of bytes read."""
    skipped = 0
    while part := file.readline(_CHUNK):
        skipped += len(part)
        if part.endswith(b"\n"):
            break
    return skipped


_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|["{}\[\],]', re.DOTALL)


def _elements(file: BinaryIO, name: str, inside: int | None = None) -> Iterator[tuple[int, bytes, str | None]]:
    """Elements of the array in `file` as (byte offset, bytes, error).

    With `inside`, the file stands at that offset, at the start of an element. What follows a bracket that was never
    closed, or the array's end, is one last element with an error.
    """
    buffer, base = bytearray(), inside or 0
    depth = 0 if inside is None else 1
    start = scanned = 0
    while True:
        chunk = file.read(max(_CHUNK, len(buffer)))
        buffer += chunk
        for token in _TOKEN.finditer(buffer, scanned):
            mark = token.group()
            if mark == b'"':
                scanned = token.start()
                break
            scanned = token.end()
            if depth == 1 and mark in (b",", b"]"):
                element = bytes(buffer[start : token.start()])
                if element.strip():
                    lead = len(element) - len(element.lstrip())
                    yield base + start + lead, element.strip(), None
                start = scanned
                depth -= mark == b"]"
                if depth == 0:
                    rest = bytes(buffer[scanned:]).strip() or file.read(_CHUNK).strip()
                    if rest:
                        yield base + scanned, rest[:1], "something follows the end of the array; rows there are lost"
                    return
            elif mark in (b"{", b"["):
                depth += 1
                if depth == 1:
                    start = scanned
            elif mark in (b"}", b"]"):
                depth -= 1
                if depth < 1:
                    raise FormatError(f"{name}: unbalanced bracket at byte {base + token.start()}")
        else:
            scanned = len(buffer)
        if not chunk or len(buffer) - start > MAX_ROW_BYTES:
            rest = bytes(buffer[start:]).strip()
            if rest or depth:
                yield base + start, rest[:1] or b" ", "the array is cut here, or a bracket or quote is never closed"
            return
        if start:
            del buffer[:start]
            base, scanned, start = base + start, scanned - start, 0
