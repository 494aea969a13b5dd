"""The rules of the house, as far as a program can tell: floors, sizes, no hidden errors, links that lead somewhere."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

SOURCES = sorted(path for folder in ("mmdata", "mmtrain", "tools", "tests") for path in (ROOT / folder).rglob("*.py"))
PACKAGES = [path for path in SOURCES if path.relative_to(ROOT).parts[0] in ("mmdata", "mmtrain")]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "pipelines").rglob("*.md"),
        *(ROOT / "tools").rglob("*.md"),
    ]
)

MAX_FILE, MAX_FUNCTION = 500, 80

ABSTRACT = {"mmdata/operators/registry.py"}
"""Files whose base classes raise NotImplementedError for what children must define."""


JITTER = {"mmdata/storage/retry.py"}
"""Files that may use the global generator: for waits, which no result depends on."""


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node


def test_rooms_import_only_from_floors_below() -> None:
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as run; run()"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_room_stands_on_a_floor() -> None:
    """A module that the contract does not list could import anything."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    listed = set(re.findall(r"mmdata\.(\w+)", text[text.index("[tool.importlinter]") :]))
    rooms = {path.stem if path.is_file() else path.name for path in (ROOT / "mmdata").iterdir()}
    rooms -= {"__init__", "__main__", "__pycache__", "py"}
    rooms = {room for room in rooms if (ROOT / "mmdata" / room).is_dir() or (ROOT / "mmdata" / f"{room}.py").exists()}
    assert rooms == listed


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_files_and_functions_stay_small(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= MAX_FILE
    long = {
        node.name: node.end_lineno - node.lineno + 1
        for node in functions(ast.parse(text))
        if node.end_lineno is not None and node.end_lineno - node.lineno + 1 > MAX_FUNCTION
    }
    assert not long


@pytest.mark.parametrize("path", PACKAGES, ids=name)
def test_a_file_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("path", PACKAGES, ids=name)
def test_no_error_is_hidden_and_nothing_is_left_undone(path: Path) -> None:
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ExceptHandler):
            silent = all(isinstance(each, (ast.Pass, ast.Constant)) or _is_ellipsis(each) for each in node.body)
            if node.type is None or silent:
                found.append(f"line {node.lineno}: a bare or silent except")
        if isinstance(node, ast.Name) and node.id == "NotImplementedError" and name(path) not in ABSTRACT:
            found.append(f"line {node.lineno}: NotImplementedError")
    with open(path, "rb") as stream:
        for token in tokenize.tokenize(stream.readline):
            if token.type == tokenize.COMMENT and re.search(r"\b(TODO|FIXME|XXX|HACK)\b", token.string):
                found.append(f"line {token.start[0]}: {token.string}")
    assert not found


def _is_ellipsis(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


@pytest.mark.parametrize("path", PACKAGES, ids=name)
def test_no_global_random_state(path: Path) -> None:
    text = path.read_text(encoding="utf-8") if name(path) not in JITTER else ""
    assert not re.search(
        r"^\s*(import random|from random import)|np\.random\.(seed|rand|randint|shuffle|choice)\b", text, re.M
    )


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_links_lead_somewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        where = (path.parent / file).resolve() if file else path
        assert where.exists(), f"{name(path)} links to {target}"
        if anchor:
            assert anchor in _anchors(where), f"{name(path)} links to {target}"


def _anchors(page: Path) -> set[str]:
    """Anchors as GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_pages_were_found() -> None:
    assert {"README.md", "CONTRIBUTING.md", "CHANGELOG.md"} <= {name(path) for path in PAGES}
    assert len(SOURCES) > 100
