"""A folder of media files: every media file is a sample, joined only by its side-cars. Knows names, not media.

Key: path relative to the folder, without the extension, escaped (`schema.escape_key`); where several media files share
it, each gets `%3A` and its extension: `a.jpg` beside `a.png` are `a%3Ajpg` and `a%3Apng`.
Side-cars of `a.jpg` are `a.txt`, `a.json` and `a.cls`. Hidden are names that start with a dot and what desktop systems
leave behind; temporary files (`.tmp`, `.part`, `~`, …) have no media extension. All of these are counted in `ignored`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import xxhash

from mmdata.errors import ConfigError, InvalidSample, NotFound, StorageError
from mmdata.schema import EXTENSIONS, MediaRef, SourceSample, escape_key
from mmdata.sources.contract import SUFFIX, Partition, bad_key, encodable, kind_of, partition_name
from mmdata.sources.listing import EXCLUDED, Listed, Patterns, walk_local, walk_remote
from mmdata.sources.messages import normalise_fields
from mmdata.sources.text import MAX_TEXT_BYTES, label_member, parse_member

if TYPE_CHECKING:
    from mmdata.recipe import FolderSource
    from mmdata.storage import Storage

SIDE_CARS = ("txt", "json", "cls")

NO_EXTENSION = "(no extension)"

FIRST = "first"
"""Name of the first partition. The others are named after the file that begins them, which is why they begin there;
the first begins with whatever sorts first."""

_Member = list[Any]
"""`[extension as written, size, stamp]`; a list, so that it is the same after JSON."""


class Folder:
    """Media files under one folder, local or remote."""

    def __init__(self, settings: FolderSource, storage: Storage, spool: str, partition: int = 4096) -> None:
        self.name = f"folder:{settings.path}"
        self.ignored: Counter[str] = Counter()
        self._settings = settings
        self._storage = storage
        self._local = storage.local_path(settings.path)
        self._root = (self._local or settings.path).rstrip("/") or "/"
        self._cuts = _Cuts(partition)

    def partitions(self) -> Iterator[Partition]:
        """Cut where a hash of the path says so, so that a new file changes only the partition it falls into."""
        self.ignored.clear()
        groups: list[Any] = []
        count = 0
        name = FIRST
        for stem, members, media in self._stems():
            if groups and self._cuts.between(count, stem):
                yield Partition(name, {"groups": groups}, count)
                groups, count, name = [], 0, partition_name(stem)
            groups.append([stem, members])
            count += media
        if not groups:
            raise ConfigError(self._nothing())
        yield Partition(name, {"groups": groups}, count)

    def samples(self, partition: Partition) -> Iterator[SourceSample]:
        for stem, members in partition.payload["groups"]:
            media = [member for member in members if member[0].lower() in EXTENSIONS]
            beside = {member[0].lower(): member for member in members if member[0].lower() in SIDE_CARS}
            for member in media:
                yield self._sample(stem, member, beside, alone=len(media) == 1)

    def _files(self) -> Iterator[Listed]:
        patterns = Patterns(self._settings.include, self._settings.exclude)
        local = self._local
        if local is None:
            files = walk_remote(self._storage, self._root, patterns, self.ignored)
        elif os.path.isdir(local):
            files = walk_local(local, patterns, self.ignored)
        elif os.path.exists(local):
            raise ConfigError(f"{self._root} is a file, not a folder; use a source of type table or webdataset for it")
        else:
            raise NotFound(f"there is no folder {self._root}")
        for file in files:
            if patterns.included(file.path) or file.path.rpartition(".")[2].lower() in SIDE_CARS:
                yield file
            else:
                self.ignored[EXCLUDED] += 1

    def _stems(self) -> Iterator[tuple[str, list[_Member], int]]:
        """Files that share folder and stem, with the number of media among them, as soon as no more can follow.

        In path order the files of stem `a` are not adjacent: `a.jpg`, `a.b.jpg`, `a.d/c.jpg`, `a.txt`. But all of them
        start with `a.`, so the open stems form a chain.
        """
        captions = self._settings.captions
        open_stems: list[tuple[str, list[_Member]]] = []
        for path, size, stamp in self._files():
            while open_stems and not path.startswith(open_stems[-1][0]):
                yield from self._closed(*open_stems.pop())
            cut = path.rfind(".") + 1
            if cut <= path.rfind("/") + 1:
                self.ignored[NO_EXTENSION] += 1
                continue
            prefix, extension = path[:cut], path[cut:]
            low = extension.lower()
            if low not in EXTENSIONS and not (captions and low in SIDE_CARS):
                self.ignored["." + low] += 1
                continue
            if not open_stems or open_stems[-1][0] != prefix:
                open_stems.append((prefix, []))
            open_stems[-1][1].append([extension, size, stamp])
        while open_stems:
            yield from self._closed(*open_stems.pop())

    def _closed(self, prefix: str, members: list[_Member]) -> Iterator[tuple[str, list[_Member], int]]:
        media = sum(member[0].lower() in EXTENSIONS for member in members)
        if media:
            yield prefix[:-1], members, media
        else:
            for member in members:
                self.ignored[f".{member[0].lower()} (no media of this name)"] += 1

    def _sample(self, stem: str, member: _Member, beside: dict[str, _Member], alone: bool) -> SourceSample:
        extension, size, stamp = member
        path = f"{stem}.{extension}"
        key = self._settings.key_prefix + escape_key(stem) + ("" if alone else SUFFIX + extension)
        if not encodable(path):
            raw = os.fsencode(path).decode("utf-8", "backslashreplace")
            key = os.fsencode(key).decode("utf-8", "backslashreplace")
            message = f"the file name {raw!r} is not valid UTF-8; rename the file"
            return SourceSample(key=key, error=(InvalidSample.__name__, message))
        media = MediaRef(
            field=extension.lower(),
            kind=kind_of(extension, self._settings.animated),
            uri=self._url(path),
            length=size if size >= 0 else None,
            stamp=stamp,
        )
        described = ";".join(f"{name}={beside[name][2]}" for name in sorted(beside))
        fields: dict[str, Any] = {}
        error = (InvalidSample.__name__, f"{path}: {reason}; rename the file") if (reason := bad_key(key)) else None
        try:
            for name in sorted(beside):
                fields[name] = self._read_side_car(stem, name, beside[name])
            fields = normalise_fields(fields, Counter([media.kind]))
        except InvalidSample as invalid:
            fields, error = {}, (InvalidSample.__name__, str(invalid))
        folder = stem.rpartition("/")[0].rpartition("/")[2]
        label = fields.pop("cls", folder if self._settings.label_from_folder and folder else None)
        if label is not None:
            fields.update([label_member(label)])
        return SourceSample(key=key, media=(media,), fields=fields, stamp=described, error=error)

    def _read_side_car(self, stem: str, name: str, member: _Member) -> Any:
        extension, size, _ = member
        url = self._url(f"{stem}.{extension}")
        if size > MAX_TEXT_BYTES:
            raise InvalidSample(f"{url}: {size} bytes is too large for a side-car")
        try:
            data = self._storage.read(url)
        except StorageError as error:
            if self._local is None and not isinstance(error, NotFound):
                raise  # the store failed, not the sample
            raise InvalidSample(f"{url}: the side-car cannot be read: {error}") from error
        return parse_member(name, data, url)

    def _url(self, path: str) -> str:
        return f"{self._root.removesuffix('/')}/{path}"

    def _nothing(self) -> str:
        ignored = ", ".join(f"{count} {reason}" for reason, count in self.ignored.most_common(8))
        include = f" that matches include: {list(self._settings.include)}" if self._settings.include else ""
        return f"no media file{include} lies under {self._root}; ignored there: {ignored or 'nothing'}"


class _Cuts:
    """Where to cut a stream of paths: the hash of a path decides, within bounds on the number of files."""

    def __init__(self, average: int) -> None:
        self._least = max(1, average // 4)
        self._most = max(1, average * 4)
        self._one_in = max(1, average - self._least)

    def between(self, count: int, path: str) -> bool:
        """True when a partition that holds `count` files ends before `path`."""
        if count < self._least:
            return False
        digest = xxhash.xxh3_64_intdigest(path.encode("utf-8", "surrogateescape"))
        return count >= self._most or digest % self._one_in == 0
