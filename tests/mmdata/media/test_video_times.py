"""Which frames are chosen, by definition."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmdata.media import video
from mmdata.media.video_geometry import Orientation, orientation_of_matrix, square_pixels
from mmdata.media.video_times import spacing

CLOCK = np.arange(100) / 25
ONE = 65536


def test_count_spreads_evenly_with_both_ends() -> None:
    assert video.sample_indices(CLOCK, count=5).tolist() == [0, 25, 50, 74, 99]
    assert video.sample_indices(CLOCK, count=1).tolist() == [0]
    assert video.sample_indices(CLOCK[:3], count=8).tolist() == [0, 1, 2]


def test_fps_takes_the_frame_on_screen() -> None:
    assert video.sample_indices(CLOCK, fps=5).tolist() == list(range(0, 100, 5))
    assert video.sample_indices(CLOCK, fps=10).tolist()[:6] == [0, 2, 5, 7, 10, 12]
    assert video.sample_indices(CLOCK, fps=100).tolist() == list(range(100))
    rounded = np.round(np.arange(300) / 30, 3)
    assert video.sample_indices(rounded, fps=30).tolist() == list(range(300))
    assert video.sample_indices(rounded, fps=15).tolist() == list(range(0, 300, 2))
    uneven = np.array([0.0, 0.9, 1.0, 3.0])
    assert video.sample_indices(uneven, fps=1).tolist() == [0, 2, 3]


def test_4n_plus_1() -> None:
    assert len(video.sample_indices(CLOCK, count=20, form="4n+1")) == 17
    assert len(video.sample_indices(CLOCK[:7], count=20, form="4n+1")) == 5
    assert video.sample_indices(CLOCK, count=20, form="4n+1").tolist()[-1] == 99
    assert video.sample_indices(CLOCK[:3], form="4n+1").tolist() == [0]
    assert len(video.sample_indices(CLOCK, fps=5, form="4n+1")) == 17


def test_the_window_is_half_open_and_empty_windows_give_nothing() -> None:
    assert video.sample_indices(CLOCK, start=1.0, end=1.2).tolist() == [25, 26, 27, 28, 29]
    assert video.sample_indices(CLOCK, start=1.0, end=1.2, count=2).tolist() == [25, 29]
    assert video.sample_indices(CLOCK, start=50.0).tolist() == []
    assert video.sample_indices(CLOCK, start=2.0, end=1.0).tolist() == []


def test_wrong_arguments_are_refused() -> None:
    for wrong in ({"count": 0}, {"fps": 0.0}, {"count": 2, "fps": 1.0}, {"form": "8n+1"}):
        with pytest.raises(ValueError):
            video.sample_indices(CLOCK, **wrong)  # type: ignore[arg-type]


@given(
    gaps=st.lists(st.floats(0.001, 2), min_size=1, max_size=60),
    count=st.none() | st.integers(1, 80),
    fps=st.none() | st.floats(0.1, 200),
    form=st.none() | st.just("4n+1"),
    start=st.floats(0, 20),
    length=st.none() | st.floats(0, 40),
)
def test_any_choice_ascends_and_stays_in_its_window(
    gaps: list[float], count: int | None, fps: float | None, form: str | None, start: float, length: float | None
) -> None:
    times = np.concatenate([[0.0], np.cumsum(gaps)])
    fps = None if count is not None else fps
    end = None if length is None else start + length
    chosen = video.sample_indices(times, count=count, fps=fps, form=form, start=start, end=end)  # type: ignore[arg-type]
    assert chosen.dtype == np.int64 and (np.diff(chosen) > 0).all()
    assert all(times[i] >= start - 1e-5 and (end is None or times[i] < end) for i in chosen)
    if count is not None:
        assert len(chosen) <= count
    if form and len(chosen):
        assert len(chosen) % 4 == 1


def test_the_display_matrix_turns_clockwise() -> None:
    """Matrices of ISO/IEC 14496-12 as phones write them; FFmpeg names the same turns -90, 180 and 90."""
    picture = np.array([[[1], [2]], [[3], [4]]])
    cases = {
        (ONE, 0, 0, 0, ONE, 0, 0, 0, 1 << 30): (0, [[1, 2], [3, 4]]),
        (0, ONE, 0, -ONE, 0, 0, 0, 0, 1 << 30): (90, [[3, 1], [4, 2]]),
        (-ONE, 0, 0, 0, -ONE, 0, 0, 0, 1 << 30): (180, [[4, 3], [2, 1]]),
        (0, -ONE, 0, ONE, 0, 0, 0, 0, 1 << 30): (270, [[2, 4], [1, 3]]),
    }
    for matrix, (rotation, expected) in cases.items():
        orientation = orientation_of_matrix(np.array(matrix))
        assert orientation.rotation == rotation and not orientation.mirrored
        assert orientation.apply(picture)[..., 0].tolist() == expected
    mirrored = orientation_of_matrix(np.array((0, ONE, 0, ONE, 0, 0, 0, 0, 1 << 30)))
    assert mirrored.mirrored and mirrored.apply(picture)[..., 0].tolist() == [[1, 3], [2, 4]]
    assert orientation_of_matrix(np.zeros(9, int)) == Orientation()


def test_square_pixels_change_the_width_and_ignore_nonsense() -> None:
    assert square_pixels(720, 576, Fraction(16, 15)) == (768, 576)
    assert square_pixels(720, 576, None) == (720, 576)
    assert square_pixels(720, 576, Fraction(1, 1000)) == (720, 576)
    assert square_pixels(1, 100, Fraction(1, 4)) == (1, 100)


def test_spacing_forgives_rounding_to_milliseconds() -> None:
    assert spacing(np.array([0, 0.033, 0.067, 0.1]), 0.133) == (pytest.approx(30), False)
    assert spacing(np.array([0, 0.03, 0.07, 0.1]), 0.13)[1]
    assert spacing(np.array([0.0]), 0.04) == (pytest.approx(25), False)
