"""Pictures: probe a header, decode to upright 8-bit sRGB, step through an animation, encode the same bytes every time.

Correct by default: EXIF orientation, CMYK, 16-bit, palette, transparency, ICC (rules in `colour`). Knows no storage and
no recipe; every failure is a MediaError. MemoryError alone passes through.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from io import BytesIO
from typing import Any, Literal

from PIL import Image, ImageFile

from mmdata.errors import DecompressionBomb, EmptyMedia, EncodeError, TruncatedMedia
from mmdata.media import image_header
from mmdata.media.colour import Alpha, to_rgb
from mmdata.media.exif import ROTATION, Box, orientation, upright, upright_box, upright_size
from mmdata.media.image_header import Header
from mmdata.media.image_plugins import MAX_PIXELS, admit, meaning, open_picture, recognise, typed
from mmdata.schema import MediaInfo

Truncated = Literal["reject", "repair"]
Format = Literal["jpeg", "png", "webp", "avif"]
Subsampling = Literal["4:4:4", "4:2:2", "4:2:0"]

_EOI = b"\xff\xd9"


def probe(data: bytes, *, max_pixels: int | None = MAX_PIXELS, truncated: Truncated = "reject") -> MediaInfo:
    """Geometry from the header alone; no pixel is decoded. Width and height are upright.

    JPEG, PNG, GIF, WebP and ICO are walked by hand (tens of microseconds); other formats open their decoder. A
    multi-picture JPEG is its first picture, a TIFF its first page, an ICO its largest entry: one frame each. `rotation`
    is None for a picture that is stored mirrored (EXIF 2, 4, 5, 7), and for HEIF, whose decoder turns it unsaid.

    `data` may be the beginning of a file: where the answer hangs on bytes beyond it (a PNG's late EXIF, a GIF's
    frames), TruncatedMedia is raised. With `truncated="repair"` a file that ends early is described as far as it goes.

    Raises EmptyMedia, UnreadableMedia, UnsupportedMedia, TruncatedMedia, DecompressionBomb.
    """
    names = recognise(data)
    header = _header(names, data, max_pixels)
    if header.cut and truncated == "reject":
        raise TruncatedMedia(f"{header.format}: ends before its last block")
    width, height = upright_size(header.width, header.height, header.turn)
    duration = float(sum(header.delays)) if header.delays else None
    return MediaInfo(
        format=header.format,
        codec=header.codec,
        width=width,
        height=height,
        frames=header.frames,
        duration=duration,
        fps=header.frames / duration if duration else None,
        rotation=ROTATION.get(header.turn if header.told is None else header.told),
        bits=header.bits,
        alpha=header.alpha,
        variable=len(set(header.delays)) > 1 if header.delays else None,
    )


def decode(
    data: bytes,
    *,
    alpha: Alpha = "white",
    max_pixels: int | None = MAX_PIXELS,
    truncated: Truncated = "reject",
    at_least: tuple[int, int] | None = None,
    frame: int = 0,
) -> Image.Image:
    """The picture as upright 8-bit sRGB, without metadata.

    alpha: background for transparency, or `drop` to show the colours under it. at_least: upright (width, height) that
    is enough; a JPEG is then decoded at 1/2, 1/4 or 1/8 scale as long as neither side falls below it, and `info["box"]`
    (left, top, right, bottom) is the part of the result that the picture covers: a side that does not divide by the
    scale ends within a pixel. frame: which frame of an animation (fully composed) or page of a TIFF. truncated:
    `repair` keeps what could be decoded of a picture that ends early; what is missing is gray or black.

    Raises DecompressionBomb (from the header, before decoding), TruncatedMedia, UnreadableMedia, UnsupportedMedia,
    EmptyMedia (also for a frame that is not there).
    """
    names = recognise(data)
    header = _walked(names[0], data, max_pixels)
    with typed(names[0], cut=header is not None and header.cut):
        picture = open_picture(names, data, max_pixels)
        turn = _turn(picture) if header is None else header.turn
        if frame:
            _seek(picture, frame)
        enough = None if at_least is None or names[0] != "JPEG" else upright_size(*at_least, turn)
        picture, box = _load(names, picture, data, max_pixels, truncated, enough)
        result = to_rgb(picture, alpha, gray_bits=_gray_bits(header))
        size = result.size
        turned = upright(result, turn)
        turned.info = result.info if box is None else result.info | {"box": upright_box(box, *size, turn)}
        return turned


def frames(
    data: bytes,
    *,
    alpha: Alpha = "white",
    max_pixels: int | None = MAX_PIXELS,
    max_frames: int | None = None,
) -> Iterator[tuple[Image.Image, float]]:
    """Frames of a GIF, APNG, WebP or AVIF animation, each composed to the full canvas, upright, 8-bit sRGB, with the
    seconds it is shown; a still picture gives itself with 0 s. One frame is held at a time.

    A GIF frame of less than 20 ms is shown 100 ms, as browsers and FFmpeg do; so is one of 0 ms in other formats. The
    picture that an APNG shows to still readers only is not a frame. Raises as `decode` does; DecompressionBomb also
    when there are more than `max_frames` frames.
    """
    names = recognise(data)
    header = _header(names, data, max_pixels)
    if max_frames is not None and header.frames > max_frames:
        raise DecompressionBomb(f"{header.format}: {header.frames} frames, over the limit of {max_frames}")
    with typed(names[0], cut=header.cut):
        picture = open_picture(names, data, max_pixels)
    first = 1 if header.frames > 1 and getattr(picture, "default_image", False) else 0
    size = upright_size(header.width, header.height, header.turn)
    for index in range(header.frames):
        with typed(names[0], cut=header.cut):
            if index + first:
                _seek(picture, index + first)
            picture.load()
            composed = to_rgb(picture, alpha, gray_bits=_gray_bits(header))
            if composed.im is picture.im:
                composed = composed.copy()
            turned = upright(composed, header.turn)
            if turned.size != size:
                turned = turned.crop((0, 0, *size))
            seconds = _seconds(picture, header) if header.frames > 1 else 0.0
        yield turned, seconds


def encode(
    image: Image.Image,
    format: Format = "jpeg",
    *,
    quality: int = 90,
    lossless: bool = False,
    subsampling: Subsampling = "4:2:0",
) -> bytes:
    """The picture in a file format, without metadata; the same picture gives the same bytes on every run.

    quality is 0 to 100 (JPEG 1 to 95 is sensible; PNG has none). lossless is for WebP (PNG always is). subsampling is
    for colour JPEG and AVIF. AVIF is encoded by one thread. Raises EncodeError.
    """
    if lossless and format in ("jpeg", "avif"):
        raise EncodeError(f"{format}: lossless is offered for png and webp only")
    image.load()
    keep = ("RGB", "L") if format == "jpeg" else ("RGB", "RGBA") if format == "webp" else ("RGB", "RGBA", "L")
    plain = image._new(image.im) if image.mode in keep else image.convert("RGB")
    plain.info = {}
    options: dict[str, Any] = {"format": format.upper()}
    if format == "jpeg":
        options |= {"quality": quality, "subsampling": subsampling}
    elif format == "png":
        options |= {"compress_level": 6}
    elif format == "webp":
        options |= {"quality": quality, "lossless": lossless, "method": 4}
    elif format == "avif":
        chroma = {} if plain.mode == "L" else {"subsampling": subsampling}
        options |= {"quality": quality, "speed": 6, "max_threads": 1, "autotiling": False, **chroma}
    else:
        raise EncodeError(f"unknown picture format '{format}'; use jpeg, png, webp or avif")
    out = BytesIO()
    try:
        plain.save(out, **options)
    except (OSError, ValueError, RuntimeError, KeyError, TypeError) as error:
        raise EncodeError(f"{format}: {plain.width} x {plain.height} {plain.mode}: {error}") from error
    return out.getvalue()


def _walked(name: str, data: bytes, max_pixels: int | None) -> Header | None:
    """The header of a format that is walked by hand, its size admitted; None for the others."""
    walk = image_header.WALKS.get(name)
    if walk is None:
        return None
    with typed(name):
        header = walk(data)
    admit(header.format, header.width, header.height, max_pixels)
    return header


def _header(names: tuple[str, ...], data: bytes, max_pixels: int | None) -> Header:
    header = _walked(names[0], data, max_pixels)
    if header is not None:
        return header
    with typed(names[0]):
        picture = open_picture(names, data, max_pixels)
        return _described(picture, data)


def _described(picture: ImageFile.ImageFile, data: bytes) -> Header:
    """The header as the opened decoder tells it."""
    name = (picture.format or "").lower()
    header = Header(name, name, *picture.size, turn=_turn(picture), alpha=picture.has_transparency_data)
    if name == "tiff":
        tags: Any = picture.tag_v2  # type: ignore[attr-defined]
        bits = tags.get(258, 1)
        header.bits = int(bits[0] if isinstance(bits, tuple) else bits)
        header.codec = str(picture.info.get("compression", ""))
        by_xmp = orientation(None, _xmp(picture)) if 274 not in tags else 1
        header.told = tags.get(274, by_xmp)
        # Pillow turns a TIFF while loading, but counts only the tag, not XMP, into the size it announces.
        header.width, header.height = upright_size(*picture.size, by_xmp)
    elif name == "avif":
        header.codec, header.bits = "av1", _av1_bits(data)
        header.frames = int(getattr(picture, "n_frames", 1))
        if header.frames > 1:
            header.delays = _track_delays(data, header.frames)
    elif name == "heif":
        header.codec, header.bits = "hevc", int(picture.info.get("bit_depth", 8))
        header.told = 0
    elif picture.mode.startswith("I"):
        header.bits = 16
    elif picture.mode in ("1", "F"):
        header.bits = 1 if picture.mode == "1" else 32
    return header


def _av1_bits(data: bytes) -> int:
    """Bit depth from the first AV1 configuration box (AV1-ISOBMFF 2.3.3): high_bitdepth and twelve_bit."""
    start = data.find(b"av1C")
    flags = data[start + 6] if 0 <= start < len(data) - 6 else 0
    return (12 if flags & 0x20 else 10) if flags & 0x40 else 8


_MEDIA_HEADER = re.compile(rb"mdhd(?:\0.{11}(....)(....)|\x01.{19}(....)(.{8}))", re.S)


def _track_delays(data: bytes, frames: int) -> list[float]:
    """The track's duration (ISO 14496-12 `mdhd`), spread evenly over the frames; empty when it is not stated."""
    found = _MEDIA_HEADER.search(data)
    if not found:
        return []
    scale, length = (int.from_bytes(value, "big") for value in found.groups() if value is not None)
    return [length / scale / frames] * frames if scale and length else []


