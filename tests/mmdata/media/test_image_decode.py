"""Decoding by the stated rules, on pictures made here."""

from __future__ import annotations

import io
import struct
import threading
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageCms, ImageFile

from mmdata.errors import (
    DecompressionBomb,
    EmptyMedia,
    MediaError,
    TruncatedMedia,
    UnreadableMedia,
    UnsupportedMedia,
)
from mmdata.media import image

INVERSE = {
    1: None,
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}
"""EXIF orientation to what a camera did to the upright scene."""

CORNERS = {(0, 0): (255, 0, 0), (1, 0): (0, 255, 0), (0, 1): (0, 0, 255), (1, 1): (255, 255, 0)}


def scene() -> Image.Image:
    """64 × 32: red and green above, blue and yellow below."""
    picture = Image.new("RGB", (64, 32))
    for (column, row), colour in CORNERS.items():
        picture.paste(colour, (column * 32, row * 16, column * 32 + 32, row * 16 + 16))
    return picture


def saved(picture: Image.Image, format: str, **options: Any) -> bytes:
    out = io.BytesIO()
    picture.save(out, format, **options)
    return out.getvalue()


def tagged(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8))


def assert_is_scene(picture: Image.Image) -> None:
    assert picture.size == (64, 32)
    for (column, row), colour in CORNERS.items():
        found = picture.getpixel((column * 32 + 16, row * 16 + 8))
        assert np.abs(np.subtract(found, colour)).max() <= 8, (column, row, found)


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "AVIF", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_all_orientations_come_out_upright(orientation: int, format: str) -> None:
    turn = INVERSE[orientation]
    stored = scene() if turn is None else scene().transpose(turn)
    extra = {"quality": 95} if format in ("JPEG", "WEBP", "AVIF") else {}
    data = saved(stored, format, exif=tagged(orientation), **extra)
    assert_is_scene(image.decode(data))
    info = image.probe(data)
    assert (info.width, info.height) == (64, 32)
    assert info.rotation == {1: 0, 3: 180, 6: 90, 8: 270}.get(orientation)  # the others are mirrored


def test_heif_is_turned_once() -> None:
    import pillow_heif

    out = io.BytesIO()
    stored = scene().transpose(Image.Transpose.ROTATE_90)
    pillow_heif.from_pillow(stored).save(out, quality=95, exif=tagged(6).tobytes())
    assert_is_scene(image.decode(out.getvalue()))
    assert (image.probe(out.getvalue()).width, image.probe(out.getvalue()).height) == (64, 32)


def test_orientation_may_come_from_xmp_or_from_a_late_exif_chunk() -> None:
    xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><d tiff:Orientation="6"/></x:xmpmeta>'
    stored = scene().transpose(Image.Transpose.ROTATE_90)
    assert_is_scene(image.decode(saved(stored, "JPEG", quality=95, xmp=xmp)))
    plain = saved(stored, "PNG")
    late = plain[:-12] + chunk(b"eXIf", tagged(6).tobytes()[6:]) + plain[-12:]
    assert_is_scene(image.decode(late))
    assert image.probe(late).width == 64


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_broken_exif_is_no_error() -> None:
    data = saved(scene(), "JPEG", quality=95, exif=b"Exif\0\0II*\0\xff\xff\xff\xff")
    assert_is_scene(image.decode(data))


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(width: int, height: int, bits: int, colour: int, rows: bytes, *extra: bytes) -> bytes:
    """A PNG from raw scan lines (each with its filter byte) and extra chunks."""
    header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    body = chunk(b"IHDR", header) + b"".join(extra) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def pixel(data: bytes, **options: Any) -> tuple[int, ...]:
    found = image.decode(data, **options).getpixel((0, 0))
    assert isinstance(found, tuple)
    return found


@pytest.mark.parametrize(
    ("alpha", "expected"), [("white", (227, 127, 127)), ("black", (100, 0, 0)), ("drop", (200, 0, 0))]
)
def test_half_transparent_red_over_each_ground(alpha: Any, expected: tuple[int, ...]) -> None:
    data = saved(Image.new("RGBA", (4, 4), (200, 0, 0, 128)), "PNG")
    assert np.abs(np.subtract(pixel(data, alpha=alpha), expected)).max() <= 1
    assert image.probe(data).alpha is True


def test_gray_with_alpha_over_white() -> None:
    data = saved(Image.new("LA", (4, 4), (0, 51)), "PNG")
    assert pixel(data) == (204, 204, 204)


