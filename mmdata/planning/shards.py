"""Cut an ordered run of samples into shards by bytes and count. Arrays in, arrays out."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]


def cut_shards(
    size_bytes: npt.ArrayLike,
    *,
    max_bytes: int,
    max_samples: int,
    pack: npt.ArrayLike | None = None,
    split: npt.ArrayLike | None = None,
    bucket: npt.ArrayLike | None = None,
) -> IntArray:
    """Shard number of each sample: int64 [N], never decreasing, from 0 without gaps.

    A shard ends before the sample that would bring it over `max_bytes` or `max_samples`; a sample (or pack) that alone
    is larger gets a shard of its own. Consecutive samples of equal `pack` number [N] are never parted (-1: no pack);
    samples of different `split` or `bucket` [N] never share a shard: the caller brings equal ones together.

    Raises:
        ValueError: a limit is not positive, the arrays differ in length, or a pack's samples are not consecutive or
            differ in split or bucket.
    """
    sizes = np.asarray(size_bytes, dtype=np.int64)
    if max_bytes < 1 or max_samples < 1:
        raise ValueError(f"max_bytes and max_samples must be positive, not {max_bytes} and {max_samples}")
    barriers = [np.asarray(each) for each in (split, bucket) if each is not None]
    packs = None if pack is None else np.asarray(pack, dtype=np.int64)
    if any(len(each) != len(sizes) for each in (*barriers, *([] if packs is None else [packs]))):
        raise ValueError("sizes, packs, splits and buckets must have one entry per sample")
    if not len(sizes):
        return np.empty(0, dtype=np.int64)
    walls = np.zeros(len(sizes), dtype=bool)
    walls[0] = True
    for each in barriers:
        walls[1:] |= each[1:] != each[:-1]
    starts_unit = walls.copy()
    starts_unit[1:] |= True if packs is None else (packs[1:] != packs[:-1]) | (packs[1:] < 0)
    units = np.flatnonzero(starts_unit)
    if packs is not None:
        _check_packs(packs[units])
    first_of_shard = _cut_units(
        np.add.reduceat(sizes, units), np.diff(np.r_[units, len(sizes)]), walls[units], max_bytes, max_samples
    )
    starts = np.zeros(len(sizes), dtype=np.int64)
    starts[units[first_of_shard]] = 1
    return np.cumsum(starts) - 1


def _check_packs(pack_of_unit: IntArray) -> None:
    """A pack that is more than one unit was torn by the order, a split or a bucket."""
    number, units = np.unique(pack_of_unit[pack_of_unit >= 0], return_counts=True)
    if (units > 1).any():
        raise ValueError(
            f"pack {number[units > 1][0]} is in {units.max()} pieces: its samples must be consecutive and of one split "
            "and bucket"
        )


def _cut_units(
    sizes: IntArray, counts: IntArray, walls: npt.NDArray[np.bool_], max_bytes: int, max_samples: int
) -> IntArray:
    """Index of the first unit of each shard. Jumps from shard to shard by bisection: a step per shard, not per unit."""
    bytes_before: list[int] = np.r_[0, np.cumsum(sizes)].tolist()
    count_before: list[int] = np.r_[0, np.cumsum(counts)].tolist()
    wall_at: list[int] = [*np.flatnonzero(walls).tolist(), len(sizes)]
    firsts, at, wall = [], 0, 0
    while at < len(sizes):
        firsts.append(at)
        while wall_at[wall] <= at:
            wall += 1
        by_bytes = bisect_right(bytes_before, bytes_before[at] + max_bytes, at) - 1
        by_count = bisect_right(count_before, count_before[at] + max_samples, at) - 1
        at = max(min(by_bytes, by_count, wall_at[wall]), at + 1)
    return np.asarray(firsts, dtype=np.int64)
