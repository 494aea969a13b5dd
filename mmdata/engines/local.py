"""The local engine: worker processes of this machine pull numbers, and may die. Knows nothing of shards or media."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import select
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any

from mmdata.engines import worker as worker_side
from mmdata.errors import WorkerError
from mmdata.pipes import Receiver, Record, frame, pack, pipe, write_blocking
from mmdata.processes import START_TIMEOUT_S, Child, describe_status

TRIES = 3
_TICK_S = 1.0
_PATIENCE_S = 300.0  # a number in flight for longer is named in the log
_GRACE_S = 1.0  # for workers that are told to stop
_READ_BYTES = 64 * 1024 * 1024

_log = logging.getLogger(__name__)


def run(
    task: str,
    setup: object,
    numbers: Iterable[int],
    *,
    workers: int,
    on_done: Callable[[int, Any], None],
    on_progress: Callable[[tuple[int, float] | None], None] | None = None,
    payload: Callable[[int], object] | None = None,
    preload: tuple[str, ...] = (),
) -> None:
    """Call `task`, named "package.module:function", as function(number, setup) for every number, in worker processes.

    With `payload` it is called as function(payload(number), setup): the worker gets what the number stands for.

    `on_done(number, result)` is called here, in the order of completion. `numbers` is pulled lazily, one a free worker,
    and its numbers are distinct. `on_progress` is called about once a second with the number that has been running for
    longest and its seconds. `preload` names modules worth importing once for all workers.

    A worker that is killed costs nothing: its number is run again in a new one, up to three times in all, then
    WorkerError names number and signal. An exception in a task stops the others and is raised here: a TesseraError as
    itself with the worker's traceback as a note, others as WorkerError with the traceback. However `run` is left, the
    workers are stopped: by SIGTERM, and by SIGKILL a second later; if this process is killed, the kernel kills them.
    """
    if workers < 1:
        raise ValueError(f"workers must be at least 1, not {workers}")
    pool = _Pool(worker_side.Setup(task, pickle.dumps(setup, protocol=5), tuple(preload)), numbers, on_done, payload)
    clean = False
    try:
        with _remembered_interrupt() as interrupted:
            pool.run(workers, on_progress, interrupted)
        clean = True
    finally:
        pool.stop(clean)


@contextlib.contextmanager
def _remembered_interrupt() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C was pressed meanwhile. A KeyboardInterrupt that is raised inside a destructor or a callback from
    native code ends there, unseen: so that the press still counts, its handler leaves a note before it raises."""
    pressed = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        pressed = True
        signal.default_int_handler(number, frame)

    ours = threading.current_thread() is threading.main_thread()
    ours = ours and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, note)
    try:
        yield lambda: pressed
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)


class _Worker:
    """A worker process with its two pipes, and the number it works on."""

    def __init__(self, setup: worker_side.Setup) -> None:
        number_r, number_w = pipe()
        self.number_w: int | None = number_w
        result_r, result_w = pipe()
        self.result_r = result_r
        try:
            self.process = Child(
                "mmdata.engines.worker:main",
                setup,
                [number_r, result_w],
                preload=("mmdata.engines.worker", setup.task.partition(":")[0], *setup.preload),
            )
        except BaseException:
            os.close(number_w)
            os.close(result_r)
            raise
        finally:
            os.close(number_r)
            os.close(result_w)
        self.receiver = Receiver(result_r)
        self.number: int | None = None
        self.since = self.heard = time.monotonic()
        self.ready = False

    def give(self, number: int, payload: list[bytes]) -> None:
        self.number = number
        self.since = time.monotonic()
        if self.number_w is not None:
            with contextlib.suppress(BrokenPipeError):  # it is dead, as its other pipe will tell
                write_blocking(self.number_w, frame(number, payload))

    def hang_up(self) -> None:
        """No more numbers: a worker that waits for one ends."""
        if self.number_w is not None:
            os.close(self.number_w)
            self.number_w = None

    def close(self, grace_s: float) -> int | None:
        self.hang_up()
        os.close(self.result_r)
        return self.process.close(grace_s)