def test_palette_with_transparent_entries() -> None:
    palette = chunk(b"PLTE", bytes([10, 20, 30, 200, 100, 50]))
    rows = bytes([0, 0, 1])
    data = png(2, 1, 8, 3, rows, palette, chunk(b"tRNS", bytes([0, 255])))
    decoded = image.decode(data)
    assert [decoded.getpixel((x, 0)) for x in (0, 1)] == [(255, 255, 255), (200, 100, 50)]
    assert image.decode(data, alpha="drop").getpixel((0, 0)) == (10, 20, 30)


@pytest.mark.parametrize(("bits", "row"), [(1, 0b10000000), (2, 0b11000000), (4, 0b11110000), (8, 255)])
def test_the_transparent_gray_is_given_in_samples_of_the_declared_depth(bits: int, row: int) -> None:
    top = (1 << bits) - 1
    line = bytes([0, row]) + (b"\0" if bits == 8 else b"")
    data = png(2, 1, bits, 0, line, chunk(b"tRNS", struct.pack(">H", top)))
    decoded = image.decode(data, alpha="black")
    assert [decoded.getpixel((x, 0)) for x in (0, 1)] == [(0, 0, 0), (0, 0, 0)]
    assert image.decode(data, alpha="drop").getpixel((0, 0)) == (255, 255, 255)


def test_the_transparent_colour_of_16_bit_pictures() -> None:
    gray = png(2, 1, 16, 0, b"\0" + struct.pack(">HH", 1000, 40000), chunk(b"tRNS", struct.pack(">H", 1000)))
    assert image.decode(gray).getpixel((0, 0)) == (255, 255, 255)
    assert image.decode(gray).getpixel((1, 0)) == (156, 156, 156)
    rows = b"\0" + struct.pack(">6H", 1000, 2000, 3000, 40000, 30000, 20000)
    colour = png(2, 1, 16, 2, rows, chunk(b"tRNS", struct.pack(">HHH", 1000, 2000, 3000)))
    assert image.decode(colour).getpixel((0, 0)) == (255, 255, 255)
    assert image.decode(colour).getpixel((1, 0)) == (156, 117, 78)


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda: saved(Image.fromarray(np.full((2, 2), 32768, np.uint16)), "PNG"), 128),
        (lambda: saved(Image.fromarray(np.full((2, 2), 32768, np.uint16)), "TIFF"), 128),
        (lambda: b"P5 2 2 1023\n" + struct.pack(">4H", *[512] * 4), 128),
        (lambda: b"P5 2 2 65535\n" + struct.pack(">4H", *[257] * 4), 1),
        (lambda: b"P6 1 1 1023\n" + struct.pack(">3H", *[1023] * 3), 255),
        (lambda: tiff(12, 1, bytes([0x80, 0x08, 0x00])), 128),
        (lambda: tiff(16, 0, struct.pack("<2H", 0, 0)), 255),
        (lambda: tiff(32, 1, struct.pack("<2i", 32768, 0), kind=2), 128),
        (lambda: tiff(32, 1, struct.pack("<2i", 1 << 30, 0), kind=2), 128),
        (lambda: tiff(16, 1, struct.pack("<2h", -5, 100), kind=2), 0),
        (lambda: tiff(32, 1, struct.pack("<2f", 0.5, 1.0), kind=3), 128),
        (lambda: tiff(32, 1, struct.pack("<2f", 20.0, 255.0), kind=3), 20),
        (lambda: tiff(32, 1, struct.pack("<2f", 5.0, 1.0), kind=3), 255),
        (lambda: tiff(32, 1, struct.pack("<2f", float("nan"), 1.0), kind=3), 0),
        (lambda: b"Pf\n2 1\n-1.0\n" + struct.pack("<2f", 0.25, 1.0), 64),
    ],
)
def test_deep_samples_are_scaled_by_their_declared_depth(build: Callable[[], bytes], expected: int) -> None:
    assert pixel(build()) == (expected, expected, expected)


def tiff(
    bits: int, photometric: int, strip: bytes, *, kind: int = 1, extra: tuple[tuple[int, int, int], ...] = ()
) -> bytes:
    """A little-endian, uncompressed, gray TIFF of 2 × 1 pixels."""
    entries = [(256, 4, 2), (257, 4, 1), (258, 3, bits), (259, 3, 1), (262, 3, photometric), (277, 3, 1), (278, 4, 1)]
    entries += [(279, 4, len(strip)), (339, 3, kind), *extra]
    start = 8 + 2 + 12 * (len(entries) + 1) + 4
    entries.append((273, 4, start))
    directory = b"".join(struct.pack("<HHII", tag, form, 1, value) for tag, form, value in sorted(entries))
    return b"II*\0" + struct.pack("<IH", 8, len(entries)) + directory + struct.pack("<I", 0) + strip


