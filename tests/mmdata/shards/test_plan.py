"""The plan: every catalog row is placed once or dropped by a named rule, whatever the settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from mmdata.errors import ConfigError, TesseraError
from mmdata.operators.registry import load_builtin
from mmdata.recipe import Recipe, from_mapping
from mmdata.schema import CATALOG
from mmdata.shards.catalog import Catalog, commit_catalog, part_name, write_part
from mmdata.shards.plan import make_plan
from mmdata.shards.planfile import load_plan, save_plan
from mmdata.storage import open_storage


@pytest.fixture(scope="module", autouse=True)
def operators() -> None:
    load_builtin()


def pictures(count: int, **columns: Any) -> list[dict[str, Any]]:
    """Catalog rows of good pictures of many shapes; `columns` are callables of the row number."""
    rng = np.random.default_rng(5)
    rows = []
    for number in range(count):
        row = {
            "key": f"folder/p{number:05d}",
            "source": "source.0",
            "modality": "image",
            "status": "ok",
            "check": "decode",
            "width": int(rng.integers(200, 2000)),
            "height": int(rng.integers(200, 2000)),
            "frames": 1,
            "size_bytes": 1000 + number,
            "text_chars": 10,
            "digest": f"{number:032x}",
            "fields": "{}",
            "media": [],
        }
        rows.append(row | {name: make(number) for name, make in columns.items()})
    return rows


def catalog_of(tmp_path: Path, rows: list[dict[str, Any]], per_part: int = 400) -> Catalog:
    storage, url = open_storage(), str(tmp_path / "catalog")
    parts = []
    for ordinal, start in enumerate(range(0, len(rows), per_part)):
        table = pa.Table.from_pylist(rows[start : start + per_part], schema=CATALOG)
        file = f"{url}/{part_name(ordinal, f'p{ordinal}')}"
        parts.append(write_part(storage, file, table, inputs=str(start), scan="s", members=set()))
    return commit_catalog(storage, url, parts, scan="s", check="decode", ignored={})


def recipe(tmp_path: Path, **sections: Any) -> Recipe:
    output = {"path": str(tmp_path / "out"), **sections.pop("output", {})}
    document = {"source": [{"type": "folder", "path": str(tmp_path / "in")}], "output": output, **sections}
    return from_mapping(document)


def test_every_row_is_placed_once_or_dropped_by_a_named_rule(tmp_path: Path) -> None:
    rows = pictures(1000, status=lambda n: "TruncatedMedia" if n % 50 == 0 else "ok")
    plan = make_plan(
        recipe(
            tmp_path,
            filters=["width >= 400"],
            buckets={"image": {"count": 6, "max_upscale": 1.5, "max_crop": 0.3}},
            splits={"val": 0.1},
            output={"max_samples": 64},
        ),
        catalog_of(tmp_path, rows),
    )
    assert sorted([*plan.order.tolist(), *plan.dropped.tolist()]) == list(range(1000))
    narrow = sum(1 for row in rows if row["status"] == "ok" and row["width"] < 400)
    assert plan.dropped_counts["scan/TruncatedMedia"] == 20
    assert plan.dropped_counts["filter/width >= 400"] == narrow
    assert [shard.start for shard in plan.shards] == [0, *[shard.stop for shard in plan.shards[:-1]]]
    assert plan.shards[-1].stop == len(plan.order)
    assert all(0 < shard.stop - shard.start <= 64 for shard in plan.shards)


def test_the_plan_depends_on_nothing_but_recipe_and_catalog(tmp_path: Path) -> None:
    rows = pictures(500)
    settings = {"buckets": {"image": {"count": 4}}, "splits": {"val": 0.2}, "seed": 3}
    whole = make_plan(recipe(tmp_path, **settings), catalog_of(tmp_path, rows, per_part=500))
    cut = make_plan(recipe(tmp_path, **settings), catalog_of(tmp_path / "other", rows, per_part=7))
    assert np.array_equal(whole.order, cut.order)
    assert whole.shards == cut.shards
    other = make_plan(recipe(tmp_path, **(settings | {"seed": 4})), catalog_of(tmp_path, rows))
    assert not np.array_equal(whole.order, other.order)


def test_source_order_is_kept_when_asked_for(tmp_path: Path) -> None:
    plan = make_plan(recipe(tmp_path, output={"order": "source"}), catalog_of(tmp_path, pictures(300)))
    assert plan.order.tolist() == list(range(300))


def test_splits_have_their_shares_and_never_part_equal_digests(tmp_path: Path) -> None:
    rows = pictures(4000, digest=lambda n: f"{n // 2:032x}")
    plan = make_plan(recipe(tmp_path, splits={"val": 0.1, "test": 0.05}), catalog_of(tmp_path, rows))
    split = {int(row): shard.split for shard in plan.shards for row in plan.order[shard.start : shard.stop]}
    counts = {name: sum(1 for each in split.values() if each == name) for name in ("train", "val", "test")}
    # 2,000 clusters of two: a cluster is in val when the lower of two uniform draws is below 0.1, 1 - 0.9**2 = 0.19.
    assert sum(counts.values()) == 4000
    assert all(split[2 * n] == split[2 * n + 1] for n in range(2000))
    assert all(counts.values())


def test_a_repeated_key_keeps_its_first_sample(tmp_path: Path) -> None:
    rows = pictures(10, key=lambda n: "same" if n in (3, 7) else f"k{n}")
    plan = make_plan(recipe(tmp_path), catalog_of(tmp_path, rows))
    assert plan.dropped.tolist() == [7]
    assert plan.dropped_counts == {"scan/RepeatedKey": 1}


def test_packs_stay_whole_and_within_budget(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 200, 800)
    rows = pictures(800, modality=lambda n: "text", text_chars=lambda n: int(lengths[n]))
    settings = {"packing": {"budget": 256, "length": "text_chars", "buffer": 128}, "output": {"max_samples": 50}}
    plan = make_plan(recipe(tmp_path, **settings), catalog_of(tmp_path, rows))
    total = np.bincount(plan.pack, weights=lengths[plan.order])
    assert total.max() <= 256
    shard_of = np.concatenate([np.full(s.stop - s.start, s.number) for s in plan.shards])
    for pack in np.unique(plan.pack):
        assert len(set(shard_of[plan.pack == pack])) == 1
    assert plan.pack_figures is not None
    assert plan.pack_figures["mean_fill"] == pytest.approx(total.sum() / (256 * len(total)), abs=1e-6)


def test_a_sample_over_the_budget_ends_the_job_or_is_dropped_as_the_recipe_says(tmp_path: Path) -> None:
    rows = pictures(5, modality=lambda n: "text", text_chars=lambda n: 1000 if n == 2 else 10)
    catalog = catalog_of(tmp_path, rows)
    with pytest.raises(ConfigError, match="packing"):
        make_plan(recipe(tmp_path, packing={"budget": 100, "length": "text_chars"}), catalog)
    plan = make_plan(recipe(tmp_path, packing={"budget": 100, "length": "text_chars", "oversize": "drop"}), catalog)
    assert plan.dropped_counts == {"pack/oversize": 1}


def test_a_shard_ends_at_its_bytes(tmp_path: Path) -> None:
    rows = pictures(40, size_bytes=lambda n: 100_000)
    plan = make_plan(recipe(tmp_path, output={"max_bytes": 512 * 1024, "order": "source"}), catalog_of(tmp_path, rows))
    # 100,000 bytes, 10 characters and two headers of at most 1 KiB each: five fit into 512 KiB, six do not.
    assert {shard.stop - shard.start for shard in plan.shards} == {5}


def test_nothing_left_names_the_rule_that_dropped_most(tmp_path: Path) -> None:
    with pytest.raises(TesseraError, match="none of 30 samples survives: 30 were dropped at filter by 'huge'"):
        make_plan(
            recipe(tmp_path, filters=[{"name": "huge", "keep": "width > 10000"}]), catalog_of(tmp_path, pictures(30))
        )


def test_a_folder_per_bucket_holds_one_bucket(tmp_path: Path) -> None:
    settings = {"buckets": {"image": {"shapes": ["512x512", "640x384"]}}, "output": {"folder_per_bucket": True}}
    plan = make_plan(recipe(tmp_path, **settings), catalog_of(tmp_path, pictures(200)))
    for shard in plan.shards:
        folder = shard.file.split("/")[1]
        assert {plan.buckets[code].name for code in plan.bucket[shard.start : shard.stop]} == {folder}


def test_the_plan_file_gives_workers_the_same_plan(tmp_path: Path) -> None:
    plan = make_plan(recipe(tmp_path, buckets={"image": {"count": 3}}), catalog_of(tmp_path, pictures(100)))
    save_plan(plan, str(tmp_path / "plan.arrow"))
    mapped = load_plan(str(tmp_path / "plan.arrow"))
    assert mapped.shards == plan.shards
    assert mapped.buckets == plan.buckets
    assert np.array_equal(mapped.order, plan.order)
    assert np.array_equal(mapped.bucket, plan.bucket)


def test_packs_stay_whole_in_a_folder_per_bucket_and_split(tmp_path: Path) -> None:
    rows = pictures(400, text_chars=lambda n: 1 + n % 60)
    plan = make_plan(
        recipe(
            tmp_path,
            buckets={"image": {"count": 4}},
            packing={"budget": 64, "length": "text_chars"},
            splits={"val": 0.3},
            output={"folder_per_bucket": True, "max_samples": 50},
        ),
        catalog_of(tmp_path, rows),
    )
    assert sorted(plan.order.tolist()) == list(range(400))
    homes: dict[int, set[str]] = {}
    for shard in plan.shards:
        for place in range(shard.start, shard.stop):
            homes.setdefault(int(plan.pack[place]), set()).add(shard.file)
            assert shard.file.split("/")[1] == plan.buckets[plan.bucket[place]].name
    assert all(len(files) == 1 for files in homes.values())
    length = np.bincount(plan.pack, [rows[row]["text_chars"] for row in plan.order])
    assert length.max() <= 64
    assert len({shard.file for shard in plan.shards}) == len(plan.shards)
