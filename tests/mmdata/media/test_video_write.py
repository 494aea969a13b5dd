"""Transcoding and cutting: the right frames at the right times, sound in sync, the same bytes, bounded memory."""

from __future__ import annotations

import importlib.util
import io
import subprocess
import sys
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mmdata import errors
from mmdata.media import video
from mmdata.media.video_write import plan_frames


def _golden() -> Any:
    name = "video_golden_builder"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name("test_video_golden.py"))
        assert spec and spec.loader
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


golden = _golden()
CODECS = [codec for codec, present in video.encoders().items() if present]
SHARP = {"h264": 10, "vp9": 10, "av1": 8}


def numbers(data: bytes) -> list[int]:
    return [golden.number_of(frame) for frame in video.read_frames(data, range(len(video.frame_times(data))))]


def beep_video(
    *, beep: float = 1.0, seconds: float = 3.0, rate: int = 48_000, container: str = "mp4", late: int = 0
) -> bytes:
    """Numbered frames at 25 a second, silent but for a 1 kHz tone of 0.1 s that begins at `beep` seconds. The picture
    track begins `late` frames after the sound (before it, when negative)."""
    import av

    buffer = io.BytesIO()
    output = av.open(buffer, "w", format=container)
    picture: Any = output.add_stream("libx264", rate=25, options=golden.B_FRAMES)
    picture.width, picture.height, picture.pix_fmt = 192, 128, "yuv420p"
    sound: Any = output.add_stream("aac", rate=rate, layout="mono")
    moments = np.arange(int(seconds * rate)) / rate
    wave = np.where((moments >= beep) & (moments < beep + 0.1), np.sin(2 * np.pi * 1000 * moments), 0)
    for number in range(int(seconds * 25)):
        frame = av.VideoFrame.from_ndarray(golden.draw(number), format="rgb24").reformat(format="yuv420p")
        frame.pts, frame.time_base = number + max(0, late), Fraction(1, 25)
        output.mux(picture.encode(frame))
        part = wave[number * rate // 25 : (number + 1) * rate // 25].astype(np.float32)[None]
        chunk = av.AudioFrame.from_ndarray(part, format="fltp", layout="mono")
        chunk.sample_rate, chunk.pts = rate, (number + max(0, -late)) * rate // 25
        output.mux(sound.encode(chunk))
    output.mux(picture.encode(None))
    output.mux(sound.encode(None))
    output.close()
    return buffer.getvalue()


def beep_time(data: bytes) -> float:
    """Seconds from the first picture's time to the first loud sample."""
    import av

    with av.open(io.BytesIO(data)) as container:
        first = min(p.pts * p.time_base for p in container.demux(video=0) if p.size and not p.is_discard)
    with av.open(io.BytesIO(data)) as container:
        for frame in container.decode(audio=0):
            loud = np.flatnonzero(np.abs(frame.to_ndarray().astype(np.float32)).max(0) > 0.2)
            if len(loud):
                return float(frame.time) + loud[0] / frame.sample_rate - float(first)
    raise AssertionError("no loud sample")


@pytest.mark.parametrize("codec", CODECS)
def test_all_frames_survive_in_order_with_their_times(codec: Any) -> None:
    source = golden.case("h264 variable rate")
    written = video.transcode(source.data, codec=codec, crf=SHARP[codec])
    info = video.decode_all(written)
    assert (info.codec, info.width, info.height, info.frames) == (codec, 192, 128, 60)
    assert numbers(written) == source.numbers
    assert video.frame_times(written) == pytest.approx(source.times, abs=0.001 if codec == "vp9" else 2e-5)
    assert info.variable


@pytest.mark.parametrize("codec", CODECS)
def test_the_same_bytes_more_than_a_second_later(codec: Any) -> None:
    source = beep_video(seconds=1.6, beep=0.5)
    first = video.transcode(source, codec=codec, clip=(0.2, 1.4))
    time.sleep(1.1)
    assert video.transcode(source, codec=codec, clip=(0.2, 1.4)) == first


def test_the_same_bytes_in_another_process(tmp_path: Path) -> None:
    source = golden.case("h264 B-frames").data
    (tmp_path / "in.mp4").write_bytes(source)
    code = (
        "import sys, hashlib; from mmdata.media import video;"
        "print(hashlib.sha256(video.transcode(sys.argv[1], codec='av1')).hexdigest())"
    )
    import hashlib

    found = subprocess.run([sys.executable, "-c", code, str(tmp_path / "in.mp4")], capture_output=True, check=True)
    assert found.stdout.decode().split()[-1] == hashlib.sha256(video.transcode(source, codec="av1")).hexdigest()


@pytest.mark.parametrize("name", ["h264 turned 90", "h264 turned 180", "h264 wide pixels"])
def test_written_pictures_are_upright_with_square_pixels(name: str) -> None:
    source = golden.case(name)
    written = video.transcode(source.data, codec="h264", crf=10)
    info = video.probe(written)
    assert (info.width, info.height, info.rotation) == (*source.size, 0)
    assert all(golden.is_upright(frame) for frame in video.read_frames(written, [0, 30, 59]))


def test_a_clip_holds_the_frames_shown_in_it() -> None:
    source = golden.case("h264 start 3.2 s")
    written = video.transcode(source.data, clip=(0.4, 1.0), crf=10)
    assert numbers(written) == list(range(10, 25))
    assert video.probe(written).duration == pytest.approx(0.6, abs=1e-4)


def test_chosen_frames_keep_their_times_or_are_laid_out_anew() -> None:
    source = golden.case("h264 B-frames").data
    kept = video.transcode(source, indices=[0, 5, 10, 30], crf=10)
    assert numbers(kept) == [0, 5, 10, 30]
    assert video.frame_times(kept) == pytest.approx([0, 0.2, 0.4, 1.2], abs=1e-4)
    even = video.transcode(source, indices=[0, 5, 10, 30], fps=8, crf=10)
    assert numbers(even) == [0, 5, 10, 30]
    assert video.frame_times(even) == pytest.approx([0, 0.125, 0.25, 0.375], abs=1e-4)


def test_resampling_takes_the_frame_on_screen() -> None:
    source = golden.case("h264 variable rate")
    written = video.transcode(source.data, fps=10, crf=10)
    shown = [int(np.searchsorted(source.times, k / 10 + 1e-6, side="right")) - 1 for k in range(len(numbers(written)))]
    assert numbers(written) == shown
    assert not video.probe(written).variable


def test_key_frames_come_as_often_as_asked() -> None:
    import av

    written = video.transcode(golden.case("h264 constant rate").data, keyframe_interval=8)
    with av.open(io.BytesIO(written)) as container:
        keys = [index for index, p in enumerate(p for p in container.demux(video=0) if p.size) if p.is_keyframe]
    assert max(np.diff([*keys, 60])) <= 8


def test_pictures_are_changed_one_by_one_and_made_even() -> None:
    seen = []

    def shrink(frame: np.ndarray) -> np.ndarray:
        seen.append(frame.shape)
        return frame[:101, :151]

    info = video.decode_all(video.transcode(golden.case("h264 B-frames").data, spatial=shrink))
    assert (info.width, info.height, info.frames) == (150, 100, 60)
    assert seen == [(128, 192, 3)] * 60


def test_the_sound_of_a_whole_video_is_copied_in_sync() -> None:
    source = beep_video()
    assert beep_time(source) == pytest.approx(1.0, abs=0.01)
    written = video.transcode(source, codec="av1")
    assert beep_time(written) == pytest.approx(1.0, abs=0.01)
    assert _sound_packets(written) == _sound_packets(source)


def _sound_packets(data: bytes) -> list[bytes]:
    import av

    with av.open(io.BytesIO(data)) as container:
        return [bytes(packet) for packet in container.demux(audio=0) if packet.size]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("start", [0.0, 0.52, 0.96])
def test_the_sound_of_a_clip_is_cut_in_sync(codec: Any, start: float) -> None:
    written = video.transcode(beep_video(), codec=codec, clip=(start, 2.6))
    assert beep_time(written) == pytest.approx(1.0 - start, abs=0.015)
    assert video.probe(written).audio


@pytest.mark.parametrize("container", ["mp4", "matroska"])
@pytest.mark.parametrize("late", [5, -5])
def test_sound_that_starts_before_or_after_the_picture_stays_in_sync(container: str, late: int) -> None:
    source = beep_video(container=container, late=late)
    expected = 1.0 - late / 25
    assert beep_time(source) == pytest.approx(expected, abs=0.03)
    for codec in CODECS:
        assert beep_time(video.transcode(source, codec=codec)) == pytest.approx(expected, abs=0.03)
        assert beep_time(video.transcode(source, codec=codec, clip=(0.2, 2.6))) == pytest.approx(
            expected - 0.2, abs=0.03
        )
    assert beep_time(video.cut(source, 0.0, 3.0).data) == pytest.approx(expected, abs=0.03)


def test_sound_of_another_rate_is_resampled_without_delay() -> None:
    written = video.transcode(beep_video(rate=44_100), codec="vp9", clip=(0.2, 2.6))
    assert video.probe(written).sample_rate == 48_000
    assert beep_time(written) == pytest.approx(0.8, abs=0.015)


def test_sound_is_left_out_when_asked_or_when_frames_are_laid_out_anew() -> None:
    source = beep_video()
    assert not video.probe(video.transcode(source, audio=False)).audio
    assert not video.probe(video.transcode(source, indices=[0, 10, 20], fps=4)).audio


def test_a_cut_copies_whole_groups_and_says_what_it_covers() -> None:
    source = golden.case("h264 B-frames")
    cut = video.cut(source.data, 0.6, 1.1)
    first, last = round(cut.start * 25), round(cut.end * 25)
    assert first <= 15 and last >= 27
    assert numbers(cut.data) == list(range(first, last))
    assert cut.format == "mp4"
    assert len(cut.data) < len(source.data)


def test_a_cut_of_matroska_and_of_a_turned_video() -> None:
    cut = video.cut(golden.case("h264 matroska").data, 1.0, 1.5)
    assert cut.format == "mkv" and set(range(25, 37)) <= set(numbers(cut.data))
    turned = video.cut(golden.case("h264 turned 90").data, 0.0, 0.3)
    assert video.probe(turned.data).rotation == 90


def test_gif_becomes_video() -> None:
    source = golden.case("gif")
    written = video.transcode(source.data, crf=10)
    assert numbers(written) == source.numbers
    assert video.frame_times(written) == pytest.approx(source.times, abs=1e-4)


def test_wrong_arguments_are_refused() -> None:
    source = golden.case("h264 B-frames").data
    for wrong in ({"indices": [1, 0]}, {"indices": [60]}, {"codec": "divx"}, {"fps": 0.0}, {"indices": [0, 0]}):
        with pytest.raises(ValueError):
            video.transcode(source, **wrong)
    with pytest.raises(errors.EmptyMedia):
        video.transcode(source, clip=(50, 60))
    with pytest.raises(errors.EmptyMedia):
        video.cut(source, 50, 60)
    with pytest.raises(errors.EncodeError, match="frame 1"):
        sizes = iter([64, 32])
        video.transcode(source, spatial=lambda frame: frame[: next(sizes)])


def test_the_plan_covers_the_stretch_of_its_frames() -> None:
    plan = plan_frames(np.array([0.0, 0.1, 0.2, 0.3]), 0.4, indices=[1, 2])
    assert plan.times.tolist() == pytest.approx([0, 0.1]) and plan.end == pytest.approx(0.2)
    assert plan.window == pytest.approx((0.1, 0.3)) and not plan.whole
    assert plan_frames(np.array([0.0, 0.1]), 0.2).whole


def test_memory_does_not_grow_with_the_length(tmp_path: Path) -> None:
    """Peak memory of transcoding 100 and 1,500 frames of 384 x 256 differs by less than 40 MB (all frames: 440 MB)."""
    code = (
        "import sys, resource; from mmdata.media import video;"
        "import numpy as np; video.transcode(sys.argv[1], codec='h264', crf=40, clip=(0, float(sys.argv[2])),"
        " size=(384, 256)); print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)"
    )
    long = golden.make(options={"preset": "ultrafast", "crf": "40"}, count=1500)
    path = tmp_path / "long.mp4"
    path.write_bytes(long.data)
    peaks = [
        int(subprocess.run([sys.executable, "-c", code, str(path), seconds], capture_output=True, check=True).stdout)
        for seconds in ("4", "60")
    ]
    assert peaks[1] - peaks[0] < 40
