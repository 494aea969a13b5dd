"""Random access to catalog rows gives the rows asked for, in the order asked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from mmdata.schema import CATALOG
from mmdata.shards.catalog import Catalog, commit_catalog, open_catalog, part_name, write_part
from mmdata.shards.rows import BATCH_ROWS, Rows, write_rows
from mmdata.storage import open_storage


def numbered(tmp_path: Path, sizes: tuple[int, ...]) -> Catalog:
    """A catalog whose row n has the key `k<n>` and the row number n."""
    storage, url, parts, first = open_storage(), str(tmp_path / "catalog"), [], 0
    for ordinal, size in enumerate(sizes):
        rows = [{"key": f"k{n}", "row": n, "status": "ok"} for n in range(first, first + size)]
        table = pa.Table.from_pylist(rows, schema=CATALOG)
        file = f"{url}/{part_name(ordinal, 'x')}"
        parts.append(write_part(storage, file, table, inputs="", scan="s", members={("jpg", "image", "jpeg", "")}))
        first += size
    return commit_catalog(storage, url, parts, scan="s", check="header", ignored={".pdf": 2})


def test_rows_come_back_in_the_order_asked_for(tmp_path: Path) -> None:
    catalog = numbered(tmp_path, (3, BATCH_ROWS + 5, 1, 200))
    write_rows(catalog, str(tmp_path / "rows.arrow"))
    rows = Rows(str(tmp_path / "rows.arrow"))
    assert len(rows) == catalog.rows == BATCH_ROWS + 209
    wanted = np.random.default_rng(0).permutation(len(rows))[:500]
    assert rows.take(wanted)["row"].to_pylist() == wanted.tolist()
    assert rows.take(np.array([7, 7, 0]), ["key"])["key"].to_pylist() == ["k7", "k7", "k0"]
    assert rows.take(np.array([], dtype=np.int64)).num_rows == 0


def test_a_catalog_reads_back_what_was_committed(tmp_path: Path) -> None:
    written = numbered(tmp_path, (4, 6))
    found = open_catalog(open_storage(), written.url)
    assert found.fingerprint == written.fingerprint
    assert (found.rows, found.counts, found.ignored) == (10, {"ok": 10}, {".pdf": 2})
    assert found.members == [("jpg", "image", "jpeg", "")]
    assert found.table(["key"])["key"].to_pylist() == [f"k{n}" for n in range(10)]


def test_plain_pyarrow_reads_the_folder_in_source_order(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    catalog = numbered(tmp_path, (4, 6, 2))
    assert pq.read_table(catalog.url)["row"].to_pylist() == list(range(12))
