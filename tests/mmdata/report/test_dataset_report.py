"""The report of a real build: whole in itself, the same every time, and safe with hostile names."""

from __future__ import annotations

import io
import json
import re
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
import soundfile
from PIL import Image

from mmdata.cli import run
from mmdata.report import dataset, sheets
from mmdata.report.plots import ASPECTS, histogram

HOSTILE = '<script>alert(1)</script>"&\x1b[2J'


def make_media(folder: Path) -> None:
    """Pictures, a recording, a clip; names and captions that are markup; a picture that the filter drops."""
    folder.mkdir(parents=True)
    for number in range(4):
        Image.new("RGB", (96, 64), (60 * number, 10, 10)).save(folder / f"p{number}.jpg")
    Image.new("RGB", (16, 16)).save(folder / "<b>&small.png")
    (folder / "p0.txt").write_text(HOSTILE, encoding="utf-8")
    square = np.sign(np.sin(2 * np.pi * 100 * np.arange(8000) / 8000))
    soundfile.write(folder / "tone.wav", 0.5 * square, 8000)
    with av.open(str(folder / "clip.mp4"), "w") as container:
        stream = container.add_stream("libx264", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for number in range(9):
            frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), 28 * number, np.uint8), format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, 10)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dataset folder."""
    folder = tmp_path_factory.mktemp("report")
    make_media(folder / "media")
    with open(folder / "texts.jsonl", "w", encoding="utf-8") as rows:
        for number in range(3):
            rows.write(json.dumps({"text": f"text {number} <i>{'x' * number}</i>"}) + "\n")
    (folder / "recipe.yaml").write_text(
        """
name: rep<ort
source: [{type: folder, path: media}, {type: table, path: texts.jsonl, text: text}]
scan: {statistics: [brightness]}
filters: [{name: "<u>large", keep: "width is None or width >= 32"}]
buckets:
  image: {shapes: [96x64, 64x64]}
  audio: {edges: [0.5, 2.0]}
  text: {edges: [10, 20], length: text_chars}
output: {path: out}
workers: 1
""".replace("rep<ort", "report"),
        encoding="utf-8",
    )
    assert run(["build", str(folder / "recipe.yaml")]) == 0
    return folder / "out"


def page(built: Path) -> str:
    return (built / "report.html").read_text(encoding="utf-8")


def test_it_is_whole_in_itself(built: Path) -> None:
    text = page(built)
    assert not re.findall(r"<(?:script|link|iframe|object)\b|@import|url\((?!#)", text)
    assert all(source.startswith("data:image/jpeg;base64,") for source in re.findall(r'src="([^"]*)"', text))
    assert all(target.startswith("#") for target in re.findall(r'href="([^"]*)"', text))
    assert len(text) < 400_000


def test_names_and_captions_are_text_not_markup(built: Path) -> None:
    text = page(built)
    assert "<script" not in text and "<b>&small" not in text and "<u>" not in text and "<i>x" not in text
    assert "\x1b" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "&lt;b&gt;&amp;small" in text
    assert "&lt;u&gt;large" in text


def test_it_shows_buckets_sheets_and_reasons(built: Path) -> None:
    text = page(built)
    assert "96 × 64" in text and "up to 2 s" in text and "up to 20 long" in text
    assert text.count("<img ") == 5  # four pictures and the clip's middle frame
    assert text.count("<figure><svg") == 1
    assert text.count("<blockquote>") == 3
    assert "64×48, 9 frames, 0.9 s" in text
    assert "<b>9</b><span>samples of 10 read" in text
    for title in ("image: aspect ratio", "image: brightness", "audio: duration", "video: frames", "text: text"):
        assert title in text


def test_the_middle_frame_stands_for_a_clip(built: Path) -> None:
    source = (built.parent / "media" / "clip.mp4").read_bytes()
    kind, jpeg = sheets.thumbnail((("video", source), 0.9), None)
    assert kind == "video"
    assert np.asarray(Image.open(io.BytesIO(jpeg))).mean() == pytest.approx(28 * 4, abs=3)


def test_a_waveform_shows_the_peaks(built: Path) -> None:
    source = (built.parent / "media" / "tone.wav").read_bytes()
    assert sheets.thumbnail((("audio", source), 1.0), None) == ("audio", [50] * sheets.BARS)


def test_two_builds_have_the_same_report(built: Path, tmp_path: Path) -> None:
    recipe = str(built.parent / "recipe.yaml")
    assert run(["build", recipe, "--set", f"output.path={tmp_path / 'two'}", "--workers", "2"]) == 0
    assert (tmp_path / "two" / "report.html").read_bytes() == (built / "report.html").read_bytes()


def test_many_buckets_are_cut_to_the_largest(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset, "MAX_SHEETS", 1)
    monkeypatch.setattr(dataset, "MAX_BUCKETS", 2)
    recipe = str(built.parent / "recipe.yaml")
    assert run(["build", recipe, "--set", f"output.path={tmp_path / 'two'}"]) == 0
    text = page(tmp_path / "two")
    assert text.count("<h3>") == 1 and "image-96x64 <span>" in text
    assert "smaller buckets" in text and "The 1 largest of" in text


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("values", [[3.0], [3.0, 3.0], [0.0, 1.0, 1000.0], [0.0]])
def test_histograms_of_any_values(values: list[float], log: bool) -> None:
    drawn = histogram(np.array(values), "title", "unit", log=log, edges=[2.0, 5000.0], ticks=ASPECTS if log else None)
    assert drawn.startswith("<svg") and drawn.rstrip().endswith("</svg>")
    assert "bucket" in drawn
    assert drawn == histogram(
        np.array(values), "title", "unit", log=log, edges=[2.0, 5000.0], ticks=ASPECTS if log else None
    )
