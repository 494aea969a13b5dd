"""Sound through PyAV (FFmpeg): every container, the audio track of a video, gapless trims, seeking.

Knows one open file at a time; which file comes here, and what is done with its failure, is decided in `audio.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from typing import Any, BinaryIO

import av
import numpy as np

from mmdata.errors import EmptyMedia, MediaError, MemoryLimit, TruncatedMedia, UnreadableMedia, UnsupportedMedia
from mmdata.media.audio_containers import mov_cut
from mmdata.media.audio_signal import Audio, Samples
from mmdata.schema import MediaInfo

DEMUXERS = (
    "aac,ac3,aiff,amr,amrnb,amrwb,ape,asf,au,avi,caf,dts,dtshd,eac3,flac,flv,loas,m4v,matroska,mov,mp3,mpeg,mpegts,ogg,"
    "rm,spx,tak,tta,truehd,voc,w64,wav,wv"
)
"""Containers that may be opened. Playlists (HLS, concat, SDP) are not among them: they name other files and hosts."""

_SEEKABLE = frozenset({"mov", "flac", "wav", "aiff", "au", "caf", "w64"})
"""Containers whose time stamps after a seek are exact to the sample, as measured; others are decoded from the start."""

_SELF_FRAMED = frozenset({"mp3", "aac", "amr", "amrnb", "amrwb", "ac3", "eac3", "dts", "loas", "mpegts", "mpeg"})
"""Streams of frames without an index: junk after the last frame (tags, a cut frame) is no damage."""

_COUNTED = frozenset({"mp3", "aac", "amr", "amrnb", "amrwb", "loas", "ac3", "eac3", "dts"})
"""Containers without a duration: FFmpeg guesses it from the bit rate, so packets are counted instead."""

_PREROLL_S = 0.5
"""Decoding starts this much before a clip: codecs overlap frames (Opus asks for 80 ms, MP3 reaches back 10 frames)."""

_NEAR_S = 5.0
"""A clip that starts before this is decoded from the start: not worth a seek."""

_LIES_AFTER_S = 0.1
"""A track may end this much before its header says; more means that its end is missing."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A stretch of decoded sound and the index of its first sample in the track."""

    position: int
    audio: Audio


@dataclass(frozen=True, slots=True)
class Header:
    """What a container declares about one audio track."""

    info: MediaInfo
    length: int | None = None
    """Samples per channel, where the header states them exactly; `info.duration` may be known without it."""


def read_header(file: BinaryIO, track: int = 0) -> Header:
    """Probe one audio track. Packets are walked, not decoded, where the container states no duration."""
    with _opened(file) as container:
        stream = _track(container, track)
        context = stream.codec_context
        name = _format_name(container)
        stated = context.name == "flac" and name in ("flac", "ogg") and context.sample_rate
        length = _flac_length(context) if stated else None
        duration = _duration(container, stream, name) if length is None else length / context.sample_rate
        info = MediaInfo(
            format=name,
            codec=_codec_name(context),
            duration=duration,
            sample_rate=context.sample_rate or None,
            channels=context.layout.nb_channels or None,
            bits=_bits(context),
        )
        return Header(info, length)


def chunks(file: BinaryIO, track: int = 0, start: float = 0.0) -> Iterator[Chunk]:
    """Decode one audio track from the frame that holds `start` seconds, or earlier where the container cannot seek.

    Raises UnreadableMedia for a frame that does not decode, TruncatedMedia when the end is missing, UnsupportedMedia
    for encryption, a missing decoder, or a rate or channel count that changes midway, EmptyMedia without such a track.
    """
    with _opened(file) as container:
        stream = _track(container, track)
        context = stream.codec_context
        context.thread_count = 1
        if context.name == "flac":
            context.options = {"err_detect": "crccheck+explode"}
        name = _format_name(container)
        yield from _decoded(container, stream, name, start, file)


def _decoded(container: Any, stream: Any, name: str, start: float, file: BinaryIO) -> Iterator[Chunk]:
    base = _seek(container, stream, name, start)
    position = None if base is not None else 0
    first: Audio | None = None
    for frame in _trimmed(_frames(container, stream, name, skip_errors=base is not None), stream, name):
        audio = _audio(frame)
        if position is None:
            if frame.pts is None or frame.time is None:
                continue
            position = round((Fraction(frame.pts) * frame.time_base - (base or 0)) * audio.sample_rate)
        if first is not None and (audio.sample_rate, audio.channels) != (first.sample_rate, first.channels):
            raise UnsupportedMedia(
                f"the sound changes midway from {first.channels} channels at {first.sample_rate} Hz to "
                f"{audio.channels} at {audio.sample_rate}"
            )
        first = first or audio
        if frame.length:
            yield Chunk(position, Audio(audio.samples[:, : frame.length], audio.sample_rate, audio.positions))
            position += frame.length
    _check_end(container, stream, name, first, position, base)
    if first is None and name == "mov" and mov_cut(file):
        raise TruncatedMedia("the file ends inside its media data")


