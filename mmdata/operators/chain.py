"""What `measure` (scan) and `process` (build) share: their setup, and how the bytes of a medium are fetched.

Both run inside the sandbox, a sample at a time. They know neither catalogs nor shards: plain values in, plain values
out.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import xxhash

from mmdata.errors import DecompressionBomb, EmptyMedia, MediaError, MissingMedia, NotFound, OperatorError, StorageError
from mmdata.operators.registry import Arguments, Context
from mmdata.recipe import Decode, Encode, Limits
from mmdata.schema import MediaRef
from mmdata.storage import Storage

STATISTIC_FRAMES = 8
"""Frames of a video that picture statistics look at, spread evenly."""

HEAD_BYTES = 64 * 1024
"""A header scan reads this much of a picture first, and the whole file only when that is not enough."""

Source = bytes | str
"""A medium in memory, or the path of a local file that is one whole medium."""


@dataclass(frozen=True)
class Setup:
    """What measuring and processing need beside the sample. Sent to each sandbox once."""

    storage: Storage
    limits: Limits
    decode: Decode
    check: str
    """`decode` or `header`."""
    exact_frames: bool = False
    digest: bool = True
    """Whether a header scan reads whole files for their digest."""
    statistics: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Modality to statistics."""
    transforms: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Modality to transforms, in order."""
    encode: Encode = field(default_factory=Encode)
    seed: int = 0


def load(ref: MediaRef, setup: Setup, *, whole: bool) -> tuple[Source, int, str | None]:
    """The medium's bytes (or the path of a whole local video or recording), its size and its digest."""
    storage = setup.storage
    try:
        path = storage.local_path(ref.uri) if ref.offset is None else None
        size = ref.length
        if size is None:
            size = int(ref.stamp.split(":", 1)[0]) if path and ":" in ref.stamp else storage.stat(ref.uri).size
        if size == 0 and ref.kind != "data":
            raise EmptyMedia(f"{ref.uri}: the file is empty" if ref.offset is None else "the member is empty")
        if size > setup.limits.max_item:
            raise DecompressionBomb(f"{size} bytes, over limits.max_item {setup.limits.max_item}")
        if path is not None and ref.kind in ("video", "audio"):
            os.stat(path)  # it may be gone since it was listed
            return path, size, file_digest(path) if setup.digest else None
        if not whole and ref.kind == "image" and size > HEAD_BYTES:
            return storage.read_range(ref.uri, ref.offset or 0, HEAD_BYTES), size, None
        if ref.offset is None:
            data = storage.read(ref.uri)
        else:
            data = storage.read_range(ref.uri, ref.offset, size) if size else b""
    except (NotFound, FileNotFoundError) as error:
        raise MissingMedia(str(error)) from None
    except (StorageError, PermissionError) as error:
        if isinstance(error, PermissionError) or isinstance(error.__cause__, PermissionError):
            raise MissingMedia(f"{error}; make it readable") from None
        raise  # the store failed, not the sample
    return data, len(data), xxhash.xxh3_128_hexdigest(data) if setup.digest else None


def file_digest(path: str) -> str:
    running = xxhash.xxh3_128()
    with open(path, "rb", buffering=0) as stream:
        while block := stream.read(1 << 20):
            running.update(block)
    return running.hexdigest()


def as_bytes(source: Source) -> bytes:
    if isinstance(source, bytes):
        return source
    with open(source, "rb") as stream:
        return stream.read()


def named(operator: Arguments, call: Any) -> Any:
    """Run an operator; what it raises says whose it is."""
    try:
        return call()
    except (MediaError, MemoryError):
        raise
    except Exception as error:
        raise OperatorError(f"{operator.op}: {type(error).__name__}: {error}") from error


def steps(kind: str, context: Context, setup: Setup) -> list[tuple[Any, Context]]:
    """The transforms of a kind, each with its own context: two of one name draw differently."""
    seen: Counter[str] = Counter()
    steps = []
    for transform in setup.transforms.get(kind, ()):
        steps.append((transform, replace(context, occurrence=seen[transform.op])))
        seen[transform.op] += 1
    return steps


def final_fields(fields: dict[str, Any], context: Context, setup: Setup) -> dict[str, Any]:
    """The sample's fields after the text transforms."""
    for transform, its in steps("text", context, setup):
        fields = named(transform, lambda t=transform, c=its, f=fields: t.apply(f, c))
    return fields
