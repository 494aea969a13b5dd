"""Look at a folder and write a commented recipe for it: only the sections that its media need, with what was seen
beside them.

The recipe is loaded once before it is written, so that what a person starts from is valid.
"""

from __future__ import annotations

import os
import re
import shlex
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from mmdata.errors import ConfigError, MediaError, NotFound, StorageError
from mmdata.recipe import FolderSource, from_mapping
from mmdata.report.text import counted, listed, plain
from mmdata.sources import Partition, Source, open_source
from mmdata.storage import Storage, open_storage

LOOKED_AT = 2000
"""Samples whose names are looked at."""

PROBED = 64
"""Pictures whose header is read, for their usual size."""

HEAD = 64 * 1024
"""Bytes of a picture that are read for its size."""

TABLES = (".parquet", ".jsonl", ".csv", ".tsv", ".arrow", ".json")
"""Endings of files that a table source reads."""


@dataclass(frozen=True)
class Look:
    """What was seen of a folder: up to `LOOKED_AT` samples of it."""

    samples: int
    more: bool
    """Whether there are samples that were not looked at."""
    kinds: dict[str, int]
    captioned: int
    labelled: bool
    """Whether the folders look like classes: two or more, each with two or more samples, all at one depth."""
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
        lines = [f"wrote {self.recipe} for {_seen(self.look)}"]
        if self.look.ignored:
            lines.append(f"not media: {listed(self.look.ignored)}")
        command = shlex.quote(self.recipe)
        return "\n".join(
            [*lines, f"next: mmdata scan {command}, then mmdata build {command} (--dry-run shows its plan)"]
        )


