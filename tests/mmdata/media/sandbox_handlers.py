"""What the sandbox's tests run in the child: a module with few imports, since every child may import it."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

from mmdata.errors import ConfigError, TruncatedMedia

libc = ctypes.CDLL(None)
leaked: list[bytes] = []


class Unpicklable:
    def __reduce__(self) -> Any:
        raise TypeError("made of stone")


class UnreadableItem:
    def __reduce__(self) -> Any:
        return _explode, ()


def _explode() -> None:
    raise ValueError("cannot be read back")


def act(item: Any, setup: Any) -> Any:
    """A handler that does what the item says, or gives the item back."""
    actions = {
        "python loop": lambda: [None for _ in iter(int, 1)],
        "native loop": lambda: re.match(r"(a|a)*$", "a" * 60 + "b"),
        "native sleep": lambda: ctypes.PyDLL(None).pause(),  # holds the GIL
        "segfault": lambda: ctypes.string_at(0),
        "python sleep": lambda: time.sleep(100),
        "abort": os.abort,
        "exit": lambda: os._exit(3),
        "sys.exit": lambda: sys.exit(4),
        "grow": lambda: _grow(),
        "numpy": lambda: __import__("numpy").ones(2**33),
        "native out of memory": lambda: _print_and_abort(b"terminate called after throwing 'std::bad_alloc'\n"),
        "leak": lambda: leaked.append(b"x" * (100 * 1024**2)) or len(leaked[-1]),
        "media error": lambda: throw(TruncatedMedia("ends at byte 7")),
        "value error": lambda: throw(ValueError("seven")),
        "config error": lambda: throw(ConfigError("no such font")),
        "unpicklable": Unpicklable,
        "huge": lambda: bytes(200 * 1024**2),
        "noise": lambda: libc.write(1, b"garbage\n" * 20_000, 160_000) and libc.write(2, b"\n", 1) and "quiet",
        "print": lambda: print("hello " * 100_000) or "printed",
        "pid": os.getpid,
        "nap": lambda: time.sleep(0.005) or "nap",
        "environment": lambda: os.environ.get("TESSERA_TEST"),
        "setup": lambda: setup,
    }
    return actions[item]() if isinstance(item, str) and item in actions else item


def throw(error: Exception) -> None:
    raise error


def _grow() -> None:
    data = bytearray()
    while True:
        data += bytes(1 << 20)


def _print_and_abort(line: bytes) -> None:
    libc.write(2, line, len(line))
    os.abort()


def die_once(item: Path, setup: Any) -> str:
    """Killed from outside the first time, fine the second."""
    if item.name.startswith("once") and not item.exists():
        item.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return item.name
