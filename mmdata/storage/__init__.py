"""One interface for files and objects: a local path or a URL in, bytes, listings and atomic writes out.

Local paths and `file://` go straight to the operating system; `s3://`, `gs://`, `az://`, `http(s)://` (read only) and
`memory://` (within one process) go through obstore. This room knows bytes and names, nothing of formats or datasets.
"""

from __future__ import annotations

from mmdata.storage.settings import StorageSettings
from mmdata.storage.store import Storage, open_storage
from mmdata.storage.urls import Entry, Stat

__all__ = ["Entry", "Stat", "Storage", "StorageSettings", "open_storage"]
