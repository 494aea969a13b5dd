"""The base of every recipe section, and the table of operators that floor 3 registers here.

Floor 2 never imports the operators: `mmdata.operators.registry.load_builtin()` fills the table, the recipe reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError

Role = Literal["statistic", "transform"]
"""What an operator does to a sample: measure it (scan) or change it (build)."""

OperatorModality = Literal["image", "video", "audio", "text"]
"""What an operator works on."""

MODALITIES: tuple[OperatorModality, ...] = ("image", "video", "audio", "text")


def mistake(message: str, at: tuple[str | int, ...] = ()) -> PydanticCustomError:
    """A validation error whose message is shown as it is, at this place below the value that was checked."""
    return PydanticCustomError("mistake", "{message}", {"message": message, "at": at})


def _make_strict(node: Any) -> None:
    """Set `strict` on every number, bool and str of a core schema. (Pydantic's own strict mode refuses lists too.)"""
    if isinstance(node, dict):
        if node.get("type") in ("int", "float", "bool", "str"):
            node["strict"] = True
        for key, child in node.items():
            if key not in ("metadata", "serialization"):
                _make_strict(child)
    elif isinstance(node, list):
        for child in node:
            _make_strict(child)


class Section(BaseModel):
    """A strict, frozen part of a recipe: unknown keys and wrong types are refused (`"5"` and `true` are no numbers).

    Sequences are tuples; a list is taken for a tuple. Fields are documented by the docstring under each.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Self:
        """Validate plain data as YAML or JSON gives it. Raises pydantic's ValidationError."""
        return cls.model_validate(data)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        _make_strict(schema)
        return schema

    def plain(self) -> dict[str, Any]:
        """This section as plain JSON data, defaults filled in."""
        data: dict[str, Any] = self.model_dump(mode="json")
        return data


@dataclass(frozen=True)
class Operator:
    """A registered operator: its name, where it applies, its argument model, and the columns a statistic fills."""

    name: str
    role: Role
    modality: OperatorModality
    model: type[Section]
    columns: Mapping[str, Any] = field(default_factory=dict)
    """Statistics: name of each measured value to its Arrow type. `catalog_column` tells the column it lands in."""


_operators: dict[tuple[Role, OperatorModality, str], Operator] = {}


def register_operator(
    name: str, role: Role, modality: OperatorModality, model: type[Section], columns: Mapping[str, Any] | None = None
) -> Operator:
    """Make an operator known to recipes.

    A statistic may be registered for several modalities under one name (a recipe requests it once), with the same
    arguments in each. Raises ValueError when the name is taken by another model.
    """
    operator = Operator(name, role, modality, model, dict(columns or {}))
    taken = _operators.get((role, modality, name))
    if taken is not None and _origin(taken.model) != _origin(model):
        raise ValueError(f"{role} '{name}' for {modality} is registered by {_origin(taken.model)} and {_origin(model)}")
    if role == "statistic":
        for other in find_operators(role, name=name):
            if list(other.model.model_fields) != list(model.model_fields):
                raise ValueError(
                    f"statistic '{name}' must take the same arguments for {modality} and {other.modality}: "
                    f"{sorted(model.model_fields)} is not {sorted(other.model.model_fields)}"
                )
    _operators[role, modality, name] = operator
    return operator


def find_operators(
    role: Role | None = None, modality: OperatorModality | None = None, name: str | None = None
) -> list[Operator]:
    """Registered operators that match everything given, sorted by role, modality, name."""
    return [
        _operators[key]
        for key in sorted(_operators)
        if (role is None or key[0] == role)
        and (modality is None or key[1] == modality)
        and (name is None or key[2] == name)
    ]


def _origin(model: type[Section]) -> str:
    return f"{model.__module__}.{model.__qualname__}"
