"""Prepares a folder of tar shards as `energon prepare` does. Runs in the peers' environment.

python prepare_energon.py FOLDER SPLIT… -- SHARD…
"""

from __future__ import annotations

import sys

from megatron.energon.flavors.webdataset.prepare import WebdatasetPreparator

if __name__ == "__main__":
    folder, *names = sys.argv[1:]
    cut = names.index("--")
    WebdatasetPreparator.prepare_dataset(
        folder,
        names[cut + 1 :],
        split_parts_patterns=[(split, f".*-{split}-.*") for split in names[:cut]],
        workers=1,
    )
