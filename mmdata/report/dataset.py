"""The report of a finished build: figures, a contact sheet of each bucket, histograms, and why samples are missing.

One HTML file without outside parts; a pure function of the dataset, so that two equal builds have equal reports.
"""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from mmdata.errors import MediaError
from mmdata.formats.parquet import read_parquet
from mmdata.media.sandbox import Failure, Limits, Sandbox
from mmdata.report.plots import bars, histogram
from mmdata.schema import EXTENSIONS
from mmdata.storage import Storage
from mmdata.storage.urls import join

SHEET = 6
"""Samples on the contact sheet of a bucket: the first of it in shard order."""

THUMBNAIL = 160
"""Longest side of a thumbnail in pixels."""

STYLE = """
body{font:15px/1.5 system-ui,sans-serif;color:#1e293b;max-width:1080px;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem}h2{font-size:1.1rem;margin-top:2rem;border-bottom:1px solid #e2e8f0}
table{border-collapse:collapse;font-size:.9rem}td,th{padding:.2rem .8rem .2rem 0;text-align:left;vertical-align:top}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
.sheet{display:flex;flex-wrap:wrap;gap:.5rem;margin:.4rem 0 1.2rem}.sheet figure{margin:0;width:170px}
.sheet img{max-width:160px;max-height:160px;border-radius:4px}
figcaption{font-size:.72rem;color:#64748b;overflow-wrap:anywhere}
.plots{display:flex;flex-wrap:wrap;gap:1rem}.plots svg{width:500px;height:auto}
"""


class Dataset(Protocol):
    """What the report needs of a manifest."""

    @property
    def name(self) -> str: ...
    @property
    def format(self) -> str: ...
    @property
    def check(self) -> str: ...
    @property
    def index(self) -> tuple[str, ...]: ...
    @property
    def buckets(self) -> dict[str, dict[str, Any]]: ...
    @property
    def conservation(self) -> Any: ...
    @property
    def shards(self) -> tuple[Any, ...]: ...
    @property
    def ignored(self) -> dict[str, int]: ...
    @property
    def samples(self) -> int: ...

    @property
    def bytes(self) -> int: ...


def dataset_report(
    storage: Storage, url: str, manifest: Dataset, bucket_edges: Mapping[str, Sequence[float]] | None = None
) -> str:
    """The HTML report of the dataset folder `url`. `bucket_edges` (`duration`, `text_tokens`, `aspect`) are drawn
    in."""
    edges = dict(bucket_edges or {})
    columns = _columns(storage, url, manifest)
    parts = [
        f"<h1>{html.escape(manifest.name)}</h1>",
        _figures(manifest),
        "<h2>Buckets</h2>",
        _bucket_table(manifest),
        *_sheets(storage, url, manifest),
        "<h2>Distributions</h2>",
        f'<div class="plots">{"".join(_plots(columns, edges))}</div>',
        "<h2>What is not in the shards</h2>",
        _dropped(manifest),
    ]
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(manifest.name)}</title>'
    return f"{head}<style>{STYLE}</style>\n" + "\n".join(parts) + "\n</html>\n"


