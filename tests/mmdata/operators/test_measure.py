"""Scanning one sample: what its media are, whatever their names say, and what is wrong with them."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any

import av
import job_kit
import numpy as np
import pytest
from PIL import Image

from mmdata.errors import DecompressionBomb, EmptyMedia, MissingMedia, TruncatedMedia, UnreadableMedia
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


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """96 x 64, 12 frames, its index before its pictures, so that a cut file still has it."""
    folder = tmp_path_factory.mktemp("clip")
    job_kit.make_clip(folder / "made.mp4", 1)
    path = folder / "a.mp4"
    with av.open(str(folder / "made.mp4")) as made, av.open(str(path), "w", options={"movflags": "+faststart"}) as out:
        track = out.add_stream_from_template(made.streams.video[0])
        for packet in made.demux(made.streams.video[0]):
            if packet.dts is not None:
                packet.stream = track
                out.mux(packet)
    return path


@pytest.mark.parametrize("check", ["decode", "header"])
def test_limits_hold_for_videos_however_they_are_checked(clip: Path, check: str) -> None:
    assert one(clip, "video", setup(check, limits=Limits(max_pixels=96 * 64)))["frames"] == 12
    with pytest.raises(DecompressionBomb, match="96x64"):
        one(clip, "video", setup(check, limits=Limits(max_pixels=96 * 64 - 1)))


@pytest.mark.parametrize("kind", ["video", "audio"])
@pytest.mark.parametrize("check", ["decode", "header"])
def test_a_cut_medium_is_refused_or_repaired_however_it_is_checked(
    clip: Path, tmp_path: Path, check: str, kind: Kind
) -> None:
    path = tmp_path / ("a.mp4" if kind == "video" else "a.wav")
    data = clip.read_bytes()[:-20] if kind == "video" else audio.encode(tone(), "wav")
    path.write_bytes(data if kind == "video" else data[: len(data) * 3 // 4])
    with pytest.raises(TruncatedMedia):
        one(path, kind, setup(check))
    if kind == "audio":
        found = one(path, kind, setup(check, limits=Limits(truncated="repair")))
        assert found["duration"] == pytest.approx(0.375, abs=0.01)
    elif check == "header":
        assert one(path, kind, setup(check, limits=Limits(truncated="repair")))["width"] == 96


def test_frames_are_counted_where_the_recipe_does_not_trust_headers(
    clip: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lie = {"frames": 999, "duration": 1.0, "fps": 999.0, "variable": False}
    monkeypatch.setattr("mmdata.media.video_probe._count_in_header", lambda container, stream: lie)
    assert one(clip, "video", setup("header"))["frames"] == 999
    assert one(clip, "video", setup("header", exact_frames=True))["frames"] == 12


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
