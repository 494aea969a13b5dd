"""The scan: what a second one may take over from the first, and what it must not."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from PIL import Image
from s3_server import S3Server

from mmdata import scan as verb
from mmdata.errors import ConfigError, ErrorLimitExceeded
from mmdata.media.sandbox import Failure
from mmdata.operators.registry import load_builtin
from mmdata.recipe import Recipe, from_mapping
from mmdata.scan import Scanned, scan
from mmdata.schema import SourceSample
from mmdata.shards.catalog import Catalog, open_catalog
from mmdata.storage import open_storage


@pytest.fixture(scope="module", autouse=True)
def operators() -> None:
    load_builtin()


def picture(colour: str = "red", size: tuple[int, int] = (32, 24)) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, colour).save(buffer, "PNG")
    return buffer.getvalue()


def recipe(tmp_path: Path, *sources: dict[str, Any], **sections: Any) -> Recipe:
    sources = sources or ({"path": str(tmp_path / "in")},)
    document = {
        "source": [{"type": "folder"} | source for source in sources],
        "output": {"path": str(tmp_path / "out")},
        "limits": {"max_bad": 1.0},
    }
    return from_mapping(document | sections)


def folder(tmp_path: Path, name: str = "in", **files: bytes) -> Path:
    """Files of a source folder; `__` in a name stands for a slash, the last `_` for a dot."""
    base = tmp_path / name
    base.mkdir(exist_ok=True)
    for file, data in files.items():
        stem, _, extension = file.rpartition("_")
        path = base / f"{stem.replace('__', '/')}.{extension}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return base


def rows(catalog: Catalog) -> list[dict[str, Any]]:
    return [row for table in catalog.read() for row in table.to_pylist()]


def column(scanned: Scanned, name: str) -> list[Any]:
    return [row[name] for row in rows(scanned.catalog)]


def test_nothing_is_measured_twice_while_nothing_changes(tmp_path: Path) -> None:
    base = folder(tmp_path, a_png=picture(), b_png=picture("blue"))
    first = scan(recipe(tmp_path), workers=1)
    second = scan(recipe(tmp_path), workers=1)
    assert (first.measured, second.measured) == (2, 0)
    assert second.catalog.fingerprint == first.catalog.fingerprint
    (base / "c.png").write_bytes(picture("green"))
    third = scan(recipe(tmp_path), workers=1)
    assert third.measured == 1
    assert third.catalog.fingerprint != first.catalog.fingerprint


def test_an_object_is_measured_again_when_its_etag_changes(s3: S3Server, tmp_path: Path) -> None:
    """Not when it is merely uploaded anew, and also when it keeps its size."""
    storage = open_storage()
    url = f"s3://{s3.bucket}/{tmp_path.name}"
    red, other = picture("red"), picture("#fe0000")
    for name, data in (("a", red), ("b", red), ("c", red)):
        storage.write(f"{url}/{name}.png", data)
    made = recipe(tmp_path, {"path": url})
    assert scan(made, workers=1).measured == 3
    storage.write(f"{url}/b.png", red)
    assert scan(made, workers=1).measured == 0
    storage.write(f"{url}/c.png", other)
    third = scan(made, workers=1)
    assert len(red) == len(other) and third.measured == 1
    assert len(set(column(third, "digest"))) == 2


def test_the_fingerprint_is_that_of_the_rows_not_of_the_run(tmp_path: Path) -> None:
    folder(tmp_path, a_png=picture(), b_png=b"no picture", c_png=picture("blue"))
    prints = set()
    for number in range(3):
        made = recipe(tmp_path, catalog=str(tmp_path / f"catalog{number}"))
        prints.add(scan(made, workers=1).catalog.fingerprint)
    assert len(prints) == 1


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"label_from_folder": True}, {"label": "cat"}),
        ({"captions": False}, {"fields": "{}"}),
        ({"key_prefix": "p/"}, {"key": "p/cat/a"}),
        ({"animated": "video"}, {"modality": "image"}),
    ],
)
def test_a_changed_source_setting_is_not_answered_from_old_rows(
    tmp_path: Path, change: dict[str, Any], what: dict[str, Any]
) -> None:
    base = folder(tmp_path, cat__a_png=picture(), cat__a_txt=b"a cat")
    before = scan(recipe(tmp_path, {"path": str(base)}), workers=1)
    after = scan(recipe(tmp_path, {"path": str(base)} | change), workers=1)
    fresh = scan(recipe(tmp_path, {"path": str(base)} | change, catalog=str(tmp_path / "other")), workers=1)
    assert rows(after.catalog) == rows(fresh.catalog)
    assert after.catalog.fingerprint != before.catalog.fingerprint
    assert {name: rows(after.catalog)[0][name] for name in what} == what


def test_a_changed_caption_is_read_again(tmp_path: Path) -> None:
    base = folder(tmp_path, a_png=picture(), a_txt=b"one")
    scan(recipe(tmp_path), workers=1)
    (base / "a.txt").write_bytes(b"two")
    os.utime(base / "a.txt", ns=(1, 2))
    after = scan(recipe(tmp_path), workers=1)
    assert (column(after, "fields"), after.measured) == (['{"txt": "two"}'], 1)


def test_rows_that_moved_tell_their_new_place(tmp_path: Path) -> None:
    folder(tmp_path, "one", a_png=picture())
    folder(tmp_path, "two", b_png=picture("blue"))
    both = [{"path": str(tmp_path / "one")}, {"path": str(tmp_path / "two")}]
    scan(recipe(tmp_path, *both), workers=1)
    swapped = scan(recipe(tmp_path, *both[::-1]), workers=1)
    assert swapped.measured == 0
    assert list(zip(column(swapped, "key"), column(swapped, "source"), strict=True)) == [
        ("b", "source.0"),
        ("a", "source.1"),
    ]


def test_a_row_inserted_into_a_table_renumbers_the_others(tmp_path: Path) -> None:
    folder(tmp_path, a_png=picture(), b_png=picture("blue"))
    table = tmp_path / "t.jsonl"
    lines = ['{"id": "a", "image": "in/a.png"}\n', '{"id": "b", "image": "in/b.png"}\n']
    source = {"type": "table", "path": str(table), "key": "id", "media": {"image": "image"}}
    table.write_text(lines[1])
    scan(recipe(tmp_path, source), workers=1)
    table.write_text("".join(lines))
    after = scan(recipe(tmp_path, source), workers=1)
    assert list(zip(column(after, "key"), column(after, "row"), strict=True)) == [("a", 0), ("b", 1)]
    assert after.measured == 1


def test_one_folder_under_two_prefixes_is_two_sets_of_samples(tmp_path: Path) -> None:
    base = folder(tmp_path, a_png=picture())
    twice = recipe(tmp_path, {"path": str(base)}, {"path": str(base), "key_prefix": "again-"})
    assert column(scan(twice, workers=1), "key") == ["a", "again-a"]
    second = scan(twice, workers=1)
    assert (column(second, "key"), second.measured) == (["a", "again-a"], 0)


def test_parts_that_nobody_needs_are_removed(tmp_path: Path) -> None:
    """Also those that a killed scan left under another number."""
    base = folder(tmp_path, a_png=picture())
    first = scan(recipe(tmp_path), workers=1).catalog
    part = Path(first.url) / first.parts[0].file
    stale = part.with_name("part-000007" + part.name[len("part-000000") :])
    stale.write_bytes(part.read_bytes())
    (base / "b.png").write_bytes(picture("blue"))
    after = scan(recipe(tmp_path), workers=1).catalog
    assert sorted(path.name for path in Path(after.url).glob("part-*")) == [each.file for each in after.parts]


def test_what_may_be_mended_outside_the_file_is_tried_again(tmp_path: Path, monkeypatch: Any) -> None:
    folder(tmp_path, a_png=picture())
    taken = verb._measured

    def broken(samples: Any, leaf: str, sandbox: Any) -> Any:
        return iter([Failure("UnsupportedMedia", "no decoder") for _ in samples])

    monkeypatch.setattr(verb, "_measured", broken)
    monkeypatch.setattr(verb, "run", in_process)
    first = scan(recipe(tmp_path), workers=1)
    assert column(first, "status") == ["UnsupportedMedia"]
    monkeypatch.setattr(verb, "_measured", taken)
    second = scan(recipe(tmp_path), workers=1)
    assert column(second, "status") == ["ok"]
    assert first.catalog.fingerprint != second.catalog.fingerprint


def in_process(
    task: str,
    setup: Any,
    numbers: Any,
    *,
    on_done: Callable[[int, Any], None],
    payload: Callable[[int], Any],
    **_: Any,
) -> None:
    for number in numbers:
        on_done(number, verb.scan_partition(payload(number), setup))


def test_a_tokenizer_folder_is_part_of_the_scan_by_its_contents(tmp_path: Path) -> None:
    vocabulary = tmp_path / "tokenizer"
    vocabulary.mkdir()
    made = recipe(tmp_path, scan={"statistics": [{"op": "text_tokens", "tokenizer": str(vocabulary)}]})
    prints = []
    for text in ("a", "b", "a"):
        (vocabulary / "tokenizer.json").write_text(text)
        prints.append((made.measure_fingerprint(), made.scan_fingerprint()))
    assert prints[0] == prints[2]
    assert prints[0][0] != prints[1][0]
    assert prints[0][1] != prints[1][1]


def test_a_statistic_of_the_wrong_type_costs_the_sample_not_the_scan() -> None:
    class Job:
        statistics = {"stat.mine": pa.float32()}  # noqa: RUF012

    job: Any = Job()
    assert verb._misfit({"stat.mine": 1.5, "text_chars": 3}, job) is None
    failure = verb._misfit({"stat.mine": "bright"}, job)
    assert failure is not None and failure.error_class == "OperatorError" and "stat.mine" in failure.message
    assert verb._misfit({"text_chars": 2**40}, job) is not None


def test_the_stamp_of_a_sample_covers_its_fields() -> None:
    stamps = {verb.sample_stamp(SourceSample("k", fields=fields)) for fields in ({}, {"cls": "a"}, {"cls": "b"})}
    assert len(stamps) == 3


def test_a_tar_of_more_samples_than_a_chunk_keeps_its_order(tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w") as tar:
        for number in range(25):
            for extension, data in (("txt", b"word " * number), ("npy", b"\x93NUMPY" + bytes([number]))):
                entry = tarfile.TarInfo(f"k{number:03d}.{extension}")
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
    source = {"type": "webdataset", "path": str(path)}
    whole = scan(recipe(tmp_path, source, catalog=str(tmp_path / "whole")), workers=1).catalog
    monkeypatch.setattr(verb, "CHUNK", 4)
    monkeypatch.setattr(verb, "run", in_process)
    pieces = scan(recipe(tmp_path, source, catalog=str(tmp_path / "pieces")), workers=1).catalog
    assert rows(pieces) == rows(whole)
    assert [row["key"] for row in rows(pieces)] == [f"k{number:03d}" for number in range(25)]
    assert {row["modality"] for row in rows(pieces)} == {"text"}
    assert pieces.counts == {"ok": 25}
    assert pieces.members == [("npy", "data", "", ""), ("txt", "data", "", "")]
    assert rows(open_catalog(open_storage(), pieces.url)) == rows(pieces)


def test_media_that_a_table_names_and_nobody_has_are_missing(tmp_path: Path) -> None:
    base = folder(tmp_path, a_png=picture())
    table = tmp_path / "t.jsonl"
    table.write_text('{"image": "in/a.png"}\n{"image": "in/b.png"}\n')
    source = {"type": "table", "path": str(table), "media": {"image": "image"}}
    assert column(scan(recipe(tmp_path, source), workers=1), "status") == ["ok", "MissingMedia"]
    (base / "b.png").write_bytes(picture())
    after = scan(recipe(tmp_path, source), workers=1)
    assert (column(after, "status"), after.measured) == (["ok", "ok"], 1)


def test_too_many_bad_samples_end_the_scan_with_a_catalog_to_look_at(tmp_path: Path) -> None:
    folder(tmp_path, a_png=picture(), b_png=b"no picture")
    made = recipe(tmp_path, limits={"max_bad": 0})
    with pytest.raises(ErrorLimitExceeded, match="1 of 2 samples are bad"):
        scan(made, workers=1)
    assert open_catalog(open_storage(), made.catalog).counts == {"TruncatedMedia": 1, "ok": 1}


def test_a_folder_without_media_is_an_error(tmp_path: Path) -> None:
    folder(tmp_path, a_pdf=b"%PDF")
    with pytest.raises(ConfigError, match="pdf"):
        scan(recipe(tmp_path), workers=1)
