"""Records through pipes between a parent and its child: framing, pickling without copies, ends that never block.

A record is (tag, length, kind, seconds) and `length` bytes. Pickles go as lists of chunks, so that media bytes travel
from the object to the pipe, and from the pipe to the object, with one copy each. Knows nothing of processes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pickle
import struct
from collections import deque
from collections.abc import Sequence
from itertools import islice
from types import SimpleNamespace
from typing import Any, BinaryIO, NamedTuple

HEADER = struct.Struct("<qQid")
PLACE = struct.Struct("<qq")  # the payload of a record whose real payload lies in a ring: position, size
IN_RING = 256  # added to the kind of such a record
RING_MIN_BYTES = 4096  # smaller payloads go through the pipe
PIPE_BYTES = 512 * 1024  # of the 64 MiB of pipes that a user may have without privileges
_IOV_MAX = 256


class Record(NamedTuple):
    tag: int
    kind: int
    seconds: float
    payload: bytes | bytearray


def pipe() -> tuple[int, int]:
    """A pipe (read end, write end), with a larger buffer where the system allows it."""
    ends = os.pipe()
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with contextlib.suppress(OSError):  # over the user's allowance: the usual size serves as well, only slower
            fcntl.fcntl(ends[1], fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return ends


def pack(value: object) -> list[bytes]:
    """Pickle `value` into chunks; large `bytes` inside it are chunks themselves, not copied."""
    chunks: list[Any] = []
    pickle.Pickler(SimpleNamespace(write=chunks.append), protocol=5).dump(value)
    return [chunk if type(chunk) is bytes else bytes(chunk) for chunk in chunks]


def pickled_error(error: BaseException) -> bytes | None:
    """The error pickled, or None where it would not come back as it is."""
    try:
        data = pickle.dumps(error)
        pickle.loads(data)
    except Exception:  # whatever a class's own pickling raises
        return None
    return data


def frame(tag: int, chunks: Sequence[bytes], kind: int = 0, seconds: float = 0.0) -> list[bytes]:
    """The chunks of a whole record."""
    return [HEADER.pack(tag, sum(map(len, chunks)), kind, seconds), *chunks]


def frame_in_ring(
    ring: Ring, tag: int, chunks: Sequence[bytes], kind: int = 0, seconds: float = 0.0
) -> tuple[list[bytes], int]:
    """The chunks of a record whose payload is put into the ring if it fits there, and its end in the ring, or 0."""
    size = sum(map(len, chunks))
    position = ring.put(chunks, size) if size >= RING_MIN_BYTES else None
    if position is None:
        return frame(tag, chunks, kind, seconds), 0
    return frame(tag, [PLACE.pack(position, size)], kind + IN_RING, seconds), position + size


def write_blocking(fd: int, chunks: Sequence[bytes]) -> None:
    """Write all of it, however long the reader takes."""
    queue = deque(chunks)
    while queue:
        _take(queue, os.writev(fd, list(islice(queue, _IOV_MAX))))


def read_header(stream: BinaryIO) -> tuple[int, int, int, float] | None:
    """(tag, length, kind, seconds) of the next record, or None at the end of the stream; the payload follows."""
    data = stream.read(HEADER.size)
    return HEADER.unpack(data) if len(data) == HEADER.size else None


class Ring:
    """Payloads in memory shared by two processes, which saves half of the copies; the records still go by pipe.

    One side puts, and frees in the same order when the other says that it has read. Positions grow for ever; a payload
    is contiguous. Whoever reads has got the record through a pipe first: the system calls order the memory accesses.
    """

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory
        self._head = self._tail = 0

    def put(self, chunks: Sequence[bytes], size: int) -> int | None:
        """Copy the chunks, `size` bytes in all; their position, or None where there is no room."""
        capacity = len(self._memory)
        position = self._head
        if position % capacity + size > capacity:
            position += capacity - position % capacity
            if self._tail == self._head:
                self._tail = self._head = position  # nothing is unread: the skipped part is free as well
        if position + size - self._tail > capacity:
            return None
        at = position % capacity
        for chunk in chunks:
            self._memory[at : at + len(chunk)] = chunk
            at += len(chunk)
        self._head = position + size
        return position

    def free(self, end: int) -> None:
        """All up to the position `end` has been read."""
        self._tail = max(self._tail, end)

    def get(self, position: int, size: int) -> memoryview:
        """The payload itself; it may be overwritten once its end is reported as read."""
        at = position % len(self._memory)
        return self._memory[at : at + size]


class Sender:
    """Write end that never blocks: `put` queues, `pump` writes what the pipe takes now."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._queue: deque[bytes | memoryview] = deque()
        self.pending = 0

    def put(self, chunks: Sequence[bytes]) -> None:
        self._queue.extend(chunks)
        self.pending += sum(map(len, chunks))

    def pump(self) -> None:
        """Returns also when the reader is gone: its death shows elsewhere."""
        queue = self._queue
        while queue:
            try:
                written = os.writev(self._fd, list(islice(queue, _IOV_MAX)))
            except (BlockingIOError, BrokenPipeError):
                return
            self.pending -= written
            _take(queue, written)


class Receiver:
    """Read end that never blocks: `read` returns the whole records that have arrived."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._buffer = bytearray(PIPE_BYTES)
        self._filled = 0
        self._large: bytearray | None = None  # a record bigger than the buffer
        self._large_header: tuple[int, int, float] = (0, 0, 0.0)
        self._large_filled = 0
        self.ended = False

    def read(self, at_most: int) -> list[Record]:
        """Records until the pipe is empty or about `at_most` bytes have come; sets `ended` when the writer is gone."""
        records: list[Record] = []
        total = 0
        while total < at_most and not self.ended:
            large = self._large
            target = (
                memoryview(self._buffer)[self._filled :] if large is None else memoryview(large)[self._large_filled :]
            )
            try:
                count = os.readv(self._fd, [target])
            except BlockingIOError:
                break
            if count == 0:
                self.ended = True
            elif large is None:
                self._filled += count
                self._split(records)
            else:
                self._large_filled += count
                self._finish_large(records)
            total += count
        return records

    def _split(self, records: list[Record]) -> None:
        buffer, at = self._buffer, 0
        while self._filled - at >= HEADER.size:
            tag, length, kind, seconds = HEADER.unpack_from(buffer, at)
            start = at + HEADER.size
            if length > len(buffer) - HEADER.size:
                self._large = bytearray(length)
                self._large_header = (tag, kind, seconds)
                self._large_filled = self._filled - start
                self._large[: self._large_filled] = memoryview(buffer)[start : self._filled]
                self._filled = 0
                return
            if start + length > self._filled:
                break
            records.append(Record(tag, kind, seconds, bytes(memoryview(buffer)[start : start + length])))
            at = start + length
        rest = self._filled - at
        if at and rest:
            buffer[:rest] = buffer[at : self._filled]
        self._filled = rest

    def _finish_large(self, records: list[Record]) -> None:
        if self._large is not None and self._large_filled == len(self._large):
            tag, kind, seconds = self._large_header
            records.append(Record(tag, kind, seconds, self._large))
            self._large = None


def _take(queue: deque[Any], written: int) -> None:
    while queue and written >= len(queue[0]):
        written -= len(queue.popleft())
    if written:
        queue[0] = memoryview(queue[0])[written:]
