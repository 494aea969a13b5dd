"""Per-shard commit records: what one built shard holds and what it dropped, until `commit` folds them into the dataset.

A shard's record is written after its file and its index part, so a record means that the shard is whole. Its name
carries the plan, so that a listing tells what is built. Before a plan builds anything, the records of other plans go:
it overwrites the files that they vouch for.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mmdata.errors import NotFound
from mmdata.shards.dataset import BUILD_FOLDER
from mmdata.storage import Entry, Storage
from mmdata.storage.urls import join


@dataclass(frozen=True)
class Record:
    """One shard of a build. A shard all of whose samples were dropped has a record and no file (`samples` is 0)."""

    plan: str
    number: int
    file: str
    split: str
    samples: int
    bytes: int
    xxh3: str
    buckets: dict[str, dict[str, Any]] = field(default_factory=dict)
    members: dict[str, str] = field(default_factory=dict)
    dropped: list[dict[str, Any]] = field(default_factory=list)
    """Quarantine rows."""


def record_url(output: str, plan: str, number: int) -> str:
    """Where the record of shard `number` of this plan lies."""
    return join(output, BUILD_FOLDER, "records", f"{plan}-{number:06d}.json")


def index_url(output: str, number: int) -> str:
    """Where the index part of shard `number` lies."""
    return join(output, BUILD_FOLDER, "index", f"{number:06d}.parquet")


def write_record(storage: Storage, output: str, record: Record, index: pa.Table) -> None:
    """Write the index part, then the record that vouches for it and for the shard."""
    if record.samples:
        sink = pa.BufferOutputStream()
        pq.write_table(index, sink, compression="zstd")
        storage.write(index_url(output, record.number), sink.getvalue().to_pybytes())
    storage.write(record_url(output, record.plan, record.number), json.dumps(asdict(record), sort_keys=True).encode())


def read_record(storage: Storage, output: str, number: int, plan: str) -> Record | None:
    """The record of shard `number` of this plan, or None when it is not built."""
    try:
        return Record(**json.loads(storage.read(record_url(output, plan, number))))
    except NotFound:
        return None


def committed_numbers(storage: Storage, output: str, plan: str, numbers: Sequence[int]) -> set[int]:
    """Which of these shards are already built by this plan."""
    present = {entry.url.rsplit("/", 1)[-1] for entry in _listed(storage, output, "records")}
    return {number for number in numbers if f"{plan}-{number:06d}.json" in present}


def forget_other_plans(storage: Storage, output: str, plan: str) -> None:
    """Remove records and verdicts that other plans left unfinished here."""
    for entry in [*_listed(storage, output, "records"), *_listed(storage, output, "verdicts")]:
        if not entry.url.rsplit("/", 1)[-1].startswith(f"{plan}-"):
            storage.delete(entry.url)


def _listed(storage: Storage, output: str, folder: str) -> list[Entry]:
    try:
        return list(storage.list(join(output, BUILD_FOLDER, folder)))
    except NotFound:
        return []


def read_verdicts(storage: Storage, output: str, plan: str, number: int) -> dict[str, tuple[str, str]]:
    """Key to (error class, message) of samples of this shard that a killed run saw time out, crash or run out of
    memory.

    They are not tried again: whether such a sample passes may depend on the machine's load, a shard's bytes may not.
    """
    try:
        return {
            key: (name, text) for key, (name, text) in json.loads(storage.read(_verdicts(output, plan, number))).items()
        }
    except NotFound:
        return {}


def write_verdicts(storage: Storage, output: str, plan: str, number: int, verdicts: dict[str, tuple[str, str]]) -> None:
    """Store the verdicts of shard `number` found so far."""
    storage.write(_verdicts(output, plan, number), json.dumps(verdicts, sort_keys=True).encode())


def _verdicts(output: str, plan: str, number: int) -> str:
    return join(output, BUILD_FOLDER, "verdicts", f"{plan}-{number:06d}.json")
