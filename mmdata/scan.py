"""Scan: open every medium of the sources once and write the catalog, a row per sample, in source order.

Work is cut into the sources' own partitions. A partition whose inputs are as they were is taken over whole; in a
changed one only new or changed samples are measured. Killing a scan costs the partitions that were open.
"""

from __future__ import annotations

import io
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain as joined
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from mmdata.engines.local import run
from mmdata.engines.preload import MODULES
from mmdata.errors import ConfigError, ErrorLimitExceeded, FormatError, NotFound
from mmdata.formats.parquet import read_parquet
from mmdata.media.sandbox import Failure, Sandboxes, kept, share
from mmdata.media.sandbox import Limits as SandboxLimits
from mmdata.operators.chain import Setup
from mmdata.operators.registry import statistic_columns, statistics_for
from mmdata.processes import expect
from mmdata.recipe import MODALITIES, Limits, Recipe
from mmdata.schema import CATALOG, SourceSample, geometry, modality
from mmdata.shards.catalog import (
    HEAD,
    Catalog,
    Part,
    PartWriter,
    commit_catalog,
    part_name,
    partition_of,
    read_part_facts,
)
from mmdata.sources import Partition, Source, open_source
from mmdata.storage import Storage, StorageSettings, open_storage
from mmdata.storage.urls import join

VOLATILE = frozenset({"OperatorError", "MissingMedia", "UnsupportedMedia"})
"""Verdicts that a later scan does not take over: their cause lies outside the sample's bytes."""

LOOK_AHEAD = 8
"""Partitions that are listed before the first is scanned, to see whether there are enough of them for all workers."""

_JSON = json.JSONEncoder(ensure_ascii=False).encode

CHUNK = 4096
"""Samples of a partition that are Python objects at a time: a tar may hold a million."""

Progress = Callable[[int, int], None]
"""Called with (samples done, samples bad)."""

Waiting = Callable[[str, float], None]
"""Called about once a second with what is in flight for longest, and for how many seconds."""


@dataclass(frozen=True)
class Job:
    """Everything a worker needs to scan a partition. Sent to each worker once."""

    storage: Storage
    catalog: str
    sources: tuple[Source, ...]
    setup: Setup
    sandbox: SandboxLimits
    statistics: dict[str, pa.DataType]
    """Catalog columns of the statistics."""
    measure: str
    """Fingerprint of the settings that decide what a row says: rows of an earlier scan hold while it is equal."""
    sandboxes: int = 1
    """Decoding processes of a worker."""


@dataclass(frozen=True)
class Task:
    """One partition of one source, and the part an earlier scan left of it."""

    ordinal: int
    source: int
    partition: Partition
    name: str
    earlier: str | None


@dataclass(frozen=True)
class Scanned:
    """What a scan did. `measured` counts the samples that were opened, the rest were taken over from an earlier
    scan."""

    catalog: Catalog
    measured: int


def preview(recipe: Recipe) -> dict[str, Any]:
    """What `scan` would look at: each source with its samples, as far as listing tells them, and partitions. Writes
    nothing.

    Raises:
        ConfigError, StorageError: as `scan` does for sources that are not there or match nothing.
    """
    storage = open_storage(StorageSettings(**recipe.storage.arguments()))
    ignored: dict[str, int] = {}
    rows = []
    with tempfile.TemporaryDirectory(prefix="mmdata-") as spool:
        for settings in recipe.source:
            source = open_source(settings, storage, spool, recipe.scan.partition)
            counts = [partition.count for partition in source.partitions()]
            known = [count for count in counts if count is not None]
            samples = sum(known) if len(known) == len(counts) else None
            rows.append({"source": source.name, "samples": samples, "partitions": len(counts)})
            for extension, count in source.ignored.items():
                ignored[extension] = ignored.get(extension, 0) + count
    return {"catalog": recipe.catalog, "sources": rows, "ignored": dict(sorted(ignored.items()))}