def test_cmyk_jpeg_without_profile_is_the_product_of_paper_and_ink() -> None:
    data = saved(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), "JPEG", quality=95)
    assert np.abs(np.subtract(pixel(data), (255, 0, 0))).max() <= 3


def wide_profile() -> bytes:
    """A matrix profile that is not sRGB, made from Little CMS's XYZ profile."""
    return ImageCms.ImageCmsProfile(ImageCms.createProfile("XYZ")).tobytes()


def test_a_profile_changes_colours_and_srgb_changes_none() -> None:
    picture = noise(32, 32)
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    same = image.decode(saved(picture, "PNG", icc_profile=srgb))
    assert np.array_equal(same, picture)
    assert same.info == {}


@pytest.mark.parametrize("profile", [b"not a profile", b"\0" * 200])
def test_a_broken_profile_is_ignored_and_said(profile: bytes) -> None:
    picture = noise(8, 8)
    decoded = image.decode(saved(picture, "PNG", icc_profile=profile))
    assert np.array_equal(decoded, picture)
    assert "broken profile" in decoded.info["icc_ignored"]


def test_a_profile_of_another_colour_space_is_ignored_and_said() -> None:
    lab = ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")).tobytes()
    decoded = image.decode(saved(noise(8, 8), "PNG", icc_profile=lab))
    assert decoded.info["icc_ignored"] == "profile for Lab on a RGB picture"


def test_a_gray_picture_with_an_rgb_profile_stays_gray() -> None:
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    assert pixel(saved(Image.new("L", (8, 8), 77), "PNG", icc_profile=srgb)) == (77, 77, 77)


def test_the_bomb_is_seen_before_decoding() -> None:
    bomb = png(60000, 60000, 8, 2, b"\0")
    for call in (image.probe, image.decode):
        with pytest.raises(DecompressionBomb, match="60000 x 60000"):
            call(bomb)
    assert image.probe(bomb, max_pixels=None).width == 60000
    with pytest.raises(DecompressionBomb):
        image.decode(saved(noise(20, 20), "TIFF"), max_pixels=399)
    assert image.decode(saved(noise(20, 20), "TIFF"), max_pixels=400).size == (20, 20)


@pytest.mark.filterwarnings("error")
def test_no_warning_of_pillow_comes_through_for_a_large_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    assert image.decode(saved(noise(20, 20), "PNG")).size == (20, 20)


