"""What no single section of a recipe shows: folders inside each other, columns nobody measures, impossible settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mmdata.errors import ConfigError
from mmdata.operators import registry
from mmdata.recipe import from_mapping, load


@pytest.fixture(scope="module", autouse=True)
def _operators() -> None:
    registry.load_builtin()


def write(folder: Path, text: str) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def refusal(path: Path) -> str:
    """The message with which the recipe is refused."""
    with pytest.raises(ConfigError) as caught:
        load(path)
    return str(caught.value)


@pytest.mark.parametrize(
    ("source", "output", "message"),
    [
        ("media", "media", "lies inside the source folder"),
        ("media", "media/sub/out", "lies inside the source folder"),
        ("media/", "./x/../media/out", "lies inside the source folder"),
        ("s3://b/media", "s3://b/media/out", "lies inside the source folder"),
        ("out/media", "out", "lies inside the output"),
        ("http://host/folder", "out", "a folder cannot be listed over http"),
        ("media", "http://host/out", "'http://' cannot be written"),
    ],
)
def test_source_and_output_do_not_hold_each_other(tmp_path: Path, source: str, output: str, message: str) -> None:
    text = f"source: [{{type: folder, path: {source}}}]\noutput: {{path: {output}}}\ncatalog: cat\n"
    assert message in refusal(write(tmp_path, text))


def test_a_linked_folder_is_seen_through(tmp_path: Path) -> None:
    (tmp_path / "media").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "media")
    text = "source: [{type: folder, path: media}]\noutput: {path: link/out}\ncatalog: cat\n"
    assert "lies inside the source folder" in refusal(write(tmp_path, text))


def test_a_folder_beside_with_the_same_beginning_is_no_mistake(tmp_path: Path) -> None:
    text = "source: [{type: folder, path: media}]\noutput: {path: media-out}\n"
    assert load(write(tmp_path, text)).catalog.endswith("media-out.catalog")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"source": [{"type": "table", "path": "a.csv"}]}, "source.0: a table needs a column of samples"),
        ({"source": [{"type": "table", "path": [], "text": "t"}]}, "source.0.path: must not be empty"),
        (
            {"source": [{"type": "table", "path": "a", "media": {"imag": "x"}}]},
            "unknown value 'imag'; did you mean 'image'?",
        ),
        ({"source": [{"type": "webdataset", "path": "http://h/x-*.tar"}]}, "http has no globs"),
        ({"source": [{"type": "folder", "path": "m"}] * 2}, "is already read by source.0"),
        ({"source": [{"type": "folder", "path": ""}]}, "expected a path or URL, found empty text"),
        ({"output": {"path": "out", "format": "arrow", "energon": True}}, "energon reads WebDataset shards only"),
        ({"catalog": "out"}, "the catalog and the output are the same folder"),
        ({"buckets": {"image": {"shapes": ["512x512", [512, 512]]}}}, "the shape 512x512 is listed twice"),
        ({"buckets": {"image": {"shapes": []}}}, "must not be empty"),
        ({"buckets": {"video": {"frames": [9, 1]}}}, "frames must increase, but 1 follows 9"),
        ({"buckets": {"text": {}}}, "nothing measures the column 'text_tokens'"),
        ({"packing": {"budget": 0, "length": "text_chars"}}, "packing.budget: must be at least 1, found 0"),
        ({"packing": {}}, "packing: missing key 'budget'"),
        ({"encode": {"image": {"format": "jpeg", "lossless": True}}}, "jpeg cannot be lossless"),
        ({"encode": {"video": {"codec": "h264", "crf": 60}}}, "crf of h264 is at most 51"),
        ({"encode": {"audio": {"bits": 8}}}, "encode.audio.bits: expected 16 or 24, found 8"),
        ({"storage": {"backoff": 30}}, "backoff (30 s) must not exceed max_backoff (20 s)"),
        ({"limits": {"cpu": 0}}, "limits.cpu: must be more than 0, found 0"),
        ({"limits": {"max_bad": -1}}, "must not be negative"),
        ({"limits": {"wall": 1e300}}, "limits.wall: must be at most"),
        ({"limits": {"memory": "99999999TiB"}}, "limits.memory: must be at most"),
        ({"buckets": {"image": {"pixels": "100000*100000", "multiple_of": 1}}}, "too many shapes to choose from"),
        ({"buckets": {"image": {"max_aspect": 1e9}}}, "too many shapes to choose from"),
        ({"limits": {"max_bad": True}}, "expected a count such as 100 or a share such as 0.1, found true"),
        ({"scan": {"statistics": ["sharpness", {"op": 3}]}}, "expected the name of a statistic, found 3"),
        ({"scan": {"statistics": [{"op": "text_tokens"}]}}, "scan.statistics.0: missing key 'tokenizer'"),
        ({"filters": ["stat.sharpness > 1"]}, "add 'sharpness' to scan.statistics"),
        ({"filters": ["media > 1"]}, "unknown column 'media'"),
        ({"filters": ["aspct > 1"]}, "unknown column 'aspct'; did you mean 'aspect'?"),
        ({"filters": ["width > 'large'"]}, "filters.0: 'width > 'large'': a number and text do not go together"),
        ({"filters": ["width + 1"]}, "not true or false"),
        ({"filters": ["width >"]}, "not an expression at character"),
        ({"filters": [""]}, "filters.0: must not be empty"),
        ({"transforms": {"image": [{"resize": {"mode": "cover"}}]}}, "write 'op: resize'"),
        ({"encode": {"video": {"format": "h264"}}}, "encode.video: unknown key 'format'; known: audio, codec"),
        ({"transforms": {"images": []}}, "transforms: unknown key 'images'; did you mean 'image'?"),
    ],
)
def test_impossible_settings_are_refused(change: dict[str, Any], message: str) -> None:
    data = {"source": [{"type": "folder", "path": "media"}], "output": {"path": "out"}, **change}
    with pytest.raises(ConfigError) as caught:
        from_mapping(data)
    assert message in str(caught.value)


def test_the_root_folder_holds_every_source(tmp_path: Path) -> None:
    text = f"source:\n  - {{type: folder, path: {tmp_path}}}\noutput: {{path: /}}\ncatalog: {tmp_path}.catalog\n"
    assert "lies inside the output '/'" in refusal(write(tmp_path, text))


@pytest.mark.parametrize("text", ["path: 'OUT'", "path: media"])
def test_a_path_with_a_nul_character_is_refused(tmp_path: Path, text: str) -> None:
    source = "source:\n  - {type: folder, path: media}\noutput: {path: out}\n"
    nul = source.replace(text.replace("'OUT'", "out"), 'path: "o\\0x"', 1)
    assert "cannot hold a NUL character" in refusal(write(tmp_path, nul))
