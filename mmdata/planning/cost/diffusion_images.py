"""Diffusion families that make pictures: SDXL, Kolors, SD3 and 3.5, Flux.1, Hunyuan-DiT.

Shapes are those of the diffusers pipelines (0.42), dimensions those of the published checkpoints' config.json.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from mmdata.planning.cost.base import Family, Tower
from mmdata.planning.cost.diffusion import Diffusion, Lattice, checkpoint
from mmdata.planning.cost.diffusion_work import TIME, UNet, joint, two_stream, unet


@dataclass(frozen=True, kw_only=True)
class StableDiffusionXL(Diffusion):
    """SDXL base 1.0: a UNet over latents of 1/8 side, text by cross-attention (77 states, 2048 wide).

    Shapes: width and height multiples of 8, as StableDiffusionXLPipeline.check_inputs demands; latents are
    height // 8 by width // 8 (prepare_latents). `tokens` are latent pixels; attention runs at a half and a quarter of
    the side, see `diffusion_work.unet`.
    """

    name: str = "sdxl"
    source: str = "arXiv:2307.01952, table 1; diffusers StableDiffusionXLPipeline; stable-diffusion-xl-base-1.0"
    text_tokens: int = 77
    """Length to which text is padded; CLIP's 77."""

    @property
    def lattice(self) -> Lattice:
        return Lattice(multiple_of=8, off_lattice="error", patch=(1, 1, 1))

    def denoiser(self) -> Tower:
        # Embeddings of time (320), and of pooled text (1280) with six sizes (256 each).
        once = 320 * 1280 + 1280**2 + 2816 * 1280 + 1280**2
        return unet("unet", UNet((320, 640, 1280), (0, 2, 10), 2048, self.text_tokens, once))


@dataclass(frozen=True, kw_only=True)
class Kolors(Diffusion):
    """Kolors: SDXL's UNet with 256 states of ChatGLM3 (4096 wide, projected to 2048) as text.

    Shapes as in SDXL: multiples of 8 (KolorsPipeline.check_inputs), latents of 1/8 side.
    """

    name: str = "kolors"
    source: str = "Kolors technical report (Kwai, 2024); diffusers KolorsPipeline; Kwai-Kolors/Kolors-diffusers"
    text_tokens: int = 256
    """Length to which text is padded."""

    @property
    def lattice(self) -> Lattice:
        return Lattice(multiple_of=8, off_lattice="error", patch=(1, 1, 1))

    def denoiser(self) -> Tower:
        # As SDXL's, with pooled text of 4096; and the projection of the text states.
        once = 320 * 1280 + 1280**2 + 5632 * 1280 + 1280**2 + self.text_tokens * 4096 * 2048
        return unet("unet", UNet((320, 640, 1280), (0, 2, 10), 2048, self.text_tokens, once))


class _SD3(NamedTuple):
    layers: int
    width: int
    dual: int
    """First layers with a second self-attention over the picture alone."""
    positions: int
    """Patches a side that the table of positions covers."""


_SD3_CHECKPOINTS = {
    "3-medium": _SD3(24, 1536, 0, 192),
    "3.5-medium": _SD3(24, 1536, 13, 384),
    "3.5-large": _SD3(38, 2432, 0, 192),
}


