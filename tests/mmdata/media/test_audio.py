"""Decoding sound: golden files per codec (length, scale, alignment), clips, blocks, limits, the error of each fault."""

from __future__ import annotations

import io
import struct
import tracemalloc
from pathlib import Path

import av
import numpy as np
import pytest
import soundfile

from mmdata.errors import (
    DecompressionBomb,
    EmptyMedia,
    MissingMedia,
    TruncatedMedia,
    UnreadableMedia,
    UnsupportedMedia,
)
from mmdata.media import audio
from mmdata.media.audio import Audio


def sweep(rate: int, seconds: float = 1.2345, channels: int = 1) -> np.ndarray:
    """A tone of amplitude 0.4 that rises from 200 Hz to 3.8 kHz, each channel a little higher than the one before.

    Any shift in time shows in its correlation.
    """
    time = np.arange(round(rate * seconds)) / rate
    pitch = 200 + 60 * np.arange(channels)[:, None] + 1800 * time / seconds
    return (0.4 * np.sin(2 * np.pi * pitch * time)).astype("f4")


def coded(samples: np.ndarray, rate: int, container: str, codec: str, form: str, bit_rate: int = 96_000) -> bytes:
    """`samples` encoded by FFmpeg; `form` is the encoder's sample format."""
    out = io.BytesIO()
    layout = {1: "mono", 2: "stereo", 6: "5.1"}[len(samples)]
    with av.open(out, "w", format=container) as muxer:
        stream = muxer.add_stream(codec, rate=rate)
        context = stream.codec_context
        context.layout, context.format, context.bit_rate = layout, form, bit_rate
        context.open()
        size = context.frame_size or 1024
        if form.startswith("s"):
            bits = int(form.strip("sp"))
            samples = np.rint(samples.astype("f8") * 2 ** (bits - 1)).astype(f"i{bits // 8}")
        for start in range(0, samples.shape[1], size):
            part = samples[:, start : start + size]
            part = part if form.endswith("p") else part.T.reshape(1, -1)
            frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(part), format=form, layout=layout)
            frame.sample_rate, frame.pts = rate, start
            muxer.mux(stream.encode(frame))
        muxer.mux(stream.encode(None))
    return out.getvalue()


def wav(samples: np.ndarray, rate: int = 16000, subtype: str = "PCM_16", container: str = "WAV") -> bytes:
    out = io.BytesIO()
    soundfile.write(out, samples.T, rate, subtype=subtype, format=container)
    return out.getvalue()


def alignment(decoded: np.ndarray, original: np.ndarray) -> tuple[int, float]:
    """Samples by which `decoded` is late, and its gain against `original` there."""
    size = 1 << (max(len(decoded), len(original)) * 2).bit_length()
    product = np.fft.rfft(decoded.astype("f8"), size) * np.conj(np.fft.rfft(original.astype("f8"), size))
    late = int(np.argmax(np.fft.irfft(product, size)))
    late -= size if late > size // 2 else 0
    mine, theirs = decoded[max(0, late) :].astype("f8"), original[max(0, -late) :].astype("f8")
    common = min(len(mine), len(theirs))
    return late, float(np.dot(mine[:common], theirs[:common]) / np.dot(theirs[:common], theirs[:common]))


LOSSLESS = [
    ("mp4", "alac", "s16p"),
    ("ogg", "flac", "s16"),
    ("matroska", "flac", "s16"),
    ("flac", "flac", "s16"),
    ("flac", "flac", "s32"),
    ("mov", "pcm_s24le", "s32"),
    ("caf", "pcm_s16be", "s16"),
    ("aiff", "pcm_s16be", "s16"),
    ("au", "pcm_s16be", "s16"),
    ("w64", "pcm_s16le", "s16"),
    ("wav", "pcm_f32le", "flt"),
    ("tta", "tta", "s16"),
    ("wv", "wavpack", "s16p"),
]


