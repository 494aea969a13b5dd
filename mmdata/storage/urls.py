"""Names of things: splitting, joining and matching of local paths and URLs. Pure functions, no I/O.

Keys of object stores are taken as they are (`s3://bucket/a b#1?.jpg` is the key `a b#1?.jpg`); `file://` URLs are
percent-decoded as RFC 8089 says; `http(s)` URLs are sent as they are.
"""

from __future__ import annotations

import functools
import os
import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from mmdata.errors import StorageError

SCHEMES = ("s3", "gs", "az", "http", "https", "memory")
_URL = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*)://")
_NO_HOST = re.compile(r"[\x00-\x20\x7f\"#%<>?@\\^`{|}]")
_WILD = re.compile(r"[*?\[]")


class Stat(NamedTuple):
    size: int
    """Bytes."""
    stamp: str
    """`size:mtime_ns` of a file, the ETag of an object: equal while the content is unchanged."""


class Entry(NamedTuple):
    """One file or object of a listing; the URL of a folder ends with a slash."""

    url: str
    size: int
    stamp: str


@dataclass(frozen=True, slots=True)
class Location:
    """Where a URL points. `scheme` is empty for a local path."""

    scheme: str
    root: str
    """Bucket, container, or `scheme://host` of an HTTP URL; empty for local and memory."""
    path: str
    """Local path, key without leading slash, or path and query of an HTTP URL."""


def locate(url: str) -> Location:
    """Split a local path or URL; StorageError for a scheme that no store serves."""
    match = _URL.match(url)
    if match is None:
        return Location("", "", url)
    scheme, rest = match.group(1).lower(), url[match.end() :]
    if scheme == "file":
        return Location("", "", unquote(urlsplit(url).path))
    if scheme not in SCHEMES:
        known = "a local path, file://, " + ", ".join(f"{name}://" for name in SCHEMES)
        raise StorageError(f"{url}: no store serves {scheme}://; known are {known}")
    if scheme == "memory":
        return Location(scheme, "", rest.strip("/"))
    root, _, path = rest.partition("/")
    if not root:
        raise StorageError(f"{url}: there is no {'host' if scheme.startswith('http') else 'bucket'} after {scheme}://")
    if scheme.startswith("http"):
        _check_host(url, scheme, root)
        return Location(scheme, f"{scheme}://{root}", path)
    if not {".", ".."}.isdisjoint(path.split("/")):
        raise StorageError(f"{url}: no object can have a '.' or '..' between slashes in its key")
    return Location(scheme, root, path.strip("/"))


def _check_host(url: str, scheme: str, root: str) -> None:
    """StorageError for what no host can be called, before a request is made of it."""
    try:
        parts = urlsplit(f"{scheme}://{root}")
        wrong = not parts.hostname or _NO_HOST.search(parts.hostname) is not None or (parts.port or 0) < 0
    except ValueError:  # brackets without a partner, a port that is no number
        wrong = True
    if wrong:
        raise StorageError(f"{url}: {root!r} is no host name")


def write_url(location: Location) -> str:
    """Inverse of `locate`."""
    if location.scheme in ("", "http", "https"):
        return f"{location.root}/{location.path}" if location.scheme else location.path
    return f"{location.scheme}://{location.root}/{location.path}" if location.root else f"memory://{location.path}"


def join(url: str, *parts: str) -> str:
    """`url` as a folder with `parts` below it. A part that is a URL or an absolute path replaces what is before it.

    `.` and `..` in parts are resolved; a `..` that leaves the bucket is a StorageError.
    """
    for part in parts:
        if _URL.match(part) or part.startswith("/"):
            url = part
            continue
        location = locate(url)
        if not location.scheme:
            url = os.path.normpath(os.path.join(location.path, part)) if part else location.path
            continue
        joined = posixpath.normpath(posixpath.join(location.path, part)) if location.path or part else ""
        if joined == ".." or joined.startswith("../"):
            raise StorageError(f"{part!r} below {url} leads out of its bucket or host")
        url = write_url(Location(location.scheme, location.root, "" if joined == "." else joined))
    return url


def relative(url: str, base: str) -> str:
    """The path of `url` below the folder `base`, with slashes; StorageError when it is not below it."""
    here, there = locate(base), locate(url)
    path, folder = there.path, here.path
    if not here.scheme:
        path, folder = os.path.abspath(path), os.path.abspath(folder)
    folder = folder.rstrip("/") + "/" if folder else ""
    if (here.scheme, here.root) != (there.scheme, there.root) or not path.startswith(folder) or path == folder:
        raise StorageError(f"{url} is not below {base}")
    return path[len(folder) :]


def parent(url: str) -> str | None:
    """The folder above, None above a bucket or the root."""
    at = locate(url)
    if at.path in ("", "/", "."):
        return None
    head = posixpath.dirname(at.path.rstrip("/"))
    return write_url(Location(at.scheme, at.root, head or ("" if at.scheme else ".")))


def is_wild(text: str) -> bool:
    """Does it hold `*`, `?` or `[`?"""
    return _WILD.search(text) is not None


def expand_braces(text: str) -> Iterator[str]:
    """`{a,b}` and `{000..010}` written out, in order, each once per place where it is written."""
    import braceexpand

    try:
        yield from braceexpand.braceexpand(text, escape=False)
    except ValueError as error:
        raise StorageError(f"{text}: a brace has no partner") from error


def split_pattern(path: str) -> list[str]:
    """Segments of a pattern; slashes inside braces do not part."""
    segments, depth = [""], 0
    for character in path:
        depth += (character == "{") - (character == "}")
        if character == "/" and depth <= 0:
            segments.append("")
        else:
            segments[-1] += character
    return segments


@functools.lru_cache(256)
def glob_regex(pattern: str) -> re.Pattern[str]:
    """A regular expression for `fullmatch` of a relative path with slashes.

    `*` and `?` match within one segment and no leading dot, `[abc]` and `[!abc]` one character, `**` as a whole segment
    any number of segments that do not begin with a dot; braces alternate.
    """
    return re.compile("|".join(_translate(plain) for plain in dict.fromkeys(expand_braces(pattern))), re.DOTALL)


def _translate(pattern: str) -> str:
    out: list[str] = []
    segments = pattern.split("/")
    for number, segment in enumerate(segments):
        last = number == len(segments) - 1
        if segment == "**":
            out.append(r"(?:(?!\.)[^/]+/)*" + (r"(?!\.)[^/]+" if last else ""))
            continue
        out.append((r"(?!\.)" if segment[:1] in ("*", "?", "[") else "") + _segment(segment) + ("" if last else "/"))
    return "(?:" + "".join(out) + ")"


def _segment(segment: str) -> str:
    out, at = "", 0
    while at < len(segment):
        character = segment[at]
        close = segment.find("]", at + 3 if segment[at : at + 2] == "[!" else at + 2)
        if character == "*":
            out += "[^/]*"
        elif character == "?":
            out += "[^/]"
        elif character == "[" and close > 0:
            body = segment[at + 1 : close].replace("\\", "\\\\").replace("[", "\\[")
            out += f"[^/{body[1:]}]" if body.startswith("!") else f"[{body.replace('^', chr(92) + '^')}]"
            at = close
        else:
            out += re.escape(character)
        at += 1
    return out
