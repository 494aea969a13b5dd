"""Choosing the shapes of 2-D and 3-D buckets from the geometry of the data.

The samples are gathered into cells of like geometry, every shape the lattice allows is a candidate, and the K shapes of
least total cost are sought (weighted k-medians with given candidates). `aspect.py` says what a shape costs a sample.
"""

from __future__ import annotations

from itertools import combinations
from math import comb
from typing import Any

import numpy as np
import numpy.typing as npt

from mmdata.planning.aspect import FULL_SIZE, AspectBuckets, CostWeights, Mode, log_sizes
from mmdata.planning.order import derive_key

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

_CELLS = 2048
_CANDIDATES = 768
_RESTARTS = 16
"""Times three shapes go and one comes by chance, and the search resumes: exchanges alone stop up to 3 % too high.
Fewer on large tables."""
_ON_LINE = 256
"""Columns that the dynamic programme looks at."""
_ENUMERATED = 2000
"""Up to this many sets of shapes are tried one by one: coarse lattices and small counts are exact."""
_DROPPED = 30.0
"""Cost of a sample that no chosen shape takes: far above any cost inside bounds, so that fewest are dropped first."""


def choose_aspect_buckets(
    width: npt.ArrayLike,
    height: npt.ArrayLike,
    *,
    count: int,
    pixels: int | tuple[int, int],
    multiple_of: int = 32,
    max_aspect: float = 2.0,
    frames: npt.ArrayLike | None = None,
    frame_choices: npt.ArrayLike | None = None,
    mode: Mode = "cover",
    max_crop: float | None = None,
    max_upscale: float | None = None,
    max_distortion: float | None = None,
    max_pad: float | None = None,
    max_trim: float | None = None,
    weights: CostWeights | None = None,
    sample_weights: npt.ArrayLike | None = None,
) -> AspectBuckets:
    """The `count` shapes that cost these samples least (crop + padding + upscale + distortion + trim, see CostWeights).

    `width`, `height`, `frames` [N]; rows without geometry do not count. Candidates: sides that are multiples of
    `multiple_of`, aspect ratio at most `max_aspect` either way, `FULL_SIZE`·pixels to `pixels` pixels (per frame), or
    between the two numbers given; times `frame_choices` (default: up to eight frame counts spread over the data).
    Bounds as in `AspectBuckets`. Shapes are sorted by frames, aspect and size; there are fewer than `count`, and
    `reason` says why, when no more candidates exist or no more would hold a sample.
    """
    if count < 1:
        raise ValueError(f"at least one shape is needed, not {count}")
    bounds: dict[str, Any] = {
        "mode": mode,
        "max_crop": max_crop,
        "max_upscale": max_upscale,
        "max_distortion": max_distortion,
        "max_pad": max_pad,
        "max_trim": max_trim,
        "weights": weights or CostWeights(),
    }
    size, valid = log_sizes(width, height, frames)
    if not valid.any():
        raise ValueError("no sample has a usable width and height to choose shapes from")
    mass = np.ones(valid.size) if sample_weights is None else np.asarray(sample_weights, np.float64)
    low, high = (FULL_SIZE * pixels, float(pixels)) if isinstance(pixels, int) else map(float, pixels)
    lattice = shape_lattice(low, high, multiple_of, max_aspect)
    # Beyond full resolution nothing is enlarged (up to e² more where a bound looks at the longer axis), and beyond the
    # longest shape every frame more costs all shapes the same: such samples share cells.
    caps = [float(np.log(high)) + (0.0 if max_upscale is None else 2.0)]
    if frames is not None:
        choices = _frame_choices(np.exp(size[2, valid]), frame_choices)
        lattice = _with_frames(lattice, choices)
        caps.append(float(np.log(choices[-1])) if max_trim is None else np.inf)
    cells, cell_mass = _cells(size[:, valid], mass[valid], caps)
    rule = AspectBuckets(lattice, **bounds)
    lattice = _thin(lattice, cells, cell_mass, rule, np.log(high), levels=1 if isinstance(pixels, int) else 12)
    table = _cost_table(cells, lattice, rule, float(np.log(high)))
    line = None
    if frames is None and isinstance(pixels, int):
        line = (cells[0] - cells[1], np.log(lattice[:, 0] / lattice[:, 1]))
    chosen = lattice[_select(table, cell_mass, count, line)]
    less = None
    if len(chosen) < count:
        scarce = f"only {len(lattice)} shapes are possible" if len(lattice) < count else ""
        less = scarce or f"{len(chosen)} of {len(lattice)} possible shapes cost the samples as little as more would"
    order = np.lexsort((chosen[:, 0] * chosen[:, 1], chosen[:, 0] / chosen[:, 1], chosen[:, -1] * (frames is not None)))
    return AspectBuckets(chosen[order], reason=less, **bounds)


