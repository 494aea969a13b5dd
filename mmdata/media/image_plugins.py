"""Pillow's plugins behind one door: which decoder the bytes need, opening it, and what its errors mean.

Plugins are imported when the first file of their kind comes. Formats that would run another program (EPS) or that no
data set holds are not offered. Knows no colour and no orientation.
"""

from __future__ import annotations

import importlib
import logging
import re
import struct
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from io import BytesIO
from typing import Any

from PIL import Image, ImageFile

from mmdata.errors import (
    DecompressionBomb,
    EmptyMedia,
    MediaError,
    TruncatedMedia,
    UnreadableMedia,
    UnsupportedMedia,
)

MAX_PIXELS = 178_956_970
"""Largest picture that is decoded unless told otherwise: 512 MiB of RGB, the size at which Pillow refuses."""

# Pillow warns of broken EXIF, odd icons and large pictures. Each of these is an error class or a documented rule here.
warnings.filterwarnings("ignore", module=r"PIL(\.|$)")
logging.getLogger("PIL").addHandler(logging.NullHandler())

_PLUGINS: dict[str, tuple[str, str]] = {
    "JPEG": ("PIL.JpegImagePlugin", "JpegImageFile"),
    "PNG": ("PIL.PngImagePlugin", "PngImageFile"),
    "WEBP": ("PIL.WebPImagePlugin", "WebPImageFile"),
    "GIF": ("PIL.GifImagePlugin", "GifImageFile"),
    "TIFF": ("PIL.TiffImagePlugin", "TiffImageFile"),
    "BMP": ("PIL.BmpImagePlugin", "BmpImageFile"),
    "DIB": ("PIL.BmpImagePlugin", "DibImageFile"),
    "AVIF": ("PIL.AvifImagePlugin", "AvifImageFile"),
    "HEIF": ("pillow_heif", "HeifImageFile"),
    "JPEG2000": ("PIL.Jpeg2KImagePlugin", "Jpeg2KImageFile"),
    "PPM": ("PIL.PpmImagePlugin", "PpmImageFile"),
    "ICO": ("PIL.IcoImagePlugin", "IcoImageFile"),
    "TGA": ("PIL.TgaImagePlugin", "TgaImageFile"),
    "DDS": ("PIL.DdsImagePlugin", "DdsImageFile"),
    "PCX": ("PIL.PcxImagePlugin", "PcxImageFile"),
    "QOI": ("PIL.QoiImagePlugin", "QoiImageFile"),
}

_HOSTILE = (
    OSError,
    SyntaxError,
    ValueError,
    ArithmeticError,
    LookupError,
    EOFError,
    TypeError,
    AttributeError,
    AssertionError,
    RuntimeError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
    Warning,
)
"""What Pillow's parsers raise on damaged or hostile bytes. MemoryError is not among them: it passes through."""

_BOMB = re.compile(r"decompression bomb|too large for|too much memory|exceeds limit", re.I)
_CUT = re.compile(
    r"truncat|not enough (image )?data|unexpected end|end of (file|data)|expected to read|buffer is not large enough"
    r"|premature|incomplete|broken PNG file \(chunk b''\)",
    re.I,
)
_UNKNOWN = re.compile(
    r"unsupported|not (yet )?supported|cannot handle|unknown (pixel )?mode|not implemented|unknown data organization"
    r"|unknown compression|(cannot|unable to) determine|unrecognized|no decoder|unimplemented",
    re.I,
)
_DAMAGE = re.compile(r"palette size \(", re.I)


@cache
def _plugin(name: str) -> Any:
    module, factory = _PLUGINS[name]
    return getattr(importlib.import_module(module), factory)


def recognise(data: bytes) -> tuple[str, ...]:
    """Names of the formats whose signature the bytes carry, most likely first. Raises EmptyMedia, UnreadableMedia."""
    if not data:
        raise EmptyMedia("no bytes")
    head = data[:16]
    if head.startswith(b"\xff\xd8\xff"):
        return ("JPEG",)
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return ("PNG",)
    if head.startswith((b"GIF87a", b"GIF89a")):
        return ("GIF",)
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return ("WEBP",)
    if head[4:8] == b"ftyp":
        return _iso_brands(data)
    for magic, name in _MAGICS:
        if head.startswith(magic):
            return (name,)
    if head[:4] in _DIB_SIZES:
        return ("DIB",)
    if head[0] == 0x0A and len(head) > 1 and head[1] in (0, 2, 3, 5):
        return ("PCX",)
    if _looks_like_tga(data):
        return ("TGA",)
    if len(data) < 16:
        raise TruncatedMedia(f"{len(data)} bytes are too few for a picture")
    raise UnreadableMedia("no picture decoder recognises the bytes")


