"""The sections of a recipe: every setting with its type, default and meaning. Knows no file, no YAML, no operator.

The docstring under a field is its description in the published JSON Schema. Checks that need one section live here;
those that need several are in `checks`.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from mmdata.recipe.base import Section, mistake
from mmdata.recipe.operators import OperatorIn
from mmdata.recipe.processing import Count, Decode, Encode, Limits, StorageOptions
from mmdata.recipe.sizes import Bytes, CommandLineText, Path, Pixels, Seconds, Shape
from mmdata.recipe.sources import Source
from mmdata.schema import FORMAT_VERSION

Share = Annotated[float, Field(ge=0, le=1)]


def _auto_or_list(value: Any) -> str:
    return "list" if isinstance(value, (list, tuple)) else "auto"


Auto = Annotated[Literal["auto"], Tag("auto")]
AutoOrShapes = Annotated[
    Auto | Annotated[tuple[Shape, ...], Field(min_length=1), Tag("list")], Discriminator(_auto_or_list)
]
_LONGEST_SIDE = 8192
"""Steps of `multiple_of` in the longest side that chosen shapes may have: the choice tries the square of it."""

AutoOrSeconds = Annotated[
    Auto | Annotated[tuple[Seconds, ...], Field(min_length=1), Tag("list")], Discriminator(_auto_or_list)
]
AutoOrCounts = Annotated[
    Auto | Annotated[tuple[Count, ...], Field(min_length=1), Tag("list")], Discriminator(_auto_or_list)
]


class Scan(Section):
    """How each file is looked at once."""

    check: Literal["decode", "header"] = "decode"
    """`decode` proves every medium by decoding it whole; `header` reads headers only, for sources you trust."""
    statistics: tuple[Annotated[Section, OperatorIn("statistic")], ...] = ()
    """Statistics to measure, by name or with arguments; each fills a `stat.NAME` column for filters and reports."""
    exact_frames: bool = False
    """Count the frames of every video by reading it, even where its header is honest."""
    digest: Literal["auto", True, False] = "auto"
    """Compute the digest of every medium's bytes, by which duplicates are known and splits keep them together; it reads
    every file whole. `auto`: with `check: decode`, which reads them anyway, and wherever there are splits."""
    partition: Count = 4096
    """Samples that one worker scans at a time."""


class Filter(Section):
    """A rule that samples must meet. What it drops is listed in the quarantine under its name."""

    name: str
    """Name in reports; by default the expression itself."""
    keep: str = Field(min_length=1)
    """Expression over catalog columns: `width >= 256 and duration < 30`. A sample is kept where it is true."""

    @model_validator(mode="before")
    @classmethod
    def _short(cls, data: Any) -> Any:
        if isinstance(data, str):
            return {"name": data, "keep": data}
        if isinstance(data, Mapping) and "name" not in data and "keep" in data:
            return {**data, "name": data["keep"]}
        return data


class Transforms(Section):
    """What is done to each modality, in order. No transforms: media are stored byte for byte."""

    image: tuple[Annotated[Section, OperatorIn("transform", "image")], ...] = ()
    """Transforms of pictures."""
    video: tuple[Annotated[Section, OperatorIn("transform", "video")], ...] = ()
    """Transforms of videos: temporal ones choose frames, spatial ones change each."""
    audio: tuple[Annotated[Section, OperatorIn("transform", "audio")], ...] = ()
    """Transforms of recordings."""
    text: tuple[Annotated[Section, OperatorIn("transform", "text")], ...] = ()
    """Transforms of captions and other fields."""


class ImageBuckets(Section):
    """Shapes that pictures are grouped by, by aspect ratio, at about the same number of pixels."""

    shapes: AutoOrShapes = "auto"
    """`auto` chooses `count` shapes for the data; or a list such as `[512x512, 640x384]` (width x height)."""
    count: Annotated[int, Field(ge=1, le=4096)] = 8
    """Number of shapes for `auto`."""
    pixels: Pixels = 512 * 512
    """Pixels of a shape for `auto`: each shape has at most this many."""
    multiple_of: Annotated[int, Field(ge=1, le=1024)] = 32
    """Width and height of a shape are multiples of this."""
    max_aspect: Annotated[float, Field(ge=1)] = 2.0
    """Longest side over shortest side of a shape, at most."""
    max_crop: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Share of a picture's area that a fit may cut away, at most; a sample that fits nowhere is dropped by name."""
    max_upscale: Annotated[float, Field(ge=1)] | None = None
    """Factor by which a side may be enlarged, at most; a sample that fits nowhere is dropped by name."""

    @field_validator("shapes")
    @classmethod
    def _differ(cls, value: Any) -> Any:
        if value != "auto" and len(set(value)) < len(value):
            twice = next(shape for shape in value if value.count(shape) > 1)
            raise mistake(f"the shape {twice[0]}x{twice[1]} is listed twice")
        return value

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.shapes == "auto" and self.pixels < self.multiple_of**2:
            raise mistake(
                f"no shape has at most {self.pixels} pixels and sides that are multiples of {self.multiple_of}; "
                f"set pixels to {self.multiple_of}*{self.multiple_of} or more"
            )
        if self.shapes == "auto" and self.pixels * self.max_aspect > (_LONGEST_SIDE * self.multiple_of) ** 2:
            raise mistake(
                f"too many shapes to choose from: sides up to {(self.pixels * self.max_aspect) ** 0.5:.3g} pixels in "
                f"steps of {self.multiple_of}; raise multiple_of, or lower pixels or max_aspect"
            )
        return self


