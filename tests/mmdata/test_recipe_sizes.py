"""Human quantities: sizes, durations, pixels, bit rates, paths."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from mmdata.recipe.sizes import (
    CommandLineText,
    format_size,
    parse_duration,
    parse_pixels,
    parse_rate,
    parse_shape,
    parse_size,
    resolve_path,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("256MiB", 268_435_456),
        ("256 mib", 268_435_456),
        ("1GB", 1_000_000_000),
        ("1.5KiB", 1536),
        ("1k", 1000),
        ("1Ki", 1024),
        ("2TiB", 2_199_023_255_552),
        ("1_000B", 1000),
        (1024, 1024),
    ],
)
def test_sizes_are_bytes(text: Any, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30s", 30), ("5m", 300), ("1.5h", 5400), ("250ms", 0.25), ("1h30m", 5400), ("2 days", 172_800), (1.5, 1.5)],
)
def test_durations_are_seconds(text: Any, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(("text", "pixels"), [("512*512", 262_144), ("640 x 360", 230_400), ("1MP", 1_000_000), (9, 9)])
def test_pixels_are_counts_or_products(text: Any, pixels: int) -> None:
    assert parse_pixels(text) == pixels


@pytest.mark.parametrize("text", ["512x768", "512*768", [512, 768], (512, 768)])
def test_shapes_are_width_and_height(text: Any) -> None:
    assert parse_shape(text) == (512, 768)


def test_rates_are_bits_per_second() -> None:
    assert [parse_rate(text) for text in ("96k", "1.5M", 64_000)] == [96_000, 1_500_000, 64_000]


@pytest.mark.parametrize(
    ("parse", "wrong", "message"),
    [
        (parse_size, "12 MiX", "unknown unit 'MiX'; did you mean 'MiB'"),
        (parse_size, "-1GB", "must not be negative"),
        (parse_size, -1, "must not be negative"),
        (parse_size, "big", "expected a size such as 256MiB"),
        (parse_size, "1.5", "not a whole number"),
        (parse_size, True, "found true"),
        (parse_size, None, "found nothing"),
        (parse_size, float("nan"), "expected a size"),
        (parse_duration, "5 minuts", "did you mean 'minutes'"),
        (parse_duration, "1h30", "expected a duration"),
        (parse_duration, [3], "found a list of 1"),
        (parse_pixels, "512*", "expected a number of pixels"),
        (parse_shape, "512", "expected a width and height"),
        (parse_shape, [512], "expected a width and height"),
        (parse_shape, [0, 5], "at least 1"),
        (parse_shape, [True, 5], "expected a width and height"),
        (parse_rate, "96kbps", "unknown unit 'kbps'"),
    ],
)
def test_what_is_no_quantity_is_refused_with_an_example(parse: Any, wrong: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(wrong)


def test_sizes_are_shown_in_powers_of_two() -> None:
    assert [format_size(size) for size in (300, 1536, 256 * 1024**2, 3 * 1024**4)] == [
        "300B",
        "1.5KiB",
        "256MiB",
        "3TiB",
    ]


def test_relative_paths_start_at_the_recipe_and_those_of_the_command_line_at_the_working_folder(tmp_path: Path) -> None:
    assert resolve_path("media", "/data/job") == "/data/job/media"
    assert resolve_path("../media/*.tar", "/data/job") == "/data/media/*.tar"
    assert resolve_path("/abs/./media", "/data/job") == "/abs/media"
    assert resolve_path("s3://bucket/media", "/data/job") == "s3://bucket/media"
    assert resolve_path("~/media", "/data/job") == os.path.expanduser("~/media")
    assert resolve_path(CommandLineText("media"), "/data/job") == os.path.join(os.getcwd(), "media")
    assert resolve_path("media", None) == "media"
