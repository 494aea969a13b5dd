"""The same sources over an object store: `memory://` goes through the same client as S3."""

from __future__ import annotations

import base64
import io
import json
import tarfile
import uuid

import pytest

from mmdata.errors import NotFound
from mmdata.recipe import FolderSource, TableSource, WebDatasetSource
from mmdata.sources import SOURCES, open_source
from mmdata.storage import open_storage

JPEG = b"\xff\xd8\xff\xe0" + bytes(60)


@pytest.fixture
def bucket():
    """A storage and an empty folder in memory."""
    return open_storage(None), f"memory://{uuid.uuid4().hex}"


def listed(source):
    return [sample for part in source.partitions() for sample in source.samples(part)]


def test_a_remote_folder_gives_the_samples_of_a_local_one(bucket, tree, rows_of):
    storage, root = bucket
    files = {
        "a.jpg": JPEG,
        "a.mid.jpg": JPEG,
        "a.m/x.jpg": JPEG,
        "a.txt": "t",
        "b/c.png": JPEG,
        "b/c.jpg": JPEG,
        ".hidden/x.jpg": JPEG,
        "n.pdf": b"x",
        "out/z.jpg": JPEG,
    }
    for path, data in files.items():
        storage.write(f"{root}/{path}", data if isinstance(data, bytes) else data.encode())
    source = open_source(
        FolderSource(type="folder", path=root, exclude=("out/**",), label_from_folder=True), storage, "/nowhere", 2
    )
    remote = listed(source)
    local = rows_of("folder", tree(files), exclude=["out/**"], label_from_folder=True, partition=2)
    assert [(s.key, s.fields) for s in remote] == [(s.key, s.fields) for s in local]
    assert all(sample.media[0].stamp for sample in remote)
    assert storage.read(remote[0].media[0].uri) == JPEG
    assert source.ignored == {"(hidden)": 1, ".pdf": 1, "(excluded)": 1}
    with pytest.raises(NotFound):
        listed(open_source(FolderSource(type="folder", path=root + "/none"), storage, "/nowhere"))


def test_a_remote_table_with_remote_media_and_a_remote_spool(bucket):
    storage, root = bucket
    rows = [
        {"image": "x.jpg"},
        {"image": "gone.jpg"},
        {"image": base64.b64encode(JPEG).decode()},
        {"image": "../../../x"},
    ]
    rows += [{"image": "ftp://host/x.jpg"}]
    storage.write(f"{root}/t/a.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode())
    storage.write(f"{root}/t/x.jpg", JPEG)
    settings = TableSource(type="table", path=(f"{root}/t/*.jsonl",), media={"image": ("image",)})
    source = open_source(settings, storage, f"{root}/spool", 100)
    here, gone, embedded, outside, unknown = listed(source)
    assert here.media[0].uri == f"{root}/t/x.jpg" and here.media[0].length == 64 and here.media[0].stamp
    assert gone.media[0].stamp == "" and gone.error is None
    place = embedded.media[0]
    assert place.uri.startswith(f"{root}/spool/")
    assert storage.read_range(place.uri, place.offset, place.length) == JPEG
    assert outside.error is not None and "leads out" in outside.error[1]
    assert unknown.error is not None and "ftp" in unknown.error[1]
    assert listed(source)[2] == embedded


def test_remote_tars(bucket):
    storage, root = bucket
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        info = tarfile.TarInfo("a.jpg")
        info.size = len(JPEG)
        archive.addfile(info, io.BytesIO(JPEG))
    storage.write(f"{root}/s-0.tar.gz", out.getvalue())
    settings = WebDatasetSource(type="webdataset", path=(f"{root}/s-{{0..0}}.tar.gz",))
    (sample,) = listed(open_source(settings, storage, f"{root}/spool"))
    place = sample.media[0]
    assert storage.read_range(place.uri, place.offset, place.length) == JPEG


def test_every_source_of_the_recipe_has_a_class():
    assert set(SOURCES) == {"folder", "table", "webdataset"}
