"""Diffusion families' common part: from the shape of a bucket to latents, tokens and work.

It knows autoencoders' factors, patches and what a pipeline does with sizes off its lattice; it knows no weights, and
does not count text encoders and autoencoders, which are frozen and often run ahead of training.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from mmdata.planning.cost.base import Amounts, Family, Tower
from mmdata.planning.samples import AUDIO, FloatArray, IntArray, Samples

_Checkpoint = TypeVar("_Checkpoint")

OffLattice = Literal["error", "down", "up"]
"""What happens to a width or height that is no multiple: refused, or rounded as the family's pipeline rounds it."""

FrameRule = Literal["picture", "floor", "wan", "exact"]
"""Which numbers of frames there are, t being the autoencoder's temporal factor. `picture`: 1. `floor`: any, cut to
t·n + 1. `wan`: t·n + 1 stays, else t·(frames // t) + 1, which may be more than there were. `exact`: t·n + 1 or refused.
"""


@dataclass(frozen=True)
class Lattice:
    """Autoencoder and patches: how a shape becomes a latent and a latent becomes tokens."""

    multiple_of: int
    """Pixels: width and height are multiples of it."""
    off_lattice: OffLattice
    patch: tuple[int, int, int] = (1, 2, 2)
    """Latent frames, rows and columns in a token."""
    spatial: int = 8
    """Pixels in a latent pixel's side."""
    temporal: int = 1
    """Frames in a latent frame, after the first."""
    frames: FrameRule = "picture"
    longest_side: int | None = None
    """Pixels: what the table of positions covers; None = any."""


