"""The worker's side of the local engine: run the task on one number after the other. Knows nothing of what it does."""

from __future__ import annotations

import importlib
import io
import pickle
import signal
import sys
import traceback
from typing import Any, NamedTuple

from mmdata.errors import TesseraError
from mmdata.pipes import frame, pack, pickled_error, read_header, write_blocking
from mmdata.processes import resolve

READY, RESULT, FAILED = range(3)


class Setup(NamedTuple):
    """What a worker needs; `setup` is the task's own, pickled."""

    task: str
    setup: bytes
    preload: tuple[str, ...]


class Stopped(BaseException):
    """Raised by SIGTERM in the middle of a task, so that `finally` and `with` blocks run."""


def main(argument: Setup, fds: list[int]) -> None:
    """Entry of the worker process; `fds`: numbers in, results out. Ends when the numbers' pipe closes."""
    numbers, results = fds
    sys.unraisablehook = _unraisable
    try:
        try:
            signal.signal(signal.SIGTERM, _stop)
            _loop(argument, numbers, results)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the caller's cleaning up is not to be torn by Stopped
    except Stopped:  # outermost: it may come while the handler above is being taken away
        raise SystemExit(128 + signal.SIGTERM) from None


def _loop(argument: Setup, numbers: int, results: int) -> None:
    number = -1
    try:
        for module in argument.preload:
            importlib.import_module(module)
        function = resolve(argument.task)
        setup = pickle.loads(argument.setup)
        write_blocking(results, frame(-1, [], READY))
        with io.BufferedReader(io.FileIO(numbers, closefd=False)) as stream:
            while (header := read_header(stream)) is not None:
                number, length = header[:2]
                item = pickle.loads(stream.read(length)) if length else number
                write_blocking(results, frame(number, pack(function(item, setup)), RESULT))
    except Stopped:
        raise
    except BaseException as error:
        write_blocking(results, frame(number, pack((_ours(error), traceback.format_exc())), FAILED))


def _stop(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a second one ends the process at once
    raise Stopped


def _unraisable(lost: Any) -> None:
    """A destructor swallows what is raised in it. A stop that was lost so comes again, once the destructor is done."""
    if lost.exc_type is Stopped:
        signal.signal(signal.SIGALRM, _stop)
        signal.setitimer(signal.ITIMER_REAL, 0.01)
    else:
        sys.__unraisablehook__(lost)


def _ours(error: BaseException) -> bytes | None:
    return pickled_error(error) if isinstance(error, TesseraError) else None


def error_of(record_payload: bytes | bytearray) -> tuple[Any, str]:
    """(the TesseraError itself or None, traceback text) from the payload of a FAILED record."""
    pickled, trace = pickle.loads(record_payload)
    return (pickle.loads(pickled) if pickled is not None else None), trace