def _xmp(picture: ImageFile.ImageFile) -> bytes | None:
    xmp = picture.info.get("xmp")
    return xmp if isinstance(xmp, bytes) else None


def _turn(picture: ImageFile.ImageFile) -> int:
    """Orientation still to be applied: HEIF and TIFF decoders turn the picture themselves, the AVIF decoder puts the
    container's irot and imir into the EXIF block, over whatever stood there."""
    if picture.format in ("HEIF", "TIFF"):
        return 1
    exif = picture.info.get("exif")
    return orientation(exif if isinstance(exif, bytes) else None, _xmp(picture) if picture.format != "AVIF" else None)


def _gray_bits(header: Header | None) -> int:
    return header.bits if header is not None and header.format == "png" else 8


def _seek(picture: ImageFile.ImageFile, frame: int) -> None:
    try:
        picture.seek(frame)
    except EOFError:
        raise EmptyMedia(f"{(picture.format or '').lower()}: no frame {frame} in it") from None


def _seconds(picture: ImageFile.ImageFile, header: Header) -> float:
    seconds = float(picture.info.get("duration") or 0) / 1000
    return seconds if seconds >= (0.02 if header.format == "gif" else 1e-6) else 0.1


def _load(
    names: tuple[str, ...],
    picture: ImageFile.ImageFile,
    data: bytes,
    max_pixels: int | None,
    truncated: Truncated,
    enough: tuple[int, int] | None,
) -> tuple[ImageFile.ImageFile, Box | None]:
    """Decode the pixels, and the covered part when a JPEG was reduced. Repair needs no global switch: a JPEG is closed
    with an end marker, of other formats the rows that were decoded before the end are kept."""
    box = _reduce(picture, enough)
    try:
        picture.load()
        return picture, box
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        if truncated == "reject" or not isinstance(meaning(names[0], error), TruncatedMedia):
            raise
        if names[0] == "JPEG":
            closed = open_picture(names, data + _EOI, max_pixels)
            box = _reduce(closed, enough)
            closed.load()
            return closed, box
        core = picture._im
        turned_later = picture.format == "TIFF" and picture.size != getattr(core, "size", None)
        if core is None or core.getbbox() is None or turned_later:
            raise
    picture.tile = []
    picture.load()
    return picture, None


def _reduce(picture: ImageFile.ImageFile, enough: tuple[int, int] | None) -> Box | None:
    """Let the JPEG decoder scale down; the covered part when it does."""
    full = picture.size
    drafted = None if enough is None else picture.draft(None, enough)
    return drafted[1] if drafted is not None and picture.size != full else None
