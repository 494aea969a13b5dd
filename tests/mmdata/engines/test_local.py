"""The local engine: every number once, whatever dies; errors end the run within seconds; no process is left."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from mmdata.engines import worker
from mmdata.engines.local import run
from mmdata.errors import ErrorLimitExceeded, WorkerError

HERE = Path(__file__)
sys.path.insert(0, str(HERE.parent))  # workers get this process's import path


def results_of(task: str, numbers: Any, *, workers: int = 2, setup: object = None, **options: Any) -> dict[int, Any]:
    results: dict[int, Any] = {}

    def on_done(number: int, result: Any) -> None:
        assert number not in results, "handled twice"
        results[number] = result

    run(f"engine_tasks:{task}", setup, numbers, workers=workers, on_done=on_done, **options)
    return results


def living(pids: list[int]) -> list[int]:
    return [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]


def wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        if condition():
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize("workers", [1, 3])
def test_every_number_is_run_once(workers: int) -> None:
    assert results_of("square", range(200), workers=workers) == {n: n * n for n in range(200)}


def test_no_numbers_no_workers() -> None:
    assert results_of("square", []) == {}


def test_work_is_done_in_other_processes_and_shared() -> None:
    pids = set(results_of("pid", range(12), workers=3).values())
    assert len(pids) == 3
    assert os.getpid() not in pids
    assert not living(list(pids))
    assert os.getpid() not in results_of("pid", [1], workers=1).values()


def test_large_results_come_through() -> None:
    assert results_of("large", range(6)) == {n: bytes([n]) * 3_000_000 for n in range(6)}


def test_numbers_are_pulled_one_a_worker() -> None:
    pulled = []

    def numbers() -> Iterator[int]:
        for number in range(10):
            pulled.append(number)
            yield number

    ahead = []
    done = []

    def on_done(number: int, result: Any) -> None:
        done.append(number)
        ahead.append(len(pulled) - len(done))

    run("engine_tasks:square", None, numbers(), workers=2, on_done=on_done)
    assert max(ahead) <= 2


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM, 0])
def test_the_number_of_a_killed_worker_is_run_again(tmp_path: Path, how: int) -> None:
    assert results_of("die", range(10), setup=(tmp_path, how, 2)) == {n: f"done {n}" for n in range(10)}
    assert len(list(tmp_path.iterdir())) == 2


def test_a_number_that_kills_three_workers_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match=r"number 3 of engine_tasks:die.*SIGKILL.*3 times"):
        results_of("die", range(10), setup=(tmp_path, signal.SIGKILL, 99))
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize(
    ("how", "error", "message"),
    [
        ("value", WorkerError, r"(?s)number 2.*Traceback.*in fail.*ValueError: the second number is bad"),
        ("limit", ErrorLimitExceeded, "11 of 20 samples are bad"),
        ("awkward", WorkerError, r"(?s)Traceback.*Awkward: s3://bucket 503"),
        ("exit", WorkerError, r"(?s)Traceback.*SystemExit: 5"),
    ],
)
def test_an_error_stops_the_others_within_seconds(how: str, error: type[Exception], message: str) -> None:
    children = psutil.Process().children(recursive=True)
    started = time.monotonic()
    with pytest.raises(error, match=message) as caught:
        results_of("fail", range(4), workers=4, setup=how)
    assert time.monotonic() - started < 4
    assert "in fail" in str(caught.value) + "".join(getattr(caught.value, "__notes__", []))
    assert len(psutil.Process().children(recursive=True)) <= max(1, len(children))


def test_a_task_that_cannot_be_imported_is_an_error_at_once() -> None:
    with pytest.raises(WorkerError, match=r"(?s)no_such.*Traceback.*AttributeError"):
        results_of("no_such", range(4))


def test_an_error_in_on_done_stops_the_run() -> None:
    def on_done(number: int, result: int) -> None:
        raise KeyError("parent")

    started = time.monotonic()
    with pytest.raises(KeyError, match="parent"):
        run("engine_tasks:square", None, range(4), workers=2, on_done=on_done)
    assert time.monotonic() - started < 3


def test_stopped_workers_may_tidy_up(tmp_path: Path) -> None:
    class Enough(Exception):
        pass

    def on_progress(oldest: tuple[int, float] | None) -> None:
        assert oldest is not None
        assert oldest[0] in (0, 1)
        assert oldest[1] > 0.5
        assert len(list(tmp_path.iterdir())) == 2
        raise Enough

    with pytest.raises(Enough):
        results_of("tidy", range(2), setup=tmp_path, on_progress=on_progress)
    assert not list(tmp_path.iterdir())


def test_workers_may_use_sandboxes() -> None:
    results = results_of("sandboxed", range(4))
    assert {n: values[1:] for n, values in results.items()} == {
        n: [n * n, (n + 1) ** 2, (n + 2) ** 2] for n in range(4)
    }


def start_hanging(folder: Path, workers: int = 3) -> tuple[subprocess.Popen[str], list[int]]:
    """A process whose workers hang, and the pids of all processes below it."""
    program = f"""
        import pathlib, sys; sys.path.insert(0, {str(HERE.parent)!r})
        from mmdata.engines.local import run
        run("engine_tasks:hang", pathlib.Path({str(folder)!r}), range(9), workers={workers}, on_done=print)
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    main = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert wait_until(lambda: len(list(folder.iterdir())) == workers, 20)
    time.sleep(0.1)
    return main, [child.pid for child in psutil.Process(main.pid).children(recursive=True)]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_workers_end_with_the_main_process_even_inside_native_code(tmp_path: Path, how: signal.Signals) -> None:
    main, below = start_hanging(tmp_path)
    assert len(living(below)) >= 4  # three workers and the server
    main.send_signal(how)
    output, _ = main.communicate(timeout=20)
    assert main.returncode == -how
    assert ("KeyboardInterrupt" in output) == (how == signal.SIGINT)
    assert wait_until(lambda: not living(below), 10), living(below)