_MAGICS: tuple[tuple[bytes, str], ...] = (
    (b"MM\0\x2a", "TIFF"),
    (b"II\x2a\0", "TIFF"),
    (b"MM\x2a\0", "TIFF"),
    (b"II\0\x2a", "TIFF"),
    (b"MM\0\x2b", "TIFF"),
    (b"II\x2b\0", "TIFF"),
    (b"BM", "BMP"),
    (b"\0\0\1\0", "ICO"),
    (b"\xff\x4f\xff\x51", "JPEG2000"),
    (b"\0\0\0\x0cjP  \r\n\x87\n", "JPEG2000"),
    (b"DDS ", "DDS"),
    (b"qoif", "QOI"),
    *((b"P" + kind, "PPM") for kind in (b"1", b"2", b"3", b"4", b"5", b"6", b"f", b"F", b"y", b"0CMYK")),
)
_DIB_SIZES = {struct.pack("<I", size) for size in (12, 40, 52, 56, 64, 108, 124)}


def _iso_brands(data: bytes) -> tuple[str, ...]:
    (length,) = struct.unpack_from(">I", data, 0)
    box = data[8 : min(max(length, 16), 4096)]
    brands = {box[:4], *(box[start : start + 4] for start in range(8, len(box) - 3, 4))}
    if brands & {b"avif", b"avis"}:
        return ("AVIF",)
    if brands & {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs"}:
        return ("HEIF",)
    if brands & {b"mif1", b"msf1"}:
        return ("HEIF", "AVIF")
    raise UnreadableMedia(f"ISO media file of brand {box[:4]!r}: not a picture")


def _looks_like_tga(data: bytes) -> bool:
    """TGA has no signature: ask for the footer of version 2, or a header whose every field makes sense."""
    if len(data) < 18:
        return False
    if data[-18:] == b"TRUEVISION-XFILE.\0":
        return True
    map_type, kind, depth, flags = data[1], data[2], data[16], data[17]
    width, height = struct.unpack_from("<HH", data, 12)
    map_depth = data[7]
    if kind not in (1, 2, 3, 9, 10, 11) or not width or not height or flags & 0xC0:
        return False
    if (kind & 7) == 1:
        return map_type == 1 and depth == 8 and map_depth in (16, 24, 32)
    if map_type != 0 or any(data[3:8]):
        return False
    return depth in (16, 24, 32) and flags & 15 in (0, 1, 8) if (kind & 7) == 2 else depth in (8, 16)


def admit(name: str, width: int, height: int, max_pixels: int | None) -> None:
    """Raise DecompressionBomb for a picture of more than `max_pixels` pixels (None: no limit).

    Where the caller allows more than Pillow's own guard, that guard is lifted with it and stays lifted.
    """
    pixels = width * height
    if max_pixels is not None and pixels > max_pixels:
        raise DecompressionBomb(f"{name}: {width} x {height} = {pixels} pixels, over the limit of {max_pixels}")
    if Image.MAX_IMAGE_PIXELS is not None and pixels > Image.MAX_IMAGE_PIXELS:
        Image.MAX_IMAGE_PIXELS = pixels


def open_picture(names: tuple[str, ...], data: bytes, max_pixels: int | None) -> ImageFile.ImageFile:
    """The plugin's picture, header read, no pixel decoded. Call inside `typed`."""
    failure: Exception | None = None
    for name in names:
        try:
            picture: ImageFile.ImageFile = _plugin(name)(BytesIO(data))
        except _HOSTILE as error:
            failure = failure or error
            continue
        admit(name.lower(), *picture.size, max_pixels)
        return picture
    assert failure is not None
    raise failure


@contextmanager
def typed(name: str, *, cut: bool = False) -> Iterator[None]:
    """Turn what a decoder raises into the MediaError that says what it means; `name` leads the message.

    `cut`: the header was seen to promise more than there is, so that an unspecific error means that too.
    """
    try:
        yield
    except MediaError:
        raise
    except _HOSTILE as error:
        meant = meaning(name, error)
        if cut and isinstance(meant, UnreadableMedia):
            meant = TruncatedMedia(str(meant))
        raise meant from error


def meaning(name: str, error: BaseException) -> MediaError:
    """The MediaError for an exception of a decoder."""
    said = str(error) or type(error).__name__
    message = f"{name.lower()}: {said}"
    if isinstance(error, (Image.DecompressionBombError, Image.DecompressionBombWarning)) or _BOMB.search(said):
        return DecompressionBomb(message)
    if isinstance(error, (struct.error, IndexError)) or (_CUT.search(said) and not _DAMAGE.search(said)):
        return TruncatedMedia(message)
    if _UNKNOWN.search(said) and not _DAMAGE.search(said):
        return UnsupportedMedia(message)
    return UnreadableMedia(message)
