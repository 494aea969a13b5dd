"""Fold the per-shard records of a finished build into the dataset: index, quarantine, card, manifest. The manifest is
last.

Every file here is a pure function of plan and records, so a commit that was killed is simply done again.
"""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from mmdata.errors import DatasetError
from mmdata.schema import FORMAT_VERSION, INDEX, QUARANTINE
from mmdata.shards.card import card
from mmdata.shards.dataset import (
    BUILD_FOLDER,
    CARD_FILE,
    PLAN_FILE,
    QUARANTINE_FILE,
    RECIPE_FILE,
    Conservation,
    Manifest,
    ShardRow,
)
from mmdata.shards.energon import is_prepared, remove_energon, tar_index_file, write_energon
from mmdata.shards.plan import Plan
from mmdata.shards.records import Record, index_url, read_record
from mmdata.shards.rows import Rows
from mmdata.storage import Storage
from mmdata.storage.urls import join

INDEX_BYTES = 64 * 1024 * 1024
"""Size at which the next index file is begun."""

QUARANTINE_BATCH = 64 * 1024


def read_records(storage: Storage, output: str, plan: Plan) -> list[Record]:
    """All records of the plan, in shard order.

    Raises:
        DatasetError: shards are missing; the message says which.
    """
    records, missing = [], []
    for shard in plan.shards:
        record = read_record(storage, output, shard.number, plan.fingerprint)
        if record is None:
            missing.append(shard.number)
        else:
            records.append(record)
    if missing:
        some = ", ".join(map(str, missing[:8])) + (", …" if len(missing) > 8 else "")
        raise DatasetError(
            f"{output}: {len(missing)} of {len(plan.shards)} shards are not built yet (numbers {some}); "
            "build them with `mmdata build RECIPE` or the missing --shard-range, then commit"
        )
    return records


def fold(
    storage: Storage,
    output: str,
    plan: Plan,
    records: Sequence[Record],
    rows: Rows,
    recipe_yaml: str,
    *,
    columns: Sequence[str] = (),
    energon: str | None = None,
) -> Manifest:
    """Write everything of the dataset but its report and the manifest, which is returned for the caller to commit.

    `columns` are the member columns of Arrow shards. `energon` asks for the files that Megatron-Energon wants, and is a
    local folder for temporary files.
    """
    index = write_index(storage, output, records)
    dropped, quarantine = write_quarantine(storage, output, plan, records, rows)
    storage.write(join(output, RECIPE_FILE), recipe_yaml.encode())
    plan_text = plan_json(plan)
    storage.write(join(output, PLAN_FILE), plan_text)
    shards = tuple(
        ShardRow(record.file, record.split, record.samples, record.bytes, record.xxh3)
        for record in records
        if record.samples
    )
    conservation = Conservation(plan.read, sum(shard.samples for shard in shards), dropped)
    conservation.check()
    manifest = Manifest(
        name=plan.name,
        format=plan.format,
        check=plan.check,
        seed=plan.seed,
        recipe=plan.recipe,
        catalog=plan.catalog,
        plan=plan.fingerprint,
        shards=shards,
        buckets=_buckets(records),
        conservation=conservation,
        members=_members(records),
        index=tuple(index),
        ignored=plan.ignored,
        checksums=index | {QUARANTINE_FILE: quarantine, PLAN_FILE: xxhash.xxh3_128_hexdigest(plan_text)},
    )
    storage.write(join(output, CARD_FILE), card(manifest, columns).encode())
    if energon is None:
        remove_energon(storage, output)
    else:
        write_energon(storage, output, manifest, energon)
    return manifest


def clean(storage: Storage, output: str, manifest: Manifest) -> None:
    """After the manifest: remove the build folder, and shards and index files that earlier builds left behind."""
    wanted = {shard.file for shard in manifest.shards} | set(manifest.index)
    if is_prepared(storage, output):
        wanted |= {tar_index_file(shard.file) for shard in manifest.shards}
    base = output.rstrip("/") + "/"
    for folder in ("shards", "index"):
        storage.clean(join(output, folder))
        for entry in list(storage.list(join(output, folder))):
            if entry.url.removeprefix(base) not in wanted:
                storage.delete(entry.url)
    storage.clean(output)
    build = join(output, BUILD_FOLDER)
    local = storage.local_path(build)
    if local is not None:
        shutil.rmtree(local, ignore_errors=True)
        return
    for entry in list(storage.list(build)):
        storage.delete(entry.url)


