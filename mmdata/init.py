"""Look at a folder and write a commented recipe for it: only the sections that its media need, with what was seen
beside them.

The recipe is loaded once before it is written, so that what a person starts from is valid.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from mmdata.errors import ConfigError, MediaError
from mmdata.recipe import FolderSource, from_mapping
from mmdata.sources import open_source
from mmdata.storage import Storage, open_storage

LOOKED_AT = 2000
"""Samples whose names are looked at."""

PROBED = 64
"""Pictures whose header is read, for their usual size."""

HEAD = 64 * 1024


@dataclass(frozen=True)
class Look:
    """What was seen of a folder: up to `LOOKED_AT` samples of it."""

    samples: int
    more: bool
    """Whether there are samples that were not looked at."""
    kinds: dict[str, int]
    captioned: int
    folders: int
    median_size: tuple[int, int] | None
    ignored: dict[str, int]


@dataclass(frozen=True)
class Initialised:
    """The recipe that was (or, in a dry run, would be) written."""

    recipe: str
    text: str
    look: Look
    written: bool

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {"recipe": self.recipe, "written": self.written, "look": asdict(self.look), "text": self.text}

    def to_text(self) -> str:
        """For people."""
        if not self.written:
            return self.text
        seen = ", ".join(f"{count} {kind}" for kind, count in self.look.kinds.items())
        return f"wrote {self.recipe} for {seen}\nnext: mmdata build {self.recipe}"


def write_recipe(folder: str, recipe: str, output: str, *, force: bool = False, dry_run: bool = False) -> Initialised:
    """Look at `folder` and write the recipe file.

    Raises:
        ConfigError: the folder holds no media, or the recipe file is there already and `force` is not set.
    """
    storage = open_storage(None)
    if os.path.exists(recipe) and not force and not dry_run:
        raise ConfigError(f"{recipe}: already there; choose another --recipe, or replace it with --force")
    look = look_at(folder, storage)
    text = recipe_text(folder, recipe, output, look)
    if not dry_run:
        parent = os.path.dirname(os.path.abspath(recipe))
        os.makedirs(parent, exist_ok=True)
        storage.write(recipe, text.encode())
    return Initialised(recipe, text, look, not dry_run)


def look_at(folder: str, storage: Storage) -> Look:
    """Names of up to `LOOKED_AT` samples of `folder`, and the sizes of a few pictures."""
    from mmdata.media import image

    source = open_source(FolderSource.parse({"type": "folder", "path": folder}), storage, spool="")
    kinds: Counter[str] = Counter()
    sizes: list[tuple[int, int]] = []
    folders: set[str] = set()
    samples, captioned, more = 0, 0, False
    for partition in source.partitions():
        if samples >= LOOKED_AT:
            more = True
            break
        for sample in source.samples(partition):
            samples += 1
            captioned += bool(sample.fields)
            folders.add(sample.key.rpartition("/")[0])
            for ref in sample.media:
                kinds[ref.kind] += 1
                if ref.kind == "image" and len(sizes) < PROBED and ref.length != 0:
                    try:
                        info = image.probe(storage.read(ref.uri)[:HEAD] if ref.offset is None else b"")
                    except MediaError:
                        continue
                    sizes.append((info.width or 0, info.height or 0))
    if not samples:
        hint = ", ".join(f"{count} {name}" for name, count in source.ignored.items())
        raise ConfigError(f"{folder}: no media files found" + (f" (only {hint})" if hint else ""))
    sizes.sort(key=lambda size: size[0] * size[1])
    median = sizes[len(sizes) // 2] if sizes else None
    return Look(samples, more, dict(kinds.most_common()), captioned, len(folders), median, dict(source.ignored))


def recipe_text(folder: str, recipe: str, output: str, look: Look) -> str:
    """The commented recipe. Raises ConfigError when it would not be valid (say, the output inside the folder)."""
    remote = "://" in folder
    here = os.path.dirname(os.path.abspath(recipe))
    path = folder if remote else os.path.relpath(os.path.abspath(folder), here)
    target = output if "://" in output else os.path.relpath(os.path.abspath(output), here)
    kinds = ", ".join(f"{count} {kind}" for kind, count in look.kinds.items())
    seen = f"{'more than ' if look.more else ''}{look.samples} samples ({kinds}), {look.captioned} with side-cars"
    lines = [
        f"# Recipe for {folder}: {seen}.",
        "# `mmdata build` scans, plans and builds; with --dry-run it shows the plan and writes nothing.",
        "version: 1",
        f"name: {_name(output)}",
        "seed: 0",
        "",
        "source:",
        "  - type: folder",
        f"    path: {_quoted(path)}",
        '    include: ["**/*"]          # narrow it: ["train/**/*.jpg"]',
        f"    captions: {str(bool(look.captioned)).lower()}".ljust(31) + "# NAME.txt / NAME.json beside NAME.jpg",
        f"    label_from_folder: {str(look.folders > 1 and not look.captioned).lower()}",
        "",
        "scan:",
        "  check: decode                # decode every medium once; `header` trusts the source and is fast",
        *_statistics(look),
        "",
        *_filters(look),
        *_transforms(look),
        *_buckets(look),
        "splits:",
        "  val: 0.02                    # by hash of the key; near or exact duplicates are never parted",
        "",
        "output:",
        f"  path: {_quoted(target)}",
        "  format: webdataset           # or arrow",
        "  max_samples: 10000           # a shard ends at whichever comes first",
        "  max_bytes: 256MiB",
        "",
        "limits:",
        "  max_bad: 0.1                 # more bad samples than this share end the job with exit code 3",
    ]
    text = "\n".join(lines) + "\n"
    import yaml

    from mmdata.operators.registry import load_builtin

    load_builtin()
    from_mapping(yaml.safe_load(text), folder=here, name=recipe)
    return text


def _statistics(look: Look) -> list[str]:
    wanted = ["brightness", "sharpness"] if "image" in look.kinds else []
    wanted += ["loudness"] if "audio" in look.kinds else []
    return [f"  statistics: [{', '.join(wanted)}]"] if wanted else []


def _filters(look: Look) -> list[str]:
    """A rule that keeps what is big enough; other modalities have no width and pass."""
    if "image" not in look.kinds and "video" not in look.kinds:
        return []
    size = f" (median picture {look.median_size[0]}x{look.median_size[1]})" if look.median_size else ""
    return ["filters:", f'  - "width is None or width >= 64"    # what is dropped is listed by rule{size}', ""]


def _transforms(look: Look) -> list[str]:
    lines = []
    if "image" in look.kinds:
        lines += ["  image:", "    - {op: resize, mode: cover}  # to the bucket; without transforms bytes are copied"]
    if "audio" in look.kinds:
        lines += ["  audio:", "    - {op: resample, rate: 16000}", "    - {op: mono}"]
    return ["transforms:", *lines, ""] if lines else []


def _buckets(look: Look) -> list[str]:
    lines = []
    if "image" in look.kinds:
        lines.append("  image: {count: 8, pixels: 512*512, multiple_of: 32, max_aspect: 2.0}  # shapes from the data")
    if "video" in look.kinds:
        lines.append("  video: {count: 4, pixels: 256*256, multiple_of: 16, frames: [17, 33]}")
    if "audio" in look.kinds:
        lines.append("  audio: {count: 4}            # edges with the least padding")
    return ["buckets:", *lines, ""] if lines else []


def _name(output: str) -> str:
    base = output.rstrip("/").rsplit("/", 1)[-1]
    return re.sub(r"[^A-Za-z0-9_-]+", "-", base).strip("-") or "data"


def _quoted(path: str) -> str:
    import json

    return json.dumps(path, ensure_ascii=False)
