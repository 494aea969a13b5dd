"""Validation errors in a person's words: place, what is wrong, what was expected, the nearest right word.

Knows the recipe's types (to name the right keys of a place) and pydantic's error types; knows no file.
"""

from __future__ import annotations

import re
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import ValidationError

from mmdata.recipe.base import Section
from mmdata.recipe.operators import OperatorIn
from mmdata.recipe.sizes import show
from mmdata.recipe.tree import Place
from mmdata.recipe.words import nearest, suggest


@dataclass(frozen=True)
class Problem:
    """One mistake in a recipe."""

    place: Place
    """Where: the value that is wrong, or the key that is unknown."""
    message: str
    path: Place | None = None
    """What the message's prefix names, when that is not `place`."""

    def text(self) -> str:
        """`filters.0: unknown key …`."""
        path = self.place if self.path is None else self.path
        prefix = ".".join(str(part) for part in path)
        return f"{prefix}: {self.message}" if prefix else self.message


def problems(error: ValidationError, data: Any, model: type[Section]) -> list[Problem]:
    """What `error` says about `data`, in the order of the data's places."""
    found = list(dict.fromkeys(_explain(error.errors(include_url=False), data, model, ())))
    places = [problem.place for problem in found]
    # A list whose items are wrong counts as empty too: the items say it better.
    return [
        problem
        for problem in found
        if not problem.message.startswith(_EMPTY)
        or not any(len(place) > len(problem.place) and place[: len(problem.place)] == problem.place for place in places)
    ]


def _explain(errors: Iterable[Any], data: Any, model: type[Section], above: Place) -> Iterator[Problem]:
    for error in errors:
        place, missing = _place(error["loc"], data)
        context = error.get("ctx") or {}
        if error["type"] == "operator_arguments":
            value = _at(data, place)
            given = {"op": value} if isinstance(value, str) else value
            yield from _explain(context["errors"], given, context["model"], above + place)
        elif error["type"] == "extra_forbidden":
            parent = place[:-1]
            message = f"unknown key '{place[-1]}'" + _right_key(str(place[-1]), model, parent, data)
            yield Problem(above + place, message, path=above + parent)
        elif error["type"] in ("missing", "union_tag_not_found"):
            tag = str(context.get("discriminator", "")).strip("'")
            word = tag or missing or str(error["loc"][-1])
            if not _misspelt(word, _at(data, place), ["type"] if tag else _keys(_descend(model, place, data))):
                yield Problem(above + place, f"missing key '{word}'")
            elif tag:
                yield Problem(above + place, f"missing key '{word}'; is another key of it misspelt?")
        else:
            yield Problem(above + place + tuple(context.get("at", ())), _message(error, context))


def _message(error: Any, context: Mapping[str, Any]) -> str:
    """One error's message. `error` is an item of pydantic's `ValidationError.errors()`."""
    kind, found = error["type"], show(error.get("input"))
    if kind in ("mistake", "value_error"):
        return str(context.get("message") or context.get("error") or error["msg"])
    if kind in ("literal_error", "enum"):
        return _one_of(error, context, found)
    if kind == "union_tag_invalid":
        choices = re.findall(r"'([^']*)'", str(context.get("expected_tags", "")))
        word = str(context.get("tag"))
        return f"unknown {str(context.get('discriminator', '')).strip(chr(39))} '{word}'" + _choices(word, choices)
    bound = _BOUNDS.get(kind)
    if bound is not None:
        value = context.get(bound[1])
        return f"must be {bound[0]} {value:g}, found {found}" if isinstance(value, (int, float)) else f"found {found}"
    if kind == "too_short":
        least = context.get("min_length", 1)
        return f"{_EMPTY}; list at least {least} {'item' if least == 1 else 'items'}"
    if kind == "too_long":
        return f"at most {context.get('max_length')} items are allowed, found {context.get('actual_length')}"
    if kind == "string_too_short":
        return "must not be empty text"
    if kind == "string_too_long":
        return f"must have at most {context.get('max_length')} characters"
    if kind == "finite_number":
        return f"expected a finite number, found {found}"
    expected = _EXPECTED.get(kind)
    if expected is not None:
        return f"expected {expected}, found {found}" + _hint(kind, error.get("input"))
    return f"{error['msg'][:1].lower()}{error['msg'][1:]}, found {found}"


_EMPTY = "must not be empty"

_BOUNDS: dict[str, tuple[str, str]] = {
    "greater_than": ("more than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("less than", "lt"),
    "less_than_equal": ("at most", "le"),
    "multiple_of": ("a multiple of", "multiple_of"),
}

_EXPECTED: dict[str, str] = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    "string_type": "text",
    **dict.fromkeys(("tuple_type", "list_type", "set_type"), "a list"),
    **dict.fromkeys(
        ("dict_type", "model_type", "model_attributes_type", "dataclass_type"), "a mapping of keys to values"
    ),
    "none_required": "nothing",
}


_SPOKEN = {**dict.fromkeys(("yes", "on", "true"), "true"), **dict.fromkeys(("no", "off", "false"), "false")}