def _check_end(container: Any, stream: Any, name: str, first: Audio | None, position: int | None, base: Any) -> None:
    """Whether an MP4's track reaches the end that its header states. Its time stamps start at the edit list's gap."""
    if name != "mov" or first is None or position is None or base is not None or not stream.duration:
        return
    gap = float((stream.start_time or 0) * stream.time_base)
    end = gap + position / first.sample_rate
    declared = float(stream.duration * stream.time_base)
    if end < declared - max(_LIES_AFTER_S, 2 * 2048 / first.sample_rate):
        raise TruncatedMedia(f"the track ends at {end:.3f} s; its header says {declared:.3f} s")


class _Frame:
    """A decoded frame, of which the first `length` samples count, and its packet's duration in the stream's ticks."""

    __slots__ = ("duration", "frame", "length", "pts", "time", "time_base")

    def __init__(self, frame: Any, duration: int | None) -> None:
        self.frame = frame
        self.length: int = frame.samples
        self.duration = duration
        self.pts, self.time, self.time_base = frame.pts, frame.time, frame.time_base


def _frames(container: Any, stream: Any, name: str, skip_errors: bool) -> Iterator[_Frame]:
    """Frames in order. An error counts as damage when a frame follows it, else as a missing end."""
    failed: MediaError | None = None
    any_frame = False
    for packet in container.demux(stream):
        try:
            frames = packet.decode()
        except av.error.EOFError:
            break
        except av.FFmpegError as error:
            if packet.has_sidedata("encryption_info"):
                raise UnsupportedMedia("the track is encrypted") from error
            if not (skip_errors and not any_frame):
                failed = failed or _media_error(error)
            continue
        for frame in frames:
            if failed is not None:
                raise failed
            any_frame = True
            yield _Frame(frame, packet.duration)
    if failed is not None and not any_frame:
        raise failed
    if failed is not None and name not in _SELF_FRAMED:
        raise TruncatedMedia(f"the end is missing: {failed}")


def _trimmed(frames: Iterator[_Frame], stream: Any, name: str) -> Iterator[_Frame]:
    """MP4: cut the encoder's padding from the last frame.

    Its packet's duration states the samples that count, to the sample; where that is a whole frame, the end of the edit
    list does, to the movie's time unit (often 1 ms).
    """
    if name != "mov":
        yield from frames
        return
    held: _Frame | None = None
    for frame in frames:
        if held is not None:
            yield held
        held = frame
    if held is None:
        return
    rate, tick = held.frame.sample_rate, stream.time_base
    if held.duration and round(held.duration * tick * rate) < held.length:
        held.length = round(held.duration * tick * rate)
    elif stream.duration and stream.start_time is not None and held.pts is not None:
        left = (stream.start_time + stream.duration) * tick - held.pts * held.time_base
        held.length = min(held.length, max(0, round(left * rate)))
    yield held


def _seek(container: Any, stream: Any, name: str, start: float) -> Fraction | None:
    """Go to shortly before `start` seconds; returns the time stamp of the track's first sample, None if it stays."""
    rate = stream.codec_context.sample_rate
    if start <= _NEAR_S or name not in _SEEKABLE or not rate or stream.time_base > Fraction(1, rate):
        return None
    base = _first_time(container, stream)
    if base is None:
        container.seek(0)
        return None
    wanted = base + Fraction(start - _PREROLL_S)
    container.seek(int(wanted / stream.time_base), stream=stream)
    return base


def _first_time(container: Any, stream: Any) -> Fraction | None:
    """Time stamp that the first sample has by those of the frames a little later: some tracks open with a gap."""
    count, base = 0, None
    frames = (frame for packet in container.demux(stream) for frame in packet.decode())
    for frame in islice(frames, 4):
        if frame.pts is None:
            return None
        base = frame.pts * frame.time_base - Fraction(count, frame.sample_rate)
        count += frame.samples
    return base


