"""Mixtures: shares in each unit, passes and caps, phases, and the same sequence however it is asked for."""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmdata.planning.mixture import Cursor, Draw, Leaf, Mixture, Unit


def blocks(n: int, size: int = 16) -> np.ndarray:
    """Counts of n samples in blocks of `size`, the last one smaller."""
    return np.diff(np.r_[np.arange(0, n, size), n])


def long_tails(sizes: Sequence[int], seed: int = 0) -> list[np.ndarray]:
    """Whole amounts for each leaf: log-normal, wider and larger from leaf to leaf, cut at twenty times the median.

    A sample is never halved, so one larger than 1 % of all that is drawn cannot be shared out to 0.5 %.
    """
    rng = np.random.default_rng(seed)
    return [
        np.clip(rng.lognormal(5 + 0.2 * leaf, 0.8 + 0.1 * leaf, n), 1, 20 * math.exp(5 + 0.2 * leaf)).astype(np.int64)
        for leaf, n in enumerate(sizes)
    ]


def look_up(amounts: Sequence[np.ndarray]) -> Callable[[int, np.ndarray], np.ndarray]:
    return lambda leaf, ids: amounts[leaf][ids]


def rows(draw: Draw) -> list[tuple[int, int, int]]:
    return list(zip(draw.leaf.tolist(), draw.sample.tolist(), draw.passes.tolist(), strict=True))


def one_by_one(weights: Sequence[float], amounts: Sequence[np.ndarray], orders: Sequence[Sequence[int]], n: int):
    """Fair queueing by a heap, a sample at a time: (leaf, sample) in the order of the middles of their spans."""
    starts, at, heap = [0.0] * len(weights), [0] * len(weights), []

    def push(leaf: int) -> None:
        if at[leaf] < len(orders[leaf]):
            span = float(amounts[leaf][orders[leaf][at[leaf]]]) / weights[leaf]
            heapq.heappush(heap, (starts[leaf] + 0.5 * span, leaf, orders[leaf][at[leaf]]))
            starts[leaf] += span
            at[leaf] += 1

    for leaf, weight in enumerate(weights):
        if weight:
            push(leaf)
    out = []
    while heap and len(out) < n:
        _, leaf, sample = heapq.heappop(heap)
        out.append((leaf, sample))
        push(leaf)
    return out


@given(
    sizes=st.lists(st.integers(1, 700), min_size=2, max_size=6),
    weights=st.lists(st.sampled_from([0.0, 0.01, 0.3, 1.0, 7.0]), min_size=6, max_size=6),
    seed=st.integers(0, 1000),
    n=st.integers(0, 1500),
)
@settings(max_examples=60, deadline=None)
def test_the_order_is_that_of_a_queue_served_one_sample_at_a_time(
    sizes: list[int], weights: list[float], seed: int, n: int
) -> None:
    weights = [1.0, *weights[1 : len(sizes)]]
    amounts = long_tails(sizes, seed)
    leaves = [Leaf(f"leaf {i}", blocks(s), w, 2.0) for i, (s, w) in enumerate(zip(sizes, weights, strict=True))]
    orders = []
    for leaf in leaves:
        alone = Mixture([Leaf(leaf.name, leaf.counts, 1.0, 2.0)], seed=seed, window=3)
        orders.append(alone.draw(alone.start(), 2 * leaf.n).sample.tolist())
    mixture = Mixture(leaves, seed=seed, unit="tokens", window=3)
    draw = mixture.draw(mixture.start(), n, look_up(amounts))
    assert [row[:2] for row in rows(draw)] == one_by_one(weights, amounts, orders, n)


@given(cuts=st.lists(st.integers(0, 900), max_size=8), unit=st.sampled_from(["samples", "tokens", "seconds"]))
@settings(max_examples=40, deadline=None)
def test_cuts_and_a_trip_through_json_leave_the_sequence_as_it_is(cuts: list[int], unit: Unit) -> None:
    sizes = [1, 40, 300, 5000]
    amounts = [each / 7 for each in long_tails(sizes)]
    leaves = [Leaf(f"{i}", blocks(n), w) for i, (n, w) in enumerate(zip(sizes, [0.01, 0.1, 1, 3], strict=True))]
    whole = Mixture(leaves, seed=4, unit=unit, window=8).draw(
        Mixture(leaves, seed=4, unit=unit, window=8).start(), sum(cuts), look_up(amounts)
    )
    got, text = [], json.dumps(Mixture(leaves, seed=4, unit=unit, window=8).start().to_dict())
    for cut in cuts:
        fresh = Mixture(leaves, seed=4, unit=unit, window=8)
        draw = fresh.draw(Cursor.from_dict(json.loads(text)), cut, look_up(amounts))
        got += rows(draw)
        text = json.dumps(draw.cursor.to_dict())
        assert Cursor.from_dict(json.loads(text)) == draw.cursor
    assert got == rows(whole) and len(text) < 400


