"""1-D edges: the optimum, told from brute force and from the figures known for the reference lengths."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmdata.planning.lengths import (
    LENGTH_REASONS,
    assign_lengths,
    equal_mass_edges,
    optimal_edges,
    padding_curve,
    padding_share,
    smallest_count,
)

# (padding at 16 edges may be at most, equal shares of the total length give), in percent
REFERENCE = {"speech": (7.8, 8.8), "vlm_heavy_tail": (11.6, 13.0), "bimodal": (6.7, 38.7), "capped": (1.5, 7.0)}


def brute_force(lengths: np.ndarray, count: int, weights: np.ndarray) -> float:
    """Least padded volume over every choice of edges among the values."""
    values = np.unique(lengths)
    return min(
        float(weights @ np.array(edges)[np.searchsorted(edges, lengths)])
        for edges in combinations(values.tolist(), min(count, values.size))
        if edges[-1] == values[-1]
    )


@given(lengths=st.lists(st.integers(0, 40), min_size=1, max_size=11), count=st.integers(1, 6), data=st.data())
@settings(max_examples=200, deadline=None)
def test_edges_equal_brute_force(lengths: list[int], count: int, data: st.DataObject) -> None:
    weights = np.array(data.draw(st.lists(st.integers(0, 5), min_size=len(lengths), max_size=len(lengths))), np.float64)
    values = np.array(lengths)
    edges = optimal_edges(values, count, weights=weights)
    padded = float(weights @ edges.values[assign_lengths(values, edges).bucket])  # type: ignore[call-overload]
    assert padded == pytest.approx(brute_force(values, count, weights))
    assert edges.padding == pytest.approx(padding_share(values, edges, weights=weights))
    assert len(edges) == min(count, len(set(lengths))) == len(np.unique(edges.values))
    assert (edges.reason is None) == (len(edges) == count)


@pytest.mark.parametrize("name", REFERENCE)
def test_padding_of_the_reference_lengths(name: str, reference_lengths: Callable[[str], np.ndarray]) -> None:
    lengths = reference_lengths(name)
    limit, common = REFERENCE[name]
    edges = optimal_edges(lengths, 16)
    assert len(edges) == 16 and edges.reason is None
    assert 100 * padding_share(lengths, edges) <= limit
    assert edges.padding == pytest.approx(padding_share(lengths, edges), abs=1e-9)
    assert 100 * equal_mass_edges(lengths, 16).padding == pytest.approx(common, abs=0.05)


def test_candidates_lose_next_to_nothing_against_every_value(reference_lengths: Callable[[str], np.ndarray]) -> None:
    lengths = reference_lengths("speech")
    exact = optimal_edges(lengths, 16, bins=lengths.size).padding
    assert exact <= optimal_edges(lengths, 16, bins=512).padding <= exact + 1e-4


@given(lengths=st.lists(st.floats(0, 1e6), min_size=1, max_size=400), count=st.integers(1, 40), bins=st.integers(2, 64))
@settings(max_examples=60, deadline=None)
def test_as_many_distinct_edges_as_values_allow(lengths: list[float], count: int, bins: int) -> None:
    edges = optimal_edges(lengths, count, bins=bins)
    assert len(edges) == min(count, len(set(lengths)))
    assert (np.diff(edges.values.astype(float)) > 0).all() and edges.values[-1] == max(lengths)
    assert not assign_lengths(lengths, edges).reason.any()


def test_few_values_are_said() -> None:
    edges = optimal_edges([5, 5, 7], 4)
    assert edges.values.tolist() == [5, 7] and edges.padding == 0 and "2 distinct values" in str(edges.reason)
    assert edges.values.dtype == np.int64
    assert optimal_edges([0, 0], 2).padding == 0


def test_edges_on_a_step() -> None:
    lengths = np.arange(1, 300)
    edges = optimal_edges(lengths, 5, multiple_of=32)
    assert len(edges) == 5 and (edges.values.astype(int) % 32 == 0).all() and edges.values[-1] == 320
    assert edges.padding == pytest.approx(padding_share(lengths, edges))
    assert "multiples of 32" in str(optimal_edges(lengths, 20, multiple_of=32).reason)
    assert optimal_edges([0.5, 1.5], 2, multiple_of=0.5).values.tolist() == [0.5, 1.5]


def test_fewest_edges_for_a_padding(reference_lengths: Callable[[str], np.ndarray]) -> None:
    lengths = reference_lengths("bimodal")
    edges = smallest_count(lengths, 0.05)
    assert edges.padding <= 0.05 < optimal_edges(lengths, len(edges) - 1).padding
    assert len(smallest_count([3, 4, 5], 0.0)) == 3
    with pytest.raises(ValueError, match="2 edges still pad"):
        smallest_count(np.arange(1, 100), 0.01, max_count=2)
    with pytest.raises(ValueError, match="still pad"):
        smallest_count([3, 4, 5], 0.0, multiple_of=8)


def test_the_curve_falls_and_ends_at_zero() -> None:
    curve = padding_curve(np.arange(1, 50), 100)
    assert curve.size == 49 and curve[-1] == 0 and (np.diff(curve) < 0).all()


def test_assignment_names_what_it_drops() -> None:
    found = assign_lengths([0.0, 1.0, 1.5, 2.5, np.nan, -1.0], [1.0, 2.0])
    assert found.bucket.tolist() == [0, 0, 1, -1, -1, -1] and found.bucket.dtype == np.int32
    assert [LENGTH_REASONS[code] for code in found.reason] == [
        "kept", "kept", "kept", "too_long", "no_length", "no_length",
    ]  # fmt: skip
    with pytest.raises(ValueError, match="ascending"):
        assign_lengths([1], [2, 1])


@pytest.mark.parametrize(
    "lengths, message", [([], "at least one"), ([np.nan], "finite"), ([-1.0], "negative"), ([[1]], "shape")]
)
def test_impossible_lengths_are_refused(lengths: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        optimal_edges(lengths, 2)
