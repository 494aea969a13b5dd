"""Writing a video anew: chosen frames, changed pictures, another codec; frame by frame, with the same bytes every time.

Times are kept as they are (variable frame rate included) unless a rate is asked for. One encoder thread and bit-exact
muxing make the output repeatable.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from mmdata.errors import EmptyMedia, EncodeError, UnsupportedMedia
from mmdata.media.video_animation import animation_format, animation_frames, animation_times
from mmdata.media.video_read import Reader
from mmdata.media.video_sound import Sound
from mmdata.media.video_times import EVEN_TOLERANCE_S, sample_indices

if TYPE_CHECKING:
    from av.container import OutputContainer
    from av.video.frame import VideoFrame

    from mmdata.media.video_open import Source

Codec = Literal["h264", "vp9", "av1"]

ENCODERS: MappingProxyType[str, str] = MappingProxyType({"h264": "libx264", "vp9": "libvpx-vp9", "av1": "libsvtav1"})
"""Codec to FFmpeg's encoder."""

CONTAINER: MappingProxyType[str, str] = MappingProxyType({"h264": "mp4", "vp9": "webm", "av1": "mp4"})
"""Codec to the container it is written in, which is also the file extension."""

QUALITY: MappingProxyType[str, int] = MappingProxyType({"h264": 20, "vp9": 31, "av1": 30})
"""Default constant rate factor."""

OPTIONS: MappingProxyType[str, dict[str, str]] = MappingProxyType(
    {
        # x264's macroblock tree reads memory that it never wrote where the CPU has AVX-512 (seen in core 165): the
        # bytes then differ from run to run.
        "h264": {"preset": "medium", "x264-params": "mbtree=0"},
        "vp9": {"b": "0", "deadline": "good", "cpu-used": "4", "row-mt": "0"},
        "av1": {"preset": "8", "svtav1-params": "lp=1"},
    }
)

TIME_BASE = Fraction(1, 90_000)
"""Unit of written time stamps: the MPEG clock, which divides 24, 25, 30, 50 and 60 frames a second and 1001 rates."""

BITEXACT = 1 << 23
"""FFmpeg's AV_CODEC_FLAG_BITEXACT."""

SMPTE_170M, LIMITED = 6, 1
"""Colour matrix (ITU-T H.273: BT.601) and range of written video. Readers that ignore the tag assume just these."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Which frames are written, when each is shown, and which stretch of the source's clock they cover."""

    indices: np.ndarray
    times: np.ndarray
    """float64 [N], seconds from the first written frame."""
    end: float
    """When the last written frame ends."""
    window: tuple[float, float] | None
    """Start and end on the source's frame clock for the sound; None when the written times are not the source's."""
    whole: bool


def encoders() -> dict[str, bool]:
    """Codec to whether this machine's PyAV can encode it."""
    import av

    def present(name: str) -> bool:
        try:
            av.Codec(name, "w")
        except av.codec.codec.UnknownCodecError:
            return False
        return True

    return {codec: present(name) for codec, name in ENCODERS.items()}


