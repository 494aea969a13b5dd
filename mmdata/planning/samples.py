"""What cost and schedule know of samples: text tokens, and the upright geometry of every medium, as columns.

No keys, no files, no media: a sample is a row number, and a medium is a row that names its sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
Int8Array = npt.NDArray[np.int8]

IMAGE, VIDEO, AUDIO = 0, 1, 2
"""Codes of `MediaArrays.kind`."""


@dataclass(frozen=True, eq=False)
class MediaArrays:
    """M media in the order of their samples. Geometry is upright: after EXIF orientation, rotation, pixel aspect."""

    sample: IntArray
    """[M] index of the medium's sample, never decreasing."""
    kind: Int8Array
    """[M] IMAGE, VIDEO or AUDIO."""
    width: IntArray
    """[M] pixels, 0 where none."""
    height: IntArray
    """[M] pixels, 0 where none."""
    frames: IntArray
    """[M] 1 for pictures, 0 for audio."""
    duration: FloatArray
    """[M] seconds, 0 for pictures."""
    fps: FloatArray
    """[M] frames a second, 0 unknown."""

    def __post_init__(self) -> None:
        columns = (self.sample, self.kind, self.width, self.height, self.frames, self.duration, self.fps)
        if any(column.shape != (self.sample.size,) for column in columns):
            raise ValueError(f"the columns of media must have one length, not {[column.shape for column in columns]}")
        if self.sample.size and (self.sample[0] < 0 or (self.sample[1:] < self.sample[:-1]).any()):
            raise ValueError("media must be in the order of their samples: sort them by `sample`")

    def __len__(self) -> int:
        return self.sample.size

    @classmethod
    def none(cls) -> Self:
        """No media at all."""
        whole, real = np.zeros(0, np.int64), np.zeros(0)
        return cls(whole, np.zeros(0, np.int8), whole, whole, whole, real, real)

    def rows(self, index: IntArray, sample: IntArray) -> Self:
        """The media `index` [m], as those of the samples `sample` [m]."""
        return type(self)(
            sample,
            self.kind[index],
            self.width[index],
            self.height[index],
            self.frames[index],
            self.duration[index],
            self.fps[index],
        )


