"""The sandbox: every way to die costs one item, in order, with the right class; everything else comes through."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from mmdata.errors import ConfigError, WorkerError
from mmdata.media.sandbox import Failure, Limits, Sandbox, Sandboxes, share

HERE = Path(__file__)
sys.path.insert(0, str(HERE.parent))  # children get this process's import path
import sandbox_handlers  # noqa: E402

LIMITS = Limits(cpu_s=0.5, wall_s=60, memory_bytes=256 * 1024**2)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox("sandbox_handlers:act", {"answer": 42}, limits=LIMITS) as box:
        yield box


@pytest.mark.parametrize(
    ("action", "error_class", "message"),
    [
        ("python loop", "DecodeTimeout", "0.5 s of CPU time"),
        ("native loop", "DecodeTimeout", "0.5 s of CPU time"),
        ("segfault", "DecoderCrash", "SIGSEGV"),
        ("abort", "DecoderCrash", r"SIGABRT.*in act|SIGABRT.*in <lambda>|SIGABRT.*sandbox_handlers"),
        ("exit", "DecoderCrash", "exited with status 3"),
        ("sys.exit", "OperatorError", "SystemExit: 4"),
        ("grow", "MemoryLimit", "MemoryError"),
        ("numpy", "MemoryLimit", "Unable to allocate 64.0 GiB"),
        ("native out of memory", "MemoryLimit", "bad_alloc"),
        ("media error", "TruncatedMedia", "ends at byte 7"),
        ("value error", "OperatorError", r"ValueError: seven \(throw, sandbox_handlers.py:\d+\)"),
        ("unpicklable", "OperatorError", "made of stone.*pickling the result"),
        ("huge", "MemoryLimit", "209,715,"),
        (sandbox_handlers.UnreadableItem(), "OperatorError", "cannot be read back.*reading the item"),
    ],
)
def test_a_bad_item_costs_one_item(sandbox: Sandbox, action: Any, error_class: str, message: str) -> None:
    items = ["first", 1, 2, action, 4, b"last" * 50_000]
    results = list(sandbox.map(items))
    assert results[:3] == items[:3]
    assert results[4:] == items[4:]
    failure = results[3]
    assert isinstance(failure, Failure)
    assert failure.error_class == error_class
    assert re.search(message, failure.message), failure.message


@pytest.mark.parametrize("action", ["native sleep", "python sleep"])
def test_an_item_that_uses_no_processor_time_ends_at_the_wall_limit(action: str) -> None:
    with Sandbox("sandbox_handlers:act", limits=Limits(wall_s=0.5)) as box:
        assert list(box.map([1, action, 2])) == [1, Failure("DecodeTimeout", "took more than 0.5 s"), 2]


def test_two_thousand_items_come_through_in_order(sandbox: Sandbox) -> None:
    items: list[Any] = [i if i % 7 else "segfault" if i % 700 == 0 else "x" * i for i in range(2000)]
    results = list(sandbox.map(items))
    assert len(results) == 2000
    crashed = [i for i, result in enumerate(results) if isinstance(result, Failure)]
    assert crashed == [0, 700, 1400]
    assert all(results[i] == items[i] for i in range(2000) if i not in crashed)


def test_large_items_and_results(sandbox: Sandbox) -> None:
    items = [bytes([i]) * (i * 1_234_567) for i in (0, 1, 2, 5, 7, 17, 3)]
    assert list(sandbox.map(items)) == items


def test_output_of_decoders_disturbs_nothing(sandbox: Sandbox, capfd: pytest.CaptureFixture[str]) -> None:
    assert list(sandbox.map(["noise", "print", "noise", 5])) == ["quiet", "printed", "quiet", 5]
    assert capfd.readouterr() == ("", "")


def test_the_setup_and_the_environment_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESSERA_TEST", "here")
    with Sandbox("sandbox_handlers:act", {"answer": 42}) as box:
        assert list(box.map(["setup", "environment"])) == [{"answer": 42}, "here"]


def test_one_child_serves_many_items_and_maps(sandbox: Sandbox) -> None:
    assert len(set(sandbox.map(["pid"] * 50)) | set(sandbox.map(["pid"] * 50))) == 1


def test_a_child_killed_by_another_hand_loses_nothing(tmp_path: Path) -> None:
    names = [tmp_path / ("once" if i == 60 else f"plain{i}") for i in range(100)]
    with Sandbox("sandbox_handlers:die_once") as box:
        assert list(box.map(names)) == [path.name for path in names]


def test_memory_that_earlier_items_leaked_is_not_held_against_an_item() -> None:
    with Sandbox("sandbox_handlers:act", limits=LIMITS) as box:
        assert list(box.map(["leak"] * 8)) == [100 * 1024**2] * 8


def test_an_error_that_is_not_about_the_sample_is_raised(sandbox: Sandbox) -> None:
    with pytest.raises(ConfigError, match="no such font"):
        list(sandbox.map([1, "config error", 2]))
    assert list(sandbox.map([1])) == [1]


@pytest.mark.parametrize("handler", ["no_such_module:function", "sandbox_handlers:no_such_function"])
def test_a_handler_that_cannot_be_imported_is_an_error_at_once(handler: str) -> None:
    started = time.monotonic()
    with Sandbox(handler) as box, pytest.raises(WorkerError, match=r"(?s)Traceback.*no_such"):
        list(box.map([1, 2, 3]))
    assert time.monotonic() - started < 10


def test_items_are_pulled_lazily_and_bounded_in_bytes() -> None:
    pulled = 0

    def items() -> Iterator[bytes]:
        nonlocal pulled
        for _ in range(100):
            pulled += 1
            yield bytes(4_000_000)

    with Sandbox("sandbox_handlers:act") as box:
        results = box.map(items())
        assert pulled == 0
        next(results)
        time.sleep(0.2)
        assert pulled <= 6


def test_closing_early_is_prompt() -> None:
    with Sandbox("sandbox_handlers:act", limits=Limits(60, 60)) as box:
        results = box.map(iter(["nap", "native sleep", 3]))
        assert next(results) == "nap"
        started = time.monotonic()
        results.close()
        assert time.monotonic() - started < 1
        assert list(box.map([1])) == [1]


def test_one_map_at_a_time(sandbox: Sandbox) -> None:
    first = sandbox.map([1, 2])
    next(first)
    with pytest.raises(RuntimeError, match="another map"):
        next(sandbox.map([3]))
    assert list(first) == [2]


def test_an_error_of_the_source_is_raised_as_it_is(sandbox: Sandbox) -> None:
    with pytest.raises(KeyError, match="broken"):
        list(sandbox.map(sandbox_handlers.throw(KeyError("broken")) if i == 3 else i for i in range(9)))
    with pytest.raises(TypeError, match="made of stone"):
        list(sandbox.map([1, sandbox_handlers.Unpicklable()]))


def _all_end(processes: list[psutil.Process], timeout_s: float) -> bool:
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        if not any(psutil.pid_exists(p.pid) and p.status() != psutil.STATUS_ZOMBIE for p in processes):
            return True
        time.sleep(0.02)
    return False


def test_the_child_dies_with_its_parent_even_inside_native_code(tmp_path: Path) -> None:
    """kill -9 of the parent while the child holds the GIL in an endless native loop."""
    program = f"""
        import sys; sys.path.insert(0, {str(HERE.parent)!r})
        from mmdata.media.sandbox import Limits, Sandbox
        box = Sandbox("sandbox_handlers:act", limits=Limits(60, 60))
        print(*box.map(["pid"]), flush=True)
        results = box.map(["native loop"])
        next(results)
    """
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    server = child.parent()
    assert server is not None
    time.sleep(0.3)
    assert child.status() == psutil.STATUS_RUNNING
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert _all_end([child, server], timeout_s=5)


def test_a_job_that_ends_leaves_no_process_behind(tmp_path: Path) -> None:
    program = f"""
        import sys; sys.path.insert(0, {str(HERE.parent)!r})
        from mmdata.media.sandbox import Sandbox
        box = Sandbox("sandbox_handlers:act")
        print(*box.map(["pid"]), flush=True)
        results = box.map(["nap", "native sleep", 1])
        next(results)
    """
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0
    assert done.stderr == ""
    assert time.monotonic() - started < 10
    assert not psutil.pid_exists(int(done.stdout))


def test_nothing_leaks_over_many_children(sandbox: Sandbox) -> None:
    list(sandbox.map([1]))
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    children = len(psutil.Process().children(recursive=True))  # other tests' servers and sandboxes among them
    list(sandbox.map(["segfault", 1] * 10))
    assert len(os.listdir("/proc/self/fd")) <= before
    assert len(psutil.Process().children(recursive=True)) <= children + 1


def test_sandboxes_that_take_turns_give_the_results_in_order() -> None:
    boxes = Sandboxes("sandbox_handlers:act", None, limits=LIMITS, count=3)
    try:
        for count in (0, 1, 2, 3, 4, 500):
            items: list[Any] = ["nap" if number % 50 == 1 else number for number in range(count)]
            assert list(boxes.map(items)) == items
        pids = list(boxes.map(["pid"] * 6))
        assert pids[:3] == pids[3:] and len(set(pids)) == 3
        results = list(boxes.map([0, 1, "segfault", 3, 4, "value error", 6]))
        assert [isinstance(each, Failure) for each in results] == [False, False, True, False, False, True, False]
    finally:
        boxes.close()


@pytest.mark.parametrize(
    ("workers", "tasks", "count"),
    [(1, 1, 1), (2, 1, 2), (2, 3, 2), (2, 4, 1), (8, 1, 8), (8, 5, 4), (8, 0, 8), (8, 16, 1)],
)
def test_few_tasks_share_the_sandboxes_of_all_workers(workers: int, tasks: int, count: int) -> None:
    assert share(workers, tasks) == count
