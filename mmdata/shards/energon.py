"""The files with which Megatron-Energon opens a dataset in place: `.nv-meta/` and a `.tar.idx` beside each shard.

They are what `energon prepare` of release 7 writes, made from the index alone: no shard is read. Knows no plan and no
media.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import struct
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import pyarrow.parquet as pq
import yaml

from mmdata.errors import NotFound
from mmdata.shards.dataset import Manifest
from mmdata.storage import Storage
from mmdata.storage.urls import join

FOLDER = ".nv-meta"
INFO_FILE = f"{FOLDER}/.info.json"
SPLIT_FILE = f"{FOLDER}/split.yaml"
DATASET_FILE = f"{FOLDER}/dataset.yaml"
SQLITE_FILE = f"{FOLDER}/index.sqlite"
UUID_FILE = f"{FOLDER}/index.uuid"

SPLITS = ("train", "val", "test")
"""Energon asks for these by name; one that a dataset lacks is listed as empty."""

DECODED = frozenset({"jpg", "jpeg", "png", "ppm", "pgm", "pbm", "pnm"})
"""Images that Energon's decoder turns into tensors whichever release of webdataset it comes with."""

_KINDS_AT_MOST = 64
"""Distinct sets of members after which samples are taken for too varied for a sample type."""

_COLUMNS = ["key", "shard", "members", "offsets", "lengths", "span_offset", "span_length"]

_TABLES = """
CREATE TABLE samples (
    tar_file_id INTEGER NOT NULL, sample_key TEXT NOT NULL UNIQUE, sample_index INTEGER NOT NULL,
    byte_offset INTEGER, byte_size INTEGER);
CREATE TABLE sample_parts (
    tar_file_id INTEGER, sample_index INTEGER, part_name TEXT,
    content_byte_offset INTEGER, content_byte_size INTEGER);
"""
_INDEXES = """
CREATE INDEX idx_samples_by_tar_and_idx ON samples(tar_file_id, sample_index);
CREATE INDEX idx_sample_parts_seq ON sample_parts(tar_file_id, sample_index, content_byte_offset);
CREATE INDEX idx_sample_parts_full
    ON sample_parts(tar_file_id, sample_index, part_name, content_byte_offset, content_byte_size);
"""


def tar_index_file(shard: str) -> str:
    """Path of the offsets of shard `shard`, as Energon looks for it."""
    return shard.removesuffix(".tar") + ".tar.idx"


def write_energon(storage: Storage, output: str, manifest: Manifest, work: str) -> list[str]:
    """Write the files for the dataset whose index is already at `output`; `work` is a local folder for a temporary
    file. Returns their paths relative to the dataset. Equal indexes give equal bytes."""
    kinds: set[tuple[str, ...]] = set()
    files = []
    os.makedirs(work, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=work) as folder:
        path = os.path.join(folder, "index.sqlite")
        with closing(_new_database(path)) as database:
            for number, rows in enumerate(_shards(storage, output, manifest)):
                shard = manifest.shards[number].file
                assert rows["shard"][0] == shard, f"the index and the manifest disagree on shard {number}"
                files.append(tar_index_file(shard))
                storage.write(join(output, files[-1]), _tar_index(rows))
                _insert(database, number, rows)
                if len(kinds) <= _KINDS_AT_MOST:
                    kinds.update(tuple(members) for members in rows["members"])
            database.executescript(_INDEXES)
            database.commit()
        storage.upload(path, join(output, SQLITE_FILE))
    texts = {
        UUID_FILE: str(uuid.UUID(hex=manifest.plan)),
        DATASET_FILE: yaml.safe_dump(dataset_config(sorted(kinds)), sort_keys=False),
        SPLIT_FILE: yaml.safe_dump(_split_config(manifest), sort_keys=False),
        INFO_FILE: json.dumps({"shard_counts": _counts(manifest)}, indent=2) + "\n",
    }
    for file, text in texts.items():
        storage.write(join(output, file), text.encode())
    return [*files, SQLITE_FILE, *texts]


def dataset_config(kinds: Sequence[tuple[str, ...]]) -> dict[str, Any]:
    """`dataset.yaml` for samples with these sets of members: a sample type that loses no member, or crude samples
    (dicts of all members), which a task encoder turns into what it wants."""
    images = sorted({member for kind in kinds for member in kind if member in DECODED})
    others = {tuple(sorted(set(kind) - DECODED)) for kind in kinds}
    one_image = all(sum(member in DECODED for member in kind) == 1 for kind in kinds)
    image = {"image": ",".join(images)}
    if one_image and others == {()}:
        return _typed("ImageSample", image)
    if one_image and others == {("txt",)}:
        return _typed("CaptioningSample", image | {"caption": "txt"})
    if one_image and others == {("cls",)}:
        return _typed("ImageClassificationSample", image | {"label": "cls"})
    if set(kinds) == {("txt",)}:
        return _typed("TextSample", {"text": "txt"})
    return {"__module__": "megatron.energon", "__class__": "CrudeWebdataset"}


