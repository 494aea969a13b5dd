"""Other tools' own readers open what a build wrote and get every sample: webdataset, pyarrow, datasets, Energon.

What they must get is taken from the source files, not from the dataset: nothing is transformed here, so each member has
the bytes of its file.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import av
import braceexpand
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile
import yaml
from PIL import Image

import mmdata
from mmdata.errors import DatasetError
from mmdata.shards.verify import verify_dataset
from mmdata.storage import open_storage

ROOT = Path(__file__).parents[2]
PEERS = ROOT / ".venv-peers"
READERS = Path(__file__).parent / "peers"
Samples = dict[str, dict[str, bytes]]
"""Key to member extension to bytes."""


def run_peer(script: str, *arguments: str | Path, home: Path) -> Any:
    """Output of a reader script in the peers' environment; a test without that environment is skipped."""
    if not (PEERS / ".complete").exists():
        pytest.skip("the peers' environment .venv-peers is not there; `make peers` installs it")
    environment = {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1", "PATH": "/usr/bin:/bin", "HOME": str(home)}
    command = [PEERS / "bin" / "python", READERS / script, *arguments]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-6000:]
    return json.loads(result.stdout.splitlines()[-1]) if script.startswith("read") else None


def build(folder: Path, name: str, *settings: str, options: tuple[str, ...] = ()) -> Path:
    """Build the recipe in `folder` into `folder`/`name`, with one catalog for all its builds, and verify it."""
    dataset = folder / name
    sets = [f"--set={each}" for each in (f"output.path={dataset}", f"catalog={folder / 'catalog'}", *settings)]
    mmdata_command("build", folder / "recipe.yaml", *sets, *options)
    assert verify_dataset(str(dataset), workers=1).problems == ()
    return dataset


def mmdata_command(*arguments: str | Path, code: int = 0) -> str:
    """Run `mmdata`, expect this exit code, and give its standard output."""
    command = [sys.executable, "-m", "mmdata", *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == code, result.stdout + result.stderr
    return result.stdout


def write_recipe(folder: Path, **sections: Any) -> None:
    recipe = {
        "version": 1,
        "name": "peers",
        "source": [{"type": "folder", "path": "media", "captions": True}],
        "output": {"path": "out", "max_samples": 7},
        "scan": {"check": "header"},
        "workers": 1,
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe | sections), encoding="utf-8")


def make_picture(path: Path, number: int, size: tuple[int, int] = (80, 60)) -> None:
    """A picture that differs from others in every pixel."""
    pixels = np.random.default_rng(number).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def make_clip(path: Path, number: int) -> None:
    """Eight frames of one grey."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=8)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for _ in range(8):
            grey = np.full((48, 64, 3), 40 * (number + 1), np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(grey, format="rgb24")))
        container.mux(stream.encode())


def expected_samples(folder: Path) -> Samples:
    """What must be read, by the rules of the folder source: a key is the path to the first dot of the file's name."""
    samples: Samples = {}
    for path in sorted((folder / "media").rglob("*.*")):
        key = path.relative_to(folder / "media").with_suffix("").as_posix().replace("a.b", "a%2Eb")
        samples.setdefault(key, {})[path.suffix[1:]] = path.read_bytes()
    return samples


def digests(samples: Samples) -> dict[str, dict[str, str]]:
    return {
        key: {name: hashlib.sha256(data).hexdigest() for name, data in members.items()}
        for key, members in samples.items()
    }


