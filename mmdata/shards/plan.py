"""The plan: which sample goes where. A pure function of (recipe, catalog), made before any media is touched.

Every number of it depends on the catalog's columns and the recipe alone, so that any worker, host or rerun has the same
plan.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from mmdata.errors import ConfigError, TesseraError
from mmdata.planning.expressions import filter_reasons, parse
from mmdata.planning.order import derive_key, shuffle_order
from mmdata.planning.packing import pack
from mmdata.planning.shards import cut_shards
from mmdata.planning.splits import assign_splits, duplicate_clusters
from mmdata.recipe import Recipe
from mmdata.schema import FORMAT_VERSION
from mmdata.shards.buckets import Bucket, assign_buckets
from mmdata.shards.catalog import Catalog
from mmdata.shards.dataset import shard_file

MEMBER_OVERHEAD = 1024
"""Bytes a tar adds per member: its header and, on average, half a block of padding, rounded up."""

BYTES_PER_PIXEL = {"keep": 0.35, "jpeg": 0.35, "webp": 0.35, "avif": 0.35, "png": 2.0}
"""What a photograph takes on average (lossy at quality 90), by `encode.image.format`; only shard sizes depend on it."""


@dataclass(frozen=True)
class Reason:
    """Why samples are not in the shards: the stage, the error class or rule, and a sentence."""

    stage: str
    name: str
    text: str


@dataclass(frozen=True)
class PlannedShard:
    """Shard `number` holds the samples `order[start:stop]`."""

    number: int
    file: str
    split: str
    start: int
    stop: int


@dataclass(frozen=True)
class Plan:
    """Arrays run over the M samples that are to be written, in output order; the D dropped ones stand apart."""

    name: str
    format: str
    check: str
    seed: int
    recipe: str
    catalog: str
    fingerprint: str
    read: int
    """Catalog rows: M + D."""
    order: npt.NDArray[np.int64]
    """[M] catalog row of each sample."""
    bucket: npt.NDArray[np.int32]
    """[M] index into `buckets`, -1 without."""
    pack: npt.NDArray[np.int64]
    """[M] pack number, -1 without packing."""
    shards: tuple[PlannedShard, ...]
    buckets: tuple[Bucket, ...]
    dropped: npt.NDArray[np.int64]
    """[D] catalog row of each dropped sample, in catalog order."""
    dropped_reason: npt.NDArray[np.int32]
    """[D] index into `reasons`."""
    reasons: tuple[Reason, ...]
    ignored: dict[str, int] = field(default_factory=dict)
    pack_figures: dict[str, Any] | None = None

    @property
    def dropped_counts(self) -> dict[str, int]:
        """Samples per `stage/reason`."""
        counts = np.bincount(self.dropped_reason, minlength=len(self.reasons))
        return {f"{r.stage}/{r.name}": int(n) for r, n in zip(self.reasons, counts, strict=True) if n}


class _Drops:
    """Collects the first reason that meets each catalog row."""

    def __init__(self, rows: int) -> None:
        self.code = np.full(rows, -1, dtype=np.int32)
        self.reasons: list[Reason] = []

    @property
    def alive(self) -> npt.NDArray[np.bool_]:
        return self.code < 0

    def add(self, mask: npt.NDArray[np.bool_], reason: Reason) -> None:
        """Drop the rows in `mask` that are still alive."""
        hit = mask & self.alive
        if hit.any():
            self.code[hit] = len(self.reasons)
            self.reasons.append(reason)

    def bucket(self, mask: npt.NDArray[np.bool_], name: str, text: str) -> None:
        """Drop rows under a bucket rule."""
        self.add(mask, Reason("bucket", name, text))


def plan_columns(recipe: Recipe, catalog: Catalog) -> list[str]:
    """Catalog columns the plan looks at."""
    columns = {"key", "status", "modality", "size_bytes", "width", "height", "frames", "duration", "text_chars"}
    columns |= {"text_tokens", "digest", "group", "check"}
    for rule in recipe.filters:
        columns |= set(parse(rule.keep).columns)
    if recipe.packing is not None:
        columns.add(recipe.packing.length)
    present = catalog.schema().names
    return [name for name in present if name in columns]


def make_plan(recipe: Recipe, catalog: Catalog) -> Plan:
    """Plan the build of `recipe` from `catalog`.

    Raises:
        ConfigError: a rule names a column the catalog lacks, or a sample does not fit a budget under `oversize: error`.
        TesseraError: no sample survives; the message names the rule that dropped most.
    """
    table = catalog.table(plan_columns(recipe, catalog)).combine_chunks()
    drops = _Drops(table.num_rows)
    _drop_bad(table, drops)
    _drop_repeated_keys(table, drops)
    _drop_filtered(recipe, table, drops)
    buckets, bucket = assign_buckets(recipe, table, drops.alive, drops.bucket)
    rows = np.flatnonzero(drops.alive)
    split, split_names = _splits(recipe, table, rows)
    if recipe.output.order == "shuffle":
        rows = rows[shuffle_order(len(rows), derive_key(recipe.seed, "build"), window=recipe.output.window)]
    apart = split
    if recipe.output.folder_per_bucket:  # a pack lies in one folder
        apart = split.astype(np.int64) * (len(buckets) + 1) + bucket
    rows, packs, figures = _pack(recipe, table, rows, apart, drops)
    if not len(rows):
        raise TesseraError(_nothing_left(recipe, drops, table.num_rows))
    order, packs = _arrange(recipe, rows, packs, split, bucket)
    shards = _shards(recipe, table, order, packs, split, split_names, bucket, buckets)
    dropped = np.flatnonzero(drops.code >= 0)
    return Plan(
        name=recipe.name,
        format=recipe.output.format,
        check=recipe.scan.check,
        seed=recipe.seed,
        recipe=recipe.build_fingerprint(),
        catalog=catalog.fingerprint,
        fingerprint=plan_fingerprint(recipe, catalog),
        read=table.num_rows,
        order=order,
        bucket=bucket[order],
        pack=packs,
        shards=shards,
        buckets=tuple(buckets),
        dropped=dropped,
        dropped_reason=drops.code[dropped],
        reasons=tuple(drops.reasons),
        ignored=catalog.ignored,
        pack_figures=figures,
    )


def plan_fingerprint(recipe: Recipe, catalog: Catalog) -> str:
    """Fingerprint of the plan, known before it is made."""
    text = f"{FORMAT_VERSION}:{recipe.build_fingerprint()}:{catalog.fingerprint}"
    return xxhash.xxh3_128_hexdigest(text.encode())


def _drop_bad(table: pa.Table, drops: _Drops) -> None:
    status = table["status"]
    for name in sorted(pc.unique(status).to_pylist()):
        if name != "ok":
            drops.add(_mask(pc.equal(status, name)), Reason("scan", name, name))


def _drop_repeated_keys(table: pa.Table, drops: _Drops) -> None:
    alive = np.flatnonzero(drops.alive)
    codes = pc.dictionary_encode(_column(table, "key").take(pa.array(alive))).indices.to_numpy()
    _, first = np.unique(codes, return_index=True)
    repeated = np.ones(len(alive), dtype=bool)
    repeated[first] = False
    mask = np.zeros(table.num_rows, dtype=bool)
    mask[alive[repeated]] = True
    text = (
        "another sample before it has the same key; set key_prefix on one of the sources, or choose another key column"
    )
    drops.add(mask, Reason("scan", "RepeatedKey", text))


def _drop_filtered(recipe: Recipe, table: pa.Table, drops: _Drops) -> None:
    if not recipe.filters:
        return
    rules = [(rule.name, parse(rule.keep)) for rule in recipe.filters]
    try:
        failing = filter_reasons(table, rules)
    except ValueError as error:
        raise ConfigError(f"filters: {error}") from None
    for number, rule in enumerate(recipe.filters):
        drops.add(failing == number, Reason("filter", rule.name, f"does not meet '{rule.keep}'"))


def _splits(recipe: Recipe, table: pa.Table, rows: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int32], list[str]]:
    """Split code per catalog row (0 where dropped) and the names."""
    codes = np.zeros(table.num_rows, dtype=np.int32)
    wanted = {"val": recipe.splits.val, "test": recipe.splits.test}
    shares = {name: share for name, share in wanted.items() if share > 0}
    if not shares:
        return codes, [""]
    chosen = table.take(pa.array(rows))
    by_group = recipe.splits.by == "group"
    group = _column(chosen, "group")
    key = _column(chosen, "key")
    clusters = duplicate_clusters(_column(chosen, "digest"), group if by_group else None)
    identity = pc.coalesce(group, key) if by_group else key
    names = ["train", *shares]
    assigned = assign_splits(identity, clusters, shares, derive_key(recipe.seed, "split"), "train")
    codes[rows] = pc.index_in(assigned, pa.array(names)).to_numpy()
    return codes, names


def _pack(
    recipe: Recipe, table: pa.Table, rows: npt.NDArray[np.int64], apart: npt.NDArray[Any], drops: _Drops
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], dict[str, Any] | None]:
    """Samples in pack order with their pack numbers; samples of different `apart` are never in one pack."""
    settings = recipe.packing
    if settings is None:
        return rows, np.full(len(rows), -1, dtype=np.int64), None
    column = _column(table, settings.length)
    missing = _mask(pc.is_null(column))
    drops.add(missing, Reason("pack", "no_length", f"has no {settings.length} to pack by"))
    rows = rows[~missing[rows]]
    lengths = pc.fill_null(column, 0).to_numpy()
    out, numbers, first, fills = [], [], 0, []
    for code in np.unique(apart[rows]):
        own = rows[apart[rows] == code]
        try:
            packs = pack(lengths[own], settings.budget, buffer=settings.buffer, oversize=settings.oversize)
        except ValueError as error:
            raise ConfigError(f"packing: {error}; set packing.oversize to drop, or raise the budget") from None
        over = np.zeros(table.num_rows, dtype=bool)
        over[own[packs.pack < 0]] = True
        text = f"its {settings.length} exceeds the budget of {settings.budget}"
        drops.add(over, Reason("pack", "oversize", text))
        order = packs.order()
        out.append(own[order])
        numbers.append(packs.pack[order] + first)
        first += len(packs)
        fills.append(packs.fill)
    if not out:
        return rows, np.empty(0, dtype=np.int64), None
    fill = np.concatenate(fills)
    figures = {"packs": first, "budget": settings.budget, "mean_fill": round(float(fill.mean()), 6) if first else 0.0}
    return np.concatenate(out), np.concatenate(numbers), figures


def _arrange(
    recipe: Recipe,
    rows: npt.NDArray[np.int64],
    packs: npt.NDArray[np.int64],
    split: npt.NDArray[np.int32],
    bucket: npt.NDArray[np.int32],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Bring samples of one split (and one bucket, with a folder for each) together, otherwise leaving the order."""
    if recipe.output.folder_per_bucket:
        by = np.lexsort((np.arange(len(rows)), bucket[rows], split[rows]))
    else:
        by = np.argsort(split[rows], kind="stable")
    return rows[by], packs[by]