def _audio(frame: _Frame) -> Audio:
    """float32 [channels, samples] of a frame, whatever its sample format."""
    source = frame.frame
    raw = source.to_ndarray()
    if not source.format.is_planar:
        raw = raw.reshape(-1, source.layout.nb_channels).T
    names = tuple(channel.name for channel in source.layout.channels)
    if raw.shape[0] <= 2:
        names = ("FC",) if raw.shape[0] == 1 else ("FL", "FR")
    elif any(name in ("NONE", "UNK", "") for name in names):
        names = ()
    return Audio(_scaled(raw), source.sample_rate, names)


def _scaled(raw: np.ndarray[Any, Any]) -> Samples:
    if raw.dtype.kind == "f":
        return np.ascontiguousarray(raw, dtype=np.float32)
    if raw.dtype == np.uint8:
        return ((raw.astype(np.float32) - 128) / 128).astype(np.float32)
    full = 2.0 ** (8 * raw.dtype.itemsize - 1)
    # Through double: 32-bit integers do not fit a float32's 24 bits, and must be rounded once.
    scaled: Samples = (raw.astype(np.float64) / full).astype(np.float32)
    return scaled


@contextmanager
def _opened(file: BinaryIO) -> Iterator[Any]:
    file.seek(0)
    try:
        with av.open(file, metadata_errors="ignore", options={"format_whitelist": DEMUXERS}) as container:
            yield container
    except av.FFmpegError as error:
        raise _media_error(error) from error


def _track(container: Any, track: int) -> Any:
    streams = container.streams.audio
    if track >= len(streams):
        have = "no audio track" if not streams else f"only {len(streams)} audio track(s)"
        raise EmptyMedia(f"{have}; track {track} was asked for" if track else have)
    stream = streams[track]
    if stream.codec_context is None:
        raise UnsupportedMedia("no decoder for the audio track is installed")
    return stream


def _media_error(error: av.FFmpegError) -> MediaError:
    text = f"FFmpeg: {error.strerror}"
    if isinstance(error, MemoryError):
        return MemoryLimit(text)
    unsupported = (av.error.DecoderNotFoundError, av.error.PatchWelcomeError, av.error.DemuxerNotFoundError)
    return UnsupportedMedia(text) if isinstance(error, unsupported) else UnreadableMedia(text)


def _format_name(container: Any) -> str:
    name: str = container.format.name.split(",")[0]
    return name


def _codec_name(context: Any) -> str:
    name: str = context.codec.canonical_name
    return name


def _bits(context: Any) -> int | None:
    """Bits per sample where the codec keeps them: PCM and FLAC."""
    if context.name == "flac" and context.extradata and len(context.extradata) >= 34:
        data = context.extradata[-34:] if context.extradata[:4] == b"fLaC" else context.extradata[:34]
        bits: int = ((data[12] & 1) << 4 | data[13] >> 4) + 1
        return bits
    if context.name.startswith("pcm_"):
        digits = "".join(filter(str.isdigit, context.name))
        return int(digits) if digits else None
    return None


def _flac_length(context: Any) -> int | None:
    """Total samples of a FLAC STREAMINFO block (RFC 9639, 8.2); 0 means unknown."""
    data: bytes | None = context.extradata
    if not data or len(data) < 34:
        return None
    total: int = (data[13] & 15) << 32 | int.from_bytes(data[14:18], "big")
    return total or None


def _duration(container: Any, stream: Any, name: str) -> float | None:
    if name in _COUNTED or (stream.duration is None and container.duration is None):
        ticks = sum(packet.duration or 0 for packet in container.demux(stream))
        return float(ticks * stream.time_base) if ticks else None
    if stream.duration is None:
        return float(container.duration / av.time_base)
    seconds = float(stream.duration * stream.time_base)
    if name == "ogg" and stream.codec_context.name in ("opus", "libopus"):
        # RFC 7845, 4.2: granule positions count the pre-skip, which is not played.
        seconds -= int.from_bytes((stream.codec_context.extradata or b"").ljust(12, b"\0")[10:12], "little") / 48000
    return max(0.0, seconds)


def track_start(file: BinaryIO, track: int) -> float:
    """Seconds from the start of the presentation (the earliest stream's first stamp) to the track's first sample."""
    with _opened(file) as container:
        stream = _track(container, track)
        first = next((frame for packet in container.demux(stream) for frame in packet.decode()), None)
        if first is None:
            raise EmptyMedia("the track has no samples")
        began = (container.start_time or 0) / av.time_base
        return 0.0 if first.time is None else float(first.time) - began
