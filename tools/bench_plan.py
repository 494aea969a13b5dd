"""Planning of catalogs made on the spot: seconds and memory for a million rows, and the memory of jobs of 10 thousand
and 100 thousand samples.

plan    the plan of `mmdata build`: pictures (auto buckets, splits, shuffle), recordings (edges), texts (packing)
memory  summed PSS of `mmdata scan` and of a build without transforms, over small pictures, at two sizes

python tools/bench_plan.py plan memory --rows 1000000
"""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import bench_common as common
import numpy as np
import pyarrow as pa

PART_ROWS = 50_000
ASPECTS = (3 / 2, 4 / 3, 16 / 9, 1.0, 2 / 3, 3 / 4, 9 / 16)
RECIPES: dict[str, dict[str, Any]] = {
    "image": {
        "buckets": {"image": {"shapes": "auto", "count": 16, "pixels": "1024*1024"}},
        "transforms": {"image": [{"op": "resize"}]},
        "splits": {"val": 0.01, "test": 0.01},
        "filters": ["width >= 256 and height >= 256"],
    },
    "audio": {"buckets": {"audio": {"edges": "auto", "count": 16}}, "splits": {"val": 0.01}},
    "text": {"packing": {"budget": 32768, "length": "text_chars", "oversize": "drop"}, "splits": {"val": 0.01}},
}


def make_catalog(folder: Path, kind: str, rows: int, seed: int = 0) -> None:
    """A catalog as a scan of `rows` samples of one kind would leave it, without any media."""
    from mmdata.schema import CATALOG
    from mmdata.shards.catalog import commit_catalog, part_name, write_part
    from mmdata.storage import open_storage

    storage = open_storage()
    rng = np.random.default_rng([seed, rows])
    parts = []
    for ordinal, start in enumerate(range(0, rows, PART_ROWS)):
        count = min(PART_ROWS, rows - start)
        values = _columns(kind, start, count, rng)
        table = pa.table({field.name: values.get(field.name, pa.nulls(count, field.type)) for field in CATALOG}).cast(
            CATALOG
        )
        url = f"{folder}/{part_name(ordinal, f'{start:012d}')}"
        members = {(kind if kind != "text" else "txt", kind, "", "")}
        parts.append(write_part(storage, url, table, inputs=str(start), scan="benchmark", members=members))
    commit_catalog(storage, str(folder), parts, scan="benchmark", check="decode", ignored={})


def _columns(kind: str, start: int, count: int, rng: np.random.Generator) -> dict[str, Any]:
    keys = [f"folder/{number // 1000:06d}/sample{number:010d}" for number in range(start, start + count)]
    digest = rng.integers(0, 2**63, count)
    digest[rng.random(count) < 0.02] = 7  # some samples are there many times
    columns: dict[str, Any] = {
        "key": keys,
        "source": ["source.0"] * count,
        "modality": [kind] * count,
        "status": np.where(rng.random(count) < 0.001, "TruncatedMedia", "ok").tolist(),
        "check": ["decode"] * count,
        "uri": [f"/data/{key}.bin" for key in keys],
        "size_bytes": rng.integers(20_000, 900_000, count),
        "digest": [f"{value:032x}" for value in digest.tolist()],
        "fields": ["{}"] * count,
    }
    if kind == "image":
        pixels = np.exp(rng.normal(np.log(1.5e6), 0.8, count))
        aspect = np.asarray(ASPECTS)[rng.integers(len(ASPECTS), size=count)] * np.exp(rng.normal(0, 0.05, count))
        columns["width"] = np.maximum(32, np.sqrt(pixels * aspect)).astype(np.int32)
        columns["height"] = np.maximum(32, np.sqrt(pixels / aspect)).astype(np.int32)
        columns["frames"] = np.ones(count, np.int32)
    elif kind == "audio":
        columns["duration"] = np.exp(rng.normal(2.0, 0.8, count))
    else:
        tokens = np.exp(rng.normal(6.0, 1.2, count)).astype(np.int32) + 1
        columns["text_tokens"], columns["text_chars"] = tokens, tokens * 4
    return columns


