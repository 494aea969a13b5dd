"""Rows of Parquet files, by row groups. A damaged row group costs its own rows only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from mmdata.errors import FormatError
from mmdata.sources.rows import Cut, Row

_BATCH_BYTES = 16 << 20
_CUT_BYTES = 256 << 20


def python_rows(batch: Any) -> list[dict[str, Any]]:
    """Rows of a record batch as Python values. Times in nanoseconds are cut to microseconds, which Python can hold."""
    import pyarrow as pa

    columns = []
    for column in batch.columns:
        if pa.types.is_temporal(column.type) and getattr(column.type, "unit", "") == "ns":
            kinds = {pa.types.is_timestamp: pa.timestamp("us", getattr(column.type, "tz", None))}
            kinds |= {pa.types.is_time64: pa.time64("us"), pa.types.is_duration: pa.duration("us")}
            target = next(kind for test, kind in kinds.items() if test(column.type))
            column = column.cast(target, safe=False)
        columns.append(column.to_pylist())
    names = batch.schema.names
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


class Parquet:
    """A Parquet file. A cut is one row group, or several small ones; a large row group is never cut, because reading
    any of its rows means decoding the ones before."""

    def __init__(self, open_file: Callable[[], BinaryIO], name: str) -> None:
        self._open = open_file
        self._name = name

    def columns(self) -> list[str]:
        with self._open() as file:
            return list(self._parquet(file).schema_arrow.names)

    def cuts(self, rows: int) -> Iterator[Cut]:
        with self._open() as file:
            metadata = self._parquet(file).metadata
            sizes = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
            shapes = [(group.num_rows, group.total_byte_size) for group in sizes]
        first = start = count = size = 0
        for group, (group_rows, group_bytes) in enumerate(shapes):
            if count and (count + group_rows > rows or size + group_bytes > _CUT_BYTES):
                yield Cut(first, count, {"first": start, "last": group})
                first, start, count, size = first + count, group, 0, 0
            count += group_rows
            size += group_bytes
        if count:
            yield Cut(first, count, {"first": start, "last": len(shapes)})

    def rows(self, cut: Cut) -> Iterator[Row]:
        import pyarrow as pa

        with self._open() as file:
            parquet = self._parquet(file)
            number = cut.first_row
            for group in range(cut.place["first"], cut.place["last"]):
                facts = parquet.metadata.row_group(group)
                end = number + facts.num_rows
                size = max(1, min(1024, facts.num_rows * _BATCH_BYTES // max(1, facts.total_byte_size)))
                batches = parquet.iter_batches(batch_size=size, row_groups=[group], use_threads=False)
                try:
                    for batch in batches:
                        for values in python_rows(batch):
                            yield Row(number, values, f"row {number}")
                            number += 1
                except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
                    lost = f"rows {number} to {end - 1} (row group {group}) cannot be read: {error}"
                    yield Row(number, {}, f"row {number}", lost)
                    number = end

    def _parquet(self, file: BinaryIO) -> Any:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            return pq.ParquetFile(file, pre_buffer=False)
        except (pa.ArrowException, OSError) as error:
            raise FormatError(f"{self._name} is not a readable Parquet file: {error}") from error