def transcode(
    source: Source,
    *,
    indices: Sequence[int] | np.ndarray | None = None,
    clip: tuple[float, float] | None = None,
    codec: Codec = "h264",
    size: tuple[int, int] | None = None,
    spatial: Callable[[np.ndarray], np.ndarray] | None = None,
    fps: float | None = None,
    crf: int | None = None,
    keyframe_interval: int = 32,
    audio: bool = True,
) -> bytes:
    """Write a video anew: H.264 or AV1 in MP4, VP9 in WebM; 8-bit 4:2:0, upright, square pixels.

    Frames: `indices` (ascending, into `frame_times`), or those shown in `clip` (start, end in seconds from the first
    frame, `start` <= time < `end`), or all. `fps`: with `indices`, they are laid out at that rate; otherwise the frame
    on screen at every 1/fps is taken. Without it each frame keeps its time; WebM rounds times to milliseconds.
    Pictures: read at `size` (width, height), then `spatial` (uint8 [H, W, 3] to the same, one size for all). An odd
    last row or column is cut off. `crf`: constant rate factor; `keyframe_interval` in frames.
    Sound: copied when every frame is kept and the container takes the codec, else re-encoded (AAC or Opus) and cut to
    the frames' stretch; left out where `fps` lays chosen frames out anew.
    Memory: a few frames and the output. The same arguments give the same bytes.
    Raises EmptyMedia (no frame chosen), EncodeError, UnsupportedMedia (no such encoder), MediaErrors of reading,
    ValueError for wrong arguments.
    """
    if indices is not None and clip is not None:
        raise ValueError("give indices or clip, not both")
    if codec not in ENCODERS:
        raise ValueError(f"codec must be one of {', '.join(ENCODERS)}, not {codec!r}")
    if not encoders()[codec]:
        raise UnsupportedMedia(f"PyAV has no encoder for {codec} ({ENCODERS[codec]})")
    if animation_format(source):
        times, duration = animation_times(source)
        plan = plan_frames(times, duration, indices=indices, clip=clip, fps=fps)
        pictures = animation_frames(source, [int(index) for index in plan.indices], size)
        return _write(pictures, plan, None, codec, spatial, crf, keyframe_interval)
    with Reader(source) as reader:
        timeline = reader.timeline
        plan = plan_frames(timeline.times, timeline.duration, indices=indices, clip=clip, fps=fps)
        reader.check(plan.indices.tolist())
        origin = float(int(timeline.pts[0]) * timeline.time_base)
        sound = (source, origin) if audio and plan.window is not None else None
        pictures = (reader.picture(int(index), size) for index in plan.indices)
        return _write(pictures, plan, sound, codec, spatial, crf, keyframe_interval)


def plan_frames(
    times: np.ndarray,
    duration: float,
    *,
    indices: Sequence[int] | np.ndarray | None = None,
    clip: tuple[float, float] | None = None,
    fps: float | None = None,
) -> Plan:
    """Pure: the frames to write of a video with these frame times. See `transcode`."""
    if fps is not None and not fps > 0:
        raise ValueError("fps must be more than 0")
    start, stop = clip or (0.0, duration)
    if indices is None:
        chosen = sample_indices(times, start=start, end=None if clip is None else stop)
    else:
        chosen = np.asarray(indices, dtype=np.int64)
    if not len(chosen):
        raise EmptyMedia("no frame is in the clip")
    if (np.diff(chosen) < 0).any() or chosen[0] < 0 or chosen[-1] >= len(times):
        raise ValueError("indices must ascend and lie in the video")
    following = times[chosen[-1] + 1] if chosen[-1] + 1 < len(times) else duration
    first = float(times[chosen[0]])
    whole = len(chosen) == len(times) and bool((np.diff(chosen) == 1).all())
    if fps is None:
        if (np.diff(chosen) == 0).any():
            raise ValueError("a frame is chosen twice; give fps to lay frames out anew")
        return Plan(chosen, times[chosen] - first, float(following) - first, (first, float(following)), whole)
    if indices is not None:
        return Plan(chosen, np.arange(len(chosen)) / fps, len(chosen) / fps, None, False)
    count = max(1, round((float(following) - first) * fps))
    grid = np.arange(count) / fps
    late = min(EVEN_TOLERANCE_S, 0.25 / fps)
    taken = np.searchsorted(times[chosen], first + grid + late, side="right") - 1
    return Plan(chosen[taken], grid, count / fps, (first, first + count / fps), whole)


