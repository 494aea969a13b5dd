from __future__ import annotations

import base64
import csv
import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mmdata.errors import ConfigError, FormatError
from mmdata.sources import rows_csv, rows_json

JPEG = b"\xff\xd8\xff\xe0" + bytes(60)
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(60))
WAV = b"RIFF\x10\0\0\0WAVEfmt "


def lines(rows) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def fields(samples):
    return [sample.fields for sample in samples]


# --- JSON Lines


def test_a_bad_line_costs_itself_and_is_named(tree, rows_of):
    text = '{"text": "a"}\n{bad\n\n[1]\n{"text": "\\ud83d"}\n{"text": NaN}\n{"text": "b"}'
    root = tree({"a.jsonl": text.encode() + b'\n{"text": "\xff"}\n{"text": "c"}\r\n'})
    for partition in (1, 3, 100):
        samples = rows_of("table", root / "a.jsonl", text="text", partition=partition)
        assert [sample.row for sample in samples] == [0, 1, 3, 4, 5, 6, 7, 8]
        good = [sample.fields["txt"] for sample in samples if sample.error is None]
        assert good == ["a", "b", "c"]
        assert f"{root}/a.jsonl, line 2: not valid JSON" in samples[1].error[1]
        assert "line 4: a row is a JSON object, not list" in samples[2].error[1]
        assert "line 8: not UTF-8" in samples[6].error[1]
        assert [sample.key for sample in samples] == [f"a-{sample.row:08d}" for sample in samples]


def test_lines_are_cut_at_line_ends_by_rows_and_by_bytes(tree, opened, read_all, monkeypatch):
    root = tree({"a.jsonl": lines({"text": str(number) * (number % 50)} for number in range(1000))})
    source = opened("table", root / "a.jsonl", text="text", partition=64)
    parts = list(source.partitions())
    assert [part.count for part in parts] == [64] * 15 + [40]
    whole = read_all(opened("table", root / "a.jsonl", text="text", partition=10**6))
    assert read_all(source) == whole and len(whole) == 1000
    monkeypatch.setattr(rows_json, "CUT_BYTES", 500)
    monkeypatch.setattr(rows_json, "_CHUNK", 64)
    short = opened("table", root / "a.jsonl", text="text", partition=64)
    assert len(list(short.partitions())) > 40 and read_all(short) == whole


def test_a_line_longer_than_the_limit_is_one_bad_row(tree, rows_of, monkeypatch):
    monkeypatch.setattr(rows_json, "MAX_ROW_BYTES", 100)
    root = tree({"a.jsonl": lines([{"text": "a"}, {"text": "x" * 5000}, {"text": "b"}])})
    first, long, last = rows_of("table", root / "a.jsonl", text="text")
    assert (first.fields["txt"], last.fields["txt"], last.row) == ("a", "b", 2)
    assert "longer than 100 bytes" in long.error[1]


@pytest.mark.parametrize("suffix", ["gz", "bz2", "xz", "zst"])
def test_compressed_tables_are_spooled_once(tmp_path, rows_of, suffix):
    import bz2
    import gzip
    import lzma

    def zstd(data: bytes) -> bytes:
        return pa.compress(data, "zstd", asbytes=True)

    pack = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zst": zstd}[suffix]
    table = tmp_path / f"a.jsonl.{suffix}"
    table.write_bytes(pack(lines([{"text": "a"}, {"text": "b"}]).encode()))
    samples = rows_of("table", table, text="text")
    assert [(sample.key, sample.fields["txt"]) for sample in samples] == [("a-00000000", "a"), ("a-00000001", "b")]


# --- JSON arrays


def test_json_arrays_are_read_in_pieces(tree, opened, read_all, monkeypatch):
    rows = [{"text": f'br[ack}}et " \\ {number} ü', "n": {"a": [[], {}]}} for number in range(200)]
    for indent in (None, 1):
        root = tree({"a.json": json.dumps(rows, indent=indent, ensure_ascii=indent is None)})
        for chunk in (64, 1 << 20):
            monkeypatch.setattr(rows_json, "_CHUNK", chunk)
            for partition in (3, 64, 1000):
                source = opened("table", root / "a.json", text="text", partition=partition)
                samples = read_all(source)
                assert [sample.fields["txt"] for sample in samples] == [row["text"] for row in rows]
                assert [sample.row for sample in samples] == list(range(200))


def test_a_bad_element_of_an_array_costs_itself(tree, rows_of):
    root = tree({"a.json": '[{"text": "a"}, {"text": oops}, 5, {"text": "b"}, ]'})
    for partition in (1, 100):
        a, bad, number, b = rows_of("table", root / "a.json", text="text", partition=partition)
        assert (a.fields["txt"], b.fields["txt"]) == ("a", "b")
        assert "row 1 (byte 16)" in bad.error[1] and "not int" in number.error[1]


