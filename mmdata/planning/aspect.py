"""2-D and 3-D buckets: which shape (width, height, frames) a picture or clip goes to, and what that costs it.

Everything is measured in log space, where 3:4 is as far from 1:1 as 4:3 is and half the size as far as double. Geometry
comes from columns and is upright; nothing here opens media. `aspect_choice.py` chooses the shapes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

Mode = Literal["cover", "contain", "exact"]
IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

REASONS = ("kept", "no_geometry", "max_crop", "max_pad", "max_upscale", "max_distortion", "max_trim")
"""Names of the reason codes of `Assignment.reason`; all but the first are rules that drop a sample."""

FULL_SIZE = 0.75
"""Shapes with at least this share of the pixels of the largest count as the same resolution: that is how far lattices
of common steps (32, 64) spread."""
_FULLER = 0.1
"""Weight of the size that a shape within `FULL_SIZE` lacks: enough to prefer the fuller of two of like aspect."""
_SLACK = 1e-9
"""Costs closer than this are ties, and go to the lower bucket; bounds hold up to it."""
_CHUNK = 1 << 14


@dataclass(frozen=True, slots=True)
class CostWeights:
    """Weight of each part of the cost. Waste counts as the share of pixels, 1 - exp(-gap) of the gap in log space, so
    that a sum of costs is the waste of the data set; the others are natural logarithms, where 0.69 is a factor of two.
    """

    crop: float = 1.0
    """Share of the source's pixels that is cut away."""
    pad: float = 1.0
    """Share of the bucket's pixels (and frames) that holds nothing."""
    upscale: float = 1.0
    """Linear enlargement, the mean of both axes: ln(factor), 0 when the picture shrinks."""
    distortion: float = 1.0
    """Change of aspect ratio: ln(factor)."""
    trim: float = 1.0
    """Frames left out: -ln(share that is kept)."""
    shrink: float = 1.0
    """Detail lost to a shape smaller than the picture and than full resolution: ln(linear factor), see FULL_SIZE."""


class Parts(NamedTuple):
    """Parts of the cost in natural logarithms, arrays of one broadcast shape."""

    crop: FloatArray
    pad: FloatArray
    upscale: FloatArray
    distortion: FloatArray
    trim: FloatArray


@dataclass(frozen=True, eq=False)
class Assignment:
    """Where each of N samples goes and what it costs; the parts are NaN where the sample is dropped."""

    bucket: npt.NDArray[np.int32]
    """[N] row of `AspectBuckets.shapes`, -1 = dropped."""
    reason: npt.NDArray[np.int8]
    """[N] index into REASONS: 0 kept, else the rule that the nearest bucket breaks most."""
    crop: npt.NDArray[np.float32]
    """[N] share of the source's pixels that is cut away, 0..1."""
    pad: npt.NDArray[np.float32]
    """[N] share of the bucket's pixels and frames that is padding, 0..1."""
    upscale: npt.NDArray[np.float32]
    """[N] linear enlargement, 1 = none."""
    distortion: npt.NDArray[np.float32]
    """[N] change of aspect ratio as a factor, 1 = none."""
    trim: npt.NDArray[np.float32]
    """[N] share of the source's frames that is left out, 0..1."""

    def counts(self, buckets: int) -> IntArray:
        """Samples in each bucket, int64 [buckets]."""
        return np.bincount(self.bucket[self.bucket >= 0], minlength=buckets).astype(np.int64)

    def dropped(self) -> dict[str, int]:
        """Dropped samples by rule; rules that dropped none are left out."""
        counts = np.bincount(self.reason, minlength=len(REASONS))
        return {name: int(n) for name, n in zip(REASONS[1:], counts[1:], strict=True) if n}


