"""The kinds of source a recipe can name, and their settings. Knows no file, and nothing of how sources are read."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from mmdata.recipe.base import Section, mistake
from mmdata.recipe.sizes import Path

MediaKind = Literal["image", "video", "audio"]


def _one_or_many(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


def _placeholders() -> dict[MediaKind, str]:
    return {"image": "<image>", "video": "<video>", "audio": "<audio>"}


Paths = Annotated[tuple[Path, ...], Field(min_length=1), BeforeValidator(_one_or_many)]
"""One path or several; a single one may be written without a list."""
Columns = Annotated[tuple[str, ...], Field(min_length=1), BeforeValidator(_one_or_many)]
"""One column name or several."""


class FolderSource(Section):
    """A folder of media files, each a sample of its own, joined only by its side-car files."""

    type: Literal["folder"]
    """Kind of source."""
    path: Path
    """Folder or URL prefix; searched recursively."""
    include: tuple[str, ...] = Field(("**/*",), min_length=1)
    """Glob patterns, relative to `path`, of the files to take. Only files with a media extension become samples."""
    exclude: tuple[str, ...] = ()
    """Glob patterns of files to leave out."""
    captions: bool = True
    """Join `NAME.txt` and `NAME.json` to the media file `NAME.EXT` beside them."""
    label_from_folder: bool = False
    """Store the name of the folder that holds the file as the sample's class label."""
    key_prefix: str = ""
    """Put before every key, to keep the keys of several sources apart."""
    animated: Literal["image", "video"] = "image"
    """What an animated GIF, WebP, PNG or AVIF is: a picture (its first frame) or a video."""


class TableSource(Section):
    """Rows of JSONL, CSV, Parquet or Arrow files; media as paths, URLs or embedded bytes."""

    type: Literal["table"]
    """Kind of source."""
    path: Paths
    """File or files; globs and braces (`part-{000..009}.parquet`) are expanded."""
    format: Literal["auto", "jsonl", "csv", "tsv", "parquet", "arrow"] = "auto"
    """Format of the files; `auto` goes by the extension."""
    key: str | None = None
    """Column that holds the sample's key; by default the key is the file's name and row number."""
    media: dict[MediaKind, Columns] = Field(default_factory=dict)
    """Kind of media to the column, or columns, that hold it: `{image: image}` or `{image: [before, after]}`. A cell is
    a path, a URL, bytes, a `{bytes, path}` mapping, or a list of these."""
    text: str | None = None
    """Column with the caption; becomes the member `txt`."""
    label: str | None = None
    """Column with the class label; becomes the member `cls` when it is a whole number, else `label.txt`."""
    messages: str | None = None
    """Column with a conversation (`messages` or `conversations`); its placeholders are checked against the media."""
    placeholders: dict[MediaKind, str] = Field(default_factory=_placeholders)
    """Text that stands for one medium of each kind in a conversation."""
    fields: tuple[str, ...] = ()
    """Other columns to carry, in the sample's `json` member."""
    group: str | None = None
    """Column whose equal values are never parted by a split."""
    base: Path | None = None
    """Folder or URL that relative media paths start from; by default the folder of the table."""
    key_prefix: str = ""
    """Put before every key, to keep the keys of several sources apart."""
    animated: Literal["image", "video"] = "image"
    """What an animated GIF, WebP, PNG or AVIF is: a picture (its first frame) or a video."""

    @model_validator(mode="after")
    def _holds_something(self) -> Self:
        if not self.media and self.text is None and self.messages is None:
            raise mistake("a table needs a column of samples: set 'media', 'text' or 'messages'")
        return self

    @field_validator("placeholders")
    @classmethod
    def _shown(cls, value: dict[str, str]) -> dict[str, str]:
        if any(not text.strip() for text in value.values()):
            raise mistake("a placeholder must not be empty")
        if len(set(value.values())) < len(value):
            raise mistake("two kinds of media have the same placeholder")
        return value


class WebDatasetSource(Section):
    """Tar files in the WebDataset layout; compressed ones are spooled once."""

    type: Literal["webdataset"]
    """Kind of source."""
    path: Paths
    """Tar files; globs and braces (`x-{000..009}.tar`) are expanded."""
    key_prefix: str = ""
    """Put before every key, to keep the keys of several sources apart."""
    animated: Literal["image", "video"] = "image"
    """What an animated GIF, WebP, PNG or AVIF is: a picture (its first frame) or a video."""


Source = Annotated[FolderSource | TableSource | WebDatasetSource, Field(discriminator="type")]
