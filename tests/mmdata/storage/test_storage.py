"""The same behaviour on a folder, in memory and on S3: reads, ranges, listings, globs, atomic writes."""

from __future__ import annotations

import os
import pickle
import random
from pathlib import Path

import pytest

from mmdata.errors import NotFound, StorageError
from mmdata.storage import Storage, open_storage

NAMES = ["[x]{y}.tar", "a b", "a#b?c", "a%20b", "w/d/e/f.txt", "x.jpg", "x/y.jpg", "x/z.png", "é写"]


def fill(storage: Storage, base: str, names: list[str] = NAMES) -> None:
    for name in names:
        assert storage.write(storage.join(base, name), name.encode())


def names(storage: Storage, base: str, entries: object) -> list[str]:
    return [storage.relative(entry.url, base) for entry in entries]


def test_odd_names_go_round(storage: Storage, base: str) -> None:
    fill(storage, base)
    for name in NAMES:
        url = storage.join(base, name)
        assert storage.read(url) == name.encode()
        assert storage.stat(url).size == len(name.encode())
        assert [(e.url, e.size) for e in storage.glob(url)] == [(url, len(name.encode()))]


def test_listing_is_sorted_by_whole_path(storage: Storage, base: str) -> None:
    fill(storage, base)
    assert names(storage, base, storage.list(base)) == sorted(NAMES)
    flat = [entry.url[len(base) + 1 :] for entry in storage.list(base, recursive=False)]
    assert flat == ["[x]{y}.tar", "a b", "a#b?c", "a%20b", "w/", "x.jpg", "x/", "é写"]
    entry = next(iter(storage.list(base)))
    assert (entry.size, entry.stamp) == storage.stat(entry.url)


def test_listing_a_folder_that_is_not_there(storage: Storage, base: str) -> None:
    fill(storage, base)
    with pytest.raises(NotFound, match="nowhere"):
        list(storage.list(storage.join(base, "nowhere")))
    assert storage.is_folder(base) and not storage.is_folder(storage.join(base, "nowhere"))


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*", ["[x]{y}.tar", "a b", "a#b?c", "a%20b", "x.jpg", "é写"]),
        ("**", sorted(NAMES)),
        ("**/*.jpg", ["x.jpg", "x/y.jpg"]),
        ("x/*.{jpg,png}", ["x/y.jpg", "x/z.png"]),
        ("{x,w}/**", ["x/y.jpg", "x/z.png", "w/d/e/f.txt"]),
        ("x/{z.png,y.jpg}", ["x/z.png", "x/y.jpg"]),
        ("*/d/*/f.txt", ["w/d/e/f.txt"]),
        ("x/[!a-y].png", ["x/z.png"]),
        ("x/?.jpg", ["x/y.jpg"]),
        ("w/**/f.txt", ["w/d/e/f.txt"]),
        ("{w/d,x}/*/f.txt", ["w/d/e/f.txt"]),
    ],
)
def test_glob(storage: Storage, base: str, pattern: str, expected: list[str]) -> None:
    fill(storage, base)
    assert names(storage, base, storage.glob(f"{base}/{pattern}")) == expected


def test_glob_of_numbered_shards_wants_every_one(storage: Storage, base: str) -> None:
    fill(storage, base, [f"s-{i:03}.tar" for i in range(12) if i != 11])
    assert names(storage, base, storage.glob(f"{base}/s-{{000..010}}.tar")) == [f"s-{i:03}.tar" for i in range(11)]
    with pytest.raises(NotFound, match=r"s-011\.tar"):
        list(storage.glob(f"{base}/s-{{000..011}}.tar"))


def test_glob_that_matches_nothing_names_pattern_and_nearest_folder(storage: Storage, base: str) -> None:
    fill(storage, base)
    with pytest.raises(StorageError) as error:
        list(storage.glob(f"{base}/x/deep/er/*.tar"))
    assert f"{base}/x/deep/er/*.tar" in str(error.value)
    assert f"nearest folder that exists is {base}/x, it holds y.jpg, z.png" in str(error.value)


def test_ranges_are_exact_or_an_error(storage: Storage, base: str) -> None:
    url, data = storage.join(base, "r.bin"), random.Random(1).randbytes(100_000)
    storage.write(url, data)
    draw = random.Random(2)
    ranges = [(o, draw.randrange(len(data) - o + 1)) for o in (draw.randrange(len(data)) for _ in range(40))]
    ranges += [(0, 0), (len(data) - 1, 1), (0, len(data))]
    assert storage.read_ranges(url, ranges) == [data[o : o + n] for o, n in ranges]
    assert storage.read_range(url, 7, 11) == data[7:18]
    for offset, length in ((len(data) - 1, 2), (len(data) + 5, 1)):
        with pytest.raises(StorageError, match=r"r\.bin"):
            storage.read_range(url, offset, length)
    with pytest.raises(StorageError, match="negative"):
        storage.read_range(url, -1, 5)


def test_what_is_not_there(storage: Storage, base: str) -> None:
    url = storage.join(base, "none.bin")
    for read in (storage.read, storage.stat, storage.open, lambda u: storage.read_range(u, 0, 1)):
        with pytest.raises(NotFound, match=r"none\.bin"):
            read(url)
    assert not storage.exists(url)
    storage.delete(url)


def test_a_folder_is_no_file(storage: Storage, base: str) -> None:
    fill(storage, base)
    assert not storage.exists(storage.join(base, "x"))
    with pytest.raises(NotFound):
        storage.stat(storage.join(base, "x"))


def test_conditional_write_keeps_the_first(storage: Storage, base: str) -> None:
    url = storage.join(base, "once")
    assert storage.write(url, b"first", if_absent=True)
    assert not storage.write(url, b"second", if_absent=True)
    assert storage.read(url) == b"first"
    before = storage.stat(url)
    assert storage.write(url, b"third")
    assert storage.read(url) == b"third" and storage.stat(url) != before


def test_files_seek_and_read(storage: Storage, base: str) -> None:
    url, data = storage.join(base, "f.bin"), random.Random(3).randbytes(3_000_000)
    storage.write(url, data)
    with storage.open(url) as file:
        assert file.seek(-5, os.SEEK_END) == len(data) - 5 and file.read() == data[-5:]
        file.seek(1000)
        assert file.read(10) == data[1000:1010] and file.tell() == 1010
        file.seek(0)
        assert file.read() == data and file.read(1) == b""


def test_large_files_up_and_down(storage: Storage, base: str, tmp_path: Path) -> None:
    """40 MiB goes up in parts and comes down in pieces; the uploaded file is moved."""
    data = random.Random(4).randbytes(40 << 20)
    (tmp_path / "up").write_bytes(data)
    url = storage.join(base, "deep", "big.tar")
    storage.upload(str(tmp_path / "up"), url)
    assert not (tmp_path / "up").exists() and storage.stat(url).size == len(data)
    storage.download(url, str(tmp_path / "down"))
    assert (tmp_path / "down").read_bytes() == data


def test_a_pickled_storage_works(storage: Storage, base: str) -> None:
    storage.write(storage.join(base, "a"), b"1")
    copy = pickle.loads(pickle.dumps(storage))
    assert copy.settings == storage.settings and copy.read(storage.join(base, "a")) == b"1"


def test_unknown_schemes_are_named() -> None:
    with pytest.raises(StorageError, match=r"ftp://.*known are.*s3://"):
        open_storage().read("ftp://host/x")
    with pytest.raises(StorageError, match="no bucket"):
        open_storage().read("s3:///key")
