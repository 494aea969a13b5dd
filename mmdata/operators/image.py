"""Operators on pictures: brightness and sharpness; orient, resize, crop, pad, random_crop, flip.

They see a decoded picture (upright, RGB or L) and the context; no bytes, no recipe, no other sample. Sizes are
(width, height) in pixels. Random draws come from `context` alone, so a sample's picture is the same on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, Self

import numpy as np
import pyarrow as pa
from PIL import Image, ImageColor
from pydantic import AfterValidator, Field, model_validator

from mmdata.operators.registry import Context, ImageTransform, statistic, transform
from mmdata.recipe.base import mistake
from mmdata.schema import MediaInfo

REC709 = (0.2126, 0.7152, 0.0722)
"""Luma weights of red, green and blue (ITU-R BT.709-6, item 3.2)."""

Mode = Literal["cover", "contain", "exact"]
Interpolation = Literal["bicubic", "lanczos", "bilinear", "area", "nearest"]
Side = Annotated[int, Field(gt=0, le=65_535)]
Size = tuple[int, int]

FILTERS: dict[str, Image.Resampling] = {
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
    "bilinear": Image.Resampling.BILINEAR,
    "area": Image.Resampling.BOX,
    "nearest": Image.Resampling.NEAREST,
}


def _known_colour(value: str) -> str:
    try:
        ImageColor.getrgb(value)
    except ValueError:
        raise mistake(f"'{value}' is no colour; write a name such as gray or a hexadecimal such as #808080") from None
    return value


Colour = Annotated[str, AfterValidator(_known_colour)]


@statistic("brightness", "image", columns={"brightness": pa.float64()})
def brightness(media: Image.Image) -> dict[str, float]:
    """Mean luma, 0 (black) to 255 (white): 0.2126 R + 0.7152 G + 0.0722 B of the sRGB values as stored.

    Example: `statistics: [brightness]`, then `filters: ["brightness > 20 and brightness < 235"]`.
    """
    counts = np.asarray(media.convert("RGB").histogram(), np.float64).reshape(3, 256)
    means = counts @ np.arange(256) / counts.sum(1)
    return {"brightness": float(means @ REC709)}


@statistic("sharpness", "image", columns={"sharpness": pa.float64()})
def sharpness(media: Image.Image) -> dict[str, float]:
    """Variance of the Laplacian of the luma (weights as in `brightness`, 0 to 255): low is blurred or flat.

    The kernel is [[0, 1, 0], [1, -4, 1], [0, 1, 0]] on pixels that have all four neighbours; a picture without any has
    0. It depends on the resolution. (Pech-Pacheco et al., "Diatom autofocusing in brightfield microscopy", ICPR 2000.)
    Example: `statistics: [sharpness]`, then `filters: ["sharpness > 50"]`.
    """
    luma = np.asarray(media.convert("RGB"), np.float32) @ np.asarray(REC709, np.float32)
    if min(luma.shape) < 3:
        return {"sharpness": 0.0}
    laplacian = luma[:-2, 1:-1] + luma[2:, 1:-1] + luma[1:-1, :-2] + luma[1:-1, 2:] - 4 * luma[1:-1, 1:-1]
    return {"sharpness": float(laplacian.var(dtype=np.float64))}


@transform("orient", "image")
class Orient(ImageTransform):
    """Store the picture upright, for readers that do not know EXIF. An upright picture keeps its bytes.

    Example: `{op: orient}`.
    """

    def apply(self, media: Image.Image, context: Context) -> Image.Image:
        """The picture as it is: decoding turned it."""
        return media

    def is_noop(self, info: MediaInfo, context: Context) -> bool:
        """Whether the stored picture is upright: nothing was turned or mirrored."""
        return info.rotation == 0


@dataclass(frozen=True, slots=True)
class Fit:
    """How a picture becomes another size: `box` of the source (left, top, right, bottom) is scaled to `scaled`, which
    is centred on a canvas of `size`."""

    box: tuple[float, float, float, float]
    scaled: Size
    size: Size

    def changes(self, width: int, height: int) -> bool:
        """Whether a picture of this size would come out different."""
        return self.box != (0, 0, width, height) or self.scaled != (width, height) or self.size != (width, height)


def fit(width: float, height: float, target: Size, mode: Mode, *, upscale: bool = True, pad: bool = True) -> Fit:
    """Fit a picture into `target`.

    cover: scaled by max(tw / w, th / h), the overhang cut off equally on both sides. contain: scaled by the min, the
    rest padded equally (with `pad`). exact: each side scaled by itself. Without `upscale` no side grows: cover then
    cuts to the smaller of both sides, contain pads more, exact leaves the side.
    """
    across, down = target[0] / width, target[1] / height
    if mode == "exact":
        scaled = target if upscale else (_side(width, target[0]), _side(height, target[1]))
        return Fit((0, 0, width, height), scaled, scaled)
    if mode == "contain":
        scale = min(across, down) if upscale else min(across, down, 1.0)
        scaled = (_side(width * scale, target[0]), _side(height * scale, target[1]))
        return Fit((0, 0, width, height), scaled, target if pad else scaled)
    scale = max(across, down) if upscale else min(max(across, down), 1.0)
    size = (min(target[0], _side(width * scale)), min(target[1], _side(height * scale)))
    kept = (min(float(width), size[0] / scale), min(float(height), size[1] / scale))
    if scale == 1.0:
        left, top = (width - size[0]) // 2, (height - size[1]) // 2
    else:
        left, top = (width - kept[0]) / 2, (height - kept[1]) / 2
    return Fit((left, top, left + kept[0], top + kept[1]), size, size)


def _side(length: float, most: int | None = None) -> int:
    side = max(1, round(length))
    return side if most is None else min(side, most)


@transform("resize", "image")
class Resize(ImageTransform):
    """Scale to the bucket's size, to width × height, or by one side.

    Give width and height (a box for `mode`), one of them, `shorter` or `longer` (aspect ratio kept), or nothing: then
    the sample's bucket is the box. All filters but `nearest` are antialiased (their support grows with the reduction);
    `area` averages the covered pixels, as OpenCV's INTER_AREA does when reducing.
    Example: `{op: resize, mode: cover}` with buckets, or `{op: resize, shorter: 512, interpolation: lanczos}`.
    """

    width: Side | None = None
    """Width in pixels."""
    height: Side | None = None
    """Height in pixels."""
    shorter: Side | None = None
    """Pixels of the shorter side."""
    longer: Side | None = None
    """Pixels of the longer side."""
    mode: Mode = "cover"
    """cover: fill the box and cut the overhang off equally; contain: show all and pad; exact: distort."""
    interpolation: Interpolation = "bicubic"
    """Filter: bicubic, lanczos, bilinear, area or nearest."""
    fill: Colour | None = None
    """Colour of the padding of `contain`; not given: the ground under transparency (white, or black)."""
    pad: bool = True
    """Whether `contain` pads to the whole box; without, the picture is as large as fits."""
    upscale: bool = True
    """Whether a picture smaller than asked is enlarged."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        ways = [self.width is not None or self.height is not None, self.shorter is not None, self.longer is not None]
        if sum(ways) > 1:
            raise mistake("give width and height, or shorter, or longer: not several of them")
        return self

    def needs_bucket(self) -> bool:
        return self.width is self.height is self.shorter is self.longer is None

    def apply(self, media: Image.Image, context: Context) -> Image.Image:
        """The scaled picture. Raises ValueError when there is neither a size nor a bucket."""
        covered = media.info.get("box", (0, 0, *media.size))  # a reduced picture may end within its last pixels
        plan = self.plan(covered[2] - covered[0], covered[3] - covered[1], context)
        if not plan.changes(*media.size):
            return media
        x, y = covered[:2]
        box = (plan.box[0] + x, plan.box[1] + y, plan.box[2] + x, plan.box[3] + y)
        left, top, right, bottom = (int(edge) for edge in box)
        if box == (left, top, right, bottom) and plan.scaled == (right - left, bottom - top):
            scaled = media.crop((left, top, right, bottom))
        else:
            scaled = media.resize(plan.scaled, FILTERS[self.interpolation], box=box)
        scaled.info = {}
        return _on_canvas(scaled, plan.size, self.fill, context)

    def is_noop(self, info: MediaInfo, context: Context) -> bool:
        """Whether the picture has the wanted size already."""
        width, height = _known(info)
        return not self.plan(width, height, context).changes(width, height)

    def at_least(self, info: MediaInfo, context: Context) -> Size | None:
        """Size down to which the decoder may reduce the picture without harm, or None.

        The reduced picture has at least two pixels for each that is left, and the result has the same size as from the
        full one. (The JPEG decoder reduces by 8, 4 or 2.)
        """
        width, height = _known(info)
        if self.interpolation == "nearest":
            return None
        whole = self.plan(width, height, context)
        for factor in (8, 4, 2):
            less = self.plan(width / factor, height / factor, context)
            across, down = less.box[2] - less.box[0], less.box[3] - less.box[1]
            if across >= 2 * less.scaled[0] and down >= 2 * less.scaled[1] and _same_result(less, whole):
                return width // factor, height // factor
        return None

    def plan(self, width: float, height: float, context: Context) -> Fit:
        """What becomes of a picture of this size."""
        if self.width is not None and self.height is not None:
            return fit(width, height, (self.width, self.height), self.mode, upscale=self.upscale, pad=self.pad)
        if self.shorter is not None:
            scale = self.shorter / min(width, height)
        elif self.longer is not None:
            scale = self.longer / max(width, height)
        elif self.width is not None:
            scale = self.width / width
        elif self.height is not None:
            scale = self.height / height
        else:
            target = _box(None, None, context, self.op)
            return fit(width, height, target, self.mode, upscale=self.upscale, pad=self.pad)
        scale = scale if self.upscale else min(scale, 1.0)
        scaled = (_side(width * scale), _side(height * scale))
        return Fit((0, 0, width, height), scaled, scaled)


