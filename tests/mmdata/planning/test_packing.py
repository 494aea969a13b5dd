"""Packing: budgets hold, nothing is lost, fill is what the design asks for."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmdata.planning import packing
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


def spelled_out(lengths: list[float], budget: float, buffer: int, cap: int) -> list[int]:
    """Best fit as the docstring tells it, one budget: slow, for comparison."""
    waiting, held, number, packs = list(range(len(lengths))), [], [-1] * len(lengths), 0
    while waiting or held:
        room, taken = budget, 0
        while True:
            while waiting and len(held) < buffer:
                held.append(waiting.pop(0))
            fitting = [index for index in held if lengths[index] <= room]
            if taken == cap or not fitting:
                break
            index = min(held) if not taken else max(fitting, key=lambda index: (lengths[index], -index))
            held.remove(index)
            number[index], room, taken = packs, room - lengths[index], taken + 1
        packs += 1
    return number


@given(
    lengths=st.lists(st.integers(0, 64), max_size=80),
    scale=st.sampled_from([1, 0.125, 2**40]),
    buffer=st.integers(1, 30),
    cap=st.one_of(st.none(), st.integers(1, 6)),
)
@settings(max_examples=150, deadline=None)
def test_best_fit_is_what_it_says(lengths: list[int], scale: float, buffer: int, cap: int | None) -> None:
    """Whole numbers, fractions (exact in binary) and lengths too large for a compact key."""
    sizes = np.array(lengths, np.int64) * scale
    found = pack(sizes, 64 * scale, buffer=buffer, max_samples=cap).pack.tolist()
    assert found == spelled_out(sizes.tolist(), 64 * scale, buffer, cap or len(lengths) + 1)


@given(
    lengths=st.lists(st.tuples(st.integers(0, 100), st.integers(0, 30)), max_size=120),
    fraction=st.booleans(),
    buffer=st.integers(1, 60),
    cap=st.integers(1, 9),
)
@settings(max_examples=150, deadline=None)
def test_two_budgets_are_the_same_program_as_many(
    lengths: list[tuple[int, int]], fraction: bool, buffer: int, cap: int
) -> None:
    kind = np.float64 if fraction else np.int64
    sizes, limits = np.array(lengths, kind).reshape(-1, 2), np.array([100, 30], kind)
    two, many = (each(sizes, limits, buffer, cap) for each in (packing._best_fit_two, packing._best_fit_many))
    assert np.array_equal(two, many)


def test_the_emptier_budget_is_served_first_and_the_tighter_one_last() -> None:
    """Room after the oldest is 90 % and 40 %: 60 on the first axis goes in before 30 on the second. Then 30 % and 40 %:
    the largest on the second axis; then the second is full, and only what needs nothing of it fits."""
    sizes = [(10, 60), (60, 0), (10, 30), (5, 40), (20, 0)]
    assert pack(sizes, (100, 100)).pack.tolist() == [0, 0, 1, 0, 0]


@given(seed=st.integers(0, 2**32 - 1), method=st.sampled_from(METHODS), budgets=st.integers(1, 2))
@settings(max_examples=12, deadline=None)
def test_ten_thousand_samples_keep_every_span_whole(seed: int, method: Method, budgets: int) -> None:
    """Laid end to end in a pack, every sample, and so every media span in it, ends inside the budget."""
    rng = np.random.default_rng(seed)
    tokens = np.clip(rng.lognormal(rng.uniform(3, 7.5), rng.uniform(0.2, 1.5), 10_000), 1, 9000).astype(np.int64)
    patches = (tokens * np.where(rng.random(tokens.size) < 0.4, 0, 4 * rng.random(tokens.size))).astype(np.int64)
    sizes, budget = np.c_[tokens, patches][:, :budgets], np.array([8192, 24_000])[:budgets]
    packs = pack(sizes, budget, method=method, oversize="drop", buffer=int(rng.integers(1, 2000)))
    check(packs, sizes, budget, None)
    order = packs.order()
    ends = np.cumsum(sizes[order], axis=0)
    first = np.cumsum(packs.counts) - packs.counts
    begins = ends - sizes[order]
    inside = ends - np.repeat(begins[first], packs.counts, axis=0)
    assert (inside <= budget).all() and (np.diff(packs.pack[order]) >= 0).all()
    assert np.array_equal(np.sort(np.r_[order, packs.oversize]), np.arange(tokens.size))


@pytest.mark.parametrize("name", ["vlm_heavy_tail", "bimodal"])
def test_with_two_budgets_the_scarce_one_is_filled_and_both_are_reported(
    name: str, reference_lengths: Callable[[str], np.ndarray]
) -> None:
    """Patches are up to four a token and none in three samples of ten; tokens are what runs out."""
    tokens, rng = reference_lengths(name), np.random.default_rng(0)
    share = np.where(rng.random(tokens.size) < 0.3, 0, rng.beta(4, 2, tokens.size))
    sizes, budget = np.c_[tokens, (tokens * share * 4).astype(int)], np.array([8192, 32_768])
    for buffer, least in ((256, 0.99), (1024, 0.99)):
        packs = pack(sizes, budget, buffer=buffer)
        check(packs, sizes, budget, None)
        assert packs.fill[:, 0].mean() >= least
        assert packs.fill.mean(axis=0) == pytest.approx(sizes.sum(axis=0) / (budget * len(packs)))


def test_two_budgets_that_compete_are_filled_alike() -> None:
    """One axis is short where the other is long, and both sum to 3000: five samples are the most that fit in twice
    8192, so 5000 need 1000 packs. First fit decreasing takes 1073."""
    first = np.random.default_rng(1).random(5000)
    sizes = (np.c_[first, 1 - first] * 3000).astype(np.int64)
    packs = pack(sizes, (8192, 8192))
    check(packs, sizes, np.array([8192, 8192]), None)
    assert len(packs) <= 1010


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
