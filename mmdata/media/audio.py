"""Sound files and the audio tracks of videos: probe, decode (whole, a clip, or streamed), and the way back to bytes.

The room's front door. It decides which decoder reads what (by measured agreement on real files) and which error a bad
file raises; it knows no recipe and no sample. Every function raises only `MediaError` classes for bad media.

Uncompressed containers go to libsndfile, which is exact and fast there; everything else to FFmpeg, which alone applies
Opus pre-skip at 48 kHz, MP4 edit lists and MP3 encoder delay, and reads past a FLAC header that states too few samples.
Where one refuses, the other is asked once if it knows the format.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import BinaryIO, Literal

import numpy as np

from mmdata.errors import DecompressionBomb, EmptyMedia, MediaError, MissingMedia, TruncatedMedia, UnreadableMedia
from mmdata.media import audio_containers as containers
from mmdata.media.audio_encode import encode, encoded_rate
from mmdata.media.audio_pyav import Chunk, Header
from mmdata.media.audio_signal import (
    Audio,
    Samples,
    frame_levels,
    loudness,
    mix,
    normalise,
    peak,
    resample,
    silence_ratio,
    trim,
    trim_silence,
)
from mmdata.schema import MediaInfo

__all__ = [
    "Audio",
    "decode",
    "decode_all",
    "encode",
    "encoded_rate",
    "frame_levels",
    "iter_blocks",
    "loudness",
    "mix",
    "normalise",
    "peak",
    "probe",
    "resample",
    "silence_ratio",
    "track_start",
    "trim",
    "trim_silence",
]

Source = bytes | str
"""A recording or video in memory, or the path of a local file."""

Truncated = Literal["reject", "repair"]
"""What to do with media whose end is missing: refuse it, or take what is there."""

_MP3_TOLERANCE = 2 * 1152
"""An MP3 may lack this many samples of what its Xing tag counts: some encoders count the tag's own frame."""


def probe(source: Source, *, track: int = 0, exact: bool = False, truncated: Truncated = "reject") -> MediaInfo:
    """Rate, channels and length of one audio track (of a video: of its `track`-th audio track).

    `duration` comes from the header where that is honest, else from counting packets; it may be off by one codec frame
    of padding. `exact=True` decodes everything and measures. Raises UnreadableMedia, TruncatedMedia (the container
    states more bytes than there are, unless `truncated="repair"`), EmptyMedia (no bytes, no such track),
    UnsupportedMedia, MissingMedia.
    """
    if exact:
        return decode_all(source, track=track, truncated=truncated)
    with _opened(source) as file:
        return _open_header(file, track, truncated).header.info


def decode(
    source: Source,
    *,
    track: int = 0,
    start: float = 0.0,
    end: float | None = None,
    max_seconds: float | None = None,
    truncated: Truncated = "reject",
) -> Audio:
    """The samples from `start` to `end` seconds of one audio track, counted from the track's first sample.

    Samples are joined as they are decoded: holes in a container's time stamps are not filled.
    Containers that seek exactly are not decoded before `start`. Raises DecompressionBomb when more than `max_seconds`
    would come out, EmptyMedia when nothing does, else as `iter_blocks`.
    """
    parts = list(
        iter_blocks(source, 30.0, track=track, start=start, end=end, max_seconds=max_seconds, truncated=truncated)
    )
    if len(parts) == 1:
        return parts[0]
    return replace(parts[0], samples=np.concatenate([part.samples for part in parts], axis=1))


def decode_all(
    source: Source, *, track: int = 0, max_seconds: float | None = None, truncated: Truncated = "reject"
) -> MediaInfo:
    """Decode one audio track to its end in constant memory and return what was measured; errors as `iter_blocks`."""
    with _opened(source) as file:
        opened = _open_header(file, track, truncated)
        length, last = 0, None
        for audio in _stretch(opened, 0.0, None, max_seconds):
            length, last = length + audio.length, audio
        assert last is not None, "a track without samples raises EmptyMedia"
        return replace(
            opened.header.info,
            duration=length / last.sample_rate,
            sample_rate=last.sample_rate,
            channels=last.channels,
        )


