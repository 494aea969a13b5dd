"""One file at a time: tar shards and Arrow shards, written reproducibly, read and indexed by byte range.

This room knows bytes, members and keys. It knows no storage (it gets file objects or local paths), no media library and
no dataset: what the members mean, and where the file goes, is decided above.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Placed:
    """Where one sample lies in a finished shard. Offsets are absolute, in bytes from the start of the file."""

    members: tuple[str, ...]
    """Member extensions in stored order (sorted); `offsets` and `lengths` run parallel to it."""
    offsets: tuple[int, ...]
    lengths: tuple[int, ...]
    span_offset: int | None = None
    """Tar only: first byte of the sample's first header."""
    span_length: int | None = None
    """Tar only: bytes from `span_offset` to the end of the last member's padding."""
    span_xxh3: str | None = None
    """Tar only: xxh3-128 (hex) of the whole span: headers, payloads, padding."""
