"""Reading Parquet from streams: the right rows, from the row groups that can have them, and a clean exit."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from mmdata.formats.parquet import read_matching, read_parquet


class CountingReader(io.BytesIO):
    taken = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self.taken += len(data)
        return data


def written(rows: int, group: int) -> bytes:
    sink = io.BytesIO()
    columns = {
        "media": [[{"name": f"{n}.jpg", "size": n}] for n in range(rows)],  # nested: leaf columns are not columns
        "key": [f"sample-{n:06d}" for n in range(rows)],
        "shard": [f"shard-{n // group}" for n in range(rows)],
    }
    table = pa.table(columns).replace_schema_metadata({"facts": "about the file"})
    pq.write_table(table, sink, row_group_size=group)
    return sink.getvalue()


def test_all_rows_without_the_files_metadata() -> None:
    table = read_parquet(io.BytesIO(written(10, 4)), ["shard", "key"])
    assert table.column_names == ["shard", "key"] and table.num_rows == 10
    assert table.schema.metadata is None


def test_rows_that_match_in_order_and_only_the_columns_asked_for() -> None:
    data = written(1000, 100)
    table = read_matching(io.BytesIO(data), "key", ["sample-000951", "none", "sample-000007"], ["shard", "key"])
    assert table.to_pylist() == [
        {"shard": "shard-0", "key": "sample-000007"},
        {"shard": "shard-9", "key": "sample-000951"},
    ]
    assert read_matching(io.BytesIO(data), "shard", ["shard-3"]).num_rows == 100
    empty = read_matching(io.BytesIO(data), "key", ["sample-999999"])
    assert empty.num_rows == 0 and empty.column_names == ["media", "key", "shard"]


def test_row_groups_that_cannot_match_are_not_read() -> None:
    data = written(20_000, 1000)
    stream = CountingReader(data)
    assert read_matching(stream, "shard", ["shard-7"]).num_rows == 1000
    assert stream.taken < len(data) / 4


def test_null_and_missing_statistics_hide_nothing() -> None:
    sink = io.BytesIO()
    pq.write_table(pa.table({"key": [None, "a", None]}), sink, write_statistics=False)
    assert read_matching(sink, "key", ["a"]).num_rows == 1
    sink = io.BytesIO()
    pq.write_table(pa.table({"key": pa.array([None, None], pa.string())}), sink)
    assert read_matching(sink, "key", ["a"]).num_rows == 0


def test_the_interpreter_ends_cleanly_after_reading(tmp_path: Path) -> None:
    path = tmp_path / "index.parquet"
    path.write_bytes(written(1000, 100))
    code = (
        "import sys; from mmdata.formats.parquet import read_matching, read_parquet\n"
        "with open(sys.argv[1], 'rb') as stream:\n"
        "    read_matching(stream, 'key', ['sample-000951']); read_parquet(stream)\n"
    )
    for _ in range(5):
        assert subprocess.run([sys.executable, "-c", code, str(path)], timeout=60, check=False).returncode == 0
