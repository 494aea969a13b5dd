"""Shuffles as a statistician would test them: χ² on places, head and tail, windows over many epochs, locality."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest

from mmdata.planning.mixture import Leaf, Mixture
from mmdata.planning.order import Permutation, WindowedOrder, derive_key, locality

N = 100_000
BINS = 50
EPOCHS = 200


def chi_square_tail(statistic: float, freedom: int) -> float:
    """P(χ² > statistic): the upper incomplete gamma function Q(freedom / 2, statistic / 2), by its series below
    a + 1 and by Lentz's continued fraction above (Numerical Recipes, 6.2)."""
    a, x = freedom / 2, statistic / 2
    if x <= 0:
        return 1.0
    scale = math.exp(a * math.log(x) - x - math.lgamma(a))
    if x < a + 1:
        term = total = 1 / a
        for k in range(1, 10_000):
            term *= x / (a + k)
            total += term
        return 1 - total * scale
    b = x + 1 - a
    c, d = 1e300, 1 / b
    h = d
    for k in range(1, 10_000):
        step = -k * (k - a)
        b += 2
        d = 1 / (step * d + b)
        c = b + step / c
        h *= d * c
    return h * scale


def uniform_tail(counts: np.ndarray, sampled: float = 0.0) -> float:
    """p-value that `counts` [k] are of equal chances; drawn without replacement, `sampled` of everything there is.

    Without replacement every variance shrinks by 1 - sampled (the finite population correction).
    """
    expected = counts.sum() / counts.size
    return chi_square_tail(float(((counts - expected) ** 2).sum() / expected / (1 - sampled)), counts.size - 1)


def table_tail(table: np.ndarray, corrected: float = 1.0) -> float:
    """p-value that a [k, m] table of equal row and column sums is of equal chances: (k - 1)(m - 1) degrees."""
    expected = table.sum() / table.size
    statistic = float(((table - expected) ** 2).sum() / expected) * corrected
    return chi_square_tail(statistic, (table.shape[0] - 1) * (table.shape[1] - 1))


def epoch_of(seed: int, epoch: int, counts: object, window: int | None, name: str = "leaf") -> np.ndarray:
    """Samples of one epoch as a mixture draws them."""
    mixture = Mixture([Leaf(name, counts)], seed=seed, window=window)  # type: ignore[arg-type]
    return mixture.draw(mixture.start(epoch), mixture.leaves[0].n).sample


@pytest.mark.parametrize(
    ("freedom", "statistic", "tail"),
    [(1, 3.841459, 0.05), (10, 18.307038, 0.05), (10, 29.588298, 0.001), (100, 124.342113, 0.05), (100, 77.929, 0.95)],
)
def test_the_tail_agrees_with_printed_tables(freedom: int, statistic: float, tail: float) -> None:
    """Critical values of the NIST/SEMATECH e-Handbook, 1.3.6.7.4."""
    assert chi_square_tail(statistic, freedom) == pytest.approx(tail, rel=1e-4)


