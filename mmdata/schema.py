"""The words every room shares: samples, locators, and the Arrow schemas of catalog, index and quarantine.

This room knows no storage, no media library and no recipe. Geometry is always *upright*: after EXIF orientation, video
rotation and sample aspect ratio. Durations are seconds, sizes bytes, rates hertz.

What the scalar geometry of a sample with many media means: `width`/`height` are those of the medium with the most
pixels, `frames` and `duration` the sums over the timed media, `size_bytes` the sum over all; `media` lists each one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, Literal

import pyarrow as pa

FORMAT_VERSION = 1
"""Version of the dataset folder, catalog and index layouts."""

Kind = Literal["image", "video", "audio", "data"]
"""What a medium is; `data` is a member that is carried as it is (npy, latents, unknown extensions)."""

Modality = Literal["image", "video", "audio", "text", "mixed"]
"""What a sample is: the kind of its media, `text` without media, `mixed` with several kinds."""

EXTENSIONS: dict[str, Kind] = {
    **dict.fromkeys(
        [
            "jpg",
            "jpeg",
            "jpe",
            "jfif",
            "png",
            "webp",
            "bmp",
            "dib",
            "tif",
            "tiff",
            "gif",
            "avif",
            "avifs",
            "heic",
            "heif",
            "hif",
            "jp2",
            "j2k",
            "jpx",
            "jpf",
            "ppm",
            "pgm",
            "pbm",
            "pnm",
            "pfm",
            "ico",
            "mpo",
            "tga",
            "apng",
            "qoi",
            "dds",
            "pcx",
        ],
        "image",
    ),
    **dict.fromkeys(
        [
            "mp4",
            "m4v",
            "mov",
            "mkv",
            "webm",
            "avi",
            "mpg",
            "mpeg",
            "ts",
            "m2ts",
            "flv",
            "wmv",
            "ogv",
            "3gp",
            "3g2",
            "gifv",
            "h264",
            "mjpeg",
        ],
        "video",
    ),
    **dict.fromkeys(
        [
            "wav",
            "flac",
            "mp3",
            "ogg",
            "oga",
            "opus",
            "m4a",
            "aac",
            "aiff",
            "aif",
            "amr",
            "wma",
            "caf",
            "w64",
            "au",
            "mka",
        ],
        "audio",
    ),
}
"""File extension (lower case, no dot) to kind. A GIF, WebP or AVIF is an image unless the recipe asks for video."""

ANIMATED = frozenset({"gif", "webp", "png", "apng", "avif", "avifs"})
"""Extensions of pictures that may move: `animated: video` makes videos of those that do."""


@dataclass(frozen=True, slots=True)
class MediaRef:
    """Where the bytes of one medium lie and which member of the sample they become."""

    field: str
    """Member extension in the sample: `jpg`, or `0.jpg`, `1.jpg` when a sample has several."""
    kind: Kind
    uri: str
    """Local path or URL of the file, or of the container (tar, spool) that holds the bytes."""
    offset: int | None = None
    """First byte inside `uri`; None when the medium is the whole object."""
    length: int | None = None
    """Number of bytes; None when the medium is the whole object and its size is not known."""
    stamp: str = ""
    """`size:mtime_ns` or the ETag of the object: the medium is unchanged while this is equal."""

    def __reduce__(self) -> tuple[Any, ...]:
        return MediaRef, _REF(self)


@dataclass(frozen=True, slots=True)
class SourceSample:
    """One sample as its source describes it, before any media byte was looked at."""

    key: str
    """Unique in its dataset; escaped so that it holds no dot after the last slash (see `escape_key`)."""
    media: tuple[MediaRef, ...] = ()
    fields: dict[str, Any] = field(default_factory=dict)
    """Members that are not media: extension to JSON value (`{"txt": "a cat", "cls": 3, "json": {...}}`)."""
    group: str | None = None
    """Samples of one group never part in a split."""
    row: int | None = None
    """Row in the source table, for messages."""
    stamp: str = ""
    """Changes when the sample's own description changes (side-car, table row)."""
    error: tuple[str, str] | None = None
    """(error class, message) when the description itself is bad: the sample goes straight to the quarantine."""

    def __reduce__(self) -> tuple[Any, ...]:
        return SourceSample, _SAMPLE(self)