@dataclass(frozen=True, eq=False)
class AspectBuckets:
    """Shapes, how a sample is fitted to its shape, and the bounds within which that is allowed.

    `cover` scales until the shape is covered and crops, `contain` scales until the picture is inside and pads, `exact`
    stretches. Clips longer than the shape are trimmed, shorter ones padded, in every mode.
    """

    shapes: IntArray
    """[K, 2] (width, height) or [K, 3] (width, height, frames); any integer sequence is taken."""
    mode: Mode = "cover"
    max_crop: float | None = None
    """Largest share of the source's pixels that may be cut away, 0..1; None = any."""
    max_upscale: float | None = None
    """Largest linear enlargement, >= 1; None = any."""
    max_distortion: float | None = None
    """Largest change of aspect ratio as a factor, >= 1; None = any."""
    max_pad: float | None = None
    """Largest share of the bucket that may be padding, 0..1; None = any."""
    max_trim: float | None = None
    """Largest share of the source's frames that may be left out, 0..1; None = any."""
    weights: CostWeights = field(default_factory=CostWeights)
    reason: str | None = None
    """Why there are fewer shapes than were asked for."""

    def __post_init__(self) -> None:
        shapes = np.asarray(self.shapes)
        if shapes.ndim != 2 or shapes.shape[1] not in (2, 3) or not len(shapes) or shapes.dtype.kind not in "iu":
            raise ValueError("shapes are rows of (width, height) or (width, height, frames), all whole numbers")
        if shapes.min() < 1:
            raise ValueError(f"a shape has no pixels: {shapes[(shapes < 1).any(axis=1)][0].tolist()}")
        if len(np.unique(shapes, axis=0)) < len(shapes):
            raise ValueError("two buckets have the same shape")
        if self.mode not in ("cover", "contain", "exact"):
            raise ValueError(f"mode is cover, contain or exact, not {self.mode!r}")
        for name in ("max_crop", "max_pad", "max_trim"):
            share = getattr(self, name)
            if share is not None and not 0 <= share < 1:
                raise ValueError(f"{name} is a share in [0, 1), not {share}")
        for name in ("max_upscale", "max_distortion"):
            factor = getattr(self, name)
            if factor is not None and not factor >= 1:
                raise ValueError(f"{name} is a factor of at least 1, not {factor}")
        object.__setattr__(self, "shapes", shapes.astype(np.int64))

    def __len__(self) -> int:
        return len(self.shapes)

    def label(self, bucket: int) -> str:
        """Name of a bucket, `512x384` or `512x384x17`."""
        return "x".join(map(str, self.shapes[bucket].tolist()))

    def assign(self, width: npt.ArrayLike, height: npt.ArrayLike, frames: npt.ArrayLike | None = None) -> Assignment:
        """The cheapest bucket within all bounds for each sample: `width`, `height` [N], `frames` [N] where the shapes
        have frames. Missing, non-positive or NaN geometry is dropped as `no_geometry`."""
        size, valid = self._log_sizes(width, height, frames)
        shapes, top = self._log_shapes()
        bucket = np.full(valid.size, -1, np.int32)
        for start in range(0, valid.size, _CHUNK):
            part = size[:, start : start + _CHUNK]
            best = np.full(part.shape[1], np.inf)
            for number, shape in enumerate(shapes):
                cost, excess = self.cost(part, shape, top)
                better = (cost < best - _SLACK) & (excess <= _SLACK)
                best = np.where(better, cost, best)
                bucket[start : start + _CHUNK][better] = number
        bucket[~valid] = -1
        reason = np.where(valid, 0, 1).astype(np.int8)
        lost = np.flatnonzero(valid & (bucket < 0))
        if lost.size:
            reason[lost] = self._nearest(size[:, lost])[1]
        return self._describe(bucket, reason, size)

    def explain(self, width: int, height: int, frames: int | None = None) -> list[dict[str, Any]]:
        """Every bucket as a candidate for one sample, best first: `bucket`, `shape`, the parts (`crop`, `pad`, `trim`
        as shares, `upscale`, `distortion` as factors), `cost`, `fits`, `broken` (names of the bounds it breaks)."""
        size, valid = self._log_sizes([width], [height], None if frames is None else [frames])
        if not valid[0]:
            raise ValueError(f"no usable geometry: width {width}, height {height}, frames {frames}")
        shapes, top = self._log_shapes()
        rows = []
        for number, shape in enumerate(shapes):
            parts = _parts(size, shape, self.mode)
            over = {name: float(np.ravel(x)[0]) for name, x in self._excess(parts).items()}
            cost = round(float(self.cost(size, shape, top)[0][0]), 9)
            rows.append(
                {
                    "bucket": number,
                    "shape": self.label(number),
                    **{name: float(np.ravel(value)[0]) for name, value in _natural(parts).items()},
                    "cost": cost,
                    "fits": all(x <= _SLACK for x in over.values()),
                    "broken": sorted((name for name, x in over.items() if x > _SLACK), key=lambda name: -over[name]),
                    "excess": sum(max(0.0, x) for x in over.values()),
                }
            )
        return sorted(rows, key=lambda row: (not row["fits"], row["excess"] if not row["fits"] else 0.0, row["cost"]))

    def nearest_miss(self, width: int, height: int, frames: int | None = None) -> dict[str, Any] | None:
        """The bucket that a dropped sample misses by least, as a row of `explain`; None when the sample fits one."""
        first = self.explain(width, height, frames)[0]
        return None if first["fits"] else first

    def cost(self, size: FloatArray, shape: FloatArray, top: float) -> tuple[FloatArray, FloatArray]:
        """(weighted cost, largest excess over a bound) of logarithmic sizes against logarithmic shapes, both with the
        axes (width, height[, frames]) first; they broadcast. `top` is the log pixel count of full resolution."""
        parts, weights = _parts(size, shape, self.mode), self.weights
        area = shape[0] + shape[1]
        short = 0.5 * (top - area)
        full = short <= -0.5 * math.log(FULL_SIZE) + _SLACK
        lost = np.maximum(0.5 * (np.minimum(size[0] + size[1], top) - area), 0.0)
        cost = weights.shrink * np.where(full, _FULLER * short, lost)
        # The mean enlargement of the two axes, and shapes of full resolution as if equally large: else small pictures
        # would pull all shapes to their least size, and would be padded to be enlarged less.
        levelled = np.maximum(0.5 * (area - (size[0] + size[1])) + np.where(full, short, 0.0), 0.0)
        wasted = {"crop": -np.expm1(-parts.crop), "pad": -np.expm1(-parts.pad)}
        for name, value in {**parts._asdict(), **wasted, "upscale": levelled}.items():
            if np.ndim(value):
                cost = cost + getattr(weights, name) * value
        excess = np.full(cost.shape, -np.inf)
        for over in self._excess(parts).values():
            excess = np.maximum(excess, over)
        return cost, excess

    def _excess(self, parts: Parts) -> dict[str, FloatArray]:
        """How far each part is over its bound (log units; negative inside), for the bounds that are set."""
        bounds = {
            "max_crop": (parts.crop, None if self.max_crop is None else -math.log1p(-self.max_crop)),
            "max_pad": (parts.pad, None if self.max_pad is None else -math.log1p(-self.max_pad)),
            "max_upscale": (parts.upscale, None if self.max_upscale is None else math.log(self.max_upscale)),
            "max_distortion": (
                parts.distortion,
                None if self.max_distortion is None else math.log(self.max_distortion),
            ),
            "max_trim": (parts.trim, None if self.max_trim is None else -math.log1p(-self.max_trim)),
        }
        return {name: value - limit for name, (value, limit) in bounds.items() if limit is not None}

    def _nearest(self, size: FloatArray) -> tuple[IntArray, npt.NDArray[np.int8]]:
        """(bucket, reason) of the bucket that breaks the bounds by least in sum, and the bound it breaks most."""
        least = np.full(size.shape[1], np.inf)
        bucket = np.zeros(size.shape[1], np.int64)
        reason = np.zeros(size.shape[1], np.int8)
        for number, shape in enumerate(self._log_shapes()[0]):
            over = self._excess(_parts(size, shape, self.mode))
            table = np.stack([np.broadcast_to(np.maximum(x, 0.0), least.shape) for x in over.values()])
            codes = np.array([REASONS.index(name) for name in over], np.int8)
            total = table.sum(axis=0)
            nearer = total < least - _SLACK
            least = np.where(nearer, total, least)
            bucket[nearer] = number
            reason[nearer] = codes[table.argmax(axis=0)][nearer]
        return bucket, reason

    def _describe(self, bucket: npt.NDArray[np.int32], reason: npt.NDArray[np.int8], size: FloatArray) -> Assignment:
        shapes, _ = self._log_shapes()
        natural = _natural(_parts(size, shapes[bucket].T, self.mode))
        columns = {
            name: np.where(bucket >= 0, np.broadcast_to(value, bucket.shape), np.nan).astype(np.float32)
            for name, value in natural.items()
        }
        return Assignment(bucket, reason, **columns)

    def _log_shapes(self) -> tuple[FloatArray, float]:
        logs: FloatArray = np.log(self.shapes.astype(np.float64))
        return logs, float((logs[:, 0] + logs[:, 1]).max())

    def _log_sizes(
        self, width: npt.ArrayLike, height: npt.ArrayLike, frames: npt.ArrayLike | None
    ) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
        if (self.shapes.shape[1] == 3) != (frames is not None):
            raise ValueError("frames are needed exactly when the shapes have frames")
        return log_sizes(width, height, frames)


