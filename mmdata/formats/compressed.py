"""Decompression of whole streams (gz, bz2, xz, zst), for archives that are spooled once before they are indexed.

This file knows no tar and no storage: a readable binary file object in, a readable one out.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Callable
from typing import Any, BinaryIO, cast

from mmdata.errors import FormatError

_SUFFIXES = {
    **dict.fromkeys((".gz", ".tgz"), "gzip"),
    **dict.fromkeys((".zst", ".zstd", ".tzst"), "zstd"),
    **dict.fromkeys((".xz", ".txz", ".lzma"), "xz"),
    **dict.fromkeys((".bz2", ".tbz2", ".tbz"), "bzip2"),
}


def compression(name: str) -> str | None:
    """`gzip`, `zstd`, `xz` or `bzip2` by the name's last suffix, None for anything else."""
    lower = name.lower()
    return next((kind for suffix, kind in _SUFFIXES.items() if lower.endswith(suffix)), None)


def open_decompressed(fileobj: BinaryIO, name: str) -> BinaryIO:
    """The decompressed bytes of `fileobj` as a stream, front to back; `fileobj` itself if `name` is not compressed.

    Several members or frames in one file are read as one. Damaged or cut input raises FormatError while reading.
    """
    kind = compression(name)
    if kind is None:
        return fileobj
    openers: dict[str, Callable[[BinaryIO], Any]] = {
        "gzip": gzip.open,
        "bzip2": bz2.open,
        "xz": lzma.open,
        "zstd": _open_zstd,
    }
    return cast(BinaryIO, io.BufferedReader(_Decompressed(openers[kind](fileobj), name, kind), 1 << 20))


def _open_zstd(fileobj: BinaryIO) -> Any:
    import pyarrow as pa

    return pa.CompressedInputStream(pa.PythonFile(fileobj, mode="r"), "zstd")


class _Decompressed(io.RawIOBase):
    """Turns every library's complaint about bad input into one FormatError that says where."""

    def __init__(self, stream: Any, name: str, kind: str) -> None:
        self._stream, self._name, self._kind, self._read = stream, name, kind, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._stream.read(len(buffer))
        except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:  # pyarrow raises OSError for bad zstd data
            raise FormatError(
                f"{self._name}: not readable as {self._kind} after {self._read} decompressed bytes: {error}"
            ) from error
        buffer[: len(data)] = data
        self._read += len(data)
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()