@pytest.mark.parametrize("epoch", range(5))
def test_with_all_in_one_window_places_are_uniform_at_head_at_tail_and_throughout(epoch: int) -> None:
    order = epoch_of(0, epoch, np.full(N // 20, 20), None)
    assert np.array_equal(np.sort(order), np.arange(N))
    table = np.zeros((BINS, BINS), np.int64)
    np.add.at(table, (np.arange(N) * BINS // N, order * BINS // N), 1)
    assert table_tail(table, (N - 1) / N) > 0.001
    for part in (order[: N // 20], order[-N // 20 :]):
        assert uniform_tail(np.bincount(part * BINS // N, minlength=BINS), 0.05) > 0.001


def test_p_values_themselves_are_uniform_over_two_hundred_epochs() -> None:
    """A test that passes each epoch could still lean: Kolmogorov and Smirnov's 0.1 % bound on the p-values, 1.95/√m."""
    n, tails = 20_000, []
    for epoch in range(EPOCHS):
        head = epoch_of(1, epoch, [n], None)[: n // 20]
        tails.append(uniform_tail(np.bincount(head * 20 // n, minlength=20), 0.05))
    ranks = np.arange(1, EPOCHS + 1) / EPOCHS
    assert np.abs(np.sort(tails) - ranks).max() < 1.95 / math.sqrt(EPOCHS)


def test_the_test_finds_a_shuffle_that_is_not_one() -> None:
    """A shuffle inside a sliding buffer of a tenth, the common method: the head holds the head."""
    rng = np.random.default_rng(0)
    buffer, out = list(range(N // 10)), []
    for row in range(N // 10, N):
        place = int(rng.integers(len(buffer)))
        out.append(buffer[place])
        buffer[place] = row
    head = np.array(out[: N // 20])
    assert uniform_tail(np.bincount(head * BINS // N, minlength=BINS), 0.05) < 1e-9
    assert locality(np.array([*out, *buffer])).residual > 0.4


def test_neighbours_in_an_epoch_are_strangers_and_epochs_are_independent() -> None:
    first, second = (epoch_of(2, epoch, np.full(N // 20, 20), None) for epoch in (0, 1))
    assert abs(np.corrcoef(first[:-1], first[1:])[0, 1]) < 4 / math.sqrt(N)
    assert abs(np.corrcoef(first, second)[0, 1]) < 4 / math.sqrt(N)
    assert (first == second).sum() < 8 and (np.diff(first) == 1).sum() < 8


def test_with_a_window_shards_and_places_in_the_window_are_uniform_over_two_hundred_epochs() -> None:
    """20 shards of 50 samples, 4 a window. A table of permutations has Σ (o - e)² / e ~ χ²((S - 1)²) S / (S - 1)."""
    shards, size, window = 20, 50, 4
    held = window * size
    shard_places = np.zeros((shards, shards), np.int64)
    sample_places = np.zeros((size, 10), np.int64)
    shard_in_window = np.zeros((shards, 10), np.int64)
    for epoch in range(EPOCHS):
        order = epoch_of(3, epoch, np.full(shards, size), window)
        place = np.arange(order.size) % held * 10 // held
        np.add.at(sample_places, (order % size, place), 1)
        np.add.at(shard_in_window, (order // size, place), 1)
        kept = WindowedOrder(np.full(shards, size), window, derive_key("leaf", 3, "leaf", epoch))
        shard_order = np.concatenate([kept.shards(number) for number in range(len(kept))])
        assert all(
            set((order[k * held : (k + 1) * held] // size).tolist()) == set(kept.shards(k).tolist()) for k in range(5)
        )
        np.add.at(shard_places, (shard_order, np.arange(shards)), 1)
    assert table_tail(shard_places, (shards - 1) / shards) > 0.001
    assert table_tail(sample_places, (held - 1) / held) > 0.001
    assert table_tail(shard_in_window, (held - 1) / held) > 0.001
    for ends in (shard_places[:, 0], shard_places[:, -1]):
        assert uniform_tail(ends) > 0.001


@pytest.mark.parametrize(("window", "share"), [(None, 1.0), (250, 0.25), (50, 0.05), (10, 0.01)])
def test_residual_locality_is_what_the_window_leaves(window: int | None, share: float) -> None:
    """1000 shards of 100: rows that lay together come within the window's share, wherever that window comes."""
    found = locality(epoch_of(4, 0, np.full(1000, 100), window))
    assert found.displacement == pytest.approx(1 / 3, rel=0.08)
    assert found.spread == pytest.approx(0.99 * share / 3 + 0.01 / 3, rel=0.03)
    assert found.residual == pytest.approx(0.99 * (1 - share), abs=0.01)


def test_locality_of_orders_known_by_hand() -> None:
    kept, turned = locality(np.arange(1000) * 7), locality(np.arange(4)[::-1])
    assert (kept.displacement, kept.spread) == (0, pytest.approx(0.001))
    assert (turned.displacement, turned.spread) == ((3 + 1 + 1 + 3) / 16, 0.25)
    assert locality([5]).residual == locality([]).residual == 0
    with pytest.raises(ValueError, match="each row once"):
        locality([1, 1, 2])


def test_two_leaves_of_the_same_data_differ() -> None:
    counts = np.full(500, 20)
    mixture = Mixture([Leaf("a", counts, 1, 1), Leaf("b", counts, 1, 1)], seed=5, window=25)
    draw = mixture.draw(mixture.start(), 20_000)
    first, second = draw.sample[draw.leaf == 0], draw.sample[draw.leaf == 1]
    assert np.array_equal(np.sort(first), np.sort(second))
    assert (first == second).sum() < 12 and abs(np.corrcoef(first, second)[0, 1]) < 0.2
    table = np.zeros((10, 10), np.int64)
    whole = [epoch_of(5, 0, counts, None, name) for name in ("a", "b")]
    np.add.at(table, tuple(np.argsort(each) * 10 // each.size for each in whole), 1)
    assert table_tail(table, (10_000 - 1) / 10_000) > 0.001


@pytest.mark.parametrize("n", [2, 7, 200])
def test_small_leaves_that_repeat_are_uniform_too(n: int) -> None:
    """Small leaves are shuffled by sorting keyed hashes: each sample at each place, over 2000 passes."""
    mixture = Mixture([Leaf("small", [n], 1, 2000)], seed=6)
    passes = mixture.draw(mixture.start(), 2000 * n).sample.reshape(2000, n)
    bins = min(n, 20)
    table = np.zeros((bins, bins), np.int64)
    np.add.at(table, (passes * bins // n, np.broadcast_to(np.arange(n) * bins // n, passes.shape)), 1)
    assert table_tail(table, (n - 1) / n) > 0.001


def test_all_orders_of_four_are_equally_likely() -> None:
    ways = np.zeros(4**4, np.int64)
    for key in range(4800):
        np.add.at(ways, (Permutation(4, derive_key("ways", key))(np.arange(4)) * [64, 16, 4, 1]).sum(), 1)
    seen = ways[ways > 0]
    assert seen.size == 24 and uniform_tail(seen) > 0.001


def test_mixtures_never_change_and_do_not_depend_on_the_process() -> None:
    """Frozen: a run resumes on another machine and release with the order it began with."""
    program = (
        "import numpy as np\n"
        "from mmdata.planning.mixture import Leaf, Mixture\n"
        "leaves = [Leaf('a', [16] * 40, 0.7), Leaf('ü', [3, 4], 0.2), Leaf('c', [900], 0.1)]\n"
        "mixture = Mixture(leaves, seed=7, unit='seconds', window=8)\n"
        "draw = mixture.draw(mixture.start(), 5000, lambda leaf, ids: 0.1 + ids % 7)\n"
        "print(draw.leaf[-12:].tolist(), draw.sample[-12:].tolist(), draw.cursor.to_dict(), mixture.fingerprint())"
    )
    outputs = [
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout.strip()
        for seed in ("0", "1", "random")
    ]
    assert len(set(outputs)) == 1
    assert outputs[0] == (
        "[0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 1, 0] [252, 596, 2, 5, 10, 436, 396, 106, 445, 9, 3, 240] "
        "{'leaves': [[5, 304, 15473.428571428574], [142, 3, 15478.5], [0, 499, 15469.0]], "
        "'time': 15471.928571428574, 'phase': 0} f83104597fbce32ddb9b55b870500d6e"
    )
