"""The sandbox: a handler runs on one item after the other where a hang, a crash or a memory bomb costs one item.

One replaceable child process works while the parent sends and receives. Knows nothing of media or recipes.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import re
import select
import signal
import tempfile
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from mmdata.errors import WorkerError
from mmdata.media import sandboxed
from mmdata.media.sandboxed import ITEM, QUEUED, START_NS
from mmdata.pipes import IN_RING, PLACE, Receiver, Record, Sender, frame_in_ring, pack, pipe
from mmdata.processes import START_TIMEOUT_S, Child, describe_status

_WINDOW_S = 0.06  # work in flight: twice what the child collects before it answers
_LEAST_ITEMS = 8  # as far as their bytes allow: slow items differ, and a child that waits its turn has something to do
_WINDOW_ITEMS = 1024
_WINDOW_BYTES = 8 * 1024 * 1024
_PUMP_S = 0.001
_FILL_S = 0.02  # longest stretch of pulling items while results may be waiting
_LOOK_S = 0.1  # how often a slow item's wall time and memory are looked at
_SILENCE_S = 60.0  # a child that neither works nor answers for so long is stuck
_DEATHS_WITHOUT_BLAME = 3


@dataclass(frozen=True)
class Limits:
    """Limits of one item: CPU seconds of all its threads, wall seconds, and bytes above what the imports took."""

    cpu_s: float = 60.0
    wall_s: float = 300.0
    memory_bytes: int = 2 * 1024**3


@dataclass(frozen=True)
class Failure:
    """Why there is no result for an item: the name of a MediaError class, and a message."""

    error_class: str
    message: str


class Sandbox(AbstractContextManager["Sandbox"]):
    """Runs `handler`, named "package.module:function" and called as function(item, setup), in a child process.

    `preload` names modules worth importing before the first item (they are shared by all children where possible).
    A MediaError that the handler raises becomes a Failure of its class; a hang, a crash or too much memory becomes
    DecodeTimeout, DecoderCrash or MemoryLimit; another TesseraError is raised here, since it is not about the sample;
    any other exception becomes OperatorError. A verdict that kills is given only for an item that the child had met
    first: otherwise the item is tried once more in a new child, so that it does not depend on the items before it.
    A timed-out item is always tried once more. The handler may not read standard input or print.
    """

    def __init__(
        self, handler: str, setup: object = None, *, limits: Limits | None = None, preload: tuple[str, ...] = ()
    ) -> None:
        self.limits = limits or Limits()
        if min(self.limits.cpu_s, self.limits.wall_s, self.limits.memory_bytes) <= 0:
            raise ValueError(f"limits must be positive: {self.limits}")
        self._setup = sandboxed.Setup(
            handler,
            pickle.dumps(setup, protocol=5),
            tuple(preload),
            self.limits.cpu_s,
            self.limits.memory_bytes,
            min(self.limits.memory_bytes // 2, 1024**3),
        )
        self._child: _Child | None = None
        self._busy = False
        self._numbered = 0  # items have numbers of their own over all maps

    def map(self, items: Iterable[Any]) -> Generator[Any]:
        """Yield the result or the Failure of each item, in order.

        A few items are in flight at any time: about 60 ms of work, but at least eight; 8 MiB, but at least two. Raises
        WorkerError when the handler cannot be imported, or the child dies again and again outside of any item.
        """
        if self._busy:
            raise RuntimeError("this sandbox is in the middle of another map")
        self._busy = True
        stream = _Stream(self, iter(items), self._numbered)
        try:
            yield from stream.results()
        finally:
            self._busy = False
            self._numbered = stream.numbered
            if stream.sent:
                self.close()

    def close(self) -> None:
        """End the child at once; the next map starts another."""
        if self._child is not None:
            self._child.close()
            self._child = None

    def __exit__(self, *_: object) -> None:
        self.close()

    def child(self) -> _Child:
        """The present child, started if there is none."""
        if self._child is None:
            self._child = _Child(self._setup)
        return self._child


class Sandboxes:
    """Several sandboxes of one handler that take turns: every k-th item goes to one of k."""

    def __init__(self, handler: str, setup: object, *, limits: Limits, count: int = 1) -> None:
        self.setup, self.limits = setup, limits
        self.boxes = [Sandbox(handler, setup, limits=limits) for _ in range(max(1, count))]

    def map(self, items: Iterable[Any]) -> Iterator[Any]:
        """As `Sandbox.map`: the result or the Failure of each item, in order."""
        source, turn = iter(items), 0
        queues: list[deque[Any]] = [deque() for _ in self.boxes]

        def own(number: int) -> Iterator[Any]:
            nonlocal turn
            while True:
                while queues[number]:
                    yield queues[number].popleft()
                for item in source:
                    queues[turn].append(item)
                    turn = (turn + 1) % len(queues)
                    break
                else:
                    return

        maps = [box.map(own(number)) for number, box in enumerate(self.boxes)]
        try:
            for each in itertools.cycle(maps):
                for result in each:
                    yield result
                    break
                else:  # items are dealt in turn: where one has no more, the next has none either
                    break
            for each in maps:
                next(each, None)
        finally:
            for each in maps:
                each.close()

    def close(self) -> None:
        """End the children at once; the next map starts others."""
        for box in self.boxes:
            box.close()


def share(workers: int, tasks: int) -> int:
    """Sandboxes for each of a job's tasks: more than one where there are too few tasks to keep the workers busy."""
    return max(1, min(workers, -(-2 * workers // max(1, tasks)))) if tasks < 2 * workers else 1


_kept: dict[str, Sandboxes] = {}


def kept(handler: str, setup: object, *, limits: Limits, count: int = 1) -> Sandboxes:
    """This process's sandboxes for the handler, the same for every caller with this very `setup`: a job's tasks, one
    after the other, share the children. They end with the process."""
    found = _kept.get(handler)
    if found is None or found.setup is not setup or found.limits != limits or len(found.boxes) != count:
        if found is not None:
            found.close()
        found = _kept[handler] = Sandboxes(handler, setup, limits=limits, count=count)
    return found


class _Child:
    """A child process with its pipes, and the shared memory that says which item it works on."""

    def __init__(self, setup: sandboxed.Setup) -> None:
        request_r, request_w = pipe()
        result_r, result_w = pipe()
        noise_r, noise_w = os.pipe()
        self._fds = [request_w, result_r, noise_r]
        self.setup = setup
        self._noise = b""
        os.set_blocking(noise_r, False)
        try:
            with _memory_file() as memory:
                os.ftruncate(memory.fileno(), sandboxed.SHARED_BYTES)
                self.words, self.request_ring, self.result_ring = sandboxed.shared_memory(memory.fileno())
                self.process = Child(
                    "mmdata.media.sandboxed:main",
                    setup,
                    [request_r, result_w, memory.fileno(), noise_w],
                    preload=("mmdata.media.sandboxed", setup.handler.partition(":")[0], *setup.preload),
                )
        except BaseException:
            self._close_fds()
            raise
        finally:
            for fd in (request_r, result_w, noise_w):
                os.close(fd)
        self.words[ITEM] = -1
        self.sender, self.receiver = Sender(request_w), Receiver(result_r)
        self.heard = time.monotonic()  # when it was last known to be well
        self.ready = False
        self.leaving = False  # it said that it ends
        self.results_read = 0  # up to this position of the ring of results
        self.first: int | None = None  # the first item it was given
        self.timed_out: str | None = None
        self.peak_bytes: tuple[int, int] = (-1, 0)  # (item, data bytes)
        self.poll = select.poll()
        for fd in (result_r, self.process.fileno()):
            self.poll.register(fd, select.POLLIN)
        self._request_w = request_w

    def put(self, item: _Item) -> None:
        if self.first is None:
            self.first = item.number
        record, item.ring_end = frame_in_ring(self.request_ring, item.number, item.chunks, seconds=self.results_read)
        self.sender.put(record)
        self.words[QUEUED] += 1

    def payload(self, record: Record) -> bytes | bytearray | memoryview:
        """Where the payload of a record lies; valid until `has_read`."""
        return self.result_ring.get(*PLACE.unpack(record.payload)) if record.kind >= IN_RING else record.payload

    def has_read(self, record: Record) -> None:
        if record.kind >= IN_RING:
            self.results_read = sum(PLACE.unpack(record.payload))

    def wait(self, timeout_s: float) -> bool:
        """Until something can be read, or written that is due; True when the process has ended."""
        if self.sender.pending:
            self.poll.register(self._request_w, select.POLLOUT)
        else:
            with contextlib.suppress(KeyError):
                self.poll.unregister(self._request_w)
        events = self.poll.poll(timeout_s * 1000)
        self.sender.pump()
        return any(fd == self.process.fileno() for fd, _ in events)

    def look(self, wall_s: float) -> None:
        """Note the memory of the item being handled; kill the child when the item has had its time."""
        number, start = self.words[ITEM], self.words[START_NS]
        if not start or number != self.words[ITEM]:
            return
        elapsed = (time.monotonic_ns() - start) * 1e-9
        if elapsed > _LOOK_S / 2:
            size = sandboxed.data_bytes(self.process.pid)
            if self.peak_bytes[0] != number or size > self.peak_bytes[1]:
                self.peak_bytes = (number, size)
        if elapsed > wall_s and self.words[START_NS] == start:
            self.timed_out = f"took more than {wall_s:g} s"
            self.process.kill()

    def last_words(self) -> str:
        """What it printed last, with the Python function it was in if it crashed."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._fds[2], 65536):
                self._noise = (self._noise + data)[-65536:]
        text = self._noise.decode("utf-8", "replace")
        before, _, trace = text.partition("Fatal Python error: ")
        place = re.search(r'File "([^"]+)", line (\d+) in (\w+)', trace)
        lines = [line.strip() for line in before.splitlines() if line.strip()]
        parts = [f"in {place[3]}, {os.path.basename(place[1])}:{place[2]}"] if place else []
        return "; ".join(parts + [line[:300] for line in lines[-1:]])

    def drain_noise(self) -> None:
        """Make room in the pipe, so that the last lines before a crash find place."""
        with contextlib.suppress(BlockingIOError):
            self._noise = os.read(self._fds[2], 65536)

    def close(self) -> None:
        self.process.close()
        self._close_fds()

    def _close_fds(self) -> None:
        while self._fds:
            os.close(self._fds.pop())


def _memory_file() -> Any:
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("tessera"), "r+b", buffering=0)
    return tempfile.TemporaryFile()


@dataclass
class _Item:
    number: int
    chunks: list[bytes]
    size: int
    retried: bool = False
    ring_end: int = 0


class _Stream:
    """One run of `Sandbox.map`: what is queued, in flight and done."""

    def __init__(self, sandbox: Sandbox, items: Iterator[Any], numbered: int) -> None:
        self.sandbox = sandbox
        self.items: Iterator[Any] | None = items
        self.again: deque[_Item] = deque()  # to be sent to a new child
        self.sent: dict[int, _Item] = {}
        self.sent_bytes = 0
        self.done: dict[int, Any] = {}
        self.numbered = numbered
        self.yielded = numbered
        self.window = _LEAST_ITEMS
        self.item_s = 0.0
        self.blameless_deaths = 0

    def results(self) -> Iterator[Any]:
        while True:
            self.fill()
            while self.yielded in self.done:
                result = self.done.pop(self.yielded)
                self.yielded += 1
                yield result
                self.fill()
            if self.sent or self.again:
                self.wait()
            elif self.items is None:
                return

    def fill(self) -> None:
        """Send items until enough work is in flight."""
        if len(self.sent) > 1 and (len(self.sent) > self.window // 2 or self.sent_bytes > _WINDOW_BYTES // 2):
            return
        pump_at = time.monotonic() + _PUMP_S
        until = pump_at + _FILL_S
        child = None
        while self.has_room():
            item = self.again.popleft() if self.again else self.pull()
            if item is None:
                break
            child = self.sandbox.child()
            self.sent[item.number] = item
            self.sent_bytes += item.size
            child.put(item)
            now = time.monotonic()
            if now > pump_at or len(self.sent) == 1:
                child.sender.pump()
                pump_at = now + _PUMP_S
            if now > until:
                break
        if child is not None:
            child.sender.pump()

    def has_room(self) -> bool:
        in_flight = len(self.sent)
        return in_flight < 2 or (in_flight < self.window and self.sent_bytes < _WINDOW_BYTES)

    def pull(self) -> _Item | None:
        if self.items is None:
            return None
        try:
            value = next(self.items)
        except StopIteration:
            self.items = None
            return None
        chunks = pack(value)
        self.numbered += 1
        return _Item(self.numbered - 1, chunks, sum(map(len, chunks)))

    def wait(self) -> None:
        """Until the child answers, ends, or is to be looked at."""
        child = self.sandbox.child()
        ended = child.wait(_LOOK_S)
        silent = not self.receive(child)
        if ended or child.receiver.ended:
            self.bury(child)
        elif silent:
            self.check(child)

    def check(self, child: _Child) -> None:
        child.look(self.sandbox.limits.wall_s)
        if child.words[START_NS]:
            child.heard = time.monotonic()
            return
        age = time.monotonic() - child.heard
        if not child.ready and age > START_TIMEOUT_S:
            child.close()
            raise WorkerError(f"the sandbox's handler {child.setup.handler} was not ready within {START_TIMEOUT_S:g} s")
        if child.ready and age > _SILENCE_S:
            child.timed_out = f"did not answer for {_SILENCE_S:g} s"
            child.process.kill()

    def receive(self, child: _Child) -> int:
        records = child.receiver.read(_WINDOW_BYTES)
        for record in records:
            self.take(child, record)
        if records:
            child.heard = time.monotonic()
            child.drain_noise()
        return len(records)

    def take(self, child: _Child, record: Record) -> None:
        kind, payload = record.kind, child.payload(record)
        kind %= IN_RING
        if kind == sandboxed.READY:
            child.ready = True
            return
        if kind == sandboxed.START_FAILED:
            self.sandbox.close()
            raise WorkerError(f"the sandbox's handler {child.setup.handler}:\n{pickle.loads(payload)}")
        if kind == sandboxed.FATAL:
            _raise_from_child(*pickle.loads(payload))
        self.blameless_deaths = 0
        child.leaving = kind in (sandboxed.MEMORY, sandboxed.LAST_FAILURE)
        item = self.sent[record.tag]
        if kind == sandboxed.MEMORY and not (item.retried or child.first == item.number):
            return  # the child ends now, and this item will be blamed for it and tried again
        self.forget(item)
        if item.ring_end:
            child.request_ring.free(item.ring_end)
        if kind == sandboxed.RESULT:
            self.done[item.number] = _unpickled(payload)
            self.learn(record.seconds)
        else:
            self.done[item.number] = Failure(*pickle.loads(payload))
        child.has_read(record)

    def learn(self, seconds: float) -> None:
        self.item_s = seconds if not self.item_s else 0.9 * self.item_s + 0.1 * seconds
        self.window = max(_LEAST_ITEMS, min(2 * self.window, _WINDOW_ITEMS, int(_WINDOW_S / max(self.item_s, 1e-6))))

    def forget(self, item: _Item) -> None:
        del self.sent[item.number]
        self.sent_bytes -= item.size

    def bury(self, child: _Child) -> None:
        """The child is dead: find who is to blame, give a verdict or another try, and put the rest back in line."""
        while self.receive(child):
            continue
        status = child.process.close(grace_s=2.0)
        blamed = self.sent.get(child.words[ITEM])
        if blamed is None and not child.leaving:
            self.blameless_deaths += 1
            if self.blameless_deaths >= _DEATHS_WITHOUT_BLAME:
                raise WorkerError(
                    f"the sandbox of {child.setup.handler} {describe_status(status or 0)} outside of any item, "
                    f"{_DEATHS_WITHOUT_BLAME} times in a row: {child.last_words() or 'no output'}"
                )
        elif blamed is not None:
            failure = self.verdict(child, status, blamed)
            final = blamed.retried or (child.first == blamed.number and failure.error_class != "DecodeTimeout")
            if final:
                self.forget(blamed)
                self.done[blamed.number] = failure
            blamed.retried = True
        self.sandbox.close()
        rest = sorted(self.sent.values(), key=lambda item: (item is not blamed, item.number))
        self.again.extendleft(reversed(rest))
        self.sent, self.sent_bytes = {}, 0

    def verdict(self, child: _Child, status: int | None, blamed: _Item) -> Failure:
        limits = self.sandbox.limits
        if child.timed_out:
            return Failure("DecodeTimeout", child.timed_out)
        if status == -signal.SIGPROF:
            return Failure("DecodeTimeout", f"used more than {limits.cpu_s:g} s of CPU time")
        words = child.last_words()
        text = f"the process {describe_status(status) if status is not None else 'did not end'}"
        text += f" ({words})" if words else ""
        used = child.peak_bytes[1] - child.words[sandboxed.BASE_BYTES] if child.peak_bytes[0] == blamed.number else 0
        if status == -signal.SIGKILL or used > 0.8 * limits.memory_bytes or _NO_MEMORY.search(words):
            return Failure("MemoryLimit", f"{text}; the limit is {limits.memory_bytes:,} bytes")
        return Failure("DecoderCrash", text)


_NO_MEMORY = re.compile(r"bad_alloc|cannot allocate memory|out of memory|memory allocation", re.IGNORECASE)


def _unpickled(payload: bytes | bytearray | memoryview) -> Any:
    try:
        return pickle.loads(payload)
    except Exception as error:  # whatever a class's own unpickling raises
        return Failure("OperatorError", f"{type(error).__name__}: {error} (unpickling the result)")


def _raise_from_child(pickled: bytes | None, trace: str) -> None:
    if pickled is None:
        raise WorkerError(f"the sandbox's handler raised:\n{trace}")
    error = pickle.loads(pickled)
    error.add_note(trace)
    raise error
