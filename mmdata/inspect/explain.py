"""The way of one sample, in order: scanned, filters, bucket, split, shard, and what became of its media; or where it
was dropped, and by what. Told from the dataset's own files, and from its catalog as long as that is there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from mmdata.errors import ConfigError, DatasetError, NotFound, TesseraError
from mmdata.inspect.find import find_in_dataset, kind_of, rows_with_key
from mmdata.planning.aspect import AspectBuckets
from mmdata.planning.expressions import parse
from mmdata.recipe import Recipe
from mmdata.schema import EXTENSIONS
from mmdata.shards.buckets import audio_seconds, fit_mode, video_frames
from mmdata.shards.catalog import Catalog, has_catalog, open_catalog
from mmdata.shards.dataset import PLAN_FILE, QUARANTINE_FILE, RECIPE_FILE, Manifest, open_manifest
from mmdata.storage import Storage, open_storage
from mmdata.storage.urls import join

CANDIDATES = 3
"""Buckets that are named as the next best."""


def explain(target: str, key: str) -> dict[str, Any]:
    """The way of sample `key` of a dataset, or its row of a catalog.

    Raises:
        DatasetError: no sample of that key was ever seen; the message names keys that are near.
    """
    storage = open_storage(None)
    kind = kind_of(storage, target)
    if kind == "shard":
        raise ConfigError(f"{target}: a shard does not know where its samples come from; --explain its dataset folder")
    if kind == "catalog":
        catalog = open_catalog(storage, target)
        near: list[str] = []
        row = _catalog_row(catalog, key, near)
        if row is None:
            # The same search gives the same message as in a dataset.
            raise DatasetError(f"{target}: holds no sample '{key}'" + (f"; near: {', '.join(near)}" if near else ""))
        return {"key": row["key"], "scanned": _scanned(row)}
    return _explain_in_dataset(storage, target, key)


def _explain_in_dataset(storage: Storage, url: str, key: str) -> dict[str, Any]:
    manifest = open_manifest(storage, url)
    recipe, note = _recipe_of(storage, url)
    catalog = _catalog_of(storage, url, manifest)
    row = _catalog_row(catalog, key) if catalog is not None else None
    near: list[str] = []
    dropped = rows_with_key(storage, join(url, QUARANTINE_FILE), key, near)
    try:
        stored = find_in_dataset(storage, url, key)
    except DatasetError as error:
        if not dropped and near:
            raise DatasetError(f"{error}; of the dropped: {', '.join(map(repr, near))}") from None
        if not dropped:
            raise
        stored = None
    way: dict[str, Any] = {"key": stored["key"] if stored else dropped[0]["key"]}
    notes = [note] if note else []
    if row is not None:
        way["scanned"] = _scanned(row)
    else:
        notes.append("the catalog that this dataset was built from is gone or has changed: its scan is not told")
    if recipe is not None and row is not None and row["status"] == "ok":
        way["filters"] = _filters(recipe, row)
    if recipe is not None and row is not None:
        way["bucket"] = _bucket(storage, url, recipe, row, stored)
    if stored is not None:
        way["stored"] = _stored(manifest, stored)
        way["media"] = _media(storage, url, row, stored, recipe)
    if dropped:
        way["dropped"] = dropped
    return {name: value for name, value in way.items() if value not in (None, [])} | ({"notes": notes} if notes else {})


def _recipe_of(storage: Storage, url: str) -> tuple[Recipe | None, str | None]:
    """The resolved recipe of a dataset, or why it cannot be read here."""
    from mmdata.operators.registry import load_builtin
    from mmdata.recipe import from_mapping, tree

    try:
        load_builtin()
        document = tree.read(storage.read(join(url, RECIPE_FILE)).decode(), join(url, RECIPE_FILE))
        return from_mapping(document.data, name=join(url, RECIPE_FILE)), None
    except TesseraError as error:
        return None, f"filters and bucket are not told, for {RECIPE_FILE} cannot be read here: {error}"


def _catalog_of(storage: Storage, url: str, manifest: Manifest) -> Catalog | None:
    """The catalog a dataset was built from, when it is still there and still the same."""
    import yaml

    try:
        where = yaml.safe_load(storage.read(join(url, RECIPE_FILE)))["catalog"]
    except NotFound:
        return None
    if not has_catalog(storage, where):
        return None
    catalog = open_catalog(storage, where)
    return catalog if catalog.fingerprint == manifest.catalog else None


def _catalog_row(catalog: Catalog, key: str, near: list[str] | None = None) -> dict[str, Any] | None:
    for part in catalog.parts:
        rows = rows_with_key(catalog.storage, join(catalog.url, part.file), key, near)
        if rows:
            return rows[0]
    return None


def _scanned(row: Mapping[str, Any]) -> dict[str, Any]:
    """The catalog row without its nulls, its fields as JSON values."""
    kept = {name: value for name, value in row.items() if value is not None and name not in ("media", "stamp")}
    kept["fields"] = json.loads(row["fields"] or "{}")
    media = [{name: value for name, value in each.items() if value is not None} for each in row["media"] or ()]
    return kept | {"media": media}


def _filters(recipe: Recipe, row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each filter up to the first that does not pass, with the values of the columns it looks at."""
    told = []
    for rule in recipe.filters:
        expression = parse(rule.keep)
        values = {name: row[name] for name in sorted(expression.columns)}
        passes = bool(expression.evaluate(_one_row(row, expression.columns))[0][0])
        told.append({"name": rule.name, "keep": rule.keep, "values": values, "passes": passes})
        if not passes:
            break
    return told


