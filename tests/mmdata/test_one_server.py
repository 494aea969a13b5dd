"""The processes of a scan and a build come from one server: a second would import everything once more."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from mmdata import cli, processes


def test_a_build_that_scans_first_starts_one_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "media").mkdir()
    for number in range(3):
        Image.new("RGB", (64, 48), (number, 0, 0)).save(tmp_path / "media" / f"{number}.png")
    recipe = tmp_path / "recipe.yaml"
    resize = {"image": [{"op": "resize", "width": 32, "height": 32}]}
    source = [{"type": "folder", "path": "media"}]
    recipe.write_text(json.dumps({"source": source, "transforms": resize, "output": {"path": "out"}}))
    started = []
    start = processes._start_server

    def counted(modules: frozenset[str]) -> processes._Server:
        started.append(modules)
        return start(modules)

    monkeypatch.setattr(processes, "_start_server", counted)
    monkeypatch.setattr(processes, "_server", None)
    monkeypatch.setattr(processes, "_wanted", frozenset())
    assert cli.run(["build", str(recipe), "--workers", "2"]) == 0
    assert len(started) == 1
