"""The way of one sample as a person reads it, in order. Knows the mapping that `explain` gives, and no file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mmdata.report.text import fields, number, plain, seconds, size

LITTLE = 5e-4
"""Shares below this are not told."""


def explain_text(way: Mapping[str, Any]) -> str:
    """The story, in order."""
    pairs: list[tuple[str, object]] = []
    if "scanned" in way:
        pairs += _scan_story(way["scanned"])
    pairs += [("filters", [_filter_story(rule) for rule in way.get("filters", ())])]
    if "bucket" in way:
        pairs.append(("bucket", _bucket_story(way["bucket"])))
    if "stored" in way:
        pairs += _stored_story(way["stored"])
        pairs.append(("media", [_media_story(medium) for medium in way.get("media", ())]))
    for row in way.get("dropped", ()):
        name = "dropped" if "stored" not in way else "also"
        again = "" if "stored" not in way else "another sample of this key was dropped "
        pairs.append((name, [f"{again}at {row['stage']} by '{row['error_class']}': {row['message']}"]))
        if again and row["uri"]:
            pairs.append(("", [f"its source is {row['uri']}"]))
    pairs.append(("note", list(way.get("notes", ()))))
    return "\n".join([plain(way["key"]), *fields(pairs, "  ")])


def _scan_story(row: Mapping[str, Any]) -> list[tuple[str, object]]:
    lines = []
    for medium in row["media"]:
        place = (
            "" if medium.get("offset") is None else f", {size(medium.get('length', 0))} at byte {medium['offset']:,}"
        )
        lines.append(f"{medium.get('uri', '')}{place}")
        told = _medium_story(medium)
        lines += [f"  {told}"] if told else []
    if not row["media"] and row.get("uri"):
        lines.append(row["uri"])
    if row.get("row") is not None:
        lines.append(f"row {row['row']:,} of {row['source']}")
    if row["status"] == "ok":
        proof = {"decode": "decoded whole", "header": "header read, not decoded"}
        lines.append(f"ok, {proof[row['check']]}" if row["media"] else "ok")
    else:
        lines.append(f"bad: {row['status']}: {row.get('detail', '')}")
    statistics = {
        name: value for name, value in row.items() if name.startswith("stat.") or name in ("text_chars", "text_tokens")
    }
    texts = [f"{name}: {_shortened(value)}" for name, value in row["fields"].items()]
    return [
        ("scanned", lines),
        ("fields", texts),
        ("measured", ", ".join(f"{name} {_value(value)}" for name, value in statistics.items())),
        ("group", row.get("group")),
    ]


def _medium_story(medium: Mapping[str, Any]) -> str:
    parts = [medium.get("codec") or medium.get("format") or medium["kind"]]
    if medium.get("width") and medium.get("height"):
        parts.append(f"{medium['width']} x {medium['height']}")
    if medium.get("rotation"):
        parts.append(f"turned by {medium['rotation']} degrees to be upright")
    if (medium.get("frames") or 1) > 1:
        parts.append(f"{medium['frames']:,} frames")
    if medium.get("duration"):
        parts.append(seconds(medium["duration"]))
    if medium.get("sample_rate"):
        parts.append(f"{medium['sample_rate']:,} Hz, {medium.get('channels', '?')} channels")
    if medium.get("size_bytes"):
        parts.append(size(medium["size_bytes"]))
    return ", ".join(part for part in parts if part) if len(parts) > 1 else ""


def _filter_story(rule: Mapping[str, Any]) -> str:
    values = ", ".join(f"{name} {_value(value)}" for name, value in rule["values"].items())
    name = "" if rule["name"] == rule["keep"] else f"'{rule['name']}': "
    return f"{'passes' if rule['passes'] else 'fails'}  {name}{rule['keep']}  ({values})"


def _bucket_story(bucket: Mapping[str, Any]) -> list[str]:
    return _length_story(bucket) if "column" in bucket else _shape_story(bucket)


def _length_story(bucket: Mapping[str, Any]) -> list[str]:
    value = "is not known" if bucket["value"] is None else f"is {_value(bucket['value'])}"
    if "scanned" in bucket:
        value += f" after the transforms, {_value(bucket['scanned'])} before"
    edges = ", ".join(number(edge) for edge in bucket["edges"])
    lines = [bucket["bucket"] or "none", f"{bucket['column']} {value}; the edges are {edges}"]
    if "edge" in bucket:
        lines.append(f"padded to {number(bucket['edge'])}: {bucket['padding']:.1%} padding")
    return lines


def _shape_story(bucket: Mapping[str, Any]) -> list[str]:
    parts = [f"scaled by {bucket['scale']:.3g}"]
    for name, text in (("crop", "cut away"), ("pad", "padding"), ("trim", "of the frames left out")):
        if bucket[name] > LITTLE:
            parts.append(f"{bucket[name]:.1%} {text}")
    if bucket["distortion"] > 1 + LITTLE:
        parts.append(f"distorted {bucket['distortion']:.2f} times")
    fit = f"{bucket['mode']}: {', '.join(parts)} (cost {bucket['cost']:.3f})"
    if bucket["bucket"] is not None:
        head = bucket["bucket"]
    elif bucket["broken"]:
        bounds = ", ".join(f"{name} {bucket['bounds'].get(name)}" for name in bucket["broken"])
        head = f"none: the nearest is {bucket['nearest']}, but that breaks {bounds}"
    else:
        head = f"none; the nearest is {bucket['nearest']}"
    others = ", ".join(f"{each['bucket']} (cost {each['cost']:.3f})" for each in bucket["next"])
    return [head, fit, f"next best: {others}"] if others else [head, fit]


def _stored_story(stored: Mapping[str, Any]) -> list[tuple[str, object]]:
    place = f"{stored['shard']}, sample {stored['position'] + 1:,} of {stored['samples_in_shard']:,}"
    members = [f"{each['member']}  {size(each['bytes'])} at byte {each['offset']:,}" for each in stored["members"]]
    return [("split", stored.get("split")), ("pack", stored.get("pack")), ("stored", [place, *members])]


def _media_story(medium: Mapping[str, Any]) -> str:
    before, after = medium["bytes"]
    if medium["copied"]:
        return f"{medium['member']}: copied byte for byte"
    chain = ", ".join(medium["transforms"])
    return (
        f"{medium['member']}: written anew from {medium['from']}"
        + (f" after {chain}" if chain else "")
        + f", {size(before)} became {size(after)}"
    )


def _value(value: Any) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return f"{value:,}" if isinstance(value, int) else number(value)
    return "null" if value is None else repr(value)


def _shortened(value: Any, most: int = 100) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= most else text[: most - 1] + "…"