def _hint(kind: str, value: Any) -> str:
    """How to mend a value that has nearly the right type."""
    if isinstance(value, str) and kind.startswith(("int_", "float_")) and re.fullmatch(r"\s*-?[0-9.]+\s*", value):
        return "; remove the quotes"
    if (
        isinstance(value, str)
        and kind.startswith("bool_")
        and value.lower() in ("yes", "no", "on", "off", "true", "false")
    ):
        return f"; write {'true' if value.lower() in ('yes', 'on', 'true') else 'false'}"
    if kind == "string_type" and isinstance(value, (int, float)):
        return f'; write "{show(value)}" in quotes'
    if kind in ("tuple_type", "list_type") and isinstance(value, (str, dict, int, float)):
        return "; start the line with '- ', or use brackets"
    return ""


def _one_of(error: Any, context: Mapping[str, Any], found: str) -> str:
    expected = re.sub(r"\b(True|False)\b", lambda word: f"'{word[0].lower()}'", str(context.get("expected", "")))
    choices = re.findall(r"'([^']*)'", expected)
    if error["loc"] and error["loc"][-1] == "auto" and choices == ["auto"]:
        near = "; did you mean 'auto'?" if isinstance(error.get("input"), str) else ""
        return f"expected 'auto' or a list, found {found}{near}"
    if choices and isinstance(error.get("input"), str):
        return f"unknown value '{error['input']}'" + _choices(error["input"], choices)
    return f"expected {expected.replace(chr(39), '')}, found {found}"


def _choices(word: str, choices: list[str]) -> str:
    near = nearest(word, choices)
    listed = ", ".join(choices)
    return f"; did you mean '{near}'? (one of: {listed})" if near else f"; use one of: {listed}"


def _right_key(word: str, model: type[Section], place: Place, data: Any) -> str:
    """The nearest right key of that place, or the section that the key belongs to, or all keys of the place."""
    known = _keys(_descend(model, place, data))
    near = nearest(word, known)
    if near is None:
        homes = {section for section, kind in _sections(model) if word in kind.model_fields}
        if len(homes) == 1 and not homes & {str(part) for part in place}:
            return f"; it belongs in '{homes.pop()}'"
    return suggest(word, known)


def _misspelt(word: str, there: Any, known: list[str]) -> bool:
    """Whether an unknown key beside looks like the missing one: then that is the mistake to report."""
    if not isinstance(there, Mapping):
        return False
    return nearest(word, [str(key) for key in there if str(key) not in known]) is not None


def _sections(model: type[Section]) -> Iterator[tuple[str, type[Section]]]:
    for name, info in model.model_fields.items():
        for kind in _models(info.annotation, None):
            yield name, kind


def _keys(kind: Any) -> list[str]:
    return list(kind.model_fields) if isinstance(kind, type) and issubclass(kind, Section) else []


def _descend(model: Any, place: Place, data: Any) -> Any:
    """The section type at `place` below `model`; `data` decides between alternatives (source types, operators)."""
    kind = model
    for part in place:
        data = _at(data, (part,))
        if isinstance(part, str):
            if part not in _keys(kind):
                return None
            info = kind.model_fields[part]
            kind = Annotated[info.annotation, *info.metadata] if info.metadata else info.annotation
        if isinstance(part, int) or not isinstance(data, (list, tuple)):
            found = list(_models(kind, data))
            kind = found[0] if found else None
    return kind


def _models(annotation: Any, data: Any) -> Iterator[type[Section]]:
    """Section types inside an annotation; where `data` is known, only those that it chooses."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if isinstance(annotation, type) and issubclass(annotation, Section):
        chosen = annotation.model_fields.get("type")
        tags = get_args(chosen.annotation) if chosen is not None and get_origin(chosen.annotation) is Literal else ()
        if not tags or not isinstance(data, Mapping) or data.get("type") in tags:
            yield annotation
    elif origin is Annotated and any(isinstance(extra, OperatorIn) for extra in inner[1:]):
        return
    elif origin in (Annotated, Union, types.UnionType, tuple):
        for part in inner[:1] if origin is Annotated else inner:
            yield from _models(part, data)


def _place(loc: tuple[str | int, ...], data: Any) -> tuple[Place, str | None]:
    """The part of a pydantic location that is in `data`: names of union branches are left out. Second: a last name that
    is not there (a missing key)."""
    place: list[str | int] = []
    missing: str | None = None
    for part in loc:
        child = _child(data, part)
        if child is _ABSENT:
            missing = str(part)
        else:
            place.append(part)
            data, missing = child, None
    return tuple(place), missing


_ABSENT = object()


def _child(data: Any, part: str | int) -> Any:
    if isinstance(data, Mapping):
        return data.get(part, _ABSENT)
    if isinstance(data, (list, tuple)) and isinstance(part, int) and 0 <= part < len(data):
        return data[part]
    return _ABSENT


def _at(data: Any, place: Place) -> Any:
    for part in place:
        data = _child(data, part)
    return None if data is _ABSENT else data
