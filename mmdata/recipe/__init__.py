"""The recipe: what a person writes in YAML, typed, checked and completed. Knows no media, no storage and no operator
by name: operators register their argument models here."""

from __future__ import annotations

from mmdata.recipe.base import MODALITIES, Operator, OperatorModality, Role, Section, find_operators, register_operator
from mmdata.recipe.jsonschema import json_schema
from mmdata.recipe.loading import dump, from_mapping, load
from mmdata.recipe.model import (
    AudioBuckets,
    Buckets,
    Filter,
    ImageBuckets,
    Output,
    Packing,
    Recipe,
    Scan,
    Splits,
    TextBuckets,
    Transforms,
    VideoBuckets,
)
from mmdata.recipe.processing import AudioEncode, Decode, Encode, ImageEncode, Limits, StorageOptions, VideoEncode
from mmdata.recipe.sizes import format_size, parse_duration, parse_pixels, parse_rate, parse_shape, parse_size
from mmdata.recipe.sources import FolderSource, Source, TableSource, WebDatasetSource

__all__ = [
    "MODALITIES",
    "AudioBuckets",
    "AudioEncode",
    "Buckets",
    "Decode",
    "Encode",
    "Filter",
    "FolderSource",
    "ImageBuckets",
    "ImageEncode",
    "Limits",
    "Operator",
    "OperatorModality",
    "Output",
    "Packing",
    "Recipe",
    "Role",
    "Scan",
    "Section",
    "Source",
    "Splits",
    "StorageOptions",
    "TableSource",
    "TextBuckets",
    "Transforms",
    "VideoBuckets",
    "VideoEncode",
    "WebDatasetSource",
    "dump",
    "find_operators",
    "format_size",
    "from_mapping",
    "json_schema",
    "load",
    "parse_duration",
    "parse_pixels",
    "parse_rate",
    "parse_shape",
    "parse_size",
    "register_operator",
]
