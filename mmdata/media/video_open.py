"""Opening a video: from bytes or a local path to a container and its video track, and from FFmpeg's errors to ours.

Everything else about video goes through this door, so no other file needs to know which demuxers are allowed, which
track counts, or what an FFmpeg error means. It reads no frame times and converts no picture.
"""

from __future__ import annotations

import io
import os
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Literal

from mmdata.errors import (
    DecompressionBomb,
    EmptyMedia,
    MediaError,
    MissingMedia,
    TruncatedMedia,
    UnreadableMedia,
    UnsupportedMedia,
)

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.packet import Packet
    from av.video.stream import VideoStream

Source = bytes | str
"""A video: its bytes, or the path of a local file."""

MAX_PIXELS = 178_956_970
"""Pixels of one frame above which a video is refused: Pillow's limit for pictures."""

CONTAINERS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,flv,live_flv,mpegts,mpeg,mpegvideo,m4v,h264,hevc,obu,av1,ivf,mjpeg,ogg,"
    "asf,asf_o,gif,rm,nut,mxf,yuv4mpegpipe,dv,wtv,vc1,h263,apng"
)
"""Demuxers that may open a source. Playlists (HLS, DASH, concat, image sequences) are left out: they open other files
and URLs, which a file from a stranger must not do."""


def open_container(source: Source) -> InputContainer:
    """Open a container whose demuxer may read nothing but `source` itself. The caller closes it.

    Raises EmptyMedia (no bytes), MissingMedia, TruncatedMedia (the header says that more bytes should follow),
    UnreadableMedia.
    """
    import av

    if source_size(source) == 0:
        raise EmptyMedia("the file has no bytes")
    file: Any = io.BytesIO(source) if isinstance(source, bytes) else f"file:{source}"
    options = {"format_whitelist": CONTAINERS, "protocol_whitelist": "file"}
    try:
        container: InputContainer = av.open(file, mode="r", options=options, metadata_errors="ignore")
    except (av.error.FFmpegError, ValueError) as error:
        if declared_end(source) > source_size(source):
            raise TruncatedMedia(f"the container ends before its header is complete ({describe(error)})") from error
        raise translate(error) from error
    return container


@contextmanager
def opened(source: Source) -> Iterator[InputContainer]:
    """`open_container` as a context; FFmpeg errors inside it become MediaErrors."""
    container = open_container(source)
    try:
        with translated():
            yield container
    finally:
        container.close()


@contextmanager
def translated() -> Iterator[None]:
    """Turns errors of FFmpeg and of PyAV's arithmetic on lying headers into MediaErrors."""
    import av

    try:
        yield
    except (av.error.FFmpegError, UnicodeError, OverflowError, ZeroDivisionError) as error:
        raise translate(error) from error


def translate(error: Exception) -> MediaError:
    """The MediaError that says what an FFmpeg error means for the sample."""
    import av

    text = describe(error)
    if isinstance(error, av.error.FileNotFoundError):
        return MissingMedia(text)
    if isinstance(error, av.error.PatchWelcomeError | av.error.DecoderNotFoundError | av.error.DemuxerNotFoundError):
        return UnsupportedMedia(text)
    return UnreadableMedia(text)


def describe(error: Exception) -> str:
    """FFmpeg's own words without the errno, the file name and the name of the C function."""
    log = getattr(error, "log", None)
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    if log and len(log) == 3:
        text = f"{text} [{log[1]}: {str(log[2]).strip()}]"
    return str(text)


def video_stream(container: InputContainer, *, max_pixels: int = MAX_PIXELS, threads: int = 1) -> VideoStream:
    """The track that a player would show (FFmpeg's rule: default track, most pixels), ready to decode on `threads`.

    Raises EmptyMedia (no video track, or only a cover picture), UnsupportedMedia (no decoder), DecompressionBomb.
    """
    from av.stream import Disposition

    stream: Any = best_stream(container, "video")
    if stream is None:
        raise EmptyMedia("the file has no video track")
    if stream.disposition & Disposition.attached_pic:
        raise EmptyMedia("the only picture of the file is the cover of a recording")
    codec = getattr(stream, "codec_context", None)
    if codec is None:
        raise UnsupportedMedia("no decoder is installed for the video track")
    check_pixels(codec.width, codec.height, max_pixels)
    codec.thread_count = threads
    codec.thread_type = "AUTO" if threads > 1 else "NONE"
    chosen: VideoStream = stream
    return chosen


def best_stream(container: InputContainer, kind: Literal["video", "audio"]) -> Any:
    """The track of a kind that FFmpeg would play, or None."""
    try:
        return container.streams.best(kind)
    except IndexError:  # a track that MPEG-TS announced after it was opened, which PyAV does not list
        return None


