"""Indexing foreign and damaged tars: every dialect's members are found, damage costs only what it touches."""

from __future__ import annotations

import io
import random
import subprocess
import tarfile
from pathlib import Path

import pytest

from mmdata.errors import FormatError
from mmdata.formats.tar import Damage, TarMember, TarWriter, group_members
from mmdata.formats.tar_index import index_tar

NAMES = ["a.jpg", "a.txt", "dir/b.jpg", "x" * 150 + "/" + "y" * 160 + ".txt", "été/写真.jpg", "z.bin"]


def payload(name: str) -> bytes:
    return random.Random(name).randbytes(len(name) * 37)


def archive(names: list[str] = NAMES, format: int = tarfile.PAX_FORMAT, prepare: object = None) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w", format=format) as tar:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = len(payload(name))
            tar.addfile(info, io.BytesIO(payload(name)))
    return sink.getvalue()


def index(data: bytes) -> tuple[dict[str, bytes], list[Damage]]:
    entries = list(index_tar(io.BytesIO(data)))
    members = {e.name: data[e.offset : e.offset + e.length] for e in entries if isinstance(e, TarMember)}
    return members, [e for e in entries if isinstance(e, Damage)]


def groups(data: bytes) -> tuple[dict[str, list[str]], list[Damage]]:
    found: list[Damage] = []
    grouped = {k: [m[0] for m in ms] for k, ms in group_members(index_tar(io.BytesIO(data)), found.append)}
    return grouped, found


def header_at(data: bytes, name: str) -> int:
    return next(e.header_offset for e in index_tar(io.BytesIO(data)) if isinstance(e, TarMember) and e.name == name)


