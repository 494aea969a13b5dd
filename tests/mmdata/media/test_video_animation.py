"""Animated WebP and AVIF as video."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from mmdata import errors
from mmdata.media import video


def animation(format: str, *, frames: int = 6, milliseconds: int = 100) -> bytes:
    """Frames of 64 x 48 whose gray level is 40 times their number."""
    pictures = [Image.new("RGB", (64, 48), (40 * n,) * 3) for n in range(frames)]
    buffer = io.BytesIO()
    options = {"lossless": True} if format == "WEBP" else {"quality": 95}
    pictures[0].save(buffer, format, save_all=True, append_images=pictures[1:], duration=milliseconds, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("format", ["WEBP", "AVIF"])
def test_an_animation_is_a_video(format: str) -> None:
    data = animation(format)
    info = video.probe(data)
    assert (info.format, info.width, info.height, info.frames) == (format.lower(), 64, 48, 6)
    assert info.duration == pytest.approx(0.6) and info.fps == pytest.approx(10) and info.variable is False
    assert video.decode_all(data) == info
    assert video.frame_times(data) == pytest.approx(np.arange(6) / 10)
    levels = [int(frame.mean().round()) for frame in video.read_frames(data, [5, 0, 3, 3])]
    assert levels == pytest.approx([200, 0, 120, 120], abs=3)
    (small,) = video.read_frames(data, [2], size=(32, 24))
    assert small.shape == (24, 32, 3)


@pytest.mark.parametrize("format", ["WEBP", "AVIF"])
def test_an_animation_becomes_a_video(format: str) -> None:
    written = video.transcode(animation(format), indices=[1, 2, 4], crf=10)
    info = video.decode_all(written)
    assert (info.codec, info.frames, info.audio) == ("h264", 3, False)
    assert video.frame_times(written) == pytest.approx([0, 0.1, 0.3], abs=1e-4)
    levels = [int(frame.mean().round()) for frame in video.read_frames(written, range(3))]
    assert levels == pytest.approx([40, 80, 160], abs=4)


def test_limits_and_errors() -> None:
    data = animation("WEBP")
    with pytest.raises(errors.DecompressionBomb):
        video.decode_all(data, max_frames=5)
    with pytest.raises(errors.DecompressionBomb):
        video.probe(data, max_pixels=64 * 48 - 1)
    with pytest.raises(IndexError):
        list(video.read_frames(data, [6]))
    with pytest.raises(errors.MediaError):
        video.decode_all(data[: len(data) // 2])
