"""What the bytes of a recording say about themselves, without any decoder: which container, and is some of it missing.

Decoders read a cut file to its end and call it whole; containers that state their size give them away.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import BinaryIO, Literal

Container = Literal["wav", "w64", "aiff", "au", "caf", "flac", "ogg", "matroska", "mov", "mp3", "other"]

SOUNDFILE_WAV_CODECS = {0x0001: "PCM", 0x0002: "MS ADPCM", 0x0003: "float", 0x0006: "A-law", 0x0007: "mu-law",
                        0x0011: "IMA ADPCM", 0x0031: "GSM 6.10"}  # fmt: skip
"""WAV format tags that libsndfile decodes equal to FFmpeg."""

_WAVE_EXTENSIBLE = 0xFFFE
_SLOPPY_BYTES = 64
"""Writers that count headers as data are wrong by less than this; nothing is missing then."""

_UNKNOWN_SIZE = 0x7FFFF000
"""Data sizes from here up, in a smaller file, are what a recorder writes to a pipe: the size was not known."""

_SPEAKERS = ("FL", "FR", "FC", "LFE", "BL", "BR", "FLC", "FRC", "BC", "SL", "SR", "TC",
             "TFL", "TFC", "TFR", "TBL", "TBC", "TBR")  # fmt: skip
"""Bits of the channel mask of a WAV file, lowest first (Microsoft, KSAUDIO_CHANNEL_CONFIG)."""


@dataclass(frozen=True, slots=True)
class WavHeader:
    """The `fmt ` chunk of a WAV file."""

    codec: int
    """Format tag, that of the sub-format for WAVE_FORMAT_EXTENSIBLE."""
    positions: tuple[str, ...]
    """Loudspeakers that the channel mask names; empty without a mask that fits the channels."""
    data_size: int
    """Bytes the data chunk claims."""
    missing: int
    """Bytes it claims beyond the end of the file; 0 when the size is a recorder's placeholder or only sloppy."""


