"""kill -9 at any moment and run again: the same bytes, nothing lost or repeated, no process and no file left over."""

from __future__ import annotations

import contextlib
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import job_kit
import psutil
import pyarrow.parquet as pq
import pytest
from s3_server import Gate, S3Server

from mmdata.errors import NotFound
from mmdata.storage import Storage, StorageSettings, open_storage

pytestmark = pytest.mark.chaos

PICTURES = 60
SHARDS = 20
KILLS_LOCAL = 12

S3_MOMENTS = (
    ("upload", r"/out/shards/", False),
    ("upload", r"/out/shards/", True),
    ("record", r"/_build/index/", False),
    ("record", r"/_build/index/", True),
    ("record", r"/_build/records/", False),
    ("record", r"/_build/records/", True),
    ("upload", r"/out/shards/", False),
    ("upload", r"/out/shards/", True),
    ("upload", r"/out/shards/", False),
    ("upload", r"/out/shards/", True),
    ("fold", r"/out/index/part-", False),
    ("fold", r"/out/quarantine.parquet", True),
    ("fold", r"/out/report.html", False),
    ("manifest", r"/out/manifest.json", False),
    ("manifest", r"/out/manifest.json", True),
)
"""What is being sent when the kill strikes, and whether the server has it by then."""


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures that cost some 30 ms each to build, so that a shard is open for a while."""
    folder = tmp_path_factory.mktemp("pictures")
    for number in range(PICTURES):
        job_kit.make_picture(folder / f"p{number:03d}.jpg", number, (420, 300))
    (folder / "broken.jpg").write_bytes(b"no picture")
    return folder


@pytest.fixture(scope="module")
def whole(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The uninterrupted build; its catalog lies beside it."""
    folder = tmp_path_factory.mktemp("whole")
    result = job_kit.mmdata("build", make_recipe(folder, pictures, folder / "out"), "--json")
    assert (result["samples"], result["shards"]) == (PICTURES, SHARDS)
    return folder / "out"


