"""Packing: whole samples put together so that each pack fills its budgets (tokens, patches, seconds), never exceeding.

A sample is never cut here: its media spans stay whole. The packer holds a bounded number of samples, so it works on a
stream as on a table, and it draws no random numbers: the order of the input is the only shuffle.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Method = Literal["best_fit", "first_fit_decreasing", "greedy"]
Oversize = Literal["error", "drop", "truncate"]
IntArray = npt.NDArray[np.int64]
Number = npt.NDArray[Any]

_TIGHT = 1 / 32
"""With several budgets: the share of a budget below which the pack is about to end on that axis."""
_LOOK = 16
"""With several budgets: samples looked at in one list before a shorter one is sought."""


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
    fits (equal ones oldest first) until none does. So no sample waits longer than `buffer` packs. With several budgets
    the largest on the axis with most room as a share, and near a pack's end on the one with least.
    `first_fit_decreasing`: each run of `buffer` samples is sorted and packed by itself. `greedy`: input order, a new
    pack when the next sample does not fit.
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
    if limits.size == 1:
        return _best_fit_one(sizes, limits, buffer, cap)
    return (_best_fit_two if limits.size == 2 else _best_fit_many)(sizes, limits, buffer, cap)


def _best_fit_one(sizes: Number, limits: Number, buffer: int, cap: int) -> IntArray:
    """Held samples lie in one sorted list of integer keys, so that each step is a call or two into C."""
    column = _Column(sizes[:, 0], limits[0].item())
    key, length, shift, mask, grades = column.key, column.length, column.shift, column.mask, column.grades
    count = len(key)
    number = [-1] * count
    held = sorted(key[:buffer])
    following, oldest, packs = len(held), 0, 0
    while oldest < count:
        if number[oldest] >= 0:
            oldest += 1
            continue
        index, taken = oldest, 1
        del held[bisect_left(held, key[oldest])]
        room = column.limit
        while True:
            number[index] = packs
            room -= length[index]
            if following < count:
                insort(held, key[following])
                following += 1
            if taken == cap:
                break
            place = bisect_left(held, (room + 1 if grades is None else bisect_right(grades, room)) << shift)
            if not place:
                break
            index = ~held.pop(place - 1) & mask
            taken += 1
        packs += 1
    return np.array(number, np.int64)


def _best_fit_many(sizes: Number, limits: Number, buffer: int, cap: int) -> IntArray:
    """A sorted list an axis holds the samples. A pack starts with the oldest. Then the axes are gone through, the
    emptiest first, so that all fill alike; once an axis has less than `_TIGHT` left the fullest first, so that the one
    that ends the pack ends it full. Of each the `_LOOK` largest that fit on it are looked at, and the first that fits
    on all goes in; else the largest on the axis on which fewest fit; the pack ends when there is none."""
    columns = _columns(sizes, limits)
    keys, lengths, mask = [column.key for column in columns], [column.length for column in columns], columns[0].mask
    count = len(sizes)
    number = [-1] * count
    lists = [sorted(key[:buffer]) for key in keys]
    following, oldest, packs = min(buffer, count), 0, 0
    while oldest < count:
        if number[oldest] >= 0:
            oldest += 1
            continue
        index, taken = oldest, 0
        room = [column.limit for column in columns]
        while index >= 0:
            number[index] = packs
            for axis, held in enumerate(lists):
                del held[bisect_left(held, keys[axis][index])]
                room[axis] -= lengths[axis][index]
                if following < count:
                    insort(held, keys[axis][following])
            following += 1
            taken += 1
            if taken == cap:
                break
            left = [have / column.limit for have, column in zip(room, columns, strict=True)]
            axes = sorted(range(len(left)), key=left.__getitem__, reverse=min(left) >= _TIGHT)
            upto = [column.bound(held, have) for column, held, have in zip(columns, lists, room, strict=True)]
            fewest = upto.index(min(upto))
            for axis, most in [*((axis, _LOOK) for axis in axes), (fewest, upto[fewest])]:
                places = range(upto[axis] - 1, max(upto[axis] - most, 0) - 1, -1)
                near = (~lists[axis][place] & mask for place in places)
                index = next((each for each in near if _fits(lengths, each, room)), -1)
                if index >= 0:
                    break
        packs += 1
    return np.array(number, np.int64)


def _fits(lengths: list[list[float]], index: int, room: list[float]) -> bool:
    return all(length[index] <= have for length, have in zip(lengths, room, strict=True))


def _best_fit_two(sizes: Number, limits: Number, buffer: int, cap: int) -> IntArray:
    """What `_best_fit_many` does, for the usual case: written out for two axes it takes a third of the time."""
    one, two = _columns(sizes, limits)
    x, y, key_x, key_y, mask = one.length, two.length, one.key, two.key, one.mask
    held_x, held_y = sorted(key_x[:buffer]), sorted(key_y[:buffer])
    count = len(x)
    number = [-1] * count
    following, oldest, packs = len(held_x), 0, 0
    while oldest < count:
        if number[oldest] >= 0:
            oldest += 1
            continue
        index, taken, room_x, room_y = oldest, 0, one.limit, two.limit
        while index >= 0:
            number[index] = packs
            del held_x[bisect_left(held_x, key_x[index])], held_y[bisect_left(held_y, key_y[index])]
            room_x -= x[index]
            room_y -= y[index]
            if following < count:
                insort(held_x, key_x[following])
                insort(held_y, key_y[following])
                following += 1
            taken += 1
            if taken == cap:
                break
            left_x, left_y = room_x / one.limit, room_y / two.limit
            upto_x, upto_y = one.bound(held_x, room_x), two.bound(held_y, room_y)
            if left_x <= left_y if left_x < _TIGHT or left_y < _TIGHT else left_x >= left_y:
                index = _look(held_x, upto_x, _LOOK, mask, y, room_y)
                if index < 0:
                    index = _look(held_y, upto_y, _LOOK, mask, x, room_x)
            else:
                index = _look(held_y, upto_y, _LOOK, mask, x, room_x)
                if index < 0:
                    index = _look(held_x, upto_x, _LOOK, mask, y, room_y)
            if index < 0 and upto_x > _LOOK < upto_y:
                if upto_x <= upto_y:
                    index = _look(held_x, upto_x, upto_x, mask, y, room_y)
                else:
                    index = _look(held_y, upto_y, upto_y, mask, x, room_x)
        packs += 1
    return np.array(number, np.int64)


def _look(held: list[int], upto: int, most: int, mask: int, other: list[float], room: float) -> int:
    """Of the first `upto` keys the largest whose sample fits in `room` on the `other` axis, among the `most` largest;
    -1 when none does."""
    for place in range(upto - 1, max(upto - most, 0) - 1, -1):
        index = ~held[place] & mask
        if other[index] <= room:
            return index
    return -1


def _columns(sizes: Number, limits: Number) -> list[_Column]:
    shares = (sizes / limits.astype(np.float64)).sum(axis=1)
    return [_Column(sizes[:, axis], limits[axis].item(), shares) for axis in range(limits.size)]


class _Column:
    """One axis: its lengths, and a key a sample that sorts by length, then by `second` (in 256 grades), oldest last.

    A key is grade << shift | second << bits | mask - index. The grade is the length itself where that is whole and the
    key stays within 62 bits, else its rank among the distinct lengths, which are `grades`.
    """

    def __init__(self, length: Number, limit: Any, second: Number | None = None) -> None:
        bits = max(1, len(length).bit_length())
        self.limit, self.mask, self.shift = limit, (1 << bits) - 1, bits + (0 if second is None else 8)
        self.length: list[float] = length.tolist()
        self.grades: list[float] | None = None
        grade = length
        if length.dtype.kind == "f" or math.log2(limit) + self.shift > 61:
            distinct, grade = np.unique(length, return_inverse=True)
            self.grades = distinct.tolist()
        key = (grade.astype(np.int64) << self.shift) | (self.mask - np.arange(len(length)))
        if second is not None and len(second):
            key |= (second * (255.0 / max(second.max(), 1e-300))).astype(np.int64) << bits
        self.key: list[int] = key.tolist()

    def bound(self, held: list[int], room: Any) -> int:
        """How many of the sorted keys are of samples not longer than `room`."""
        return bisect_left(held, (room + 1 if self.grades is None else bisect_right(self.grades, room)) << self.shift)


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
