"""Operators on sound: loudness, silence ratio and peak; resample, mono, channels, trim, normalise_loudness.

They see decoded sound (float32 [channels, samples], full scale 1.0) and the context; no bytes, no recipe, no other
sample. None of them draws at random.
"""

from __future__ import annotations

from typing import Annotated, Self

import numpy as np
import pyarrow as pa
from pydantic import Field, model_validator

from mmdata.errors import EmptyMedia
from mmdata.media import audio_signal as signal
from mmdata.media.audio_loudness import ABSOLUTE_GATE_LUFS
from mmdata.media.audio_signal import Audio
from mmdata.operators.registry import Arguments, AudioTransform, Context, statistic, transform
from mmdata.recipe.base import mistake
from mmdata.recipe.sizes import Moment, Seconds
from mmdata.schema import MediaInfo

Decibels = Annotated[float, Field(le=0, ge=-200)]


@statistic("loudness", "audio", columns={"loudness": pa.float64()})
def loudness(media: Audio) -> dict[str, float]:
    """Integrated loudness in LUFS (ITU-R BS.1770-4). Silence reads -70, the level of the standard's absolute gate.

    Example: `statistics: [loudness]`, then `filters: ["loudness > -40"]`.
    """
    return {"loudness": max(ABSOLUTE_GATE_LUFS, signal.loudness(media))}


@statistic("silence_ratio", "audio", columns={"silence_ratio": pa.float64()})
class SilenceRatio(Arguments):
    """Share of 20 ms frames, 0 to 1, whose RMS over all channels is below a threshold. The last frame may be shorter.

    Example: `statistics: [{op: silence_ratio, threshold: -50}]`, then `filters: ["silence_ratio < 0.5"]`.
    """

    threshold: Decibels = signal.SILENCE_DBFS
    """dBFS below which a frame is silent; 0 is a full-scale square wave, a full-scale sine has -3.01."""

    def measure(self, media: Audio) -> dict[str, float]:
        """The share of silent frames."""
        return {"silence_ratio": signal.silence_ratio(media, self.threshold)}


@statistic("peak", "audio", columns={"peak": pa.float64()})
def peak(media: Audio) -> dict[str, float]:
    """Largest absolute sample; 1.0 is full scale. Lossy codecs and float files can go over it.

    Example: `statistics: [peak]`, then `filters: ["peak < 0.999"]` against clipped recordings.
    """
    return {"peak": signal.peak(media)}


@transform("resample", "audio")
class Resample(AudioTransform):
    """Convert to another sample rate, band-limited (soxr, HQ).

    Example: `{op: resample, rate: 16000}`.
    """

    rate: Annotated[int, Field(ge=1000, le=768_000)]
    """Hertz."""

    def apply(self, media: Audio, context: Context) -> Audio:
        """Sound of `rate` hertz and the same duration."""
        return signal.resample(media, self.rate)

    def is_noop(self, info: MediaInfo, context: Context) -> bool:
        """Whether the sound has this rate."""
        return info.sample_rate == self.rate


@transform("mono", "audio")
class Mono(AudioTransform):
    """Mix to one channel: the mean of all; of a surround recording, the mean of its ITU-R BS.775 stereo.

    Example: `{op: mono}`.
    """

    def apply(self, media: Audio, context: Context) -> Audio:
        """Sound of one channel."""
        return signal.mix(media, 1)

    def is_noop(self, info: MediaInfo, context: Context) -> bool:
        """Whether there is one channel only."""
        return info.channels == 1


@transform("channels", "audio")
class Channels(AudioTransform):
    """Mix to a number of channels. Surround to stereo by ITU-R BS.775; one channel is copied to all.

    A sample for which no rule says what the mix means (eight microphones to two channels) is quarantined.
    Example: `{op: channels, count: 2}`.
    """

    count: Annotated[int, Field(ge=1, le=64)]
    """Channels wanted."""

    def apply(self, media: Audio, context: Context) -> Audio:
        """Sound of `count` channels."""
        return signal.mix(media, self.count)

    def is_noop(self, info: MediaInfo, context: Context) -> bool:
        """Whether there are as many already."""
        return info.channels == self.count


@transform("trim", "audio")
class Trim(AudioTransform):
    """Keep the sound from `start` to `end`, or drop the silence at both ends, or both in this order.

    A sample of which nothing is left is quarantined as EmptyMedia.
    Example: `{op: trim, start: 1s, end: 11s}`, or `{op: trim, silence: true, threshold: -45, margin: 100ms}`.
    """

    start: Moment = 0.0
    """Seconds from the beginning."""
    end: Seconds | None = None
    """Seconds from the beginning; the end of the sound when not given, or when it comes earlier."""
    silence: bool = False
    """Drop leading and trailing 20 ms frames whose RMS is below `threshold`."""
    threshold: Decibels = signal.SILENCE_DBFS
    """dBFS below which a frame is silent."""
    margin: Moment = 0.0
    """Seconds of silence kept at each end."""

    @model_validator(mode="after")
    def _something(self) -> Self:
        if not self.model_fields_set & {"start", "end", "silence"}:
            raise mistake("trim needs start, end or silence: true")
        if self.end is not None and self.end <= self.start:
            raise mistake(f"end ({self.end:g} s) must come after start ({self.start:g} s)")
        if self.margin and not self.silence:
            raise mistake("margin goes with silence: true")
        return self

    def apply(self, media: Audio, context: Context) -> Audio:
        """The stretch that is kept. Raises EmptyMedia when there is none."""
        kept = signal.trim(media, self.start, self.end)
        if kept.length == 0:
            raise EmptyMedia(f"trim: starts at {self.start:g} s, but the sound lasts {media.duration:.3f} s")
        if self.silence:
            kept = signal.trim_silence(kept, self.threshold, self.margin)
            if kept.length == 0:
                raise EmptyMedia(f"trim: all of it is below {self.threshold:g} dBFS")
        return kept

    def is_noop(self, info: MediaInfo, context: Context) -> bool:
        """Whether the sound ends by `end` and nothing is cut before; where silence is, only decoding shows."""
        if self.silence or info.duration is None or not info.sample_rate:
            return False
        rate = info.sample_rate
        starts = round(self.start * rate) == 0
        return starts and (self.end is None or round(self.end * rate) >= round(info.duration * rate))

    def remaining(self, duration: np.ndarray) -> np.ndarray:
        """From `start` to `end`; how much of it is silence is not known."""
        end = duration if self.end is None else np.minimum(duration, self.end)
        return np.maximum(end - self.start, 0.0)


@transform("normalise_loudness", "audio")
class NormaliseLoudness(AudioTransform):
    """Scale to an integrated loudness (ITU-R BS.1770-4), less where a sample would pass the peak limit. One gain for
    the whole sound; silence stays as it is.

    Example: `{op: normalise_loudness, target: -23}`.
    """

    target: Annotated[float, Field(ge=-70, le=0)] = -23.0
    """LUFS; -23 is EBU R 128."""
    peak: Decibels = -1.0
    """dBFS that no sample passes."""

    def apply(self, media: Audio, context: Context) -> Audio:
        """The scaled sound."""
        return signal.normalise(media, self.target, self.peak)

    def is_noop(self, info: MediaInfo, context: Context) -> bool:
        """Never known before decoding."""
        return False
