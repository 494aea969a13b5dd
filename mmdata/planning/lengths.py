"""1-D buckets: the edges that waste least padding for lengths in tokens, seconds or frames.

A bucket is named by its edge, and a sample goes to the smallest edge that is not below its length. Lengths come from
columns; nothing here knows what they measure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

LENGTH_REASONS = ("kept", "too_long", "no_length")
"""Names of the reason codes of `assign_lengths`."""


@dataclass(frozen=True, eq=False)
class Edges:
    """Edges of 1-D buckets and what they cost on the lengths they were chosen from."""

    values: npt.NDArray[np.generic]
    """Ascending and distinct [K]; int64 when the lengths (and `multiple_of`) are whole numbers, else float64."""
    padding: float
    """Share of the padded volume that is padding, 0..1."""
    requested: int
    reason: str | None = None
    """Why there are fewer edges than requested; None when there are as many."""

    def __len__(self) -> int:
        return len(self.values)


class LengthAssignment(NamedTuple):
    """Bucket (int32 [N], -1 = dropped) and reason code (int8 [N], index into LENGTH_REASONS) of each sample."""

    bucket: npt.NDArray[np.int32]
    reason: npt.NDArray[np.int8]


class _Histogram(NamedTuple):
    """Distinct lengths ascending and their cumulative weights: `below[i]` is the weight of the first i values."""

    value: FloatArray
    below: FloatArray
    volume: float
    whole: bool


def optimal_edges(
    lengths: npt.ArrayLike,
    count: int,
    *,
    bins: int = 4096,
    weights: npt.ArrayLike | None = None,
    multiple_of: float | None = None,
) -> Edges:
    """The `count` edges with the least padding: min Σ w·(edge(x) - x), by dynamic programme.

    Exact when the lengths have at most `bins` distinct values. Else `bins` values (half spread over the range, half
    over the samples) stand as candidate edges, costed exactly, and a second programme over the values around the
    edges found refines them. `lengths` [N] finite and not negative; `weights` [N] not negative (default 1);
    `multiple_of` rounds edges up. Always `count` distinct edges where as many distinct values exist, else fewer and
    `reason` says so.
    """
    if count < 1:
        raise ValueError(f"at least one edge is needed, not {count}")
    data = _histogram(lengths, weights, multiple_of)
    values = data.value
    if values.size <= count:
        less = f"the lengths have only {values.size} distinct values" if values.size < count else None
        if less and multiple_of is not None:
            less += f" when rounded up to multiples of {multiple_of:g}"
        return _edges(values, data, count, less)
    picks = _candidates(data, max(bins, count))
    edges = picks[_Programme(values[picks], data.below[picks + 1]).solve(count)]
    if picks.size < values.size:
        picks = _around(picks, edges, max(bins, count))
        edges = picks[_Programme(values[picks], data.below[picks + 1]).solve(count)]
    return _edges(values[edges], data, count, None)


def smallest_count(
    lengths: npt.ArrayLike,
    padding: float,
    *,
    bins: int = 4096,
    weights: npt.ArrayLike | None = None,
    multiple_of: float | None = None,
    max_count: int = 1024,
) -> Edges:
    """The fewest edges whose padding share is at most `padding` (0..1); arguments as in `optimal_edges`.

    Raises ValueError when `max_count` edges do not reach it, naming what they do reach.
    """
    if not 0 <= padding < 1:
        raise ValueError(f"a padding share lies in [0, 1), not {padding}")
    curve = padding_curve(lengths, max_count, bins=bins, weights=weights, multiple_of=multiple_of, stop_at=padding)
    if curve[-1] > padding:
        raise ValueError(
            f"padding {padding:.2%} is not reached: {curve.size} edges still pad {curve[-1]:.2%}"
            + (f" (edges are multiples of {multiple_of:g})" if multiple_of else "")
        )
    best = optimal_edges(lengths, curve.size, bins=bins, weights=weights, multiple_of=multiple_of)
    while len(best) > 1:  # the second, finer programme may reach it with an edge less
        fewer = optimal_edges(lengths, len(best) - 1, bins=bins, weights=weights, multiple_of=multiple_of)
        if fewer.padding > padding:
            break
        best = fewer
    return best


def padding_curve(
    lengths: npt.ArrayLike,
    max_count: int,
    *,
    bins: int = 4096,
    weights: npt.ArrayLike | None = None,
    multiple_of: float | None = None,
    stop_at: float = -1.0,
) -> FloatArray:
    """Least padding share for 1, 2, … edges: float64 [<= max_count], ending early where it is at most `stop_at` or
    where every distinct value has its own edge. One programme answers all counts (without the refinement)."""
    data = _histogram(lengths, weights, multiple_of)
    picks = _candidates(data, bins)
    programme = _Programme(data.value[picks], data.below[picks + 1])
    curve: list[float] = []
    for number in range(1, min(max_count, picks.size) + 1):
        padded = programme.layer(number)[0][-1]
        curve.append(_share(float(padded), data.volume))
        if curve[-1] <= stop_at:
            break
    return np.array(curve, np.float64)


def equal_mass_edges(lengths: npt.ArrayLike, count: int) -> Edges:
    """Edges at equal shares of the total length (seconds, tokens): the common method, as in Lhotse's
    `estimate_duration_buckets`, kept for comparison. Edges that fall together are merged."""
    data = _histogram(lengths, None, None)
    mass = np.cumsum(data.value * np.diff(data.below))
    upper = np.searchsorted(mass, mass[-1] * np.arange(1, count + 1) / count * (1 - 1e-12))
    chosen = np.unique(np.minimum(upper, data.value.size - 1))
    less = f"{count - chosen.size} of the edges fall together" if chosen.size < count else None
    return _edges(data.value[chosen], data, count, less)


def assign_lengths(lengths: npt.ArrayLike, edges: Edges | npt.ArrayLike) -> LengthAssignment:
    """Bucket of each length [N]: the smallest edge that is not below it. NaN and negative lengths are `no_length`,
    lengths above the last edge `too_long`; both have bucket -1."""
    values = np.asarray(edges.values if isinstance(edges, Edges) else edges)
    if values.ndim != 1 or not values.size or (np.diff(values) <= 0).any():
        raise ValueError("edges must be a list of ascending, distinct numbers")
    x = np.asarray(lengths)
    bucket = np.searchsorted(values, x, side="left").astype(np.int32)
    absent = np.isnan(x) | (x < 0) if x.dtype.kind == "f" else x < 0
    reason = np.where(absent, np.int8(2), (bucket == values.size).astype(np.int8))
    bucket[reason != 0] = -1
    return LengthAssignment(bucket, reason)


def padding_share(
    lengths: npt.ArrayLike, edges: Edges | npt.ArrayLike, *, weights: npt.ArrayLike | None = None
) -> float:
    """Share of the padded volume that is padding, over the samples that fit: Σ w·(edge - x) / Σ w·edge, in 0..1."""
    values = np.asarray(edges.values if isinstance(edges, Edges) else edges, np.float64)
    x = np.asarray(lengths, np.float64)
    bucket = assign_lengths(x, values).bucket
    kept = bucket >= 0
    w = np.ones(x.size) if weights is None else np.asarray(weights, np.float64)
    return _share(float(w[kept] @ values[bucket[kept]]), float(w[kept] @ x[kept]))


def _share(padded: float, real: float) -> float:
    return max(0.0, (padded - real) / padded) if padded > 0 else 0.0


def _edges(chosen: FloatArray, data: _Histogram, requested: int, reason: str | None) -> Edges:
    upto = data.below[np.searchsorted(data.value, chosen) + 1]
    padded = float(chosen @ np.diff(upto, prepend=0.0))
    values = chosen.astype(np.int64) if data.whole else chosen
    return Edges(values, _share(padded, data.volume), requested, reason)


def _histogram(lengths: npt.ArrayLike, weights: npt.ArrayLike | None, multiple_of: float | None) -> _Histogram:
    x = np.asarray(lengths)
    if x.ndim != 1 or not x.size:
        raise ValueError(f"edges need a list of at least one length, not an array of shape {x.shape}")
    whole = x.dtype.kind in "iub" and (multiple_of is None or float(multiple_of).is_integer())
    value = x.astype(np.float64)
    if not np.isfinite(value).all() or value.min() < 0:
        raise ValueError("lengths must be finite and not negative; leave out samples that have none")
    w = None if weights is None else np.asarray(weights, np.float64)
    if w is not None and (w.shape != x.shape or not np.isfinite(w).all() or w.min() < 0):
        raise ValueError("weights must be finite, not negative, and as many as the lengths")
    volume = float(value.sum() if w is None else w @ value)
    if multiple_of is not None:
        if not multiple_of > 0:
            raise ValueError(f"multiple_of must be positive, not {multiple_of}")
        value = np.ceil(value / multiple_of - 1e-9) * multiple_of
    if w is None:
        distinct, mass = np.unique(value, return_counts=True)
        mass = mass.astype(np.float64)
    else:
        order = np.argsort(value, kind="stable")
        ordered = value[order]
        first = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
        distinct, mass = ordered[first], np.add.reduceat(w[order], first)
    return _Histogram(distinct, np.r_[0.0, np.cumsum(mass)], volume, whole)


def _candidates(data: _Histogram, bins: int) -> IntArray:
    """Indices of at most `bins` values: every value, or half spread evenly over the range and half over the weight."""
    size = data.value.size
    if size <= bins:
        return np.arange(size, dtype=np.int64)
    grid = np.linspace(data.value[0], data.value[-1], bins // 2 + 1)[1:]
    mass = np.linspace(0.0, data.below[-1], bins - bins // 2 + 1)[1:]
    by_range = np.searchsorted(data.value, grid, side="right") - 1
    by_mass = np.searchsorted(data.below[1:], mass * (1 - 1e-12))
    chosen = np.unique(np.minimum(np.r_[by_range, by_mass, size - 1], size - 1))
    return _fill(chosen, bins, size)


def _fill(chosen: IntArray, bins: int, size: int) -> IntArray:
    """Tops up sorted indices to `bins` distinct ones with the lowest that are not among them."""
    if chosen.size >= bins:
        return chosen
    free = np.setdiff1d(np.arange(min(size, bins + chosen.size), dtype=np.int64), chosen, assume_unique=True)
    return np.sort(np.r_[chosen, free[: bins - chosen.size]])


def _around(picks: IntArray, edges: IntArray, bins: int) -> IntArray:
    """Candidates for the second programme: values between each edge's neighbouring candidates, thinned to `bins`."""
    place = np.searchsorted(picks, edges)
    low = picks[np.maximum(place - 1, 0)]
    high = picks[np.minimum(place + 1, picks.size - 1)]
    share = max(2, bins // edges.size)
    near = [np.linspace(a, b, min(share, b - a + 1)).astype(np.int64) for a, b in zip(low, high, strict=True)]
    return np.unique(np.concatenate([*near, edges, picks[-1:]]))


class _Programme:
    """Dynamic programme over candidate edges u_0 < … < u_m with cumulative weight W_j up to and with u_j.

    D_k(j) = min over i < j of D_(k-1)(i) + u_j · (W_j - W_i): the least padded volume of the values up to u_j with
    exactly k edges, the last at u_j. The best i never falls as j grows (the cost is Monge), so a layer is solved by
    divide and conquer, all rows of one depth at a time (Aggarwal et al. 1987 give the linear variant).
    """

    def __init__(self, value: FloatArray, upto: FloatArray) -> None:
        self.value, self.upto = value, upto
        self._layers: list[tuple[FloatArray, npt.NDArray[np.int32]]] = []

    def layer(self, count: int) -> tuple[FloatArray, npt.NDArray[np.int32]]:
        """(D_count, best previous edge) [m]; infinite where fewer than `count` values exist."""
        while len(self._layers) < count:
            if not self._layers:
                self._layers.append((self.value * self.upto, np.full(self.value.size, -1, np.int32)))
            else:
                self._layers.append(self._next(self._layers[-1][0], len(self._layers)))
        return self._layers[count - 1]

    def solve(self, count: int) -> IntArray:
        """Indices of the best `count` edges, ascending; the last value is always one."""
        self.layer(count)
        edges = [self.value.size - 1]
        for number in range(count, 1, -1):
            edges.append(int(self._layers[number - 1][1][edges[-1]]))
        return np.array(edges[::-1], np.int64)

    def _next(self, before: FloatArray, edges_before: int) -> tuple[FloatArray, npt.NDArray[np.int32]]:
        size = self.value.size
        cost = np.full(size, np.inf)
        best = np.full(size, -1, np.int32)
        # Open intervals of rows [first, last] whose best index is known to lie in [low, high].
        first, last = np.array([edges_before]), np.array([size - 1])
        low, high = np.array([edges_before - 1]), np.array([size - 2])
        while first.size:
            middle = (first + last) // 2
            widths = np.minimum(high, middle - 1) - low + 1
            ends = np.cumsum(widths)
            starts = ends - widths
            column = np.arange(ends[-1]) - np.repeat(starts - low, widths)
            row = np.repeat(middle, widths)
            tried = before[column] + self.value[row] * (self.upto[row] - self.upto[column])
            least = np.minimum.reduceat(tried, starts)
            hits = np.flatnonzero(tried == np.repeat(least, widths))
            chosen = column[hits[np.searchsorted(hits, starts)]]
            cost[middle], best[middle] = least, chosen
            first, last = np.r_[first, middle + 1], np.r_[middle - 1, last]
            low, high = np.r_[low, chosen], np.r_[chosen, high]
            open_rows = first <= last
            first, last, low, high = first[open_rows], last[open_rows], low[open_rows], high[open_rows]
        return cost, best