@pytest.mark.parametrize("unit", ["samples", "tokens", "bytes", "seconds"])
@pytest.mark.parametrize("weights", [(1, 1), (0.7, 0.2, 0.1), (8, 4, 2, 1, 1, 0.5, 0.25, 0.1)])
def test_realised_shares_are_within_half_a_percent_over_ten_thousand_samples(
    unit: Unit, weights: tuple[float, ...]
) -> None:
    sizes = [700 + 900 * leaf for leaf in range(len(weights))]
    amounts = [a / 30 if unit == "seconds" else a for a in long_tails(sizes)]
    mixture = Mixture(
        [Leaf(f"leaf {i}", blocks(n), w) for i, (n, w) in enumerate(zip(sizes, weights, strict=True))],
        seed=1,
        unit=unit,
        window=10,
    )
    draw = mixture.draw(mixture.start(), 10_000, look_up(amounts))
    each = np.ones(10_000)
    if unit != "samples":
        each = np.array([amounts[leaf][sample] for leaf, sample, _ in rows(draw)], np.float64)
    got = np.bincount(draw.leaf, each, len(weights))
    shares = np.asarray(weights) / sum(weights)
    assert np.abs(got / got.sum() - shares).max() <= 0.005
    largest = np.array([1 if unit == "samples" else a.max() for a in amounts])
    time = draw.cursor.time
    assert (np.abs(got - np.asarray(weights) * time) <= largest / 2 + 1e-6 * got).all()


def test_by_tokens_is_not_by_samples() -> None:
    """A leaf of samples nine times as long gets nine times fewer of them at equal weights: 1 in 10."""
    leaves = [Leaf("short", blocks(100)), Leaf("long", blocks(100))]
    mixture = Mixture(leaves, seed=0, unit="tokens")
    draw = mixture.draw(mixture.start(), 1000, lambda leaf, ids: np.full(ids.size, (10, 90)[leaf]))
    assert np.bincount(draw.leaf).tolist() == [900, 100]


@given(sizes=st.lists(st.integers(1, 600), min_size=1, max_size=4), window=st.sampled_from([None, 1, 7]))
@settings(max_examples=30, deadline=None)
def test_a_pass_is_complete_before_the_next_begins_and_each_has_its_own_order(
    sizes: list[int], window: int | None
) -> None:
    mixture = Mixture([Leaf(f"{i}", blocks(n), 1.0, 3) for i, n in enumerate(sizes)], seed=2, window=window)
    draw = mixture.draw(mixture.start(), 4 * sum(sizes))
    assert len(draw) == mixture.total == 3 * sum(sizes)
    for leaf, n in enumerate(sizes):
        own = draw.sample[draw.leaf == leaf].reshape(3, n)
        assert draw.passes[draw.leaf == leaf].tolist() == np.repeat(np.arange(3), n).tolist()
        assert (np.sort(own, axis=1) == np.arange(n)).all()
        if n > 20:
            assert not (own[0] == own[1]).all() and not (own[1] == own[2]).all()
    assert len(mixture.draw(draw.cursor, 10)) == 0


def test_one_leaf_without_a_cap_ends_with_its_epoch() -> None:
    mixture = Mixture([Leaf("all", blocks(1000))], seed=3, window=5)
    cursor, epochs = mixture.start(), []
    for epoch in range(3):
        parts = []
        while len(draw := mixture.draw(cursor, 300)):
            assert (draw.passes == epoch).all()
            parts.append(draw.sample)
            cursor = draw.cursor
        epochs.append(np.concatenate(parts))
        assert [part.size for part in parts] == [300, 300, 300, 100]
        cursor = mixture.next_epoch(Cursor.from_dict(cursor.to_dict()))
        assert cursor == mixture.start(epoch + 1)
    assert all(np.array_equal(np.sort(each), np.arange(1000)) for each in epochs)
    assert not np.array_equal(epochs[0], epochs[1]) and not np.array_equal(epochs[1], epochs[2])
    assert mixture.epochs and mixture.total == 1000