def _one_row(row: Mapping[str, Any], columns: frozenset[str]) -> pa.Table:
    """A table of one row. A null takes the type it has in a catalog, so that comparisons with it are possible."""
    from mmdata.schema import CATALOG

    arrays = {}
    for name in columns:
        known = CATALOG.field(name).type if name in CATALOG.names else pa.float64() if row[name] is None else None
        arrays[name] = pa.chunked_array([pa.array([row[name]], known)])
    return pa.table(arrays)


def _bucket(
    storage: Storage, url: str, recipe: Recipe, row: Mapping[str, Any], stored: Mapping[str, Any] | None
) -> dict[str, Any] | None:
    """The sample's bucket, or the nearest, and what it costs; the next best beside it."""
    buckets = json.loads(storage.read(join(url, PLAN_FILE)))["buckets"]
    own = [bucket for bucket in buckets if bucket["modality"] == row["modality"]]
    if not own or row["status"] != "ok":
        return None
    chosen = stored["bucket"] if stored else None
    if "width" in own[0]:
        return _picture_bucket(recipe, row, own, chosen)
    column = "duration" if "duration" in own[0] else getattr(recipe.buckets.text, "length", "text_tokens")
    edges = sorted(bucket.get("duration") or bucket["length"] for bucket in own)
    scanned = length = row.get(column)
    if row["modality"] == "audio" and length is not None:
        length = float(audio_seconds(recipe, np.array([length]))[0])  # buckets hold what the transforms leave
    result = {"bucket": chosen, "column": column, "value": length, "edges": edges}
    if length != scanned:
        result["scanned"] = scanned
    above = [edge for edge in edges if length is not None and edge >= length]
    return result | ({"edge": above[0], "padding": round(1 - length / above[0], 6)} if above and above[0] else {})