def equal_mass_shapes(
    width: npt.ArrayLike,
    height: npt.ArrayLike,
    *,
    count: int,
    pixels: int,
    multiple_of: int = 32,
    max_aspect: float = 2.0,
    **bounds: Any,
) -> AspectBuckets:
    """Equal numbers of samples by aspect ratio, each bin at the fullest shape nearest its median: a common method, kept
    for comparison. Bins that land on one shape are merged. `bounds` go to `AspectBuckets`."""
    size, valid = log_sizes(width, height, None)
    aspects = np.sort((size[0] - size[1])[valid])
    if not aspects.size:
        raise ValueError("no sample has a usable width and height to choose shapes from")
    lattice = shape_lattice(FULL_SIZE * pixels, pixels, multiple_of, max_aspect)
    area, ratio = lattice.prod(axis=1), np.log(lattice[:, 0] / lattice[:, 1])
    medians = [float(np.median(part)) for part in np.array_split(aspects, count) if part.size]
    best = {int(np.lexsort((-area, np.round(np.abs(ratio - median), 9)))[0]) for median in medians}
    less = f"{count - len(best)} bins land on the same shapes" if len(best) < count else None
    chosen = sorted(best, key=lambda row: (ratio[row], area[row]))
    return AspectBuckets(lattice[chosen], reason=less, **bounds)


