"""Shapes chosen from the data: the optimum by brute force, the waste against common methods, bounds and reasons."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmdata.planning.aspect import AspectBuckets, fixed_grid
from mmdata.planning.aspect_choice import _select, choose_aspect_buckets, equal_mass_shapes, shape_lattice

PIXELS = 512 * 512


def camera_mix(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Widths and heights: seven tenths camera formats (a third of them upright), the rest log-normal aspect ratios."""
    rng = np.random.default_rng(11)
    formats = rng.choice([4 / 3, 3 / 2, 16 / 9, 1.0], count, p=[0.4, 0.35, 0.15, 0.1])
    formats = np.where(rng.random(count) < 0.33, 1 / formats, formats)
    aspect = np.where(rng.random(count) < 0.7, formats, np.exp(rng.normal(0.1, 0.3, count)))
    pixels = np.exp(rng.normal(np.log(1.5e6), 0.8, count))
    return np.sqrt(pixels * aspect).astype(int), np.sqrt(pixels / aspect).astype(int)


def waste(buckets: AspectBuckets, *geometry: np.ndarray) -> float:
    """Mean share of pixels cropped or padded over the samples that are kept."""
    found = buckets.assign(*geometry)
    kept = found.bucket >= 0
    return float(1 - ((1 - found.crop) * (1 - found.pad) * (1 - found.trim))[kept].mean())


@given(
    aspects=st.lists(st.floats(-0.9, 0.9), min_size=1, max_size=9),
    count=st.integers(1, 4),
    step=st.sampled_from([64, 96]),
)
@settings(max_examples=40, deadline=None)
def test_the_choice_equals_brute_force(aspects: list[float], count: int, step: int) -> None:
    height = np.full(len(aspects), 4000)
    width = np.rint(4000 * np.exp(aspects)).astype(int)
    lattice = shape_lattice(0.75 * PIXELS, PIXELS, step, 2.0)
    chosen = choose_aspect_buckets(width, height, count=count, pixels=PIXELS, multiple_of=step)
    rule = AspectBuckets(lattice)
    logs = np.log(np.stack([width, height]))[:, :, None]
    table = rule.cost(logs, np.log(lattice.astype(float)).T[:, None, :], np.log(PIXELS))[0]
    best = min(table[:, list(pick)].min(axis=1).sum() for pick in combinations(range(len(lattice)), count))
    rows = [lattice.tolist().index(shape) for shape in chosen.shapes.tolist()]
    assert table[:, rows].min(axis=1).sum() == pytest.approx(best, abs=1e-6 + 1e-6 * len(aspects))
    assert len(chosen) <= count and (len(chosen) == count or chosen.reason)


@pytest.mark.parametrize("mode", ["cover", "contain"])
def test_a_fifth_less_waste_than_common_methods_on_a_camera_mix(mode: Any) -> None:
    geometry = camera_mix(20_000)
    grid = fixed_grid(PIXELS, 64, 2.0, mode=mode)
    options: dict[str, Any] = {"count": len(grid), "pixels": PIXELS, "multiple_of": 16, "mode": mode}
    ours = choose_aspect_buckets(*geometry, **options)
    assert len(ours) == len(grid)
    assert waste(ours, *geometry) <= 0.8 * waste(grid, *geometry)
    assert waste(ours, *geometry) <= 0.8 * waste(equal_mass_shapes(*geometry, **options), *geometry)
    assert not ours.assign(*geometry).dropped()


def test_a_fifth_less_waste_than_the_common_grid_on_real_geometry(truth: dict[str, dict[str, Any]]) -> None:
    sizes = [row["pillow"]["size"] for row in truth.values() if "size" in row.get("pillow", {})]
    width, height = np.array(sizes).T
    grid = fixed_grid(PIXELS, 64, 2.0)
    ours = choose_aspect_buckets(width, height, count=len(grid), pixels=PIXELS, multiple_of=64)
    assert waste(ours, width, height) <= 0.8 * waste(grid, width, height)


def test_clips_waste_a_fifth_less_than_the_grid_times_frame_counts() -> None:
    width, height = camera_mix(10_000)
    frames = np.clip(np.random.default_rng(3).lognormal(4, 1, width.size), 1, 2000).astype(int)
    choices = [17, 33, 65, 129]
    grid = fixed_grid(PIXELS, 64, 2.0).shapes
    product = AspectBuckets([[*shape, count] for shape in grid.tolist() for count in choices])
    ours = choose_aspect_buckets(
        width, height, frames=frames, frame_choices=choices, count=len(product), pixels=PIXELS, multiple_of=16
    )
    spatial = [float(np.mean(each.assign(width, height, frames).crop)) for each in (ours, product)]
    assert spatial[0] <= 0.8 * spatial[1]
    assert waste(ours, width, height, frames) <= waste(product, width, height, frames)
    assert set(ours.shapes[:, 2].tolist()) == set(choices)