@transform("crop", "image")
class Crop(ImageTransform):
    """Cut out width × height (not given: the bucket's size) from the centre, or from `left` and `top`.

    A picture that is smaller keeps that side. A box that does not lie in the picture is an error of the sample.
    Example: `{op: crop, width: 512, height: 512}` or `{op: crop, left: 10, top: 0, width: 100, height: 100}`.
    """

    width: Side | None = None
    """Width in pixels."""
    height: Side | None = None
    """Height in pixels."""
    left: Annotated[int, Field(ge=0)] | None = None
    """First column kept; not given: centred."""
    top: Annotated[int, Field(ge=0)] | None = None
    """First row kept; not given: centred."""

    def needs_bucket(self) -> bool:
        return self.width is None or self.height is None

    def apply(self, media: Image.Image, context: Context) -> Image.Image:
        """The part. Raises ValueError when the box reaches out of the picture."""
        box = self.plan(*media.size, context)
        return media if box == (0, 0, *media.size) else media.crop(box)

    def is_noop(self, info: MediaInfo, context: Context) -> bool:
        """Whether the whole picture is kept."""
        width, height = _known(info)
        return self.plan(width, height, context) == (0, 0, width, height)

    def plan(self, width: int, height: int, context: Context) -> tuple[int, int, int, int]:
        """The kept box: left, top, right, bottom."""
        wide, high = _box(self.width, self.height, context, self.op)
        left, across = _span(width, wide, self.left)
        top, down = _span(height, high, self.top)
        if left + across > width or top + down > height:
            raise ValueError(f"the box {left},{top} {across}x{down} reaches out of the picture of {width}x{height}")
        return left, top, left + across, top + down


