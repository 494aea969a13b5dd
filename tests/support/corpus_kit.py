"""Build real media with the command, watch the memory of the whole job, and read what was stored from its bytes."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import job_kit
import numpy as np
import pyarrow.parquet as pq
import yaml

from mmdata.media import audio, image, video
from mmdata.schema import EXTENSIONS


@dataclass(frozen=True)
class Dataset:
    """A finished build, read with nothing but pyarrow and plain files."""

    folder: Path
    catalog: Path
    seconds: float
    peak_bytes: int
    """Largest sum of the proportional set sizes of all processes of the job at one time."""

    @cached_property
    def manifest(self) -> dict[str, Any]:
        return json.loads((self.folder / "manifest.json").read_text("utf-8"))

    @cached_property
    def index(self) -> dict[str, dict[str, Any]]:
        """Index row by key, in shard order."""
        rows = [row for file in self.manifest["index"] for row in pq.read_table(self.folder / file).to_pylist()]
        return unique(rows)

    @cached_property
    def quarantine(self) -> dict[str, dict[str, Any]]:
        return unique(pq.read_table(self.folder / "quarantine.parquet").to_pylist())

    @cached_property
    def scanned(self) -> dict[str, dict[str, Any]]:
        """Catalog row by key, of the samples that are good."""
        rows = [row for part in sorted(self.catalog.glob("part-*")) for row in pq.read_table(part).to_pylist()]
        return unique([row for row in rows if row["status"] == "ok"])

    def members(self, key: str) -> dict[str, bytes]:
        """The members of a sample: the shard's bytes at the index's offsets."""
        row, found = self.index[key], {}
        with open(self.folder / row["shard"], "rb") as shard:
            for name, offset, length in zip(row["members"], row["offsets"], row["lengths"], strict=True):
                shard.seek(offset)
                found[name] = shard.read(length)
                assert len(found[name]) == length, (key, name)
        return found

    def medium(self, key: str) -> bytes:
        """The only medium of a sample."""
        (data,) = [data for name, data in self.members(key).items() if name.rpartition(".")[2] in EXTENSIONS]
        return data

    def document(self, key: str) -> Any:
        return json.loads(self.members(key)["json"])

    def check_conservation(self) -> None:
        """in = out + dropped, and the files say the same as the manifest."""
        kept, shards = self.manifest["conservation"], self.manifest["shards"]
        dropped = Counter(f"{row['stage']}/{row['error_class']}" for row in self.quarantine.values())
        assert kept["dropped"] == dict(dropped)
        assert kept["written"] == len(self.index) == sum(shard["samples"] for shard in shards)
        assert kept["read"] == len(self.index) + len(self.quarantine)
        assert not self.index.keys() & self.quarantine.keys()


def unique(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    by_key = {row["key"]: row for row in rows}
    assert len(by_key) == len(rows), [key for key, n in Counter(row["key"] for row in rows).items() if n > 1]
    return by_key


def build(folder: Path, name: str, **sections: Any) -> Dataset:
    """Run `mmdata build` of a recipe with these sections, with two workers, in a session of its own."""
    recipe = {
        "version": 1,
        "name": name,
        "output": {"path": str(folder / name), "max_samples": 100} | sections.pop("output", {}),
        "limits": {"max_bad": 1.0},
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(recipe | sections), encoding="utf-8")
    catalog = Path(sections.get("catalog", f"{folder / name}.catalog"))
    begun = time.monotonic()
    with job_kit.Job("build", path, "--workers", 2, "--json") as job, watched(job) as peak:
        printed = job.finish(timeout=280)
    dataset = Dataset(folder / name, catalog, time.monotonic() - begun, peak[0])
    summary = json.loads(printed.splitlines()[-1])
    assert summary["samples"] == len(dataset.index), summary
    print(f"{name}: {len(dataset.index)} samples, {len(dataset.quarantine)} dropped, "
          f"{dataset.seconds:.1f} s, {dataset.peak_bytes / 2**20:.0f} MiB")  # fmt: skip
    return dataset


@contextlib.contextmanager
def watched(job: job_kit.Job) -> Iterator[list[int]]:
    """Looks at the job's memory about eight times a second; the one item is the largest sum seen."""
    peak, over = [0], threading.Event()

    def look() -> None:
        while not over.wait(0.1):
            peak[0] = max(peak[0], sum(map(proportional_bytes, (process.pid for process in job.processes()))))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield peak
    finally:
        over.set()
        thread.join()


def proportional_bytes(pid: int) -> int:
    """PSS: private pages, and each shared page divided by the processes that share it. 0 when the process is gone."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def folder_keys(root: Path, extensions: Collection[str] = EXTENSIONS) -> dict[str, str]:
    """Key of each file below `root` with one of these extensions, by the rule that the folder source states."""
    files = sorted(path for path in root.rglob("*") if path.is_file() and path.suffix[1:].lower() in extensions)
    stems = Counter(path.with_suffix("") for path in files)
    keys = {}
    for path in files:
        stem = path.with_suffix("").relative_to(root)
        base = stem.name.replace("%", "%25").replace(".", "%2E")
        suffix = f"%3A{path.suffix[1:]}" if stems[path.with_suffix("")] > 1 else ""
        keys[str(path.relative_to(root))] = (stem.parent / (base + suffix)).as_posix()
    return keys


def decoded(kind: str, data: bytes) -> tuple[dict[str, Any], np.ndarray | None]:
    """What decoding the whole medium says of it, and the mean colour of a picture."""
    if kind == "video":
        return asdict(video.decode_all(data)), None
    if kind == "audio":
        return asdict(audio.decode_all(data)), None
    picture, info = image.decode(data), image.probe(data)
    mean = np.asarray(picture).mean((0, 1), dtype=np.float64)
    return asdict(info) | {"width": picture.width, "height": picture.height}, mean
