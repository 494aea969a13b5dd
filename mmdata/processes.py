"""Child processes that start in milliseconds and cannot outlive their parent. Knows nothing of what they compute.

A server process imports the heavy modules once and forks every child (never a fork with threads alive); its children
use the same server for their own children. `multiprocessing` has a fork server too, but there a child that starts
children starts a second server, and every child runs the user's main script again.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import gc
import importlib
import json
import os
import pickle
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

from mmdata.errors import WorkerError

START_TIMEOUT_S = 120.0
_NUMBER = struct.Struct("<i")
_MAX_FDS = 16
_NO_THREADS_AT_IMPORT = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
_LOST = -signal.SIGKILL  # exit status when the server, which alone knows it, is gone: the child is killed


class _ServerGone(Exception):
    """The server ended before it answered."""


class _Server:
    """This process's line to a fork server. `process` is set only where the server was started from here."""

    def __init__(
        self, control: socket.socket, modules: frozenset[str], process: subprocess.Popen[bytes] | None
    ) -> None:
        self.control = control
        self.modules = modules
        self.process = process
        self.owner = os.getpid()
        self.used = False
        self.lock = threading.Lock()

    def ask(self, fds: list[int]) -> None:
        """Request a process that gets these descriptors; the answer comes through the first of them."""
        try:
            with self.lock:
                self.used = True
                socket.send_fds(self.control, [b"\0"], fds)
        except OSError as error:
            raise _ServerGone from error

    def leave(self) -> None:
        """Need it no more: it ends when its children have ended, and at once when it never had any."""
        self.control.close()
        if self.process is not None and not self.used and self.owner == os.getpid():
            self.process.kill()

    def usable_for(self, modules: frozenset[str]) -> bool:
        if self.owner != os.getpid():
            return False  # inherited by a plain fork
        if self.process is None:
            return True  # shared with the parent: a second server would cost more than importing in the child
        return self.process.poll() is None and modules <= self.modules


_server: _Server | None = None
_wanted: frozenset[str] = frozenset()  # all modules that were ever asked for here
_server_lock = threading.Lock()
_children: weakref.WeakSet[Child] = weakref.WeakSet()


def resolve(name: str) -> Any:
    """The object called "package.module:attribute"."""
    module, _, path = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found


def expect(modules: Iterable[str]) -> None:
    """Processes that need these modules will be started soon: their server imports them meanwhile. Does not wait."""
    _running_server(frozenset(modules))


def describe_status(status: int) -> str:
    """An exit status in words: "was killed by SIGSEGV (Segmentation fault)" or "exited with status 3"."""
    if status >= 0:
        return f"exited with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"was killed by {name} ({signal.strsignal(-status) or 'unknown'})"


