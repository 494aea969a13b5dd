"""Mixture: which sample of which leaf comes next, by weights over samples, tokens, bytes or seconds.

A pure function of the settings and a cursor of a few numbers a leaf. It knows the leaves' counts and asks for the
amounts of the samples it draws; it knows no rows, buckets, ranks or workers.
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from mmdata.planning.order import HashArray, WindowedOrder, derive_key, mix

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
Unit = Literal["samples", "tokens", "bytes", "seconds"]
Amount = Callable[[int, IntArray], npt.NDArray[Any]]
"""(leaf number, sample ids [m]) -> amounts [m] in the mixture's unit."""

_SMALL = 256
"""Leaves of at most this many samples are shuffled whole, many passes at once: they may repeat in every window."""
_PROBE = 64
"""Samples looked at to learn a leaf's mean amount."""


@dataclass(frozen=True, eq=False)
class Leaf:
    """One dataset of a mixture: samples 0..n-1, laid in blocks (or shards) of `counts` [S] samples.

    `weight` counts against the other leaves' weights, in the mixture's unit; 0 leaves it out (until a phase brings it
    in). `max_passes` caps repeats and may be a fraction: 1.5 ends half way through the second pass, to the nearest
    sample (at least one). Raises ValueError on anything else.
    """

    name: str
    counts: npt.ArrayLike
    weight: float = 1.0
    max_passes: float | None = None
    n: int = field(init=False)

    def __post_init__(self) -> None:
        counts = np.asarray(self.counts)
        if counts.ndim != 1 or (counts.size and (counts.dtype.kind not in "iu" or counts.min() < 0)):
            raise ValueError(f"leaf {self.name!r}: counts must be a list of whole numbers, none negative")
        _check_weight(self.name, self.weight)
        if self.max_passes is not None and not (math.isfinite(self.max_passes) and self.max_passes > 0):
            raise ValueError(f"leaf {self.name!r}: max_passes must be above 0 (or left out), not {self.max_passes}")
        object.__setattr__(self, "counts", counts.astype(np.int64, copy=False))
        object.__setattr__(self, "n", int(counts.sum()) if counts.size else 0)

    @property
    def limit(self) -> int | None:
        """Samples drawn in all before the cap; None without one."""
        if self.max_passes is None:
            return None
        return max(1, round(self.max_passes * self.n)) if self.n else 0


def _check_weight(name: str, weight: float) -> None:
    if not (math.isfinite(weight) and weight >= 0):
        raise ValueError(f"leaf {name!r}: a weight is a finite number of at least 0, not {weight}")


@dataclass(frozen=True)
class Cursor:
    """Where a mixture stands, between two samples. Per leaf: pass, position in the pass, virtual start of its next
    sample. `time` is the virtual time of the last sample drawn, `phase` the phase it was drawn in."""

    passes: tuple[int, ...]
    positions: tuple[int, ...]
    starts: tuple[float, ...]
    time: float = 0.0
    phase: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Plain values. JSON keeps them exactly: Python writes the shortest digits that read back as the same float."""
        leaves = [list(row) for row in zip(self.passes, self.positions, self.starts, strict=True)]
        return {"leaves": leaves, "time": self.time, "phase": self.phase}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Cursor:
        """The cursor that `to_dict` wrote. Raises ValueError on anything else."""
        try:
            rows = [(int(turn), int(position), float(start)) for turn, position, start in values["leaves"]]
            time, phase = float(values["time"]), int(values["phase"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"not a mixture's cursor (leaves of [pass, position, start], time, phase): {error}"
            ) from error
        passes, positions, starts = (tuple(column) for column in zip(*rows, strict=True)) if rows else ((), (), ())
        return cls(passes, positions, starts, time, phase)


@dataclass(frozen=True, eq=False)
class Draw:
    """Samples in the order they come: leaf number int16 [m], id int64 [m], pass int32 [m]; and the next cursor."""

    leaf: npt.NDArray[np.int16]
    sample: IntArray
    passes: npt.NDArray[np.int32]
    cursor: Cursor

    def __len__(self) -> int:
        return self.sample.size


@dataclass(eq=False)
class _Queue:
    """A leaf's next samples, as many as were asked for: `start` has one entry more than the others."""

    weight: float
    begin: int
    left: int | None
    start: FloatArray
    middle: FloatArray = field(default_factory=lambda: np.zeros(0))
    sample: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    passes: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))

    @property
    def open(self) -> bool:
        """Whether more samples can be asked for."""
        return self.left is None or self.sample.size < self.left

    @property
    def reach(self) -> float:
        """Virtual time up to which this queue is known."""
        if not self.open:
            return math.inf
        return float(self.middle[-1]) if self.middle.size else -math.inf


