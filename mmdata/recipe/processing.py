"""The sections that say how media are decoded, encoded, bounded and fetched. Knows no file and no operator."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from mmdata.recipe.base import Section, mistake
from mmdata.recipe.sizes import BitRate, Bytes, Pixels, Seconds, show

Count = Annotated[int, Field(ge=1)]


class ImageEncode(Section):
    """How pictures that were changed are written."""

    format: Literal["keep", "jpeg", "png", "webp", "avif"] = "keep"
    """Format of all stored pictures; `keep` stays with each picture's own (JPEG where that cannot be written)."""
    quality: Annotated[int, Field(ge=1, le=100)] = 90
    """Quality of lossy formats."""
    lossless: bool = False
    """Write WebP and AVIF without loss."""
    subsampling: Literal["4:4:4", "4:2:2", "4:2:0"] = "4:2:0"
    """Chroma subsampling of JPEG and AVIF."""

    @model_validator(mode="after")
    def _can_be_lossless(self) -> Self:
        if self.lossless and self.format == "jpeg":
            raise mistake("jpeg cannot be lossless; use png, webp or avif")
        return self


class VideoEncode(Section):
    """How videos that were changed are written."""

    codec: Literal["keep", "h264", "vp9", "av1"] = "keep"
    """Codec of all stored videos; `keep` stays with each video's own (H.264 where that cannot be written)."""
    crf: Annotated[int, Field(ge=0, le=63)] = 23
    """Constant rate factor: lower is better and larger. At most 51 for h264."""
    keyframe_interval: Count = 32
    """Frames between key frames, at most; small values make sparse reading cheap."""
    audio: bool = True
    """Carry the audio track."""

    @model_validator(mode="after")
    def _crf_fits(self) -> Self:
        if self.codec in ("h264", "keep") and self.crf > 51:
            raise mistake(f"crf of h264 is at most 51, found {self.crf}")
        return self


class AudioEncode(Section):
    """How recordings that were changed are written."""

    format: Literal["keep", "flac", "wav", "opus"] = "keep"
    """Format of all stored recordings; `keep` stays with each recording's own (FLAC where that cannot be written)."""
    bits: Literal[16, 24] = 16
    """Bits per sample of FLAC and WAV."""
    bitrate: BitRate = 96_000
    """Bit rate of Opus, bits per second."""


class Encode(Section):
    """How media that a transform changed are written."""

    image: ImageEncode = ImageEncode()
    """Pictures."""
    video: VideoEncode = VideoEncode()
    """Videos."""
    audio: AudioEncode = AudioEncode()
    """Recordings."""


class Decode(Section):
    """How media become pixels and samples."""

    alpha: Literal["white", "black", "drop"] = "white"
    """Transparent pixels are laid over white or black, or their colour is taken as it is."""


def _bad_limit(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise mistake(f"expected a count such as 100 or a share such as 0.1, found {show(value)}")
    if value < 0:
        raise mistake(f"must not be negative, found {value}")
    if isinstance(value, float) and value > 1:
        raise mistake(f"a share is at most 1.0, found {value}; write a count without a decimal point")
    return value


class Limits(Section):
    """What one sample may cost, and how many may be bad."""

    max_bad: Annotated[int | float, BeforeValidator(_bad_limit)] = 0.1
    """Bad samples before the job ends with exit code 3: a count (`100`) or a share of all (`0.1`)."""
    cpu: Seconds = 60.0
    """CPU time of one sample; when it is over, the sample is tried once more alone."""
    wall: Seconds = 300.0
    """Wall time of one sample."""
    memory: Bytes = 2 * 1024**3
    """Memory of one sample's process."""
    max_pixels: Pixels = 178_956_970
    """Pixels of a picture or frame."""
    max_seconds: Seconds | None = None
    """Duration of a video or recording; no limit by default."""
    max_item: Bytes = 1024**3
    """Bytes of one medium."""
    truncated: Literal["reject", "repair"] = "reject"
    """A picture that ends early is rejected, or shown as far as it goes."""

    def allows(self, bad: int, total: int) -> bool:
        """Whether `bad` of `total` samples are within `max_bad`."""
        limit = self.max_bad * total if isinstance(self.max_bad, float) else self.max_bad
        return bad <= limit + 1e-9 * total  # a share such as 0.29 is not exact in binary

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.wall < self.cpu:
            raise mistake(f"wall ({self.wall:g} s) must not be less than cpu ({self.cpu:g} s)")
        return self


class StorageOptions(Section):
    """How object stores are reached. Credentials come from the environment, never from a recipe."""

    endpoint: str | None = None
    """Endpoint URL of an S3-compatible store."""
    region: str | None = None
    """Region of the store."""
    anonymous: bool = False
    """Send unsigned requests."""
    virtual_host: bool = False
    """Put the bucket in the host name instead of the path."""
    retries: Annotated[int, Field(ge=0)] = 8
    """Tries after the first one fails."""
    backoff: Seconds = 0.2
    """First pause between tries; doubled each time, with jitter."""
    max_backoff: Seconds = 20.0
    """Longest pause between tries."""
    deadline: Seconds = 300.0
    """Time for one request with all its tries."""
    timeout: Seconds = 60.0
    """Time for one try."""

    def arguments(self) -> dict[str, Any]:
        """These settings as `mmdata.storage.StorageSettings` names them: durations end in `_s`."""
        timed = ("backoff", "max_backoff", "deadline", "timeout")
        return {f"{name}_s" if name in timed else name: value for name, value in self.plain().items()}

    @field_validator("endpoint")
    @classmethod
    def _is_url(cls, value: str | None) -> str | None:
        if value is not None and not re.match(r"https?://.", value):
            raise mistake(f"expected a URL that starts with http:// or https://, found {show(value)}")
        if value is not None and "@" in value.partition("://")[2].partition("/")[0]:
            # A recipe is stored with its dataset; neither it nor this message is to show the secret.
            raise mistake("credentials have no place in a recipe: give them in the environment (AWS_ACCESS_KEY_ID, …)")
        return value

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.backoff > self.max_backoff:
            raise mistake(f"backoff ({self.backoff:g} s) must not exceed max_backoff ({self.max_backoff:g} s)")
        return self