def by_split(samples: Samples, dataset: Path) -> dict[str, Samples]:
    """The samples parted as the dataset's index says."""
    rows = pq.read_table(dataset / "index", columns=["key", "split"]).to_pylist()
    assert sorted(row["key"] for row in rows) == sorted(samples)
    parts: dict[str, Samples] = {}
    for row in rows:
        parts.setdefault(row["split"] or "train", {})[row["key"]] = samples[row["key"]]
    return parts


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with media and recipe: pictures, clips and recordings with captions, labels and JSON, of which samples
    have different ones; keys with a dot, in another script, and too long for a plain tar header."""
    folder = tmp_path_factory.mktemp("mixed")
    media = folder / "media"
    (media / "deep" / ("x" * 90)).mkdir(parents=True)
    names = [f"p{number:02d}" for number in range(14)] + ["a.b", "bild-ü-図", "deep/" + "x" * 90 + "/" + "y" * 60]
    for number, name in enumerate(names):
        make_picture(media / f"{name}.{('jpg', 'png')[number % 3 == 2]}", number)
        (media / f"{name}.txt").write_text(f"picture {number}: ein Bild, 一枚の絵", encoding="utf-8")
        if number % 2:
            (media / f"{name}.cls").write_text(str(number % 5), encoding="utf-8")
        if number % 4 == 3:
            own = {"number": number, "nested": {"values": [1, 2.5, None], "text": "ß"}, f"only{number}": True}
            (media / f"{name}.json").write_text(json.dumps(own, ensure_ascii=False), encoding="utf-8")
    for number in range(3):
        make_clip(media / f"clip{number}.mp4", number)
        (media / f"clip{number}.txt").write_text(f"clip {number}", encoding="utf-8")
        tone = 0.3 * np.sin(2 * np.pi * (220 + 40 * number) * np.arange(8_000) / 16_000)
        soundfile.write(media / f"tone{number}.{('wav', 'flac')[number % 2]}", tone, 16_000)
    write_recipe(folder, splits={"val": 0.3})
    return folder


@pytest.fixture(scope="module")
def tars(mixed: Path) -> Path:
    return build(mixed, "tars", options=("--energon",))


@pytest.fixture(scope="module")
def arrows(mixed: Path) -> Path:
    return build(mixed, "arrows", "output.format=arrow")


@pytest.fixture(scope="module")
def captioned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of captioned pictures in two shapes, with a recipe: a folder of shards a bucket, no splits."""
    folder = tmp_path_factory.mktemp("captioned")
    (folder / "media").mkdir()
    for number in range(10):
        size = ((96, 64), (64, 96))[number % 2]
        make_picture(folder / "media" / f"p{number}.{('png', 'jpg')[number % 3 == 0]}", number, size)
        (folder / "media" / f"p{number}.txt").write_text(f"caption {number}", encoding="utf-8")
    write_recipe(folder, buckets={"image": {"shapes": [[96, 64], [64, 96]]}})
    return folder


@pytest.fixture(scope="module")
def folders(captioned: Path) -> Path:
    return build(captioned, "folders", "output.folder_per_bucket=true", options=("--energon",))


# --- in our own environment -----------------------------------------------------------------------------------------


def test_webdataset_reads_every_sample(tars: Path, mixed: Path) -> None:
    wanted = expected_samples(mixed)
    assert len(wanted) == 23
    for split, samples in {None: wanted, **by_split(wanted, tars)}.items():
        found = list(mmdata.as_webdataset(str(tars), split))
        members = {
            sample["__key__"]: {name: value for name, value in sample.items() if not name.startswith("__")}
            for sample in found
        }
        assert len(found) == len(samples)
        assert members == samples


def test_webdataset_decodes_labels_text_and_json(tars: Path, mixed: Path) -> None:
    found = {sample["__key__"]: sample for sample in mmdata.as_webdataset(str(tars)).decode()}
    assert found["p03"]["cls"] == 3
    assert found["p03"]["txt"] == "picture 3: ein Bild, 一枚の絵"
    assert found["p03"]["json"] == json.loads((mixed / "media" / "p03.json").read_bytes())


def test_as_webdataset_reads_a_store_and_survives_pickling(tars: Path, mixed: Path) -> None:
    storage = open_storage(None)
    for path in (tars / "manifest.json", *sorted((tars / "shards").glob("*.tar"))):
        storage.write(f"memory://peers/tars/{path.relative_to(tars).as_posix()}", path.read_bytes())
    dataset = pickle.loads(pickle.dumps(mmdata.as_webdataset("memory://peers/tars")))
    assert {sample["__key__"] for sample in dataset} == expected_samples(mixed).keys()


