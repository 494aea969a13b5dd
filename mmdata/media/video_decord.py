"""The decord back end of `read_frames` (decord's API from the package decord2). Imported only when it is used.

decord finds frames by its own count of packets. Its count and times are checked against ours before a frame is given,
so that it is exact or refused, never silently off.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mmdata.errors import UnreadableMedia, UnsupportedMedia
from mmdata.media.video_read import THREADS, Reader

if TYPE_CHECKING:
    from mmdata.media.video_open import Source

SEEKABLE = frozenset({"mov", "matroska"})
"""Containers with an index of key frames. In others (MPEG-TS) decord gives the wrong frame and says nothing."""

TIME_TOLERANCE_S = 0.002
"""Frame times of the two readers may differ by this much: decord keeps them in single precision."""


def decord_frames(source: Source, indices: Sequence[int], size: tuple[int, int] | None) -> Iterator[np.ndarray]:
    """Frames as `read_frames` gives them. Raises UnsupportedMedia where decord would not be exact: frames that an edit
    list hides, packets that do not tell frames, mirrored pictures."""
    import decord

    decord.logging.set_level(decord.logging.QUIET)
    with Reader(source) as reader:
        if reader.container_format not in SEEKABLE:
            raise UnsupportedMedia(f"decord does not seek exactly in {reader.container_format}")
        timeline = reader.timeline
        reader.check(indices)
        geometry = reader.geometry
    if geometry.orientation.mirrored:
        raise UnsupportedMedia("decord does not mirror pictures")
    width, height = size or (geometry.width, geometry.height)
    try:
        file: Any = io.BytesIO(source) if isinstance(source, bytes) else source
        video = decord.VideoReader(file, num_threads=THREADS)
        if len(video) != len(timeline.pts) or not timeline.by_packet:
            raise UnsupportedMedia(f"decord counts {len(video)} frames, the packets say {len(timeline.pts)}")
        starts = video.get_frame_timestamp(np.arange(len(video)))[:, 0].astype(np.float64)
        if np.abs(starts - starts[0] - timeline.times).max() > TIME_TOLERANCE_S:
            raise UnsupportedMedia("decord orders the frames of this video differently")
        for index in indices:
            yield _resized(video[int(index)].asnumpy(), width, height)
    except (decord.DECORDError, RuntimeError, AssertionError, StopIteration) as error:
        raise UnreadableMedia(f"decord: {str(error).strip().splitlines()[0][:200]}") from error


def _resized(array: np.ndarray, width: int, height: int) -> np.ndarray:
    if array.shape[:2] == (height, width):
        return array
    from av.video.frame import VideoFrame

    from mmdata.media.video_geometry import scaled

    return scaled(VideoFrame.from_ndarray(np.ascontiguousarray(array), format="rgb24"), (width, height))
