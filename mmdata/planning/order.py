"""Order: keyed permutations of [0, n) in constant memory, and shuffles inside a window of shards.

Everything is a pure function of (n, key). It knows no dataset, worker, rank or time, so the order is the same wherever,
and however often, it is asked for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

IntArray = npt.NDArray[np.int64]
HashArray = npt.NDArray[np.uint64]

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_ROUNDS = 8
"""Feistel rounds. Four suffice against an observer (Luby and Rackoff 1988); small domains want a few more."""
_TABLE = 4096
"""Up to this many items the permutation is a table of sorted hashes: exactly uniform, 32 KiB."""
_CHUNK = 1 << 15
"""Items worked on at a time, so that the rounds stay in cache."""


def derive_key(*parts: int | str) -> int:
    """A 64-bit key from any parts: seed, leaf, epoch, purpose. Distinct part lists give independent keys.

    BLAKE2b over the typed, length-prefixed parts: stable across processes, machines and PYTHONHASHSEED.
    """
    digest = hashlib.blake2b(digest_size=8, person=b"tessera.order")
    for part in parts:
        if isinstance(part, bool) or not isinstance(part, (int, str)):
            raise TypeError(f"a key is made of int and str parts, not {type(part).__name__}")
        payload = part.encode() if isinstance(part, str) else str(int(part)).encode()
        digest.update(b"%c%d:" % (b"s" if isinstance(part, str) else b"i", len(payload)) + payload)
    return int.from_bytes(digest.digest(), "little")


def mix(values: HashArray) -> HashArray:
    """SplitMix64's finaliser (Steele, Lea and Flood 2014): a bijection of 64-bit words that scrambles every bit."""
    out: HashArray = values ^ (values >> np.uint64(30))
    out *= np.uint64(0xBF58476D1CE4E5B9)
    out ^= out >> np.uint64(27)
    out *= np.uint64(0x94D049BB133111EB)
    out ^= out >> np.uint64(31)
    return out


def hash_keys(keys: npt.NDArray[np.generic] | pa.Array | pa.ChunkedArray | Sequence[str], seed: int) -> HashArray:
    """64-bit hash of each key [N] under `seed`. Strings by xxh3-64 of their UTF-8 bytes, integers by two mixing rounds.

    Raises ValueError on a null key and TypeError on keys that are neither strings nor integers.
    """
    if isinstance(keys, np.ndarray) and keys.dtype.kind in "iu":
        word = np.uint64(derive_key("hash", seed))
        with np.errstate(over="ignore"):
            return mix(mix(keys.astype(np.uint64) + word) ^ np.uint64(derive_key("again", seed)))
    array = keys if isinstance(keys, (pa.Array, pa.ChunkedArray)) else pa.array(keys)
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    if pa.types.is_integer(array.type) and not array.null_count:
        return hash_keys(np.asarray(array), seed)
    if array.null_count:
        raise ValueError(f"{array.null_count} of {len(array)} keys are null; a keyed draw needs a key for every row")
    if len(array) and not (pa.types.is_string(array.type) or pa.types.is_large_string(array.type)):
        raise TypeError(f"keys must be strings or integers, not {array.type}")
    salt = derive_key("hash", seed)
    array = array.cast(pa.large_binary())
    out = np.empty(len(array), np.uint64)
    for start in range(0, len(array), _CHUNK):
        rows = array.slice(start, _CHUNK).to_pylist()
        out[start : start + len(rows)] = [xxhash.xxh3_64_intdigest(row, salt) for row in rows]
    return out


def keyed_uniform(
    keys: npt.NDArray[np.generic] | pa.Array | pa.ChunkedArray | Sequence[str], seed: int
) -> npt.NDArray[np.float64]:
    """One draw in [0, 1) for each key [N] (integers or strings): it depends on (key, seed) alone."""
    return (hash_keys(keys, seed) >> np.uint64(11)).astype(np.float64) * 2.0**-53