def test_as_webdataset_refuses_what_it_cannot_read(tars: Path, arrows: Path, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="no split 'valid'; it has train, val"):
        mmdata.as_webdataset(str(tars), "valid")
    with pytest.raises(DatasetError, match="holds arrow shards"):
        mmdata.as_webdataset(str(arrows))
    with pytest.raises(DatasetError, match="no dataset here"):
        mmdata.as_webdataset(str(tmp_path))
    shard = tmp_path / "tars" / "shards" / "peers-val-000000.tar"
    shutil.copytree(tars, tmp_path / "tars")
    shard.unlink()
    with pytest.raises(Exception, match="no such file"):
        list(mmdata.as_webdataset(str(tmp_path / "tars")))


def test_pyarrow_reads_every_sample(arrows: Path, mixed: Path) -> None:
    found: Samples = {}
    for path in sorted((arrows / "shards").glob("*.arrow")):
        with pa.memory_map(str(path)) as source:
            for row in pa.ipc.open_file(source).read_all().to_pylist():
                key = row.pop("__key__")
                assert key not in found
                found[key] = {name: _raw(value) for name, value in row.items() if value is not None}
    assert found == expected_samples(mixed)


def _raw(value: bytes | str) -> bytes:
    return value.encode() if isinstance(value, str) else value


def test_card_names_the_shards_and_nothing_else(tars: Path, arrows: Path) -> None:
    for dataset in (tars, arrows):
        head = yaml.safe_load((dataset / "README.md").read_text(encoding="utf-8").split("---")[1])
        named = {
            (each["split"], path.relative_to(dataset).as_posix())
            for each in head["configs"][0]["data_files"]
            for pattern in each["path"]
            for path in dataset.glob(pattern)
        }
        manifest = json.loads((dataset / "manifest.json").read_bytes())
        assert named == {(shard["split"], shard["file"]) for shard in manifest["shards"]}


# --- Megatron-Energon's files ---------------------------------------------------------------------------------------


def energon_files(dataset: Path) -> dict[str, bytes]:
    files = [*(dataset / ".nv-meta").iterdir(), *(dataset / "shards").rglob("*.idx")]
    return {path.relative_to(dataset).as_posix(): path.read_bytes() for path in files}


def test_energon_files_repeat_change_no_shard_and_go_with_a_rebuild(tars: Path, mixed: Path) -> None:
    again = build(mixed, "again", "workers=2", options=("--energon",))
    assert energon_files(again) == energon_files(tars)
    shards = {path.name: path.read_bytes() for path in (tars / "shards").glob("*.tar")}
    assert len(energon_files(tars)) == 5 + len(shards)
    build(mixed, "again", options=("--overwrite",))
    assert not (again / ".nv-meta").exists()
    assert {path.name: path.read_bytes() for path in (again / "shards").iterdir()} == shards


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("shards/peers-val-000000.tar.idx", "offsets"),
        (".nv-meta/.info.json", "sample counts"),
        (".nv-meta/index.sqlite", "is damaged|does not hold"),
    ],
)
def test_verify_sees_damaged_and_missing_energon_files(tars: Path, tmp_path: Path, file: str, said: str) -> None:
    dataset = tmp_path / "tars"
    shutil.copytree(tars, dataset)
    whole = (dataset / file).read_bytes()
    if file.endswith("sqlite"):
        place = whole.index(b"clip0")
        damaged = whole[:place] + b"clip9" + whole[place + 5 :]
    else:
        damaged = whole.replace(b"peers-val", b"peers-vax") if file.endswith("json") else b"\1" + whole[1:]
    (dataset / file).write_bytes(damaged)
    (problem,) = verify_dataset(str(dataset), workers=1).problems
    assert problem.file == file
    assert re.search(said, problem.message)
    if not file.endswith("json"):
        (dataset / file).unlink()
        (problem,) = verify_dataset(str(dataset), workers=1).problems
        assert (problem.file, problem.message) == (file, "is missing")


