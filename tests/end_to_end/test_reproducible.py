"""Equal recipe and catalog give equal bytes: for every encoder, any number of workers, at any time of day."""

from __future__ import annotations

import shutil
import socket
import time
from pathlib import Path
from typing import Any

import job_kit
import pyarrow.parquet as pq
import pytest
import yaml

from mmdata import build
from mmdata.operators.registry import load_builtin
from mmdata.recipe import load
from mmdata.shards.catalog import open_catalog
from mmdata.shards.verify import verify_dataset
from mmdata.storage import open_storage

ENCODERS = {
    "jpeg-h264-flac": ({"format": "jpeg"}, {"codec": "h264"}, {"format": "flac"}),
    "png-vp9-wav": ({"format": "png"}, {"codec": "vp9", "crf": 40}, {"format": "wav"}),
    "webp-av1-opus": ({"format": "webp"}, {"codec": "av1", "crf": 40}, {"format": "opus"}),
    "avif-copy-opus": ({"format": "avif"}, {"codec": "keep"}, {"format": "opus", "bitrate": 48_000}),
}
EXTENSIONS = {
    "jpeg-h264-flac": {"jpg", "mp4", "flac"},
    "png-vp9-wav": {"png", "webm", "wav"},
    "webp-av1-opus": {"webp", "mp4", "opus"},
    "avif-copy-opus": {"avif", "mp4", "opus"},
}
OTHER_WORLD = {"PYTHONHASHSEED": "4242", "TZ": "Asia/Tokyo", "LC_ALL": "C", "MALLOC_PERTURB_": "85"}
"""Another hash seed, time zone and locale; and (glibc) memory full of another byte, for encoders that read what they
never wrote."""

TRANSFORMS: dict[str, Any] = {
    "image": [{"op": "resize", "mode": "cover"}, {"op": "flip"}],
    "video": [{"op": "sample_frames", "count": 8}],
    "audio": [{"op": "trim", "end": 0.8}],
}
SCAN = {"statistics": ["brightness", "sharpness", "loudness", "text_length"], "partition": 8}


def encoding(name: str) -> dict[str, Any]:
    image, video, audio = ENCODERS[name]
    return {"image": image, "video": video, "audio": audio}


def run_in_process(recipe: Path, workers: int) -> None:
    load_builtin()
    loaded = load(str(recipe))
    storage = open_storage()
    prepared = build.prepare(loaded, open_catalog(storage, loaded.catalog))
    build.build_shards(prepared, range(len(prepared.plan.shards)), workers=workers)
    build.commit(prepared)