@dataclass(frozen=True, slots=True)
class MediaInfo:
    """What a probe or decode found out about one medium. None means: does not apply, or not known from the header."""

    format: str = ""
    """Container or file format, lower case: `jpeg`, `png`, `mov`, `matroska`, `flac`."""
    codec: str = ""
    width: int | None = None
    height: int | None = None
    frames: int | None = None
    """Frames of a video or animation; 1 for a still picture; None for audio."""
    duration: float | None = None
    fps: float | None = None
    rotation: int | None = None
    """Clockwise quarter turns in degrees that were applied to make the picture upright (0, 90, 180, 270)."""
    sample_rate: int | None = None
    channels: int | None = None
    bits: int | None = None
    """Declared bits per channel value."""
    alpha: bool | None = None
    variable: bool | None = None
    """Video: frame times are not evenly spaced."""
    audio: bool | None = None
    """Video: an audio track is present."""

    def __reduce__(self) -> tuple[Any, ...]:
        return MediaInfo, _INFO(self)


# Pickled by position: what dataclasses with slots do by themselves takes several times as long, and samples are pickled
# twice each.
_REF, _SAMPLE, _INFO = (attrgetter(*(each.name for each in fields(cls))) for cls in (MediaRef, SourceSample, MediaInfo))


def escape_key(key: str) -> str:
    """Make `key` safe as a WebDataset key: in the base name `%` becomes `%25` and `.` becomes `%2E`. Reversible."""
    head, slash, base = key.rpartition("/")
    return head + slash + base.replace("%", "%25").replace(".", "%2E")


def unescape_key(key: str) -> str:
    """Inverse of `escape_key`."""
    head, slash, base = key.rpartition("/")
    return head + slash + base.replace("%2E", ".").replace("%25", "%")


def modality(kinds: Sequence[str]) -> Modality:
    """What a sample with media of these kinds is."""
    distinct = {kind for kind in kinds if kind != "data"}
    if len(distinct) > 1:
        return "mixed"
    only: Modality = next(iter(distinct), "text")  # type: ignore[arg-type]
    return only


