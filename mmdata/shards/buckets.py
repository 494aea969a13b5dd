"""From the recipe's bucket settings and the catalog's geometry to a bucket per row. The choosing itself is floor
1's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
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
    width, height = (_numbers(table, name, rows, np.int64) for name in ("width", "height"))
    video = isinstance(settings, VideoBuckets)
    frames = _numbers(table, "frames", rows, np.int64) if video else None
    choices = list(settings.frames) if isinstance(settings, VideoBuckets) else None
    chosen = bucket_shapes(settings, width, height, frames, choices, mode=fit_mode(recipe, modality))
    assignment = chosen.assign(width, height, frames)
    for code in np.unique(assignment.reason[assignment.bucket < 0]):
        hit = rows[(assignment.bucket < 0) & (assignment.reason == code)]
        drop(_at(hit, table.num_rows), f"{modality}_{REASONS[code]}", _why(REASONS[code], settings))
    buckets = []
    for shape in chosen.shapes.tolist():
        count = shape[2] if len(shape) > 2 else None
        name = "x".join(str(each) for each in shape)
        buckets.append(Bucket(f"{modality}-{name}", modality, shape[0], shape[1], count))
    return buckets, assignment.bucket


def bucket_shapes(
    settings: ImageBuckets,
    width: npt.NDArray[np.int64],
    height: npt.NDArray[np.int64],
    frames: npt.NDArray[np.int64] | None = None,
    frame_choices: list[int] | None = None,
    *,
    mode: Mode = "cover",
) -> AspectBuckets:
    """The shapes of the recipe: those it lists, or the best for the given geometry (int64 [N] each)."""
    if settings.shapes != "auto":
        counts: list[list[int]] = [[count] for count in frame_choices] if frame_choices else [[]]
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
        frame_choices=frame_choices,
        mode=mode,
        max_crop=settings.max_crop,
        max_upscale=settings.max_upscale,
    )


def fit_mode(recipe: Recipe, modality: str) -> Mode:
    """How the recipe's first `resize` of this modality fits pictures to their bucket; `cover` without one."""
    transforms = recipe.transforms.image if modality == "image" else recipe.transforms.video
    modes: list[Mode] = [each.mode for each in transforms if hasattr(each, "mode")]
    return modes[0] if modes else "cover"


def _why(reason: str, settings: ImageBuckets) -> str:
    return (
        f"fits no bucket: {reason.replace('_', ' ')} (max_crop {settings.max_crop}, max_upscale {settings.max_upscale})"
    )


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
    values = table[column].take(pa.array(rows))
    missing = _mask(pc.is_null(values))
    if missing.any():
        drop(_at(rows[missing], table.num_rows), f"{modality}_no_{column}", f"has no {column} to bucket by")
    lengths = np.asarray(pc.fill_null(values, 0).to_numpy(), dtype=np.float64)
    if settings.edges == "auto":
        present = lengths[~missing]
        if not len(present):
            return [], np.full(len(rows), -1, dtype=np.int32)
        edges = np.asarray(optimal_edges(present, settings.count).values, dtype=np.float64)
        if isinstance(settings, TextBuckets):
            step = settings.multiple_of
            edges = np.unique(np.ceil(edges / step) * step)
    else:
        edges = np.asarray(settings.edges, dtype=np.float64)
    found = np.asarray(assign_lengths(lengths, edges)[0], dtype=np.int32)
    over = (found < 0) & ~missing
    if over.any():
        text = f"its {column} exceeds the largest edge {edges[-1]:g}"
        drop(_at(rows[over], table.num_rows), f"{modality}_too_long", text)
    found[missing] = -1
    if isinstance(settings, AudioBuckets):
        return [Bucket(f"audio-{edge:.3f}s", modality, duration=float(edge)) for edge in edges], found
    return [Bucket(f"text-{edge:.0f}", modality, length=int(edge)) for edge in edges], found


def _numbers(table: pa.Table, name: str, rows: npt.NDArray[np.int64], dtype: Any) -> npt.NDArray[Any]:
    return np.asarray(pc.fill_null(table[name].take(pa.array(rows)), 1).to_numpy(), dtype=dtype)


def _at(rows: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.bool_]:
    mask = np.zeros(count, dtype=bool)
    mask[rows] = True
    return mask


def _mask(array: Any) -> npt.NDArray[np.bool_]:
    return np.asarray(pc.fill_null(array, False).to_numpy(zero_copy_only=False), dtype=bool)
