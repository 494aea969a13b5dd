"""The command line as a person or a script meets it: exit codes, streams, messages, dry runs, interruption."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from PIL import Image

from mmdata.cli import run

SECONDS = 120


def mmdata(*arguments: object, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command; its streams as text."""
    return subprocess.run(
        [sys.executable, "-m", "mmdata", *map(str, arguments)],
        cwd=cwd,
        env=os.environ | (env or {}),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        stdin=subprocess.DEVNULL,
    )


def make_project(folder: Path, pictures: int = 6, extra: str = "") -> Path:
    """A folder with pictures of two shapes, captions, one broken file, and a recipe for it."""
    media = folder / "media"
    media.mkdir(parents=True)
    for number in range(pictures):
        size = (96, 64) if number % 2 else (64, 96)
        Image.new("RGB", size, (40 * number % 255, 90, 10)).save(media / f"p{number}.jpg")
        (media / f"p{number}.txt").write_text(f"picture {number}", encoding="utf-8")
    (media / "bad.png").write_bytes(b"")
    (folder / "recipe.yaml").write_text(
        f"""
name: tiny
source: [{{type: folder, path: media}}]
filters: [{{name: not tall, keep: "height <= 80 or key != 'p0'"}}]
buckets: {{image: {{count: 2, pixels: 64*64, multiple_of: 16}}}}
transforms: {{image: [{{op: resize}}]}}
splits: {{val: 0.3}}
output: {{path: out, max_samples: 2}}
limits: {{max_bad: 2}}
workers: 2
{extra}""",
        encoding="utf-8",
    )
    return folder


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose dataset is built."""
    folder = make_project(tmp_path_factory.mktemp("built"))
    done = mmdata("build", "recipe.yaml", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


def snapshot(folder: Path) -> dict[str, int]:
    """Every file with its modification time."""
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


# --- help, version, usage -----------------------------------------------------------------------------------------


def test_help_is_quick_and_loads_nothing_heavy(tmp_path: Path) -> None:
    probe = (
        "import sys, mmdata.cli\nsys.argv = ['mmdata', '--help']\nimport atexit, os\n"
        "heavy = ('numpy', 'pyarrow', 'pydantic', 'PIL', 'av', 'matplotlib', 'rich.progress')\n"
        "os._exit = lambda code: print('LOADED', [name for name in heavy if name in sys.modules], code)\n"
        "mmdata.cli.main()"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, timeout=SECONDS, cwd=tmp_path, check=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert "LOADED [] 0" in done.stdout
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.5


def test_version(tmp_path: Path) -> None:
    import mmdata as package

    done = mmdata("--version", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"mmdata {package.__version__}\n")


@pytest.mark.parametrize(
    ("arguments", "near"),
    [
        (["buidl", "recipe.yaml"], "build"),
        (["scan", "recipe.yaml", "--dry-rum"], "--dry-run"),
        (["build", "recipe.yaml", "--shard-rang", "0/2"], "--shard-range"),
        (["inspect", "out", "--explian", "p1"], "--explain"),
    ],
)
def test_an_unknown_word_is_usage_and_names_the_near_one(
    arguments: list[str], near: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert near in shown.err
    assert "Traceback" not in shown.err


@pytest.mark.parametrize("command", ["scan", "build", "commit", "verify", "inspect", "init"])
def test_every_command_knows_json_and_what_writes_knows_dry_run(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([command, "--help"]) == 0
    text = capsys.readouterr().out
    assert "--json" in text
    assert ("--dry-run" in text) == (command in ("scan", "build", "commit", "init"))
    assert ("--set" in text) == (command in ("scan", "build", "commit"))


# --- messages and exit codes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["build", "missing.yaml"], 2, r"missing\.yaml: there is no such file"),
        (["build", "recipe.yml"], 2, r"did you mean 'recipe\.yaml'"),
        (["build", "recipe.yaml", "--set", "outptu.path=x"], 2, r"outptu.*did you mean 'output'"),
        (["build", "recipe.yaml", "--set", "output.max_samples"], 2, r"KEY=VALUE"),
        (["build", "recipe.yaml", "--shard-range", "2/2"], 2, r"I/N"),
        (["build", "recipe.yaml", "--set", "filters=['widht > 3']"], 2, r"did you mean 'width'"),
        (["scan", "recipe.yaml", "--set", "source.0.path=medai"], 2, r"no folder .*medai"),
        (["scan", "recipe.yaml", "--set", "source.0.include=['**/*.tif']"], 2, r"no media file that matches"),
        (["verify", "nowhere"], 1, r"nowhere: there is no such file or folder"),
        (["verify", "."], 1, r"did you mean '.*out'"),
        (["verify", "out.catalog"], 2, r"this is a catalog, not a dataset; did you mean 'out'"),
        (["inspect", "recipe.yaml"], 1, r"if it is a recipe"),
        (["inspect", "out/manifest.json"], 1, r"part of out; did you mean that"),
        (["inspect", "out", "--explain", "p9"], 1, r"holds no sample 'p9'"),
        (["inspect", "out", "--sample", "1"], 1, r"did you mean 'p1'"),
        (["inspect", "out", "--sample", "p1", "--bad"], 2, r"one at a time"),
        (["init", "nowhere", "--recipe", "new.yaml"], 2, r"no folder nowhere"),
        (["init", "media"], 2, r"recipe\.yaml: already there.*--force"),
    ],
)
def test_a_mistake_is_one_message_with_the_mend(
    arguments: list[str],
    code: int,
    said: str,
    built: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(built)
    assert run(arguments) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert re.search(said, shown.err), shown.err
    assert shown.err.startswith("mmdata: ") and shown.err.count("\n") == 1
    assert "Traceback" not in shown.err


def test_a_glob_that_matches_nothing_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text("source: [{type: webdataset, path: 'x-*.tar'}]\noutput: {path: out}\n")
    done = mmdata("scan", "r.yaml", cwd=tmp_path)
    assert done.returncode == 1
    assert re.search(r"nothing matches .*x-\*\.tar", done.stderr)
    assert not (tmp_path / "out.catalog").exists()


def test_too_many_bad_samples_is_exit_code_3_and_names_how_to_see_them(tmp_path: Path) -> None:
    folder = make_project(tmp_path / "p")
    done = mmdata("build", "recipe.yaml", "--set", "limits.max_bad=0", cwd=folder)
    assert (done.returncode, done.stdout) == (3, "")
    assert "1 EmptyMedia" in done.stderr and "--bad" in done.stderr
    again = mmdata("build", "recipe.yaml", cwd=folder)
    assert again.returncode == 0, again.stderr


def test_verify_fails_on_damage(tmp_path: Path) -> None:
    folder = make_project(tmp_path / "p")
    assert mmdata("build", "recipe.yaml", cwd=folder).returncode == 0
    shard = next((folder / "out" / "shards").glob("*.tar"))
    data = bytearray(shard.read_bytes())
    data[600] ^= 1
    shard.write_bytes(data)
    done = mmdata("verify", "out", "--json", cwd=folder)
    assert done.returncode == 1
    assert json.loads(done.stdout)["ok"] is False
    assert json.loads(done.stdout)["problems"][0]["file"] == f"shards/{shard.name}"


def test_a_damaged_catalog_is_named_and_a_scan_mends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(make_project(tmp_path / "p"))
    assert run(["scan", "recipe.yaml"]) == 0
    (part,) = Path("out.catalog").glob("part-*.parquet")
    for damage in (b"PAR1 no more", part.read_bytes()[:-40] + b"x" * 40):
        part.write_bytes(damage)
        capsys.readouterr()
        assert run(["build", "recipe.yaml"]) == 1
        assert re.search(r"part-.*\.parquet: damaged .*scan again", capsys.readouterr().err)
        assert run(["scan", "recipe.yaml", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["measured"] == 7
    for head in ("[]", "{", '{"version": 1, "parts": [{"rows": 3}]}', '{"version": 99}'):
        Path("out.catalog/_catalog.json").write_text(head)
        assert run(["inspect", "out.catalog"]) == 1
        assert "scan again" in capsys.readouterr().err
    assert run(["scan", "recipe.yaml"]) == 0
    assert run(["build", "recipe.yaml"]) == 0


def defect(folder: Path) -> Path:
    """A folder for PYTHONPATH that makes `scan.preview` raise what no user should see."""
    (folder / "sitecustomize.py").write_text(
        "import mmdata.scan\ndef broken(recipe):\n    return {}['no such key']\nmmdata.scan.preview = broken\n"
    )
    return folder


def test_a_defect_is_one_line_and_a_traceback_only_on_request(tmp_path: Path) -> None:
    folder = make_project(tmp_path / "p")
    env = {"PYTHONPATH": os.pathsep.join([str(defect(tmp_path)), os.getcwd()])}
    done = mmdata("scan", "recipe.yaml", "--dry-run", cwd=folder, env=env)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1 and "KeyError" in done.stderr and "MMDATA_DEBUG" in done.stderr
    for options, more in ((("--debug",), {}), ((), {"MMDATA_DEBUG": "1"})):
        done = mmdata(*options, "scan", "recipe.yaml", "--dry-run", cwd=folder, env=env | more)
        assert done.returncode == 1
        assert "Traceback" in done.stderr and "in broken" in done.stderr


def test_a_full_disk_is_one_line(built: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "mmdata", "inspect", "out"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=built,
            timeout=SECONDS,
        )
    assert done.returncode == 1
    assert done.stderr == "mmdata: cannot write the result to standard output: No space left on device\n"


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    folder = make_project(tmp_path / "p")
    (folder / "file").write_text("in the way")
    done = mmdata("build", "recipe.yaml", "--set", "output.path=file/out", "--set", "catalog=cat", cwd=folder)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1 and "file" in done.stderr and "Traceback" not in done.stderr


# --- results ------------------------------------------------------------------------------------------------------


def test_results_are_json_on_request_and_logs_stay_on_standard_error(tmp_path: Path) -> None:
    folder = make_project(tmp_path / "p")
    scanned = json.loads(mmdata("scan", "recipe.yaml", "--json", cwd=folder).stdout)
    assert scanned["status"] == {"EmptyMedia": 1, "ok": 6}
    assert scanned["measured"] == 7
    done = mmdata("build", "recipe.yaml", "--json", "--set", "scan.statistics=[brightness]", cwd=folder)
    assert "scanned with other settings: scanning again" in done.stderr
    result = json.loads(done.stdout)
    assert (result["read"], result["samples"]) == (7, 5)
    assert result["dropped"] == {"scan/EmptyMedia": 1, "filter/not tall": 1}
    verified = json.loads(mmdata("verify", "out", "--json", "--decode", cwd=folder).stdout)
    assert verified["ok"] is True and verified["samples"] == 5
    shown = json.loads(mmdata("inspect", "out", "--json", cwd=folder).stdout)
    assert sum(bucket["samples"] for bucket in shown["buckets"]) == 5
    assert shown["schema"]["key"] == "string"


def test_a_second_build_says_that_nothing_was_done(built: Path) -> None:
    before = snapshot(built)
    done = mmdata("build", "recipe.yaml", cwd=built)
    assert done.returncode == 0
    assert "nothing was done" in done.stdout
    assert snapshot(built) == before


def test_dry_runs_write_nothing(tmp_path: Path) -> None:
    folder = make_project(tmp_path / "p")
    before = snapshot(folder)
    for arguments in (["scan", "recipe.yaml"], ["build", "recipe.yaml"], ["init", "media", "--recipe", "new.yaml"]):
        done = mmdata(*arguments, "--dry-run", cwd=folder)
        assert done.returncode == 0, done.stderr
    assert snapshot(folder) == before
    assert json.loads(mmdata("scan", "recipe.yaml", "--dry-run", "--json", cwd=folder).stdout)["sources"] == [
        {"source": f"folder:{folder / 'media'}", "samples": 7, "partitions": 1}
    ]
    assert mmdata("scan", "recipe.yaml", cwd=folder).returncode == 0
    before = snapshot(folder)
    for command in ("build", "commit"):
        plan = json.loads(mmdata(command, "recipe.yaml", "--dry-run", "--json", cwd=folder).stdout)
        assert (plan["samples"], plan["read"], plan["shards_built"]) == (5, 7, 0)
    assert snapshot(folder) == before


def test_ranges_and_commit_give_what_one_build_gives(built: Path, tmp_path: Path) -> None:
    folder = make_project(tmp_path / "p")
    unscanned = mmdata("build", "recipe.yaml", "--shard-range", "0/2", cwd=folder)
    assert unscanned.returncode == 2 and "run `mmdata scan` first" in unscanned.stderr
    assert mmdata("scan", "recipe.yaml", cwd=folder).returncode == 0
    first = mmdata("build", "recipe.yaml", "--shard-range", "0/2", cwd=folder)
    assert first.returncode == 0 and "mmdata commit" in first.stdout
    early = mmdata("commit", "recipe.yaml", cwd=folder)
    assert early.returncode == 1 and "not built yet" in early.stderr
    unfinished = mmdata("inspect", "out", cwd=folder)
    assert unfinished.returncode == 1 and "not finished" in unfinished.stderr
    assert mmdata("build", "recipe.yaml", "--shard-range", "1/2", cwd=folder).returncode == 0
    done = mmdata("commit", "recipe.yaml", cwd=folder)
    assert done.returncode == 0, done.stderr
    for shard in sorted((built / "out" / "shards").iterdir()):
        assert (folder / "out" / "shards" / shard.name).read_bytes() == shard.read_bytes()


def test_another_recipe_does_not_replace_a_dataset_unasked(tmp_path: Path) -> None:
    folder = make_project(tmp_path / "p")
    assert mmdata("build", "recipe.yaml", cwd=folder).returncode == 0
    other = mmdata("build", "recipe.yaml", "--set", "seed=7", cwd=folder)
    assert other.returncode == 1 and "--overwrite" in other.stderr
    assert mmdata("build", "recipe.yaml", "--set", "seed=7", "--overwrite", cwd=folder).returncode == 0


def test_whoever_stops_reading_ends_the_command_quietly(built: Path) -> None:
    for arguments in ("inspect out", "inspect out --json", "--help", "build --help"):
        line = f"{sys.executable} -m mmdata {arguments} | true; echo ${{PIPESTATUS[0]}}"
        done = subprocess.run(["bash", "-c", line], cwd=built, capture_output=True, text=True, timeout=SECONDS)
        assert done.stderr == ""
        assert done.stdout in ("0\n", "1\n")


# --- terminals and interruption -----------------------------------------------------------------------------------


class Terminal:
    """A command that runs on a terminal of its own: what it shows, and keys typed at it."""

    def __init__(self, arguments: list[str], cwd: Path) -> None:
        self.screen = b""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(cwd)
            os.environ |= {"TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
            os.execv(sys.executable, [sys.executable, "-m", "mmdata", *arguments])

    def read_until(self, pattern: bytes | None) -> bool:
        """Read until `pattern` was shown; None: until the command ends. False when it ended first."""
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            if pattern is not None and re.search(pattern, self.screen):
                return True
            if not select.select([self.fd], [], [], 0.1)[0]:
                continue
            try:
                data = os.read(self.fd, 65536)
            except OSError:
                data = b""
            if not data:
                return pattern is None
            self.screen += data
        raise AssertionError(f"waited {SECONDS} s for {pattern!r}; the screen holds {self.screen[-2000:]!r}")

    def close(self) -> int:
        os.close(self.fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def test_a_terminal_sees_progress_and_a_pipe_does_not(tmp_path: Path) -> None:
    folder = make_project(tmp_path / "p")
    terminal = Terminal(["build", "recipe.yaml"], folder)
    assert terminal.read_until(None)
    assert terminal.close() == 0
    screen = re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", terminal.screen).decode()
    assert re.search(r"scan .*7 samples, 1 bad", screen), screen
    assert re.search(r"build .*of 5 samples", screen), screen
    assert "report" in screen
    quiet = mmdata("build", "recipe.yaml", "--overwrite", "--set", "seed=3", cwd=folder)
    assert (quiet.returncode, quiet.stderr) == (0, "")


SLOW = """
import time
from mmdata.operators.registry import statistic
import pyarrow as pa