class _Pool:
    def __init__(
        self,
        setup: worker_side.Setup,
        numbers: Iterable[int],
        on_done: Callable[[int, Any], None],
        payload: Callable[[int], object] | None,
    ) -> None:
        self.setup = setup
        self.payload = payload
        self.numbers: Iterator[int] | None = iter(numbers)
        self.again: deque[int] = deque()
        self.tries: dict[int, int] = {}
        self.on_done = on_done
        self.workers: dict[int, _Worker] = {}  # by the descriptor of the results
        self.poll = select.poll()

    def run(
        self,
        workers: int,
        on_progress: Callable[[tuple[int, float] | None], None] | None,
        interrupted: Callable[[], bool],
    ) -> None:
        while len(self.workers) < workers and (number := self.next_number()) is not None:
            self.start(number)
        ticked = time.monotonic()
        warned: dict[int, float] = {}
        while any(worker.number is not None for worker in self.workers.values()):
            for fd, _ in self.poll.poll(_TICK_S * 1000):
                self.serve(self.workers[fd])
            if interrupted():
                raise KeyboardInterrupt
            now = time.monotonic()
            if now - ticked >= _TICK_S:
                ticked = now
                self.tick(now, warned)
                if on_progress is not None:
                    on_progress(self.oldest(now))

    def next_number(self) -> int | None:
        if self.again:
            return self.again.popleft()
        if self.numbers is not None:
            for number in self.numbers:
                return number
            self.numbers = None
        return None

    def payload_of(self, number: int) -> list[bytes]:
        return [] if self.payload is None else pack(self.payload(number))

    def start(self, number: int) -> None:
        worker = _Worker(self.setup)
        self.workers[worker.result_r] = worker
        self.poll.register(worker.result_r, select.POLLIN)
        worker.give(number, self.payload_of(number))

    def serve(self, worker: _Worker) -> None:
        records = worker.receiver.read(_READ_BYTES)
        for record in records:
            self.take(worker, record)
        if records:
            worker.heard = time.monotonic()
        if worker.receiver.ended:
            self.bury(worker)
        elif worker.ready and worker.number is None:
            number = self.next_number()
            if number is not None:
                worker.give(number, self.payload_of(number))

    def take(self, worker: _Worker, record: Record) -> None:
        if record.kind == worker_side.READY:
            worker.ready = True
        elif record.kind == worker_side.FAILED:
            error, trace = worker_side.error_of(record.payload)
            what = f"number {record.tag} of {self.setup.task}" if worker.ready else self.setup.task
            if error is None:
                raise WorkerError(f"{what} failed in worker process {worker.process.pid}:\n{trace}")
            error.add_note(f"{what} in worker process {worker.process.pid}:\n{trace}")
            raise error
        else:
            worker.number = None
            self.tries.pop(record.tag, None)
            self.on_done(record.tag, pickle.loads(record.payload))

    def bury(self, worker: _Worker) -> None:
        """Its pipe has closed: run its number again in a new worker, unless that has happened too often."""
        number = worker.number
        del self.workers[worker.result_r]
        self.poll.unregister(worker.result_r)
        status = worker.close(grace_s=2.0)
        if number is None:
            number = self.next_number()
        else:
            self.tries[number] = self.tries.get(number, 0) + 1
            how = describe_status(status) if status is not None else "closed its pipe"
            if self.tries[number] >= TRIES:
                raise WorkerError(f"number {number} of {self.setup.task}: its worker {how}, {TRIES} times in a row")
            _log.warning("number %d of %s: its worker %s; running it again", number, self.setup.task, how)
        if number is not None:
            self.start(number)

    def oldest(self, now: float) -> tuple[int, float] | None:
        busy = [(worker.since, worker.number) for worker in self.workers.values() if worker.number is not None]
        if not busy:
            return None
        since, number = min(busy)
        return number, now - since

    def tick(self, now: float, warned: dict[int, float]) -> None:
        for worker in self.workers.values():
            if not worker.ready and now - worker.heard > START_TIMEOUT_S:
                raise WorkerError(
                    f"worker process {worker.process.pid} did not become ready for {self.setup.task} "
                    f"within {START_TIMEOUT_S:g} s"
                )
            if worker.number is None:
                continue
            age = now - worker.since
            if age > warned.get(worker.number, _PATIENCE_S):
                warned[worker.number] = 2 * age
                _log.warning(
                    "still waiting for number %d of %s: %.0f s in worker process %d",
                    worker.number,
                    self.setup.task,
                    age,
                    worker.process.pid,
                )

    def stop(self, clean: bool) -> None:
        """End all workers: politely first, all at the same time."""
        for worker in self.workers.values():
            worker.hang_up()
            if not clean:
                worker.process.terminate()
        until = time.monotonic() + _GRACE_S
        for worker in list(self.workers.values()):
            worker.close(max(0.0, until - time.monotonic()))
        self.workers.clear()