class Child:
    """A process running `entry(argument, fds)`; `entry` is "module:function", `fds` are duplicated into the child.

    The child has this process's environment, working directory and `sys.path`, ignores SIGINT (a terminal's Ctrl-C is
    for the parent), and is killed by the kernel when this process ends in any way or drops the object. `preload` names
    modules that the server imports before its first fork. Raises WorkerError when no process can be started.
    """

    def __init__(self, entry: str, argument: object, fds: Sequence[int] = (), preload: Iterable[str] = ()) -> None:
        self.status: int | None = None
        record = pickle.dumps({"entry": entry, "argument": argument, **_surroundings()}, protocol=5)
        modules = frozenset(preload)
        try:
            self._start(record, fds, modules)
        except _ServerGone:  # somebody killed the server: another one, once
            try:
                self._start(record, fds, modules)
            except _ServerGone as error:
                raise WorkerError("the process server ended before it started a process; see its output") from error
        _children.add(self)

    def _start(self, record: bytes, fds: Sequence[int], modules: frozenset[str]) -> None:
        self._status_r, status_w = os.pipe()
        launch_r, self._life_w = os.pipe()
        self._closer = weakref.finalize(self, _close_all, [self._status_r, self._life_w])
        server = _running_server(modules)
        try:
            try:
                server.ask([status_w, launch_r, *fds])
            finally:
                os.close(status_w)
                os.close(launch_r)
            with contextlib.suppress(BrokenPipeError):  # the pid, or its absence, tells what happened
                _write_all(self._life_w, record)
            self.pid = self._read_pid()
        except BaseException as error:
            self._closer()
            if isinstance(error, _ServerGone):
                _forget_server(server)
            raise

    def fileno(self) -> int:
        """A descriptor that turns readable when the child has ended."""
        return self._status_r

    def wait(self, timeout_s: float) -> int | None:
        """Exit status (negative: the signal that killed it), or None when it still runs after `timeout_s`."""
        if self.status is None and self._closer.alive and _readable(self._status_r, timeout_s):
            data = os.read(self._status_r, _NUMBER.size)
            self.status = _NUMBER.unpack(data)[0] if len(data) == _NUMBER.size else _LOST
            if not data:
                self._signal(signal.SIGKILL)
        return self.status

    def terminate(self) -> None:
        """Ask it to end (SIGTERM)."""
        if self.wait(0) is None:
            self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it now (SIGKILL)."""
        if self.wait(0) is None:
            self._signal(signal.SIGKILL)

    def close(self, grace_s: float = 0.0) -> int | None:
        """Let it end by itself for `grace_s`, then kill it; returns its status. Bounded even if it is stuck."""
        if self._closer.alive:
            if self.wait(grace_s) is None:
                self.kill()
                self.wait(5.0)
            self._closer()
        return self.status

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def _read_pid(self) -> int:
        if not _readable(self._status_r, START_TIMEOUT_S):
            raise WorkerError(f"the process server did not start a process within {START_TIMEOUT_S:.0f} s")
        data = os.read(self._status_r, _NUMBER.size)
        if len(data) < _NUMBER.size:
            raise _ServerGone
        pid = _NUMBER.unpack(data)[0]
        if pid < 0:
            raise WorkerError(f"no process could be started: {os.strerror(-pid)}")
        return int(pid)


def _close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def _readable(fd: int, timeout_s: float) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(max(0.0, timeout_s) * 1000))


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _surroundings() -> dict[str, Any]:
    try:
        folder: str | None = os.getcwd()
    except FileNotFoundError:
        folder = None
    return {"environ": dict(os.environ), "folder": folder, "path": _import_path()}


def _import_path() -> list[str]:
    return [os.path.abspath(entry) if entry == "" else entry for entry in sys.path if isinstance(entry, str)]


def _running_server(modules: frozenset[str]) -> _Server:
    global _server, _wanted
    with _server_lock:
        _wanted |= modules
        if _server is None or not _server.usable_for(modules):
            if _server is not None:
                _server.leave()
            _server = _start_server(_wanted)
        return _server


def _forget_server(server: _Server) -> None:
    global _server
    with _server_lock:
        if _server is server:
            server.control.close()
            _server = None


def _start_server(modules: frozenset[str]) -> _Server:
    ours, theirs = socket.socketpair()
    options = json.dumps({"control": theirs.fileno(), "modules": sorted(modules), "path": _import_path()})
    program = (
        "import json, sys; options = json.loads(sys.argv[1]); sys.path[:] = options.pop('path'); "
        "from mmdata.processes import serve; serve(**options)"
    )
    # A process group of its own keeps the terminal's Ctrl-C away.
    process = subprocess.Popen(
        [sys.executable, "-c", program, options],
        stdin=subprocess.DEVNULL,
        pass_fds=[theirs.fileno()],
        process_group=0,
        env={**_NO_THREADS_AT_IMPORT, **os.environ},
    )
    theirs.close()
    return _Server(ours, modules, process)


@atexit.register
def _shut_down() -> None:
    for child in list(_children):
        child.close()
    server = _server
    if server is not None and server.owner == os.getpid():
        server.leave()
        if server.process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.process.wait(2.0)


# ---- the server's side --------------------------------------------------------------------------------------------


def serve(control: int, modules: list[str]) -> None:
    """Import `modules`, then fork a child for every request on the clients' sockets until all of them are closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in modules:
        with contextlib.suppress(Exception):  # whatever a module does at import: the child that needs it reports it
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # keeps the collector from touching, and so copying, pages shared with the children
    _ForkServer(socket.socket(fileno=control), frozenset(modules)).run()


