"""Numbers, sizes and tables as people read them."""

from __future__ import annotations

import pytest

from mmdata.report.text import fields, listed, number, plain, seconds, share, size, table


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (1234567, "1,234,567"), (0.02134, "0.02134"), (8.732008, "8.732"), (12345.6, "12,346"), (-1.5, "-1.5")],
)
def test_numbers(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (999, "999 B"), (1024, "1 KiB"), (1269760, "1.21 MiB"), (1_034_000, "1,010 KiB"), (3 << 40, "3 TiB")],
)
def test_sizes(value: int, text: str) -> None:
    assert size(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.25, "0.25 s"), (59.9, "59.9 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")]
)
def test_durations(value: float, text: str) -> None:
    assert seconds(value) == text


def test_shares_and_lists() -> None:
    assert share(1, 8) == "12.5 %"
    assert share(1, 0) == ""
    assert listed({".doc": 1, ".pdf": 1200}) == "1,200 .pdf, 1 .doc"


def test_hostile_text_cannot_move_the_cursor_or_turn_the_line() -> None:
    assert plain("a\x1b[2Jb\nc\u202ed") == "a\\x1b[2Jb\\nc\\u202ed"
    assert plain("Grüße 猫") == "Grüße 猫"


def test_tables_align_numbers_right_and_text_left() -> None:
    assert table(("name", "n"), [("a", 5), ("long", 1200), ("b", None)]) == [
        "  name      n",
        "  a         5",
        "  long  1,200",
        "  b",
    ]


def test_fields_leave_out_what_is_empty_and_indent_what_is_long() -> None:
    assert fields([("a", "x"), ("none", None), ("long", ["1", "2"])]) == ["a     x", "long  1", "      2"]
