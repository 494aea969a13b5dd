"""Inspect: what a dataset, catalog or shard holds, one sample's bytes, and the way of one sample from source to
shard."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mmdata.errors import ConfigError, DatasetError, NotFound
from mmdata.formats.arrow import index_arrow
from mmdata.formats.parquet import read_matching, read_parquet
from mmdata.formats.tar import Damage, group_members
from mmdata.formats.tar_index import index_tar
from mmdata.schema import unescape_key
from mmdata.shards.catalog import Catalog, has_catalog, open_catalog
from mmdata.shards.dataset import PLAN_FILE, QUARANTINE_FILE, RECIPE_FILE, Manifest, has_dataset, open_manifest
from mmdata.storage import Storage, open_storage
from mmdata.storage.urls import join

QUANTILES = (0.0, 0.05, 0.5, 0.95, 1.0)

NUMERIC = ("width", "height", "frames", "duration", "fps", "sample_rate", "size_bytes", "text_chars", "text_tokens")
"""Catalog and index columns whose spread is shown."""


def describe(target: str) -> dict[str, Any]:
    """Counts, buckets and columns of a dataset or catalog folder, or of one shard file."""
    storage = open_storage(None)
    kind = _kind(storage, target)
    if kind == "dataset":
        return _describe_dataset(storage, target)
    return _describe_catalog(open_catalog(storage, target)) if kind == "catalog" else _describe_shard(storage, target)


def list_bad(target: str) -> dict[str, Any]:
    """Every sample of a dataset's quarantine, or every bad row of a catalog, with its reason."""
    storage = open_storage(None)
    kind = _kind(storage, target)
    if kind == "dataset":
        with storage.open(join(target, QUARANTINE_FILE)) as stream:
            return {"dropped": read_parquet(stream).to_pylist()}
    if kind == "catalog":
        rows: list[dict[str, Any]] = []
        for table in open_catalog(storage, target).read(["key", "uri", "status", "detail"]):
            rows += table.filter(pc.not_equal(table["status"], "ok")).to_pylist()
        return {"bad": rows}
    raise ConfigError(f"{target}: --bad needs a dataset or a catalog")


def extract(target: str, key: str, folder: str) -> dict[str, Any]:
    """Write the members of sample `key` of a dataset or shard into the local `folder`."""
    storage = open_storage(None)
    row = (
        _find_in_dataset(storage, target, key) if has_dataset(storage, target) else _find_in_shard(storage, target, key)
    )
    url = join(target, row["shard"]) if has_dataset(storage, target) else target
    os.makedirs(folder, exist_ok=True)
    files = []
    for name, offset, length in zip(row["members"], row["offsets"], row["lengths"], strict=True):
        path = os.path.join(folder, f"{row['key'].replace('/', '_')}.{name}")
        with open(path, "wb") as stream:
            stream.write(storage.read_range(url, offset, length) if length else b"")
        files.append(path)
    return {"key": row["key"], "shard": row["shard"], "files": files}


def explain(target: str, key: str) -> dict[str, Any]:
    """The way of sample `key` of a dataset (from catalog row to shard, or to the rule that dropped it), or its catalog
    row.

    Raises:
        DatasetError: no sample of that key was ever seen; the message says where it was looked for.
    """
    storage = open_storage(None)
    if not has_dataset(storage, target):
        return {"scan": _catalog_row(open_catalog(storage, target), key)}
    manifest = open_manifest(storage, target)
    way: dict[str, Any] = {}
    catalog = _catalog_of(storage, target)
    if catalog is not None:
        way["scan"] = _catalog_row(catalog, key)
    dropped = _rows_with_key(storage, join(target, QUARANTINE_FILE), key)
    if dropped:
        return way | {"dropped": dropped[0]}
    row = _find_in_dataset(storage, target, key)
    way["bucket"] = _bucket(storage, target, row)
    members = dict(zip(row["members"], row["lengths"], strict=True))
    way["stored"] = {
        name: row[name] for name in ("shard", "position", "split", "pack", "width", "height", "frames", "duration")
    }
    way["stored"]["members"] = members
    way["stored"]["copied"] = catalog is not None and _is_copied(way["scan"], members)
    way["check"] = manifest.check
    return way


def _is_copied(scanned: dict[str, Any], members: dict[str, int]) -> bool:
    """Whether every medium is stored with the name and size it was scanned with."""
    return all(members.get(m["field"]) == m["size_bytes"] for m in scanned["media"])


def _kind(storage: Storage, target: str) -> str:
    if has_dataset(storage, target):
        return "dataset"
    if has_catalog(storage, target):
        return "catalog"
    if target.endswith((".tar", ".arrow")):
        return "shard"
    open_manifest(storage, target)
    raise AssertionError("open_manifest raises where there is no dataset")


def _describe_dataset(storage: Storage, url: str) -> dict[str, Any]:
    manifest = open_manifest(storage, url)
    splits: dict[str, int] = {}
    for shard in manifest.shards:
        splits[shard.split or "all"] = splits.get(shard.split or "all", 0) + shard.samples
    return {
        "dataset": url,
        "format": manifest.format,
        "check": manifest.check,
        "samples": manifest.samples,
        "bytes": manifest.bytes,
        "shards": len(manifest.shards),
        "splits": splits,
        "dropped": manifest.conservation.dropped,
        "ignored": manifest.ignored,
        "members": manifest.members,
        "buckets": [{"bucket": name} | figures for name, figures in manifest.buckets.items()],
        "spread": _spread(_index_tables(storage, url, manifest)),
        "schema": {field.name: str(field.type) for field in _index_schema(storage, url, manifest)},
    }


