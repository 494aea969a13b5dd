"""What a verb answers, as lines for people; the mappings are those that `--json` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmdata.report.text import counted, fields, listed, number, share, size, table


def sources_text(result: Mapping[str, Any]) -> str:
    """Of a `scan --dry-run`, or a `build --dry-run` without a catalog."""
    rows = [(each["source"], each["samples"], each["partitions"]) for each in result["sources"]]
    lines = ["would scan", *table(("source", "samples", "partitions"), rows)]
    lines += fields([("catalog", result["catalog"])])
    lines += fields([("no media", listed(result["ignored"]))])
    return "\n".join(
        [*lines, "dry run: nothing was written; after `mmdata scan`, `mmdata build --dry-run` shows the plan"]
    )


def catalog_text(result: Mapping[str, Any]) -> str:
    """Of a `scan`."""
    total, good = result["samples"], result["status"].get("ok", 0)
    again = total - result["measured"]
    bad = {name: count for name, count in result["status"].items() if name != "ok"}
    lines = fields(
        [
            ("catalog", result["catalog"]),
            ("samples", f"{total:,}" + (f", {again:,} of them taken over from an earlier scan" if again else "")),
            ("ok", f"{good:,}"),
            ("bad", f"{sum(bad.values()):,} ({listed(bad)})" if bad else None),
            ("no media", listed(result["ignored"])),
        ]
    )
    return "\n".join(lines)


def plan_text(result: Mapping[str, Any]) -> str:
    """Of a `build --dry-run`."""
    lines = fields(
        [
            ("catalog", result["catalog"]),
            ("output", result["output"]),
            ("samples", f"{result['samples']:,} of {result['read']:,}"),
            ("shards", f"{result['shards']:,}, of which {result['shards_built']:,} are built"),
            ("packs", packs_text(result["packs"])),
        ]
    )
    lines += ["buckets", *table(("bucket", "samples", "share"), bucket_shares(result["buckets"]))]
    lines += dropped_lines(result["dropped"])
    return "\n".join([*lines, "dry run: nothing was written"])


def dataset_text(result: Mapping[str, Any]) -> str:
    """Of a `build` or `commit`."""
    lines = fields(
        [
            ("dataset", result["dataset"]),
            ("samples", f"{result['samples']:,} of {result['read']:,} read"),
            ("shards", f"{counted(result['shards'], 'shard')}, {size(result['bytes'])}"),
            ("no media", listed(result["ignored"])),
        ]
    )
    lines += dropped_lines(result["dropped"])
    lines += fields([("report", result["report"])])
    if result.get("unchanged"):
        lines.append("already built from this recipe and catalog: nothing was done")
    return "\n".join(lines)


def range_text(result: Mapping[str, Any]) -> str:
    """Of a `build --shard-range`."""
    first, stop = result["range"]
    built = result["shards_built"]
    which = (
        f"shards {first:,} to {stop - 1:,} of {result['shards']:,}" if stop > first else "no shard: the range is empty"
    )
    lines = [f"range {result['shard_range']}: {which}", f"built {built:,}, already there {stop - first - built:,}"]
    lines.append("next, when all ranges are built: mmdata commit, with the same recipe and --set options")
    return "\n".join(lines)


def dropped_lines(dropped: Mapping[str, int]) -> list[str]:
    """A line per reason, the most frequent first."""
    ordered = sorted(dropped.items(), key=lambda item: (-item[1], item[0]))
    rows = [(count, *reason.split("/", 1)) for reason, count in ordered]
    return [f"dropped {sum(dropped.values()):,}", *table(("samples", "stage", "reason"), rows)] if rows else []


def bucket_shares(buckets: Mapping[str, int]) -> list[tuple[str, int, str]]:
    """(bucket, samples, share) rows."""
    total = sum(buckets.values())
    return [(name, count, share(count, total)) for name, count in buckets.items()]


def packs_text(packs: Mapping[str, Any] | None) -> str | None:
    """`812 of budget 8,192, filled to 98.2 %`."""
    if packs is None:
        return None
    return f"{packs['packs']:,} of budget {number(packs['budget'])}, filled to {share(packs['mean_fill'], 1)}"
