"""Blocks: consecutive samples read as one range, the unit of shuffling; and the requests that an order costs.

Pure arithmetic on sizes and places. It knows no store, file name or tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mmdata.planning.order import WindowedOrder, derive_key, keyed_uniform

IntArray = npt.NDArray[np.int64]

BLOCK_BYTES = 1 << 20
GAP_BYTES = 1 << 16
"""Bytes read and thrown away rather than asking twice: at 1 GB/s this is 65 µs, a request is tens of ms."""
_ROWS = 1 << 20


@dataclass(frozen=True, eq=False)
class Blocks:
    """Samples 0..N-1 cut into B runs: samples [B], bytes [B] and shard [B] of each; `counts` is a leaf's `counts`."""

    counts: IntArray
    size_bytes: IntArray
    shard: IntArray

    def __len__(self) -> int:
        return self.counts.size

    def of(self, samples: npt.ArrayLike) -> IntArray:
        """Block of each sample id: int64 of the same shape."""
        return np.searchsorted(np.cumsum(self.counts), np.asarray(samples), side="right").astype(np.int64)


@dataclass(frozen=True)
class Reads:
    """What reading costs: range requests, bytes read and bytes used, distinct samples; `held_bytes` is the most that
    one reader reads (for a window on a node: what that node must hold)."""

    requests: int
    read_bytes: int
    used_bytes: int
    samples: int
    held_bytes: int

    def __add__(self, other: Reads) -> Reads:
        """Both together, by different readers."""
        return Reads(
            self.requests + other.requests,
            self.read_bytes + other.read_bytes,
            self.used_bytes + other.used_bytes,
            self.samples + other.samples,
            max(self.held_bytes, other.held_bytes),
        )

    @property
    def requests_per_sample(self) -> float:
        """GETs a sample; 0 when nothing is read."""
        return self.requests / self.samples if self.samples else 0.0

    @property
    def read_per_used(self) -> float:
        """Bytes read / bytes used; 1 when nothing is used."""
        return self.read_bytes / self.used_bytes if self.used_bytes else 1.0


def offsets_in_shards(size_bytes: npt.ArrayLike, shard: npt.ArrayLike) -> IntArray:
    """Bytes before each sample [N] in its shard, if samples lie end to end; a shard's samples are consecutive."""
    sizes, shards = _columns(size_bytes, shard)
    if not sizes.size:
        return sizes
    before = np.cumsum(sizes) - sizes
    first = np.flatnonzero(np.r_[True, shards[1:] != shards[:-1]])
    return before - np.repeat(before[first], np.diff(np.r_[first, sizes.size]))


def cut_blocks(
    size_bytes: npt.ArrayLike,
    shard: npt.ArrayLike,
    *,
    block_bytes: int = BLOCK_BYTES,
    offset: npt.ArrayLike | None = None,
) -> Blocks:
    """Blocks of samples [N] of `size_bytes` in `shard` [N] (a shard's samples consecutive, in the order they lie).

    A block holds the samples that begin in the same `block_bytes` of their shard: it never spans shards, it is less
    than `block_bytes` plus its last sample, and a sample's block depends on its own offset alone. `offset` [N] is where
    samples begin in their shard; left out, they lie end to end.

    Raises:
        ValueError: arrays of unequal length, a negative size, a shard in pieces, or block_bytes below 1.
    """
    sizes, shards = _columns(size_bytes, shard)
    if block_bytes < 1:
        raise ValueError(f"a block has at least one byte, not {block_bytes}")
    if not sizes.size:
        return Blocks(sizes, sizes.copy(), sizes.copy())
    begins = offsets_in_shards(sizes, shards) if offset is None else np.asarray(offset, np.int64)
    if begins.shape != sizes.shape:
        raise ValueError(f"{sizes.size} samples, but {begins.size} offsets")
    new_shard = shards[1:] != shards[:-1]
    of_shard = shards[np.r_[0, np.flatnonzero(new_shard) + 1]]
    if np.unique(of_shard).size != of_shard.size:
        raise ValueError("a shard's samples must be consecutive: sort the index by shard and offset")
    if (~new_shard & (begins[1:] < begins[:-1])).any():
        raise ValueError("samples must come in the order they lie in their shard: sort the index by shard and offset")
    cell = begins // block_bytes
    first = np.flatnonzero(np.r_[True, new_shard | (cell[1:] != cell[:-1])])
    return Blocks(np.diff(np.r_[first, sizes.size]), np.add.reduceat(sizes, first), shards[first])


def _columns(size_bytes: npt.ArrayLike, shard: npt.ArrayLike) -> tuple[IntArray, IntArray]:
    sizes, shards = np.asarray(size_bytes, np.int64), np.asarray(shard, np.int64)
    if sizes.ndim != 1 or sizes.shape != shards.shape:
        raise ValueError(f"sizes and shards must have one entry a sample, not {sizes.shape} and {shards.shape}")
    if sizes.size and sizes.min() < 0:
        raise ValueError(f"sample {int(sizes.argmin())} has {int(sizes.min())} bytes")
    return sizes, shards


