"""Random access to catalog rows: the catalog once more as one uncompressed Arrow file that workers map into memory.

A shuffled build asks for a thousand rows from all over the catalog; in Parquet that would decode every row group.
Nothing here decides which rows.
"""

from __future__ import annotations

import mmap
import os

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mmdata.shards.catalog import Catalog

BATCH_ROWS = 16 * 1024


def write_rows(catalog: Catalog, path: str) -> None:
    """Write the catalog's rows to the Arrow file `path`, atomically: a reader never sees half of it."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = f"{path}.{os.getpid()}.tmp"
    schema = catalog.schema()
    with pa.OSFile(temporary, "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        for table in catalog.read():
            for batch in table.cast(schema).to_batches(max_chunksize=BATCH_ROWS):
                writer.write_batch(batch)
    os.replace(temporary, path)


class Rows:
    """The mapped file. Batches stay on disk until a row of theirs is taken and go back there after it."""

    def __init__(self, path: str) -> None:
        with open(path, "rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._reader = pa.ipc.open_file(pa.py_buffer(self._map))
        lengths = [self._reader.get_batch(i).num_rows for i in range(self._reader.num_record_batches)]
        self._ends = np.cumsum(np.asarray(lengths, dtype=np.int64))

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def take(self, indices: npt.NDArray[np.int64], columns: list[str] | None = None) -> pa.Table:
        """Rows `indices` (int64 [n], any order) in that order. Memory: the rows asked for."""
        batch_of = np.searchsorted(self._ends, indices, side="right")
        by_batch = np.argsort(batch_of, kind="stable")
        pieces = []
        starts = np.r_[0, self._ends[:-1]] if len(self._ends) else self._ends
        for batch in np.unique(batch_of):
            chosen = by_batch[batch_of[by_batch] == batch]
            rows = self._reader.get_batch(int(batch))
            if columns is not None:
                rows = rows.select(columns)
            pieces.append(pa.Table.from_batches([rows.take(pa.array(indices[chosen] - starts[batch]))]))
        if not pieces:
            schema = self._reader.schema
            return schema.empty_table().select(columns if columns is not None else schema.names)
        back = np.empty(len(indices), dtype=np.int64)
        back[by_batch] = np.arange(len(indices))
        found = pa.concat_tables(pieces).combine_chunks().take(pa.array(back))
        if hasattr(mmap, "MADV_DONTNEED"):  # a shuffled build touches every page: none stays this process's
            self._map.madvise(mmap.MADV_DONTNEED)
        return found
