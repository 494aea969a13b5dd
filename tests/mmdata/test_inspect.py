"""`inspect`: what is told of datasets, catalogs and shards, and the way of single samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import job_kit
import numpy as np
import pytest
import soundfile
from PIL import Image

from mmdata.cli import run
from mmdata.errors import ConfigError, DatasetError
from mmdata.inspect import describe, explain, explain_text, extract, list_bad

RECIPE = """
name: seen
source: [{type: folder, path: media}]
filters:
  - {name: wide enough, keep: "width >= 50"}
  - "height <= 500 and stat.brightness >= 0"
scan: {statistics: [brightness]}
buckets: {image: {shapes: [96x64, 64x96], max_crop: 0.3}}
transforms: {image: [{op: resize}]}
output: {path: out, format: FORMAT}
limits: {max_bad: 5}
workers: 1
"""

SIZES = {"a/wide": (192, 128), "a/exact": (96, 64), "tall": (128, 192), "narrow": (40, 60), "strip": (400, 60)}


def make(folder: Path, format: str) -> Path:
    """A built dataset: pictures that are resized, copied, dropped by a filter, dropped by the buckets, and broken."""
    for key, size in SIZES.items():
        path = folder / "media" / f"{key}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", size, (100, 100, 100)).save(path)
    (folder / "media" / "a" / "wide.txt").write_text("a wide one", encoding="utf-8")
    (folder / "media" / "v1.5.jpg").write_bytes(b"")
    (folder / "recipe.yaml").write_text(RECIPE.replace("FORMAT", format), encoding="utf-8")
    assert run(["build", str(folder / "recipe.yaml")]) == 0
    return folder / "out"


@pytest.fixture(scope="module", params=["webdataset", "arrow"])
def dataset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp(request.param), request.param)


def shard_of(dataset: Path) -> str:
    return str(next((dataset / "shards").iterdir()))


def test_a_dataset_tells_counts_buckets_and_columns(dataset: Path) -> None:
    told = describe(str(dataset))
    assert (told["read"], told["samples"], told["shards"]) == (6, 3, 1)
    assert {bucket["bucket"]: bucket["samples"] for bucket in told["buckets"]} == {"image-96x64": 2, "image-64x96": 1}
    assert told["dropped"] == {"scan/EmptyMedia": 1, "filter/wide enough": 1, "bucket/image_max_crop": 1}
    width = next(row for row in told["spread"] if row["column"] == "width")
    assert (width["min"], width["max"], width["count"]) == (64, 96, 3)


def test_a_catalog_tells_status_spread_and_columns(dataset: Path) -> None:
    told = describe(f"{dataset}.catalog")
    assert told["status"] == {"EmptyMedia": 1, "ok": 5}
    assert told["modality"] == {"image": 5}
    spread = {row["column"]: row for row in told["spread"]}
    assert (spread["width"]["min"], spread["width"]["max"]) == (40, 400)
    assert spread["stat.brightness"]["median"] == pytest.approx(100, abs=2)
    assert told["schema"]["stat.brightness"] == "double"


def test_a_shard_tells_its_members_and_no_damage(dataset: Path) -> None:
    told = describe(shard_of(dataset))
    assert told["samples"] == 3
    assert told["members"] == {"jpg": 3, "txt": 1}
    assert told["damage"] == []


def test_damage_of_a_tar_is_told_with_its_byte(tmp_path: Path) -> None:
    shard = Path(shard_of(make(tmp_path, "webdataset")))
    data = bytearray(shard.read_bytes())
    data[0:100] = b"\xff" * 100
    shard.write_bytes(data)
    told = describe(str(shard))
    assert told["samples"] < 3 or told["members"] != {"jpg": 3, "txt": 1}
    assert told["damage"][0]["byte"] == 0


def test_a_torn_arrow_shard_is_an_error_that_names_it(tmp_path: Path) -> None:
    shard = Path(shard_of(make(tmp_path, "arrow")))
    shard.write_bytes(shard.read_bytes()[:-300])
    assert run(["inspect", str(shard)]) == 1


@pytest.mark.parametrize("key", ["a/exact", "a/exact.jpg", "./a/exact"])
def test_a_copied_sample_comes_out_as_it_went_in(key: str, dataset: Path, tmp_path: Path) -> None:
    for target in (str(dataset), shard_of(dataset)):
        found = extract(target, key, str(tmp_path / "to"))
        assert found["key"] == "a/exact"
        source = dataset.parent / "media" / "a" / "exact.jpg"
        assert Path(found["files"][0]["file"]).read_bytes() == source.read_bytes()
        assert Path(found["files"][0]["file"]).name == "a_exact.jpg"


def test_an_unknown_key_names_near_ones(dataset: Path) -> None:
    for target in (str(dataset), shard_of(dataset)):
        with pytest.raises(DatasetError, match="did you mean 'a/wide'"):
            extract(target, "wide", "unused")
    with pytest.raises(DatasetError, match="a/wide"):
        explain(f"{dataset}.catalog", "wide")
    with pytest.raises(ConfigError, match="holds no bytes"):
        extract(f"{dataset}.catalog", "a/wide", "unused")
    with pytest.raises(ConfigError, match="explain its dataset"):
        explain(shard_of(dataset), "a/wide")


def story(dataset: Path, key: str) -> tuple[dict[str, Any], str]:
    way = explain(str(dataset), key)
    json.dumps(way)
    return way, explain_text(way)


def test_the_way_of_a_stored_sample(dataset: Path) -> None:
    way, text = story(dataset, "a/wide")
    assert way["scanned"]["width"] == 192
    assert [rule["passes"] for rule in way["filters"]] == [True, True]
    assert way["filters"][1]["values"] == {"height": 128, "stat.brightness": pytest.approx(100, abs=2)}
    assert way["bucket"]["bucket"] == "image-96x64"
    assert way["bucket"]["scale"] == 0.5 and way["bucket"]["crop"] == 0.0
    assert way["bucket"]["next"][0]["bucket"] == "image-64x96"
    assert way["stored"]["samples_in_shard"] == 3
    medium = way["media"][0]
    assert (medium["copied"], medium["transforms"]) == (False, ["resize"])
    order = ["scanned", "a wide one", "passes  'wide enough'", "image-96x64", "sample", "written anew from jpeg"]
    assert [text.index(word) for word in order] == sorted(text.index(word) for word in order)


def test_a_copied_sample_is_told_as_copied(dataset: Path) -> None:
    way, text = story(dataset, "a/exact")
    assert way["media"][0]["copied"] is True
    assert "copied byte for byte" in text


def test_a_sample_that_a_filter_dropped_shows_the_values(dataset: Path) -> None:
    way, text = story(dataset, "narrow")
    assert way["dropped"][0]["error_class"] == "wide enough"
    assert way["filters"] == [{"name": "wide enough", "keep": "width >= 50", "values": {"width": 40}, "passes": False}]
    assert "fails  'wide enough': width >= 50  (width 40)" in text
    assert "stored" not in way


def test_a_sample_that_fits_no_bucket_names_the_nearest_and_the_bound(dataset: Path) -> None:
    way, text = story(dataset, "strip")
    assert way["dropped"][0]["stage"] == "bucket"
    assert way["bucket"]["nearest"] == "image-96x64"
    # 400 x 60 scaled to a height of 64 is 426.7 wide; 96 of that are kept.
    assert way["bucket"]["crop"] == pytest.approx(1 - 96 / (400 * 64 / 60), abs=1e-6)
    assert "the nearest is image-96x64, but that breaks max_crop 0.3" in text


def test_a_bucket_is_told_by_what_the_transforms_leave(tmp_path: Path) -> None:
    (tmp_path / "media").mkdir()
    job_kit.make_clip(tmp_path / "media" / "clip.mp4", 1)  # 12 frames a second, for one second
    soundfile.write(tmp_path / "media" / "tone.wav", 0.1 * np.sin(np.arange(16_000) / 9), 8_000)
    sections: dict[str, Any] = {
        "buckets": {"video": {"shapes": ["96x64"], "frames": [4, 8]}, "audio": {"edges": [1.25, 3]}},
        "transforms": {"video": [{"op": "clip", "end": 0.5}], "audio": [{"op": "trim", "end": 1}]},
        "workers": 1,
    }
    recipe = job_kit.make_recipe(tmp_path / "r.yaml", tmp_path / "media", tmp_path / "out", **sections)
    assert run(["build", str(recipe)]) == 0
    way, text = story(tmp_path / "out", "clip")
    assert way["bucket"]["bucket"] == way["bucket"]["nearest"] == "video-96x64x4"
    assert way["bucket"]["trim"] == pytest.approx(1 - 4 / 6, abs=1e-6)
    assert "next best" not in text  # six frames do not fill the other one
    way, text = story(tmp_path / "out", "tone")
    told = {name: way["bucket"][name] for name in ("bucket", "value", "scanned", "edge", "padding")}
    assert told == {"bucket": "audio-1.250s", "value": 1, "scanned": 2, "edge": 1.25, "padding": 0.2}
    assert "duration is 1 after the transforms, 2 before" in text


def test_a_bad_file_tells_what_the_scan_said(dataset: Path) -> None:
    for key in ("v1.5", "v1%2E5", "v1.5.jpg"):
        way, text = story(dataset, key)
        assert way["key"] == "v1%2E5"
        assert way["dropped"][0]["error_class"] == "EmptyMedia"
        assert "bad: EmptyMedia" in text


def test_without_its_catalog_a_dataset_still_tells_where_a_sample_lies(tmp_path: Path) -> None:
    out = make(tmp_path, "webdataset")
    (tmp_path / "out.catalog").rename(tmp_path / "elsewhere")
    way, text = story(out, "a/wide")
    assert "scanned" not in way and way["stored"]["shard"].startswith("shards/")
    assert "catalog" in text


def test_the_bad_are_listed(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert {row["key"] for row in list_bad(str(dataset))["dropped"]} == {"narrow", "strip", "v1%2E5"}
    assert [row["status"] for row in list_bad(f"{dataset}.catalog")["bad"]] == ["EmptyMedia"]
    assert run(["inspect", str(dataset), "--bad"]) == 0
    assert "image_max_crop" in capsys.readouterr().out


def test_the_text_of_each_target_is_aligned_and_whole(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for target, words in (
        (str(dataset), ("3 of 6 read", "image-96x64", "66.7 %", "wide enough", "media_digest")),
        (f"{dataset}.catalog", ("EmptyMedia", "stat.brightness", "columns")),
        (shard_of(dataset), ("3 jpg, 1 txt", "none found")),
    ):
        assert run(["inspect", target]) == 0
        shown = capsys.readouterr().out
        assert all(word in shown for word in words), shown
        assert not any(line != line.rstrip() for line in shown.splitlines())
