"""What the documentation shows is what happens: its commands run as written and print what it says, its Python runs,
and it names every operator, section and error class."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from mmdata import errors
from mmdata.operators.registry import load_builtin
from mmdata.recipe import Recipe, find_operators, from_mapping, tree

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SHOWN_HOME = "/home/me/tessera"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.M | re.S)


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder after `make demo`, as far as its media go."""
    folder = tmp_path_factory.mktemp("clone")
    spec = importlib.util.spec_from_file_location("demo_corpus", ROOT / "tools" / "demo_corpus.py")
    assert spec is not None and spec.loader is not None
    corpus = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(corpus)
    (folder / "demo" / "media").mkdir(parents=True)
    corpus.make_corpus(folder / "demo" / "media")
    return folder


def masked(text: str) -> list[str]:
    """Lines without what hangs on an encoder's release: numbers and the width of columns."""
    text = re.sub(r"\d[\d,.]*( [KM]iB| B)?", "N", text.replace(SHOWN_HOME, "HOME"))
    return [" ".join(line.split()) for line in text.strip().splitlines()]


def run(command: str, folder: Path) -> str:
    words = shlex.split(command)
    assert words[0] == "mmdata"
    env = os.environ | {"COLUMNS": "120"}
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=folder, capture_output=True, text=True, timeout=240, env=env
    )
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout.replace(str(folder), "HOME")


def test_the_commands_print_what_the_readme_shows(clone: Path) -> None:
    sessions = blocks("console")
    assert len(sessions) == 2
    for session in sessions:
        for step in re.split(r"^\$ ", session, flags=re.M)[1:]:
            command, _, shown = step.partition("\n")
            assert masked(run(command, clone)) == masked(shown), command
    for code in blocks("python"):
        if "import datasets" in code or "from datasets" in code:
            continue  # not a dependency; tests/end_to_end runs it in an environment of its own
        done = subprocess.run([sys.executable, "-c", code], cwd=clone, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr


def test_the_recipe_of_the_readme_is_valid() -> None:
    load_builtin()
    (text,) = blocks("yaml")
    recipe = from_mapping(tree.read(text, "README.md").data)
    assert recipe.output.path == "dataset"


def test_every_operator_and_section_is_in_the_documentation() -> None:
    load_builtin()
    page = (ROOT / "docs" / "recipe.md").read_text(encoding="utf-8")
    words = [operator.name for operator in find_operators() if operator.model.__module__.startswith("mmdata.")]
    words += [*Recipe.model_fields, *Recipe.model_fields["limits"].annotation.model_fields]  # type: ignore[union-attr]
    missing = sorted({word for word in words if not re.search(rf"\b{re.escape(word)}\b", page)})
    assert not missing


def test_every_error_class_is_in_the_documentation() -> None:
    page = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    classes = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, Exception)]
    bases = (errors.TesseraError, errors.MediaError)
    assert not [each.__name__ for each in classes if each not in bases and f"`{each.__name__}`" not in page]


def test_the_make_targets_of_the_documentation_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    pages = README + (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for target in set(re.findall(r"\bmake (\w+)\s+#|`make (\w+)`", pages)):
        assert re.search(rf"^{''.join(target)}:", makefile, re.M), target
