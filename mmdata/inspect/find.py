"""Find what a person names: what kind of thing lies at a path, and one sample in it by its key."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mmdata.errors import ConfigError, DatasetError, FormatError, NotFound, StorageError
from mmdata.formats.arrow import index_arrow
from mmdata.formats.tar import Damage, group_members
from mmdata.formats.tar_index import index_tar
from mmdata.report.text import counted, plain, size
from mmdata.schema import escape_key, unescape_key
from mmdata.shards.catalog import has_catalog
from mmdata.shards.dataset import MANIFEST, has_dataset, open_manifest, unfinished
from mmdata.storage import Storage, open_storage
from mmdata.storage.urls import join, parent

TargetKind = Literal["dataset", "catalog", "shard"]

SHARD_ENDINGS = (".tar", ".arrow")

SUGGESTED = 3
"""Keys that are named when the one asked for is not there."""


def check_kind(target: str, wanted: TargetKind) -> None:
    """Raise ConfigError when `target` is something else than `wanted`, and DatasetError when it is nothing known."""
    storage = open_storage(None)
    found = kind_of(storage, target, wanted)
    if found != wanted:
        raise ConfigError(f"{target}: this is a {found}, not a {wanted}{_nearby(storage, target, wanted)}")


def kind_of(storage: Storage, target: str, wanted: TargetKind | None = None) -> TargetKind:
    """What lies at `target`; `wanted` is only for the message.

    Raises:
        DatasetError: nothing that can be inspected; the message says what it is, and what was probably meant.
    """
    is_file = storage.exists(target)
    if is_file and target.endswith(SHARD_ENDINGS):
        return "shard"
    if not is_file and has_dataset(storage, target):
        return "dataset"
    if not is_file and has_catalog(storage, target):
        return "catalog"
    raise DatasetError(f"{target}: {_what(storage, target, wanted)}")


def _what(storage: Storage, target: str, wanted: TargetKind | None) -> str:
    """What `target` is instead of a dataset, catalog or shard, and the mend."""
    if storage.is_folder(target):
        if unfinished(storage, target):
            return (
                f"this dataset is not finished (no {MANIFEST}): run the same `mmdata build` again, or `mmdata commit`"
            )
        near = _nearby(storage, target, wanted)
        return "no dataset or catalog is in this folder" + (near or "; make one with `mmdata build RECIPE`")
    if not storage.exists(target):
        return "there is no such file or folder"
    if target.endswith((".yaml", ".yml")):
        return "this is not a dataset; if it is a recipe, run `mmdata build` on it and inspect its output.path"
    above = parent(target)
    if above is not None and (has_dataset(storage, above) or has_catalog(storage, above)):
        return f"this is a part of {above}; did you mean that?"
    return "this is neither a dataset, nor a catalog, nor a .tar or .arrow shard"


def _nearby(storage: Storage, target: str, wanted: TargetKind | None) -> str:
    """`; did you mean 'x'?` for the datasets (or catalogs) right below, above or beside `target`."""
    places = [target.removesuffix(".catalog")] if target.endswith(".catalog") else [f"{target.rstrip('/')}.catalog"]
    above = parent(target)
    places += [above, parent(above) if above else None]  # type: ignore[list-item]
    try:
        below = [entry.url.rstrip("/") for entry in storage.list(target, recursive=False) if entry.url.endswith("/")]
    except (StorageError, NotFound):
        below = []
    for place in [*below[:64], *places]:
        if not place:
            continue
        is_dataset = has_dataset(storage, place)
        if (wanted != "catalog" and is_dataset) or (wanted != "dataset" and has_catalog(storage, place)):
            return f"; did you mean '{place}'?"
    return ""


def shard_rows(storage: Storage, url: str, damage: list[Damage]) -> Iterator[dict[str, Any]]:
    """Key, members and byte ranges of each sample of a shard, from the shard itself; damage is added to the list.

    Raises:
        FormatError: an Arrow shard that cannot be opened at all.
    """
    if url.endswith(".arrow"):
        path = storage.local_path(url)
        if path is None:
            raise ConfigError(f"{url}: inspect a remote Arrow shard through its dataset folder")
        try:
            for key, placed in zip(_arrow_keys(path), index_arrow(path), strict=True):
                yield _row(url, key, placed.members, placed.offsets, placed.lengths)
        except (pa.ArrowInvalid, OSError) as error:
            raise FormatError(f"{url}: a damaged Arrow shard: {error}; `mmdata verify` its dataset") from error
        return
    with storage.open(url) as stream:
        for key, found in group_members(index_tar(stream), damage.append):
            yield _row(url, key, *zip(*found, strict=True))


def _arrow_keys(path: str) -> Iterator[str]:
    with pa.memory_map(path) as source:
        reader = pa.ipc.open_file(source)
        for number in range(reader.num_record_batches):
            yield from reader.get_batch(number).column(0).to_pylist()


def _row(url: str, key: str, members: Sequence[str], offsets: Sequence[int], lengths: Sequence[int]) -> dict[str, Any]:
    return {"key": key, "shard": url, "members": list(members), "offsets": list(offsets), "lengths": list(lengths)}


def extract(target: str, key: str, folder: str) -> dict[str, Any]:
    """Write the members of sample `key` of a dataset or shard into the local `folder`.

    Raises:
        DatasetError: there is no such sample; the message names keys that are near.
    """
    storage = open_storage(None)
    kind = kind_of(storage, target)
    if kind == "catalog":
        raise ConfigError(f"{target}: a catalog holds no bytes; --sample needs a dataset or a shard")
    row = find_in_dataset(storage, target, key) if kind == "dataset" else _find_in_shard(storage, target, key)
    url = join(target, row["shard"]) if kind == "dataset" else target
    if "://" in folder:
        raise ConfigError(f"--to {folder}: --sample writes to a local folder")
    os.makedirs(folder, exist_ok=True)
    files = []
    base = row["key"].replace("/", "_")
    for name, offset, length in zip(row["members"], row["offsets"], row["lengths"], strict=True):
        path = os.path.join(folder, f"{base}.{name.replace('/', '_')}")
        with open(path, "wb") as stream:
            stream.write(storage.read_range(url, offset, length) if length else b"")
        files.append({"file": path, "bytes": length})
    return {"key": row["key"], "shard": row["shard"], "files": files}


def extract_text(result: Mapping[str, Any]) -> str:
    """The files that were written, for people."""
    lines = [f"{plain(result['key'])} of {plain(result['shard'])}: {counted(len(result['files']), 'file')}"]
    return "\n".join([*lines, *(f"  {plain(each['file'])}  {size(each['bytes'])}" for each in result["files"])])


def _find_in_shard(storage: Storage, url: str, key: str) -> dict[str, Any]:
    wanted = spellings(key)
    near: list[str] = []
    for row in shard_rows(storage, url, []):
        if row["key"] in wanted:
            return row
        if len(near) < SUGGESTED and _base(key) in row["key"]:
            near.append(row["key"])
    raise DatasetError(f"{url}: holds no sample '{key}'{_meant(near)}")


def find_in_dataset(storage: Storage, url: str, key: str) -> dict[str, Any]:
    """The index row of sample `key`. Raises DatasetError where there is none."""
    near: list[str] = []
    for file in open_manifest(storage, url).index:
        rows = rows_with_key(storage, join(url, file), key, near)
        if rows:
            return rows[0]
    raise DatasetError(f"{url}: holds no sample '{key}'{_meant(near)}")


def spellings(key: str) -> list[str]:
    """The keys that a person may mean by `key`: itself, escaped, and as the file it came from (`a/b.jpg` is `a/b`)."""
    stem, dot, extension = key.rpartition(".")
    as_file = [stem, escape_key(stem), f"{escape_key(stem)}%3A{extension}"] if dot and "/" not in extension else []
    return list(dict.fromkeys(name.removeprefix("./") for name in (key, escape_key(key), *as_file)))


def rows_with_key(storage: Storage, url: str, key: str, near: list[str] | None = None) -> list[dict[str, Any]]:
    """Rows of a Parquet file whose `key` is the first spelling of `key` that occurs. Keys that contain its last part
    are added to `near`."""
    wanted = spellings(key)
    found: dict[str, list[dict[str, Any]]] = {}
    with storage.open(url) as stream:
        reader = pq.ParquetFile(stream)
        for group in range(reader.num_row_groups):
            keys_here = reader.read_row_group(group, columns=["key"])["key"]
            rows = pc.indices_nonzero(pc.is_in(keys_here, pa.array(wanted)))
            if len(rows):
                for row in reader.read_row_group(group).take(rows).to_pylist():
                    found.setdefault(row["key"], []).append(row)
            elif near is not None and len(near) < SUGGESTED:
                alike = keys_here.filter(pc.match_substring(keys_here, _base(key), ignore_case=True))
                near += alike.slice(0, SUGGESTED - len(near)).to_pylist()
    return next((found[name] for name in wanted if name in found), [])


def _base(key: str) -> str:
    """The last part of a key, without what looks like an extension."""
    base = key.rstrip("/").rpartition("/")[2]
    return unescape_key(base).partition(".")[0] or base


def _meant(near: Sequence[str]) -> str:
    if near:
        return "; did you mean " + " or ".join(f"'{name}'" for name in near) + "?"
    return "; keys are paths below the source's folder, without extension"
