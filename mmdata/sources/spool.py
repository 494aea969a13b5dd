"""Files a source makes once because its media cannot be read in place: embedded bytes, decompressed archives.

A spooled file is a pure function of its name and stamp, appears whole or not at all, and is reused while the stamp is
the same. Knows no table and no tar.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, BinaryIO

from mmdata.errors import NotFound
from mmdata.storage import local

if TYPE_CHECKING:
    from mmdata.storage import Storage


class Spool:
    """The spool folder of a catalog, local or remote."""

    def __init__(self, storage: Storage, folder: str) -> None:
        self._storage = storage
        self._folder = folder

    def file(self, name: str, stamp: str, fill: Callable[[BinaryIO], None]) -> str:
        """URL of the spooled file `name`; `fill` writes its bytes unless it is there with this `stamp`.

        Raises StorageError when it cannot be written; what `fill` raises passes through, and leaves nothing behind.
        """
        url: str = self._storage.join(self._folder, name)
        marker = url + ".stamp"
        if self._current(url, marker, stamp):
            return url
        size = 0

        def fill_and_measure(out: BinaryIO) -> None:
            nonlocal size
            fill(out)
            size = out.tell()

        self._storage.delete(marker)
        path = self._storage.local_path(url)
        if path is not None:
            local.place_stream(path, fill_and_measure)
        else:
            with tempfile.TemporaryDirectory(prefix="spool-") as folder:
                temporary = os.path.join(folder, "file")
                local.place_stream(temporary, fill_and_measure)
                self._storage.upload(temporary, url)
        self._storage.write(marker, json.dumps({"stamp": stamp, "size": size}).encode())
        return url

    def _current(self, url: str, marker: str, stamp: str) -> bool:
        try:
            recorded = json.loads(self._storage.read(marker))
            return bool(recorded == {"stamp": stamp, "size": self._storage.stat(url).size})
        except (NotFound, ValueError):
            return False


class EmbeddedBytes:
    """Gives the media that rows hold themselves their place in one spooled file, in row order.

    The file is made on the first call of `place`, from `blobs`, which yields the same bytes that `place` will get.
    """

    def __init__(self, spool: Spool, name: str, stamp: str, blobs: Callable[[], Iterator[bytes]]) -> None:
        self._spool, self._name, self._stamp, self._blobs = spool, name, stamp, blobs
        self._url: str | None = None
        self._end = 0

    def place(self, data: bytes) -> tuple[str, int]:
        """URL and offset at which `data` lies."""
        if self._url is None:
            self._url = self._spool.file(self._name, self._stamp, self._write)
        offset = self._end
        self._end += len(data)
        return self._url, offset

    def _write(self, out: BinaryIO) -> None:
        for blob in self._blobs():
            out.write(blob)
