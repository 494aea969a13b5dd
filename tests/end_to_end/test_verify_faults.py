"""Faults in finished shards: `verify` names each damaged shard and sample, and no other.

What is damaged is worked out here from the bytes alone: a sample is, when a byte of its ranges in the index changed.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import job_kit
import pyarrow.parquet as pq
import pytest

from mmdata.errors import DatasetError
from mmdata.processes import resolve
from mmdata.shards.dataset import open_manifest
from mmdata.shards.verify import Problem, verify_dataset
from mmdata.storage import open_storage

FAULTS = 100
"""For each format."""


@dataclass
class Dataset:
    folder: Path
    files: list[str]
    bytes: dict[str, bytes]
    rows: dict[str, list[dict[str, Any]]]
    format: str


@pytest.fixture(scope="module", params=["webdataset", "arrow"])
def dataset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    base = tmp_path_factory.mktemp(request.param)
    job_kit.make_media(base / "media", pictures=22, clips=0, recordings=4, broken=False)
    recipe = job_kit.make_recipe(
        base / "r.yaml", base / "media", base / "out", output={"format": request.param, "max_samples": 7}
    )
    job_kit.mmdata("build", recipe)
    assert verify_dataset(str(base / "out"), workers=1).ok
    manifest = open_manifest(open_storage(), str(base / "out"))
    files = [shard.file for shard in manifest.shards]
    rows: dict[str, list[dict[str, Any]]] = {file: [] for file in files}
    for row in pq.read_table(base / "out/index").to_pylist():
        rows[row["shard"]].append(row)
    whole = {file: (base / "out" / file).read_bytes() for file in files}
    return Dataset(base / "out", files, whole, rows, request.param)


def verify_here(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> list[Problem]:
    """All of `verify`, its shards looked at in this process: two hundred times are slow otherwise."""

    def run(task: str, setup: Any, numbers: Any, *, on_done: Any, **_: Any) -> None:
        for number in numbers:
            on_done(number, resolve(task)(number, setup))

    with monkeypatch.context() as patch:
        patch.setattr("mmdata.shards.verify.run", run)
        return list(verify_dataset(str(data.folder), workers=1).problems)


def ranges(row: dict[str, Any]) -> list[tuple[int, int]]:
    """Start and end of every stretch of the shard that is this sample's alone."""
    if row["span_offset"] is not None:
        return [(row["span_offset"], row["span_offset"] + row["span_length"])]
    return [(offset, offset + length) for offset, length in zip(row["offsets"], row["lengths"], strict=True)]


def damaged_samples(rows: list[dict[str, Any]], before: bytes, after: bytes) -> set[str]:
    return {row["key"] for row in rows if any(before[a:b] != after[a:b] for a, b in ranges(row))}


# --- the faults: each gives the new bytes of one or two shards ------------------------------------------------------


def flip_bits(data: Dataset, draw: random.Random) -> dict[str, bytes]:
    file = draw.choice(data.files)
    changed = bytearray(data.bytes[file])
    for _ in range(draw.choice([1, 1, 1, 2, 5])):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return {file: bytes(changed)}


def flip_in_sample(data: Dataset, draw: random.Random) -> dict[str, bytes]:
    """A bit within the smallest stretch: text members and headers are easily missed by random places."""
    file = draw.choice(data.files)
    row = draw.choice(data.rows[file])
    changed = bytearray(data.bytes[file])
    offset, length = min(zip(row["offsets"], row["lengths"], strict=True), key=lambda place: place[1])
    start = max(0, offset - 512) if data.format == "webdataset" else offset
    changed[draw.randrange(start, offset + length)] ^= 1 << draw.randrange(8)
    return {file: bytes(changed)}


def cut_tail(data: Dataset, draw: random.Random) -> dict[str, bytes]:
    file = draw.choice(data.files)
    whole = data.bytes[file]
    return {file: whole[: len(whole) - draw.choice([1, 512, 1024, draw.randrange(1, len(whole)), len(whole)])]}


def grow_tail(data: Dataset, draw: random.Random) -> dict[str, bytes]:
    file = draw.choice(data.files)
    return {file: data.bytes[file] + bytes(draw.randrange(1, 2000))}


def zero_block(data: Dataset, draw: random.Random) -> dict[str, bytes]:
    file = draw.choice(data.files)
    changed = bytearray(data.bytes[file])
    start = draw.randrange(len(changed)) // 512 * 512
    stop = min(start + draw.choice([512, 4096]), len(changed))
    changed[start:stop] = bytes(stop - start)
    return {file: bytes(changed)}


