"""What each video of the real corpus must give: frames, duration, rotation, or error class.

Tolerances: frame counts are exact; durations within one and a half frames or 20 ms, because tools differ in whether the
last frame's length is counted; times in Matroska are whole milliseconds.
"""

from __future__ import annotations

from typing import Any

BROKEN = {
    "androidx/sample_malformed_free_box.mp4": "UnreadableMedia",
    "androidx/video_init.mp4": "EmptyMedia",
    "derived-truncated/nasa_13013.first403788.mp4": "TruncatedMedia",
    "moviepy/result.webm": "EmptyMedia",
    "mp4parse/chunk_out_of_range.mp4": "UnreadableMedia",
    "mp4parse/short-cenc.mp4": "UnsupportedMedia",
}
"""Files that no tool decodes, and why."""

CUT_SHORT = {"derived-truncated/again.first82150.mkv": 21, "derived-truncated/rabbit320.first165309.webm": 113}
"""Files whose header promises more bytes than there are; the tools decode this many frames without a word."""

HARD = {
    "decord/corrupted.mp4": "UnreadableMedia",
    "mp4parse/no_timescale.mp4": "UnreadableMedia",
}
"""Files of which the tools decode different numbers of frames, some of them damaged: refused."""

REFUSED = BROKEN | HARD | dict.fromkeys(CUT_SHORT, "TruncatedMedia")
"""Every file that is not to be taken, with its class."""

SECOND_TRACK = "torchcodec/nasa_13013.mp4"
"""Two picture tracks. Players (and decord) show the larger, of 390 frames; the reference counts of the others are those
of the first."""


def videos(truth: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Reference row of each video, by path below `videos/`."""
    return {name.removeprefix("videos/"): row for name, row in truth.items() if row["kind"] == "video"}


def disagreements(row: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """Where `found` (frames, duration, fps, rotation, variable) is not what the tools agree on."""
    track = next(stream for stream in row["ffprobe"]["streams"] if stream["codec_type"] == "video")
    pyav, pts = row["pyav"], row["pts"]
    wanted: dict[str, Any] = {
        "frames": pyav["video_frames_decoded"],
        "rotation": -pyav["video_first_frame"]["rotation"] % 360,
    }
    allowed = max(1.5 / (found["fps"] or 25), 0.02)
    lengths = []
    if "last_pts" in pts and int(track["nb_read_packets"]) == found["frames"]:
        lengths.append(pts["last_pts"] - pts["first_pts"] + pts["median_delta"])
        wanted["variable"] = pts["variable"]
    if "duration" in track and float(track["duration"]) < 1000:
        lengths.append(float(track["duration"]))
    wrong = [f"{name} {found[name]}, not {value}" for name, value in wanted.items() if found[name] != value]
    if int(track["nb_read_frames"]) != found["frames"]:
        wrong.append(f"frames {found['frames']}, not {track['nb_read_frames']} as ffprobe says")
    return wrong + [f"duration {found['duration']}, not {s}" for s in lengths if abs(found["duration"] - s) > allowed]
