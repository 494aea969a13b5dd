"""Text statistics and transforms: lengths, caption choice, templates."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from mmdata.errors import ConfigError, InvalidSample
from mmdata.operators import text
from mmdata.operators.registry import Context
from mmdata.operators.text import SelectCaption, Template, TextTokens, text_length


def context(key: str = "a") -> Context:
    return Context(seed=7, leaf="data", pass_=0, key=key)


def test_text_length_counts_characters_not_bytes() -> None:
    assert text_length("naïve 猫") == {"text_chars": 7}


def write_word_tokenizer(folder: Path) -> Path:
    """A tokenizer.json whose tokens are words between spaces; it adds [CLS] in front as a special token."""
    vocabulary = {"[UNK]": 0, "[CLS]": 1, "a": 2, "cat": 3}
    special = {"special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "version": "1.0",
        "truncation": {"max_length": 2, "strategy": "LongestFirst", "stride": 0, "direction": "Right"},
        "padding": None,
        "added_tokens": [{"id": 1, "content": "[CLS]", **special}],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [1], "tokens": ["[CLS]"]}},
        },
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
    }
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return folder


@pytest.fixture(autouse=True)
def _fresh_tokenizers() -> None:
    text._load_tokenizer.cache_clear()


def test_text_tokens_counts_tokens_untruncated(tmp_path: Path) -> None:
    folder = str(write_word_tokenizer(tmp_path / "words"))
    assert TextTokens(tokenizer=folder).measure("a cat on a mat") == {"text_tokens": 5}
    assert TextTokens(tokenizer=folder, special_tokens=True).measure("a cat on a mat") == {"text_tokens": 6}


def test_text_tokens_names_the_missing_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_word_tokenizer(tmp_path / "words")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ConfigError, match="pip install tokenizers"):
        TextTokens(tokenizer=str(folder)).prepare()


def test_text_tokens_without_tokenizer_json_names_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vocab.txt").write_text("a\n")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ConfigError, match="pip install transformers"):
        TextTokens(tokenizer=str(tmp_path)).prepare()


def test_text_tokens_refuses_a_folder_that_is_absent_or_holds_no_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        TextTokens(tokenizer=str(tmp_path / "none")).prepare()
    with pytest.raises(ConfigError, match="there is no tokenizer"):
        TextTokens(tokenizer=str(tmp_path)).prepare()


def test_a_length_profile_changes_with_the_tokenizer_and_the_arguments(tmp_path: Path) -> None:
    one, two = write_word_tokenizer(tmp_path / "one"), write_word_tokenizer(tmp_path / "two")
    profile = TextTokens(tokenizer=str(one)).profile()
    assert profile == TextTokens(tokenizer=str(two)).profile()
    assert profile != TextTokens(tokenizer=str(one), special_tokens=True).profile()
    (two / "tokenizer.json").write_text("{}")
    assert profile != TextTokens(tokenizer=str(two)).profile()


FIELDS: dict[str, Any] = {"txt": "short", "json": {"caption": "the longest one", "captions": ["x", "", "yy"]}, "cls": 3}


@pytest.mark.parametrize(
    ("arguments", "chosen"),
    [
        ({}, "short"),
        ({"candidates": ["json.caption", "txt"]}, "the longest one"),
        ({"candidates": ["json.none", "txt"]}, "short"),
        ({"candidates": ["txt", "json.caption"], "by": "longest"}, "the longest one"),
        ({"candidates": ["json.captions"], "by": "longest"}, "yy"),
        ({"candidates": ["json.captions.2"]}, "yy"),
    ],
)
def test_select_caption_takes_the_first_or_the_longest(arguments: dict[str, Any], chosen: str) -> None:
    result = SelectCaption.parse(arguments).apply(FIELDS, context())
    assert result["txt"] == chosen
    assert FIELDS["txt"] == "short"


def test_select_caption_writes_where_it_is_told() -> None:
    result = SelectCaption(candidates=("json.caption",), to="caption.txt").apply(FIELDS, context())
    assert result["caption.txt"] == "the longest one" and result["txt"] == "short"


def test_random_captions_follow_their_weights_and_repeat_for_a_key() -> None:
    select = SelectCaption.parse({"candidates": ["txt", "json.captions"], "by": "random", "weights": [3, 1]})
    drawn = [select.apply(FIELDS, context(f"k{number}"))["txt"] for number in range(4000)]
    assert drawn == [select.apply(FIELDS, context(f"k{number}"))["txt"] for number in range(4000)]
    counts = Counter(drawn)
    # Shares 3/4, 1/8, 1/8; five standard deviations of a share of 4000 draws are under 0.04.
    assert counts["short"] / 4000 == pytest.approx(3 / 4, abs=0.04)
    assert counts["x"] / 4000 == pytest.approx(1 / 8, abs=0.04)
    assert counts["yy"] / 4000 == pytest.approx(1 / 8, abs=0.04)


def test_random_captions_are_equally_likely_without_weights() -> None:
    select = SelectCaption.parse({"candidates": ["txt", "json.captions"], "by": "random"})
    counts = Counter(select.apply(FIELDS, context(f"k{number}"))["txt"] for number in range(3000))
    assert set(counts) == {"short", "x", "yy"}
    assert all(count / 3000 == pytest.approx(1 / 3, abs=0.045) for count in counts.values())


def test_a_weight_of_zero_is_never_drawn() -> None:
    select = SelectCaption.parse({"candidates": ["txt", "json.caption"], "by": "random", "weights": [0, 1]})
    assert {select.apply(FIELDS, context(f"k{n}"))["txt"] for n in range(50)} == {"the longest one"}


def test_a_sample_without_caption_is_an_error_or_empty() -> None:
    for by in ("order", "longest", "random"):
        arguments = {"candidates": ["json.none", "cls"], "by": by}
        with pytest.raises(InvalidSample, match=r"no caption in json\.none, cls"):
            SelectCaption.parse(arguments).apply(FIELDS, context())
        assert SelectCaption.parse({**arguments, "missing": "empty"}).apply(FIELDS, context())["txt"] == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"weights": [1]}, "by: random"),
        ({"by": "random", "weights": [1, 2]}, "2 numbers for 1 candidates"),
        ({"by": "random", "weights": [0]}, "more than 0"),
        ({"by": "random", "weights": [-1]}, "greater than or equal to 0"),
        ({"candidates": []}, "at least 1"),
    ],
)
def test_select_caption_refuses_impossible_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        SelectCaption.parse(arguments)


@pytest.mark.parametrize(
    ("template", "written"),
    [
        ("a photo of {label}: {txt}", "a photo of 3: short"),
        ("{cls}", "3"),
        ("{json.captions.0} {{txt}}", "x {txt}"),
        ("tags: {json.captions}", "tags: x, , yy"),
    ],
)
def test_template_fills_in_fields(template: str, written: str) -> None:
    assert Template(text=template).apply(FIELDS, context()) == {**FIELDS, "txt": written}


def test_template_without_its_field_is_an_error_or_empty() -> None:
    with pytest.raises(InvalidSample, match="the sample has no 'author'"):
        Template(text="by {author}").apply(FIELDS, context())
    assert Template(text="by {author}.", missing="empty").apply(FIELDS, context())["txt"] == "by ."


def test_template_does_not_print_mappings() -> None:
    with pytest.raises(InvalidSample, match="'json' is a mapping"):
        Template(text="{json}").apply(FIELDS, context())


@pytest.mark.parametrize("template", ["no field", "{", "{}", "{txt!r}", "{txt:>3}", "}{"])
def test_template_refuses_what_is_not_one(template: str) -> None:
    with pytest.raises(ValidationError):
        Template(text=template)