@pytest.fixture(scope="module")
def catalog(media: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The catalog all builds here share."""
    folder = tmp_path_factory.mktemp("catalog")
    recipe = job_kit.make_recipe(folder / "r.yaml", media, folder / "out", catalog=str(folder / "catalog"), scan=SCAN)
    result = job_kit.mmdata("scan", recipe, "--json")
    assert result["status"] == {"EmptyMedia": 1, "UnreadableMedia": 1, "ok": sum(job_kit.FILES.values()) - 2}
    return folder / "catalog"


@pytest.mark.parametrize(
    ("encoders", "format"),
    [*((name, "webdataset") for name in ENCODERS), ("png-vp9-wav", "arrow"), ("webp-av1-opus", "arrow")],
)
def test_bytes_do_not_depend_on_workers_or_time(
    encoders: str, format: str, media: Path, catalog: Path, tmp_path: Path
) -> None:
    def recipe() -> Path:
        return job_kit.make_recipe(
            tmp_path / "r.yaml",
            media,
            tmp_path / "out",
            catalog=str(catalog),
            scan=SCAN,
            seed=7,
            output={"format": format},
            transforms=TRANSFORMS,
            encode=encoding(encoders),
            splits={"val": 0.2},
            buckets={"image": {"shapes": [[128, 96], [96, 128]]}, "audio": {"count": 2}},
        )

    def built() -> dict[str, str]:
        """The finished folder as a value; it is moved away, for the next build has the same place."""
        nonlocal count
        count += 1
        return job_kit.tree((tmp_path / "out").rename(tmp_path / f"out{count}"))

    count = 0
    started = time.monotonic()
    run_in_process(recipe(), 1)
    first = built()
    time.sleep(max(0.0, 1.1 - (time.monotonic() - started)))  # a clock with a second's resolution has moved on
    run_in_process(recipe(), 2)
    assert built() == first
    job_kit.mmdata("build", recipe(), "--workers", 4, env=OTHER_WORLD)
    assert built() == first

    assert {name.split("/")[0] for name in first} == {
        "shards", "index", "manifest.json", "README.md", "quarantine.parquet", "recipe.yaml", "plan.json", "report.html"
    }  # fmt: skip
    assert sum(name.startswith("shards/") for name in first) >= 5
    stored = {tuple(row["members"]) for row in pq.read_table(tmp_path / "out1/index").to_pylist()}
    kinds = {name for members in stored for name in members}
    assert kinds - {"txt"} == EXTENSIONS[encoders]
    assert verify_dataset(str(tmp_path / "out1"), workers=2, decode=True).problems == ()


def scan_recipe(folder: Path, source: Path, catalog: str = "catalog") -> Path:
    return job_kit.make_recipe(folder / "r.yaml", source, folder / "out", catalog=str(folder / catalog), scan=SCAN)


def rows(catalog: Path) -> list[dict[str, Any]]:
    """The catalog as a plain reader of the folder sees it."""
    return pq.read_table(catalog).to_pylist()


def test_catalogs_do_not_depend_on_workers_or_time(media: Path, catalog: Path, tmp_path: Path) -> None:
    job_kit.mmdata("scan", scan_recipe(tmp_path, media, "one"), "--workers", 1)
    job_kit.mmdata("scan", scan_recipe(tmp_path, media, "four"), "--workers", 4, env=OTHER_WORLD)
    assert len(list(catalog.glob("part-*"))) >= 3
    assert job_kit.tree(tmp_path / "one") == job_kit.tree(tmp_path / "four") == job_kit.tree(catalog)
    keys = [row["key"] for row in rows(catalog)]
    assert keys == sorted(keys)  # the source lists a folder by name


@pytest.mark.chaos
def test_a_scan_killed_and_resumed_equals_an_uninterrupted_one(media: Path, catalog: Path, tmp_path: Path) -> None:
    recipe, folder = scan_recipe(tmp_path, media), tmp_path / "catalog"
    killed_with = []
    for parts in (0, 1, 2):
        with job_kit.Job("scan", recipe, "--workers", 1) as job:
            job_kit.wait_until(lambda wanted=parts: len(list(folder.glob("part-*"))) >= wanted, "a part of the catalog")
            job.freeze()
            killed_with.append(len(list(folder.glob("part-*"))))
            assert not (folder / "_catalog.json").exists()
            job.kill_group()
    (folder / f".{socket.gethostname()}-999999999-0123456789abcdef.tmp").write_bytes(b"of a killed scan")
    result = job_kit.mmdata("scan", recipe, "--json")
    assert job_kit.tree(folder) == job_kit.tree(catalog)
    kept = sum(len(pq.read_table(part)) for part in sorted(folder.glob("part-*"))[: killed_with[-1]])
    assert killed_with[-1] >= 2
    assert result["measured"] <= result["samples"] - min(kept, 8)


def test_only_what_changed_is_measured_again_and_rows_stay_in_source_order(media: Path, tmp_path: Path) -> None:
    source = tmp_path / "media"
    shutil.copytree(media, source)
    recipe = scan_recipe(tmp_path, source)
    files = len([path for path in source.iterdir() if path.suffix != ".txt"])
    assert job_kit.mmdata("scan", recipe, "--json")["measured"] == files
    before = {row["key"]: row for row in rows(tmp_path / "catalog")}
    assert job_kit.mmdata("scan", recipe, "--json")["measured"] == 0

    job_kit.make_picture(source / "picture004.png", 104)  # changed
    job_kit.make_picture(source / "aaa first.jpg", 200)  # added before everything
    job_kit.make_picture(source / "picture007b.jpg", 201)  # added in the middle
    (source / "picture006.txt").write_text("another caption", encoding="utf-8")  # a side-car changed
    (source / "tone1.flac").unlink()
    assert job_kit.mmdata("scan", recipe, "--json")["measured"] == 4

    after = rows(tmp_path / "catalog")
    keys = [row["key"] for row in after]
    assert keys == sorted(keys)
    assert set(keys) == (set(before) | {"aaa first", "picture007b"}) - {"tone1"}
    changed = {row["key"] for row in after if before.get(row["key"]) != row}
    assert changed == {"picture004", "aaa first", "picture007b", "picture006"}
    job_kit.mmdata("scan", scan_recipe(tmp_path, source, "fresh"))
    assert job_kit.tree(tmp_path / "catalog") == job_kit.tree(tmp_path / "fresh")


def test_rows_taken_over_follow_their_source_when_sources_change_places(media: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    job_kit.make_media(one, pictures=3, clips=0, recordings=0, broken=False)
    job_kit.make_media(two, pictures=0, clips=0, recordings=3, broken=False)

    def recipe(catalog: str, *folders: Path) -> Path:
        sources = [{"type": "folder", "path": str(folder)} for folder in folders]
        path = job_kit.make_recipe(tmp_path / "r.yaml", "", tmp_path / "out", catalog=str(tmp_path / catalog))
        document = yaml.safe_load(path.read_text(encoding="utf-8")) | {"source": sources}
        path.write_text(yaml.safe_dump(document), encoding="utf-8")
        return path

    job_kit.mmdata("scan", recipe("catalog", one, two))
    result = job_kit.mmdata("scan", recipe("catalog", two, one), "--json")
    assert result["measured"] == 0
    job_kit.mmdata("scan", recipe("fresh", two, one))
    assert rows(tmp_path / "catalog") == rows(tmp_path / "fresh")
    assert job_kit.tree(tmp_path / "catalog") == job_kit.tree(tmp_path / "fresh")