@pytest.mark.parametrize(("container", "codec", "form"), LOSSLESS)
def test_lossless_codecs_give_back_every_sample(container: str, codec: str, form: str) -> None:
    samples = sweep(48000, channels=2)
    decoded = audio.decode(coded(samples, 48000, container, codec, form))
    assert decoded.sample_rate == 48000
    assert decoded.samples.dtype == np.float32
    assert decoded.samples.shape == samples.shape
    # Half a quantisation step of 16 bits, or of float32 for the wider ones.
    tolerance = 0.5 / 2**15 + 1e-7 if form.startswith("s16") else 2e-7
    assert np.abs(decoded.samples - samples).max() <= tolerance


@pytest.mark.parametrize("rate", [16000, 44100, 48000])
@pytest.mark.parametrize(
    ("container", "codec", "form"), [("mp3", "libmp3lame", "fltp"), ("mp4", "aac", "fltp"), ("webm", "libopus", "flt")]
)
def test_gapless_codecs_keep_length_and_alignment(container: str, codec: str, form: str, rate: int) -> None:
    """LAME's delay and padding, MP4's edit list and last packet, and Opus' pre-skip are all cut to the sample."""
    if codec == "libopus" and rate == 44100:
        pytest.skip("Opus knows no 44.1 kHz")
    samples = sweep(rate)
    decoded = audio.decode(coded(samples, rate, container, codec, form))
    expected = audio.resample(Audio(samples, rate), decoded.sample_rate)
    late, gain = alignment(decoded.samples[0], expected.samples[0])
    assert decoded.length == expected.length
    assert late == 0
    # LAME scales by 0.95 on purpose.
    assert gain == pytest.approx(0.95 if codec == "libmp3lame" else 1.0, abs=0.01)


@pytest.mark.parametrize(
    ("container", "codec", "form", "delay"),
    [("adts", "aac", "fltp", 1024), ("mpegts", "aac", "fltp", 1024), ("mp2", "mp2", "s16", 481)],
)
def test_containers_that_cannot_state_a_delay_give_all_that_is_decoded(
    container: str, codec: str, form: str, delay: int
) -> None:
    samples = sweep(48000)
    decoded = audio.decode(coded(samples, 48000, container, codec, form))
    late, _ = alignment(decoded.samples[0], samples[0])
    assert late == delay
    assert 0 <= decoded.length - samples.shape[1] - delay < 1152


@pytest.mark.parametrize(
    "subtype", ["PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW", "ALAW", "MS_ADPCM"]
)
def test_wav_codecs_have_full_scale_one(subtype: str) -> None:
    samples = sweep(16000)
    decoded = audio.decode(wav(samples, subtype=subtype))
    late, gain = alignment(decoded.samples[0], samples[0])
    assert late == 0
    assert gain == pytest.approx(1.0, abs=0.02 if subtype == "MS_ADPCM" else 0.002)
    # ADPCM fills its last block.
    assert decoded.length == samples.shape[1] or (subtype == "MS_ADPCM" and decoded.length > samples.shape[1])


def test_known_integers_become_known_floats() -> None:
    values = np.array([[-32768, -16384, 0, 16384, 32767]], np.int16)
    for container in ("WAV", "FLAC"):
        decoded = audio.decode(wav(values, container=container))
        assert decoded.samples.tolist() == [[-1.0, -0.5, 0.0, 0.5, 32767 / 32768]]


def test_float_files_over_full_scale_are_not_clipped() -> None:
    assert audio.peak(audio.decode(wav(np.full((1, 100), 1.5, "f4"), subtype="FLOAT"))) == 1.5


