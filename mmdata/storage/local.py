"""The local file system: plain system calls, byte ranges by `pread`, atomic writes by rename.

A temporary file lies beside its target; its name carries host and process, so that what a killed process leaves can be
told from what a living one writes.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import socket
import stat as modes
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO

from mmdata.errors import NotFound, StorageError
from mmdata.storage.urls import Entry, Stat

_COPY_BYTES = 8 << 20
_TEMPORARY = re.compile(r"^\.(?P<host>[^/]+)-(?P<pid>\d+)-[0-9a-f]{16}\.tmp$")
_ABSENT = frozenset({errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})
"""A path that nothing can lie at: below a file, a link to itself, longer than names may be."""
_CLOCK_S = 2.0  # the system's start is known to the second


def read(path: str) -> bytes:
    with errors("read", path), open(path, "rb") as file:
        return file.read()


def read_ranges(path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
    """Exactly these (offset, length) ranges, or StorageError."""
    with errors("read", path):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return [_pread(descriptor, path, offset, length) for offset, length in ranges]
        finally:
            os.close(descriptor)


def _pread(descriptor: int, path: str, offset: int, length: int) -> bytes:
    data = os.pread(descriptor, length, offset)
    while len(data) < length:
        more = os.pread(descriptor, length - len(data), offset + len(data))
        if not more:
            size = os.fstat(descriptor).st_size
            raise StorageError(f"{path} has {size} bytes: bytes {offset} to {offset + length} are not all there")
        data += more
    return data


def stat(path: str) -> Stat:
    with errors("look at", path):
        found = os.stat(path)
    if modes.S_ISDIR(found.st_mode):
        raise NotFound(f"{path} is a folder, not a file")
    return Stat(found.st_size, f"{found.st_size}:{found.st_mtime_ns}")


def entries(folder: str, recursive: bool) -> Iterator[Entry]:
    """Files below `folder` in the order of their full paths, as object stores list them (`/` sorts as a character).

    Not recursive: its files and folders. Links are followed, except into a folder that is being walked; a link to
    nothing, and what cannot be looked at, is listed with size 0; devices, pipes, sockets and this module's temporary
    files are left out.
    """
    with errors("list", folder):
        found = os.stat(folder)
    return _walk(folder, recursive, ((found.st_dev, found.st_ino),))


def _walk(folder: str, recursive: bool, above: tuple[tuple[int, int], ...]) -> Iterator[Entry]:
    with errors("list", folder), os.scandir(folder) as scan:
        children = [(entry.name + "/" if _is_folder(entry) else entry.name, entry) for entry in scan]
    children.sort(key=lambda child: child[0])
    for name, child in children:
        path = os.path.join(folder, child.name)
        if name.endswith("/"):
            if not recursive:
                yield Entry(path + "/", 0, "")
                continue
            found = child.stat()
            if (found.st_dev, found.st_ino) not in above:
                yield from _walk(path, True, (*above, (found.st_dev, found.st_ino)))
            continue
        if _TEMPORARY.match(name):
            continue
        try:
            found = child.stat()
        except OSError:  # reading it will say why
            yield Entry(path, 0, "absent")
            continue
        if modes.S_ISREG(found.st_mode):
            yield Entry(path, found.st_size, f"{found.st_size}:{found.st_mtime_ns}")


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a chain of links that never ends
        return False


def write(path: str, data: bytes, if_absent: bool) -> bool:
    """Put `data` at `path` whole or not at all. With `if_absent`, False when something is there already."""

    def fill(file: BinaryIO) -> None:
        file.write(data)

    return _place(path, fill, if_absent)


def upload(source: str, path: str) -> None:
    """Move the file `source` to `path`: by rename on one file system, else by copy to a temporary file."""
    with errors("write", path):
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        same = os.stat(source).st_dev == os.stat(os.path.dirname(path) or ".").st_dev
        if same:
            with open(source, "rb") as file:
                os.fsync(file.fileno())
            os.replace(source, path)
            _sync_folder(path)
            return

    def fill(target: BinaryIO) -> None:
        with open(source, "rb") as file:
            shutil.copyfileobj(file, target, _COPY_BYTES)

    _place(path, fill, False)
    os.unlink(source)


def delete(path: str) -> None:
    with errors("delete", path):
        try:
            os.unlink(path)
        except FileNotFoundError:
            return


def clean(folder: str) -> int:
    """Delete temporary files directly in `folder` whose process, on this host, is gone. Returns how many."""
    gone = 0
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        match = _TEMPORARY.match(name)
        path = os.path.join(folder, name)
        if match and match["host"] == _host() and not _is_writing(int(match["pid"]), path):
            delete(path)
            gone += 1
    return gone


def temporary(folder: str) -> str:
    """A name in `folder` for a temporary file of this process, which `clean` removes once the process is gone."""
    return os.path.join(folder, f".{_host()}-{os.getpid()}-{secrets.token_hex(8)}.tmp")


def _is_writing(pid: int, path: str) -> bool:
    """Whether the process lives and may have written the file: a number that was given anew began after it."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        with open("/proc/stat", encoding="ascii") as file:
            booted = next(int(line.split()[1]) for line in file if line.startswith("btime "))
        return booted + ticks / os.sysconf("SC_CLK_TCK") < os.stat(path).st_mtime + _CLOCK_S
    except FileNotFoundError:
        return False


def place_stream(path: str, fill: Callable[[BinaryIO], None]) -> None:
    """Let `fill` write a file that appears at `path` whole or not at all."""
    _place(path, fill, False)


def _place(path: str, fill: Callable[[BinaryIO], None], if_absent: bool) -> bool:
    folder = os.path.dirname(path) or "."
    unfinished = temporary(folder)
    with errors("write", path):
        if os.path.isdir(path):
            raise StorageError(f"cannot write {path}: there is a folder of that name")
        os.makedirs(folder, exist_ok=True)
        try:
            with open(unfinished, "xb") as file:
                fill(file)
                file.flush()
                os.fsync(file.fileno())
            if not if_absent:
                os.replace(unfinished, path)
            elif not _link(unfinished, path):
                return False
        finally:
            if os.path.lexists(unfinished):
                os.unlink(unfinished)
        _sync_folder(path)
    return True


def _link(temporary: str, path: str) -> bool:
    """Give the finished file its name unless the name is taken."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
            raise
        try:  # a file system without hard links: claim the name, then fill it
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        except FileExistsError:
            return False
        os.replace(temporary, path)
    return True


def _sync_folder(path: str) -> None:
    descriptor = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9_.]", "_", socket.gethostname())[:64] or "host"


class errors:
    """Turns the system's errors into ours, naming the path and what was tried."""

    def __init__(self, what: str, path: str) -> None:
        self._what, self._path = what, path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, FileNotFoundError):
            raise NotFound(f"cannot {self._what} {self._path}: there is no such file or folder") from error
        if isinstance(error, (OSError, ValueError)):
            number = getattr(error, "errno", None)  # pyarrow's errors have it too, but wordy texts
            reason = os.strerror(number) if number else str(error)
            if number in _ABSENT and self._what != "write":
                raise NotFound(f"cannot {self._what} {self._path}: {reason}") from error
            raise StorageError(f"cannot {self._what} {self._path}: {reason}") from error
