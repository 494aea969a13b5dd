"""The report of a finished build: figures, buckets with contact sheets, histograms with the chosen edges, and why
samples are missing.

One HTML file without outside parts; a pure function of the dataset and its scan, so that equal builds have equal
reports. Knows what is handed to it; opens the dataset's files through storage only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mmdata.report.html import Bar, escape, figures, page, table
from mmdata.report.plots import ASPECTS, histogram
from mmdata.report.sheets import sheets
from mmdata.report.text import listed, seconds, share, size
from mmdata.storage import Storage
from mmdata.storage.urls import join

MAX_BUCKETS = 200
"""Rows of the bucket table, at most."""

MAX_SHEETS = 24
"""Buckets with a contact sheet, at most: the largest."""

MAX_ROWS = 200_000
"""Samples that the histograms are drawn from, at most."""

EXAMPLES = 3
"""Keys that are named for each reason."""

MEASURES = ("modality", "width", "height", "frames", "duration", "text_chars", "text_tokens")
"""Catalog columns that the histograms need; `stat.*` come on top."""


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
    storage: Storage,
    url: str,
    manifest: Dataset,
    *,
    buckets: Sequence[Mapping[str, Any]] = (),
    scanned: pa.Table | None = None,
    quarantine: str = "quarantine.parquet",
) -> str:
    """The HTML report of the dataset folder `url`.

    `buckets` are the plan's, with the shape or edge of each; `scanned` has the catalog's `MEASURES` and statistics of
    the samples that were kept (a part of them will do).
    """
    shapes = {bucket["name"]: bucket for bucket in buckets}
    parts = [
        f"<h1>{escape(manifest.name)}</h1>",
        f'<p class="note">{escape(_checked(manifest.check))}</p>',
        _key_figures(manifest),
        "<h2>Buckets</h2>",
        *_bucket_parts(manifest, shapes),
        "<h2>What is in them</h2>",
        *_sheet_parts(storage, url, manifest, shapes),
        *_plot_parts(scanned, buckets, manifest.samples),
        "<h2>What is not in the shards</h2>",
        *_dropped_parts(storage, join(url, quarantine), manifest),
    ]
    return page(manifest.name, parts)


def _checked(check: str) -> str:
    if check == "decode":
        return "Every medium was decoded before it was stored."
    return "Media were not decoded: only their headers were read (check: header)."


def _key_figures(manifest: Dataset) -> str:
    kept = manifest.conservation
    dropped = sum(kept.dropped.values())
    pairs = [
        (f"{manifest.samples:,}", f"samples of {kept.read:,} read"),
        (f"{len(manifest.shards):,}", f"{manifest.format} shards"),
        (size(manifest.bytes), "in all shards"),
    ]
    frames = sum(figures["frames"] for figures in manifest.buckets.values())
    duration = sum(figures["seconds"] for figures in manifest.buckets.values())
    pairs += [(seconds(duration), "of video and sound")] if duration else []
    pairs += [(f"{frames:,}", "pictures and frames")] if frames else []
    pairs.append((f"{dropped:,}", f"dropped ({share(dropped, kept.read)})" if dropped else "dropped"))
    splits: dict[str, int] = {}
    for shard in manifest.shards:
        splits[shard.split] = splits.get(shard.split, 0) + shard.samples
    if set(splits) - {""}:
        pairs.append((" / ".join(f"{count:,}" for count in splits.values()), " / ".join(splits)))
    return figures(pairs)


def _by_size(manifest: Dataset) -> list[tuple[str, dict[str, Any]]]:
    return sorted(manifest.buckets.items(), key=lambda item: (-item[1]["samples"], item[0]))


def _bucket_parts(manifest: Dataset, shapes: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    ordered = manifest.buckets.items() if len(manifest.buckets) <= MAX_BUCKETS else _by_size(manifest)[:MAX_BUCKETS]
    most = max((each["samples"] for each in manifest.buckets.values()), default=1)
    rows = [
        (
            _bucket_name(name),
            _shape(shapes.get(name, {})),
            each["samples"],
            share(each["samples"], manifest.samples),
            Bar(each["samples"] / most),
            size(each["bytes"]),
            each["frames"] if each["frames"] > each["samples"] else None,
            seconds(each["seconds"]) if each["seconds"] else None,
        )
        for name, each in ordered
    ]
    yield table(("bucket", "shape", "samples", "share", "", "size", "frames", "duration"), rows)
    if len(manifest.buckets) > MAX_BUCKETS:
        yield f'<p class="note">and {len(manifest.buckets) - MAX_BUCKETS:,} smaller buckets</p>'


def _bucket_name(name: str) -> str:
    return "(no bucket)" if name == "none" else name


def _shape(bucket: Mapping[str, Any]) -> str:
    if "width" in bucket:
        return f"{bucket['width']} × {bucket['height']}" + (
            f", {bucket['frames']} frames" if "frames" in bucket else ""
        )
    if "duration" in bucket:
        return f"up to {seconds(bucket['duration'])}"
    return f"up to {bucket['length']:,} long" if "length" in bucket else ""


def _sheet_parts(
    storage: Storage, url: str, manifest: Dataset, shapes: Mapping[str, Mapping[str, Any]]
) -> Iterator[str]:
    largest = {name for name, _ in _by_size(manifest)[:MAX_SHEETS]}
    names = [name for name in manifest.buckets if name in largest]
    drawn = sheets(storage, url, manifest.index, names)
    for name in names:
        if name in drawn:
            facts = ", ".join(
                each
                for each in (_shape(shapes.get(name, {})), f"{manifest.buckets[name]['samples']:,} samples")
                if each
            )
            yield f"<h3>{escape(_bucket_name(name))} <span>{escape(facts)}</span></h3>{drawn[name]}"
    if len(manifest.buckets) > MAX_SHEETS:
        yield f'<p class="note">The {MAX_SHEETS} largest of {len(manifest.buckets):,} buckets are shown.</p>'


def _plot_parts(scanned: pa.Table | None, buckets: Sequence[Mapping[str, Any]], samples: int) -> Iterator[str]:
    plots = list(_plots(scanned, buckets)) if scanned is not None and scanned.num_rows else []
    if plots and scanned is not None:
        what = "As scanned, before any transform"
        if scanned.num_rows < samples:
            what += f"; drawn from {scanned.num_rows:,} of {samples:,} samples"
        yield "<h2>Distributions</h2>"
        yield f'<p class="note">{what}. Dashed lines are the buckets.</p><div class="plots">{"".join(plots)}</div>'


def _plots(scanned: pa.Table, buckets: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for modality in ("image", "video", "audio", "text", "mixed"):
        rows = scanned.filter(pc.equal(scanned["modality"], modality))
        own = [bucket for bucket in buckets if bucket["modality"] == modality]
        if rows.num_rows:
            yield from _plots_of(modality, rows, own)


def _plots_of(modality: str, rows: pa.Table, buckets: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    width, height = _values(rows, "width"), _values(rows, "height")
    if len(width) and len(width) == len(height):
        aspects = sorted({bucket["width"] / bucket["height"] for bucket in buckets if "width" in bucket})
        yield histogram(
            width / height, f"{modality}: aspect ratio", "width : height", edges=aspects, log=True, ticks=ASPECTS
        )
        areas = sorted({bucket["width"] * bucket["height"] / 1e6 for bucket in buckets if "width" in bucket})
        yield histogram(width * height / 1e6, f"{modality}: size", "megapixels", edges=areas, log=True)
    frames = _values(rows, "frames")
    if modality != "image" and len(frames):
        yield histogram(frames, f"{modality}: frames", "frames", edges=_edges(buckets, "frames"))
    duration = _values(rows, "duration")
    if len(duration):
        yield histogram(duration, f"{modality}: duration", "seconds", edges=_edges(buckets, "duration"))
    lengths = _edges(buckets, "length")
    tokens, chars = _values(rows, "text_tokens"), _values(rows, "text_chars")
    if len(tokens):
        yield histogram(tokens, f"{modality}: text", "tokens", edges=lengths)
    if len(chars) and chars.max() > 0:
        yield histogram(chars, f"{modality}: text", "characters", edges=() if len(tokens) else lengths)
    for name in rows.column_names:
        if name.startswith("stat.") and len(values := _values(rows, name)):
            yield histogram(values, f"{modality}: {name.removeprefix('stat.')}", name)


def _values(rows: pa.Table, name: str) -> npt.NDArray[np.float64]:
    """Finite values of a numeric column; none of any other."""
    kind = rows[name].type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        return np.empty(0)
    values: npt.NDArray[np.float64] = rows[name].drop_null().to_numpy().astype(np.float64)
    return values[np.isfinite(values)]


def _edges(buckets: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    return sorted({float(bucket[name]) for bucket in buckets if name in bucket})


def _dropped_parts(storage: Storage, quarantine: str, manifest: Dataset) -> Iterator[str]:
    if manifest.ignored:
        yield f'<p class="note">Files without media, which are no samples: {escape(listed(manifest.ignored))}.</p>'
    dropped = manifest.conservation.dropped
    if not dropped:
        yield "<p>Nothing: every sample that was read is in the shards.</p>"
        return
    examples = _examples(storage, quarantine, set(dropped))
    rows = []
    for reason, count in sorted(dropped.items(), key=lambda item: (-item[1], item[0])):
        stage, _, name = reason.partition("/")
        found = examples.get(reason, [])
        keys = ", ".join(key for key, _ in found) + (", …" if count > len(found) else "")
        rows.append((count, share(count, manifest.conservation.read), stage, name, keys, found[0][1] if found else ""))
    yield table(("samples", "share", "stage", "reason", "such as", "message of the first"), rows)
    yield '<p class="note"><code>quarantine.parquet</code> has a row for each; <code>mmdata inspect DATASET '
    yield "--explain KEY</code> tells the way of one.</p>"


def _examples(storage: Storage, quarantine: str, reasons: set[str]) -> dict[str, list[tuple[str, str]]]:
    """The first keys of each reason, with their messages."""
    found: dict[str, list[tuple[str, str]]] = {}
    with storage.open(quarantine) as stream:
        reader = pq.ParquetFile(stream)
        for batch in reader.iter_batches(columns=["key", "stage", "error_class", "message"]):
            names = pc.binary_join_element_wise(batch["stage"], batch["error_class"], "/")
            for reason in pc.unique(names).to_pylist():
                kept = found.setdefault(reason, [])
                rows = batch.filter(pc.equal(names, reason)).slice(0, EXAMPLES - len(kept)).to_pylist()
                kept += [(row["key"], row["message"] or "") for row in rows]
            if all(len(found.get(reason, ())) >= EXAMPLES for reason in reasons):
                break
    return found
