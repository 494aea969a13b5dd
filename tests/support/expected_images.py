"""What each picture of the real corpus must give: upright size, mean colour, or error class.

Expected colours are computed here from Pillow's raw modes with NumPy, on another way than the product's.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pillow_heif
from PIL import Image, ImageCms

BROKEN_PROFILES = {"images/jpeg-decoder/partial_progressive.jpg", "images/pillow/icc-after-SOF.jpg"}
"""Corpus pictures whose ICC profile Little CMS refuses: it is ignored, and said."""

UNREADABLE = {
    "derived-truncated/*": "TruncatedMedia",
    "image-rs/Bad_reallybig.bmp": "DecompressionBomb",
    "image-rs/Bad_unusual_extend_buffer_usage.bmp": "TruncatedMedia",
    "image-rs/badpalettesize.bmp": "UnreadableMedia",
    "image-rs/pal8oversizepal.bmp": "UnreadableMedia",
    "image-rs/rgb16-880.bmp": "UnsupportedMedia",
    "image-rs/rgb32bf.bmp": "UnsupportedMedia",
    "image-rs/*.tiff": "UnsupportedMedia",  # float RGB
    "jpeg-decoder/jpeg_lossless_sel?.jpg": "UnsupportedMedia",  # 16 bits per sample
    "jpeg-decoder/max_size.jpg": "DecompressionBomb",
    "jpeg-decoder/194531363df5b73f59c4c0517422f917.jpg": "TruncatedMedia",
    "jpeg-decoder/7dbf474f80e466e9e25ee46b84166420.jpg": "TruncatedMedia",
    "jpeg-decoder/9efd60f04cd971daa83d3131e6d6f389.jpg": "TruncatedMedia",
    "jpeg-decoder/fd44dc63fa7bdd12ee34fc602231ef02.jpg": "TruncatedMedia",
    "jpeg-decoder/*": "UnreadableMedia",
    "libavif/color_grid_alpha_grid_tile_shared_in_dimg.avif": "UnsupportedMedia",
    "libavif/*": "UnreadableMedia",
    "link-u-avif/*": "UnreadableMedia",
    "mp4parse/bug-1655846.avif": "TruncatedMedia",
    "mp4parse/unknown_mdat_in_oversized_meta.avif": "TruncatedMedia",
    "mp4parse/*": "UnreadableMedia",
    "pillow/badwidth.bmp": "DecompressionBomb",
    "pillow/decompression_bomb.*": "DecompressionBomb",
    "pillow/png_decompression_dos.png": "DecompressionBomb",
    "pillow/expected_to_read.jp2": "TruncatedMedia",
    "pillow/l2rgb_read.bmp": "TruncatedMedia",
    "pillow/ultrahdr.jpg": "TruncatedMedia",
    "pillow/rgb24png.bmp": "UnsupportedMedia",
    "pillow/rgba16-4444.bmp": "UnsupportedMedia",
    "pillow/unknown_compression_method.png": "UnsupportedMedia",
    "pillow/unknown_mode.j2k": "UnsupportedMedia",
    "pillow/*": "UnreadableMedia",
    "scikit-image/truncated.jpg": "TruncatedMedia",
    "sharp/corrupt-header.jpg": "TruncatedMedia",
}
"""The class of each corpus picture that cannot be loaded; the first pattern that fits counts."""


def loads(row: dict[str, Any]) -> bool:
    return row.get("pillow", {}).get("load") == "ok" or row.get("pillow_heif", {}).get("load") == "ok"


def pictures(truth: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in truth.values() if row["kind"] == "image"]


def stated_class(file: str) -> str:
    name = file.removeprefix("images/")
    return next(label for pattern, label in UNREADABLE.items() if Path(name).match(pattern))


def expected_size(row: dict[str, Any]) -> tuple[int, int]:
    said = row["pillow"] if loads({"pillow": row["pillow"]}) else row["pillow_heif"]
    width, height = said["size"]
    if said.get("exif_orientation") in (5, 6, 7, 8) and said.get("format") not in ("TIFF", None):
        return height, width  # Pillow announces a TIFF upright, pillow-heif turns by itself
    return width, height


_means: dict[str, np.ndarray] = {}


def expected_mean(corpora: Path, row: dict[str, Any]) -> np.ndarray:
    """Mean colour of a corpus picture by the stated rules: alpha over white, ICC to sRGB, 16-bit by depth."""
    if row["file"] not in _means:
        _means[row["file"]] = mean_of((corpora / row["file"]).read_bytes(), row)
    return _means[row["file"]]


def mean_of(data: bytes, row: dict[str, Any]) -> np.ndarray:
    if row["pillow"].get("load") != "ok":
        heif = pillow_heif.open_heif(io.BytesIO(data), convert_hdr_to_8bit=True)
        values = np.asarray(heif, np.float64)
        values = values[..., None] if values.ndim == 2 else values
        colour = np.repeat(values[..., :1], 3, -1) if heif.mode in ("L", "LA") else values[..., :3]
        cover = values[..., -1] / 255 if heif.mode.endswith("A") else np.ones(values.shape[:2])
        return over_white(colour, cover)
    with Image.open(io.BytesIO(data)) as opened:
        opened.load()
        if row["file"] in BROKEN_PROFILES:
            del opened.info["icc_profile"]
        return over_white(*colour_and_cover(opened, data))


def over_white(colour: np.ndarray, cover: np.ndarray) -> np.ndarray:
    return (colour * cover[..., None] + 255 * (1 - cover[..., None])).mean((0, 1))


def colour_and_cover(opened: Image.Image, data: bytes) -> tuple[np.ndarray, np.ndarray]:
    mode = opened.mode
    if mode.startswith("I"):
        values = np.asarray(opened).astype(np.float64)
        return np.repeat((values / 65535 * 255)[..., None], 3, -1), np.ones(values.shape)
    if mode in ("P", "PA"):
        return palette_colours(opened)
    values = np.asarray(opened, np.float64)
    if mode == "1":
        values = values * 255
    cover = np.ones(values.shape[:2])
    key = opened.info.get("transparency")
    if mode in ("LA", "RGBA"):
        cover = values[..., -1] / 255
        values = values[..., :-1]
    elif key is not None:
        if opened.format == "PNG" and mode == "L":
            key = key * 255 // (2 ** data[24] - 1)
        cover = 1.0 - np.all(np.atleast_3d(values) == key, -1)
    if values.ndim == 3 and values.shape[-1] == 1:
        values = values[..., 0]
    return in_srgb(values, mode, opened.info.get("icc_profile")), cover


def palette_colours(opened: Image.Image) -> tuple[np.ndarray, np.ndarray]:
    index = np.asarray(opened.getchannel(0))
    table = np.zeros((256, 4))
    table[:, 3] = 255
    flat = opened.getpalette("RGBA")
    rows = np.array(flat, np.float64).reshape(-1, 4)
    table[: len(rows), :3] = rows[:, :3]
    key = opened.info.get("transparency")
    if isinstance(key, int):
        table[key, 3] = 0
    elif key is not None:
        table[: len(key), 3] = list(key)
    cover = table[index, 3] / 255
    if opened.mode == "PA":
        cover = np.asarray(opened.getchannel(1)) / 255
    return table[index, :3], cover


def in_srgb(values: np.ndarray, mode: str, profile: bytes | None) -> np.ndarray:
    if mode == "LAB":
        return lab_to_srgb(values)
    if mode == "YCbCr":
        y, blue, red = (values[..., band] for band in range(3))
        blue, red = blue - 128, red - 128
        return np.clip(np.stack([y + 1.402 * red, y - 0.344136 * blue - 0.714136 * red, y + 1.772 * blue], -1), 0, 255)
    if values.ndim == 2:
        values = np.repeat(values[..., None], 3, -1)
    if mode == "CMYK" and not profile:
        return (255 - values[..., :3]) * (255 - values[..., 3:]) / 255
    if profile and len(profile) > 128:
        space = profile[16:20]
        bands = {b"RGB ": "RGB", b"CMYK": "CMYK", b"GRAY": "L"}[space]
        if (bands == "CMYK") != (mode == "CMYK") or (bands == "L" and not mode.startswith("L")):
            return values
        source = Image.fromarray((values[..., 0] if bands == "L" else values).astype(np.uint8), bands)
        wanted = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        turned = ImageCms.profileToProfile(source, wanted, ImageCms.createProfile("sRGB"), outputMode="RGB")
        return np.asarray(turned, np.float64)
    return values


def lab_to_srgb(values: np.ndarray) -> np.ndarray:
    """CIE L*a*b* under D50 as TIFF keeps it (L 0..255, a and b signed bytes) to sRGB: CIE 15, IEC 61966-2-1."""
    green_red, blue_yellow = (values[..., band].astype(np.uint8).view(np.int8) for band in (1, 2))
    lightness = (values[..., 0] * 100 / 255 + 16) / 116
    stacked = np.stack([lightness + green_red / 500, lightness, lightness - blue_yellow / 200], -1)
    linear = np.where(stacked > 6 / 29, stacked**3, 3 * (6 / 29) ** 2 * (stacked - 4 / 29)) * [0.9642, 1.0, 0.8249]
    matrix = np.array(  # XYZ under D50 to linear sRGB, Bradford adapted (Lindbloom)
        [[3.1338561, -1.6168667, -0.4906146], [-0.9787684, 1.9161415, 0.0334540], [0.0719453, -0.2289914, 1.4052427]]
    )
    rgb = np.clip(linear @ matrix.T, 0, 1)
    return np.where(rgb <= 0.0031308, 12.92 * rgb, 1.055 * rgb ** (1 / 2.4) - 0.055) * 255