def count_reads(
    shard: npt.ArrayLike,
    offset: npt.ArrayLike,
    size_bytes: npt.ArrayLike,
    reader: npt.ArrayLike,
    *,
    gap_bytes: int = GAP_BYTES,
    request_bytes: int | None = None,
) -> Reads:
    """Requests for the samples [N] (any order) when each `reader` [N] (say, window x nodes + node) asks on its own.

    A reader's samples of one shard that lie at most `gap_bytes` apart are one range, gap included; a range is cut into
    requests of at most `request_bytes`. A sample that a reader needs twice is read once.
    """
    columns = [np.asarray(each, np.int64) for each in (shard, offset, size_bytes, reader)]
    if len({each.shape for each in columns}) != 1 or columns[0].ndim != 1:
        raise ValueError("shards, offsets, sizes and readers must have one entry a sample")
    if gap_bytes < 0 or (request_bytes is not None and request_bytes < 1):
        raise ValueError(f"need gap_bytes >= 0 and request_bytes >= 1, not {gap_bytes} and {request_bytes}")
    if not columns[0].size:
        return Reads(0, 0, 0, 0, 0)
    shards, begins, sizes, readers = _by_place(*columns)
    same = (readers[1:] == readers[:-1]) & (shards[1:] == shards[:-1])
    fresh = np.r_[True, ~(same & (begins[1:] == begins[:-1]))]
    shards, begins, sizes, readers = shards[fresh], begins[fresh], sizes[fresh], readers[fresh]
    ends = begins + sizes
    joined = (readers[1:] == readers[:-1]) & (shards[1:] == shards[:-1]) & (begins[1:] <= ends[:-1] + gap_bytes)
    first = np.flatnonzero(np.r_[True, ~joined])
    last = np.r_[first[1:], begins.size] - 1
    spans = ends[last] - begins[first]
    requests = spans.size if request_bytes is None else int(np.maximum(1, -(-spans // request_bytes)).sum())
    of_reader = np.flatnonzero(np.r_[True, readers[first][1:] != readers[first][:-1]])
    held = int(np.add.reduceat(spans, of_reader).max())
    return Reads(requests, int(spans.sum()), int(sizes.sum()), int(sizes.size), held)


def _by_place(shard: IntArray, offset: IntArray, size: IntArray, reader: IntArray) -> tuple[IntArray, ...]:
    """The columns sorted by reader, shard, offset. One sort where the rows already lie in place, as in an index."""
    in_place = (shard[1:] > shard[:-1]) | ((shard[1:] == shard[:-1]) & (offset[1:] >= offset[:-1]))
    rows = np.argsort(reader, kind="stable") if in_place.all() else np.lexsort((offset, shard, reader))
    return shard[rows], offset[rows], size[rows], reader[rows]


def window_of_blocks(order: WindowedOrder, blocks: int) -> IntArray:
    """Window of `order` that each of its `blocks` is in: int64 [blocks]."""
    out = np.zeros(blocks, np.int64)
    for number in range(len(order)):
        out[order.shards(number)] = number
    return out


def home_of_blocks(order: WindowedOrder, blocks: int, nodes: int) -> IntArray:
    """Node that holds each block: int64 [blocks]. A window's blocks are dealt to the nodes in turn, in their order, so
    that each node holds within one block of the others."""
    if nodes < 1:
        raise ValueError(f"there is at least one node, not {nodes}")
    out = np.zeros(blocks, np.int64)
    for number in range(len(order)):
        shards = order.shards(number)
        out[shards] = np.arange(shards.size) % nodes
    return out


def reads_per_node_count(
    size_bytes: npt.ArrayLike,
    shard: npt.ArrayLike,
    node_counts: Sequence[int],
    *,
    window: int | None,
    key: int,
    away: float = 0.0,
    block_bytes: int = BLOCK_BYTES,
    gap_bytes: int = GAP_BYTES,
    offset: npt.ArrayLike | None = None,
    windows: int | None = None,
) -> dict[int, Reads]:
    """Requests of a pass over samples [N], by number of nodes, when windows of `window` blocks are read one at a time.

    A block's samples go to the node that holds it, but for the share `away` (drawn by sample) that balancing sends to
    any node alike: 0 is perfect affinity, 1 none. A realised deal gives its own `away`. `windows` looks at so many of
    the first windows only.
    """
    if not 0 <= away <= 1:
        raise ValueError(f"away is a share of the samples, 0 to 1, not {away}")
    sizes, shards = _columns(size_bytes, shard)
    begins = offsets_in_shards(sizes, shards) if offset is None else np.asarray(offset, np.int64)
    blocks = cut_blocks(sizes, shards, block_bytes=block_bytes, offset=begins)
    order = WindowedOrder(blocks.counts, window, key)
    in_window = window_of_blocks(order, len(blocks))
    homes = {nodes: home_of_blocks(order, len(blocks), nodes) for nodes in node_counts}
    out = {nodes: Reads(0, 0, 0, 0, 0) for nodes in node_counts}
    for members in _some_windows(order, len(order) if windows is None else min(windows, len(order))):
        rows, block = _rows_of(blocks, members)
        strays = keyed_uniform(rows, derive_key("away", key)) < away
        anywhere = keyed_uniform(rows, derive_key("anywhere", key))
        for nodes in node_counts:
            node = np.where(strays, (anywhere * nodes).astype(np.int64), homes[nodes][block])
            reader = in_window[block] * nodes + node
            out[nodes] += count_reads(shards[rows], begins[rows], sizes[rows], reader, gap_bytes=gap_bytes)
    return out


def _some_windows(order: WindowedOrder, windows: int) -> Iterator[IntArray]:
    """Blocks, ascending, of a few whole windows at a time: about `_ROWS` samples, so that memory stays that of one."""
    first = 0
    while first < windows:
        after = int(np.searchsorted(order.starts, order.starts[first] + _ROWS, side="right")) - 1
        after = min(max(after, first + 1), windows)
        yield np.sort(np.concatenate([order.shards(number) for number in range(first, after)]))
        first = after


def _rows_of(blocks: Blocks, members: IntArray) -> tuple[IntArray, IntArray]:
    """Sample ids of the blocks `members`, in place order, and the block of each."""
    counts = blocks.counts[members]
    begin = (np.cumsum(blocks.counts) - blocks.counts)[members]
    inside = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.repeat(begin, counts) + inside, np.repeat(members, counts)
