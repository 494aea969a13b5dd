"""Work of denoisers: forward FLOPs of diffusion transformers and of the SDXL UNet from their dimensions.

Only arithmetic on dimensions. What is counted is what a counter of matrix products counts: linear layers, convolutions
and attention's two products, 2 FLOPs a multiply-add; norms, activations and rotary embeddings are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from mmdata.planning.cost.base import Tower

TIME = 256
"""Width of the sinusoidal embedding of the time step in most transformers."""


def joint(
    name: str,
    *,
    once: float,
    visual: float,
    text: float = 0.0,
    pairs: float = 0.0,
    visual_pairs: float = 0.0,
    text_length: int = 0,
) -> Tower:
    """A transformer's tower over x = text + visual tokens, from multiply-adds.

    `once` a forward pass (modulation, projections of text that stays outside the sequence), `visual` and `text` per
    token of each kind, `pairs` per pair of tokens of the sequence, `visual_pairs` per pair of visual tokens alone.
    With T = `text_length` and n = x - T visual tokens the multiply-adds are

        once + text·T + visual·n + pairs·x² + visual_pairs·n²

    so that a = once + (text - visual)·T + visual_pairs·T², b = visual - 2·visual_pairs·T and c = pairs + visual_pairs.
    `a` is held at 0 where it would fall below: in SD3, whose last block drops the text, by at most 0.5 % of the work.
    """
    a = once + (text - visual) * text_length + visual_pairs * text_length**2
    b = visual - 2 * visual_pairs * text_length
    return Tower(name, "tokens", a=2.0 * max(0.0, a), b=2.0 * b, c=2.0 * (pairs + visual_pairs))


def two_stream(text_length: int, *, guidance: bool, condition_channels: int = 0) -> Tower:
    """The tower of Flux.1's transformer, which Open-Sora 2.0 shares.

    Both kinds of layers cost 12·w² a token and 2·w a pair: projections 4·w² and a feed-forward of 4·w. `guidance`
    embeds the guidance scale (Flux dev); `condition_channels` a token are projected and added to the patches.
    """
    width, double, single = 3072, 19, 38
    square = width**2
    embeddings = (2 if guidance else 1) * (TIME * width + square) + 768 * width + square
    layers = 12 * (double + single) * square
    return joint(
        "transformer",
        once=embeddings + (12 * double + 3 * single + 2) * square,
        visual=(2 * 64 + condition_channels) * width + layers,
        text=4096 * width + layers,
        pairs=2 * width * (double + single),
        text_length=text_length,
    )


@dataclass(frozen=True)
class UNet:
    """Dimensions of a UNet of the SDXL kind: residual blocks, transformers in some levels, text by cross-attention."""

    channels: tuple[int, ...]
    """Of each level, from the full latent down; each level has half the side of the one before."""
    transformers: tuple[int, ...]
    """Transformer layers after each residual block of a level, 0 = none; the last level's also in the middle."""
    text_width: int
    """Of the text states that keys and values are made from."""
    text_length: int
    once: float
    """Multiply-adds of a forward pass beside the blocks: time, size and pooled text."""
    residuals: int = 2
    """Residual blocks of a level on the way down; one more on the way up."""
    latent_channels: int = 4


def unet(name: str, dimensions: UNet) -> Tower:
    """The tower of a UNet over x = latent pixels, summed over its levels.

    Level l has side 1/2^l, so x/4^l pixels and x²/16^l pairs of them. A residual block from i to o channels is two
    3x3 convolutions, and one of 1x1 where i ≠ o: 9·i·o + 9·o² (+ i·o) multiply-adds a pixel, and e·o once for the time
    embedding of width e. A transformer of width w is two projections, w² each; a layer of it has self-attention
    (4·w² a pixel, 2·w a pair), cross-attention to T text states of width t (2·w² + 2·w·T a pixel, 2·t·w·T once) and a
    gated feed-forward of 4·w (12·w² a pixel). Down- and upsampling are 3x3 convolutions, at the pixels they write.
    All are linear in the pixels of their level but self-attention, which is quadratic; so with 1/4^l and 1/16^l
    a + b·x + c·x². Exact where both sides of the latent are multiples of 2^(levels - 1), 32 pixels in SDXL; else the
    UNet's levels round up, and the sum is off by the rounded edge.
    """
    count = _Count(dimensions)
    channels, levels = dimensions.channels, len(dimensions.channels)
    count.convolution(dimensions.latent_channels, channels[0], level=0)
    skips = [channels[0]]
    width = channels[0]
    for level, out in enumerate(channels):
        for _ in range(dimensions.residuals):
            count.residual(width, out, level)
            count.transformer(out, level)
            skips.append(out)
            width = out
        if level < levels - 1:
            count.convolution(out, out, level=level + 1)
            skips.append(out)
    count.residual(width, width, levels - 1)
    count.transformer(width, levels - 1)
    count.residual(width, width, levels - 1)
    for level in reversed(range(levels)):
        out = channels[level]
        for _ in range(dimensions.residuals + 1):
            count.residual(width + skips.pop(), out, level)
            count.transformer(out, level)
            width = out
        if level:
            count.convolution(out, out, level=level - 1)
    count.convolution(width, dimensions.latent_channels, level=0)
    return Tower(name, "tokens", a=2.0 * count.once, b=2.0 * count.linear, c=2.0 * count.square)


class _Count:
    """Multiply-adds: once, per latent pixel, per pair of latent pixels."""

    def __init__(self, dimensions: UNet) -> None:
        self.dimensions = dimensions
        self.time_width = 4 * dimensions.channels[0]
        self.once = dimensions.once
        self.linear = 0.0
        self.square = 0.0

    def convolution(self, inside: int, out: int, level: int, size: int = 3) -> None:
        self.linear += size * size * inside * out / 4**level

    def residual(self, inside: int, out: int, level: int) -> None:
        self.convolution(inside, out, level)
        self.convolution(out, out, level)
        if inside != out:
            self.convolution(inside, out, level, size=1)
        self.once += self.time_width * out

    def transformer(self, width: int, level: int) -> None:
        layers, length = self.dimensions.transformers[level], self.dimensions.text_length
        if not layers:
            return
        layer = (4 + 2 + 12) * width**2 + 2 * width * length
        self.linear += (2 * width**2 + layers * layer) / 4**level
        self.square += layers * 2 * width / 16**level
        self.once += layers * 2 * self.dimensions.text_width * width * length
