"""Decode a medium to its end and keep nothing: the proof that training will be able to."""

from __future__ import annotations

from typing import Literal

from mmdata.errors import EmptyMedia, MediaError

Alpha = Literal["white", "black", "drop"]


def prove(
    kind: str,
    source: bytes | str,
    *,
    max_pixels: int,
    alpha: Alpha = "white",
    truncated: Literal["reject", "repair"] = "reject",
) -> None:
    """Decode the picture, video or recording `source` (bytes, or a local path); of a video file that holds sound alone,
    the sound. Raises MediaError when that fails."""
    if kind == "image":
        from mmdata.media import image

        if isinstance(source, str):
            with open(source, "rb") as stream:
                source = stream.read()
        image.decode(source, alpha=alpha, max_pixels=max_pixels, truncated=truncated)
    elif kind == "video":
        from mmdata.media import audio, video

        try:
            video.decode_all(source, max_pixels=max_pixels, truncated=truncated)
        except EmptyMedia as no_picture:
            try:
                audio.decode_all(source, truncated=truncated)
            except MediaError:
                raise no_picture from None
    elif kind == "audio":
        from mmdata.media import audio

        audio.decode_all(source, truncated=truncated)