def _shards(
    recipe: Recipe,
    table: pa.Table,
    order: npt.NDArray[np.int64],
    packs: npt.NDArray[np.int64],
    split: npt.NDArray[np.int32],
    split_names: list[str],
    bucket: npt.NDArray[np.int32],
    buckets: list[Bucket],
) -> tuple[PlannedShard, ...]:
    output = recipe.output
    sizes = expected_bytes(recipe, table, bucket, buckets)[order]
    per_bucket = bucket[order] if output.folder_per_bucket else None
    number = cut_shards(
        sizes,
        max_bytes=output.max_bytes,
        max_samples=output.max_samples,
        pack=packs if recipe.packing is not None else None,
        split=split[order],
        bucket=per_bucket,
    )
    starts = np.flatnonzero(np.r_[True, number[1:] != number[:-1]])
    stops = np.r_[starts[1:], len(order)]
    counters: dict[tuple[str, str | None], int] = {}
    shards = []
    for serial, (start, stop) in enumerate(zip(starts.tolist(), stops.tolist(), strict=True)):
        name = split_names[split[order[start]]]
        folder = None
        if per_bucket is not None:
            folder = buckets[per_bucket[start]].name if per_bucket[start] >= 0 else "none"
        own = counters.get((name, folder), 0)
        counters[name, folder] = own + 1
        shards.append(
            PlannedShard(serial, shard_file(recipe.name, name, own, output.format, folder), name, start, stop)
        )
    return tuple(shards)


