"""Operators on videos: which frames (sample_frames, clip), and what becomes of each (resize, crop, random_crop, flip).

They see frame times, upright frames (uint8 RGB arrays) and the context; no bytes and no decoder. What they do to a
frame is what the operator of the same name does to a picture; sizes are made even, as 4:2:0 video needs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal, Self

import numpy as np
from PIL import Image
from pydantic import Field, model_validator

from mmdata.media.video import sample_indices
from mmdata.operators import image
from mmdata.operators.image import Colour, Fit, Interpolation, Mode, Side
from mmdata.operators.registry import Context, VideoTransform, transform
from mmdata.recipe.base import mistake
from mmdata.schema import MediaInfo

Seconds = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Size = tuple[int, int]


@transform("sample_frames", "video")
class SampleFrames(VideoTransform):
    """Keep some frames: `count` spread evenly with both ends, or those on screen at `fps`, or the bucket's number.

    Without `count` and `fps` the number of frames of the sample's bucket is taken, spread evenly. `fps` in a recipe
    with frame buckets gives at most the bucket's number, from the start. A video with fewer frames keeps all; a rate at
    or above the video's own (even) rate keeps all. Times of kept frames do not change.
    Example: `{op: sample_frames, count: 16}`, `{op: sample_frames, fps: 8, form: 4n+1}`.
    """

    count: Annotated[int, Field(ge=1)] | None = None
    """Number of frames."""
    fps: Positive | None = None
    """Frames per second."""
    form: Literal["4n+1"] | None = None
    """Cut the number down to 1, 5, 9, …, as video autoencoders with four-fold time compression want."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.count is not None and self.fps is not None:
            raise mistake("give count or fps, not both")
        return self

    def needs_bucket(self) -> bool:
        return self.count is None and self.fps is None

    def select(self, times: np.ndarray, info: MediaInfo, context: Context) -> np.ndarray | None:
        """Indices of the kept frames. Raises ValueError without count, fps and frame buckets."""
        if self.fps is None:
            return sample_indices(times, count=self._count(context), form=self.form)
        chosen = sample_indices(times, fps=None if self._takes_all(info) else self.fps)
        if context.frames is not None:
            chosen = chosen[: context.frames]
        return chosen[: len(chosen) - (len(chosen) - 1) % 4] if self.form else chosen

    def is_noop(self, info: MediaInfo, context: Context) -> bool:
        """Whether every frame is kept. Of a video of variable rate `fps` may or may not keep all: False."""
        if info.frames is None or (self.form and (info.frames - 1) % 4):
            return False
        if self.fps is None:
            return info.frames <= self._count(context)
        return self._takes_all(info) and (context.frames is None or info.frames <= context.frames)

    def remaining(self, frames: np.ndarray, duration: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """`count` of the frames, or one for each 1/fps seconds up to the last frame."""
        if self.count is not None:
            frames = np.minimum(frames, self.count)
        elif self.fps is not None:
            last = duration * (frames - 1) / frames
            frames = np.minimum(frames, np.floor(last * self.fps + 1e-6) + 1)
        return (frames - (frames - 1) % 4 if self.form else frames), duration

    def _count(self, context: Context) -> int:
        count = context.frames if self.count is None else self.count
        if count is None:
            raise ValueError("sample_frames needs count, fps, or buckets.video.frames in the recipe")
        return count

    def _takes_all(self, info: MediaInfo) -> bool:
        return info.variable is False and info.fps is not None and self.fps is not None and self.fps >= info.fps


@transform("clip", "video")
class Clip(VideoTransform):
    """Keep one stretch of time: from `start` to `end`, or `duration` seconds at a drawn place.

    A frame is kept when it begins in the stretch: start <= time < end, in seconds from the first frame. The draw hangs
    on seed, dataset, pass and key; every place is as likely. A video not longer than `duration` is kept whole. The
    sound is cut alongside.
    Example: `{op: clip, start: 1.5, end: 4}`, `{op: clip, duration: 5}`, `{op: clip, duration: 5, place: center}`.
    """

    start: Seconds | None = None
    """Seconds; not given: the beginning."""
    end: Positive | None = None
    """Seconds; not given: the end."""
    duration: Positive | None = None
    """Length in seconds of a clip whose place is chosen by `place`."""
    place: Literal["random", "start", "center"] = "random"
    """Where a clip of `duration` lies."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        bounds = self.start is not None or self.end is not None
        if bounds == (self.duration is not None):
            raise mistake("give start and end (or one of them), or duration")
        if self.end is not None and self.end <= (self.start or 0):
            raise mistake(f"end ({self.end:g}) must be after start ({self.start or 0:g})")
        return self

    def select(self, times: np.ndarray, info: MediaInfo, context: Context) -> np.ndarray | None:
        """Indices of the frames in the stretch; none when it lies outside the video."""
        if not len(times):
            return None
        clock = times - times[0]
        if self.duration is None:
            return sample_indices(clock, start=self.start or 0.0, end=self.end)
        length = _length(clock, info)
        if length <= self.duration:
            return None
        share = {"start": 0.0, "center": 0.5}.get(self.place)
        start = (length - self.duration) * (context.draw("clip") if share is None else share)
        chosen = sample_indices(clock, start=start, end=start + self.duration)
        on_screen = max(0, int(np.searchsorted(clock, start, side="right")) - 1)
        return chosen if len(chosen) else np.array([on_screen], dtype=np.int64)

    def is_noop(self, info: MediaInfo, context: Context) -> bool:
        """Whether the stretch covers the whole video."""
        if info.duration is None:
            return False
        if self.duration is not None:
            return info.duration <= self.duration
        return not self.start and (self.end is None or info.duration <= self.end)

    def remaining(self, frames: np.ndarray, duration: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The frames that begin in the stretch; of one at a drawn place, as many as every place has."""
        rate = frames / duration
        if self.duration is not None:
            kept = np.minimum(duration, self.duration)
            return np.where(kept < duration, np.maximum(np.floor(kept * rate + 1e-6), 1), frames), kept
        start = np.minimum(self.start or 0.0, duration)
        end = duration if self.end is None else np.minimum(duration, self.end)
        kept = np.maximum(end - start, 0.0)
        inside = np.ceil(end * rate - 1e-6) - np.ceil(start * rate - 1e-6)
        return np.where(kept < duration, np.maximum(inside, 0), frames), kept


def _length(clock: np.ndarray, info: MediaInfo) -> float:
    """Seconds to the end of the last frame: the video's duration while all its frames are there, else by the gaps."""
    if info.duration is not None and len(clock) == info.frames:
        return info.duration
    gaps = np.diff(clock)
    last = float(np.median(gaps)) if len(gaps) else 1 / (info.fps or 25)
    return float(clock[-1]) + last


@transform("orient", "video")
class Orient(VideoTransform):
    """Store the frames upright, for readers that do not know display matrices. An upright video keeps its bytes.

    Example: `{op: orient}`.
    """

    def is_noop(self, info: MediaInfo, context: Context) -> bool:
        """Whether the stored frames are upright: nothing was turned."""
        return info.rotation == 0


@transform("resize", "video")
class Resize(VideoTransform):
    """Scale every frame to the bucket's size, to width × height, or by one side; see the picture operator `resize`.

    The result has even sides: an odd side is scaled to the next smaller even one.
    Example: `{op: resize, mode: cover}` with buckets, or `{op: resize, shorter: 256}`.
    """

    width: Side | None = None
    """Width in pixels."""
    height: Side | None = None
    """Height in pixels."""
    shorter: Side | None = None
    """Pixels of the shorter side."""
    longer: Side | None = None
    """Pixels of the longer side."""
    mode: Mode = "cover"
    """cover: fill the box and cut the overhang off equally; contain: show all and pad; exact: distort."""
    interpolation: Interpolation = "bicubic"
    """Filter: bicubic, lanczos, bilinear, area or nearest."""
    fill: Colour | None = None
    """Colour of the padding of `contain`; not given: white, or black where `decode.alpha` is black."""
    pad: bool = True
    """Whether `contain` pads to the whole box; without, the frame is as large as fits."""
    upscale: bool = True
    """Whether a frame smaller than asked is enlarged."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        self._picture()
        return self

    def needs_bucket(self) -> bool:
        return self.width is self.height is self.shorter is self.longer is None

    def frame(self, array: np.ndarray, context: Context) -> np.ndarray:
        """The scaled frame. Raises ValueError when there is neither a size nor a bucket."""
        height, width = array.shape[:2]
        plan = self._plan(width, height, context)
        if not plan.changes(width, height):
            return array
        if plan.box == (0, 0, *plan.scaled):
            scaled = Image.fromarray(array[: plan.scaled[1], : plan.scaled[0]])
        else:
            scaled = Image.fromarray(array).resize(plan.scaled, image.FILTERS[self.interpolation], box=plan.box)
        if plan.size == plan.scaled:
            return np.asarray(scaled)
        margin = image.Pad(width=plan.size[0], height=plan.size[1], fill=self.fill)
        return np.asarray(margin.apply(scaled, context))

    def size(self, info: MediaInfo, context: Context) -> Size:
        """Width and height of the result."""
        return self._plan(*_known(info), context).size

    def is_noop(self, info: MediaInfo, context: Context) -> bool:
        """Whether the frames have the wanted size already."""
        width, height = _known(info)
        return not self._plan(width, height, context).changes(width, height)

    def _plan(self, width: int, height: int, context: Context) -> Fit:
        plan = self._picture().plan(width, height, context)
        size = _even(plan.size)
        scaled = size if plan.scaled == plan.size else (min(plan.scaled[0], size[0]), min(plan.scaled[1], size[1]))
        return replace(plan, scaled=scaled, size=size)

    def _picture(self) -> image.Resize:
        return image.Resize(**_arguments(self))


@transform("crop", "video")
class Crop(VideoTransform):
    """Cut width × height (not given: the bucket's size) out of every frame; see the picture operator `crop`.

    The result has even sides: of an odd one the last row or column is cut off.
    Example: `{op: crop, width: 512, height: 512}`.
    """

    width: Side | None = None
    """Width in pixels."""
    height: Side | None = None
    """Height in pixels."""
    left: Annotated[int, Field(ge=0)] | None = None
    """First column kept; not given: centred."""
    top: Annotated[int, Field(ge=0)] | None = None
    """First row kept; not given: centred."""

    def needs_bucket(self) -> bool:
        return self.width is None or self.height is None

    def frame(self, array: np.ndarray, context: Context) -> np.ndarray:
        """The part of the frame. Raises ValueError when the box reaches out of it."""
        return _cut(array, self._box((array.shape[1], array.shape[0]), context))

    def size(self, info: MediaInfo, context: Context) -> Size:
        """Width and height of the part."""
        return _box_size(self._box(_known(info), context))

    def is_noop(self, info: MediaInfo, context: Context) -> bool:
        """Whether the whole frame is kept."""
        return _box_size(self._box(_known(info), context)) == _known(info)

    def _box(self, size: Size, context: Context) -> tuple[int, int, int, int]:
        return _even_box(image.Crop(**_arguments(self)).plan(*size, context))


@transform("random_crop", "video")
class RandomCrop(VideoTransform):
    """Cut width × height (not given: the bucket's size) out of every frame at one place drawn for this sample.

    Example: `{op: random_crop, width: 256, height: 256}`.
    """

    width: Side | None = None
    """Width in pixels."""
    height: Side | None = None
    """Height in pixels."""

    def needs_bucket(self) -> bool:
        return self.width is None or self.height is None

    def frame(self, array: np.ndarray, context: Context) -> np.ndarray:
        """The part of the frame: the same part of every frame of a sample."""
        return _cut(array, self._box((array.shape[1], array.shape[0]), context))

    def size(self, info: MediaInfo, context: Context) -> Size:
        """Width and height of the part."""
        return _box_size(self._box(_known(info), context))

    def is_noop(self, info: MediaInfo, context: Context) -> bool:
        """Whether the whole frame is kept."""
        return _box_size(self._box(_known(info), context)) == _known(info)

    def _box(self, size: Size, context: Context) -> tuple[int, int, int, int]:
        return _even_box(image.RandomCrop(**_arguments(self)).plan(*size, context))


@transform("flip", "video")
class Flip(VideoTransform):
    """Mirror every frame of a video with a probability, drawn for this sample; the others keep their bytes.

    Example: `{op: flip, probability: 0.5}`.
    """

    probability: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Share of samples that are mirrored."""
    direction: Literal["horizontal", "vertical"] = "horizontal"
    """horizontal swaps left and right, vertical swaps top and bottom."""

    def frame(self, array: np.ndarray, context: Context) -> np.ndarray:
        """The frame, mirrored when the draw says so."""
        if self.is_noop(MediaInfo(), context):
            return array
        return array[:, ::-1] if self.direction == "horizontal" else array[::-1]

    def is_noop(self, info: MediaInfo, context: Context) -> bool:
        """Whether this sample is not mirrored."""
        return context.draw("flip") >= self.probability


def _arguments(operator: VideoTransform) -> dict[str, Any]:
    """The arguments that were given, for the picture operator of the same name."""
    return {name: getattr(operator, name) for name in operator.model_fields_set}


def _known(info: MediaInfo) -> Size:
    if info.width is None or info.height is None:
        raise ValueError("the video's size is not known")
    return info.width, info.height


def _even(size: Size) -> Size:
    return max(2, size[0] - size[0] % 2), max(2, size[1] - size[1] % 2)


def _even_box(box: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    left, top, right, bottom = box
    return left, top, max(left + 1, right - (right - left) % 2), max(top + 1, bottom - (bottom - top) % 2)


def _box_size(box: tuple[int, int, int, int]) -> Size:
    return box[2] - box[0], box[3] - box[1]


def _cut(array: np.ndarray, box: tuple[int, int, int, int]) -> np.ndarray:
    return array[box[1] : box[3], box[0] : box[2]]