def sniff(file: BinaryIO) -> Container:
    """The container by its first bytes; an ID3v2 tag in front is skipped. `other` is for FFmpeg to find out."""
    head = read_at(file, 0, 64)
    if head[:3] == b"ID3" and len(head) >= 10:
        head = read_at(file, _after_id3(head), 64)
    if head[8:12] == b"WAVE" and head[:4] in (b"RIFF", b"RF64", b"BW64", b"RIFX"):
        return "wav"
    if head[:4] == b"FORM" and head[8:12] in (b"AIFF", b"AIFC"):
        return "aiff"
    if head[4:8] in (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip", b"pnot"):
        return "mov"
    for magic, container in _MAGIC.items():
        if head.startswith(magic):
            return container
    return "mp3" if _mpeg_frame(head) is not None else "other"


_MAGIC: dict[bytes, Container] = {
    b"riff\x2e\x91\xcf\x11": "w64",
    b".snd": "au",
    b"caff": "caf",
    b"fLaC": "flac",
    b"OggS": "ogg",
    b"\x1a\x45\xdf\xa3": "matroska",
}


def missing_bytes(file: BinaryIO, container: Container) -> str | None:
    """How the container shows that its end is missing, as a clause for a message; None when it shows nothing."""
    size = file_size(file)
    if container == "wav":
        header = wav_header(file)
        short = header.missing if header is not None else 0
        return f"the data chunk ends {short} bytes after the file" if short else None
    if container == "aiff":
        return _chunks_cut(file, size)
    if container == "ogg":
        return _ogg_cut(file, size)
    if container == "matroska":
        return _matroska_cut(file, size)
    return None


def file_size(file: BinaryIO) -> int:
    """Bytes in the file."""
    return file.seek(0, 2)


def read_at(file: BinaryIO, offset: int, length: int) -> bytes:
    """Up to `length` bytes from `offset`."""
    file.seek(offset)
    return file.read(length)


def _after_id3(head: bytes) -> int:
    """First byte after an ID3v2 tag: four 7-bit bytes of size after a 10-byte header, and a footer on demand."""
    size = 0
    for byte in head[6:10]:
        size = size << 7 | byte & 0x7F
    return 10 + size + (10 if head[5] & 0x10 else 0)


def wav_header(file: BinaryIO) -> WavHeader | None:
    """What `fmt ` and `data` of a RIFF, RF64 or BW64 file say; None when either is not found."""
    size = file_size(file)
    order = ">" if read_at(file, 0, 4) == b"RIFX" else "<"
    at, codec, long_size = 12, None, None
    positions: tuple[str, ...] = ()
    while at + 8 <= size:
        name, length = struct.unpack(order + "4sI", read_at(file, at, 8))
        if name == b"ds64":
            long_size = struct.unpack("<Q", read_at(file, at + 16, 8).ljust(8, b"\0"))[0]
        elif name == b"fmt ":
            codec, positions = _wav_format(read_at(file, at + 8, min(length, 40)), order)
        elif name == b"data" and codec is not None:
            placeholder = length >= _UNKNOWN_SIZE
            if placeholder and long_size is not None:
                length, placeholder = long_size, long_size >= 1 << 62
            missing = at + 8 + length - size
            return WavHeader(codec, positions, length, 0 if placeholder or missing <= _SLOPPY_BYTES else missing)
        at += 8 + length + (length & 1)
    return None


def _wav_format(chunk: bytes, order: str) -> tuple[int, tuple[str, ...]]:
    codec, channels = struct.unpack(order + "HH", chunk[:4].ljust(4, b"\0"))
    if codec != _WAVE_EXTENSIBLE or len(chunk) < 26:
        return codec, ()
    mask = struct.unpack(order + "I", chunk[20:24])[0]
    positions = tuple(name for bit, name in enumerate(_SPEAKERS) if mask >> bit & 1)
    return struct.unpack(order + "H", chunk[24:26])[0], positions if len(positions) == channels else ()


def _chunks_cut(file: BinaryIO, size: int) -> str | None:
    """AIFF: the sound chunk ends after the file."""
    at = 12
    while at + 8 <= size:
        name, length = struct.unpack(">4sI", read_at(file, at, 8))
        missing = at + 8 + length - size
        if missing > _SLOPPY_BYTES:
            stated = name == b"SSND" and length < _UNKNOWN_SIZE
            return f"the sound ends {missing} bytes after the file" if stated else None
        at += 8 + length + (length & 1)
    return None


def _ogg_cut(file: BinaryIO, size: int) -> str | None:
    """Ogg: the last page ends after the file (RFC 3533, section 6). A page is at most 65,307 bytes long."""
    start = max(0, size - 2 * 65307)
    tail = read_at(file, start, size - start)
    at = tail.rfind(b"OggS")
    while at >= 0:
        if tail[at + 4 : at + 5] in (b"\0", b""):
            segments = tail[at + 26] if len(tail) > at + 26 else 0
            table = tail[at + 27 : at + 27 + segments]
            missing = at + 27 + segments + sum(table) - len(tail)
            if missing > 0:
                return "the last page is cut"
            # Only a page that another one follows, or that ends the file, is surely a page and not payload.
            if missing == 0:
                return None
        at = tail.rfind(b"OggS", 0, at)
    return None


def _matroska_cut(file: BinaryIO, size: int) -> str | None:
    """Matroska, WebM: the segment states a size that the file does not have (RFC 8794, section 6)."""
    at = 0
    for _ in range(8):
        head = read_at(file, at, 12)
        if len(head) < 2 or not head[0]:
            return None
        id_length = 9 - head[0].bit_length()
        length_size = 9 - head[id_length].bit_length() if len(head) > id_length and head[id_length] else 0
        if not length_size or id_length > 4 or len(head) < id_length + length_size:
            return None
        field = head[id_length : id_length + length_size]
        length = int.from_bytes(field, "big") & ((1 << 7 * length_size) - 1)
        start = at + id_length + length_size
        if head[:id_length] == b"\x18\x53\x80\x67":
            missing = start + length - size
            unknown = length == (1 << 7 * length_size) - 1
            return None if unknown or missing <= 0 else f"the segment ends {missing} bytes after the file"
        at = start + length
    return None


@dataclass(frozen=True, slots=True)
class _MpegFrame:
    samples: int
    side_information: int
    """Bytes between the header and a Xing tag."""


def _mpeg_frame(head: bytes) -> _MpegFrame | None:
    """An MPEG audio layer III frame header (ISO/IEC 11172-3, 2.4.1.3) at the start of `head`."""
    if len(head) < 4 or head[0] != 0xFF or head[1] & 0xE0 != 0xE0:
        return None
    version, layer = head[1] >> 3 & 3, head[1] >> 1 & 3
    if version == 1 or layer != 1 or head[2] >> 4 in (0, 15) or head[2] >> 2 & 3 == 3:
        return None
    mono = head[3] >> 6 == 3
    if version == 3:
        return _MpegFrame(1152, 17 if mono else 32)
    return _MpegFrame(576, 9 if mono else 17)


def mp3_length(file: BinaryIO) -> int | None:
    """Samples per channel that the Xing/Info tag of an MP3 states, less LAME's encoder delay and padding.

    None without a tag that counts frames: then the length is only known by walking the frames.
    """
    head = read_at(file, 0, 10)
    at = _after_id3(head) if head[:3] == b"ID3" and len(head) == 10 else 0
    frame = read_at(file, at, 256)
    found = _mpeg_frame(frame)
    if found is None:
        return None
    tag = frame[4 + found.side_information :]
    if tag[:4] not in (b"Xing", b"Info") or len(tag) < 12 or not tag[7] & 1:
        return None
    length = int.from_bytes(tag[8:12], "big") * found.samples
    lame = 8 + 4 * (tag[7] & 1) + 4 * (tag[7] >> 1 & 1) + 100 * (tag[7] >> 2 & 1) + 4 * (tag[7] >> 3 & 1)
    if tag[lame : lame + 4] in (b"LAME", b"Lavf", b"Lavc") and len(tag) >= lame + 24:
        trims = int.from_bytes(tag[lame + 21 : lame + 24], "big")
        length -= (trims >> 12) + (trims & 0xFFF)
    return max(0, length)


def mov_cut(file: BinaryIO) -> bool:
    """MP4, MOV: a top-level box ends after the file, or the file ends before any `moov` (ISO/IEC 14496-12, 4.2)."""
    size, at, index = file_size(file), 0, False
    for _ in range(10_000):
        head = read_at(file, at, 16)
        if len(head) < 8:
            break
        length, name = struct.unpack(">I4s", head[:8])
        if length == 1 and len(head) == 16:
            length = struct.unpack(">Q", head[8:])[0]
        elif length == 0:
            length = size - at
        index = index or name in (b"moov", b"moof")
        if length < 8:
            return False
        if at + length > size:
            return True
        at += length
    return not index
