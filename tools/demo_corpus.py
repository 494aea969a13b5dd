"""Make the demo's media folder on the spot: pictures, clips and recordings by real encoders, with captions, and a few
files that are broken on purpose so that the quarantine has something to show. The same bytes on every run of one
installation.
"""

from __future__ import annotations

import io
import json
import math
import struct
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import soundfile
from PIL import Image, ImageDraw

CAMERA_SHAPES = (
    (1280, 960),
    (960, 1280),
    (1600, 900),
    (900, 1600),
    (1200, 800),
    (800, 1200),
    (1024, 1024),
    (1500, 500),
)
COLOURS = {
    "red": (200, 40, 40),
    "green": (40, 150, 70),
    "blue": (40, 80, 200),
    "orange": (230, 140, 30),
    "violet": (130, 60, 180),
}
SHAPES = ("circle", "square", "triangle")
RATE = 48_000
BROKEN = 4
"""Files that no decoder accepts; the build must name each."""


def make_corpus(folder: Path, seed: int = 0) -> dict[str, int]:
    """Fill `folder`; returns how many files of each kind there are."""
    rng = np.random.default_rng(seed)
    pictures = _pictures(folder / "pictures", rng)
    clips = _clips(folder / "clips")
    recordings = _recordings(folder / "recordings", rng)
    _broken(folder / "broken")
    return {"pictures": pictures, "clips": clips, "recordings": recordings, "broken": BROKEN}


def _pictures(folder: Path, rng: np.random.Generator) -> int:
    made = 0
    for number in range(40):
        colour = list(COLOURS)[number % len(COLOURS)]
        shape = SHAPES[number % len(SHAPES)]
        width, height = CAMERA_SHAPES[number % len(CAMERA_SHAPES)]
        picture = _scene(width, height, COLOURS[colour], shape, rng)
        place = folder / shape
        place.mkdir(parents=True, exist_ok=True)
        ending, options = (("jpg", {"quality": 88}), ("png", {}), ("webp", {"quality": 85}), ("avif", {"quality": 70}))[
            3 if number % 10 == 9 else 2 if number % 10 == 7 else 1 if number % 10 == 5 else 0
        ]
        if number % 13 == 0:
            exif = Image.Exif()
            exif[0x0112] = 6
            picture, options = picture.rotate(90, expand=True), {**options, "exif": exif}
        picture.save(place / f"scene{number:02d}.{ending}", **options)
        (place / f"scene{number:02d}.txt").write_text(f"a {colour} {shape} before a soft background", encoding="utf-8")
        made += 1
    logo = Image.new("RGBA", (640, 480), (0, 0, 0, 0))
    ImageDraw.Draw(logo).ellipse((120, 40, 520, 440), fill=(20, 120, 220, 200))
    logo.save(folder / "logo.png")
    _scene(800, 600, COLOURS["red"], "circle", rng).convert("CMYK").save(folder / "print.jpg", quality=90)
    return made + 2


def _scene(width: int, height: int, colour: tuple[int, int, int], shape: str, rng: np.random.Generator) -> Image.Image:
    """A soft random background with one coloured shape, and a little grain, as a camera would give."""
    coarse = rng.integers(60, 220, (5, 5, 3), dtype=np.uint8)
    picture = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    draw = ImageDraw.Draw(picture)
    side = min(width, height) // 2
    left, top = int(rng.integers(0, width - side)), int(rng.integers(0, height - side))
    box = (left, top, left + side, top + side)
    if shape == "circle":
        draw.ellipse(box, fill=colour)
    elif shape == "square":
        draw.rectangle(box, fill=colour)
    else:
        draw.polygon([(left, top + side), (left + side, top + side), (left + side // 2, top)], fill=colour)
    grain = rng.normal(0, 4, (height, width, 1))
    return Image.fromarray(np.clip(np.asarray(picture) + grain, 0, 255).astype(np.uint8))


def _clips(folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    wanted = (
        ("bounce", "mp4", "libx264", (320, 240), 25, 60),
        ("sweep", "mp4", "libx264", (240, 426), 30, 45),
        ("slide", "webm", "libvpx-vp9", (426, 240), 24, 36),
        ("drift", "mp4", "libx264", (320, 320), 15, 50),
    )
    for name, ending, codec, (width, height), rate, frames in wanted:
        with av.open(str(folder / f"{name}.{ending}"), "w") as container:
            stream = container.add_stream(codec, rate=rate)
            stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
            stream.codec_context.thread_count = 1
            for number in range(frames):
                frame = av.VideoFrame.from_ndarray(_moving(width, height, number / frames), format="rgb24")
                frame.pts, frame.time_base = number, Fraction(1, rate)
                container.mux(stream.encode(frame))
            container.mux(stream.encode())
        (folder / f"{name}.txt").write_text(f"a ball moves across the picture: {name}", encoding="utf-8")
    return len(wanted)


def _moving(width: int, height: int, phase: float) -> np.ndarray:
    """A frame with a ball whose place tells the time."""
    y, x = np.mgrid[0:height, 0:width]
    centre_x, centre_y = width * phase, height * (0.5 + 0.4 * math.sin(phase * 2 * math.pi))
    ball = (x - centre_x) ** 2 + (y - centre_y) ** 2 < (min(width, height) / 8) ** 2
    frame = np.stack([40 + 100 * x / width, 60 + 100 * y / height, np.full_like(x, 120, dtype=float)], axis=-1)
    frame[ball] = (240, 220, 60)
    return frame.astype(np.uint8)


def _recordings(folder: Path, rng: np.random.Generator) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(10):
        seconds = 1.0 + 0.8 * number
        time = np.arange(int(RATE * seconds)) / RATE
        frequency = 110 * 2 ** (number / 3)
        tone = 0.3 * np.sin(2 * np.pi * frequency * time) * np.hanning(len(time)) + 0.005 * rng.normal(size=len(time))
        stereo = np.stack([tone, 0.7 * tone], axis=1) if number % 3 == 0 else tone
        ending, rate = ("wav", "flac", "ogg")[number % 3], RATE
        soundfile.write(folder / f"tone{number}.{ending}", stereo, rate)
        caption = {"caption": f"a tone of {frequency:.0f} hertz for {seconds:.1f} seconds", "hertz": round(frequency)}
        (folder / f"tone{number}.json").write_text(json.dumps(caption), encoding="utf-8")
    return 10


def _broken(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    whole = io.BytesIO()
    Image.new("RGB", (400, 300), (90, 90, 90)).save(whole, "JPEG", quality=95)
    (folder / "cut_short.jpg").write_bytes(whole.getvalue()[: len(whole.getvalue()) // 2])
    (folder / "empty.png").write_bytes(b"")
    (folder / "not_a_picture.webp").write_text("this is a text file with the wrong name\n", encoding="utf-8")
    (folder / "header_only.wav").write_bytes(b"RIFF" + struct.pack("<I", 36) + b"WAVEfmt ")
