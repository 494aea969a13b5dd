"""The recipe: what a person writes in YAML, typed, checked and completed. Knows no media, no storage and no operator
by name: operators register their argument models here."""

from __future__ import annotations

from mmdata.recipe.base import MODALITIES, Operator, OperatorModality, Role, Section, find_operators, register_operator

__all__ = [
    "MODALITIES",
    "Operator",
    "OperatorModality",
    "Role",
    "Section",
    "find_operators",
    "register_operator",
]