def _span(length: int, wanted: int, start: int | None) -> tuple[int, int]:
    """First pixel and number of pixels along one side."""
    if start is not None:
        return start, wanted
    kept = min(length, wanted)
    return (length - kept) // 2, kept


@transform("pad", "image")
class Pad(ImageTransform):
    """Put the picture in the middle of a canvas of width × height (not given: the bucket's size).

    A side that is longer than the canvas is left as it is: nothing is cut.
    Example: `{op: pad, width: 640, height: 640, fill: "#808080"}`.
    """

    width: Side | None = None
    """Width in pixels."""
    height: Side | None = None
    """Height in pixels."""
    fill: Colour | None = None
    """Colour of the margin; not given: the ground under transparency (white, or black)."""

    def needs_bucket(self) -> bool:
        return self.width is None or self.height is None

    def apply(self, media: Image.Image, context: Context) -> Image.Image:
        """The picture with its margin; of an odd margin the greater part is right and below."""
        return _on_canvas(media, self.plan(*media.size, context), self.fill, context)

    def is_noop(self, info: MediaInfo, context: Context) -> bool:
        """Whether there is no margin to add."""
        return self.plan(*_known(info), context) == _known(info)

    def plan(self, width: int, height: int, context: Context) -> Size:
        """The size with its margin."""
        wide, high = _box(self.width, self.height, context, self.op)
        return max(width, wide), max(height, high)


