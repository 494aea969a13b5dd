"""The same real media through the other doors: moving pictures as video, tables of every kind, tars.

Splits are looked at here too, because the same media come in more than once, and so is `mmdata inspect`.
"""

from __future__ import annotations

import csv
import json
import tarfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import job_kit
import pytest
from corpus_kit import Dataset, build, decoded, folder_keys
from expected_images import loads

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:PIL")

MOVING = ("gif", "webp", "png", "avif")

GROWS = "images/pillow/decompression_bomb_extents"
"""A GIF whose second frame has four thousand million pixels: a picture, but no video."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("doors")


# --- moving pictures as video -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def moving(corpora: Path, home: Path) -> Dataset:
    source = {"type": "folder", "path": str(corpora), "animated": "video"}
    return build(home, "moving", source=[source | {"include": [f"**/*.{extension}" for extension in MOVING]}])


def test_moving_pictures_are_videos_and_still_ones_are_not(
    corpora: Path, moving: Dataset, truth: dict[str, Any]
) -> None:
    moving.check_conservation()
    keys = folder_keys(corpora, MOVING)
    frames = {}
    for row in truth.values():
        if row["file"].endswith(MOVING) and (row["kind"] == "video" or loads(row)):
            frames[keys[row["file"]]] = shown(row["pillow"], (corpora / row["file"]).read_bytes())
    assert len(frames) > 140
    videos = {key for key, row in moving.index.items() if row["modality"] == "video"}
    assert videos == {key for key, count in frames.items() if count > 1} - {GROWS}
    assert moving.quarantine[GROWS]["error_class"] == "DecompressionBomb"
    assert moving.index.keys() == frames.keys() - {GROWS}
    for key in videos:
        row = moving.index[key]
        info, _ = decoded("video", moving.medium(key))
        assert (row["frames"], row["width"], row["height"]) == (info["frames"], info["width"], info["height"])
        assert row["frames"] == frames[key], key


def shown(said: dict[str, Any], data: bytes) -> int:
    """Frames that are shown. Pillow counts a PNG's default picture even where it is not part of the animation; each
    frame that is has a control chunk (https://www.w3.org/TR/png-3/#fcTL-chunk)."""
    count = said.get("n_frames", 1)
    return data.count(b"fcTL") if said.get("format") == "PNG" and count > 1 else count


# --- tables -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tables(corpora: Path, home: Path) -> Dataset:
    """Each table of the corpus; to the conversations one is added that shows a picture it does not have, and one whose
    picture is not there."""
    text = corpora / "text"
    talks = json.loads((text / "llava.json").read_text("utf-8"))
    talks.append(talks[0] | {"id": "two-pictures", "conversations": [{"from": "human", "value": "<image><image>"}]})
    talks.append(talks[0] | {"id": "lost", "image": "images/lost.jpg"})
    (home / "llava.json").write_text(json.dumps(talks), encoding="utf-8")
    table = {"type": "table", "base": str(corpora)}
    picture = {"image": ["image", "images"]}
    sources = [
        {"path": str(home / "llava.json"), "key": "id", "media": picture, "messages": "conversations"},
        {"path": str(text / "captions.jsonl"), "key": "image", "media": {"image": "image"}, "text": "caption"},
        {"path": str(text / "transcripts.jsonl"), "key": "audio", "media": {"audio": "audio"}, "text": "text"},
        {"path": str(text / "image_labels.csv"), "key": "file", "media": {"image": "file"}, "label": "label"},
        {"path": str(text / "video_labels.jsonl"), "key": "video", "media": {"video": "video"}, "label": "label"},
        {"path": str(text / "interleaved.jsonl"), "key": "id", "text": "title", "fields": ["segments"]},
    ]
    sources[1] |= {"group": "doc"}
    prefixes = ("talk/", "caption/", "speech/", "label/", "sign/", "page/")
    return build(
        home,
        "tables",
        source=[table | source | {"key_prefix": p} for source, p in zip(sources, prefixes, strict=True)],
        splits={"val": 0.25, "by": "group"},
        scan={"statistics": ["text_length"], "partition": 32},
        output={"max_samples": 50},
    )


def key(prefix: str, name: str) -> str:
    head, slash, base = name.rpartition("/")
    return prefix + head + slash + base.replace("%", "%25").replace(".", "%2E")


def lines(path: Path) -> Iterator[dict[str, Any]]:
    with open(path, encoding="utf-8") as file:
        yield from map(json.loads, file)


def test_conversations_hold_their_pictures_in_order(corpora: Path, tables: Dataset) -> None:
    roles = {"human": "user", "gpt": "assistant"}
    many = 0
    for talk in json.loads((corpora / "text/llava.json").read_text("utf-8")):
        members = tables.members(key("talk/", talk["id"]))
        files = [talk["image"]] if "image" in talk else talk["images"]
        many += len(files) > 1
        names = sorted(name for name in members if name != "json")
        assert [members[name] for name in names] == [(corpora / file).read_bytes() for file in files], talk["id"]
        said = [(roles[turn["from"]], turn["value"]) for turn in talk["conversations"]]
        stored = json.loads(members["json"])["messages"]
        assert [(message["role"], written(message["content"])) for message in stored] == said, talk["id"]
    assert many == 19


def written(content: str | list[dict[str, Any]]) -> str:
    """The text of a message with `<image>` where its pictures are."""
    if isinstance(content, str):
        return content
    return "".join(part["text"] if part["type"] == "text" else f"<{part['type']}>" for part in content)


def test_a_conversation_that_does_not_fit_its_media_is_named(tables: Dataset) -> None:
    tables.check_conservation()
    assert {name: row["error_class"] for name, row in tables.quarantine.items()} == {
        "talk/two-pictures": "InvalidSample",
        "talk/lost": "MissingMedia",
    }
    assert "2" in tables.quarantine["talk/two-pictures"]["message"]
    assert "images/lost.jpg" in tables.quarantine["talk/lost"]["message"]


def test_captions_transcripts_and_labels_are_members(corpora: Path, tables: Dataset) -> None:
    seen: Counter[str] = Counter()
    for prefix, file, column in (("caption/", "captions", "image"), ("speech/", "transcripts", "audio")):
        for row in lines(corpora / f"text/{file}.jsonl"):
            text = row["caption" if column == "image" else "text"]
            members, index = tables.members(key(prefix, row[column])), tables.index[key(prefix, row[column])]
            assert members["txt"].decode() == text
            assert index["text_chars"] == len(text)
            assert members[Path(row[column]).suffix[1:]] == (corpora / row[column]).read_bytes()
            seen[prefix] += 1
    with open(corpora / "text/image_labels.csv", encoding="utf-8", newline="") as file:
        labelled = [("label/", row["file"], row["label"]) for row in csv.DictReader(file)]
    labelled += [("sign/", row["video"], row["label"]) for row in lines(corpora / "text/video_labels.jsonl")]
    for prefix, path, label in labelled:
        members = tables.members(key(prefix, path))
        assert members["label.txt"].decode() == label
        assert members[Path(path).suffix[1:]] == (corpora / path).read_bytes()
        seen[prefix] += 1
    assert seen == {"caption/": 80, "speech/": 40, "label/": 100, "sign/": 10}


def test_pages_of_text_and_pictures_keep_their_segments(corpora: Path, tables: Dataset) -> None:
    """A table knows no interleaved media yet: the segments are carried as they are, in the sample's JSON."""
    for row in lines(corpora / "text/interleaved.jsonl"):
        members = tables.members(key("page/", row["id"]))
        assert members["txt"].decode() == row["title"]
        assert json.loads(members["json"]) == {"segments": row["segments"]}
        assert tables.index[key("page/", row["id"])]["modality"] == "text"


def test_groups_and_equal_media_are_never_parted(corpora: Path, tables: Dataset) -> None:
    assert {shard["split"] for shard in tables.manifest["shards"]} == {"train", "val"}
    apart: dict[str, set[str]] = defaultdict(set)
    for row in tables.index.values():
        if row["media_digest"]:
            apart[row["media_digest"]].add(row["split"])
    for row in lines(corpora / "text/captions.jsonl"):
        apart[row["doc"]].add(tables.index[key("caption/", row["image"])]["split"])
    assert [name for name, splits in apart.items() if len(splits) > 1] == []
    twice = [row for row in tables.index.values() if row["media_digest"] in apart]
    assert len(twice) > len({row["media_digest"] for row in twice}) + 50


# --- tars ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tars(corpora: Path, home: Path) -> Dataset:
    """The same samples three times: a folder with side-cars, a plain tar and a compressed one."""
    folder = home / "media"
    pieces = sorted((corpora / "images/clothing").glob("*.jpg"))[:30]
    pieces += sorted((corpora / "audios/fsdd").glob("*"))[:10] + sorted((corpora / "videos/intel").glob("*.mkv"))[:5]
    for number, path in enumerate(pieces):
        place = folder / f"part{number % 3}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"sample{number:03d}{path.suffix}").write_bytes(path.read_bytes())
        (place / f"sample{number:03d}.txt").write_text(f"sample number {number}: Ωå", encoding="utf-8")
        (place / f"sample{number:03d}.json").write_text(json.dumps({"number": number, "of": path.name}))
        (place / f"sample{number:03d}.cls").write_text(str(number % 7))
    for name, mode in (("plain.tar", "w"), ("packed.tar.gz", "w:gz")):
        with tarfile.open(home / name, mode) as archive:
            for path in sorted(path for path in folder.rglob("*") if path.is_file()):
                archive.add(path, path.relative_to(folder).as_posix())
    sources = [
        {"type": "folder", "path": str(folder), "key_prefix": "folder/"},
        {"type": "webdataset", "path": str(home / "plain.tar"), "key_prefix": "plain/"},
        {"type": "webdataset", "path": str(home / "packed.tar.gz"), "key_prefix": "packed/"},
    ]
    return build(home, "tars", source=sources, splits={"val": 0.3}, output={"format": "arrow", "max_samples": 20})


def test_tars_give_the_samples_of_the_folder(home: Path, tars: Dataset) -> None:
    tars.check_conservation()
    names = sorted(name.removeprefix("folder/") for name in tars.index if name.startswith("folder/"))
    assert len(names) == 45 and len(tars.index) == 135 and not tars.quarantine
    places = ("shard", "position", "key", "offsets", "lengths")
    for name in names:
        members, row = tars.members(f"folder/{name}"), tars.index[f"folder/{name}"]
        (media,) = [path for path in (home / "media").glob(f"{name}.*") if path.suffix not in (".txt", ".json", ".cls")]
        assert members[media.suffix[1:]] == media.read_bytes()
        assert members["txt"].decode() == media.with_suffix(".txt").read_text("utf-8")
        for prefix in ("plain/", "packed/"):
            assert tars.members(prefix + name) == members, name
            other = tars.index[prefix + name]
            assert {k: v for k, v in other.items() if k not in places} == {
                k: v for k, v in row.items() if k not in places
            }, name  # the split too: equal media are never parted


def test_a_compressed_tar_is_unpacked_once(home: Path, tars: Dataset) -> None:
    spooled = [path.stat().st_size for path in tars.catalog.glob("_spool/**/*") if path.is_file()]
    assert [size for size in spooled if size > 1000] == [(home / "plain.tar").stat().st_size]


# --- looking at it ------------------------------------------------------------------------------------------------


def test_inspect_extracts_the_stored_bytes(tables: Dataset, tmp_path: Path) -> None:
    name = key("talk/", "psychology/m82282#all")
    told = job_kit.mmdata("inspect", tables.folder, "--sample", name, "--to", tmp_path, "--json")
    files = {each["file"]: Path(each["file"]).read_bytes() for each in told["files"]}
    members = tables.members(name)
    assert sorted(files.values()) == sorted(members.values()) and len(members) == 6
    assert all(any(path.endswith("." + member) for member in members) for path in files)


def test_inspect_explains_what_became_of_a_sample(tables: Dataset) -> None:
    name = key("caption/", "images/openstax-psychology/CNX_Psych_16_02_FreudCouch.jpg")
    told = job_kit.mmdata("inspect", tables.folder, "--explain", name).stdout
    row = tables.index[name]
    for fact in (row["shard"], row["split"], f"{row['width']} x {row['height']}", "FreudCouch.jpg", "copied"):
        assert fact in told, told
    told = job_kit.mmdata("inspect", tables.folder, "--explain", "talk/lost").stdout
    assert "MissingMedia" in told and "images/lost.jpg" in told and "scan" in told
    told = job_kit.mmdata("inspect", tables.folder, "--explain", "talk/los", code=1).stderr
    assert "holds no sample 'talk/los'" in told and "'talk/lost'" in told


def test_inspect_lists_everything_that_is_bad(tables: Dataset) -> None:
    for target in (tables.folder, tables.catalog):
        listed = job_kit.mmdata("inspect", target, "--bad", "--json")
        (rows,) = [value for value in listed.values() if isinstance(value, list)]
        assert {row["key"] for row in rows} == tables.quarantine.keys()


def test_stored_media_still_read_from_memory(tars: Dataset) -> None:
    """Arrow shards: the index's offsets point at the bytes of the media themselves."""
    for name, row in tars.index.items():
        info, _ = decoded(row["modality"], tars.medium(name))
        assert (info["width"], info["duration"]) == (row["width"], row["duration"]), name
