"""Filter expressions over catalog columns: a small, safe part of Python's grammar, evaluated by Arrow.

    width >= 256 and 0.5 <= aspect <= 2 and not (label in ["logo", "map"])

Comparisons (chained too), `and`, `or`, `not`, `+ - * / %`, `in`, `is None`, numbers, strings, lists of them, the
columns of the catalog (`stat.brightness`), `aspect` (width / height), `pixels` (width * height), and the functions in
`FUNCTIONS`. A row whose answer is unknown because a column is null (or NaN) does not pass; `is None` asks for that.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

DERIVED: dict[str, tuple[str, ...]] = {"aspect": ("width", "height"), "pixels": ("width", "height")}
"""Names that are computed, and the columns they need."""

_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: pc.equal,
    ast.NotEq: pc.not_equal,
    ast.Lt: pc.less,
    ast.LtE: pc.less_equal,
    ast.Gt: pc.greater,
    ast.GtE: pc.greater_equal,
}

_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: pc.add,
    ast.Sub: pc.subtract,
    ast.Mult: pc.multiply,
    ast.Div: lambda a, b: pc.divide(_float(a), _float(b)),
    ast.Mod: lambda a, b: _modulo(a, b),
}

FUNCTIONS: dict[str, tuple[int | None, Callable[..., Any]]] = {
    "min": (None, lambda *values: pc.min_element_wise(*values, skip_nulls=False)),
    "max": (None, lambda *values: pc.max_element_wise(*values, skip_nulls=False)),
    "abs": (1, pc.abs),
    "len": (1, lambda value: (pc.list_value_length if _is_list(value) else pc.utf8_length)(value)),
    "lower": (1, lambda text: pc.utf8_lower(text)),
    "startswith": (2, lambda text, start: pc.starts_with(text, start)),
    "contains": (2, lambda text, part: pc.match_substring(text, part)),
    "matches": (2, lambda text, pattern: pc.match_substring_regex(text, pattern)),
}
"""Function name to its number of arguments (None: two or more) and what computes it. `matches` searches an RE2
pattern."""

_LITERAL_SECOND = frozenset({"startswith", "contains", "matches"})


@dataclass(frozen=True)
class Expression:
    """A parsed filter: the text, and the catalog columns it needs."""

    text: str
    columns: frozenset[str]
    tree: ast.expr

    def evaluate(self, table: pa.Table) -> tuple[npt.NDArray[np.bool_], int]:
        """Which rows of `table` pass (bool [N]), and how many did not because a null left the answer unknown.

        Raises:
            ValueError: a column is missing, or a value has the wrong type for its place.
        """
        for name in sorted(self.columns):
            if name not in table.column_names:
                raise ValueError(f"'{self.text}': there is no column '{name}'{_nearest(name, table.column_names)}")
        try:
            answer = _Evaluator(table, self.text).visit(self.tree)
        except RecursionError:
            raise ValueError(f"'{self.text[:60]}…' is nested too deeply") from None
        if isinstance(answer, pa.Scalar):
            answer = pa.array([answer.as_py()] * table.num_rows, answer.type)
        if not pa.types.is_boolean(answer.type):
            raise ValueError(f"'{self.text}' gives {answer.type}, not true or false; compare it with something")
        return np.asarray(
            pc.fill_null(answer, False).to_numpy(zero_copy_only=False)
            if isinstance(answer, pa.Array)
            else pc.fill_null(answer, False).to_numpy(),
            dtype=bool,
        ), answer.null_count


def parse(text: str) -> Expression:
    """Parse a filter.

    Raises:
        ValueError: the text is not such an expression; the message names the place and the mend.
    """
    text = " ".join(text.splitlines()).strip()
    if not text:
        raise ValueError("an expression is missing; write for example width >= 256")
    columns: set[str] = set()
    try:
        tree = ast.parse(text, mode="eval").body
        _check(tree, text, columns)
    except SyntaxError as error:
        place = error.offset or len(text) + 1  # the parser says 0 where the text ends too early
        raise ValueError(f"'{text}': not an expression at character {place}: {error.msg}") from None
    except (RecursionError, MemoryError):
        raise ValueError(f"'{text[:60]}…' is nested too deeply") from None
    return Expression(text, frozenset(columns), tree)


def filter_reasons(table: pa.Table, rules: Sequence[tuple[str, Expression]]) -> npt.NDArray[np.int32]:
    """Index of the first rule that each row fails: int32 [N], -1 where it passes all.

    Raises:
        ValueError: as `Expression.evaluate` does.
    """
    failing = np.full(table.num_rows, -1, dtype=np.int32)
    for number, (_, expression) in enumerate(rules):
        passes, _ = expression.evaluate(table)
        failing[(failing < 0) & ~passes] = number
    return failing


def _dotted(node: ast.expr) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        head = _dotted(node.value)
        return None if head is None else f"{head}.{node.attr}"
    return None


def _check(node: ast.expr, text: str, columns: set[str]) -> None:
    """Refuse what is not in the grammar; collect columns."""
    name = _dotted(node)
    if name is not None:
        columns.update(DERIVED.get(name, (name,)))
        return
    if isinstance(node, ast.Constant):
        if node.value is not None and not isinstance(node.value, (bool, int, float, str)):
            raise ValueError(_refused(node, text, "only numbers, strings, True, False and None"))
    elif isinstance(node, ast.BoolOp):
        for value in node.values:
            _check(value, text, columns)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub, ast.UAdd)):
        _check(node.operand, text, columns)
    elif isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        _check(node.left, text, columns)
        _check(node.right, text, columns)
    elif isinstance(node, ast.Compare):
        _check_comparison(node, text, columns)
    elif isinstance(node, ast.Call):
        _check_call(node, text, columns)
    else:
        raise ValueError(_refused(node, text, "use comparisons, and/or/not, + - * / %, in, is None"))


def _check_comparison(node: ast.Compare, text: str, columns: set[str]) -> None:
    _check(node.left, text, columns)
    for op, right in zip(node.ops, node.comparators, strict=True):
        if isinstance(op, (ast.In, ast.NotIn)):
            if not isinstance(right, (ast.List, ast.Tuple)) or not all(map(_is_literal, right.elts)):
                raise ValueError(_refused(right, text, '`in` takes a list of values, such as ["cat", "dog"]'))
        elif isinstance(op, (ast.Is, ast.IsNot)):
            if not (isinstance(right, ast.Constant) and right.value is None):
                raise ValueError(_refused(right, text, "`is` compares with None only"))
        elif isinstance(right, ast.Constant) and right.value is None:
            raise ValueError(_refused(right, text, "ask `is None` or `is not None`"))
        else:
            _check(right, text, columns)


def _check_call(node: ast.Call, text: str, columns: set[str]) -> None:
    name = _dotted(node.func) or "?"
    if name not in FUNCTIONS:
        raise ValueError(_refused(node, text, f"there is no function '{name}'{_nearest(name, FUNCTIONS)}"))
    wanted, _ = FUNCTIONS[name]
    if node.keywords or (len(node.args) != wanted if wanted is not None else len(node.args) < 2):
        count = "two or more arguments" if wanted is None else f"{wanted} argument{'s' if wanted > 1 else ''}"
        raise ValueError(_refused(node, text, f"{name}() takes {count}"))
    literal = node.args[1] if name in _LITERAL_SECOND else None
    if literal is not None and not (isinstance(literal, ast.Constant) and isinstance(literal.value, str)):
        raise ValueError(_refused(literal, text, f"the second argument of {name}() is a string"))
    for argument in node.args:
        _check(argument, text, columns)


def _is_literal(node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return isinstance(node.operand, ast.Constant) and type(node.operand.value) in (int, float)
    return isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float, str, type(None)))


def _refused(node: ast.expr, text: str, mend: str) -> str:
    return f"'{text}': {_place(node, text)} is not allowed: {mend}"


def _place(node: ast.expr, text: str) -> str:
    part = ast.get_source_segment(text, node) or text
    before = text.encode()[: node.col_offset].decode()  # col_offset counts UTF-8 bytes
    return f"'{part}' at character {len(before) + 1}"


def _nearest(name: str, known: Sequence[str] | dict[str, Any]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean '{close[0]}'?" if close else ""


class _Misfit(ValueError):
    """A value has the wrong type for its place, which the message names."""


class _Evaluator:
    """Computes a checked tree over a table, bottom up. Whole numbers count in 64 bits."""

    def __init__(self, table: pa.Table, text: str) -> None:
        self.table, self.text = table, text

    def visit(self, node: ast.expr) -> Any:
        """The value of a node: an Arrow array [N] or scalar. Raises ValueError at the innermost node that fails."""
        try:
            return self._value(node)
        except _Misfit:
            raise
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, OverflowError) as error:
            problem = "the number is too large" if isinstance(error, OverflowError) else str(error).splitlines()[0]
            place = "" if node.col_offset == 0 and node.end_col_offset == len(self.text.encode()) else "in "
            raise _Misfit(f"'{self.text}': {place and place + _place(node, self.text) + ': '}{problem}") from None

    def _value(self, node: ast.expr) -> Any:
        name = _dotted(node)
        if name is not None:
            return self._column(name)
        if isinstance(node, ast.Constant):
            return pa.scalar(node.value)
        if isinstance(node, ast.BoolOp):
            join = pc.and_kleene if isinstance(node.op, ast.And) else pc.or_kleene
            answer = self.visit(node.values[0])
            for value in node.values[1:]:
                answer = join(answer, self.visit(value))
            return answer
        if isinstance(node, ast.UnaryOp):
            value = self.visit(node.operand)
            return (
                pc.invert(value)
                if isinstance(node.op, ast.Not)
                else pc.negate(value)
                if isinstance(node.op, ast.USub)
                else value
            )
        if isinstance(node, ast.BinOp):
            return _ARITHMETIC[type(node.op)](self.visit(node.left), self.visit(node.right))
        if isinstance(node, ast.Call):
            return self._call(node)
        assert isinstance(node, ast.Compare), "the grammar was checked by parse()"
        return self._compare(node)

    def _column(self, name: str) -> Any:
        if name not in DERIVED:
            return _widened(self.table[name])
        width, height = (pc.cast(self.table[each], pa.int64()) for each in DERIVED[name])
        return pc.multiply(width, height) if name == "pixels" else pc.divide(_float(width), _float(height))

    def _call(self, node: ast.Call) -> Any:
        name = _dotted(node.func)
        assert name is not None
        function = FUNCTIONS[name][1]
        if name in _LITERAL_SECOND:
            literal = node.args[1]
            assert isinstance(literal, ast.Constant)
            return function(self.visit(node.args[0]), literal.value)
        return function(*(self.visit(argument) for argument in node.args))

    def _compare(self, node: ast.Compare) -> Any:
        answer: Any = None
        left = self.visit(node.left)
        for op, right_node in zip(node.ops, node.comparators, strict=True):
            if isinstance(op, (ast.In, ast.NotIn)):
                assert isinstance(right_node, (ast.List, ast.Tuple))
                values = [ast.literal_eval(element) for element in right_node.elts]
                found = pc.if_else(pc.is_valid(left), pc.is_in(left, pa.array(values)), pa.scalar(None, pa.bool_()))
                step, right = (pc.invert(found) if isinstance(op, ast.NotIn) else found), left
            elif isinstance(op, (ast.Is, ast.IsNot)):
                step, right = (pc.is_null(left) if isinstance(op, ast.Is) else pc.is_valid(left)), left
            else:
                right = self.visit(right_node)
                step = _COMPARE[type(op)](left, right)
            answer = step if answer is None else pc.and_kleene(answer, step)
            left = right
        return answer


def _widened(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Integers as int64, so that products do not wrap; dictionaries as their values; NaN as null."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_integer(column.type):
        return column.cast(pa.int64())
    if pa.types.is_floating(column.type):
        return pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
    return column


def _is_list(value: Any) -> bool:
    return bool(pa.types.is_list(value.type) or pa.types.is_large_list(value.type))


def _float(value: Any) -> Any:
    return pc.cast(value, pa.float64())


def _modulo(a: Any, b: Any) -> Any:
    """a - b * floor(a / b), as in Python."""
    x, y = _float(a), _float(b)
    return pc.subtract(x, pc.multiply(y, pc.floor(pc.divide(x, y))))
