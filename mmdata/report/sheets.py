"""Contact sheets: a few samples of each bucket as thumbnails, waveforms or text. Reads shards by byte range; every
decoder runs in the sandbox."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from mmdata.errors import MediaError
from mmdata.media.sandbox import Failure, Limits, Sandbox
from mmdata.report.html import escape
from mmdata.report.text import seconds
from mmdata.schema import EXTENSIONS
from mmdata.storage import Storage
from mmdata.storage.urls import join

PER_BUCKET = 6
"""Samples on the contact sheet of a bucket: the first of it in shard order."""

THUMBNAIL = 160
"""Longest side of a thumbnail in pixels."""

BARS = 96
"""Bars of a waveform."""

HEARD_S = 60.0
"""Seconds of a recording that its waveform shows, at most."""

MAX_MEDIUM = 64 * 1024 * 1024
"""Larger media are not shown."""

MAX_TEXT = 4096
"""Bytes of a text that are read."""

CAPTION = 90
"""Characters of a caption that are shown."""

COLUMNS = ("key", "shard", "bucket", "members", "offsets", "lengths", "width", "height", "frames", "duration")


def sheets(storage: Storage, url: str, index: Sequence[str], buckets: Sequence[str]) -> dict[str, str]:
    """Bucket name to the HTML of its contact sheet, for those of `buckets` that have something to show."""
    chosen = [(bucket, row) for bucket, rows in _first_rows(storage, url, index, buckets).items() for row in rows]
    items = ((_medium(storage, url, row), row["duration"]) for _, row in chosen)
    with Sandbox("mmdata.report.sheets:thumbnail", None, limits=Limits()) as sandbox:
        pictures = list(sandbox.map(items))
    shown: dict[str, list[str]] = {}
    for (bucket, row), picture in zip(chosen, pictures, strict=True):
        drawn = "" if isinstance(picture, Failure) else _drawn(picture)
        text = _text(storage, url, row)
        if drawn:
            shown.setdefault(bucket, []).append(_figure(drawn, row, text))
        elif text and not _has_media(row):
            shown.setdefault(bucket, []).append(_figure(f"<blockquote>{escape(text)}</blockquote>", row, ""))
    return {bucket: f'<div class="sheet">{"".join(figures)}</div>' for bucket, figures in shown.items()}


def thumbnail(item: tuple[tuple[str, bytes], float | None], _: None) -> tuple[str, Any]:
    """A small JPEG of a picture or of the middle frame of a video, or the bars (0 to 100) of a recording. Runs in the
    sandbox."""
    from PIL import Image

    from mmdata.media import audio, image, video

    (kind, data), duration = item
    if kind == "audio":
        sound = audio.decode(data, end=min(duration or HEARD_S, HEARD_S), truncated="repair")
        return "audio", _bars(np.abs(sound.samples).max(axis=0))
    if kind == "video":
        times = video.frame_times(data)
        picture = Image.fromarray(next(iter(video.read_frames(data, np.array([len(times) // 2])))))
    elif kind == "image":
        picture = image.decode(data, at_least=(THUMBNAIL, THUMBNAIL), truncated="repair")
    else:
        raise MediaError("the sample has nothing to show")
    picture.thumbnail((THUMBNAIL, THUMBNAIL))
    out = io.BytesIO()
    picture.convert("RGB").save(out, "JPEG", quality=80)
    return kind, out.getvalue()


def _bars(level: np.ndarray) -> list[int]:
    """The peak of each of BARS equal stretches of `level` [N], as per cent of full scale."""
    starts = np.linspace(0, len(level), min(BARS, len(level)), endpoint=False).astype(np.int64)
    return [round(100 * min(1.0, float(peak))) for peak in np.maximum.reduceat(level, starts)]


def _drawn(picture: tuple[str, Any]) -> str:
    kind, content = picture
    if kind != "audio":
        return f'<img src="data:image/jpeg;base64,{base64.b64encode(content).decode("ascii")}" alt="">'
    strokes = "".join(f"M{i + 0.5:g} {50 - max(peak, 1) / 2:g}v{max(peak, 1)}" for i, peak in enumerate(content))
    box = f'viewBox="0 0 {max(len(content), 1)} 100" preserveAspectRatio="none"'
    return f'<svg {box}><path d="{strokes}" stroke="#5b8def" stroke-width=".7" fill="none"/></svg>'


def _figure(drawn: str, row: Mapping[str, Any], text: str) -> str:
    facts = [f"{row['width']}×{row['height']}"] if row["width"] and row["height"] else []
    facts += [f"{row['frames']:,} frames"] if (row["frames"] or 1) > 1 else []
    facts += [seconds(row["duration"])] if row["duration"] else []
    quote = f"<q>{escape(text if len(text) <= CAPTION else text[: CAPTION - 1] + '…')}</q>" if text else ""
    caption = f"{escape(row['key'])}<br>{escape(', '.join(facts))}{quote}"
    return f"<figure>{drawn}<figcaption>{caption}</figcaption></figure>"


def _first_rows(
    storage: Storage, url: str, index: Sequence[str], buckets: Sequence[str]
) -> dict[str, list[dict[str, Any]]]:
    """The first rows of each bucket in shard order that are small enough to show."""
    found: dict[str, list[dict[str, Any]]] = {bucket: [] for bucket in buckets}
    for file in index:
        with storage.open(join(url, file)) as stream:
            reader = pq.ParquetFile(stream)
            for group in range(reader.num_row_groups):
                for row in reader.read_row_group(group, columns=list(COLUMNS)).to_pylist():
                    rows = found.get(row["bucket"] or "none")
                    if rows is not None and len(rows) < PER_BUCKET and max(row["lengths"], default=0) <= MAX_MEDIUM:
                        rows.append(row)
                if all(len(rows) >= PER_BUCKET for rows in found.values()):
                    return found
    return found


def _members(row: Mapping[str, Any]) -> Iterator[tuple[str, int, int]]:
    return zip(row["members"], row["offsets"], row["lengths"], strict=True)


def _has_media(row: Mapping[str, Any]) -> bool:
    return any(EXTENSIONS.get(name.rpartition(".")[2]) is not None for name, _, _ in _members(row))


def _medium(storage: Storage, url: str, row: Mapping[str, Any]) -> tuple[str, bytes]:
    """Kind and bytes of the sample's first picture or video, else of its first recording."""
    found = {
        EXTENSIONS.get(name.rpartition(".")[2]): (offset, length) for name, offset, length in reversed([*_members(row)])
    }
    for kind in ("image", "video", "audio"):
        if kind in found:
            return kind, storage.read_range(join(url, row["shard"]), *found[kind])
    return "data", b""


def _text(storage: Storage, url: str, row: Mapping[str, Any]) -> str:
    """The sample's caption, or the head of its JSON."""
    wanted = {name: (offset, length) for name, offset, length in _members(row)}
    for name in ("txt", "json"):
        if wanted.get(name, (0, 0))[1]:
            offset, length = wanted[name]
            data = storage.read_range(join(url, row["shard"]), offset, min(length, MAX_TEXT))
            return " ".join(data.decode("utf-8", "replace").split())
    return ""
