"""What a video is: probe from its header, and proof by decoding every frame.

Reads one picture for the geometry; counts frames in the header where the container is honest (ISO media with a whole
sample table), in the packets otherwise, in the pictures when asked to decode all.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from mmdata.errors import DecompressionBomb, EmptyMedia, UnreadableMedia
from mmdata.media.video_animation import animation_format, animation_info, animation_times
from mmdata.media.video_geometry import geometry_of
from mmdata.media.video_open import (
    MAX_PIXELS,
    best_stream,
    check_complete,
    check_pixels,
    codec_name,
    opened,
    packets,
    video_stream,
)
from mmdata.media.video_times import (
    PacketLog,
    Timeline,
    decode_from_start,
    decode_packets,
    spacing,
    timeline_of,
    timeline_of_log,
    timeline_of_pictures,
)
from mmdata.schema import MediaInfo

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

    from mmdata.media.video_open import Source

Truncated = Literal["reject", "repair"]
"""What to do with a video that ends before its header says: refuse it, or take the frames that are there."""


def probe(
    source: Source, *, exact: bool = False, max_pixels: int = MAX_PIXELS, truncated: Truncated = "reject"
) -> MediaInfo:
    """Format, upright geometry, frame count, duration and rate of a video, decoding no more than its first picture.

    `exact` counts packets even where the header has a count (and decodes when packets do not tell frames). Duration is
    that of the picture track: from the first shown frame to the end of the last. `fps` is the mean rate; `sample_rate`
    and `channels` are those of the sound track. Animated WebP and AVIF are decoded to be counted.
    Raises EmptyMedia, UnreadableMedia, TruncatedMedia (unless `truncated="repair"`), UnsupportedMedia,
    DecompressionBomb.
    """
    if animation_format(source):
        return animation_info(source, max_pixels=max_pixels)
    with opened(source) as container:
        stream = video_stream(container, max_pixels=max_pixels)
        _refuse_cut(container, source, truncated)
        counted = None if exact else _count_in_header(container, stream)
        first = _first_picture(container, stream, source)
        info = _describe(container, stream, first, max_pixels)
        nominal = stream.average_rate
    if counted is None:
        with opened(source) as container:
            timeline = timeline_of(container, video_stream(container), source)
            _refuse_cut(container, source, truncated)
        counted = _count(timeline)
    return _with_nominal_rate(replace(info, **counted), nominal)


def decode_all(
    source: Source, *, max_frames: int | None = None, max_pixels: int = MAX_PIXELS, truncated: Truncated = "reject"
) -> MediaInfo:
    """Decode every frame of the picture track, one at a time, and say what was really there.

    Any error ends it: a packet that does not decode, a picture that FFmpeg marks as damaged, or fewer pictures than
    the packets promise (UnreadableMedia, naming the time); bytes missing at the end (TruncatedMedia, unless
    `truncated="repair"`); no frame (EmptyMedia); encryption or no decoder (UnsupportedMedia); more than `max_frames`
    frames or `max_pixels` pixels in one (DecompressionBomb). The sound track is not decoded here.
    """
    if animation_format(source):
        return animation_info(source, max_frames=max_frames, max_pixels=max_pixels)
    with opened(source) as container:
        stream = video_stream(container, max_pixels=max_pixels)
        _refuse_cut(container, source, truncated)
        log = PacketLog.empty()
        for packet in packets(container, stream):
            log.add(packet)
        _refuse_cut(container, source, truncated)
        if max_frames is not None and len(log.pts) > max_frames:
            raise DecompressionBomb(f"{len(log.pts)} frames, over the limit of {max_frames}")
        promised = timeline_of_log(log, container, stream)
        info: MediaInfo | None = None
        stamps: list[tuple[int | None, int | None]] = []
        for frame in decode_from_start(source, any_start=True not in log.key):
            check_pixels(frame.width, frame.height, max_pixels)
            info = info or _describe(container, stream, frame, max_pixels)
            stamps.append((frame.pts, frame.dts))
        if info is None:
            raise UnreadableMedia("no picture of the video track decodes")
        if promised is not None and len(stamps) != len(promised.pts):
            raise UnreadableMedia(f"{len(stamps)} of {len(promised.pts)} frames decode")
        counted = _count(promised or timeline_of_pictures(stamps, stream))
        return _with_nominal_rate(replace(info, **counted), stream.average_rate)


def frame_times(source: Source) -> np.ndarray:
    """Seconds at which each frame is shown, from the first shown frame: float64 [T], ascending.

    Edit lists and start time are applied; frames that an edit list hides are not there. Index i of `read_frames` is
    entry i. Read from packets; decodes only when packets do not tell. Raises MediaErrors.
    """
    return times_and_duration(source)[0]


def times_and_duration(source: Source) -> tuple[np.ndarray, float]:
    """`frame_times`, and the seconds from the first shown frame to the end of the last."""
    if animation_format(source):
        return animation_times(source)
    with opened(source) as container:
        timeline = timeline_of(container, video_stream(container), source)
        return timeline.times, timeline.duration


def _refuse_cut(container: InputContainer, source: Source, truncated: Truncated) -> None:
    if truncated == "reject":
        check_complete(container, source)


def _first_picture(container: InputContainer, stream: VideoStream, source: Source) -> VideoFrame:
    with closing(decode_packets(stream, packets(container, stream))) as frames:
        first = next(frames, None)
    if first is None:
        with closing(decode_from_start(source, any_start=True)) as frames:
            first = next(frames, None)
    if first is None:
        raise EmptyMedia("the video track has no picture")
    return first


def _describe(container: InputContainer, stream: VideoStream, first: VideoFrame, max_pixels: int) -> MediaInfo:
    """All that does not depend on the number of frames."""
    check_pixels(first.width, first.height, max_pixels)
    geometry = geometry_of(first, stream.sample_aspect_ratio)
    check_pixels(geometry.width, geometry.height, max_pixels)
    sound = best_stream(container, "audio")
    heard = sound.codec_context if sound is not None else None
    return MediaInfo(
        format=container.format.name.split(",")[0],
        codec=codec_name(stream),
        width=geometry.width,
        height=geometry.height,
        rotation=geometry.orientation.rotation,
        bits=max((component.bits for component in first.format.components), default=None),
        alpha=any(component.is_alpha for component in first.format.components),
        audio=sound is not None,
        sample_rate=(heard.sample_rate or None) if heard is not None else None,
        channels=(heard.channels or None) if heard is not None else None,
    )


def _count(timeline: Timeline) -> dict[str, Any]:
    fps, variable = spacing(timeline.times, timeline.duration)
    return {"frames": len(timeline.pts), "duration": timeline.duration, "fps": fps, "variable": variable}


def _with_nominal_rate(info: MediaInfo, nominal: Fraction | None) -> MediaInfo:
    """The container's own rate where frames are even and it is near: it knows 30 where rounded times say 29.992."""
    if info.variable or not info.fps or not nominal or abs(float(nominal) / info.fps - 1) > 0.005:
        return info
    return replace(info, fps=float(nominal))


def _count_in_header(container: InputContainer, stream: VideoStream) -> dict[str, Any] | None:
    """Frames, duration and rate from the sample table of ISO media; None when there is no whole and honest table.

    Samples that an edit list hides are marked in the table. The table is in decode order, which tells the rate only
    where frames are even: an uneven one needs the packets.
    """
    entries = stream.index_entries
    if container.format.name.split(",")[0] != "mov" or not stream.frames or len(entries) != stream.frames:
        return None
    shown = [entry.timestamp for entry in entries if not entry.is_discard]
    if not shown or not stream.duration or stream.time_base is None:
        return None
    duration = float(stream.duration * stream.time_base)
    times = np.array(shown, dtype=np.int64) * float(stream.time_base)
    if (np.diff(times) <= 0).any() or not times[-1] - times[0] < duration:
        return None
    fps, variable = spacing(times - times[0], duration)
    return None if variable else {"frames": len(shown), "duration": duration, "fps": fps, "variable": False}