@pytest.mark.parametrize("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_python_archives(format: int) -> None:
    assert index(archive(format=format)) == ({name: payload(name) for name in NAMES}, [])


@pytest.mark.parametrize("format", ["v7", "oldgnu", "gnu", "ustar", "pax"])
def test_gnu_tar_archives(tmp_path: Path, format: str) -> None:
    names = ["a.jpg", "a.txt", "dir/b.jpg", "d" * 60 + "/" + "e" * 90 + ".jpg", "été/写真.jpg"]
    if format == "v7":
        names = names[:3]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(payload(name))
    top = sorted({name.split("/")[0] for name in names})
    subprocess.run(["tar", f"--format={format}", "-cf", "out.tar", *top], cwd=tmp_path, check=True, timeout=30)
    assert index((tmp_path / "out.tar").read_bytes()) == ({name: payload(name) for name in names}, [])


def test_directories_are_skipped_and_links_are_named(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/a.txt").write_bytes(b"1")
    (tmp_path / "d/b.txt").hardlink_to(tmp_path / "d/a.txt")
    (tmp_path / "d/c.txt").symlink_to("a.txt")
    (tmp_path / "d/e.txt").write_bytes(b"2")
    subprocess.run("tar -cf x.tar --sort=name d", shell=True, cwd=tmp_path, check=True, timeout=30)
    members, damage = index((tmp_path / "x.tar").read_bytes())
    assert members == {"d/a.txt": b"1", "d/e.txt": b"2"}
    assert [d.name for d in damage] == ["d/b.txt", "d/c.txt"]
    assert "hard link to 'd/a.txt'" in damage[0].message


@pytest.mark.parametrize("format", ["oldgnu", "gnu", "pax"])
def test_sparse_files_are_refused_and_what_follows_is_read(tmp_path: Path, format: str) -> None:
    with open(tmp_path / "a.bin", "wb") as sparse:
        for at in range(0, 40 << 20, 1 << 20):  # 40 extents need extension headers in the old format
            sparse.seek(at)
            sparse.write(b"x" * 4096)
    (tmp_path / "b.txt").write_bytes(b"after")
    command = ["tar", f"--format={format}", "--sparse", "-cf", "x.tar", "a.bin", "b.txt"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=30)
    members, damage = index((tmp_path / "x.tar").read_bytes())
    assert members == {"b.txt": b"after"}
    assert [(d.name, "sparse" in d.message) for d in damage] == [("a.bin", True)]


def test_sizes_in_base_256_and_pax() -> None:
    info = tarfile.TarInfo("a.bin")
    info.size = 9 << 30
    for format in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        damage = index(info.tobuf(format))[1]
        assert damage[0].message == f"'a.bin' holds 0 of its {9 << 30} bytes"


def test_repeated_names_are_reported_and_the_first_is_kept() -> None:
    data = archive(["a.txt", "b.txt", "a.txt"])
    members, damage = index(data)
    assert sorted(members) == ["a.txt", "b.txt"]
    assert [(d.name, "occurs before" in d.message) for d in damage] == [("a.txt", True)]


def test_a_flipped_bit_in_a_header_costs_one_member() -> None:
    names = [f"{i:03}.{ext}" for i in range(20) for ext in ("jpg", "txt")]
    data = bytearray(archive(names))
    at = header_at(bytes(data), "007.jpg")
    data[at + 130] ^= 4  # in the size field
    members, damage = index(bytes(data))
    assert sorted(members) == sorted(set(names) - {"007.jpg"})
    assert [(d.offset, d.name, d.incomplete) for d in damage] == [(at, "007.jpg", True)]
    grouped, _ = groups(bytes(data))
    assert sorted(grouped) == [f"{i:03}" for i in range(20) if i != 7]


@pytest.mark.parametrize("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
@pytest.mark.parametrize("where", [3, 130, 512 + 2])  # name and size of the extended header; its payload's record
def test_damage_in_an_extended_header_never_gives_a_wrong_name(format: int, where: int) -> None:
    long = "写" * 50 + ".jpg"
    data = bytearray(archive(["a.txt", long, "b.txt"], format))
    at = header_at(bytes(data), long)
    data[at + where] ^= 1
    members, damage = index(bytes(data))
    if format == tarfile.GNU_FORMAT and where > 512:
        assert len(members) == 3  # a flipped bit in a name that has no checksum cannot be seen
        return
    assert sorted(members) == ["a.txt", "b.txt"]
    assert len(damage) == 1


def test_missing_blocks_inside_a_payload_cost_that_member_only() -> None:
    names = ["a.jpg", "b.jpg", "y" * 90 + ".jpg", "d.jpg", "e.jpg"]
    data = archive(names)
    start = next(e.offset for e in index_tar(io.BytesIO(data)) if e.name == names[2])
    for lost in (512, 1536, 700, 1):
        members, damage = index(data[:start] + data[start + lost :])
        assert sorted(members) == ["a.jpg", "b.jpg", "d.jpg", "e.jpg"]
        assert all(members[name] == payload(name) for name in members)
        assert [(d.name, d.incomplete) for d in damage] == [(names[2], True)]


def test_inserted_bytes_are_skipped() -> None:
    data = archive(["a.jpg", "b.jpg", "c.jpg"])
    at = header_at(data, "b.jpg")
    members, damage = index(data[:at] + b"garbage" * 99 + data[at:])
    assert {n: members[n] == payload(n) for n in members} == {"a.jpg": True, "b.jpg": True, "c.jpg": True}
    assert [d.offset for d in damage] == [at]


def test_cut_tails_are_named() -> None:
    data = archive(["a.jpg", "b.jpg"])
    at = header_at(data, "b.jpg")
    for end, name in ((at + 512 + 10, "b.jpg"), (at + 200, ""), (at, "")):
        members, damage = index(data[:end])
        assert sorted(members) == ["a.jpg"]
        assert [d.name for d in damage] == [name]
    assert index(b"")[1] == []


def test_archives_joined_by_cat_and_zeroed_headers() -> None:
    first, second = archive(["a.jpg"]), archive(["b.jpg"])
    members, damage = index(first + second)
    assert sorted(members) == ["a.jpg", "b.jpg"]
    assert len(damage) == 1 and "zero blocks" in damage[0].message
    data = bytearray(archive(["a.jpg", "b.jpg"]))
    at = header_at(bytes(data), "b.jpg")
    data[at : at + 512] = bytes(512)
    members, damage = index(bytes(data))
    assert sorted(members) == ["a.jpg"] and damage[0].offset == at


def test_a_tar_inside_a_tar_is_one_member() -> None:
    inner = archive(["in1.jpg", "in2.jpg"])
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as tar:
        for name, data in (("nested.tar", inner), ("after.txt", b"x")):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    data = bytearray(sink.getvalue())
    assert index(bytes(data))[0] == {"nested.tar": inner, "after.txt": b"x"}
    data[header_at(bytes(data), "after.txt") + 130] ^= 1
    members, damage = index(bytes(data))
    assert members == {"nested.tar": inner} and [d.name for d in damage] == ["after.txt"]


def test_random_damage_never_yields_wrong_bytes_under_a_right_header() -> None:
    """Bits flipped anywhere: each member that is yielded was there, at that place; lost ones are covered by Damage."""
    names = [f"{i:03}.{ext}" for i in range(30) for ext in ("jpg", "txt")]
    clean = archive(names)
    places = {e.name: (e.offset, e.length) for e in index_tar(io.BytesIO(clean))}
    draw = random.Random(7)
    for _ in range(200):
        data = bytearray(clean)
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        entries = list(index_tar(io.BytesIO(bytes(data))))
        got = {e.name: (e.offset, e.length) for e in entries if isinstance(e, TarMember)}
        lost = set(places) - set(got)
        assert all(places[name] == got[name] for name in got)
        assert len(lost) <= 1 and (not lost or any(isinstance(e, Damage) for e in entries))


def test_groups_follow_webdataset(tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    names = ["a.JPG", "a.txt", "README", "b/c.0.jpg", "b/c.1.jpg", "b/c.json", "__meta__/x.txt", "d.txt", "./e.txt"]
    (tmp_path / "x.tar").write_bytes(archive(names))
    read = webdataset.WebDataset(str(tmp_path / "x.tar"), shardshuffle=False)
    theirs = {s["__key__"]: [k for k in s if not k.startswith("__")] for s in read}
    ours, damage = groups(archive(names))
    assert ours == theirs == {
        "a": ["jpg", "txt"], "b/c": ["0.jpg", "1.jpg", "json"], "d": ["txt"], "./e": ["txt"]
    }  # fmt: skip
    assert [d.name for d in damage] == ["README", "__meta__/x.txt"]


def test_group_reports_extensions_that_differ_only_in_case() -> None:
    grouped, damage = groups(archive(["a.jpg", "a.JPG", "b.txt"]))
    assert grouped == {"a": ["jpg"], "b": ["txt"]}
    assert [d.name for d in damage] == ["a.JPG"]


def test_group_without_a_listener_raises() -> None:
    with pytest.raises(FormatError, match="README"):
        list(group_members(index_tar(io.BytesIO(archive(["README"])))))


def test_our_own_shards_index_to_what_the_writer_said() -> None:
    sink = io.BytesIO()
    with TarWriter(sink) as writer:
        placed = [writer.add(f"é{i}" if i % 2 else f"k{i}", [("jpg", b"j" * i), ("txt", b"t")]) for i in range(50)]
    grouped = list(group_members(index_tar(sink)))
    assert [[(o, n) for _, o, n in members] for _, members in grouped] == [
        list(zip(p.offsets, p.lengths, strict=True)) for p in placed
    ]


def test_a_member_that_declares_more_than_the_file_has_does_not_take_its_neighbours() -> None:
    header = tarfile.TarInfo("big.jpg")
    header.size = 1 << 70
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        info = tarfile.TarInfo("a.jpg")
        info.size = 3
        archive.addfile(info, io.BytesIO(b"abc"))
    entries = list(index_tar(io.BytesIO(header.tobuf(tarfile.GNU_FORMAT) + out.getvalue())))
    assert [entry.name for entry in entries] == ["big.jpg", "a.jpg"]
    assert isinstance(entries[0], Damage) and isinstance(entries[1], TarMember)
