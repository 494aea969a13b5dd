"""What the benchmarks share: interleaved rounds, a table, the machine's facts, and the memory of a process tree."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import psutil

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}


def machine() -> dict[str, Any]:
    """What a figure needs beside it to mean something."""
    cpu = platform.processor() or "unknown"
    if os.path.exists("/proc/cpuinfo"):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), cpu)
    packages = {}
    for name in ("pillow", "pyarrow", "numpy", "xxhash"):
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            packages[name] = "absent"
    return {
        "date": time.strftime("%Y-%m-%d"),
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "load": round(os.getloadavg()[0], 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        **packages,
    }


class Cost(NamedTuple):
    """What a run took: seconds on the clock, and seconds of processor time of all its processes."""

    wall: float
    cpu: float


def rounds(cases: Mapping[str, Callable[[], Cost]], count: int) -> dict[str, list[Cost]]:
    """What each case costs, `count` times each, one after the other in turn so that all meet the same machine."""
    costs: dict[str, list[Cost]] = {name: [] for name in cases}
    for number in range(count):
        for name, case in cases.items():
            cost = case()
            costs[name].append(cost)
            text = f"round {number + 1} of {count}: {name}: {cost.wall:.2f} s, processors {cost.cpu:.2f} s"
            print(text, file=sys.stderr, flush=True)
    return costs


def timed(call: Callable[[], Any]) -> Cost:
    """What `call` costs. Child processes count when they have ended and were waited for."""
    _adopt_orphans()
    start, before = time.perf_counter(), os.times()
    call()
    wall = time.perf_counter() - start
    until = time.monotonic() + 10
    with contextlib.suppress(ChildProcessError):  # none is left
        while time.monotonic() < until:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(0.02)
    after = os.times()
    return Cost(wall, sum(after[:4]) - sum(before[:4]))


def _adopt_orphans() -> None:
    """Processes whose parent has ended become ours (PR_SET_CHILD_SUBREAPER), so that their time is counted."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)


def ratio(costs: Mapping[str, Sequence[Cost]], ours: str, other: str, kind: str = "wall") -> float:
    """Median over the rounds of how fast `ours` is, `other` being 1."""
    pairs = zip(costs[ours], costs[other], strict=True)
    return round(median(getattr(theirs, kind) / getattr(own, kind) for own, theirs in pairs), 3)


def middle(costs: Sequence[Cost]) -> float:
    """Median of the seconds on the clock."""
    return median(cost.wall for cost in costs)


def mmdata(*arguments: str) -> dict[str, Any]:
    """Run the command and give its JSON result; a failure ends the benchmark with its message."""
    done = subprocess.run(
        [sys.executable, "-m", "mmdata", *arguments, "--json"], capture_output=True, text=True, env=ENVIRONMENT
    )
    if done.returncode:
        raise SystemExit(f"mmdata {' '.join(arguments)} failed:\n{done.stderr}{done.stdout}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def write_recipe(path: Path, recipe: Mapping[str, Any]) -> str:
    """Write a recipe (JSON is YAML) and give its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(recipe))
    return str(path)


def remove(*paths: Path) -> None:
    """Remove folders, present or not."""
    for path in paths:
        shutil.rmtree(path, ignore_errors=True)


def settle() -> None:
    """Write back what earlier cases left in the page cache, so that the next does not pay for it."""
    os.sync()


def command_memory(command: Sequence[str], every_s: float = 0.25) -> tuple[int, float]:
    """Peak of the summed PSS (bytes) of the command and everything it starts, and its seconds."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=ENVIRONMENT)
    peak = 0
    while process.poll() is None:
        peak = max(peak, tree_pss(process.pid))
        time.sleep(every_s)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed with exit code {process.returncode}")
    return peak, time.perf_counter() - start


def tree_pss(pid: int) -> int:
    """Summed PSS in bytes of a process and all its descendants; shared pages count once."""
    total = 0
    try:
        processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    for each in processes:
        try:
            with open(f"/proc/{each.pid}/smaps_rollup") as rollup:
                total += next(int(line.split()[1]) * 1024 for line in rollup if line.startswith("Pss:"))
        except (OSError, StopIteration):
            continue  # it has ended
    return total


class Ended(NamedTuple):
    """An ended command: its standard output, processor seconds, and peak resident bytes of its largest process."""

    output: str
    cpu: float
    peak_rss: int


def with_peak_rss(command: Sequence[str]) -> Ended:
    """Run a command of one process and say what it took."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed with exit code {process.returncode}")
    unit = 1 if sys.platform == "darwin" else 1024
    return Ended(output, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * unit)


def parser(description: str | None, work: str) -> argparse.ArgumentParser:
    """A command line with the options that all benchmarks have."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--work", type=Path, default=Path(work), help=f"folder for temporary files, default {work}")
    made.add_argument("--json", action="store_true", help="print the result as JSON")
    return made


def report(rows: Sequence[Mapping[str, Any]], as_json: bool) -> None:
    """Print machine facts and rows: a table of what was measured, or JSON."""
    facts = machine()
    if as_json:
        print(json.dumps({"machine": facts, "results": list(rows)}, indent=1))
        return
    print(", ".join(f"{name} {value}" for name, value in facts.items()))
    columns = list(dict.fromkeys(name for row in rows for name in row))
    cells = [columns, *([str(row.get(name, "")) for name in columns] for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(columns))]
    for line in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