@dataclass(frozen=True, kw_only=True)
class StableDiffusion3(Diffusion):
    """SD3 and SD3.5: MMDiT over text and 2x2 patches of latents of 1/8 side.

    Shapes: multiples of 16 (StableDiffusion3Pipeline.check_inputs), at most the table of positions
    (`pos_embed_max_size`). Text: 77 CLIP and 256 T5 states, one after the other in the sequence.
    Each stream has projections (4·w²) and a feed-forward of 4·w (8·w²) a token and layer; in the last layer text has
    keys, values and queries only.
    """

    name: str = "sd3"
    source: str = "arXiv:2403.03206; diffusers StableDiffusion3Pipeline; stable-diffusion-3-medium, -3.5-medium, -large"
    version: str = "3-medium"
    """3-medium, 3.5-medium or 3.5-large."""
    text_tokens: int = 333
    """Text states in the sequence: 77 and 256; 154 = 77 and 77."""

    @property
    def lattice(self) -> Lattice:
        positions = checkpoint(self.name, self.version, _SD3_CHECKPOINTS).positions
        return Lattice(multiple_of=16, off_lattice="error", longest_side=16 * positions)

    @property
    def text_in_sequence(self) -> int:
        return self.text_tokens

    def denoiser(self) -> Tower:
        layers, width, dual, _ = checkpoint(self.name, self.version, _SD3_CHECKPOINTS)
        square = width**2
        modulation = (6 * layers + 3 * dual + 6 * (layers - 1) + 2 + 2) * square
        return joint(
            "transformer",
            once=(TIME + 2048) * width + 2 * square + modulation,
            visual=2 * 64 * width + (12 * layers + 4 * dual) * square,
            text=4096 * width + (12 * layers - 9) * square,
            pairs=2 * width * layers,
            visual_pairs=2 * width * dual,
            text_length=self.text_tokens,
        )


@dataclass(frozen=True, kw_only=True)
class Flux(Diffusion):
    """Flux.1: 19 two-stream and 38 one-stream layers, 3072 wide, over text and 2x2 patches of latents of 1/8 side.

    Shapes: sides are cut to multiples of 16, as FluxPipeline.prepare_latents does (2 · (height // 16) rows), with a
    warning there. Text: T5 states padded to 512 (schnell: 256).
    """

    name: str = "flux"
    source: str = "github.com/black-forest-labs/flux; diffusers FluxPipeline; FLUX.1-dev, FLUX.1-schnell"
    text_tokens: int = 512
    """T5 states in the sequence."""

    @property
    def lattice(self) -> Lattice:
        return Lattice(multiple_of=16, off_lattice="down")

    @property
    def text_in_sequence(self) -> int:
        return self.text_tokens

    def denoiser(self) -> Tower:
        return two_stream(self.text_tokens, guidance=True)


@dataclass(frozen=True, kw_only=True)
class HunyuanDiT(Diffusion):
    """Hunyuan-DiT 1.2: 40 layers, 1408 wide, over 2x2 patches of latents of 1/8 side, text by cross-attention.

    Shapes: sides are cut to multiples of 16, as HunyuanDiTPipeline.__call__ does; its further move to a few standard
    shapes (use_resolution_binning) is a matter of sampling and not made here. Text: 77 CLIP and 256 T5 states.
    A layer has self-attention (4·w²), cross-attention (2·w² + 2·w a text state) and a feed-forward of 6144; layers 21
    to 39 first join the output of an earlier layer (2·w²).
    """

    name: str = "hunyuan_dit"
    source: str = "arXiv:2405.08748; diffusers HunyuanDiTPipeline; Tencent-Hunyuan/HunyuanDiT-v1.2-Diffusers"
    text_tokens: int = 333
    """Text states that are attended to: 77 CLIP, the rest T5."""

    @property
    def lattice(self) -> Lattice:
        return Lattice(multiple_of=16, off_lattice="down")

    def denoiser(self) -> Tower:
        layers, width, inner, text_width, t5_width = 40, 1408, 6144, 1024, 2048
        square, t5 = width**2, self.text_tokens - 77
        pooling = 2 * (t5 + 1) * t5_width**2 + t5_width**2 + t5_width * text_width + 2 * (t5 + 1) * t5_width
        embeddings = TIME * width + square + text_width * 4 * width + 4 * square
        text = t5 * (4 * t5_width**2 + 4 * t5_width * text_width) + 2 * layers * self.text_tokens * text_width * width
        per_layer = 6 * square + 2 * width * inner + 2 * width * self.text_tokens
        return joint(
            "transformer",
            once=pooling + embeddings + text + (layers + 2) * square,
            visual=(16 + 32) * width + layers * per_layer + 19 * 2 * square,
            pairs=2 * width * layers,
        )


FAMILIES: Mapping[str, Callable[..., Family]] = {
    "sdxl": StableDiffusionXL,
    "kolors": Kolors,
    "sd3": StableDiffusion3,
    "flux": Flux,
    "hunyuan_dit": HunyuanDiT,
}
