"""Where samples come from: each source lists partitions and yields `SourceSample`s. No media byte is decoded here."""

from __future__ import annotations

from mmdata.sources.contract import Partition, Source
from mmdata.sources.registry import SOURCES, open_source

__all__ = ["SOURCES", "Partition", "Source", "open_source"]
