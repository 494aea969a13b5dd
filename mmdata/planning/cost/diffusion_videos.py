"""Diffusion families that make videos: CogVideoX, Wan 2.1, Open-Sora 2.0, Open-Sora Plan 1.3.

Shapes are those of the diffusers pipelines (0.42) where there is one, else of the project's own sampling code;
dimensions are those of the published checkpoints. All autoencoders are causal: 1 + 4n frames make 1 + n latent frames
of 1/8 side, and a picture is a video of one frame.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from mmdata.planning.cost.base import Family, Tower
from mmdata.planning.cost.diffusion import Diffusion, Lattice, checkpoint
from mmdata.planning.cost.diffusion_work import TIME, joint, two_stream


class _CogVideoX(NamedTuple):
    layers: int
    width: int
    channels: int
    """Latent channels that go in: 16, and 16 of the first picture in image-to-video."""
    frames: int = 1
    """Latent frames in a token."""
    offset: bool = False
    """Whether a further scalar is embedded (1.5 image-to-video)."""


_COGVIDEOX_CHECKPOINTS = {
    "2b": _CogVideoX(30, 1920, 16),
    "5b": _CogVideoX(42, 3072, 16),
    "5b-i2v": _CogVideoX(42, 3072, 32),
    "1.5-5b": _CogVideoX(42, 3072, 16, frames=2),
    "1.5-5b-i2v": _CogVideoX(42, 3072, 32, frames=2, offset=True),
}


@dataclass(frozen=True, kw_only=True)
class CogVideoX(Diffusion):
    """CogVideoX: full attention over 226 T5 states and 2x2 (1.5: 2x2x2) patches of latents.

    Shapes: multiples of 16: the pipeline asks for 8, and its transformer halves the latent once more, which an odd
    latent does not survive. Any number of frames gives (frames - 1) // 4 + 1 latent frames (prepare_latents), so frames
    beyond 4n + 1 are lost; the checkpoints were trained on 8n + 1 (1.5: 16n + 1). In 1.5 latent frames are filled up
    to an even number, as CogVideoXPipeline.__call__ does.
    """

    name: str = "cogvideox"
    source: str = "arXiv:2408.06072; diffusers CogVideoXPipeline; THUDM/CogVideoX-2b, -5b, -5b-I2V, CogVideoX1.5-5B"
    version: str = "5b"
    """2b, 5b, 5b-i2v, 1.5-5b or 1.5-5b-i2v."""
    text_tokens: int = 226
    """T5 states in the sequence."""

    @property
    def lattice(self) -> Lattice:
        depth = checkpoint(self.name, self.version, _COGVIDEOX_CHECKPOINTS).frames
        return Lattice(multiple_of=16, off_lattice="error", patch=(depth, 2, 2), temporal=4, frames="floor")

    @property
    def text_in_sequence(self) -> int:
        return self.text_tokens

    def denoiser(self) -> Tower:
        layers, width, channels, depth, offset = checkpoint(self.name, self.version, _COGVIDEOX_CHECKPOINTS)
        square, time = width**2, 512
        once = width * time + time**2 + layers * 2 * 6 * time * width + 2 * time * width
        return joint(
            "transformer",
            once=once + (2 * time**2 if offset else 0),
            visual=4 * depth * (channels + 16) * width + 12 * layers * square,
            text=4096 * width + 12 * layers * square,
            pairs=2 * width * layers,
            text_length=self.text_tokens,
        )


class _Wan(NamedTuple):
    layers: int
    width: int
    inner: int
    channels: int
    """Latent channels that go in; image-to-video adds the first picture's 16 and a mask of 4."""
    picture: int = 0
    """States of the first picture that are attended to (CLIP ViT-H: 257)."""


_WAN_CHECKPOINTS = {
    "t2v-1.3b": _Wan(30, 1536, 8960, 16),
    "t2v-14b": _Wan(40, 5120, 13824, 16),
    "i2v-14b": _Wan(40, 5120, 13824, 36, picture=257),
}


