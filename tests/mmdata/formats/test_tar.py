"""Tar shards: bytes equal to Python's tarfile, readable by tarfile, GNU tar and webdataset, byte ranges exact."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import pytest
import xxhash

from mmdata.errors import FormatError, InvalidSample, StorageError
from mmdata.formats.tar import TarWriter, _header, split_name

Sample = tuple[str, list[tuple[str, bytes]]]

SAMPLES: list[Sample] = [
    ("plain", [("txt", b"a cat"), ("jpg", b"\xff\xd8" * 700)]),
    ("folder/deep/x", [("0.jpg", b"zero"), ("1.jpg", b"one"), ("json", b"{}")]),
    ("empty", [("txt", b"")]),
    ("exact", [("bin", b"b" * 512)]),
    ("照片/été 1", [("jpg", b"unicode"), ("txt", "café".encode())]),
    ("p" * 80 + "/" + "q" * 90, [("txt", b"needs ustar's prefix")]),
    ("n" * 300, [("txt", b"needs a pax path")]),
    ("a" * 120 + "/" + "b" * 150, [("txt", b"prefix does not help")]),
    ("spaces and #?%&'\"", [("txt", b"odd")]),
]


def build(samples: list[Sample]) -> tuple[bytes, TarWriter, list]:
    sink = io.BytesIO()
    with TarWriter(sink) as writer:
        placed = [writer.add(key, members) for key, members in samples]
    return sink.getvalue(), writer, placed


def expected(samples: list[Sample]) -> list[tuple[str, bytes]]:
    return [(f"{key}.{ext}", data) for key, members in samples for ext, data in sorted(members)]


def test_tarfile_reads_what_was_written() -> None:
    data, _, _ = build(SAMPLES)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        infos = tar.getmembers()
        assert [(i.name, tar.extractfile(i).read()) for i in infos] == expected(SAMPLES)
        assert {(i.mtime, i.uid, i.gid, i.mode, i.uname, i.gname, i.type) for i in infos} == {
            (0, 0, 0, 0o644, "", "", tarfile.REGTYPE)
        }


def test_bytes_equal_tarfile_own_output() -> None:
    """Where ustar suffices, the archive is byte for byte what tarfile writes in USTAR_FORMAT."""
    plain = [*SAMPLES[:4], SAMPLES[5]]
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in expected(plain):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    assert build(plain)[0] == sink.getvalue()


def test_gnu_tar_reads_what_was_written(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(build(SAMPLES)[0])
    options = {"cwd": tmp_path, "check": True, "capture_output": True, "timeout": 30}
    names = subprocess.run(["tar", "-tf", "x.tar", "--quoting-style=literal"], **options)
    assert (names.stdout.decode().splitlines(), names.stderr) == ([name for name, _ in expected(SAMPLES)], b"")
    contents = subprocess.run(["tar", "-xOf", "x.tar"], **options)
    assert (contents.stdout, contents.stderr) == (b"".join(data for _, data in expected(SAMPLES)), b"")


def test_webdataset_reads_what_was_written(tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    (tmp_path / "x.tar").write_bytes(build(SAMPLES)[0])
    read = [
        (s["__key__"], sorted((k, v) for k, v in s.items() if not k.startswith("__")))
        for s in webdataset.WebDataset(str(tmp_path / "x.tar"), shardshuffle=False)
    ]
    assert read == [(key, sorted(members)) for key, members in SAMPLES]


def test_placed_ranges_and_digests_are_exact() -> None:
    data, writer, placed = build(SAMPLES)
    end = 0
    for (_, members), place in zip(SAMPLES, placed, strict=True):
        assert place.members == tuple(sorted(ext for ext, _ in members))
        got = [data[o : o + n] for o, n in zip(place.offsets, place.lengths, strict=True)]
        assert got == [payload for _, payload in sorted(members)]
        assert place.span_offset == end
        end += place.span_length
        assert place.span_xxh3 == xxhash.xxh3_128(data[place.span_offset : end]).hexdigest()
    assert data[end:] == bytes(len(data) - end) and len(data) - end >= 1024 and len(data) % 10240 == 0
    assert (writer.size, writer.xxh3) == (len(data), xxhash.xxh3_128(data).hexdigest())


def test_bytes_do_not_depend_on_member_order() -> None:
    assert build([("k", [("txt", b"t"), ("jpg", b"j")])])[0] == build([("k", [("jpg", b"j"), ("txt", b"t")])])[0]


def test_sizes_of_8_gib_and_more_get_a_pax_size() -> None:
    limit = 8 << 30
    assert len(_header("a.bin", limit - 1)) == 512
    header = _header("a.bin", limit)
    with tarfile.open(fileobj=io.BytesIO(header)) as tar:
        assert tar.next().size == limit


@pytest.mark.parametrize(
    ("key", "members"),
    [
        ("a.b", [("txt", b"")]),  # dot: read back as key a
        ("a", [("TXT", b"")]),  # read back in lower case
        ("a", [("x/y", b"")]),
        ("a", []),
        ("a", [("txt", b"1"), ("txt", b"2")]),
        ("", [("txt", b"")]),
        ("__cache__/a", [("txt", b"")]),  # WebDataset skips it
        ("nul\0", [("txt", b"")]),
        ("line\nbreak", [("txt", b"")]),
        ("\udcff", [("txt", b"")]),
    ],
)
def test_keys_that_readers_would_get_wrong_are_refused(key: str, members: list[tuple[str, bytes]]) -> None:
    sink = io.BytesIO()
    writer = TarWriter(sink)
    with pytest.raises(InvalidSample):
        writer.add(key, members)
    assert sink.getvalue() == b""
    writer.add("good", [("txt", b"still works")])
    writer.close()


def test_the_same_key_twice_in_a_row_is_refused() -> None:
    writer = TarWriter(io.BytesIO())
    writer.add("a", [("txt", b"1")])
    with pytest.raises(InvalidSample, match="'a'"):
        writer.add("a", [("jpg", b"2")])


def test_no_empty_shard_and_nothing_after_close() -> None:
    with pytest.raises(FormatError, match="empty"):
        TarWriter(io.BytesIO()).close()
    _, writer, _ = build(SAMPLES[:1])
    with pytest.raises(FormatError, match="closed"):
        writer.add("b", [("txt", b"")])


def test_an_exception_leaves_no_whole_tar() -> None:
    sink = io.BytesIO()
    with pytest.raises(KeyError), TarWriter(sink) as writer:
        writer.add("a", [("txt", b"1")])
        raise KeyError
    assert len(sink.getvalue()) == 1024


def test_a_full_disk_is_a_storage_error() -> None:
    with open("/dev/full", "wb", buffering=0) as full:
        writer = TarWriter(full)
        with pytest.raises(StorageError, match=r"/dev/full.*No space left"):
            writer.add("a", [("txt", b"1")])


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("a.jpg", ("a", "jpg")),
        ("a.0.JPG", ("a", "0.jpg")),
        ("d.ir/a.tar.gz", ("d.ir/a", "tar.gz")),
        ("./a.jpg", ("./a", "jpg")),
        ("README", None),
        (".hidden", None),
        ("d/.hidden.jpg", ("d/", "hidden.jpg")),
        ("__meta__", None),
        ("__meta__/a.jpg", None),
        ("a.", ("a", "")),
    ],
)
def test_split_name_is_webdataset_rule(name: str, split: tuple[str, str] | None) -> None:
    assert split_name(name) == split
    tariterators = pytest.importorskip("webdataset.tariterators")
    if "__" not in name:
        key, extension = tariterators.base_plus_ext(name)
        assert split == (None if key is None else (key, extension.lower()))
