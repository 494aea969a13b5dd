"""Moving pictures (GIF, PNG, WebP, AVIF) as video: an adapter to the picture decoder, which composes their frames.

FFmpeg decodes WebP and AVIF wrongly, loses the timing of PNG and refuses some, and shows transparent pixels black.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from mmdata.errors import DecompressionBomb, EmptyMedia
from mmdata.media.video_open import MAX_PIXELS, read_at, source_size
from mmdata.media.video_times import spacing
from mmdata.schema import MediaInfo

if TYPE_CHECKING:
    from mmdata.media.video_open import Source


def animation_format(source: Source) -> str | None:
    """`gif`, `png`, `webp` or `avif` when the source begins like one, else None."""
    head = read_at(source, 0, 12)
    if head[:6] in (b"GIF87a", b"GIF89a"):
        return "gif"
    if head[:8] == b"\x89PNG\r\n\x1a\n":
        return "png"
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "webp"
    return "avif" if head[4:8] == b"ftyp" and head[8:12] in (b"avif", b"avis") else None


def animation_info(source: Source, *, max_frames: int | None = None, max_pixels: int = MAX_PIXELS) -> MediaInfo:
    """Decode every frame and say what was found. Raises MediaErrors, DecompressionBomb above `max_frames`."""
    times: list[float] = []
    duration, width, height = 0.0, 0, 0
    for array, seconds in _frames(source, max_pixels):
        if max_frames is not None and len(times) == max_frames:
            raise DecompressionBomb(f"more than {max_frames} frames")
        times.append(duration)
        duration += seconds
        height, width = array.shape[:2]
    if not times:
        raise EmptyMedia("the animation has no frame")
    fps, variable = spacing(np.array(times), duration)
    format = animation_format(source) or ""
    return MediaInfo(
        format=format,
        codec="av1" if format == "avif" else format,
        width=width,
        height=height,
        frames=len(times),
        duration=duration,
        fps=fps,
        rotation=0,
        bits=8,
        variable=variable,
        audio=False,
    )


def animation_times(source: Source) -> tuple[np.ndarray, float]:
    """Times of the frames (float64 [T], seconds from the first) and the duration of the whole."""
    durations = [seconds for _, seconds in _frames(source, MAX_PIXELS)]
    ends = np.cumsum(np.array(durations, dtype=np.float64))
    return np.concatenate([[0.0], ends[:-1]]), float(ends[-1])


def animation_frames(source: Source, indices: Sequence[int], size: tuple[int, int] | None) -> Iterator[np.ndarray]:
    """The frames of `indices` in that order, uint8 [H, W, 3]; decoding begins anew when an index goes backwards.

    Raises IndexError beyond the last frame, MediaErrors of `image.frames`.
    """
    frames, position, current = _frames(source, MAX_PIXELS), -1, np.empty(0, np.uint8)
    for index in indices:
        if index < position:
            frames, position = _frames(source, MAX_PIXELS), -1
        while position < index:
            following = next(frames, None)
            if following is None:
                raise IndexError(f"frame {index} of an animation with {position + 1} frames")
            current, position = following[0], position + 1
        if index < 0:
            raise IndexError(f"frame {index} of an animation")
        yield _resized(current, size)


def _frames(source: Source, max_pixels: int) -> Iterator[tuple[np.ndarray, float]]:
    from mmdata.media import image

    data = read_at(source, 0, source_size(source))
    for picture, seconds in image.frames(data, alpha="white", max_pixels=max_pixels, max_frames=None):
        yield np.asarray(picture.convert("RGB")), seconds


def _resized(array: np.ndarray, size: tuple[int, int] | None) -> np.ndarray:
    if size is None or size == (array.shape[1], array.shape[0]):
        return array.copy()
    from PIL import Image

    return np.asarray(Image.fromarray(array).resize(size, Image.Resampling.BICUBIC)).copy()
