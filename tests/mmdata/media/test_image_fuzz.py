"""No bytes whatever may raise anything but a MediaError."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mmdata.errors import MediaError
from mmdata.media import image

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:PIL")

MUTATIONS_PER_FILE = 84
FILES = 60


def test_damaged_pictures_raise_media_errors_only(corpora: Path, truth: dict[str, Any]) -> None:
    chosen = by_format(corpora, [row for row in truth.values() if row["kind"] == "image" and row["bytes"] < 20_000])
    assert len(chosen) == FILES
    failed = decoded = 0
    for file in chosen:
        rng = np.random.default_rng(sum(file.name.encode()))
        original = np.frombuffer(file.read_bytes(), np.uint8)
        for _ in range(MUTATIONS_PER_FILE):
            data = mutated(original, rng)
            for truncated in ("reject", "repair"):
                try:
                    image.probe(data, truncated=truncated)
                except MediaError:
                    failed += 1
                try:
                    image.decode(data, truncated=truncated, max_pixels=4_000_000)
                    decoded += 1
                except MediaError:
                    failed += 1
    assert failed > 1000 and decoded > 1000


def by_format(corpora: Path, rows: list[dict[str, Any]]) -> list[Path]:
    """`FILES` small files, taken in turn from every extension."""
    groups: dict[str, list[str]] = {}
    for row in sorted(rows, key=lambda row: row["file"]):
        groups.setdefault(Path(row["file"]).suffix.lower(), []).append(row["file"])
    turns = [(turn, suffix, file) for suffix, files in groups.items() for turn, file in enumerate(files)]
    return [corpora / file for _, _, file in sorted(turns)[:FILES]]


def mutated(original: np.ndarray, rng: np.random.Generator) -> bytes:
    """Cut, or with some bytes of the head or anywhere changed."""
    choice = rng.integers(3)
    if choice == 0:
        return original[: rng.integers(len(original))].tobytes()
    data = original.copy()
    reach = len(data) if choice == 1 else min(len(data), 200)
    places = rng.integers(0, reach, rng.integers(1, 9))
    data[places] = rng.integers(0, 256, len(places), np.uint8)
    return data.tobytes()
