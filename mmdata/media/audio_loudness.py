"""Integrated loudness after ITU-R BS.1770-4 (annex 1), in NumPy: K-weighting, channel weights, two gates.

Arrays in, a number out; knows no file format. Memory is bounded: the signal is filtered a stretch at a time.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

ABSOLUTE_GATE_LUFS = -70.0
RELATIVE_GATE_LU = -10.0
OFFSET_LUFS = -0.691
"""BS.1770-4 equation 2: makes a 997 Hz, 0 dBFS sine in one front channel read -3.01 LUFS."""

_HOPS_PER_BLOCK = 4
"""Blocks of 400 ms overlap by 75 %: a block is four hops of 100 ms."""

_WEIGHTS = {"LFE": 0.0, "LFE2": 0.0, "BL": 1.41, "BR": 1.41, "SL": 1.41, "SR": 1.41}
"""BS.1770-4 table 3: surround channels +1.5 dB, LFE left out, all others 1."""

_STRETCH = 1 << 18
"""Samples that are filtered at once."""


def integrated_loudness(samples: NDArray[np.float32], rate: int, positions: tuple[str, ...] = ()) -> float:
    """LUFS of `samples` [channels, n] at `rate` hertz (>= 4000); -inf when no block passes the absolute gate."""
    weights = np.array([_WEIGHTS.get(position, 1.0) for position in positions] or [1.0] * samples.shape[0])
    hop = round(rate / 10)
    energy = _weighted_energy(samples, rate, weights, hop)
    if len(energy) >= _HOPS_PER_BLOCK:
        sums = np.cumsum(np.concatenate(([0.0], energy)))
        power = (sums[_HOPS_PER_BLOCK:] - sums[:-_HOPS_PER_BLOCK]) / (_HOPS_PER_BLOCK * hop)
    else:
        power = _weighted_energy(samples, rate, weights, max(1, samples.shape[1])) / max(1, samples.shape[1])
    power = power[power > _power(ABSOLUTE_GATE_LUFS)]
    if not len(power):
        return -math.inf
    power = power[power > power.mean() * 10 ** (RELATIVE_GATE_LU / 10)]
    return OFFSET_LUFS + 10 * math.log10(power.mean())


def _power(lufs: float) -> float:
    return float(10 ** ((lufs - OFFSET_LUFS) / 10))


def _weighted_energy(samples: NDArray[np.float32], rate: int, weights: Floats, hop: int) -> Floats:
    """Sum over channels of weight times squared K-weighted samples, for each whole hop of `hop` samples."""
    hops = samples.shape[1] // hop
    energy = np.zeros(hops)
    response = _response(rate)
    stretch = max(hop, _STRETCH // hop * hop)
    for channel, weight in zip(samples, weights, strict=True):
        if weight == 0:
            continue
        for start in range(0, hops * hop, stretch):
            stop = min(start + stretch, hops * hop)
            squared = _filtered(channel, response, start, stop) ** 2
            energy[start // hop : stop // hop] += weight * squared.reshape(-1, hop).sum(axis=1)
    return energy


def _filtered(channel: NDArray[np.float32], response: Floats, start: int, stop: int) -> Floats:
    """The filter's output for samples start..stop: overlap-save convolution with its impulse response."""
    before = min(start, len(response) - 1)
    taken = channel[start - before : stop].astype(np.float64)
    size = 1 << (len(taken) + len(response) - 2).bit_length()
    spectrum = np.fft.rfft(taken, size) * np.fft.rfft(response, size)
    return np.fft.irfft(spectrum, size)[before : before + stop - start]


@lru_cache(maxsize=16)
def _response(rate: int) -> Floats:
    """Impulse response of the K-weighting, cut where the 38 Hz high-pass has decayed by over 150 dB (0.15 s)."""
    impulse = np.zeros(math.ceil(0.15 * rate))
    impulse[0] = 1.0
    shelf, high_pass = k_weighting(rate)
    response = _biquad(_biquad(impulse, *shelf), *high_pass)
    response.setflags(write=False)
    return response


Section = tuple[tuple[float, float, float], tuple[float, float, float]]


def k_weighting(rate: int) -> tuple[Section, Section]:
    """The two second-order sections of BS.1770-4 (numerator, denominator) at `rate` hertz.

    The standard tabulates them at 48 kHz only; these are its analogue prototypes through the bilinear transform, with
    the constants that libebur128 recovered from the table (they give its 48 kHz coefficients to 1e-12).
    """
    k = math.tan(math.pi * 1681.974450955533 / rate)
    q = 0.7071752369554196
    high = 10 ** (3.999843853973347 / 20)
    band = high**0.4996667741545416
    a0 = 1 + k / q + k * k
    shelf = (
        ((high + band * k / q + k * k) / a0, 2 * (k * k - high) / a0, (high - band * k / q + k * k) / a0),
        (1.0, 2 * (k * k - 1) / a0, (1 - k / q + k * k) / a0),
    )
    k = math.tan(math.pi * 38.13547087602444 / rate)
    q = 0.5003270373238773
    a0 = 1 + k / q + k * k
    high_pass = ((1.0, -2.0, 1.0), (1.0, 2 * (k * k - 1) / a0, (1 - k / q + k * k) / a0))
    return shelf, high_pass


def _biquad(signal: Floats, numerator: tuple[float, ...], denominator: tuple[float, ...]) -> Floats:
    """One second-order section, sample by sample (transposed direct form II); for short signals."""
    b0, b1, b2 = numerator
    _, a1, a2 = denominator
    out = np.empty_like(signal)
    s1 = s2 = 0.0
    for n, x in enumerate(signal.tolist()):
        y = b0 * x + s1
        s1 = b1 * x - a1 * y + s2
        s2 = b2 * x - a2 * y
        out[n] = y
    return out
