"""When the frames of a video are shown, and which of them to take: frame times by presentation time stamp.

Times come from packets, which costs reading but no decoding; where packets do not tell (no time stamps, two packets a
picture, packed B-frames, a start in the middle of a group), they come from a full decode.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from mmdata.errors import EmptyMedia, UnreadableMedia, UnsupportedMedia
from mmdata.media.video_open import codec_name, is_encrypted, opened, packets, translate, video_stream

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.packet import Packet
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

    from mmdata.media.video_open import Source

PACKED_CODECS = frozenset({"mpeg4", "msmpeg4v1", "msmpeg4v2", "msmpeg4v3", "wmv1", "wmv2", "h263", "rv30", "rv40"})
"""Codecs whose packets in AVI may hold two pictures or none (packed B-frames, frames that are not coded). AVI has no
presentation times at all: those of reordered frames are a guess."""

EVEN_TOLERANCE_S = 0.0011
"""Deviation from the median frame gap that still counts as even: containers round times to a millisecond."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """The shown frames of a video track in presentation order. Times are in units of `time_base`."""

    pts: np.ndarray
    """int64 [T], ascending and distinct: the time stamp of each shown frame."""
    end: int
    """When the last frame ends."""
    time_base: Fraction
    keys: np.ndarray
    """int64 [K], ascending: time stamps of the pictures that decoding can start at, shown or not."""
    by_packet: bool
    """Whether each shown frame is one packet whose time stamp its picture carries. Otherwise frames are found by
    counting decoded pictures from the start."""

    @property
    def times(self) -> np.ndarray:
        """float64 [T]: seconds since the first shown frame."""
        seconds: np.ndarray = (self.pts - self.pts[0]) * float(self.time_base)
        return seconds

    @property
    def duration(self) -> float:
        """Seconds from the start of the first to the end of the last shown frame."""
        return float((self.end - int(self.pts[0])) * self.time_base)


@dataclass(slots=True)
class PacketLog:
    """What is noted of each packet while reading, in decode order."""

    pts: list[int | None]
    key: list[bool]
    discard: list[bool]
    duration: list[int]
    corrupt: bool = False

    @classmethod
    def empty(cls) -> PacketLog:
        return cls([], [], [], [])

    def add(self, packet: Packet[Any]) -> None:
        """Note a packet; a damaged one (cut by the end of the file) shows no frame."""
        self.corrupt |= packet.is_corrupt
        self.pts.append(packet.pts)
        self.key.append(packet.is_keyframe)
        self.discard.append(packet.is_discard or packet.is_corrupt)
        self.duration.append(packet.duration or 0)


def timeline_of(container: InputContainer, stream: VideoStream, source: Source) -> Timeline:
    """Read all packets of the track and order their frames. The container's position is at the end afterwards.

    Raises EmptyMedia (no frame), UnreadableMedia (frames have to be decoded to be counted, and do not decode).
    """
    log = PacketLog.empty()
    for packet in packets(container, stream):
        log.add(packet)
    return timeline_of_log(log, container, stream) or _timeline_by_decoding(source, stream, log)


def timeline_of_log(log: PacketLog, container: InputContainer, stream: VideoStream) -> Timeline | None:
    """The timeline that packets tell, or None when they do not. Raises EmptyMedia when there is no packet."""
    if not log.pts:
        raise EmptyMedia("the video track has no frame")
    assert stream.time_base is not None
    guessed = container.format.name == "avi" and (codec_name(stream) in PACKED_CODECS or stream.has_b_frames)
    if guessed or any(pts is None for pts in log.pts) or True not in log.key:
        return None
    pts = np.array(log.pts, dtype=np.int64)
    first = log.key.index(True)
    shown = ~np.array(log.discard)
    order = np.argsort(pts[shown], kind="stable")
    ordered = pts[shown][order]
    if not len(ordered):
        raise EmptyMedia("no frame of the video track is shown")
    if first > 0 or (np.diff(ordered) <= 0).any() or (pts[first + 1 :] < pts[first]).any():
        return None
    last = np.array(log.duration)[shown][order][-1]
    keys = np.unique(pts[np.array(log.key)])
    return Timeline(ordered, _end(ordered, int(last), stream), stream.time_base, keys, True)


def _end(pts: np.ndarray, last_duration: int, stream: VideoStream) -> int:
    """End of the last frame: what the track's header says where that is near, else its own duration, else the median
    gap. (Headers of cut or fragmented files say anything; an edit list shortens the last frame in the header only.)"""
    gaps = np.diff(pts)
    fallback = round(1 / (stream.guessed_rate * stream.time_base)) if stream.guessed_rate and stream.time_base else 1
    usual = max(1, int(np.median(gaps)) if len(gaps) else fallback)
    last = int(pts[-1])
    declared = last if stream.duration is None else int(pts[0]) + stream.duration
    if last < declared <= last + max(last_duration, usual + usual // 2):
        return declared
    return last + (last_duration or usual)


def _timeline_by_decoding(source: Source, stream: VideoStream, log: PacketLog) -> Timeline:
    frames = decode_from_start(source, any_start=True not in log.key)
    return timeline_of_pictures([(frame.pts, frame.dts) for frame in frames], stream)


def timeline_of_pictures(stamps: list[tuple[int | None, int | None]], stream: VideoStream) -> Timeline:
    """The timeline of pictures in the order in which they were decoded, from their presentation or decode times,
    whichever ascend; evenly spaced when neither does."""
    if not stamps:
        raise EmptyMedia("the video track has no picture")
    assert stream.time_base is not None
    rate = stream.average_rate or stream.guessed_rate or Fraction(25)
    pts = np.arange(len(stamps), dtype=np.int64) * max(1, round(1 / (rate * stream.time_base)))
    for times in zip(*stamps, strict=True):
        if None not in times and (np.diff(times) > 0).all():
            pts = np.array(times, dtype=np.int64)
            break
    return Timeline(pts, _end(pts, 0, stream), stream.time_base, np.empty(0, np.int64), False)


def decode_packets(
    stream: VideoStream, incoming: Generator[Packet[Any], None, None], *, any_start: bool = False
) -> Generator[VideoFrame, None, None]:
    """Decode packets strictly, from the first key frame on (from the first packet with `any_start`).

    Close it (and with it `incoming`) before the container: PyAV leaks a little otherwise.
    Raises UnsupportedMedia (encrypted), UnreadableMedia naming the time of the packet or frame that is damaged.
    """
    started = any_start
    with closing(incoming):
        for packet in incoming:
            started = started or packet.is_keyframe
            if started and not packet.is_corrupt:
                yield from decode_packet(stream, packet)
    if started:
        yield from decode_packet(stream, None)


def decode_packet(stream: VideoStream, packet: Packet[Any] | None) -> list[VideoFrame]:
    """The pictures that one packet completes; None flushes the decoder. Raises as `decode_packets`."""
    import av

    try:
        frames = stream.decode(packet)
    except (av.error.EOFError, StopIteration):
        return []
    except (av.error.FFmpegError, OverflowError, ZeroDivisionError) as error:
        if is_encrypted(stream, packet):
            raise UnsupportedMedia("the video track is encrypted") from error
        reason = translate(error)
        where = "the end" if packet is None else f"the packet at {_clock(packet.pts, stream)}"
        raise type(reason)(f"{where} does not decode: {reason}") from error
    for frame in frames:
        if frame.is_corrupt:
            raise UnreadableMedia(f"the frame at {_clock(frame.pts, stream)} is damaged")
    return frames


def decode_from_start(
    source: Source, *, any_start: bool = False, threads: int = 1
) -> Generator[VideoFrame, None, None]:
    """Every picture of the video in the order shown, streaming. `any_start`: no packet is marked as a key frame."""
    with opened(source) as container:
        stream = video_stream(container, threads=threads)
        with closing(decode_packets(stream, packets(container, stream), any_start=any_start)) as frames:
            yield from frames


def _clock(pts: int | None, stream: VideoStream) -> str:
    if pts is None or stream.time_base is None:
        return "an unknown time"
    return f"{float(pts * stream.time_base):.3f} s"


def spacing(times: np.ndarray, duration: float) -> tuple[float | None, bool]:
    """Frames a second (mean), and whether the times are uneven by more than a container's rounding to milliseconds."""
    gaps = np.diff(times)
    if not len(gaps):
        return (1 / duration if duration > 0 else None), False
    uneven = bool(np.abs(gaps - np.median(gaps)).max() > EVEN_TOLERANCE_S)
    return len(gaps) / float(times[-1] - times[0]), uneven


