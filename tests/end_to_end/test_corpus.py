"""The real corpus from end to end: what is stored is right, what is not stored is in the quarantine and says why."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import expected_audios
import expected_videos
import job_kit
import numpy as np
import pytest
from corpus_kit import Dataset, build, decoded, folder_keys
from expected_images import expected_mean, expected_size, loads, stated_class
from PIL import Image

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:PIL")

MEMORY = 2 * 2**30
"""Bytes that all processes of a job together may take."""

SCAN = {"partition": 64, "statistics": ["brightness", "sharpness", "loudness", "silence_ratio", "peak"]}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("corpus")


@pytest.fixture(scope="module")
def keys(corpora: Path) -> dict[str, str]:
    """Key of each media file of the corpus."""
    return folder_keys(corpora)


@pytest.fixture(scope="module")
def whole(corpora: Path, home: Path) -> Dataset:
    """Every file as it is."""
    return build(
        home,
        "whole",
        source=[{"type": "folder", "path": str(corpora)}],
        scan=SCAN,
        splits={"val": 0.2},
    )


@pytest.fixture(scope="module")
def stored(whole: Dataset) -> dict[str, tuple[dict[str, Any], np.ndarray | None]]:
    """What decoding the stored bytes of each sample says."""
    kinds = {key: whole.scanned[key]["media"][0]["kind"] for key in whole.index}
    return {key: decoded(kind, whole.medium(key)) for key, kind in kinds.items()}


@pytest.fixture(scope="module")
def jpegs(corpora: Path, home: Path, whole: Dataset) -> Dataset:
    """The pictures, upright, as JPEG in Arrow shards; from the catalog that is there already."""
    return build(
        home,
        "jpegs",
        source=[{"type": "folder", "path": str(corpora)}],
        scan=SCAN,
        catalog=str(whole.catalog),
        filters=[{"name": "pictures", "keep": "modality == 'image'"}],
        transforms={"image": ["orient"]},
        encode={"image": {"format": "jpeg", "subsampling": "4:4:4"}},
        output={"format": "arrow"},
    )


def refused(truth: dict[str, Any]) -> dict[str, str]:
    """File to class of everything that cannot be decoded."""
    pictures = {
        row["file"]: stated_class(row["file"]) for row in truth.values() if row["kind"] == "image" and not loads(row)
    }
    clips = {f"videos/{name}": label for name, label in expected_videos.REFUSED.items()}
    sounds = {name: label for name, label in expected_audios.REFUSED.items() if name.startswith("audios/")}
    return pictures | clips | sounds


def test_every_file_is_in_the_shards_or_in_the_quarantine_or_counted(
    corpora: Path, whole: Dataset, keys: dict[str, str]
) -> None:
    whole.check_conservation()
    assert whole.index.keys() | whole.quarantine.keys() == set(keys.values())
    others = sum(path.is_file() for path in corpora.rglob("*")) - len(keys)
    assert sum(whole.manifest["ignored"].values()) == others > 5


def test_what_no_tool_decodes_is_in_the_quarantine_with_its_class(
    corpora: Path, whole: Dataset, keys: dict[str, str], truth: dict[str, Any]
) -> None:
    wanted = {keys[file]: label for file, label in refused(truth).items()}
    assert len(wanted) > 95
    assert {key: row["error_class"] for key, row in whole.quarantine.items()} == wanted
    for key, row in whole.quarantine.items():
        assert (
            row["stage"] == "scan"
            and row["message"]
            and keys[str(Path(row["uri"]).relative_to(whole_root(row)))] == key
        )


def whole_root(row: dict[str, Any]) -> Path:
    return next(parent.parent for parent in Path(row["uri"]).parents if parent.name in ("images", "videos", "audios"))


def test_files_are_stored_byte_for_byte(corpora: Path, whole: Dataset, keys: dict[str, str]) -> None:
    for file, key in keys.items():
        if key in whole.index:
            assert whole.members(key) == {Path(file).suffix[1:].lower(): (corpora / file).read_bytes()}, file


def test_pictures_have_their_upright_size_and_colour(
    corpora: Path, whole: Dataset, stored: Any, keys: dict[str, str], truth: dict[str, Any]
) -> None:
    good = [row for row in truth.values() if row["kind"] == "image" and loads(row)]
    assert len(good) > 450
    for row in good:
        key = keys[row["file"]]
        indexed, (_, mean) = whole.index[key], stored[key]
        assert (indexed["width"], indexed["height"]) == expected_size(row), row["file"]
        assert np.abs(mean - expected_mean(corpora, row)).max() <= 2, row["file"]


def test_videos_have_the_frames_duration_and_rotation_of_the_tools(
    whole: Dataset, keys: dict[str, str], truth: dict[str, Any]
) -> None:
    compared = 0
    for name, row in expected_videos.videos(truth).items():
        key = keys[row["file"]]
        if key in whole.index and name != expected_videos.SECOND_TRACK and not name.endswith(".gif"):
            (found,) = whole.scanned[key]["media"]
            assert expected_videos.disagreements(row, found) == [], name
            compared += 1
    assert compared == 49


def test_recordings_have_the_rate_channels_and_length_of_the_tools(
    whole: Dataset, keys: dict[str, str], truth: dict[str, Any]
) -> None:
    compared = 0
    for row in truth.values():
        key = keys.get(row["file"])
        if row["kind"] == "audio" and key in whole.index:
            (found,) = whole.scanned[key]["media"]
            assert expected_audios.disagreements(row, found) == [], row["file"]
            compared += expected_audios.expected(row) is not None
    assert compared >= 90


def test_the_index_says_what_decoding_the_stored_bytes_gives(whole: Dataset, stored: Any) -> None:
    names = ("width", "height", "frames", "duration", "fps", "sample_rate", "channels")
    for key, (info, _) in stored.items():
        assert {name: whole.index[key][name] for name in names} == {name: info[name] for name in names}, key


def test_statistics_are_there_for_every_good_sample(whole: Dataset, stored: Any) -> None:
    for key, row in whole.scanned.items():
        if row["modality"] == "image":
            brightness = float(stored[key][1] @ [0.2126, 0.7152, 0.0722])  # Rec. 709
            assert row["stat.brightness"] == pytest.approx(brightness, abs=0.01), key
            assert row["stat.sharpness"] >= 0
        if row["modality"] == "audio":
            assert -70 <= row["stat.loudness"] <= 10 and 0 <= row["stat.silence_ratio"] <= 1, key


def test_a_share_of_the_samples_is_for_validation(whole: Dataset) -> None:
    share = sum(row["split"] == "val" for row in whole.index.values()) / len(whole.index)
    assert share == pytest.approx(0.2, abs=0.065)  # four standard deviations of 613 draws
    assert all(f"-{row['split']}-" in row["shard"] for row in whole.index.values())


@pytest.mark.parametrize("name", ["whole", "jpegs"])
def test_verify_agrees(name: str, request: pytest.FixtureRequest) -> None:
    dataset: Dataset = request.getfixturevalue(name)
    told = job_kit.mmdata("verify", dataset.folder, "--workers", 2, "--json")
    assert told["ok"] and told["samples"] == len(dataset.index)


def test_the_whole_job_stays_within_its_memory(whole: Dataset, jpegs: Dataset) -> None:
    for dataset in (whole, jpegs):
        assert 50 * 2**20 < dataset.peak_bytes < MEMORY, (dataset.folder.name, dataset.peak_bytes)


def test_encoded_pictures_have_the_same_size_and_colour(
    corpora: Path, jpegs: Dataset, keys: dict[str, str], truth: dict[str, Any]
) -> None:
    jpegs.check_conservation()
    good = [row for row in truth.values() if row["kind"] == "image" and loads(row)]
    for row in good:
        key = keys[row["file"]]
        data = jpegs.medium(key)
        with Image.open(io.BytesIO(data)) as plain:  # upright for a reader that knows no EXIF
            assert (plain.format, plain.size) in [(name, expected_size(row)) for name in ("JPEG", "MPO")]
        info, mean = decoded("image", data)
        assert (jpegs.index[key]["width"], jpegs.index[key]["height"]) == (info["width"], info["height"])
        assert np.abs(mean - expected_mean(corpora, row)).max() <= 4, row["file"]
