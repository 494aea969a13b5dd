"""The build: what reaches the shards, what a failure costs, and that the dataset can be built again from itself."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from mmdata import build as verb
from mmdata.errors import ConfigError, DatasetError, ErrorLimitExceeded
from mmdata.media import audio
from mmdata.operators.registry import load_builtin
from mmdata.recipe import Recipe, from_mapping, load
from mmdata.scan import scan
from mmdata.shards.catalog import Catalog
from mmdata.shards.dataset import Manifest
from mmdata.shards.plan import plan_fingerprint
from mmdata.shards.verify import verify_dataset


@pytest.fixture(scope="module", autouse=True)
def operators() -> None:
    load_builtin()


def picture(width: int = 64, height: int = 48, seed: int = 0, format: str = "JPEG", **options: Any) -> bytes:
    """Soft noise: it compresses about as photographs do."""
    grain = np.random.default_rng(seed).integers(0, 256, (height // 4 + 1, width // 4 + 1, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(grain).resize((width, height), Image.Resampling.BICUBIC).save(buffer, format, **options)
    return buffer.getvalue()


def recipe(tmp_path: Path, **sections: Any) -> Recipe:
    document = {
        "source": [{"type": "folder", "path": str(tmp_path / "in")}],
        "output": {"path": str(tmp_path / "out")} | sections.pop("output", {}),
        "limits": {"max_bad": 1.0},
    }
    return from_mapping(document | sections)


def build(made: Recipe, catalog: Catalog | None = None) -> Manifest:
    prepared = verb.prepare(made, catalog or scan(made, workers=1).catalog)
    verb.build_shards(prepared, range(len(prepared.plan.shards)), workers=1)
    return verb.commit(prepared)


def folder(tmp_path: Path, **files: bytes) -> Path:
    """Files of the source folder; the last `_` of a name stands for a dot."""
    base = tmp_path / "in"
    base.mkdir(exist_ok=True)
    for name, data in files.items():
        stem, _, extension = name.rpartition("_")
        (base / f"{stem}.{extension}").write_bytes(data)
    return base


def index(made: Recipe) -> dict[str, dict[str, Any]]:
    files = sorted(Path(made.output.path, "index").glob("*.parquet"))
    return {row["key"]: row for file in files for row in pq.read_table(file).to_pylist()}


def quarantine(made: Recipe) -> dict[str, tuple[str, str]]:
    rows = pq.read_table(Path(made.output.path, "quarantine.parquet")).to_pylist()
    return {row["key"]: (f"{row['stage']}/{row['error_class']}", row["message"]) for row in rows}


def members(made: Recipe, key: str) -> dict[str, bytes]:
    row = index(made)[key]
    data = Path(made.output.path, row["shard"]).read_bytes()
    places = zip(row["members"], row["offsets"], row["lengths"], strict=True)
    return {name: data[offset : offset + length] for name, offset, length in places}


def test_a_turned_picture_at_its_bucket_is_copied_and_indexed_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 8
    folder(tmp_path, a_jpg=picture(64, 32, exif=exif), b_jpg=picture(64, 64))
    made = recipe(
        tmp_path, buckets={"image": {"shapes": [[32, 64], [64, 32]]}}, transforms={"image": [{"op": "resize"}]}
    )
    build(made)
    row = index(made)["a"]
    assert (row["bucket"], row["width"], row["height"]) == ("image-32x64", 32, 64)
    assert members(made, "a")["jpg"] == (tmp_path / "in" / "a.jpg").read_bytes()
    assert members(made, "b")["jpg"] != (tmp_path / "in" / "b.jpg").read_bytes()


def test_an_operator_that_cannot_work_on_a_sample_costs_that_sample(tmp_path: Path) -> None:
    folder(tmp_path, small_jpg=picture(64, 48), large_jpg=picture(640, 480))
    made = recipe(tmp_path, transforms={"image": [{"op": "crop", "left": 10, "width": 300, "height": 40}]})
    manifest = build(made)
    assert manifest.conservation.dropped == {"build/OperatorError": 1}
    assert "crop" in quarantine(made)["small"][1]
    assert (index(made)["large"]["width"], index(made)["large"]["height"]) == (300, 40)


def test_files_that_vanish_or_change_after_the_scan_are_named(tmp_path: Path) -> None:
    base = folder(tmp_path, a_jpg=picture(), b_jpg=picture(seed=1), c_jpg=picture(seed=2), d_wav=wave(0.5))
    made = recipe(tmp_path)
    catalog = scan(made, workers=1).catalog
    (base / "b.jpg").write_bytes(picture(seed=9))
    (base / "c.jpg").unlink()
    (base / "d.wav").unlink()
    build(made, catalog)
    assert list(index(made)) == ["a"]
    assert {key: where for key, (where, _) in quarantine(made).items()} == {
        "b": "build/InvalidSample",
        "c": "build/MissingMedia",
        "d": "build/MissingMedia",
    }


def wave(seconds: float) -> bytes:
    t = np.arange(int(seconds * 8000)) / 8000
    return audio.encode(audio.Audio(np.sin(2 * np.pi * 440 * t, dtype=np.float32)[None], 8000), "wav")


@pytest.mark.parametrize("format", ["webdataset", "arrow"])
def test_samples_of_every_make_up_go_through_together(tmp_path: Path, format: str) -> None:
    """Lists of pictures, picture with sound, text alone, arrays, empty extras, a template's new member."""
    contents = [
        ("pair.0.jpg", picture(64, 48)),
        ("pair.1.png", picture(32, 32, format="PNG")),
        ("pair.txt", b"two"),
        ("talk.jpg", picture(64, 48, seed=1)),
        ("talk.wav", wave(0.5)),
        ("talk.txt", b"one who talks"),
        ("text.txt", b"words alone"),
        ("latent.npy", b"\x93NUMPY array"),
        ("latent.flag", b""),
        ("latent.txt", b"an array"),
    ]
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w") as tar:
        for name, data in contents:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    made = recipe(
        tmp_path,
        source=[{"type": "webdataset", "path": str(path)}],
        output={"format": format},
        transforms={"text": [{"op": "template", "text": "<{txt}>", "to": "prompt"}]},
    )
    manifest = build(made)
    assert manifest.conservation.dropped == {}
    rows = index(made)
    assert {key: row["modality"] for key, row in rows.items()} == {
        "pair": "image",
        "talk": "mixed",
        "text": "text",
        "latent": "text",
    }
    assert (rows["pair"]["width"], rows["pair"]["height"]) == (64, 48)  # of the larger picture
    assert (rows["talk"]["width"], rows["talk"]["sample_rate"], rows["talk"]["duration"]) == (64, 8000, 0.5)
    assert members(made, "pair") == {
        "0.jpg": contents[0][1],
        "1.png": contents[1][1],
        "prompt": b"<two>",
        "txt": b"two",
    }
    assert members(made, "latent") == {
        "flag": b"",
        "npy": b"\x93NUMPY array",
        "prompt": b"<an array>",
        "txt": b"an array",
    }
    assert verify_dataset(made.output.path, workers=1, decode=True).problems == ()