class _ForkServer:
    """The loop of the server process: clients' requests in, pids and exit statuses out."""

    def __init__(self, client: socket.socket, modules: frozenset[str]) -> None:
        self.modules = modules
        self.clients = {client.fileno(): client}
        self.statuses: dict[int, int] = {}  # pid -> descriptor for its exit status
        self.wake_r, self.wake_w = os.pipe()
        self.poll = select.poll()
        self.poll.register(client, select.POLLIN)
        self.poll.register(self.wake_r, select.POLLIN)

    def run(self) -> None:
        os.set_blocking(self.wake_r, False)
        os.set_blocking(self.wake_w, False)
        signal.signal(signal.SIGCHLD, _ignore)
        signal.set_wakeup_fd(self.wake_w, warn_on_full_buffer=False)
        while self.clients:
            for fd, _ in self.poll.poll():
                if fd == self.wake_r:
                    with contextlib.suppress(BlockingIOError):
                        os.read(fd, 4096)
                    self.reap()
                else:
                    self.answer(self.clients[fd])
        while self.statuses:  # they have ended, or their lines were open: leave no zombie to a lazy init
            self.reap(0)

    def reap(self, flags: int = os.WNOHANG) -> None:
        while self.statuses:
            pid, status = os.waitpid(-1, flags)
            if pid == 0:
                return
            fd = self.statuses.pop(pid, None)
            if fd is not None:
                _report(fd, os.waitstatus_to_exitcode(status))
                os.close(fd)

    def answer(self, client: socket.socket) -> None:
        try:
            message, fds, _, _ = socket.recv_fds(client, 1, _MAX_FDS)
        except ConnectionError:
            message, fds = b"", []
        if not message:
            self.poll.unregister(client)
            del self.clients[client.fileno()]
            client.close()
            return
        status_w, *rest = fds
        ours, theirs = socket.socketpair()  # the child's own line to this server, for its own children
        try:
            pid = os.fork()
        except OSError as error:
            _report(status_w, -(error.errno or errno.EAGAIN))
            _close_all(fds)
            ours.close()
            theirs.close()
            return
        if pid == 0:
            self.leave()
            ours.close()
            os.close(status_w)
            _run_and_exit(_Server(theirs, self.modules, None), rest)
        theirs.close()
        _close_all(rest)
        self.clients[ours.fileno()] = ours
        self.poll.register(ours, select.POLLIN)
        self.statuses[pid] = status_w
        _report(status_w, pid)

    def leave(self) -> None:
        """In the child: drop what belongs to the server."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for client in self.clients.values():
            client.close()
        _close_all([self.wake_r, self.wake_w, *self.statuses.values()])


def _ignore(*_: object) -> None:
    """A handler (unlike SIG_IGN) leaves ended children to be waited for."""


def _report(fd: int, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody waits for it any more
        os.write(fd, _NUMBER.pack(number))


# ---- the child's side ---------------------------------------------------------------------------------------------


def _run_and_exit(server: _Server, fds: list[int]) -> None:
    global _server
    code = 1
    try:
        _server = server
        for fd in fds:
            os.set_inheritable(fd, False)
        launch_r, *rest = fds
        with open(launch_r, "rb", closefd=False) as launch:
            try:
                record = pickle.load(launch)
            except EOFError:  # the parent is gone already
                return
        _die_with_parent(launch_r)
        os.environ.clear()
        os.environ.update(record["environ"])
        sys.path[:] = record["path"]
        if record["folder"] is not None:
            os.chdir(record["folder"])
        resolve(record["entry"])(record["argument"], rest)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        for child in list(_children):
            child.close()
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _die_with_parent(life: int) -> None:
    """Have this process killed when the write end of the pipe `life` closes, that is, when the parent is gone.

    The kernel signals the owner of an O_ASYNC pipe when its last writer closes (fcntl(2), F_SETSIG), so it works while
    native code hangs; PR_SET_PDEATHSIG would watch the fork server instead of the parent.
    """
    if sys.platform == "linux":
        fcntl.fcntl(life, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(life, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)
        if _readable(life, 0):  # it went away before the signal was armed
            os._exit(1)
    else:
        threading.Thread(target=_watch_parent, args=(life,), daemon=True).start()


def _watch_parent(life: int) -> None:
    while not _readable(life, 1.0):
        time.sleep(0)
    os._exit(1)
