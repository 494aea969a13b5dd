"""Which files make up a source of tables or tars, what to call them, and how to open each. Knows no rows."""

from __future__ import annotations

import posixpath
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from mmdata.errors import ConfigError, FormatError, NotFound, StorageError
from mmdata.formats.compressed import open_decompressed
from mmdata.sources.contract import partition_name
from mmdata.sources.spool import Spool

if TYPE_CHECKING:
    from mmdata.storage import Storage

_COMPRESSED = re.compile(r"\.(gz|zst|zstd|xz|bz2)$", re.IGNORECASE)
_MAGIC = {b"\x1f\x8b": ".gz", b"\x28\xb5\x2f\xfd": ".zst", b"\xfd7zXZ\0": ".xz", b"BZh": ".bz2"}
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
        # A file whose own name holds a bracket or brace is meant before the pattern that it also is.
        if not _WILD.search(pattern) or ("://" not in pattern and storage.exists(pattern)):
            found.setdefault(pattern, storage.stat(pattern).stamp)
        else:
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


def open_binary(storage: Storage, url: str) -> BinaryIO:
    """`url` for reading and seeking. Raises NotFound or StorageError."""
    local = storage.local_path(url)
    if local is None:
        remote: BinaryIO = storage.open(url)
        return remote
    try:
        return open(local, "rb")
    except FileNotFoundError as error:
        raise NotFound(f"there is no file {url}") from error
    except OSError as error:
        raise StorageError(f"cannot open {url}: {error.strerror}") from error


def bare_name(url: str) -> str:
    """`url` without a suffix of compression: `a.jsonl` for `a.jsonl.gz`."""
    return _COMPRESSED.sub("", url)


def spool_plain(storage: Storage, spool: Spool, url: str, stamp: str, keep_damaged: bool = False) -> str:
    """`url` itself, or where its first bytes are those of gz, zst, xz or bz2, its decompressed form in the spool.

    Damage raises FormatError; with `keep_damaged` what was decompressed before it is kept, if anything was.
    """
    with open_binary(storage, url) as file:
        head = file.read(6)
    suffix = next((suffix for magic, suffix in _MAGIC.items() if head.startswith(magic)), None)
    if suffix is None:
        return url

    def fill(out: BinaryIO) -> None:
        with open_binary(storage, url) as packed, open_decompressed(packed, url + suffix) as plain:
            try:
                shutil.copyfileobj(plain, out, 1 << 20)
            except FormatError:
                if not keep_damaged or out.tell() == 0:
                    raise

    return spool.file(partition_name(url) + ".plain", stamp, fill)