def sample_indices(
    times: np.ndarray,
    *,
    count: int | None = None,
    fps: float | None = None,
    form: Literal["4n+1"] | None = None,
    start: float = 0.0,
    end: float | None = None,
) -> np.ndarray:
    """Indices (int64, ascending) of the frames to take of those with `start` <= time < `end`.

    `times`: float64 [T], ascending, seconds. Give at most one of `count` and `fps`; with neither, every frame is taken.
    `count`: that many frames spread evenly with both ends included (`round(linspace)`); all frames when there are
    fewer. `fps`: the frame on screen at start + k/fps, for every such moment up to the last frame's time; a frame is
    taken once, so a rate above the video's takes every frame. `form="4n+1"`: the result is cut to 1, 5, 9, … frames
    (video autoencoders that compress time by four); for `count` it is the count that is lowered.
    Raises ValueError for wrong arguments; an empty window gives no index.
    """
    if count is not None and fps is not None:
        raise ValueError("give count or fps, not both")
    if (count is not None and count < 1) or (fps is not None and not fps > 0):
        raise ValueError("count must be at least 1 and fps more than 0")
    if form not in (None, "4n+1"):
        raise ValueError(f"form must be '4n+1', not {form!r}")
    tick = 1e-6
    low = int(np.searchsorted(times, start - tick, side="left"))
    high = len(times) if end is None else int(np.searchsorted(times, end - tick, side="left"))
    available = high - low
    if available <= 0:
        return np.empty(0, dtype=np.int64)
    if fps is not None:
        chosen = _at_rate(times[low:high], fps)
    elif count is not None:
        wanted = min(count, available)
        wanted = wanted - (wanted - 1) % 4 if form else wanted
        chosen = np.rint(np.linspace(0, available - 1, wanted)).astype(np.int64)
    else:
        chosen = np.arange(available, dtype=np.int64)
    if form:
        chosen = chosen[: len(chosen) - (len(chosen) - 1) % 4]
    return chosen + low


def _at_rate(times: np.ndarray, fps: float) -> np.ndarray:
    """A frame whose time was rounded up past its moment (to milliseconds) counts as on screen."""
    late = min(EVEN_TOLERANCE_S, 0.25 / fps)
    moments = times[0] + np.arange(int(np.floor((times[-1] - times[0] + late) * fps)) + 1) / fps
    return np.unique(np.searchsorted(times, moments + late, side="right") - 1).astype(np.int64)
