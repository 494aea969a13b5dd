"""Cutting into shards: limits, packs, splits; told from a plain loop."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmdata.planning.shards import cut_shards


def plain(units: list[tuple[int, int, str]], max_bytes: int, max_samples: int) -> list[int]:
    """Shard number of each sample, unit by unit: (samples, bytes, split)."""
    numbers: list[int] = []
    shard, held_bytes, held = -1, 0, 0
    split_before = None
    for samples, size, split in units:
        if split != split_before or held_bytes + size > max_bytes or held + samples > max_samples:
            shard, held_bytes, held = shard + 1, 0, 0
        held_bytes, held, split_before = held_bytes + size, held + samples, split
        numbers += [shard] * samples
    return numbers


@given(
    packs=st.lists(st.tuples(st.lists(st.integers(0, 50), min_size=1, max_size=6), st.booleans()), max_size=40),
    max_bytes=st.integers(1, 120),
    max_samples=st.integers(1, 9),
    walls=st.lists(st.integers(0, 40), max_size=3),
)
@settings(max_examples=200, deadline=None)
def test_shards_equal_a_plain_loop(
    packs: list[tuple[list[int], bool]], max_bytes: int, max_samples: int, walls: list[int]
) -> None:
    sizes, pack, split, units = [], [], [], []
    for number, (members, together) in enumerate(packs):
        name = "abcd"[sum(number >= wall for wall in walls)]
        sizes += members
        pack += [number if together else -1] * len(members)
        split += [name] * len(members)
        units += [(len(members), sum(members), name)] if together else [(1, size, name) for size in members]
    found = cut_shards(
        sizes, max_bytes=max_bytes, max_samples=max_samples, pack=pack, split=np.array(split, dtype=object)
    )
    assert found.tolist() == plain(units, max_bytes, max_samples)


def test_limits_are_met_exactly() -> None:
    assert cut_shards([10] * 6, max_bytes=30, max_samples=99).tolist() == [0, 0, 0, 1, 1, 1]
    assert cut_shards([10] * 6, max_bytes=29, max_samples=99).tolist() == [0, 0, 1, 1, 2, 2]
    assert cut_shards([10] * 5, max_bytes=999, max_samples=2).tolist() == [0, 0, 1, 1, 2]


def test_an_oversized_sample_is_alone() -> None:
    assert cut_shards([1, 1, 100, 1, 1], max_bytes=10, max_samples=9).tolist() == [0, 0, 1, 2, 2]
    assert cut_shards([5, 6, 1], max_bytes=10, max_samples=9, pack=[3, 3, -1]).tolist() == [0, 0, 1]


def test_splits_and_buckets_never_share_a_shard() -> None:
    options = {"max_bytes": 100, "max_samples": 100}
    assert cut_shards([1] * 4, **options, split=[0, 0, 1, 1]).tolist() == [0, 0, 1, 1]
    assert cut_shards([1] * 4, **options, bucket=[0, 1, 1, 2]).tolist() == [0, 1, 1, 2]
    assert cut_shards([], **options).tolist() == []


def test_a_torn_pack_is_an_error() -> None:
    options = {"max_bytes": 100, "max_samples": 100}
    with pytest.raises(ValueError, match="pack 7 is in 2 pieces"):
        cut_shards([1] * 3, **options, pack=[7, 8, 7])
    with pytest.raises(ValueError, match="one split and bucket"):
        cut_shards([1] * 2, **options, pack=[7, 7], bucket=[0, 1])
    with pytest.raises(ValueError, match="positive"):
        cut_shards([1], max_bytes=0, max_samples=1)
    with pytest.raises(ValueError, match="one entry per sample"):
        cut_shards([1], **options, split=[1, 2])
