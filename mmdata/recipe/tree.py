"""YAML to plain data that remembers its lines. Knows YAML, not recipes.

Scalars follow YAML 1.2, as editors with a JSON Schema do: only `true` and `false` are booleans, `1e-3` is a number,
`1:30` and dates are text. Anchors, aliases and merge keys work; a key that is written twice is a mistake.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from mmdata.errors import ConfigError

Place = tuple[str | int, ...]
"""Keys and list positions from the root to a value."""

_MAX_NODES = 100_000
_TAG = "tag:yaml.org,2002:"
_RESOLVERS: tuple[tuple[str, str, str], ...] = (
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF"),
    ("int", r"^(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)$", "-+0123456789"),
    (
        "float",
        r"^(?:[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$",
        "-+.0123456789",
    ),
    ("merge", r"^(?:<<)$", "<"),
    ("null", r"^(?:~|null|Null|NULL|)$", "~nN"),
)


@dataclass
class Tree:
    """Plain data and where each part of it was written."""

    data: Any
    lines: dict[Place, str] = field(default_factory=dict)
    """Place to `FILE:LINE`, or to the `--set` argument that wrote it. A key's own line, not its value's."""

    def where(self, place: Place) -> str:
        """Where `place`, or the nearest part around it, was written."""
        for end in range(len(place), -1, -1):
            if place[:end] in self.lines:
                return self.lines[place[:end]]
        return ""


class _Loader(yaml.SafeLoader):
    """SafeLoader with the scalars of YAML 1.2's core schema."""

    yaml_implicit_resolvers = {}  # noqa: RUF012 (typed by the base; add_implicit_resolver fills it below)


class _Dumper(yaml.SafeDumper):
    """SafeDumper that quotes text which YAML 1.1 or 1.2 would read as something else, and spells no anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


for _kind in (_Loader, _Dumper):
    for _name, _pattern, _first in _RESOLVERS:
        _kind.add_implicit_resolver(_TAG + _name, re.compile(_pattern), [*_first, *([""] if _name == "null" else [])])


def read(text: str, name: str) -> Tree:
    """The one document of `text`; `name` is the file's name in messages. Raises ConfigError with the line."""
    loader = None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        tree = Tree(None)
        _Builder(loader, name, tree).build(node, (), f"{name}:1")
        return tree
    except RecursionError:
        raise ConfigError(f"{name}:1: lists or mappings are nested too deeply") from None
    except yaml.YAMLError as error:
        raise ConfigError(_syntax(error, text, name)) from None
    finally:
        if loader is not None:
            loader.dispose()


def read_value(text: str) -> Any:
    """The value of a `--set` argument, read as YAML. Raises ConfigError."""
    return read(text, "--set").data


def write(data: Any) -> str:
    """`data` as YAML that `read` gives back equal."""
    text: str = yaml.dump(
        data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110, default_flow_style=False
    )
    return text