def geometry(media: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The scalar columns of a sample from those of its media, by the rule at the head of this module."""
    if len(media) == 1:  # nearly every sample; the rule below says the same
        only = media[0]
        seen = only["width"] and only["height"]
        return {
            "width": only["width"] if seen else None,
            "height": only["height"] if seen else None,
            "frames": only["frames"],
            "duration": only["duration"],
            "fps": only["fps"] or None,
            "sample_rate": only["sample_rate"] or None,
            "channels": only["channels"] if only["sample_rate"] else None,
            "size_bytes": only["size_bytes"] or 0,
            "length": only["length"],
        }
    pictures = [m for m in media if m["width"] and m["height"]]
    largest = max(pictures, key=lambda m: m["width"] * m["height"], default=None)
    sounding = next((m for m in media if m["sample_rate"]), None)
    timed = next((m for m in media if m["fps"]), None)
    frames = [m["frames"] for m in media if m["frames"] is not None]
    durations = [m["duration"] for m in media if m["duration"] is not None]
    return {
        "width": largest["width"] if largest else None,
        "height": largest["height"] if largest else None,
        "frames": sum(frames) if frames else None,
        "duration": sum(durations) if durations else None,
        "fps": timed["fps"] if timed else None,
        "sample_rate": sounding["sample_rate"] if sounding else None,
        "channels": sounding["channels"] if sounding else None,
        "size_bytes": sum(m["size_bytes"] or 0 for m in media),
        "length": media[0]["length"] if media else None,
    }


MEDIA = pa.struct(
    [
        pa.field("field", pa.string()),
        pa.field("kind", pa.string()),
        pa.field("uri", pa.string()),
        pa.field("offset", pa.int64()),
        pa.field("length", pa.int64()),
        pa.field("stamp", pa.string()),
        pa.field("format", pa.string()),
        pa.field("codec", pa.string()),
        pa.field("width", pa.int32()),
        pa.field("height", pa.int32()),
        pa.field("frames", pa.int32()),
        pa.field("duration", pa.float64()),
        pa.field("fps", pa.float64()),
        pa.field("rotation", pa.int16()),
        pa.field("sample_rate", pa.int32()),
        pa.field("channels", pa.int16()),
        pa.field("bits", pa.int16()),
        pa.field("alpha", pa.bool_()),
        pa.field("variable", pa.bool_()),
        pa.field("audio", pa.bool_()),
        pa.field("size_bytes", pa.int64()),
        pa.field("digest", pa.string()),
    ]
)
"""One medium of a sample in the catalog: `MediaRef`, `MediaInfo`, its size and the xxh3-128 digest of its bytes."""

CATALOG = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("source", pa.string()),
        pa.field("row", pa.int64()),
        pa.field("stamp", pa.string()),
        pa.field("modality", pa.string()),
        pa.field("status", pa.string(), nullable=False),
        pa.field("detail", pa.string()),
        pa.field("check", pa.string()),
        pa.field("uri", pa.string()),
        pa.field("offset", pa.int64()),
        pa.field("length", pa.int64()),
        pa.field("width", pa.int32()),
        pa.field("height", pa.int32()),
        pa.field("frames", pa.int32()),
        pa.field("duration", pa.float64()),
        pa.field("fps", pa.float64()),
        pa.field("sample_rate", pa.int32()),
        pa.field("channels", pa.int16()),
        pa.field("size_bytes", pa.int64()),
        pa.field("text_chars", pa.int32()),
        pa.field("text_tokens", pa.int32()),
        pa.field("label", pa.string()),
        pa.field("group", pa.string()),
        pa.field("digest", pa.string()),
        pa.field("fields", pa.string()),
        pa.field("media", pa.list_(MEDIA)),
    ]
)
"""Catalog columns in order; statistics follow as `stat.NAME`. `status` is `ok` or an error class of `mmdata.errors`;
`check` is `decode` or `header`: how far the sample was tested. `fields` is JSON."""

INDEX = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("shard", pa.string(), nullable=False),
        pa.field("position", pa.int32(), nullable=False),
        pa.field("split", pa.string()),
        pa.field("bucket", pa.string()),
        pa.field("pack", pa.int64()),
        pa.field("modality", pa.string()),
        pa.field("members", pa.list_(pa.string())),
        pa.field("offsets", pa.list_(pa.int64())),
        pa.field("lengths", pa.list_(pa.int64())),
        pa.field("span_offset", pa.int64()),
        pa.field("span_length", pa.int64()),
        pa.field("span_xxh3", pa.string()),
        pa.field("digest", pa.string()),
        pa.field("width", pa.int32()),
        pa.field("height", pa.int32()),
        pa.field("frames", pa.int32()),
        pa.field("duration", pa.float64()),
        pa.field("fps", pa.float64()),
        pa.field("sample_rate", pa.int32()),
        pa.field("channels", pa.int16()),
        pa.field("text_chars", pa.int32()),
        pa.field("text_tokens", pa.int32()),
        pa.field("media_digest", pa.string()),
    ]
)
"""Dataset index, a row per sample in shard order. `offsets`/`lengths` are absolute byte ranges of each member's payload
in the shard; `span_*` cover the sample's whole stretch of a tar, headers and padding included (null in Arrow shards);
`digest` is the xxh3-128 of the sample's members (name, length, bytes of each, in order); `media_digest` that of the
source media. Geometry is that of the stored media."""

QUARANTINE = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("uri", pa.string()),
        pa.field("offset", pa.int64()),
        pa.field("length", pa.int64()),
        pa.field("stage", pa.string(), nullable=False),
        pa.field("error_class", pa.string(), nullable=False),
        pa.field("message", pa.string()),
    ]
)
"""A row per sample that is not in the shards. `stage` is `scan`, `filter`, `bucket`, `pack` or `build`;
`error_class` is an error class, or the rule that dropped the sample."""