def plan_once(recipe: str) -> None:
    """Load the recipe and plan it: what a process of its own is measured at. Prints figures as JSON."""
    import time

    from mmdata.operators.registry import load_builtin
    from mmdata.recipe import load
    from mmdata.shards.catalog import open_catalog
    from mmdata.shards.plan import make_plan
    from mmdata.storage import open_storage

    load_builtin()
    loaded = load(recipe)
    start = time.perf_counter()
    plan = make_plan(loaded, open_catalog(open_storage(), loaded.catalog))
    seconds = time.perf_counter() - start
    print(json.dumps({"seconds": seconds, "shards": len(plan.shards), "samples": len(plan.order)}))


def plan(work: Path, rows: int, count: int) -> list[dict[str, Any]]:
    """Seconds and peak memory of planning, for each kind of sample."""
    results = []
    for kind, settings in RECIPES.items():
        catalog = work / f"{kind}.catalog"
        common.remove(catalog)
        make_catalog(catalog, kind, rows)
        recipe = {
            "version": 1,
            "source": [{"type": "folder", "path": "/data"}],
            "catalog": str(catalog),
            "output": {"path": str(work / "never-built")},
            **settings,
        }
        path = common.write_recipe(work / f"{kind}.json", recipe)
        here = str(Path(__file__).resolve().parent)
        code = f"import sys; sys.path.insert(0, {here!r}); import bench_plan; bench_plan.plan_once({path!r})"
        runs = []
        for _ in range(count):
            done = common.with_peak_rss([sys.executable, "-c", code])
            runs.append((json.loads(done.output)["seconds"], done.cpu, done.peak_rss, json.loads(done.output)))
        seconds, cpu, peak, figures = sorted(runs, key=lambda run: run[0])[len(runs) // 2]
        results.append(
            {
                "what": f"plan {rows:,} rows, {kind}",
                "seconds": round(seconds, 2),
                "target s": "< 10",
                "processor s (with imports)": round(cpu, 2),
                "peak RSS MiB": round(peak / 2**20),
                "target MiB": "< 1024",
                "shards": figures["shards"],
            }
        )
        common.remove(catalog)
    return results


def make_pictures(folder: Path, count: int) -> None:
    """`count` small JPEG files, each with a caption, in folders of a thousand."""
    from PIL import Image

    rng = np.random.default_rng(0)
    common.remove(folder)
    for number in range(count):
        place = folder / f"{number // 1000:04d}"
        if number % 1000 == 0:
            place.mkdir(parents=True)
        if number % 97 == 0:
            out = io.BytesIO()
            coarse = rng.integers(0, 255, (4, 4, 3), dtype=np.uint8)
            Image.fromarray(coarse).resize((64, 48)).save(out, "JPEG")
        (place / f"{number:07d}.jpg").write_bytes(out.getvalue())


def memory(work: Path, sizes: tuple[int, int]) -> list[dict[str, Any]]:
    """Peak memory of scan and build at two sizes."""
    results = []
    for count in sizes:
        folder, output = work / f"pictures{count}", work / f"built{count}"
        make_pictures(folder, count)
        common.remove(output, Path(f"{output}.catalog"))
        recipe = {
            "version": 1,
            "source": [{"type": "folder", "path": str(folder)}],
            "scan": {"check": "header", "partition": 1000},  # small parts and shards: both sizes keep all workers busy
            "output": {"path": str(output), "max_samples": 1000},
        }
        path = common.write_recipe(work / f"memory{count}.json", recipe)
        for verb in ("scan", "build"):
            peak, seconds = common.command_memory([sys.executable, "-m", "mmdata", verb, path, "--workers", "2"])
            results.append(
                {
                    "what": f"{verb}, {count:,} samples",
                    "peak PSS MiB": round(peak / 2**20),
                    "seconds": round(seconds, 1),
                    "samples/s": round(count / seconds),
                }
            )
        common.remove(folder, output, Path(f"{output}.catalog"))
    return results


def main() -> None:
    parser = common.parser(__doc__, "/tmp/tessera-bench")
    parser.add_argument("parts", nargs="*", help="plan, memory; default both")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--sizes", type=int, nargs=2, default=(10_000, 100_000), help="samples of the memory part")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    parts = arguments.parts or ["plan", "memory"]
    if unknown := set(parts) - {"plan", "memory"}:
        parser.error(f"unknown part {', '.join(sorted(unknown))}")
    arguments.work.mkdir(parents=True, exist_ok=True)
    if "plan" in parts:
        common.report(plan(arguments.work, arguments.rows, arguments.rounds), arguments.json)
    if "memory" in parts:
        common.report(memory(arguments.work, tuple(arguments.sizes)), arguments.json)


if __name__ == "__main__":
    main()
