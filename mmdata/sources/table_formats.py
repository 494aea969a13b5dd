"""Table formats by name or extension. Knows how each is opened, nothing of what its rows mean."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from mmdata.errors import ConfigError
from mmdata.sources.inputs import bare_name, spool_plain
from mmdata.sources.rows import RowReader
from mmdata.sources.rows_arrow import Arrow
from mmdata.sources.rows_csv import Csv
from mmdata.sources.rows_json import JsonLines, json_reader
from mmdata.sources.rows_parquet import Parquet
from mmdata.sources.spool import Spool

if TYPE_CHECKING:
    from mmdata.storage import Storage

_FORMATS = {
    **dict.fromkeys(("jsonl", "ndjson", "jsonlines"), "jsonl"),
    **dict.fromkeys(("parquet", "pq"), "parquet"),
    **dict.fromkeys(("arrow", "feather", "ipc"), "arrow"),
    **dict.fromkeys(("tsv", "tab"), "tsv"),
    "csv": "csv",
    "json": "json",
}


def open_reader(storage: Storage, spool: Spool, url: str, stamp: str, table_format: str) -> RowReader:
    """Reader for the table at `url`. A compressed text table is spooled first, once.

    Raises ConfigError when the format cannot be told, FormatError when the file is not of its format.
    """
    if table_format == "auto":
        extension = bare_name(url).rpartition("/")[2].rpartition(".")[2].lower()
        if extension not in _FORMATS:
            known = ", ".join(sorted(_FORMATS))
            raise ConfigError(f"{url}: the extension tells no table format; known: {known}; or set 'format'")
        table_format = _FORMATS[extension]
    open_file = partial(storage.open, spool_plain(storage, spool, url, stamp))
    if table_format == "jsonl":
        return JsonLines(open_file)
    if table_format == "json":
        return json_reader(open_file, url)
    if table_format in ("csv", "tsv"):
        return Csv(open_file, url, tabs=table_format == "tsv")
    return Parquet(open_file, url) if table_format == "parquet" else Arrow(open_file, url)