def log_sizes(
    width: npt.ArrayLike, height: npt.ArrayLike, frames: npt.ArrayLike | None
) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
    """(ln of width, height[, frames] as [2 or 3, N], validity [N]); invalid rows hold zeros."""
    columns = [np.asarray(x, np.float64) for x in (width, height, frames) if x is not None]
    if any(x.ndim != 1 or x.shape != columns[0].shape for x in columns):
        raise ValueError(f"width, height and frames must be lists of one length, not {[x.shape for x in columns]}")
    size = np.stack(columns)
    valid: npt.NDArray[np.bool_] = np.all(np.isfinite(size) & (size >= 1), axis=0)
    return np.log(np.where(valid, size, 1.0)), valid


def fixed_grid(pixels: int, step: int = 64, max_aspect: float = 2.0, **bounds: Any) -> AspectBuckets:
    """The grid in common use (NovelAI 2022, kohya-ss `make_bucket_resolutions`): for each width on the step, the
    tallest height on the step with at most `pixels` pixels, and the same turned; aspect at most `max_aspect`. `bounds`
    go to `AspectBuckets`."""
    side = math.isqrt(pixels) // step * step
    found = {(side, side)} if side else set()
    for width in range(step, math.isqrt(int(pixels * max_aspect)) + step, step):
        height = pixels // width // step * step
        if height and max(width, height) <= min(width, height) * max_aspect:
            found |= {(width, height), (height, width)}
    if not found:
        raise ValueError(f"no shape on a step of {step} has at most {pixels} pixels")
    return AspectBuckets(np.array(sorted(found, key=lambda shape: (shape[0] / shape[1], shape))), **bounds)


def _parts(size: FloatArray, shape: FloatArray, mode: Mode) -> Parts:
    """Parts of the cost; those a mode cannot have are zero-dimensional zeros."""
    none = np.zeros(())
    scale_x, scale_y = shape[0] - size[0], shape[1] - size[1]
    gap = np.abs(scale_x - scale_y)
    scale = np.minimum(scale_x, scale_y) if mode == "contain" else np.maximum(scale_x, scale_y)
    pad, trim = (gap if mode == "contain" else none), none
    if len(size) > 2:
        longer = size[2] - shape[2]
        pad = pad + np.maximum(-longer, 0.0)
        trim = np.maximum(longer, 0.0)
    crop, distortion = (gap if mode == "cover" else none), (gap if mode == "exact" else none)
    return Parts(crop, pad, np.maximum(scale, 0.0), distortion, trim)


def _natural(parts: Parts) -> dict[str, FloatArray]:
    """Shares and factors from logarithms."""
    return {
        "crop": -np.expm1(-parts.crop),
        "pad": -np.expm1(-parts.pad),
        "upscale": np.exp(parts.upscale),
        "distortion": np.exp(parts.distortion),
        "trim": -np.expm1(-parts.trim),
    }