def iter_blocks(
    source: Source,
    seconds: float,
    *,
    track: int = 0,
    start: float = 0.0,
    end: float | None = None,
    max_seconds: float | None = None,
    truncated: Truncated = "reject",
) -> Iterator[Audio]:
    """The same samples as `decode`, in blocks of `seconds` (the last may be shorter), in constant memory.

    Raises UnreadableMedia when a frame does not decode or a sample is not a finite number, TruncatedMedia when the end
    is missing (`truncated="repair"` takes what is there), UnsupportedMedia for encryption, unknown codecs, or a rate or
    channel count that changes midway, EmptyMedia without samples, DecompressionBomb past `max_seconds`.
    """
    if seconds <= 0 or start < 0 or (end is not None and end <= start):
        raise ValueError(f"blocks of {seconds} s from {start} to {end} s: need seconds > 0 and 0 <= start < end")
    with _opened(source) as file:
        parts: list[Audio] = []
        have = 0
        for audio in _stretch(_open_header(file, track, truncated), start, end, max_seconds):
            size = max(1, round(seconds * audio.sample_rate))
            parts.append(audio)
            have += audio.length
            while have >= size:
                block, parts = _split(parts, size)
                have -= size
                yield block
        if have:
            yield _split(parts, have)[0]


def _split(parts: list[Audio], size: int) -> tuple[Audio, list[Audio]]:
    """The first `size` samples of the concatenated parts, and the rest (always one part, or none)."""
    samples: Samples = np.concatenate([part.samples for part in parts], axis=1) if len(parts) > 1 else parts[0].samples
    head, tail = samples[:, :size], samples[:, size:]
    rest = [replace(parts[0], samples=tail)] if tail.shape[1] else []
    return replace(parts[0], samples=np.ascontiguousarray(head)), rest


def track_start(source: Source, *, track: int = 0) -> float:
    """Seconds by which the track's first sample follows the start of the file's presentation (its earliest stream).

    0 for a plain recording; for a video, what must be added to the track's own time to line up with the picture.
    """
    from mmdata.media import audio_pyav

    with _opened(source) as file:
        return audio_pyav.track_start(file, track)


@dataclass(frozen=True)
class _Opened:
    """A file, what its header declares, and the decoders to try in order."""

    file: BinaryIO
    header: Header
    decoders: tuple[Callable[[float], Iterator[Chunk]], ...]
    truncated: Truncated
    container: containers.Container


@contextmanager
def _opened(source: Source) -> Iterator[BinaryIO]:
    if isinstance(source, bytes):
        if not source:
            raise EmptyMedia("the file has no bytes")
        yield io.BytesIO(source)
        return
    try:
        file = open(source, "rb")  # noqa: SIM115 (closed below; only opening may count as missing)
    except OSError as error:
        raise MissingMedia(f"{source}: {error.strerror}") from error
    with file:
        if containers.file_size(file) == 0:
            raise EmptyMedia("the file has no bytes")
        yield file


def _open_header(file: BinaryIO, track: int, truncated: Truncated) -> _Opened:
    """Read the header by the first decoder that can, and check that the container holds all the bytes it states."""
    from mmdata.media import audio_pyav, audio_soundfile

    container = containers.sniff(file)
    headers = {
        "pyav": lambda: audio_pyav.read_header(file, track),
        "soundfile": lambda: audio_soundfile.read_header(file),
    }
    decoders = {
        "pyav": lambda start: audio_pyav.chunks(file, track, start),
        "soundfile": lambda start: audio_soundfile.chunks(file, start),
    }
    missing = containers.missing_bytes(file, container) if truncated == "reject" else None
    if missing is not None:
        raise TruncatedMedia(f"the file is cut: {missing}")
    names = _route(file, container, track)
    failure: MediaError | None = None
    for name in names:
        try:
            header = headers[name]()
        except UnreadableMedia as error:
            failure = failure or error
            continue
        if container == "mp3":
            header = _mp3_header(file, header)
        order = (name, *(other for other in names if other != name))
        return _Opened(file, header, tuple(decoders[each] for each in order), truncated, container)
    assert failure is not None, "every route names a decoder"
    if container == "mov" and containers.mov_cut(file):
        raise TruncatedMedia(f"the file is cut: {failure}")
    raise failure


