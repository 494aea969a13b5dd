"""The child's side of the sandbox: call the handler on one item after the other, under limits the kernel enforces.

Everything that may die is done between `begin` and `end` of an item, so that the parent knows whom to blame. Knows
nothing of media.
"""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import gc
import importlib
import io
import mmap
import os
import pickle
import resource
import signal
import sys
import time
import traceback
from typing import Any, BinaryIO, NamedTuple

from mmdata.errors import MediaError, TesseraError
from mmdata.pipes import IN_RING, PLACE, Ring, frame, frame_in_ring, pack, pickled_error, read_header, write_blocking
from mmdata.processes import resolve

# Kinds of the records that the child sends.
READY, START_FAILED, RESULT, FAILURE, LAST_FAILURE, MEMORY, FATAL = range(7)
# LAST_FAILURE and MEMORY: the child ends after it.

# Shared memory: a page of words (64-bit each, so that a store is never seen half done), then a ring each way.
START_NS, ITEM, QUEUED, BASE_BYTES = range(4)
REQUEST_RING_BYTES = 16 * 1024 * 1024
RESULT_RING_BYTES = 8 * 1024 * 1024
SHARED_BYTES = mmap.PAGESIZE + REQUEST_RING_BYTES + RESULT_RING_BYTES

MESSAGE_CHARS = 2000
FLUSH_S = 0.03
SLOW_S = 0.001  # a result that took so long is sent at once
FLUSH_BYTES = 8 * 1024 * 1024


class Setup(NamedTuple):
    """What a child needs; `setup` is the handler's own, pickled."""

    handler: str
    setup: bytes
    preload: tuple[str, ...]
    cpu_s: float
    memory_bytes: int
    result_bytes: int


def shared_memory(fd: int) -> tuple[memoryview, Ring, Ring]:
    """The words, the ring of requests and the ring of results in the memory file `fd`."""
    memory = memoryview(mmap.mmap(fd, SHARED_BYTES))
    results_at = mmap.PAGESIZE + REQUEST_RING_BYTES
    return memory[: mmap.PAGESIZE].cast("q"), Ring(memory[mmap.PAGESIZE : results_at]), Ring(memory[results_at:])


def main(argument: Setup, fds: list[int]) -> None:
    """Entry of the child process; `fds`: requests, results, the shared memory, and a pipe for the decoders' noise."""
    requests, results, memory, noise = fds
    _be_quiet(noise)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # its default action ends the process
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGPROF])
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    try:
        for module in argument.preload:
            importlib.import_module(module)
        handler = resolve(argument.handler)
        setup = pickle.loads(argument.setup)
    except BaseException:
        write_blocking(results, frame(-1, pack(traceback.format_exc()), START_FAILED))
        return
    gc.collect()
    words, request_ring, result_ring = shared_memory(memory)
    words[BASE_BYTES] = data_bytes(os.getpid())
    _limit_data(words[BASE_BYTES] + argument.memory_bytes)
    write_blocking(results, frame(-1, [], READY))
    loop = _Loop(argument, handler, setup, io.BufferedReader(io.FileIO(requests), 64 * 1024), results)
    loop.words, loop.request_ring, loop.result_ring = words, request_ring, result_ring
    loop.run()


class _Loop:
    words: memoryview
    request_ring: Ring
    result_ring: Ring

    def __init__(self, argument: Setup, handler: Any, setup: object, requests: BinaryIO, results: int) -> None:
        self.cpu_s, self.result_bytes = argument.cpu_s, argument.result_bytes
        self.handler, self.setup = handler, setup
        self.requests, self.results = requests, results
        self.unsent: list[bytes] = []
        self.unsent_bytes = 0

    def run(self) -> None:
        done = 0
        flushed = time.monotonic()
        more = True
        while more:
            header = read_header(self.requests)
            if header is None:
                return
            started = time.monotonic()
            number, _, kind, read = header
            self.result_ring.free(int(read))
            more = self.one(number, kind >= IN_RING)
            done += 1
            now = time.monotonic()
            starved = self.words[QUEUED] <= done
            slow = now - started >= SLOW_S or now - flushed >= FLUSH_S
            if starved or slow or not more or self.unsent_bytes >= FLUSH_BYTES:
                write_blocking(self.results, self.unsent)
                self.unsent, self.unsent_bytes = [], 0
                flushed = time.monotonic()

    def one(self, number: int, in_ring: bool) -> bool:
        """Handle one item; False when the child must end after it."""
        words = self.words
        start = time.monotonic_ns()
        words[START_NS] = start
        words[ITEM] = number
        signal.setitimer(signal.ITIMER_PROF, self.cpu_s)  # CPU time of all threads; kills even inside native code
        stage = "reading the item"
        try:
            if in_ring:
                item = pickle.loads(self.request_ring.get(*PLACE.unpack(self.requests.read(PLACE.size))))
            else:
                item = pickle.load(self.requests)
            stage = ""
            result = self.handler(item, self.setup)
            stage = "pickling the result"
            kind, chunks = RESULT, pack(result)
            size = sum(map(len, chunks))
            if size > self.result_bytes:
                text = f"the result of {size:,} bytes is larger than {self.result_bytes:,}"
                kind, chunks = FAILURE, pack(("MemoryLimit", text))
        except BaseException as error:
            kind, chunks = _explain(error, stage)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            words[START_NS] = 0
        record, _ = frame_in_ring(self.result_ring, number, chunks, kind, (time.monotonic_ns() - start) * 1e-9)
        self.unsent += record
        self.unsent_bytes += sum(map(len, record))
        return kind in (RESULT, FAILURE)


def _explain(error: BaseException, stage: str) -> tuple[int, list[bytes]]:
    if _out_of_memory(error):
        _limit_data(resource.RLIM_INFINITY)  # room to say so
        return MEMORY, pack(("MemoryLimit", f"{type(error).__name__}: {error}".rstrip(": ")))
    if isinstance(error, MediaError):
        failure = (type(error).__name__, str(error)[:MESSAGE_CHARS])
    elif isinstance(error, TesseraError):  # not about the sample: ends the job
        return FATAL, pack((pickled_error(error), traceback.format_exc()))
    else:
        text = f"{type(error).__name__}: {str(error)[:MESSAGE_CHARS]} ({stage or _place(error)})"
        failure = ("OperatorError", text)
    # An item that could not be read leaves the stream at an unknown position.
    return LAST_FAILURE if stage == "reading the item" else FAILURE, pack(failure)


def _out_of_memory(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
            return True
        error = error.__cause__ or error.__context__
    return False


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return "no traceback"
    last = frames[-1]
    return f"{last.name}, {os.path.basename(last.filename)}:{last.lineno}"


def data_bytes(pid: int) -> int:
    """Private writable memory of a process, the quantity that RLIMIT_DATA limits (proc(5), statm); 0 if unknown."""
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[5]) * mmap.PAGESIZE
    except (OSError, IndexError):
        return 0


def _limit_data(size: int) -> None:
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    if hard != resource.RLIM_INFINITY:
        size = hard if size == resource.RLIM_INFINITY else min(size, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (size, hard))


def _be_quiet(noise: int) -> None:
    """Native code's output goes to the parent's pipe, which drops what does not fit; Python's goes nowhere."""
    os.set_blocking(noise, False)
    os.dup2(noise, 1)
    os.dup2(noise, 2)
    faulthandler.enable(2)
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (for the process's life)
