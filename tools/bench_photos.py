"""Make photographs of 1 to 12 megapixels for the benchmarks: seeded crops and upscales of a folder of pictures, with a
little grain, as a camera gives. The same arguments give the same pixels; finished files are kept from run to run.

python tools/bench_photos.py FOLDER --count 2000
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageChops

from mmdata.errors import MediaError
from mmdata.media import image

CORPUS = Path(__file__).resolve().parents[2] / "shared" / "corpora" / "images"
MEGAPIXELS = (1.0, 12.0)
ASPECTS = (3 / 2, 4 / 3, 4 / 3, 16 / 9, 1.0, 2 / 3, 3 / 4, 9 / 16)
QUALITIES = (80, 85, 90, 92, 95)
SOURCE_PIXELS = 200_000
SOURCE_COLOURS = 15_000
"""What tells a photograph from a drawing or a test chart: that many pixels and distinct colours."""
GRAIN = 3.0
"""Standard deviation of the grain, of 255."""


def make_photos(folder: Path, count: int, *, seed: int = 0, corpus: Path | None = None, workers: int = 2) -> list[Path]:
    """Fill `folder` with photographs 0 to count - 1, where they are not there yet, and list them."""
    folder.mkdir(parents=True, exist_ok=True)
    chosen = _corpus(corpus)
    facts = {"seed": seed, "corpus": str(chosen)}
    label = folder / "_made_from.json"
    if label.exists() and json.loads(label.read_text()) != facts:
        raise SystemExit(f"{folder} holds photographs of another seed or corpus: {label.read_text()}; choose another")
    label.write_text(json.dumps(facts))
    paths = [folder / f"photo{number:05d}.jpg" for number in range(count)]
    todo = [(number, seed, str(chosen), str(path)) for number, path in enumerate(paths) if not path.exists()]
    if todo:
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            for done, _ in enumerate(pool.map(_make, todo, chunksize=4), start=1):
                if done % 50 == 0 or done == len(todo):
                    print(f"\rmade {done} of {len(todo)} photographs", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
    return paths


def _corpus(wanted: Path | None) -> Path:
    if wanted is not None:
        return wanted
    if CORPUS.is_dir():
        return CORPUS
    from demo_corpus import make_corpus

    folder = Path(tempfile.gettempdir()) / "tessera-bench-demo-corpus"
    if not folder.is_dir():
        folder.mkdir()
        make_corpus(folder)
    return folder


@cache
def _sources(corpus: str) -> list[str]:
    """Paths of the photographs in `corpus`, sorted."""
    found = []
    for path in sorted(Path(corpus).rglob("*")):
        if path.suffix.lower() not in (".jpg", ".jpeg", ".png", ".webp", ".heic", ".avif"):
            continue
        try:
            picture = image.decode(path.read_bytes()).convert("RGB")
        except MediaError:
            continue
        pixels = np.asarray(picture, np.uint32)
        if pixels.shape[0] * pixels.shape[1] < SOURCE_PIXELS or min(picture.size) < 300:
            continue
        if len(np.unique(pixels @ np.asarray([65536, 256, 1], np.uint32))) >= SOURCE_COLOURS:
            found.append(str(path))
    if not found:
        raise SystemExit(f"{corpus}: no photograph of {SOURCE_PIXELS} pixels in it")
    return found


@cache
def _source(path: str) -> Image.Image:
    return image.decode(Path(path).read_bytes()).convert("RGB")


@cache
def _grain() -> Image.Image:
    noise = np.random.default_rng(0).normal(128, GRAIN, (4700, 4700, 1)).clip(0, 255).astype(np.uint8)
    return Image.fromarray(np.repeat(noise, 3, axis=2))


def _make(task: tuple[int, int, str, str]) -> None:
    number, seed, corpus, path = task
    rng = np.random.default_rng([seed, number])
    sources = _sources(corpus)
    source = _source(sources[rng.integers(len(sources))])
    low, high = MEGAPIXELS
    pixels = 1e6 * math.exp(rng.uniform(math.log(low), math.log(high)))
    aspect = ASPECTS[rng.integers(len(ASPECTS))]
    width, height = round(math.sqrt(pixels * aspect)), round(math.sqrt(pixels / aspect))
    across = min(source.width, source.height * aspect) * rng.uniform(0.6, 1.0)
    left, top = rng.uniform(0, source.width - across), rng.uniform(0, source.height - across / aspect)
    box = (left, top, left + across, top + across / aspect)
    photo = source.resize((width, height), Image.Resampling.BICUBIC, box=box)
    grain = _grain()
    x, y = int(rng.integers(grain.width - width + 1)), int(rng.integers(grain.height - height + 1))
    photo = ImageChops.add(photo, grain.crop((x, y, x + width, y + height)), 1, -128)
    temporary = Path(f"{path}.tmp")
    photo.save(temporary, "JPEG", quality=QUALITIES[rng.integers(len(QUALITIES))], subsampling=int(2 * rng.integers(2)))
    temporary.rename(path)


def describe(paths: list[Path]) -> dict[str, Any]:
    """Count, bytes and megapixels of the photographs."""
    sizes = [path.stat().st_size for path in paths]
    pixels = []
    for path in paths:
        with Image.open(path) as picture:
            pixels.append(picture.width * picture.height / 1e6)
    return {
        "photographs": len(paths),
        "bytes": sum(sizes),
        "mean_bytes": round(sum(sizes) / len(sizes)),
        "megapixels_mean": round(sum(pixels) / len(pixels), 2),
        "megapixels_least": round(min(pixels), 2),
        "megapixels_most": round(max(pixels), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the photographs go; those that are there are kept")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--corpus", type=Path, help="pictures to cut from; default ../shared/corpora/images, else the demo's"
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    arguments = parser.parse_args()
    facts = describe(
        make_photos(
            arguments.folder,
            arguments.count,
            seed=arguments.seed,
            corpus=arguments.corpus,
            workers=arguments.workers,
        )
    )
    if arguments.json:
        print(json.dumps(facts))
    else:
        for name, value in facts.items():
            print(f"{name:20} {value}")


if __name__ == "__main__":
    main()