def _write(
    pictures: Iterator[np.ndarray],
    plan: Plan,
    sound: tuple[Source, float] | None,
    codec: Codec,
    spatial: Callable[[np.ndarray], np.ndarray] | None,
    crf: int | None,
    keyframe_interval: int,
) -> bytes:
    import av

    first = _changed(next(pictures), spatial)
    buffer = io.BytesIO()
    with encoding():
        output = av.open(buffer, mode="w", format=CONTAINER[codec], options=_muxing(codec))
        track: Sound | None = None
        try:
            stream = _video_track(output, codec, first.shape[1], first.shape[0], plan, crf, keyframe_interval)
            if sound is not None and plan.window is not None:
                source, origin = sound
                start, end = plan.window[0] + origin, plan.window[1] + origin
                track = Sound(source, output, CONTAINER[codec], start, end, whole=plan.whole)
            stamps = np.rint(plan.times * TIME_BASE.denominator).astype(np.int64)
            ends = np.append(stamps[1:], max(round(plan.end * TIME_BASE.denominator), int(stamps[-1]) + 1))
            pending: dict[int, int] = {}

            def send(packets: list[Any]) -> None:
                for packet in packets:
                    packet.duration = pending.pop(packet.pts, packet.duration or 0)
                    output.mux_one(packet)

            for number, (stamp, end_stamp) in enumerate(zip(stamps.tolist(), ends.tolist(), strict=True)):
                array = first if number == 0 else _changed(next(pictures), spatial)
                if array.shape != first.shape:
                    raise EncodeError(f"frame {number} is {array.shape[1]}x{array.shape[0]}, the first is not")
                pending[stamp] = end_stamp - stamp
                send(stream.encode(_frame(array, stamp)))
                for packet in track.before(stamp / TIME_BASE.denominator) if track else ():
                    output.mux_one(packet)
            send(stream.encode(None))
            for packet in track.before(float("inf")) if track else ():
                output.mux_one(packet)
        finally:
            if track is not None:
                track.close()
            output.close()
    return buffer.getvalue()


@contextmanager
def encoding() -> Iterator[None]:
    """Turns FFmpeg's errors inside it into EncodeError. Errors of reading have their own type already."""
    import av

    try:
        yield
    except av.error.FFmpegError as error:
        raise EncodeError(f"the encoder refused: {error.strerror}") from error


def _muxing(codec: str) -> dict[str, str]:
    options = {"fflags": "+bitexact"}
    return options | ({"video_track_timescale": str(TIME_BASE.denominator)} if CONTAINER[codec] == "mp4" else {})


def _video_track(
    output: OutputContainer, codec: str, width: int, height: int, plan: Plan, crf: int | None, keyframe_interval: int
) -> Any:
    if codec == "av1":
        os.environ.setdefault("SVT_LOG", "1")
    rate = Fraction(len(plan.indices) / plan.end if plan.end > 0 else 25).limit_denominator(1001)
    options = {**OPTIONS[codec], "crf": str(QUALITY[codec] if crf is None else crf)}
    stream: Any = output.add_stream(ENCODERS[codec], rate=max(rate, Fraction(1, 1001)), options=options)
    stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
    context = stream.codec_context
    context.time_base = TIME_BASE
    context.thread_count = 1
    context.gop_size = keyframe_interval
    context.flags |= BITEXACT
    context.colorspace, context.color_range = SMPTE_170M, LIMITED
    return stream


def _changed(array: np.ndarray, spatial: Callable[[np.ndarray], np.ndarray] | None) -> np.ndarray:
    """The picture as it is written: changed by `spatial`, of even width and height."""
    changed = array if spatial is None else spatial(array)
    height, width = changed.shape[:2]
    if height == 1 or width == 1:
        changed = np.repeat(np.repeat(changed, 2 if height == 1 else 1, 0), 2 if width == 1 else 1, 1)
        height, width = changed.shape[:2]
    return np.ascontiguousarray(changed[: height - height % 2, : width - width % 2])


def _frame(array: np.ndarray, stamp: int) -> VideoFrame:
    from av.video.frame import VideoFrame
    from av.video.reformatter import Interpolation

    rgb = VideoFrame.from_ndarray(array, format="rgb24")
    frame = rgb.reformat(
        format="yuv420p",
        dst_colorspace="ITU601",
        dst_color_range="MPEG",
        interpolation=Interpolation.BICUBIC,
        threads=1,
    )
    frame.pts, frame.time_base, frame.pict_type = stamp, TIME_BASE, 0
    return frame
