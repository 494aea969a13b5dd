"""Checks of a recipe that need several sections: columns in expressions, lengths, folders inside each other.

Knows the catalog's columns and the expression grammar; opens no file but resolves symbolic links in local paths.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import pyarrow as pa

from mmdata.planning import expressions
from mmdata.recipe.base import MODALITIES, find_operators
from mmdata.recipe.explain import Problem
from mmdata.recipe.model import Recipe, default_catalog
from mmdata.recipe.words import nearest, suggest
from mmdata.schema import CATALOG

READ_SCHEMES = ("file", "s3", "gs", "az", "http", "https", "memory")
WRITE_SCHEMES = ("file", "s3", "gs", "az", "memory")


def check(recipe: Recipe) -> Iterator[Problem]:
    """Every mistake that no single section shows."""
    columns = known_columns(recipe)
    yield from _statistics(recipe)
    yield from _filters(recipe, columns)
    yield from _lengths(recipe, columns)
    yield from _targets(recipe)
    yield from _schemes(recipe)
    yield from _folders(recipe)


def known_columns(recipe: Recipe) -> dict[str, pa.DataType]:
    """Catalog columns that expressions may name: the built-in ones and those of the requested statistics."""
    columns = {field.name: field.type for field in CATALOG if not pa.types.is_nested(field.type)}
    for arguments in recipe.scan.statistics:
        for operator in find_operators("statistic", name=getattr(arguments, "op", "")):
            for name, kind in operator.columns.items():
                columns.setdefault(name if name in CATALOG.names else f"stat.{name}", kind)
    return columns


def _statistics(recipe: Recipe) -> Iterator[Problem]:
    seen: dict[str, int] = {}
    for number, arguments in enumerate(recipe.scan.statistics):
        name = str(getattr(arguments, "op", ""))
        if name in seen:
            message = f"the statistic '{name}' is already listed at scan.statistics.{seen[name]}; remove one of the two"
            yield Problem(("scan", "statistics", number), message)
        seen.setdefault(name, number)


def _filters(recipe: Recipe, columns: dict[str, pa.DataType]) -> Iterator[Problem]:
    names: dict[str, int] = {}
    for number, rule in enumerate(recipe.filters):
        if rule.name in names:
            message = f"the name '{rule.name}' is taken by filters.{names[rule.name]}; give each filter its own"
            yield Problem(("filters", number), message)
        names.setdefault(rule.name, number)
        try:
            expression = expressions.parse(rule.keep)
        except ValueError as error:
            yield Problem(("filters", number), str(error))
            continue
        unknown = [
            wrong for column in sorted(expression.columns) if (wrong := _column_mistake(column, columns, recipe))
        ]
        for wrong in unknown:
            yield Problem(("filters", number), wrong)
        if not unknown:
            try:  # on no rows: types that do not go together show all the same
                expression.evaluate(pa.schema(list(columns.items())).empty_table())
            except ValueError as error:
                yield Problem(("filters", number), _plain_types(str(error)))


def _plain_types(message: str) -> str:
    """Arrow's complaint about types in a person's words."""
    found = re.search(r"Function '\w+' has no kernel matching input types \((.*)\)", message)
    if found is None:
        return message
    kinds = [_KINDS.get(kind.strip(), kind.strip()) for kind in found[1].split(",")]
    wrong = f"{' and '.join(kinds)} do not go together" if len(kinds) > 1 else f"this cannot be done with {kinds[0]}"
    return message[: found.start()] + wrong


_KINDS = {
    "string": "text",
    **dict.fromkeys(("int16", "int32", "int64", "float", "double"), "a number"),
    "bool": "a truth value",
}


def _column_mistake(column: str, columns: dict[str, pa.DataType], recipe: Recipe) -> str | None:
    if column == "text_tokens" and not _measured(recipe, "text_tokens"):
        return "nothing measures the column 'text_tokens'; add {op: text_tokens, tokenizer: FOLDER} to scan.statistics"
    if column in columns:
        return None
    plain = column.removeprefix("stat.")
    if f"stat.{plain}" in columns:
        return f"unknown column '{column}'; did you mean 'stat.{plain}'?"
    for operator in find_operators("statistic"):
        if plain in operator.columns:
            return f"nothing measures the column '{column}'; add '{operator.name}' to scan.statistics"
    unmeasured = {name: operator.name for operator in find_operators("statistic") for name in operator.columns}
    near = nearest(column, [*columns, *expressions.DERIVED])
    if near is None and (other := nearest(plain, unmeasured)) is not None:
        return f"unknown column '{column}'; did you mean 'stat.{other}' (add '{unmeasured[other]}' to scan.statistics)?"
    return f"unknown column '{column}'{suggest(column, [*columns, *expressions.DERIVED])}"


def _measured(recipe: Recipe, column: str) -> bool:
    requested = {getattr(arguments, "op", "") for arguments in recipe.scan.statistics}
    return any(column in operator.columns for operator in find_operators("statistic") if operator.name in requested)


def _lengths(recipe: Recipe, columns: dict[str, pa.DataType]) -> Iterator[Problem]:
    wanted: list[tuple[tuple[str, ...], str]] = []
    if recipe.packing is not None:
        wanted.append((("packing", "length"), recipe.packing.length))
    if recipe.buckets.text is not None:
        wanted.append((("buckets", "text", "length"), recipe.buckets.text.length))
    for place, column in wanted:
        message = _column_mistake(column, columns, recipe)
        if message is None and not _is_number(columns[column]):
            message = f"the column '{column}' is {columns[column]}, not a number; a length must be one"
        if message is not None:
            yield Problem(place, message)


def _targets(recipe: Recipe) -> Iterator[Problem]:
    for modality in MODALITIES:
        if getattr(recipe.buckets, modality) is not None:
            continue
        for number, arguments in enumerate(getattr(recipe.transforms, modality)):
            needs_bucket = getattr(arguments, "needs_bucket", None)
            if needs_bucket is not None and needs_bucket():
                message = f"'{arguments.op}' without a size fits each sample to its bucket, and there are none"
                yield Problem(("transforms", modality, number), f"{message}; add buckets.{modality}, or give it a size")


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _paths(recipe: Recipe) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Every source path with its place."""
    for number, source in enumerate(recipe.source):
        if source.type == "folder":
            yield ("source", number, "path"), source.path
        else:
            many = len(source.path) > 1
            for index, path in enumerate(source.path):
                yield ("source", number, "path", *((index,) if many else ())), path


