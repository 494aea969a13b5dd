"""Orientation of a picture: the EXIF tag, the XMP property, and the turn that makes the picture upright.

Knows bytes and Pillow's transpose, no file format.
"""

from __future__ import annotations

import re
import struct

from PIL import Image

TURNS: dict[int, Image.Transpose] = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""EXIF orientation to the transpose that undoes it (CIPA DC-008, tag 0x0112). 1 needs none."""

ROTATION: dict[int, int | None] = {1: 0, 3: 180, 6: 90, 8: 270}
"""Clockwise degrees in that turn. The others mirror the picture: no rotation alone makes it upright."""

_XMP = re.compile(rb"tiff:Orientation(?:=[\"']|>)([1-8])")


def orientation(exif: bytes | None, xmp: bytes | None = None) -> int:
    """EXIF orientation 1 to 8. The EXIF tag wins over XMP; whatever is broken or absent counts as 1 (upright)."""
    if exif:
        value = _tag(exif)
        if value is not None:
            return value if 1 <= value <= 8 else 1
    if xmp:
        found = _XMP.search(xmp)
        if found:
            return int(found[1])
    return 1


def upright_size(width: int, height: int, turn: int) -> tuple[int, int]:
    """Width and height after the picture was turned upright."""
    return (height, width) if turn >= 5 else (width, height)


Box = tuple[float, float, float, float]
"""Left, top, right, bottom."""


def upright_box(box: Box, width: float, height: float, turn: int) -> Box:
    """Where a box of a stored picture of width × height lies after the picture was turned upright."""
    left, top, right, bottom = box
    if turn in (2, 3, 7, 8):
        left, right = width - right, width - left
    if turn in (3, 4, 6, 7):
        top, bottom = height - bottom, height - top
    return (top, left, bottom, right) if turn >= 5 else (left, top, right, bottom)


def upright(picture: Image.Image, turn: int) -> Image.Image:
    """The picture turned upright; the same object when it is already."""
    transpose = TURNS.get(turn)
    return picture if transpose is None else picture.transpose(transpose)


def _tag(exif: bytes) -> int | None:
    """Value of tag 0x0112 in the first directory; None when it is not there or the block is broken."""
    start = 6 if exif.startswith(b"Exif\0\0") else 0
    order = {b"II": "<", b"MM": ">"}.get(exif[start : start + 2])
    if order is None:
        return None
    try:
        (directory,) = struct.unpack_from(order + "I", exif, start + 4)
        (count,) = struct.unpack_from(order + "H", exif, start + directory)
        for entry in range(start + directory + 2, start + directory + 2 + 12 * count, 12):
            tag, kind, values = struct.unpack_from(order + "HHI", exif, entry)
            if tag == 0x0112 and values:
                layout = {1: "B", 3: "H", 4: "I"}.get(kind)
                return None if layout is None else int(struct.unpack_from(order + layout, exif, entry + 8)[0])
    except struct.error:
        return None
    return None