def write_index(storage: Storage, output: str, records: Sequence[Record]) -> dict[str, str]:
    """Merge the index parts into `index/part-000000.parquet`, …: a row group per shard. Returns the files written, in
    order, each with its xxh3-128."""
    files: dict[str, str] = {}
    buffer: io.BytesIO | None = None
    writer: pq.ParquetWriter | None = None
    for record in records:
        if not record.samples:
            continue
        if writer is None:
            buffer = io.BytesIO()
            writer = pq.ParquetWriter(buffer, INDEX, compression="zstd")
        part = pq.read_table(pa.BufferReader(storage.read(index_url(output, record.number))), schema=INDEX)
        writer.write_table(part, row_group_size=max(part.num_rows, 1))
        assert buffer is not None
        if buffer.tell() >= INDEX_BYTES:
            files |= _finish_index(storage, output, len(files), writer, buffer)
            writer = None
    if writer is not None:
        assert buffer is not None
        files |= _finish_index(storage, output, len(files), writer, buffer)
    return files


def _finish_index(
    storage: Storage, output: str, number: int, writer: pq.ParquetWriter, buffer: io.BytesIO
) -> dict[str, str]:
    writer.close()
    file = f"index/part-{number:06d}.parquet"
    storage.write(join(output, file), buffer.getvalue())
    return {file: xxhash.xxh3_128_hexdigest(buffer.getbuffer())}


def write_quarantine(
    storage: Storage, output: str, plan: Plan, records: Sequence[Record], rows: Rows
) -> tuple[dict[str, int], str]:
    """Write `quarantine.parquet`, a row per sample that is not in the shards. Returns samples per `stage/reason`, and
    the file's xxh3-128."""
    counts: dict[str, int] = {}
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, QUARANTINE, compression="zstd") as writer:
        for table in _quarantine_tables(plan, records, rows):
            for stage, reason in zip(table["stage"].to_pylist(), table["error_class"].to_pylist(), strict=True):
                name = f"{stage}/{reason}"
                counts[name] = counts.get(name, 0) + 1
            writer.write_table(table)
    storage.write(join(output, QUARANTINE_FILE), sink.getvalue())
    return dict(sorted(counts.items())), xxhash.xxh3_128_hexdigest(sink.getbuffer())


def _quarantine_tables(plan: Plan, records: Sequence[Record], rows: Rows) -> Iterator[pa.Table]:
    for start in range(0, len(plan.dropped), QUARANTINE_BATCH):
        chosen = plan.dropped[start : start + QUARANTINE_BATCH]
        reasons = plan.dropped_reason[start : start + QUARANTINE_BATCH]
        table = rows.take(chosen, ["key", "uri", "offset", "length", "detail"])
        pairs = [plan.reasons[code] for code in np.asarray(reasons)]
        messages = [text or plan_text.text for text, plan_text in zip(table["detail"].to_pylist(), pairs, strict=True)]
        columns = {
            **{name: table[name] for name in ("key", "uri", "offset", "length")},
            "stage": pa.array([reason.stage for reason in pairs], pa.string()),
            "error_class": pa.array([reason.name for reason in pairs], pa.string()),
            "message": pa.array(messages, pa.string()),
        }
        yield pa.table(columns).select(QUARANTINE.names).cast(QUARANTINE)
    for record in records:
        if record.dropped:
            yield pa.Table.from_pylist(record.dropped, schema=QUARANTINE)


def plan_json(plan: Plan) -> bytes:
    """The plan's fingerprint, buckets and shards, for people and for `inspect`."""
    document = {
        "version": FORMAT_VERSION,
        "plan": plan.fingerprint,
        "recipe": plan.recipe,
        "catalog": plan.catalog,
        "buckets": [bucket.to_dict() for bucket in plan.buckets],
        "packs": plan.pack_figures,
        "shards": [
            {"number": s.number, "file": s.file, "split": s.split, "samples": s.stop - s.start} for s in plan.shards
        ],
    }
    return (json.dumps(document, indent=1, sort_keys=True) + "\n").encode()


def _buckets(records: Sequence[Record]) -> dict[str, dict[str, Any]]:
    total: dict[str, dict[str, Any]] = {}
    for record in records:
        for name, figures in record.buckets.items():
            sums = total.setdefault(name, dict.fromkeys(figures, 0))
            for figure, value in figures.items():
                sums[figure] = round(sums[figure] + value, 6)
    return dict(sorted(total.items()))


def _members(records: Sequence[Record]) -> dict[str, str]:
    members: dict[str, str] = {}
    for record in records:
        members |= record.members
    return dict(sorted(members.items()))
