"""Packing: whole samples put together so that each pack fills its budgets (tokens, patches, seconds), never exceeding.

A sample is never cut here: its media spans stay whole. The packer holds a bounded number of samples, so it works on a
stream as on a table, and it draws no random numbers: the order of the input is the only shuffle.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Method = Literal["best_fit", "first_fit_decreasing", "greedy"]
Oversize = Literal["error", "drop", "truncate"]
IntArray = npt.NDArray[np.int64]
Number = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Packs:
    """Which pack each of N samples is in. Packs are numbered in the order in which they fill."""

    pack: IntArray
    """[N], -1 = dropped because it exceeds a budget."""
    position: npt.NDArray[np.int32]
    """[N] place inside the pack, in input order; -1 = dropped."""
    counts: IntArray
    """[P] samples in each pack."""
    fill: npt.NDArray[np.float64]
    """[P] share of the budget in use, or [P, B] with B budgets."""
    oversize: IntArray
    """Indices of the samples that exceed a budget alone: dropped, or counted at the budget with `truncate`."""

    def __len__(self) -> int:
        return len(self.counts)

    def order(self) -> IntArray:
        """Indices of the packed samples, pack by pack: the order in which a build writes them."""
        by_pack = np.argsort(self.pack, kind="stable")
        return by_pack[np.count_nonzero(self.pack < 0) :].astype(np.int64)


def pack(
    lengths: npt.ArrayLike,
    budget: float | Sequence[float],
    *,
    buffer: int = 1024,
    method: Method = "best_fit",
    oversize: Oversize = "error",
    max_samples: int | None = None,
) -> Packs:
    """Packs samples of `lengths` ([N], or [N, B] with B budgets that all hold at once) into as few packs as it can.

    `best_fit`: up to `buffer` samples are held; a pack starts with the oldest of them and takes the largest that still
    fits until none does. So no sample waits longer than `buffer` packs. `first_fit_decreasing`: each run of `buffer`
    samples is sorted and packed by itself. `greedy`: input order, a new pack when the next sample does not fit.
    `oversize`: `error` raises ValueError, `drop` leaves samples out that exceed a budget alone, `truncate` counts them
    at the budget (the caller cuts them; right for text only). `max_samples` limits the samples in a pack.
    """
    sizes, limits = _check(lengths, budget, buffer, max_samples)
    over = np.flatnonzero((sizes > limits).any(axis=1)).astype(np.int64)
    if over.size and oversize == "error":
        length, most = (", ".join(f"{x:g}" for x in row) for row in (sizes[over[0]], limits))
        raise ValueError(
            f"{over.size} of {len(sizes)} samples exceed the budget alone; the first is sample {over[0]} with {length} "
            f"against {most}; raise the budget, or choose oversize: drop"
        )
    kept = np.arange(len(sizes), dtype=np.int64)
    if oversize == "truncate":
        sizes = np.minimum(sizes, limits)
    elif over.size:
        kept = np.setdiff1d(kept, over, assume_unique=True)
    cap = max_samples if max_samples is not None else len(sizes) + 1
    number = np.full(len(sizes), -1, np.int64)
    number[kept] = _METHODS[method](sizes[kept], limits, buffer, cap)
    return _collect(number, sizes, limits, over, flat=np.ndim(lengths) == 1)


def _check(
    lengths: npt.ArrayLike, budget: float | Sequence[float], buffer: int, max_samples: int | None
) -> tuple[Number, Number]:
    sizes, limits = np.asarray(lengths), np.atleast_1d(np.asarray(budget))
    sizes = sizes[:, None] if sizes.ndim == 1 else sizes
    if sizes.ndim != 2 or limits.ndim != 1 or sizes.shape[1] != limits.size:
        raise ValueError(f"lengths of shape {np.shape(lengths)} do not match {limits.size} budgets")
    if limits.dtype.kind not in "iuf" or not (limits > 0).all():
        raise ValueError(f"every budget must be positive, not {limits.tolist()}")
    if sizes.size and (sizes.dtype.kind not in "iuf" or not np.isfinite(sizes).all() or sizes.min() < 0):
        raise ValueError("lengths must be finite numbers, none negative")
    if buffer < 1 or (max_samples is not None and max_samples < 1):
        raise ValueError(f"buffer ({buffer}) and max_samples ({max_samples}) must be at least 1")
    if sizes.dtype.kind in "iu" and limits.dtype.kind in "iu":
        return sizes.astype(np.int64), limits.astype(np.int64)
    return sizes.astype(np.float64), limits.astype(np.float64)


def _collect(number: IntArray, sizes: Number, limits: Number, over: IntArray, *, flat: bool) -> Packs:
    total = int(number.max(initial=-1)) + 1
    counts = np.bincount(number[number >= 0], minlength=total).astype(np.int64)
    by_pack = np.argsort(number, kind="stable")[np.count_nonzero(number < 0) :]
    position = np.full(number.size, -1, np.int32)
    position[by_pack] = np.arange(by_pack.size) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = np.cumsum(counts) - counts
    used = np.add.reduceat(sizes[by_pack], starts) if total else np.zeros((0, limits.size))
    fill = used / limits.astype(np.float64)
    return Packs(number, position, counts, fill[:, 0] if flat else fill, over)


def _best_fit(sizes: Number, limits: Number, buffer: int, cap: int) -> IntArray:
    return _best_fit_many(sizes, limits, buffer, cap) if limits.size > 1 else _best_fit_one(sizes, limits, buffer, cap)


def _best_fit_one(sizes: Number, limits: Number, buffer: int, cap: int) -> IntArray:
    """Held samples lie in two parallel lists sorted by length, equal lengths oldest first."""
    length: list[float] = sizes[:, 0].tolist()
    budget, count = limits[0].item(), len(length)
    number = [-1] * count
    held: list[float] = []
    index: list[int] = []
    following = oldest = packs = 0
    while oldest < count:
        if number[oldest] >= 0:
            oldest += 1
            continue
        room, taken = budget, 0
        while True:
            while following < count and len(held) < buffer:
                place = bisect_right(held, length[following])
                held.insert(place, length[following])
                index.insert(place, following)
                following += 1
            if taken == 0:
                place = bisect_left(held, length[oldest])
            else:
                place = bisect_right(held, room) - 1
                if place < 0 or taken >= cap:
                    break
                place = bisect_left(held, held[place], 0, place)
            room -= held.pop(place)
            number[index.pop(place)] = packs
            taken += 1
        packs += 1
    return np.array(number, np.int64)


def _best_fit_many(sizes: Number, limits: Number, buffer: int, cap: int) -> IntArray:
    """As with one budget, but the samples are tried by falling dot product of sample and room (after the oldest is in),
    both as shares of the budgets: the emptier axis fills first (Panigrahy et al. 2011, vector bin packing)."""
    count, axes = len(sizes), range(limits.size)
    number = np.full(count, -1, np.int64)
    columns = [np.ascontiguousarray(sizes[:, axis]) for axis in axes]
    held = [column[:buffer].astype(np.float64) for column in columns]  # slots, refilled as packs take from them
    index = np.arange(held[0].size)
    slot_of = np.full(count, -1, np.int64)
    slot_of[: index.size] = index
    following, oldest, packs = index.size, 0, 0
    while oldest < count:
        if number[oldest] >= 0:
            oldest += 1
            continue
        room, batch = limits.tolist(), [int(slot_of[oldest])]
        for axis in axes:
            room[axis] -= held[axis][batch[0]].item()
            held[axis][batch[0]] = np.inf
        if cap > 1:
            batch += _take_in_turn(_by_dot_product(np.arange(index.size), held, room, limits), held, room, cap - 1)
        free = cap
        while batch:
            number[index[batch]] = packs
            free -= len(batch)
            fresh = np.arange(following, min(count, following + len(batch)))
            following += fresh.size
            slots = np.array(batch[: fresh.size], np.int64)
            for axis in axes:
                held[axis][batch] = np.inf
                held[axis][slots] = columns[axis][fresh]
            index[slots], slot_of[fresh] = fresh, slots
            batch = _take_in_turn(slots, held, room, free) if free else []
        packs += 1
    return number


def _by_dot_product(slots: IntArray, held: list[Number], room: list[float], limits: Number) -> IntArray:
    fits = held[0].take(slots) <= room[0]
    for column, left in zip(held[1:], room[1:], strict=True):
        fits &= column.take(slots) <= left
    slots = slots.take(fits.nonzero()[0])
    gain = np.zeros(slots.size)
    for column, left, limit in zip(held, room, limits.tolist(), strict=True):
        gain += column.take(slots) * (left / limit / limit)
    coarse = (gain * (-65535.0 / len(held)) + 65535.0).astype(np.uint16)  # NumPy sorts 16 bits by radix, tenfold faster
    return slots.take(coarse.argsort(kind="stable"))


def _take_in_turn(slots: IntArray, held: list[Number], room: list[float], most: int) -> list[int]:
    """Slots that go in when each is tried once, in turn, at most `most` of them; `room` shrinks in place. A run at a
    time is tried one by one, and what no longer fits is thinned out between the runs."""
    chosen: list[int] = []
    needs = [column.take(slots) for column in held]
    run, two = 8, len(held) == 2  # two budgets are the usual case
    while slots.size:
        columns = [need[:run].tolist() for need in needs]
        for place, used in enumerate(columns[0]):
            if used <= room[0] and (columns[1][place] <= room[1] if two else _fits(columns, place, room)):
                for axis, column in enumerate(columns):
                    room[axis] -= column[place]
                chosen.append(int(slots[place]))
                if len(chosen) == most:
                    return chosen
        slots, needs = slots[run:], [need[run:] for need in needs]
        if not slots.size:
            break
        fits = needs[0] <= room[0]
        for need, left in zip(needs[1:], room[1:], strict=True):
            fits &= need <= left
        keep = fits.nonzero()[0]
        slots, needs = slots.take(keep), [need.take(keep) for need in needs]
        run = 32
    return chosen


def _fits(columns: list[list[float]], place: int, room: list[float]) -> bool:
    return all(column[place] <= left for column, left in zip(columns, room, strict=True))


def _first_fit_decreasing(sizes: Number, limits: Number, buffer: int, cap: int) -> IntArray:
    number = np.full(len(sizes), -1, np.int64)
    packs = 0
    share = (sizes / limits).max(axis=1) if len(sizes) else np.zeros(0)
    for start in range(0, len(sizes), buffer):
        run = start + np.argsort(-share[start : start + buffer], kind="stable")
        room = [np.full(run.size, limit) for limit in limits]
        free = [cap] * run.size
        opened = 1
        for row, used in zip(run.tolist(), sizes[run].tolist(), strict=True):
            fits = room[0][:opened] >= used[0]
            for axis in range(1, len(room)):
                fits &= room[axis][:opened] >= used[axis]
            place = int(fits.argmax())
            if not fits[place]:
                place, opened = opened, opened + 1
            for axis, need in enumerate(used):
                room[axis][place] -= need
            free[place] -= 1
            if not free[place]:
                room[0][place] = -1
            number[row] = packs + place
        packs += opened
    return number


def _greedy(sizes: Number, limits: Number, buffer: int, cap: int) -> IntArray:
    number = np.empty(len(sizes), np.int64)
    rows, budgets = sizes.tolist(), limits.tolist()
    room, taken, packs = list(budgets), 0, 0
    for row, used in enumerate(rows):
        left = [have - need for have, need in zip(room, used, strict=True)]
        if taken and (taken >= cap or min(left) < 0):
            packs, taken = packs + 1, 0
            left = [have - need for have, need in zip(budgets, used, strict=True)]
        room, taken = left, taken + 1
        number[row] = packs
    return number


_METHODS = {"best_fit": _best_fit, "first_fit_decreasing": _first_fit_decreasing, "greedy": _greedy}
