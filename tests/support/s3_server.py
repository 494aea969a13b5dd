"""A real S3 server to test against where one can be started, and fronts before it that spoil or hold up answers."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import os
import random
import re
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

CEPH = Path(__file__).resolve().parents[3] / "shared" / "tools" / "s3-ceph.sh"


@dataclass(frozen=True)
class S3Server:
    """A running server with one bucket; its credentials are in the environment while the fixture lives."""

    endpoint: str
    bucket: str
    kind: str


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Ceph's S3 gateway where its daemons are installed beside the checkout, else moto's server."""
    saved = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("AWS_")}
    folder = tmp_path_factory.mktemp("s3")
    start = _ceph if CEPH.exists() and shutil.which("radosgw") else _moto
    server = start(folder)
    try:
        endpoint = next(server)
        os.environ["AWS_ENDPOINT_URL"] = endpoint
        boto3 = pytest.importorskip("boto3")
        boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket="tessera")
        yield S3Server(endpoint, "tessera", start.__name__.strip("_"))
    finally:
        server.close()
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            del os.environ[name]
        os.environ.update(saved)


def _ceph(folder: Path) -> Iterator[str]:
    port = 20000 + os.getpid() % 20000
    home = ["--dir", f"/tmp/tessera-test-s3-{os.getpid()}"]
    command = [str(CEPH), "start", *home, "--port", str(port), "--env-file", str(folder / "env")]
    subprocess.run(command, check=True, timeout=180, capture_output=True)
    try:
        for line in (folder / "env").read_text().splitlines():
            name, _, value = line.partition("=")
            os.environ[name] = value
        yield os.environ["AWS_ENDPOINT_URL"]
    finally:
        subprocess.run([str(CEPH), "wipe", *home], check=True, timeout=180, capture_output=True)


def _moto(folder: Path) -> Iterator[str]:
    pytest.importorskip("moto.server")
    port = free_port()
    os.environ.update(AWS_ACCESS_KEY_ID="test", AWS_SECRET_ACCESS_KEY="test", AWS_REGION="us-east-1")
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(300):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


class FaultyFront:
    """A server before an HTTP server: 503, resets, cut bodies, stalls, each by a seeded draw.

    Forwards every request to `endpoint`; with `rate` it injects one of `faults` instead of the right answer."""

    def __init__(
        self, endpoint: str, faults: list[str], rate: float = 1.0, seed: int = 0, stall_s: float = 3.0
    ) -> None:
        self.target = urlsplit(endpoint).netloc
        self.faults, self.rate, self.stall_s = faults, rate, stall_s
        self.draw, self.lock = random.Random(seed), threading.Lock()
        self.injected: Counter[str] = Counter()
        self.times: list[tuple[str, float]] = []
        self.closed = False
        front = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                with contextlib.suppress(OSError):
                    super().handle_one_request()

            def log_message(self, *args: object) -> None:
                return

            def answer(self) -> None:
                front.answer(self)

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def choose(self, command: str, path: str) -> str:
        with self.lock:
            fault = self.draw.choice(self.faults) if self.faults and self.draw.random() < self.rate else ""
            self.times.append((fault, time.monotonic()))
            self.injected[fault] += bool(fault)
            return fault

    def answer(self, request: http.server.BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        fault = "reset" if self.closed else self.choose(request.command, request.path)
        if fault in ("503", "429", "403"):
            request.send_response(int(fault))
            request.send_header("Retry-After", "1")
            request.send_header("Content-Length", "0")
            request.end_headers()
            return
        if fault == "reset":
            self._reset(request)
            return
        if fault == "stall before":
            time.sleep(self.stall_s)
            self._reset(request)
            return
        upstream = http.client.HTTPConnection(self.target, timeout=30)
        upstream.putrequest(request.command, request.path, skip_host=True, skip_accept_encoding=True)
        for name, value in request.headers.items():
            # The signature covers the host that the client meant.
            upstream.putheader(name, value)
        upstream.endheaders(body or None)
        response = upstream.getresponse()
        payload = response.read()
        upstream.close()
        self.answered(fault)
        if fault == "lost answer":
            self._reset(request)
            return
        request.send_response(response.status)
        for name, value in response.getheaders():
            if name.lower() not in ("transfer-encoding", "connection", "content-length", "date", "server"):
                request.send_header(name, value)
        length = response.getheader("Content-Length") if request.command == "HEAD" else str(len(payload))
        request.send_header("Content-Length", length or "0")
        request.end_headers()
        half = payload[: len(payload) // 2]
        if fault in ("cut", "stall"):
            request.wfile.write(half)
            request.wfile.flush()
            time.sleep(self.stall_s if fault == "stall" else 0)
            self._reset(request, linger=fault == "stall")
            return
        request.wfile.write(payload)

    def answered(self, fault: str) -> None:
        """Called when the server has answered and the client does not know yet."""

    def _reset(self, request: http.server.BaseHTTPRequestHandler, linger: bool = True) -> None:
        if linger:
            request.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with contextlib.suppress(OSError):
            request.connection.shutdown(socket.SHUT_RDWR)
        request.close_connection = True

    def close(self) -> None:
        """No connection is accepted any more, and those that are open are reset."""
        self.closed = True
        self.server.shutdown()
        self.server.server_close()


class Gate(FaultyFront):
    """A front that can hold one request, before the server has it or before the client hears of it."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(endpoint, [])
        self._wanted: re.Pattern[str] | None = None
        self._after, self._skip = False, 0
        self.held, self._open = threading.Event(), threading.Event()

    def arm(self, pattern: str, *, after: bool, skip: int = 0) -> None:
        """Hold the next PUT but `skip` whose path matches: with `after`, once the server has stored it."""
        self.held.clear()
        self._open.clear()
        self._after, self._skip, self._wanted = after, skip, re.compile(pattern)

    def release(self) -> None:
        """Let go of what is held: a request that was held before the server is lost with its client."""
        self._wanted = None
        self._open.set()

    def choose(self, command: str, path: str) -> str:
        with self.lock:
            wanted = self._wanted
            if wanted is None or command != "PUT" or not wanted.search(path):
                return ""
            if self._skip:
                self._skip -= 1
                return ""
            self._wanted = None
        if self._after:
            return "hold answer"
        self._hold()
        return "reset"

    def _hold(self) -> None:
        self.held.set()
        self._open.wait(60)

    def answered(self, fault: str) -> None:
        if fault == "hold answer":
            self._hold()
