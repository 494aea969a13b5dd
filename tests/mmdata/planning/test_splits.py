"""Splits: duplicates and groups stay together, shares hold, nothing moves when other data is added."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmdata.planning.splits import assign_splits, duplicate_clusters

NAMES = st.lists(
    st.tuples(st.one_of(st.none(), st.sampled_from("abcdefgh")), st.one_of(st.none(), st.sampled_from("uvwxyz"))),
    max_size=30,
)


def components(rows: list[tuple[str | None, str | None]]) -> list[int]:
    """First row of each row's component, by joining sets until none overlap."""
    label = list(range(len(rows)))
    for _ in rows:
        for i, (digest, group) in enumerate(rows):
            for j in range(i):
                same = (digest is not None and digest == rows[j][0]) or (group is not None and group == rows[j][1])
                if same and label[i] != label[j]:
                    low, high = sorted((label[i], label[j]))
                    label = [low if each == high else each for each in label]
    return label


@given(rows=NAMES)
@settings(max_examples=150, deadline=None)
def test_clusters_are_the_connected_components(rows: list[tuple[str | None, str | None]]) -> None:
    digest = pa.array([row[0] for row in rows], pa.string())
    group = pa.array([row[1] for row in rows], pa.string())
    assert duplicate_clusters(digest, group).tolist() == components(rows)
    assert duplicate_clusters(digest).tolist() == components([(row[0], None) for row in rows])
    assert duplicate_clusters(pa.chunked_array([digest, digest.slice(0, 0)]), group).tolist() == components(rows)


def test_a_long_chain_is_one_cluster() -> None:
    """Rows 2i and 2i+1 share a digest, rows 2i+1 and 2i+2 a group; in shuffled order."""
    order = np.random.default_rng(0).permutation(20_000)
    digest, group = pa.array((order // 2).astype(str)), pa.array(((order + 1) // 2).astype(str))
    assert set(duplicate_clusters(digest, group).tolist()) == {0}


@given(count=st.integers(1, 400), seed=st.integers(0, 99), extra=st.integers(0, 50))
@settings(max_examples=40, deadline=None)
def test_a_cluster_never_parts_and_unrelated_data_moves_nothing(count: int, seed: int, extra: int) -> None:
    keys = [f"k{i}" for i in range(count)]
    digest = pa.array([str(i % (1 + count // 3)) for i in range(count)])
    clusters = duplicate_clusters(digest)
    shares = {"val": 0.2, "test": 0.1}
    split = np.array(assign_splits(pa.array(keys), clusters, shares, seed).to_pylist())
    for number in np.unique(clusters):
        assert len(set(split[clusters == number])) == 1
    more = pa.concat_arrays([pa.array([f"new{i}" for i in range(extra)], pa.string()), digest])
    keys_more = pa.array([f"n{i}" for i in range(extra)] + keys)
    again = assign_splits(keys_more, duplicate_clusters(more), shares, seed).to_pylist()
    assert again[extra:] == split.tolist()


@pytest.mark.parametrize("size", [1, 2, 5])
def test_shares_hold_whatever_the_size_of_clusters(size: int) -> None:
    """30,000 clusters; within four standard deviations of the share."""
    count = 30_000
    keys = pa.array([f"{i}" for i in range(count * size)])
    clusters = duplicate_clusters(pa.array(np.repeat(np.arange(count), size).astype(str)))
    split = np.array(assign_splits(keys, clusters, {"val": 0.05, "test": 0.1}, 7).to_pylist())[::size]
    for name, share in (("val", 0.05), ("test", 0.1), ("train", 0.85)):
        assert abs((split == name).mean() - share) < 4 * np.sqrt(share * (1 - share) / count)


def test_a_larger_share_keeps_the_samples_it_had() -> None:
    keys, clusters = pa.array([str(i) for i in range(5000)]), np.arange(5000)
    small = np.array(assign_splits(keys, clusters, {"val": 0.05}, 1).to_pylist()) == "val"
    large = np.array(assign_splits(keys, clusters, {"val": 0.1}, 1).to_pylist()) == "val"
    assert (large | ~small).all() and large.sum() > small.sum()
    other = np.array(assign_splits(keys, clusters, {"val": 0.05}, 2).to_pylist()) == "val"
    assert not np.array_equal(small, other)


def test_shares_may_name_everything() -> None:
    split = assign_splits(pa.array([str(i) for i in range(999)]), np.arange(999), {"a": 0.7, "b": 0.3}, 0).to_pylist()
    assert set(split) == {"a", "b"}
    assert assign_splits(pa.array(["x"]), [0], {}, 0).to_pylist() == ["train"]
    assert assign_splits(pa.array([], pa.string()), [], {"val": 0.5}, 0).to_pylist() == []


@pytest.mark.parametrize("shares", [{"val": -0.1}, {"val": 0.6, "test": 0.5}, {"val": float("nan")}])
def test_impossible_shares_are_refused(shares: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="shares"):
        assign_splits(pa.array(["a"]), [0], shares, 0)


def test_missing_identities_are_refused() -> None:
    with pytest.raises(ValueError, match="null"):
        assign_splits(pa.array(["a", None]), [0, 1], {"val": 0.5}, 0)
    with pytest.raises(ValueError, match="cluster numbers"):
        assign_splits(pa.array(["a"]), [0, 1], {"val": 0.5}, 0)