def _schemes(recipe: Recipe) -> Iterator[Problem]:
    for place, path in _paths(recipe):
        yield from _scheme(place, path, READ_SCHEMES, "read")
        if re.match(r"https?://", path):
            number = place[1]
            assert isinstance(number, int)
            if recipe.source[number].type == "folder":
                yield Problem(place, "a folder cannot be listed over http; name the files in a table, or use s3://")
            elif re.search(r"[*\[]", path):
                yield Problem(place, "http has no globs; use braces such as {000..009}, or list the files")
    yield from _scheme(("output", "path"), recipe.output.path, WRITE_SCHEMES, "written")
    if not _catalog_follows(recipe):
        yield from _scheme(("catalog",), recipe.catalog, WRITE_SCHEMES, "written")


def _catalog_follows(recipe: Recipe) -> bool:
    """Whether the catalog's place is the default, so that a mistake in it is one in `output.path`."""
    return recipe.catalog == default_catalog(recipe.output.path)


def _scheme(place: tuple[str | int, ...], path: str, known: tuple[str, ...], verb: str) -> Iterator[Problem]:
    scheme, separator, _ = path.partition("://")
    if separator and scheme not in known:
        shown = scheme if scheme else "(empty)"
        yield Problem(place, f"'{shown}://' cannot be {verb}{suggest(scheme, known)}")


def _folders(recipe: Recipe) -> Iterator[Problem]:
    output, catalog = _real(recipe.output.path), _real(recipe.catalog)
    if catalog == output or output.startswith(catalog.rstrip("/") + "/"):
        yield Problem(("catalog",), f"the catalog and the output are the same folder or one holds the other: {catalog}")
    place_of_catalog: tuple[str, ...] = ("output", "path") if _catalog_follows(recipe) else ("catalog",)
    written = ((("output", "path"), "output", output), (place_of_catalog, "catalog", catalog))
    seen: dict[tuple[str, str], int] = {}
    for place, path in _paths(recipe):
        number = place[1]
        assert isinstance(number, int)
        source = recipe.source[number]
        twin = seen.setdefault((path, source.key_prefix), number)
        if twin != number:
            yield Problem(place, f"'{path}' is already read by source.{twin}; every key would come twice")
        folder = _real(path if source.type == "folder" else _fixed_folder(path))
        for target, word, location in written:
            if source.type == "folder" and (location + "/").startswith(folder.rstrip("/") + "/"):
                message = (
                    f"the {word} '{location}' lies inside the source folder '{folder}': a later scan would read it"
                )
                yield Problem(target, message + "; choose a folder beside it")
                break
            elif (folder + "/").startswith(location.rstrip("/") + "/"):
                yield Problem(target, f"the source '{path}' lies inside the {word} '{location}'; choose another folder")
                break


def _fixed_folder(pattern: str) -> str:
    """The folder of a file path or glob, up to the first special character."""
    fixed = re.split(r"[*?\[{]", pattern, maxsplit=1)[0]
    return fixed.rpartition("/")[0]


def _real(path: str) -> str:
    """A path that can be compared: links resolved, no slash at the end. URLs stay as they are."""
    if path.startswith("file://"):
        path = path.removeprefix("file://")
    return path.rstrip("/") if "://" in path else os.path.realpath(path)
