"""Kinds of source by the `type` a recipe gives. Adding one is one class, one settings model and one line here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mmdata.errors import ConfigError
from mmdata.recipe.words import suggest
from mmdata.sources.contract import Source
from mmdata.sources.folder import Folder
from mmdata.sources.table import Table
from mmdata.sources.webdataset import WebDataset

if TYPE_CHECKING:
    from mmdata.storage import Storage

SOURCES: dict[str, Any] = {"folder": Folder, "table": Table, "webdataset": WebDataset}
"""`type` of a recipe's source to its class, made as `cls(settings, storage, spool, partition)`."""


def open_source(settings: Any, storage: Storage, spool: str, partition: int = 4096) -> Source:
    """The source that `settings` (a source section of the recipe) describes. Reads nothing yet.

    `spool` is the folder, local or remote, for media that cannot be read in place; `partition` the number of samples
    aimed at in a partition. Raises ConfigError for an unknown `type`.
    """
    if settings.type not in SOURCES:
        raise ConfigError(f"unknown type of source '{settings.type}'{suggest(settings.type, SOURCES)}")
    source: Source = SOURCES[settings.type](settings, storage, spool, partition)
    return source