def _route(file: BinaryIO, container: containers.Container, track: int) -> tuple[str, ...]:
    """Decoders in the order they are tried."""
    if track > 0:
        return ("pyav",)
    if container == "wav":
        header = containers.wav_header(file)
        known = header is not None and header.codec in containers.SOUNDFILE_WAV_CODECS and header.data_size > 0
        return ("soundfile", "pyav") if known else ("pyav",)
    if container in ("aiff", "au", "w64", "caf"):
        return ("soundfile", "pyav")
    return ("pyav", "soundfile") if container == "flac" else ("pyav",)


def _mp3_header(file: BinaryIO, header: Header) -> Header:
    length = containers.mp3_length(file)
    if length is None or not header.info.sample_rate:
        return header
    return Header(replace(header.info, duration=length / header.info.sample_rate), length)


def _stretch(opened: _Opened, start: float, end: float | None, max_seconds: float | None) -> Iterator[Audio]:
    """Decoded pieces of [start, end) seconds, checked: limits, finite values, at least one sample."""
    declared = opened.header.info.duration
    if max_seconds is not None and declared is not None:
        wanted = (declared if end is None else min(end, declared)) - start
        if wanted > max_seconds:
            raise DecompressionBomb(f"lasts {wanted:.1f} s, over the limit of {max_seconds:g} s")
    given = 0
    for position, audio in _positioned(opened, start, end):
        first = round(start * audio.sample_rate)
        last = None if end is None else round(end * audio.sample_rate)
        piece = audio.samples[:, max(0, first - position) : None if last is None else max(0, last - position)]
        if piece.shape[1]:
            given += piece.shape[1]
            if max_seconds is not None and given > max_seconds * audio.sample_rate:
                raise DecompressionBomb(f"lasts more than the limit of {max_seconds:g} s")
            if not np.isfinite(piece).all():
                raise UnreadableMedia("a sample is not a finite number")
            yield replace(audio, samples=piece)
        if last is not None and position + audio.length >= last:
            break
    if not given:
        where = f" after {start:g} s" if start else ""
        raise EmptyMedia(f"the track has no samples{where}")


def _positioned(opened: _Opened, start: float, end: float | None) -> Iterator[tuple[int, Audio]]:
    """Chunks from the first decoder; where it fails, the next takes over at the same sample."""
    reached, failure = 0, None
    for number, decoder in enumerate(opened.decoders):
        try:
            for chunk in _without_padding(opened, decoder(start if number == 0 else 0.0)):
                skip = max(0, reached - chunk.position)
                if skip >= chunk.audio.length:
                    continue
                audio = replace(chunk.audio, samples=chunk.audio.samples[:, skip:]) if skip else chunk.audio
                yield chunk.position + skip, audio
                reached = chunk.position + skip + audio.length
            if start == 0 or reached:
                _check_length(opened, reached)
            return
        except TruncatedMedia:
            if opened.truncated == "repair" and reached:
                return
            raise
        except UnreadableMedia as error:
            failure = failure or error
            if number + 1 == len(opened.decoders):
                raise failure from None


def _without_padding(opened: _Opened, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    """Cut from the last frame of an MP3 what lies after the end that LAME's tag states: the encoder's padding."""
    length = opened.header.length
    if opened.container != "mp3" or length is None:
        yield from chunks
        return
    held: Chunk | None = None
    for chunk in chunks:
        if held is not None:
            yield held
        held = chunk
    if held is None:
        return
    kept = length - held.position
    if held.audio.length - 1152 < kept < held.audio.length:
        held = replace(held, audio=replace(held.audio, samples=held.audio.samples[:, : max(0, kept)]))
    if held.audio.length:
        yield held


def _check_length(opened: _Opened, reached: int) -> None:
    """Refuse a track that ended before the length its header states; a longer one is taken as it is."""
    length = opened.header.length
    if length is None:
        return
    if reached == 0 and length > 0:
        raise UnreadableMedia(f"nothing decodes of the {length} samples that the header states")
    tolerance = _MP3_TOLERANCE if opened.container == "mp3" else 0
    if reached < length - tolerance:
        raise TruncatedMedia(f"ends after {reached} of the {length} samples that the header states")
