"""Video operators against their definitions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pydantic import ValidationError

from mmdata.operators import image
from mmdata.operators.registry import Context, VideoTransform, get, names
from mmdata.operators.video import Clip, Crop, Flip, Orient, RandomCrop, Resize, SampleFrames
from mmdata.schema import MediaInfo

CONTEXT = Context(seed=7, leaf="leaf", pass_=0, key="key")
CLOCK = np.arange(100) / 25
INFO = MediaInfo(width=64, height=48, frames=100, duration=4.0, fps=25.0, variable=False, rotation=0)
UNEVEN = replace(INFO, variable=True)


def noise(width: int = 64, height: int = 48) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (height, width, 3), np.uint8)


def kept(operator: VideoTransform, context: Context = CONTEXT, info: MediaInfo = INFO) -> list[int]:
    chosen = operator.select(CLOCK, info, context)
    return list(range(len(CLOCK))) if chosen is None else chosen.tolist()


def test_the_operators_are_registered_with_documentation() -> None:
    expected = {"sample_frames", "clip", "orient", "resize", "crop", "random_crop", "flip"}
    assert expected <= set(names("transform", "video"))
    for name in expected:
        assert "Example: `" in (get("transform", "video", name).model.__doc__ or "")


def test_frames_are_spread_evenly() -> None:
    assert kept(SampleFrames(count=5)) == [0, 25, 50, 74, 99]
    assert kept(SampleFrames(), replace(CONTEXT, frames=5)) == [0, 25, 50, 74, 99]
    assert kept(SampleFrames(count=200)) == list(range(100))
    assert len(kept(SampleFrames(count=20, form="4n+1"))) == 17
    with pytest.raises(ValueError, match="frames"):
        kept(SampleFrames())


def test_frames_at_a_rate() -> None:
    assert kept(SampleFrames(fps=5)) == list(range(0, 100, 5))
    assert kept(SampleFrames(fps=5, form="4n+1")) == list(range(0, 85, 5))
    assert kept(SampleFrames(fps=5), replace(CONTEXT, frames=9)) == list(range(0, 45, 5))
    assert kept(SampleFrames(fps=25)) == kept(SampleFrames(fps=60)) == list(range(100))


@pytest.mark.parametrize(
    "operator",
    [SampleFrames(count=n) for n in (99, 100, 101)]
    + [SampleFrames(count=n, form="4n+1") for n in (97, 100, 101, 105)]
    + [SampleFrames(fps=n) for n in (24.0, 25.0, 30.0)]
    + [Clip(duration=n) for n in (3.9, 4.0, 5.0)]
    + [Clip(start=0.0), Clip(end=4.0), Clip(end=3.0), Clip(start=0.1)],
)
@pytest.mark.parametrize("frames", [100, 97])
def test_is_noop_says_exactly_whether_every_frame_is_kept(operator: VideoTransform, frames: int) -> None:
    info = replace(INFO, frames=frames, duration=frames / 25)
    chosen = operator.select(CLOCK[:frames], info, CONTEXT)
    assert operator.is_noop(info, CONTEXT) == (chosen is None or len(chosen) == frames)


def test_a_rate_is_never_called_harmless_for_a_variable_video() -> None:
    assert not SampleFrames(fps=1000).is_noop(UNEVEN, CONTEXT)


def test_a_clip_between_two_times() -> None:
    assert kept(Clip(start=1.0, end=2.0)) == list(range(25, 50))
    assert kept(Clip(start=3.9)) == [98, 99]
    assert kept(Clip(start=10.0)) == []


def test_a_clip_counts_from_the_first_frame_still_there() -> None:
    chosen = Clip(start=1.0, end=1.2).select(CLOCK[50:], INFO, CONTEXT)
    assert chosen is not None and chosen.tolist() == [25, 26, 27, 28, 29]


def test_a_placed_clip() -> None:
    assert kept(Clip(duration=1.0, place="start")) == list(range(25))
    assert kept(Clip(duration=1.0, place="center")) == list(range(38, 63))


def test_a_random_clip_is_drawn_by_the_key_and_covers_every_place_alike() -> None:
    clip = Clip(duration=1.0)
    starts = []
    for number in range(400):
        context = replace(CONTEXT, key=f"key{number}")
        chosen = kept(clip, context)
        assert chosen == kept(clip, context)
        assert len(chosen) in (25, 26) and np.diff(chosen).tolist() == [1] * (len(chosen) - 1)
        starts.append(chosen[0])
    assert np.mean(starts) == pytest.approx(75 / 2, abs=4)
    assert min(starts) <= 2 and max(starts) >= 73
    assert kept(clip, replace(CONTEXT, seed=8)) != kept(clip)


def test_a_clip_shorter_than_a_frame_shows_what_is_on_screen() -> None:
    slow = np.array([0.0, 1.0, 2.0])
    chosen = Clip(duration=0.1, place="center").select(slow, replace(INFO, frames=3, duration=3.0), CONTEXT)
    assert chosen is not None and chosen.tolist() == [1]


@pytest.mark.parametrize(
    "arguments",
    [
        {"op": "clip"},
        {"op": "clip", "start": 1, "duration": 2},
        {"op": "clip", "start": 2, "end": 1},
        {"op": "sample_frames", "count": 2, "fps": 3},
        {"op": "sample_frames", "count": 0},
        {"op": "sample_frames", "form": "8n+1"},
        {"op": "resize", "width": 5, "shorter": 5},
        {"op": "resize", "fill": "no colour"},
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        get("transform", "video", arguments["op"]).model.parse(arguments)


RESIZES = [
    Resize(width=32, height=32),
    Resize(width=32, height=32, mode="contain", fill="red"),
    Resize(width=32, height=32, mode="contain", pad=False),
    Resize(width=32, height=32, mode="exact"),
    Resize(width=128, height=128, upscale=False),
    Resize(shorter=24),
    Resize(longer=96),
]


@pytest.mark.parametrize("operator", RESIZES)
def test_resize_is_that_of_pictures(operator: Resize) -> None:
    arguments = {name: getattr(operator, name) for name in operator.model_fields_set}
    expected = image.Resize(**arguments).apply(Image.fromarray(noise()), CONTEXT)
    frame = operator.frame(noise(), CONTEXT)
    assert (frame.shape[1], frame.shape[0]) == operator.size(INFO, CONTEXT) == expected.size
    assert np.array_equal(frame, np.asarray(expected))


@pytest.mark.parametrize("width", [63, 64, 65, 101])
@pytest.mark.parametrize(
    "operator", [*RESIZES, Resize(shorter=25), Resize(width=33, height=31), Crop(width=33, height=21)]
)
def test_sides_are_even_and_size_tells_them(width: int, operator: Any) -> None:
    info = replace(INFO, width=width)
    frame = operator.frame(noise(width), CONTEXT)
    assert (frame.shape[1], frame.shape[0]) == operator.size(info, CONTEXT)
    assert frame.shape[0] % 2 == frame.shape[1] % 2 == 0 and frame.dtype == np.uint8


def test_the_bucket_is_the_box() -> None:
    context = replace(CONTEXT, target=(32, 48))
    for operator in (Resize(), Resize(mode="contain"), Resize(mode="exact"), Crop(), RandomCrop()):
        assert operator.frame(noise(), context).shape == (48, 32, 3)
        assert operator.size(INFO, context) == (32, 48)
        with pytest.raises(ValueError, match="bucket"):
            operator.size(INFO, CONTEXT)


@pytest.mark.parametrize(
    "operator",
    [
        Resize(width=64, height=48),
        Resize(width=64, height=50),
        Resize(shorter=48),
        Resize(longer=48),
        Resize(width=100, height=100, mode="contain", pad=False, upscale=False),
        Crop(width=64, height=48),
        Crop(width=100, height=100),
        Crop(width=60, height=48),
        RandomCrop(width=64, height=48),
        RandomCrop(width=62, height=48),
        Flip(probability=0.0),
        Flip(probability=1.0),
        Flip(probability=0.5),
    ],
)
def test_is_noop_says_exactly_whether_pixels_change(operator: Any) -> None:
    same = np.array_equal(operator.frame(noise(), CONTEXT), noise())
    assert operator.is_noop(INFO, CONTEXT) == same


def test_crop_is_centred_or_placed() -> None:
    assert np.array_equal(Crop(width=32, height=24).frame(noise(), CONTEXT), noise()[12:36, 16:48])
    assert np.array_equal(Crop(width=32, height=24, left=1, top=2).frame(noise(), CONTEXT), noise()[2:26, 1:33])
    with pytest.raises(ValueError, match="reaches out"):
        Crop(width=32, height=24, left=40).frame(noise(), CONTEXT)


def test_random_crop_and_flip_treat_all_frames_of_a_sample_alike() -> None:
    operator = RandomCrop(width=32, height=24)
    assert np.array_equal(operator.frame(noise(), CONTEXT), operator.frame(noise(), CONTEXT))
    places = {operator.frame(noise(), replace(CONTEXT, key=str(n))).tobytes() for n in range(50)}
    assert len(places) > 40
    flipped = sum(not Flip().is_noop(INFO, replace(CONTEXT, key=str(n))) for n in range(400))
    assert 150 < flipped < 250
    assert np.array_equal(Flip(probability=1.0).frame(noise(), CONTEXT), noise()[:, ::-1])
    assert np.array_equal(Flip(probability=1.0, direction="vertical").frame(noise(), CONTEXT), noise()[::-1])


def test_orient_stores_turned_videos_anew() -> None:
    assert Orient().is_noop(INFO, CONTEXT) and not Orient().is_noop(replace(INFO, rotation=90), CONTEXT)
    assert Orient().select(CLOCK, INFO, CONTEXT) is None and Orient().size(INFO, CONTEXT) == (64, 48)
