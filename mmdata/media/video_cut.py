"""Cutting a stretch out of a video without touching its pictures: packets are copied from key frame to key frame."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import numpy as np

from mmdata.errors import EmptyMedia, UnsupportedMedia
from mmdata.media.video_open import Source, best_stream, opened, packets, video_stream
from mmdata.media.video_times import timeline_of
from mmdata.media.video_write import encoding


@dataclass(frozen=True, slots=True)
class Cut:
    """A stretch of a video, and what it really covers."""

    data: bytes
    format: str
    """File extension: `mp4` or `mkv`."""
    start: float
    """Seconds on the source's frame clock of the first frame: a key frame at or before the asked start."""
    end: float
    """Seconds on the source's frame clock at which the last frame ends: a key frame at or after the asked end."""


def cut(source: Source, start: float, end: float, *, audio: bool = True) -> Cut:
    """Copy the packets of whole groups of pictures that cover `start` to `end` (seconds from the first frame).

    Nothing is decoded or encoded, so this is fast and loses nothing, and it can begin and end only at key frames. MP4
    stays MP4, everything else becomes Matroska. Sound packets of the same stretch are copied.
    Raises EmptyMedia when nothing is shown in the stretch, MediaErrors of reading, EncodeError.
    """
    with opened(source) as container:
        timeline = timeline_of(container, video_stream(container), source)
        format = "mp4" if container.format.name.startswith("mov") else "matroska"
    scale, first = float(timeline.time_base), int(timeline.pts[0])
    if end <= start or start >= timeline.duration or end <= 0:
        raise EmptyMedia(f"no frame is shown between {start:g} s and {end:g} s")
    keys = timeline.keys if len(timeline.keys) else timeline.pts[:1]
    low = int(keys[max(0, int(np.searchsorted(keys, first + round(start / scale), side="right")) - 1)])
    later = keys[np.searchsorted(keys, first + round(end / scale), side="left") :]
    high = int(later[0]) if len(later) else timeline.end
    with encoding():
        data = _copy(source, format, low, high, audio)
    shown = timeline.pts[(timeline.pts >= low) & (timeline.pts < high)]
    begin = int(shown[0]) if len(shown) else low
    return Cut(data, "mp4" if format == "mp4" else "mkv", (begin - first) * scale, (high - first) * scale)


def _copy(source: Source, format: str, low: int, high: int, audio: bool) -> bytes:
    """Packets of the picture track with `low` <= pts < `high` in its time base, and of the sound track alongside."""
    import av

    with opened(source) as container:
        decode_times = iter(_decode_times(_stamps(container, video_stream(container), low, high)))
    buffer = io.BytesIO()
    with opened(source) as container:
        stream: Any = video_stream(container)
        sound: Any = best_stream(container, "audio") if audio else None
        output = av.open(buffer, mode="w", format=format, options={"fflags": "+bitexact"})
        try:
            tracks = {each.index: _track(output, each) for each in (stream, sound) if each is not None}
            begin, finish, started = low * stream.time_base, high * stream.time_base, False
            for packet in packets(container, [each for each in (stream, sound) if each is not None]):
                if packet.pts is None:
                    continue
                inside = begin <= packet.pts * packet.time_base < finish
                offset = round(begin / packet.time_base)
                if packet.stream_index == stream.index:
                    started = started or (packet.is_keyframe and packet.pts == low)
                    if not (inside and started):
                        continue
                    packet.dts = next(decode_times) - offset
                elif not inside or packet.dts is None:
                    continue
                else:
                    packet.dts -= offset
                packet.pts -= offset
                packet.stream = tracks[packet.stream_index]
                output.mux(packet)
        finally:
            output.close()
    return buffer.getvalue()


def _track(output: Any, template: Any) -> Any:
    """A track of `output` with the codec and header of `template`; no encoder is needed."""
    try:
        return output.add_stream_from_template(template, opaque=True)
    except ValueError as error:
        raise UnsupportedMedia(f"cannot be cut by copying: {error}") from error


def _stamps(container: Any, stream: Any, low: int, high: int) -> list[int]:
    """Presentation times of the packets to copy, in decode order."""
    stamps: list[int] = []
    for packet in packets(container, stream):
        if packet.pts is None:
            raise UnsupportedMedia("packets have no presentation times and cannot be cut by copying")
        if low <= packet.pts < high and (stamps or (packet.is_keyframe and packet.pts == low)):
            stamps.append(packet.pts)
    return stamps


def _decode_times(stamps: list[int]) -> list[int]:
    """Decode times for packets with these presentation times: the same times in order, moved early enough for each.

    Containers such as Matroska store none.
    """
    ordered = sorted(stamps)
    early = max((sooner - stamp for sooner, stamp in zip(ordered, stamps, strict=True)), default=0)
    return [stamp - early for stamp in ordered]
