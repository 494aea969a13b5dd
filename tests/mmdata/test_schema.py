"""What the scalar columns of a sample say when it has many media: as docs/formats.md states it."""

from __future__ import annotations

from typing import Any

import pytest

from mmdata.schema import MediaInfo, geometry, modality


def medium(size_bytes: int, length: int | None = None, **known: Any) -> dict[str, Any]:
    info = MediaInfo(**known)
    return {name: getattr(info, name) for name in info.__slots__} | {"size_bytes": size_bytes, "length": length}


def test_many_media_of_a_sample_are_told_by_the_documented_rule() -> None:
    tall = medium(100, 7, width=300, height=500, frames=1)
    wide = medium(200, 8, width=400, height=300, frames=1)
    film = medium(3000, width=640, height=200, frames=48, duration=2.0, fps=24.0, sample_rate=48_000, channels=2)
    speech = medium(50, duration=1.5, sample_rate=16_000, channels=1)
    assert geometry([tall, wide, speech, film]) == {
        "width": 300,  # 150,000 pixels are the most, though others are wider
        "height": 500,
        "frames": 50,
        "duration": 3.5,
        "fps": 24.0,
        "sample_rate": 16_000,  # of the first that has sound
        "channels": 1,
        "size_bytes": 3350,
        "length": 7,
    }


def test_what_no_medium_has_is_null() -> None:
    assert geometry([medium(50, duration=1.5)]) | {"size_bytes": 0} == {
        **dict.fromkeys(["width", "height", "frames", "fps", "sample_rate", "channels", "length"]),
        "duration": 1.5,
        "size_bytes": 0,
    }
    assert set(geometry([]).values()) == {None, 0}


@pytest.mark.parametrize(
    ("kinds", "word"),
    [([], "text"), (["data"], "text"), (["image", "image", "data"], "image"), (["image", "audio"], "mixed")],
)
def test_a_sample_is_of_the_kind_of_its_media(kinds: list[str], word: str) -> None:
    assert modality(kinds) == word