class VideoBuckets(ImageBuckets):
    """Shapes and frame counts that videos are grouped by."""

    frames: Annotated[tuple[Count, ...], Field(min_length=1)] = (1, 17, 33)
    """Frame counts, increasing. A video goes to the largest that it fills."""

    @field_validator("frames")
    @classmethod
    def _increase(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        return _increasing(value, "frames")


class AudioBuckets(Section):
    """Durations that recordings are grouped by."""

    edges: AutoOrSeconds = "auto"
    """Upper edges in seconds, increasing; `auto` computes the `count` edges with the least padding."""
    count: Annotated[int, Field(ge=1, le=4096)] = 8
    """Number of edges for `auto`."""

    @field_validator("edges")
    @classmethod
    def _increase(cls, value: Any) -> Any:
        return value if value == "auto" else _increasing(value, "edges")


class TextBuckets(Section):
    """Lengths that texts are grouped by."""

    edges: AutoOrCounts = "auto"
    """Upper edges in units of `length`, increasing; `auto` computes the `count` edges with the least padding."""
    count: Annotated[int, Field(ge=1, le=4096)] = 8
    """Number of edges for `auto`."""
    multiple_of: Count = 1
    """Edges that `auto` computes are multiples of this."""
    length: str = "text_tokens"
    """Catalog column that holds the length."""

    @field_validator("edges")
    @classmethod
    def _increase(cls, value: Any) -> Any:
        return value if value == "auto" else _increasing(value, "edges")


class Buckets(Section):
    """How samples of one modality are grouped into shapes that can be batched. A modality without is not grouped."""

    image: ImageBuckets | None = None
    """Buckets of pictures."""
    video: VideoBuckets | None = None
    """Buckets of videos."""
    audio: AudioBuckets | None = None
    """Buckets of recordings."""
    text: TextBuckets | None = None
    """Buckets of samples without media."""


class Packing(Section):
    """Samples are joined into packs that never exceed a budget."""

    budget: Count
    """Length of a pack, in units of `length`."""
    length: str = "text_tokens"
    """Catalog column that holds a sample's length."""
    buffer: Count = 1024
    """Samples that wait at a time for a pack they fit in; more fill packs better."""
    oversize: Literal["error", "drop"] = "error"
    """What happens to a sample longer than the budget: the job ends, or the sample goes to the quarantine."""


class Splits(Section):
    """Shares of the samples that go to splits other than `train`, by hash: a sample's split never changes."""

    val: Share = 0.0
    """Share of the validation split."""
    test: Share = 0.0
    """Share of the test split."""
    by: Literal["key", "group"] = "key"
    """What is hashed. `group` keeps samples of one group together (the key where there is no group)."""

    @model_validator(mode="after")
    def _leave_train(self) -> Self:
        total = self.val + self.test
        if total >= 1:
            raise mistake(f"the splits take {total:g} of the samples: nothing is left for train; use shares below 1")
        return self


class Output(Section):
    """The dataset folder that the build writes."""

    path: Path
    """Folder or URL of the dataset."""
    format: Literal["webdataset", "arrow"] = "webdataset"
    """Tar shards in the WebDataset layout, or Arrow IPC files."""
    max_samples: Count = 10_000
    """Samples in a shard, at most."""
    max_bytes: Bytes = 256 * 1024**2
    """Bytes in a shard, at most; a larger sample gets a shard of its own."""
    order: Literal["shuffle", "source"] = "shuffle"
    """Samples in shuffled order, the same for the same seed, or in the order of the sources."""
    window: Count | None = None
    """Samples that are shuffled among each other; by default all. A window keeps reads of the sources local."""
    folder_per_bucket: bool = False
    """A folder of shards for each bucket; by default shards mix buckets and the index tells them apart."""
    energon: bool = False
    """Also write the `.nv-meta` files with which Megatron-Energon opens the dataset."""

    @model_validator(mode="after")
    def _tar_for_energon(self) -> Self:
        if self.energon and self.format != "webdataset":
            raise mistake("energon reads WebDataset shards only; set format to webdataset, or energon to false")
        return self


class Recipe(Section):
    """A dataset build: where samples come from, what is measured, kept and changed, and what is written."""

    version: Literal[1] = 1
    """Version of the recipe format."""
    name: Annotated[str, Field(min_length=1, max_length=100)] = "data"
    """Prefix of the shards' names: letters, digits, `_` and `-`."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Key of every random draw."""
    source: Annotated[tuple[Source, ...], Field(min_length=1)]
    """Where samples come from; several sources are joined in this order."""
    catalog: Path = ""
    """Folder or URL of the catalog that the scan writes; by default `output.path` + `.catalog`."""
    scan: Scan = Scan()
    """How each file is looked at once."""
    filters: tuple[Filter, ...] = ()
    """Rules that samples must meet, in order."""
    transforms: Transforms = Transforms()
    """What is done to each modality."""
    buckets: Buckets = Buckets()
    """Shapes and lengths that samples are grouped by."""
    packing: Packing | None = None
    """Joining of samples into packs; none by default."""
    splits: Splits = Splits()
    """Shares of validation and test samples."""
    output: Output
    """The dataset folder."""
    encode: Encode = Encode()
    """How changed media are written."""
    limits: Limits = Limits()
    """What one sample may cost, and how many may be bad."""
    decode: Decode = Decode()
    """How media become pixels and samples."""
    storage: StorageOptions = StorageOptions()
    """How object stores are reached."""
    workers: Annotated[int, Field(ge=0, le=4096)] = 0
    """Worker processes; 0 is one for each core. The result does not depend on it."""

    @model_validator(mode="before")
    @classmethod
    def _default_catalog(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or data.get("catalog", "") != "":
            return data
        output = data.get("output")
        path = output.get("path") if isinstance(output, Mapping) else getattr(output, "path", None)
        if not isinstance(path, str) or not path:
            return data
        joined = default_catalog(path)
        return {**data, "catalog": CommandLineText(joined) if isinstance(path, CommandLineText) else joined}

    def resolved(self) -> dict[str, Any]:
        """The whole recipe as plain JSON data, every default written out."""
        return self.plain()

    def fingerprint(self, *parts: str) -> str:
        """128-bit BLAKE2b, hex, of the named parts (`scan`, `limits.cpu`) with their defaults; none named: of all.

        Equal settings give equal fingerprints, however they were written. Raises KeyError for a part that is not there.
        """
        data = self.plain()
        chosen = {part: _part(data, part) for part in sorted(parts)} if parts else data
        return _digest(chosen)

    @property
    def digests(self) -> bool:
        """Whether the scan computes the digest of every medium: what `scan.digest` comes to."""
        if self.scan.digest == "auto":
            return self.scan.check == "decode" or self.splits.val > 0 or self.splits.test > 0
        return self.scan.digest

    def measure_fingerprint(self) -> str:
        """Changes when one sample would be measured differently: while it stays, the rows of a scan can be reused."""
        # Texts are measured as they will be stored, and a text transform may draw.
        texts = ("transforms.text", "seed") if self.transforms.text else ()
        # What a statistic reads beside the sample, such as the files of a tokenizer.
        profiles = [each.profile() for each in self.scan.statistics if hasattr(each, "profile")]
        return _digest([FORMAT_VERSION, self.fingerprint(*MEASURE_PARTS, *texts), self.digests, profiles])

    def scan_fingerprint(self) -> str:
        """Changes when a scan would give another catalog; not with output, filters, buckets or workers."""
        return _digest([self.measure_fingerprint(), self.fingerprint(*SCAN_PARTS)])

    def build_fingerprint(self) -> str:
        """Changes when the same catalog would give other shards; not with paths, workers, storage or error limits."""
        return self.fingerprint(*BUILD_PARTS)

    @field_validator("name")
    @classmethod
    def _safe(cls, value: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9_-]+", value):
            raise mistake(f"a name has letters, digits, '_' and '-' only, found '{value}'")
        return value


MEASURE_PARTS: tuple[str, ...] = (
    *(f"scan.{name}" for name in Scan.model_fields if name not in ("partition", "digest")),
    "decode",
    *(f"limits.{name}" for name in Limits.model_fields if name != "max_bad"),
)
"""What decides how one sample is measured, beside the text transforms."""

SCAN_PARTS: tuple[str, ...] = ("source", "scan.partition", "storage.endpoint")
"""What decides which samples are scanned, and in which partitions."""

_ELSEWHERE = ("source", "catalog", "output", "limits", "storage", "workers")
BUILD_PARTS: tuple[str, ...] = (
    *(name for name in Recipe.model_fields if name not in _ELSEWHERE),
    *(f"output.{name}" for name in Output.model_fields if name != "path"),
    *(f"limits.{name}" for name in Limits.model_fields if name != "max_bad"),
)
"""What decides the shards, given the catalog."""


def default_catalog(output: str) -> str:
    """Where the catalog of a dataset lies when the recipe does not say: beside it."""
    return output.rstrip("/") + ".catalog"


def _digest(data: Any) -> str:
    text = json.dumps(data, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode("ascii"), digest_size=16).hexdigest()


def _part(data: Any, dotted: str) -> Any:
    for name in dotted.split("."):
        data = data[name]
    return data


def _increasing(value: tuple[Any, ...], word: str) -> tuple[Any, ...]:
    for before, after in itertools.pairwise(value):
        if after <= before:
            raise mistake(f"{word} must increase, but {after:g} follows {before:g}")
    return value