@statistic("doze", "image", columns={"doze": pa.float64()})
def doze(media):
    time.sleep(60)
    return {"doze": 0.0}
"""


@pytest.fixture
def slow_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project whose scan takes for ever: an operator of a plug-in sleeps."""
    plugin = tmp_path / "plugin"
    info = plugin / "slow_operator-1.0.dist-info"
    info.mkdir(parents=True)
    (plugin / "slow_operator.py").write_text(SLOW)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: slow-operator\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[tessera.operators]\nslow = slow_operator\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(plugin), os.getcwd()]))
    yield make_project(tmp_path / "p", extra="scan: {statistics: [doze]}\n")


def descendants(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def gone(processes: list[psutil.Process]) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=10)
    return not [each for each in alive if each.status() != psutil.STATUS_ZOMBIE]


def test_ctrl_c_ends_with_130_and_leaves_no_process(slow_project: Path) -> None:
    terminal = Terminal(["scan", "recipe.yaml"], slow_project)
    terminal.read_until(b"starting")
    until = time.monotonic() + 30
    while len(children := descendants(terminal.pid)) < 2 and time.monotonic() < until:
        time.sleep(0.1)
    time.sleep(1.0)
    children = descendants(terminal.pid)
    assert children, "the scan has no worker process"
    ended = False
    for _ in range(3):  # an interrupt that a destructor swallows is lost, as in any Python program: press again
        os.write(terminal.fd, b"\x03")
        with contextlib.suppress(AssertionError):
            ended = terminal.read_until(None)
        if ended:
            break
    assert ended
    assert terminal.close() == 130
    assert b"interrupted; the same command goes on" in terminal.screen
    assert b"Traceback" not in terminal.screen
    assert gone(children)


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_command_leaves_no_process(kind: signal.Signals, slow_project: Path) -> None:
    running = subprocess.Popen(
        [sys.executable, "-m", "mmdata", "scan", "recipe.yaml"],
        cwd=slow_project,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    until = time.monotonic() + 30
    while len(descendants(running.pid)) < 2 and time.monotonic() < until:
        time.sleep(0.1)
    children = descendants(running.pid)
    assert children
    running.send_signal(kind)
    assert running.wait(SECONDS) == -kind
    assert gone(children)


def test_work_that_takes_long_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    from mmdata.report.progress import Progress

    times: Any = iter([0.0, 10.0])
    progress = Progress("build", "samples", clock=lambda: next(times))
    assert progress.counts(100, 1000, 0) == "100 of 1,000 samples"
    assert progress.counts(600, 1000, 3) == "600 of 1,000 samples, 3 bad, 50/s"
    progress.waiting("shards/x-000003.tar", 42.0)
    assert capsys.readouterr().err == ""
