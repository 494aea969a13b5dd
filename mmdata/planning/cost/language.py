"""Text alone: every family's language model, and what a plan for text-only data costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from mmdata.planning.cost.base import Amounts, Family, Tower, transformer
from mmdata.planning.samples import Samples

QWEN2_5_7B = transformer(
    "language",
    "tokens",
    layers=28,
    width=3584,
    feed_forward=18944,
    key_value_width=512,
    gated=True,
    causal=True,
    vocabulary=152064,
)
"""Dimensions of Qwen2.5-7B (arXiv:2412.15115, table 1, and the published config.json)."""


@dataclass(frozen=True, kw_only=True)
class Text(Family):
    """Text without media: tokens are the stored text tokens. Samples with media count with their text only."""

    name: str = "text"
    kind: Literal["vision_language", "diffusion"] = "vision_language"
    source: str = "arXiv:2412.15115 (dimensions of Qwen2.5-7B)"
    towers: tuple[Tower, ...] = (QWEN2_5_7B,)

    def amounts(self, samples: Samples) -> Amounts:
        none = np.zeros(len(samples), np.int64)
        tokens = samples.text_tokens
        return Amounts(tokens, none, tokens, none, none, self.tower("language").work(tokens))


FAMILIES: Mapping[str, Callable[..., Family]] = {"text": Text}
