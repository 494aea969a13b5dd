"""Lists the files of a folder, local or remote, as one sorted stream in constant memory. Knows no media and no samples.

Order is that of the full relative path, character by character, as object stores list. A directory of any size costs
the memory of one run of names: larger ones are sorted on disk.
"""

from __future__ import annotations

import heapq
import os
import pickle
import re
import stat as stat_module
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import IO, TYPE_CHECKING, NamedTuple

from mmdata.errors import StorageError

if TYPE_CHECKING:
    from mmdata.storage import Storage

HIDDEN = "(hidden)"
EXCLUDED = "(excluded)"
EXCLUDED_FOLDER = "(excluded folder)"
NOT_A_FILE = "(not a regular file)"

_RUN = 200_000
"""Directory entries sorted in memory at a time (about 50 MB)."""

_SYSTEM_NAMES = frozenset({"__MACOSX", "Thumbs.db", "desktop.ini", "lost+found"})


class Listed(NamedTuple):
    """A file of the folder."""

    path: str
    """Relative to the folder, `/` between parts. Bytes that are not UTF-8 are surrogates, as `os.fsdecode` gives."""
    size: int
    """Bytes; -1 when the file could not be looked at (a broken link, gone since)."""
    stamp: str


class Patterns:
    """Include and exclude globs over relative paths.

    `*` and `?` stay within a path part, `**` crosses parts (`**/` also matches nothing), `[…]` and `{a,b}` are as in a
    shell. A pattern without a slash is tested against the base name at any depth. Case counts.
    """

    def __init__(self, include: Sequence[str], exclude: Sequence[str]) -> None:
        everything = not include or any(pattern in ("**", "**/*", "*") for pattern in include)
        self._include = None if everything else _any_of(include)
        self._exclude = _any_of(exclude) if exclude else None
        folders = [pattern.removesuffix("/*").removesuffix("/**").rstrip("/") for pattern in exclude]
        self._exclude_folder = _any_of([pattern for pattern in folders if pattern]) if exclude else None

    def included(self, path: str) -> bool:
        return self._include is None or self._include(path)

    def excluded(self, path: str) -> bool:
        return self._exclude is not None and self._exclude(path)

    def prunes(self, folder: str) -> bool:
        """True when everything in `folder` is excluded, so that it need not be opened."""
        return self._exclude_folder is not None and self._exclude_folder(folder)


def _any_of(patterns: Sequence[str]) -> Callable[[str], bool]:
    paths = [_regex(pattern.removeprefix("./")) for pattern in patterns if "/" in pattern]
    names = [_regex(pattern) for pattern in patterns if "/" not in pattern]
    of_path = re.compile("|".join(f"(?:{one})" for one in paths), re.DOTALL) if paths else None
    of_name = re.compile("|".join(f"(?:{one})" for one in names), re.DOTALL) if names else None

    def matches(path: str) -> bool:
        if of_path is not None and of_path.fullmatch(path):
            return True
        return of_name is not None and of_name.fullmatch(path.rpartition("/")[2]) is not None

    return matches


_GLOB_TOKEN = re.compile(r"\*\*/|/\*\*$|\*\*|\*|\?|\[!?\]?[^\]/]*\]|\{[^{}]*\}|.", re.DOTALL)


def _regex(pattern: str) -> str:
    """Regular expression of one glob, without anchors."""
    return "".join(_regex_of_token(token) for token in _GLOB_TOKEN.findall(pattern))