def packets(container: InputContainer, *streams: Any) -> Generator[Packet[Any], None, None]:
    """The packets of some tracks in file order, without the empty ones that PyAV adds to flush decoders.

    A file may announce tracks while it is read (MPEG-TS). PyAV does not list them, and fails over them at the end.
    """
    found: Any = container.demux(*streams)
    try:
        with closing(found):  # dropped without closing it would leak a few hundred bytes
            for packet in found:
                if packet.size:
                    yield packet
    except IndexError:
        return


def check_pixels(width: int, height: int, max_pixels: int) -> None:
    """Raises DecompressionBomb when a picture is larger than allowed."""
    if width * height > max_pixels:
        raise DecompressionBomb(f"frames of {width}x{height} pixels, over the limit of {max_pixels} pixels")


def is_encrypted(stream: VideoStream, packet: Any = None) -> bool:
    """Whether the track is encrypted (common encryption), as its sample entry or a packet says."""
    tag = str(getattr(stream.codec_context, "codec_tag", ""))
    return tag.startswith("enc") or (packet is not None and packet.has_sidedata("encryption_info"))


def codec_name(stream: VideoStream) -> str:
    """Name of the compression format, not of the decoder: `av1` for libdav1d."""
    name: str = stream.codec_context.codec.canonical_name
    return name


def source_size(source: Source) -> int:
    """Number of bytes. Raises MissingMedia when there is no such file."""
    if isinstance(source, bytes):
        return len(source)
    try:
        return os.path.getsize(source)
    except OSError as error:
        raise MissingMedia(f"{source}: {error.strerror or error}") from error


def read_at(source: Source, offset: int, length: int) -> bytes:
    """Up to `length` bytes from `offset`. Raises MissingMedia when there is no such file."""
    if isinstance(source, bytes):
        return source[offset : offset + length]
    try:
        with open(source, "rb") as file:
            file.seek(offset)
            return file.read(length)
    except OSError as error:
        raise MissingMedia(f"{source}: {error.strerror or error}") from error


def check_complete(container: InputContainer, source: Source) -> None:
    """Raises TruncatedMedia when the container itself says that bytes are missing at the end.

    ISO media: a sample or the movie box ends beyond the file; Matroska: the segment's size (RFC 9559, 5.1); AVI: the
    RIFF size; GIF: the trailer. A size that is declared unknown proves nothing. Other containers declare no size.
    """
    samples = 0
    if container.format.name.startswith("mov"):
        samples = max(
            (each.pos + each.size for stream in container.streams for each in stream.index_entries), default=0
        )
    end, size = max(samples, declared_end(source, (b"moov", b"moof"))), source_size(source)
    if end > size:
        raise TruncatedMedia(f"the file has {size} bytes, its header says at least {end}")


def declared_end(source: Source, boxes: tuple[bytes, ...] = (b"moov", b"moof", b"mdat")) -> int:
    """Bytes that the file should have by its own outermost header, 0 when that does not tell. `boxes`: which top-level
    boxes of ISO media count (the sample box may lie about its end while no sample is missing)."""
    head = read_at(source, 0, 4096)
    if head[:4] == b"RIFF":
        size = int.from_bytes(head[4:8], "little")
        return 0 if size in (0, 0xFFFFFFFF) else size + 8
    if head[:4] == b"\x1a\x45\xdf\xa3":
        return _end_of_segment(head)
    if head[:4] == b"GIF8":
        size = source_size(source)
        return size if b"\x00\x3b" in read_at(source, max(0, size - 4096), 4096) else size + 1
    return max((end for kind, end in _boxes(source) if kind in boxes), default=0)


def _end_of_segment(head: bytes) -> int:
    position = 0
    while position + 12 <= len(head):
        id_length = _vint_length(head[position])
        element = head[position : position + id_length]
        position += id_length
        if position >= len(head):
            break
        length = _vint_length(head[position])
        value = int.from_bytes(head[position : position + length], "big") & ((1 << 7 * length) - 1)
        position += length
        if element == b"\x18\x53\x80\x67":
            return 0 if value == (1 << 7 * length) - 1 else position + value
        position += value
    return 0


def _vint_length(first: int) -> int:
    """Bytes of an EBML variable-size integer (RFC 8794, 4): one more than the leading zero bits of the first byte."""
    return 9 - first.bit_length() if first else 8


def _boxes(source: Source) -> Iterator[tuple[bytes, int]]:
    """Type and end of each top-level box of an ISO media file (ISO/IEC 14496-12, 4.2)."""
    position, total = 0, source_size(source)
    while position + 8 <= total:
        head = read_at(source, position, 16)
        size, kind = int.from_bytes(head[:4], "big"), head[4:8]
        if not kind.isalnum() and not kind.replace(b" ", b"").isalnum():
            return
        if size == 1 and len(head) == 16:
            size = int.from_bytes(head[8:], "big")
        elif size == 0:
            size = total - position
        if size < 8:
            return
        position += size
        yield kind, position