def test_energon_needs_tar_shards(mixed: Path) -> None:
    mmdata_command("build", mixed / "recipe.yaml", "--set=output.format=arrow", "--energon", code=2)


# --- in the peers' environment --------------------------------------------------------------------------------------


@pytest.mark.peers
def test_datasets_reads_tar_shards(tars: Path, mixed: Path, tmp_path: Path) -> None:
    found = run_peer("read_datasets.py", tars, tmp_path / "cache", home=tmp_path)
    wanted = expected_samples(mixed)
    assert found["splits"] == {split: digests(samples) for split, samples in by_split(wanted, tars).items()}
    assert found["features"] == {
        "cls": "int64",
        "flac": "Audio",
        "jpg": "Image",
        "json": "Json",
        "mp4": "binary",
        "png": "Image",
        "txt": "string",
        "wav": "Audio",
        "__key__": "string",
        "__url__": "string",
    }
    assert found["pictures"] == picture_sizes(mixed)


@pytest.mark.peers
def test_datasets_reads_arrow_shards(arrows: Path, mixed: Path, tmp_path: Path) -> None:
    found = run_peer("read_datasets.py", arrows, tmp_path / "cache", home=tmp_path)
    wanted = expected_samples(mixed)
    assert found["splits"] == {split: digests(samples) for split, samples in by_split(wanted, arrows).items()}
    assert found["features"] == {
        "__key__": "string",
        "cls": "string",
        "flac": "Audio",
        "jpg": "Image",
        "json": "string",
        "mp4": "binary",
        "png": "Image",
        "txt": "string",
        "wav": "Audio",
    }
    assert found["pictures"] == picture_sizes(mixed)


@pytest.mark.peers
def test_datasets_reads_bucket_folders_without_splits(folders: Path, captioned: Path, tmp_path: Path) -> None:
    assert len(list((folders / "shards").iterdir())) == 2
    found = run_peer("read_datasets.py", folders, tmp_path / "cache", home=tmp_path)
    assert found["splits"] == {"train": digests(expected_samples(captioned))}
    assert found["features"]["jpg"] == found["features"]["png"] == "Image"
    assert found["pictures"] == picture_sizes(captioned)


@pytest.mark.peers
def test_datasets_reads_arrow_shards_with_an_empty_column(tmp_path: Path) -> None:
    """A resized BMP is stored as JPEG, one that has its size already would keep its bytes: the schema has columns for
    both, of which the samples here fill one."""
    (tmp_path / "media").mkdir()
    for number in range(4):
        make_picture(tmp_path / "media" / f"p{number}.bmp", number)
    resize = {"op": "resize", "width": 32, "height": 24}
    write_recipe(tmp_path, transforms={"image": [resize]}, buckets={"image": {"shapes": [[64, 64]]}})
    dataset = build(tmp_path, "out", "output.format=arrow", "output.folder_per_bucket=true")
    found = run_peer("read_datasets.py", dataset, tmp_path / "cache", home=tmp_path)
    assert found["features"] == {"__key__": "string", "bmp": "Image", "jpg": "Image"}
    assert found["pictures"] == {f"p{number}.jpg": [32, 24] for number in range(4)}


def picture_sizes(folder: Path) -> dict[str, list[int]]:
    sizes = {}
    for path in [*(folder / "media").rglob("*.jpg"), *(folder / "media").rglob("*.png")]:
        key = path.relative_to(folder / "media").as_posix().replace("a.b", "a%2Eb")
        with Image.open(path) as picture:
            sizes[key] = list(picture.size)
    return sizes