def test_shapes_obey_the_lattice_and_the_order_is_stable() -> None:
    width, height = camera_mix(3000)
    options: dict[str, Any] = {"count": 12, "pixels": (256**2, 1024**2), "multiple_of": 32, "max_aspect": 1.8}
    chosen = choose_aspect_buckets(width, height, **options)
    shapes = chosen.shapes
    assert len(chosen) == 12 and (shapes % 32 == 0).all()
    area, ratio = shapes.prod(axis=1), shapes[:, 0] / shapes[:, 1]
    assert ((area >= 256**2) & (area <= 1024**2)).all() and ((ratio <= 1.8) & (ratio >= 1 / 1.8)).all()
    assert (np.diff(ratio) >= 0).all()
    turned = np.random.default_rng(0).permutation(width.size)
    again = choose_aspect_buckets(width[turned], height[turned], **options)
    assert np.array_equal(again.shapes, shapes)


def test_bounds_are_kept_and_few_are_dropped() -> None:
    width, height = camera_mix(5000)
    options: dict[str, Any] = {"pixels": PIXELS, "multiple_of": 32, "max_crop": 0.08}
    chosen = choose_aspect_buckets(width, height, count=10, **options)
    found = chosen.assign(width, height)
    assert np.nanmax(found.crop) <= 0.08 + 1e-6
    assert set(found.dropped()) == {"max_crop"} and sum(found.dropped().values()) < 0.05 * width.size
    grid = fixed_grid(PIXELS, 64, 2.0, max_crop=0.08).assign(width, height)
    assert sum(found.dropped().values()) < 0.5 * sum(grid.dropped().values())


def test_the_optimum_is_found_on_fine_lattices() -> None:
    """One pixel area and cropping alone: k-medians on a line, whose optimum a dynamic programme finds."""
    rng = np.random.default_rng(5)
    place = np.sort(rng.normal(0.1, 0.35, 400))
    sites = np.unique(np.round(np.log([w / h for w, h in shape_lattice(0.75 * PIXELS, PIXELS, 16, 2.0).tolist()]), 9))
    table = np.abs(place[:, None] - sites[None])
    between = np.full((sites.size, sites.size), np.inf)  # cost of the samples between two neighbouring choices
    for left, right in combinations(range(sites.size), 2):
        inside = (place >= sites[left]) & (place < sites[right])
        between[left, right] = np.minimum(table[inside, left], table[inside, right]).sum()
    before = np.array([table[place < site, column].sum() for column, site in enumerate(sites)])
    after = np.array([table[place >= site, column].sum() for column, site in enumerate(sites)])
    exact, optimum = before, {1: (before + after).min()}
    for count in range(2, 17):
        exact = (exact[:, None] + between).min(axis=0)
        optimum[count] = (exact + after).min()
    for count in (1, 2, 3, 5, 8, 16):
        known, blind = (_select(table, np.ones(place.size), count, line) for line in ((place, sites), None))
        assert table[:, known].min(axis=1).sum() == pytest.approx(optimum[count])
        assert optimum[count] * (1 - 1e-9) <= table[:, blind].min(axis=1).sum() <= 1.03 * optimum[count]


def test_fewer_shapes_are_explained() -> None:
    square = choose_aspect_buckets([800] * 5, [800] * 5, count=4, pixels=PIXELS)
    assert square.shapes.tolist() == [[512, 512]] and "as little as more would" in str(square.reason)
    scarce = choose_aspect_buckets(*camera_mix(500), count=50, pixels=PIXELS, multiple_of=128)
    assert len(scarce) < 50 and "shapes are possible" in str(scarce.reason)


def test_upright_and_lying_pictures_get_their_own_shapes() -> None:
    chosen = choose_aspect_buckets([900, 1600], [1600, 900], count=2, pixels=PIXELS, multiple_of=16)
    (first, second) = chosen.shapes.tolist()
    assert first == second[::-1] and second[0] / second[1] == pytest.approx(16 / 9, rel=0.02)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"count": 0}, "at least one shape"),
        ({"multiple_of": 1024}, "no shape with sides that are multiples of 1024"),
        ({"max_aspect": 0.5}, "max_aspect"),
        ({"frame_choices": [0], "frames": [3]}, "at least 1"),
    ],
)
def test_impossible_choices_are_refused(options: dict[str, Any], message: str) -> None:
    settings: dict[str, Any] = {"count": 2, "pixels": PIXELS, **options}
    with pytest.raises(ValueError, match=message):
        choose_aspect_buckets([640], [480], **settings)
    with pytest.raises(ValueError, match="no sample"):
        choose_aspect_buckets([0], [480], count=2, pixels=PIXELS)
