"""Filter expressions: values known from Python, nulls, and refusals that name place and mend."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmdata.planning.expressions import filter_reasons, parse


@pytest.fixture
def table() -> pa.Table:
    """Four rows; the last is mostly null."""
    return pa.table(
        {
            "width": pa.array([65536, 256, 10, None], pa.int32()),
            "height": pa.array([65536, 512, 10, None], pa.int32()),
            "label": ["cat", "Dög", "x", None],
            "stat.brightness": [1.5, float("nan"), -2.0, None],
            "signed": pa.array([7, -7, 7, None], pa.int64()),
            "tags": [["a"], ["a", "b"], [], None],
            "kind": pa.array(["a", "b", "a", None]).dictionary_encode(),
            "good": [True, False, True, None],
        }
    )


@pytest.mark.parametrize(
    "text, passing, unknown",
    [
        ("width >= 256 and height > 1", [1, 1, 0, 0], 1),
        ("width >= 256\n  and height > 1", [1, 1, 0, 0], 1),
        ("10 < width <= 65536", [1, 1, 0, 0], 1),
        ("width * height > 4000000000", [1, 0, 0, 0], 1),
        ("pixels == 4294967296 or pixels == 100", [1, 0, 1, 0], 1),
        ("aspect < 0.75", [0, 1, 0, 0], 1),
        ("width / 4 == 2.5", [0, 0, 1, 0], 1),
        ("signed % 3 == 1", [1, 0, 1, 0], 1),
        ("signed % 3 == 2", [0, 1, 0, 0], 1),
        ("-signed + 1 < 0", [1, 0, 1, 0], 1),
        ("min(width, height, 300) == 256", [0, 1, 0, 0], 1),
        ("max(width, height) == 512 or abs(signed) != 7", [0, 1, 0, 0], 1),
        ("len(label) == 3", [1, 1, 0, 0], 1),
        ("len(tags) == 2", [0, 1, 0, 0], 1),
        ('lower(label) == "dög"', [0, 1, 0, 0], 1),
        ('startswith(label, "c") or contains(label, "g")', [1, 1, 0, 0], 1),
        ('matches(label, "^[a-z]+$")', [1, 0, 1, 0], 1),
        ('label in ["cat", "x"]', [1, 0, 1, 0], 1),
        ('label not in ("cat", "x")', [0, 1, 0, 0], 1),
        ("signed in [-7, 8]", [0, 1, 0, 0], 1),
        ('kind == "a" and kind in ["a"]', [1, 0, 1, 0], 1),
        ("label is None", [0, 0, 0, 1], 0),
        ("label is not None", [1, 1, 1, 0], 0),
        ("stat.brightness is None", [0, 1, 0, 1], 0),
        ("not stat.brightness > 0", [0, 0, 1, 0], 2),
        ("good", [1, 0, 1, 0], 1),
        ("not good or width is None", [0, 1, 0, 1], 0),
        ("width is None or width > 10", [1, 1, 0, 1], 0),
        ("True", [1, 1, 1, 1], 0),
    ],
)
def test_values(table: pa.Table, text: str, passing: list[int], unknown: int) -> None:
    passes, nulls = parse(text).evaluate(table)
    assert passes.dtype == bool and passes.astype(int).tolist() == passing
    assert nulls == unknown
    assert parse(text).evaluate(table.slice(0, 0))[0].size == 0


def test_columns_are_those_that_must_be_read() -> None:
    expression = parse("aspect < 2 and stat.brightness > 0 and lower(label) == 'x' or pixels > 1")
    assert expression.columns == {"width", "height", "stat.brightness", "label"}


@pytest.mark.parametrize(
    "text, message",
    [
        ("width >= and", "not an expression at character 10"),
        ("width >=", "not an expression at character 9"),
        ("", "missing"),
        ("width == None", "character 10 is not allowed: ask `is None`"),
        ("label == 'ö' and width is 3", "'3' at character 27 is not allowed"),
        ("widths.lower() == 1", "no function 'widths.lower'"),
        ("contians(label, 'a')", "did you mean 'contains'"),
        ("len(label, 2) > 1", "len() takes 1 argument"),
        ("min(width) > 1", "two or more"),
        ("matches(label, label)", "is a string"),
        ("'x' in label", "`in` takes a list"),
        ("width in [height]", "`in` takes a list"),
        ("__import__('os').system('true')", "no function"),
        ("[w for w in width]", "use comparisons"),
        ("width if good else 1", "use comparisons"),
        ("lambda: 1", "use comparisons"),
        ("width ** 99999999", "use comparisons"),
        ("label == f'{width}'", "use comparisons"),
        ("label == b'x'", "only numbers, strings"),
        ("(a := 1)", "use comparisons"),
        ("not " * 5000 + "good", "nested too deeply"),
        ("(" * 5000 + "good" + ")" * 5000, "not an expression|nested too deeply"),
    ],
)
def test_what_is_not_a_filter_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse(text)
    assert any(part in str(caught.value) for part in message.split("|"))


@pytest.mark.parametrize(
    "text, message",
    [
        ("widht > 3", "there is no column 'widht'; did you mean 'width'?"),
        ("stat.brihgtness > 3", "did you mean 'stat.brightness'?"),
        ("label > 3", "'label > 3': Function 'greater'"),
        ("good and lower(width) == 'x'", "in 'lower(width)' at character 10: "),
        ("label == 'ö' and lower(width) == 'x'", "at character 18: "),
        ("matches(label, '(')", "Invalid regular expression"),
        ("width + 1", "gives int64, not true or false"),
        ("width > 99999999999999999999", "too large"),
        ("1" + " + 1" * 900 + " > width", "nested too deeply"),
    ],
)
def test_what_does_not_suit_the_table_is_refused(table: pa.Table, text: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse(text).evaluate(table)
    assert message in str(caught.value)


NUMBERS = st.lists(st.one_of(st.none(), st.integers(-20, 20)), min_size=1, max_size=8)


@given(
    a=NUMBERS,
    divisor=st.integers(1, 5),
    low=st.integers(-20, 20),
    op=st.sampled_from(["<", "<=", "==", "!=", ">", ">="]),
)
@settings(max_examples=100, deadline=None)
def test_arithmetic_is_pythons(a: list[int | None], divisor: int, low: int, op: str) -> None:
    text = f"a % {divisor} + a / {divisor} - 2 * a {op} {low}"
    passes, nulls = parse(text).evaluate(pa.table({"a": pa.array(a, pa.int32())}))
    program = compile(text, "text", "eval")
    assert passes.tolist() == [x is not None and eval(program, {"a": x}) for x in a]
    assert nulls == a.count(None)


def test_the_first_rule_that_a_row_fails_is_named(table: pa.Table) -> None:
    rules = [("large", parse("width > 20")), ("cat", parse("label == 'cat'")), ("all", parse("True"))]
    failing = filter_reasons(table, rules)
    assert failing.dtype == np.int32 and failing.tolist() == [-1, 1, 0, 0]
    assert filter_reasons(table, []).tolist() == [-1] * 4