def _index_tables(storage: Storage, url: str, manifest: Manifest) -> Iterator[pa.Table]:
    for file in manifest.index:
        with storage.open(join(url, file)) as stream:
            names = [name for name in NUMERIC if name in pq.read_schema(stream).names]
            yield read_parquet(stream, names)


def _index_schema(storage: Storage, url: str, manifest: Manifest) -> pa.Schema:
    with storage.open(join(url, manifest.index[0])) as stream:
        return pq.read_schema(stream)


def _describe_catalog(catalog: Catalog) -> dict[str, Any]:
    names = catalog.schema().names
    shown = [name for name in names if name in NUMERIC or name.startswith("stat.")]
    return {
        "catalog": catalog.url,
        "check": catalog.check,
        "samples": catalog.rows,
        "parts": len(catalog.parts),
        "status": catalog.counts,
        "ignored": catalog.ignored,
        "spread": _spread(catalog.read(shown)),
        "schema": {field.name: str(field.type) for field in catalog.schema()},
    }


def _spread(tables: Iterator[pa.Table]) -> list[dict[str, Any]]:
    """Count and quantiles of each numeric column, over all tables."""
    columns: dict[str, list[pa.ChunkedArray]] = {}
    for table in tables:
        for name in table.column_names:
            if pa.types.is_integer(table[name].type) or pa.types.is_floating(table[name].type):
                columns.setdefault(name, []).append(table[name].drop_null())
    rows = []
    for name, parts in columns.items():
        values = pa.chunked_array([chunk for part in parts for chunk in part.chunks], type=parts[0].type)
        if len(values):
            quantiles = pc.quantile(values, q=list(QUANTILES)).to_pylist()
            named = zip(("min", "p5", "median", "p95", "max"), quantiles, strict=True)
            rows.append({"column": name, "count": len(values)} | {label: round(value, 4) for label, value in named})
    return rows


def _describe_shard(storage: Storage, url: str) -> dict[str, Any]:
    samples, members, damage = 0, {}, []  # type: ignore[var-annotated]
    for row in _shard_rows(storage, url, damage):
        samples += 1
        for name in row["members"]:
            members[name] = members.get(name, 0) + 1
    result = {
        "shard": url,
        "bytes": storage.stat(url).size,
        "samples": samples,
        "members": dict(sorted(members.items())),
    }
    return result | ({"damage": [f"byte {d.offset}: {d.message}" for d in damage]} if damage else {})


def _shard_rows(storage: Storage, url: str, damage: list[Damage]) -> Iterator[dict[str, Any]]:
    """Key, members and byte ranges of each sample of a shard, from the shard itself."""
    if url.endswith(".arrow"):
        with storage.open(url) as stream:
            table = pa.ipc.open_file(stream).read_all().select(["__key__"])
        path = storage.local_path(url)
        if path is None:
            raise ConfigError(f"{url}: inspect a remote Arrow shard through its dataset folder")
        for key, placed in zip(table["__key__"].to_pylist(), index_arrow(path), strict=True):
            yield {
                "key": key,
                "shard": url,
                "members": list(placed.members),
                "offsets": placed.offsets,
                "lengths": placed.lengths,
            }
        return
    with storage.open(url) as stream:
        for key, found in group_members(index_tar(stream), damage.append):
            names, offsets, lengths = zip(*found, strict=True)
            yield {"key": key, "shard": url, "members": list(names), "offsets": list(offsets), "lengths": list(lengths)}


def _find_in_shard(storage: Storage, url: str, key: str) -> dict[str, Any]:
    for row in _shard_rows(storage, url, []):
        if key in (row["key"], unescape_key(row["key"])):
            return row
    raise DatasetError(f"{url}: holds no sample '{key}'")


def _find_in_dataset(storage: Storage, url: str, key: str) -> dict[str, Any]:
    for file in open_manifest(storage, url).index:
        rows = _rows_with_key(storage, join(url, file), key)
        if rows:
            return rows[0]
    raise DatasetError(
        f"{url}: no sample '{key}' in the index, nor in the quarantine; keys are relative paths without extension"
    )


def _rows_with_key(storage: Storage, url: str, key: str) -> list[dict[str, Any]]:
    from mmdata.schema import escape_key

    with storage.open(url) as stream:
        rows: list[dict[str, Any]] = read_matching(stream, "key", [key, escape_key(key)]).to_pylist()
    return rows


def _catalog_of(storage: Storage, url: str) -> Catalog | None:
    """The catalog a dataset was built from, when it is still there and still the same."""
    import yaml

    try:
        where = yaml.safe_load(storage.read(join(url, RECIPE_FILE)))["catalog"]
    except NotFound:
        return None
    if not has_catalog(storage, where):
        return None
    catalog = open_catalog(storage, where)
    return catalog if catalog.fingerprint == open_manifest(storage, url).catalog else None


def _catalog_row(catalog: Catalog, key: str) -> dict[str, Any]:
    for part in catalog.parts:
        rows = _rows_with_key(catalog.storage, join(catalog.url, part.file), key)
        if rows:
            row = rows[0]
            kept = {name: value for name, value in row.items() if value is not None and name not in ("media", "stamp")}
            return kept | {"media": [{k: v for k, v in m.items() if v is not None} for m in row["media"] or ()]}
    raise DatasetError(f"{catalog.url}: no sample '{key}'; keys are relative paths without extension")


def _bucket(storage: Storage, url: str, row: dict[str, Any]) -> dict[str, Any]:
    buckets = json.loads(storage.read(join(url, PLAN_FILE)))["buckets"]
    return next((bucket for bucket in buckets if bucket["name"] == row["bucket"]), {})
