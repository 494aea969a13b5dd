"""Object stores and HTTP through obstore: every request retried, every length checked.

Stores are opened on first use and belong to one process. What a URL means is settled in `urls`, when to try again in
`retry`.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, BinaryIO
from urllib.parse import quote, unquote

from mmdata.errors import NotFound, StorageError
from mmdata.storage import retry
from mmdata.storage.settings import StorageSettings
from mmdata.storage.urls import Entry, Location, Stat, write_url

PIECE_BYTES = 16 << 20
"""Size of the parts of large uploads and downloads."""
_UPLOAD_PARTS_AT_ONCE = 4
_LIST_PAGE = 1000


@functools.cache
def _memory_store() -> Any:
    from obstore.store import MemoryStore

    return MemoryStore()


class Remote:
    """All stores that are not the local file system, under one set of settings."""

    def __init__(self, settings: StorageSettings) -> None:
        self.settings = settings
        self._stores: dict[tuple[str, str, bool], Any] = {}

    def read(self, at: Location) -> bytes:
        import obstore

        def attempt() -> bytes:
            store, path = self._open(at)
            result = obstore.get(store, path)
            data = bytes(result.bytes())
            if len(data) != result.meta["size"]:
                raise retry.ShortBody(f"{len(data)} of {result.meta['size']} bytes came")
            return data

        return retry.call(self.settings, "read", write_url(at), attempt)

    def read_ranges(self, at: Location, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Exactly these (offset, length) ranges, neighbouring ones in one request."""
        import obstore

        wanted = [(offset, length) for offset, length in ranges if length]

        def attempt() -> list[bytes]:
            store, path = self._open(at)
            if len(wanted) == 1:
                parts = [obstore.get_range(store, path, start=wanted[0][0], length=wanted[0][1])]
            else:
                starts, lengths = [o for o, _ in wanted], [n for _, n in wanted]
                parts = list(obstore.get_ranges(store, path, starts=starts, lengths=lengths))
            data = [bytes(part) for part in parts]
            for (offset, length), part in zip(wanted, data, strict=True):
                if len(part) != length:
                    size = self.stat(at).size
                    if offset + length > size:
                        message = f"bytes {offset} to {offset + length} are not all there"
                        raise StorageError(f"{write_url(at)} has {size} bytes: {message}")
                    raise retry.ShortBody(f"{len(part)} of {length} bytes came")
            return data

        got = iter(retry.call(self.settings, "read", write_url(at), attempt) if wanted else [])
        return [next(got) if length else b"" for _, length in ranges]

    def stat(self, at: Location) -> Stat:
        import obstore

        if not at.path and at.scheme not in ("http", "https"):
            raise NotFound(f"{write_url(at)} is a bucket, not an object")

        def attempt() -> Stat:
            store, path = self._open(at)
            return _stat(obstore.head(store, path))

        def attempt_get() -> Stat:
            store, path = self._open(at)
            return _stat(obstore.get(store, path, options={"range": (0, 1)}).meta)

        try:
            return retry.call(self.settings, "look at", write_url(at), attempt)
        except NotFound:
            raise
        except StorageError:
            if at.scheme not in ("http", "https"):
                raise
            # URLs that are signed for GET refuse HEAD.
            return retry.call(self.settings, "look at", write_url(at), attempt_get)

    def entries(self, at: Location, recursive: bool) -> Iterator[Entry]:
        """Objects below the folder `at` in key order; not recursive: objects and folders in it. NotFound if none."""
        if at.scheme in ("http", "https"):
            raise StorageError(f"{write_url(at)}: HTTP has no listing: name each file, or use braces {{000..099}}")
        return _present(self._list(at) if recursive else iter(self._children(at)), at)

    def _children(self, at: Location) -> list[Entry]:
        import obstore

        def attempt() -> list[Entry]:
            result = obstore.list_with_delimiter(self._open(at)[0], at.path or None)
            folders = [Entry(_url(at, prefix) + "/", 0, "") for prefix in result["common_prefixes"]]
            names = {folder.url[:-1] for folder in folders}
            objects = [_entry(at, meta) for meta in result["objects"]]
            return sorted(folders + [entry for entry in objects if entry.size or entry.url not in names])

        return retry.call(self.settings, "list", write_url(at), attempt)

    def _list(self, at: Location) -> Iterator[Entry]:
        """Page by page; after a fault the listing goes on behind the last key that came."""
        import obstore

        last: str | None = None
        held: Entry | None = None
        stream: Any = None
        while True:

            def page(after: str | None = last) -> list[Any]:
                nonlocal stream
                if stream is None:
                    store = self._open(at)[0]
                    stream = iter(obstore.list(store, at.path or None, offset=after, chunk_size=_LIST_PAGE))
                try:
                    return list(next(stream, []))
                except Exception:
                    stream = None
                    raise

            metas = retry.call(self.settings, "list", write_url(at), page)
            if not metas:
                break
            for meta in metas:
                entry = _entry(at, meta)
                # An empty object `folder/` marks a folder in some consoles; obstore drops the slash of its name.
                if held and not (held.size == 0 and entry.url.startswith(held.url + "/")):
                    yield held
                held = entry
            last = metas[-1]["path"]
        if held:
            yield held

    def write(self, at: Location, data: bytes, if_absent: bool) -> bool:
        """Put the object in one request. With `if_absent`, False when there is one already."""
        import obstore

        self._writable(at)

        def attempt() -> bool:
            store, path = self._open(at)
            obstore.put(store, path, data, mode="create" if if_absent else "overwrite", use_multipart=False)
            return True

        try:
            return retry.call(self.settings, "write", write_url(at), attempt)
        except retry.AlreadyThere as there:
            # The answer to an earlier attempt may have been lost: then what is there is ours.
            return there.attempts > 1 and self.read(at) == data

    def upload(self, source: str, at: Location) -> None:
        """Send a local file, large ones in parts; it appears whole or not at all, and its size is checked."""
        import obstore

        self._writable(at)
        size = os.path.getsize(source)

        def attempt() -> None:
            # obstore does not hand out single parts to try again, so here its own retries are on.
            store, path = self._open(at, retrying=size > PIECE_BYTES)
            with open(source, "rb") as file:
                obstore.put(store, path, file, chunk_size=PIECE_BYTES, max_concurrency=_UPLOAD_PARTS_AT_ONCE)
            stored = obstore.head(store, path)["size"]
            if stored != size:
                raise retry.ShortBody(f"{stored} of {size} bytes were stored")

        retry.call(self.settings, "write", write_url(at), attempt)

    def download(self, at: Location, target: BinaryIO) -> None:
        """Write the object to `target`, piece by piece; StorageError if it changes meanwhile."""
        before = self.stat(at)
        for offset in range(0, before.size, PIECE_BYTES):
            target.write(self.read_ranges(at, [(offset, min(PIECE_BYTES, before.size - offset))])[0])
        if self.stat(at) != before:
            raise StorageError(f"{write_url(at)} was changed while it was read: run again")

    def delete(self, at: Location) -> None:
        import obstore

        self._writable(at)

        def attempt() -> None:
            store, path = self._open(at)
            obstore.delete(store, path)

        try:
            retry.call(self.settings, "delete", write_url(at), attempt)
        except NotFound:
            return

    def _writable(self, at: Location) -> None:
        if at.scheme in ("http", "https"):
            raise StorageError(f"{write_url(at)}: HTTP is read only: write to a local path, s3://, gs:// or az://")

    def _open(self, at: Location, retrying: bool = False) -> tuple[Any, str]:
        """The store that holds `at`, and the path in it."""
        if at.scheme == "memory":
            return _memory_store(), at.path
        root, path = at.root, at.path
        if at.scheme in ("http", "https"):
            path = unquote(at.path)
            if "?" in at.path or quote(path, safe="/~!$&'()*+,;=:@") != at.path or "//" in path or "/." in "/" + path:
                return self._make("http", f"{root}/{at.path}", retrying), ""  # not to be rebuilt from parts
        name = (at.scheme, root, retrying)
        if name not in self._stores:
            self._stores[name] = self._make(at.scheme, root, retrying)
        return self._stores[name], path

    def _make(self, scheme: str, root: str, retrying: bool) -> Any:
        from obstore import store as stores

        settings = self.settings
        insecure = any(
            (url or "").startswith("http://")
            for url in (settings.endpoint, os.environ.get("AWS_ENDPOINT_URL"), os.environ.get("AWS_ENDPOINT_URL_S3"))
        )
        seconds = {
            "read_timeout": settings.timeout_s,
            "timeout": settings.deadline_s,
            "connect_timeout": settings.timeout_s,
        }
        options: dict[str, Any] = {name: timedelta(seconds=value) for name, value in seconds.items()}
        options["allow_http"] = insecure or scheme == "http"
        retries: dict[str, Any] = {"max_retries": 0, "retry_timeout": timedelta(seconds=settings.deadline_s)}
        if retrying:
            first, longest = max(1.0, settings.backoff_s), max(1.0, settings.max_backoff_s)
            retries["max_retries"] = settings.retries
            retries["backoff"] = {"init_backoff": timedelta(seconds=first), "max_backoff": timedelta(seconds=longest)}
        common: dict[str, Any] = {"client_options": options, "retry_config": retries}
        if scheme in ("http", "https"):
            return stores.HTTPStore.from_url(root, **common)
        config: Any = {"skip_signature": True} if settings.anonymous else {}
        if scheme == "s3":
            config |= {"virtual_hosted_style_request": True} if settings.virtual_host else {}
            config |= {"region": settings.region} if settings.region else {}
            config |= {"endpoint": settings.endpoint} if settings.endpoint else {}
            return stores.S3Store(root, config=config, **common)
        if scheme == "gs":
            config |= {"base_url": settings.endpoint} if settings.endpoint else {}
            return stores.GCSStore(root, config=config, **common)
        config |= {"endpoint": settings.endpoint} if settings.endpoint else {}
        return stores.AzureStore(root, config=config, **common)

    def __getstate__(self) -> StorageSettings:
        return self.settings

    def __setstate__(self, settings: StorageSettings) -> None:
        self.__init__(settings)  # type: ignore[misc]


def _present(entries: Iterator[Entry], at: Location) -> Iterator[Entry]:
    first = next(entries, None)
    if first is None:
        raise NotFound(f"nothing lies below {write_url(at)}")
    yield first
    yield from entries


def _url(at: Location, path: str) -> str:
    return write_url(Location(at.scheme, at.root, path))


def _entry(at: Location, meta: Any) -> Entry:
    return Entry(_url(at, meta["path"]), *_stat(meta))


def _stat(meta: Any) -> Stat:
    return Stat(
        meta["size"], (meta["e_tag"] or "").strip('"') or f"{meta['size']}:{meta['last_modified'].timestamp():.0f}"
    )
