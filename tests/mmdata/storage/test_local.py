"""Local files: atomic writes under kill -9, links, special files, stale temporary files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mmdata.errors import NotFound, StorageError
from mmdata.storage import Storage


def test_file_urls_are_percent_decoded(storage: Storage, tmp_path: Path) -> None:
    path = tmp_path / "a b#é%.txt"
    storage.write(path.as_uri(), b"1")
    assert path.read_bytes() == b"1" and storage.local_path(path.as_uri()) == str(path)
    assert storage.local_path("s3://b/k") is None


def test_relative_patterns_give_relative_paths(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    storage.write("d/a.jpg", b"1")
    storage.write("b.jpg", b"1")
    assert [e.url for e in storage.glob("**/*.jpg")] == ["b.jpg", "d/a.jpg"]
    assert [e.url for e in storage.glob("d/*.jpg")] == ["d/a.jpg"]
    assert [e.url for e in storage.glob("./*.jpg")] == ["./b.jpg"]
    with pytest.raises(
        StorageError, match=r"nothing matches \*\.png; the nearest folder that exists is \., it holds b.jpg"
    ):
        list(storage.glob("*.png"))


def test_hidden_files_are_listed_but_not_matched_by_wildcards(storage: Storage, tmp_path: Path) -> None:
    for name in (".DS_Store", "a.jpg", ".hidden/b.jpg"):
        storage.write(str(tmp_path / name), b"1")
    assert len(list(storage.list(str(tmp_path)))) == 3
    assert [e.url for e in storage.glob(f"{tmp_path}/**")] == [str(tmp_path / "a.jpg")]
    assert [e.url for e in storage.glob(f"{tmp_path}/.hid*/*")] == [str(tmp_path / ".hidden/b.jpg")]


def test_links_are_followed_once_and_special_files_left_out(storage: Storage, tmp_path: Path) -> None:
    root = tmp_path / "root"
    storage.write(str(root / "d/a.jpg"), b"1")
    (root / "d/loop").symlink_to(root)
    (root / "self").symlink_to("self")
    (root / "gone.jpg").symlink_to("nowhere")
    (root / "link.jpg").symlink_to("d/a.jpg")
    os.mkfifo(root / "pipe.jpg")
    listed = [(os.path.relpath(e.url, root), e.size) for e in storage.list(str(root))]
    assert listed == [("d/a.jpg", 1), ("gone.jpg", 0), ("link.jpg", 1), ("self", 0)]
    with pytest.raises(NotFound):
        storage.read(str(root / "gone.jpg"))


def test_a_write_that_fails_leaves_nothing(storage: Storage, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match="there is a folder of that name"):
        storage.write(str(tmp_path / "folder"), b"1")
    with pytest.raises(StorageError, match="file/x"):
        storage.write(str(tmp_path / "file/x"), b"1")
    with pytest.raises(StorageError, match="too long"):
        storage.write(str(tmp_path / ("n" * 300)), b"1")
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


WRITER = """
import sys
from mmdata.storage import open_storage
storage, number = open_storage(), 0
while True:
    storage.write(sys.argv[1], bytes([number % 256]) * 3_000_000)
    number += 1
"""


def test_kill_at_any_moment_leaves_a_whole_file_and_what_is_left_over_is_cleaned(
    storage: Storage, tmp_path: Path
) -> None:
    target, leftovers = tmp_path / "x.bin", 0
    for round_ in range(8):
        process = subprocess.Popen([sys.executable, "-c", WRITER, str(target)])
        seen = target.stat().st_mtime_ns if target.exists() else 0
        for _ in range(3000):
            if target.exists() and target.stat().st_mtime_ns != seen:
                break
            time.sleep(0.005)
        time.sleep(0.0021 * round_)
        process.send_signal(signal.SIGKILL)
        process.wait(10)
        data = target.read_bytes()
        assert len(data) == 3_000_000 and len(set(data)) == 1
        leftovers += storage.clean(str(tmp_path))
        assert os.listdir(tmp_path) == ["x.bin"]
    assert leftovers > 0


def test_temporary_files_of_living_processes_are_kept_and_not_listed(storage: Storage, tmp_path: Path) -> None:
    script = "from mmdata.storage import local; import sys, time\n"
    script += (
        "local.place_stream(sys.argv[1], lambda f: (f.write(b'1'), f.flush(), print('ok', flush=True), time.sleep(60)))"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "x")], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None and process.stdout.readline() == b"ok\n"
        assert len(os.listdir(tmp_path)) == 1
        assert storage.clean(str(tmp_path)) == 0 and len(os.listdir(tmp_path)) == 1
        assert list(storage.list(str(tmp_path))) == []
    finally:
        process.kill()
        process.wait(10)


def test_of_many_conditional_writers_one_wins(storage: Storage, tmp_path: Path) -> None:
    script = "import sys; from mmdata.storage import open_storage\n"
    script += "print(open_storage().write(sys.argv[1], sys.argv[2].encode(), if_absent=True))"
    target = str(tmp_path / "lock")
    writers = [
        subprocess.Popen([sys.executable, "-c", script, target, str(i)], stdout=subprocess.PIPE, text=True)
        for i in range(6)
    ]
    answers = [process.communicate(timeout=60)[0].strip() for process in writers]
    assert sorted(answers) == ["False"] * 5 + ["True"]
    assert storage.read(target).decode() == str(answers.index("True"))


def test_a_path_that_nothing_can_lie_at_is_absent_and_no_failure_of_the_store(storage: Storage, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "turns").symlink_to("turns")
    for path in (tmp_path / "file" / "below", tmp_path / "turns", tmp_path / ("n" * 300)):
        for read in (storage.read, storage.stat):
            with pytest.raises(NotFound, match=f"{path.name[:200]}.*: (Not a directory|Too many levels|File name too)"):
                read(str(path))
    with pytest.raises(StorageError, match=r"Not a directory|File exists") as refused:
        storage.write(str(tmp_path / "file" / "below"), b"y")
    assert not isinstance(refused.value, NotFound)