def swap_members(data: Dataset, draw: random.Random) -> dict[str, bytes]:
    """The first bytes of two members, as many as the shorter has, change places."""
    file = draw.choice(data.files)
    one, two = draw.sample(data.rows[file], 2)
    changed = bytearray(data.bytes[file])
    length = min(one["lengths"][0], two["lengths"][0])
    a, b = one["offsets"][0], two["offsets"][0]
    changed[a : a + length], changed[b : b + length] = changed[b : b + length], changed[a : a + length]
    return {file: bytes(changed)}


def swap_samples(data: Dataset, draw: random.Random) -> dict[str, bytes]:
    """Two neighbouring samples change places, whole."""
    file = draw.choice(data.files)
    rows = data.rows[file]
    place = draw.randrange(len(rows) - 1)
    spans = [(min(a for a, _ in ranges(row)), max(b for _, b in ranges(row))) for row in rows[place : place + 2]]
    (a, b), (c, d) = sorted(spans)
    whole = data.bytes[file]
    return {file: whole[:a] + whole[c:d] + whole[b:c] + whole[a:b] + whole[d:]}


def swap_shards(data: Dataset, draw: random.Random) -> dict[str, bytes]:
    one, two = draw.sample(data.files, 2)
    return {one: data.bytes[two], two: data.bytes[one]}


KINDS = (flip_bits, flip_bits, flip_in_sample, flip_in_sample, cut_tail, grow_tail, zero_block, swap_members)
KINDS += (swap_samples, swap_shards)


def test_every_fault_is_named_and_nothing_else(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(2024)
    made: Counter[str] = Counter()
    while made.total() < FAULTS:
        kind = KINDS[made.total() % len(KINDS)]
        changed = {file: new for file, new in kind(dataset, draw).items() if new != dataset.bytes[file]}
        if not changed:
            continue
        made[kind.__name__] += 1
        for file, new in changed.items():
            (dataset.folder / file).write_bytes(new)
        try:
            problems = verify_here(dataset, monkeypatch)
        finally:
            for file in changed:
                (dataset.folder / file).write_bytes(dataset.bytes[file])
        what = f"fault {made.total()}, {kind.__name__} of {', '.join(changed)}: {[str(p) for p in problems]}"
        assert {problem.file for problem in problems} == set(changed), what
        wanted = {
            (file, key)
            for file, new in changed.items()
            for key in damaged_samples(dataset.rows[file], dataset.bytes[file], new)
        }
        assert {(p.file, p.key) for p in problems if p.key is not None} == wanted, what
    assert verify_dataset(str(dataset.folder), workers=1).ok
    print(dict(made))
    assert min(made[kind.__name__] for kind in KINDS) >= FAULTS // len(KINDS)


def test_faults_of_the_folder_are_named(dataset: Dataset) -> None:
    """Shards that are missing, strange or empty; each through the whole of `verify`."""
    first, last = dataset.files[0], dataset.files[-1]
    stranger = dataset.folder / "shards" / "stranger.tar"
    stranger.write_bytes(dataset.bytes[first])
    (dataset.folder / last).unlink()
    (dataset.folder / first).write_bytes(b"")
    try:
        result = verify_dataset(str(dataset.folder), workers=2)
        printed = job_kit.mmdata("verify", dataset.folder, code=1).stdout
    finally:
        stranger.unlink()
        for file in (first, last):
            (dataset.folder / file).write_bytes(dataset.bytes[file])
    assert {problem.file for problem in result.problems} == {first, last, "shards/stranger.tar"}
    assert {p.key for p in result.problems if p.file == first and p.key} == {row["key"] for row in dataset.rows[first]}
    assert all(name in printed for name in (first, last, "stranger.tar"))
    assert verify_dataset(str(dataset.folder), workers=1).ok


def test_damage_beside_the_shards_is_named(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(7)
    index = [str(path.relative_to(dataset.folder)) for path in sorted((dataset.folder / "index").iterdir())]
    for name in [*index, "manifest.json", "quarantine.parquet", "plan.json"]:
        path = dataset.folder / name
        whole = path.read_bytes()
        for _ in range(10):
            changed = bytearray(whole)
            changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
            path.write_bytes(changed)
            try:
                named = {problem.file for problem in verify_here(dataset, monkeypatch)}
            except DatasetError as error:  # a manifest that cannot be read names itself
                named = {name} if name == "manifest.json" and name in str(error) else set()
            finally:
                path.write_bytes(whole)
            assert name in named
            assert named == {name} or name == "manifest.json"
    # Shards are checked even where the index cannot tell their samples apart.
    shard = dataset.folder / dataset.files[0]
    (dataset.folder / index[0]).write_bytes(b"")
    shard.write_bytes(dataset.bytes[dataset.files[0]][:-1] + b"x")
    try:
        assert {problem.file for problem in verify_here(dataset, monkeypatch)} == {index[0], dataset.files[0]}
    finally:
        job_kit.mmdata("build", dataset.folder.parent / "r.yaml", "--overwrite")
    assert verify_dataset(str(dataset.folder), workers=1).ok
