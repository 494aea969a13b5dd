"""Speed of builds against the same work without any bookkeeping, as ratios of runs that take turns.

images       decode, resize to cover 512 x 512 (area), JPEG 90: `mmdata build` against a bare loop over Pillow in two
             processes, and against img2dataset's Resizer (--peer PYTHON, an interpreter that has img2dataset; without
             it its algorithm over OpenCV is skipped)
copies       no transform, check: header or a catalog that is there: `mmdata build` against `cp -r` plus xxh3 of the
             same bytes (the photographs under --links names each, so that the job outweighs the command's start)
proven       no transform, check: decode, against a bare decode loop
sandbox      the build's own handler over the photographs in two processes, with and without the sandbox

python tools/bench_build.py images copies proven sandbox --photos /tmp/tessera-photos --count 2000
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import bench_common as common
from bench_photos import make_photos

PARTS = ["images", "copies", "proven", "sandbox"]
SIDE = 512
QUALITY = 90
SHARDS = 8
"""Shards a worker: as in a large job, no worker is idle for long while the last shard is built."""
RESIZE = {"op": "resize", "width": SIDE, "height": SIDE, "mode": "cover", "interpolation": "area"}
PEER = """
import io, sys, time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from img2dataset.resizer import Resizer

def setup():
    global resizer
    resizer = Resizer({side}, "center_crop", False, "area", "area", {quality}, "jpg")

def one(path):
    with open(path, "rb") as file:
        result = resizer(io.BytesIO(file.read()))
    assert result[5] is None, result[5]
    return len(result[0])

if __name__ == "__main__":
    paths = sys.stdin.read().splitlines()
    with ProcessPoolExecutor({workers}, get_context("spawn"), setup) as pool:
        print(sum(pool.map(one, paths, chunksize=4)))
"""


def bare_resize(path: str) -> int:
    """What one image costs without mmdata: Pillow alone, with its reduced decoding."""
    from PIL import Image

    with open(path, "rb") as file:
        picture = Image.open(io.BytesIO(file.read()))
        least = min(picture.size)
        for factor in (8, 4, 2):
            if least // factor >= 2 * SIDE:
                picture.draft(None, (picture.width // factor, picture.height // factor))
                break
        if picture.mode != "RGB":
            picture = picture.convert("RGB")
        scale = max(SIDE / picture.width, SIDE / picture.height)
        across, down = SIDE / scale, SIDE / scale
        left, top = max(0.0, (picture.width - across) / 2), max(0.0, (picture.height - down) / 2)
        box = (left, top, min(left + across, picture.width), min(top + down, picture.height))
        small = picture.resize((SIDE, SIDE), Image.Resampling.BOX, box=box)
        out = io.BytesIO()
        small.save(out, "JPEG", quality=QUALITY, subsampling="4:2:0")
        return len(out.getvalue())


def bare_decode(path: str) -> int:
    """Decode one image with Pillow alone."""
    from PIL import Image

    with open(path, "rb") as file:
        picture = Image.open(io.BytesIO(file.read()))
        picture.load()
        return picture.width


def in_pool(work: str, workers: int) -> None:
    """Call a function of this file on each line of standard input, in processes that pull a few lines at a time."""
    paths = sys.stdin.read().splitlines()
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        for _ in pool.map(globals()[work], paths, chunksize=4):
            pass


def pool_seconds(work: str, paths: list[str], workers: int) -> common.Cost:
    """What `work` over `paths` costs as a program of its own."""
    return common.timed(lambda: _python(f"bench_build.in_pool({work!r}, {workers})", "\n".join(paths)))


def _python(call: str, text: str) -> None:
    here = str(Path(__file__).resolve().parent)
    code = f"import sys; sys.path.insert(0, {here!r}); import bench_build; {call}"
    subprocess.run([sys.executable, "-c", code], input=text, text=True, check=True, env=common.ENVIRONMENT)


def peer_seconds(python: str, script: Path, paths: list[str]) -> common.Cost:
    """Seconds for img2dataset's Resizer over `paths`, in the interpreter that has it."""
    environment = {**os.environ, "NO_ALBUMENTATIONS_UPDATE": "1"}
    return common.timed(
        lambda: subprocess.run(
            [python, str(script)],
            input="\n".join(paths),
            text=True,
            check=True,
            stdout=subprocess.DEVNULL,
            env=environment,
        )
    )


