"""Building one sample: what is copied, what is encoded, under which names, and what a failure costs."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mmdata.errors import InvalidSample, MediaError, MissingMedia, OperatorError
from mmdata.media import image as codec
from mmdata.operators.chain import Setup
from mmdata.operators.image import Crop, Flip, Resize
from mmdata.operators.process import BuildItem, copy, encode_fields, is_copy, process, stored_field, stored_format
from mmdata.operators.registry import load_builtin
from mmdata.recipe import Decode, Encode, Limits
from mmdata.schema import MediaInfo, MediaRef
from mmdata.storage import open_storage


@pytest.fixture(scope="module", autouse=True)
def operators() -> None:
    load_builtin()


def stamp(path: Path) -> str:
    """What a scan remembers of a local file."""
    found = path.stat()
    return f"{found.st_size}:{found.st_mtime_ns}"


def setup(**settings: Any) -> Setup:
    return Setup(storage=open_storage(), limits=Limits(), decode=Decode(), check="decode", **settings)


def picture(path: Path, width: int, height: int, orientation: int = 1, **options: Any) -> Path:
    """A coloured ramp, stored as it is with an EXIF orientation."""
    y, x = np.mgrid[0:height, 0:width]
    ramp = np.stack([x * 255 // width, y * 255 // height, x * 0], -1).astype(np.uint8)
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(ramp).save(path, exif=exif, **options)
    return path


def item(*paths: Path, fields: dict[str, Any] | None = None, **plan: Any) -> BuildItem:
    media = tuple(
        (
            MediaRef(path.name.partition(".")[2], "image", str(path), None, path.stat().st_size, stamp(path)),
            codec.probe(path.read_bytes()),
            None,
        )
        for path in paths
    )
    return BuildItem("key", "source.0", media, fields or {}, check=False, **plan)


def test_a_turned_picture_that_fills_its_bucket_is_copied_and_indexed_upright(tmp_path: Path) -> None:
    path = picture(tmp_path / "a.jpg", 64, 32, orientation=6)
    made = setup(transforms={"image": [Resize()]})
    sample = item(path, target=(32, 64))
    assert is_copy(sample, made)
    built = copy(sample, made)
    assert built.members == (("jpg", path.read_bytes()),)
    assert (built.media[0][1].width, built.media[0][1].height) == (32, 64)
    assert process(sample, made) == built
    assert not is_copy(item(path, target=(64, 32)), made)


def test_a_copy_is_what_applying_the_chain_would_have_left(tmp_path: Path) -> None:
    """Two flips draw for themselves: a picture is copied exactly when neither of the two is drawn."""
    path = picture(tmp_path / "a.png", 8, 6)
    made = setup(transforms={"image": [Flip(), Flip(direction="vertical")]})
    original = codec.decode(path.read_bytes())
    copies = 0
    for number in range(200):
        sample = item(path)
        sample = BuildItem(f"k{number}", sample.leaf, sample.media, {}, check=False)
        stored = codec.decode(process(sample, made).members[0][1])
        assert is_copy(sample, made) == (stored.tobytes() == original.tobytes())
        copies += is_copy(sample, made)
    assert 30 <= copies <= 70  # one in four


def test_an_operator_that_cannot_work_on_a_sample_costs_that_sample(tmp_path: Path) -> None:
    path = picture(tmp_path / "a.jpg", 64, 64)
    outside = setup(transforms={"image": [Crop(left=10, width=500, height=20)]})
    assert not is_copy(item(path), outside)
    with pytest.raises(OperatorError, match=r"crop: .*reaches out of the picture of 64x64"):
        process(item(path), outside)
    unbucketed = setup(transforms={"image": [Resize()]})
    assert not is_copy(item(path), unbucketed)
    with pytest.raises(OperatorError, match=r"resize: .*no bucket to take them from"):
        process(item(path), unbucketed)


@pytest.mark.parametrize("kind", ["image", "video", "audio", "data"])
def test_a_file_that_went_away_after_the_scan_is_missing_media(tmp_path: Path, kind: Any) -> None:
    ref = MediaRef("x", kind, str(tmp_path / "gone.mp4"), None, 100, "100:1")
    sample = BuildItem("key", "source.0", ((ref, MediaInfo(), None),), {}, check=False)
    for build in (copy, process):
        with pytest.raises(MissingMedia, match=r"gone\.mp4"):
            build(sample, setup())


def test_an_empty_member_that_is_no_medium_is_carried(tmp_path: Path) -> None:
    tar = tmp_path / "x.tar"
    tar.write_bytes(bytes(1024))
    ref = MediaRef("flag", "data", str(tar), 512, 0, stamp(tar))
    assert copy(BuildItem("key", "source.0", ((ref, MediaInfo(), None),), {}, check=False), setup()).members == (
        ("flag", b""),
    )


def test_bytes_that_changed_since_the_scan_are_refused(tmp_path: Path) -> None:
    path = picture(tmp_path / "a.jpg", 16, 16)
    ref, info, _ = item(path).media[0]
    sample = BuildItem("key", "source.0", ((ref, info, "0" * 32),), {}, check=False)
    with pytest.raises(InvalidSample, match="not those that were scanned"):
        copy(sample, setup())


def test_several_pictures_keep_their_numbers_when_their_format_changes(tmp_path: Path) -> None:
    paths = [picture(tmp_path / "a.0.png", 40, 30), picture(tmp_path / "a.1.jpg", 30, 40)]
    made = setup(transforms={"image": [Resize()]}, encode=Encode.parse({"image": {"format": "jpeg"}}))
    built = process(item(*paths, target=(32, 32), fields={"txt": "two"}), made)
    assert [name for name, _ in built.members] == ["0.jpg", "1.jpg", "txt"]
    assert [(info.width, info.height, info.format) for _, info, _ in built.media] == [(32, 32, "jpeg")] * 2


def test_two_members_that_would_get_one_name_are_refused_by_name(tmp_path: Path) -> None:
    paths = [picture(tmp_path / "a.png", 40, 30), picture(tmp_path / "a.jpg", 30, 40)]
    made = setup(encode=Encode.parse({"image": {"format": "jpeg"}}))
    with pytest.raises(MediaError, match="two members would be named 'jpg'"):
        process(item(*paths), made)


@pytest.mark.parametrize(
    ("field", "kind", "format", "name"),
    [
        ("jpg", "image", "jpeg", "jpg"),
        ("jpeg", "image", "jpeg", "jpeg"),
        ("0.png", "image", "jpeg", "0.jpg"),
        ("seg.left.png", "image", "webp", "seg.left.webp"),
        ("webm", "video", "vp9", "webm"),
        ("mov", "video", "h264", "mp4"),
        ("oga", "audio", "opus", "oga"),
        ("1.mp3", "audio", "flac", "1.flac"),
    ],
)
def test_the_extension_follows_the_format(field: str, kind: str, format: str, name: str) -> None:
    assert stored_field(field, kind, format) == name


def test_a_lying_extension_does_not_decide_the_format(tmp_path: Path) -> None:
    """A PNG called .jpg: as it is, its bytes stay; changed and kept in its format, it gets its right name."""
    path = picture(tmp_path / "a.jpg", 40, 30, format="PNG")
    assert copy(item(path), setup()).members[0][0] == "jpg"
    built = process(item(path, target=(32, 32)), setup(transforms={"image": [Resize()]}))
    assert built.members[0][0] == "png"
    assert built.members[0][1].startswith(b"\x89PNG")


def test_keep_falls_back_where_the_format_cannot_be_written() -> None:
    encode = Encode()
    assert stored_format("image", MediaInfo(format="gif", codec="gif"), encode, changed=True) == "jpeg"
    assert stored_format("video", MediaInfo(format="mpeg", codec="mpeg2video"), encode, changed=True) == "h264"
    assert stored_format("audio", MediaInfo(format="mp3", codec="mp3"), encode, changed=True) == "flac"
    assert stored_format("audio", MediaInfo(format="ogg", codec="opus"), encode, changed=True) == "opus"
    assert stored_format("audio", MediaInfo(format="mp3", codec="mp3"), encode, changed=False) is None


def test_fields_become_members_that_webdataset_decodes() -> None:
    fields = {"txt": "café", "cls": 3, "json": "a word", "meta.json": "a word", "id": "007", "none": None}
    members = dict(encode_fields(fields))
    assert members["txt"] == "café".encode()
    assert members["cls"] == b"3"
    assert members["id"] == b"007"
    assert json.loads(members["json"]) == json.loads(members["meta.json"]) == "a word"
    assert "none" not in members


def test_a_text_only_sample_is_copied_and_one_with_nothing_is_refused() -> None:
    assert copy(BuildItem("k", "source.0", (), {"txt": "a"}, check=True), setup()).members == (("txt", b"a"),)
    with pytest.raises(InvalidSample, match="no member"):
        copy(BuildItem("k", "source.0", (), {}, check=False), setup())


def test_alpha_is_laid_over_the_ground_that_the_recipe_names(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    Image.new("RGBA", (40, 40), (255, 0, 0, 0)).save(buffer, "PNG")
    path = tmp_path / "a.png"
    path.write_bytes(buffer.getvalue())
    for alpha, colour in (("white", (255, 255, 255)), ("black", (0, 0, 0)), ("drop", (255, 0, 0))):
        made = Setup(open_storage(), Limits(), Decode(alpha=alpha), "decode", transforms={"image": [Resize()]})
        stored = codec.decode(process(item(path, target=(16, 16)), made).members[0][1])
        assert stored.getpixel((8, 8)) == colour
