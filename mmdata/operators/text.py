"""What can be measured and changed about texts: lengths, choice of a caption, templates.

Texts are the members of a sample that are not media: extension to JSON value. Knows no media. Tokenizers are loaded
from local folders only, and only when a recipe asks for token counts.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
import math
import os
import string
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Protocol, Self

import pyarrow as pa
from pydantic import Field, field_validator, model_validator

from mmdata.errors import ConfigError, InvalidSample
from mmdata.operators.registry import Arguments, Context, TextTransform, statistic, transform
from mmdata.recipe.base import mistake
from mmdata.recipe.sizes import Path

Missing = Literal["error", "empty"]

ALIASES = {"label": ("cls", "label.txt")}
"""Names that templates may use for members: `{label}` is the class label, stored as the number `cls` or as text."""


@statistic("text_length", "text", {"text_chars": pa.int32()})
def text_length(media: str) -> dict[str, int]:
    """Length in characters (Unicode code points): fills the catalog column `text_chars`."""
    return {"text_chars": len(media)}


@statistic("text_tokens", "text", {"text_tokens": pa.int32()})
class TextTokens(Arguments):
    """Length in tokens of a tokenizer: fills the catalog column `text_tokens`."""

    tokenizer: Path
    """Folder with `tokenizer.json` (needs the package tokenizers) or another format that transformers reads."""
    special_tokens: bool = False
    """Count the special tokens that the tokenizer adds around a text."""

    def measure(self, media: str) -> dict[str, int]:
        """Tokens of `media`; the tokenizer is loaded once a process."""
        return {"text_tokens": _load_tokenizer(self.tokenizer)(media, self.special_tokens)}

    def prepare(self) -> None:
        """Load the tokenizer. Raises ConfigError when the folder or the package that reads it is missing."""
        _load_tokenizer(self.tokenizer)

    def profile(self) -> str:
        """128-bit BLAKE2b, hex, of the tokenizer's own files and the arguments: equal profiles count alike."""
        digest = hashlib.blake2b(json.dumps({"special_tokens": self.special_tokens}).encode(), digest_size=16)
        for name in _TOKENIZER_FILES:
            path = os.path.join(self.tokenizer, name)
            if os.path.exists(path):
                with open(path, "rb") as stream:
                    content = stream.read()
                digest.update(f"{name}:{len(content)}:".encode() + content)
        return digest.hexdigest()


_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "spiece.model",
    "special_tokens_map.json",
    "added_tokens.json",
)


class _CountTokens(Protocol):
    def __call__(self, text: str, special_tokens: bool, /) -> int: ...


@functools.lru_cache(maxsize=8)
def _load_tokenizer(folder: str) -> _CountTokens:
    """A function that counts tokens. Reads local files only."""
    if not os.path.isdir(folder):
        raise ConfigError(f"text_tokens: the tokenizer folder '{folder}' does not exist; 'tokenizer' is a local folder")
    single = os.path.join(folder, "tokenizer.json")
    if os.path.exists(single):
        try:
            tokenizers = importlib.import_module("tokenizers")
        except ImportError:
            raise ConfigError(
                f"text_tokens: reading '{single}' needs the package tokenizers; run: pip install tokenizers"
            ) from None
        try:
            fast = tokenizers.Tokenizer.from_file(single)
        except Exception as error:  # the package raises bare Exception for a file it cannot read
            raise ConfigError(f"text_tokens: '{single}' is not a tokenizer: {error}") from error
        fast.no_truncation()
        fast.no_padding()
        return lambda text, special: len(fast.encode(text, add_special_tokens=special).ids)
    if not any(os.path.exists(os.path.join(folder, name)) for name in _TOKENIZER_FILES):
        raise ConfigError(
            f"text_tokens: there is no tokenizer in '{folder}' (tokenizer.json, tokenizer.model, vocab.json …)"
        )
    try:
        transformers = importlib.import_module("transformers")
    except ImportError:
        raise ConfigError(
            f"text_tokens: '{folder}' has no tokenizer.json, so reading it needs the package transformers; "
            f"run: pip install transformers sentencepiece"
        ) from None
    try:
        slow = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, ImportError) as error:
        raise ConfigError(f"text_tokens: the tokenizer in '{folder}' cannot be loaded: {error}") from error
    return lambda text, special: len(slow(text, add_special_tokens=special, truncation=False)["input_ids"])


