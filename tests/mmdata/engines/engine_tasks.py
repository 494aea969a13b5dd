"""What the engine's tests run in the workers: a module with few imports."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from mmdata.errors import ErrorLimitExceeded, StorageError


class Awkward(StorageError):
    """An error whose pickle cannot be read back."""

    def __init__(self, url: str, code: int) -> None:
        super().__init__(f"{url} {code}")


def square(number: int, setup: Any) -> int:
    return number * number


def pid(number: int, setup: Any) -> int:
    time.sleep(0.05)
    return os.getpid()


def large(number: int, setup: Any) -> bytes:
    return bytes([number]) * 3_000_000


def die(number: int, setup: tuple[Path, int, int]) -> str:
    """Number 3 dies by signal `setup[1]` the first `setup[2]` times, leaving a mark each time."""
    folder, how, times = setup
    marks = len(list(folder.glob("mark*")))
    if number == 3 and marks < times:
        (folder / f"mark{marks}").touch()
        if how == 0:
            os._exit(7)
        os.kill(os.getpid(), how)
    return f"done {number}"


def fail(number: int, setup: str) -> None:
    """Number 2 fails; the others hang in native code, holding the GIL, or in Python."""
    if number != 2:
        (ctypes.PyDLL(None).pause if number % 2 else lambda: time.sleep(100))()
    time.sleep(0.2)
    if setup == "value":
        raise ValueError("the second number is bad")
    if setup == "limit":
        raise ErrorLimitExceeded("11 of 20 samples are bad")
    if setup == "awkward":
        raise Awkward("s3://bucket", 503)
    if setup == "exit":
        sys.exit(5)


def hang(number: int, folder: Path) -> None:
    (folder / str(os.getpid())).touch()
    if number % 2:
        ctypes.PyDLL(None).pause()
    time.sleep(100)


def tidy(number: int, folder: Path) -> None:
    """Holds a temporary file while it works."""
    file = folder / f"{number}.tmp"
    file.touch()
    try:
        time.sleep(100)
    finally:
        file.unlink()


def sandboxed(number: int, setup: Any) -> list[Any]:
    from mmdata.media.sandbox import Sandbox

    with Sandbox("engine_tasks:square") as sandbox:
        return [os.getpid(), *sandbox.map(range(number, number + 3))]


def kill_server(number: int, setup: Any) -> None:
    if number == 1:
        os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(0.1)


def name_of_payload(item: dict[str, str], _: object) -> str:
    """The payload's name; the worker that first gets "item 3" is killed."""
    if item["name"] == "item 3" and not os.path.exists(item["marker"]):
        with open(item["marker"], "w"):
            pass
        os.kill(os.getpid(), signal.SIGKILL)
    return item["name"]
