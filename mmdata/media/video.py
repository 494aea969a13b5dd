"""Video: what it is, when its frames are shown, the frames themselves, and writing it anew. The public names of video.

A video is `bytes` or the path of a local file. Pictures are upright with square pixels. Knows no shard and no recipe.
"""

from __future__ import annotations

from mmdata.media.video_cut import Cut, cut
from mmdata.media.video_open import MAX_PIXELS
from mmdata.media.video_probe import decode_all, frame_times, probe, times_and_duration
from mmdata.media.video_read import DEFAULT_BACKEND, read_frames
from mmdata.media.video_times import sample_indices
from mmdata.media.video_write import CONTAINER, encoders, transcode

__all__ = [
    "CONTAINER",
    "DEFAULT_BACKEND",
    "MAX_PIXELS",
    "Cut",
    "cut",
    "decode_all",
    "encoders",
    "frame_times",
    "probe",
    "read_frames",
    "sample_indices",
    "times_and_duration",
    "transcode",
]
