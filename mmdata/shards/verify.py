"""Verify: every byte of every shard against manifest and index. Names each damaged shard, and each sample the damage
met.

Three digests see a fault: the shard's own, that of a sample's stretch of a tar (headers and padding included), and that
of its members. The first says that something is wrong, the others where.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, BinaryIO, Literal

import pyarrow as pa
import pyarrow.compute as pc
import xxhash
import yaml

from mmdata.engines.local import run
from mmdata.errors import DatasetError, NotFound
from mmdata.formats.parquet import read_matching, read_parquet
from mmdata.formats.tar import split_name
from mmdata.media.prove import prove
from mmdata.media.sandbox import Failure, Limits, Sandbox
from mmdata.recipe import Limits as RecipeLimits
from mmdata.schema import EXTENSIONS
from mmdata.shards.dataset import MANIFEST, RECIPE_FILE, Manifest, ShardRow, is_as_written, open_manifest
from mmdata.shards.energon import check_energon, is_prepared, tar_index_file
from mmdata.shards.writer import sample_digest
from mmdata.storage import Storage, StorageSettings, open_storage
from mmdata.storage.urls import join

BLOCK = 4 << 20

MAX_PIXELS = 1 << 30
"""Pixels of a picture that `--decode` still opens: what is in a shard has passed its recipe's own limit."""


@dataclass(frozen=True)
class Problem:
    """One thing that is not as it should be. `key` is None when it touches no sample."""

    file: str
    key: str | None
    message: str

    def __str__(self) -> str:
        return f"{self.file}: {f'sample {self.key}: ' if self.key is not None else ''}{self.message}"


