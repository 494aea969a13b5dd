"""A table whose rows name or hold media: JSON Lines, JSON arrays, CSV, TSV, Parquet and Arrow.

A row is a sample. Knows columns and cells; the formats are behind `rows.RowReader`. Embedded bytes are spooled once,
so that every medium has a place that can be read by itself.
"""

from __future__ import annotations

import json
import posixpath
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import xxhash

from mmdata.errors import ConfigError, InvalidSample, StorageError
from mmdata.recipe.words import nearest, suggest
from mmdata.schema import ANIMATED, Kind, MediaRef, SourceSample, escape_key
from mmdata.sources.cells import Cell, read_cell
from mmdata.sources.contract import SUFFIX, Partition, bad_key, partition_name
from mmdata.sources.inputs import InputFile, input_files
from mmdata.sources.messages import check_placeholders, normalise, normalise_fields, with_messages
from mmdata.sources.rows import Cut, Row, RowReader
from mmdata.sources.rows_json import JsonArray, JsonLines
from mmdata.sources.spool import EmbeddedBytes, Spool
from mmdata.sources.stamps import stamped
from mmdata.sources.table_formats import open_reader
from mmdata.sources.text import json_value, label_member

if TYPE_CHECKING:
    from mmdata.recipe import TableSource
    from mmdata.storage import Storage

DETECTED: dict[Kind, tuple[str, ...]] = {
    "image": ("image", "images"),
    "video": ("video", "videos"),
    "audio": ("audio", "audios"),
}
"""Columns that are taken for media when the recipe names none."""

_SPOOL_VERSION = 1


