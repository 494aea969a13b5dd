"""Sound through libsndfile: uncompressed containers, and a second opinion on FLAC.

Knows one open file at a time; which file comes here is decided in `audio.py`.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any, BinaryIO

import soundfile

from mmdata.errors import UnreadableMedia
from mmdata.media.audio_containers import Container, sniff, wav_header
from mmdata.media.audio_pyav import Chunk, Header
from mmdata.media.audio_signal import Audio
from mmdata.schema import MediaInfo

_BLOCK = 1 << 16
"""Samples per channel that are read at once."""

_UNKNOWN_LENGTH = 1 << 62
"""libsndfile reports lengths from here up when the header states none."""

_CODECS = {"ULAW": "pcm_mulaw", "ALAW": "pcm_alaw", "IMA_ADPCM": "adpcm_ima", "MS_ADPCM": "adpcm_ms", "GSM610": "gsm",
           "FLOAT": "pcm_f32", "DOUBLE": "pcm_f64"}  # fmt: skip


def read_header(file: BinaryIO) -> Header:
    """Probe a file of one track."""
    with _opened(file) as sound:
        bits = _bits(sound.subtype)
        codec = _CODECS.get(sound.subtype) or ("flac" if sound.format == "FLAC" else f"pcm_s{bits}" if bits else "")
        length = sound.frames if 0 <= sound.frames < _UNKNOWN_LENGTH else None
        info = MediaInfo(
            format=_FORMATS.get(sound.format, sound.format.lower()),
            codec="pcm_u8" if sound.subtype == "PCM_U8" else codec,
            duration=None if length is None else length / sound.samplerate,
            sample_rate=sound.samplerate,
            channels=sound.channels,
            bits=bits,
        )
        return Header(info, length)


_FORMATS = {"WAVEX": "wav", "RF64": "wav"}


def _bits(subtype: str) -> int | None:
    named = {"FLOAT": 32, "DOUBLE": 64, "ULAW": 8, "ALAW": 8}
    digits = "".join(filter(str.isdigit, subtype)) if subtype.startswith("PCM") else ""
    return named.get(subtype) or (int(digits) if digits else None)


def chunks(file: BinaryIO, start: float = 0.0) -> Iterator[Chunk]:
    """Decode from `start` seconds on, exact to the sample. Raises UnreadableMedia."""
    positions = _positions(file, sniff(file))
    with _opened(file) as sound:
        position = round(start * sound.samplerate)
        try:
            if 0 < position < sound.frames:
                sound.seek(position)
            elif position:
                return
            while len(block := sound.read(_BLOCK, dtype="float32", always_2d=True)):
                yield Chunk(position, Audio(block.T.copy(), sound.samplerate, _speakers(positions, sound.channels)))
                position += len(block)
        except (soundfile.SoundFileError, OSError, ValueError) as error:
            raise UnreadableMedia(f"libsndfile: {error}") from error


def _positions(file: BinaryIO, container: Container) -> tuple[str, ...]:
    header = wav_header(file) if container == "wav" else None
    return header.positions if header is not None else ()


def _speakers(positions: tuple[str, ...], channels: int) -> tuple[str, ...]:
    return {1: ("FC",), 2: ("FL", "FR")}.get(channels, positions)


class _Forward(soundfile.SoundFile):  # type: ignore[misc]
    """Reads only go on: `SoundFile.read` seeks after each block, which fails in FLAC with a wrong header."""

    def seekable(self) -> bool:
        """Not to `read`; `seek` works all the same."""
        return False


class _Clamped(io.RawIOBase):
    """A file on which a seek before the start goes to the start: libsndfile's callbacks cannot raise."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def read(self, size: int = -1) -> bytes:
        return self._file.read(size)

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = 0) -> int:
        target = offset + {0: 0, 1: self._file.tell(), 2: self._file.seek(0, 2) if whence == 2 else 0}[whence]
        return self._file.seek(max(0, target))

    def tell(self) -> int:
        return self._file.tell()

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True


def _opened(file: BinaryIO) -> Any:
    file.seek(0)
    try:
        sound = _Forward(_Clamped(file))
    except (soundfile.SoundFileError, OSError, ValueError) as error:
        raise UnreadableMedia(f"libsndfile: {getattr(error, 'error_string', error)}") from error
    if sound.samplerate <= 0 or sound.channels <= 0:
        sound.close()
        raise UnreadableMedia(f"the header states {sound.channels} channels at {sound.samplerate} Hz")
    return sound
