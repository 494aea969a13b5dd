"""Decoded sound in memory and what can be done to it: resample, mix, trim, level. Arrays in, arrays out.

Knows no file format and no decoder.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mmdata.errors import UnsupportedMedia
from mmdata.media.audio_loudness import integrated_loudness

Samples = NDArray[np.float32]

FRAME_SECONDS = 0.02
"""Length of the frames that silence is judged by."""

SILENCE_DBFS = -60.0
"""Frames whose RMS is below this count as silent unless told otherwise."""

_HALF = math.sqrt(0.5)

_STEREO_GAINS: dict[str, tuple[float, float]] = {
    "FL": (1.0, 0.0),
    "FR": (0.0, 1.0),
    "FC": (_HALF, _HALF),
    "LFE": (0.0, 0.0),
    "LFE2": (0.0, 0.0),
    "BL": (_HALF, 0.0),
    "SL": (_HALF, 0.0),
    "BR": (0.0, _HALF),
    "SR": (0.0, _HALF),
    "BC": (0.5, 0.5),
    "FLC": (1.0, 0.0),
    "FRC": (0.0, 1.0),
    "WL": (1.0, 0.0),
    "WR": (0.0, 1.0),
}
"""ITU-R BS.775-3 annex 4, table 2 (3/2 to 2/0), extended in its spirit to the channels it does not name."""


@dataclass(frozen=True, slots=True)
class Audio:
    """Sound in memory. Full scale is 1.0; lossy codecs and float files may go over it and are not clipped here."""

    samples: Samples
    """float32 [channels, samples]."""
    sample_rate: int
    """Hertz."""
    positions: tuple[str, ...] = ()
    """Loudspeaker of each channel (`FL`, `FR`, `FC`, `LFE`, `BL`, `SL`, …); empty when the file does not say."""

    @property
    def channels(self) -> int:
        """Number of channels."""
        return int(self.samples.shape[0])

    @property
    def length(self) -> int:
        """Samples per channel."""
        return int(self.samples.shape[1])

    @property
    def duration(self) -> float:
        """Seconds."""
        return self.length / self.sample_rate


def resample(audio: Audio, rate: int) -> Audio:
    """Band-limited conversion to `rate` hertz (soxr, HQ). The length becomes round(samples * rate / old rate)."""
    if rate <= 0:
        raise ValueError(f"sample rate {rate} must be positive")
    if rate == audio.sample_rate:
        return audio
    length = round(audio.length * rate / audio.sample_rate)
    if audio.length == 0 or length == 0:
        return replace(audio, samples=np.zeros((audio.channels, length), np.float32), sample_rate=rate)
    import soxr

    converted = soxr.resample(np.ascontiguousarray(audio.samples.T), audio.sample_rate, rate, quality="HQ")
    samples = np.zeros((audio.channels, length), np.float32)
    kept = min(length, len(converted))
    samples[:, :kept] = converted[:kept].T
    return replace(audio, samples=samples, sample_rate=rate)


def mix(audio: Audio, channels: int) -> Audio:
    """Change the number of channels.

    To one: the mean of the channels, except that more than two channels with known loudspeakers are first folded to
    stereo. To two from known loudspeakers: ITU-R BS.775 gains (front 1, centre and surround 0.7071, LFE left out),
    divided by the largest possible sum, so that nothing clips that did not before. From one to any number: copies.
    Raises UnsupportedMedia where no rule says what the result means (eight microphones to two channels).
    """
    if channels < 1:
        raise ValueError(f"{channels} channels asked for; at least one is needed")
    have = audio.channels
    if channels == have:
        return audio
    if have == 1:
        return Audio(np.repeat(audio.samples, channels, axis=0), audio.sample_rate, _default_positions(channels))
    if channels == 1:
        known = _stereo_matrix(audio.positions) if have > 2 else None
        weights = np.full(have, 1 / have) if known is None else known.mean(axis=0)
        return Audio(_apply(weights[None], audio.samples), audio.sample_rate, ("FC",))
    if channels == 2:
        matrix = _stereo_matrix(audio.positions)
        if matrix is not None:
            return Audio(_apply(matrix, audio.samples), audio.sample_rate, ("FL", "FR"))
    where = " ".join(audio.positions) or "no loudspeaker positions"
    raise UnsupportedMedia(f"no rule mixes {have} channels ({where}) to {channels}; mix to 1, or keep {have}")


def _default_positions(channels: int) -> tuple[str, ...]:
    return {1: ("FC",), 2: ("FL", "FR")}.get(channels, ())


def _stereo_matrix(positions: tuple[str, ...]) -> NDArray[np.float64] | None:
    """Gains [2, channels], each row summing to at most 1; None when a position is not known."""
    if not positions or any(position not in _STEREO_GAINS for position in positions):
        return None
    matrix = np.array([_STEREO_GAINS[position] for position in positions]).T
    largest = matrix.sum(axis=1).max()
    return matrix / largest if largest > 0 else None


def _apply(matrix: NDArray[np.float64], samples: Samples) -> Samples:
    """`matrix` [out, in] on `samples` [in, n], summed in double precision a stretch at a time (bounded memory)."""
    out = np.empty((matrix.shape[0], samples.shape[1]), np.float32)
    step = 1 << 18
    for start in range(0, samples.shape[1], step):
        # einsum, not BLAS: the order of the sum, and so every bit, is the same on every machine and thread count.
        part = samples[:, start : start + step].astype(np.float64)
        out[:, start : start + step] = np.einsum("oi,in->on", matrix, part)
    return out


def trim(audio: Audio, start: float = 0.0, end: float | None = None) -> Audio:
    """The samples from `start` to `end` seconds (rounded to the nearest sample); None is the end of the sound."""
    if start < 0 or (end is not None and end < start):
        raise ValueError(f"trim from {start} to {end} s: need 0 <= start <= end")
    first = round(start * audio.sample_rate)
    last = audio.length if end is None else min(audio.length, round(end * audio.sample_rate))
    if first == 0 and last == audio.length:
        return audio
    return replace(audio, samples=audio.samples[:, first:last])


def frame_levels(audio: Audio, seconds: float = FRAME_SECONDS) -> NDArray[np.float64]:
    """RMS in dBFS of each frame of `seconds`, over all channels; the last may be shorter. Digital silence is -inf.

    0 dBFS is a full-scale square wave (RMS 1.0), so a full-scale sine reads -3.01.
    """
    size = max(1, round(seconds * audio.sample_rate))
    whole = audio.length // size * size
    power = np.empty(-(-audio.length // size), np.float64)
    step = size * max(1, (1 << 18) // size)
    for start in range(0, whole, step):
        part = audio.samples[:, start : min(start + step, whole)].astype(np.float64)
        frames = part.reshape(audio.channels, -1, size)
        power[start // size : start // size + frames.shape[1]] = (frames**2).mean(axis=(0, 2))
    if whole < audio.length:
        power[-1] = (audio.samples[:, whole:].astype(np.float64) ** 2).mean()
    with np.errstate(divide="ignore"):
        levels: NDArray[np.float64] = 10 * np.log10(power)
    return levels


def silence_ratio(audio: Audio, threshold_dbfs: float = SILENCE_DBFS) -> float:
    """Share of 20 ms frames whose RMS over all channels is below `threshold_dbfs`, in [0, 1]; 1.0 for no samples."""
    levels = frame_levels(audio)
    return float((levels < threshold_dbfs).mean()) if len(levels) else 1.0


def trim_silence(audio: Audio, threshold_dbfs: float = SILENCE_DBFS, margin: float = 0.0) -> Audio:
    """Drop leading and trailing 20 ms frames below `threshold_dbfs`, keeping `margin` seconds of them at each side.

    Sound that is silent throughout becomes zero samples long.
    """
    loud = np.flatnonzero(frame_levels(audio) >= threshold_dbfs)
    if not len(loud):
        return replace(audio, samples=audio.samples[:, :0])
    size = max(1, round(FRAME_SECONDS * audio.sample_rate))
    spare = round(margin * audio.sample_rate)
    first = max(0, int(loud[0]) * size - spare)
    last = min(audio.length, (int(loud[-1]) + 1) * size + spare)
    if first == 0 and last == audio.length:
        return audio
    return replace(audio, samples=audio.samples[:, first:last])


def peak(audio: Audio) -> float:
    """Largest absolute sample value; 1.0 is full scale, 0.0 for no samples."""
    if audio.length == 0:
        return 0.0
    return float(max(audio.samples.max(), -audio.samples.min()))


def loudness(audio: Audio) -> float:
    """Integrated loudness in LUFS (ITU-R BS.1770-4); -inf when every block is below the absolute gate of -70 LUFS.

    Sound shorter than one 400 ms block, which the standard leaves undefined, is one block of its own length.
    """
    rate = audio.sample_rate
    if rate < 8000 and audio.length:
        # The shelf of the K-weighting needs room below half the rate; the sound has nothing above it to lose.
        audio = resample(audio, 8000)
    return integrated_loudness(audio.samples, audio.sample_rate, audio.positions)


def normalise(audio: Audio, target_lufs: float, peak_dbfs: float = -1.0) -> Audio:
    """Scale to an integrated loudness of `target_lufs`, less where a sample would pass `peak_dbfs`. Silence stays.

    One gain for the whole sound: no compression, no clipping.
    """
    measured = loudness(audio)
    highest = peak(audio)
    if not math.isfinite(measured) or highest == 0:
        return audio
    gain = min(10 ** ((target_lufs - measured) / 20), 10 ** (peak_dbfs / 20) / highest)
    if gain == 1:
        return audio
    return replace(audio, samples=(audio.samples * np.float32(gain)).astype(np.float32, copy=False))
