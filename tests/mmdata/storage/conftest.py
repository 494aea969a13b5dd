"""Stores to test against: a folder, memory, S3; fronts that spoil S3's answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from s3_server import FaultyFront, S3Server

from mmdata.storage import Storage, StorageSettings, open_storage


@pytest.fixture
def storage() -> Storage:
    return open_storage(StorageSettings(retries=4, backoff_s=0.01, max_backoff_s=0.1, deadline_s=30, timeout_s=5))


@pytest.fixture(params=["local", "memory", "s3"])
def base(request: pytest.FixtureRequest, tmp_path: Path, storage: Storage) -> Iterator[str]:
    """An empty folder in each kind of store that can be written to without an account."""
    if request.param == "local":
        yield str(tmp_path / "store")
        return
    name = tmp_path.name
    folder = f"memory://{name}" if request.param == "memory" else f"s3://{request.getfixturevalue('s3').bucket}/{name}"
    yield folder
    if storage.is_folder(folder):
        for entry in storage.list(folder):
            storage.delete(entry.url)


@pytest.fixture
def front(s3: S3Server) -> Iterator[Callable[..., FaultyFront]]:
    """Makes fronts before the S3 server: `front("503", "cut", rate=0.3, seed=1)`."""
    made: list[FaultyFront] = []

    def make(*faults: str, **options: Any) -> FaultyFront:
        made.append(FaultyFront(s3.endpoint, list(faults), **options))
        return made[-1]

    yield make
    for one in made:
        one.close()
