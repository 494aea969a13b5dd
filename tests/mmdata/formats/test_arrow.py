"""Arrow shards: exact byte ranges, typed columns, reproducible bytes, batches bounded, damage named."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset
import pytest
import xxhash

from mmdata.errors import FormatError, InvalidSample
from mmdata.formats.arrow import ArrowWriter, hugging_face_features, index_arrow, read_rows

FIELDS = ["jpg", "txt", "json", "0.wav", "latent.npy"]


def sample(i: int) -> tuple[str, list[tuple[str, bytes]]]:
    members = [("txt", f"né {i}".encode()), ("jpg", bytes([i % 251]) * (i * 13))]
    if i % 3:
        members.append(("latent.npy", b"\x93NUMPY" + bytes(i)))
    return f"dir/k{i}", members


def write(path: Path, count: int = 40, batch_bytes: int = 3000) -> tuple[ArrowWriter, list]:
    with ArrowWriter(str(path), FIELDS, batch_bytes=batch_bytes) as writer:
        for i in range(count):
            writer.add(*sample(i))
    return writer, writer.close()


def test_rows_come_back_and_every_range_is_exact(tmp_path: Path) -> None:
    writer, placed = write(tmp_path / "a.arrow")
    data = (tmp_path / "a.arrow").read_bytes()
    expected = [(key, sorted(members)) for key, members in map(sample, range(40))]
    assert list(read_rows(str(tmp_path / "a.arrow"))) == expected
    assert list(read_rows(io.BytesIO(data))) == expected
    for (_, members), place in zip(expected, placed, strict=True):
        assert place.members == tuple(name for name, _ in members)
        got = [data[o : o + n] for o, n in zip(place.offsets, place.lengths, strict=True)]
        assert got == [payload for _, payload in members]
        assert place.span_offset is None
    assert list(index_arrow(str(tmp_path / "a.arrow"))) == placed
    assert (writer.size, writer.xxh3) == (len(data), xxhash.xxh3_128(data).hexdigest())


def test_plain_pyarrow_opens_it_by_memory_map_in_bounded_batches(tmp_path: Path) -> None:
    write(tmp_path / "a.arrow")
    with pa.memory_map(str(tmp_path / "a.arrow")) as source:
        reader = pa.ipc.open_file(source)
        assert reader.num_record_batches > 3
        assert all(reader.get_batch(i).nbytes < 6000 for i in range(reader.num_record_batches))
        assert reader.schema.field("jpg").type == pa.binary() and reader.schema.field("txt").type == pa.string()
        assert reader.schema.names == ["__key__", "0.wav", "jpg", "json", "latent.npy", "txt"]
    table = pyarrow.dataset.dataset(str(tmp_path / "a.arrow"), format="ipc").to_table()
    assert table["txt"].to_pylist() == [f"né {i}" for i in range(40)]
    assert table["json"].null_count == 40


def test_hugging_face_features_type_images_and_audio() -> None:
    assert hugging_face_features(["jpg", "0.wav", "txt", "latent.npy"]) == [
        {"name": "__key__", "dtype": "string"},
        {"name": "0.wav", "dtype": "audio"},
        {"name": "jpg", "dtype": "image"},
        {"name": "latent.npy", "dtype": "binary"},
        {"name": "txt", "dtype": "string"},
    ]


def test_equal_input_gives_equal_bytes(tmp_path: Path) -> None:
    write(tmp_path / "a.arrow")
    write(tmp_path / "b.arrow")
    assert (tmp_path / "a.arrow").read_bytes() == (tmp_path / "b.arrow").read_bytes()


@pytest.mark.parametrize(
    ("members", "error"),
    [
        ([], InvalidSample),
        ([("txt", b"1"), ("txt", b"2")], InvalidSample),
        ([("txt", b"\xff\xfe")], InvalidSample),
        ([("png", b"no such column")], FormatError),
    ],
)
def test_bad_samples_are_refused_and_leave_the_shard_whole(
    tmp_path: Path, members: list[tuple[str, bytes]], error: type[Exception]
) -> None:
    with ArrowWriter(str(tmp_path / "a.arrow"), FIELDS) as writer:
        writer.add("a", [("txt", b"good")])
        with pytest.raises(error):
            writer.add("b", members)
        with pytest.raises(InvalidSample):
            writer.add("a", [("txt", b"same key")])
    assert list(read_rows(str(tmp_path / "a.arrow"))) == [("a", [("txt", b"good")])]


def test_empty_shards_are_refused_and_aborted_ones_are_gone(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="empty"):
        ArrowWriter(str(tmp_path / "a.arrow"), FIELDS).close()
    with pytest.raises(KeyError), ArrowWriter(str(tmp_path / "b.arrow"), FIELDS) as writer:
        writer.add("a", [("txt", b"1")])
        raise KeyError
    assert not (tmp_path / "b.arrow").exists()


def test_cut_files_are_named(tmp_path: Path) -> None:
    write(tmp_path / "a.arrow")
    whole = (tmp_path / "a.arrow").read_bytes()
    for end in (0, 5, 100, len(whole) // 2, len(whole) - 1):
        (tmp_path / "cut.arrow").write_bytes(whole[:end])
        with pytest.raises(FormatError, match=r"cut\.arrow"):
            list(read_rows(str(tmp_path / "cut.arrow")))


def test_a_shard_past_2_gib(tmp_path: Path) -> None:
    """Offsets beyond 32 bits are right; no batch holds more than its limit."""
    if os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize < 5 << 30:
        pytest.skip("needs 5 GiB of disk")
    path, piece = tmp_path / "big.arrow", os.urandom(1 << 20) * 100
    with ArrowWriter(str(path), ["jpg"]) as writer:
        for i in range(22):
            writer.add(f"k{i}", [("jpg", bytes([i]) + piece)])
    placed = writer.close()
    assert writer.size > 2200 << 20
    with open(path, "rb") as file:
        for i, place in enumerate(placed):
            file.seek(place.offsets[0])
            assert file.read(17) == bytes([i]) + piece[:16] and place.lengths == (len(piece) + 1,)
    with pa.memory_map(str(path)) as source:
        assert pa.ipc.open_file(source).num_record_batches == 22
    path.unlink()
