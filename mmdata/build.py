"""Build: carry out the plan, a shard at a time, and commit the dataset.

A shard is a pure function of (plan, shard number): any worker, host, order or number of kills gives the same bytes. A
shard whose record lies in the build folder is never built again.
"""

from __future__ import annotations

import getpass
import json
import os
import shutil
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import xxhash

from mmdata.engines.local import run
from mmdata.engines.preload import MODULES
from mmdata.errors import ConfigError, DatasetError, ErrorLimitExceeded, MediaError
from mmdata.media.sandbox import Failure, Sandboxes, kept, share
from mmdata.media.sandbox import Limits as SandboxLimits
from mmdata.operators.chain import Setup
from mmdata.operators.process import BuildItem, Built, copy, is_copy, possible_fields
from mmdata.processes import expect
from mmdata.recipe import MODALITIES, Limits, Recipe, dump
from mmdata.report.dataset import MAX_ROWS, MEASURES, dataset_report
from mmdata.report.plots import expect as expect_plots
from mmdata.schema import EXTENSIONS, MediaInfo, MediaRef
from mmdata.shards.catalog import Catalog
from mmdata.shards.commit import clean, fold, read_records
from mmdata.shards.dataset import (
    BUILD_FOLDER,
    MANIFEST,
    REPORT_FILE,
    Manifest,
    has_dataset,
    holds_all_shards,
    open_manifest,
    unfinished,
)
from mmdata.shards.plan import Plan, PlannedShard, make_plan, plan_fingerprint
from mmdata.shards.planfile import WorkPlan, load_plan, save_plan
from mmdata.shards.records import (
    Record,
    committed_numbers,
    forget_other_plans,
    read_verdicts,
    write_record,
    write_verdicts,
)
from mmdata.shards.rows import Rows, write_rows
from mmdata.shards.writer import ShardWriter, index_columns
from mmdata.storage import Storage, StorageSettings, open_storage
from mmdata.storage.urls import join

STICKY = frozenset({"DecodeTimeout", "DecoderCrash", "MemoryLimit"})
"""Verdicts that may depend on the machine's load: stored as they are found, and not tried again after a kill."""

ROWS_AT_ONCE = 256
"""Catalog rows of a shard that are Python objects at a time."""

COPIES_AHEAD = 64
"""Samples to copy that are read ahead of a result of the sandbox, to find the next one to decode."""

Progress = Callable[[int, int, int], None]
"""Called with (samples finished, samples planned, samples dropped)."""

Waiting = Callable[[str, float], None]
"""Called about once a second with the shard in flight for longest, and for how many seconds."""


@dataclass(frozen=True)
class Job:
    """Everything a worker needs to build a shard. Sent to each worker once."""

    storage: Storage
    output: str
    work: str
    """Local folder for temporary files, on the output's file system when the output is local."""
    plan: str
    """Path of the plan file."""
    rows: str
    """Path of the mapped catalog rows."""
    format: str
    columns: tuple[str, ...]
    """Member extensions of the dataset (Arrow shards only)."""
    setup: Setup
    sandbox: SandboxLimits
    check: str
    sandboxes: int = 1
    """Decoding processes of a worker."""


@dataclass(frozen=True)
class Prepared:
    """A plan with the files that workers read, ready to run."""

    recipe: Recipe
    storage: Storage
    plan: Plan
    job: Job