def expected_bytes(
    recipe: Recipe, table: pa.Table, bucket: npt.NDArray[np.int32], buckets: list[Bucket]
) -> npt.NDArray[np.int64]:
    """Bytes each catalog row is expected to take in a shard: its source's, unless a picture is brought to a bucket."""
    size = pc.fill_null(_column(table, "size_bytes"), 0).to_numpy().astype(np.int64)
    chars = pc.fill_null(_column(table, "text_chars"), 0).to_numpy().astype(np.int64)
    if recipe.transforms.image and any(b.modality == "image" and b.width for b in buckets):
        pixels = np.asarray(
            [b.width * b.height if b.modality == "image" and b.width and b.height else 0 for b in buckets]
        )
        format = recipe.encode.image.format
        target = np.where(bucket >= 0, pixels[bucket], 0)
        width, height = (pc.fill_null(_column(table, name), 0).to_numpy() for name in ("width", "height"))
        own = width.astype(np.int64) * height
        made = target * BYTES_PER_PIXEL[format]
        # A picture that shrinks in its own format takes no more than it did.
        made = np.where((format == "keep") & (target <= own), np.minimum(size, made), made)
        size = np.where(target > 0, made, size).astype(np.int64)
    expected: npt.NDArray[np.int64] = size + chars + 2 * MEMBER_OVERHEAD
    return expected


def _nothing_left(recipe: Recipe, drops: _Drops, rows: int) -> str:
    counts = np.bincount(drops.code[drops.code >= 0], minlength=len(drops.reasons))
    worst = drops.reasons[int(np.argmax(counts))]
    return (
        f"none of {rows} samples survives: {int(counts.max())} were dropped at {worst.stage} "
        f"by '{worst.name}' ({worst.text}); loosen that rule"
    )


def _column(table: pa.Table, name: str) -> pa.Array:
    column = table[name]
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _mask(array: Any) -> npt.NDArray[np.bool_]:
    return np.asarray(pc.fill_null(array, False).to_numpy(zero_copy_only=False), dtype=bool)
