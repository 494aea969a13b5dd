"""Encoding: the same bytes every time, no metadata, and animations taken apart."""

from __future__ import annotations

import io
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageCms

from mmdata.errors import DecompressionBomb, EncodeError, TruncatedMedia
from mmdata.media import image

FORMATS: tuple[Any, ...] = ("jpeg", "png", "webp", "avif")


def gradient(width: int = 96, height: int = 64) -> Image.Image:
    y, x = np.mgrid[0:height, 0:width]
    bands = [x * 255 // max(1, width - 1), y * 255 // max(1, height - 1), (x + y) % 256]
    return Image.fromarray(np.stack(bands, -1).astype(np.uint8))


def animation(format: str, colours: list[str], milliseconds: Any, **options: Any) -> bytes:
    first, *rest = [Image.new("RGB", (12, 8), colour) for colour in colours]
    out = io.BytesIO()
    first.save(out, format, save_all=True, append_images=rest, duration=milliseconds, **options)
    return out.getvalue()


@pytest.mark.parametrize("format", FORMATS)
def test_encoding_is_the_same_over_time_and_processes(format: Any) -> None:
    first = image.encode(gradient(), format)
    time.sleep(1.1)
    assert image.encode(gradient(), format) == first
    program = (
        "import sys, numpy as np; from PIL import Image; from mmdata.media import image\n"
        "y, x = np.mgrid[0:64, 0:96]\n"
        "bands = [x * 255 // 95, y * 255 // 63, (x + y) % 256]\n"
        "picture = Image.fromarray(np.stack(bands, -1).astype(np.uint8))\n"
        f"sys.stdout.buffer.write(image.encode(picture, {format!r}))"
    )
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, timeout=60)
    assert other.stdout == first


@pytest.mark.parametrize("format", FORMATS)
def test_what_was_encoded_decodes_to_nearly_the_same(format: Any) -> None:
    again = image.decode(image.encode(gradient(), format, quality=95))
    assert again.size == (96, 64)
    assert np.abs(np.asarray(again, float).mean((0, 1)) - np.asarray(gradient(), float).mean((0, 1))).max() <= 2


@pytest.mark.parametrize(("format", "lossless"), [("png", False), ("webp", True)])
def test_lossless_is_exact(format: Any, lossless: bool) -> None:
    data = image.encode(gradient(), format, lossless=lossless)
    assert np.array_equal(image.decode(data), gradient())


@pytest.mark.parametrize("format", FORMATS)
def test_no_metadata_is_written(format: Any) -> None:
    picture = gradient()
    bare = image.encode(picture, format)
    exif = Image.Exif()
    exif[0x0112] = 6
    picture.info = {
        "icc_profile": ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes(),
        "exif": exif.tobytes(),
        "xmp": b"<x/>",
        "comment": b"a comment",
        "dpi": (300, 300),
        "transparency": (0, 0, 0),
    }
    assert image.encode(picture, format) == bare
    assert "icc_profile" in picture.info


@pytest.mark.parametrize("format", FORMATS)
def test_gray_stays_gray(format: Any) -> None:
    again = np.asarray(image.decode(image.encode(gradient().convert("L"), format)), np.int16)
    assert np.abs(again.max(-1) - again.min(-1)).max() <= 2


def test_quality_and_subsampling_reach_the_encoder() -> None:
    assert len(image.encode(gradient(), "jpeg", quality=30)) < len(image.encode(gradient(), "jpeg", quality=95))
    assert image.encode(gradient(), "jpeg", subsampling="4:4:4") != image.encode(gradient(), "jpeg")
    assert image.encode(gradient(), "avif", subsampling="4:4:4") != image.encode(gradient(), "avif")


def test_what_cannot_be_encoded_is_a_typed_error() -> None:
    with pytest.raises(EncodeError, match="lossless"):
        image.encode(gradient(), "jpeg", lossless=True)
    with pytest.raises(EncodeError, match="70000"):
        image.encode(Image.new("RGB", (70000, 1)), "jpeg")
    with pytest.raises(EncodeError, match="20000"):
        image.encode(Image.new("RGB", (20000, 1)), "webp")
    unknown: Any = "bmp"
    with pytest.raises(EncodeError, match="bmp"):
        image.encode(gradient(), unknown)


@pytest.mark.parametrize(("format", "options"), [("GIF", {}), ("PNG", {}), ("WEBP", {"lossless": True}), ("AVIF", {})])
def test_frames_come_composed_with_their_seconds(format: str, options: dict[str, Any]) -> None:
    data = animation(format, ["red", "lime", "blue"], [100, 200, 300], **options)
    info = image.probe(data)
    assert (info.frames, info.width, info.height) == (3, 12, 8)
    assert info.duration == pytest.approx(0.6)
    shown = list(image.frames(data))
    assert [seconds for _, seconds in shown] == pytest.approx([0.1, 0.2, 0.3])
    for (picture, _), colour in zip(shown, [(255, 0, 0), (0, 255, 0), (0, 0, 255)], strict=True):
        assert np.abs(np.subtract(picture.getpixel((6, 4)), colour)).max() <= 4
    assert np.array_equal(image.decode(data, frame=2), shown[2][0])


def test_a_gif_frame_keeps_what_the_next_does_not_cover() -> None:
    first = Image.new("RGB", (8, 8), "red")
    second = first.copy()
    second.paste("blue", (0, 0, 4, 8))
    out = io.BytesIO()
    first.save(out, "GIF", save_all=True, append_images=[second], duration=100)
    (one, _), (two, _) = image.frames(out.getvalue())
    assert one.getpixel((0, 0)) == (255, 0, 0)  # not painted over by the second frame
    assert (two.getpixel((0, 0)), two.getpixel((7, 7))) == ((0, 0, 255), (255, 0, 0))


def test_a_gif_delay_below_20_ms_counts_as_100() -> None:
    data = animation("GIF", ["red", "blue"], 10)
    assert [seconds for _, seconds in image.frames(data)] == [0.1, 0.1]
    assert image.probe(data).duration == pytest.approx(0.2)


def test_the_default_picture_of_an_apng_is_not_a_frame() -> None:
    data = animation("PNG", ["white", "red", "blue"], 100, default_image=True)
    assert image.probe(data).frames == 2
    assert [picture.getpixel((0, 0)) for picture, _ in image.frames(data)] == [(255, 0, 0), (0, 0, 255)]
    assert image.decode(data).getpixel((0, 0)) == (255, 255, 255)


def test_a_still_picture_is_one_frame_of_no_duration() -> None:
    ((picture, seconds),) = image.frames(image.encode(gradient(), "png"))
    assert (picture.size, seconds) == ((96, 64), 0.0)


def test_too_many_frames_are_refused_before_decoding() -> None:
    data = animation("GIF", ["red", "lime", "blue"], 100)
    with pytest.raises(DecompressionBomb, match="3 frames"):
        next(image.frames(data, max_frames=2))


def test_a_gif_cut_in_its_last_frame_gives_the_first_ones() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (2, 64, 64, 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(noise[0]).save(out, "GIF", save_all=True, append_images=[Image.fromarray(noise[1])], duration=100)
    cut = out.getvalue()[:-500]
    with pytest.raises(TruncatedMedia):
        image.probe(cut)
    assert image.probe(cut, truncated="repair").width == 64
    stream = image.frames(cut)
    assert next(stream)[0].size == (64, 64)
    with pytest.raises(TruncatedMedia):
        list(stream)