class _Builder:
    """Walks a node tree once: constructs plain data, records lines, refuses what recipes must not hold."""

    def __init__(self, loader: _Loader, name: str, tree: Tree) -> None:
        self.loader, self.name, self.tree = loader, name, tree
        self.open: set[int] = set()
        self.count = 0

    def build(self, node: yaml.Node | None, place: Place, where: str) -> None:
        self.tree.lines[place] = where
        self.tree.data = None if node is None else self.value(node, place)

    def value(self, node: yaml.Node, place: Place) -> Any:
        self.count += 1
        if self.count > _MAX_NODES:
            raise self.wrong(node, f"the file has more than {_MAX_NODES} values once its anchors are followed")
        if isinstance(node, yaml.ScalarNode):
            return self.scalar(node)
        if id(node) in self.open:
            raise self.wrong(node, "an anchor contains itself")
        self.open.add(id(node))
        try:
            return self.sequence(node, place) if isinstance(node, yaml.SequenceNode) else self.mapping(node, place)
        finally:
            self.open.discard(id(node))

    def scalar(self, node: yaml.ScalarNode) -> Any:
        kind = node.tag.removeprefix(_TAG)
        try:
            if kind == "int":
                return _integer(node.value)
            if kind in ("str", "bool", "float", "null", "merge"):
                return node.value if kind == "merge" else self.loader.construct_object(node)
        except (ValueError, KeyError):
            raise self.wrong(node, f"'{node.value[:40]}' is not a valid {kind}") from None
        raise self.wrong(node, f"the tag '{node.tag}' is not allowed in a recipe")

    def sequence(self, node: yaml.SequenceNode, place: Place) -> list[Any]:
        if node.tag != _TAG + "seq":
            raise self.wrong(node, f"the tag '{node.tag}' is not allowed in a recipe")
        items = []
        for number, child in enumerate(node.value):
            self.tree.lines[(*place, number)] = self.at(child)
            items.append(self.value(child, (*place, number)))
        return items

    def mapping(self, node: yaml.Node, place: Place) -> dict[str, Any]:
        if node.tag != _TAG + "map":
            raise self.wrong(node, f"the tag '{node.tag}' is not allowed in a recipe")
        result: dict[str, Any] = {}
        for key_node, child in self.pairs(node):
            key = self.key(key_node)
            self.tree.lines[(*place, key)] = self.at(key_node)
            result[key] = self.value(child, (*place, key))
        return result

    def pairs(self, node: yaml.Node, depth: int = 0) -> Iterator[tuple[yaml.Node, yaml.Node]]:
        """Own keys, then merged ones that are not overridden. A key that is written twice is refused."""
        if depth > 20:
            raise self.wrong(node, "an anchor contains itself")
        first: dict[str, yaml.Node] = {}
        merged: list[yaml.Node] = []
        for key_node, child in node.value:
            if key_node.tag == _TAG + "merge":
                merged.extend(child.value if isinstance(child, yaml.SequenceNode) else [child])
                continue
            key = self.key(key_node)
            if key in first:
                line = first[key].start_mark.line + 1
                raise self.wrong(key_node, f"the key '{key}' is already written on line {line}; remove one of the two")
            first[key] = key_node
            yield key_node, child
        for other in merged:
            if not isinstance(other, yaml.MappingNode):
                raise self.wrong(other, "'<<' merges mappings only")
            for key_node, child in self.pairs(other, depth + 1):
                if (key := self.key(key_node)) not in first:
                    first[key] = key_node
                    yield key_node, child

    def key(self, node: yaml.Node) -> str:
        if not isinstance(node, yaml.ScalarNode):
            raise self.wrong(node, "a key must be a word, found a list or mapping; write braces in quotes")
        if node.tag != _TAG + "str":
            raise self.wrong(node, f"a key must be a word, found '{node.value}'; write it in quotes")
        return str(node.value)

    def at(self, node: yaml.Node) -> str:
        return f"{self.name}:{node.start_mark.line + 1}"

    def wrong(self, node: yaml.Node, message: str) -> ConfigError:
        return ConfigError(f"{self.at(node)}: {message}")


def _integer(text: str) -> int:
    """YAML 1.2: decimal (leading zeros are not octal), `0o17`, `0x1f`."""
    return int(text, 0) if text[:2].lower() in ("0o", "0x") else int(text)


def _syntax(error: yaml.YAMLError, text: str, name: str) -> str:
    """A parser's complaint in a person's words."""
    if isinstance(error, yaml.reader.ReaderError):
        line = text.count("\n", 0, error.position) + 1
        character: Any = error.character
        code = character if isinstance(character, int) else ord(character[:1])
        return f"{name}:{line}: the character U+{code:04X} is not allowed in YAML"
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    line = mark.line + 1 if mark is not None else 1
    problem = getattr(error, "problem", None) or str(error)
    lines = text.splitlines()
    written = lines[line - 1] if line <= len(lines) else ""
    if "\t" in written[: len(written) - len(written.lstrip())] or "'\\t'" in problem:
        return f"{name}:{line}: a tab is used for indentation; YAML allows spaces only"
    if "expected a single document" in str(error):
        return f"{name}:{line}: a recipe is one YAML document; remove what follows '---'"
    if "mapping values are not allowed" in problem:
        return f"{name}:{line}: not valid YAML: a second ':' here, or wrong indentation; quote text with ': ' in it"
    context = getattr(error, "context", None) or ""
    said = f"{problem} {context}".strip()
    return f"{name}:{line}: not valid YAML: {said}; check quotes, brackets and indentation here"
