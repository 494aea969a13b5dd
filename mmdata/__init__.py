"""mmdata: raw images, video, audio and text in, verified and reproducible shards out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mmdata.shards.webdataset import as_webdataset

__version__ = "0.1.0"
__all__ = ["__version__", "as_webdataset"]


def __getattr__(name: str) -> Any:
    if name == "as_webdataset":
        from mmdata.shards.webdataset import as_webdataset

        return as_webdataset
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