@pytest.mark.parametrize("tail", ['{"text": "cut', '{"text": "b"}', '{"text": [1, 2', ""])
def test_a_cut_array_keeps_what_is_whole(tree, rows_of, tail):
    root = tree({"a.json": '[{"text": "a"}, ' + tail})
    for partition in (1, 100):
        samples = rows_of("table", root / "a.json", text="text", partition=partition)
        assert samples[0].fields["txt"] == "a" and len(samples) == 2
        assert "cut here" in samples[1].error[1]


def test_what_follows_an_array_is_reported(tree, rows_of):
    root = tree({"a.json": '[{"text": "a"}] [{"text": "b"}]'})
    first, rest = rows_of("table", root / "a.json", text="text")
    assert first.error is None and "follows the end of the array" in rest.error[1]


def test_json_lines_under_the_name_json(tree, rows_of):
    root = tree({"a.json": lines([{"text": "a"}, {"text": "b"}])})
    assert len(rows_of("table", root / "a.json", text="text")) == 2


def test_json_that_is_no_table_is_refused(tree, opened, read_all):
    root = tree({"object.json": '{\n"data": [1]\n}', "word.json": '"hi"', "empty.json": "[]"})
    with pytest.raises(FormatError, match="one JSON object"):
        read_all(opened("table", root / "object.json", text="text"))
    with pytest.raises(FormatError, match="neither"):
        read_all(opened("table", root / "word.json", text="text"))
    with pytest.raises(ConfigError, match="no rows"):
        read_all(opened("table", root / "empty.json", text="text"))


# --- CSV and TSV


def written(rows, **options) -> str:
    out = io.StringIO()
    csv.writer(out, **options).writerows(rows)
    return out.getvalue()


def test_csv_with_quotes_and_line_ends_inside_cells(tree, opened, read_all):
    body = [[f"{number}.jpg", f'line one\nline "two", {number}\r\n\n'] for number in range(300)]
    root = tree({"a.csv": "\ufeff" + written([["file", "text"], *body])})
    for partition in (1, 7, 1000):
        source = opened("table", root / "a.csv", media={"image": "file"}, text="text", partition=partition)
        samples = read_all(source)
        assert [sample.fields["txt"] for sample in samples] == [row[1] for row in body]
        assert [sample.row for sample in samples] == list(range(300))


def test_csv_rows_that_do_not_fit_cost_themselves(tree, rows_of):
    text = 'file,text\na.jpg,one\nb.jpg\nc.jpg,x,y\n\nd.jpg,"never closed\ne.jpg,two\nf.jpg,5" disk\ng.jpg,"a" b\n'
    root = tree({"a.csv": text.encode() + b"h.jpg,\xff\ni.jpg,last"})
    for partition in (1, 100):
        samples = rows_of("table", root / "a.csv", media={"image": "file"}, text="text", partition=partition)
        good = [(sample.media[0].field, sample.fields["txt"]) for sample in samples if sample.error is None]
        assert [text for _, text in good] == ["one", "two", '5" disk', "a b", "last"]
        bad = [sample.error[1].removeprefix(f"{root}/a.csv, ") for sample in samples if sample.error]
        assert [text.partition(":")[0] for text in bad] == ["line 3", "line 4", "line 6", "line 10"]
        assert "1 cells where the header has 2" in bad[0] and "quote is never closed" in bad[2]
        assert "UTF-8" in bad[3]


def test_an_unclosed_quote_is_found_after_a_bounded_stretch(tree, rows_of, monkeypatch):
    monkeypatch.setattr(rows_csv, "_MAX_RECORD_LINES", 5)
    root = tree({"a.csv": 'text,n\n"open,1\n' + "x,2\n" * 100})
    samples = rows_of("table", root / "a.csv", text="text")
    assert len(samples) == 101 and [sample.error is None for sample in samples] == [False] + [True] * 100


def test_separators(tree, rows_of):
    root = tree(
        {
            "semicolon.csv": "file;text\na.jpg;x,y\n",
            "tab.tsv": 'file\ttext\na.jpg\t"Hello" he said\nb.jpg\t"open\nc.jpg\t"two\nlines"\nd.jpg\t5" disk\n',
        }
    )
    assert fields(rows_of("table", root / "semicolon.csv", media={"image": "file"}, text="text")) == [{"txt": "x,y"}]
    samples = rows_of("table", root / "tab.tsv", media={"image": "file"}, text="text")
    assert samples[0].fields == {"txt": '"Hello" he said'}
    assert samples[-1].fields == {"txt": '5" disk'}


