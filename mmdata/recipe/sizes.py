"""Human quantities in a recipe: sizes, durations, pixels, rates, paths, as pydantic types. Knows no recipe section.

Sizes are bytes, durations seconds, rates bits per second. Powers of two are spelled `KiB`, powers of ten `kB`.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationInfo, WithJsonSchema

from mmdata.recipe.base import mistake
from mmdata.recipe.words import suggest

_NUMBER = r"([0-9][0-9_]*(?:\.[0-9]+)?|\.[0-9]+)"
_QUANTITY = re.compile(_NUMBER + r"\s*([a-zµ]*)", re.IGNORECASE)
_PRODUCT = re.compile(r"([0-9]+)\s*[*x×]\s*([0-9]+)", re.IGNORECASE)

SIZE_UNITS: dict[str, int] = {
    "": 1,
    "b": 1,
    **{unit + end: 1000**power for power, unit in enumerate("kmgt", 1) for end in ("", "b")},
    **{unit + end: 1024**power for power, unit in enumerate("kmgt", 1) for end in ("i", "ib")},
}
"""Lower-case unit to bytes: `k`, `kB` = 1000, `Ki`, `KiB` = 1024, up to tera."""

_SPELT = {unit.lower(): unit for unit in ("KiB", "MiB", "GiB", "TiB", "kB", "MB", "GB", "TB")}

DURATION_UNITS: dict[str, float] = {
    "": 1.0,
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1.0),
    "ms": 1e-3,
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
}
"""Lower-case unit to seconds."""

SIZE_HINT = "a size such as 256MiB, 1GB or a number of bytes"
DURATION_HINT = "a duration such as 30s, 5m, 1.5h or a number of seconds"
PIXELS_HINT = "a number of pixels such as 512*512 or 262144"
SHAPE_HINT = "a width and height such as 512x768 or [512, 768]"
RATE_HINT = "a bit rate such as 96k or a number of bits per second"


def parse_size(text: str | int | float) -> int:
    """Bytes of `256MiB`, `1GB`, `1.5k`, `1024`. Raises ValueError."""
    return _whole(_scaled(text, SIZE_UNITS, SIZE_HINT), text, SIZE_HINT)


def parse_duration(text: str | int | float) -> float:
    """Seconds of `30s`, `5m`, `1h30m`, `250ms`, `1.5`. Raises ValueError."""
    if isinstance(text, str) and len(parts := re.findall(_NUMBER + r"\s*([a-zµ]+)\s*", text, re.IGNORECASE)) > 1:
        if re.fullmatch(rf"(?:{_NUMBER}\s*[a-zµ]+\s*)+", text.strip(), re.IGNORECASE) is None:
            raise ValueError(f"expected {DURATION_HINT}, found {text!r}")
        return sum(_scaled(number + unit, DURATION_UNITS, DURATION_HINT) for number, unit in parts)
    return _scaled(text, DURATION_UNITS, DURATION_HINT)


def parse_rate(text: str | int | float) -> int:
    """Bits per second of `96k`, `1.5M`, `64000`. Raises ValueError."""
    units = {unit: scale for unit, scale in SIZE_UNITS.items() if unit in ("", "k", "m")}
    return _whole(_scaled(text, units, RATE_HINT), text, RATE_HINT)


def parse_pixels(text: str | int) -> int:
    """Pixels of `512*512`, `512x512`, `262144`. Raises ValueError."""
    if isinstance(text, str) and (product := _PRODUCT.fullmatch(text.strip())):
        return int(product[1]) * int(product[2])
    return _whole(_scaled(text, {"": 1, "mp": 1_000_000}, PIXELS_HINT), text, PIXELS_HINT)


def parse_shape(value: Any) -> tuple[int, int]:
    """(width, height) of `512x768`, `512*768` or `[512, 768]`. Raises ValueError."""
    if isinstance(value, str) and (product := _PRODUCT.fullmatch(value.strip())):
        value = (int(product[1]), int(product[2]))
    if (
        not isinstance(value, (list, tuple))
        or len(value) != 2
        or not all(isinstance(side, int) and not isinstance(side, bool) for side in value)
    ):
        raise ValueError(f"expected {SHAPE_HINT}, found {show(value)}")
    if min(value) < 1:
        raise ValueError(f"a width and height must be at least 1, found {show(value)}")
    return value[0], value[1]


def format_size(size: int) -> str:
    """`256MiB`, `1.5GiB`, `300B`: for messages."""
    for unit, scale in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if abs(size) >= scale:
            return f"{size / scale:.4g}{unit}"
    return f"{size}B"


def show(value: Any) -> str:
    """A wrong value in a message: its kind and itself, in a person's words."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return f"{value}"
    if isinstance(value, str):
        shown = value if len(value) <= 60 else value[:57] + "…"
        return f"text '{shown}'" if shown.strip() else "empty text"
    if isinstance(value, dict):
        return "a mapping" if value else "an empty mapping"
    if isinstance(value, (list, tuple)):
        return f"a list of {len(value)}" if value else "an empty list"
    return str(value)


