"""What ends a job: one clear message, the right exit code, no manifest; and the same command completes it later."""

from __future__ import annotations

import os
import re
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import job_kit
import pytest
from s3_server import Gate, S3Server

PICTURES = 24
QUICK = {"retries": 2, "backoff": 0.05, "deadline": 5, "timeout": 5}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    for number in range(PICTURES):
        job_kit.make_picture(folder / f"p{number:02d}.png", number, (200, 160))
    return folder


@pytest.fixture(scope="module")
def catalog(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("catalog")
    job_kit.mmdata("scan", job_kit.make_recipe(folder / "r.yaml", pictures, "out", catalog=str(folder / "catalog")))
    return folder / "catalog"


def make_recipe(folder: Path, pictures: Path, output: Path | str, catalog: Path, **sections: Any) -> Path:
    return job_kit.make_recipe(
        folder / "r.yaml", pictures, output, catalog=str(catalog), output={"max_samples": 4}, storage=QUICK, **sections
    )


def one_message(done: subprocess.CompletedProcess[str], pattern: str) -> None:
    """Standard error is one line for people, with what they need to know in it; there is no result."""
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    assert len(lines) == 1 and lines[0].startswith("mmdata: "), done.stderr
    assert re.search(pattern, lines[0]), lines[0]
    assert "Traceback" not in done.stderr and done.stdout == ""


def limited(size: int, *arguments: object) -> subprocess.CompletedProcess[str]:
    """The command where no file can grow beyond `size` bytes: every write past it fails, as on a full disk."""
    return subprocess.run(
        job_kit.command(*arguments),
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)),
    )


@pytest.mark.parametrize("format", ["webdataset", "arrow"])
@pytest.mark.parametrize("size", [512, 100_000])
def test_files_that_cannot_grow(size: int, format: str, pictures: Path, catalog: Path, tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path, pictures, tmp_path / "out", catalog)
    arguments = ("build", recipe, "--workers", 2, "--set", f"output.format={format}")
    done = limited(size, *arguments)
    assert done.returncode == 1
    one_message(done, f"cannot write {tmp_path}/out/.*[Ff]ile too large")
    assert not (tmp_path / "out/manifest.json").exists()
    job_kit.mmdata(*arguments)
    job_kit.mmdata("verify", tmp_path / "out")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, smaller than the dataset."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def remount(folder: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", folder], check=True, capture_output=True)


def test_a_full_disk(pictures: Path, catalog: Path, small_disk: Path, tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path, pictures, small_disk / "out", catalog)
    one_message(job_kit.mmdata("build", recipe, code=1), f"cannot write {small_disk}/out/.*No space left on device")
    assert not (small_disk / "out/manifest.json").exists()
    one_message(job_kit.mmdata("build", recipe, code=1), "No space left on device")
    remount(small_disk, "size=50m")
    assert job_kit.mmdata("build", recipe, "--json")["samples"] == PICTURES
    job_kit.mmdata("verify", small_disk / "out")
    assert not (small_disk / "out/_build").exists()


def test_a_read_only_output(pictures: Path, catalog: Path, small_disk: Path, tmp_path: Path) -> None:
    remount(small_disk, "ro")
    recipe = make_recipe(tmp_path, pictures, small_disk / "out", catalog)
    one_message(job_kit.mmdata("build", recipe, code=1), f"cannot .* {small_disk}/out.*Read-only file system")
    scan = job_kit.make_recipe(tmp_path / "s.yaml", pictures, small_disk / "out")
    one_message(job_kit.mmdata("scan", scan, code=1), f"cannot .* {small_disk}/out.catalog.*Read-only file system")


def test_an_output_that_is_a_file(pictures: Path, catalog: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    recipe = make_recipe(tmp_path, pictures, tmp_path / "out", catalog)
    one_message(job_kit.mmdata("build", recipe, code=1), f"{tmp_path}/out")
    assert (tmp_path / "out").read_text() == "a file"


def test_s3_with_wrong_credentials(pictures: Path, catalog: Path, s3: S3Server, tmp_path: Path) -> None:
    if s3.kind == "moto":
        pytest.skip("moto lets anybody in")
    url = f"s3://{s3.bucket}/{tmp_path.name}/out"
    recipe = make_recipe(tmp_path, pictures, url, catalog)
    done = job_kit.mmdata("build", recipe, env={"AWS_SECRET_ACCESS_KEY": "wrong"}, code=1)
    one_message(done, f"{url}.*access denied.*credentials")
    assert job_kit.mmdata("build", recipe, "--json")["samples"] == PICTURES


def test_s3_that_vanishes_in_the_middle(pictures: Path, catalog: Path, s3: S3Server, tmp_path: Path) -> None:
    url = f"s3://{s3.bucket}/{tmp_path.name}/out"
    recipe = make_recipe(tmp_path, pictures, url, catalog)
    for pattern in ("/out/shards/", "/out/manifest.json"):
        gate = Gate(s3.endpoint)
        gate.arm(pattern, after=False, skip=2 if "shards" in pattern else 0)
        env = {"AWS_ENDPOINT_URL": gate.endpoint, "TMPDIR": str(tmp_path)}
        with job_kit.Job("build", recipe, "--workers", 2, env=env) as job:
            job_kit.wait_until(lambda gate=gate, job=job: gate.held.is_set() or job.ended(), "the request to hold", 60)
            gate.close()
            gate.release()
            printed = job.finish(code=1)
        lines = printed.strip().splitlines()
        assert len(lines) == 1, printed
        assert re.match(rf"mmdata: cannot \w+ {url}/.*storage.endpoint.*after 3 attempts", lines[0])
        job_kit.mmdata("verify", url, code=1)
    assert job_kit.mmdata("build", recipe, "--json")["samples"] == PICTURES
    job_kit.mmdata("verify", url)


def copy_of(pictures: Path, tmp_path: Path) -> Path:
    source = tmp_path / "media"
    source.mkdir()
    for path in pictures.iterdir():
        (source / path.name).write_bytes(path.read_bytes())
    return source


def spoil(path: Path) -> None:
    """Damage a picture behind its header, without a trace in its size and time."""
    stamp = path.stat()
    path.write_bytes(path.read_bytes()[:200].ljust(stamp.st_size, b"\0"))
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))


