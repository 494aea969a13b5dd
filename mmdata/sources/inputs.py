"""Which files make up a source of tables or tars, what to call them, and how to open each. Knows no rows."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from mmdata.errors import ConfigError, FormatError
from mmdata.formats.compressed import open_decompressed
from mmdata.sources.contract import partition_name
from mmdata.sources.spool import Spool

if TYPE_CHECKING:
    from mmdata.storage import Storage

_COMPRESSED = re.compile(r"\.(gz|zst|zstd|xz|bz2)$", re.IGNORECASE)
_MAGIC = {b"\x1f\x8b": ".gz", b"\x28\xb5\x2f\xfd": ".zst", b"\xfd7zXZ\0": ".xz", b"BZh": ".bz2"}
_PIECE = 16 << 10
_WILD = re.compile(r"[*?\[{]")


@dataclass(frozen=True, slots=True)
class InputFile:
    """One file of a source."""

    url: str
    stem: str
    """Path below the constant part of all patterns, without extension: unique in its source, stable when files are
    added under the same patterns."""
    stamp: str


def input_files(storage: Storage, patterns: Sequence[str]) -> list[InputFile]:
    """Files that `patterns` (paths, globs, braces) name, in the order given, each once.

    Raises ConfigError for a pipe, NotFound or StorageError for what does not exist or matches nothing.
    """
    found: dict[str, str] = {}
    for pattern in patterns:
        if pattern.startswith("pipe:") or "::" in pattern:
            raise ConfigError(f"{pattern!r}: commands and joined lists are not read; give paths or URLs, one an item")
        found.update((entry.url, entry.stamp) for entry in storage.glob(pattern) if entry.url not in found)
    root = _common([_WILD.split(pattern, maxsplit=1)[0].rpartition("/")[0] for pattern in patterns])
    stems: dict[str, str] = {}
    files = []
    for url, stamp in found.items():
        path = _COMPRESSED.sub("", url.removeprefix(root).lstrip("/") if root else url)
        stem = posixpath.splitext(path)[0]
        if stem in stems:
            stem = path
        if stem in stems:
            raise ConfigError(f"{url} and {stems[stem]} would give their rows the same keys; rename one of them")
        stems[stem] = url
        files.append(InputFile(url, stem, stamp))
    return files


def _common(folders: Sequence[str]) -> str:
    """Longest common folder, part by part."""
    split = [folder.split("/") for folder in folders]
    common = []
    for parts in zip(*split, strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    return "/".join(common)


def bare_name(url: str) -> str:
    """`url` without a suffix of compression: `a.jsonl` for `a.jsonl.gz`."""
    return _COMPRESSED.sub("", url)


def spool_plain(storage: Storage, spool: Spool, url: str, stamp: str, keep_damaged: bool = False) -> str:
    """`url` itself, or where its first bytes are those of gz, zst, xz or bz2, its decompressed form in the spool.

    Damage raises FormatError; with `keep_damaged` what was decompressed before it is kept, if anything was.
    """
    with storage.open(url) as file:
        head = file.read(6)
    suffix = next((suffix for magic, suffix in _MAGIC.items() if head.startswith(magic)), None)
    if suffix is None:
        return url

    def fill(out: BinaryIO) -> None:
        with storage.open(url) as packed, open_decompressed(packed, url + suffix) as plain:
            try:
                # In small pieces, past the buffer: the piece in which damage is met is lost.
                while piece := plain.read1(_PIECE):  # type: ignore[attr-defined]
                    out.write(piece)
            except FormatError:
                if not keep_damaged or out.tell() == 0:
                    raise

    return spool.file(partition_name(url) + ".plain", stamp, fill)
