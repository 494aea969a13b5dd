"""Encoding sound: exact round trips, the same bytes on every run, and what a format cannot hold."""

from __future__ import annotations

import io
import subprocess
import sys
import time

import numpy as np
import pytest
import soundfile

from mmdata.errors import EncodeError
from mmdata.media import audio
from mmdata.media.audio import Audio

FORMATS = [("flac", 16), ("flac", 24), ("wav", 16), ("wav", 24), ("wav", 32), ("opus", 16)]


def noise(channels: int = 2, rate: int = 16000, length: int = 20000) -> Audio:
    return Audio(np.random.default_rng(7).uniform(-0.9, 0.9, (channels, length)).astype("f4"), rate)


@pytest.mark.parametrize(("form", "bits"), FORMATS)
def test_the_same_bytes_more_than_a_second_apart(form: str, bits: int) -> None:
    first = audio.encode(noise(), form, bits=bits)
    time.sleep(1.1)
    assert audio.encode(noise(), form, bits=bits) == first


def test_the_same_bytes_in_another_process() -> None:
    code = (
        "import sys, hashlib, numpy as np; from mmdata.media import audio\n"
        "x = np.random.default_rng(7).uniform(-0.9, 0.9, (2, 20000)).astype('f4')\n"
        "sound = audio.Audio(x, 16000)\n"
        "print(hashlib.sha256(b''.join(audio.encode(sound, f) for f in ('flac', 'wav', 'opus'))).hexdigest())"
    )
    runs = {
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
        for _ in range(2)
    }
    assert len(runs) == 1


@pytest.mark.parametrize("channels", [1, 2, 3, 6, 8])
@pytest.mark.parametrize(("form", "bits"), [("flac", 16), ("flac", 24), ("wav", 16), ("wav", 24)])
def test_integers_survive_a_round_trip_bit_for_bit(form: str, bits: int, channels: int) -> None:
    full = 2 ** (bits - 1)
    whole = np.random.default_rng(1).integers(-full, full, (channels, 5000))
    sound = Audio((whole / full).astype("f4"), 44100)
    decoded = audio.decode(audio.encode(sound, form, bits=bits))
    assert np.array_equal(decoded.samples, sound.samples)
    assert decoded.sample_rate == 44100


def test_float_wav_is_exact_over_full_scale() -> None:
    sound = Audio(noise().samples * 2, 16000)
    assert np.array_equal(audio.decode(audio.encode(sound, "wav", bits=32)).samples, sound.samples)


def test_integers_clip_at_full_scale() -> None:
    decoded = audio.decode(audio.encode(Audio(np.array([[2.0, -2.0]], "f4"), 8000), "wav"))
    assert decoded.samples.tolist() == [[32767 / 32768, -1.0]]


@pytest.mark.parametrize("rate", [8000, 16000, 22050, 44100, 48000])
@pytest.mark.parametrize("channels", [1, 2, 6])
def test_opus_keeps_duration_channels_and_alignment(rate: int, channels: int) -> None:
    seconds = np.arange(round(rate * 0.777)) / rate
    wave = 0.5 * np.sin(2 * np.pi * 440 * seconds)
    decoded = audio.decode(audio.encode(Audio(np.repeat(wave[None], channels, 0).astype("f4"), rate), "opus"))
    assert decoded.sample_rate == audio.encoded_rate("opus", rate) == 48000
    assert decoded.samples.shape == (channels, round(len(wave) * 48000 / rate))
    expected = 0.5 * np.sin(2 * np.pi * 440 * np.arange(decoded.length) / 48000)
    error = decoded.samples[0, 4800:-4800] - expected[4800:-4800]
    assert np.sqrt((error**2).mean()) < 0.01


def test_opus_bitrate_is_obeyed() -> None:
    sound = noise(1, 48000, 48000 * 4)
    low, high = (len(audio.encode(sound, "opus", bitrate=rate)) for rate in (24_000, 96_000))
    assert low == pytest.approx(24_000 / 8 * 4, rel=0.3)
    assert high == pytest.approx(96_000 / 8 * 4, rel=0.3)


def test_other_readers_open_what_is_written() -> None:
    for form, bits in FORMATS:
        samples, rate = soundfile.read(io.BytesIO(audio.encode(noise(), form, bits=bits)), always_2d=True)
        assert samples.shape[1] == 2
        # libsndfile gives Opus at the rate it was encoded from.
        assert len(samples) / rate == pytest.approx(20000 / 16000, abs=1e-3)


@pytest.mark.parametrize(
    ("sound", "form", "bits", "message"),
    [
        (noise(9), "flac", 16, "9 channels"),
        (noise(9), "opus", 16, "at most 8 channels"),
        (noise(), "flac", 32, "16, 24"),
        (noise(), "mp3", 16, "flac, wav or opus"),
        (noise(length=0), "wav", 16, "no samples"),
        (Audio(np.full((1, 10), np.nan, "f4"), 8000), "flac", 16, "finite"),
    ],
)
def test_what_a_format_cannot_hold_is_an_encode_error(sound: Audio, form: str, bits: int, message: str) -> None:
    with pytest.raises(EncodeError, match=message):
        audio.encode(sound, form, bits=bits)
