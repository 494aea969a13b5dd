"""What every source promises: partitions that are cut the same way each time, and the samples of one partition.

Knows no source in particular. A new kind of source (a zip, a list of URLs, another library's shards) is one class with
this shape and one line in `registry.SOURCES`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import xxhash

from mmdata.schema import ANIMATED, EXTENSIONS, Kind, SourceSample

SUFFIX = "%3A"
"""Between a key and what a source appends to make it unique. No key of a source holds it: `escape_key` writes a percent
sign as `%25`, so `a%3Ajpg` can only be the file `a.jpg` beside `a.png`, never a file whose name holds a colon."""

_BAD_PART = re.compile(r"(?:^|/)\.{0,2}(?:/|$)")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class Partition:
    """A stretch of a source that one worker scans at a time."""

    name: str
    """Unique in its source, safe as a file name, and the same whenever the same data is listed."""
    payload: dict[str, Any]
    """What `Source.samples` needs to find the samples again: JSON values only."""
    count: int | None = None
    """Number of samples, where it is known before reading."""


class Source(Protocol):
    """Where samples come from. Picklable: a worker process gets the source and one partition."""

    name: str
    """Short name for the catalog and messages, the same in every run: `folder:media`."""
    ignored: Counter[str]
    """What `partitions` met and did not list, by reason: `.pdf`, `(no extension)`, `(hidden)`. Set by `partitions`."""

    def partitions(self) -> Iterator[Partition]:
        """Partitions in source order, lazily, in constant memory.

        Raises `ConfigError` when there is nothing to list, `StorageError` when something cannot be read.
        """
        ...

    def samples(self, partition: Partition) -> Iterator[SourceSample]:
        """Samples of `partition` in source order. One bad sample has `error` set; it never ends the iteration."""
        ...


def kind_of(extension: str, animated: str = "image") -> Kind:
    """Kind of medium that a member extension (`jpg`, `0.jpg`) names; `data` when it is not known.

    With `animated: video` every picture that may move is said to be a video; the scan looks whether it does.
    """
    last = extension.rpartition(".")[2].lower()
    kind = EXTENSIONS.get(last, "data")
    return "video" if animated == "video" and last in ANIMATED else kind


def partition_name(text: str) -> str:
    """`text` as a file name: its readable part, cut, and 64 bits of its hash. The same text gives the same name."""
    raw = text.encode("utf-8", "surrogateescape")
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")[-48:].strip("-.")
    return f"{readable}-{xxhash.xxh3_64_hexdigest(raw)}" if readable else xxhash.xxh3_64_hexdigest(raw)


def bad_key(key: str) -> str | None:
    """Why `key` cannot be the name of a sample in a shard, or None when it can."""
    if not key or not key.rpartition("/")[2]:
        return "the key is empty"
    if _BAD_PART.search(key):
        return f"the key {key[:80]!r} has an empty, '.' or '..' part"
    if _CONTROL.search(key):
        return f"the key {key[:80]!r} holds a control character"
    if not encodable(key):
        return f"the key {key[:80]!r} is not valid Unicode"
    return None


def encodable(text: str) -> bool:
    """True when `text` can be written as UTF-8, that is, holds no half of a surrogate pair."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