class Permutation:
    """A keyed bijection of [0, n), n < 2^63, with random access in both directions and constant memory.

    Above 4,096 items: a Feistel network over the smallest power of two that holds n, with cycle walking (Black and
    Rogaway 2002), so fewer than two evaluations an item on average. Up to 4,096 items: hashes sorted into a table.
    """

    __slots__ = ("_back", "_forth", "_round_keys", "key", "n")

    def __init__(self, n: int, key: int) -> None:
        if not 0 <= n < 1 << 63:
            raise ValueError(f"a permutation needs 0 <= n < 2^63, not {n}")
        self.n, self.key = int(n), int(key)
        seeds = np.array([derive_key("round", self.key, self.n, r) for r in range(_ROUNDS)], np.uint64)
        self._round_keys = seeds
        self._forth: IntArray | None = None
        self._back: IntArray | None = None
        if self.n <= _TABLE:
            with np.errstate(over="ignore"):
                ranks = mix(mix(np.arange(self.n, dtype=np.uint64) * np.uint64(_GAMMA) + seeds[0]) ^ seeds[1])
            self._forth = np.argsort(ranks, kind="stable").astype(np.int64)
            self._back = np.argsort(self._forth, kind="stable").astype(np.int64)

    def __len__(self) -> int:
        return self.n

    def __call__(self, index: npt.ArrayLike) -> IntArray:
        """Item at each position: int64 array of the same shape. Raises IndexError outside [0, n)."""
        return self._walk(index, self._forth, forward=True)

    def inverse(self, item: npt.ArrayLike) -> IntArray:
        """Position of each item: `inverse(p(i)) == i`. Raises IndexError outside [0, n)."""
        return self._walk(item, self._back, forward=False)

    def _walk(self, index: npt.ArrayLike, table: IntArray | None, *, forward: bool) -> IntArray:
        given = np.asarray(index)
        if given.size and given.dtype.kind not in "iu":
            raise TypeError(f"positions must be integers, not {given.dtype}")
        flat: IntArray = given.astype(np.int64).ravel()
        if flat.size and (flat.min() < 0 or flat.max() >= self.n):
            raise IndexError(f"positions must lie in [0, {self.n}), not [{flat.min()}, {flat.max()}]")
        if table is not None:
            return table[flat].reshape(given.shape)
        out = np.empty_like(flat)
        for start in range(0, flat.size, _CHUNK):
            block = self._feistel(flat[start : start + _CHUNK].astype(np.uint64), forward=forward)
            while (outside := np.flatnonzero(block >= np.uint64(self.n))).size:
                block[outside] = self._feistel(block[outside], forward=forward)
            out[start : start + _CHUNK] = block
        return out.reshape(given.shape)

    def _feistel(self, values: HashArray, *, forward: bool) -> HashArray:
        """One pass of the network over b = bits(n - 1): the halves have b // 2 and b - b // 2 bits, each round is an
        xor of one half with a keyed hash of the other and so its own inverse."""
        bits = max(2, (self.n - 1).bit_length())
        low_bits = np.uint64(bits // 2)
        low_mask = np.uint64((1 << (bits // 2)) - 1)
        high_mask = np.uint64((1 << (bits - bits // 2)) - 1)
        low, high = values & low_mask, values >> low_bits
        rounds = range(_ROUNDS) if forward else reversed(range(_ROUNDS))
        with np.errstate(over="ignore"):
            for number in rounds:
                if number % 2 == 0:
                    high ^= mix(low + self._round_keys[number]) & high_mask
                else:
                    low ^= mix(high + self._round_keys[number]) & low_mask
        out: HashArray = (high << low_bits) | low
        return out


class WindowedOrder:
    """Shards in permuted order, cut into windows of `window` shards; samples are permuted inside their window.

    A reader that holds one window at a time touches only its shards: `window` trades locality for shuffling. Sample
    ids count through the shards in their given order. Memory: a few words a shard.
    """

    __slots__ = ("_counts", "_first", "_kept", "_shards", "_starts", "key", "n", "window")

    def __init__(self, counts_per_shard: npt.ArrayLike, window: int | None, key: int) -> None:
        counts = np.asarray(counts_per_shard)
        if counts.ndim != 1 or (counts.size and (counts.dtype.kind not in "iu" or counts.min() < 0)):
            raise ValueError("counts_per_shard must be a list of whole numbers, none negative")
        if window is not None and window < 1:
            raise ValueError(f"a window holds at least one shard, not {window}")
        self._counts: IntArray = counts.astype(np.int64, copy=False)
        self.key = int(key)
        self.window = int(window if window is not None else max(1, counts.size))
        self._first: IntArray = np.cumsum(self._counts) - self._counts
        self._shards = Permutation(counts.size, derive_key("shards", self.key))(np.arange(counts.size))
        cuts = np.arange(0, counts.size, self.window)
        sizes = np.add.reduceat(self._counts[self._shards], cuts) if cuts.size else np.zeros(0, np.int64)
        self._starts: IntArray = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        self.n = int(self._starts[-1])
        self._kept: tuple[int, tuple[Permutation, IntArray, IntArray]] | None = None

    def __len__(self) -> int:
        """Number of windows."""
        return self._starts.size - 1

    def __iter__(self) -> Iterator[IntArray]:
        return (self.samples(number) for number in range(len(self)))

    @property
    def starts(self) -> IntArray:
        """Position of each window's first sample, and n at the end: int64 [windows + 1]."""
        return self._starts

    def shards(self, number: int) -> IntArray:
        """Shards of window `number`, in permuted order: int64 [<= window]."""
        if not 0 <= number < len(self):
            raise IndexError(f"window {number} of {len(self)}")
        return self._shards[number * self.window : (number + 1) * self.window]

    def samples(self, number: int) -> IntArray:
        """Sample ids of window `number` in their order: int64 [samples of its shards]."""
        return self._at(number, np.arange(self._starts[number + 1] - self._starts[number]))

    def between(self, start: int, stop: int) -> IntArray:
        """Sample ids at the positions start..stop-1 of the whole order: int64 [stop - start].

        Works on the windows in reach only. Raises IndexError outside [0, n].
        """
        if not 0 <= start <= stop <= self.n:
            raise IndexError(f"positions [{start}, {stop}) of an order of {self.n} samples")
        parts, number = [np.zeros(0, np.int64)], int(np.searchsorted(self._starts, start, side="right")) - 1
        while start < stop:
            first, end = int(self._starts[number]), min(int(self._starts[number + 1]), stop)
            parts.append(self._at(number, np.arange(start - first, end - first)))
            start, number = end, number + 1
        return np.concatenate(parts)

    def __call__(self, position: npt.ArrayLike) -> IntArray:
        """Sample id at each position of the whole order: int64 of the same shape. Raises IndexError outside [0, n)."""
        given = np.asarray(position)
        flat: IntArray = given.astype(np.int64).ravel()
        if flat.size and (flat.min() < 0 or flat.max() >= self.n):
            raise IndexError(f"positions must lie in [0, {self.n}), not [{flat.min()}, {flat.max()}]")
        window = np.searchsorted(self._starts, flat, side="right") - 1
        by_window = np.argsort(window, kind="stable")
        found, cuts = np.unique(window[by_window], return_index=True)
        out = np.empty_like(flat)
        ends = np.append(cuts[1:], flat.size)
        for number, start, end in zip(found.tolist(), cuts.tolist(), ends.tolist(), strict=False):
            rows = by_window[start:end]
            out[rows] = self._at(number, flat[rows] - self._starts[number])
        return out.reshape(given.shape)

    def _at(self, number: int, position: IntArray) -> IntArray:
        order, ends, shift = self._window(number)
        place = order(position)
        out: IntArray = place + shift[np.searchsorted(ends, place, side="right")]
        return out

    def _window(self, number: int) -> tuple[Permutation, IntArray, IntArray]:
        """A window's permutation, the places where its shards end, and what turns a shard's places into sample ids.

        The last window asked for is kept: most are read in several pieces.
        """
        if self._kept is None or self._kept[0] != number:
            shards = self.shards(number)
            ends = np.cumsum(self._counts[shards])
            order = Permutation(int(ends[-1]), derive_key("window", self.key, number))
            self._kept = number, (order, ends, self._first[shards] - ends + self._counts[shards])
        return self._kept[1]


def windowed_order(counts_per_shard: npt.ArrayLike, window: int | None, key: int) -> WindowedOrder:
    """Order over shards that hold `counts_per_shard` [S] samples; `window` in shards, None for all of them."""
    return WindowedOrder(counts_per_shard, window, key)


def shuffle_order(n: int, key: int, *, window: int | None = None, block: int | None = None) -> IntArray:
    """The whole order of n rows: int64 [n]. Without `window` a full shuffle.

    With `window` (rows): runs of `block` rows (default a sixteenth of the window) are permuted, and the rows are
    shuffled among the blocks of one window, so that a builder reads at most about `window` rows' files at a time.
    """
    if window is None:
        return Permutation(n, key)(np.arange(n))
    if window < 1 or (block is not None and not 1 <= block <= window):
        raise ValueError(f"need 1 <= block <= window, not block {block} and window {window}")
    size = block if block is not None else max(1, window // 16)
    counts = np.full(-(-n // size), size, np.int64)
    if counts.size:
        counts[-1] = n - size * (counts.size - 1)
    order = WindowedOrder(counts, max(1, window // size), key)
    return np.concatenate([*order, np.zeros(0, np.int64)])


@dataclass(frozen=True)
class Locality:
    """What an order keeps of the order its rows lie in, as distances relative to n; a full shuffle gives 1/3 for both.

    `displacement`: mean distance of a row from where it lay. `spread`: mean distance, in the order, between rows that
    lay side by side. Windows of a share w of the shards, shards permuted, give 1/3 and w/3: `3 * spread` is thus the
    share of the data that neighbours are mixed with, and `1 - 3 * spread` the residual locality.
    """

    displacement: float
    spread: float

    @property
    def residual(self) -> float:
        """1 when rows keep their neighbours, 0 (give or take chance) after a full shuffle."""
        return 1.0 - 3.0 * self.spread


def locality(order: npt.ArrayLike) -> Locality:
    """Locality of `order` [n]: the rows, each once, by position. Rows may be any distinct integers in source order.

    Raises ValueError on repeated rows. Fewer than two rows count as fully shuffled.
    """
    rows = np.asarray(order, np.int64)
    position = np.argsort(rows, kind="stable")
    if rows.size > 1 and (np.diff(rows[position]) == 0).any():
        raise ValueError("an order has each row once: take one pass at a time")
    if rows.size < 2:
        return Locality(1 / 3, 1 / 3)
    displacement = np.abs(position - np.arange(rows.size)).mean() / rows.size
    return Locality(float(displacement), float(np.abs(np.diff(position)).mean() / rows.size))
