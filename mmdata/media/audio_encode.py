"""Sound to bytes: FLAC, WAV and Opus, the same bytes on every run. Knows no sample and no recipe."""

from __future__ import annotations

import io
from typing import Any, Literal

import numpy as np

from mmdata.errors import EncodeError
from mmdata.media.audio_signal import Audio, resample

AudioFormat = Literal["flac", "wav", "opus"]

_OPUS_RATES = (8000, 12000, 16000, 24000, 48000)


def encoded_rate(format: AudioFormat, rate: int) -> int:
    """The rate, in hertz, that a decoder of the encoded bytes gives: always 48 kHz for Opus, `rate` otherwise."""
    return 48000 if format == "opus" else rate


def encode(audio: Audio, format: AudioFormat = "flac", *, bits: int = 16, bitrate: int | None = None) -> bytes:
    """Encode sound; samples beyond full scale are clipped.

    `flac`: 16 or 24 bits. `wav`: 16 or 24 bits, or 32 for float. `opus`: in Ogg, `bitrate` bits per second (default
    64,000 a channel, 96,000 for two); decodes at 48 kHz to the same duration. Raises EncodeError for what the format
    cannot hold.
    """
    if audio.length == 0:
        raise EncodeError("there are no samples to encode")
    if not np.isfinite(audio.samples).all():
        raise EncodeError("a sample is not a finite number")
    if format == "opus":
        return _opus(audio, bitrate)
    if format not in ("flac", "wav"):
        raise EncodeError(f"cannot encode '{format}': flac, wav or opus")
    allowed = (16, 24) if format == "flac" else (16, 24, 32)
    if bits not in allowed:
        raise EncodeError(f"{format} with {bits} bits: choose one of {', '.join(map(str, allowed))}")
    return _float_wav(audio) if bits == 32 else _integers(audio, format, bits)


def _integers(audio: Audio, format: AudioFormat, bits: int) -> bytes:
    import soundfile

    # Quantised here, by the decoders' own scale: libsndfile writes floats by 32,767 and reads them by 32,768.
    full = 2 ** (bits - 1)
    whole = np.clip(np.rint(audio.samples.astype(np.float64) * full), -full, full - 1)
    data = whole.astype(np.int16) if bits == 16 else whole.astype(np.int32) << 8
    out = io.BytesIO()
    container = "WAVEX" if format == "wav" and audio.channels > 2 else format.upper()
    try:
        with soundfile.SoundFile(
            out, "w", audio.sample_rate, audio.channels, subtype=f"PCM_{bits}", format=container
        ) as sound:
            sound.write(data.T)
    except (soundfile.SoundFileError, ValueError) as error:
        raise EncodeError(f"{format}: {audio.channels} channels at {audio.sample_rate} Hz: {error}") from error
    return out.getvalue()


def _float_wav(audio: Audio) -> bytes:
    # Not by libsndfile, which puts the time of day into the PEAK chunk of float files.
    return _muxed(audio, "wav", "pcm_f32le", None)


def _opus(audio: Audio, bitrate: int | None) -> bytes:
    if audio.sample_rate not in _OPUS_RATES:
        audio = resample(audio, 48000)
    if audio.channels > 8:
        raise EncodeError(f"opus holds at most 8 channels, not {audio.channels}; mix first")
    rate = bitrate if bitrate is not None else 96_000 if audio.channels == 2 else 64_000 * audio.channels
    return _muxed(audio, "ogg", "libopus", rate)


_LAYOUTS = {1: "mono", 2: "stereo", 3: "3.0", 4: "quad", 5: "5.0", 6: "5.1", 7: "6.1", 8: "7.1"}


def _muxed(audio: Audio, container: str, codec: str, bitrate: int | None) -> bytes:
    """Encode through PyAV. `bitexact` fixes the Ogg serial number and leaves version strings out."""
    import av

    out = io.BytesIO()
    layout = _LAYOUTS.get(audio.channels)
    if layout is None:
        raise EncodeError(f"{container} with {audio.channels} channels cannot be written; mix first")
    try:
        with av.open(out, "w", format=container, options={"fflags": "+bitexact"}) as muxer:
            stream: Any = muxer.add_stream(codec, rate=audio.sample_rate)
            context = stream.codec_context
            context.layout, context.format = layout, "flt"
            context.flags |= av.codec.context.Flags.bitexact
            context.thread_count = 1
            if bitrate is not None:
                context.bit_rate = bitrate
            context.open()
            size = context.frame_size or 4096
            clipped = np.clip(audio.samples, -1, 1) if codec == "libopus" else audio.samples
            for start in range(0, audio.length, size):
                packed = np.ascontiguousarray(clipped[:, start : start + size].T).reshape(1, -1)
                frame = av.AudioFrame.from_ndarray(packed, format="flt", layout=layout)
                frame.sample_rate, frame.pts = audio.sample_rate, start
                muxer.mux(stream.encode(frame))
            muxer.mux(stream.encode(None))
    except (av.FFmpegError, ValueError) as error:
        raise EncodeError(f"{codec}: {audio.channels} channels at {audio.sample_rate} Hz: {error}") from error
    return out.getvalue()
