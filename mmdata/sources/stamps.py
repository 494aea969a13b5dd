"""Looks up size and stamp of media that a source only names: one by one locally, many at once elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
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

    def look(ref: MediaRef) -> MediaRef:
        try:
            found = storage.stat(ref.uri)
        except StorageError:
            return ref
        return replace(ref, length=found.size, stamp=found.stamp)

    def wanted(ref: MediaRef) -> bool:
        return ref.offset is None and not ref.stamp

    with ExitStack() as stack:
        pool: ThreadPoolExecutor | None = None
        while window := list(islice(samples, _WINDOW)):
            refs = {ref.uri: ref for sample in window for ref in sample.media if wanted(ref)}
            remote = [ref for ref in refs.values() if storage.local_path(ref.uri) is None]
            if remote:
                pool = pool or stack.enter_context(ThreadPoolExecutor(_REQUESTS))
                refs.update((ref.uri, ref) for ref in pool.map(look, remote))
            done = {ref.uri for ref in remote}
            refs.update((uri, look(ref)) for uri, ref in refs.items() if uri not in done)
            for sample in window:
                media = tuple(
                    replace(ref, length=refs[ref.uri].length, stamp=refs[ref.uri].stamp) if wanted(ref) else ref
                    for ref in sample.media
                )
                yield replace(sample, media=media) if media else sample
