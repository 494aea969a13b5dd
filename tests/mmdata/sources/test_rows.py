from __future__ import annotations

import csv
import datetime
import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

from mmdata.errors import FormatError
from mmdata.sources import rows_json
from mmdata.sources.rows_csv import Csv
from mmdata.sources.rows_json import JsonArray, JsonLines
from mmdata.sources.rows_parquet import Parquet

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.text('",\n\r;\t\\[]{} x', max_size=12)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(texts, values, max_size=4)


def read(reader, rows: int):
    """All rows by way of cuts of `rows` rows, and the rows that the cuts promised."""
    cuts = list(reader.cuts(rows))
    return [row for cut in cuts for row in reader.rows(cut)], sum(cut.count for cut in cuts)


@settings(deadline=None)
@given(st.lists(st.tuples(texts, texts, texts), max_size=12), st.integers(1, 5))
def test_csv_gives_what_was_written(table, rows):
    out = io.StringIO()
    csv.writer(out).writerows([("a", "b", "c"), *table])
    found, promised = read(Csv(lambda: io.BytesIO(out.getvalue().encode()), "t.csv", tabs=False), rows)
    assert [tuple(row.values.values()) for row in found] == table
    assert promised == len(table) and [row.number for row in found] == list(range(len(table)))


@settings(deadline=None)
@given(st.lists(objects, max_size=8), st.integers(1, 4), st.integers(1, 80), st.sampled_from([None, 1]), st.booleans())
def test_json_arrays_and_lines_give_what_was_written(table, rows, chunk, indent, ascii_only):
    array = json.dumps(table, indent=indent, ensure_ascii=ascii_only).encode()
    lines = "".join(json.dumps(row, ensure_ascii=ascii_only) + "\n" for row in table).encode()
    before = rows_json._CHUNK
    rows_json._CHUNK = chunk
    try:
        for reader in (JsonArray(lambda: io.BytesIO(array), "t.json"), JsonLines(lambda: io.BytesIO(lines))):
            found, promised = read(reader, rows)
            assert [row.error for row in found] == [None] * len(table)
            assert [row.values for row in found] == table and promised == len(table)
    finally:
        rows_json._CHUNK = before


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=200) | st.text('[{]},:"\\ax1 \n', max_size=60).map(str.encode), st.integers(1, 3))
def test_no_input_breaks_a_reader(data, rows):
    """Rows or one error for each; the same rows whatever the cuts; nothing but FormatError for a whole file."""

    def fresh() -> io.BytesIO:
        return io.BytesIO(data)

    for make in (
        lambda: JsonLines(fresh),
        lambda: JsonArray(fresh, "t"),
        lambda: Csv(fresh, "t", tabs=False),
        lambda: Csv(fresh, "t", tabs=True),
    ):
        try:
            found, _ = read(make(), rows)
            whole, _ = read(make(), 10**6)
        except FormatError:
            continue
        assert [(row.number, row.values, row.error) for row in found] == [
            (row.number, row.values, row.error) for row in whole
        ]


def test_nanoseconds_are_cut_to_what_python_holds(tmp_path):
    moment = pa.array([1_700_000_000_123_456_789], pa.timestamp("ns", "UTC"))
    table = pa.table(
        {"t": moment, "d": pa.array([1_000_000_001], pa.duration("ns")), "x": pa.array([1], pa.time64("ns"))}
    )
    path = tmp_path / "t.parquet"
    pq.write_table(table, path)
    ((row,), _) = read(Parquet(lambda: io.BytesIO(path.read_bytes()), "t"), 10)
    assert row.error is None
    assert row.values["t"] == datetime.datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=row.values["t"].tzinfo)
    assert row.values["d"] == datetime.timedelta(seconds=1)