@dataclass(frozen=True, kw_only=True)
class Wan21(Diffusion):
    """Wan 2.1: full attention over 2x2 patches of latents; 512 states of umT5 by cross-attention.

    Shapes: multiples of 16 (WanPipeline.check_inputs), at most 1024 patches a side (rope_max_seq_len). Frames other
    than 4n + 1 become 4 · (frames // 4) + 1 (WanPipeline.__call__): 82 and 83 give 81, but 80 gives 81, too: a bucket
    of 80 frames is planned as 81. A layer has self-attention (4·w²), cross-attention (2·w² + 2·w a state) and a
    feed-forward; image-to-video attends to 257 states of the first picture as well.
    """

    name: str = "wan2_1"
    source: str = "arXiv:2503.20314; diffusers WanPipeline, WanImageToVideoPipeline; Wan-AI/Wan2.1-T2V-14B, -1.3B, -I2V"
    version: str = "t2v-14b"
    """t2v-1.3b, t2v-14b or i2v-14b (480P and 720P alike)."""
    text_tokens: int = 512
    """States of umT5 that are attended to."""

    @property
    def lattice(self) -> Lattice:
        return Lattice(multiple_of=16, off_lattice="error", temporal=4, frames="wan", longest_side=16 * 1024)

    def denoiser(self) -> Tower:
        layers, width, inner, channels, picture = checkpoint(self.name, self.version, _WAN_CHECKPOINTS)
        square, text = width**2, self.text_tokens
        states = text + picture
        embeddings = TIME * width + 7 * square + text * (4096 * width + square) + picture * 1280 * (1280 + width)
        return joint(
            "transformer",
            once=embeddings + 2 * layers * states * square,
            visual=4 * (channels + 16) * width + layers * (6 * square + 2 * width * inner + 2 * width * states),
            pairs=2 * width * layers,
        )


@dataclass(frozen=True, kw_only=True)
class OpenSora(Diffusion):
    """Open-Sora 2.0 (11B): Flux.1's transformer over 512 T5 states and 2x2 patches of HunyuanVideo's latents.

    Shapes: sides are rounded up to multiples of 16 (sanitize_sampling_option in opensora/utils/sampling.py), frames
    give (frames - 1) // 4 + 1 latent frames (prepare_api with is_causal_vae, temporal_reduction 4), so frames beyond
    4n + 1 are lost. Every patch gets a projection of its condition: 64 channels and a mask of 4 (cond_embed in
    configs/diffusion/inference/256px.py). The variant with the high-compression autoencoder is another family.
    """

    name: str = "open_sora"
    source: str = "arXiv:2503.09642; github.com/hpcaitech/Open-Sora, v2.0, opensora/utils/sampling.py, models/mmdit"
    text_tokens: int = 512
    """T5 states in the sequence."""

    @property
    def lattice(self) -> Lattice:
        return Lattice(multiple_of=16, off_lattice="up", temporal=4, frames="floor")

    @property
    def text_in_sequence(self) -> int:
        return self.text_tokens

    def denoiser(self) -> Tower:
        return two_stream(self.text_tokens, guidance=False, condition_channels=68)


@dataclass(frozen=True, kw_only=True)
class OpenSoraPlan(Diffusion):
    """Open-Sora Plan 1.3 (2.7B): 32 layers, 2304 wide, over 2x2 patches of WF-VAE's latents (8 channels).

    Shapes: frames 4n + 1 and multiples of 8 (OpenSoraPipeline.check_inputs); 16, because patches of 2x2 must come out
    even. Text: 512 states of mT5-XXL by cross-attention.
    The first and last two layers attend fully. The others (Skiparse, sparse_n 4) attend within 4 interleaved parts of
    x/4 tokens, 4·(x/4)² = x²/4 pairs; so 4 + 28/4 = 11 full layers' pairs (exact where x is a multiple of 16, to which
    parts are padded).
    """

    name: str = "open_sora_plan"
    source: str = (
        "arXiv:2412.00131; github.com/PKU-YuanGroup/Open-Sora-Plan, v1.3.0, opensora_v1_3/modeling_opensora.py"
    )
    text_tokens: int = 512
    """States of mT5 that are attended to."""

    @property
    def lattice(self) -> Lattice:
        return Lattice(multiple_of=16, off_lattice="error", temporal=4, frames="exact")

    def denoiser(self) -> Tower:
        layers, width, text, full, sparse = 32, 2304, self.text_tokens, 4, 28
        square = width**2
        embeddings = TIME * width + 7 * square + text * (4096 * width + square)
        return joint(
            "transformer",
            once=embeddings + 2 * layers * text * square,
            visual=2 * 32 * width + layers * (14 * square + 2 * width * text),
            pairs=2 * width * (full + sparse / 4),
        )


FAMILIES: Mapping[str, Callable[..., Family]] = {
    "cogvideox": CogVideoX,
    "wan2_1": Wan21,
    "open_sora": OpenSora,
    "open_sora_plan": OpenSoraPlan,
}
