"""Small media, recipes, the `mmdata` command as a job that can be frozen and killed, and folders as plain values."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import psutil
import soundfile
import yaml
from PIL import Image

MARK = "TESSERA_TEST_JOB"
"""Environment variable that marks every process of a job, whatever process group it is in."""

FILES = {"pictures": 18, "clips": 4, "recordings": 6, "broken": 2}


def make_media(folder: Path, *, pictures: int = 18, clips: int = 4, recordings: int = 6, broken: bool = True) -> None:
    """Fill `folder`: every picture differs, sizes vary, every third picture has a caption."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(pictures):
        make_picture(folder / f"picture{number:03d}.{('jpg', 'png', 'webp')[number % 3]}", number)
        if number % 3 == 0:
            (folder / f"picture{number:03d}.txt").write_text(f"picture {number}", encoding="utf-8")
    for number in range(clips):
        make_clip(folder / f"clip{number}.mp4", number)
    for number in range(recordings):
        time_s = np.arange(16_000 + 1_500 * number) / 16_000
        tone = 0.3 * np.sin(2 * np.pi * (220 + 40 * number) * time_s)
        soundfile.write(folder / f"tone{number}.{('wav', 'flac')[number % 2]}", tone, 16_000)
    if broken:
        (folder / "broken_empty.png").write_bytes(b"")
        (folder / "broken_words.jpg").write_bytes(b"these are words and no picture\n" * 20)


def make_picture(path: Path, number: int, size: tuple[int, int] | None = None) -> None:
    """A picture of soft colours and a little grain."""
    rng = np.random.default_rng(number)
    width, height = size or (160 + 16 * (number % 5), 120 + 24 * (number % 4))
    coarse = Image.fromarray(rng.integers(0, 255, (4, 4, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)).astype(np.int16)
    grain = rng.integers(-6, 7, (height, width, 3))
    Image.fromarray(np.clip(smooth + grain, 0, 255).astype(np.uint8)).save(path)


def make_clip(path: Path, number: int, frames: int = 12) -> None:
    """A short clip with sound: a bar moves over a colour."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=12)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        sound = container.add_stream("aac", rate=16_000)
        for index in range(frames):
            picture = np.full((64, 96, 3), (40 * number % 255, 90, 140), dtype=np.uint8)
            picture[:, index * 8 : index * 8 + 8] = 240
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = index, Fraction(1, 12)
            container.mux(stream.encode(frame))
        tone = (0.2 * np.sin(np.arange(16_000) / 9)).astype(np.float32)[None]
        for start in range(0, tone.shape[1], 1000):
            piece = av.AudioFrame.from_ndarray(tone[:, start : start + 1000], format="fltp", layout="mono")
            piece.sample_rate, piece.pts, piece.time_base = 16_000, start, Fraction(1, 16_000)
            container.mux(sound.encode(piece))
        for each in (stream, sound):
            container.mux(each.encode())


def make_recipe(path: Path, media: Path | str, folder: Path | str, **sections: Any) -> Path:
    """Write a recipe file that builds `media` into `folder`; sections are merged into the defaults here."""
    document: dict[str, Any] = {
        "version": 1,
        "name": "t",
        "source": [{"type": "folder", "path": str(media)}],
        "output": {"path": str(folder), "max_samples": 6},
        "limits": {"max_bad": 0.5},
    }
    for name, value in sections.items():
        document[name] = {**document[name], **value} if isinstance(document.get(name), dict) else value
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "mmdata", *map(str, arguments)]


def mmdata(*arguments: object, env: Mapping[str, str] | None = None, code: int = 0, timeout: float = 120) -> Any:
    """Run the command to its end; its JSON result when it was asked for and the command succeeded, else the process."""
    done = subprocess.run(
        command(*arguments), env={**os.environ, **(env or {})}, capture_output=True, text=True, timeout=timeout
    )
    assert done.returncode == code, f"exit code {done.returncode}, not {code}:\n{done.stdout}\n{done.stderr}"
    return json.loads(done.stdout) if "--json" in arguments and done.returncode == 0 else done


def tree(folder: Path | str) -> dict[str, str]:
    """Path below `folder` to the SHA-256 of the file, hidden and temporary files included."""
    root = Path(folder)
    files = sorted(path for path in root.rglob("*") if path.is_file())
    return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def wait_until(ready: Callable[[], bool], what: str, timeout_s: float = 20) -> None:
    until = time.monotonic() + timeout_s
    while not ready():
        assert time.monotonic() < until, f"waited {timeout_s} s for {what}"
        time.sleep(0.01)


class Job:
    """The command in a session of its own. All of its processes can be found, frozen and counted."""

    def __init__(self, *arguments: object, env: Mapping[str, str] | None = None) -> None:
        self.mark = uuid.uuid4().hex
        self.process = subprocess.Popen(
            command(*arguments),
            env={**os.environ, **(env or {}), MARK: self.mark},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave nothing behind, whatever the test did."""
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait(10)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def processes(self) -> list[psutil.Process]:
        """All living processes of the job."""
        return list(marked(self.mark))

    def freeze(self) -> None:
        """Stop every process, so that what lies on disk can be looked at in peace."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def kill_group(self) -> None:
        """kill -9 of the whole process group; every child must be gone soon after, whatever it is doing."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)
        self.thaw()  # one that was frozen while it started has not asked the kernel yet to be killed with its parent
        wait_until(lambda: not self.processes(), "the children of a killed job to end", 10)

    def ended(self) -> bool:
        return self.process.poll() is not None

    def finish(self, code: int = 0, timeout: float = 120) -> str:
        """Wait for the end; what it printed."""
        printed, _ = self.process.communicate(timeout=timeout)
        assert self.process.returncode == code, f"exit code {self.process.returncode}, not {code}:\n{printed}"
        wait_until(lambda: not self.processes(), "the children of a finished job to end", 10)
        return printed


def marked(mark: str) -> Iterator[psutil.Process]:
    """Living processes whose environment carries the mark."""
    wanted = f"{MARK}={mark}".encode()
    for number in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError, psutil.NoSuchProcess):
            if wanted in Path("/proc", number, "environ").read_bytes().split(b"\0"):
                process = psutil.Process(int(number))
                if process.status() != psutil.STATUS_ZOMBIE:
                    yield process
