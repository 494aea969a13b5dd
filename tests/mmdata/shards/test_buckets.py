"""Buckets from the recipe and the catalog's geometry: who goes where, and what the dropped are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from mmdata.errors import ConfigError
from mmdata.operators.registry import Context, load_builtin
from mmdata.recipe import Recipe, from_mapping
from mmdata.schema import CATALOG, MediaInfo
from mmdata.shards.buckets import Bucket, assign_buckets, video_frames


@pytest.fixture(scope="module", autouse=True)
def operators() -> None:
    load_builtin()


def recipe(tmp_path: Path, **sections: Any) -> Recipe:
    document = {
        "source": [{"type": "folder", "path": str(tmp_path / "in")}],
        "output": {"path": str(tmp_path / "out")},
    }
    return from_mapping(document | sections)


def bucketed(made: Recipe, rows: list[dict[str, Any]]) -> tuple[list[str | None], dict[str, str], list[Bucket]]:
    """(bucket name of each row, sentence of each drop rule that hit, buckets)."""
    table = pa.Table.from_pylist([{"key": str(i), "status": "ok"} | row for i, row in enumerate(rows)], schema=CATALOG)
    alive, told = np.ones(len(rows), dtype=bool), {}

    def drop(mask: Any, name: str, text: str) -> None:
        if (mask & alive).any():
            told[name] = text
            alive[mask] = False

    buckets, codes = assign_buckets(made, table, alive.copy(), drop)
    assert all((code >= 0) <= ok for code, ok in zip(codes, alive, strict=True))
    return [buckets[code].name if code >= 0 else None for code in codes], told, buckets


def picture(width: int | None, height: int | None) -> dict[str, Any]:
    return {"modality": "image", "width": width, "height": height, "frames": 1}


def video(frames: int | None, size: tuple[int, int] = (64, 64), fps: float = 10.0) -> dict[str, Any]:
    return {
        "modality": "video",
        "width": size[0],
        "height": size[1],
        "frames": frames,
        "duration": frames / fps if frames else None,
        "fps": fps,
    }


def test_a_picture_goes_to_the_shape_of_its_aspect(tmp_path: Path) -> None:
    made = recipe(tmp_path, buckets={"image": {"shapes": [[64, 64], [96, 48], [48, 96]]}})
    names, told, _ = bucketed(made, [picture(100, 100), picture(400, 200), picture(200, 400), {"modality": "text"}])
    assert names == ["image-64x64", "image-96x48", "image-48x96", None]
    assert told == {}


def test_missing_geometry_is_no_shape_of_one_pixel(tmp_path: Path) -> None:
    made = recipe(tmp_path, buckets={"image": {"count": 2, "pixels": 64 * 64, "multiple_of": 16}})
    names, told, _ = bucketed(made, [picture(100, 100), picture(None, None)])
    assert names == ["image-64x64", None]
    assert told == {"image_no_geometry": "has no width or height to bucket by"}
    names, told, buckets = bucketed(made, [picture(None, None)])
    assert (names, list(told), buckets) == ([None], ["image_no_geometry"], [])


def test_a_drop_names_its_rule_and_the_nearest_miss(tmp_path: Path) -> None:
    made = recipe(tmp_path, buckets={"image": {"shapes": [[64, 64]], "max_crop": 0.25, "max_upscale": 1.5}})
    names, told, _ = bucketed(made, [picture(100, 90), picture(300, 100), picture(200, 100), picture(20, 20)])
    assert names == ["image-64x64", None, None, None]
    # 200x100 loses half of its area to a square; 300x100 two thirds. 20 pixels become 64: 3.2 times.
    assert told == {
        "image_max_crop": "fits no bucket within max_crop 0.25; nearest miss: 200x100 in 64x64 has crop 0.5",
        "image_max_upscale": "fits no bucket within max_upscale 1.5; nearest miss: 20x20 in 64x64 has upscale 3.2",
    }


@pytest.mark.parametrize("mode", ["cover", "contain", "exact"])
@pytest.mark.parametrize("shapes", ["auto", [[64, 64], [96, 48]]])
def test_a_video_goes_to_the_largest_frame_count_that_it_fills(tmp_path: Path, mode: str, shapes: Any) -> None:
    settings = {"shapes": shapes, "count": 12, "pixels": 64 * 64, "multiple_of": 16, "frames": [5, 17, 33]}
    made = recipe(tmp_path, buckets={"video": settings}, transforms={"video": [{"op": "resize", "mode": mode}]})
    rows = [video(n, size) for n in (5, 16, 17, 30, 33, 500) for size in ((640, 640), (640, 320))]
    names, told, _ = bucketed(made, rows)
    assert told == {}
    assert [int((name or "0").rpartition("x")[2]) for name in names] == [5] * 4 + [17] * 4 + [33] * 4


def test_a_video_shorter_than_every_bucket_or_of_unknown_length_is_dropped_by_name(tmp_path: Path) -> None:
    made = recipe(tmp_path, buckets={"video": {"shapes": [[64, 64]], "frames": [17, 33]}})
    names, told, _ = bucketed(made, [video(16), video(3), video(17), video(None)])
    assert names == [None, None, "video-64x64x17", None]
    assert told == {
        "video_too_few_frames": "has fewer frames than the smallest bucket, 17; nearest miss: 16 frames",
        "video_no_geometry": "has no width, height or number of frames to bucket by",
    }


@pytest.mark.parametrize(
    ("chain", "frames"),
    [
        ([], 101),
        ([{"op": "sample_frames", "count": 16}], 16),
        ([{"op": "sample_frames", "count": 16, "form": "4n+1"}], 13),
        ([{"op": "sample_frames", "fps": 4}], 41),
        ([{"op": "sample_frames", "fps": 60}], 101),
        ([{"op": "clip", "start": 2, "end": 4}], 20),
        ([{"op": "clip", "start": 9.75}], 3),
        ([{"op": "clip", "start": 20}], 0),
        ([{"op": "clip", "duration": 3}], 30),
        ([{"op": "clip", "duration": 30}], 101),
        ([{"op": "clip", "start": 1, "end": 6}, {"op": "sample_frames", "fps": 2}], 10),
    ],
)
def test_videos_are_planned_by_the_frames_that_their_transforms_leave(
    tmp_path: Path, chain: list[dict[str, Any]], frames: int
) -> None:
    """101 frames at 10 per second: the planned number is that of the chain itself, run on the frames' times."""
    made = recipe(tmp_path, transforms={"video": chain})
    times, info = np.arange(101) / 10, MediaInfo(frames=101, duration=10.1, fps=10.0, variable=False)
    left = np.arange(101)
    for transform in made.transforms.video:
        chosen = transform.select(times[left], info, Context(0, "l", 0, "k"))  # type: ignore[attr-defined]
        left = left if chosen is None else left[chosen]
    assert video_frames(made, np.array([101.0]), np.array([10.1])).tolist() == [frames]
    assert len(left) == frames


