"""Hand a dataset to pipelines that are built on the webdataset library. Knows the manifest and storage, no media."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import webdataset
from webdataset.cache import StreamingOpen
from webdataset.filters import reraise_exception

from mmdata.errors import DatasetError
from mmdata.shards.dataset import open_manifest
from mmdata.storage import Storage, StorageSettings, open_storage
from mmdata.storage.urls import join


def as_webdataset(
    url: str, split: str | None = None, *, settings: StorageSettings | None = None, **options: Any
) -> webdataset.WebDataset:
    """A `webdataset.WebDataset` over exactly the shards that the dataset's manifest lists, of all splits or of one.

    Samples come undecoded, in shard order. `options` go to WebDataset (`shardshuffle`, which is off unless it is
    given, `nodesplitter`, `resampled`, `cache_dir`, …). Shards are opened through this package's storage, local or
    remote; only with `cache_dir` does webdataset fetch them by its own means.

    Raises:
        DatasetError: no dataset is there, its shards are not tars, or it has no such split.
    """
    storage = open_storage(settings)
    manifest = open_manifest(storage, url)
    if manifest.format != "webdataset":
        raise DatasetError(f"{url}: holds {manifest.format} shards, which pyarrow and datasets read; webdataset cannot")
    present = sorted({shard.split or "train" for shard in manifest.shards})
    if split is not None and split not in present:
        raise DatasetError(f"{url}: has no split '{split}'; it has {', '.join(present)}")
    files = [shard.file for shard in manifest.shards if split in (None, shard.split or "train")]
    dataset = webdataset.WebDataset([join(url, file) for file in files], **{"shardshuffle": False, **options})
    handler = options.get("handler", reraise_exception)
    dataset.pipeline = [
        _Open(storage, handler) if isinstance(stage, StreamingOpen) else stage for stage in dataset.pipeline
    ]
    return dataset


class _Open:
    """The pipeline's opener: (dicts with) URLs in, dicts with url and binary stream out. Picklable."""

    def __init__(self, storage: Storage, handler: Callable[[Exception], bool]) -> None:
        self._storage, self._handler = storage, handler

    def __call__(self, shards: Iterable[Any]) -> Iterator[dict[str, Any]]:
        for shard in shards:
            url = shard["url"] if isinstance(shard, dict) else shard
            try:
                yield {"url": url, "stream": self._storage.open(url)}
            except Exception as error:  # webdataset's contract: the handler decides, whatever it was
                if not self._handler(error):
                    return
