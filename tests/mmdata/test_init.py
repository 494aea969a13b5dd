"""`init` looks at folders of all sorts; the recipe it writes builds as it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image

from mmdata.cli import run
from mmdata.errors import ConfigError
from mmdata.init import write_recipe
from mmdata.operators.registry import load_builtin
from mmdata.recipe import load


def picture(path: Path, size: tuple[int, int] = (128, 96)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (sum(map(ord, path.stem)) % 255, 80, 80)).save(path)


def sound(path: Path, seconds: float = 0.3) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, 0.1 * np.sin(np.arange(int(16000 * seconds)) / 9), 16000)


def build(recipe: Path) -> int:
    return run(["build", str(recipe), "--workers", "1"])


def test_a_folder_of_classes_is_labelled_and_builds(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        for number in range(3):
            picture(tmp_path / "media" / name / f"{number}.jpg")
    written = write_recipe(str(tmp_path / "media"), str(tmp_path / "r.yaml"), str(tmp_path / "out"))
    load_builtin()
    recipe = load(tmp_path / "r.yaml")
    assert recipe.source[0].label_from_folder is True  # type: ignore[union-attr]
    assert recipe.source[0].captions is False  # type: ignore[union-attr]
    assert written.look.median_size == (128, 96)
    assert build(tmp_path / "r.yaml") == 0


def test_sound_alone_gets_no_picture_sections_and_builds(tmp_path: Path) -> None:
    for number in range(4):
        sound(tmp_path / "media" / f"{number}.wav", 0.2 + 0.1 * number)
        (tmp_path / "media" / f"{number}.txt").write_text("a tone")
    write_recipe(str(tmp_path / "media"), str(tmp_path / "r.yaml"), str(tmp_path / "out"))
    load_builtin()
    recipe = load(tmp_path / "r.yaml")
    assert recipe.buckets.image is None and recipe.buckets.audio is not None
    assert not recipe.filters and recipe.source[0].captions  # type: ignore[union-attr]
    assert build(tmp_path / "r.yaml") == 0


def test_the_working_folder_itself_gets_an_output_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    picture(tmp_path / "my media" / "a.png")
    monkeypatch.chdir(tmp_path / "my media")
    assert run(["init", "."]) == 0
    assert "next: mmdata scan recipe.yaml, then mmdata build recipe.yaml" in capsys.readouterr().out
    assert build(Path("recipe.yaml")) == 0
    assert (tmp_path / "my media-dataset" / "manifest.json").exists()


def test_names_that_yaml_could_misread_are_quoted(tmp_path: Path) -> None:
    folder = tmp_path / "a: {b} #c 'd' \"e\""
    picture(folder / "x.jpg")
    write_recipe(str(folder), str(tmp_path / "r.yaml"), str(tmp_path / "out: #1"))
    assert build(tmp_path / "r.yaml") == 0


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ([], "it is empty"),
        (["a.txt", "b.txt"], "texts alone are taken from a table"),
        (["x-000.tar"], "type: webdataset"),
        (["rows.jsonl"], "type: table"),
        (["a.pdf"], r"only 1 \.pdf"),
    ],
)
def test_a_folder_without_media_says_what_it_holds(files: list[str], said: str, tmp_path: Path) -> None:
    (tmp_path / "media").mkdir()
    for name in files:
        (tmp_path / "media" / name).write_text("x")
    with pytest.raises(ConfigError, match=said):
        write_recipe(str(tmp_path / "media"), str(tmp_path / "r.yaml"))
    assert not (tmp_path / "r.yaml").exists()


def test_a_file_and_nothing_are_refused(tmp_path: Path) -> None:
    picture(tmp_path / "a.jpg")
    with pytest.raises(ConfigError, match="is a file, not a folder"):
        write_recipe(str(tmp_path / "a.jpg"), str(tmp_path / "r.yaml"))
    with pytest.raises(ConfigError, match="no folder"):
        write_recipe(str(tmp_path / "nowhere"), str(tmp_path / "r.yaml"))


def test_broken_pictures_do_not_stop_the_look(tmp_path: Path) -> None:
    picture(tmp_path / "media" / "good.jpg", (300, 200))
    (tmp_path / "media" / "bad.jpg").write_bytes(b"\xff\xd8nonsense")
    (tmp_path / "media" / "empty.png").write_bytes(b"")
    (tmp_path / "media" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    look = write_recipe(str(tmp_path / "media"), str(tmp_path / "r.yaml"), dry_run=True).look
    assert look.median_size == (300, 200)


def test_a_recipe_is_not_replaced_unasked_and_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    picture(tmp_path / "media" / "a.jpg")
    recipe = tmp_path / "r.yaml"
    assert write_recipe(str(tmp_path / "media"), str(recipe), dry_run=True).written is False
    assert not recipe.exists()
    recipe.write_text("mine")
    with pytest.raises(ConfigError, match="--force"):
        write_recipe(str(tmp_path / "media"), str(recipe))
    assert recipe.read_text() == "mine"
    write_recipe(str(tmp_path / "media"), str(recipe), force=True)
    assert recipe.read_text() != "mine"
