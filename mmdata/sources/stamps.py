"""Looks up size and stamp of media that a source only names: one by one locally, many at once elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from mmdata.errors import StorageError
from mmdata.schema import MediaRef, SourceSample

if TYPE_CHECKING:
    from mmdata.storage import Storage

_WINDOW = 128
"""Samples whose media are looked up together."""

_REQUESTS = 16


def stamped(storage: Storage, samples: Iterator[SourceSample]) -> Iterator[SourceSample]:
    """`samples`, with `length` and `stamp` of every medium that is a whole file or object and has none yet.

    A medium that cannot be looked up keeps the empty stamp: whoever reads it finds out why.
    """
    window: list[SourceSample] = []

    def look(ref: MediaRef) -> MediaRef:
        try:
            found = storage.stat(ref.uri)
        except StorageError:
            return ref
        return replace(ref, length=found.size, stamp=found.stamp)

    while window := list(islice(samples, _WINDOW)):
        remote = {
            ref.uri: ref
            for sample in window
            for ref in sample.media
            if ref.offset is None and not ref.stamp and storage.local_path(ref.uri) is None
        }
        known: dict[str, MediaRef] = {}
        if remote:
            with ThreadPoolExecutor(_REQUESTS) as pool:
                known = dict(zip(remote, pool.map(look, remote.values()), strict=True))
        for sample in window:
            media = tuple(
                ref
                if ref.offset is not None or ref.stamp
                else replace(ref, length=known[ref.uri].length, stamp=known[ref.uri].stamp)
                if ref.uri in known
                else look(ref)
                for ref in sample.media
            )
            yield replace(sample, media=media) if media else sample
