"""Inspect: what a dataset, catalog or shard holds, one sample's bytes, and the way of one sample from source to
shard. Reads only, except for the files that `extract` is asked to write."""

from __future__ import annotations

from mmdata.inspect.describe import bad_text, describe, describe_text, list_bad
from mmdata.inspect.explain import explain
from mmdata.inspect.find import check_kind, extract, extract_text
from mmdata.inspect.story import explain_text

__all__ = [
    "bad_text",
    "check_kind",
    "describe",
    "describe_text",
    "explain",
    "explain_text",
    "extract",
    "extract_text",
    "list_bad",
]
