from __future__ import annotations

import os
import random
import socket
import tracemalloc
from pathlib import Path

import pytest

from mmdata.errors import ConfigError, NotFound, StorageError
from mmdata.schema import EXTENSIONS, unescape_key
from mmdata.sources import listing
from mmdata.sources.folder import SIDE_CARS

JPEG = b"\xff\xd8\xff\xe0" + bytes(60)


def keys(samples):
    return [sample.key for sample in samples]


def test_every_media_file_of_the_corpus_is_a_sample_and_every_other_file_is_counted(corpora, truth, opened, read_all):
    source = opened("folder", corpora)
    samples = read_all(source)
    files = sorted(str(Path(sample.media[0].uri).relative_to(corpora)) for sample in samples)
    assert files == sorted(truth)
    assert len(set(keys(samples))) == len(samples)
    assert not [sample for sample in samples if sample.error]
    total = sum(len(names) for _, _, names in os.walk(corpora))
    assert sum(source.ignored.values()) == total - len(truth)
    for sample in samples:
        row = truth[str(Path(sample.media[0].uri).relative_to(corpora))]
        assert sample.media[0].length == row["bytes"]


def test_order_is_that_of_the_paths_and_keys_are_escaped(tree, rows_of):
    root = tree({"b.jpg": JPEG, "a/z.jpg": JPEG, "a/v1.5%.jpg": JPEG, "Ü/ß.PNG": JPEG})
    samples = rows_of("folder", root)
    assert keys(samples) == ["a/v1%2E5%25", "a/z", "b", "Ü/ß"]
    assert unescape_key(samples[0].key) == "a/v1.5%"
    assert samples[3].media[0].field == "png"
    assert samples[0].media[0].uri == f"{root}/a/v1.5%.jpg"


def test_stamp_is_size_and_modification_time(tree, rows_of):
    root = tree({"a.jpg": JPEG})
    os.utime(root / "a.jpg", ns=(5, 1_700_000_000_123_456_789))
    (sample,) = rows_of("folder", root)
    assert sample.media[0].stamp == f"{len(JPEG)}:1700000000123456789"


def test_kinds_follow_extensions(tree, rows_of):
    root = tree({"a.jpeg": JPEG, "b.MKV": b"x", "c.Flac": b"x", "d.gif": b"x"})
    assert [sample.media[0].kind for sample in rows_of("folder", root)] == ["image", "video", "audio", "image"]
    assert rows_of("folder", root, animated="video")[3].media[0].kind == "video"


def test_side_cars_join_their_media_file(tree, rows_of):
    root = tree(
        {
            "cat.jpg": JPEG,
            "cat.txt": "ein Kätzchen 🐈",
            "cat.json": '{"n": 1}',
            "cat.cls": "7\n",
            "dog.jpg": JPEG,
            "dog.txt": b"\xef\xbb\xbfBOM",
            "none.jpg": JPEG,
        }
    )
    cat, dog, none = rows_of("folder", root)
    assert cat.fields == {"txt": "ein Kätzchen 🐈", "json": {"n": 1}, "cls": 7}
    assert dog.fields == {"txt": "BOM"}
    assert none.fields == {} and none.stamp == ""
    assert [sample.fields for sample in rows_of("folder", root, captions=False)] == [{}, {}, {}]


def test_a_changed_side_car_changes_the_stamp_of_the_sample(tree, rows_of):
    root = tree({"a.jpg": JPEG, "a.txt": "one"})
    before = rows_of("folder", root)[0]
    (root / "a.txt").write_text("three")
    after = rows_of("folder", root)[0]
    assert before.stamp != after.stamp and before.media == after.media


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("a.json", b"{bad", "not valid JSON"),
        ("a.json", b"", "not valid JSON"),
        ("a.json", b'{"x": NaN}', "NaN"),
        ("a.json", b'{"x": "\\ud800"}', "surrogate"),
        ("a.json", b"[" * 100_000, "deep"),
        ("a.txt", b"caf\xe9", "not UTF-8"),
        ("a.json", b'"caf\xe9"', "not UTF-8"),
    ],
)
def test_a_bad_side_car_is_named_and_costs_its_own_sample_only(tree, rows_of, name, data, says):
    root = tree({"a.jpg": JPEG, name: data, "b.jpg": JPEG, "b.txt": "fine"})
    a, b = rows_of("folder", root)
    assert a.error is not None and a.error[0] == "InvalidSample"
    assert f"{root}/{name}" in a.error[1] and says in a.error[1]
    assert a.media[0].uri == f"{root}/a.jpg"
    assert b.error is None and b.fields == {"txt": "fine"}


def test_class_label_comes_from_the_folder_unless_a_side_car_gives_one(tree, rows_of):
    root = tree({"cat/1.jpg": JPEG, "x/dog/2.jpg": JPEG, "x/dog/3.jpg": JPEG, "x/dog/3.cls": "wolf", "top.jpg": JPEG})
    samples = rows_of("folder", root, label_from_folder=True)
    assert [sample.fields.get("label.txt") for sample in samples] == ["cat", None, "dog", "wolf"]


