"""Scanning one sample: what its media are, whatever their names say, and what is wrong with them."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mmdata.errors import EmptyMedia, MissingMedia, UnreadableMedia
from mmdata.media import audio
from mmdata.operators.chain import HEAD_BYTES, Setup
from mmdata.operators.measure import measure
from mmdata.operators.registry import get, load_builtin
from mmdata.recipe import Decode, Limits
from mmdata.schema import Kind, MediaRef, SourceSample
from mmdata.storage import open_storage


@pytest.fixture(scope="module", autouse=True)
def operators() -> None:
    load_builtin()


def setup(check: str = "decode", **settings: Any) -> Setup:
    limits = settings.pop("limits", Limits())
    return Setup(storage=open_storage(), limits=limits, decode=Decode(), check=check, **settings)


def one(path: Path, kind: Kind, made: Setup) -> dict[str, Any]:
    """The catalog's account of a file that is a sample by itself."""
    ref = MediaRef(path.suffix[1:], kind, str(path), None, path.stat().st_size, f"{path.stat().st_size}:1")
    return dict(measure(("source.0", SourceSample("key", (ref,))), made)["media"][0])


def tone(seconds: float = 0.5) -> audio.Audio:
    t = np.arange(int(seconds * 8000)) / 8000
    return audio.Audio(np.sin(2 * np.pi * 440 * t, dtype=np.float32)[None], 8000)


def still(format: str, size: tuple[int, int] = (40, 30), noise: bool = False, **options: Any) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), np.uint8) if noise else None
    buffer = io.BytesIO()
    image = Image.new("RGB", size, "red") if pixels is None else Image.fromarray(pixels)
    image.save(buffer, format, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("check", ["decode", "header"])
def test_a_video_file_that_holds_sound_alone_is_audio(tmp_path: Path, check: str) -> None:
    path = tmp_path / "speech.ogv"
    path.write_bytes(audio.encode(tone(), "opus"))
    found = one(path, "video", setup(check))
    assert (found["kind"], found["sample_rate"], found["channels"]) == ("audio", 48000, 1)
    assert found["duration"] == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("check", ["decode", "header"])
def test_under_animated_video_a_still_picture_stays_a_picture(tmp_path: Path, check: str) -> None:
    path = tmp_path / "a.gif"
    path.write_bytes(still("GIF"))
    assert one(path, "video", setup(check))["kind"] == "image"
    frames = [Image.new("L", (40, 30), shade) for shade in (0, 128, 255)]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=100)
    found = one(path, "video", setup(check))
    assert (found["kind"], found["frames"]) == ("video", 3)


def test_a_picture_with_a_lying_extension_is_what_its_bytes_are(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(still("PNG"))
    assert one(path, "image", setup())["format"] == "png"


@pytest.mark.parametrize("truncated", ["reject", "repair"])
@pytest.mark.parametrize("format", ["WEBP", "PNG"])
def test_a_header_scan_finds_an_orientation_that_stands_behind_the_pixels(
    tmp_path: Path, format: str, truncated: Any
) -> None:
    """EXIF of WebP, and of PNG where a tool appended it, follows the picture data: beyond the first read."""
    exif = Image.Exif()
    exif[0x0112] = 6
    options: dict[str, Any] = {"lossless": True} if format == "WEBP" else {}
    data = still(format, (400, 300), noise=True, exif=exif, **options)
    if format == "PNG":
        at = data.index(b"eXIf") - 4
        (length,) = struct.unpack(">I", data[at : at + 4])
        chunk, end = data[at : at + 12 + length], data.index(b"IEND") - 4
        data = data[:at] + data[at + len(chunk) : end] + chunk + data[end:]
    assert len(data) > HEAD_BYTES
    path = tmp_path / f"a.{format.lower()}"
    path.write_bytes(data)
    found = one(path, "image", setup("header", digest=False, limits=Limits(truncated=truncated)))
    assert (found["width"], found["height"], found["rotation"]) == (300, 400, 90)
    assert found["size_bytes"] == len(data)


def test_what_the_catalog_cannot_hold_is_named() -> None:
    from mmdata.operators.measure import _storable
    from mmdata.schema import MediaInfo

    _storable(MediaInfo(width=2**31 - 1, channels=2**15 - 1))
    with pytest.raises(UnreadableMedia, match="frames 4294967295"):
        _storable(MediaInfo(frames=2**32 - 1))


@pytest.mark.parametrize("kind", ["image", "video", "audio", "data"])
def test_a_file_that_is_not_there_is_missing_media(tmp_path: Path, kind: Kind) -> None:
    ref = MediaRef("x", kind, str(tmp_path / "gone"))
    with pytest.raises(MissingMedia, match="gone"):
        measure(("source.0", SourceSample("key", (ref,))), setup())


@pytest.mark.parametrize("kind", ["image", "video", "audio"])
def test_an_empty_file_is_empty_media(tmp_path: Path, kind: Kind) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"")
    with pytest.raises(EmptyMedia):
        one(path, kind, setup())


def test_statistics_of_a_sample_with_two_pictures_are_their_mean(tmp_path: Path) -> None:
    refs = []
    for number, colour in enumerate(("black", "white")):
        path = tmp_path / f"{number}.png"
        Image.new("RGB", (8, 8), colour).save(path)
        refs.append(MediaRef(f"{number}.png", "image", str(path), None, path.stat().st_size, "1:1"))
    brightness = get("statistic", "image", "brightness").model()
    result = measure(
        ("source.0", SourceSample("key", tuple(refs), {"txt": "two"})), setup(statistics={"image": [brightness]})
    )
    assert result["stats"]["stat.brightness"] == pytest.approx(127.5)
    assert result["stats"]["text_chars"] == 3
    assert len(result["media"]) == 2