@dataclass(frozen=True)
class Verified:
    """The verdict on a dataset."""

    dataset: str
    shards: int
    samples: int
    bytes: int
    problems: tuple[Problem, ...] = field(default=())

    @property
    def ok(self) -> bool:
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self) | {"ok": self.ok}

    def to_text(self) -> str:
        """For people."""
        lines = [str(problem) for problem in self.problems]
        damaged = len({problem.file for problem in self.problems})
        verdict = "ok" if self.ok else f"{len(self.problems)} problems in {damaged} files"
        lines.append(f"{self.dataset}: {self.samples} samples in {self.shards} shards, {self.bytes} bytes: {verdict}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Job:
    """Everything a worker needs to verify a shard."""

    storage: Storage
    dataset: str
    shards: tuple[ShardRow, ...]
    index: tuple[str, ...]
    format: str
    decode: bool
    limits: RecipeLimits
    """What one sample may cost, as the dataset's recipe says."""


def verify_dataset(
    url: str,
    *,
    workers: int,
    decode: bool = False,
    settings: StorageSettings | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Verified:
    """Verify the dataset folder `url`; with `decode`, also decode every medium.

    Raises:
        DatasetError: there is no dataset, or its manifest or index cannot be read at all.
    """
    storage = open_storage(settings)
    manifest = open_manifest(storage, url)
    problems = [*_check_files(storage, url, manifest), *_check_listing(storage, url, manifest)]
    damaged = {problem.file for problem in problems}
    index = tuple(file for file in manifest.index if file not in damaged)
    if index == manifest.index:
        problems += _check_index(storage, url, manifest)
    problems += [Problem(file, None, message) for file, message in check_energon(storage, url, manifest)]
    limits = recipe_limits(storage, url)
    job = Job(storage, url, manifest.shards, index, manifest.format, decode, limits)
    found: dict[int, list[Problem]] = {}

    def on_done(number: int, result: list[Problem]) -> None:
        found[number] = result
        if progress is not None:
            progress(len(found), len(manifest.shards))

    run("mmdata.shards.verify:verify_shard", job, range(len(manifest.shards)), workers=workers, on_done=on_done)
    for number in sorted(found):
        problems += found[number]
    return Verified(url, len(manifest.shards), manifest.samples, manifest.bytes, tuple(problems))


def recipe_limits(storage: Storage, url: str) -> RecipeLimits:
    """The limits that the dataset was built under; the usual ones when its recipe is not there."""
    try:
        return RecipeLimits.parse(yaml.safe_load(storage.read(join(url, RECIPE_FILE)))["limits"])
    except (NotFound, yaml.YAMLError, KeyError, TypeError, ValueError):
        return RecipeLimits()


def _check_files(storage: Storage, url: str, manifest: Manifest) -> list[Problem]:
    """The manifest's own checksum, and those of the files that it vouches for beside the shards."""
    problems = []
    if not is_as_written(storage.read(join(url, MANIFEST))):
        problems.append(Problem(MANIFEST, None, "the checksum differs: build again with --overwrite"))
    for file, wanted in manifest.checksums.items():
        try:
            running = xxhash.xxh3_128()
            with storage.open(join(url, file)) as stream:
                while block := stream.read(BLOCK):
                    running.update(block)
            if running.hexdigest() != wanted:
                problems.append(Problem(file, None, "the checksum differs: build again with --overwrite"))
        except NotFound:
            problems.append(Problem(file, None, "is missing: build again with --overwrite"))
    return problems


def _check_listing(storage: Storage, url: str, manifest: Manifest) -> list[Problem]:
    """Files under shards/ that the manifest does not name, and counts that disagree."""
    problems = []
    wanted = {shard.file for shard in manifest.shards}
    if is_prepared(storage, url):
        wanted |= {tar_index_file(shard.file) for shard in manifest.shards}
    base = url.rstrip("/") + "/"
    try:
        for entry in storage.list(join(url, "shards")):
            file = entry.url.removeprefix(base)
            if file not in wanted:
                problems.append(Problem(file, None, "is not in the manifest; remove it"))
    except NotFound:
        problems.append(Problem("shards", None, "the folder is missing"))
    kept = manifest.conservation
    if kept.read != kept.written + sum(kept.dropped.values()) or kept.written != manifest.samples:
        problems.append(Problem("manifest.json", None, f"samples are not conserved: {kept}"))
    return problems


def _check_index(storage: Storage, url: str, manifest: Manifest) -> list[Problem]:
    """Rows per shard against the manifest."""
    counts: dict[str, int] = {}
    for file in manifest.index:
        shards = _read_index(storage, join(url, file), ["shard"])["shard"]
        for row in pc.value_counts(shards).to_pylist():
            counts[row["values"]] = counts.get(row["values"], 0) + row["counts"]
    wanted = {shard.file: shard.samples for shard in manifest.shards}
    return [
        Problem(file, None, f"the index has {counts.get(file, 0)} rows, the manifest counts {wanted.get(file, 0)}")
        for file in sorted(wanted.keys() | counts.keys())
        if counts.get(file, 0) != wanted.get(file, 0)
    ]


def _read_index(storage: Storage, url: str, columns: Sequence[str], shard: str | None = None) -> pa.Table:
    try:
        with storage.open(url) as stream:
            return read_matching(stream, "shard", [shard], columns) if shard else read_parquet(stream, columns)
    except NotFound:
        raise DatasetError(
            f"{url}: missing; the dataset cannot be read without its index: build again with --overwrite"
        ) from None
    except (pa.ArrowInvalid, OSError) as error:
        raise DatasetError(
            f"{url}: cannot be read ({error}); the index is damaged: build again with --overwrite"
        ) from None


# --- in the worker ------------------------------------------------------------------------------------------------


def verify_shard(number: int, job: Job) -> list[Problem]:
    """Everything wrong with shard `number`, in the order of its samples."""
    shard = job.shards[number]
    try:
        with local_copy(job.storage, join(job.dataset, shard.file)) as path:
            return list(_shard_problems(path, shard, job))
    except NotFound:
        return [Problem(shard.file, None, f"is missing, with its {shard.samples} samples")]


@contextmanager
def local_copy(storage: Storage, url: str) -> Iterator[str]:
    """The path of a local object; a temporary download of a remote one."""
    path = storage.local_path(url)
    if path is not None:
        if not os.path.exists(path):
            raise NotFound(f"{url}: no such file")
        yield path
        return
    with tempfile.NamedTemporaryFile(prefix="mmdata-") as copy, storage.open(url) as stream:
        while block := stream.read(BLOCK):
            copy.write(block)
        copy.flush()
        yield copy.name


def _shard_problems(path: str, shard: ShardRow, job: Job) -> Iterator[Problem]:
    size = os.path.getsize(path)
    if size != shard.bytes:
        yield Problem(shard.file, None, f"has {size} bytes, the manifest says {shard.bytes}")
    intact = size == shard.bytes and _digest(path) == shard.xxh3
    rows = _index_rows(job, shard.file)
    met = 0
    with open(path, "rb") as stream:
        for row in rows:
            message = _sample_problem(stream, size, row, job.format)
            if message is not None:
                met += 1
                yield Problem(shard.file, row["key"], message)
    if not intact and len(rows) < shard.samples:
        yield Problem(shard.file, None, "the checksum differs; the index that tells its samples apart is damaged")
    elif not intact and not met:
        yield Problem(
            shard.file, None, "the checksum differs: damage outside the samples, in the shard's own structure"
        )
    elif intact and met:
        yield Problem(shard.file, None, "the shard is intact but the index disagrees with it: the index is damaged")
    elif not intact and size == shard.bytes:
        yield Problem(shard.file, None, f"the checksum differs; damaged samples: {met}")
    if job.decode:
        yield from _undecodable(path, shard, rows, job.limits)


def _index_rows(job: Job, shard: str) -> list[dict[str, Any]]:
    columns = ["key", "members", "offsets", "lengths", "span_offset", "span_length", "span_xxh3", "digest"]
    rows: list[dict[str, Any]] = []
    for file in job.index:
        table = _read_index(job.storage, join(job.dataset, file), [*columns, "shard", "position"], shard)
        rows += table.sort_by("position").to_pylist()
    return rows


def _digest(path: str) -> str:
    running = xxhash.xxh3_128()
    with open(path, "rb", buffering=0) as stream:
        while block := stream.read(BLOCK):
            running.update(block)
    return running.hexdigest()


def _sample_problem(stream: BinaryIO, size: int, row: dict[str, Any], format: str) -> str | None:
    """What is wrong with one sample, or None."""
    ends = [offset + length for offset, length in zip(row["offsets"], row["lengths"], strict=True)]
    if row["span_offset"] is not None:
        ends.append(row["span_offset"] + row["span_length"])
    if max(ends, default=0) > size:
        return f"cut off: it ends at byte {max(ends)}, the shard at {size}"
    if row["span_offset"] is not None:
        stream.seek(row["span_offset"])
        span = stream.read(row["span_length"])
        if xxhash.xxh3_128_hexdigest(span) == row["span_xxh3"]:
            return None
        first = row["span_offset"]
        members = [span[offset - first : offset - first + length] for offset, length in _pairs(row)]
        name = split_name(span[:100].rstrip(b"\0").split(b"\0", 1)[0].decode("utf-8", "replace"))
        if name is not None and name[0] != row["key"] and len(row["key"]) < 90:
            return f"bytes {first} to {first + row['span_length']} hold another sample, {name[0]}"
    else:
        members = [_read_at(stream, offset, length) for offset, length in _pairs(row)]
    if sample_digest(list(zip(row["members"], members, strict=True))) != row["digest"]:
        where = f"bytes {min(row['offsets'])} to {max(ends)}"
        return f"its members' bytes are not those that were written ({where})"
    return (
        None if row["span_offset"] is None else "its tar headers or padding are damaged; the members' bytes are whole"
    )


def _pairs(row: dict[str, Any]) -> list[tuple[int, int]]:
    return list(zip(row["offsets"], row["lengths"], strict=True))


def _read_at(stream: BinaryIO, offset: int, length: int) -> bytes:
    stream.seek(offset)
    return stream.read(length)


def _undecodable(path: str, shard: ShardRow, rows: Sequence[dict[str, Any]], limits: RecipeLimits) -> Iterator[Problem]:
    """Media of the shard that do not decode."""
    media = [
        (row["key"], name, offset, length)
        for row in rows
        for name, (offset, length) in zip(row["members"], _pairs(row), strict=True)
        if EXTENSIONS.get(name.rpartition(".")[2]) is not None
    ]
    bounds = Limits(cpu_s=limits.cpu, wall_s=limits.wall, memory_bytes=limits.memory)
    with Sandbox("mmdata.shards.verify:prove_member", (path, limits.truncated), limits=bounds) as sandbox:
        for (key, name, _, _), result in zip(media, sandbox.map(media), strict=True):
            if isinstance(result, Failure):
                yield Problem(shard.file, key, f"{name} does not decode: {result.error_class}: {result.message}")


def prove_member(item: tuple[str, str, int, int], setup: tuple[str, Literal["reject", "repair"]]) -> None:
    """Decode one member of a shard: `setup` is its path, and what is done to media that end early. Runs in the
    sandbox."""
    (_, name, offset, length), (path, truncated) = item, setup
    with open(path, "rb") as stream:
        data = _read_at(stream, offset, length)
    prove(EXTENSIONS[name.rpartition(".")[2]], data, max_pixels=MAX_PIXELS, truncated=truncated)