def _picture_bucket(
    recipe: Recipe, row: Mapping[str, Any], own: Sequence[Mapping[str, Any]], chosen: str | None
) -> dict[str, Any] | None:
    settings = recipe.buckets.video if row["modality"] == "video" else recipe.buckets.image
    if settings is None or not row["width"] or not row["height"]:
        return None
    timed = "frames" in own[0]
    shapes = [[each["width"], each["height"], *([each["frames"]] if timed else [])] for each in own]
    rule = AspectBuckets(
        shapes,  # type: ignore[arg-type]
        fit_mode(recipe, row["modality"]),
        max_crop=settings.max_crop,
        max_upscale=settings.max_upscale,
    )
    frames = _frames_left(recipe, row) if timed else None
    ranked = rule.explain(row["width"], row["height"], frames)
    if frames is not None:  # a video goes only to frame counts that it fills
        ranked = [each for each in ranked if own[each["bucket"]]["frames"] <= frames] or ranked
    names = [f"{row['modality']}-{each['shape']}" for each in ranked]
    first = names.index(chosen) if chosen in names else 0
    best, others = ranked[first], [name for i, name in enumerate(names) if i != first]
    costs = [each["cost"] for i, each in enumerate(ranked) if i != first]
    shape = own[best["bucket"]]
    scales = (shape["width"] / row["width"], shape["height"] / row["height"])
    parts = {"scale": round(min(scales) if rule.mode == "contain" else max(scales), 6)}
    parts |= {name: round(best[name], 6) for name in ("crop", "pad", "trim", "upscale", "distortion", "cost")}
    return {
        "bucket": chosen,
        "mode": rule.mode,
        "nearest": names[first],
        **parts,
        "broken": best["broken"],
        "bounds": {"max_crop": settings.max_crop, "max_upscale": settings.max_upscale},
        "next": [{"bucket": n, "cost": round(c, 6)} for n, c in list(zip(others, costs, strict=True))[:CANDIDATES]],
    }


def _frames_left(recipe: Recipe, row: Mapping[str, Any]) -> int:
    """Frames that the transforms leave of a video, which its bucket is chosen by; 1 when that is not known."""
    counts = [np.array([row[name] or np.nan], dtype=np.float64) for name in ("frames", "duration")]
    left = video_frames(recipe, counts[0], counts[1])[0]
    return 1 if np.isnan(left) else max(1, int(left))


def _stored(manifest: Manifest, row: Mapping[str, Any]) -> dict[str, Any]:
    shard = next(each for each in manifest.shards if each.file == row["shard"])
    names = ("split", "pack", "shard", "position", "width", "height", "frames", "duration", "sample_rate", "channels")
    place = {name: row[name] for name in names if row[name] is not None}
    members = [
        {"member": name, "offset": offset, "bytes": length}
        for name, offset, length in zip(row["members"], row["offsets"], row["lengths"], strict=True)
    ]
    return place | {"samples_in_shard": shard.samples, "check": manifest.check, "members": members}


def _media(
    storage: Storage, url: str, row: Mapping[str, Any] | None, stored: Mapping[str, Any], recipe: Recipe | None
) -> list[dict[str, Any]]:
    """What became of each medium: its bytes copied, or changed and written anew. Compares the digests of the bytes."""
    if row is None:
        return []
    places = {
        name: (offset, length)
        for name, offset, length in zip(stored["members"], stored["offsets"], stored["lengths"], strict=True)
    }
    told = []
    for medium in row["media"]:
        name = _stored_name(medium["field"], places)
        if name is None:
            continue
        offset, length = places[name]
        copied = length == medium["size_bytes"]
        if copied and medium["digest"] is not None:
            data = storage.read_range(join(url, stored["shard"]), offset, length) if length else b""
            copied = xxhash.xxh3_128_hexdigest(data) == medium["digest"]
        chain = getattr(recipe.transforms, medium["kind"], ()) if recipe is not None else ()
        told.append(
            {
                "member": name,
                "source": medium["uri"],
                "copied": copied,
                "from": medium["codec"] or medium["format"],
                "bytes": [medium["size_bytes"], length],
                "transforms": [] if copied else [getattr(each, "op", "") for each in chain],
            }
        )
    return told


def _stored_name(field: str, places: Mapping[str, Any]) -> str | None:
    """The member that a medium was stored as: its own name, or the one that differs in the extension only."""
    if field in places:
        return field
    head, _, last = field.rpartition(".")
    kind = EXTENSIONS.get(last)
    alike = [
        name for name in places if name.rpartition(".")[0] == head and EXTENSIONS.get(name.rpartition(".")[2]) == kind
    ]
    return alike[0] if alike and kind is not None else None