def make_recipe(folder: Path, source: Path, output: Path | str, **sections: Any) -> Path:
    defaults: dict[str, Any] = {
        "output": {"max_samples": PICTURES // SHARDS},
        "transforms": {"image": [{"op": "resize", "mode": "exact"}]},
        "buckets": {"image": {"shapes": [[640, 448]]}},
        "encode": {"image": {"format": "webp", "quality": 80}},
        "storage": {"retries": 3, "backoff": 0.05, "deadline": 20, "timeout": 20},
    }
    return job_kit.make_recipe(folder / "r.yaml", source, output, **(defaults | sections))


def same_dataset(found: dict[str, str], wanted: dict[str, str]) -> bool:
    """Equal to the byte, but for the resolved recipe, which names its own output."""
    assert found.keys() == wanted.keys()
    return {name for name in wanted if found[name] != wanted[name]} <= {"recipe.yaml"}


def keys(folder: Path) -> list[str]:
    return [row["key"] for row in pq.read_table(folder / "index").to_pylist()]


class LocalState:
    """What a frozen build has on disk."""

    def __init__(self, output: Path) -> None:
        build = output / "_build"
        self.committed = len(list(build.glob("records/*.json")))
        self.open = len(list(build.glob("work/.*.tmp")))  # a shard's file appears with its first sample
        self.shards = len(list(output.glob("shards/*.tar")))
        self.folding = (output / "index").is_dir() and any((output / "index").glob("*.parquet"))
        self.manifest = (output / "manifest.json").exists()
        self.unfinished = build.exists()


def building(at_least: int) -> Callable[[LocalState], bool]:
    return lambda state: state.committed >= at_least and state.open > 0


def kill_when(job: job_kit.Job, look: Callable[[], Any], wanted: Callable[[Any], bool]) -> Any:
    """Freeze the job when what `look` sees is `wanted`, look again, and kill it. None when it ended before."""
    while True:
        job_kit.wait_until(lambda: job.ended() or wanted(look()), "the moment to kill")
        if job.ended():
            return None
        job.freeze()
        state = look()
        if wanted(state):
            job.kill_group()
            return state
        job.thaw()


def test_kill_9_and_rerun_local(pictures: Path, whole: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    recipe = make_recipe(tmp_path, pictures, output, catalog=str(whole) + ".catalog")
    moments: list[tuple[str, Callable[[LocalState], bool]]] = [
        ("build", building(1 + round(number * (SHARDS - 4) / KILLS_LOCAL))) for number in range(KILLS_LOCAL)
    ]
    moments += [("fold", lambda s: s.folding), ("fold", lambda s: s.folding), ("clean", lambda s: s.manifest)]
    struck: Counter[str] = Counter()
    for kind, wanted in moments:
        with job_kit.Job("build", recipe, "--workers", 2) as job:
            state = kill_when(job, lambda: LocalState(output), wanted)
        if state is None:
            continue
        struck[kind] += 1
        struck["committed and open"] += kind == "build"
        if kind == "build":
            assert state.committed >= 1 and state.open >= 1 and not state.manifest
    print(dict(struck))
    assert struck["committed and open"] == KILLS_LOCAL
    assert struck["fold"] >= 1
    job_kit.mmdata("build", recipe)
    assert same_dataset(job_kit.tree(output), job_kit.tree(whole))
    assert sorted(keys(output)) == sorted(set(keys(output))) and len(keys(output)) == PICTURES
    job_kit.mmdata("verify", output)


@pytest.fixture
def gate(s3: S3Server) -> Iterator[Gate]:
    made = Gate(s3.endpoint)
    yield made
    made.release()
    made.close()


def wait_for_open_shard(temporary: Path) -> None:
    """A second at most: the other worker may have nothing left to do."""
    with contextlib.suppress(AssertionError):
        job_kit.wait_until(lambda: any(temporary.glob("mmdata-*/.*.tmp")), "an open shard", 1)


def listed(storage: Storage, url: str) -> list[str]:
    try:
        return [entry.url for entry in storage.list(url)]
    except NotFound:
        return []


def download(storage: Storage, url: str, to: Path) -> Path:
    for entry in storage.list(url):
        path = to / entry.url.removeprefix(url + "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(storage.read(entry.url))
    return to


def test_kill_9_and_rerun_s3(pictures: Path, whole: Path, s3: S3Server, gate: Gate, tmp_path: Path) -> None:
    url = f"s3://{s3.bucket}/{tmp_path.name}/out"
    storage = open_storage(StorageSettings())
    recipe = make_recipe(tmp_path, pictures, url, catalog=str(whole) + ".catalog")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    env = {"AWS_ENDPOINT_URL": gate.endpoint, "TMPDIR": str(temporary)}
    struck: Counter[str] = Counter()
    for number, (kind, pattern, after) in enumerate(S3_MOMENTS):
        with job_kit.Job("build", recipe, "--workers", 2, env=env) as job:
            gate.arm(pattern, after=after, skip=2 if number == 0 else 0)
            job_kit.wait_until(lambda job=job: gate.held.is_set() or job.ended(), "the request to hold", 60)
            assert gate.held.is_set(), job.finish()
            if kind in ("upload", "record"):
                wait_for_open_shard(temporary)
            job.freeze()
            committed = sum("/_build/records/" in name for name in listed(storage, url))
            open_shards = len(list(temporary.glob("mmdata-*/.*.tmp")))
            job.kill_group()
            gate.release()
        struck[kind] += 1
        struck["committed and open"] += committed >= 1 and open_shards >= 1
    print(dict(struck))
    result = job_kit.mmdata("build", recipe, "--json", env=env)
    assert (result["samples"], result["shards"]) == (PICTURES, SHARDS)
    assert same_dataset(job_kit.tree(download(storage, url, tmp_path / "copy")), job_kit.tree(whole))
    assert not list(temporary.iterdir())
    assert struck["committed and open"] >= 8  # with the local ones: 20
    assert struck["manifest"] == 2
    job_kit.mmdata("verify", url)


@pytest.mark.parametrize("target", ["local", "s3"])
def test_shard_ranges_on_several_processes_at_once_give_the_same_bytes(
    target: str, pictures: Path, whole: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    output = str(tmp_path / "out")
    if target == "s3":
        output = f"s3://{request.getfixturevalue('s3').bucket}/{tmp_path.name}/out"
    recipe = make_recipe(tmp_path, pictures, output, catalog=str(whole) + ".catalog")
    env = {"TMPDIR": str(tmp_path)}
    jobs = [
        job_kit.Job("build", recipe, "--shard-range", f"{part}/3", "--workers", 1, "--json", env=env)
        for part in range(3)
    ]
    try:
        for job in jobs:
            job.finish()
    finally:
        for job in jobs:
            job.__exit__()
    refused = job_kit.mmdata("verify", output, code=1)
    assert "mmdata commit" in refused.stderr
    result = job_kit.mmdata("commit", recipe, "--json", env=env)
    assert (result["samples"], result["shards"]) == (PICTURES, SHARDS)
    folder = Path(output) if target == "local" else download(open_storage(), output, tmp_path / "copy")
    assert same_dataset(job_kit.tree(folder), job_kit.tree(whole))


def test_commit_names_the_shards_that_are_missing(pictures: Path, whole: Path, tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path, pictures, tmp_path / "out", catalog=str(whole) + ".catalog")
    job_kit.mmdata("build", recipe, "--shard-range", "1/2")
    failed = job_kit.mmdata("commit", recipe, code=1)
    assert f"{SHARDS // 2} of {SHARDS} shards are not built" in failed.stderr
    assert not (tmp_path / "out/manifest.json").exists()


def test_a_worker_killed_in_mid_shard_costs_nothing(pictures: Path, whole: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    recipe = make_recipe(tmp_path, pictures, output, catalog=str(whole) + ".catalog")
    killed = set()
    with job_kit.Job("build", recipe, "--workers", 2) as job:
        for shards in (1, 4, 7, 10):
            state = None
            while state is None:
                job_kit.wait_until(lambda n=shards: job.ended() or building(n)(LocalState(output)), "an open shard")
                assert not job.ended()
                job.freeze()
                writers = [int(path.name.split("-")[-2]) for path in output.glob("_build/work/.*.tmp")]
                fresh = [pid for pid in writers if pid not in killed and psutil.pid_exists(pid)]
                if fresh:
                    state = fresh[0]
                    os.kill(state, signal.SIGKILL)
                    killed.add(state)
                job.thaw()
        job.finish()
    assert len(killed) == 4
    assert same_dataset(job_kit.tree(output), job_kit.tree(whole))


def test_records_of_another_plan_are_not_trusted(pictures: Path, whole: Path, tmp_path: Path) -> None:
    """A, killed; B over it, killed; A again: B had overwritten shards that A's records vouched for."""
    output = tmp_path / "out"

    def recipe(quality: int) -> Path:
        encode = {"image": {"format": "webp", "quality": quality}}
        return make_recipe(tmp_path, pictures, output, catalog=str(whole) + ".catalog", encode=encode)

    def plans() -> set[str]:
        return {path.name.partition("-")[0] for path in output.glob("_build/records/*.json")}

    with job_kit.Job("build", recipe(80), "--workers", 1) as job:
        job_kit.wait_until(lambda: job.ended() or LocalState(output).committed >= 3, "three shards")
        job.kill_group()
    first = plans()
    with job_kit.Job("build", recipe(20), "--workers", 1) as job:
        job_kit.wait_until(lambda: job.ended() or (LocalState(output).shards and plans() != first), "a shard of B")
        job.kill_group()
    assert len(first) == 1 and not plans() & first
    job_kit.mmdata("build", recipe(80))
    assert same_dataset(job_kit.tree(output), job_kit.tree(whole))
