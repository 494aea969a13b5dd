"""How a recipe field holds operators: a name, or a mapping with `op` and arguments, checked by its own model.

Knows the table of registered operators, not the operators.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationError, ValidationInfo
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from mmdata.recipe.base import Operator, OperatorModality, Role, Section, find_operators, mistake
from mmdata.recipe.sizes import show
from mmdata.recipe.words import suggest

PLACEHOLDER = "x-operator"
"""Stands in a section's JSON Schema for the operators of a field, which are known only when they are registered."""


@dataclass(frozen=True)
class OperatorIn:
    """Field annotation: one operator of this role (and modality). Validates to an instance of its argument model."""

    role: Role
    modality: OperatorModality | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_plain_validator_function(
            self.validate, serialization=core_schema.plain_serializer_function_ser_schema(Section.plain)
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {PLACEHOLDER: definition_name(self.role, self.modality)}

    def validate(self, value: Any, info: ValidationInfo) -> Section:
        """The argument model's instance. A mistake in the arguments is one error that carries the model's own."""
        if isinstance(value, Section):
            operator = self.find(getattr(value, "op", ""), written=False)
            if isinstance(value, operator.model):
                return value
            value = value.plain()
        arguments = {"op": value} if isinstance(value, str) else value
        if not isinstance(arguments, Mapping):
            raise mistake(f"expected the name of a {self.role} or a mapping with 'op', found {show(value)}")
        if "op" not in arguments:
            near = next((key for key in arguments if self.known(str(key))), None)
            mend = f"; write 'op: {near}'" if near is not None else suggest_missing(arguments)
            raise mistake(f"a {self.role} needs the key 'op' with its name{mend}")
        name = arguments["op"]
        if not isinstance(name, str):
            raise mistake(f"expected the name of a {self.role}, found {show(name)}", at=("op",))
        operator = self.find(name, written=not isinstance(value, str))
        try:
            return operator.model.model_validate(dict(arguments), context=info.context)
        except ValidationError as error:
            raise PydanticCustomError(
                "operator_arguments",
                "wrong arguments of {op}",
                {"op": name, "errors": error.errors(include_url=False), "model": operator.model},
            ) from None

    def known(self, name: str) -> bool:
        return bool(find_operators(self.role, self.modality, name))

    def find(self, name: str, *, written: bool) -> Operator:
        """The operator of that name; the error names the nearest, or the modality that the name belongs to."""
        found = find_operators(self.role, self.modality, name)
        if found:
            return found[0]
        at = ("op",) if written else ()
        everywhere = find_operators(name=name)
        if everywhere:
            uses = sorted({f"a {other.role} for {other.modality}" for other in everywhere})
            wanted = f"a {self.role}" + (f" for {self.modality}" if self.modality else "")
            raise mistake(f"'{name}' is {' and '.join(uses)}, not {wanted}", at=at)
        names = {operator.name for operator in find_operators(self.role, self.modality)}
        kind = f"{self.modality} {self.role}" if self.modality else self.role
        raise mistake(f"unknown {kind} '{name}'{suggest(name, names)}", at=at)


def suggest_missing(arguments: Mapping[str, Any]) -> str:
    """`; did you mean 'op'?` when a key looks like a misspelt `op`."""
    for key in arguments:
        if str(key).lower() in ("name", "type", "operator", "opp", "po", "o"):
            return f" (found '{key}'); did you mean 'op'?"
    return ""


def definition_name(role: Role, modality: OperatorModality | None) -> str:
    """Name of the JSON Schema definition that lists the operators of a field."""
    return f"{modality}_{role}" if modality else role
