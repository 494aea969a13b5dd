"""What the sound of each file of the real corpus must give: rate, channels and length, or error class."""

from __future__ import annotations

from typing import Any

REFUSED = {
    "audios/androidx/100kB-garbage-prefix.mp3": "UnreadableMedia",  # no tool finds the frames behind the garbage
    "audios/androidx/play-trimmed.mp3": "UnreadableMedia",  # one frame
    "audios/derived-truncated/198-209-0000.hq.first34556.ogg": "TruncatedMedia",  # ends inside a page
    "audios/derived-truncated/60 - mono audio.first23891.flac": "TruncatedMedia",
    "audios/derived-truncated/sample.first44139.wav": "TruncatedMedia",
    "audios/flac-test-files/02 - increasing number of channels.flac": "UnsupportedMedia",  # 1, then 2, then 6 channels
    "audios/flac-test-files/11 - incorrect metadata block length.flac": "UnreadableMedia",
    "audios/tinytag/empty_file.mp3": "EmptyMedia",
    "audios/tinytag/incomplete.mp3": "UnreadableMedia",  # three bytes
    "audios/tinytag/invalid_sample_rate.aiff": "UnreadableMedia",
    "audios/tinytag/vbr_xing_header_short.mp3": "EmptyMedia",  # 1,152 samples, 576 delay and 576 padding
    "videos/derived-truncated/rabbit320.first165309.webm": "TruncatedMedia",
    "videos/mp4parse/short-cenc.mp4": "UnsupportedMedia",  # encrypted
}
"""Files that are refused, with the class. Two of them other tools read silently as if whole: the cut ogg and wav."""

ONE_TOOL = {
    "audios/flac-test-files/01 - wrong max blocksize.flac": 101_999,  # libFLAC only
    "audios/flac-test-files/03 - wrong bit depth.flac": 89_903,  # libFLAC only
    "audios/flac-test-files/05 - wrong total number of samples.flac": 109_487,  # the header says 39,842
    "audios/mp4parse/afconvert-aac-0.5s.mp4": 22_050,  # the edit list's end; FFmpeg leaves 414 samples of padding
    "videos/androidx/sample.mp4": 44_100,  # the last packet says 68 samples
}
"""Lengths, in samples, where the tools disagree."""


def expected(row: dict[str, Any]) -> tuple[int, int, int] | None:
    """(rate, channels, samples) that the tools give for a row's first audio track; None where they disagree or fail."""
    decoded = (row.get("pyav") or {}).get("audio") or {}
    if not decoded.get("samples_per_channel") or len(decoded["channels"]) != 1:
        return None
    return decoded["rates"][0], decoded["channels"][0], decoded["samples_per_channel"]


def rows_with_sound(truth: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Reference rows of the recordings, and of the videos with a track of sound."""
    return [
        row
        for row in truth.values()
        if row["kind"] == "audio" or (row["kind"] == "video" and (row.get("pyav") or {}).get("n_audio_streams"))
    ]


def disagreements(row: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """Where `found` (format, sample_rate, channels, duration) is not what the tools say.

    Exact, but for MP4: up to one frame of padding less than FFmpeg gives. Nothing is said where `expected` is None.
    """
    wanted = expected(row)
    if wanted is None:
        return []
    rate, channels, samples = wanted
    padding = 1024 if found["format"] == "mov" else 0
    if row["file"] in ONE_TOOL:
        samples, padding = ONE_TOOL[row["file"]], 0
    length = round((found["duration"] or 0) * rate)
    said = (found["sample_rate"], found["channels"])
    wrong = [] if said == (rate, channels) else [f"(rate, channels) {said}, not {(rate, channels)}"]
    return wrong + ([] if samples - padding <= length <= samples else [f"{length} samples, not {samples}"])
