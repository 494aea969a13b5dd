"""Compressed archives read as streams; damage is a FormatError, never a short archive."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma

import pyarrow as pa
import pytest

from mmdata.errors import FormatError
from mmdata.formats.compressed import compression, open_decompressed

PLAIN = b"".join(b"%07d" % i for i in range(300_000))


def zstd(data: bytes) -> bytes:
    return bytes(pa.Codec("zstd").compress(data))


PACK = {"x.tar.gz": gzip.compress, "x.tar.bz2": bz2.compress, "x.tar.xz": lzma.compress, "x.tar.zst": zstd}


@pytest.mark.parametrize("name", PACK)
def test_streams_and_joined_streams(name: str) -> None:
    packed = PACK[name](PLAIN) + PACK[name](b"second")
    assert open_decompressed(io.BytesIO(packed), name).read() == PLAIN + b"second"


@pytest.mark.parametrize("name", PACK)
@pytest.mark.parametrize("fault", ["cut", "garbage"])
def test_damage_is_reported(name: str, fault: str) -> None:
    packed = PACK[name](PLAIN)
    bad = packed[: len(packed) // 2] if fault == "cut" else b"not compressed" * 99
    with pytest.raises(FormatError, match=name):
        open_decompressed(io.BytesIO(bad), name).read()


def test_plain_names_pass_through() -> None:
    file = io.BytesIO(b"tar")
    assert open_decompressed(file, "x.tar") is file
    assert compression("s3://bucket/X.TGZ") == "gzip"
