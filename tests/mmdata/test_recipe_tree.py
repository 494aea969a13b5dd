"""YAML with line numbers: scalars of YAML 1.2, anchors, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from mmdata.errors import ConfigError
from mmdata.recipe import tree

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(blacklist_categories=("Cs", "Cc", "Cn")))
)
DATA = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text("abyesno<=~ 01", min_size=1), inner)
)


@given(DATA)
def test_what_is_written_is_read_back_equal(data: Any) -> None:
    assert tree.read(tree.write({"data": data}), "x").data == {"data": data}


@given(DATA)
def test_what_is_written_means_the_same_to_other_yaml_readers(data: Any) -> None:
    assert yaml.safe_load(tree.write({"data": data})) == {"data": data}


def test_scalars_follow_yaml_1_2() -> None:
    text = "[1e-3, .5, 012, 0x1F, 0o17, yes, no, on, 1_000, 1:30, 2020-01-01, ~, null, true, '1', -3]"
    assert tree.read(text, "x").data == [
        *(0.001, 0.5, 12, 31, 15, "yes", "no", "on", "1_000", "1:30", "2020-01-01", None, None, True, "1", -3)
    ]


def test_every_value_knows_its_line() -> None:
    read = tree.read("a: 1\nb:\n  - x\n  - {c: 2,\n     d: 3}\n", "f.yaml")
    assert read.where(("a",)) == "f.yaml:1"
    assert read.where(("b", 0)) == "f.yaml:3"
    assert read.where(("b", 1, "d")) == "f.yaml:5"
    assert read.where(("b", 1, "nothing", 3)) == "f.yaml:4"


def test_anchors_aliases_and_merge_keys_work() -> None:
    text = "a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\nc: {<<: [*a, {z: 4, x: 9}]}\nd: *a\n"
    assert tree.read(text, "x").data == {
        "a": {"x": 1, "y": 2},
        "b": {"y": 3, "x": 1},
        "c": {"x": 1, "y": 2, "z": 4},
        "d": {"x": 1, "y": 2},
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3", "f:3: the key 'a' is already written on line 1"),
        ("a:\n\t- b", "f:2: a tab is used for indentation"),
        ("a: b: c", "f:1: not valid YAML: a second ':'"),
        ("a: 1\nb: [1, 2\n", "f:3: not valid YAML: expected ',' or ']'"),
        ("a: &x [*x]", "f:1: an anchor contains itself"),
        ("a: &x {<<: *x}", "f:1: an anchor contains itself"),
        ("a: *nothing", "f:1: not valid YAML: found undefined alias"),
        ("a: 1\n--- \nb: 2", "f:2: a recipe is one YAML document"),
        ("a: !!python/object/apply:os.system [ls]", "f:1: the tag .* is not allowed"),
        ("a: !mine x", "f:1: the tag '!mine' is not allowed"),
        ("a: !!int many", "f:1: 'many' is not a valid int"),
        ("1: 2", "f:1: a key must be a word, found '1'"),
        ("? [a]\n: 2", "f:1: a key must be a word, found a list"),
        ("a: {{x}}", "f:1: a key must be a word"),
        ("<<: 3", "f:1: '<<' merges mappings only"),
        ('\na: "\x01"', "f:2: the character U\\+0001"),
        ("a: " + "[" * 5000, "nested too deeply"),
        (
            "a: &a [x,x,x,x,x,x,x,x,x,x]\n"
            "b: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\n"
            "c: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]\n"
            "d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c]\n"
            "e: [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d]",
            "more than 100000 values",
        ),
    ],
)
def test_what_a_recipe_must_not_hold_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tree.read(text, "f")