@pytest.mark.parametrize("format", ["JPEG", "PNG", "TIFF", "BMP", "WEBP", "GIF", "PPM", "JPEG2000", "AVIF"])
def test_a_cut_picture_is_refused(format: str) -> None:
    data = saved(noise(256, 256), format)
    with pytest.raises(TruncatedMedia if format not in ("AVIF", "JPEG2000") else MediaError):
        image.decode(data[: len(data) // 2])


@pytest.mark.parametrize("format", ["JPEG", "PNG", "TIFF", "BMP", "GIF", "PPM"])
def test_repair_keeps_what_was_decoded(format: str) -> None:
    picture = noise(256, 256)
    data = saved(picture, format)
    whole = np.asarray(image.decode(data), np.int16)
    cut = np.asarray(image.decode(data[: len(data) * 3 // 4], truncated="repair"), np.int16)
    assert cut.shape == whole.shape
    half = slice(128, 256) if format == "BMP" else slice(0, 120)  # a BMP starts at the bottom
    assert np.abs(cut[half] - whole[half]).max() <= 2
    assert ImageFile.LOAD_TRUNCATED_IMAGES is False


def test_repair_in_threads_beside_refusal() -> None:
    data = saved(noise(256, 256), "PNG")
    cut, results = data[: len(data) // 2], []

    def work(truncated: Any) -> None:
        for _ in range(20):
            try:
                image.decode(cut, truncated=truncated)
                results.append((truncated, "decoded"))
            except TruncatedMedia:
                results.append((truncated, "refused"))

    threads = [threading.Thread(target=work, args=(choice,)) for choice in ("repair", "reject") * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert set(results) == {("repair", "decoded"), ("reject", "refused")}


def test_repair_of_nothing_is_refused() -> None:
    data = saved(noise(256, 256), "PNG")
    with pytest.raises(TruncatedMedia):
        image.decode(data[:60], truncated="repair")


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        ((500, 250), (500, 250)),
        ((251, 10), (500, 250)),
        ((250, 125), (250, 125)),
        ((10, 10), (125, 63)),
        (None, (1000, 500)),
    ],
)
def test_a_jpeg_is_decoded_at_the_scale_that_is_enough(asked: Any, given: tuple[int, int]) -> None:
    data = saved(noise(1000, 500), "JPEG")
    assert image.decode(data, at_least=asked).size == given


def test_the_scale_is_chosen_for_the_upright_picture() -> None:
    data = saved(noise(500, 1000), "JPEG", exif=tagged(6))
    assert image.decode(data, at_least=(500, 250)).size == (500, 250)
    assert image.decode(data, at_least=(250, 500)).size == (1000, 500)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_covered_part_of_a_reduced_picture_is_turned_with_it(orientation: int) -> None:
    data = saved(noise(65, 130), "JPEG", exif=tagged(orientation))
    width, height = (130, 65) if orientation >= 5 else (65, 130)
    reduced = image.decode(data, at_least=(width // 8, height // 8))
    assert reduced.size == ((17, 9) if orientation >= 5 else (9, 17))
    left, top, right, bottom = reduced.info["box"]
    assert (right - left, bottom - top) == (width / 8, height / 8)
    assert (left > 0) is (orientation in (2, 3, 6, 7))
    assert (top > 0) is (orientation in (3, 4, 7, 8))
    assert "box" not in image.decode(data, at_least=(width, height)).info


@pytest.mark.parametrize("seed", range(20))
def test_the_reduced_size_never_falls_below_what_was_asked(seed: int) -> None:
    rng = np.random.default_rng(seed)
    width, height = (int(side) for side in rng.integers(1, 700, 2))
    asked = (int(rng.integers(1, width + 1)), int(rng.integers(1, height + 1)))
    got = image.decode(saved(noise(width, height), "JPEG"), at_least=asked).size
    assert got[0] >= asked[0] and got[1] >= asked[1]


def test_pages_and_frames_by_number() -> None:
    pages = saved(
        Image.new("RGB", (8, 8), "red"), "TIFF", save_all=True, append_images=[Image.new("RGB", (9, 9), "blue")]
    )
    assert image.decode(pages).getpixel((0, 0)) == (255, 0, 0)
    assert image.decode(pages, frame=1).getpixel((0, 0)) == (0, 0, 255)
    assert image.probe(pages).frames == 1
    with pytest.raises(EmptyMedia):
        image.decode(pages, frame=2)
    with pytest.raises(EmptyMedia):
        image.decode(saved(noise(8, 8), "PNG"), frame=1)


def test_the_largest_icon_is_shown() -> None:
    data = saved(Image.new("RGBA", (64, 64), "green"), "ICO", sizes=[(16, 16), (48, 48), (32, 32)])
    assert image.decode(data).size == (48, 48)
    assert (image.probe(data).width, image.probe(data).height) == (48, 48)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", EmptyMedia),
        (b"hello, this is no picture at all", UnreadableMedia),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", UnreadableMedia),
        (b"\xff\xd8\xff", TruncatedMedia),
        (b"\x89PNG\r\n\x1a\n", TruncatedMedia),
        (b"GIF89a\x01\x00\x01\x00\x00\x00\x00;", EmptyMedia),
        (b"\0\0\0\x18ftypisom\0\0\0\0isommp42", UnreadableMedia),
        (b"BM" + bytes(60), MediaError),
        (b"\0\0\1\0\0\0", EmptyMedia),
    ],
)
def test_what_is_no_picture_has_its_class(data: bytes, error: type[MediaError]) -> None:
    for call in (image.probe, image.decode):
        with pytest.raises(error):
            call(data)


def test_a_16_bit_jpeg_is_unsupported() -> None:
    data = bytearray(saved(noise(16, 16), "JPEG"))
    data[data.index(b"\xff\xc0") + 4] = 12
    with pytest.raises(UnsupportedMedia, match="12 bits"):
        image.probe(bytes(data))


def test_memory_errors_pass_through(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(ImageFile.ImageFile, "load", exhausted)
    with pytest.raises(MemoryError):
        image.decode(saved(noise(8, 8), "PNG"))


@pytest.mark.parametrize(
    "format", ["JPEG", "PNG", "GIF", "WEBP", "TIFF", "BMP", "AVIF", "JPEG2000", "PPM", "TGA", "QOI"]
)
def test_what_a_probe_says(format: str) -> None:
    info = image.probe(saved(noise(40, 30), format))
    assert (info.width, info.height, info.frames, info.rotation, info.bits) == (40, 30, 1, 0, 8)
    assert info.format == format.lower()
    assert info.alpha is False


def test_the_beginning_of_a_file_is_answered_or_asks_for_more() -> None:
    assert image.probe(saved(noise(400, 300), "JPEG")[:2048]).width == 400
    for format in ("PNG", "WEBP", "GIF"):
        with pytest.raises(TruncatedMedia):
            image.probe(saved(noise(400, 300), format)[:2048])
    assert image.probe(saved(noise(400, 300), "PNG")[:2048], truncated="repair").width == 400
