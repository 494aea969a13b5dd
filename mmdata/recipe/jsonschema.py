"""The recipe's JSON Schema, for editors and other programs: the sections' own, and the arguments of every registered
operator. Knows no file."""

from __future__ import annotations

from typing import Any

from mmdata.recipe.base import MODALITIES, Operator, OperatorModality, Role, find_operators
from mmdata.recipe.model import Recipe
from mmdata.recipe.operators import PLACEHOLDER, definition_name

SCHEMA_ID = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a recipe, with the operators that are registered now."""
    schema = _resolve(Recipe.model_json_schema(mode="validation"))
    definitions: dict[str, Any] = schema.setdefault("$defs", {})
    fields: list[tuple[Role, OperatorModality | None]] = [("statistic", None)]
    fields += [("transform", modality) for modality in MODALITIES]
    for role, modality in fields:
        by_name: dict[str, Operator] = {}
        for operator in find_operators(role, modality):
            by_name.setdefault(operator.name, operator)
        definitions[definition_name(role, modality)] = _choice(role, by_name, definitions)
    _allow_short_forms(definitions)
    return {
        "$schema": SCHEMA_ID,
        "title": "Tessera recipe",
        **{key: value for key, value in schema.items() if key not in ("$defs", "title")},
        "$defs": dict(sorted(definitions.items())),
    }


def _resolve(node: Any) -> Any:
    """The schema with a reference to the definition that lists them in place of each operator field."""
    if isinstance(node, dict):
        if PLACEHOLDER in node:
            return {"$ref": f"#/$defs/{node[PLACEHOLDER]}"}
        return {key: _resolve(value) for key, value in node.items()}
    return [_resolve(value) for value in node] if isinstance(node, list) else node


def _choice(role: Role, operators: dict[str, Operator], definitions: dict[str, Any]) -> dict[str, Any]:
    """A name alone (where every argument has a default), or a mapping whose `op` decides the rest."""
    forms: list[dict[str, Any]] = []
    bare = [name for name, operator in operators.items() if not _required(operator)]
    if bare:
        forms.append({"type": "string", "enum": sorted(bare)})
    for name, operator in operators.items():
        own = operator.model.model_json_schema(mode="validation")
        definitions.update(own.pop("$defs", {}))
        properties = {"op": {"const": name}, **{k: v for k, v in own["properties"].items() if k != "op"}}
        definition = f"{operator.role}_{name}" if role == "statistic" else f"{operator.modality}_{name}"
        definitions[definition] = {
            **{key: value for key, value in own.items() if key not in ("properties", "required", "title")},
            "title": name,
            "properties": properties,
            "required": ["op", *_required(operator)],
        }
        forms.append({"$ref": f"#/$defs/{definition}"})
    return {"anyOf": forms} if forms else {"not": {}}


def _required(operator: Operator) -> list[str]:
    return [name for name, info in operator.model.model_fields.items() if info.is_required()]


def _allow_short_forms(definitions: dict[str, Any]) -> None:
    """What validators accept beside the declared types: one path for a list of one, an expression for a filter."""
    for source in ("TableSource", "WebDatasetSource"):
        _or_text(definitions[source]["properties"], "path")
    media = definitions["TableSource"]["properties"]["media"]
    media["additionalProperties"] = {"anyOf": [{"type": "string"}, media["additionalProperties"]]}
    rule = definitions["Filter"]
    rule["required"] = ["keep"]
    definitions["Filter"] = {"anyOf": [{"type": "string", "minLength": 1}, rule]}


def _or_text(properties: dict[str, Any], name: str) -> None:
    declared = properties[name]
    described = {key: declared.pop(key) for key in ("description", "title") if key in declared}
    properties[name] = {**described, "anyOf": [{"type": "string", "minLength": 1}, declared]}
