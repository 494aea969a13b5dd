"""Decode a medium to its end and keep nothing: the proof that training will be able to."""

from __future__ import annotations

from typing import Literal

Alpha = Literal["white", "black", "drop"]


def prove(
    kind: str,
    source: bytes | str,
    *,
    max_pixels: int,
    alpha: Alpha = "white",
    truncated: Literal["reject", "repair"] = "reject",
) -> None:
    """Decode the picture, video or recording `source` (bytes, or a local path). Raises MediaError when that fails."""
    if kind == "image":
        from mmdata.media import image

        if isinstance(source, str):
            with open(source, "rb") as stream:
                source = stream.read()
        image.decode(source, alpha=alpha, max_pixels=max_pixels, truncated=truncated)
    elif kind == "video":
        from mmdata.media import video

        video.decode_all(source, max_pixels=max_pixels, truncated=truncated)
    elif kind == "audio":
        from mmdata.media import audio

        audio.decode_all(source, truncated=truncated)