def check_energon(storage: Storage, url: str, manifest: Manifest) -> Iterator[tuple[str, str]]:
    """(file, what is wrong with it) for a dataset prepared for Energon, by us or by `energon prepare`."""
    if not is_prepared(storage, url):
        return
    try:
        counts = json.loads(storage.read(join(url, INFO_FILE))).get("shard_counts")
    except (ValueError, AttributeError):
        counts = None
    if counts != _counts(manifest):
        yield INFO_FILE, "does not hold the shards and sample counts of the manifest"
    for file in (SPLIT_FILE, DATASET_FILE, SQLITE_FILE, UUID_FILE):
        if not storage.exists(join(url, file)):
            yield file, "is missing"
    for rows in _shards(storage, url, manifest):
        file = tar_index_file(rows["shard"][0])
        if not storage.exists(join(url, file)):
            yield file, "is missing"
        elif storage.read(join(url, file)) != _tar_index(rows):
            yield file, "does not hold the offsets of the shard's samples"
    if storage.exists(join(url, SQLITE_FILE)):
        with tempfile.TemporaryDirectory(prefix="mmdata-") as folder:
            path = os.path.join(folder, "index.sqlite")
            storage.download(join(url, SQLITE_FILE), path)
            if (message := _sqlite_problem(path, storage, url, manifest)) is not None:
                yield SQLITE_FILE, message


def is_prepared(storage: Storage, url: str) -> bool:
    """Whether Energon takes the folder for a dataset."""
    return storage.exists(join(url, INFO_FILE))


def remove_energon(storage: Storage, output: str) -> None:
    """Remove the folder that an earlier build or `energon prepare` left: it speaks of other shards."""
    try:
        for entry in list(storage.list(join(output, FOLDER))):
            storage.delete(entry.url)
    except NotFound:
        return
    local = storage.local_path(join(output, FOLDER))
    if local is not None:
        shutil.rmtree(local, ignore_errors=True)


def _typed(name: str, field_map: dict[str, str]) -> dict[str, Any]:
    return {"sample_type": {"__module__": "megatron.energon", "__class__": name}, "field_map": field_map}


def _counts(manifest: Manifest) -> dict[str, int]:
    return {shard.file: shard.samples for shard in manifest.shards}


def _split_config(manifest: Manifest) -> dict[str, Any]:
    parts: dict[str, list[str]] = {split: [] for split in SPLITS}
    for shard in manifest.shards:
        parts.setdefault(shard.split or "train", []).append(shard.file)
    return {"split_parts": parts, "exclude": []}


def _shards(storage: Storage, url: str, manifest: Manifest) -> Iterator[dict[str, list[Any]]]:
    """The index columns of each shard, in the manifest's order: row groups align with shards."""
    for file in manifest.index:
        with storage.open(join(url, file)) as stream, pq.ParquetFile(stream) as index:
            for group in range(index.num_row_groups):
                yield index.read_row_group(group, columns=_COLUMNS).to_pydict()


def _tar_index(rows: dict[str, list[Any]]) -> bytes:
    """Where each sample begins, and where the last one ends: little-endian 64-bit."""
    offsets = [*rows["span_offset"], rows["span_offset"][-1] + rows["span_length"][-1]]
    return struct.pack(f"<{len(offsets)}Q", *offsets)


def _new_database(path: str) -> sqlite3.Connection:
    database = sqlite3.connect(path)
    database.executescript("PRAGMA page_size=4096; PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF;" + _TABLES)
    return database


def _samples(number: int, rows: dict[str, list[Any]]) -> Iterator[tuple[Any, ...]]:
    spans = zip(rows["key"], rows["span_offset"], rows["span_length"], strict=True)
    yield from ((number, key, place, offset, length) for place, (key, offset, length) in enumerate(spans))


def _parts(number: int, rows: dict[str, list[Any]]) -> Iterator[tuple[Any, ...]]:
    for place, parts in enumerate(zip(rows["members"], rows["offsets"], rows["lengths"], strict=True)):
        yield from ((number, place, name, offset, length) for name, offset, length in zip(*parts, strict=True))


def _insert(database: sqlite3.Connection, number: int, rows: dict[str, list[Any]]) -> None:
    database.executemany("INSERT INTO samples VALUES (?, ?, ?, ?, ?)", _samples(number, rows))
    database.executemany("INSERT INTO sample_parts VALUES (?, ?, ?, ?, ?)", _parts(number, rows))


def _sqlite_problem(path: str, storage: Storage, url: str, manifest: Manifest) -> str | None:
    """The first shard whose rows differ from the index, or what SQLite says of the file."""
    queries = (
        ("SELECT * FROM samples WHERE tar_file_id = ? ORDER BY sample_index", _samples),
        ("SELECT * FROM sample_parts WHERE tar_file_id = ? ORDER BY sample_index, content_byte_offset", _parts),
    )
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as database:
            (verdict,) = database.execute("PRAGMA integrity_check(1)").fetchone()
            if verdict != "ok":
                return f"is damaged: {verdict}"
            for number, rows in enumerate(_shards(storage, url, manifest)):
                for query, wanted in queries:
                    if database.execute(query, (number,)).fetchall() != list(wanted(number, rows)):
                        return f"does not hold the samples of {rows['shard'][0]}"
            (most,) = database.execute("SELECT count(*) FROM samples").fetchone()
            return None if most == manifest.samples else f"holds {most} samples, the manifest {manifest.samples}"
    except sqlite3.DatabaseError as error:
        return f"is damaged: {error}"
