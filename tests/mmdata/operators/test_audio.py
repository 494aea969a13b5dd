"""Audio operators: closed-form values of tones, exact no-ops, and refusals of wrong arguments."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from mmdata.errors import EmptyMedia, UnsupportedMedia
from mmdata.media import audio
from mmdata.media.audio import Audio
from mmdata.operators import registry
from mmdata.operators.registry import AudioTransform, Context
from mmdata.schema import MediaInfo

CONTEXT = Context(0, "leaf", 0, "key")


@pytest.fixture(autouse=True)
def operators() -> None:
    registry.load_builtin()


def tone(
    pitch: float = 997, seconds: float = 2.0, rate: int = 48000, amplitude: float = 1.0, channels: int = 1
) -> Audio:
    wave = amplitude * np.sin(2 * np.pi * pitch * np.arange(round(rate * seconds)) / rate)
    return Audio(np.repeat(wave[None], channels, axis=0).astype("f4"), rate)


def made(name: str, **arguments: Any) -> AudioTransform:
    model = registry.get("transform", "audio", name).model
    return model.parse({"op": name, **arguments})  # type: ignore[return-value]


def measured(name: str, media: Audio, **arguments: Any) -> Any:
    model = registry.get("statistic", "audio", name).model
    values = model.parse({"op": name, **arguments}).measure(media)  # type: ignore[attr-defined]
    assert list(values) == [name]
    return values[name]


def info_of(sound: Audio) -> MediaInfo:
    return MediaInfo(
        format="wav", codec="pcm_s16", sample_rate=sound.sample_rate, channels=sound.channels, duration=sound.duration
    )


def test_the_registered_names() -> None:
    assert set(registry.names("statistic", "audio")) >= {"loudness", "silence_ratio", "peak"}
    assert set(registry.names("transform", "audio")) >= {"resample", "mono", "channels", "trim", "normalise_loudness"}


def test_loudness_of_the_reference_tone() -> None:
    assert measured("loudness", tone()) == pytest.approx(-3.01, abs=0.01)
    assert measured("loudness", Audio(np.zeros((1, 48000), "f4"), 48000)) == -70.0


def test_silence_ratio_of_half_a_tone() -> None:
    sound = tone(seconds=1.0)
    sound.samples[:, :24000] = 0
    assert measured("silence_ratio", sound) == 0.5
    # RMS of a sine of amplitude 0.1 is -23.01 dBFS.
    assert measured("silence_ratio", tone(amplitude=0.1), threshold=-23.1) == 0.0
    assert measured("silence_ratio", tone(amplitude=0.1), threshold=-22.9) == 1.0


def test_peak_of_a_tone() -> None:
    assert measured("peak", tone(1000, amplitude=0.25)) == pytest.approx(0.25, abs=1e-6)


def test_resample_keeps_the_tone() -> None:
    operator = made("resample", rate=16000)
    out = operator.apply(tone(440), CONTEXT)
    assert (out.sample_rate, out.length) == (16000, 32000)
    spectrum = np.abs(np.fft.rfft(out.samples[0]))
    assert np.argmax(spectrum) * 16000 / out.length == 440


def test_mono_and_channels() -> None:
    stereo = Audio(np.array([[0.5] * 10, [0.1] * 10], "f4"), 8000)
    assert made("mono").apply(stereo, CONTEXT).samples[0, 0] == pytest.approx(0.3)
    assert made("channels", count=2).apply(tone(), CONTEXT).channels == 2
    with pytest.raises(UnsupportedMedia):
        made("channels", count=2).apply(tone(channels=8), CONTEXT)


def test_trim_by_time() -> None:
    sound = tone()
    out = made("trim", start="500ms", end="1.5s").apply(sound, CONTEXT)
    assert np.array_equal(out.samples, sound.samples[:, 24000:72000])
    assert made("trim", start=0, end=1).apply(sound, CONTEXT).length == 48000
    with pytest.raises(EmptyMedia, match="starts at 5 s"):
        made("trim", start=5).apply(sound, CONTEXT)


def test_trim_of_silence() -> None:
    sound = tone(seconds=1.0)
    sound.samples[:, :9600] = 0
    assert made("trim", silence=True).apply(sound, CONTEXT).length == 48000 - 9600
    assert made("trim", silence=True, margin="100ms").apply(sound, CONTEXT).length == 48000 - 4800
    with pytest.raises(EmptyMedia, match="below -60 dBFS"):
        made("trim", silence=True).apply(Audio(np.zeros((1, 48000), "f4"), 48000), CONTEXT)


def test_normalise_loudness_hits_its_target() -> None:
    out = made("normalise_loudness", target=-30).apply(tone(440), CONTEXT)
    assert measured("loudness", out) == pytest.approx(-30, abs=0.01)
    capped = made("normalise_loudness", target=0, peak=-6).apply(tone(440, amplitude=0.1), CONTEXT)
    assert audio.peak(capped) == pytest.approx(10 ** (-6 / 20), rel=1e-4)


@pytest.mark.parametrize(
    ("name", "arguments", "sound"),
    [
        ("resample", {"rate": 48000}, tone()),
        ("resample", {"rate": 16000}, tone()),
        ("mono", {}, tone()),
        ("mono", {}, tone(channels=2)),
        ("channels", {"count": 2}, tone(channels=2)),
        ("channels", {"count": 2}, tone()),
        ("trim", {"start": 0, "end": 2}, tone()),
        ("trim", {"end": 10}, tone()),
        ("trim", {"end": 1.99999}, tone()),
        ("trim", {"end": 1.9999}, tone()),
        ("trim", {"start": 0.5}, tone()),
        ("trim", {"start": 1e-6}, tone()),
    ],
)
def test_a_no_op_is_exactly_one_that_changes_nothing(name: str, arguments: dict[str, Any], sound: Audio) -> None:
    operator = made(name, **arguments)
    out = operator.apply(sound, CONTEXT)
    same = out.sample_rate == sound.sample_rate and np.array_equal(out.samples, sound.samples)
    assert operator.is_noop(info_of(sound), CONTEXT) is same


@pytest.mark.parametrize(("name", "arguments"), [("trim", {"silence": True}), ("normalise_loudness", {})])
def test_what_only_decoding_shows_is_never_a_no_op(name: str, arguments: dict[str, Any]) -> None:
    assert not made(name, **arguments).is_noop(info_of(tone()), CONTEXT)


def test_unknown_geometry_is_no_no_op() -> None:
    assert not made("resample", rate=16000).is_noop(MediaInfo(), CONTEXT)
    assert not made("mono").is_noop(MediaInfo(), CONTEXT)
    assert not made("trim", end=1).is_noop(MediaInfo(), CONTEXT)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("trim", {}, "needs start, end or silence"),
        ("trim", {"start": 2, "end": 1}, "must come after start"),
        ("trim", {"end": 1, "margin": 1}, "goes with silence"),
        ("trim", {"silence": True, "threshold": 3}, "less than or equal to 0"),
        ("resample", {}, "rate"),
        ("resample", {"rate": 16}, "greater than or equal to 1000"),
        ("resample", {"rate": "16k"}, "rate"),
        ("channels", {"count": 0}, "greater than or equal to 1"),
        ("normalise_loudness", {"target": 3}, "less than or equal to 0"),
    ],
)
def test_wrong_arguments_are_refused(name: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        made(name, **arguments)


def test_operators_travel_to_other_processes() -> None:
    operator = made("trim", start=0.5)
    assert pickle.loads(pickle.dumps(operator)) == operator