@pytest.mark.parametrize(("cap", "drawn"), [(1.5, 150), (1, 100), (0.29, 29), (2.004, 200), (0.001, 1)])
def test_a_cap_may_be_a_fraction_and_its_weight_goes_to_the_rest(cap: float, drawn: int) -> None:
    """0.29 * 100 is 28.999… in floats; the cap is to the nearest sample."""
    leaves = [Leaf("capped", blocks(100), 1, cap), Leaf("a", blocks(5000), 2), Leaf("b", blocks(5000), 1)]
    mixture = Mixture(leaves, seed=0)
    draw = mixture.draw(mixture.start(), 3000)
    assert (draw.leaf == 0).sum() == drawn and mixture.total is None
    late = draw.leaf[4 * drawn + 10 :]
    assert np.abs(np.bincount(late, minlength=3) - np.array([0, 2, 1]) * late.size / 3).max() <= 1


def test_all_capped_out_is_the_end() -> None:
    mixture = Mixture([Leaf("a", blocks(100), 1, 0.5), Leaf("b", blocks(30), 5, 3)], seed=0)
    first = mixture.draw(mixture.start(), 100)
    second = mixture.draw(first.cursor, 100)
    assert (len(first), len(second), mixture.total) == (100, 40, 140)
    assert len(mixture.draw(second.cursor, 5)) == 0 and mixture.draw(second.cursor, 5).cursor == second.cursor


def test_phases_change_the_weights_at_their_step() -> None:
    leaves = [Leaf("a", blocks(5000)), Leaf("b", blocks(5000)), Leaf("late", blocks(5000), 0)]
    mixture = Mixture(leaves, seed=0, phases=[(100, {"late": 2}), (200, {"a": 0}), (300, {"a": 17, "late": 1})])
    cursor, shares = mixture.start(), []
    for step in (0, 99, 100, 199, 200, 300):
        draw = mixture.draw(cursor, 1000, step=step)
        shares.append((np.bincount(draw.leaf, minlength=3) / 1000).tolist())
        cursor = draw.cursor
    expected = [[0.5, 0.5, 0]] * 2 + [[0.25, 0.25, 0.5]] * 2 + [[0, 1 / 3, 2 / 3], [17 / 19, 1 / 19, 1 / 19]]
    assert np.abs(np.array(shares) - expected).max() <= 0.002
    assert mixture.weights(99) == {"a": 1, "b": 1, "late": 0} and mixture.weights(250) == {"a": 0, "b": 1, "late": 2}


def test_a_leaf_that_comes_in_late_neither_floods_nor_waits() -> None:
    """After long at weight 0, or at a weight 10,000 times smaller, a leaf has its share from the first samples."""
    for before in (0.0, 1e-4):
        mixture = Mixture(
            [Leaf("a", blocks(500)), Leaf("b", blocks(500), before)], seed=0, unit="tokens", phases=[(1, {"b": 1.0})]
        )
        first = mixture.draw(mixture.start(), 2500, lambda _, ids: np.full(ids.size, 10.0))
        then = mixture.draw(first.cursor, 20, lambda _, ids: np.full(ids.size, 10.0), step=1)
        assert (first.leaf == 1).sum() == 0 and abs((then.leaf == 1).sum() - 10) <= 1


def test_order_is_keyed_by_seed_leaf_and_pass_and_by_nothing_else() -> None:
    def order(seed: int, name: str, weight: float, others: int) -> np.ndarray:
        leaves = [*(Leaf(f"other {i}", blocks(50)) for i in range(others)), Leaf(name, blocks(2000), weight, 1)]
        draw = (mixture := Mixture(leaves, seed=seed, window=4)).draw(mixture.start(), 50_000)
        return draw.sample[draw.leaf == others]

    base = order(0, "a", 1, 1)
    assert np.array_equal(base, order(0, "a", 9, 3))
    for changed in (order(1, "a", 1, 1), order(0, "b", 1, 1)):
        assert (base == changed).mean() < 0.02