@pytest.mark.peers
def test_energon_reads_crude_samples(tars: Path, mixed: Path, tmp_path: Path) -> None:
    found = run_peer("read_energon.py", tars, "train", "val", home=tmp_path)
    wanted = expected_samples(mixed)
    parts = by_split(wanted, tars)
    assert found["type"] == "CrudeSample"
    assert found["raw"] == {split: digests(samples) for split, samples in parts.items()}
    assert found["store"] == {
        f"{key}.{name}": digest for key, members in digests(wanted).items() for name, digest in members.items()
    }
    decoded = {**found["decoded"]["train"], **found["decoded"]["val"]}
    assert decoded.keys() == wanted.keys()
    assert decoded["p03"]["txt"] == "picture 3: ein Bild, 一枚の絵"
    assert decoded["p03"]["cls"] == 3
    assert decoded["p03"]["json"] == json.loads(wanted["p03"]["json"])
    check_picture(decoded["p03"]["jpg"], mixed / "media" / "p03.jpg")


@pytest.mark.peers
def test_energon_reads_typed_samples(folders: Path, captioned: Path, tmp_path: Path) -> None:
    found = run_peer("read_energon.py", folders, "train", home=tmp_path)
    assert found["type"] == "CaptioningSample"
    wanted = digests(expected_samples(captioned))
    assert found["raw"]["train"] == {
        key: {"image": members.get("jpg") or members["png"], "caption": members["txt"]}
        for key, members in wanted.items()
    }
    decoded = found["decoded"]["train"]
    assert {key: sample["caption"] for key, sample in decoded.items()} == {f"p{n}": f"caption {n}" for n in range(10)}
    for key, sample in decoded.items():
        check_picture(sample["image"], next((captioned / "media").glob(f"{key}.[jp][pn]g")))


def check_picture(found: dict[str, Any], path: Path) -> None:
    with Image.open(path) as picture:
        assert found["shape"] == [3, picture.height, picture.width]
        assert found["mean"] == pytest.approx(float(np.asarray(picture).mean()), abs=0.01)


@pytest.mark.peers
def test_energon_files_are_those_of_its_own_prepare(tars: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    shutil.copytree(tars / "shards", theirs / "shards", ignore=shutil.ignore_patterns("*.idx"))
    shards = [shard["file"] for shard in json.loads((tars / "manifest.json").read_bytes())["shards"]]
    run_peer("prepare_energon.py", theirs, "train", "val", "test", "--", *shards, home=tmp_path)
    assert {p.name: p.read_bytes() for p in (tars / "shards").glob("*.idx")} == {
        p.name: p.read_bytes() for p in (theirs / "shards").glob("*.idx")
    }
    assert read_sqlite(tars) == read_sqlite(theirs)
    counts = [json.loads((each / ".nv-meta" / ".info.json").read_bytes())["shard_counts"] for each in (tars, theirs)]
    assert counts[0] == counts[1]
    assert list(counts[0]) == list(counts[1])
    splits = [yaml.safe_load((each / ".nv-meta" / "split.yaml").read_bytes()) for each in (tars, theirs)]
    expanded = {
        name: [shard for pattern in patterns for shard in braceexpand.braceexpand(pattern)]
        for name, patterns in splits[1]["split_parts"].items()
    }
    assert splits[0] == {"split_parts": expanded, "exclude": splits[1]["exclude"]}
    shutil.copytree(tars, tmp_path / "both")
    shutil.copytree(theirs / ".nv-meta", tmp_path / "both" / ".nv-meta", dirs_exist_ok=True)
    assert verify_dataset(str(tmp_path / "both"), workers=1).problems == ()


def read_sqlite(dataset: Path) -> dict[str, Any]:
    """Rows of both tables in their order, their columns, and the indexes."""
    with closing(sqlite3.connect(dataset / ".nv-meta" / "index.sqlite")) as database:
        order = {"samples": "tar_file_id, sample_index", "sample_parts": "tar_file_id, sample_index, part_name"}
        rows = {name: database.execute(f"SELECT * FROM {name} ORDER BY {by}").fetchall() for name, by in order.items()}
        columns = {name: database.execute(f"PRAGMA table_info({name})").fetchall() for name in order}
        indexes = database.execute("SELECT name, tbl_name FROM sqlite_master WHERE type = 'index' ORDER BY name")
        return {"rows": rows, "columns": columns, "indexes": indexes.fetchall()}