def test_both_decoders_give_the_same_samples() -> None:
    from mmdata.media import audio_pyav, audio_soundfile

    samples = sweep(16000, channels=2)
    for data in (
        wav(samples),
        wav(samples, subtype="PCM_24"),
        wav(samples, container="FLAC"),
        wav(samples, subtype="ALAW"),
    ):
        theirs = np.concatenate([chunk.audio.samples for chunk in audio_soundfile.chunks(io.BytesIO(data))], axis=1)
        ours = np.concatenate([chunk.audio.samples for chunk in audio_pyav.chunks(io.BytesIO(data))], axis=1)
        assert np.array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("container", "codec", "form"),
    [
        ("wav", "pcm_s16le", "s16"),
        ("flac", "flac", "s16"),
        ("mp4", "aac", "fltp"),
        ("mp3", "libmp3lame", "fltp"),
        ("webm", "libopus", "flt"),
        ("ogg", "libopus", "flt"),
        ("matroska", "aac", "fltp"),
    ],
)
def test_a_clip_equals_the_slice_of_the_whole(container: str, codec: str, form: str, tmp_path: Path) -> None:
    path = tmp_path / "long"
    path.write_bytes(coded(sweep(48000, 20.0), 48000, container, codec, form))
    whole = audio.decode(str(path))
    for start, end in ((0.0, 0.3), (7.7777, 8.5), (19.0, None), (12.0, 99.0)):
        clip = audio.decode(str(path), start=start, end=end)
        expected = whole.samples[:, round(start * 48000) : None if end is None else round(end * 48000)]
        assert clip.samples.shape == expected.shape
        # Opus and MP3 carry state from before the clip: equal after the pre-roll up to rounding.
        assert np.abs(clip.samples - expected).max() < 1e-5


def test_a_clip_of_a_seekable_file_reads_only_its_neighbourhood(tmp_path: Path) -> None:
    path = tmp_path / "long.flac"
    path.write_bytes(wav(np.random.default_rng(1).uniform(-0.5, 0.5, (1, 16000 * 300)).astype("f4"), container="FLAC"))
    from mmdata.media import audio_pyav

    with open(path, "rb") as file:
        first = next(audio_pyav.chunks(file, 0, 250.0))
    assert 240 * 16000 < first.position <= 250 * 16000


@pytest.mark.parametrize("seconds", [0.1, 0.3333, 7.0])
def test_blocks_join_to_the_whole(seconds: float) -> None:
    data = coded(sweep(44100, 3.0, channels=2), 44100, "mp3", "libmp3lame", "fltp")
    whole = audio.decode(data)
    blocks = list(audio.iter_blocks(data, seconds))
    assert {block.length for block in blocks[:-1]} <= {round(seconds * 44100)}
    assert np.array_equal(np.concatenate([block.samples for block in blocks], axis=1), whole.samples)


def test_decode_all_measures_in_constant_memory(tmp_path: Path) -> None:
    path = tmp_path / "long.wav"
    soundfile.write(path, np.zeros((16000 * 600, 1), np.int16), 16000)
    audio.decode_all(str(path))
    tracemalloc.start()
    info = audio.decode_all(str(path))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert info.duration == 600.0
    assert most < 2_000_000  # the samples alone are 38 MB


def test_probe_reads_the_header() -> None:
    info = audio.probe(wav(sweep(16000, 2.0, channels=2), subtype="PCM_24"))
    assert (info.format, info.codec, info.sample_rate, info.channels, info.bits) == ("wav", "pcm_s24", 16000, 2, 24)
    assert info.duration == 2.0
    assert info.frames is None


def test_probe_counts_where_the_header_has_no_length() -> None:
    """An MP3 without a Xing tag: FFmpeg would guess its length from the first frame's bit rate."""
    data = coded(sweep(48000, 3.0), 48000, "mp3", "libmp3lame", "fltp")
    frame = data.index(b"\xff\xfb") if b"\xff\xfb" in data else data.index(b"\xff\xf3")
    following = data.index(data[frame : frame + 2], frame + 4)
    bare = data[following:]
    assert b"Xing" not in bare
    assert b"Info" not in bare
    probed, measured = audio.probe(bare), audio.probe(bare, exact=True)
    assert probed.duration == pytest.approx(measured.duration, abs=1152 / 48000)
    assert 3.0 <= (probed.duration or 0) < 3.1