def test_a_clip_of_a_long_video_is_bucketed_as_the_clip(tmp_path: Path) -> None:
    made = recipe(
        tmp_path,
        buckets={"video": {"shapes": [[64, 64]], "frames": [5, 17, 33]}},
        transforms={"video": [{"op": "clip", "duration": 2}, {"op": "resize"}]},
    )
    assert bucketed(made, [video(500), video(10)])[0] == ["video-64x64x17", "video-64x64x5"]


def test_recordings_are_bucketed_by_what_trim_leaves(tmp_path: Path) -> None:
    made = recipe(
        tmp_path,
        buckets={"audio": {"edges": [5, 10]}},
        transforms={"audio": [{"op": "trim", "start": "1s", "end": "8s"}]},
    )
    rows = [{"modality": "audio", "duration": seconds} for seconds in (3.0, 7.5, 60.0, None)]
    names, told, _ = bucketed(made, rows)
    assert names == ["audio-5.000s", "audio-10.000s", "audio-10.000s", None]
    assert list(told) == ["audio_no_duration"]


def test_a_recording_longer_than_the_last_edge_is_told_by_how_much(tmp_path: Path) -> None:
    made = recipe(tmp_path, buckets={"audio": {"edges": [5]}})
    rows = [{"modality": "audio", "duration": seconds} for seconds in (5.0, 5.5, 60.0)]
    names, told, _ = bucketed(made, rows)
    assert names == ["audio-5.000s", None, None]
    assert told == {"audio_too_long": "its duration exceeds the largest edge 5; nearest miss: 5.5"}


def test_edges_less_than_a_millisecond_apart_have_names_of_their_own(tmp_path: Path) -> None:
    made = recipe(tmp_path, buckets={"audio": {"count": 2}})
    rows = [{"modality": "audio", "duration": seconds} for seconds in (1.00002, 1.00004)]
    assert len(set(bucketed(made, rows)[0])) == 2


def test_text_edges_are_as_many_as_asked_for_on_their_lattice(tmp_path: Path) -> None:
    settings = {"length": "text_chars", "count": 4, "multiple_of": 64}
    made = recipe(tmp_path, buckets={"text": settings})
    rows = [{"modality": "text", "text_chars": n} for n in range(1, 513)]
    names, _, buckets = bucketed(made, rows)
    assert [bucket.length for bucket in buckets] == [128, 256, 384, 512]  # four even edges pad uniform lengths least
    assert names[0] == "text-128" and names[-1] == "text-512"


def test_settings_that_no_shape_meets_are_a_mistake_of_the_recipe(tmp_path: Path) -> None:
    made = recipe(tmp_path, buckets={"image": {"pixels": 100 * 100, "multiple_of": 96, "max_aspect": 1.0}})
    names, _, _ = bucketed(made, [picture(100, 100)])
    assert names == ["image-96x96"]
    made = recipe(tmp_path, buckets={"image": {"pixels": 150 * 150, "multiple_of": 96, "max_aspect": 1.0}})
    with pytest.raises(ConfigError, match=r"buckets\.image: .*multiple_of"):
        bucketed(made, [picture(100, 100)])