class Table:
    """Rows of one or many table files.

    Members of a sample: the media; `txt` and `cls` from the columns named so; `json` with every other column, or with
    those that `fields` names; there `messages` holds the conversation in OpenAI's form. Key: the key column, escaped,
    or the file's name and the row number.
    """

    def __init__(self, settings: TableSource, storage: Storage, spool: str, partition: int = 4096) -> None:
        self.name = f"table:{settings.path[0]}" + (f"+{len(settings.path) - 1}" if len(settings.path) > 1 else "")
        self.ignored: Counter[str] = Counter()
        self._settings = settings
        self._storage = storage
        self._spool = Spool(storage, spool)
        self._rows = partition
        self._media: Mapping[Any, tuple[str, ...]] = settings.media or DETECTED

    def partitions(self) -> Iterator[Partition]:
        """Runs of rows: byte ranges of text tables, row groups of Parquet, record batches of Arrow."""
        empty = True
        for file in input_files(self._storage, self._settings.path):
            reader = self._reader(file.url, file.stamp)
            self._check_columns(reader, file)
            for cut in reader.cuts(self._rows):
                empty = False
                place = {"first_row": cut.first_row, "count": cut.count, "place": cut.place}
                payload = {"url": file.url, "stem": file.stem, "stamp": file.stamp, **place}
                yield Partition(partition_name(f"{file.url}-{cut.first_row:09d}"), payload, cut.count)
        if empty:
            raise ConfigError(f"no rows in {', '.join(self._settings.path)}")

    def samples(self, partition: Partition) -> Iterator[SourceSample]:
        yield from stamped(self._storage, self._samples(partition))

    def _samples(self, partition: Partition) -> Iterator[SourceSample]:
        described = json.dumps([_SPOOL_VERSION, partition.payload, self._settings.plain()], sort_keys=True)
        embedded = EmbeddedBytes(self._spool, partition.name + ".bin", described, lambda: self._blobs(partition))
        used: dict[str, int] = {}
        for row in self._rows_of(partition):
            sample = self._sample(partition, row, embedded)
            first = row.number if self._settings.key is None else used.setdefault(sample.key, row.number)
            if first != row.number:
                message = f"the key {sample.key!r} is that of row {first} already"
                key = f"{sample.key}{SUFFIX}{row.number}"
                yield _failed(partition, row, key, message, sample.media)
            else:
                yield sample

    def _reader(self, url: str, stamp: str) -> RowReader:
        return open_reader(self._storage, self._spool, url, stamp, self._settings.format)

    def _rows_of(self, partition: Partition) -> Iterator[Row]:
        payload = partition.payload
        reader = self._reader(payload["url"], payload["stamp"])
        return reader.rows(Cut(payload["first_row"], payload["count"], payload["place"]))

    def _blobs(self, partition: Partition) -> Iterator[bytes]:
        """Embedded media of a partition, in the order in which `_sample` places them."""
        for row in self._rows_of(partition):
            if row.error is None:
                try:
                    cells = self._cells(partition, row)[0]
                except InvalidSample:
                    continue
                yield from (cell.data for cell in cells if cell.data is not None)

    def _sample(self, partition: Partition, row: Row, embedded: EmbeddedBytes) -> SourceSample:
        key = self._key(partition, row)
        if row.error is not None:
            return _failed(partition, row, key, row.error)
        try:
            cells, messages = self._cells(partition, row)
        except InvalidSample as error:
            return _failed(partition, row, key, str(error))
        media = self._refs(cells, embedded)
        try:
            reason = bad_key(key)
            if reason:
                raise InvalidSample(reason)
            fields = self._fields(row.values, cells, messages)
        except InvalidSample as error:
            if bad_key(key):
                key = self._row_key(partition, row)
            return _failed(partition, row, key, str(error), media)
        group = row.values.get(self._settings.group) if self._settings.group else None
        group = None if group is None else str(group)
        written = json.dumps([fields, group, [cell.where for cell in cells]], sort_keys=True)
        stamp = xxhash.xxh3_64_hexdigest(written.encode())
        return SourceSample(key=key, media=media, fields=fields, group=group, row=row.number, stamp=stamp)

    def _row_key(self, partition: Partition, row: Row) -> str:
        return self._settings.key_prefix + escape_key(f"{partition.payload['stem']}-{row.number:08d}")

    def _key(self, partition: Partition, row: Row) -> str:
        column = self._settings.key
        if column is None or row.error is not None:
            return self._row_key(partition, row)
        value = row.values.get(column)
        text = "" if value is None else str(value).strip("/")
        return self._settings.key_prefix + escape_key(text) if text else ""

    def _cells(self, partition: Partition, row: Row) -> tuple[list[Cell], list[dict[str, Any]] | None]:
        """Media of a row in the order of the settings, and its conversation. Raises InvalidSample."""
        messages: list[dict[str, Any]] | None = None
        carried: dict[str, list[Any]] = {}
        column = self._settings.messages
        if column is not None and row.values.get(column) is not None:
            messages, carried = normalise(row.values[column], self._settings.placeholders)
        cells: list[Cell] = []
        for kind, columns in self._media.items():
            found = [cell for name in columns for cell in read_cell(self._media_value(row, name), kind)]
            cells += found or read_cell(carried.get(kind), kind)
        return [self._resolved(cell, partition.payload["url"]) for cell in cells], messages

    def _resolved(self, cell: Cell, table: str) -> Cell:
        """The cell with its whole path or URL. Raises InvalidSample when no store can have it."""
        if cell.where is None:
            return cell
        base = self._settings.base or posixpath.dirname(table) or "."
        try:
            where = self._storage.join(base, cell.where)
            self._storage.local_path(where)
        except StorageError as error:
            raise InvalidSample(str(error)) from error
        return replace(cell, where=where)

    def _media_value(self, row: Row, column: str) -> Any:
        value = row.values.get(column)
        # A column found by its name only may hold something else, such as an image's number.
        return None if not self._settings.media and isinstance(value, (int, float)) else value

    def _refs(self, cells: list[Cell], embedded: EmbeddedBytes) -> tuple[MediaRef, ...]:
        refs = []
        for name, cell in zip(_member_names(cells), cells, strict=True):
            moving = cell.kind == "image" and self._settings.animated == "video" and cell.extension in ANIMATED
            kind: Kind = "video" if moving else cell.kind
            if cell.data is not None:
                url, offset = embedded.place(cell.data)
                stamp = xxhash.xxh3_128_hexdigest(cell.data)
                refs.append(MediaRef(name, kind, url, offset, len(cell.data), stamp))
            else:
                refs.append(MediaRef(name, kind, cell.where or ""))
        return tuple(refs)

    def _fields(
        self, values: dict[str, Any], cells: list[Cell], messages: list[dict[str, Any]] | None
    ) -> dict[str, Any]:
        settings = self._settings
        fields: dict[str, Any] = {}
        if settings.text is not None:
            text = _caption(values.get(settings.text), settings.text)
            if text is not None:
                fields["txt"] = text
        if settings.label is not None and values.get(settings.label) is not None:
            fields.update([label_member(json_value(values[settings.label]))])
        described = self._described(values)
        counts = Counter(cell.kind for cell in cells)
        if messages is not None:
            check_placeholders(messages, counts)
            described = with_messages(described, messages)
        if described:
            fields["json"] = described
        return fields if messages is not None else normalise_fields(fields, counts, settings.placeholders)

    def _described(self, values: dict[str, Any]) -> dict[str, Any]:
        settings = self._settings
        if settings.fields:
            return {name: json_value(values.get(name)) for name in settings.fields}
        taken = {settings.key, settings.text, settings.label, settings.messages}
        if isinstance(values.get(settings.text or ""), (list, tuple)):
            taken.discard(settings.text)
        for columns in self._media.values():
            detected = not settings.media
            taken.update(name for name in columns if not (detected and isinstance(values.get(name), (int, float))))
        return {name: json_value(value) for name, value in values.items() if name not in taken}

    def _check_columns(self, reader: RowReader, file: InputFile) -> None:
        """Refuses a column that is not there. Rows of JSON need not have every column: there only what looks like a
        slip of the pen is refused, or a recipe none of whose columns occurs."""
        settings = self._settings
        single = [settings.key, settings.text, settings.label, settings.messages, settings.group]
        wanted = [name for name in single if name is not None]
        wanted += [name for columns in settings.media.values() for name in columns] + list(settings.fields)
        present = reader.columns()
        missing = [name for name in wanted if name not in present]
        if isinstance(reader, (JsonLines, JsonArray)) and len(missing) < len(wanted):
            unused = [name for name in present if name not in wanted]
            missing = [name for name in missing if nearest(name, unused) is not None]
        if missing and present:
            raise ConfigError(f"{file.url} has no column '{missing[0]}'{suggest(missing[0], present)}")