@transform("random_crop", "image")
class RandomCrop(ImageTransform):
    """Cut out width × height (not given: the bucket's size) at a place drawn for this sample; every place is as likely.

    The draw hangs on seed, dataset, pass and key: the same sample is cut the same way in every run. A picture that is
    smaller keeps that side.
    Example: `{op: random_crop, width: 256, height: 256}`.
    """

    width: Side | None = None
    """Width in pixels."""
    height: Side | None = None
    """Height in pixels."""

    def needs_bucket(self) -> bool:
        return self.width is None or self.height is None

    def apply(self, media: Image.Image, context: Context) -> Image.Image:
        """The part."""
        box = self.plan(*media.size, context)
        return media if box == (0, 0, *media.size) else media.crop(box)

    def is_noop(self, info: MediaInfo, context: Context) -> bool:
        """Whether the whole picture is kept."""
        width, height = _known(info)
        return self.plan(width, height, context) == (0, 0, width, height)

    def plan(self, width: int, height: int, context: Context) -> tuple[int, int, int, int]:
        """The kept box: left, top, right, bottom."""
        wide, high = _box(self.width, self.height, context, self.op)
        across, down = min(width, wide), min(height, high)
        rng = context.rng("random_crop")
        left, top = int(rng.integers(width - across + 1)), int(rng.integers(height - down + 1))
        return left, top, left + across, top + down


@transform("flip", "image")
class Flip(ImageTransform):
    """Mirror the picture with a probability, drawn for this sample; the others keep their bytes.

    Example: `{op: flip, probability: 0.5}`, or `{op: flip, probability: 1.0, direction: vertical}`.
    """

    probability: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Share of samples that are mirrored."""
    direction: Literal["horizontal", "vertical"] = "horizontal"
    """horizontal swaps left and right, vertical swaps top and bottom."""

    def apply(self, media: Image.Image, context: Context) -> Image.Image:
        """The picture, mirrored when the draw says so."""
        if not self.drawn(context):
            return media
        sideways = self.direction == "horizontal"
        return media.transpose(Image.Transpose.FLIP_LEFT_RIGHT if sideways else Image.Transpose.FLIP_TOP_BOTTOM)

    def is_noop(self, info: MediaInfo, context: Context) -> bool:
        """Whether this sample is not mirrored."""
        return not self.drawn(context)

    def drawn(self, context: Context) -> bool:
        """Whether this sample is mirrored."""
        return context.draw("flip") < self.probability


def _same_result(one: Fit, other: Fit) -> bool:
    return one.scaled == other.scaled and one.size == other.size


def _known(info: MediaInfo) -> Size:
    if info.width is None or info.height is None:
        raise ValueError("the picture's size is not known")
    return info.width, info.height


def _box(width: int | None, height: int | None, context: Context, operator: str) -> Size:
    """The given size, its missing sides from the sample's bucket."""
    if width is not None and height is not None:
        return width, height
    if context.target is None:
        raise ValueError(
            f"{operator} needs a width and a height: the sample has no bucket to take them from (the recipe has none "
            "for it, or the sample mixes kinds of media, which are not bucketed)"
        )
    return width or context.target[0], height or context.target[1]


def _on_canvas(picture: Image.Image, size: Size, fill: str | None, context: Context) -> Image.Image:
    """The picture in the middle of a canvas; itself when it has that size."""
    if picture.size == size:
        return picture
    colour = ImageColor.getrgb(fill or ("black" if context.alpha == "black" else "white"))[:3]
    if picture.mode == "L" and len(set(colour)) > 1:
        picture = picture.convert("RGB")
    canvas = Image.new(picture.mode, size, colour[0] if picture.mode == "L" else colour)
    canvas.paste(picture, ((size[0] - picture.width) // 2, (size[1] - picture.height) // 2))
    return canvas