class CommandLineText(str):
    """Text that came from `--set`: a relative path in it is relative to the working folder, not to the recipe's."""


def resolve_path(path: str, folder: str | None) -> str:
    """`path` made absolute: URLs stay, `~` is the home folder, the rest is relative to `folder` (`--set`: to the
    working folder). None leaves relative paths as they are."""
    if "://" in path:
        return path
    plain = os.path.expanduser(path)
    if isinstance(path, CommandLineText):
        folder = os.getcwd()
    if os.path.isabs(plain):
        return os.path.normpath(plain)
    return plain if folder is None else os.path.normpath(os.path.join(folder, plain))


def _scaled(value: str | int | float, units: Mapping[str, float], hint: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(f"expected {hint}, found {show(value)}")
    if isinstance(value, str):
        text = value.strip()
        if text.startswith("-") and _QUANTITY.fullmatch(text[1:].strip()):
            raise ValueError(f"must not be negative, found {value}")
        found = _QUANTITY.fullmatch(text)
        if found is None:
            raise ValueError(f"expected {hint}, found {show(value)}")
        unit = found[2].lower()
        if unit not in units:
            spelt = [_SPELT[name] for name in units if name in _SPELT] or [name for name in units if name]
            raise ValueError(f"unknown unit '{found[2]}'{suggest(found[2], spelt)}")
        number = found[1].replace("_", "")
        return float(number) * units[unit] if "." in number else int(number) * units[unit]
    if not math.isfinite(value):
        raise ValueError(f"expected {hint}, found {value}")
    if value < 0:
        raise ValueError(f"must not be negative, found {value}")
    return value


def _whole(number: float, value: Any, hint: str) -> int:
    if number != int(number):
        raise ValueError(f"expected {hint}, found {show(value)}, which is not a whole number")
    return int(number)


def _checked(parse: Callable[[Any], Any]) -> BeforeValidator:
    def check(value: Any) -> Any:
        try:
            return parse(value)
        except ValueError as error:
            raise mistake(str(error)) from None

    return BeforeValidator(check)


def _path(value: Any, info: ValidationInfo) -> Any:
    if not isinstance(value, str):
        return value
    if not value.strip():
        raise mistake("expected a path or URL, found empty text")
    if "\0" in value:
        raise mistake("a path cannot hold a NUL character (\\0)")
    return resolve_path(value, (info.context or {}).get("folder"))


def _text_or(kind: str, pattern: str, description: str, bound: str = "exclusiveMinimum") -> WithJsonSchema:
    number = {"type": kind, bound: 0}
    return WithJsonSchema({"anyOf": [number, {"type": "string", "pattern": pattern}], "description": description})


_UNIT = r"^\s*[0-9._]+\s*[A-Za-z]*\s*$"

Bytes = Annotated[int, _checked(parse_size), Field(ge=1, le=2**62), _text_or("integer", _UNIT, SIZE_HINT)]
Seconds = Annotated[
    float, _checked(parse_duration), Field(gt=0, le=1e9), _text_or("number", r"^\s*[0-9]", DURATION_HINT)
]
Moment = Annotated[
    float, _checked(parse_duration), Field(ge=0), _text_or("number", r"^\s*[0-9]", DURATION_HINT, "minimum")
]
"""A time from a start: like `Seconds`, but 0 is allowed."""
BitRate = Annotated[int, _checked(parse_rate), Field(ge=1), _text_or("integer", _UNIT, RATE_HINT)]
Pixels = Annotated[int, _checked(parse_pixels), Field(ge=1), _text_or("integer", r"^\s*[0-9]", PIXELS_HINT)]
Shape = Annotated[
    tuple[int, int],
    _checked(parse_shape),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 2, "maxItems": 2},
                {"type": "string", "pattern": r"^\s*[0-9]+\s*[*x×]\s*[0-9]+\s*$"},
            ],
            "description": SHAPE_HINT,
        }
    ),
]
Path = Annotated[str, BeforeValidator(_path), Field(min_length=1)]
"""A local path or URL. When a recipe is loaded, a relative path is taken from the recipe's folder; one that comes from
`--set` is taken from the working folder, like any other argument of a command."""