def test_opus_is_48_khz_whatever_went_in() -> None:
    info = audio.probe(audio.encode(Audio(sweep(8000), 8000), "opus"))
    assert (info.format, info.codec, info.sample_rate) == ("ogg", "opus", 48000)
    assert info.duration == pytest.approx(1.2345, abs=1e-9)


def test_speaker_positions_come_from_the_file() -> None:
    six = sweep(48000, channels=6)
    assert audio.decode(coded(six, 48000, "flac", "flac", "s16")).positions[:4] == ("FL", "FR", "FC", "LFE")
    assert audio.decode(wav(sweep(16000, channels=4))).positions == ()
    assert audio.decode(wav(sweep(16000))).positions == ("FC",)


def headless(samples: np.ndarray, claimed: int) -> bytes:
    """A 16-bit mono WAV at 8 kHz whose data chunk claims `claimed` bytes, as recorders write to a pipe."""
    body = np.rint(samples[0] * 32768).astype("<i2").tobytes()
    head = b"RIFF" + struct.pack("<I", min(claimed + 36, 0xFFFFFFFF)) + b"WAVEfmt "
    return head + struct.pack("<IHHIIHH", 16, 1, 1, 8000, 16000, 2, 16) + b"data" + struct.pack("<I", claimed) + body


@pytest.mark.parametrize("claimed", [0, 0x7FFFF000, 0xFFFFFFFF])
def test_a_wav_from_a_pipe_is_read_to_its_end(claimed: int) -> None:
    samples = sweep(8000)
    assert audio.decode(headless(samples, claimed)).length == samples.shape[1]


def test_a_wav_shorter_than_it_says_is_truncated() -> None:
    samples = sweep(8000)
    data = headless(samples, samples.shape[1] * 4)
    for call in (audio.probe, audio.decode, audio.decode_all):
        with pytest.raises(TruncatedMedia, match="bytes after the file"):
            call(data)
    assert audio.decode(data, truncated="repair").length == samples.shape[1]


def test_a_wav_that_counts_its_header_as_data_is_whole() -> None:
    samples = sweep(8000)
    assert audio.decode(headless(samples, samples.shape[1] * 2 + 44)).length == samples.shape[1]


@pytest.mark.parametrize(
    ("container", "codec", "form"),
    [("flac", "flac", "s16"), ("ogg", "libopus", "flt"), ("mp4", "alac", "s16p"), ("webm", "libopus", "flt"),
     ("aiff", "pcm_s16be", "s16"), ("mp3", "libmp3lame", "fltp")],
)  # fmt: skip
@pytest.mark.parametrize("share", [0.4, 0.75])
def test_cut_files_are_truncated_not_short(container: str, codec: str, form: str, share: float) -> None:
    data = coded(sweep(48000, 3.0), 48000, container, codec, form)
    with pytest.raises(TruncatedMedia):
        audio.decode_all(data[: int(len(data) * share)])