def _regex_of_token(token: str) -> str:
    fixed = {"**/": "(?:.*/)?", "/**": "/.*", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    if token in fixed:
        return fixed[token]
    if len(token) > 2 and token[0] == "[":
        inside = token[1:-1].replace("\\", r"\\")
        return f"[^/{inside[1:]}]" if inside[0] == "!" else f"[{inside}]"
    if len(token) > 1 and token[0] == "{":
        return "(?:" + "|".join(_regex(choice) for choice in token[1:-1].split(",")) + ")"
    return re.escape(token)


def hidden(name: str) -> bool:
    """Names that no person means as data: those that start with a dot, and what desktop systems leave behind."""
    return name.startswith(".") or name in _SYSTEM_NAMES


def walk_local(root: str, patterns: Patterns, ignored: Counter[str]) -> Iterator[Listed]:
    """Files under the local folder `root` in path order; links to folders are followed.

    Counts in `ignored` what was left out. Raises StorageError for a folder that cannot be read and for a link that
    leads back to a folder that it lies in.
    """
    stack = [("", _entries(root, "", patterns, ignored))]
    while stack:
        prefix, entries = stack[-1]
        for name, size, number in entries:
            if not name.endswith("/"):
                yield Listed(prefix + name, size, f"{size}:{number}" if size >= 0 else "")
                continue
            folder = prefix + name
            if number == _LINK:
                _refuse_loop(root, folder, [above for above, _ in stack])
            stack.append((folder, _entries(os.path.join(root, folder), folder, patterns, ignored)))
            break
        else:
            stack.pop()


def _refuse_loop(root: str, folder: str, above: Sequence[str]) -> None:
    target = os.path.realpath(os.path.join(root, folder))
    for parent in above:
        if os.path.realpath(os.path.join(root, parent)) == target:
            raise StorageError(
                f"link loop: {os.path.join(root, folder).rstrip('/')} leads back to "
                f"{os.path.join(root, parent).rstrip('/')}, which holds it; remove the link, or exclude it with "
                f"exclude: ['{folder}**']"
            )


def walk_remote(storage: Storage, root: str, patterns: Patterns, ignored: Counter[str]) -> Iterator[Listed]:
    """Objects under the URL `root` in path order, by the same rules as `walk_local`."""
    for entry in storage.list(root):
        path = storage.relative(entry.url, root)
        parts = path.split("/")
        if not path or path.endswith("/"):
            continue
        if any(hidden(part) for part in parts):
            ignored[HIDDEN] += 1
        elif patterns.excluded(path) or any(patterns.prunes("/".join(parts[:end])) for end in range(1, len(parts))):
            ignored[EXCLUDED] += 1
        else:
            yield Listed(path, entry.size, entry.stamp)


_Row = tuple[str, int, int]
"""Name (folders end with a slash, so that they sort where their contents belong), size or -1, and the mtime in ns of a
file, or `_LINK` for a folder that is a link."""

_LINK = 1


def _entries(folder: str, prefix: str, patterns: Patterns, ignored: Counter[str]) -> Iterator[_Row]:
    """Sorted entries of one folder; past `_RUN` of them, in sorted runs on disk that are merged while reading."""
    runs: list[Iterator[_Row]] = []
    rows: list[_Row] = []
    try:
        with os.scandir(folder) as found:
            for entry in found:
                row = _row(entry, prefix, patterns, ignored)
                if row is None:
                    continue
                rows.append(row)
                if len(rows) >= _RUN:
                    runs.append(_spill(sorted(rows)))
                    rows.clear()
    except OSError as error:
        raise StorageError(
            f"cannot read the folder {folder}: {error.strerror}; make it readable, or exclude it"
        ) from error
    rows.sort()
    return iter(rows) if not runs else heapq.merge(iter(rows), *runs)


def _row(entry: os.DirEntry[str], prefix: str, patterns: Patterns, ignored: Counter[str]) -> _Row | None:
    name = entry.name
    if hidden(name):
        ignored[HIDDEN] += 1
        return None
    if _is_folder(entry):
        if patterns.prunes(prefix + name):
            ignored[EXCLUDED_FOLDER] += 1
            return None
        return name + "/", 0, _LINK if entry.is_symlink() else 0
    if patterns.excluded(prefix + name):
        ignored[EXCLUDED] += 1
        return None
    try:
        facts = entry.stat()
    except OSError:
        return name, -1, 0
    if not stat_module.S_ISREG(facts.st_mode):
        ignored[NOT_A_FILE] += 1
        return None
    return name, facts.st_size, facts.st_mtime_ns


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a chain of links that never ends
        return False


def _spill(rows: list[_Row]) -> Iterator[_Row]:
    """Writes `rows` to an unnamed temporary file, in blocks, and gives the iterator that reads them back."""
    file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by its reader
    starts = range(0, len(rows), 1024)
    for start in starts:
        pickle.dump(rows[start : start + 1024], file, pickle.HIGHEST_PROTOCOL)
    file.seek(0)
    return _load(file, len(starts))


def _load(file: IO[bytes], blocks: int) -> Iterator[_Row]:
    with file:
        for _ in range(blocks):
            yield from pickle.load(file)
