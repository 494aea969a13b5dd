"""Write the published contracts in schemas/ from the code: the recipe's JSON Schema, the Arrow schemas of catalog,
index and quarantine, and the manifest's JSON Schema.

python tools/export_schemas.py [FOLDER]      default: schemas/ beside this folder
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
from pydantic import TypeAdapter

from mmdata import schema
from mmdata.operators import registry
from mmdata.recipe import json_schema
from mmdata.recipe.jsonschema import SCHEMA_ID
from mmdata.shards.dataset import Manifest

FOLDER = Path(__file__).resolve().parents[1] / "schemas"


def documents() -> dict[str, str]:
    """File name to content of every published schema."""
    registry.load_builtin()
    contents: dict[str, Any] = {
        "recipe.schema.json": json_schema(),
        "manifest.schema.json": manifest_schema(),
        "catalog.json": arrow_schema(
            "catalog",
            schema.CATALOG,
            "A row per sample, as the scan found it; statistics follow as columns `stat.NAME`.",
        ),
        "index.json": arrow_schema("index", schema.INDEX, "A row per sample of a dataset, in shard order."),
        "quarantine.json": arrow_schema(
            "quarantine", schema.QUARANTINE, "A row per sample that is not in the shards, with the reason."
        ),
    }
    return {name: json.dumps(content, indent=2, ensure_ascii=False) + "\n" for name, content in contents.items()}


def manifest_schema() -> dict[str, Any]:
    """JSON Schema of `manifest.json`: the manifest's fields, and the totals and checksum that are written with them."""
    own = TypeAdapter(Manifest).json_schema()
    added: dict[str, Any] = {
        name: {"type": "integer", "minimum": 0, "title": name.title()} for name in ("samples", "bytes")
    }
    added["xxh3"] = {"type": "string", "title": "Xxh3", "description": "xxh3-128 of this file without this field"}
    return {"$schema": SCHEMA_ID, **own, "title": "Tessera manifest", "properties": {**own["properties"], **added}}


def arrow_schema(name: str, columns: pa.Schema, description: str) -> dict[str, Any]:
    """An Arrow schema as JSON: each column's name, type and nullability, with the columns inside lists of structs."""
    return {
        "name": name,
        "version": schema.FORMAT_VERSION,
        "description": description,
        "columns": [_column(field) for field in columns],
    }


def _column(field: pa.Field) -> dict[str, Any]:
    kind, inner = field.type, field.type
    while pa.types.is_list(inner):
        inner = inner.value_type
    if not pa.types.is_struct(inner):
        return {"name": field.name, "type": str(kind), "nullable": field.nullable}
    shown = "list<struct>" if kind != inner else "struct"
    return {"name": field.name, "type": shown, "nullable": field.nullable, "columns": [_column(part) for part in inner]}


def main(folder: Path) -> int:
    """Write every schema that differs into `folder`; returns the exit code."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in documents().items():
        path = folder / name
        if not path.exists() or path.read_text(encoding="utf-8") != content:
            path.write_text(content, encoding="utf-8")
            print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER))