def test_colliding_stems_get_their_extension_whatever_the_partition_size(tree, rows_of):
    # `a.jpg.png` is alone with its stem `a.jpg`; it must not take the key of `a.jpg` beside `a.png`.
    root = tree({"a.jpg": JPEG, "a.png": JPEG, "a.JPG": JPEG, "a.txt": "t", "a.jpg.png": JPEG, "A.gif": JPEG})
    for partition in (1, 2, 100):
        samples = rows_of("folder", root, partition=partition)
        assert sorted(keys(samples)) == ["A", "a%2Ejpg", "a%3AJPG", "a%3Ajpg", "a%3Apng"]
        assert all(sample.fields == {"txt": "t"} for sample in samples if "%3A" in sample.key)


def test_side_cars_are_found_across_names_and_folders_that_sort_between(tree, rows_of):
    root = tree({"a.jpg": JPEG, "a.mid.jpg": JPEG, "a.m/x.jpg": JPEG, "a.txt": "t", "a-b.jpg": JPEG, "a.mid.txt": "m"})
    assert {sample.key: sample.fields for sample in rows_of("folder", root, partition=1)} == {
        "a": {"txt": "t"},
        "a%2Emid": {"txt": "m"},
        "a.m/x": {},
        "a-b": {},
    }


def test_what_is_not_listed_is_counted_by_reason(tree, opened, read_all):
    root = tree(
        {
            "a.jpg": JPEG,
            "notes.pdf": b"x",
            "README": b"x",
            ".hidden.jpg": JPEG,
            ".git/x.jpg": JPEG,
            "__MACOSX/x.jpg": JPEG,
            "a.jpg.tmp": b"x",
            "b.jpg~": b"x",
            "c.jpg.part": b"x",
            "orphan.txt": "x",
            "end.": b"x",
        }
    )
    source = opened("folder", root)
    assert keys(read_all(source)) == ["a"]
    assert dict(source.ignored) == {
        ".pdf": 1,
        "(no extension)": 1,
        "(hidden)": 3,
        ".tmp": 1,
        ".jpg~": 1,
        ".part": 1,
        ".txt (no media of this name)": 1,
        ".": 1,
    }
    read_all(source)
    assert source.ignored[".pdf"] == 1  # counted anew, not twice


def test_empty_files_and_broken_links_are_samples(tree, rows_of):
    root = tree({"empty.jpg": b""})
    (root / "gone.jpg").symlink_to(root / "nowhere.jpg")
    empty, gone = rows_of("folder", root)
    assert empty.media[0].length == 0
    assert (gone.media[0].length, gone.media[0].stamp) == (None, "")


def test_pipes_and_sockets_with_media_names_are_not_opened(tree, opened, read_all):
    root = tree({"a.jpg": JPEG})
    os.mkfifo(root / "pipe.jpg")
    listener = socket.socket(socket.AF_UNIX)
    with listener:
        old = os.getcwd()
        os.chdir(root)
        listener.bind("s.jpg")
        os.chdir(old)
    source = opened("folder", root)
    assert keys(read_all(source)) == ["a"]
    assert source.ignored["(not a regular file)"] == 2


def test_a_file_name_that_is_not_utf8_is_reported(tree, rows_of):
    root = tree({"a.jpg": JPEG})
    Path(os.fsdecode(os.fsencode(root) + b"/caf\xe9.jpg")).write_bytes(JPEG)
    good, bad = rows_of("folder", root)
    assert good.error is None
    assert bad.error is not None and "not valid UTF-8" in bad.error[1] and "caf" in bad.error[1]
    bad.key.encode()  # can be stored


def test_a_control_character_in_a_name_is_reported(tree, rows_of):
    (sample,) = rows_of("folder", tree({"a\nb.jpg": JPEG}))
    assert sample.error is not None and "control character" in sample.error[1]


@pytest.mark.parametrize(
    ("include", "exclude", "expected"),
    [
        (["**/*"], [], ["a/b/c", "a/b2", "t", "u"]),
        (["*.jpg"], [], ["a/b/c", "t"]),
        (["a/**"], [], ["a/b/c", "a/b2"]),
        (["a/*"], [], ["a/b2"]),
        (["**/b/*.jpg"], [], ["a/b/c"]),
        (["**/*.{png,gif}"], [], ["a/b2", "u"]),
        (["**/?.jpg"], ["t.*"], ["a/b/c"]),
        (["**/*"], ["a/**"], ["t", "u"]),
        (["**/*"], ["a/b/**"], ["a/b2", "t", "u"]),
        (["**/*"], ["[tu].*"], ["a/b/c", "a/b2"]),
        (["**/*"], ["[!tu].*"], ["a/b2", "t", "u"]),
    ],
)
def test_globs(tree, rows_of, include, exclude, expected):
    root = tree({"a/b/c.jpg": JPEG, "a/b2.png": JPEG, "t.jpg": JPEG, "t.txt": "caption", "u.gif": JPEG})
    samples = rows_of("folder", root, include=include, exclude=exclude)
    assert keys(samples) == expected
    if "t" in expected:
        assert next(sample for sample in samples if sample.key == "t").fields == {"txt": "caption"}


