"""Real video files against what ffprobe, PyAV and decord say of them; `expected_videos` has the tolerances."""

from __future__ import annotations

from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from expected_videos import BROKEN, CUT_SHORT, HARD, REFUSED, SECOND_TRACK, disagreements, videos

from mmdata import errors
from mmdata.media import image, video


def test_count_duration_and_rotation_are_those_the_tools_agree_on(corpora: Path, truth: dict[str, Any]) -> None:
    compared = 0
    for name, row in videos(truth).items():
        if name not in REFUSED and name != SECOND_TRACK:
            assert disagreements(row, asdict(video.decode_all(str(corpora / "videos" / name)))) == [], name
            compared += 1
    assert compared == 51


def test_a_header_probe_says_the_same_as_decoding_everything(corpora: Path, truth: dict[str, Any]) -> None:
    for name in videos(truth):
        if name in REFUSED:
            continue
        path = str(corpora / "videos" / name)
        probed, decoded = video.probe(path), video.decode_all(path)
        assert (probed.width, probed.height, probed.frames, probed.rotation, probed.codec) == (
            decoded.width,
            decoded.height,
            decoded.frames,
            decoded.rotation,
            decoded.codec,
        ), name
        assert probed.duration == pytest.approx(decoded.duration, abs=0.04), name
        assert video.probe(Path(path).read_bytes()) == probed, name


@pytest.mark.parametrize(("name", "expected"), [*BROKEN.items(), *HARD.items()])
def test_files_that_do_not_decode_raise_the_class_that_says_why(corpora: Path, name: str, expected: str) -> None:
    with pytest.raises(errors.MediaError) as caught:
        video.decode_all(str(corpora / "videos" / name))
    assert type(caught.value).__name__ == expected


@pytest.mark.parametrize(("name", "frames"), CUT_SHORT.items())
def test_a_cut_file_is_refused_unless_repair_is_asked_for(corpora: Path, name: str, frames: int) -> None:
    path = str(corpora / "videos" / name)
    for function in (video.decode_all, video.probe):
        with pytest.raises(errors.TruncatedMedia, match="bytes"):
            function(path)
        assert function(path, truncated="repair").frames == frames


def test_a_frame_that_the_edit_list_hides_is_not_there(corpora: Path) -> None:
    """dolbyVision-hdr.MOV has five packets; the edit list ends within the fourth frame."""
    path = str(corpora / "videos/androidx/dolbyVision-hdr.MOV")
    info = video.decode_all(path)
    assert (info.frames, info.rotation, info.width, info.height) == (4, 90, 720, 1280)
    assert info.duration == pytest.approx(64 / 600)
    assert len(list(video.read_frames(path, range(4)))) == 4
    with pytest.raises(IndexError):
        list(video.read_frames(path, [4]))


def test_frames_before_the_damage_can_still_be_read(corpora: Path) -> None:
    path = str(corpora / "videos/decord/corrupted.mp4")
    assert len(list(video.read_frames(path, range(25)))) == 25
    with pytest.raises(errors.UnreadableMedia, match=r"3\.0"):
        list(video.read_frames(path, range(50)))


def test_of_two_picture_tracks_the_larger_is_shown(corpora: Path) -> None:
    info = video.decode_all(str(corpora / "videos" / SECOND_TRACK))
    assert (info.frames, info.width, info.height) == (390, 480, 270)


def test_square_pixels(corpora: Path) -> None:
    path = str(corpora / "videos/mp4parse/h264_white_frame_sar_16_9.mp4")
    info = video.probe(path)
    assert (info.width, info.height) == (round(640 * Fraction(16, 9)), 480)
    (frame,) = video.read_frames(path, [0])
    assert frame.shape == (480, 1138, 3) and frame.mean() > 250


def test_first_frames_have_the_reference_colour(corpora: Path, truth: dict[str, Any]) -> None:
    """Mean RGB within 2 of the reference, which was made with the same library's conversion."""
    for name, row in videos(truth).items():
        if name in BROKEN or name in HARD or name == SECOND_TRACK:
            continue
        (frame,) = video.read_frames(str(corpora / "videos" / name), [0])
        assert frame.mean((0, 1)) == pytest.approx(row["pyav"]["video_first_frame"]["mean_rgb"], abs=2.0), name


def test_both_back_ends_give_the_same_pictures_or_decord_refuses(corpora: Path, truth: dict[str, Any]) -> None:
    served = 0
    for name in videos(truth):
        if name in BROKEN or name in HARD or "long_180p" in name:
            continue
        path = str(corpora / "videos" / name)
        count = len(video.frame_times(path))
        indices = sorted({0, count // 3, count // 2, count - 1})
        ours = list(video.read_frames(path, indices, backend="pyav"))
        try:
            theirs = list(video.read_frames(path, indices, backend="decord"))
        except (errors.UnsupportedMedia, errors.UnreadableMedia):
            continue
        served += 1
        for mine, its in zip(ours, theirs, strict=True):
            assert abs(mine.astype(int) - its.astype(int)).mean() < 4, name
    assert served >= 30


def test_moving_pictures_are_composed_as_the_picture_reader_does(corpora: Path, truth: dict[str, Any]) -> None:
    """Frames, times and colours of a GIF, PNG, WebP or AVIF as video are those of its frames as pictures."""
    seen = set()
    for name, row in truth.items():
        said = row.get("pillow") or {}
        if said.get("format") in ("GIF", "PNG", "WEBP", "AVIF") and said.get("n_frames", 1) > 1:
            if "decompression_bomb" in name:
                continue
            data = (corpora / name).read_bytes()
            shown = list(image.frames(data))
            info, times = video.decode_all(data), video.frame_times(data)
            assert info.frames == len(shown) == len(times), name
            assert info.duration == pytest.approx(sum(seconds for _, seconds in shown)), name
            for frame, (picture, _) in zip(video.read_frames(data, range(len(shown))), shown, strict=True):
                assert (frame == np.asarray(picture)).all(), name
            seen.add(said["format"])
    assert seen == {"GIF", "PNG", "WEBP", "AVIF"}


@pytest.mark.parametrize(
    "name", ["videos/intel/classroom.gif", "images/image-rs/ball.png", "images/image-rs/anim.webp"]
)
def test_a_moving_picture_that_is_cut_is_refused(corpora: Path, name: str) -> None:
    data = (corpora / name).read_bytes()
    with pytest.raises(errors.TruncatedMedia):
        video.decode_all(data[: len(data) * 9 // 10])
