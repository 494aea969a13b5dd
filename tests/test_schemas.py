"""The published schemas are what the code says, and every pipeline names its schema and is valid under it."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pytest

from mmdata.errors import ConfigError
from mmdata.operators import registry
from mmdata.recipe import find_operators, load, tree

ROOT = Path(__file__).resolve().parents[1]
SCHEMAS = ROOT / "schemas"
PIPELINES = sorted((ROOT / "pipelines").rglob("*.yaml"))


@pytest.fixture(scope="module")
def exporter() -> ModuleType:
    """tools/export_schemas.py as a module."""
    spec = importlib.util.spec_from_file_location("export_schemas", ROOT / "tools" / "export_schemas.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_schemas_are_those_of_the_code(exporter: ModuleType) -> None:
    documents = exporter.documents()
    stale = [
        name
        for name, content in documents.items()
        if not (SCHEMAS / name).exists() or (SCHEMAS / name).read_text(encoding="utf-8") != content
    ]
    assert not stale, f"{stale} differ from the code: run python tools/export_schemas.py and commit schemas/"
    assert {path.name for path in SCHEMAS.iterdir()} == set(documents)


def test_an_arrow_schema_is_written_column_by_column(exporter: ModuleType) -> None:
    written = exporter.arrow_schema(
        "x",
        pa.schema([pa.field("a", pa.int32(), nullable=False), ("b", pa.list_(pa.struct([("c", pa.string())])))]),
        "d",
    )
    assert written["columns"] == [
        {"name": "a", "type": "int32", "nullable": False},
        {
            "name": "b",
            "type": "list<struct>",
            "nullable": True,
            "columns": [{"name": "c", "type": "string", "nullable": True}],
        },
    ]


def test_every_operator_is_in_the_recipe_schema() -> None:
    registry.load_builtin()
    published = json.loads((SCHEMAS / "recipe.schema.json").read_text(encoding="utf-8"))
    for operator in find_operators():
        prefix = "statistic" if operator.role == "statistic" else operator.modality
        definition = published["$defs"][f"{prefix}_{operator.name}"]
        assert definition["properties"]["op"] == {"const": operator.name}
        assert definition.get("description"), f"{operator.name} has no description"
        undescribed = [
            name for name, field in definition["properties"].items() if name != "op" and not _described(field)
        ]
        assert not undescribed, f"{operator.name}: {undescribed} have no description"


def _described(field: dict[str, object]) -> bool:
    return bool(field.get("description")) or "$ref" in field


def test_there_are_pipelines() -> None:
    assert ROOT / "pipelines" / "quickstart" / "recipe.yaml" in PIPELINES


@pytest.mark.parametrize("path", PIPELINES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_pipeline_names_its_schema_and_is_valid(path: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    registry.load_builtin()
    text = path.read_text(encoding="utf-8")
    named = re.match(r"# yaml-language-server: \$schema=(\S+)\n", text)
    assert named is not None, "the first line must be '# yaml-language-server: $schema=…'"
    schema_path = (path.parent / named[1]).resolve()
    assert schema_path.parent == SCHEMAS
    published = json.loads(schema_path.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(published)
    mistakes = [
        error.message for error in jsonschema.Draft202012Validator(published).iter_errors(tree.read(text, "x").data)
    ]
    assert mistakes == []
    if schema_path.name == "recipe.schema.json":
        load(path)


def test_the_recipe_schema_refuses_what_the_loader_refuses(tmp_path: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    registry.load_builtin()
    published = json.loads((SCHEMAS / "recipe.schema.json").read_text(encoding="utf-8"))
    validator = jsonschema.Draft202012Validator(published)
    good = "source: [{type: folder, path: m}]\noutput: {path: o}\n"
    assert list(validator.iter_errors(tree.read(good, "x").data)) == []
    for addition in (
        "filtres: []\n",
        "scan: {check: decod}\n",
        "transforms: {image: [{op: resise}]}\n",
        "transforms: {image: [{op: resize, mode: covr}]}\n",
        "buckets: {image: {count: 0}}\n",
        "limits: {memory: lots}\n",
        "seed: three\n",
    ):
        path = tmp_path / "recipe.yaml"
        path.write_text(good + addition, encoding="utf-8")
        assert list(validator.iter_errors(tree.read(good + addition, "x").data)), addition
        with pytest.raises(ConfigError):
            load(path)
