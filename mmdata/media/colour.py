"""Whatever mode a decoder gives, to 8-bit sRGB: sample depth, palette, CMYK, ICC profile, transparency.

Works on a loaded Pillow picture; knows no file format beyond the tags that say how deep the samples are.

Rules. 16-bit samples are scaled by their declared depth. 32-bit integers are taken as 16-bit counts when they all fit
(what PGM readers and Pillow store in them), by their declared depth otherwise. Floats declare no range: largest value
up to 16 means 0..1 (brighter clips), up to 255 means 8-bit and up to 65535 16-bit counts, more is divided by the
largest value; NaN is black; no gamma is applied. An ICC profile is applied with perceptual intent, before transparency
is composited. A profile that is broken or belongs to another colour space is ignored and `info["icc_ignored"]` of the
result says why. PNG gAMA and cHRM and AVIF/HEIF nclx are left alone, as other readers of training data do.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Literal

import numpy as np
from PIL import Image, ImageCms

Alpha = Literal["white", "black", "drop"]

_DEEP = {"I;16", "I;16L", "I;16B", "I;16N", "I", "F"}
_SPACES = {"L": ("GRAY",), "RGB": ("RGB ",), "CMYK": ("CMYK",)}
_KEPT_TRANSFORMS = 16
_ROW_SAMPLES = 1 << 20


def to_rgb(picture: Image.Image, alpha: Alpha = "white", *, gray_bits: int = 8) -> Image.Image:
    """A loaded picture as 8-bit sRGB on the asked background; `drop` shows the colours under the transparency.

    `gray_bits` is the declared depth of a grayscale or true-colour PNG, in which its tRNS colour is given. The result
    may share memory with `picture`.
    """
    colour, mask = _separate(picture, gray_bits)
    ignored: str | None = None
    profile = picture.info.get("icc_profile")
    if profile:
        colour, ignored = _apply_profile(colour, profile)
    if colour.mode != "RGB":
        colour = colour.convert("RGB")
    if mask is not None and alpha != "drop" and mask.getextrema() != (255, 255):
        ground = Image.new("RGB", colour.size, alpha)
        ground.paste(colour, (0, 0), mask)
        colour = ground
    elif colour is picture:
        colour = colour._new(colour.im)
    colour.info = {"icc_ignored": ignored} if ignored else {}
    return colour


def _separate(picture: Image.Image, gray_bits: int) -> tuple[Image.Image, Image.Image | None]:
    """Colour (L, RGB, CMYK or LAB, 8 bits) and transparency (L, 255 opaque, or None) of any picture."""
    mode = picture.mode
    if mode in _DEEP:
        return _scale_deep(picture)
    if mode in ("P", "PA"):
        if not picture.has_transparency_data:
            return picture.convert("RGB"), None
        picture = picture.convert("RGBA")
    elif mode in ("RGBa", "La"):
        picture = picture.convert(mode.upper())
    elif mode in ("1", "L", "RGB") and "transparency" in picture.info:
        picture = _colour_key(picture, gray_bits)
    if picture.mode in ("RGBA", "LA"):
        return picture.convert(picture.mode[:-1]), picture.getchannel("A")
    if picture.mode == "1":
        return picture.convert("L"), None
    if picture.mode in ("L", "RGB", "CMYK", "LAB"):
        return picture, None
    return picture.convert("RGB"), None


def _colour_key(picture: Image.Image, gray_bits: int) -> Image.Image:
    """A picture with one transparent colour, as LA or RGBA. The colour is given in samples of the declared depth."""
    key = picture.info["transparency"]
    if picture.mode == "1":
        picture = picture.convert("L")
    elif gray_bits < 8 and isinstance(key, int):
        key = key * 255 // ((1 << gray_bits) - 1)
    elif gray_bits == 16 and isinstance(key, tuple):
        key = tuple(value >> 8 for value in key)
    keyed = picture._new(picture.im)
    keyed.info = {"transparency": key}
    return keyed.convert("RGBA" if picture.mode == "RGB" else "LA")


@dataclass(frozen=True)
class _Samples:
    bits: int
    signed: bool
    white_is_zero: bool


def _declared(picture: Image.Image) -> _Samples:
    """Depth of the samples: 16 unsigned bits, or what the TIFF tags BitsPerSample, SampleFormat and
    PhotometricInterpretation say."""
    tags: Any = getattr(picture, "tag_v2", {})
    bits, kind = tags.get(258, 16), tags.get(339, 1)
    first = bits[0] if isinstance(bits, tuple) else bits
    signed = (kind[0] if isinstance(kind, tuple) else kind) == 2
    return _Samples(int(first), signed, bool(tags) and tags.get(262, 0) == 0)


def _scale_deep(picture: Image.Image) -> tuple[Image.Image, Image.Image | None]:
    samples = _declared(picture)
    values = np.asarray(picture)
    mask = None
    if picture.mode == "F":
        gray = _scale_floats(values)
    else:
        key = picture.info.get("transparency")
        if isinstance(key, int):
            mask = Image.fromarray(np.where(values == key, 0, 255).astype(np.uint8))
        gray = _scale_integers(values, samples)
    if samples.white_is_zero:
        gray = 255 - gray
    return Image.fromarray(gray), mask


def _scale_integers(values: np.ndarray, samples: _Samples) -> np.ndarray:
    if values.dtype.itemsize == 2:
        top = (1 << samples.bits) - 1
        table = np.rint(np.minimum(np.arange(65536), top) * (255 / top)).astype(np.uint8)
        return np.asarray(table[values])
    wide = values if samples.signed else values.view(np.uint32)
    counts_of_16 = samples.bits == 32 and int(wide.max()) <= 65535
    top = 65535 if counts_of_16 else (1 << (samples.bits - samples.signed)) - 1
    return _by_rows(wide, lambda rows: np.clip(rows.astype(np.float64), 0, top) / top)


def _scale_floats(values: np.ndarray) -> np.ndarray:
    peak = float(values.max(where=np.isfinite(values), initial=0.0))
    top = next((top for reach, top in ((16, 1.0), (255, 255.0), (65535, 65535.0)) if peak <= reach), peak)

    def scaled(rows: np.ndarray) -> np.ndarray:
        finite = np.nan_to_num(rows.astype(np.float64), nan=0.0, posinf=np.inf, neginf=0.0)
        return np.clip(finite / top, 0, 1)

    return _by_rows(values, scaled)


def _by_rows(values: np.ndarray, unit: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """`unit` maps samples to 0..1; applied to a few rows at a time, so that a large picture is held once, as bytes."""
    gray = np.empty(values.shape, np.uint8)
    step = max(1, _ROW_SAMPLES // max(1, values.shape[1]))
    for start in range(0, len(values), step):
        gray[start : start + step] = np.rint(unit(values[start : start + step]) * 255)
    return gray


class _Transforms(threading.local):
    """Ready colour transforms of one thread: a little CMS transform keeps a cache that threads may not share."""

    def __init__(self) -> None:
        self.made: dict[tuple[bytes, str], ImageCms.ImageCmsTransform | str | None] = {}


_transforms = _Transforms()


def _apply_profile(colour: Image.Image, profile: bytes) -> tuple[Image.Image, str | None]:
    """The picture in sRGB, or as it is with the reason why its profile was ignored."""
    key = (hashlib.blake2b(profile, digest_size=16).digest(), colour.mode)
    made = _transforms.made
    if key not in made:
        if len(made) >= _KEPT_TRANSFORMS:
            made.pop(next(iter(made)))
        made[key] = _transform(colour.mode, profile)
    transform = made[key]
    if transform is None or isinstance(transform, str):
        return colour, transform
    if colour.mode == "L" and transform.input_mode == "RGB":
        colour = colour.convert("RGB")
    return transform.apply(colour), None


def _transform(mode: str, profile: bytes) -> ImageCms.ImageCmsTransform | str | None:
    """The transform to sRGB; None when it changes no colour by more than a level; a reason when there is none."""
    try:
        source = ImageCms.ImageCmsProfile(BytesIO(profile))
        space = source.profile.xcolor_space.ljust(4)
        if space == "RGB " and mode == "L":
            mode = "RGB"
        if space not in _SPACES.get(mode, ()):
            return f"profile for {space.strip()} on a {mode} picture"
        transform = ImageCms.buildTransform(source, ImageCms.createProfile("sRGB"), mode, "RGB")
    except (ImageCms.PyCMSError, OSError, ValueError, TypeError) as error:
        return f"broken profile: {error}"
    transform.input_mode = mode
    return None if _changes_nothing(transform, mode) else transform


def _changes_nothing(transform: ImageCms.ImageCmsTransform, mode: str) -> bool:
    if mode == "CMYK":
        return False
    levels = np.linspace(0, 255, 18).astype(np.uint8)
    grid = levels[None] if mode == "L" else np.stack(np.meshgrid(levels, levels, levels), -1).reshape(1, -1, 3)
    sample = Image.fromarray(np.ascontiguousarray(grid))
    before, after = np.asarray(sample.convert("RGB"), np.int16), np.asarray(transform.apply(sample), np.int16)
    return int(np.abs(before - after).max()) <= 1
