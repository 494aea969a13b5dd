"""Picture operators against their definitions."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pydantic import ValidationError

from mmdata.media import image as codec
from mmdata.operators.image import Crop, Flip, Orient, Pad, RandomCrop, Resize, brightness, fit, sharpness
from mmdata.operators.registry import Context, ImageTransform, get, names
from mmdata.schema import MediaInfo

CONTEXT = Context(seed=7, leaf="leaf", pass_=0, key="key")


def info(width: int, height: int, rotation: int | None = 0) -> MediaInfo:
    return MediaInfo(width=width, height=height, rotation=rotation)


def counted(width: int, height: int) -> Image.Image:
    """Red is the column, green the row."""
    y, x = np.mgrid[0:height, 0:width]
    return Image.fromarray(np.stack([x, y, np.zeros_like(x)], -1).astype(np.uint8))


def noise(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(1).integers(0, 256, (height, width, 3), np.uint8))


def test_the_operators_are_registered_with_documentation() -> None:
    assert {"orient", "resize", "crop", "pad", "random_crop", "flip"} <= set(names("transform", "image"))
    assert {"brightness", "sharpness"} <= set(names("statistic", "image"))
    for name in ("orient", "resize", "crop", "pad", "random_crop", "flip"):
        assert "Example: `" in (get("transform", "image", name).model.__doc__ or "")


@pytest.mark.parametrize(
    ("colour", "luma"),
    [("black", 0), ("white", 255), ("red", 54.213), ("lime", 182.376), ("blue", 18.411), ((10, 20, 30), 18.596)],
)
def test_brightness_is_the_mean_rec_709_luma(colour: Any, luma: float) -> None:
    assert brightness(Image.new("RGB", (5, 3), colour)) == {"brightness": pytest.approx(luma)}


def test_brightness_of_half_black_half_white_and_of_gray() -> None:
    picture = Image.new("L", (10, 10))
    picture.paste(255, (0, 0, 5, 10))
    assert brightness(picture)["brightness"] == pytest.approx(127.5)


def test_sharpness_of_a_checkerboard_is_the_closed_form() -> None:
    y, x = np.mgrid[0:10, 0:10]
    board = Image.fromarray(((x + y) % 2 * 255).astype(np.uint8))
    # each inner pixel differs from its four neighbours by 255: the Laplacian is ±1020, in equal numbers
    assert sharpness(board)["sharpness"] == pytest.approx(1020**2, rel=1e-5)


def test_sharpness_of_one_bright_point() -> None:
    picture = Image.new("L", (7, 7))
    picture.putpixel((3, 3), 100)
    laplacian = np.array([-400] + [100] * 4 + [0] * 20)
    assert sharpness(picture)["sharpness"] == pytest.approx(laplacian.var(), rel=1e-5)


def test_sharpness_of_flat_sloped_and_tiny_pictures_is_zero() -> None:
    assert sharpness(Image.new("RGB", (9, 9), "red"))["sharpness"] == 0
    assert sharpness(counted(9, 9))["sharpness"] == pytest.approx(0, abs=1e-6)
    assert sharpness(noise(2, 9))["sharpness"] == 0


def test_blurring_lowers_sharpness() -> None:
    picture = noise(64, 64)
    smaller = picture.resize((16, 16), Image.Resampling.BOX).resize((64, 64), Image.Resampling.BICUBIC)
    assert sharpness(smaller)["sharpness"] < 0.1 * sharpness(picture)["sharpness"]


@pytest.mark.parametrize(("rotation", "noop"), [(0, True), (90, False), (180, False), (270, False), (None, False)])
def test_orient_copies_upright_pictures_only(rotation: int | None, noop: bool) -> None:
    assert Orient().is_noop(info(4, 3, rotation), CONTEXT) is noop


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orient_knows_every_stored_orientation(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    out = io.BytesIO()
    noise(8, 8).save(out, "JPEG", exif=exif)
    assert Orient().is_noop(codec.probe(out.getvalue()), CONTEXT) is (orientation == 1)


@pytest.mark.parametrize(
    ("size", "target", "mode", "options", "box", "scaled", "result"),
    [
        ((200, 100), (50, 50), "cover", {}, (50, 0, 150, 100), (50, 50), (50, 50)),
        ((100, 200), (50, 50), "cover", {}, (0, 50, 100, 150), (50, 50), (50, 50)),
        ((100, 100), (200, 50), "cover", {}, (0, 37.5, 100, 62.5), (200, 50), (200, 50)),
        ((100, 100), (200, 50), "cover", {"upscale": False}, (0, 25, 100, 75), (100, 50), (100, 50)),
        ((101, 100), (101, 51), "cover", {}, (0, 24, 101, 75), (101, 51), (101, 51)),
        ((200, 100), (50, 50), "contain", {}, (0, 0, 200, 100), (50, 25), (50, 50)),
        ((200, 100), (50, 50), "contain", {"pad": False}, (0, 0, 200, 100), (50, 25), (50, 25)),
        ((20, 10), (50, 50), "contain", {}, (0, 0, 20, 10), (50, 25), (50, 50)),
        ((20, 10), (50, 50), "contain", {"upscale": False}, (0, 0, 20, 10), (20, 10), (50, 50)),
        ((200, 10), (50, 50), "exact", {}, (0, 0, 200, 10), (50, 50), (50, 50)),
        ((200, 10), (50, 50), "exact", {"upscale": False}, (0, 0, 200, 10), (50, 10), (50, 10)),
        ((1000, 1), (50, 50), "contain", {"pad": False}, (0, 0, 1000, 1), (50, 1), (50, 1)),
    ],
)
def test_fit(size: Any, target: Any, mode: Any, options: Any, box: Any, scaled: Any, result: Any) -> None:
    plan = fit(*size, target, mode, **options)
    assert plan.box == pytest.approx(box)
    assert (plan.scaled, plan.size) == (scaled, result)


@pytest.mark.parametrize(
    ("arguments", "size", "expected"),
    [
        ({"width": 60, "height": 40}, (300, 300), (60, 40)),
        ({"width": 60}, (300, 150), (60, 30)),
        ({"height": 60}, (300, 150), (120, 60)),
        ({"shorter": 60}, (300, 150), (120, 60)),
        ({"longer": 60}, (300, 150), (60, 30)),
        ({"shorter": 600}, (300, 150), (1200, 600)),
        ({"shorter": 600, "upscale": False}, (300, 150), (300, 150)),
        ({"width": 60, "height": 60, "mode": "contain"}, (300, 150), (60, 60)),
        ({"width": 60, "height": 60, "mode": "contain", "pad": False}, (300, 150), (60, 30)),
        ({"width": 400, "height": 400, "upscale": False}, (300, 150), (300, 150)),
    ],
)
def test_resize_gives_the_size_and_knows_when_it_changes_nothing(arguments: Any, size: Any, expected: Any) -> None:
    resize, picture = Resize(**arguments), noise(*size)
    result = resize.apply(picture, CONTEXT)
    assert result.size == expected
    assert resize.is_noop(info(*size), CONTEXT) is (result is picture)
    assert resize.is_noop(info(*expected), CONTEXT) or arguments.get("upscale") is False


@pytest.mark.parametrize("mode", ["cover", "contain", "exact"])
def test_resize_to_the_bucket(mode: Any) -> None:
    context = replace(CONTEXT, target=(64, 48))
    assert Resize(mode=mode).apply(noise(100, 100), context).size == (64, 48)
    assert Resize(mode=mode).is_noop(info(64, 48), context)
    assert not Resize(mode=mode).is_noop(info(48, 64), context)
    with pytest.raises(ValueError, match="bucket"):
        Resize(mode=mode).apply(noise(100, 100), CONTEXT)


def test_area_averages_the_covered_pixels() -> None:
    picture = noise(64, 48)
    means = np.asarray(picture, float).reshape(12, 4, 16, 4, 3).mean((1, 3))
    result = Resize(width=16, height=12, interpolation="area").apply(picture, CONTEXT)
    assert np.abs(np.asarray(result, float) - means).max() <= 1  # rounded once a direction


def test_cover_keeps_the_middle() -> None:
    result = np.asarray(Resize(width=100, height=100, interpolation="area").apply(counted(200, 100), CONTEXT))
    assert (result[0, 0, 0], result[0, -1, 0]) == (50, 149)


@pytest.mark.parametrize("interpolation", ["bicubic", "lanczos", "bilinear", "area"])
def test_reduction_is_antialiased(interpolation: Any) -> None:
    x = np.mgrid[0:64, 0:64][1]
    stripes = Image.fromarray((x % 2 * 255).astype(np.uint8)).convert("RGB")
    result = np.asarray(Resize(width=8, height=8, interpolation=interpolation).apply(stripes, CONTEXT), float)
    assert np.abs(result - 127.5).max() <= 6  # without antialiasing it is 127.5


def test_contain_pads_with_the_ground_of_transparency_or_a_colour() -> None:
    red = Image.new("RGB", (20, 10), "red")
    for options, alpha, expected in [
        ({}, "white", (255, 255, 255)),
        ({}, "black", (0, 0, 0)),
        ({"fill": "#102030"}, "white", (16, 32, 48)),
    ]:
        result = Resize(width=20, height=20, mode="contain", **options).apply(red, replace(CONTEXT, alpha=alpha))
        assert [result.getpixel((10, y)) for y in (0, 4, 5, 14, 15)] == [expected] * 2 + [(255, 0, 0)] * 2 + [expected]


def test_gray_pictures_stay_gray_unless_the_margin_has_colour() -> None:
    gray = Image.new("L", (10, 10), 77)
    assert Pad(width=20, height=20).apply(gray, CONTEXT).mode == "L"
    assert Pad(width=20, height=20, fill="red").apply(gray, CONTEXT).getpixel((0, 0)) == (255, 0, 0)


@pytest.mark.parametrize(
    "arguments",
    [
        {"shorter": 5, "longer": 5},
        {"shorter": 5, "width": 5},
        {"width": 0},
        {"fill": "blurple"},
        {"mode": "stretch"},
        {"interpolation": "magic"},
        {"widht": 5},
    ],
)
def test_wrong_arguments_are_refused(arguments: Any) -> None:
    with pytest.raises(ValidationError):
        Resize.parse({"op": "resize", **arguments})


@pytest.mark.parametrize(
    "arguments", [{"shorter": 100}, {"width": 64, "height": 64}, {"longer": 90, "mode": "contain"}]
)
@pytest.mark.parametrize("size", [(1001, 3001), (640, 480), (4000, 3000), (130, 90), (2047, 801)])
def test_reduced_decoding_gives_the_same_size_and_nearly_the_same_picture(arguments: Any, size: Any) -> None:
    resize = Resize(**arguments)
    picture = noise(32, 32).resize(size, Image.Resampling.BICUBIC)
    out = io.BytesIO()
    picture.save(out, "JPEG", quality=95)
    asked = resize.at_least(info(*size), CONTEXT)
    full = codec.decode(out.getvalue())
    reduced = codec.decode(out.getvalue(), at_least=asked)
    expected, result = resize.apply(full, CONTEXT), resize.apply(reduced, CONTEXT)
    assert result.size == expected.size
    if asked is not None:
        assert reduced.width < full.width
        assert np.abs(np.asarray(result, float) - np.asarray(expected, float)).mean() <= 2.5


def test_a_large_reduction_lets_the_decoder_reduce_and_a_small_one_does_not() -> None:
    assert Resize(width=512, height=512).at_least(info(4096, 4096), CONTEXT) == (1024, 1024)
    assert Resize(width=512, height=512).at_least(info(2049, 2049), CONTEXT) == (1024, 1024)
    assert Resize(width=512, height=512).at_least(info(2047, 2047), CONTEXT) is None
    assert Resize(width=512, height=512, interpolation="nearest").at_least(info(4096, 4096), CONTEXT) is None


def test_crop_takes_the_centre_or_the_given_box() -> None:
    picture = counted(100, 50)
    assert Crop(width=40, height=20).apply(picture, CONTEXT).getpixel((0, 0)) == (30, 15, 0)
    given = Crop(width=10, height=10, left=5, top=7).apply(picture, CONTEXT)
    assert (given.size, given.getpixel((0, 0)), given.getpixel((9, 9))) == ((10, 10), (5, 7, 0), (14, 16, 0))
    assert Crop(width=200, height=20).apply(picture, CONTEXT).size == (100, 20)
    assert Crop().apply(picture, replace(CONTEXT, target=(8, 6))).size == (8, 6)
    with pytest.raises(ValueError, match="reaches out"):
        Crop(width=10, height=10, left=95).apply(picture, CONTEXT)


def test_pad_centres_and_never_cuts() -> None:
    picture = Image.new("RGB", (3, 2), "red")
    padded = Pad(width=6, height=2).apply(picture, CONTEXT)
    assert [padded.getpixel((x, 0)) for x in range(6)] == [(255,) * 3] + [(255, 0, 0)] * 3 + [(255,) * 3] * 2
    assert Pad(width=2, height=4).apply(picture, CONTEXT).size == (3, 4)


def test_random_crops_depend_on_seed_and_key_only() -> None:
    picture, crop = counted(200, 200), RandomCrop(width=50, height=60)
    first = crop.apply(picture, CONTEXT)
    assert first.size == (50, 60)
    assert np.array_equal(first, crop.apply(picture, replace(CONTEXT)))
    corners = [crop.apply(picture, replace(CONTEXT, key=str(key))).getpixel((0, 0)) for key in range(400)]
    columns, rows = (np.array([corner[axis] for corner in corners]) for axis in (0, 1))  # type: ignore[index]
    for drawn, most in ((columns, 150), (rows, 140)):
        assert drawn.min() < 8 and drawn.max() > most - 8 and drawn.max() <= most
        assert abs(drawn.mean() - most / 2) < 8  # 3.7 standard errors
    assert crop.apply(picture, replace(CONTEXT, seed=8)).getpixel((0, 0)) != first.getpixel((0, 0))


def test_flips_are_drawn_per_sample() -> None:
    picture = counted(5, 4)
    flipped = 0
    for key in range(1000):
        context = replace(CONTEXT, key=str(key))
        result = Flip(probability=0.3).apply(picture, context)
        changed = result.getpixel((0, 0)) == (4, 0, 0)
        assert Flip(probability=0.3).is_noop(info(5, 4), context) is not changed
        flipped += changed
    assert 240 < flipped < 360
    assert Flip(probability=1.0, direction="vertical").apply(picture, CONTEXT).getpixel((0, 0)) == (0, 3, 0)
    assert Flip(probability=0.0).apply(picture, CONTEXT) is picture


@pytest.mark.parametrize(
    "operator",
    [
        Resize(width=40, height=30),
        Resize(shorter=30),
        Resize(longer=40, upscale=False),
        Resize(width=50, height=50, upscale=False),
        Resize(width=50, height=50, mode="contain", pad=False, upscale=False),
        Crop(width=40, height=30),
        Crop(width=400, height=300),
        Crop(width=40, height=30, left=0, top=0),
        Pad(width=40, height=30),
        Pad(width=1, height=1),
        RandomCrop(width=40, height=30),
        RandomCrop(width=41, height=31),
        Flip(probability=0.5),
        Orient(),
    ],
)
@pytest.mark.parametrize("size", [(40, 30), (41, 30), (40, 31), (30, 40), (20, 15)])
def test_noop_is_said_exactly_when_nothing_changes(operator: ImageTransform, size: tuple[int, int]) -> None:
    picture = noise(*size)
    try:
        result = operator.apply(picture, CONTEXT)
    except ValueError:
        with pytest.raises(ValueError):
            operator.is_noop(info(*size), CONTEXT)
        return
    unchanged = result.size == size and np.array_equal(result, picture)
    assert operator.is_noop(info(*size), CONTEXT) is unchanged
