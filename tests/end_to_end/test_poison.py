"""A decoder or operator that hangs, crashes or eats memory costs exactly one quarantine row, in a whole job."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import job_kit
import pyarrow.parquet as pq
import pytest

PLUGIN = '''
"""An operator package whose transform and whose picture decoder go wrong on marked samples."""
import ctypes, os
import mmdata.media.image as image
from mmdata.operators.registry import ImageTransform, statistic, transform


def misbehave(how):
    with open(os.environ["POISON_LOG"], "a") as log:
        log.write(how + "\\n")
    while how == "hang":
        pass
    if how == "crash":
        ctypes.string_at(0)
    hoard = []
    while how == "bomb":
        hoard.append(bytearray(16 << 20))


decode = image.decode


def poisoned(data, **options):
    _, found, how = data.rpartition(b"DECODE:")
    if found:
        misbehave(how.decode())
    return decode(data, **options)


image.decode = poisoned


@transform("poison", "image")
class Poison(ImageTransform):
    """Go wrong on samples whose key says so."""

    def apply(self, media, context):
        misbehave(context.key.partition("-")[2])
        return media.rotate(90)


@statistic("innocent", "image", columns={"innocent": __import__("pyarrow").int64()})
def innocent(media):
    """Brings this module, and with it the poisoned decoder, into a scan."""
    return {"innocent": 1}
'''

VERDICTS = {"hang": "DecodeTimeout", "crash": "DecoderCrash", "bomb": "MemoryLimit"}
LIMITS = {"cpu": "1s", "wall": "60s", "memory": "256MiB", "max_bad": 0.9}


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """An installed plug-in: a module and the entry point that names it, on the import path."""
    site = tmp_path / "site"
    facts = site / "poison-1.0.dist-info"
    facts.mkdir(parents=True)
    (site / "poison_plugin.py").write_text(PLUGIN, encoding="utf-8")
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: poison\nVersion: 1.0\n", encoding="utf-8")
    (facts / "entry_points.txt").write_text("[tessera.operators]\npoison = poison_plugin\n", encoding="utf-8")
    inherited = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([str(site), *([inherited] if inherited else [])])
    return {"PYTHONPATH": path, "POISON_LOG": str(tmp_path / "log")}


def tried(env: Mapping[str, str]) -> dict[str, int]:
    lines = Path(env["POISON_LOG"]).read_text().split()
    return {how: lines.count(how) for how in VERDICTS}


def quarantine(output: Path) -> dict[str, tuple[str, str]]:
    rows = pq.read_table(output / "quarantine.parquet").to_pylist()
    assert len({row["key"] for row in rows}) == len(rows)
    return {row["key"]: (row["stage"], row["error_class"]) for row in rows}


def stored(output: Path) -> set[str]:
    return {row["key"] for row in pq.read_table(output / "index").to_pylist()}


def test_operators_that_hang_crash_or_hoard_cost_one_row_each(env: dict[str, str], tmp_path: Path) -> None:
    source, output = tmp_path / "media", tmp_path / "out"
    source.mkdir()
    for number in range(12):
        job_kit.make_picture(source / f"p{number:02d}.jpg", number)
    for number, how in enumerate(VERDICTS):
        job_kit.make_picture(source / f"p{3 * number + 1:02d}x-{how}.jpg", 50 + number)
    recipe = job_kit.make_recipe(
        tmp_path / "r.yaml", source, output, limits=LIMITS, transforms={"image": [{"op": "poison"}]}
    )
    result = job_kit.mmdata("build", recipe, "--workers", 2, "--json", env=env)
    assert (result["read"], result["samples"]) == (15, 12)
    assert quarantine(output) == {
        f"p{3 * number + 1:02d}x-{how}": ("build", verdict) for number, (how, verdict) in enumerate(VERDICTS.items())
    }
    assert stored(output) == {f"p{number:02d}" for number in range(12)}
    assert tried(env)["hang"] == 2  # once more, alone
    job_kit.mmdata("verify", output, "--decode")


def test_decoders_that_hang_crash_or_hoard_cost_a_scan_one_row_each(env: dict[str, str], tmp_path: Path) -> None:
    source, output = tmp_path / "media", tmp_path / "out"
    source.mkdir()
    for number in range(12):
        job_kit.make_picture(source / f"p{number:02d}.jpg", number)
    for number, how in enumerate(VERDICTS):
        path = source / f"p{number + 4:02d}.jpg"
        path.write_bytes(path.read_bytes() + b"DECODE:" + how.encode())
    recipe = job_kit.make_recipe(
        tmp_path / "r.yaml", source, output, limits=LIMITS, scan={"statistics": ["innocent"], "partition": 5}
    )
    result = job_kit.mmdata("scan", recipe, "--workers", 2, "--json", env=env)
    assert result["status"] == {"DecodeTimeout": 1, "DecoderCrash": 1, "MemoryLimit": 1, "ok": 9}
    before = tried(env)
    again = job_kit.mmdata("scan", recipe, "--json", env=env)
    assert (again["status"], again["measured"]) == (result["status"], 0)
    job_kit.mmdata("build", recipe, "--workers", 2, env=env)
    assert quarantine(output) == {
        f"p{number + 4:02d}": ("scan", verdict) for number, verdict in enumerate(VERDICTS.values())
    }
    assert stored(output) == {f"p{number:02d}" for number in range(12)} - {"p04", "p05", "p06"}
    assert tried(env) == before
    # With headers only, the build meets them: a transform has to decode.
    header = job_kit.make_recipe(
        tmp_path / "h.yaml",
        source,
        tmp_path / "header",
        limits=LIMITS,
        scan={"check": "header"},
        transforms={"image": [{"op": "poison"}]},
    )
    job_kit.mmdata("build", header, "--workers", 2, env=env)
    assert quarantine(tmp_path / "header") == {
        f"p{number + 4:02d}": ("build", verdict) for number, verdict in enumerate(VERDICTS.values())
    }


@pytest.mark.chaos
def test_verdicts_outlive_a_kill(env: dict[str, str], tmp_path: Path) -> None:
    source, output = tmp_path / "media", tmp_path / "out"
    source.mkdir()
    for number, how in enumerate(VERDICTS):
        job_kit.make_picture(source / f"a{number}-{how}.jpg", number)
    for number in range(6):
        job_kit.make_picture(source / f"z{number}.jpg", 10 + number)
    job_kit.make_picture(source / "zz-hang.jpg", 99)
    recipe = job_kit.make_recipe(
        tmp_path / "r.yaml",
        source,
        output,
        limits=LIMITS,
        output={"max_samples": 100, "order": "source"},
        transforms={"image": [{"op": "poison"}]},
    )
    verdicts = output / "_build" / "verdicts"

    def known() -> dict[str, Any]:
        return {key: row for path in verdicts.glob("*.json") for key, row in json.loads(path.read_text()).items()}

    with job_kit.Job("build", recipe, "--workers", 1, env=env) as job:
        job_kit.wait_until(lambda: len(known()) == 3 or job.ended(), "three verdicts", 60)
        job.kill_group()
    assert set(known()) == {f"a{number}-{how}" for number, how in enumerate(VERDICTS)}
    assert not list((output / "_build").glob("records/*"))
    before = tried(env)
    job_kit.mmdata("build", recipe, env=env)
    after = tried(env)
    assert (after["crash"], after["bomb"]) == (before["crash"], before["bomb"])
    assert after["hang"] - before["hang"] in (1, 2)  # that of zz-hang alone, which may have begun before the kill
    assert {key: verdict for key, (_, verdict) in quarantine(output).items()} == {
        **{f"a{number}-{how}": verdict for number, (how, verdict) in enumerate(VERDICTS.items())},
        "zz-hang": "DecodeTimeout",
    }