@dataclass(frozen=True, kw_only=True)
class Diffusion(Family):
    """A diffusion family: one picture or video a sample, brought to its bucket's shape before.

    `Amounts.tokens` is the length of the denoiser's sequence; text counts in it only where the model puts it there, and
    always with its full padded length (`text_tokens`), as pipelines pad it. `Amounts.grid` is [M, 3]: latent frames,
    rows and columns of every medium, 0 for sound. `Amounts.patches` is 0.
    """

    kind: Literal["vision_language", "diffusion"] = "diffusion"
    fixed_shapes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.towers:
            object.__setattr__(self, "towers", (self.denoiser(),))

    @property
    @abstractmethod
    def lattice(self) -> Lattice:
        """How this family's shapes become tokens."""

    @property
    def text_in_sequence(self) -> int:
        """Text tokens in the denoiser's sequence; 0 where text comes by cross-attention."""
        return 0

    @abstractmethod
    def denoiser(self) -> Tower:
        """The tower of the UNet or transformer from published dimensions; FLOPs of one forward pass."""

    def shape(self, width: npt.ArrayLike, height: npt.ArrayLike, frames: npt.ArrayLike = 1) -> IntArray:
        """[M, 3] frames, height, width as the pipeline makes them. ValueError where it refuses."""
        rule = self.lattice
        columns = np.broadcast_arrays(*(np.atleast_1d(np.asarray(c, np.int64)) for c in (frames, height, width)))
        given = np.stack(columns, axis=-1)
        self._refuse(given, (given < 1).any(axis=1), "every width, height and number of frames must be at least 1")
        sides = given[:, 1:]
        off = (sides % rule.multiple_of != 0).any(axis=1)
        if rule.off_lattice == "error":
            lower = f"round them down to a multiple of {rule.multiple_of}"
            self._refuse(given, off, f"width and height must be multiples of {rule.multiple_of}: {lower}")
        whole = sides // rule.multiple_of if rule.off_lattice == "down" else -(-sides // rule.multiple_of)
        sides = whole * rule.multiple_of
        self._refuse(given, (sides < 1).any(axis=1), f"width and height must be at least {rule.multiple_of}")
        if rule.longest_side is not None:
            long = (sides > rule.longest_side).any(axis=1)
            self._refuse(given, long, f"its table of positions ends at {rule.longest_side} pixels a side")
        return np.concatenate([self._frames(given)[:, None], sides], axis=1)

    def _frames(self, given: IntArray) -> IntArray:
        frames, step = given[:, 0], self.lattice.temporal
        match self.lattice.frames:
            case "picture":
                self._refuse(given, frames != 1, "it makes pictures: the number of frames must be 1")
                return frames
            case "exact":
                off = (frames - 1) % step != 0
                self._refuse(given, off, f"the number of frames must be {step}n + 1, such as {step * 20 + 1}")
                return frames
            case "wan":
                return np.where(frames % step == 1, frames, frames // step * step + 1)
            case "floor":
                return (frames - 1) // step * step + 1

    def _refuse(self, given: IntArray, bad: npt.ArrayLike, why: str) -> None:
        rows = np.flatnonzero(bad)
        if rows.size:
            frames, height, width = given[rows[0]].tolist()
            raise ValueError(f"{self.name} cannot take {width}x{height} with {frames} frames: {why}")

    def within(self, width: npt.ArrayLike, height: npt.ArrayLike, frames: npt.ArrayLike = 1) -> IntArray:
        """[M, 3] frames, height, width: the largest shape that `shape` leaves as it is and that is not larger than the
        one given (but at least one step a side): what a plan without buckets trains on."""
        rule = self.lattice
        columns = np.broadcast_arrays(*(np.atleast_1d(np.asarray(c, np.int64)) for c in (frames, height, width)))
        count, sides = columns[0], np.stack(columns[1:], axis=-1)
        steps = np.maximum(1, sides // rule.multiple_of)
        if rule.longest_side is not None:
            steps = np.minimum(steps, rule.longest_side // rule.multiple_of)
        count = np.ones_like(count) if rule.frames == "picture" else (count - 1) // rule.temporal * rule.temporal + 1
        return np.concatenate([np.maximum(1, count)[:, None], steps * rule.multiple_of], axis=1)

    def latents(self, width: npt.ArrayLike, height: npt.ArrayLike, frames: npt.ArrayLike = 1) -> IntArray:
        """[M, 3] latent frames, rows, columns of shapes [M]. ValueError where the pipeline refuses the shape.

        Frames are filled up to a whole number of patches, which only CogVideoX 1.5 has need of.
        """
        rule = self.lattice
        shape = self.shape(width, height, frames)
        depth = (shape[:, 0] - 1) // rule.temporal + 1
        depth = -(-depth // rule.patch[0]) * rule.patch[0]
        return np.concatenate([depth[:, None], shape[:, 1:] // rule.spatial], axis=1)

    def tokens(self, latents: IntArray) -> IntArray:
        """[M] tokens of latents [M, 3], without text."""
        out: IntArray = (latents // np.asarray(self.lattice.patch)).prod(axis=1)
        return out

    def work(self, tokens: IntArray) -> FloatArray:
        """[N] work of sequences of that many tokens, text included where it is in the sequence."""
        return np.asarray(sum(tower.work(tokens) for tower in self.towers), np.float64)

    def amounts(self, samples: Samples) -> Amounts:
        """Tokens and work of samples with one picture or video each. ValueError where there is none or another, or
        where the pipeline refuses the shape. Sound is not looked at."""
        media = samples.media
        seen = media.kind != AUDIO
        count = np.bincount(media.sample[seen], minlength=len(samples))
        odd = np.flatnonzero(count != 1)
        if odd.size:
            raise ValueError(
                f"{self.name} trains on one picture or video a sample, and sample {odd[0]} has {count[odd[0]]}: "
                "filter them out or choose one"
            )
        grid = np.zeros((len(media), 3), np.int64)
        grid[seen] = self.latents(media.width[seen], media.height[seen], media.frames[seen])
        vision = self.tokens(grid[seen])
        text = np.full(len(samples), self.text_in_sequence, np.int64)
        none = np.zeros(len(samples), np.int64)
        return Amounts(vision + text, none, text, vision, none, self.work(vision + text), grid=grid)


def checkpoint(name: str, version: str, table: Mapping[str, _Checkpoint]) -> _Checkpoint:
    """The entry of a family's table of published checkpoints; ValueError with those there are."""
    if version not in table:
        raise ValueError(f"{name} has no version {version!r}; there are {', '.join(table)}")
    return table[version]
