"""The catalog folder: one Parquet part per source partition, in source order, and `_catalog.json`, written last.

A part is named `part-ORDINAL-PARTITION.parquet`, so that a plain reader of the folder sees the rows in source order,
while a later scan finds a partition's old rows by name wherever it moved to. Nothing here opens media.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from mmdata.errors import DatasetError, FormatError, NotFound
from mmdata.formats.parquet import read_parquet
from mmdata.schema import CATALOG, FORMAT_VERSION
from mmdata.storage import Storage
from mmdata.storage.urls import join

HEAD = "_catalog.json"
"""The underscore keeps plain readers of the folder from taking it for a part."""


@dataclass(frozen=True)
class Part:
    """One committed part: its file name, rows, and the fingerprint of the inputs it was made from."""

    file: str
    rows: int
    inputs: str
    counts: dict[str, int]
    """Rows per status (`ok` and error classes)."""
    members: list[list[str]]
    """[extension, kind, format, codec] of the members of good samples, each once (`data` for text and other fields)."""
    digest: str
    """xxh3-128 of the rows themselves: equal inputs may still be judged differently (a deadline, a mended operator)."""


def part_name(ordinal: int, partition: str) -> str:
    """File name of partition `partition`, the `ordinal`-th of its catalog."""
    return f"part-{ordinal:06d}-{partition}.parquet"


def partition_of(file: str) -> str:
    """Inverse of `part_name`: the partition's own name."""
    return file.removesuffix(".parquet").split("-", 2)[2]


def write_part(
    storage: Storage, url: str, rows: pa.Table, *, inputs: str, scan: str, members: set[tuple[str, str, str, str]]
) -> Part:
    """Write one part atomically. `inputs` and `scan` are the fingerprints of what went in and how it was measured."""
    writer = PartWriter(rows.schema)
    writer.add(rows, members)
    return writer.write(storage, url, inputs=inputs, scan=scan)


class PartWriter:
    """Gathers the rows of one part, compressed; `write` commits them."""

    def __init__(self, schema: pa.Schema) -> None:
        self._sink = pa.BufferOutputStream()
        self._file = pq.ParquetWriter(self._sink, schema.remove_metadata(), compression="zstd")
        self._rows = 0
        self._counts: dict[str, int] = {}
        self._members: set[tuple[str, str, str, str]] = set()
        self._digest = xxhash.xxh3_128()

    def add(self, rows: pa.Table, members: set[tuple[str, str, str, str]]) -> None:
        """Append rows, and the (extension, kind, format, codec) of their members."""
        rows = rows.replace_schema_metadata()
        for batch in rows.to_batches():
            self._digest.update(batch.serialize())
        for status, count in status_counts(rows).items():
            self._counts[status] = self._counts.get(status, 0) + count
        self._rows += rows.num_rows
        self._members |= members
        self._file.write_table(rows)

    def write(self, storage: Storage, url: str, *, inputs: str, scan: str) -> Part:
        """Write the part atomically. `inputs` and `scan` are the fingerprints of what went in and how it was
        measured."""
        counts = dict(sorted(self._counts.items()))
        listed = [list(member) for member in sorted(self._members)]
        digest = self._digest.hexdigest()
        facts = {"inputs": inputs, "scan": scan, "counts": counts, "members": listed, "digest": digest}
        self._file.add_key_value_metadata({"tessera": json.dumps(facts, sort_keys=True)})
        self._file.close()
        storage.write(url, self._sink.getvalue().to_pybytes())
        return Part(url.rsplit("/", 1)[-1], self._rows, inputs, counts, listed, digest)


def read_part_facts(storage: Storage, url: str) -> tuple[Part, str]:
    """The facts a part carries and its scan fingerprint, from the file's footer alone.

    Raises:
        FormatError: it is damaged, or no part of a catalog of this release.
    """
    try:
        with storage.open(url) as stream:
            footer = pq.read_metadata(stream)
        facts = json.loads(footer.metadata[b"tessera"])
        name = url.rsplit("/", 1)[-1]
        part = Part(name, footer.num_rows, facts["inputs"], facts["counts"], facts["members"], facts["digest"])
        return part, facts["scan"]
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(f"{url}: damaged, or no part of a catalog of this release ({error}); scan again") from error


