"""From the recipe's bucket settings and the catalog's geometry to a bucket per row. The choosing itself is floor
1's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mmdata.errors import ConfigError
from mmdata.planning.aspect import REASONS, AspectBuckets, Mode
from mmdata.planning.aspect_choice import choose_aspect_buckets
from mmdata.planning.lengths import assign_lengths, optimal_edges
from mmdata.recipe import AudioBuckets, ImageBuckets, Recipe, TextBuckets, VideoBuckets

TRIED = 256
"""Dropped samples among which the nearest miss is looked for."""

Drop = Callable[[npt.NDArray[np.bool_], str, str], None]
"""Drops rows (mask over the catalog) under a rule name, with a sentence."""


@dataclass(frozen=True)
class Bucket:
    """One bucket. `width`/`height`/`frames` are the shape pictures are brought to, `duration` and `length` upper
    edges."""

    name: str
    modality: str
    width: int | None = None
    height: int | None = None
    frames: int | None = None
    duration: float | None = None
    length: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """The fields that are set."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def assign_buckets(
    recipe: Recipe, table: pa.Table, alive: npt.NDArray[np.bool_], drop: Drop
) -> tuple[list[Bucket], npt.NDArray[np.int32]]:
    """Buckets of all modalities, and each catalog row's index into them (-1: its modality is not bucketed)."""
    buckets: list[Bucket] = []
    codes = np.full(table.num_rows, -1, dtype=np.int32)
    modality = table["modality"]
    for name, settings in (
        ("image", recipe.buckets.image),
        ("video", recipe.buckets.video),
        ("audio", recipe.buckets.audio),
        ("text", recipe.buckets.text),
    ):
        if settings is None:
            continue
        rows = np.flatnonzero(alive & _mask(pc.equal(modality, name)))
        if not len(rows):
            continue
        if isinstance(settings, ImageBuckets):
            own, found = _pictures(settings, name, table, rows, drop, recipe)
        else:
            assert isinstance(settings, AudioBuckets | TextBuckets)
            own, found = _lengths(settings, name, table, rows, drop, recipe)
        codes[rows] = np.where(found >= 0, found + len(buckets), -1)
        buckets += own
    return buckets, codes


def _pictures(
    settings: ImageBuckets,
    modality: str,
    table: pa.Table,
    rows: npt.NDArray[np.int64],
    drop: Drop,
    recipe: Recipe,
) -> tuple[list[Bucket], npt.NDArray[np.int32]]:
    width, height = (_numbers(table, name, rows) for name in ("width", "height"))
    bucket = np.full(len(rows), -1, dtype=np.int32)
    usable = (width >= 1) & (height >= 1)
    frames = choices = None
    if isinstance(settings, VideoBuckets):
        choices = np.asarray(settings.frames, dtype=np.int64)
        left = video_frames(recipe, _numbers(table, "frames", rows), _numbers(table, "duration", rows))
        usable &= ~np.isnan(left)
        frames = np.where(usable, left, 0).astype(np.int64)
        short = usable & (frames < choices[0])
        text = f"has fewer frames than the smallest bucket, {choices[0]}"
        if short.any():
            text += f"; nearest miss: {frames[short].max()} frames"
        drop(_at(rows[short], table.num_rows), f"{modality}_too_few_frames", text)
    what = "width, height or number of frames" if frames is not None else "width or height"
    drop(_at(rows[~usable], table.num_rows), f"{modality}_no_geometry", f"has no {what} to bucket by")
    kept = np.flatnonzero(usable if frames is None or choices is None else usable & (frames >= choices[0]))
    if not len(kept):
        return [], bucket
    sizes = [width[kept].astype(np.int64), height[kept].astype(np.int64)]
    if frames is not None and choices is not None:  # a video goes to the largest frame count that it fills
        sizes.append(choices[np.searchsorted(choices, frames[kept], side="right") - 1])
    try:
        chosen = bucket_shapes(settings, *sizes, mode=fit_mode(recipe, modality))
    except ValueError as error:
        raise ConfigError(f"buckets.{modality}: {error}") from None
    bucket[kept], reason = _assign(chosen, sizes)
    for code in np.unique(reason[reason > 0]):
        hit = np.flatnonzero(reason == code)
        text = _why(REASONS[code], settings, chosen, [size[hit[:TRIED]] for size in sizes])
        drop(_at(rows[kept[hit]], table.num_rows), f"{modality}_{REASONS[code]}", text)
    buckets = []
    for shape in chosen.shapes.tolist():
        count = shape[2] if len(shape) > 2 else None
        name = "x".join(str(each) for each in shape)
        buckets.append(Bucket(f"{modality}-{name}", modality, shape[0], shape[1], count))
    return buckets, bucket


def _assign(
    chosen: AspectBuckets, sizes: list[npt.NDArray[np.int64]]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int8]]:
    """Bucket and reason code of each sample. Clips look only at shapes that they fill."""
    if len(sizes) == 2:
        assignment = chosen.assign(*sizes)
        return assignment.bucket, assignment.reason
    bucket = np.full(len(sizes[0]), -1, dtype=np.int32)
    reason = np.full(len(sizes[0]), REASONS.index("max_pad"), dtype=np.int8)
    for count in np.unique(sizes[2]):
        own = np.flatnonzero(sizes[2] == count)
        filled = np.flatnonzero(chosen.shapes[:, 2] <= count)
        if len(filled):
            assignment = replace(chosen, shapes=chosen.shapes[filled]).assign(*(size[own] for size in sizes))
            bucket[own] = np.where(assignment.bucket >= 0, filled[assignment.bucket], -1)
            reason[own] = assignment.reason
    return bucket, reason


