"""Arrow shards: IPC files with a row per sample and a column per member extension, uncompressed.

The IPC *file* format is used, not the stream: plain pyarrow opens it by memory map with random access to batches,
`pyarrow.dataset` and other Arrow readers take it, and `datasets.load_dataset("arrow")` does since datasets 3.0. This
file knows the format of one file; which members a dataset has is decided above.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import xxhash

from mmdata.errors import FormatError, InvalidSample, StorageError
from mmdata.formats import Placed
from mmdata.schema import EXTENSIONS

KEY = "__key__"
BATCH_BYTES = 64 << 20
MAX_BATCH_BYTES = (1 << 30) - 1
"""Binary columns have 32-bit offsets; with batches under 1 GiB, readers that concatenate two do not overflow."""
_TEXT = frozenset({"txt", "cls", "json"})


def column_type(extension: str) -> pa.DataType:
    """`string` for txt, cls and json members (also `0.txt`, `meta.json`), `binary` for everything else."""
    return pa.string() if extension.rpartition(".")[2] in _TEXT else pa.binary()


def hugging_face_features(fields: Sequence[str]) -> list[dict[str, str]]:
    """`dataset_info.features` of a dataset card, so that `load_dataset(folder)` types images as Image, audio as Audio.

    It must stand in the card: in the Arrow schema's own metadata `datasets` (3 to 5) believes Image and Audio only for
    columns of struct<bytes, path>, while for a card it converts `binary`.
    """
    features = [{"name": KEY, "dtype": "string"}]
    for extension in sorted(set(fields)):
        kind = EXTENSIONS.get(extension.rpartition(".")[2], "")
        dtype = kind if kind in ("image", "audio") else str(column_type(extension))
        features.append({"name": extension, "dtype": dtype})
    return features


def shard_schema(fields: Sequence[str]) -> pa.Schema:
    """`__key__`, then a column per member extension, sorted; a value is null where the sample lacks the member."""
    columns = [pa.field(extension, column_type(extension)) for extension in sorted(set(fields))]
    return pa.schema([pa.field(KEY, pa.string(), nullable=False), *columns])


class ArrowWriter:
    """Writes one shard to a local path; equal input gives equal bytes. `close` tells where every value lies.

    A batch is flushed before it would hold more than `batch_bytes` of payload. Payloads are kept until then.
    """

    def __init__(self, path: str, fields: Sequence[str], *, batch_bytes: int = BATCH_BYTES) -> None:
        if not 0 < batch_bytes <= MAX_BATCH_BYTES:
            raise ValueError(f"batch_bytes is {batch_bytes}, not between 1 and {MAX_BATCH_BYTES}")
        if KEY in fields:
            raise ValueError(f"a member cannot be called {KEY}")
        self.path = path
        self.schema = shard_schema(fields)
        self.xxh3 = ""
        """xxh3-128 (hex) of the whole file, after `close`."""
        self.size = 0
        """Payload bytes so far (a lower bound of the file's size); the file's size after `close`."""
        self._batch_bytes = batch_bytes
        self._rows: list[tuple[str, dict[str, bytes]]] = []
        self._row_bytes = 0
        self._placed: list[Placed] | None = None
        self._last_key: str | None = None
        try:
            self._file = open(path, "wb")  # noqa: SIM115
            options = pa.ipc.IpcWriteOptions(compression=None)
            self._writer = pa.ipc.new_file(self._file, self.schema, options=options)
        except OSError as error:
            raise StorageError(f"cannot write {path}: {error}") from error

    def add(self, key: str, members: Sequence[tuple[str, bytes]]) -> None:
        """Append one sample. InvalidSample for text that is not UTF-8, a repeated member, a sample of 1 GiB or more."""
        if self._file.closed:
            raise FormatError(f"{self.path} is closed: no sample can be added")
        values = dict(members)
        self._check(key, members, values)
        size = len(key.encode()) + sum(map(len, values.values()))
        if size > MAX_BATCH_BYTES:
            raise InvalidSample(
                f"sample {key!r} has {size} bytes: Arrow shards hold samples under 1 GiB; use the webdataset format"
            )
        if self._rows and self._row_bytes + size > self._batch_bytes:
            self._flush()
        self._rows.append((key, values))
        self._row_bytes += size
        self.size += size
        self._last_key = key

    def close(self) -> list[Placed]:
        """Finish the file, checksum it, and return the place of each sample in the order of `add`."""
        if self._placed is not None:
            return self._placed
        if self._last_key is None:
            raise FormatError(f"no sample was added to {self.path}: an empty shard is never written")
        self._flush()
        try:
            self._writer.close()
            self._file.close()
        except OSError as error:
            raise StorageError(f"cannot write {self.path}: {error}") from error
        with pa.memory_map(self.path) as whole:
            view = whole.read_buffer()
            self.size, self.xxh3 = view.size, xxhash.xxh3_128(view).hexdigest()
        self._placed = list(index_arrow(self.path))
        return self._placed

    def abort(self) -> None:
        """Close and delete the unfinished file."""
        self._rows = []
        if not self._file.closed:
            self._file.close()
        if os.path.exists(self.path):
            os.unlink(self.path)

    def __enter__(self) -> ArrowWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if error is None:
            self.close()
        else:
            self.abort()

    def _check(self, key: str, members: Sequence[tuple[str, bytes]], values: dict[str, bytes]) -> None:
        if not values or len(values) < len(members):
            raise InvalidSample(f"sample {key!r} has {'two members of one name' if values else 'no members'}")
        if key == self._last_key:
            raise InvalidSample(f"two samples in a row have the key {key!r}")
        for extension, payload in values.items():
            if extension not in self.schema.names:
                raise FormatError(
                    f"{self.path}: sample {key!r} has a member {extension!r}, the shard has no such column"
                )
            if column_type(extension) == pa.string():
                try:
                    payload.decode()
                except UnicodeDecodeError as error:
                    raise InvalidSample(f"member {extension!r} of sample {key!r} is not UTF-8: {error}") from error

    def _flush(self) -> None:
        if not self._rows:
            return
        columns = [pa.array([key for key, _ in self._rows], pa.string())]
        for column in list(self.schema)[1:]:
            values = [members.get(column.name) for _, members in self._rows]
            columns.append(pa.array(values, column.type))
        try:
            self._writer.write_batch(pa.record_batch(columns, schema=self.schema))
        except OSError as error:
            raise StorageError(f"cannot write {self.path}: {error}") from error
        self._rows, self._row_bytes = [], 0


def index_arrow(path: str) -> Iterator[Placed]:
    """Place of each sample's members in a finished local shard, in row order, by the addresses of Arrow's buffers."""
    with pa.memory_map(path) as source:
        whole = source.read_buffer()
        source.seek(0)
        with _open(source, path) as reader:
            names = reader.schema.names[1:]
            for number in range(reader.num_record_batches):
                batch = reader.get_batch(number)
                columns = [_places(column, whole, path) for column in batch.columns[1:]]
                for row in range(batch.num_rows):
                    places = ((name, column[row]) for name, column in zip(names, columns, strict=True))
                    found = [(name, *place) for name, place in places if place is not None]
                    yield Placed(tuple(f[0] for f in found), tuple(f[1] for f in found), tuple(f[2] for f in found))


def _places(column: pa.Array, whole: pa.Buffer, path: str) -> list[tuple[int, int] | None]:
    """(offset, length) in the file of each value of a binary or string column, None for nulls."""
    _, ends_buffer, data = column.buffers()
    ends = np.frombuffer(ends_buffer, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    start = data.address - whole.address if data is not None and data.size else 0
    if start < 0 or start + int(ends[-1]) > whole.size:
        raise FormatError(f"{path}: values lie outside the mapped file: it is compressed or not laid out by mmdata")
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    offsets, lengths = (ends[:-1] + start).tolist(), np.diff(ends).tolist()
    return [place if there else None for place, there in zip(zip(offsets, lengths, strict=True), valid, strict=True)]


def read_rows(source: str | BinaryIO) -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """(key, [(extension, bytes)]) of every sample of a shard: a local path (memory-mapped) or a seekable file."""
    name = source if isinstance(source, str) else str(getattr(source, "name", "the Arrow file"))
    with pa.memory_map(source) if isinstance(source, str) else pa.PythonFile(source, mode="r") as opened:
        reader = _open(opened, name)
        names = reader.schema.names
        for number in range(reader.num_record_batches):
            try:
                batch = reader.get_batch(number)
                batch.validate(full=True)
            except pa.ArrowInvalid as error:
                raise FormatError(f"{name}: record batch {number} is damaged: {error}") from error
            for row in range(batch.num_rows):
                values = [column[row].as_py() for column in batch.columns]
                members = [(n, v.encode() if isinstance(v, str) else v) for n, v in zip(names, values, strict=True)]
                yield values[0], [(n, v) for n, v in members[1:] if v is not None]


def _open(source: Any, name: str) -> Any:
    try:
        reader = pa.ipc.open_file(source)
    except (pa.ArrowInvalid, OSError) as error:
        raise FormatError(f"{name}: not a whole Arrow IPC file: {error}") from error
    if reader.schema.names[:1] != [KEY]:
        raise FormatError(f"{name}: the first column is not {KEY}")
    return reader
