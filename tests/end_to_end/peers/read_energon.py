"""Reads a dataset folder with Megatron-Energon and prints what it got as JSON. Runs in the peers' environment.

python read_energon.py FOLDER SPLIT…
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
from typing import Any

from megatron.energon import WorkerConfig, get_loader
from megatron.energon.dataset_config import get_dataset_from_config
from megatron.energon.epathlib import EPath
from megatron.energon.flavors.webdataset.indexing import SqliteIndexReader

WORKERS = WorkerConfig(rank=0, world_size=1, num_workers=0)


def fields(sample: Any) -> dict[str, Any]:
    """What the sample holds, without Energon's own book-keeping."""
    if not isinstance(sample, dict):
        sample = {field.name: getattr(sample, field.name) for field in dataclasses.fields(sample)}
    return {name: value for name, value in sample.items() if not name.startswith("__") and value is not None}


def key_of(sample: Any) -> str:
    """The sample's key."""
    return sample["__key__"] if isinstance(sample, dict) else sample.__key__


def plain(value: Any) -> Any:
    """A decoded member as JSON: pictures by their shape [channels, height, width] and mean in 0..255."""
    if hasattr(value, "shape"):
        return {"shape": list(value.shape), "mean": float(value.float().mean() * 255)}
    return value if isinstance(value, (str, int, dict, list)) else type(value).__name__


def main(folder: str, *splits: str) -> dict[str, Any]:
    """Per split: key → field → digest of the raw bytes, and key → field → decoded; `store`: member → digest, by random
    access."""
    found: dict[str, Any] = {"raw": {}, "decoded": {}, "store": {}, "type": ""}
    for split in splits:
        for name, options in (("raw", {"decoder": None}), ("decoded", {})):
            factory = get_dataset_from_config(
                folder, split_part=split, training=False, worker_config=WORKERS, **options
            )
            found["type"] = factory.__sample_type__.__name__
            samples = found[name].setdefault(split, {})
            for sample in get_loader(factory.build()):
                assert key_of(sample) not in samples, f"{key_of(sample)} came twice"
                convert = plain if name == "decoded" else lambda value: hashlib.sha256(value).hexdigest()
                samples[key_of(sample)] = {field: convert(value) for field, value in fields(sample).items()}
            assert len(samples) == len(factory), f"{len(samples)} samples came, {len(factory)} were announced"
    factory = get_dataset_from_config(folder, split_part=splits[0], training=False, worker_config=WORKERS)
    store, index = factory.as_file_store(), SqliteIndexReader(EPath(folder) / ".nv-meta" / "index.sqlite")
    for name, *_ in list(index.list_all_sample_parts()):
        found["store"][name] = hashlib.sha256(store[name][0]).hexdigest()
    return found


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
