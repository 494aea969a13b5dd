"""Speed of `mmdata scan` on headers alone (check: header, digest: false), with the files in the page cache.

The photographs are linked under many names: every file is opened, and its header read and parsed, as if it were its
own.

python tools/bench_scan.py --photos /tmp/tessera-photos --count 20000
"""

from __future__ import annotations

import os
from pathlib import Path
from statistics import median
from typing import Any

import bench_common as common
from bench_photos import make_photos

TARGET = 5000


def link(photos: list[Path], folder: Path, count: int) -> None:
    """`count` names for the photographs, in folders of a thousand."""
    common.remove(folder)
    for number in range(count):
        place = folder / f"{number // 1000:04d}"
        place.mkdir(parents=True, exist_ok=True)
        os.link(photos[number % len(photos)], place / f"{number:07d}.jpg")
    for path in photos:
        path.read_bytes()


def main() -> None:
    parser = common.parser(__doc__, "/tmp/tessera-bench")
    parser.add_argument("--photos", type=Path, default=Path("/tmp/tessera-photos"), help="made where they are missing")
    parser.add_argument("--corpus", type=Path, help="pictures that photographs are made from")
    parser.add_argument("--distinct", type=int, default=200, help="photographs that are linked")
    parser.add_argument("--count", type=int, default=40_000, help="files that are scanned")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    photos = make_photos(arguments.photos, arguments.distinct, corpus=arguments.corpus)
    folder, catalog = arguments.work / "many", arguments.work / "scan.catalog"
    arguments.work.mkdir(parents=True, exist_ok=True)
    link(photos, folder, arguments.count)
    recipe: dict[str, Any] = {
        "version": 1,
        "source": [{"type": "folder", "path": str(folder)}],
        "scan": {"check": "header", "digest": False},
        "catalog": str(catalog),
        "output": {"path": str(arguments.work / "never-built")},
    }
    path = common.write_recipe(arguments.work / "scan.json", recipe)

    def case(workers: int) -> common.Cost:
        common.remove(catalog)
        return common.timed(lambda: common.mmdata("scan", path, "--workers", str(workers)))

    costs = common.rounds({"2 workers": lambda: case(2), "1 worker": lambda: case(1)}, arguments.rounds)
    start = common.timed(lambda: common.mmdata("scan", path, "--dry-run")).wall
    rows = []
    for name, each in costs.items():
        seconds = common.middle(each)
        rows.append(
            {
                "what": f"scan, headers, {name}",
                "images/s": round(arguments.count / seconds),
                "best": round(arguments.count / min(cost.wall for cost in each)),
                "images/s of processor time": round(arguments.count / median(cost.cpu for cost in each)),
                "target": f">= {TARGET}" if name == "2 workers" else "",
                "seconds": round(seconds, 2),
                "of which start of the command": round(start, 2),
                "images": arguments.count,
            }
        )
    common.remove(folder, catalog)
    common.report(rows, arguments.json)


if __name__ == "__main__":
    main()
