"""Sound in memory: resampling, mixing, trimming and levels against closed-form values and the loudness standard."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mmdata.errors import UnsupportedMedia
from mmdata.media import audio
from mmdata.media.audio import Audio
from mmdata.media.audio_loudness import k_weighting

FIVE_ONE = ("FL", "FR", "FC", "LFE", "BL", "BR")


def tone(pitch: float, seconds: float, rate: int = 48000, dbfs: float = 0.0, channels: int = 1) -> Audio:
    """A sine whose peak is `dbfs` below full scale, the same in every channel."""
    time = np.arange(round(rate * seconds)) / rate
    wave = 10 ** (dbfs / 20) * np.sin(2 * np.pi * pitch * time)
    return Audio(np.repeat(wave[None], channels, axis=0).astype("f4"), rate)


def joined(*parts: Audio) -> Audio:
    return Audio(np.concatenate([part.samples for part in parts], axis=1), parts[0].sample_rate)


# --- loudness ---


def test_k_weighting_is_the_table_of_the_standard() -> None:
    """BS.1770-4, tables 1 and 2: coefficients at 48 kHz."""
    shelf, high_pass = k_weighting(48000)
    assert shelf[0] == pytest.approx((1.53512485958697, -2.69169618940638, 1.19839281085285), abs=1e-12)
    assert shelf[1] == pytest.approx((1.0, -1.69065929318241, 0.73248077421585), abs=1e-12)
    assert high_pass[0] == (1.0, -2.0, 1.0)
    assert high_pass[1] == pytest.approx((1.0, -1.99004745483398, 0.99007225036621), abs=1e-12)


@pytest.mark.parametrize("rate", [8000, 16000, 22050, 44100, 48000, 96000])
def test_a_997_hz_full_scale_sine_reads_minus_3_01(rate: int) -> None:
    """BS.1770-4, annex 1: at 48 kHz; at other rates the bilinear transform bends the shelf a little."""
    assert audio.loudness(tone(997, 5, rate)) == pytest.approx(-3.01, abs=0.001 if rate == 48000 else 0.05)


def test_two_channels_of_it_read_zero() -> None:
    assert audio.loudness(tone(997, 5, channels=2)) == pytest.approx(0.0, abs=0.01)


@pytest.mark.parametrize("level", [-23.0, -33.0])
def test_ebu_3341_cases_1_and_2(level: float) -> None:
    assert audio.loudness(tone(1000, 20, dbfs=level, channels=2)) == pytest.approx(level, abs=0.1)


@pytest.mark.parametrize(
    "steps",
    [
        ((-36, 10), (-23, 60), (-36, 10)),  # case 3: the relative gate
        ((-72, 10), (-36, 10), (-23, 60), (-36, 10), (-72, 10)),  # case 4: both gates
        ((-26, 20), (-20, 20.1), (-26, 20)),  # case 5: no gate
    ],
)
def test_ebu_3341_cases_3_to_5(steps: tuple[tuple[float, float], ...]) -> None:
    sound = joined(*(tone(1000, seconds, dbfs=level, channels=2) for level, seconds in steps))
    assert audio.loudness(sound) == pytest.approx(-23.0, abs=0.1)


def test_ebu_3341_case_6_weights_the_channels() -> None:
    """5.0: -28 dBFS left and right, -24 centre, -30 surrounds, nothing in the LFE; whatever is there is left out."""
    levels = {"FL": -28, "FR": -28, "FC": -24, "BL": -30, "BR": -30}
    one = tone(1000, 20).samples[0]
    rows = [one * 10 ** (levels[name] / 20) if name in levels else one for name in FIVE_ONE]
    assert audio.loudness(Audio(np.stack(rows).astype("f4"), 48000, FIVE_ONE)) == pytest.approx(-23.0, abs=0.1)


@pytest.mark.parametrize("rate", [16000, 44100, 48000])
def test_loudness_agrees_with_pyloudnorm(rate: int) -> None:
    pyloudnorm = pytest.importorskip("pyloudnorm")
    generator = np.random.default_rng(3)
    swell = np.repeat(generator.uniform(0.001, 0.3, 40), rate // 4)
    noise = (generator.normal(0, 1, (2, len(swell))) * swell).astype("f4")
    theirs = pyloudnorm.Meter(rate, filter_class="DeMan").integrated_loudness(noise.T.astype("f8"))
    assert audio.loudness(Audio(noise, rate)) == pytest.approx(theirs, abs=0.01)


def test_a_long_sound_is_filtered_in_stretches_without_seams() -> None:
    whole = tone(997, 70)
    assert audio.loudness(whole) == pytest.approx(audio.loudness(tone(997, 3)), abs=1e-3)


def test_silence_has_no_loudness() -> None:
    assert audio.loudness(Audio(np.zeros((2, 48000), "f4"), 48000)) == -math.inf
    assert audio.loudness(tone(997, 5, dbfs=-80)) == -math.inf
    assert audio.loudness(Audio(np.zeros((1, 0), "f4"), 48000)) == -math.inf


def test_a_short_sound_is_one_block() -> None:
    assert audio.loudness(tone(997, 0.25)) == pytest.approx(-3.01, abs=0.1)


def test_very_low_rates_are_measured() -> None:
    assert audio.loudness(tone(500, 5, 4000)) == pytest.approx(audio.loudness(tone(500, 5, 8000)), abs=0.05)


# --- normalise ---


def test_normalise_reaches_the_loudness() -> None:
    levelled = audio.normalise(tone(440, 5, dbfs=-30, channels=2), -23.0)
    assert audio.loudness(levelled) == pytest.approx(-23.0, abs=0.01)


def test_normalise_stops_at_the_peak() -> None:
    quiet = tone(997, 5, dbfs=-30)
    quiet.samples[0, 1000] = 0.5
    levelled = audio.normalise(quiet, -10.0, peak_dbfs=-1.0)
    assert audio.peak(levelled) == pytest.approx(10 ** (-1 / 20), rel=1e-6)
    assert audio.loudness(levelled) < -20


def test_normalise_leaves_silence() -> None:
    silent = Audio(np.zeros((1, 48000), "f4"), 48000)
    assert audio.normalise(silent, -23.0) is silent


# --- resample ---


@pytest.mark.parametrize(("rate", "target"), [(48000, 16000), (44100, 48000), (8000, 22050), (35467, 16000)])
def test_resampling_keeps_pitch_level_and_length(rate: int, target: int) -> None:
    sound = audio.resample(tone(440, 1.0, rate, dbfs=-6, channels=2), target)
    assert sound.sample_rate == target
    assert sound.samples.shape == (2, target)
    expected = tone(440, 1.0, target, dbfs=-6).samples[0]
    inner = slice(target // 20, -target // 20)
    assert np.abs(sound.samples[1, inner] - expected[inner]).max() < 1e-3


def test_resampling_removes_what_the_new_rate_cannot_hold() -> None:
    sound = audio.resample(tone(10_000, 1.0), 16000)
    assert audio.peak(audio.trim(sound, 0.1, 0.9)) < 1e-3


@pytest.mark.parametrize("length", [0, 1, 2, 7, 4095])
def test_resampling_short_sounds(length: int) -> None:
    sound = audio.resample(Audio(np.ones((1, length), "f4"), 48000), 16000)
    assert sound.length == round(length / 3)


def test_the_same_rate_is_the_same_sound() -> None:
    sound = tone(440, 0.1)
    assert audio.resample(sound, 48000) is sound


# --- mix ---


def constant(values: list[float], positions: tuple[str, ...] = ()) -> Audio:
    return Audio(np.repeat(np.array(values, "f4")[:, None], 10, axis=1), 48000, positions)


def test_mono_is_the_mean() -> None:
    assert audio.mix(constant([0.5, 0.25]), 1).samples[0, 0] == 0.375
    eight = audio.mix(constant([0.1 * n for n in range(8)]), 1)
    assert eight.samples[0, 0] == pytest.approx(0.35)
    assert eight.positions == ("FC",)


def test_five_one_to_stereo_by_the_itu_gains() -> None:
    """BS.775: Lo = L + 0.7071 C + 0.7071 Ls, here divided by the sum of gains, 2.4142; the LFE is left out."""
    scale = 1 + math.sqrt(2)
    for channel, expected in enumerate([(1, 0), (0, 1), (0.7071, 0.7071), (0, 0), (0.7071, 0), (0, 0.7071)]):
        values = [0.0] * 6
        values[channel] = 1.0
        mixed = audio.mix(constant(values, FIVE_ONE), 2)
        assert mixed.samples[:, 0] == pytest.approx([gain / scale for gain in expected], abs=1e-4)
    assert audio.mix(constant([1.0] * 6, FIVE_ONE), 2).samples[:, 0] == pytest.approx([1.0, 1.0])


def test_five_one_to_mono_is_the_mean_of_its_stereo() -> None:
    sound = constant([0.3, -0.2, 0.5, 0.9, 0.1, 0.4], FIVE_ONE)
    stereo = audio.mix(sound, 2).samples[:, 0]
    assert audio.mix(sound, 1).samples[0, 0] == pytest.approx(stereo.mean(), abs=1e-6)


def test_mono_to_many_is_copies() -> None:
    mixed = audio.mix(constant([0.5]), 2)
    assert mixed.samples.tolist() == [[0.5] * 10] * 2
    assert mixed.positions == ("FL", "FR")


def test_what_has_no_rule_is_refused() -> None:
    with pytest.raises(UnsupportedMedia, match="no rule mixes 8 channels"):
        audio.mix(constant([0.0] * 8), 2)


# --- trim, silence, peak ---


def test_trim_by_seconds() -> None:
    sound = Audio(np.arange(1000, dtype="f4")[None] / 1000, 100)
    assert audio.trim(sound, 1.0, 2.0).samples[0].tolist() == sound.samples[0, 100:200].tolist()
    assert audio.trim(sound, 9.5).length == 50
    assert audio.trim(sound, 0.0, 99.0) is sound
    assert audio.trim(sound, 20.0).length == 0
    with pytest.raises(ValueError, match="0 <= start <= end"):
        audio.trim(sound, 2.0, 1.0)


def test_silence_ratio_counts_20_ms_frames() -> None:
    """A quarter of a second of silence, then three quarters of tone: 12.5 silent frames in 50."""
    silent = Audio(np.zeros((1, 12000), "f4"), 48000)
    sound = joined(silent, tone(1000, 0.75))
    assert audio.silence_ratio(sound) == pytest.approx(12 / 50)
    assert audio.silence_ratio(silent) == 1.0
    assert audio.silence_ratio(tone(1000, 1.0)) == 0.0


def test_the_threshold_is_on_rms() -> None:
    """A -20 dBFS sine has an RMS of -23.01 dBFS."""
    sound = tone(1000, 1.0, dbfs=-20)
    assert audio.silence_ratio(sound, -23.1) == 0.0
    assert audio.silence_ratio(sound, -22.9) == 1.0
    assert audio.frame_levels(sound)[0] == pytest.approx(-23.01, abs=0.01)


def test_trim_silence_keeps_the_loud_frames_and_a_margin() -> None:
    silent = Audio(np.zeros((1, 48000), "f4"), 48000)
    sound = joined(silent, tone(1000, 0.5), silent)
    assert audio.trim_silence(sound).samples.tolist() == tone(1000, 0.5).samples.tolist()
    assert audio.trim_silence(sound, margin=0.1).length == 24000 + 2 * 4800
    assert audio.trim_silence(silent).length == 0
    loud = tone(1000, 0.5)
    assert audio.trim_silence(loud) is loud


def test_peak_is_the_largest_absolute_value() -> None:
    assert audio.peak(constant([0.25, -0.75])) == 0.75
    assert audio.peak(Audio(np.zeros((1, 0), "f4"), 48000)) == 0.0