def scan(recipe: Recipe, *, workers: int, progress: Progress | None = None, waiting: Waiting | None = None) -> Scanned:
    """Scan the sources of `recipe` into its catalog folder.

    Raises:
        ConfigError: the sources hold no sample at all.
        ErrorLimitExceeded: more samples are bad than `limits.max_bad`; the catalog is written all the same.
        StorageError: something could not be read; run again to go on.
    """
    storage = open_storage(StorageSettings(**recipe.storage.arguments()))
    catalog = recipe.catalog
    expect(MODULES)
    job = _job(recipe, storage, catalog)
    earlier = _earlier_parts(storage, catalog)
    done: dict[int, tuple[Part, int]] = {}
    open_tasks: dict[int, Task] = {}
    seen = bad = 0

    tasks = _tasks(job.sources, earlier)
    first = list(islice(tasks, LOOK_AHEAD))
    few = len(first) < LOOK_AHEAD

    def numbers() -> Iterator[int]:
        for task in joined(first, tasks):
            if task.ordinal == 0:  # not before: sources that cannot be listed leave the catalog as it was
                storage.delete(join(catalog, HEAD))
            open_tasks[task.ordinal] = task
            yield task.ordinal

    def on_done(number: int, result: tuple[Part, int]) -> None:
        nonlocal seen, bad
        done[number] = result
        del open_tasks[number]
        seen, bad = seen + result[0].rows, bad + _bad(result[0].counts)
        if progress is not None:
            progress(seen, bad)

    def on_progress(oldest: tuple[int, float] | None) -> None:
        if waiting is not None and oldest is not None and oldest[0] in open_tasks:
            task = open_tasks[oldest[0]]
            waiting(f"{task.partition.name} of {job.sources[task.source].name}", oldest[1])

    run(
        "mmdata.scan:scan_partition",
        replace(job, sandboxes=share(workers, len(first)) if few else 1),
        numbers(),
        workers=workers,
        on_done=on_done,
        on_progress=on_progress,
        payload=open_tasks.__getitem__,
        preload=MODULES,
    )
    parts = [done[ordinal][0] for ordinal in sorted(done)]
    if not sum(part.rows for part in parts):
        raise ConfigError(_nothing_found(job.sources))
    ignored: dict[str, int] = {}
    for source in job.sources:
        for extension, count in source.ignored.items():
            ignored[extension] = ignored.get(extension, 0) + count
    committed = commit_catalog(
        storage, catalog, parts, scan=recipe.scan_fingerprint(), check=recipe.scan.check, ignored=ignored
    )
    storage.clean(catalog)
    kept = {part.file for part in parts}
    for file in _part_files(storage, catalog):
        if file not in kept:
            storage.delete(join(catalog, file))
    check_limit(committed, recipe.limits)
    return Scanned(committed, sum(measured for _, measured in done.values()))


def check_limit(catalog: Catalog, limits: Limits) -> None:
    """Raise ErrorLimitExceeded when the catalog holds more bad samples than `limits.max_bad` allows."""
    bad, rows = _bad(catalog.counts), catalog.rows
    if limits.allows(bad, rows):
        return
    classes = ", ".join(f"{count} {status}" for status, count in catalog.counts.items() if status != "ok")
    raise ErrorLimitExceeded(
        f"{bad} of {rows} samples are bad ({classes}), over limits.max_bad {limits.max_bad}; "
        f"see them with `mmdata inspect {catalog.url} --bad`, mend or exclude them, or raise the limit"
    )


def _bad(counts: Mapping[str, int]) -> int:
    return sum(count for status, count in counts.items() if status != "ok")


def _job(recipe: Recipe, storage: Storage, catalog: str) -> Job:
    spool = join(catalog, "_spool")
    requested = recipe.scan.statistics
    setup = Setup(
        storage=storage,
        limits=recipe.limits,
        decode=recipe.decode,
        check=recipe.scan.check,
        exact_frames=recipe.scan.exact_frames,
        digest=recipe.digests,
        statistics={each: statistics_for(requested, each) for each in MODALITIES},
        transforms={"text": recipe.transforms.text},
        seed=recipe.seed,
    )
    columns = {name: kind for name, kind in statistic_columns(requested).items() if name not in CATALOG.names}
    sources = tuple(open_source(each, storage, spool, recipe.scan.partition) for each in recipe.source)
    return Job(storage, catalog, sources, setup, sandbox_limits(recipe.limits), columns, recipe.measure_fingerprint())


def sandbox_limits(limits: Limits) -> SandboxLimits:
    """The limits of one sample, as the sandbox takes them."""
    return SandboxLimits(cpu_s=limits.cpu, wall_s=limits.wall, memory_bytes=limits.memory)


def _earlier_parts(storage: Storage, catalog: str) -> dict[str, str]:
    """Partition name to the file of parts that an earlier scan, finished or not, left."""
    return {partition_of(file): file for file in _part_files(storage, catalog)}


def _part_files(storage: Storage, catalog: str) -> list[str]:
    try:
        files = [entry.url.rsplit("/", 1)[-1] for entry in storage.list(catalog, recursive=False)]
    except NotFound:
        return []
    return [file for file in files if file.startswith("part-") and file.endswith(".parquet")]


