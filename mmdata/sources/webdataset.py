"""Tar shards in WebDataset's layout: members with one key are a sample. Reads headers and small text members, no media.

Keys are taken as they stand (they hold no dot already), without the `./` that `tar -cf x.tar .` puts before each.
Texts, labels and JSON become fields, media become byte ranges of the tar, everything else is carried as `data`.
Compressed tars are decompressed once, into the spool.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

import xxhash

from mmdata.errors import FormatError, InvalidSample
from mmdata.formats.tar import Damage, group_members
from mmdata.formats.tar_index import index_tar
from mmdata.schema import MediaRef, SourceSample, escape_key
from mmdata.sources.contract import SUFFIX, Partition, bad_key, kind_of, partition_name
from mmdata.sources.inputs import input_files, spool_plain
from mmdata.sources.listing import hidden
from mmdata.sources.messages import normalise_fields
from mmdata.sources.spool import Spool
from mmdata.sources.text import MAX_TEXT_BYTES, is_text, parse_member

if TYPE_CHECKING:
    from mmdata.recipe import WebDatasetSource
    from mmdata.storage import Storage


_ROOT = re.compile(r"^(\./+)+")


class WebDataset:
    """Samples of tar files; a partition is one tar."""

    def __init__(self, settings: WebDatasetSource, storage: Storage, spool: str, partition: int = 4096) -> None:
        self.name = f"webdataset:{settings.path[0]}" + (f"+{len(settings.path) - 1}" if len(settings.path) > 1 else "")
        self.ignored: Counter[str] = Counter()
        self._settings = settings
        self._storage = storage
        self._spool = Spool(storage, spool)

    def partitions(self) -> Iterator[Partition]:
        for file in input_files(self._storage, self._settings.path):
            yield Partition(partition_name(file.url), {"url": file.url, "stem": file.stem, "stamp": file.stamp})

    def samples(self, partition: Partition) -> Iterator[SourceSample]:
        url, stamp = partition.payload["url"], partition.payload["stamp"]
        damages: list[Damage] = []
        try:
            readable = spool_plain(self._storage, self._spool, url, stamp, keep_damaged=True)
        except FormatError as error:
            yield self._damaged(partition, Damage(0, str(error)))
            return
        used: dict[int, int] = {}
        with self._storage.open(readable) as headers, self._storage.open(readable) as texts:
            for key, members in group_members(index_tar(headers), damages.append):
                yield from self._lost(partition, damages)
                key = _ROOT.sub("", key)
                sample = self._sample(partition, readable, stamp, texts, key, members)
                hashed = xxhash.xxh3_64_intdigest(key.encode("utf-8", "surrogateescape"))
                times = used[hashed] = used.get(hashed, 0) + 1
                yield sample if times == 1 else self._repeated(partition, sample, times)
            yield from self._lost(partition, damages)

    def _sample(
        self,
        partition: Partition,
        url: str,
        stamp: str,
        texts: BinaryIO,
        key: str,
        members: list[tuple[str, int, int]],
    ) -> SourceSample:
        media: list[MediaRef] = []
        fields: dict[str, Any] = {}
        problem: str | None = bad_key(key)
        for extension, offset, length in members:
            if not is_text(extension):
                kind = kind_of(extension, self._settings.animated)
                media.append(MediaRef(extension, kind, url, offset, length, stamp))
                continue
            try:
                fields[extension] = self._field(texts, f"{key}.{extension}", extension, offset, length)
            except InvalidSample as invalid:
                problem = problem or str(invalid)
        if problem is None:
            try:
                fields = normalise_fields(fields, Counter(ref.kind for ref in media))
            except InvalidSample as invalid:
                problem = str(invalid)
        error = (InvalidSample.__name__, f"{partition.payload['url']}, {key}: {problem}") if problem else None
        key = self._settings.key_prefix + key
        return SourceSample(key=key, media=tuple(media), fields=fields, stamp=stamp, error=error)

    def _field(self, texts: BinaryIO, name: str, extension: str, offset: int, length: int) -> Any:
        if length > MAX_TEXT_BYTES:
            raise InvalidSample(f"{name}: {length} bytes is too large for a text member")
        texts.seek(offset)
        return parse_member(extension, texts.read(length), name)

    def _repeated(self, partition: Partition, sample: SourceSample, times: int) -> SourceSample:
        message = f"{partition.payload['url']}: the key {sample.key!r} occurs {times} times, apart from each other"
        key = f"{sample.key}{SUFFIX}{times}"
        return SourceSample(key, sample.media, stamp=sample.stamp, error=(InvalidSample.__name__, message))

    def _lost(self, partition: Partition, damages: list[Damage]) -> Iterator[SourceSample]:
        """One bad sample for each damage met since the last call, except members that are no data anywhere."""
        for damage in damages:
            parts = damage.name.split("/")
            if damage.incomplete or not any(hidden(part) or part.startswith("__") for part in parts):
                yield self._damaged(partition, damage)
        damages.clear()

    def _damaged(self, partition: Partition, damage: Damage) -> SourceSample:
        url, stamp = partition.payload["url"], partition.payload["stamp"]
        key = escape_key(partition.payload["stem"]) + f"{SUFFIX}byte{damage.offset}"
        message = f"{url}, byte {damage.offset}: {damage.message}"
        place = MediaRef("", "data", url, damage.offset, None, stamp)
        error = (InvalidSample.__name__, message)
        return SourceSample(self._settings.key_prefix + key, (place,), stamp=stamp, error=error)
