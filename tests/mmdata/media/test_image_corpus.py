"""Every picture of the real corpus: size, colour and error class, as `expected_images` states them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from expected_images import BROKEN_PROFILES, UNREADABLE, expected_mean, expected_size, loads, pictures, stated_class

from mmdata import errors
from mmdata.media import image

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:PIL")


def test_every_picture_that_loads_has_its_upright_size_and_colour(corpora: Path, truth: dict[str, Any]) -> None:
    wrong, seen = [], 0
    for row in filter(loads, pictures(truth)):
        seen += 1
        data = (corpora / row["file"]).read_bytes()
        info, picture = image.probe(data), image.decode(data)
        size = expected_size(row)
        mean = np.asarray(picture, np.float64).mean((0, 1))
        off = np.abs(mean - expected_mean(corpora, row)).max()
        if picture.mode != "RGB" or picture.size != size or (info.width, info.height) != size or off > 2:
            wrong.append((row["file"], picture.mode, picture.size, (info.width, info.height), size, mean, off))
    assert seen > 450
    assert wrong == []


def test_only_broken_profiles_are_ignored(corpora: Path, truth: dict[str, Any]) -> None:
    profiled = [row for row in filter(loads, pictures(truth)) if "icc_bytes" in row.get("pillow", {})]
    decoded = {row["file"]: image.decode((corpora / row["file"]).read_bytes()) for row in profiled}
    assert {file for file, picture in decoded.items() if "icc_ignored" in picture.info} == BROKEN_PROFILES


def test_opaque_pictures_without_profile_have_the_mean_that_pillow_gives(corpora: Path, truth: dict[str, Any]) -> None:
    plain = [
        row
        for row in filter(loads, pictures(truth))
        if row.get("pillow", {}).get("mode") in ("RGB", "L", "1", "YCbCr", "CMYK")
        and "icc_bytes" not in row["pillow"]
        and "transparency" not in row["pillow"]
    ]
    assert len(plain) > 250
    for row in plain:
        mean = np.asarray(image.decode((corpora / row["file"]).read_bytes()), np.float64).mean((0, 1))
        assert np.abs(mean - row["pillow"]["mean"]).max() <= 2, row["file"]


def test_animations_have_the_frames_of_the_reference(corpora: Path, truth: dict[str, Any]) -> None:
    animated = [row for row in filter(loads, pictures(truth)) if row.get("pillow", {}).get("n_frames", 1) > 1]
    assert len(animated) > 20
    for row in animated:
        data = (corpora / row["file"]).read_bytes()
        stills = row["pillow"]["format"] in ("TIFF", "MPO")
        controls = data.count(b"fcTL") if row["pillow"]["format"] == "PNG" else row["pillow"]["n_frames"]
        assert image.probe(data).frames == (1 if stills else controls), row["file"]


def test_animation_frames_come_with_the_duration_of_the_header(corpora: Path, truth: dict[str, Any]) -> None:
    for row in filter(loads, pictures(truth)):
        data = (corpora / row["file"]).read_bytes()
        info = image.probe(data)
        if info.frames == 1 or "decompression_bomb" in row["file"]:
            continue
        shown = list(image.frames(data))
        assert len(shown) == info.frames, row["file"]
        assert {picture.size for picture, _ in shown} == {(info.width, info.height)}, row["file"]
        assert {picture.mode for picture, _ in shown} == {"RGB"}
        assert info.duration == pytest.approx(sum(seconds for _, seconds in shown), abs=0.01), row["file"]


def test_a_frame_that_grows_into_a_bomb_is_one(corpora: Path) -> None:
    data = (corpora / "images/pillow/decompression_bomb_extents.gif").read_bytes()
    assert image.decode(data).size == (100, 100)
    with pytest.raises(errors.DecompressionBomb):
        list(image.frames(data))


def test_every_picture_that_does_not_load_has_its_stated_class(corpora: Path, truth: dict[str, Any]) -> None:
    unreadable = [row for row in pictures(truth) if not loads(row)]
    assert len(unreadable) > 70
    for row in unreadable:
        data = (corpora / row["file"]).read_bytes()
        with pytest.raises(errors.MediaError) as caught:
            image.decode(data)
        assert type(caught.value).__name__ == stated_class(row["file"]), (row["file"], caught.value)


def test_gifs_filed_as_video_are_read_as_pictures_too(corpora: Path) -> None:
    info = image.probe((corpora / "videos/intel/classroom.gif").read_bytes())
    assert (info.width, info.height, info.frames) == (480, 270, 45)


def test_the_class_table_names_only_real_classes() -> None:
    assert all(issubclass(getattr(errors, label), errors.MediaError) for label in UNREADABLE.values())
    assert all(re.fullmatch(r"[\w*?./-]+", pattern) for pattern in UNREADABLE)