def _tasks(sources: Sequence[Source], earlier: Mapping[str, str]) -> Iterator[Task]:
    ordinal = 0
    namesakes: Counter[str] = Counter()
    for number, source in enumerate(sources):
        namesakes[source.name] += 1  # the same files may be read twice, under two key prefixes
        for partition in _partitions(source, number):
            text = f"{source.name}\0{namesakes[source.name]}\0{partition.name}"
            name = xxhash.xxh3_64_hexdigest(text.encode("utf-8", "surrogatepass"))
            yield Task(ordinal, number, partition, name, earlier.get(name))
            ordinal += 1


def _partitions(source: Source, number: int) -> Iterator[Partition]:
    """The partitions of `source.N`. Files that are not there are a mistake of the recipe, named by its place."""
    try:
        yield from source.partitions()
    except NotFound as error:
        raise ConfigError(f"source.{number}.path: {error}") from None


def _nothing_found(sources: Sequence[Source]) -> str:
    seen = sum(sum(source.ignored.values()) for source in sources)
    where = ", ".join(source.name for source in sources)
    hint = f"; {seen} files there have no media extension" if seen else ""
    return f"source: no sample found in {where}{hint}; check path and include"


# --- in the worker ------------------------------------------------------------------------------------------------


def scan_partition(task: Task, job: Job) -> tuple[Part, int]:
    """Scan one partition and write its part. Returns the part and how many samples were measured."""
    url = join(job.catalog, part_name(task.ordinal, task.name))
    earlier = _take_over(task, job, url)
    if isinstance(earlier, Part):
        return earlier, 0
    schema = catalog_schema(job.statistics)
    writer, inputs, measured = PartWriter(schema), _Inputs(task, job), 0
    sandbox = kept("mmdata.operators.measure:measure", job.setup, limits=job.sandbox, count=job.sandboxes)
    samples = job.sources[task.source].samples(task.partition)
    while chunk := list(islice(samples, CHUNK)):
        stamps = [inputs.add(sample) for sample in chunk]
        rows = earlier.rows(chunk, stamps, inputs.leaf) if earlier is not None else {}
        fresh = [i for i in range(len(chunk)) if i not in rows]
        results = _measured([chunk[i] for i in fresh], inputs.leaf, sandbox)
        for i, result in zip(fresh, results, strict=True):
            rows[i] = _row(chunk[i], stamps[i], inputs.leaf, result, job)
        table = pa.Table.from_pylist([rows[i] for i in range(len(chunk))], schema=schema)
        writer.add(table, _members(row for row in rows.values() if row["status"] == "ok"))
        measured += len(fresh)
    return writer.write(job.storage, url, inputs=inputs.fingerprint, scan=job.measure), measured


def _measured(samples: Sequence[SourceSample], leaf: str, sandbox: Sandboxes) -> Iterator[Mapping[str, Any] | Failure]:
    """The result of each sample in order; those whose description is bad are not opened."""
    results = sandbox.map((leaf, sample) for sample in samples if sample.error is None)
    for sample in samples:
        yield next(results) if sample.error is None else Failure(*sample.error)
    next(results, None)  # to its end, so that the sandbox is free for the next chunk


class _Inputs:
    """Fingerprint of what goes into a part: its samples in order, each with its stamp and its row in the source."""

    def __init__(self, task: Task, job: Job) -> None:
        self.leaf = f"source.{task.source}"
        # Texts are measured as text transforms leave them, and those may draw by the leaf.
        self._drawn = self.leaf if job.setup.transforms.get("text") else ""
        self._running = xxhash.xxh3_128(self.leaf.encode())

    def add(self, sample: SourceSample) -> str:
        """Count `sample` in and give its stamp."""
        stamp = sample_stamp(sample, self._drawn)
        self._running.update(f"{stamp}:{sample.row};".encode())
        return stamp

    @property
    def fingerprint(self) -> str:
        return self._running.hexdigest()


def _members(rows: Iterable[Mapping[str, Any]]) -> set[tuple[str, str, str, str]]:
    members: set[tuple[str, str, str, str]] = set()
    for row in rows:
        members |= {(m["field"], m["kind"], m["format"], m["codec"]) for m in row["media"]}
        if row["fields"] != "{}":
            members |= {(name, "data", "", "") for name in json.loads(row["fields"])}
    return members


def catalog_schema(statistics: Mapping[str, pa.DataType]) -> pa.Schema:
    """The catalog's columns with those of the statistics behind them."""
    return pa.schema([*CATALOG, *(pa.field(name, kind) for name, kind in statistics.items())])


