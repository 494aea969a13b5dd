"""From a decoded frame to an upright picture: display matrix, sample aspect ratio, colours, size.

Knows frames, not containers: it opens nothing and keeps no position.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

MAX_ASPECT = 16
"""A sample aspect ratio beyond 16:1 or 1:16 is a lying header and counts as 1:1."""

_MATRIX_TYPE = "DISPLAYMATRIX"


@dataclass(frozen=True, slots=True)
class Orientation:
    """How a decoded picture is turned upright: transposed first, then mirrored."""

    transpose: bool = False
    flip_x: bool = False
    flip_y: bool = False

    @property
    def rotation(self) -> int:
        """Clockwise quarter turns in degrees; of a mirrored picture the turn that FFmpeg reports beside the mirror."""
        if self.transpose:
            return 270 if self.flip_y else 90
        return 180 if self.flip_x else 0

    @property
    def mirrored(self) -> bool:
        """Whether the picture is reflected as well as turned."""
        return self.transpose ^ self.flip_x ^ self.flip_y

    def apply(self, array: np.ndarray) -> np.ndarray:
        """`array` [H, W, 3] turned upright, contiguous."""
        if self.transpose:
            array = array.transpose(1, 0, 2)
        if self.flip_x:
            array = array[:, ::-1]
        if self.flip_y:
            array = array[::-1]
        return np.ascontiguousarray(array)


UPRIGHT = Orientation()


@dataclass(frozen=True, slots=True)
class Geometry:
    """The upright picture of a video: what `MediaInfo` calls width, height and rotation."""

    width: int
    height: int
    orientation: Orientation = UPRIGHT

    @property
    def stored(self) -> tuple[int, int]:
        """Width and height before the turn, with square pixels."""
        return (self.height, self.width) if self.orientation.transpose else (self.width, self.height)


def geometry_of(frame: VideoFrame, sample_aspect_ratio: Fraction | None) -> Geometry:
    """Upright geometry of a decoded frame: square pixels by changing the width, then turned by the display matrix."""
    width, height = square_pixels(frame.width, frame.height, sample_aspect_ratio)
    orientation = orientation_of(frame)
    return Geometry(height, width, orientation) if orientation.transpose else Geometry(width, height, orientation)


def square_pixels(width: int, height: int, sample_aspect_ratio: Fraction | None) -> tuple[int, int]:
    """Size with square pixels: width times sample aspect ratio (ITU-T H.273), the height kept."""
    ratio = sample_aspect_ratio
    if not ratio or not Fraction(1, MAX_ASPECT) <= ratio <= MAX_ASPECT:
        return width, height
    return max(1, round(width * ratio)), height


def orientation_of(frame: VideoFrame) -> Orientation:
    """The turn that the frame's display matrix asks for, to the nearest quarter (ISO/IEC 14496-12, 6.2.2)."""
    sides: Any = frame.reformat(width=16, height=16).side_data  # it keeps its frame alive until the next collection
    for side_data in sides:
        if getattr(side_data.type, "name", "") == _MATRIX_TYPE:
            return orientation_of_matrix(np.frombuffer(bytes(side_data), dtype="=i4"))
    return UPRIGHT


def orientation_of_matrix(matrix: np.ndarray) -> Orientation:
    """`matrix`: nine fixed-point numbers a b u c d v x y w, with x' = a·x + c·y and y' = b·x + d·y."""
    if len(matrix) != 9:
        return UPRIGHT
    a, b, c, d = (int(matrix[position]) for position in (0, 1, 3, 4))
    if a * d - b * c == 0:
        return UPRIGHT
    if abs(a) + abs(d) >= abs(b) + abs(c):
        return Orientation(False, flip_x=a < 0, flip_y=d < 0)
    return Orientation(True, flip_x=c < 0, flip_y=b < 0)


def picture(frame: VideoFrame, geometry: Geometry, size: tuple[int, int] | None = None) -> np.ndarray:
    """The frame as upright RGB, uint8 [H, W, 3], of `size` (width, height) or of the video's own upright size.

    One pass of swscale converts and scales (bicubic). The colour matrix and range are those the frame declares; BT.601
    and limited range where it declares none. High dynamic range is converted without tone mapping.
    """
    target = Geometry(*(size or (geometry.width, geometry.height)), geometry.orientation)
    return geometry.orientation.apply(scaled(frame, target.stored))


def scaled(frame: VideoFrame, size: tuple[int, int]) -> np.ndarray:
    """The frame as RGB of `size` (width, height), not turned."""
    from av.video.reformatter import Interpolation

    converted: Any = frame.reformat(
        width=size[0], height=size[1], format="rgb24", interpolation=Interpolation.BICUBIC, threads=1
    )
    array: np.ndarray = converted.to_ndarray()
    return array
