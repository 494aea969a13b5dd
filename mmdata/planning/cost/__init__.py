"""Cost per model family: `family("qwen2_5_vl").amounts(samples)` is tokens, patches and work from geometry alone."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Callable, Mapping
from functools import cache

from mmdata.planning.cost.base import AXES, Amounts, Axis, Family, Tower, transformer

__all__ = ["AXES", "Amounts", "Axis", "Family", "Tower", "families", "family", "transformer"]

_MODULES = (
    "mmdata.planning.cost.language",
    "mmdata.planning.cost.diffusion_images",
    "mmdata.planning.cost.diffusion_videos",
)
"""Modules with a table FAMILIES: name → maker of the family; imported when the first family is asked for."""


@cache
def _makers() -> Mapping[str, Callable[..., Family]]:
    makers: dict[str, Callable[..., Family]] = {}
    for module in _MODULES:
        for name, maker in importlib.import_module(module).FAMILIES.items():
            if name in makers:
                raise ValueError(f"two cost modules define the family {name!r}")
            makers[name] = maker
    return makers


def families() -> tuple[str, ...]:
    """Names of all families, in alphabetical order."""
    return tuple(sorted(_makers()))


def family(name: str, **options: object) -> Family:
    """The family `name` with its options (patch size, most pixels, …). ValueError with the nearest name or option."""
    if name not in _makers():
        raise ValueError(f"unknown family {name!r}{_nearest(name, families())}")
    maker = _makers()[name]
    parameters = inspect.signature(maker).parameters.values()
    known = [p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
    for option in options:
        if option not in known and not any(p.kind is p.VAR_KEYWORD for p in parameters):
            raise ValueError(f"{name} has no option {option!r}{_nearest(option, known)}")
    return maker(**options)


def _nearest(name: str, known: list[str] | tuple[str, ...]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(known)}"
