"""Reads a dataset folder with Hugging Face datasets and prints what it got as JSON. Runs in the peers' environment.

python read_datasets.py FOLDER CACHE
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import sys
import types
from typing import Any

from datasets import Audio, Image, load_dataset


def stand_in_for_torchcodec() -> None:
    """`datasets` imports torchcodec (which needs FFmpeg's libraries) before it takes an Audio member's bytes, only to
    ask whether they are one of its objects. Nothing here decodes sound, so the names are enough."""
    if importlib.util.find_spec("torchcodec") is None:
        for module, name in (("torchcodec", ""), ("torchcodec.encoders", "AudioEncoder"), ("torchcodec.decoders", "")):
            sys.modules[module] = types.ModuleType(module)
            if name:
                setattr(sys.modules[module], name, type(name, (), {}))


def digest(value: Any) -> str:
    """SHA-256 of a member, in the bytes it had in the shard."""
    if isinstance(value, dict) and value.keys() == {"bytes", "path"}:
        value = value["bytes"]
    if not isinstance(value, (bytes, str)):
        value = json.dumps(value, ensure_ascii=False)
    return hashlib.sha256(value.encode() if isinstance(value, str) else value).hexdigest()


def main(folder: str, cache: str) -> dict[str, Any]:
    """Splits → key → member → digest, the type of each column, and the size of each decoded picture."""
    found: dict[str, Any] = {"splits": {}, "features": {}, "pictures": {}}
    for split, rows in load_dataset(folder, cache_dir=cache).items():
        found["features"] = {
            name: getattr(feature, "dtype", None) if type(feature).__name__ == "Value" else type(feature).__name__
            for name, feature in rows.features.items()
        }
        raw = rows
        for name, feature in rows.features.items():
            if isinstance(feature, (Image, Audio)):
                raw = raw.cast_column(name, type(feature)(decode=False))
        samples = {}
        for row in raw:
            members = {name: value for name, value in row.items() if not name.startswith("__") and value is not None}
            assert row["__key__"] not in samples, f"{row['__key__']} came twice"
            samples[row["__key__"]] = {name: digest(value) for name, value in members.items()}
        found["splits"][split] = samples
        for name in (name for name, feature in rows.features.items() if isinstance(feature, Image)):
            for row in rows.select_columns(["__key__", name]):
                if row[name] is not None:
                    found["pictures"][f"{row['__key__']}.{name}"] = row[name].size
    return found


if __name__ == "__main__":
    stand_in_for_torchcodec()
    print(json.dumps(main(*sys.argv[1:])))
