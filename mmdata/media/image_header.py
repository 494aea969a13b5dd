"""Headers of the picture formats that make up nearly every data set, read without opening a decoder: JPEG, PNG, GIF,
WebP, ICO. Walks bytes only; knows neither pixels nor Pillow's plugins.

A header whose walk runs past the end of the data has `cut` set. What is needed to know the size must be there,
otherwise TruncatedMedia is raised.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from mmdata.errors import EmptyMedia, TruncatedMedia, UnreadableMedia, UnsupportedMedia
from mmdata.media.exif import orientation

PNG_MAGIC = b"\x89PNG\r\n\x1a\n"


@dataclass(slots=True)
class Header:
    """What the header of a picture says. Width and height are as stored, before the turn that makes it upright."""

    format: str
    codec: str
    width: int = 0
    height: int = 0
    turn: int = 1
    """EXIF orientation still to be applied to what the decoder gives."""
    told: int | None = None
    """Orientation that the file states where the decoder has applied it already; 0 when it does not tell which."""
    frames: int = 1
    delays: Sequence[float] = field(default_factory=tuple)
    """Seconds that each animation frame is shown; empty for a still picture or where the header does not tell."""
    bits: int = 8
    alpha: bool = False
    cut: bool = False
    """The data ends inside a block of the file, or before the block that ends the file."""


def jpeg(data: bytes) -> Header:
    """Walk the markers up to the first scan. The last frame header counts, junk between segments is skipped, as
    libjpeg-based readers do."""
    header = Header("jpeg", "jpeg")
    exif = xmp = b""
    position, size = 2, len(data)
    while True:
        position = data.find(b"\xff", position)
        if position < 0 or position + 4 > size:
            raise TruncatedMedia("jpeg: ends before its first scan")
        marker = data[position + 1]
        if marker == 0xFF:
            position += 1
            continue
        position += 2
        if marker == 0 or 0xD0 <= marker <= 0xD9 or marker == 0xC8 or 0xF0 <= marker <= 0xFD:
            continue
        if marker < 0xC0:
            raise UnreadableMedia(f"jpeg: unknown marker 0x{marker:02x} in the header")
        length = (data[position] << 8) | data[position + 1]
        end = position + length
        if marker == 0xDA:
            break
        if end > size:
            raise TruncatedMedia("jpeg: ends inside its header")
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xCC):
            _jpeg_frame(header, data[position + 2 : end])
        elif marker == 0xE1 and data.startswith(b"Exif\0\0", position + 2):
            exif += data[position + (8 if exif else 2) : end]
        elif marker == 0xE1 and data.startswith(b"http://ns.adobe.com/xap/1.0/\0", position + 2):
            xmp = data[position + 31 : end]
        position = end
    if not header.width:
        raise UnreadableMedia("jpeg: no frame header before the first scan")
    header.turn = orientation(exif, xmp)
    return header


def _jpeg_frame(header: Header, segment: bytes) -> None:
    if len(segment) < 6:
        raise UnreadableMedia("jpeg: the frame header is too short")
    header.bits, header.height, header.width, components = struct.unpack(">BHHB", segment[:6])
    if header.bits != 8:
        raise UnsupportedMedia(f"jpeg: {header.bits} bits per sample")
    if components not in (1, 3, 4):
        raise UnsupportedMedia(f"jpeg: {components} components")
    if not header.width or not header.height:
        raise UnreadableMedia(f"jpeg: declares {header.width} x {header.height} pixels")


def png(data: bytes) -> Header:
    """Walk all chunks: animation control and EXIF may follow the picture data."""
    if data[12:16] != b"IHDR":
        if len(data) < 33:
            raise TruncatedMedia("png: ends inside its header")
        raise UnreadableMedia("png: the first chunk is not IHDR")
    if len(data) < 33:
        raise TruncatedMedia("png: ends inside its header")
    width, height, bits, colour = struct.unpack_from(">IIBB", data, 16)
    header = Header("png", "png", width, height, bits=bits, alpha=colour in (4, 6))
    if not width or not height:
        raise UnreadableMedia(f"png: declares {width} x {height} pixels")
    exif = xmp = None
    delays: list[float] = []
    animated = 0
    position, size = 8, len(data)
    while True:
        if position + 8 > size:
            header.cut = True
            break
        (length,) = struct.unpack_from(">I", data, position)
        kind, start = data[position + 4 : position + 8], position + 8
        position = start + length + 4
        if kind == b"IEND":
            break
        if position > size:
            header.cut = True
            break
        if kind == b"tRNS":
            header.alpha = True
        elif kind == b"eXIf":
            exif = data[start : start + length]
        elif kind == b"acTL" and length >= 8:
            (animated,) = struct.unpack_from(">I", data, start)
        elif kind == b"fcTL" and length >= 26:
            over, under = struct.unpack_from(">HH", data, start + 20)
            delays.append(over / (under or 100))
        elif kind in (b"tEXt", b"zTXt", b"iTXt"):
            text = data[start : start + length]
            if kind == b"iTXt" and text.startswith(b"XML:com.adobe.xmp\0"):
                xmp = text
            elif exif is None and text.startswith(b"Raw profile type exif\0"):
                exif = _raw_profile(kind, text)
    if animated and delays:
        header.frames, header.delays = len(delays), [delay or 0.1 for delay in delays]
        header.cut = header.cut or len(delays) < animated
    header.turn = orientation(exif, xmp)
    return header


def _raw_profile(kind: bytes, text: bytes) -> bytes | None:
    """EXIF that ImageMagick wrote as hexadecimal text: name, length, then the digits."""
    import zlib

    body = text.partition(b"\0")[2]
    try:
        if kind == b"zTXt":
            body = zlib.decompressobj().decompress(body[1:], 1 << 20)
        return bytes.fromhex("".join(body.decode("latin-1").split("\n")[3:]))
    except (zlib.error, ValueError):
        return None


def gif(data: bytes) -> Header:
    """Walk all blocks. The canvas is the logical screen, enlarged where the first frame overhangs it."""
    if len(data) < 13:
        raise TruncatedMedia("gif: ends inside its header")
    width, height, flags = struct.unpack_from("<HHB", data, 6)
    header = Header("gif", "gif", width, height)
    delays: list[float] = []
    delay = 0.0
    position = 13 + (3 << ((flags & 7) + 1) if flags & 0x80 else 0)
    try:
        while position < len(data) and data[position] != 0x3B:
            block = data[position]
            position += 1
            if block == 0x21:
                if data[position] == 0xF9 and data[position + 1] >= 4:
                    control, hundredths = struct.unpack_from("<BH", data, position + 2)
                    header.alpha = header.alpha or bool(control & 1)
                    delay = hundredths / 100
                position = _gif_sub_blocks(data, position + 1)
            elif block == 0x2C:
                left, top, columns, rows, local = struct.unpack_from("<HHHHB", data, position)
                if not delays:
                    header.width, header.height = max(width, left + columns), max(height, top + rows)
                # FFmpeg and browsers show a frame that asks for less than 20 ms for 100 ms.
                delays.append(delay if delay >= 0.02 else 0.1)
                delay = 0.0
                position += 9 + (3 << ((local & 7) + 1) if local & 0x80 else 0)
                position = _gif_sub_blocks(data, position + 1)
    except (IndexError, struct.error):
        header.cut = True
    if not delays:
        if header.cut:
            raise TruncatedMedia("gif: ends before its first frame")
        raise EmptyMedia("gif: no frame in it")
    if not header.width or not header.height:
        raise UnreadableMedia(f"gif: declares {header.width} x {header.height} pixels")
    header.frames = len(delays)
    header.delays = delays if len(delays) > 1 else ()
    return header


def _gif_sub_blocks(data: bytes, position: int) -> int:
    while length := data[position]:
        position += length + 1
    return position + 1


def webp(data: bytes) -> Header:
    """Walk the RIFF chunks. `cut` when the RIFF size says more than there is."""
    header = Header("webp", "vp8")
    if len(data) < 30:
        raise TruncatedMedia("webp: ends inside its header")
    end = 8 + struct.unpack_from("<I", data, 4)[0]
    header.cut = end > len(data)
    exif = xmp = None
    delays: list[float] = []
    position = 12
    while position + 8 <= min(end, len(data)):
        kind, (length,) = data[position : position + 4], struct.unpack_from("<I", data, position + 4)
        body = data[position + 8 : position + 8 + min(length, 1 << 24 if kind in (b"EXIF", b"XMP ") else 16)]
        position += 8 + length + (length & 1)
        if kind == b"VP8X" and len(body) >= 10:
            header.alpha = bool(body[0] & 0x10)
            header.width = 1 + int.from_bytes(body[4:7], "little")
            header.height = 1 + int.from_bytes(body[7:10], "little")
        elif kind == b"VP8 " and len(body) >= 10 and not header.width:
            header.width, header.height = (side & 0x3FFF for side in struct.unpack_from("<HH", body, 6))
        elif kind == b"VP8L":
            header.codec = "vp8l"
            if len(body) >= 5 and not header.width:
                packed = int.from_bytes(body[1:5], "little")
                header.width, header.height = (packed & 0x3FFF) + 1, (packed >> 14 & 0x3FFF) + 1
                header.alpha = bool(packed >> 28 & 1)
        elif kind == b"ANMF" and len(body) >= 16:
            delays.append(int.from_bytes(body[12:15], "little") / 1000 or 0.1)
        elif kind == b"EXIF":
            exif = body
        elif kind == b"XMP ":
            xmp = body
    if not header.width or not header.height:
        raise UnreadableMedia("webp: no picture header in it")
    if delays:
        header.frames, header.delays = len(delays), delays if len(delays) > 1 else ()
    header.turn = orientation(exif, xmp)
    return header


def ico(data: bytes) -> Header:
    """The entry that Pillow shows: the largest, of equals the one with the fewest colours."""
    header = Header("ico", "bmp", alpha=True)
    if len(data) < 6:
        raise TruncatedMedia("ico: ends inside its header")
    (count,) = struct.unpack_from("<H", data, 4)
    if not count:
        raise EmptyMedia("ico: no picture in it")
    if len(data) < 6 + 16 * count:
        raise TruncatedMedia("ico: ends inside its directory")
    entries = [struct.unpack_from("<BBBBHHII", data, 6 + 16 * index) for index in range(count)]

    def rank(entry: tuple[int, ...]) -> tuple[int, int]:
        columns, rows, colours, _, _, bits, _, _ = entry
        return -(columns or 256) * (rows or 256), bits or (colours and (colours - 1).bit_length()) or 256

    offset = min(entries, key=rank)[7]
    if data.startswith(PNG_MAGIC, offset):
        inner = png(data[offset:])
        header.codec, header.width, header.height = "png", inner.width, inner.height
    elif offset + 16 > len(data):
        raise TruncatedMedia("ico: ends before its picture")
    else:
        _, width, height = struct.unpack_from("<Iii", data, offset)
        header.width, header.height = width, abs(height) // 2
    if header.width <= 0 or header.height <= 0:
        raise UnreadableMedia(f"ico: declares {header.width} x {header.height} pixels")
    return header


WALKS = {"JPEG": jpeg, "PNG": png, "GIF": gif, "WEBP": webp, "ICO": ico}
"""Format name to the walk that reads its header from all of its bytes."""
