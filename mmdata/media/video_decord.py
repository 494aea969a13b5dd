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
from mmdata.media.video_open import codec_name, opened, packets, video_stream
from mmdata.media.video_read import THREADS, Reader

if TYPE_CHECKING:
    from mmdata.media.video_open import Source

SEEKABLE = frozenset({"mov", "matroska"})
"""Containers with an index of key frames. In others (MPEG-TS) decord gives the wrong frame and says nothing."""

TIME_TOLERANCE_S = 0.002
"""Frame times of the two readers may differ by this much: decord keeps them in single precision."""


def decord_frames(source: Source, indices: Sequence[int], size: tuple[int, int] | None) -> Iterator[np.ndarray]:
    """Frames as `read_frames` gives them. Raises UnsupportedMedia where decord would not be exact: frames that an edit
    list hides, packets that do not tell frames, key frames that decoding cannot quite start at, mirrored pictures."""
    import decord

    decord.logging.set_level(decord.logging.QUIET)
    with Reader(source) as reader:
        timeline = reader.timeline
        reader.check(indices)
        if reader.container_format not in SEEKABLE:
            raise UnsupportedMedia(f"decord does not seek exactly in {reader.container_format}")
        if not timeline.by_packet or not _starts_clean(source):
            raise UnsupportedMedia("decord is not exact where key frames do not start a closed group")
        geometry = reader.geometry
    if geometry.orientation.mirrored:
        raise UnsupportedMedia("decord does not mirror pictures")
    width, height = size or (geometry.width, geometry.height)
    try:
        file: Any = io.BytesIO(source) if isinstance(source, bytes) else source
        video = decord.VideoReader(file, num_threads=THREADS)
        if len(video) != len(timeline.pts):
            raise UnsupportedMedia(f"decord counts {len(video)} frames, the packets say {len(timeline.pts)}")
        starts = video.get_frame_timestamp(np.arange(len(video)))[:, 0].astype(np.float64)
        if np.abs(starts - starts[0] - timeline.times).max() > TIME_TOLERANCE_S:
            raise UnsupportedMedia("decord orders the frames of this video differently")
        for index in indices:
            array = video[int(index)].asnumpy()
            if array.shape[-1] != 3:
                raise UnsupportedMedia("decord misreads the rows of frames this narrow")
            yield _resized(array, width, height)
    except (decord.DECORDError, RuntimeError, AssertionError, StopIteration) as error:
        raise UnreadableMedia(f"decord: {str(error).strip().splitlines()[0][:200]}") from error


def _starts_clean(source: Source) -> bool:
    """Whether every key packet starts a closed group: no later picture is shown before it, and in H.264 and HEVC it is
    an instantaneous refresh (ITU-T H.264, table 7-1, type 5; ITU-T H.265, table 7-1, types 19 and 20)."""
    with opened(source) as container:
        stream = video_stream(container)
        refresh = {"h264": ((0x1F, 0), (5,)), "hevc": ((0x7E, 1), (19, 20))}.get(codec_name(stream))
        prefix = 4 if codec_name(stream) == "h264" else 21
        header = stream.codec_context.extradata or b""
        length_size = (header[prefix] & 3) + 1 if len(header) > prefix else 4
        key: int | None = None
        for packet in packets(container, stream):
            if packet.pts is None:
                continue
            if key is not None and packet.pts < key:
                return False
            if packet.is_keyframe:
                key = packet.pts
                if refresh and not _has_unit(bytes(packet), length_size, *refresh):
                    return False
    return True


def _has_unit(data: bytes, length_size: int, mask_shift: tuple[int, int], kinds: tuple[int, ...]) -> bool:
    """Whether a packet of length-prefixed units (ISO/IEC 14496-15, 5.3.3) holds a unit of one of `kinds`."""
    position, (mask, shift) = 0, mask_shift
    while position + length_size < len(data):
        size = int.from_bytes(data[position : position + length_size], "big")
        if (data[position + length_size] & mask) >> shift in kinds:
            return True
        position += length_size + size
    return False


def _resized(array: np.ndarray, width: int, height: int) -> np.ndarray:
    if array.shape[:2] == (height, width):
        return array
    from av.video.frame import VideoFrame

    from mmdata.media.video_geometry import scaled

    return scaled(VideoFrame.from_ndarray(np.ascontiguousarray(array), format="rgb24"), (width, height))