def test_a_leaf_of_a_hundred_million_rows_costs_its_blocks_only() -> None:
    asked = []

    def amount(leaf: int, ids: np.ndarray) -> np.ndarray:
        asked.append(ids.size)
        return 1 + ids % 1000

    leaves = [Leaf("large", np.full(10_000, 10_000)), Leaf("small", blocks(50_000), 0.1)]
    mixture = Mixture(leaves, seed=0, unit="tokens", window=32)
    far = Cursor((3, 9), (99_000_000, 17), (1e11, 1e11), 1e11)
    draw = mixture.draw(far, 10_000, amount)
    assert len(draw) == 10_000 and sum(asked) < 13_000
    assert np.unique(draw.sample[draw.leaf == 0] // 10_000).size <= 64
    assert draw.passes[draw.leaf == 0].max() == 3


def test_zero_amounts_count_as_one_except_for_seconds() -> None:
    leaves = [Leaf("text", blocks(100)), Leaf("video", blocks(100))]
    mixture = Mixture(leaves, seed=0, unit="bytes")
    draw = mixture.draw(mixture.start(), 1100, lambda leaf, ids: np.full(ids.size, (0, 10)[leaf]))
    assert np.bincount(draw.leaf).tolist() == [1000, 100]
    by_time = Mixture(leaves, seed=0, unit="seconds")
    with pytest.raises(ValueError, match=r"leaf 'text': sample \d+ has 0 seconds.*weigh by samples"):
        by_time.draw(by_time.start(), 10, lambda leaf, ids: np.full(ids.size, (0, 10)[leaf]))


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_amounts_that_cannot_be_are_named(value: float) -> None:
    mixture = Mixture([Leaf("good", blocks(9)), Leaf("bad", blocks(9))], seed=0, unit="tokens")
    with pytest.raises(ValueError, match=r"leaf 'bad': sample \d+ has"):
        mixture.draw(mixture.start(), 5, lambda leaf, ids: np.full(ids.size, (1.0, value)[leaf]))
    with pytest.raises(ValueError, match="were asked for their tokens"):
        mixture.draw(mixture.start(), 5, lambda leaf, ids: np.ones(3))
    with pytest.raises(ValueError, match="needs the samples' tokens"):
        mixture.draw(mixture.start(), 5)


def test_settings_that_cannot_be_are_named() -> None:
    a, b = Leaf("a", blocks(9)), Leaf("b", blocks(9))
    for message, make in {
        "two leaves are named 'a'": lambda: Mixture([a, a], seed=0),
        "leaf 'none' has no samples": lambda: Mixture([a, Leaf("none", [0, 0])], seed=0),
        "leaf 'w': a weight": lambda: Leaf("w", [1], -1),
        "leaf 'm': max_passes": lambda: Leaf("m", [1], 1, 0),
        "leaf 'c': counts": lambda: Leaf("c", [1.5]),
        "every leaf has weight 0 from step 5 on": lambda: Mixture([a, b], seed=0, phases=[(5, {"a": 0, "b": 0})]),
        "names 'c'; the leaves are a, b": lambda: Mixture([a, b], seed=0, phases=[(5, {"c": 1})]),
        "rising steps": lambda: Mixture([a, b], seed=0, phases=[(5, {"a": 2}), (5, {"a": 3})]),
        "weighed by one of": lambda: Mixture([a, b], seed=0, unit="words"),  # type: ignore[arg-type]
        "only one leaf without a cap has epochs": lambda: Mixture([a, b], seed=0).start(1),
        "the cursor is of 1 leaves": lambda: Mixture([a, b], seed=0).draw(Mixture([a], seed=0).start(), 1),
        "stands at sample 50 of leaf 'a'": lambda: Mixture([a], seed=0).draw(Cursor((0,), (50,), (0.0,)), 1),
        "not a mixture's cursor": lambda: Cursor.from_dict({"leaves": [[1, 2]], "time": 0, "phase": 0}),
    }.items():
        with pytest.raises(ValueError, match=message):
            make()


def test_weight_zero_and_empty_leaves_draw_nothing() -> None:
    mixture = Mixture([Leaf("a", blocks(50)), Leaf("off", blocks(50), 0), Leaf("empty", [], 0)], seed=0)
    assert set(mixture.draw(mixture.start(), 500).leaf.tolist()) == {0}
    empty = Mixture([Leaf("a", [0, 0])], seed=0)
    assert len(empty.draw(empty.start(), 5)) == 0 and empty.total == 0


def test_a_fingerprint_tells_settings_apart() -> None:
    def made(seed: int = 0, name: str = "b", n: int = 9, weight: float = 1.0, unit: Unit = "samples") -> str:
        return Mixture([Leaf("a", blocks(9)), Leaf(name, blocks(n), weight)], seed=seed, unit=unit).fingerprint()

    different = [made(), made(1), made(0, "c"), made(0, "b", 10), made(0, "b", 9, 2.0), made(unit="bytes")]
    assert len(set(different)) == 6 and made() == made()