@contextmanager
def _open_part(storage: Storage, url: str) -> Iterator[BinaryIO]:
    """The part as a file; what Arrow finds wrong with it is a FormatError that names it."""
    try:
        with storage.open(url) as stream:
            yield stream
    except (ValueError, OSError) as error:
        raise FormatError(f"{url}: damaged ({error}); scan again") from error


def status_counts(rows: pa.Table) -> dict[str, int]:
    """Rows per status, sorted by name."""
    counted = pc.value_counts(rows["status"]).to_pylist()
    return {row["values"]: row["counts"] for row in sorted(counted, key=lambda row: row["values"])}


@dataclass(frozen=True)
class Catalog:
    """A committed catalog. Columns are read a part at a time; nothing holds the whole of it unless asked to."""

    storage: Storage
    url: str
    parts: tuple[Part, ...]
    scan: str
    """Fingerprint of the scan settings."""
    check: str
    ignored: dict[str, int]
    """Files of the sources that are no media, by extension: they have no row."""

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    @property
    def counts(self) -> dict[str, int]:
        """Rows per status over all parts."""
        total: dict[str, int] = {}
        for part in self.parts:
            for status, count in part.counts.items():
                total[status] = total.get(status, 0) + count
        return dict(sorted(total.items()))

    @property
    def members(self) -> list[tuple[str, str, str, str]]:
        """(extension, kind, format, codec) of the members of good samples, each once, sorted."""
        return sorted({(member[0], member[1], member[2], member[3]) for part in self.parts for member in part.members})

    @property
    def fingerprint(self) -> str:
        """Changes whenever a row may have changed."""
        text = json.dumps([self.scan, [[part.rows, part.inputs, part.digest] for part in self.parts]])
        return xxhash.xxh3_128_hexdigest(text.encode())

    def schema(self) -> pa.Schema:
        """Columns of the rows, statistics included."""
        if not self.parts:
            return CATALOG
        with _open_part(self.storage, join(self.url, self.parts[0].file)) as stream:
            return pq.read_schema(stream).remove_metadata()

    def read(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Rows in source order, a table per part."""
        for part in self.parts:
            with _open_part(self.storage, join(self.url, part.file)) as stream:
                table = read_parquet(stream, columns)
            yield table

    def table(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Some columns of all rows at once."""
        tables = list(self.read(columns))
        if tables:
            return pa.concat_tables(tables)
        schema = self.schema()
        return schema.empty_table().select(list(columns) if columns is not None else schema.names)


def commit_catalog(
    storage: Storage, url: str, parts: Sequence[Part], *, scan: str, check: str, ignored: Mapping[str, int]
) -> Catalog:
    """Write `_catalog.json`, which makes the parts a catalog."""
    head = {
        "version": FORMAT_VERSION,
        "scan": scan,
        "check": check,
        "rows": sum(part.rows for part in parts),
        "ignored": dict(sorted(ignored.items())),
        "parts": [asdict(part) for part in parts],
    }
    storage.write(join(url, HEAD), (json.dumps(head, indent=1, sort_keys=True) + "\n").encode())
    return Catalog(storage, url, tuple(parts), scan, check, dict(ignored))


def open_catalog(storage: Storage, url: str) -> Catalog:
    """Open a committed catalog.

    Raises:
        DatasetError: the folder holds no committed catalog, or one of another format version.
    """
    try:
        head = json.loads(storage.read(join(url, HEAD)))
    except NotFound:
        raise DatasetError(f"{url}: no catalog here (no {HEAD}); make one with `mmdata scan RECIPE`") from None
    except ValueError as error:
        raise DatasetError(f"{join(url, HEAD)}: not valid JSON ({error}); scan again") from None
    version = head.get("version") if isinstance(head, dict) else None
    if version != FORMAT_VERSION:
        raise DatasetError(f"{url}: catalog format {version}, this release reads {FORMAT_VERSION}; scan again")
    try:
        parts = tuple(Part(**part) for part in head["parts"])
        return Catalog(storage, url, parts, head["scan"], head["check"], head["ignored"])
    except (KeyError, TypeError) as error:
        raise DatasetError(
            f"{join(url, HEAD)}: not the head of a catalog of this release ({error}); scan again"
        ) from None


def has_catalog(storage: Storage, url: str) -> bool:
    """Whether `url` holds a committed catalog."""
    return storage.exists(join(url, HEAD))
