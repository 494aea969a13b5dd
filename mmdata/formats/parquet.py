"""Read Parquet from an open stream, on the calling thread. Knows no schema of ours and no storage.

`pyarrow.parquet.read_table` on a Python stream leaves threads behind that, now and then, abort the interpreter at its
exit; a command that has done its work would then report a failure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq


def read_parquet(stream: BinaryIO, columns: Sequence[str] | None = None) -> pa.Table:
    """The whole file, or some of its columns, without the file's metadata."""
    with pq.ParquetFile(stream) as file:
        table = file.read(columns=None if columns is None else list(columns), use_threads=False)
    return table.replace_schema_metadata()


def read_matching(
    stream: BinaryIO, column: str, values: Sequence[Any], columns: Sequence[str] | None = None
) -> pa.Table:
    """The rows whose `column` holds one of `values`. Row groups that cannot have one are not read."""
    with pq.ParquetFile(stream) as file:
        wanted = pa.array(values, file.schema_arrow.field(column).type)
        names = file.schema_arrow.names if columns is None else list(columns)
        found = []
        for group in range(file.num_row_groups):
            if not _may_hold(file.metadata.row_group(group), column, values):
                continue
            keep = pc.is_in(file.read_row_group(group, columns=[column], use_threads=False)[column], wanted)
            if pc.any(keep).as_py():
                found.append(file.read_row_group(group, columns=names, use_threads=False).filter(keep))
        table = pa.concat_tables(found) if found else file.schema_arrow.empty_table().select(names)
    return table.select(names).replace_schema_metadata()


def _may_hold(group: pq.RowGroupMetaData, column: str, values: Sequence[Any]) -> bool:
    for number in range(group.num_columns):
        chunk = group.column(number)
        if chunk.path_in_schema == column:
            facts = chunk.statistics
            return facts is None or not facts.has_min_max or any(facts.min <= value <= facts.max for value in values)
    return True