def test_csv_headers_are_checked(tree, opened, read_all):
    root = tree({"twice.csv": "a,a\n1,2\n", "empty.csv": "", "header.csv": "text\n"})
    with pytest.raises(FormatError, match="'a' occurs twice"):
        read_all(opened("table", root / "twice.csv", text="a"))
    with pytest.raises(FormatError, match="empty"):
        read_all(opened("table", root / "empty.csv", text="a"))
    with pytest.raises(ConfigError, match="no rows"):
        read_all(opened("table", root / "header.csv", text="text"))


def test_large_cells(tree, rows_of, media_bytes):
    data = PNG + bytes(500_000)
    root = tree({"a.csv": written([["image", "text"], [base64.b64encode(data).decode(), "t"]])})
    (sample,) = rows_of("table", root / "a.csv", media={"image": "image"}, text="text")
    assert media_bytes(sample) == [data]


# --- Parquet and Arrow


def test_parquet_with_embedded_and_nested_columns(tmp_path, rows_of, media_bytes):
    import datetime
    import decimal

    table = pa.table(
        {
            "image": [{"bytes": PNG, "path": "a.png"}, {"bytes": JPEG, "path": None}, None],
            "audio": [WAV, None, b""],
            "text": ["ä", None, "c"],
            "when": [datetime.datetime(2024, 1, 2, 3, 4, 5)] * 3,
            "price": [decimal.Decimal("1.50")] * 3,
            "score": [float("nan"), 1.5, None],
            "raw": [b"\0\1"] * 3,
        }
    )
    path = tmp_path / "a.parquet"
    pq.write_table(table, path, row_group_size=2)
    for partition in (1, 100):
        samples = rows_of("table", path, media={"image": "image", "audio": "audio"}, text="text", partition=partition)
        assert [media_bytes(sample) for sample in samples] == [[PNG, WAV], [JPEG], [b""]]
        assert [[ref.field for ref in sample.media] for sample in samples] == [["png", "wav"], ["jpg"], ["wav"]]
        assert samples[0].fields == {
            "txt": "ä",
            "json": {"when": "2024-01-02T03:04:05", "price": "1.50", "score": None, "raw": "AAE="},
        }
        assert samples[1].fields["json"]["score"] == 1.5
        assert [sample.row for sample in samples] == [0, 1, 2]


def test_parquet_cuts_are_row_groups(tmp_path, opened, read_all):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": [str(number) for number in range(1000)]}), path, row_group_size=100)
    counts = [part.count for part in opened("table", path, text="text", partition=250).partitions()]
    assert counts == [200] * 5
    assert [part.count for part in opened("table", path, text="text", partition=10).partitions()] == [100] * 10
    assert [sample.fields["txt"] for sample in read_all(opened("table", path, text="text", partition=300))] == [
        str(number) for number in range(1000)
    ]


def test_a_damaged_row_group_costs_its_own_rows(tmp_path, opened, read_all):
    path = tmp_path / "a.parquet"
    table = pa.table({"text": [f"{number}-" + "x" * 50 for number in range(30)]})
    pq.write_table(table, path, row_group_size=10, compression="snappy", use_dictionary=False)
    column = pq.ParquetFile(path).metadata.row_group(1).column(0)
    data = bytearray(path.read_bytes())
    data[column.data_page_offset : column.data_page_offset + column.total_compressed_size] = bytes(
        [0xFF] * column.total_compressed_size
    )
    path.write_bytes(data)
    samples = read_all(opened("table", path, text="text", partition=10))
    good = [sample.row for sample in samples if sample.error is None]
    assert good == [*range(10), *range(20, 30)]
    (bad,) = [sample for sample in samples if sample.error]
    assert "rows 10 to 19 (row group 1) cannot be read" in bad.error[1]


def test_what_is_not_parquet_is_refused(tree, opened, read_all):
    root = tree({"a.parquet": b"no", "b.arrow": b"no"})
    with pytest.raises(FormatError, match=r"a\.parquet is not a readable Parquet"):
        read_all(opened("table", root / "a.parquet", text="text"))
    with pytest.raises(FormatError, match=r"b\.arrow is not a readable Arrow"):
        read_all(opened("table", root / "b.arrow", text="text"))


@pytest.mark.parametrize("form", ["file", "stream"])
def test_arrow_files_and_streams(tmp_path, opened, read_all, form):
    path = tmp_path / "a.arrow"
    table = pa.table({"text": [str(number) for number in range(100)]})
    make = pa.ipc.new_file if form == "file" else pa.ipc.new_stream
    with make(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=7)
    source = opened("table", path, text="text", partition=20)
    assert [part.count for part in source.partitions()] == [14] * 6 + [16]
    samples = read_all(source)
    assert [sample.fields["txt"] for sample in samples] == [str(number) for number in range(100)]
    assert [sample.row for sample in samples] == list(range(100))