def sample_stamp(sample: SourceSample, leaf: str = "") -> str:
    """Changes when anything about the sample's description or the stamp of one of its media changes."""
    parts = [leaf, sample.key, sample.stamp, sample.group, sample.error, sample.fields]
    media = [[ref.field, ref.kind, ref.uri, ref.offset, ref.length, ref.stamp] for ref in sample.media]
    return xxhash.xxh3_128_hexdigest(json.dumps([parts, media]).encode())


class _Earlier:
    """Rows of an earlier part whose verdicts still hold, by stamp. They stay Arrow until they are asked for."""

    def __init__(self, table: pa.Table) -> None:
        holds = pc.invert(pc.is_in(table["status"], pa.array(sorted(VOLATILE))))
        self._table = table.filter(holds).combine_chunks()
        self._place = {stamp: place for place, stamp in enumerate(self._table["stamp"].to_pylist())}

    def rows(self, samples: Sequence[SourceSample], stamps: Sequence[str], leaf: str) -> dict[int, dict[str, Any]]:
        """Rows by number of the sample. Where a sample stands is told anew: it may have moved."""
        found = [i for i, stamp in enumerate(stamps) if stamp in self._place]
        taken = self._table.take(pa.array([self._place[stamps[i]] for i in found], pa.int64())).to_pylist()
        return {i: row | {"row": samples[i].row, "source": leaf} for i, row in zip(found, taken, strict=True)}


def _take_over(task: Task, job: Job, url: str) -> Part | _Earlier | None:
    """The earlier part as it is, when nothing changed; else its rows, as far as they still hold."""
    if task.earlier is None:
        return None
    earlier = join(job.catalog, task.earlier)
    try:
        part, settings = read_part_facts(job.storage, earlier)
    except FormatError:
        return None  # damaged, or another release's: everything in it is measured again
    if settings != job.measure:
        return None
    inputs = _Inputs(task, job)
    for sample in job.sources[task.source].samples(task.partition):
        inputs.add(sample)
    if part.inputs == inputs.fingerprint and not VOLATILE.intersection(part.counts):
        if earlier != url:
            job.storage.write(url, job.storage.read(earlier))
        return replace(part, file=url.rsplit("/", 1)[-1])
    return _Earlier(read_parquet(io.BytesIO(job.storage.read(earlier))))


def _row(sample: SourceSample, stamp: str, leaf: str, result: Mapping[str, Any] | Failure, job: Job) -> dict[str, Any]:
    """The catalog row of a measured (or failed) sample."""
    if not isinstance(result, Failure):
        result = _misfit(result["stats"], job) or result
    row: dict[str, Any] = {
        "key": sample.key,
        "source": leaf,
        "row": sample.row,
        "stamp": stamp,
        "check": job.setup.check,
        "status": "ok",
        "group": sample.group,
        "label": _label(sample.fields.get("cls", sample.fields.get("label.txt"))),
        "fields": _JSON(sample.fields) if sample.fields else "{}",
    }
    if sample.media:
        first = sample.media[0]
        row |= {"uri": first.uri, "offset": first.offset, "length": first.length}
    if isinstance(result, Failure):
        refs = [{name: getattr(ref, name) for name in ref.__slots__} for ref in sample.media]
        return row | {
            "status": result.error_class,
            "detail": result.message,
            "media": refs,
            "modality": modality([ref.kind for ref in sample.media]),
        }
    media = result["media"]
    row |= geometry(media) | result["stats"] | {"media": media, "modality": modality([m["kind"] for m in media])}
    row["digest"] = _sample_digest(media, sample.fields)
    return row


def _misfit(stats: Mapping[str, Any], job: Job) -> Failure | None:
    """Why the catalog cannot hold what a statistic gave, if it cannot."""
    for name, value in stats.items():
        kind = job.statistics.get(name)
        try:
            pa.scalar(value, kind if kind is not None else CATALOG.field(name).type)
        except (KeyError, pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            return Failure("OperatorError", f"the statistic {name} gave {value!r:.60}: {error}")
    return None


def _label(value: Any) -> str | None:
    return None if value is None or isinstance(value, (dict, list)) else str(value)


def _sample_digest(media: Sequence[Mapping[str, Any]], fields: Mapping[str, Any]) -> str | None:
    """Digest of the sample's media (equal media, equal digest); of its fields when it has no media."""
    if not media:
        return xxhash.xxh3_128_hexdigest(json.dumps(fields, sort_keys=True).encode())
    digests = [m["digest"] for m in media]
    if any(digest is None for digest in digests):
        return None
    return str(digests[0]) if len(digests) == 1 else xxhash.xxh3_128_hexdigest("".join(digests).encode())
