"""Splits by hash: stable under added data, and never parting duplicates or groups. Arrow arrays in, arrays out."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mmdata.planning.order import hash_keys, keyed_uniform

IntArray = npt.NDArray[np.int64]


def duplicate_clusters(digest: pa.Array | pa.ChunkedArray, group: pa.Array | pa.ChunkedArray | None = None) -> IntArray:
    """Cluster number of each of N samples: int64 [N], the index of the cluster's first sample.

    Samples of equal digest, or of equal group, are in one cluster, and so on through chains of both. A null joins
    nothing.
    """
    links = [_first_equal(digest)]
    if group is not None:
        links.append(_first_equal(group))
    label = np.arange(len(digest), dtype=np.int64)
    while True:
        before = label.copy()
        for link in links:
            lowest = np.full(len(label), len(label), dtype=np.int64)
            np.minimum.at(lowest, link, label)
            label = lowest[link]
        label = label[label]
        if np.array_equal(label, before):
            return label


def _first_equal(values: pa.Array | pa.ChunkedArray) -> IntArray:
    """Index of the first sample with an equal value; a null's own index."""
    array = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    codes = pc.fill_null(pc.dictionary_encode(array).indices, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    own = np.arange(len(codes), dtype=np.int64)
    present = codes >= 0
    first = np.full(int(codes.max(initial=-1)) + 1, len(codes), dtype=np.int64)
    np.minimum.at(first, codes[present], own[present])
    own[present] = first[codes[present]]
    return own


def assign_splits(
    identity: pa.Array | pa.ChunkedArray,
    clusters: npt.ArrayLike,
    shares: Mapping[str, float],
    seed: int,
    rest: str = "train",
) -> pa.Array:
    """Split name of each of N samples, as a string array [N].

    `identity` holds the key (or group) that is hashed, `clusters` [N] the numbers of `duplicate_clusters`. A cluster
    goes where the member with the lowest hash goes by a second, independent hash (the lowest draw itself would favour
    the first split): the split of a sample without duplicates depends on its own identity, `seed` and `shares` alone.
    A larger share keeps the samples that a smaller one had, where the shares before it are unchanged.

    Raises:
        ValueError: a share is negative, they sum to more than 1, or an identity is null.
    """
    edges = np.cumsum(list(shares.values()), dtype=np.float64)
    if any(not share >= 0 for share in shares.values()) or edges[-1:].sum() > 1 + 1e-9:
        raise ValueError(f"shares must not be negative nor sum to more than 1, not {dict(shares)}")
    number = np.asarray(clusters, dtype=np.int64)
    rank = hash_keys(identity, seed)
    if number.shape != rank.shape:
        raise ValueError(f"{len(rank)} identities but {number.shape} cluster numbers")
    lowest = np.full(int(number.max(initial=-1)) + 1, np.iinfo(np.uint64).max, np.uint64)
    np.minimum.at(lowest, number, rank)
    draw = keyed_uniform(lowest[number], seed)
    code = np.searchsorted(edges, draw, side="right")
    names = [*shares, rest] if not shares or edges[-1] < 1 - 1e-9 else [*shares, [*shares][-1]]
    return pa.array(names, pa.string()).take(pa.array(code))