def test_nothing_found_is_an_error_that_names_patterns_and_what_was_there(tree, opened, read_all):
    root = tree({"a.pdf": b"x"})
    with pytest.raises(ConfigError, match=r"\.webp.*1 \.pdf|1 \(excluded\)"):
        read_all(opened("folder", root, include=["**/*.webp"]))
    with pytest.raises(ConfigError, match=r"1 \.pdf"):
        read_all(opened("folder", root))


def test_missing_folder_and_file_instead_of_folder(tree, opened, read_all):
    root = tree({"a.jpg": JPEG})
    with pytest.raises(NotFound, match="nowhere"):
        read_all(opened("folder", root / "nowhere"))
    with pytest.raises(ConfigError, match="is a file"):
        read_all(opened("folder", root / "a.jpg"))


def test_linked_folders_are_followed_and_loops_refused(tree, opened, tmp_path, read_all):
    other = tree({"x.jpg": JPEG}, "other")
    root = tree({"a/b.jpg": JPEG})
    (root / "link").symlink_to(other)
    assert keys(read_all(opened("folder", root))) == ["a/b", "link/x"]
    (root / "a" / "up").symlink_to(root)
    with pytest.raises(StorageError, match=r"link loop.*a/up"):
        read_all(opened("folder", root))
    assert keys(read_all(opened("folder", root, exclude=["a/up/**"]))) == ["a/b", "link/x"]


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser can read every folder")
def test_an_unreadable_folder_is_one_clear_error(tree, opened, read_all):
    root = tree({"a.jpg": JPEG, "shut/b.jpg": JPEG})
    (root / "shut").chmod(0)
    try:
        with pytest.raises(StorageError, match=r"cannot read the folder .*shut"):
            read_all(opened("folder", root))
    finally:
        (root / "shut").chmod(0o755)


def test_a_folder_that_cannot_be_opened_is_one_clear_error(tree, opened, monkeypatch, read_all):
    root = tree({"a.jpg": JPEG, "shut/b.jpg": JPEG})
    scandir = os.scandir

    def refuse(path):
        if str(path).rstrip("/").endswith("shut"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(listing.os, "scandir", refuse)
    with pytest.raises(StorageError, match=r"cannot read the folder .*shut.*Permission denied"):
        read_all(opened("folder", root))


def many(count: int, seed: int = 1) -> dict[str, bytes | str]:
    draw = random.Random(seed)
    files: dict[str, bytes | str] = {}
    for number in range(count):
        stem = f"{draw.randrange(20):02d}/{draw.randrange(10**9):09d}"
        files[f"{stem}.jpg"] = b""
        if number % 3 == 0:
            files[f"{stem}.txt"] = "t"
    return files


def test_a_new_file_changes_its_neighbourhood_only(tree, opened):
    files = many(3000)
    root = tree(files)
    source = opened("folder", root, partition=50)
    before = {part.name: part.payload for part in source.partitions()}
    assert 3000 / 50 / 2 < len(before) < 3000 / 50 * 2
    tree({"10/500000000x.jpg": b""})
    after = {part.name: part.payload for part in source.partitions()}
    changed = [name for name in after if before.get(name) != after[name]]
    assert 1 <= len(changed) <= 4
    assert sum(count_files(payload) for payload in after.values()) == 1 + sum(map(count_files, before.values()))


def count_files(payload) -> int:
    return sum(len(members) for _, members in payload["groups"])


def test_partitions_hold_every_sample_once_in_order_within_bounds(tree, opened, read_all):
    root = tree(many(2000))
    whole = read_all(opened("folder", root, partition=10**6))
    for partition in (1, 7, 64):
        source = opened("folder", root, partition=partition)
        parts = list(source.partitions())
        assert read_all(source) == whole
        assert len({part.name for part in parts}) == len(parts)
        assert all(part.count == len(list(source.samples(part))) for part in parts)
        assert all(part.count <= 4 * partition + 2 for part in parts)


def test_a_folder_larger_than_one_sorted_run_keeps_its_order(tree, opened, monkeypatch, read_all):
    root = tree(many(500) | {f"{number}/z.jpg": b"" for number in range(30)})
    expected = read_all(opened("folder", root))
    monkeypatch.setattr(listing, "_RUN", 7)
    assert read_all(opened("folder", root)) == expected


def test_listing_takes_constant_memory(tmp_path, opened):
    peaks = []
    for folders in (5, 20):
        root = tmp_path / str(folders)
        for folder in range(folders):
            (root / str(folder)).mkdir(parents=True)
            for number in range(500):
                (root / str(folder) / f"{number:05d}.jpg").touch()
        source = opened("folder", root, partition=200)
        tracemalloc.start()
        assert sum(part.count for part in source.partitions()) == folders * 500
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.3 * peaks[0]


def test_side_car_extensions_are_not_media():
    assert not set(SIDE_CARS) & set(EXTENSIONS)
