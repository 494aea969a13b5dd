"""Write one shard of either format, and the index rows that go with it. Knows nothing of plans, recipes or workers."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import pyarrow as pa
import xxhash

from mmdata.formats import Placed
from mmdata.formats.arrow import ArrowWriter
from mmdata.formats.tar import TarWriter
from mmdata.schema import INDEX, MediaInfo, geometry, modality

WRITE_BACK_BYTES = 16 * 1024 * 1024
"""Written bytes after which the system is told to bring them to disk."""


@dataclass(frozen=True)
class Written:
    """A finished shard file."""

    path: str
    bytes: int
    xxh3: str
    index: pa.Table
    """Index rows in shard order, schema `INDEX`."""


def sample_digest(members: Sequence[tuple[str, bytes]]) -> str:
    """xxh3-128 (hex) of a sample's members in the order of their names: length-prefixed name, then bytes, of each."""
    running = xxhash.xxh3_128()
    for name, data in sorted(members, key=lambda member: member[0]):
        raw = name.encode("utf-8", "surrogatepass")
        running.update(b"%d:%b%d:" % (len(raw), raw, len(data)))
        running.update(data)
    return running.hexdigest()


def index_columns(row: Mapping[str, Any], media: Sequence[tuple[str, MediaInfo, str]]) -> dict[str, Any]:
    """The index columns of a stored sample that do not depend on where it lies: from its catalog row, and kind,
    geometry and source digest of each stored medium."""
    infos = [
        {name: getattr(info, name) for name in MediaInfo.__dataclass_fields__} | {"size_bytes": 0, "length": None}
        for _, info, _ in media
    ]
    digests = [digest for _, _, digest in media]
    shape = geometry(infos)
    names = ("width", "height", "frames", "duration", "fps", "sample_rate", "channels")
    digest = digests[0] if len(digests) == 1 else xxhash.xxh3_128_hexdigest("".join(digests).encode())
    return {name: shape[name] for name in names} | {
        "key": row["key"],
        "modality": modality([kind for kind, _, _ in media]),
        "text_chars": row["text_chars"],
        "text_tokens": row["text_tokens"],
        "media_digest": digest if digests else None,
    }


class ShardWriter:
    """Writes samples to `path`; `close` gives the finished shard, `abort` removes the file."""

    def __init__(self, path: str, shard: str, format: str, columns: Sequence[str]) -> None:
        """`shard` is the file's name in the index; `columns` (Arrow only) lists every member extension of the
        dataset, so that all shards have one schema."""
        self._path, self._shard = path, shard
        self._rows: list[dict[str, Any]] = []
        self._placed: list[Placed] = []
        self._file: BinaryIO | None = None
        self._written_back = 0
        self._tar: TarWriter | None = None
        self._arrow: ArrowWriter | None = None
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if format == "arrow":
            self._arrow = ArrowWriter(path, columns)
        else:
            self._file = open(path, "wb", buffering=1 << 20)  # noqa: SIM115 - closed by close() or abort()
            self._tar = TarWriter(self._file)

    def add(self, members: Sequence[tuple[str, bytes]], row: Mapping[str, Any]) -> None:
        """Write one sample. `row` holds its index columns but for those that only the writer knows.

        Raises:
            InvalidSample: the key or a member name cannot be stored; the shard is as it was before.
        """
        ordered = sorted(members, key=lambda member: member[0])
        digest = sample_digest(ordered)  # first, like all digests: the write drives the bytes out of the cache
        if self._tar is not None:
            self._placed.append(self._tar.add(row["key"], ordered))
            self._write_back()
        else:
            assert self._arrow is not None
            self._arrow.add(row["key"], ordered)
        self._rows.append(
            dict(row)
            | {
                "shard": self._shard,
                "position": len(self._rows),
                "members": [name for name, _ in ordered],
                "digest": digest,
            }
        )

    def _write_back(self) -> None:
        """Have the system write to disk what is in its cache, so that closing does not wait for all of it at once.

        On Linux this advice starts writing the range and returns (mm/fadvise.c); the pages stay until they are written.
        """
        if self._tar is None or self._file is None or self._tar.size - self._written_back < WRITE_BACK_BYTES:
            return
        if hasattr(os, "posix_fadvise"):
            length = self._tar.size - self._written_back
            os.posix_fadvise(self._file.fileno(), self._written_back, length, os.POSIX_FADV_DONTNEED)
        self._written_back = self._tar.size

    def __len__(self) -> int:
        return len(self._rows)

    def close(self) -> Written:
        """Finish the file, flush it to disk and give its facts."""
        if self._tar is not None:
            assert self._file is not None
            self._tar.close()
            os.fsync(self._file.fileno())
            self._file.close()
            placed, xxh3 = self._placed, self._tar.xxh3
        else:
            assert self._arrow is not None
            placed, xxh3 = self._arrow.close(), self._arrow.xxh3
        rows = [row | _placement(place) for row, place in zip(self._rows, placed, strict=True)]
        index = pa.Table.from_pylist(rows, schema=INDEX)
        return Written(self._path, os.path.getsize(self._path), xxh3, index)

    def abort(self) -> None:
        """Remove what was written."""
        if self._tar is not None:
            assert self._file is not None
            self._tar.abort()
            self._file.close()
        elif self._arrow is not None:
            self._arrow.abort()
        if os.path.exists(self._path):
            os.remove(self._path)


def _placement(place: Placed) -> dict[str, Any]:
    return {
        "offsets": list(place.offsets),
        "lengths": list(place.lengths),
        "span_offset": place.span_offset,
        "span_length": place.span_length,
        "span_xxh3": place.span_xxh3,
    }
