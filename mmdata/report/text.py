"""Lines for people: aligned fields, tables, and numbers as one reads them. Knows nothing of what they say."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mmdata.recipe import format_size

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def plain(value: object) -> str:
    """`value` as text that cannot move the cursor or break the line: control characters are written as escapes."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), str(value))


def number(value: float) -> str:
    """`1,234`, `0.0213`, `8.73`: whole numbers whole, others with four significant digits."""
    if value == int(value):
        return f"{int(value):,}"
    digits = f"{value:,.4g}"
    return f"{value:,.0f}" if "e+" in digits else digits


def size(value: int) -> str:
    """`1.21 MiB`: bytes for people; small counts as they are."""
    text = format_size(value)
    found = re.fullmatch(r"(-?[\d.]+)(\D+)", text)
    assert found is not None, "format_size gives a number and a unit"
    if found[2] == "B":
        return f"{int(found[1]):,} B"
    amount = float(found[1])
    return f"{amount:,.0f} {found[2]}" if amount >= 100 else f"{amount:.3g} {found[2]}"


def seconds(value: float) -> str:
    """`8.7 s`, `3 min 20 s`, `2 h 5 min`."""
    if value < 60:
        return f"{value:.3g} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60:,} h {minutes % 60} min"


def share(part: float, whole: float) -> str:
    """`12.5 %`."""
    return f"{100 * part / whole:.1f} %" if whole else ""


def counted(count: int, noun: str) -> str:
    """`1 sample`, `1,234 samples`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def listed(counts: Mapping[str, int]) -> str:
    """`2 .pdf, 1 .doc`: the most first."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{count:,} {plain(name)}" for name, count in ordered)


def fields(pairs: Iterable[tuple[str, object]], indent: str = "") -> list[str]:
    """`name  value` lines with the values under each other. A value of several lines is indented below its name;
    pairs whose value is empty are left out."""
    shown = [(name, value) for name, value in pairs if value not in (None, "", [], {})]
    width = max((len(name) for name, _ in shown), default=0)
    lines = []
    for name, value in shown:
        parts = [value] if not isinstance(value, list) else value
        for position, part in enumerate(parts):
            label = name if position == 0 else ""
            lines.append(f"{indent}{label:<{width}}  {plain(part)}".rstrip())
    return lines


def table(head: Sequence[str], rows: Sequence[Sequence[Any]], indent: str = "  ") -> list[str]:
    """A table with a heading; columns of numbers are right-aligned. Cells: text, numbers, or None for empty."""
    cells = [[_cell(value) for value in row] for row in rows]
    right = [all(isinstance(row[i], (int, float)) or row[i] is None for row in rows) for i in range(len(head))]
    widths = [max(len(line[i]) for line in [list(head), *cells]) for i in range(len(head))]

    def line(values: Sequence[str]) -> str:
        parts = (
            value.rjust(width) if last else value.ljust(width)
            for value, width, last in zip(values, widths, right, strict=True)
        )
        return (indent + "  ".join(parts)).rstrip()

    return [line(list(head)), *(line(row) for row in cells)]


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return number(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else plain(value)