@transform("select_caption", "text")
class SelectCaption(TextTransform):
    """Choose one caption among several fields."""

    candidates: Annotated[tuple[str, ...], Field(min_length=1)] = ("txt",)
    """Fields that may hold a caption: members (`txt`) or values inside them (`json.captions`). A list in a field is
    several captions. Empty texts do not count."""
    by: Literal["order", "longest", "random"] = "order"
    """The first that is there, the longest in characters (the first of equals), or a draw keyed by sample and pass."""
    weights: tuple[Annotated[float, Field(ge=0)], ...] | None = None
    """For `random`: a weight for each candidate field, shared evenly by the captions in it; by default every caption
    is as likely as any other."""
    to: Annotated[str, Field(min_length=1)] = "txt"
    """Member that receives the caption."""
    missing: Missing = "error"
    """A sample without any caption goes to the quarantine, or gets an empty one."""

    @model_validator(mode="after")
    def _weights_fit(self) -> Self:
        if self.weights is None:
            return self
        if self.by != "random":
            raise mistake("weights need 'by: random'", at=("weights",))
        if len(self.weights) != len(self.candidates):
            raise mistake(
                f"weights has {len(self.weights)} numbers for {len(self.candidates)} candidates; give one for each",
                at=("weights",),
            )
        if sum(self.weights) <= 0:
            raise mistake("at least one weight must be more than 0", at=("weights",))
        return self

    def adds(self) -> tuple[str, ...]:
        """The member `to`."""
        return (self.to,)

    def apply(self, fields: dict[str, Any], context: Context) -> dict[str, Any]:
        """The fields with the chosen caption in `to`. Raises InvalidSample without a caption under `missing: error`."""
        found = [list(_captions(fields, name)) for name in self.candidates]
        texts = [text for group in found for text in group]
        chosen: str | None = None
        if self.by == "random":
            chosen = self._draw(found, context)
        elif texts:
            chosen = texts[0] if self.by == "order" else max(texts, key=len)
        if chosen is None:
            if self.missing == "error":
                raise InvalidSample(f"select_caption: no caption in {', '.join(self.candidates)}")
            chosen = ""
        return {**fields, self.to: chosen}

    def _draw(self, found: list[list[str]], context: Context) -> str | None:
        weights = self.weights or tuple(float(len(group)) for group in found)
        pairs = [
            (text, weight / len(group))
            for group, weight in zip(found, weights, strict=True)
            for text in group
            if weight > 0
        ]
        if not pairs:
            return None
        point = context.draw("select_caption") * math.fsum(weight for _, weight in pairs)
        passed = 0.0
        for text, weight in pairs:
            passed += weight
            if point < passed:
                return text
        return pairs[-1][0]


@transform("template", "text")
class Template(TextTransform):
    """Write a text from fields: `a photo of {label}: {txt}`."""

    text: Annotated[str, Field(min_length=1)]
    """The text, with fields in braces: `{txt}`, `{label}` (the class label), `{json.author}` (a value
    inside a member). `{{` and `}}` are braces."""
    to: Annotated[str, Field(min_length=1)] = "txt"
    """Member that receives the text."""
    missing: Missing = "error"
    """A sample without a named field goes to the quarantine, or the field is empty."""

    @field_validator("text")
    @classmethod
    def _is_template(cls, value: str) -> str:
        try:
            pieces = list(string.Formatter().parse(value))
        except ValueError as error:
            raise mistake(f"not a template: {error}; write '{{{{' and '}}}}' for braces") from None
        names = [(name, spec, conversion) for _, name, spec, conversion in pieces if name is not None]
        if not names:
            raise mistake("a template names at least one field in braces, such as {txt}")
        for name, spec, conversion in names:
            if not name.strip() or spec or conversion:
                raise mistake(f"a field in braces is a name such as {{txt}} or {{json.author}}, found '{{{name}}}'")
        return value

    def adds(self) -> tuple[str, ...]:
        """The member `to`."""
        return (self.to,)

    def apply(self, fields: dict[str, Any], context: Context) -> dict[str, Any]:
        """The fields with the written text in `to`. Raises InvalidSample for a missing field under `missing: error`."""
        parts: list[str] = []
        for literal, name, _, _ in string.Formatter().parse(self.text):
            parts.append(literal)
            if name is not None:
                parts.append(self._value(fields, name))
        return {**fields, self.to: "".join(parts)}

    def _value(self, fields: Mapping[str, Any], name: str) -> str:
        names = (name,) if name in fields else ALIASES.get(name, (name,))
        value = next((found for each in names if (found := look_up(fields, each)) is not None), None)
        if value is None or value == "":
            if self.missing == "error":
                raise InvalidSample(f"template: the sample has no '{name}'")
            return ""
        if isinstance(value, list):
            return ", ".join(str(item) for item in value)
        if isinstance(value, Mapping):
            raise InvalidSample(f"template: '{name}' is a mapping; name a value inside it, such as {{{name}.KEY}}")
        return str(value)


def look_up(fields: Mapping[str, Any], name: str) -> Any:
    """The member `name`, or the value inside a member that a dotted name leads to (`json.captions.0`); None without."""
    if name in fields:
        return fields[name]
    head, *rest = name.split(".")
    value = fields.get(head)
    for part in rest:
        if isinstance(value, Mapping):
            value = value.get(part)
        elif isinstance(value, list) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        else:
            return None
    return value


def _captions(fields: Mapping[str, Any], name: str) -> Iterator[str]:
    value = look_up(fields, name)
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, str) and item.strip():
            yield item