def _failed(partition: Partition, row: Row, key: str, message: str, media: tuple[MediaRef, ...] = ()) -> SourceSample:
    where = message if message.startswith(row.where) else f"{row.where}: {message}"
    error = (InvalidSample.__name__, f"{partition.payload['url']}, {where}")
    stamp = xxhash.xxh3_64_hexdigest(where.encode("utf-8", "surrogateescape"))
    return SourceSample(key=key, media=media, row=row.number, stamp=stamp, error=error)


def _caption(value: Any, column: str) -> str | None:
    """Text of a cell; of a list of captions the first (the list stays in `json`)."""
    if isinstance(value, (list, tuple)):
        value = next((item for item in value if item), None)
    if value is None or value != value:
        return None
    if isinstance(value, (str, int, float)):
        return str(value)
    raise InvalidSample(f"the text column {column!r} holds {type(value).__name__}, not text")


def _member_names(cells: list[Cell]) -> list[str]:
    """`jpg` for the only medium of its kind, else `0.jpg`, `1.jpg`, counted by kind, or over all where names clash."""
    of_kind = Counter(cell.kind for cell in cells)
    seen: Counter[str] = Counter()
    names = []
    for cell in cells:
        names.append(f"{seen[cell.kind]}.{cell.extension}" if of_kind[cell.kind] > 1 else cell.extension)
        seen[cell.kind] += 1
    if len(set(names)) < len(names):
        return [f"{number}.{cell.extension}" for number, cell in enumerate(cells)]
    return names