class Builds:
    """Recipes over one folder of photographs, and how long the command takes on them."""

    def __init__(self, photos: Path, work: Path, workers: int, count: int) -> None:
        self.photos, self.work, self.workers = photos, work, workers
        self.shard_samples = -(-count // (SHARDS * workers))

    def recipe(self, name: str, *, check: str, digest: bool = True, transforms: Iterable[Any] = ()) -> str:
        """A recipe over the photographs."""
        recipe: dict[str, Any] = {
            "version": 1,
            "name": name,
            "source": [{"type": "folder", "path": str(self.photos), "include": ["*.jpg"]}],
            "scan": {"check": check, "digest": digest},
            "output": {"path": str(self.work / name), "max_samples": self.shard_samples},
        }
        if transforms:
            recipe["transforms"] = {"image": list(transforms)}
            recipe["encode"] = {"image": {"format": "jpeg", "quality": QUALITY}}
        return common.write_recipe(self.work / f"{name}.json", recipe)

    def whole(self, name: str, recipe: str) -> common.Cost:
        """Seconds of `mmdata build` from nothing: scan, plan, build, commit."""
        common.remove(self.work / name, self.work / f"{name}.catalog")
        common.settle()
        return common.timed(lambda: common.mmdata("build", recipe, "--workers", str(self.workers)))

    def from_catalog(self, name: str, recipe: str) -> common.Cost:
        """Seconds of `mmdata build` from a catalog that is there."""
        common.remove(self.work / name)
        common.settle()
        return common.timed(lambda: common.mmdata("build", recipe, "--workers", str(self.workers)))


def images(photos: list[str], builds: Builds, count: int, peer: str | None) -> list[dict[str, Any]]:
    """The image job against the bare loop and img2dataset."""
    header = builds.recipe("images", check="header", digest=False, transforms=[RESIZE])
    cases: dict[str, Callable[[], common.Cost]] = {
        "build": lambda: builds.whole("images", header),
        "bare loop": partial(pool_seconds, "bare_resize", photos, builds.workers),
    }
    if peer is not None:
        script = builds.work / "peer.py"
        script.write_text(PEER.format(side=SIDE, quality=QUALITY, workers=builds.workers))
        cases["img2dataset"] = partial(peer_seconds, peer, script, photos)
    seconds = common.rounds(cases, count)
    rows = [_row("images, check: header, all of `mmdata build`", seconds, "build", "bare loop", photos, 0.9)]
    if peer is not None:
        rows.append(_row("images, check: header, all of `mmdata build`", seconds, "build", "img2dataset", photos, 1.0))
    return rows


def copies(photos: list[str], builds: Builds, count: int) -> list[dict[str, Any]]:
    """Builds that copy against `cp -r` and hashing of the copy."""
    target = builds.work / "copied"
    header = builds.recipe("copy-header", check="header", digest=False)
    digest = builds.recipe("copy-digest", check="header")
    checked = builds.recipe("copy-checked", check="header")
    builds.whole("copy-checked", builds.recipe("copy-checked", check="header"))

    def copy(durable: bool) -> common.Cost:
        common.remove(target)
        common.settle()

        def run() -> None:
            subprocess.run(["cp", "-r", str(builds.photos), str(target)], check=True)
            hash_folder(target)
            if durable:
                os.sync()

        return common.timed(run)

    seconds = common.rounds(
        {
            "cp + xxh3": partial(copy, False),
            "cp + xxh3 + sync": partial(copy, True),
            "header": lambda: builds.whole("copy-header", header),
            "header, digest": lambda: builds.whole("copy-digest", digest),
            "checked": lambda: builds.from_catalog("copy-checked", checked),
        },
        count,
    )
    rows = []
    for against in ("cp + xxh3", "cp + xxh3 + sync"):
        rows += [
            _row("pass-through, check: header, digest: false", seconds, "header", against, photos, 0.7),
            _row("pass-through, check: header", seconds, "header, digest", against, photos, 0.7),
            _row("pass-through, from a checked catalog", seconds, "checked", against, photos, 0.7),
        ]
    common.remove(target)
    return rows


def proven(photos: list[str], builds: Builds, count: int) -> list[dict[str, Any]]:
    """A build that decodes everything once and copies it, against a bare decode loop."""
    recipe = builds.recipe("copy-decode", check="decode")
    seconds = common.rounds(
        {
            "bare decode": partial(pool_seconds, "bare_decode", photos, builds.workers),
            "decode": lambda: builds.whole("copy-decode", recipe),
        },
        count,
    )
    return [_row("pass-through, check: decode", seconds, "decode", "bare decode", photos, 0.9)]


def hash_folder(folder: Path) -> str:
    """xxh3-128 of all bytes in a folder."""
    import xxhash

    running = xxhash.xxh3_128()
    for path in sorted(folder.iterdir()):
        running.update(path.read_bytes())
    return running.hexdigest()


def direct_part(recipe: str, photos: list[str]) -> None:
    """The build's handler over some photographs, called directly."""
    from mmdata.operators.process import process

    setup, items = _handler_inputs(recipe, photos)
    for item in items:
        process(item, setup)


def sandboxed_part(recipe: str, photos: list[str]) -> None:
    """The same through the sandbox."""
    from mmdata.media.sandbox import Sandbox

    setup, items = _handler_inputs(recipe, photos)
    with Sandbox("mmdata.operators.process:process", setup) as sandbox:
        for _ in sandbox.map(items):
            pass


def _handler_inputs(recipe: str, photos: list[str]) -> tuple[Any, list[Any]]:
    from mmdata.media import image
    from mmdata.operators.chain import Setup
    from mmdata.operators.process import BuildItem
    from mmdata.operators.registry import load_builtin
    from mmdata.recipe import load
    from mmdata.schema import MediaRef
    from mmdata.storage import open_storage

    load_builtin()
    loaded = load(recipe)
    setup = Setup(
        storage=open_storage(),
        limits=loaded.limits,
        decode=loaded.decode,
        check="header",
        transforms={"image": loaded.transforms.image},
        encode=loaded.encode,
    )
    items = []
    for path in photos:
        with open(path, "rb") as file:
            info = image.probe(file.read(1 << 16))
        items.append(BuildItem(path, "source.0", ((MediaRef("jpg", "image", path), info, None),), {}, False))
    return setup, items


def two_processes(part: str, recipe: str, photos: list[str], workers: int) -> common.Cost:
    """What a function of this file costs over an equal share of the photographs in each of some processes."""
    call = f"bench_build.{part}({recipe!r}, sys.stdin.read().splitlines())"
    shares = ["\n".join(photos[worker::workers]) for worker in range(workers)]

    def run() -> None:
        with ThreadPoolExecutor(workers) as threads:
            for each in [threads.submit(_python, call, share) for share in shares]:
                each.result()

    return common.timed(run)


def sandbox(photos: list[str], builds: Builds, count: int) -> list[dict[str, Any]]:
    """What the sandbox costs on images."""
    recipe = builds.recipe("images", check="header", digest=False, transforms=[RESIZE])
    seconds = common.rounds(
        {
            "sandboxed": partial(two_processes, "sandboxed_part", recipe, photos, builds.workers),
            "direct": partial(two_processes, "direct_part", recipe, photos, builds.workers),
        },
        count,
    )
    return [_row("the image handler in the sandbox", seconds, "sandboxed", "direct", photos, 0.95)]


def _row(
    what: str, seconds: dict[str, list[common.Cost]], ours: str, other: str, photos: list[str], target: float
) -> dict[str, Any]:
    middle = common.middle(seconds[ours])
    return {
        "what": what,
        "against": other,
        "ratio": common.ratio(seconds, ours, other),
        "by processor time": common.ratio(seconds, ours, other, "cpu"),
        "target": f">= {target}",
        "images/s": round(len(photos) / middle),
        "MB/s": round(sum(os.path.getsize(path) for path in photos) / middle / 1e6),
        "rounds": len(seconds[ours]),
    }


def link(photos: list[Path], folder: Path, times: int) -> list[str]:
    """A folder with `times` names for each photograph."""
    common.remove(folder)
    folder.mkdir()
    for number in range(times):
        for path in photos:
            os.link(path, folder / f"{number}-{path.name}")
    return sorted(str(path) for path in folder.iterdir())


def main() -> None:
    parser = common.parser(__doc__, "/tmp/tessera-bench")
    parser.add_argument("parts", nargs="*", help=f"{', '.join(PARTS)}; default all")
    parser.add_argument("--photos", type=Path, default=Path("/tmp/tessera-photos"), help="made where they are missing")
    parser.add_argument("--corpus", type=Path, help="pictures that photographs are made from")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--links", type=int, default=4, help="names of each photograph in the part `copies`")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--peer", help="interpreter of an environment with img2dataset")
    arguments = parser.parse_args()
    parts = arguments.parts or PARTS
    if unknown := set(parts) - set(PARTS):
        parser.error(f"unknown part {', '.join(sorted(unknown))}")
    made = make_photos(arguments.photos, arguments.count, corpus=arguments.corpus, workers=arguments.workers)
    arguments.work.mkdir(parents=True, exist_ok=True)
    photos = link(made, arguments.work / "photos", 1)
    hash_folder(arguments.work / "photos")  # warms the page cache
    builds = Builds(arguments.work / "photos", arguments.work, arguments.workers, arguments.count)
    rows: list[dict[str, Any]] = []
    if "images" in parts:
        rows += images(photos, builds, arguments.rounds, arguments.peer)
    if "copies" in parts:
        many = link(made, arguments.work / "links", arguments.links)
        rows += copies(
            many, Builds(arguments.work / "links", arguments.work, arguments.workers, len(many)), arguments.rounds
        )
    if "proven" in parts:
        rows += proven(photos, builds, arguments.rounds)
    if "sandbox" in parts:
        rows += sandbox(photos, builds, arguments.rounds)
    common.report(rows, arguments.json)


if __name__ == "__main__":
    main()