def test_too_many_bad_samples(pictures: Path, tmp_path: Path) -> None:
    source = copy_of(pictures, tmp_path)
    for number in range(5):
        (source / f"bad{number}.jpg").write_bytes(b"these are words " * 40)
    for limit in (4, 0.1):
        recipe = job_kit.make_recipe(tmp_path / "r.yaml", source, tmp_path / "out", limits={"max_bad": limit})
        for verb in ("scan", "build"):
            done = job_kit.mmdata(verb, recipe, code=3)
            one_message(done, rf"5 of 29 samples are bad \(5 UnreadableMedia\), over limits.max_bad {limit}")
    assert not (tmp_path / "out").exists()
    result = job_kit.mmdata("build", recipe, "--set", "limits.max_bad=5", "--json")
    assert (result["samples"], result["read"]) == (PICTURES, 29)


def test_too_many_failures_in_the_build(pictures: Path, tmp_path: Path) -> None:
    """The limit counts what the scan and the build find; what is built stays, and a higher limit goes on."""
    source = copy_of(pictures, tmp_path)
    recipe = job_kit.make_recipe(
        tmp_path / "r.yaml",
        source,
        tmp_path / "out",
        scan={"check": "header", "digest": True},
        output={"max_samples": 4, "order": "source"},
        limits={"max_bad": 2},
        transforms={"image": [{"op": "resize", "width": 64, "height": 64, "mode": "exact"}]},
    )
    job_kit.mmdata("scan", recipe)
    for number in (5, 9, 13, 17):
        spoil(source / f"p{number:02d}.png")
    done = job_kit.mmdata("build", recipe, "--workers", 1, code=3)
    one_message(done, r"3 of 24 samples are bad after .*, over limits.max_bad 2")
    assert not (tmp_path / "out/manifest.json").exists()
    assert len(list((tmp_path / "out/_build/records").iterdir())) >= 3
    job_kit.mmdata("build", recipe, "--workers", 1, code=3)
    result = job_kit.mmdata("build", recipe, "--set", "limits.max_bad=4", "--json")
    assert (result["samples"], sum(result["dropped"].values())) == (PICTURES - 4, 4)


@pytest.mark.parametrize("size", ["same", "other"])
def test_a_file_that_changed_since_a_scan_without_digests_is_not_stored(
    size: str, pictures: Path, tmp_path: Path
) -> None:
    source = copy_of(pictures, tmp_path)
    recipe = job_kit.make_recipe(tmp_path / "r.yaml", source, tmp_path / "out", scan={"check": "header"})
    job_kit.mmdata("scan", recipe)
    changed = source / "p05.png"
    data = changed.read_bytes()
    changed.write_bytes(data if size == "same" else (source / "p06.png").read_bytes() + b"0")
    result = job_kit.mmdata("build", recipe, "--json")
    assert (result["samples"], result["dropped"]) == (PICTURES - 1, {"build/InvalidSample": 1})


def test_no_survivor_names_the_rule(pictures: Path, catalog: Path, tmp_path: Path) -> None:
    filters = ["width > 0", {"name": "huge only", "keep": "width >= 5000"}]
    recipe = make_recipe(tmp_path, pictures, tmp_path / "out", catalog, filters=filters)
    done = job_kit.mmdata("build", recipe, code=1)
    one_message(done, r"none of 24 samples survives: 24 were dropped at filter by 'huge only' .*width >= 5000")
    assert not (tmp_path / "out/manifest.json").exists()


def test_every_sample_failing_in_the_build_is_an_error(pictures: Path, tmp_path: Path) -> None:
    source = copy_of(pictures, tmp_path)
    recipe = job_kit.make_recipe(
        tmp_path / "r.yaml",
        source,
        tmp_path / "out",
        scan={"check": "header", "digest": True},
        limits={"max_bad": 1.0},
        transforms={"image": [{"op": "flip", "probability": 1.0}]},
    )
    job_kit.mmdata("scan", recipe)
    for path in source.iterdir():
        spoil(path)
    one_message(job_kit.mmdata("build", recipe, code=1), "every sample failed in the build.*InvalidSample")
    assert not (tmp_path / "out/manifest.json").exists()
