"""Reading chosen frames of a video, frame-exact: seek to the key frame before, decode up to the frame, verify its time.

Two back ends behind one contract: PyAV here, decord in `video_decord`. `DEFAULT_BACKEND` says which serves a codec.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from mmdata.errors import UnreadableMedia
from mmdata.media.video_animation import animation_format, animation_frames
from mmdata.media.video_geometry import Geometry, geometry_of, picture
from mmdata.media.video_open import Source, check_pixels, codec_name, open_container, packets, translated, video_stream
from mmdata.media.video_times import Timeline, decode_packet, decode_packets, timeline_of

if TYPE_CHECKING:
    from av.packet import Packet
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

Backend = Literal["auto", "decord", "pyav"]

DEFAULT_BACKEND: MappingProxyType[str, Literal["pyav", "decord"]] = MappingProxyType(
    {
        "h264": "pyav",  # decord is off by frames in open groups and intra refresh, and shows frames an edit list hides
        "hevc": "pyav",  # decord is off by frames in open groups, which x265 writes by default
        "mpeg4": "pyav",  # decord is off by frames with B-frames
        "mpeg2video": "pyav",  # decord seeks wrong in MPEG-TS
        "vp8": "pyav",  # both exact; eight sparse frames take decord about twice as long here, times checked
        "vp9": "pyav",  # as vp8
        "av1": "pyav",  # as vp8
        "gif": "pyav",  # decord's index of a GIF is incomplete
        "mjpeg": "pyav",  # decord refuses AVI here: its seeking is by guess
    }
)
"""Codec to back end, decided by the conformance test on golden media: exactness first, then speed. Codecs that are not
named here go to PyAV. decord decodes a whole video in order faster (by up to two times for small H.264)."""

FAR = 12
"""Frames ahead from which on it pays to look for a key frame instead of decoding through."""

THREADS = 1
"""Decoding threads a video: many videos are decoded at once, each in a process of its own."""


def read_frames(
    source: Source,
    indices: Sequence[int] | np.ndarray,
    *,
    backend: Backend = "auto",
    size: tuple[int, int] | None = None,
    max_pixels: int | None = None,
) -> Iterator[np.ndarray]:
    """The frames at `indices` (into `frame_times`), in the order asked: uint8 [H, W, 3], upright, square pixels, RGB.

    Any order and repeats are allowed; ascending is fastest. `size` is (width, height) of the result, else the video's
    upright size; a picture whose own size changes midway is scaled to it. Only the frames between a key frame and the
    one asked for are decoded, one is held at a time. A frame is found by its presentation time, never by guessing from
    the rate. `backend="auto"` follows `DEFAULT_BACKEND`.
    Raises IndexError, MediaErrors: UnreadableMedia when a needed frame does not decode or is damaged.
    """
    wanted = [int(index) for index in indices]
    if animation_format(source):
        yield from animation_frames(source, wanted, size)
        return
    if backend == "decord" or (backend == "auto" and DEFAULT_BACKEND.get(_codec(source)) == "decord"):
        from mmdata.media.video_decord import decord_frames

        yield from decord_frames(source, wanted, size)
        return
    with Reader(source, max_pixels=max_pixels) as reader:
        reader.check(wanted)
        for index in wanted:
            yield reader.picture(index, size)


def _codec(source: Source) -> str:
    if "decord" not in DEFAULT_BACKEND.values():
        return ""
    container = open_container(source)
    try:
        return codec_name(video_stream(container))
    finally:
        container.close()


def _from_key(
    stream: VideoStream, key: Packet[Any], following: Generator[Packet[Any], None, None]
) -> Generator[VideoFrame, None, None]:
    """Pictures from a key packet on. Raises UnreadableMedia when its picture is none that decoding can start at: with
    periodic intra refresh (H.264) a packet is marked as key whose picture still predicts from earlier ones."""
    from av.video.frame import PictureType

    started = False
    with closing(_all_from(stream, key, following)) as frames:
        for frame in frames:
            if not started and frame.pts is not None and key.pts is not None and frame.pts >= key.pts:
                whole = frame.pict_type in (PictureType.NONE, PictureType.I, PictureType.SI, PictureType.BI)
                if frame.pts != key.pts or not whole:
                    raise UnreadableMedia("decoding cannot start here")
                started = True
            yield frame


def _all_from(
    stream: VideoStream, key: Packet[Any], following: Generator[Packet[Any], None, None]
) -> Generator[VideoFrame, None, None]:
    with closing(decode_packets(stream, following, any_start=True)) as frames:
        yield from decode_packet(stream, key)
        yield from frames


class Reader:
    """An open video with a position: gives any shown frame by index. A context manager; one thread at a time."""

    def __init__(self, source: Source, *, max_pixels: int | None = None, threads: int = THREADS) -> None:
        self._source = source
        self._limit = {} if max_pixels is None else {"max_pixels": max_pixels}
        self._threads = threads
        self._geometry: Geometry | None = None
        self._open()
        try:
            with translated():
                self.timeline: Timeline = timeline_of(self._container, self._stream, source)
        except BaseException:
            self._container.close()
            raise
        self._any_start = self.timeline.by_packet is False and not len(self.timeline.keys)
        self._frames: Generator[VideoFrame, None, None] | None = None
        self._index = -1
        self._frame: VideoFrame | None = None

    def _open(self) -> None:
        self._container = open_container(self._source)
        self._stream = video_stream(self._container, threads=self._threads, **self._limit)

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the decoder; frames already given stay valid."""
        self._forget()
        self._container.close()

    def _forget(self) -> None:
        if self._frames is not None:
            self._frames.close()
        self._frames = self._frame = None

    @property
    def container_format(self) -> str:
        """First of FFmpeg's names of the container: `mov`, `matroska`, `mpegts`."""
        return self._container.format.name.split(",")[0]

    def check(self, indices: Sequence[int]) -> None:
        """Raises IndexError when an index is not one of the video's frames."""
        count = len(self.timeline.pts)
        for index in indices:
            if not 0 <= index < count:
                raise IndexError(f"frame {index} of a video with {count} frames")

    @property
    def geometry(self) -> Geometry:
        """Upright geometry, from the first frame that was decoded (frame 0 when none was)."""
        if self._geometry is None:
            self.frame(0)
        assert self._geometry is not None
        return self._geometry

    def picture(self, index: int, size: tuple[int, int] | None = None) -> np.ndarray:
        """Frame `index` upright with square pixels, uint8 [H, W, 3], as `read_frames`."""
        frame = self.frame(index)
        with translated():
            return picture(frame, self.geometry, size)

    def frame(self, index: int) -> VideoFrame:
        """Frame `index` as decoded. Raises as `read_frames`."""
        if index == self._index and self._frame is not None:
            return self._frame
        with translated():
            found = self._at_time(index) if self.timeline.by_packet else self._at_count(index)
        check_pixels(found.width, found.height, self._limit.get("max_pixels", found.width * found.height))
        if self._geometry is None:
            self._geometry = geometry_of(found, self._stream.sample_aspect_ratio)
        self._index, self._frame = index, found
        return found

    def _at_count(self, index: int) -> VideoFrame:
        """By counting pictures from the start, where packets do not tell their times."""
        if self._frames is None or index <= self._index:
            self._rewind()
            self._index = -1
        assert self._frames is not None
        for frame in self._frames:
            self._index += 1
            if self._index == index:
                return frame
        raise UnreadableMedia(f"frame {index} of {len(self.timeline.pts)} does not decode")

    def _at_time(self, index: int) -> VideoFrame:
        """By time: go on from here, else from the nearest key frame, else from ever earlier ones, else from the start.

        Earlier ones are needed where a stream is marked to start at pictures that it cannot quite start at.
        """
        target = int(self.timeline.pts[index])
        keys = self.timeline.keys
        key = int(np.searchsorted(keys, target, side="right")) - 1
        ahead = self._frames is not None and self._index < index
        if ahead and (index - self._index < FAR or key < 0 or keys[key] <= self.timeline.pts[self._index]):
            found = self._decode_to(target)
            if found is not None:
                return found
        step = 1
        while key >= 0:
            if self._seek(int(keys[key]), target):
                found = self._decode_to(target, tolerant=True)
                if found is not None:
                    return found
            key, step = key - step, step * 2
        self._rewind()
        found = self._decode_to(target)
        if found is None:
            raise UnreadableMedia(f"the frame at {self.timeline.times[index]:.3f} s does not decode")
        return found

    def _decode_to(self, target: int, *, tolerant: bool = False) -> VideoFrame | None:
        """The next picture of time `target`, or None when decoding passes it (or fails, with `tolerant`)."""
        assert self._frames is not None
        try:
            for frame in self._frames:
                if frame.pts is not None and frame.pts >= target:
                    if frame.pts == target:
                        return frame
                    break
        except UnreadableMedia:
            if not tolerant:
                raise
        self._forget()
        return None

    def _seek(self, key: int, target: int) -> bool:
        """Go to the key frame of time `key` or one before it; False when the container lands elsewhere."""
        import av

        self._forget()
        try:
            self._container.seek(key, stream=self._stream, backward=True)
        except av.error.FFmpegError:
            return False
        following = packets(self._container, self._stream)
        for packet in following:
            if packet.is_keyframe:
                if packet.pts is None or packet.pts > target:
                    return False
                first = packet
                break
        else:
            return False

        self._frames = _from_key(self._stream, first, following)
        return True

    def _rewind(self) -> None:
        """Start over with a fresh decoder: seeking back to the start is not exact in every container."""
        self._forget()
        self._container.close()
        self._open()
        following = packets(self._container, self._stream)
        self._frames = decode_packets(self._stream, following, any_start=self._any_start)
