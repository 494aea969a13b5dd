"""Counts, buckets, spread and columns of a dataset, a catalog or a shard, and the list of what is bad."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mmdata.errors import ConfigError
from mmdata.formats.tar import Damage
from mmdata.inspect.find import kind_of, shard_rows
from mmdata.report.summary import dropped_lines, packs_text
from mmdata.report.text import fields, listed, number, plain, seconds, share, size, table
from mmdata.shards.catalog import Catalog, open_catalog
from mmdata.shards.dataset import PLAN_FILE, QUARANTINE_FILE, Manifest, open_manifest
from mmdata.storage import Storage, open_storage
from mmdata.storage.urls import join

QUANTILES = (0.0, 0.05, 0.5, 0.95, 1.0)

NUMERIC = ("width", "height", "frames", "duration", "fps", "sample_rate", "size_bytes", "text_chars", "text_tokens")
"""Catalog and index columns whose spread is shown."""

DAMAGES_SHOWN = 20


def describe(target: str) -> dict[str, Any]:
    """Counts, buckets and columns of a dataset or catalog folder, or of one shard file."""
    storage = open_storage(None)
    kind = kind_of(storage, target)
    if kind == "dataset":
        return _describe_dataset(storage, target)
    return _describe_catalog(open_catalog(storage, target)) if kind == "catalog" else _describe_shard(storage, target)


def describe_text(result: Mapping[str, Any]) -> str:
    """What `describe` found, for people."""
    if "dataset" in result:
        lines = _dataset_lines(result)
    elif "catalog" in result:
        lines = _catalog_lines(result)
    else:
        lines = _shard_lines(result)
    return "\n".join(lines)


def list_bad(target: str) -> dict[str, Any]:
    """Every sample of a dataset's quarantine (`dropped`), or every bad row of a catalog (`bad`), with its reason."""
    storage = open_storage(None)
    kind = kind_of(storage, target)
    if kind == "dataset":
        with storage.open(join(target, QUARANTINE_FILE)) as stream:
            return {"dropped": pq.read_table(stream).to_pylist()}
    if kind == "catalog":
        rows: list[dict[str, Any]] = []
        for part in open_catalog(storage, target).read(["key", "uri", "status", "detail"]):
            rows += part.filter(pc.not_equal(part["status"], "ok")).to_pylist()
        return {"bad": rows}
    raise ConfigError(f"{target}: this is a shard; --bad needs a dataset or a catalog")


def bad_text(result: Mapping[str, Any]) -> str:
    """A row per bad sample, for people."""
    rows: list[tuple[str | None, ...]]
    if "dropped" in result:
        head: tuple[str, ...] = ("key", "stage", "reason", "message")
        rows = [(row["key"], row["stage"], row["error_class"], row["message"]) for row in result["dropped"]]
    else:
        head = ("key", "reason", "message")
        rows = [(row["key"], row["status"], row["detail"]) for row in result["bad"]]
    return "\n".join(table(head, rows, indent="")) if rows else "nothing is bad or dropped"


def _describe_dataset(storage: Storage, url: str) -> dict[str, Any]:
    manifest = open_manifest(storage, url)
    splits: dict[str, dict[str, int]] = {}
    for shard in manifest.shards:
        own = splits.setdefault(shard.split or "all", {"samples": 0, "shards": 0, "bytes": 0})
        own["samples"] += shard.samples
        own["shards"] += 1
        own["bytes"] += shard.bytes
    plan = json.loads(storage.read(join(url, PLAN_FILE)))
    shapes = {bucket["name"]: bucket for bucket in plan["buckets"]}
    return {
        "dataset": url,
        "format": manifest.format,
        "check": manifest.check,
        "read": manifest.conservation.read,
        "samples": manifest.samples,
        "bytes": manifest.bytes,
        "shards": len(manifest.shards),
        "splits": splits,
        "dropped": manifest.conservation.dropped,
        "ignored": manifest.ignored,
        "members": manifest.members,
        "packs": plan["packs"],
        "buckets": [
            {"bucket": name, "shape": shapes.get(name)} | figures for name, figures in manifest.buckets.items()
        ],
        "spread": _spread(_index_tables(storage, url, manifest)),
        "schema": {field.name: str(field.type) for field in _index_schema(storage, url, manifest)},
    }


def _dataset_lines(result: Mapping[str, Any]) -> list[str]:
    checked = {"decode": "every medium was decoded", "header": "headers only (check: header)"}
    lines = fields(
        [
            ("dataset", result["dataset"]),
            ("samples", f"{result['samples']:,} of {result['read']:,} read"),
            ("size", f"{size(result['bytes'])} in {result['shards']:,} {result['format']} shards"),
            ("checked", checked.get(result["check"], result["check"])),
            ("no media", listed(result["ignored"])),
            ("packs", packs_text(result["packs"])),
        ]
    )
    rows = [(name, each["samples"], each["shards"], size(each["bytes"])) for name, each in result["splits"].items()]
    lines += ["", "splits", *table(("split", "samples", "shards", "size"), rows)]
    lines += ["", "buckets", *bucket_table(result["buckets"])]
    lines += ["", *dropped_lines(result["dropped"])] if result["dropped"] else []
    kinds: dict[str, list[str]] = {}
    for member, kind in result["members"].items():
        kinds.setdefault(kind, []).append(member)
    lines += ["", "members", *fields(((kind, ", ".join(names)) for kind, names in sorted(kinds.items())), "  ")]
    return [*lines, "", *_spread_lines(result["spread"]), "", *_schema_lines("columns of the index", result["schema"])]


