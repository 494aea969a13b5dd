"""Fixtures for the sources' tests: write files, open a source, read all of it."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mmdata.recipe import FolderSource, TableSource, WebDatasetSource
from mmdata.schema import SourceSample
from mmdata.sources import Partition, Source, open_source
from mmdata.storage import open_storage

MODELS: dict[str, Any] = {"folder": FolderSource, "table": TableSource, "webdataset": WebDatasetSource}

Opened = Callable[..., Source]


@pytest.fixture
def opened(tmp_path: Path) -> Opened:
    """`opened("folder", path, include=[…], partition=10)`: the source of these settings."""

    def make(kind: str, path: Any, partition: int = 4096, **settings: Any) -> Source:
        path = str(path) if isinstance(path, (str, Path)) else [str(one) for one in path]
        model = MODELS[kind].model_validate({"type": kind, "path": path, **settings})
        return open_source(model, open_storage(None), str(tmp_path / "spool"), partition)

    return make


def _read_all(source: Source) -> list[SourceSample]:
    """Samples of all partitions, each partition and the source taken through pickle and JSON as between processes."""
    samples = []
    for part in source.partitions():
        sent = Partition(part.name, json.loads(json.dumps(part.payload)), part.count)
        samples += list(pickle.loads(pickle.dumps(source)).samples(sent))
    return samples


@pytest.fixture
def read_all() -> Callable[[Source], list[SourceSample]]:
    """`read_all(source)`: samples of all its partitions."""
    return _read_all


@pytest.fixture
def rows_of(opened: Opened) -> Callable[..., list[SourceSample]]:
    """`rows_of("table", path, …)`: every sample of a source."""
    return lambda kind, path, **settings: _read_all(opened(kind, path, **settings))


@pytest.fixture
def tree(tmp_path: Path) -> Callable[..., Path]:
    """`tree({"a/b.jpg": b"…"})`: a folder with these files."""

    def make(files: dict[str, bytes | str], name: str = "media") -> Path:
        root = tmp_path / name
        root.mkdir(exist_ok=True)
        for path, data in files.items():
            file = root / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data if isinstance(data, bytes) else data.encode())
        return root

    return make


@pytest.fixture
def media_bytes() -> Callable[[SourceSample], list[bytes]]:
    """`media_bytes(sample)`: the bytes that each of its media points at."""

    def read(sample: SourceSample) -> list[bytes]:
        found = []
        for ref in sample.media:
            data = Path(ref.uri).read_bytes()
            start = ref.offset or 0
            found.append(data[start : start + ref.length] if ref.length is not None else data[start:])
        return found

    return read