def prepare(recipe: Recipe, catalog: Catalog, *, overwrite: bool = False) -> Prepared:
    """Plan the build and lay out what workers need.

    Raises:
        DatasetError: the output holds a dataset that another recipe or catalog gave, and `overwrite` is not set.
    """
    storage = open_storage(StorageSettings(**recipe.storage.arguments()))
    output = recipe.output.path
    if overwrite:
        storage.delete(join(output, MANIFEST))
    elif has_dataset(storage, output):
        found = open_manifest(storage, output)
        if found.plan != plan_fingerprint(recipe, catalog):
            raise DatasetError(
                f"{output}: holds a dataset built from another recipe or catalog; "
                "choose another output.path, or replace it with --overwrite"
            )
    expect(MODULES)
    plan = make_plan(recipe, catalog)
    work = _work_folder(storage, output)
    storage.clean(work)
    plan_path = os.path.join(work, f"plan-{plan.fingerprint}.arrow")
    rows_path = os.path.join(work, f"rows-{catalog.fingerprint}.arrow")
    with storage.writing(work):
        if not os.path.exists(plan_path):
            save_plan(plan, plan_path)
        if not os.path.exists(rows_path):
            write_rows(catalog, rows_path)
    pa.default_memory_pool().release_unused()  # planning needs the catalog's columns, building does not
    setup = Setup(
        storage=storage,
        limits=recipe.limits,
        decode=recipe.decode,
        check=recipe.scan.check,
        transforms={each: getattr(recipe.transforms, each) for each in MODALITIES},
        encode=recipe.encode,
        seed=recipe.seed,
    )
    columns = tuple(member_columns(catalog, recipe)) if recipe.output.format == "arrow" else ()
    sandbox = SandboxLimits(cpu_s=recipe.limits.cpu, wall_s=recipe.limits.wall, memory_bytes=recipe.limits.memory)
    job = Job(
        storage, output, work, plan_path, rows_path, recipe.output.format, columns, setup, sandbox, recipe.scan.check
    )
    return Prepared(recipe, storage, plan, job)


def finished(recipe: Recipe, catalog: Catalog) -> Manifest | None:
    """The manifest of the dataset that this very recipe and catalog already gave, after removing what a killed commit
    may have left behind; None when it is still to be built, or a shard of it is gone or cut short."""
    storage = open_storage(StorageSettings(**recipe.storage.arguments()))
    output = recipe.output.path
    if not has_dataset(storage, output):
        return None
    manifest = open_manifest(storage, output)
    if manifest.plan != plan_fingerprint(recipe, catalog):
        return None
    if not holds_all_shards(storage, output, manifest):
        return None
    if unfinished(storage, output):
        clean(storage, output, manifest)
    _remove_remote_work(storage, output)
    return manifest


def member_columns(catalog: Catalog, recipe: Recipe) -> list[str]:
    """Member extensions that samples of the dataset may have: the columns of its Arrow shards."""
    columns: set[str] = set()
    for field, kind, format, codec in catalog.members:
        transformed = kind in MODALITIES and bool(getattr(recipe.transforms, kind))
        info = MediaInfo(format=format, codec=codec)
        columns |= possible_fields(field, kind, info, recipe.encode, transformed=transformed)
    for transform in recipe.transforms.text:
        columns.update(transform.adds() if hasattr(transform, "adds") else ())
    return sorted(columns)


