"""The dataset card, README.md: with its head `datasets.load_dataset(folder)` reads the shards and nothing else, typed.

It tells people what the folder holds. It knows the manifest and how `datasets` decodes members, no storage.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from mmdata.formats.arrow import KEY, hugging_face_features
from mmdata.schema import EXTENSIONS
from mmdata.shards.dataset import Manifest

_TAR_DTYPES: dict[str, str] = {
    **dict.fromkeys(("txt", "text", "transcript"), "string"),
    **dict.fromkeys(("cls", "cls2", "index", "inx", "id"), "int64"),
    **dict.fromkeys(("json", "jsn"), "json"),
}
"""What `datasets` makes of a tar member, by the last part of its extension (`packaged_modules/webdataset`)."""

_UNTYPED = frozenset({"npy", "npz", "ten", "tb", "mp", "msg", "cbor", "pth", "gz", "bz2", "xz", "zst", "lz4", "zip"})
"""Members that `datasets` decodes to something whose type only their bytes tell."""


def card(manifest: Manifest, columns: Sequence[str] = ()) -> str:
    """The card's text. `columns` (Arrow only) are the member columns of the shards, whether or not a sample has them.

    A split is a pattern of file names, so the card stays small whatever the number of shards.
    """
    splits: dict[str, list[str]] = {}
    for shard in manifest.shards:
        splits.setdefault(shard.split, []).append(shard.file)
    head: dict[str, Any] = {
        "configs": [
            {
                "config_name": "default",
                "data_files": [
                    {"split": split or "train", "path": _patterns(manifest, split, files)}
                    for split, files in sorted(splits.items())
                ],
            }
        ]
    }
    features = hugging_face_features(columns or list(manifest.members)) if manifest.format == "arrow" else None
    features = features or tar_features(list(manifest.members))
    if features is not None:
        head["dataset_info"] = {"features": features}
    return f"---\n{yaml.safe_dump(head, sort_keys=False, allow_unicode=True)}---\n\n" + _text(manifest, splits)


def tar_features(members: Sequence[str]) -> list[dict[str, str]] | None:
    """`dataset_info.features` for tar shards, in which samples may differ in their members; None where a type cannot
    be told from the extension, and `datasets` must infer all of them from the first samples.

    Video stays `binary`: `datasets` cannot even load a typed one without torchcodec.
    """
    features = []
    for extension in sorted(members):
        last = extension.rpartition(".")[2]
        if last in _UNTYPED:
            return None
        kind = EXTENSIONS.get(last)
        dtype = kind if kind in ("image", "audio") else _TAR_DTYPES.get(last, "binary")
        features.append({"name": extension, "dtype": dtype})
    return [*features, {"name": KEY, "dtype": "string"}, {"name": "__url__", "dtype": "string"}]


def _patterns(manifest: Manifest, split: str, files: Sequence[str]) -> list[str]:
    ending = {"webdataset": "tar", "arrow": "arrow"}[manifest.format]
    name = f"{manifest.name}-{split}" if split else manifest.name
    folders = sorted({file.rpartition("/")[0] for file in files})
    return [f"{folder}/{name}-[0-9]*.{ending}" for folder in folders]


def _text(manifest: Manifest, splits: dict[str, list[str]]) -> str:
    samples = dict.fromkeys(splits, 0)
    for shard in manifest.shards:
        samples[shard.split] += shard.samples
    lines = [
        f"# {manifest.name}",
        "",
        f"{manifest.samples} samples in {len(manifest.shards)} {manifest.format} shards, {manifest.bytes} bytes.",
        "",
        "| split | shards | samples |",
        "|---|---|---|",
        *(f"| {split or 'train'} | {len(files)} | {samples[split]} |" for split, files in sorted(splits.items())),
        "",
        f"Read {manifest.conservation.read}, written {manifest.conservation.written}.",
    ]
    dropped = sorted(manifest.conservation.dropped.items(), key=lambda item: -item[1])
    if dropped:
        lines += ["Not in the shards (`quarantine.parquet` has a row for each):", ""]
        lines += [f"- {reason}: {count}" for reason, count in dropped]
    lines += [
        "",
        "Check every byte with `mmdata verify`, read with `mmdata inspect`, webdataset, pyarrow or datasets.",
        *_needs(manifest),
        "",
    ]
    return "\n".join(lines)


def _needs(manifest: Manifest) -> list[str]:
    """What `load_dataset` needs beside `datasets` for these members."""
    if manifest.format == "arrow":
        return []
    lasts = {extension.rpartition(".")[2] for extension in manifest.members}
    lines = []
    if any(EXTENSIONS.get(last) == "audio" for last in lasts):
        lines.append("`load_dataset` needs torchcodec (`pip install datasets[audio]`) for the sound in tar shards.")
    if not lasts.isdisjoint({"json", "jsn"}):
        lines.append("`load_dataset` reads the JSON members since datasets 4.7.")
    return lines
