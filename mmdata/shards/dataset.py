"""The dataset folder: where its files lie, and the manifest whose presence makes it a dataset."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import xxhash

from mmdata.errors import DatasetError, NotFound
from mmdata.schema import FORMAT_VERSION
from mmdata.storage import Storage
from mmdata.storage.urls import join

MANIFEST = "manifest.json"
QUARANTINE_FILE = "quarantine.parquet"
RECIPE_FILE = "recipe.yaml"
PLAN_FILE = "plan.json"
REPORT_FILE = "report.html"
CARD_FILE = "README.md"
BUILD_FOLDER = "_build"
KEY_ESCAPES = "in the base name of a key `%` is written %25 and `.` is written %2E"


@dataclass(frozen=True)
class ShardRow:
    """One shard as the manifest lists it. `file` is relative to the dataset folder."""

    file: str
    split: str
    samples: int
    bytes: int
    xxh3: str


@dataclass(frozen=True)
class Conservation:
    """`read = written + Σ dropped`. The keys of `dropped` are `stage/reason`."""

    read: int
    written: int
    dropped: dict[str, int]

    def check(self) -> None:
        """Raise `AssertionError` when a sample was lost or counted twice: that is a defect of this program."""
        assert self.read == self.written + sum(self.dropped.values()), f"samples are not conserved: {self}"


@dataclass(frozen=True)
class Manifest:
    """What a dataset holds. Equal for equal recipe and catalog: it has no clock and no host in it."""

    name: str
    format: str
    check: str
    """`decode`: every stored medium was decoded; `header`: only its header was read."""
    seed: int
    recipe: str
    """Fingerprint of the recipe."""
    catalog: str
    """Fingerprint of the catalog."""
    plan: str
    shards: tuple[ShardRow, ...]
    buckets: dict[str, dict[str, Any]]
    """Per bucket: samples, bytes, and the sums of frames and seconds."""
    conservation: Conservation
    members: dict[str, str]
    """Member extension to what it is: an encoding (`binary`, `string`) for Arrow, a media kind otherwise."""
    index: tuple[str, ...] = ()
    ignored: dict[str, int] = field(default_factory=dict)
    """Files of the sources that are no media, by extension."""
    checksums: dict[str, str] = field(default_factory=dict)
    """xxh3-128 (hex) of the index files, the quarantine and the plan. Card, report and recipe are for people."""
    key_escapes: str = KEY_ESCAPES
    version: int = FORMAT_VERSION

    @property
    def samples(self) -> int:
        return sum(shard.samples for shard in self.shards)

    @property
    def bytes(self) -> int:
        return sum(shard.bytes for shard in self.shards)

    def to_json(self) -> str:
        """The text of the manifest file. Its `xxh3` is that of the text without it."""
        document = asdict(self) | {"samples": self.samples, "bytes": self.bytes}
        return _to_text(document | {"xxh3": xxhash.xxh3_128_hexdigest(_to_text(document).encode())})


def _to_text(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def is_as_written(text: bytes) -> bool:
    """Whether the text of a manifest file is what was written, to the byte."""
    document = json.loads(text)
    given = document.pop("xxh3", None)
    digest = xxhash.xxh3_128_hexdigest(_to_text(document).encode("utf-8", "surrogatepass"))
    return given == digest and text == _to_text(document | {"xxh3": digest}).encode("utf-8", "surrogatepass")


def parse_manifest(document: Mapping[str, Any], url: str) -> Manifest:
    """Read a manifest document; `url` is for messages."""
    if document.get("version") != FORMAT_VERSION:
        raise DatasetError(f"{url}: dataset format {document.get('version')}, this release reads {FORMAT_VERSION}")
    known = {name: document[name] for name in Manifest.__dataclass_fields__ if name in document}
    known["shards"] = tuple(ShardRow(**row) for row in document["shards"])
    known["conservation"] = Conservation(**document["conservation"])
    known["index"] = tuple(document["index"])
    return Manifest(**known)


def has_dataset(storage: Storage, url: str) -> bool:
    """Whether `url` holds a committed dataset."""
    return storage.exists(join(url, MANIFEST))


def open_manifest(storage: Storage, url: str) -> Manifest:
    """Read the manifest of the dataset folder `url`.

    Raises:
        DatasetError: there is no manifest (the build did not finish), or it cannot be read.
    """
    try:
        text = storage.read(join(url, MANIFEST))
    except NotFound:
        resume = "its build did not finish: run the same `mmdata build` again, or `mmdata commit`"
        hint = resume if unfinished(storage, url) else "make one with `mmdata build RECIPE`"
        raise DatasetError(f"{url}: no dataset here (no {MANIFEST}); {hint}") from None
    try:
        return parse_manifest(json.loads(text), join(url, MANIFEST))
    except (ValueError, KeyError, TypeError) as error:
        raise DatasetError(f"{join(url, MANIFEST)}: not a manifest ({error!r}); build again") from None


def unfinished(storage: Storage, url: str) -> bool:
    """Whether a build of this dataset was begun and not committed."""
    try:
        return any(True for _ in storage.list(join(url, BUILD_FOLDER)))
    except NotFound:
        return False


def holds_all_shards(storage: Storage, url: str, manifest: Manifest) -> bool:
    """Whether every shard of the manifest is there with its size. Their bytes are for `verify` to check."""
    try:
        sizes = {entry.url: entry.size for entry in storage.list(join(url, "shards"))}
    except NotFound:
        return False
    return all(sizes.get(join(url, shard.file)) == shard.bytes for shard in manifest.shards)


def shard_file(name: str, split: str, number: int, format: str, bucket: str | None = None) -> str:
    """Path of shard `number` of its split, relative to the dataset folder: `shards/NAME[-SPLIT]-000000.tar`."""
    ending = {"webdataset": "tar", "arrow": "arrow"}[format]
    folder = f"shards/{bucket}" if bucket else "shards"
    return f"{folder}/{name}-{split}-{number:06d}.{ending}" if split else f"{folder}/{name}-{number:06d}.{ending}"
