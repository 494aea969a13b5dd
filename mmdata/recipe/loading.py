"""From a YAML file and `--set` arguments to a checked `Recipe`, and back. Knows files and lines, no media.

Relative paths in a recipe are relative to the recipe's own folder; those in a `--set` argument to the working folder.
Operators must be registered first (`mmdata.operators.registry.load_builtin()`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mmdata.errors import ConfigError
from mmdata.recipe import explain, tree
from mmdata.recipe.model import Recipe
from mmdata.recipe.sizes import CommandLineText, show
from mmdata.recipe.tree import Place, Tree
from mmdata.recipe.words import nearest

_SHOWN = 20
"""Mistakes listed in one message."""


def load(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Recipe:
    """The recipe in the YAML file `path`, changed by `overrides` (`output.path=out`, `transforms.image.0.mode=pad`).

    Raises ConfigError with a line per mistake: `recipe.yaml:12: filters.0: unknown key 'widht'; did you mean 'width'?`
    """
    name = os.fspath(path)
    return _checked(tree.read(_text(name), name), overrides, os.path.dirname(os.path.abspath(name)), name)


def from_mapping(
    data: Mapping[str, Any], overrides: Sequence[str] = (), folder: str | None = None, name: str = "recipe"
) -> Recipe:
    """A recipe from plain data, checked as `load` does. Relative paths start from `folder` (None: they stay)."""
    return _checked(tree.read(tree.write(dict(data)), name), overrides, folder, name)


def dump(recipe: Recipe) -> str:
    """The resolved recipe as YAML, every default written out; `load` gives an equal recipe."""
    return tree.write(recipe.resolved())


def _checked(document: Tree, overrides: Sequence[str], folder: str | None, name: str) -> Recipe:
    if document.data is None:
        document.data = {}
        if not overrides:
            raise ConfigError(f"{name}: the recipe is empty; it needs at least 'source' and 'output'")
    if not isinstance(document.data, dict):
        found_instead = show(document.data)
        raise ConfigError(
            f"{document.where(())}: expected a mapping of keys such as 'source' and 'output', found {found_instead}"
        )
    for override in overrides:
        _apply(document, override)
    _drop_empty(document.data)
    try:
        recipe = Recipe.model_validate(document.data, context={"folder": folder})
    except ValidationError as error:
        raise _refusal(explain.problems(error, document.data, Recipe), document, name) from None
    from mmdata.recipe import checks

    found = list(checks.check(recipe))
    if found:
        raise _refusal(found, document, name)
    return recipe


def _refusal(problems: Sequence[explain.Problem], document: Tree, name: str) -> ConfigError:
    """One error with a line per mistake, in the order of the file, `--set` last."""

    def order(problem: explain.Problem) -> tuple[bool, int]:
        place = document.where(problem.place)
        number = place.rpartition(":")[2]
        return not place.startswith(f"{name}:"), int(number) if number.isdigit() else 0

    ordered = sorted(problems, key=order)
    lines = [f"{document.where(problem.place) or name}: {problem.text()}" for problem in ordered[:_SHOWN]]
    if len(ordered) > _SHOWN:
        lines.append(f"{name}: and {len(ordered) - _SHOWN} more mistakes")
    return ConfigError("\n".join(dict.fromkeys(lines)))


def _text(name: str) -> str:
    try:
        with open(name, encoding="utf-8-sig") as stream:
            return stream.read()
    except FileNotFoundError:
        raise ConfigError(f"{name}: there is no such file{_similar(name)}") from None
    except IsADirectoryError:
        inside = os.path.join(name, "recipe.yaml")
        mend = f"; did you mean '{inside}'?" if os.path.exists(inside) else ""
        raise ConfigError(f"{name}: this is a folder, not a recipe file{mend}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name}: not UTF-8 text (byte {error.start}); is this a YAML file?") from None
    except OSError as error:
        raise ConfigError(f"{name}: cannot be read: {error.strerror}") from None


def _similar(name: str) -> str:
    folder, base = os.path.split(name)
    try:
        there = [entry for entry in os.listdir(folder or ".") if entry.endswith((".yaml", ".yml"))]
    except OSError:
        return ""
    near = nearest(base, there)
    return f"; did you mean '{Path(folder) / near}'?" if near else ""


def _drop_empty(data: dict[str, Any]) -> None:
    """A section whose lines are all commented out reads as nothing: it is as if it were not written."""
    for key in [key for key, value in data.items() if value is None and key not in ("source", "output")]:
        del data[key]
    for section in ("transforms", "buckets", "encode"):
        inner = data.get(section)
        if isinstance(inner, dict):
            data[section] = {key: value for key, value in inner.items() if value is not None}
    if isinstance(data.get("scan"), dict) and data["scan"].get("statistics", ()) is None:
        data["scan"] = {key: value for key, value in data["scan"].items() if key != "statistics"}


def _apply(document: Tree, argument: str) -> None:
    """Write one `--set` argument into the document."""
    label = f"--set {argument}"
    dotted, separator, text = argument.partition("=")
    parts = [int(part) if part.isdigit() else part for part in dotted.strip().split(".")]
    if not separator or "" in parts:
        raise ConfigError(f"{label}: expected KEY=VALUE with a dotted key, such as output.path=out")
    value = _from_command_line(_value(text, label))
    target = document.data
    for depth, part in enumerate(parts[:-1]):
        target = _step(target, part, parts[depth + 1], label, tuple(parts[:depth]))
    _store(target, parts[-1], value, label, tuple(parts[:-1]))
    place = tuple(parts)
    for known in [known for known in document.lines if known[: len(place)] == place]:
        del document.lines[known]
    for below in _places(value, place):
        document.lines[below] = label
    for end in range(1, len(place)):
        document.lines.setdefault(place[:end], label)


def _value(text: str, label: str) -> Any:
    try:
        return tree.read(text, label).data
    except ConfigError as error:
        raise ConfigError(str(error).replace(f"{label}:1: ", f"{label}: ", 1)) from None


def _step(target: Any, part: str | int, following: str | int, label: str, above: Place) -> Any:
    """The container at `part`, made when it is not there."""
    fresh: Any = [] if isinstance(following, int) else {}
    if isinstance(target, dict):
        if target.get(str(part)) is None:
            target[str(part)] = fresh
        return target[str(part)]
    if isinstance(target, list) and isinstance(part, int):
        if part == len(target):
            target.append(fresh)
        if part < len(target):
            return target[part]
    raise _no_place(target, part, label, above)


def _store(target: Any, part: str | int, value: Any, label: str, above: Place) -> None:
    if isinstance(target, dict):
        target[str(part)] = value
    elif isinstance(target, list) and isinstance(part, int) and part <= len(target):
        target[part : part + 1] = [value]
    else:
        raise _no_place(target, part, label, above)


def _no_place(target: Any, part: str | int, label: str, above: Place) -> ConfigError:
    where = ".".join(str(name) for name in above)
    if isinstance(target, list):
        reason = f"has {len(target)} items" if isinstance(part, int) else f"is a list: use {where}.0 to {where}.N"
        return ConfigError(f"{label}: '{where}' {reason}, there is no '{part}' in it")
    return ConfigError(f"{label}: '{where}' is {show(target)}, there is no '{part}' in it")


def _from_command_line(value: Any) -> Any:
    if isinstance(value, str):
        return CommandLineText(value)
    if isinstance(value, list):
        return [_from_command_line(item) for item in value]
    if isinstance(value, dict):
        return {key: _from_command_line(item) for key, item in value.items()}
    return value


def _places(value: Any, place: Place) -> Iterator[Place]:
    yield place
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from _places(child, (*place, key))