def test_verify_decodes_what_names_do_not_tell(tmp_path: Path) -> None:
    """Sound alone in a video's container; a picture that was taken although it ends early, as the recipe allowed."""
    tone = audio.decode(wave(0.5))
    cut = picture(640, 480)
    folder(tmp_path, sound_ogv=audio.encode(tone, "opus"), cut_jpg=cut[: len(cut) * 2 // 3])
    made = recipe(tmp_path, limits={"truncated": "repair", "max_bad": 0})
    build(made)
    assert {key: row["modality"] for key, row in index(made).items()} == {"sound": "audio", "cut": "image"}
    assert verify_dataset(made.output.path, workers=1, decode=True).problems == ()


def test_the_stored_recipe_gives_the_same_plan(tmp_path: Path) -> None:
    folder(tmp_path, a_jpg=picture(), b_jpg=picture(seed=1))
    made = recipe(
        tmp_path,
        scan={"statistics": ["brightness"]},
        filters=["width >= 10"],
        buckets={"image": {"count": 1, "pixels": 1024}},
        transforms={"image": [{"op": "resize"}]},
        output={"max_bytes": "1MiB"},
    )
    catalog = scan(made, workers=1).catalog
    manifest = build(made, catalog)
    again = load(Path(made.output.path, "recipe.yaml"))
    assert again == made
    assert again.scan_fingerprint() == catalog.scan
    assert plan_fingerprint(again, catalog) == manifest.plan
    finished = verb.finished(again, catalog)
    assert finished is not None and finished.to_json() == manifest.to_json()


def test_another_recipe_does_not_touch_a_dataset(tmp_path: Path) -> None:
    folder(tmp_path, a_jpg=picture())
    build(recipe(tmp_path))
    other = recipe(tmp_path, seed=1)
    with pytest.raises(DatasetError, match="--overwrite"):
        verb.prepare(other, scan(other, workers=1).catalog)


@pytest.mark.parametrize("format", ["keep", "jpeg", "png"])
def test_shards_stay_near_their_size_when_pictures_are_enlarged(tmp_path: Path, format: str) -> None:
    base = folder(tmp_path)
    for number in range(24):
        (base / f"{number}.jpg").write_bytes(picture(32, 32, seed=number))
    made = recipe(
        tmp_path,
        buckets={"image": {"shapes": [[256, 256]]}},
        transforms={"image": [{"op": "resize"}]},
        encode={"image": {"format": format}},
        output={"max_bytes": "256KiB"},
    )
    manifest = build(made)
    assert len(manifest.shards) > 1
    assert all(shard.bytes <= 256 * 1024 for shard in manifest.shards)


def test_too_many_failures_end_the_build_without_a_manifest(tmp_path: Path) -> None:
    base = folder(tmp_path, a_jpg=picture(), b_jpg=picture(seed=1))
    made = recipe(tmp_path, limits={"max_bad": 0})
    catalog = scan(made, workers=1).catalog
    (base / "b.jpg").unlink()
    with pytest.raises(ErrorLimitExceeded, match="1 of 2 samples are bad"):
        build(made, catalog)
    assert not Path(made.output.path, "manifest.json").exists()


@pytest.mark.parametrize("text", ["4/4", "-1/4", "1", "a/b", "1/0", "1/4/2"])
def test_a_wrong_shard_range_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--shard-range"):
        verb.shard_range(text, 10)


def test_shard_ranges_cover_all_shards_once() -> None:
    for count in (0, 1, 7, 10):
        numbers = [number for part in range(4) for number in verb.shard_range(f"{part}/4", count)]
        assert numbers == list(range(count))


def test_credentials_in_an_endpoint_are_refused_and_not_repeated(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="credentials have no place in a recipe") as refused:
        recipe(tmp_path, storage={"endpoint": "https://user:hunter2@store.example"})
    assert "hunter2" not in str(refused.value)
