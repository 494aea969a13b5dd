from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import tarfile

import pyarrow as pa
import pytest

from mmdata.errors import ConfigError, StorageError
from mmdata.formats.tar import TarWriter

JPEG = b"\xff\xd8\xff\xe0" + bytes(60)


def tar(members: list[tuple[str, bytes]]) -> bytes:
    """A tar made by Python's own tarfile, members in the order given."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def numbered(count: int, size: int = 700) -> list[tuple[str, bytes]]:
    """`count` samples of an image of `size` bytes and a caption that says its number."""
    return [
        member
        for number in range(count)
        for member in ((f"{number:03d}.jpg", bytes([number]) * size), (f"{number:03d}.txt", str(number).encode()))
    ]


def test_members_become_fields_and_byte_ranges(tree, rows_of, media_bytes):
    members = [
        ("a/one.0.JPG", JPEG),
        ("a/one.1.png", b"png"),
        ("a/one.json", b'{"n": 1}'),
        ("a/one.cls", b"12\n"),
        ("a/one.npy", b"\x93NUMPY"),
        ("two.txt", b"nur Text"),
        ("three.mp4", b"video"),
        ("three.wav", b"sound"),
    ]
    root = tree({"s.tar": tar(members)})
    one, two, three = rows_of("webdataset", root / "s.tar")
    assert one.key == "a/one" and one.fields == {"json": {"n": 1}, "cls": 12}
    assert [(ref.field, ref.kind) for ref in one.media] == [("0.jpg", "image"), ("1.png", "image"), ("npy", "data")]
    assert media_bytes(one) == [JPEG, b"png", b"\x93NUMPY"]
    assert two.media == () and two.fields == {"txt": "nur Text"}
    assert [(ref.kind, ref.field) for ref in three.media] == [("video", "mp4"), ("audio", "wav")]
    facts = os.stat(root / "s.tar")
    assert {ref.stamp for ref in one.media} == {f"{facts.st_size}:{facts.st_mtime_ns}"}


def test_keys_of_our_own_shards_come_back_as_they_are(tmp_path, rows_of):
    with open(tmp_path / "s.tar", "wb") as file:
        writer = TarWriter(file)
        writer.add("v1%2E5%25", [("jpg", JPEG)])
        writer.close()
    (sample,) = rows_of("webdataset", tmp_path / "s.tar")
    assert sample.key == "v1%2E5%25"
    assert rows_of("webdataset", tmp_path / "s.tar", key_prefix="a/")[0].key == "a/v1%2E5%25"


def test_many_tars_are_partitions_in_order(tree, opened, read_all):
    root = tree({f"s-{number:03d}.tar": tar([(f"{number}.txt", b"t")]) for number in (2, 0, 1)})
    for pattern in (root / "s-*.tar", root / "s-{000..002}.tar", [root / f"s-{n:03d}.tar" for n in range(3)]):
        source = opened("webdataset", pattern)
        assert [sample.key for sample in read_all(source)] == ["0", "1", "2"]
        names = [part.name for part in source.partitions()]
        assert len(set(names)) == 3
    with pytest.raises(StorageError):
        read_all(opened("webdataset", root / "none-*.tar"))
    with pytest.raises(StorageError):
        read_all(opened("webdataset", root / "s-{000..003}.tar"))
    with pytest.raises(ConfigError, match="commands"):
        read_all(opened("webdataset", "pipe:curl http://x/s.tar"))


@pytest.mark.parametrize("name", ["s.tar.gz", "s.tgz", "s.tar.bz2", "s.tar.xz", "s.tar.zst", "lying.tar"])
def test_compressed_tars_are_spooled_once(tmp_path, opened, read_all, media_bytes, name):
    pack = {"bz2": bz2.compress, "xz": lzma.compress, "zst": lambda data: pa.compress(data, "zstd", asbytes=True)}
    path = tmp_path / name
    path.write_bytes(pack.get(name.rpartition(".")[2], gzip.compress)(tar(numbered(5))))
    source = opened("webdataset", path)
    samples = read_all(source)
    assert [sample.fields["txt"] for sample in samples] == ["0", "1", "2", "3", "4"]
    assert media_bytes(samples[3]) == [b"\x03" * 700]
    spooled = samples[0].media[0].uri
    assert spooled.startswith(str(tmp_path / "spool"))
    before = os.stat(spooled).st_ino
    assert read_all(source) == samples and os.stat(spooled).st_ino == before


def test_a_cut_gzip_keeps_the_samples_before_the_cut(tmp_path, rows_of, media_bytes):
    noise = [(f"{number}.jpg", os.urandom(20_000)) for number in range(20)]
    path = tmp_path / "s.tar.gz"
    path.write_bytes(gzip.compress(tar(noise))[:200_000])
    samples = rows_of("webdataset", path)
    good = [sample for sample in samples if sample.error is None]
    assert 7 <= len(good) < 20
    assert [media_bytes(sample)[0] for sample in good] == [data for _, data in noise[: len(good)]]
    assert any(sample.error for sample in samples)


def test_what_is_no_archive_at_all_is_one_bad_sample(tmp_path, rows_of):
    path = tmp_path / "s.tar.gz"
    path.write_bytes(b"\x1f\x8b" + b"nonsense" * 100)
    (sample,) = rows_of("webdataset", path)
    assert sample.error is not None and str(path) in sample.error[1]


def test_damage_costs_the_samples_it_touches(tree, rows_of, media_bytes):
    data = bytearray(tar(numbered(10)))
    headers = [at for at in range(0, len(data), 512) if data[at : at + 7] == b"004.jpg"]
    data[headers[0] : headers[0] + 512] = os.urandom(512)
    root = tree({"s.tar": bytes(data)})
    samples = rows_of("webdataset", root / "s.tar")
    bad = [sample for sample in samples if sample.error]
    good = {sample.key: sample for sample in samples if sample.error is None}
    assert {f"{number:03d}" for number in range(10)} - set(good) <= {"004"}
    assert all(media_bytes(good[f"{number:03d}"]) == [bytes([number]) * 700] for number in (3, 5, 9))
    assert any(f"byte {headers[0]}" in sample.error[1] for sample in bad)
    assert all(sample.media[0].offset is not None for sample in bad)
    assert len({sample.key for sample in samples}) == len(samples)


def test_a_cut_tar_keeps_the_samples_before_the_cut(tree, rows_of):
    data = tar(numbered(10))
    root = tree({"s.tar": data[: len(data) // 4]})
    samples = rows_of("webdataset", root / "s.tar")
    good = [sample.key for sample in samples if sample.error is None]
    assert good and good == [f"{number:03d}" for number in range(len(good))]
    assert any(sample.error for sample in samples)


def test_repeated_keys_and_extensions_are_reported(tree, rows_of):
    members = [
        ("a.txt", b"first"),
        ("a.txt", b"again"),
        ("b.txt", b"b"),
        ("a.jpg", JPEG),
        ("c.txt", b"c"),
        ("a.png", b"x"),
    ]
    root = tree({"s.tar": tar(members)})
    samples = rows_of("webdataset", root / "s.tar")
    good = {sample.key: sample.fields for sample in samples if sample.error is None}
    assert good["a"] == {"txt": "first"} and set(good) == {"a", "b", "c"}
    errors = [sample.error[1] for sample in samples if sample.error]
    assert any("'a.txt'" in error for error in errors)
    assert any("'a' occurs 2 times" in error for error in errors)
    assert any("'a' occurs 3 times" in error for error in errors)
    assert len({sample.key for sample in samples}) == len(samples)


def test_bad_text_members_cost_their_sample_only(tree, rows_of):
    members = [
        ("a.jpg", JPEG),
        ("a.json", b"{bad"),
        ("b.jpg", JPEG),
        ("b.txt", b"caf\xe9"),
        ("c.jpg", JPEG),
        ("c.json", b'{"ok": true}'),
    ]
    root = tree({"s.tar": tar(members)})
    a, b, c = rows_of("webdataset", root / "s.tar")
    assert "a.json: not valid JSON" in a.error[1] and str(root) in a.error[1] and a.media
    assert "b.txt: not UTF-8" in b.error[1]
    assert c.error is None and c.fields == {"json": {"ok": True}}


def test_conversations_in_json_are_checked(tree, rows_of):
    turns = [{"from": "human", "value": "<image>hi"}]
    members = [("a.jpg", JPEG), ("a.json", json.dumps({"conversations": turns}).encode())]
    members += [("b.json", json.dumps({"conversations": turns}).encode())]
    a, b = rows_of("webdataset", tree({"s.tar": tar(members)}) / "s.tar")
    assert a.error is None and a.fields["json"]["messages"][0]["role"] == "user"
    assert "1 image placeholder but 0 images" in b.error[1]


def test_members_that_are_no_samples(tree, rows_of):
    members = [("README", b"x"), (".DS_Store", b"x"), ("__meta__/info.json", b"{}"), ("a.txt", b"t"), ("._a.jpg", b"x")]
    samples = rows_of("webdataset", tree({"s.tar": tar(members)}) / "s.tar")
    assert [sample.key for sample in samples if sample.error is None] == ["a"]
    (bad,) = [sample for sample in samples if sample.error]
    assert "README" in bad.error[1]


def test_an_empty_tar_has_no_samples(tree, rows_of):
    assert rows_of("webdataset", tree({"s.tar": tar([])}) / "s.tar") == []


def test_names_from_the_current_folder_are_keys_without_it(tree, rows_of):
    members = [("./a.jpg", JPEG), ("./a.txt", b"t"), ("././d/b.jpg", JPEG), (".//c.jpg", JPEG), ("a.jpg", JPEG)]
    *good, twice = rows_of("webdataset", tree({"s.tar": tar(members)}) / "s.tar")
    assert [(sample.key, sample.error) for sample in good] == [("a", None), ("d/b", None), ("c", None)]
    assert good[0].fields == {"txt": "t"} and "the key 'a' occurs 2 times" in twice.error[1]
