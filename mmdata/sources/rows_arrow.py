"""Rows of Arrow IPC files and streams (`datasets` stores streams), by record batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from mmdata.errors import FormatError
from mmdata.sources.rows import Cut, Row
from mmdata.sources.rows_parquet import python_rows

_SLICE_BYTES = 16 << 20


class Arrow:
    """An Arrow IPC file or stream. A cut is one record batch, or several small ones."""

    def __init__(self, open_file: Callable[[], BinaryIO], name: str) -> None:
        self._open = open_file
        self._name = name

    def columns(self) -> list[str]:
        with self._open() as file:
            return list(self._reader(file)[0].schema.names)

    def cuts(self, rows: int) -> Iterator[Cut]:
        first = start = count = number = 0
        with self._open() as file:
            for number, batch in enumerate(self._batches(file, 0)):
                if isinstance(batch, Exception):
                    raise FormatError(f"{self._name}: record batch {number} cannot be read: {batch}") from batch
                if count and count + batch.num_rows > rows:
                    yield Cut(first, count, {"first": start, "last": number})
                    first, start, count = first + count, number, 0
                count += batch.num_rows
        if count:
            yield Cut(first, count, {"first": start, "last": number + 1})

    def rows(self, cut: Cut) -> Iterator[Row]:
        import pyarrow as pa

        number, first, last = cut.first_row, cut.place["first"], cut.place["last"]
        with self._open() as file:
            for position, batch in enumerate(self._batches(file, first), first):
                if position >= last:
                    return
                if isinstance(batch, Exception):
                    lost = f"rows from {number} on (record batch {position}) cannot be read: {batch}"
                    yield Row(number, {}, f"row {number}", lost)
                    return
                try:
                    yield from self._rows(batch, number)
                except (pa.ArrowException, ValueError, OverflowError) as error:
                    lost = f"rows from {number} on (record batch {position}) cannot be read: {error}"
                    yield Row(number, {}, f"row {number}", lost)
                number += batch.num_rows

    def _rows(self, batch: Any, number: int) -> Iterator[Row]:
        step = max(1, min(1024, batch.num_rows * _SLICE_BYTES // max(1, batch.nbytes)))
        for offset in range(0, batch.num_rows, step):
            for values in python_rows(batch.slice(offset, step)):
                yield Row(number, values, f"row {number}")
                number += 1

    def _batches(self, file: BinaryIO, first: int) -> Iterator[Any]:
        """Record batches from number `first` on; an error in place of the batch that cannot be read, then the end."""
        import pyarrow as pa

        reader, is_file = self._reader(file)
        numbers = range(first, reader.num_record_batches) if is_file else None
        position = 0
        while True:
            try:
                if numbers is not None:
                    if position >= len(numbers):
                        return
                    batch = reader.get_batch(numbers[position])
                else:
                    batch = reader.read_next_batch()
            except StopIteration:
                return
            except (pa.ArrowException, OSError) as error:
                yield error
                return
            position += 1
            if numbers is not None or position > first:
                yield batch

    def _reader(self, file: BinaryIO) -> tuple[Any, bool]:
        import pyarrow as pa

        is_file = file.read(6) == b"ARROW1"
        file.seek(0)
        try:
            return (pa.ipc.open_file(file), True) if is_file else (pa.ipc.open_stream(file), False)
        except (pa.ArrowException, OSError) as error:
            raise FormatError(f"{self._name} is not a readable Arrow file or stream: {error}") from error