def write_recipe(
    folder: str, recipe: str, output: str | None = None, *, force: bool = False, dry_run: bool = False
) -> Initialised:
    """Look at `folder` and write the recipe file. By default the output is `dataset` in the working folder, or a folder
    beside `folder` where that would lie inside of it.

    Raises:
        ConfigError: the folder holds no media, or the recipe file is there already and `force` is not set.
    """
    storage = open_storage(None)
    output = output or _default_output(folder)
    if os.path.exists(recipe) and not force and not dry_run:
        raise ConfigError(f"{recipe}: already there; choose another --recipe, or replace it with --force")
    try:
        look = look_at(folder, storage)
    except NotFound as error:
        raise ConfigError(str(error)) from error
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
    folders: Counter[str] = Counter()
    samples, captioned, more = 0, 0, False
    for partition in _partitions(folder, source):
        if samples >= LOOKED_AT:
            more = True
            break
        for sample in source.samples(partition):
            samples += 1
            captioned += bool(sample.fields)
            folders[sample.key.rpartition("/")[0]] += 1
            for ref in sample.media:
                kinds[ref.kind] += 1
                if ref.kind == "image" and len(sizes) < PROBED and ref.length:
                    try:
                        info = image.probe(storage.read_range(ref.uri, 0, min(HEAD, ref.length)))
                    except (MediaError, NotFound, StorageError):
                        continue  # the scan will say what is wrong with it
                    sizes.append((info.width or 0, info.height or 0))
    sizes.sort(key=lambda size: size[0] * size[1])
    median = sizes[len(sizes) // 2] if sizes else None
    return Look(
        samples, more, dict(kinds.most_common()), captioned, _classes(folders, captioned), median, dict(source.ignored)
    )


def _classes(folders: Mapping[str, int], captioned: int) -> bool:
    depths = {folder.count("/") for folder in folders}
    return not captioned and len(folders) > 1 and "" not in folders and len(depths) == 1 and min(folders.values()) > 1


def _partitions(folder: str, source: Source) -> Iterator[Partition]:
    """Partitions of the folder. Where it holds no media, the error says what it holds, and what that could be."""
    try:
        yield from source.partitions()
    except ConfigError as error:
        seen = source.ignored
        if not seen and "://" not in folder and not os.path.isdir(folder):
            raise  # a file: the source says what kind of source it would be
        tables = [ending for ending in TABLES if seen.get(ending)]
        if seen.get(".tar"):
            mend = f'; for tar shards write a source {{type: webdataset, path: "{folder}/*.tar"}} into a recipe'
        elif tables:
            mend = (
                f'; for tables write a source {{type: table, path: "{folder}/*{tables[0]}", media: ...}} into a recipe'
            )
        elif any(name.startswith(".txt") for name in seen):
            mend = "; texts alone are taken from a table, such as a .jsonl file with a text column"
        else:
            mend = ""
        what = f"only {listed(seen)}" if seen else "it is empty"
        raise ConfigError(f"{folder}: no media files found: {what}{mend}") from error


def recipe_text(folder: str, recipe: str, output: str, look: Look) -> str:
    """The commented recipe. Raises ConfigError when it would not be valid (say, the output inside the folder)."""
    remote = "://" in folder
    here = os.path.dirname(os.path.abspath(recipe))
    path = folder if remote else os.path.relpath(os.path.abspath(folder), here)
    target = output if "://" in output else os.path.relpath(os.path.abspath(output), here)
    lines = [
        *(f"# {line}" for line in textwrap.wrap(f"Recipe for {plain(folder)}: {_seen(look)}.", 100)),
        "# `mmdata build` scans, plans and builds; its --dry-run shows the plan after `mmdata scan`.",
        "version: 1",
        f"name: {_name(output)}",
        "seed: 0",
        "",
        "source:",
        "  - type: folder",
        f"    path: {_quoted(path)}",
        *_aligned(
            ('    include: ["**/*"]', 'narrow it: ["train/**/*.jpg"]'),
            (
                f"    captions: {_yes(look.captioned > 0)}",
                "NAME.txt, NAME.json and NAME.cls beside NAME.jpg belong to it",
            ),
            (
                f"    label_from_folder: {_yes(look.labelled)}",
                "the folder's name becomes the label (cls if a number, else label.txt)",
            ),
        ),
        "",
        "scan:",
        "  check: decode # every medium is decoded once; `header` trusts the source and is fast",
        *_statistics(look),
        "",
        *_filters(look),
        *_transforms(look),
        *_buckets(look),
        "splits:",
        "  val: 0.02 # by hash of the key; media with equal bytes are never parted",
        "",
        "output:",
        *_aligned(
            (f"  path: {_quoted(target)}", ""),
            ("  format: webdataset", "or arrow"),
            ("  max_samples: 10000", "a shard ends at whichever of these comes first"),
            ("  max_bytes: 256MiB", ""),
        ),
        "",
        "limits:",
        "  max_bad: 0.1 # more bad samples than this share end the job with exit code 3",
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
    wanted += ["text_length"] if look.captioned else []
    return [f"  statistics: [{', '.join(wanted)}] # columns for filters and the report"] if wanted else []


def _filters(look: Look) -> list[str]:
    """A rule that keeps what is big enough; other modalities have no width and pass."""
    if "image" not in look.kinds and "video" not in look.kinds:
        return []
    size = f"; the median picture is {look.median_size[0]}x{look.median_size[1]}" if look.median_size else ""
    return ["filters:", f'  - "width is None or width >= 64" # what this drops is listed under its name{size}', ""]


def _transforms(look: Look) -> list[str]:
    lines = []
    if "image" in look.kinds:
        lines += [
            "  image:",
            "    - {op: resize, mode: cover} # to the bucket's size; without transforms bytes are copied",
        ]
    if "audio" in look.kinds:
        lines += ["  audio:", "    - {op: resample, rate: 16000}", "    - {op: mono}"]
    return ["transforms:", *lines, ""] if lines else []


def _buckets(look: Look) -> list[str]:
    pairs = []
    if "image" in look.kinds:
        settings = "{count: 8, pixels: 512*512, multiple_of: 32, max_aspect: 2.0}"
        pairs.append((f"  image: {settings}", "shapes from the data"))
    if "video" in look.kinds:
        settings = "{count: 4, pixels: 256*256, multiple_of: 16, frames: [17, 33]}"
        pairs.append((f"  video: {settings}", "shapes and frame counts; clips keep their bytes"))
    if "audio" in look.kinds:
        pairs.append(("  audio: {count: 4}", "durations with the least padding"))
    return ["buckets:", *_aligned(*pairs), ""] if pairs else []


def _aligned(*pairs: tuple[str, str]) -> list[str]:
    """Settings with their comments under each other."""
    width = max(len(setting) for setting, comment in pairs if comment) if any(c for _, c in pairs) else 0
    return [f"{setting:<{width}} # {comment}" if comment else setting for setting, comment in pairs]


def _yes(value: bool) -> str:
    return "true" if value else "false"


def _seen(look: Look) -> str:
    """`more than 2,000 samples (1,990 image, 12 video), 40 of them with side-cars`."""
    count = f"{'more than ' if look.more else ''}{counted(look.samples, 'sample')} ({listed(look.kinds)})"
    return count + (f", {look.captioned:,} with side-cars" if look.captioned else ", none with side-cars")


def _default_output(folder: str) -> str:
    """`dataset` in the working folder; beside `folder` where that would lie inside of it, or hold it."""
    if "://" in folder:
        return "dataset"
    here, inside = os.path.abspath("dataset"), os.path.abspath(folder)
    if os.path.commonpath([here, inside]) not in (here, inside):
        return "dataset"
    return os.path.relpath(inside.rstrip("/") + "-dataset")


def _name(output: str) -> str:
    base = output.rstrip("/").rsplit("/", 1)[-1]
    return re.sub(r"[^A-Za-z0-9_-]+", "-", base).strip("-") or "data"


def _quoted(path: str) -> str:
    import json

    return json.dumps(path, ensure_ascii=False)
