"""Reads the small texts that describe a sample (captions, labels, JSON) and says what is wrong with them.

Knows no source. Everything returned can be written as UTF-8 and as standard JSON.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from mmdata.errors import InvalidSample
from mmdata.sources.contract import encodable

MAX_TEXT_BYTES = 64 << 20
"""A caption, label or JSON member larger than this is refused: it is not a description."""

TEXT_EXTENSIONS = frozenset({"txt", "text", "transcript", "caption"})
NUMBER_EXTENSIONS = frozenset({"cls", "cls2", "index", "inx", "id"})
LABEL_TEXT = "label.txt"
"""Member of a class label that is not a number."""
JSON_EXTENSIONS = frozenset({"json", "jsn"})

_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
_INTEGER = re.compile(r"-?\d{1,18}")


def is_text(extension: str) -> bool:
    """True for members that become values of `SourceSample.fields` instead of media: `txt`, `0.txt`, `json`, `cls`."""
    last = extension.rpartition(".")[2]
    return last in TEXT_EXTENSIONS or last in NUMBER_EXTENSIONS or last in JSON_EXTENSIONS


def parse_member(extension: str, data: bytes, name: str) -> Any:
    """Value of a text member: str for texts, int or str for labels, any JSON value for JSON.

    Raises InvalidSample that names the member `name`.
    """
    last = extension.rpartition(".")[2]
    if last in JSON_EXTENSIONS:
        return parse_json(data, name)
    text = parse_text(data, name)
    if last in NUMBER_EXTENSIONS:
        text = text.strip()
        return int(text) if _INTEGER.fullmatch(text) else text
    return text


def label_member(value: Any) -> tuple[str, Any]:
    """Member name and value of a class label: whole numbers are `cls`, anything else is the text `label.txt`.

    To WebDataset, Energon and `datasets` a `cls` member is a number, and a text there ends their reading.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return "cls", value
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return ("cls", int(text)) if _INTEGER.fullmatch(text.strip()) else (LABEL_TEXT, text)


def parse_text(data: bytes, name: str) -> str:
    """UTF-8, with or without byte order mark, or UTF-16 with one. Raises InvalidSample that names `name`."""
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        raise InvalidSample(
            f"{name}: not {encoding.removesuffix('-sig').upper()} text at byte {error.start}; save it as UTF-8"
        ) from error


def parse_json(data: bytes, name: str) -> Any:
    """One JSON value. NaN, Infinity and half surrogate pairs are refused. Raises InvalidSample that names `name`."""
    text = parse_text(data, name)
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise InvalidSample(f"{name}: the JSON is nested too deeply") from error
    except ValueError as error:
        raise InvalidSample(f"{name}: not valid JSON: {error}") from error
    if _SURROGATE_ESCAPE.search(data) and not encodable(json.dumps(value, ensure_ascii=False)):
        raise InvalidSample(f"{name}: the JSON holds half of a surrogate pair (\\uD800 to \\uDFFF)")
    return value


def _refuse_constant(word: str) -> Any:
    raise ValueError(f"{word} is not a JSON value")


def json_value(value: Any) -> Any:
    """`value` of a table cell as a JSON value: NaN becomes null, dates ISO 8601, decimals text, bytes base64 text."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_value(item) for item in value]
    if isinstance(value, (bytes, bytearray, memoryview)):
        import base64

        return base64.b64encode(value).decode("ascii")
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
