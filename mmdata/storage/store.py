"""The one interface: each method takes a local path or a URL and sends it to the file system or to an object store."""

from __future__ import annotations

import io
import itertools
import os
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, cast

from mmdata.errors import NotFound, StorageError
from mmdata.storage import local, urls
from mmdata.storage.remote import Remote
from mmdata.storage.settings import StorageSettings
from mmdata.storage.urls import Entry, Stat, locate


def open_storage(settings: StorageSettings | None = None) -> Storage:
    """A Storage with these settings; nothing is contacted before the first call."""
    return Storage(settings or StorageSettings())


class Storage:
    """Files and objects by local path or URL. Picklable; connections are opened lazily, per process.

    NotFound where a thing is not there, StorageError for everything else; both name the URL and the mend.
    """

    def __init__(self, settings: StorageSettings) -> None:
        self.settings = settings
        self._remote = Remote(settings)

    def read(self, url: str) -> bytes:
        """The whole content."""
        at = locate(url)
        return self._remote.read(at) if at.scheme else local.read(at.path)

    def read_range(self, url: str, offset: int, length: int) -> bytes:
        """Exactly `length` bytes from `offset`, or StorageError."""
        return self.read_ranges(url, [(offset, length)])[0]

    def read_ranges(self, url: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """The bytes of each (offset, length), each exactly as long as asked; near ones share a request."""
        if any(offset < 0 or length < 0 for offset, length in ranges):
            raise StorageError(f"{url}: a byte range is negative: {list(ranges)}")
        at = locate(url)
        return self._remote.read_ranges(at, ranges) if at.scheme else local.read_ranges(at.path, ranges)

    def stat(self, url: str) -> Stat:
        """Size and stamp of a file or object; a folder is NotFound."""
        at = locate(url)
        return self._remote.stat(at) if at.scheme else local.stat(at.path)

    def exists(self, url: str) -> bool:
        """Is there a file or object of this name? False for a folder."""
        try:
            self.stat(url)
        except NotFound:
            return False
        return True

    def is_folder(self, url: str) -> bool:
        """A local folder, or a prefix below which at least one object lies."""
        at = locate(url)
        if not at.scheme:
            return os.path.isdir(at.path)
        try:
            return next(self._remote.entries(at, True), None) is not None
        except NotFound:
            return False

    def list(self, url: str, recursive: bool = True) -> Iterator[Entry]:
        """Files below a folder, lazily, sorted by their whole path; NotFound where there is no such folder.

        Not recursive: the files and folders in it; a folder's URL ends with a slash.
        """
        at = locate(url)
        return self._remote.entries(at, recursive) if at.scheme else local.entries(at.path, recursive)

    def glob(self, pattern: str) -> Iterator[Entry]:
        """Files that match, lazily and sorted below each written-out brace; StorageError when there is none.

        `*`, `?`, `[…]` within a segment, `**` for any depth, braces `{a,b}` and `{000..010}`. A name that has no
        wildcard after its braces are written out must exist. A file that is called exactly `pattern` is taken as it is.
        """
        at = locate(pattern)
        http = at.scheme in ("http", "https")
        if not http and (not at.scheme or "*" not in at.path):
            try:
                yield Entry(pattern, *self.stat(pattern))
                return
            except NotFound:
                if "{" not in pattern and not urls.is_wild(at.path):
                    raise
        if http and "*" in at.path:
            next(self.list(pattern))
        if http or not urls.is_wild(at.path):
            for name in dict.fromkeys(urls.expand_braces(pattern)):
                yield Entry(name, *self.stat(name))
            return
        found, here = False, not at.scheme and _glob_start(pattern)[0] == "." and not at.path.startswith("./")
        for entry in self._match(*_glob_start(pattern)):
            found = True
            yield entry._replace(url=entry.url[2:]) if here else entry
        if not found:
            raise StorageError(f"nothing matches {pattern}; {self._nearest(pattern)}")

    def _match(self, folder: str, segments: Sequence[str]) -> Iterator[Entry]:
        """Walks the pattern segment by segment; a literal segment is entered without a listing."""
        segment, rest = segments[0], segments[1:]
        if segment == "**":
            wanted = urls.glob_regex("/".join(segments))
            prefix = folder.rstrip("/") + "/"
            for entry in self._listed(folder, True):
                if wanted.fullmatch(entry.url.removeprefix(prefix)):
                    yield entry
            return
        if rest and not urls.is_wild(segment):
            for name in dict.fromkeys(urls.expand_braces(segment)):
                yield from self._match(urls.join(folder, name), rest)
            return
        wanted = urls.glob_regex(segment)
        for entry in self._listed(folder, False):
            is_folder = entry.url.endswith("/")
            if is_folder != bool(rest) or not wanted.fullmatch(entry.url.rstrip("/").rpartition("/")[2]):
                continue
            if rest:
                yield from self._match(entry.url.rstrip("/"), rest)
            else:
                yield entry

    def _listed(self, folder: str, recursive: bool) -> Iterator[Entry]:
        try:
            yield from self.list(folder, recursive)
        except NotFound:
            return

    def _nearest(self, pattern: str) -> str:
        """Names the deepest folder on the way to the pattern that exists, and a few things in it."""
        folder = _glob_start(pattern)[0]
        while not self.is_folder(folder):
            above = urls.parent(folder)
            if above is None:
                return f"{folder} does not exist or is empty"
            folder = above
        names = [entry.url.rstrip("/").rpartition("/")[2] for entry in itertools.islice(self._listed(folder, False), 5)]
        return f"the nearest folder that exists is {folder}, " + (f"it holds {', '.join(names)}" if names else "empty")

    def write(self, url: str, data: bytes, *, if_absent: bool = False) -> bool:
        """Put `data` there whole or not at all. With `if_absent` nothing is replaced: False when it exists already."""
        at = locate(url)
        return self._remote.write(at, data, if_absent) if at.scheme else local.write(at.path, data, if_absent)

    def upload(self, path: str, url: str) -> None:
        """Move the local file `path` to `url`; it appears there whole or not at all. `path` is gone afterwards."""
        at = locate(url)
        if not at.scheme:
            local.upload(path, at.path)
            return
        self._remote.upload(path, at)
        local.delete(path)

    def download(self, url: str, path: str) -> None:
        """Copy an object or file to the local `path`; it appears there whole or not at all."""
        at = locate(url)

        def fill(target: BinaryIO) -> None:
            if at.scheme:
                self._remote.download(at, target)
                return
            with self.open(url) as source:
                while piece := source.read(8 << 20):
                    target.write(piece)

        local.place_stream(path, fill)

    def delete(self, url: str) -> None:
        """Remove a file or object; one that is not there is no error."""
        at = locate(url)
        if at.scheme:
            self._remote.delete(at)
        else:
            local.delete(at.path)

    def clean(self, url: str) -> int:
        """Delete temporary files that killed processes left directly in a local folder; how many. Stores leave none."""
        at = locate(url)
        return 0 if at.scheme else local.clean(at.path)

    def temporary(self, folder: str) -> str:
        """A path in a local folder for a temporary file of this process; `clean` finds it once the process is gone."""
        return local.temporary(locate(folder).path)

    def writing(self, path: str) -> local.errors:
        """A context in which the system's errors become StorageError: "cannot write PATH: No space left on device"."""
        return local.errors("write", path)

    def local_path(self, url: str) -> str | None:
        """The path of a local file, None for an object."""
        at = locate(url)
        return None if at.scheme else at.path

    def open(self, url: str, *, buffer_bytes: int = 1 << 20) -> BinaryIO:
        """A seekable binary file; an object is read by ranges of at least `buffer_bytes`."""
        at = locate(url)
        if at.scheme:
            raw = _RangeFile(self, url, self.stat(url).size)
            return cast(BinaryIO, io.BufferedReader(raw, buffer_bytes))
        try:
            return open(at.path, "rb")
        except FileNotFoundError as error:
            raise NotFound(f"cannot read {at.path}: there is no such file") from error
        except OSError as error:
            raise StorageError(f"cannot read {at.path}: {error.strerror}") from error

    def join(self, url: str, *parts: str) -> str:
        """See `urls.join`."""
        return urls.join(url, *parts)

    def relative(self, url: str, base: str) -> str:
        """See `urls.relative`."""
        return urls.relative(url, base)


class _RangeFile(io.RawIOBase):
    """An object as an unbuffered seekable file."""

    def __init__(self, storage: Storage, url: str, size: int) -> None:
        self._storage, self.name, self._size, self._at = storage, url, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        if start + offset < 0:
            raise ValueError(f"seek to {start + offset} in {self.name}")
        self._at = start + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        length = max(0, min(len(buffer), self._size - self._at))
        if length:
            buffer[:length] = self._storage.read_range(self.name, self._at, length)
            self._at += length
        return length

    def readall(self) -> bytes:
        length = max(0, self._size - self._at)
        data = self._storage.read_range(self.name, self._at, length) if length else b""
        self._at += length
        return data


def _glob_start(pattern: str) -> tuple[str, list[str]]:
    """The folder before the first segment with a wildcard or brace, and the segments from there on."""
    at = locate(pattern)
    segments = urls.split_pattern(at.path)
    first = next(n for n, segment in enumerate(segments) if urls.is_wild(segment) or "{" in segment)
    head = "/".join(segments[:first])
    if not at.scheme:
        head = head or ("/" if at.path.startswith("/") else ".")
    return urls.write_url(urls.Location(at.scheme, at.root, head)), segments[first:]