@dataclass(frozen=True, eq=False)
class Samples:
    """N samples: what each has of text, media and bytes."""

    text_tokens: IntArray
    """[N] tokens of the text alone, without placeholders for media."""
    media: MediaArrays
    size_bytes: IntArray
    """[N] stored bytes."""

    def __post_init__(self) -> None:
        count = self.text_tokens.size
        if self.text_tokens.shape != (count,) or self.size_bytes.shape != (count,):
            raise ValueError(
                f"text_tokens {self.text_tokens.shape} and size_bytes {self.size_bytes.shape} must be two columns of "
                "one length"
            )
        if len(self.media) and self.media.sample[-1] >= count:
            raise ValueError(f"a medium names sample {self.media.sample[-1]} of {count}")

    def __len__(self) -> int:
        return self.text_tokens.size

    @cached_property
    def media_starts(self) -> IntArray:
        """[N + 1] row of each sample's first medium, and M at the end."""
        counts = np.bincount(self.media.sample, minlength=len(self))
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])

    def total(self, values: npt.NDArray[np.generic]) -> npt.NDArray[np.int64]:
        """Sum over each sample's media of whole numbers [M]: int64 [N], exact, 0 without media."""
        if values.dtype.kind not in "iub":
            raise TypeError(f"sums of whole numbers only, not {values.dtype}; use total_real")
        below = np.concatenate([np.zeros(1, np.int64), np.cumsum(values, dtype=np.int64)])
        out: IntArray = below[self.media_starts[1:]] - below[self.media_starts[:-1]]
        return out

    def total_real(self, values: npt.NDArray[np.generic]) -> FloatArray:
        """Sum over each sample's media of real numbers [M]: float64 [N], added in the media's order."""
        sums = np.bincount(self.media.sample, weights=values.astype(np.float64), minlength=len(self))
        return sums.astype(np.float64)

    def take(self, indices: npt.ArrayLike) -> Self:
        """The samples at `indices` [n], in that order; an index may come twice. Raises IndexError outside [0, N)."""
        index = np.asarray(indices, np.int64)
        if index.size and (index.min() < 0 or index.max() >= len(self)):
            raise IndexError(f"samples must lie in [0, {len(self)}), not [{index.min()}, {index.max()}]")
        first = self.media_starts[index]
        counts = self.media_starts[index + 1] - first
        before = np.cumsum(counts) - counts
        rows = np.arange(int(counts.sum())) + np.repeat(first - before, counts)
        media = self.media.rows(rows, np.repeat(np.arange(index.size), counts))
        return type(self)(self.text_tokens[index], media, self.size_bytes[index])

    @classmethod
    def concat(cls, parts: Sequence[Samples]) -> Self:
        """All samples of `parts`, one after the other."""
        if not parts:
            return cls(np.zeros(0, np.int64), MediaArrays.none(), np.zeros(0, np.int64))
        shift = np.cumsum([0, *(len(part) for part in parts[:-1])])
        media = [part.media for part in parts]
        joined = MediaArrays(
            np.concatenate([m.sample + s for m, s in zip(media, shift.tolist(), strict=True)]),
            np.concatenate([m.kind for m in media]),
            np.concatenate([m.width for m in media]),
            np.concatenate([m.height for m in media]),
            np.concatenate([m.frames for m in media]),
            np.concatenate([m.duration for m in media]),
            np.concatenate([m.fps for m in media]),
        )
        text = np.concatenate([part.text_tokens for part in parts])
        return cls(text, joined, np.concatenate([part.size_bytes for part in parts]))

    @classmethod
    def of(
        cls,
        *,
        width: npt.ArrayLike = 0,
        height: npt.ArrayLike = 0,
        frames: npt.ArrayLike | None = None,
        duration: npt.ArrayLike = 0.0,
        fps: npt.ArrayLike = 0.0,
        text_tokens: npt.ArrayLike = 0,
        size_bytes: npt.ArrayLike = 0,
        kind: npt.ArrayLike | None = None,
    ) -> Self:
        """Samples with at most one medium each. Columns of one length [N]; a single number stands for all samples.

        Without `kind` the geometry tells: no width is audio where there is a duration and no medium where there is
        none; several frames or a duration are a video, else it is an image. `frames` defaults to 1 for images and to
        the rounded duration · fps (at least 1) for videos. Raises ValueError on negative or non-finite values.
        """
        given = [width, height, duration, fps, text_tokens, size_bytes]
        given += [0 if frames is None else frames, 0 if kind is None else kind]
        columns = np.broadcast_arrays(*(np.atleast_1d(np.asarray(column)) for column in given))
        if any(column.ndim != 1 or not np.isfinite(column).all() or (column < 0).any() for column in columns):
            raise ValueError("columns of samples must be one-dimensional, finite and not negative")
        wide, high, count, tokens, size = (columns[i].astype(np.int64) for i in (0, 1, 6, 4, 5))
        seconds, rate = (columns[i].astype(np.float64) for i in (2, 3))
        codes = columns[7].astype(np.int8)
        if kind is None:
            timed = (count > 1) | (seconds > 0)
            codes = np.where(wide > 0, np.where(timed, VIDEO, IMAGE), AUDIO).astype(np.int8)
        if frames is None:
            count = np.where(codes == VIDEO, np.maximum(1, np.rint(seconds * rate)), 1).astype(np.int64)
        present = np.flatnonzero(np.where(codes == AUDIO, seconds > 0, wide > 0))
        sound, still = codes == AUDIO, codes == IMAGE
        media = MediaArrays(
            present.astype(np.int64),
            codes[present],
            np.where(sound, 0, wide)[present],
            np.where(sound, 0, high)[present],
            np.where(sound, 0, np.where(still, 1, count))[present],
            np.where(still, 0.0, seconds)[present],
            rate[present],
        )
        return cls(tokens, media, size)
