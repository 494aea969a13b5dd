"""What a model family costs: tokens, patches and work of samples, from geometry alone.

A family knows formulas, never weights: no tokenizer, no processor, no torch. Work is additive over sequences, so that
of a pack (whose samples do not attend to each other) or a micro-batch is the sum of that of its samples.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt

from mmdata.planning.samples import FloatArray, IntArray, Samples

Axis = Literal["tokens", "patches"]
"""Which sequence a tower runs over: the language model's (or the diffusion transformer's), or an encoder's."""

AXES: tuple[Axis, ...] = ("tokens", "patches")
"""Columns of `Amounts.work_by_axis`."""


@dataclass(frozen=True)
class Tower:
    """A part of a model whose work for one sequence of length x is a + b·x + c·x², and 0 for x = 0.

    With default coefficients the unit is FLOPs of a forward pass; fitted ones are seconds of a training step.
    """

    name: str
    axis: Axis
    a: float = 0.0
    """A sequence's own cost."""
    b: float = 0.0
    """Cost per token: projections, feed-forward, output layer."""
    c: float = 0.0
    """Cost per pair of tokens: attention."""

    def __post_init__(self) -> None:
        if self.axis not in AXES:
            raise ValueError(f"tower {self.name!r} runs over tokens or patches, not {self.axis!r}")
        coefficients = (self.a, self.b, self.c)
        if not all(np.isfinite(value) and value >= 0 for value in coefficients):
            raise ValueError(f"the coefficients of tower {self.name!r} must be finite and not negative: {coefficients}")

    def work(self, lengths: npt.ArrayLike) -> FloatArray:
        """Work of one sequence of each length, float64 of the same shape."""
        x = np.asarray(lengths, np.float64)
        out: FloatArray = np.where(x > 0, self.a + x * (self.b + x * self.c), 0.0)
        return out


def transformer(
    name: str,
    axis: Axis,
    *,
    layers: int,
    width: int,
    feed_forward: int,
    key_value_width: int | None = None,
    gated: bool = False,
    causal: bool = False,
    vocabulary: int = 0,
    other_parameters: int = 0,
) -> Tower:
    """A transformer's tower from its published dimensions; FLOPs of a forward pass.

    A matrix with P weights costs 2·P FLOPs a token (Kaplan et al. 2020, arXiv:2001.08361, section 2.1), so b counts
    queries and output (2·w²), keys and values (2·w·`key_value_width`, default w), the feed-forward (2 or, `gated`, 3
    matrices of w·f) in each layer, the output layer (w·`vocabulary`) and `other_parameters`. Scores and their sum over
    the values cost 4·w FLOPs a layer and pair of tokens (Korthikanti et al. 2022, arXiv:2205.05198, appendix A); a
    `causal` kernel computes half the pairs.
    """
    shared = width if key_value_width is None else key_value_width
    per_layer = 2 * width * width + 2 * width * shared + (3 if gated else 2) * width * feed_forward
    pairs = 4 * layers * width
    weights = layers * per_layer + width * vocabulary + other_parameters
    return Tower(name, axis, b=2.0 * weights, c=pairs / 2 if causal else float(pairs))


@dataclass(frozen=True, eq=False)
class Amounts:
    """What N samples amount to in a family."""

    tokens: IntArray
    """[N] length of the sequence that the language model (or diffusion transformer) sees: text and media."""
    patches: IntArray
    """[N] patches of the vision tower and frames of the audio encoder; in diffusion 0, or the text encoder's tokens."""
    text: IntArray
    """[N] text's part of `tokens`, with the family's marks around media."""
    vision: IntArray
    """[N] part of `tokens` that pictures and videos take."""
    audio: IntArray
    """[N] part of `tokens` that sound takes."""
    work: FloatArray
    """[N] sum over all towers."""
    encoder_work: FloatArray | None = None
    """[N] part of `work` that the towers over patches do; None = none."""
    grid: IntArray | None = None
    """[M, k] what the family makes of each medium (patch grid, tiles, …: the family's docstring tells), or None."""

    def __post_init__(self) -> None:
        columns = [self.tokens, self.patches, self.text, self.vision, self.audio, self.work]
        columns += [] if self.encoder_work is None else [self.encoder_work]
        if any(column.shape != (self.tokens.size,) for column in columns):
            raise ValueError(f"amounts must be columns of one length, not {[column.shape for column in columns]}")

    def __len__(self) -> int:
        return self.tokens.size

    @property
    def work_by_axis(self) -> FloatArray:
        """[N, 2] work over tokens and over patches: what `balance.deal` deals by."""
        encoder = np.zeros(len(self)) if self.encoder_work is None else self.encoder_work
        return np.stack([self.work - encoder, encoder], axis=1)

    def take(self, indices: npt.ArrayLike) -> Amounts:
        """Amounts of the samples at `indices`, without the grid."""
        index = np.asarray(indices, np.int64)
        encoder = None if self.encoder_work is None else self.encoder_work[index]
        tokens, patches, text = self.tokens[index], self.patches[index], self.text[index]
        return Amounts(tokens, patches, text, self.vision[index], self.audio[index], self.work[index], encoder)


@dataclass(frozen=True, kw_only=True)
class Family(ABC):
    """One model family's formulas; subclasses are frozen dataclasses whose further fields are its options."""

    name: str
    kind: Literal["vision_language", "diffusion"]
    source: str
    """Paper or code the formulas come from."""
    towers: tuple[Tower, ...] = ()
    fixed_shapes: ClassVar[bool] = False
    """Whether amounts depend on the bucket's width, height and frames, to which media are brought first (diffusion)."""

    @abstractmethod
    def amounts(self, samples: Samples) -> Amounts:
        """Tokens, patches and work of each sample."""

    def tower(self, name: str) -> Tower:
        """The tower of that name; ValueError with those there are."""
        for tower in self.towers:
            if tower.name == name:
                return tower
        raise ValueError(f"{self.name} has no tower {name!r}; it has {', '.join(t.name for t in self.towers)}")

    def with_towers(self, towers: Sequence[Tower]) -> Self:
        """The same family with other coefficients, such as fitted ones. Towers are matched by name; ValueError where
        one is missing, unknown or on the other axis."""
        mine, given = {t.name: t.axis for t in self.towers}, {t.name: t.axis for t in towers}
        if mine != given or len(given) != len(towers):
            raise ValueError(f"{self.name} has the towers {mine}, not {given}")
        by_name = {tower.name: tower for tower in towers}
        return replace(self, towers=tuple(by_name[tower.name] for tower in self.towers))
