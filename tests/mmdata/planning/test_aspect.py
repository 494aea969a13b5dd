"""Assignment to picture and clip shapes: costs by hand, bounds, reasons, explanations."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmdata.planning.aspect import REASONS, AspectBuckets, Mode, fixed_grid

SIDE = st.integers(1, 5000)


def test_the_common_grid() -> None:
    """kohya-ss `make_bucket_resolutions`: 512² pixels, steps of 64, aspect ratio at most 2."""
    shapes = fixed_grid(512 * 512, 64, 2.0).shapes.tolist()
    assert shapes == [[384, 640], [448, 576], [512, 512], [576, 448], [640, 384]]
    with pytest.raises(ValueError, match="step of 64"):
        fixed_grid(1000, 64)


def test_cover_crops_and_says_how_much() -> None:
    found = AspectBuckets([[512, 512], [640, 384]]).assign([1000, 1600, 256], [1000, 800, 256])
    assert found.bucket.tolist() == [0, 1, 0]
    # 1600x800 covers 640x384 at scale 0.48: 768x384, of which 640 columns are kept.
    assert found.crop.tolist() == pytest.approx([0.0, 1 - 640 / 768, 0.0])
    assert found.upscale.tolist() == pytest.approx([1.0, 1.0, 2.0])
    assert found.pad.tolist() == [0, 0, 0] and found.distortion.tolist() == [1, 1, 1]


def test_contain_pads_and_exact_distorts() -> None:
    shapes = [[512, 512], [640, 384]]
    contained = AspectBuckets(shapes, "contain").assign([1600], [800])
    assert contained.bucket.tolist() == [1] and contained.pad[0] == pytest.approx(1 - 320 / 384)
    assert contained.crop[0] == 0
    stretched = AspectBuckets(shapes, "exact").assign([1600], [800])
    assert stretched.distortion[0] == pytest.approx((1600 / 800) / (640 / 384))


def test_aspect_is_compared_in_log_space_and_resolution_counts() -> None:
    """1.0 lies nearer to 1.5 than to 0.66 linearly, not in log space; and a large picture takes the large shape."""
    found = AspectBuckets([[400, 600], [600, 400]]).assign([1020, 980], [1000, 1000])
    assert found.bucket.tolist() == [1, 0]
    sizes = AspectBuckets([[256, 256], [512, 512], [1024, 1024]])
    assert sizes.assign([250, 500, 2000, 700, 900], [250, 500, 2000, 700, 900]).bucket.tolist() == [0, 1, 2, 1, 2]


def test_a_larger_shape_of_slightly_worse_aspect_beats_a_small_perfect_one() -> None:
    found = AspectBuckets([[256, 192], [1024, 704]]).assign([2000], [1500])
    assert found.bucket.tolist() == [1]


def test_clips_take_the_longest_shape_they_fill() -> None:
    buckets = AspectBuckets([[512, 512, 1], [512, 512, 17], [512, 512, 33]])
    found = buckets.assign([600] * 4, [600] * 4, [1, 17, 40, 30])
    assert found.bucket.tolist() == [0, 1, 2, 2]
    assert found.trim.tolist() == pytest.approx([0, 0, 1 - 33 / 40, 0])
    assert found.pad.tolist() == pytest.approx([0, 0, 0, 1 - 30 / 33])
    never = AspectBuckets(buckets.shapes, max_pad=0.0).assign([600], [600], [30])
    assert never.bucket.tolist() == [1] and never.pad[0] == 0
    assert buckets.label(2) == "512x512x33"
    with pytest.raises(ValueError, match="frames are needed exactly when"):
        buckets.assign([1], [1])


@given(
    sizes=st.lists(st.tuples(SIDE, SIDE, st.integers(1, 100)), min_size=1, max_size=40),
    shapes=st.lists(st.tuples(st.integers(64, 1024), st.integers(64, 1024), st.integers(1, 64)), min_size=1, max_size=8,
                    unique=True),
    mode=st.sampled_from(["cover", "contain", "exact"]),
    bounds=st.fixed_dictionaries(
        {
            "max_crop": st.one_of(st.none(), st.floats(0, 0.9)),
            "max_pad": st.one_of(st.none(), st.floats(0, 0.9)),
            "max_trim": st.one_of(st.none(), st.floats(0, 0.9)),
            "max_upscale": st.one_of(st.none(), st.floats(1, 3)),
            "max_distortion": st.one_of(st.none(), st.floats(1, 3)),
        }
    ),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_bounds_hold_and_every_loss_has_its_rule(
    sizes: list[tuple[int, int, int]], shapes: list[tuple[int, int, int]], mode: Mode, bounds: dict
) -> None:
    buckets = AspectBuckets(shapes, mode, **bounds)
    width, height, frames = np.array(sizes).T
    found = buckets.assign(width, height, frames)
    kept = found.bucket >= 0
    for name in ("crop", "pad", "trim", "upscale", "distortion"):
        if bounds[f"max_{name}"] is not None:
            assert (getattr(found, name)[kept] <= bounds[f"max_{name}"] + 1e-5).all()
    assert np.array_equal(kept, found.reason == 0)
    assert found.counts(len(buckets)).sum() + sum(found.dropped().values()) == len(sizes)
    for row in range(len(sizes)):
        candidates = buckets.explain(*sizes[row])
        assert len(candidates) == len(shapes)
        fitting = [each for each in candidates if each["fits"]]
        if kept[row]:
            assert found.bucket[row] in [each["bucket"] for each in fitting]
            mine = next(each for each in fitting if each["bucket"] == found.bucket[row])
            assert mine["cost"] <= min(each["cost"] for each in fitting) + 1e-7
            assert mine["crop"] == pytest.approx(found.crop[row], abs=1e-5)
            assert buckets.nearest_miss(*sizes[row]) is None
        else:
            assert not fitting
            miss = buckets.nearest_miss(*sizes[row])
            assert miss is not None and REASONS[found.reason[row]] in miss["broken"]


def test_the_nearest_miss_tells_what_to_change() -> None:
    buckets = fixed_grid(512 * 512, max_crop=0.1, max_upscale=1.0)
    found = buckets.assign([300, 3000, 0, np.nan], [900, 1000, 10, 10])
    assert [REASONS[code] for code in found.reason] == ["max_crop", "max_crop", "no_geometry", "no_geometry"]
    assert found.dropped() == {"no_geometry": 2, "max_crop": 2}
    miss = buckets.nearest_miss(300, 900)
    assert miss is not None and miss["shape"] == "384x640" and miss["broken"] == ["max_crop", "max_upscale"]
    assert miss["crop"] == pytest.approx(1 - (640 / 384) / 3) and miss["upscale"] == pytest.approx(384 / 300)
    assert np.isnan(found.crop).all()


@pytest.mark.parametrize(
    "shapes, options, message",
    [
        ([], {}, "rows of"),
        ([[512, 0]], {}, "no pixels"),
        ([[512, 512], [512, 512]], {}, "same shape"),
        ([[5.5, 1]], {}, "whole numbers"),
        ([[512, 512]], {"mode": "fill"}, "cover, contain or exact"),
        ([[512, 512]], {"max_crop": 1.0}, "max_crop"),
        ([[512, 512]], {"max_upscale": 0.5}, "max_upscale"),
    ],
)
def test_impossible_buckets_are_refused(shapes: list, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AspectBuckets(shapes, **options)