def shape_lattice(low: float, high: float, multiple_of: int, max_aspect: float) -> IntArray:
    """All (width, height) [M, 2] on the lattice with low <= pixels <= high and aspect ratio at most `max_aspect`."""
    if multiple_of < 1 or max_aspect < 1 or not 0 < low <= high:
        raise ValueError(
            f"need multiple_of >= 1, max_aspect >= 1 and 0 < low <= high pixels, not {multiple_of}, {max_aspect}, "
            f"{low:g}..{high:g}"
        )
    steps = np.arange(1, int(np.sqrt(high * max_aspect)) // multiple_of + 1, dtype=np.int64) * multiple_of
    found = []
    for width in steps.tolist():
        heights = steps[(steps * width >= low) & (steps * width <= high)]
        heights = heights[(heights <= width * max_aspect + 1e-9) & (heights * max_aspect + 1e-9 >= width)]
        found.append(np.stack([np.full(heights.size, width, np.int64), heights], axis=1))
    lattice = np.concatenate(found) if found else np.zeros((0, 2), np.int64)
    if not len(lattice):
        raise ValueError(
            f"no shape with sides that are multiples of {multiple_of}, aspect ratio at most {max_aspect:g} and "
            f"{low:.0f} to {high:.0f} pixels exists; lower multiple_of or widen the pixels"
        )
    return lattice


def _frame_choices(frames: FloatArray, given: npt.ArrayLike | None) -> IntArray:
    if given is not None:
        choices = np.unique(np.asarray(given))
        if choices.dtype.kind not in "iu" or not choices.size or choices[0] < 1:
            raise ValueError("frame_choices are whole numbers of at least 1")
        return choices.astype(np.int64)
    distinct = np.unique(np.rint(frames).astype(np.int64))
    if distinct.size <= 8:
        return distinct
    return np.unique(np.quantile(np.rint(frames), np.linspace(0, 1, 9)[:-1], method="lower").astype(np.int64))


def _with_frames(lattice: IntArray, choices: IntArray) -> IntArray:
    return np.concatenate([np.repeat(lattice, choices.size, axis=0), np.tile(choices, len(lattice))[:, None]], axis=1)


def _cells(size: FloatArray, mass: FloatArray, caps: list[float]) -> tuple[FloatArray, FloatArray]:
    """(log geometry [2 or 3, C], weight [C]) of at most `_CELLS` cells: exact where few geometries are distinct, else
    cells of the finest log grid that suffices, each at its centre of mass. `caps` limit log pixels and log frames."""
    aspect, area = size[0] - size[1], np.minimum(size[0] + size[1], caps[0])
    axes = [aspect, area, *(np.minimum(axis, cap) for axis, cap in zip(size[2:], caps[1:], strict=True))]
    for step in (0.0, *(0.001 * 2.0**k for k in range(12))):
        if step == 0.0:
            codes = [np.unique(np.round(axis, 9), return_inverse=True)[1].astype(np.int64) for axis in axes]
        else:
            scales = [step, max(step * 8, 0.05), max(step * 8, 0.05)]
            codes = [np.floor(axis / scale).astype(np.int64) for axis, scale in zip(axes, scales, strict=False)]
        joint = np.zeros(aspect.size, np.int64)
        for code in codes:
            joint = joint * (int(code.max() - code.min()) + 1) + (code - code.min())
        distinct, cell = np.unique(joint, return_inverse=True)
        if distinct.size <= _CELLS:
            break
    weight = np.bincount(cell, mass)
    shared = np.maximum(weight, 1e-300)
    centre = [np.bincount(cell, mass * axis) / shared for axis in axes]
    size_of_cell: FloatArray = np.stack([(centre[1] + centre[0]) / 2, (centre[1] - centre[0]) / 2, *centre[2:]])
    held = weight > 0
    return size_of_cell[:, held], np.asarray(weight[held], np.float64)


def _cost_table(cells: FloatArray, lattice: IntArray, rule: AspectBuckets, top: float) -> FloatArray:
    """Cost of each cell with each shape [C, M], `_DROPPED` where a bound forbids it."""
    logs = np.log(lattice.astype(np.float64)).T
    cost, excess = rule.cost(cells[:, :, None], logs[:, None, :], top)
    table: FloatArray = np.where(excess <= 1e-9, np.minimum(cost, _DROPPED), _DROPPED)
    return table


def _thin(
    lattice: IntArray, cells: FloatArray, mass: FloatArray, rule: AspectBuckets, top: float, *, levels: int
) -> IntArray:
    """At most `_CANDIDATES` shapes: half are the best shape of most samples, half the fullest of a grid over aspect,
    pixels and frames."""
    if len(lattice) <= _CANDIDATES:
        return lattice
    least, best = np.full(mass.size, np.inf), np.zeros(mass.size, np.int64)
    for start in range(0, len(lattice), 512):
        table = _cost_table(cells, lattice[start : start + 512], rule, top)
        column = table.argmin(axis=1)
        value = table[np.arange(mass.size), column]
        better = value < least - 1e-9
        least, best = np.where(better, value, least), np.where(better, column + start, best)
    won = np.bincount(best, mass, minlength=len(lattice))
    first = np.lexsort((np.arange(len(lattice)), -np.round(won, 6)))[: _CANDIDATES // 2]
    first = first[won[first] > 0]
    ratio, area = np.log(lattice[:, 0] / lattice[:, 1]), np.log(lattice[:, 0] * lattice[:, 1])
    frames = lattice[:, 2] if lattice.shape[1] > 2 else np.zeros(len(lattice), np.int64)
    bins = max(4, (_CANDIDATES - first.size) // (levels * np.unique(frames).size))
    ratio_bin = np.minimum((ratio - ratio.min()) / max(np.ptp(ratio), 1e-9) * bins, bins - 1).astype(np.int64)
    area_bin = np.minimum((area - area.min()) / max(np.ptp(area), 1e-9) * levels, levels - 1).astype(np.int64)
    order = np.lexsort((ratio, -area, area_bin, ratio_bin, frames))
    cell = np.stack([frames, ratio_bin, area_bin])[:, order]
    fullest = order[np.r_[True, (cell[:, 1:] != cell[:, :-1]).any(axis=0)]]
    kept: IntArray = lattice[np.unique(np.r_[first, fullest])]
    return kept


def _select(
    table: FloatArray, mass: FloatArray, count: int, line: tuple[FloatArray, FloatArray] | None = None
) -> list[int]:
    """At most `count` columns of least total cost, Σ mass · min over the chosen; fewer when more would not help.
    `line`: places of cells [C] and columns [M] on a line along which the cost grows with the distance."""
    size = table.shape[1]
    if comb(size, min(count, size)) <= _ENUMERATED:
        return _without_idle(table, _enumerate(table, mass, min(count, size)))
    starts = [[]] if line is None else [[], _on_a_line(table, mass, *line, count)]
    found = [_improve(table, mass, count, start) for start in starts]
    chosen = min(found, key=lambda columns: float(mass @ table[:, columns].min(axis=1)))
    least = mass @ table[:, chosen].min(axis=1)
    for number in range(int(np.clip(_RESTARTS * 2**19 / table.size, _RESTARTS // 3, _RESTARTS))):
        out = {derive_key("out", number, part) % len(chosen) for part in range(3)}
        start = {column for place, column in enumerate(chosen) if place not in out}
        start.add(derive_key("in", number) % size)
        tried = _improve(table, mass, count, sorted(start))
        total = mass @ table[:, tried].min(axis=1)
        if total < least * (1 - 1e-7):
            chosen, least = tried, total
    return chosen


def _on_a_line(
    table: FloatArray, mass: FloatArray, cell_at: FloatArray, column_at: FloatArray, count: int
) -> list[int]:
    """The best `count` columns when each cell goes to one of its two neighbours on the line: a dynamic programme over
    columns, exact up to the limit of `_ON_LINE` of them."""
    by_place = np.lexsort((np.round(mass @ table / mass.sum(), 9), np.round(column_at, 6)))
    distinct = by_place[np.r_[True, np.diff(np.round(column_at[by_place], 6)) > 0]]
    columns = distinct[np.unique(np.linspace(0, distinct.size - 1, min(distinct.size, _ON_LINE)).astype(np.int64))]
    order = np.argsort(cell_at, kind="stable")
    cost = (mass[:, None] * table)[order][:, columns]
    place = np.searchsorted(cell_at[order], column_at[columns])
    total = np.concatenate([np.zeros((1, columns.size)), np.cumsum(cost, axis=0)])
    before = total[place, np.arange(columns.size)]
    after = total[-1] - before
    between = np.full((columns.size, columns.size), np.inf)
    for left in range(columns.size - 1):
        nearer = np.minimum(cost[place[left] :, left, None], cost[place[left] :, left + 1 :])
        upto = np.concatenate([np.zeros((1, nearer.shape[1])), np.cumsum(nearer, axis=0)])
        between[left, left + 1 :] = upto[place[left + 1 :] - place[left], np.arange(nearer.shape[1])]
    best, previous = before, []
    for _ in range(min(count, columns.size) - 1):
        tried = best[:, None] + between
        previous.append(tried.argmin(axis=0))
        best = tried.min(axis=0)
    chosen = [int((best + after).argmin())]
    for step in reversed(previous):
        chosen.append(int(step[chosen[-1]]))
    return [int(columns[each]) for each in chosen]


def _enumerate(table: FloatArray, mass: FloatArray, count: int) -> list[int]:
    sets = np.array(list(combinations(range(table.shape[1]), count)))
    totals = [mass @ table[:, part].min(axis=2) for part in np.array_split(sets, -(-len(sets) // 64))]
    return [int(column) for column in sets[_first_least(np.concatenate(totals), mass)]]


def _without_idle(table: FloatArray, chosen: list[int]) -> list[int]:
    """The chosen columns that are the cheapest of some cell."""
    nearest = table[:, chosen].argmin(axis=1)
    return [column for place, column in enumerate(chosen) if (nearest == place).any()]


def _improve(table: FloatArray, mass: FloatArray, count: int, chosen: list[int]) -> list[int]:
    """Fills the choice up and exchanges until nothing helps; columns that win no cell are let go."""
    for _ in range(4):
        chosen = _swap(table, mass, _greedy(table, mass, count, chosen))
        won = _without_idle(table, chosen)
        if len(won) == len(chosen):
            break
        chosen = won
    return chosen


def _greedy(table: FloatArray, mass: FloatArray, count: int, chosen: list[int]) -> list[int]:
    """Adds the column that lowers the total most, up to `count` columns."""
    chosen = list(chosen)
    best = table[:, chosen].min(axis=1) if chosen else np.full(mass.size, _DROPPED)
    while len(chosen) < count:
        total = mass @ np.minimum(best[:, None], table)
        pick = _first_least(total, mass)
        if chosen and total[pick] >= mass @ best * (1 - 1e-9) - 1e-12:
            break
        chosen.append(pick)
        best = np.minimum(best, table[:, pick])
    return chosen


def _first_least(total: FloatArray, mass: FloatArray) -> int:
    return int(np.argmin(np.round(total / mass.sum(), 9)))


def _swap(table: FloatArray, mass: FloatArray, chosen: list[int]) -> list[int]:
    """Improves the choice by the best exchange of one chosen shape for another until none helps (PAM, Kaufman and
    Rousseeuw 1990; all exchanges are costed at once as in FastPAM, Schubert and Rousseeuw 2019)."""
    chosen = list(chosen)
    cells = np.arange(mass.size)
    for _ in range(20 + 4 * len(chosen)):
        mine = table[:, chosen]
        nearest = mine.argmin(axis=1)
        first = mine[cells, nearest]
        if len(chosen) > 1:
            mine[cells, nearest] = np.inf
            second = np.minimum(mine.min(axis=1), _DROPPED)
        else:
            second = np.full(mass.size, _DROPPED)
        with_new = np.minimum(table, first[:, None])
        without_old = np.minimum(table, second[:, None]) - with_new
        without_old *= mass[:, None]
        by_nearest = np.argsort(nearest, kind="stable")
        present, starts = np.unique(nearest[by_nearest], return_index=True)
        total = np.tile(mass @ with_new, (len(chosen), 1))
        total[present] += np.add.reduceat(without_old[by_nearest], starts, axis=0)
        best = _first_least(total.ravel(), mass)
        row, column = divmod(best, table.shape[1])
        if total[row, column] >= (mass @ first) * (1 - 1e-7) - 1e-12:
            break
        chosen[row] = column
    return chosen