def test_a_killed_fork_server_costs_nothing() -> None:
    assert results_of("kill_server", range(5)) == dict.fromkeys(range(5))
    assert results_of("square", range(3)) == {0: 0, 1: 1, 2: 4}


def test_a_script_without_a_main_guard_runs_once(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(HERE.parent)!r})\n"
        "from mmdata.engines.local import run\n"
        "print('start', flush=True)\n"
        "run('engine_tasks:square', None, [3], workers=1, on_done=print)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=20)
    assert (done.stdout, done.stderr, done.returncode) == ("start\n3 9\n", "", 0)


def test_shared_memory_of_the_system_is_not_used() -> None:
    before = set(os.listdir("/dev/shm"))
    results_of("sandboxed", range(2))
    assert set(os.listdir("/dev/shm")) <= before
    assert not multiprocessing.active_children()


def test_a_payload_reaches_the_task_in_place_of_its_number_even_after_a_kill(tmp_path: Path) -> None:
    payloads = {number: {"name": f"item {number}", "marker": str(tmp_path / f"{number}")} for number in range(6)}
    results = results_of("name_of_payload", range(6), payload=payloads.__getitem__)
    assert results == {number: f"item {number}" for number in range(6)}


def test_a_stop_that_comes_as_the_work_ends_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)  # the worker sets its own
    install, before, sent = signal.signal, signal.getsignal(signal.SIGTERM), []

    def late(number: int, handler: Any) -> Any:
        if handler is signal.SIG_DFL and not sent:
            sent.append(number)
            os.kill(os.getpid(), number)
        return install(number, handler)

    monkeypatch.setattr(worker, "_loop", lambda *_: None)
    monkeypatch.setattr(signal, "signal", late)
    try:
        with pytest.raises(SystemExit) as ended:
            worker.main(worker.Setup("", b"", ()), [-1, -1])
    finally:
        install(signal.SIGTERM, before)
    assert sent and ended.value.code == 128 + signal.SIGTERM


def test_a_stop_that_a_destructor_swallows_comes_again() -> None:
    script = """
        import os, signal, sys, time
        from mmdata.engines import worker
        class Closing:
            def __del__(self):
                os.kill(os.getpid(), signal.SIGTERM)
        def loop(*_):
            thing = Closing()
            del thing
            try:
                time.sleep(30)
            finally:
                print("tidied", flush=True)
        worker._loop = loop
        worker.main(worker.Setup("", b"", ()), [-1, -1])
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=25)
    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGTERM, "tidied\n", "")