def bucket_table(buckets: list[dict[str, Any]]) -> list[str]:
    """A row per bucket: samples and their share, and what the bucket adds up to. Empty columns are left out."""
    total = sum(each["samples"] for each in buckets)
    rows = [
        (
            each["bucket"] if each["bucket"] != "none" else "(none)",
            each["samples"],
            share(each["samples"], total),
            size(each["bytes"]),
            each["frames"] or None,
            seconds(each["seconds"]) if each["seconds"] else None,
        )
        for each in buckets
    ]
    head = ("bucket", "samples", "share", "size", "frames", "duration")
    kept = [i for i in range(len(head)) if any(row[i] is not None for row in rows)]
    return table([head[i] for i in kept], [[row[i] for i in kept] for row in rows])


def _spread_lines(spread: list[dict[str, Any]]) -> list[str]:
    names = ("count", "min", "p5", "median", "p95", "max")
    rows = [(row["column"], *(row[name] for name in names)) for row in spread]
    return ["spread", *table(("column", *names), rows)] if rows else []


def _schema_lines(title: str, schema: Mapping[str, str]) -> list[str]:
    return [title, *table(("column", "type"), list(schema.items()))]


def _index_tables(storage: Storage, url: str, manifest: Manifest) -> Iterator[pa.Table]:
    for file in manifest.index:
        with storage.open(join(url, file)) as stream:
            names = [name for name in NUMERIC if name in pq.read_schema(stream).names]
            yield pq.read_table(stream, columns=names)


def _index_schema(storage: Storage, url: str, manifest: Manifest) -> pa.Schema:
    with storage.open(join(url, manifest.index[0])) as stream:
        return pq.read_schema(stream)


def _describe_catalog(catalog: Catalog) -> dict[str, Any]:
    schema = catalog.schema()
    shown = [name for name in schema.names if name in NUMERIC or name.startswith("stat.")]
    modalities: Counter[str] = Counter()
    for part in catalog.read(["modality", "status"]):
        good = part.filter(pc.equal(part["status"], "ok"))["modality"]
        for each in pc.value_counts(good).to_pylist():
            modalities[each["values"]] += each["counts"]
    return {
        "catalog": catalog.url,
        "check": catalog.check,
        "samples": catalog.rows,
        "parts": len(catalog.parts),
        "status": catalog.counts,
        "modality": dict(sorted(modalities.items())),
        "ignored": catalog.ignored,
        "spread": _spread(catalog.read(shown)),
        "schema": {field.name: "list of media" if field.name == "media" else str(field.type) for field in schema},
    }


def _catalog_lines(result: Mapping[str, Any]) -> list[str]:
    lines = fields(
        [
            ("catalog", result["catalog"]),
            ("samples", f"{result['samples']:,} in {result['parts']:,} parts"),
            ("of them ok", listed(result["modality"])),
            ("check", result["check"]),
            ("no media", listed(result["ignored"])),
        ]
    )
    total = result["samples"]
    rows = [(name, count, share(count, total)) for name, count in result["status"].items()]
    lines += ["", "status", *table(("status", "samples", "share"), rows), "", *_spread_lines(result["spread"])]
    return [*lines, "", *_schema_lines("columns", result["schema"])]


def _spread(tables: Iterator[pa.Table]) -> list[dict[str, Any]]:
    """Count and quantiles of each numeric column, over all tables."""
    columns: dict[str, list[pa.ChunkedArray]] = {}
    for each in tables:
        for name in each.column_names:
            if pa.types.is_integer(each[name].type) or pa.types.is_floating(each[name].type):
                columns.setdefault(name, []).append(each[name].drop_null())
    rows = []
    for name, parts in columns.items():
        values = pa.chunked_array([chunk for part in parts for chunk in part.chunks], type=parts[0].type)
        if len(values):
            quantiles = pc.quantile(values, q=list(QUANTILES)).to_pylist()
            named = zip(("min", "p5", "median", "p95", "max"), quantiles, strict=True)
            rows.append({"column": name, "count": len(values)} | {label: round(value, 4) for label, value in named})
    return rows


def _describe_shard(storage: Storage, url: str) -> dict[str, Any]:
    samples, members, payload = 0, Counter[str](), 0
    first: list[str] = []
    damage: list[Damage] = []
    for row in shard_rows(storage, url, damage):
        samples += 1
        payload += sum(row["lengths"])
        members.update(row["members"])
        if len(first) < 3:
            first.append(row["key"])
    return {
        "shard": url,
        "bytes": storage.stat(url).size,
        "payload_bytes": payload,
        "samples": samples,
        "members": dict(sorted(members.items())),
        "first_keys": first,
        "damage": [{"byte": each.offset, "name": each.name, "message": each.message} for each in damage],
    }


def _shard_lines(result: Mapping[str, Any]) -> list[str]:
    lines = fields(
        [
            ("shard", result["shard"]),
            ("samples", f"{result['samples']:,}"),
            ("size", f"{size(result['bytes'])}, of it payload {size(result['payload_bytes'])}"),
            ("members", listed(result["members"])),
            ("first keys", result["first_keys"]),
        ]
    )
    damage = result["damage"]
    lines += [f"damage    {number(len(damage))} places"] if damage else ["damage    none found in the headers"]
    lines += [f"  byte {each['byte']:,}: {plain(each['message'])}" for each in itertools.islice(damage, DAMAGES_SHOWN)]
    return [*lines, f"  and {len(damage) - DAMAGES_SHOWN:,} more"] if len(damage) > DAMAGES_SHOWN else lines
