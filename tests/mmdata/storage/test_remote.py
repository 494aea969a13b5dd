"""Object stores under faults: never a wrong byte, waits kept, errors that say what to change."""

from __future__ import annotations

import http.server
import random
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from mmdata.errors import NotFound, StorageError
from mmdata.storage import Storage, StorageSettings, open_storage

Fronts = Callable[..., Any]


def through(front: Any, **settings: Any) -> Storage:
    values = {"retries": 12, "backoff_s": 0.01, "max_backoff_s": 0.05, "deadline_s": 60, "timeout_s": 1.0} | settings
    return open_storage(StorageSettings(endpoint=front.endpoint, **values))


def test_thousands_of_keys_are_listed_in_order(s3: Any, storage: Storage, front: Fronts) -> None:
    base = f"s3://{s3.bucket}/many"
    expected = sorted(f"{base}/{i % 7}/k{i:04}.jpg" for i in range(1234))
    for url in expected:
        storage.write(url, b"x")
    assert [entry.url for entry in storage.list(base)] == expected
    shaky = through(front("cut", "503", "reset", rate=0.4, seed=5))
    assert [entry.url for entry in shaky.list(base)] == expected
    assert [entry.url for entry in storage.glob(f"{base}/3/*7.jpg")] == [
        u for u in expected if "/3/" in u and "7.jpg" in u
    ]
    for url in expected:
        storage.delete(url)


def test_no_wrong_byte_under_faults(s3: Any, storage: Storage, front: Fronts) -> None:
    url, data = f"s3://{s3.bucket}/faulty.bin", random.Random(0).randbytes(400_000)
    storage.write(url, data)
    faulty = front("503", "reset", "cut", "stall", "stall before", rate=0.35, seed=1)
    shaky, draw = through(faulty), random.Random(2)
    for _ in range(25):
        offset = draw.randrange(len(data))
        length = draw.randrange(len(data) - offset + 1)
        assert shaky.read_range(url, offset, length) == data[offset : offset + length]
        assert shaky.stat(url).size == len(data)
    assert shaky.read(url) == data
    assert set(faulty.injected) >= {"503", "reset", "cut", "stall"}


def test_writes_under_faults(s3: Any, storage: Storage, front: Fronts, tmp_path: Path) -> None:
    shaky = through(front("503", "reset", "lost answer", rate=0.4, seed=3))
    base = f"s3://{s3.bucket}/written"
    for i in range(10):
        assert shaky.write(f"{base}/{i}", bytes([i]) * 1000, if_absent=True)
        assert storage.read(f"{base}/{i}") == bytes([i]) * 1000
    data = random.Random(5).randbytes(35 << 20)
    (tmp_path / "big").write_bytes(data)
    slow = through(front("503", "reset", rate=0.15, seed=4), timeout_s=10)
    slow.upload(str(tmp_path / "big"), f"{base}/big")
    assert storage.read(f"{base}/big") == data
    for entry in list(storage.list(base)):
        storage.delete(entry.url)


def test_a_conditional_write_whose_answer_was_lost_is_known_as_ours(s3: Any, storage: Storage, front: Fronts) -> None:
    lossy = front("lost answer", rate=1.0)
    original, lossy.choose = lossy.choose, lambda command, path: original(command, path) if not lossy.injected else ""
    assert through(lossy).write(f"s3://{s3.bucket}/mine", b"mine", if_absent=True)
    assert lossy.injected["lost answer"] == 1
    assert not through(lossy).write(f"s3://{s3.bucket}/mine", b"other", if_absent=True)


@pytest.mark.parametrize("status", ["503", "429"])
def test_a_busy_server_is_left_alone_for_a_second(s3: Any, storage: Storage, front: Fronts, status: str) -> None:
    storage.write(f"s3://{s3.bucket}/busy", b"1")
    busy = front(status)
    busy.rate = 1.0
    original = busy.choose
    busy.choose = lambda command, path: (
        original(command, path) if len(busy.times) < 2 else busy.times.append(("", time.monotonic())) or ""
    )
    assert through(busy).read(f"s3://{s3.bucket}/busy") == b"1"
    times = [moment for _, moment in busy.times]
    assert all(later - earlier >= 1.0 for earlier, later in pairwise(times))


def test_retries_and_deadline_are_kept(s3: Any, front: Fronts) -> None:
    always = front("reset")
    start = time.monotonic()
    with pytest.raises(StorageError, match=r"s3://.*/x.*after 4 attempts"):
        through(always, retries=3).read(f"s3://{s3.bucket}/x")
    assert len(always.times) == 4
    with pytest.raises(StorageError, match="after"):
        through(always, retries=10_000, deadline_s=1.5, backoff_s=0.2, max_backoff_s=0.2).read(f"s3://{s3.bucket}/x")
    assert time.monotonic() - start < 10


def test_a_stall_is_cut(s3: Any, storage: Storage, front: Fronts) -> None:
    storage.write(f"s3://{s3.bucket}/slow", b"1" * 10_000)
    start = time.monotonic()
    with pytest.raises(StorageError, match="slow"):
        through(front("stall", stall_s=20.0), retries=1, timeout_s=0.5).read(f"s3://{s3.bucket}/slow")
    assert time.monotonic() - start < 5


def test_errors_name_the_mend(s3: Any, monkeypatch: pytest.MonkeyPatch, storage: Storage) -> None:
    url = f"s3://{s3.bucket}/x"
    storage.write(url, b"1")
    with pytest.raises(NotFound, match="s3://no-such-bucket-here/x: the bucket does not exist"):
        storage.read("s3://no-such-bucket-here/x")
    if s3.kind == "ceph":
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
        wrong = open_storage(StorageSettings(retries=5))
        for action in (
            wrong.read,
            wrong.stat,
            lambda u: list(wrong.list(f"s3://{s3.bucket}")),
            lambda u: wrong.write(u, b""),
        ):
            with pytest.raises(StorageError, match=f"{s3.bucket}.*access denied.*credentials"):
                action(url)
    refused = open_storage(StorageSettings(endpoint="http://127.0.0.1:9", retries=1, backoff_s=0.01))
    with pytest.raises(StorageError, match=r"check the address .storage.endpoint.*after 2 attempts"):
        refused.read(url)


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    """A plain HTTP server without ranges, over a folder with odd names."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: object) -> None:
            super().__init__(*args, directory=str(tmp_path))

        def log_message(self, *args: object) -> None:
            return

        def do_HEAD(self) -> None:
            if "sig=" in self.path:
                self.send_error(403)
            else:
                super().do_HEAD()

    for name in ("a b é.txt", "s-000.tar", "s-001.tar"):
        (tmp_path / name).write_bytes(name.encode())
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_http_reads_and_refuses_the_rest(web: str, storage: Storage) -> None:
    assert storage.read(f"{web}/a%20b%20%C3%A9.txt") == "a b é.txt".encode()
    assert storage.read(f"{web}/s-000.tar?sig=1") == b"s-000.tar"
    assert [e.url for e in storage.glob(f"{web}/s-{{000..001}}.tar")] == [f"{web}/s-000.tar", f"{web}/s-001.tar"]
    for action in (lambda: list(storage.list(web)), lambda: list(storage.glob(f"{web}/*.tar"))):
        with pytest.raises(StorageError, match="no listing"):
            action()
    with pytest.raises(StorageError, match="read only"):
        storage.write(f"{web}/x", b"")
    with pytest.raises(NotFound, match=r"none\.txt"):
        storage.read(f"{web}/none.txt")
    with pytest.raises(StorageError, match=r"[Rr]ange"):
        storage.read_range(f"{web}/s-000.tar", 1, 3)