class Mixture:
    """Leaves interleaved by weight: weighted fair queueing (Demers, Keshav and Shenker 1989) in virtual time.

    A sample of amount a in a leaf of weight w fills a / w of its leaf's virtual time; samples come in the order of the
    middles of those spans, ties by leaf number. So at every moment each leaf has had its weight's worth to within half
    a sample: |amount drawn - weight * time| <= largest amount / 2, while it lasts. A leaf is read in passes, each
    complete before the next, in an order keyed by (seed, name, pass). A leaf at its cap leaves its weight to the rest.

    One leaf without a cap is an epoch: it ends with its pass, and `next_epoch` begins the next. With several leaves
    (or a cap) `draw` goes on through passes and ends only when every leaf with weight is at its cap.

    Zero amounts: a sample without tokens or bytes counts as one; one without seconds is an error, because a leaf of
    text would fill the mixture if no time passed.

    `window` is in blocks of `counts` (None: all). `phases` are (first step, weights of the leaves named): leaves not
    named keep what they had. At a change the part of a sample that a leaf is ahead or behind is kept, in the unit; a
    leaf that comes in joins at the present time.
    """

    def __init__(
        self,
        leaves: Sequence[Leaf],
        *,
        seed: int,
        unit: Unit = "samples",
        window: int | None = None,
        phases: Sequence[tuple[int, Mapping[str, float]]] = (),
    ) -> None:
        if unit not in get_args(Unit):
            raise ValueError(f"a mixture is weighed by one of {', '.join(get_args(Unit))}, not {unit!r}")
        if not 1 <= len(leaves) < 1 << 15:
            raise ValueError(f"a mixture has 1 to 32767 leaves, not {len(leaves)}")
        if window is not None and window < 1:
            raise ValueError(f"a window holds at least one block, not {window}")
        self.leaves, self.seed, self.unit, self.window = tuple(leaves), int(seed), unit, window
        self.names = tuple(leaf.name for leaf in leaves)
        for name in self.names:
            if self.names.count(name) > 1:
                raise ValueError(f"two leaves are named {name!r}; the name keys a leaf's order, so it must be its own")
        self._steps, self._weights = self._read_phases(phases)
        self.epochs = len(leaves) == 1 and leaves[0].max_passes is None
        """True for one leaf without a cap: a draw ends with the pass."""
        for leaf, weights in zip(self.leaves, zip(*self._weights, strict=True), strict=True):
            if not leaf.n and any(weights) and not self.epochs:
                raise ValueError(f"leaf {leaf.name!r} has no samples: leave it out, or give it weight 0")
        self._orders: dict[tuple[int, int], WindowedOrder] = {}
        self._means: list[float | None] = [1.0 if unit == "samples" else None] * len(leaves)

    def _read_phases(
        self, phases: Sequence[tuple[int, Mapping[str, float]]]
    ) -> tuple[list[int], list[tuple[float, ...]]]:
        steps, weights = [0], [tuple(float(leaf.weight) for leaf in self.leaves)]
        for step, changes in phases:
            if step < 0 or (len(weights) > 1 and step <= steps[-1]):
                raise ValueError(f"phases begin at rising steps from 0 on, not {[each for each, _ in phases]}")
            if unknown := sorted(set(changes) - set(self.names)):
                raise ValueError(
                    f"the phase at step {step} names {unknown[0]!r}; the leaves are {', '.join(self.names)}"
                )
            for name, weight in changes.items():
                _check_weight(name, weight)
            steps.append(int(step))
            weights.append(tuple(float(changes.get(n, w)) for n, w in zip(self.names, weights[-1], strict=True)))
        for number, (step, row) in enumerate(zip(steps, weights, strict=True)):
            replaced = number == 0 and len(steps) > 1 and steps[1] == 0
            if not any(row) and not replaced:
                raise ValueError(f"every leaf has weight 0 from step {step} on; give at least one a weight")
        return steps, weights

    def fingerprint(self) -> str:
        """Hex digest of all that the order depends on: two mixtures of equal fingerprint draw alike."""
        digest = hashlib.blake2b(digest_size=16)
        digest.update(repr((self.seed, self.unit, self.window, self._steps, self._weights)).encode())
        for leaf in self.leaves:
            digest.update(repr((leaf.name, leaf.max_passes)).encode())
            digest.update(np.asarray(leaf.counts, "<i8").tobytes())
        return digest.hexdigest()

    @property
    def total(self) -> int | None:
        """Samples until the end (of the epoch); None when it is endless. With phases, at most so many."""
        if self.epochs:
            return self.leaves[0].n
        used = [leaf for leaf, row in zip(self.leaves, zip(*self._weights, strict=True), strict=True) if any(row)]
        limits = [leaf.limit for leaf in used]
        return None if None in limits else sum(limit or 0 for limit in limits)

    def weights(self, step: int = 0) -> dict[str, float]:
        """Weights in force at `step`, by leaf."""
        return dict(zip(self.names, self._weights[self._phase(step)], strict=True))

    def _phase(self, step: int) -> int:
        return max(0, bisect_right(self._steps, step) - 1)

    def start(self, epoch: int = 0) -> Cursor:
        """The cursor before the first sample; of epoch `epoch` for one leaf without a cap."""
        if epoch < 0 or (epoch and not self.epochs):
            raise ValueError(f"epoch {epoch}: only one leaf without a cap has epochs, from 0 on")
        return Cursor((epoch,) * len(self.leaves), (0,) * len(self.leaves), (0.0,) * len(self.leaves))

    def next_epoch(self, cursor: Cursor) -> Cursor:
        """The cursor at the beginning of the epoch after the cursor's."""
        return self.start(cursor.passes[0] + 1)

    def draw(self, cursor: Cursor, n: int, amount: Amount | None = None, *, step: int = 0) -> Draw:
        """The next `n` samples, fewer only at the end; by the weights in force at `step`.

        `amount(leaf, ids)` gives amounts in the mixture's unit; it is asked for the samples drawn and a few beyond,
        and not at all when weighing by samples or with one leaf. Drawing n in one or several calls gives the same.

        Raises:
            ValueError: the cursor is of other leaves, or an amount is missing, negative or (seconds) zero.
        """
        if n < 0:
            raise ValueError(f"cannot draw {n} samples")
        if amount is None and self.unit != "samples" and len(self.leaves) > 1:
            raise ValueError(f"a mixture by {self.unit} needs the samples' {self.unit}")
        queues = self._queues(cursor, self._phase(step))
        self._fill(queues, cursor.time, n, amount)
        middles = np.concatenate([queue.middle for queue in queues.values()]) if queues else np.zeros(0)
        leaf = np.repeat(np.fromiter(queues, np.int16), [queue.sample.size for queue in queues.values()])
        rows = np.argsort(middles, kind="stable")[:n]
        if not rows.size:
            return Draw(np.zeros(0, np.int16), np.zeros(0, np.int64), np.zeros(0, np.int32), cursor)
        samples = np.concatenate([queue.sample for queue in queues.values()])
        passes = np.concatenate([queue.passes for queue in queues.values()])
        taken = np.bincount(leaf[rows], minlength=len(self.leaves)).tolist()
        after = self._advance(cursor, queues, taken, float(middles[rows[-1]]), self._phase(step))
        return Draw(leaf[rows], samples[rows], passes[rows].astype(np.int32), after)

    def _queues(self, cursor: Cursor, phase: int) -> dict[int, _Queue]:
        """An empty queue for each leaf with weight and samples left, its start carried over into the phase."""
        if len(cursor.passes) != len(self.leaves) or not 0 <= cursor.phase < len(self._steps):
            raise ValueError(
                f"the cursor is of {len(cursor.passes)} leaves in phase {cursor.phase}; this mixture has "
                f"{len(self.leaves)} leaves and {len(self._steps)} phases"
            )
        queues = {}
        for number, leaf in enumerate(self.leaves):
            position = cursor.positions[number]
            if cursor.passes[number] < 0 or not 0 <= position <= leaf.n:
                raise ValueError(f"the cursor stands at sample {position} of leaf {leaf.name!r}, which has {leaf.n}")
            begin = cursor.passes[number] * leaf.n + position
            left = leaf.n - position if self.epochs else None if leaf.limit is None else leaf.limit - begin
            old, new = self._weights[cursor.phase][number], self._weights[phase][number]
            start = cursor.starts[number]
            if phase != cursor.phase and old != new:
                start = cursor.time + ((start - cursor.time) * (old / new) if old and new else 0.0)
            if new and leaf.n and (left is None or left > 0):
                queues[number] = _Queue(new, begin, left, np.array([start]))
        return queues

    def _advance(
        self, cursor: Cursor, queues: Mapping[int, _Queue], taken: Sequence[int], time: float, phase: int
    ) -> Cursor:
        passes, positions, starts = list(cursor.passes), list(cursor.positions), list(cursor.starts)
        for number, queue in queues.items():
            n = self.leaves[number].n
            passes[number], positions[number] = divmod(queue.begin + taken[number], n)
            if self.epochs and not positions[number]:
                passes[number], positions[number] = passes[number] - 1, n
            starts[number] = float(queue.start[taken[number]])
        return Cursor(tuple(passes), tuple(positions), tuple(starts), time, phase)

    def _fill(self, queues: Mapping[int, _Queue], time: float, n: int, amount: Amount | None) -> None:
        """Asks for samples until the first `n` are certain: none unknown could come before them.

        How many to ask for follows from the means seen so far; that decides only the work, never the result.
        """
        while queues:
            horizon, last = min((queue.reach, number) for number, queue in queues.items())
            if horizon == math.inf:
                return
            known = sum(
                int(np.searchsorted(queue.middle, horizon, side="right" if number <= last else "left"))
                for number, queue in queues.items()
            )
            if known >= n:
                return
            rates = {number: queue.weight / (self._means[number] or 1.0) for number, queue in queues.items()}
            going = sum(rate for number, rate in rates.items() if queues[number].open)
            until = max(horizon, time) + (n - known) / going
            for number, queue in queues.items():
                missing = 0.0 if not queue.open else (until - max(queue.reach, time)) * rates[number]
                if self._means[number] is None:
                    self._extend(number, queue, _PROBE, amount)
                elif number == last or missing > 0:
                    need = max(missing, 0.0)
                    self._extend(number, queue, int(min(need + 3 * math.sqrt(need) + 8, n + 8)), amount)

    def _extend(self, number: int, queue: _Queue, count: int, amount: Amount | None) -> None:
        begin = queue.begin + queue.sample.size
        count = count if queue.left is None else min(count, queue.left - queue.sample.size)
        sample, passes = self._samples(number, begin, count)
        if self.unit == "samples" or len(self.leaves) == 1 or amount is None:
            amounts = np.ones(count)
        else:
            amounts = self._amounts(number, sample, amount)
        spans = amounts / queue.weight
        start = np.add.accumulate(np.concatenate([queue.start[-1:], spans]))
        queue.middle = np.concatenate([queue.middle, start[:-1] + 0.5 * spans])
        queue.start = np.concatenate([queue.start, start[1:]])
        queue.sample = np.concatenate([queue.sample, sample])
        queue.passes = np.concatenate([queue.passes, passes])
        self._means[number] = float(queue.start[-1] - queue.start[0]) * queue.weight / queue.sample.size

    def _amounts(self, number: int, sample: IntArray, amount: Amount) -> FloatArray:
        amounts = np.asarray(amount(number, sample), np.float64)
        name = self.leaves[number].name
        if amounts.shape != sample.shape:
            raise ValueError(
                f"leaf {name!r}: {sample.size} samples were asked for their {self.unit}, {amounts.shape} came"
            )
        least = 0.0 if self.unit != "seconds" else np.nextafter(0.0, 1.0)
        wrong = np.flatnonzero(~(np.isfinite(amounts) & (amounts >= least)))
        if wrong.size:
            raise ValueError(
                f"leaf {name!r}: sample {sample[wrong[0]]} has {amounts[wrong[0]]:g} {self.unit}, so the mixture "
                f"cannot be weighed by {self.unit}; weigh by samples, or filter such samples out"
            )
        return amounts if self.unit == "seconds" else np.maximum(amounts, 1.0)

    def _samples(self, number: int, begin: int, count: int) -> tuple[IntArray, IntArray]:
        """Sample ids and passes of a leaf's places begin..begin+count-1, counted through all passes."""
        n = self.leaves[number].n
        first, last = begin // n, (begin + count - 1) // n
        if n <= _SMALL:
            rows = self._small(number, first, last - first + 1)
            offset = begin - first * n
            return rows.ravel()[offset : offset + count], (np.arange(offset, offset + count) // n) + first
        samples = [
            self._order(number, turn).between(max(begin - turn * n, 0), min(begin + count - turn * n, n))
            for turn in range(first, last + 1)
        ]
        return np.concatenate(samples), np.repeat(np.arange(first, last + 1), [part.size for part in samples])

    def _order(self, number: int, turn: int) -> WindowedOrder:
        """The order of a leaf's pass, the last two of each leaf kept: a cache, never a state."""
        if (number, turn) not in self._orders:
            for old in sorted(key for key in self._orders if key[0] == number)[:-1]:
                del self._orders[old]
            leaf = self.leaves[number]
            self._orders[number, turn] = WindowedOrder(leaf.counts, self.window, self._key(leaf.name, turn))
        return self._orders[number, turn]

    def _key(self, name: str, turn: int) -> int:
        return derive_key("leaf", self.seed, name, turn)

    def _small(self, number: int, first: int, turns: int) -> IntArray:
        """Whole passes of a small leaf: [turns, n], each row the samples sorted by a hash of (seed, name, pass, id)."""
        leaf = self.leaves[number]
        if leaf.n == 1:
            return np.zeros((turns, 1), np.int64)
        keys: HashArray = np.array([self._key(leaf.name, first + turn) for turn in range(turns)], np.uint64)
        with np.errstate(over="ignore"):
            ranks = mix(mix(keys[:, None] + np.arange(1, leaf.n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)))
        order: IntArray = np.argsort(ranks, axis=1, kind="stable").astype(np.int64)
        return order