def test_a_repaired_flac_keeps_the_whole_frames() -> None:
    samples = sweep(48000, 3.0)
    data = wav(samples, 48000, container="FLAC")
    repaired = audio.decode(data[: len(data) // 2], truncated="repair")
    assert 0 < repaired.length < samples.shape[1]
    assert np.abs(repaired.samples - samples[:, : repaired.length]).max() <= 1 / 32768


def test_damage_in_the_middle_is_unreadable() -> None:
    data = bytearray(wav(np.random.default_rng(0).uniform(-1, 1, (1, 48000)).astype("f4"), 48000, container="FLAC"))
    data[len(data) // 2] ^= 0xFF  # the frame's CRC no longer fits
    with pytest.raises((UnreadableMedia, TruncatedMedia)):
        audio.decode_all(bytes(data))


@pytest.mark.parametrize(
    "data",
    [b"not sound at all" * 100, b"\0" * 5000, b"RIFF\0\0\0\0WAVE", b"fLaC" + b"\0" * 100, b"OggS" + b"\0" * 100,
     b"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\n/etc/hostname\n", b"ffconcat version 1.0\nfile /etc/hostname\n"],
)  # fmt: skip
def test_what_no_decoder_knows_is_unreadable(data: bytes) -> None:
    """Playlists too: they would make FFmpeg open other files."""
    for call in (audio.probe, audio.decode, audio.decode_all):
        with pytest.raises(UnreadableMedia):
            call(data)


def test_nothing_is_empty(tmp_path: Path) -> None:
    with pytest.raises(EmptyMedia):
        audio.probe(b"")
    (tmp_path / "none.wav").touch()
    with pytest.raises(EmptyMedia):
        audio.decode(str(tmp_path / "none.wav"))
    with pytest.raises(EmptyMedia, match="no samples"):
        audio.decode(wav(np.zeros((1, 0), "f4")))
    with pytest.raises(EmptyMedia, match="after 5 s"):
        audio.decode(wav(sweep(16000)), start=5.0)


def test_a_track_that_is_not_there_is_empty() -> None:
    with pytest.raises(EmptyMedia, match="track 3"):
        audio.decode(coded(sweep(48000), 48000, "mp4", "aac", "fltp"), track=3)


def test_a_path_that_is_not_there_is_missing(tmp_path: Path) -> None:
    with pytest.raises(MissingMedia, match=r"gone\.wav"):
        audio.probe(str(tmp_path / "gone.wav"))


def test_numbers_that_are_not_finite_are_unreadable() -> None:
    samples = sweep(16000)
    samples[0, 777] = np.nan
    with pytest.raises(UnreadableMedia, match="finite"):
        audio.decode(wav(samples, subtype="FLOAT"))


def test_channels_that_change_midway_are_unsupported() -> None:
    first, second = (audio.encode(Audio(sweep(48000, 1.0, channels=n), 48000), "opus") for n in (1, 2))
    with pytest.raises(UnsupportedMedia):
        audio.decode(first + second)


def test_long_recordings_stop_at_the_limit() -> None:
    data = wav(sweep(16000, 3.0))
    with pytest.raises(DecompressionBomb, match=r"3\.0 s, over the limit of 2 s"):
        audio.decode(data, max_seconds=2)
    with pytest.raises(DecompressionBomb):
        audio.decode_all(data, max_seconds=2)
    assert audio.decode(data, start=1.0, end=2.5, max_seconds=2).length == 24000
    # A header that states no length: noticed on the way.
    with pytest.raises(DecompressionBomb):
        audio.decode(headless(sweep(8000, 3.0), 0xFFFFFFFF), max_seconds=2)


def test_junk_after_the_last_mp3_frame_is_no_damage() -> None:
    data = coded(sweep(48000), 48000, "mp3", "libmp3lame", "fltp")
    tag = b"TAG" + b"a title".ljust(125, b"\0")
    assert audio.decode(data + tag).length == audio.decode(data).length
    assert audio.decode(data + b"APETAGEX" + bytes(range(200)) + tag).length == audio.decode(data).length


def test_an_mp3_tag_that_counts_too_few_frames_cuts_nothing() -> None:
    data = bytearray(coded(sweep(48000, 3.0), 48000, "mp3", "libmp3lame", "fltp"))
    tag = max(data.find(b"Xing"), data.find(b"Info"))
    data[tag + 8 : tag + 12] = (20).to_bytes(4, "big")
    assert audio.decode(bytes(data)).length >= 3.0 * 48000


def test_a_flac_header_without_a_rate_is_mended_by_its_frames() -> None:
    data = bytearray(wav(sweep(16000), container="FLAC"))
    data[18:20] = b"\0\0"
    data[20] &= 0x0F
    assert audio.probe(bytes(data)).sample_rate == 16000
    assert audio.decode(bytes(data)).length == 19752


def test_track_start_is_the_offset_to_the_picture() -> None:
    assert audio.track_start(wav(sweep(16000))) == 0.0