def shard_range(text: str, count: int) -> range:
    """The shard numbers of range `i/n` (0 ≤ i < n) of `count` shards: contiguous, covering all, differing by at most
    one.

    Raises:
        ConfigError: `text` is not of that form.
    """
    part, slash, parts = text.partition("/")
    if not slash or not part.isdigit() or not parts.isdigit() or not int(part) < int(parts):
        raise ConfigError(f"--shard-range {text}: expected I/N with 0 ≤ I < N, such as 0/4 for the first of four")
    return range(count * int(part) // int(parts), count * (int(part) + 1) // int(parts))


def build_shards(
    prepared: Prepared,
    numbers: range,
    *,
    workers: int,
    progress: Progress | None = None,
    waiting: Waiting | None = None,
) -> int:
    """Build those of `numbers` that have no record yet. Returns how many were built.

    Raises:
        ErrorLimitExceeded: more samples failed than `limits.max_bad` allows.
    """
    plan, job = prepared.plan, prepared.job
    forget_other_plans(job.storage, job.output, plan.fingerprint)
    done = committed_numbers(job.storage, job.output, plan.fingerprint, numbers)
    shards = [plan.shards[number] for number in numbers]
    planned = sum(shard.stop - shard.start for shard in shards)
    finished = sum(shard.stop - shard.start for shard in shards if shard.number in done)
    failed = 0

    def on_done(number: int, dropped: int) -> None:
        nonlocal finished, failed
        shard = plan.shards[number]
        finished, failed = finished + shard.stop - shard.start, failed + dropped
        if progress is not None:
            progress(finished, planned, failed)
        check_limit(prepared.recipe.limits, _bad_in_plan(plan) + failed, plan.read, f"{finished} of {planned} planned")

    def on_progress(oldest: tuple[int, float] | None) -> None:
        if waiting is not None and oldest is not None:
            waiting(plan.shards[oldest[0]].file, oldest[1])

    if progress is not None:
        progress(finished, planned, failed)
    todo = [number for number in numbers if number not in done]
    if todo:
        expect_plots()
    run(
        "mmdata.build:build_shard",
        replace(job, sandboxes=share(workers, len(todo))),
        todo,
        workers=workers,
        on_done=on_done,
        on_progress=on_progress,
        preload=MODULES,
    )
    return len(todo)


def _bad_in_plan(plan: Plan) -> int:
    return sum(count for reason, count in plan.dropped_counts.items() if reason.startswith("scan/"))


def check_limit(limits: Limits, bad: int, rows: int, where: str) -> None:
    """Raise ErrorLimitExceeded when `bad` of `rows` is more than `limits.max_bad`."""
    if not limits.allows(bad, rows):
        raise ErrorLimitExceeded(
            f"{bad} of {rows} samples are bad after {where}, over limits.max_bad {limits.max_bad}; "
            "mend or exclude them, or raise the limit: what is built stays, and the same command goes on"
        )


def commit(prepared: Prepared) -> Manifest:
    """Fold the records of all shards into the dataset. The manifest is written last."""
    storage, output, plan = prepared.storage, prepared.job.output, prepared.plan
    records = read_records(storage, output, plan)
    failed = sum(len(record.dropped) for record in records)
    check_limit(prepared.recipe.limits, _bad_in_plan(plan) + failed, plan.read, "all shards")
    if not any(record.samples for record in records):
        dropped = [row for record in records for row in record.dropped]
        (worst, count), first = Counter(row["error_class"] for row in dropped).most_common(1)[0], dropped[0]
        raise DatasetError(
            f"{output}: every sample failed in the build, {count} of {len(dropped)} with {worst}; "
            f"the first was {first['key']}: {first['error_class']}: {first['message']}"
        )
    manifest = fold(
        storage,
        output,
        plan,
        records,
        Rows(prepared.job.rows),
        dump(prepared.recipe),
        columns=prepared.job.columns,
        energon=prepared.job.work if prepared.recipe.output.energon else None,
    )
    buckets = [bucket.to_dict() for bucket in plan.buckets]
    report = dataset_report(storage, output, manifest, buckets=buckets, scanned=_scanned(Rows(prepared.job.rows), plan))
    storage.write(join(output, REPORT_FILE), report.encode())
    storage.write(join(output, MANIFEST), manifest.to_json().encode())
    clean(storage, output, manifest)
    _remove_remote_work(storage, output)
    return manifest


def _scanned(rows: Rows, plan: Plan) -> pa.Table:
    """What the scan measured of the planned samples, evenly thinned out where they are many: for the report."""
    names = rows.take(np.empty(0, dtype=np.int64)).column_names
    wanted = [name for name in names if name in MEASURES or name.startswith("stat.")]
    return rows.take(np.sort(plan.order)[:: 1 + (len(plan.order) - 1) // MAX_ROWS], wanted)


def _work_folder(storage: Storage, output: str) -> str:
    """Where temporary files go: inside a local output, else a folder of this user's for this output."""
    local = storage.local_path(output)
    if local is not None:
        return os.path.join(local, BUILD_FOLDER, "work")
    name = f"mmdata-{getpass.getuser()}-{xxhash.xxh3_64_hexdigest(output.encode())}"
    return os.path.join(tempfile.gettempdir(), name)


def _remove_remote_work(storage: Storage, output: str) -> None:
    """Remove the temporary folder of a build whose output is not local; a local one has it in its build folder."""
    if storage.local_path(output) is None:
        shutil.rmtree(_work_folder(storage, output), ignore_errors=True)


# --- in the worker ------------------------------------------------------------------------------------------------

_plan: Callable[[str], WorkPlan] = lru_cache(maxsize=1)(load_plan)
_rows: Callable[[str], Rows] = lru_cache(maxsize=1)(Rows)


def build_shard(number: int, job: Job) -> int:
    """Build shard `number`, upload it and write its record. Returns the number of samples dropped."""
    plan = _plan(job.plan)
    shard = plan.shards[number]
    writer = _Shard(shard, plan, job)
    try:
        sandbox = kept("mmdata.operators.process:process", job.setup, limits=job.sandbox, count=job.sandboxes)
        for row, place, result in _results(shard, plan, job, writer, sandbox):
            writer.add(row, place, result)
        return writer.commit()
    finally:
        writer.discard()


class _Entry(NamedTuple):
    """A planned sample on its way into the shard."""

    row: dict[str, Any]
    place: int
    item: BuildItem | Failure
    apart: bool
    """Whether it goes through the sandbox: only what must be decoded does."""


def _results(
    shard: PlannedShard, plan: WorkPlan, job: Job, writer: _Shard, sandbox: Sandboxes
) -> Iterator[tuple[dict[str, Any], int, Built | Failure]]:
    """(catalog row, place in the plan, result) of each sample in order."""
    entries = _entries(shard, plan, job, writer)
    for entry in entries:
        if entry.apart:
            yield from _decoded(entry, entries, job, sandbox)
        else:
            yield entry.row, entry.place, _copied(entry, job)


def _decoded(
    first: _Entry, entries: Iterator[_Entry], job: Job, sandbox: Sandboxes
) -> Iterator[tuple[dict[str, Any], int, Built | Failure]]:
    """Results from `first` on, while samples for the sandbox follow each other closely."""
    waiting = deque([first])

    def items() -> Iterator[BuildItem | Failure]:
        yield first.item
        copies = 0
        for entry in entries:
            waiting.append(entry)
            copies = 0 if entry.apart else copies + 1
            if entry.apart:
                yield entry.item
            elif copies >= COPIES_AHEAD:
                return

    for result in sandbox.map(items()):
        entry = waiting.popleft()
        yield entry.row, entry.place, result
        while waiting and not waiting[0].apart:
            entry = waiting.popleft()
            yield entry.row, entry.place, _copied(entry, job)
    for entry in waiting:
        yield entry.row, entry.place, _copied(entry, job)


def _entries(shard: PlannedShard, plan: WorkPlan, job: Job, writer: _Shard) -> Iterator[_Entry]:
    for row, place in _planned_rows(shard, plan, job):
        known = writer.verdicts.get(row["key"])
        item = Failure(*known) if known else _item(row, plan, place, job)
        yield _Entry(row, place, item, isinstance(item, BuildItem) and not is_copy(item, job.setup))


def _planned_rows(shard: PlannedShard, plan: WorkPlan, job: Job) -> Iterator[tuple[dict[str, Any], int]]:
    rows = _rows(job.rows)
    for start in range(shard.start, shard.stop, ROWS_AT_ONCE):
        stop = min(start + ROWS_AT_ONCE, shard.stop)
        yield from zip(rows.take(plan.order[start:stop]).to_pylist(), range(start, stop), strict=True)


def _copied(entry: _Entry, job: Job) -> Built | Failure:
    if isinstance(entry.item, Failure):
        return entry.item
    try:
        return copy(entry.item, job.setup)
    except MediaError as error:
        return Failure(type(error).__name__, str(error))


def _item(row: dict[str, Any], plan: WorkPlan, place: int, job: Job) -> BuildItem:
    media = []
    for medium in row["media"] or ():
        ref = MediaRef(**{name: medium[name] for name in MediaRef.__dataclass_fields__})
        info = MediaInfo(**{name: medium[name] for name in MediaInfo.__dataclass_fields__})
        media.append((ref, info, medium["digest"]))
    bucket = plan.buckets[plan.bucket[place]] if plan.bucket[place] >= 0 else None
    check = job.check == "decode" and row["check"] != "decode"
    item = BuildItem(row["key"], row["source"], tuple(media), json.loads(row["fields"]), check)
    if bucket is None:
        return item
    target = (bucket.width, bucket.height) if bucket.width and bucket.height else None
    return BuildItem(item.key, item.leaf, item.media, item.fields, check, target, bucket.frames, bucket.duration)


class _Shard:
    """The open shard of one worker: its file, its quarantine rows and its figures."""

    def __init__(self, shard: PlannedShard, plan: WorkPlan, job: Job) -> None:
        self.shard, self.plan, self.job = shard, plan, job
        self.verdicts = read_verdicts(job.storage, job.output, plan.fingerprint, shard.number)
        self._path = job.storage.temporary(job.work)
        self._writer: ShardWriter | None = None
        self._dropped: list[dict[str, Any]] = []
        self._buckets: dict[str, dict[str, Any]] = {}
        self._members: dict[str, str] = {}

    def add(self, row: dict[str, Any], place: int, result: Built | Failure) -> None:
        """Write one sample, or note why it is not in the shard."""
        if isinstance(result, Failure):
            return self._drop(row, result)
        if self._writer is None:
            with self.job.storage.writing(self._path):
                self._writer = ShardWriter(self._path, self.shard.file, self.job.format, self.job.columns)
        stored = index_columns(row, result.media)
        bucket = self.plan.buckets[self.plan.bucket[place]].name if self.plan.bucket[place] >= 0 else None
        pack = int(self.plan.pack[place])
        placed = {"split": self.shard.split or None, "bucket": bucket, "pack": pack if pack >= 0 else None}
        try:
            self._writer.add(result.members, stored | placed)
        except MediaError as error:
            return self._drop(row, Failure(type(error).__name__, str(error)))
        figures = self._buckets.setdefault(bucket or "none", {"samples": 0, "bytes": 0, "frames": 0, "seconds": 0.0})
        figures["samples"] += 1
        figures["bytes"] += sum(len(data) for _, data in result.members)
        figures["frames"] += stored["frames"] or 0
        figures["seconds"] += stored["duration"] or 0.0
        for name, _ in result.members:
            self._members.setdefault(name, EXTENSIONS.get(name.rpartition(".")[2], "data"))

    def _drop(self, row: dict[str, Any], failure: Failure) -> None:
        if failure.error_class in STICKY and row["key"] not in self.verdicts:
            self.verdicts[row["key"]] = (failure.error_class, failure.message)
            write_verdicts(self.job.storage, self.job.output, self.plan.fingerprint, self.shard.number, self.verdicts)
        place = {name: row[name] for name in ("key", "uri", "offset", "length")}
        self._dropped.append(place | {"stage": "build", "error_class": failure.error_class, "message": failure.message})

    def commit(self) -> int:
        """Upload the shard, then write its record. Returns the number of samples dropped."""
        samples, size, xxh3, index = 0, 0, "", pa.table({})
        if self._writer is not None and len(self._writer):
            with self.job.storage.writing(self._path):
                written = self._writer.close()
            samples, size, xxh3, index = len(self._writer), written.bytes, written.xxh3, written.index
            self.job.storage.upload(self._path, join(self.job.output, self.shard.file))
        record = Record(
            plan=self.plan.fingerprint,
            number=self.shard.number,
            file=self.shard.file,
            split=self.shard.split,
            samples=samples,
            bytes=size,
            xxh3=xxh3,
            buckets=self._buckets,
            members=self._members,
            dropped=self._dropped,
        )
        write_record(self.job.storage, self.job.output, record, index)
        return len(self._dropped)

    def discard(self) -> None:
        """Remove the temporary file, if it is still there."""
        if os.path.exists(self._path):
            os.remove(self._path)
