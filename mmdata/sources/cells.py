"""What one table cell says about media: a path, a URL, the bytes themselves, or a list of these. Knows no format."""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_to_bytes

from mmdata.errors import InvalidSample
from mmdata.schema import EXTENSIONS, Kind

DEFAULT_EXTENSIONS: dict[Kind, str] = {"image": "jpg", "video": "mp4", "audio": "wav", "data": "bin"}
"""Member extension where neither name nor bytes tell one. Readers go by content; the extension only names the kind."""

_DATA_URI = re.compile(r"data:([^;,]*)((?:;[^;,]*)*),", re.IGNORECASE)
_BASE64 = re.compile(r"[A-Za-z0-9+/_\-\s]+={0,2}\s*")
_SURE_BASE64 = 4096
"""No path is this long: longer text of base64 characters is data even when its content is not recognised."""

_MAGIC: tuple[tuple[bytes, int, str], ...] = (
    (b"\xff\xd8\xff", 0, "jpg"),
    (b"\x89PNG\r\n\x1a\n", 0, "png"),
    (b"GIF8", 0, "gif"),
    (b"WEBP", 8, "webp"),
    (b"WAVE", 8, "wav"),
    (b"AVI ", 8, "avi"),
    (b"AIFF", 8, "aiff"),
    (b"ftypavif", 4, "avif"),
    (b"ftypavis", 4, "avifs"),
    (b"ftyphei", 4, "heic"),
    (b"ftypmif1", 4, "heic"),
    (b"ftypM4A", 4, "m4a"),
    (b"ftypqt", 4, "mov"),
    (b"ftyp", 4, "mp4"),
    (b"\x1aE\xdf\xa3", 0, "mkv"),
    (b"fLaC", 0, "flac"),
    (b"OggS", 0, "ogg"),
    (b"ID3", 0, "mp3"),
    (b"\xff\xfb", 0, "mp3"),
    (b"\xff\xf3", 0, "mp3"),
    (b"\xff\xf2", 0, "mp3"),
    (b"II*\0", 0, "tif"),
    (b"MM\0*", 0, "tif"),
    (b"BM", 0, "bmp"),
    (b"qoif", 0, "qoi"),
    (b"\0\0\0\x0cjP  ", 0, "jp2"),
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One medium of a row: `data` when the row holds it, else the path or URL `where`, as written."""

    kind: Kind
    extension: str
    where: str | None = None
    data: bytes | None = None


def read_cell(value: Any, kind: Kind) -> list[Cell]:
    """Media of one cell whose column holds media of `kind`. Null, NaN and empty text are no media.

    Raises InvalidSample for a value that is no medium (a number, damaged base64, a struct without bytes or path).
    """
    if value is None or value == "" or value != value:
        return []
    if isinstance(value, str):
        return _read_text(value, kind)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return [_embedded(bytes(value), kind)]
    if isinstance(value, (list, tuple)):
        return [cell for item in value for cell in read_cell(item, kind)]
    if isinstance(value, dict):
        return _read_struct(value, kind)
    raise InvalidSample(f"{value!r:.60} is no {kind}: expected a path, a URL, bytes or a list of these")


def extension_of(where: str, kind: Kind) -> str:
    """Member extension for a path or URL: its own when it is a media extension, else the default of `kind`."""
    if re.match(r"https?://", where, re.IGNORECASE):
        where = re.split(r"[?#]", where, maxsplit=1)[0]
    last = where.rpartition("/")[2].rpartition(".")
    extension = last[2].lower() if last[1] else ""
    known = extension in EXTENSIONS or (kind == "data" and re.fullmatch(r"[a-z0-9_]{1,16}", extension))
    return extension if known else DEFAULT_EXTENSIONS[kind]


def sniff(data: bytes) -> str | None:
    """Extension that the first bytes show, None when they are not known."""
    return next((name for magic, at, name in _MAGIC if data[at : at + len(magic)] == magic), None)


def decode_base64(text: str) -> bytes | None:
    """Bytes of standard or URL-safe base64, None when it is not base64."""
    compact = re.sub(r"\s+", "", text).translate(str.maketrans("-_", "+/"))
    try:
        return base64.b64decode(compact + "=" * (-len(compact) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None


def _read_text(text: str, kind: Kind) -> list[Cell]:
    stripped = text.strip()
    if stripped[:5].lower() == "data:":
        return [_data_uri(stripped, kind)]
    if stripped.startswith("[") and stripped.endswith("]"):
        with contextlib.suppress(ValueError):  # a path may look like this; it is tried as one
            return read_cell(json.loads(stripped), kind)
    if len(stripped) >= 32 and _BASE64.fullmatch(stripped):
        data = decode_base64(stripped)
        if data is not None and (sniff(data) is not None or len(stripped) > _SURE_BASE64):
            return [_embedded(data, kind)]
    if "\0" in text:
        raise InvalidSample(f"the path {text!r:.60} holds a NUL character")
    return [Cell(kind, extension_of(text, kind), where=text)]


def _read_struct(value: dict[str, Any], kind: Kind) -> list[Cell]:
    """`{bytes, path}` as Hugging Face stores Image, Audio and Video, or an object with a path or URL."""
    data = value.get("bytes")
    path = next((value[name] for name in ("path", "url", "file_name", "uri") if value.get(name)), None)
    if isinstance(data, str):
        decoded = decode_base64(data)
        if decoded is None:
            raise InvalidSample(f"the bytes of {path or 'a medium'} are not base64")
        data = decoded
    if data is not None:
        return [_embedded(bytes(data), kind, path if isinstance(path, str) else None)]
    if path is not None:
        return read_cell(path, kind)
    if all(item is None for item in value.values()):
        return []
    raise InvalidSample(f"an object with {sorted(map(str, value))[:6]} is no {kind}: expected bytes, path or url")


def _data_uri(text: str, kind: Kind) -> Cell:
    """RFC 2397: `data:[type][;base64],data`."""
    head = _DATA_URI.match(text)
    if head is None:
        raise InvalidSample(f"damaged data URI {text[:40]!r}: no comma")
    body = text[head.end() :]
    if ";base64" in head.group(2).lower():
        data = decode_base64(unquote_to_bytes(body).decode("ascii", "replace"))
        if data is None:
            raise InvalidSample(f"damaged data URI {text[:40]!r}: not base64")
    else:
        data = unquote_to_bytes(body)
    subtype = head.group(1).lower().rpartition("/")[2]
    return _embedded(data, kind, f"x.{subtype.removeprefix('x-').partition('+')[0]}")


def _embedded(data: bytes, kind: Kind, name: str | None = None) -> Cell:
    named = (name or "").rpartition("/")[2].rpartition(".")[2].lower()
    named = {"jpeg": "jpg", "mpeg": "mp3" if kind == "audio" else "mpg"}.get(named, named)
    extension = named if named in EXTENSIONS else sniff(data) or DEFAULT_EXTENSIONS[kind]
    return Cell(kind, extension, data=data)
