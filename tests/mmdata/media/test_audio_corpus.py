"""Real recordings and the sound of real videos against what the reference tools say of them, and against damage."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from expected_audios import ONE_TOOL, REFUSED, disagreements, expected, rows_with_sound

from mmdata import errors
from mmdata.errors import MediaError
from mmdata.media import audio


def test_every_track_has_the_rate_channels_and_length_of_the_tools(corpora: Path, truth: dict[str, Any]) -> None:
    wrong, checked = [], 0
    for row in rows_with_sound(truth):
        if row["file"] not in REFUSED and expected(row) is not None:
            differences = disagreements(row, asdict(audio.decode_all(str(corpora / row["file"]))))
            wrong += [(row["file"], differences)] if differences else []
            checked += 1
    assert not wrong
    assert checked >= 110


def test_levels_are_those_of_the_tools(corpora: Path, truth: dict[str, Any]) -> None:
    """Peak and RMS: the scale of every sample format is right."""
    for row in rows_with_sound(truth):
        if row["file"] in REFUSED or expected(row) is None:
            continue
        sound = audio.decode(str(corpora / row["file"]))
        measured = row["pyav"]["audio"]
        assert audio.peak(sound) == pytest.approx(measured["peak"], abs=2e-5), row["file"]
        rms = float(np.sqrt((sound.samples.astype("f8") ** 2).mean()))
        # Padding that FFmpeg counts is silent: up to a frame of it lowers its RMS.
        shorter = (sound.length / measured["samples_per_channel"]) ** 0.5
        if row["file"] not in ONE_TOOL:
            assert rms * shorter == pytest.approx(measured["rms"], rel=0.02, abs=2e-5), row["file"]


@pytest.mark.parametrize("name", ONE_TOOL)
def test_lengths_where_the_tools_disagree(corpora: Path, name: str) -> None:
    assert audio.decode(str(corpora / name)).length == ONE_TOOL[name]


@pytest.mark.parametrize("name", REFUSED)
def test_refused_files_raise_the_right_class(corpora: Path, name: str) -> None:
    wanted = getattr(errors, REFUSED[name])
    for call in (audio.decode, audio.decode_all):
        with pytest.raises(MediaError) as caught:
            call(str(corpora / name))
        assert type(caught.value) is wanted


@pytest.mark.parametrize(
    ("name", "samples"),
    [
        ("audios/derived-truncated/198-209-0000.hq.first34556.ogg", 99_456),
        ("audios/derived-truncated/60 - mono audio.first23891.flac", 102_400),
        ("audios/derived-truncated/sample.first44139.wav", 22_030),
        ("videos/derived-truncated/rabbit320.first165309.webm", 166_080),
    ],
)
def test_repair_takes_what_is_there(corpora: Path, name: str, samples: int) -> None:
    assert audio.decode(str(corpora / name), truncated="repair").length == samples


def test_probe_agrees_with_decoding(corpora: Path, truth: dict[str, Any]) -> None:
    """Within 100 ms for recordings whose header is honest; a video's track may end before the video does."""
    lies = {"audios/flac-test-files/05 - wrong total number of samples.flac", "audios/androidx/bbb_1ch_8kHz_aac_lc.m4a"}
    for row in rows_with_sound(truth):
        if row["file"] in REFUSED or row["file"] in lies or row["kind"] != "audio":
            continue
        path = str(corpora / row["file"])
        probed, measured = audio.probe(path), audio.probe(path, exact=True)
        assert (probed.sample_rate, probed.channels) == (measured.sample_rate, measured.channels), row["file"]
        assert probed.duration == pytest.approx(measured.duration, abs=0.1), row["file"]


def test_bytes_and_paths_are_the_same(corpora: Path, truth: dict[str, Any]) -> None:
    for row in rows_with_sound(truth)[::7]:
        if row["file"] in REFUSED:
            continue
        path = corpora / row["file"]
        assert audio.probe(path.read_bytes()) == audio.probe(str(path)), row["file"]


def test_the_second_track_of_a_video(corpora: Path) -> None:
    path = str(corpora / "videos/torchcodec/nasa_13013.mp4")
    first, second = audio.decode(path), audio.decode(path, track=1)
    assert first.sample_rate == 8000
    assert second.sample_rate == 16000
    assert second.duration == pytest.approx(first.duration, abs=0.2)


def test_sound_that_starts_after_the_picture(corpora: Path) -> None:
    """sample.mp4: the track starts at 1,940 ticks of 44.1 kHz, its first packet is priming."""
    assert audio.track_start(str(corpora / "videos/androidx/sample.mp4")) == pytest.approx(2964 / 44100, abs=1e-4)


FUZZ = """
import json, sys
import numpy as np
from mmdata.errors import MediaError
from mmdata.media import audio
seed, rounds, names = int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
generator = np.random.default_rng(seed)
seen = {}
for name in names:
    original = open(name, "rb").read()[:200_000]
    for number in range(rounds):
        data = bytearray(original)
        how = number % 4
        reach = len(data) if how % 2 else min(len(data), 256)
        for _ in range(int(generator.integers(1, 12))):
            at = int(generator.integers(0, reach))
            if how < 2:
                data[at] = int(generator.integers(0, 256))
            elif how == 2:
                del data[at : at + int(generator.integers(1, 64))]
            else:
                data[at:at] = generator.bytes(int(generator.integers(1, 64)))
            reach = min(reach, len(data)) or 1
        if number % 5 == 4:
            data = data[: int(generator.integers(1, len(data) + 1))]
        for call in (audio.probe, lambda data: audio.decode_all(data, max_seconds=600),
                     lambda data: audio.decode(data, start=0.5, end=1.0, max_seconds=600)):
            try:
                call(bytes(data))
                outcome = "ok"
            except MediaError as error:
                outcome = type(error).__name__
            seen[outcome] = seen.get(outcome, 0) + 1
print(json.dumps(seen))
"""


@pytest.mark.parametrize("seed", [0, 1])
def test_mutated_files_raise_only_media_errors(corpora: Path, seed: int) -> None:
    names = [
        "audios/androidx/bear.opus", "audios/androidx/bear_vorbis.ogg", "audios/androidx/bear.flac",
        "audios/androidx/sample_float32.wav", "audios/androidx/sample_ima_adpcm.wav", "audios/tinytag/gsm_6_10.wav",
        "audios/androidx/sine.aac", "audios/androidx/sample_nb.amr", "audios/androidx/sample_alac.mp4",
        "audios/mp4parse/afconvert-aac-0.5s.mp4", "audios/lhotse/stereo.mp3", "audios/tinytag/pluck-pcm8.aiff",
        "audios/androidx/bbb_1ch_12kHz_q10_vorbis.webm", "audios/androidx/sample_rf64.wav",
        "videos/androidx/sample.flv", "videos/androidx/sample.mkv", "videos/androidx/sample_h262_mpeg_audio.ts",
    ]  # fmt: skip
    paths = [str(corpora / name) for name in names]
    run = subprocess.run(
        [sys.executable, "-c", FUZZ, str(seed), "12", json.dumps(paths)], capture_output=True, text=True, timeout=240
    )
    assert run.returncode == 0, run.stderr[-3000:]
    seen = json.loads(run.stdout)
    assert sum(seen.values()) == len(names) * 12 * 3
    assert seen["UnreadableMedia"] + seen["TruncatedMedia"] > 50
    assert "Traceback" not in run.stderr
