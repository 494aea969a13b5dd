"""Packing: budgets hold, nothing is lost, fill is what the design asks for."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmdata.planning.packing import Method, Packs, pack

METHODS: tuple[Method, ...] = ("best_fit", "first_fit_decreasing", "greedy")


def check(packs: Packs, lengths: np.ndarray, budget: np.ndarray, cap: int | None) -> None:
    """Every sample is in one pack or dropped for its size; no pack is over a budget; the figures are true."""
    sizes = lengths.reshape(len(lengths), budget.size)
    too_long = (sizes > budget).any(axis=1)
    assert np.array_equal(packs.pack < 0, too_long) and np.array_equal(packs.oversize, np.flatnonzero(too_long))
    kept = packs.pack >= 0
    used = np.zeros((len(packs), budget.size), sizes.dtype)
    np.add.at(used, packs.pack[kept], sizes[kept])
    assert (used <= budget).all()
    assert np.allclose(packs.fill.reshape(len(packs), budget.size), used / budget)
    assert np.array_equal(packs.counts, np.bincount(packs.pack[kept], minlength=len(packs)))
    assert (packs.counts > 0).all() and (cap is None or packs.counts.max(initial=0) <= cap)
    assert np.array_equal(np.sort(packs.order()), np.flatnonzero(kept))
    for number in range(len(packs)):
        inside = np.flatnonzero(packs.pack == number)
        assert packs.position[inside].tolist() == list(range(inside.size))


@given(
    lengths=st.lists(st.integers(0, 130), max_size=120),
    method=st.sampled_from(METHODS),
    buffer=st.integers(1, 50),
    cap=st.one_of(st.none(), st.integers(1, 6)),
)
@settings(max_examples=150, deadline=None)
def test_one_budget_holds(lengths: list[int], method: Method, buffer: int, cap: int | None) -> None:
    sizes = np.array(lengths, np.int64)
    packs = pack(sizes, 100, buffer=buffer, method=method, oversize="drop", max_samples=cap)
    check(packs, sizes, np.array([100]), cap)


@given(
    lengths=st.lists(st.tuples(st.integers(0, 130), st.integers(0, 40), st.integers(0, 7)), min_size=1, max_size=100),
    method=st.sampled_from(METHODS),
    buffer=st.integers(1, 50),
    cap=st.one_of(st.none(), st.integers(1, 6)),
)
@settings(max_examples=150, deadline=None)
def test_several_budgets_hold_at_once(
    lengths: list[tuple[int, int, int]], method: Method, buffer: int, cap: int | None
) -> None:
    sizes, budget = np.array(lengths, np.int64), np.array([100, 30, 7])
    packs = pack(sizes, budget.tolist(), buffer=buffer, method=method, oversize="drop", max_samples=cap)
    check(packs, sizes, budget, cap)


@pytest.mark.parametrize("name", ["vlm_heavy_tail", "bimodal"])
@pytest.mark.parametrize("buffer, least", [(256, 0.97), (1024, 0.99)])
def test_fill_of_the_reference_lengths(
    name: str, buffer: int, least: float, reference_lengths: Callable[[str], np.ndarray]
) -> None:
    lengths = reference_lengths(name)
    packs = pack(lengths, 8192, buffer=buffer)
    check(packs, lengths, np.array([8192]), None)
    assert lengths.sum() / (len(packs) * 8192) >= least
    assert packs.fill.mean() >= least


def test_two_budgets_fill_better_than_input_order(reference_lengths: Callable[[str], np.ndarray]) -> None:
    tokens = reference_lengths("vlm_heavy_tail")
    patches = np.random.default_rng(0).integers(0, 5000, tokens.size)
    packs = pack(np.c_[tokens, patches], (8192, 16_000))
    plain = pack(np.c_[tokens, patches], (8192, 16_000), method="greedy")
    check(packs, np.c_[tokens, patches], np.array([8192, 16_000]), None)
    assert packs.fill.shape == (len(packs), 2) and packs.fill[:, 1].mean() > 0.95
    assert len(packs) < 0.9 * len(plain)


@pytest.mark.parametrize("budgets", [1, 2])
def test_nothing_waits_longer_than_the_buffer(budgets: int) -> None:
    """Each pack takes the oldest sample held, so a sample is at most `buffer` packs behind those that came with it."""
    rng = np.random.default_rng(1)
    sizes = rng.integers(1, 90, (5000, budgets))
    packs = pack(sizes if budgets > 1 else sizes[:, 0], [100] * budgets, buffer=64)
    first_seen = np.maximum.accumulate(packs.pack)
    assert (packs.pack - np.r_[0, first_seen[:-1]] <= 64).all()


def test_a_pack_may_hold_more_samples_than_the_buffer() -> None:
    packs = pack(np.ones(5000, np.int64), 1000, buffer=16)
    assert packs.counts.tolist() == [1000] * 5
    packs = pack(np.ones((5000, 2), np.int64), (1000, 2000), buffer=16)
    assert packs.counts.tolist() == [1000] * 5


def test_known_packs() -> None:
    lengths = [6, 5, 4, 3, 2]
    assert pack(lengths, 10).pack.tolist() == [0, 1, 0, 1, 1]
    assert pack(lengths, 10, method="greedy").pack.tolist() == [0, 1, 1, 2, 2]
    assert pack([2, 3, 4, 5, 6], 10, method="first_fit_decreasing").pack.tolist() == [1, 1, 0, 1, 0]
    assert pack([0.5, 0.25, 0.25], 1.0).fill.tolist() == [1.0]
    assert len(pack([], 10)) == 0


def test_oversize_is_an_explicit_choice() -> None:
    with pytest.raises(ValueError, match=r"1 of 3 samples exceed the budget.*sample 1 with 11 against 10"):
        pack([1, 11, 2], 10)
    dropped = pack([1, 11, 2], 10, oversize="drop")
    assert dropped.pack.tolist() == [0, -1, 0] and dropped.oversize.tolist() == [1]
    cut = pack([1, 11, 2], 10, oversize="truncate")
    assert cut.pack.min() >= 0 and cut.oversize.tolist() == [1] and cut.fill.max() == 1.0


@pytest.mark.parametrize(
    "lengths, budget, options, message",
    [
        ([1], 0, {}, "positive"),
        ([[1, 2]], 5, {}, "do not match"),
        ([-1], 5, {}, "none negative"),
        ([np.nan], 5, {}, "finite"),
        ([1], 5, {"buffer": 0}, "at least 1"),
        ([1], 5, {"max_samples": 0}, "at least 1"),
    ],
)
def test_impossible_arguments_are_refused(lengths: list, budget: int, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pack(lengths, budget, **options)
