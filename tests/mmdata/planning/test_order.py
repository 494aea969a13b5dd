"""Keyed orders: permutations, draws and windows, whatever the size, the chunking or the process."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmdata.planning.order import (
    Permutation,
    WindowedOrder,
    derive_key,
    hash_keys,
    keyed_uniform,
    shuffle_order,
    windowed_order,
)

KEYS = st.integers(0, 2**64 - 1)


def chi_square(counts: np.ndarray, expected: float) -> float:
    """Standard deviations that χ² lies from its mean (normal approximation, many degrees of freedom)."""
    freedom = counts.size - 1
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom))


@given(n=st.integers(0, 20_000), key=KEYS)
@settings(max_examples=60, deadline=None)
def test_every_item_comes_once_and_the_inverse_undoes_it(n: int, key: int) -> None:
    order = Permutation(n, key)
    items = order(np.arange(n))
    assert np.array_equal(np.sort(items), np.arange(n))
    assert np.array_equal(order.inverse(items), np.arange(n))


@given(n=st.integers(1, 2**63 - 1), key=KEYS, data=st.data())
@settings(max_examples=100, deadline=None)
def test_random_access_works_at_any_size(n: int, key: int, data: st.DataObject) -> None:
    places = np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=20, unique=True)), np.int64)
    order = Permutation(n, key)
    items = order(places)
    assert items.min() >= 0 and items.max() < n and len(set(items.tolist())) == places.size
    assert np.array_equal(order.inverse(items), places)
    assert order(int(places[0])) == items[0]


def test_shape_is_kept_and_bad_positions_are_refused() -> None:
    order = Permutation(10_000, 1)
    assert order(np.arange(12).reshape(3, 4)).shape == (3, 4)
    with pytest.raises(IndexError, match=r"\[0, 10000\)"):
        order([10_000])
    with pytest.raises(IndexError):
        order.inverse([-1])
    with pytest.raises(TypeError, match="integers"):
        order([0.5])
    with pytest.raises(ValueError, match="2\\^63"):
        Permutation(-1, 0)


@pytest.mark.parametrize("n", [6, 5000])
def test_each_item_is_equally_likely_at_each_place(n: int) -> None:
    """5000 goes through the network, 6 through the table: χ² over item × place (or bins of 100) for 1000 keys."""
    bins = min(n, 10)
    counts = np.zeros((bins, bins))
    places = np.arange(n) if n < 100 else np.arange(0, n, 50)
    for key in range(1000):
        np.add.at(counts, (places * bins // n, Permutation(n, derive_key(key))(places) * bins // n), 1)
    assert abs(chi_square(counts.ravel(), counts.sum() / bins**2)) < 5


def test_head_and_tail_are_shuffled_as_well_as_the_middle() -> None:
    n = 100_000
    order = shuffle_order(n, derive_key("epoch", 0))
    for part in (order[: n // 20], order[-n // 20 :], order):
        assert abs(chi_square(np.bincount(part * 50 // n, minlength=50), part.size / 50)) < 5
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.02


def test_keys_tell_leaves_and_types_apart() -> None:
    keys = {
        derive_key(0, "a"), derive_key(0, "b"), derive_key(1, "a"), derive_key("0", "a"), derive_key("0a"),
        derive_key("a", 0), derive_key(0, "a", ""), derive_key(-1), derive_key(1), derive_key(),
    }  # fmt: skip
    assert len(keys) == 10
    with pytest.raises(TypeError):
        derive_key(1.5)  # type: ignore[arg-type]
    assert (Permutation(1000, derive_key(0, "a"))(np.arange(1000)) == Permutation(1000, 1)(np.arange(1000))).sum() < 15


def test_values_never_change() -> None:
    """Orders are part of a plan that others must be able to repeat: these values are frozen."""
    assert derive_key(0, "train", 3) == 2185939791882325528
    assert Permutation(10, 0)(np.arange(10)).tolist() == [1, 8, 4, 7, 6, 2, 0, 9, 5, 3]
    assert Permutation(10**12, 7)(np.arange(3)).tolist() == [270565368035, 471383742308, 466752918116]
    assert hash_keys(["a", "ü"], 1).tolist() == [18022148453329985399, 16825792367039086242]


def test_values_do_not_depend_on_the_process() -> None:
    program = (
        "from mmdata.planning.order import *\n"
        "print(derive_key(0, 'train', 3), shuffle_order(5000, 3)[:5].tolist(), keyed_uniform(['k'], 2)[0])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("0", "1")
    }
    assert len(outputs) == 1 and outputs.pop().strip()


@given(keys=st.lists(st.text(), max_size=50), seed=st.integers(0, 2**32))
@settings(deadline=None)
def test_a_draw_depends_on_its_own_key_only(keys: list[str], seed: int) -> None:
    together = keyed_uniform(pa.array(keys, pa.string()), seed)
    alone = [keyed_uniform(pa.array([key]), seed)[0] for key in keys]
    assert together.tolist() == alone
    assert ((together >= 0) & (together < 1)).all()


@pytest.mark.parametrize("keys", [np.arange(50_000), pa.array([f"sample/{i}" for i in range(50_000)])])
def test_draws_are_uniform_and_unlike_for_other_seeds(keys: object) -> None:
    draws = keyed_uniform(keys, 1)  # type: ignore[arg-type]
    assert abs(chi_square(np.histogram(draws, 100, (0, 1))[0], 500)) < 5
    assert abs(np.corrcoef(draws, keyed_uniform(keys, 2))[0, 1]) < 0.02  # type: ignore[arg-type]


def test_a_missing_key_is_an_error() -> None:
    with pytest.raises(ValueError, match="1 of 2 keys are null"):
        keyed_uniform(pa.array(["a", None]), 0)
    with pytest.raises(TypeError, match="strings or integers"):
        keyed_uniform(pa.array([0.5]), 0)


@given(counts=st.lists(st.integers(0, 300), max_size=30), window=st.one_of(st.none(), st.integers(1, 40)), key=KEYS)
@settings(max_examples=60, deadline=None)
def test_windows_partition_the_samples(counts: list[int], window: int | None, key: int) -> None:
    order = windowed_order(counts, window, key)
    whole = np.concatenate([*order, np.zeros(0, np.int64)])
    assert np.array_equal(np.sort(whole), np.arange(sum(counts)))
    assert np.array_equal(order(np.arange(order.n)), whole)
    shard_of = np.repeat(np.arange(len(counts)), counts)
    for number in range(len(order)):
        assert set(shard_of[order.samples(number)]) <= set(order.shards(number).tolist())
        assert order.starts[number + 1] - order.starts[number] == order.samples(number).size


@given(
    counts=st.lists(st.integers(0, 300), max_size=12),
    window=st.one_of(st.none(), st.integers(1, 5)),
    cuts=st.lists(st.floats(0, 1), max_size=9),
)
@settings(max_examples=40, deadline=None)
def test_pieces_in_any_sequence_are_pieces_of_the_whole(
    counts: list[int], window: int | None, cuts: list[float]
) -> None:
    order = windowed_order(counts, window, 3)
    whole = np.concatenate([*windowed_order(counts, window, 3), np.zeros(0, np.int64)])
    places = [round(cut * order.n) for cut in cuts]
    for start, stop in map(sorted, pairwise(places)):
        assert np.array_equal(order.between(start, stop), whole[start:stop])
    with pytest.raises(IndexError, match="positions"):
        order.between(0, order.n + 1)


def test_a_window_of_shards_mixes_its_samples_and_all_windows_differ() -> None:
    order = WindowedOrder([100] * 20, 4, 5)
    first = order.samples(0)
    shard_of = first // 100
    assert (shard_of[:-1] != shard_of[1:]).mean() > 0.6
    assert not np.array_equal(first % 100, order.samples(1) % 100)


def test_a_shuffle_in_a_window_keeps_blocks_near_each_other() -> None:
    order = shuffle_order(100_000, 3, window=2000)
    assert np.array_equal(np.sort(order), np.arange(100_000))
    blocks = [np.unique(order[start : start + 2000] // 125).size for start in range(0, 100_000, 2000)]
    assert max(blocks) <= 2 * 16 + 2
    assert not np.array_equal(order // 125, np.sort(order // 125))
    assert shuffle_order(0, 1).size == 0 and shuffle_order(0, 1, window=5).size == 0
    assert np.sort(shuffle_order(7, 1, window=100)).tolist() == list(range(7))