def video_frames(
    recipe: Recipe, frames: npt.NDArray[np.float64], duration: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Frames [N] that the recipe's transforms leave of videos with so many frames and seconds; NaN: not known."""
    with np.errstate(divide="ignore", invalid="ignore"):
        for transform in recipe.transforms.video:
            if hasattr(transform, "remaining"):
                frames, duration = transform.remaining(frames, duration)
    return frames


def audio_seconds(recipe: Recipe, duration: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Seconds [N] that the recipe's transforms leave of recordings this long, as far as their length tells."""
    for transform in recipe.transforms.audio:
        if hasattr(transform, "remaining"):
            duration = transform.remaining(duration)
    return duration


def bucket_shapes(
    settings: ImageBuckets,
    width: npt.NDArray[np.int64],
    height: npt.NDArray[np.int64],
    frames: npt.NDArray[np.int64] | None = None,
    *,
    mode: Mode = "cover",
) -> AspectBuckets:
    """The shapes of the recipe: those it lists, or the best for the given geometry (int64 [N] each; `frames` of a clip
    is the largest of `settings.frames` that it fills)."""
    choices = list(settings.frames) if isinstance(settings, VideoBuckets) else None
    if settings.shapes != "auto":
        counts: list[list[int]] = [[count] for count in choices] if choices else [[]]
        shapes = np.asarray([[*shape, *count] for shape in settings.shapes for count in counts], dtype=np.int64)
        return AspectBuckets(shapes, mode, max_crop=settings.max_crop, max_upscale=settings.max_upscale)
    return choose_aspect_buckets(
        width,
        height,
        count=settings.count,
        pixels=settings.pixels,
        multiple_of=settings.multiple_of,
        max_aspect=settings.max_aspect,
        frames=frames,
        frame_choices=choices,
        mode=mode,
        max_crop=settings.max_crop,
        max_upscale=settings.max_upscale,
        # Only frames can be padding then, and no clip is to get any.
        max_pad=0.0 if choices and mode != "contain" else None,
    )


def fit_mode(recipe: Recipe, modality: str) -> Mode:
    """How the recipe's first `resize` of this modality fits pictures to their bucket; `cover` without one."""
    transforms = recipe.transforms.image if modality == "image" else recipe.transforms.video
    modes: list[Mode] = [each.mode for each in transforms if hasattr(each, "mode")]
    return modes[0] if modes else "cover"


def _why(reason: str, settings: ImageBuckets, chosen: AspectBuckets, sizes: list[npt.NDArray[np.int64]]) -> str:
    """What the bound is, and how near the nearest of these samples came to meeting it."""
    if reason == "max_pad":
        return f"fills none of the {len(chosen)} buckets chosen; raise count, or list shapes"
    part = reason.removeprefix("max_")
    misses = []
    for size in zip(*(each.tolist() for each in sizes), strict=True):
        miss = chosen.nearest_miss(*size)
        if miss is not None:
            misses.append((miss["excess"], miss[part], miss["shape"], "x".join(map(str, size))))
    bound = f"fits no bucket within {reason} {getattr(settings, reason):g}"
    if not misses:
        return bound
    _, value, shape, nearest = min(misses)
    return f"{bound}; nearest miss: {nearest} in {shape} has {part} {value:.3g}"


def _lengths(
    settings: AudioBuckets | TextBuckets,
    modality: str,
    table: pa.Table,
    rows: npt.NDArray[np.int64],
    drop: Drop,
    recipe: Recipe,
) -> tuple[list[Bucket], npt.NDArray[np.int32]]:
    column = "duration" if isinstance(settings, AudioBuckets) else settings.length
    if column not in table.column_names:
        raise ConfigError(f"buckets.{modality}: the catalog has no column '{column}'; add its statistic to scan")
    lengths = _numbers(table, column, rows)
    if isinstance(settings, AudioBuckets):
        lengths = audio_seconds(recipe, lengths)
    missing = np.isnan(lengths)
    if missing.any():
        drop(_at(rows[missing], table.num_rows), f"{modality}_no_{column}", f"has no {column} to bucket by")
    if settings.edges == "auto":
        present = lengths[~missing]
        if not len(present):
            return [], np.full(len(rows), -1, dtype=np.int32)
        step = settings.multiple_of if isinstance(settings, TextBuckets) else None
        edges = np.asarray(optimal_edges(present, settings.count, multiple_of=step).values, dtype=np.float64)
    else:
        edges = np.asarray(settings.edges, dtype=np.float64)
    found = np.asarray(assign_lengths(lengths, edges)[0], dtype=np.int32)
    over = (found < 0) & ~missing
    if over.any():
        text = f"its {column} exceeds the largest edge {edges[-1]:g}; nearest miss: {lengths[over].min():g}"
        drop(_at(rows[over], table.num_rows), f"{modality}_too_long", text)
    found[missing] = -1
    if isinstance(settings, AudioBuckets):
        digits = 3 if len({f"{edge:.3f}" for edge in edges}) == len(edges) else 9
        return [Bucket(f"audio-{edge:.{digits}f}s", modality, duration=float(edge)) for edge in edges], found
    return [Bucket(f"text-{edge:.0f}", modality, length=int(edge)) for edge in edges], found


def _numbers(table: pa.Table, name: str, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """A column of some rows; NaN where it is null."""
    taken = pc.cast(table[name].take(pa.array(rows)), pa.float64())
    return np.asarray(pc.fill_null(taken, np.nan).to_numpy(), dtype=np.float64)


def _at(rows: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.bool_]:
    mask = np.zeros(count, dtype=bool)
    mask[rows] = True
    return mask


def _mask(array: Any) -> npt.NDArray[np.bool_]:
    return np.asarray(pc.fill_null(array, False).to_numpy(zero_copy_only=False), dtype=bool)