def _figures(manifest: Dataset) -> str:
    kept = manifest.conservation
    rows = [
        ("samples", f"{manifest.samples:,} of {kept.read:,} read"),
        ("shards", f"{len(manifest.shards):,} {manifest.format}"),
        ("bytes", f"{manifest.bytes:,}"),
        ("checked by", "decoding every medium" if manifest.check == "decode" else "reading headers only"),
    ]
    if manifest.ignored:
        rows.append(("files without media", ", ".join(f"{count:,} {name}" for name, count in manifest.ignored.items())))
    return _table(("", ""), rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    def cell(value: Any, tag: str = "td") -> str:
        number = isinstance(value, (int, float))
        text = f"{value:,}" if number else str(value)
        return f"<{tag}{' class=n' if number else ''}>{html.escape(text)}</{tag}>"

    top = "".join(cell(name, "th") for name in head) if any(head) else ""
    body = "".join(f"<tr>{''.join(cell(value) for value in row)}</tr>" for row in rows)
    return f"<table><tr>{top}</tr>{body}</table>"


def _bucket_table(manifest: Dataset) -> str:
    rows = [
        (name, figures["samples"], figures["bytes"], figures["frames"], round(figures["seconds"], 1))
        for name, figures in manifest.buckets.items()
    ]
    return _table(("bucket", "samples", "bytes", "frames", "seconds"), rows)


def _columns(storage: Storage, url: str, manifest: Dataset) -> dict[str, npt.NDArray[Any]]:
    """Numeric index columns without nulls, and the aspect ratio."""
    names = ["width", "height", "frames", "duration", "text_chars", "text_tokens"]
    tables = []
    for file in manifest.index:
        with storage.open(join(url, file)) as stream:
            tables.append(read_parquet(stream, names))
    table = pa.concat_tables(tables)
    columns = {name: table[name].drop_null().to_numpy() for name in names}
    shaped = table.select(["width", "height"]).drop_null()
    columns["aspect"] = shaped["width"].to_numpy() / np.maximum(shaped["height"].to_numpy(), 1)
    columns["pixels"] = shaped["width"].to_numpy().astype(np.int64) * shaped["height"].to_numpy()
    return columns


def _plots(columns: Mapping[str, npt.NDArray[Any]], edges: Mapping[str, Sequence[float]]) -> Iterator[str]:
    wanted = (
        ("aspect", "Aspect ratio", "width ÷ height", True),
        ("pixels", "Size", "pixels", True),
        ("frames", "Frames", "frames", False),
        ("duration", "Duration", "seconds", False),
        ("text_chars", "Text", "characters", False),
        ("text_tokens", "Text", "tokens", False),
    )
    for name, title, unit, log in wanted:
        values = columns[name]
        if name == "frames":
            values = values[values > 1]
        if len(values):
            yield histogram(values, title, unit, edges=edges.get(name, ()), log=log)


def _dropped(manifest: Dataset) -> str:
    dropped = manifest.conservation.dropped
    if not dropped:
        return "<p>Nothing: every sample that was read is in the shards.</p>"
    worst = sorted(dropped.items(), key=lambda item: (-item[1], item[0]))
    names, counts = zip(*worst, strict=True)
    note = "<p><code>quarantine.parquet</code> has a row for each, with its place and message.</p>"
    return f'{note}<div class="plots">{bars(names, counts, "Samples dropped, by stage and reason")}</div>'


def _sheets(storage: Storage, url: str, manifest: Dataset) -> Iterator[str]:
    """A contact sheet for each bucket that holds pictures or videos."""
    chosen = _first_of_each_bucket(storage, url, manifest)
    media = [(bucket, row) for bucket, rows in chosen.items() for row in rows]
    items = [_read_member(storage, url, row) for _, row in media]
    with Sandbox("mmdata.report.dataset:thumbnail", None, limits=Limits()) as sandbox:
        pictures = list(sandbox.map(items))
    sheets: dict[str, list[str]] = {}
    for (bucket, row), picture in zip(media, pictures, strict=True):
        if isinstance(picture, Failure):
            continue
        source = "data:image/jpeg;base64," + base64.b64encode(picture).decode("ascii")
        caption = html.escape(f"{row['key']} {row['width']}×{row['height']}")
        sheets.setdefault(bucket, []).append(
            f'<figure><img src="{source}" alt=""><figcaption>{caption}</figcaption></figure>'
        )
    for bucket, figures in sheets.items():
        yield f'<h3>{html.escape(bucket)}</h3><div class="sheet">{"".join(figures)}</div>'


def _first_of_each_bucket(storage: Storage, url: str, manifest: Dataset) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    full = 0
    for file in manifest.index:
        with storage.open(join(url, file)) as stream:
            reader = pq.ParquetFile(stream)
            for group in range(reader.num_row_groups):
                columns = ["key", "shard", "bucket", "members", "offsets", "lengths", "width", "height"]
                table = reader.read_row_group(group, columns=columns)
                for row in table.to_pylist():
                    rows = found.setdefault(row["bucket"] or "none", [])
                    if row["width"] and len(rows) < SHEET:
                        rows.append(row)
                        full += len(rows) == SHEET
                if full >= len(manifest.buckets):
                    return dict(sorted(found.items()))
    return dict(sorted(found.items()))


def _read_member(storage: Storage, url: str, row: Mapping[str, Any]) -> tuple[str, bytes]:
    """Kind and bytes of the sample's first picture or video."""
    for name, offset, length in zip(row["members"], row["offsets"], row["lengths"], strict=True):
        kind = EXTENSIONS.get(name.rpartition(".")[2])
        if kind in ("image", "video"):
            return kind, storage.read_range(join(url, row["shard"]), offset, length)
    return "data", b""


def thumbnail(item: tuple[str, bytes], _: None) -> bytes:
    """A small JPEG of a picture, or of the middle frame of a video. Runs in the sandbox."""
    from PIL import Image

    from mmdata.media import image, video

    kind, data = item
    if kind == "video":
        times = video.frame_times(data)
        picture = Image.fromarray(next(iter(video.read_frames(data, np.array([len(times) // 2])))))
    elif kind == "image":
        picture = image.decode(data, at_least=(THUMBNAIL, THUMBNAIL))
    else:
        raise MediaError("the sample has no picture")
    picture.thumbnail((THUMBNAIL, THUMBNAIL))
    out = io.BytesIO()
    picture.convert("RGB").save(out, "JPEG", quality=80)
    return out.getvalue()
