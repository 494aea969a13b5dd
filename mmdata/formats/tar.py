"""Tar shards: a reproducible writer, a header-only indexer that survives damage, and WebDataset's grouping of members.

The format is POSIX.1-1988 ustar, with POSIX.1-2001 pax records where ustar cannot say it. This file knows nothing of
storage or media: it gets binary file objects.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import BinaryIO, NamedTuple

import xxhash

from mmdata.errors import FormatError, InvalidSample, StorageError
from mmdata.formats import Placed

BLOCK = 512
RECORD = 20 * BLOCK
"""Archives are filled up with zero blocks to a multiple of this, as tar programs do."""
_JOIN = 64 << 10
"""Members up to this many bytes are written in one piece: copying them costs less than three calls."""
USTAR_MAX_SIZE = 8**11 - 1

# Header fields that are the same for every member: mode, uid, gid; mtime, checksum as spaces, type; link name, magic,
# version, user, group and device.
_OWNER = b"".join((b"0000644", b"\0", b"0000000", b"\0", b"0000000", b"\0"))
_MTIME_CHECKSUM_TYPE = b"".join((b"00000000000", b"\0", b" " * 8, b"0"))
_NO_LINK_USTAR = b"".join((bytes(100), b"ustar", b"\0", b"00", bytes(80)))

_KEY_RULE = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")
_UNSAFE = frozenset("\0\n\r")
_META_RULE = re.compile(r"__[^/]*__($|/)")


def split_name(name: str) -> tuple[str, str] | None:
    """Member name to (key, extension) by WebDataset's rule; None for a name that belongs to no sample.

    The key is the path up to the first dot of the base name, the extension is the rest in lower case. WebDataset
    (`webdataset.tariterators`, 0.2 and 1.0) skips names without a dot, and those that begin with a part like __x__.
    """
    match = _KEY_RULE.match(name)
    if match is None or _META_RULE.match(name):
        return None
    return match.group(1), match.group(2).lower()


class TarWriter:
    """Writes samples to `fileobj` so that equal input gives equal bytes: mtime, uid and gid 0, mode 0644, no names.

    `fileobj` is written front to back, never sought, and stays the caller's to close. A failed write raises
    StorageError; an impossible key or member raises InvalidSample and leaves the archive as it was.
    """

    def __init__(self, fileobj: BinaryIO) -> None:
        self._file = fileobj
        self._digest = xxhash.xxh3_128()
        self._last_key: str | None = None
        self._closed = False
        self.size = 0
        """Bytes written so far."""

    @property
    def xxh3(self) -> str:
        """xxh3-128 (hex) of everything written so far; of the whole file after `close`."""
        return self._digest.hexdigest()

    def add(self, key: str, members: Sequence[tuple[str, bytes]]) -> Placed:
        """Write one sample: (extension, bytes) pairs, stored in the order of their names."""
        if self._closed:
            raise FormatError("the tar is closed: no sample can be added")
        ordered = sorted(members, key=lambda member: member[0])
        names = _member_names(key, [extension for extension, _ in ordered])
        if key == self._last_key:
            raise InvalidSample(f"two samples in a row have the key {key!r}: readers would take them for one")
        headers = [_header(name, len(payload)) for name, (_, payload) in zip(names, ordered, strict=True)]
        start, span, offsets = self.size, xxhash.xxh3_128(), []
        for header, (_, payload) in zip(headers, ordered, strict=True):
            offsets.append(self.size + len(header))
            pieces: tuple[bytes, ...] = (header, payload, bytes(-len(payload) % BLOCK))
            if len(payload) <= _JOIN:
                pieces = (b"".join(pieces),)
            for piece in pieces:
                span.update(piece)
                self._write(piece)
        self._last_key = key
        lengths = tuple(len(payload) for _, payload in ordered)
        extensions = tuple(extension for extension, _ in ordered)
        return Placed(extensions, tuple(offsets), lengths, start, self.size - start, span.hexdigest())

    def close(self) -> None:
        """Write the end-of-archive blocks and flush. An archive without a sample is refused with FormatError."""
        if self._closed:
            return
        if self._last_key is None:
            raise FormatError("no sample was added: an empty shard is never written")
        self._closed = True
        self._write(bytes(2 * BLOCK + -(self.size + 2 * BLOCK) % RECORD))
        try:
            self._file.flush()
        except OSError as error:
            raise StorageError(f"cannot write {_file_name(self._file)}: {error}") from error

    def abort(self) -> None:
        """Stop without end-of-archive blocks: what was written is not a whole tar. The caller deletes the file."""
        self._closed = True

    def __enter__(self) -> TarWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if error is None:
            self.close()
        else:
            self.abort()

    def _write(self, data: bytes) -> None:
        if not data:
            return
        self._digest.update(data)  # before the write, which drives the bytes out of the cache
        try:
            self._file.write(data)
        except OSError as error:
            self._closed = True
            raise StorageError(f"cannot write {_file_name(self._file)}: {error}") from error
        self.size += len(data)


def _member_names(key: str, extensions: Sequence[str]) -> list[str]:
    """`key.extension` for each, or InvalidSample when a reader would not find the sample under its key."""
    names = [f"{key}.{extension}" for extension in extensions]
    if not names:
        raise InvalidSample(f"sample {key!r} has no members")
    if len(set(names)) < len(names):
        raise InvalidSample(f"sample {key!r} has two members of one name: {', '.join(names)}")
    for name, extension in zip(names, extensions, strict=True):
        if split_name(name) != (key, extension) or not _UNSAFE.isdisjoint(name):
            raise InvalidSample(
                f"member {name!r} would not be read back as key {key!r}, extension {extension!r}: a key has no dot "
                "after its last slash, no line break, no first part like __x__; extensions are lower case without slash"
            )
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise InvalidSample(f"member name {name!r} cannot be written as UTF-8: {error}") from error
    return names


def _header(name: str, size: int) -> bytes:
    """Header block of a regular file; preceded by a pax header where ustar cannot hold the name or the size."""
    try:
        raw = name.encode("ascii")
    except UnicodeEncodeError:
        return _pax_header(name, size)
    prefix = b""
    if len(raw) > 100:
        cut = raw.rfind(b"/", 0, 156)
        prefix, raw = raw[:cut], raw[cut + 1 :]
        if cut <= 0 or not 0 < len(raw) <= 100:
            return _pax_header(name, size)
    if size > USTAR_MAX_SIZE:
        return _pax_header(name, size)
    header = b"".join(
        (
            raw.ljust(100, b"\0"),
            _OWNER,
            b"%011o\x00" % size,
            _MTIME_CHECKSUM_TYPE,
            _NO_LINK_USTAR,
            prefix.ljust(155, b"\0"),
            bytes(12),
        )
    )
    return b"%b%06o\x00 %b" % (header[:148], sum(header), header[156:])


def _pax_header(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    info.mode = 0o644
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")


def _file_name(fileobj: BinaryIO) -> str:
    return str(getattr(fileobj, "name", "the tar"))


class TarMember(NamedTuple):
    """One regular file of a tar; offsets in bytes from the start of the archive."""

    name: str
    offset: int
    """First payload byte."""
    length: int
    header_offset: int


class Damage(NamedTuple):
    """What an archive holds that cannot be had as a member, and where."""

    offset: int
    """Byte where the trouble begins."""
    message: str
    name: str = ""
    """Name of the member that is lost, where it is known or can still be read."""
    incomplete: bool = False
    """The sample that `name` belongs to lacks this member."""


def group_members(
    entries: Iterable[TarMember | Damage], on_damage: Callable[[Damage], None] | None = None
) -> Iterator[tuple[str, list[tuple[str, int, int]]]]:
    """Neighbouring members of one key, as (key, [(extension, offset, length)]), in archive order.

    `on_damage` receives every Damage of the input and one for each member that belongs to no sample or whose extension
    occurs twice; without it they raise FormatError. A sample that lacks a damaged member is not yielded: its Damage
    (`incomplete`, with the member's name) stands for it.
    """
    report = on_damage or _refuse
    key, members, spoilt = "", dict[str, tuple[int, int]](), set[str]()
    for entry in entries:
        split = split_name(entry.name)
        if isinstance(entry, Damage):
            if entry.incomplete and split:
                spoilt.add(split[0])
            report(entry)
            continue
        if split is None:
            report(Damage(entry.header_offset, f"{entry.name!r} belongs to no sample", entry.name))
            continue
        if split[0] != key:
            if members and key not in spoilt:
                yield key, [(extension, *place) for extension, place in members.items()]
            spoilt.discard(key)
            key, members = split[0], {}
        if split[1] in members:
            message = f"{entry.name!r}: sample {key!r} has the extension {split[1]!r} already; the first one is kept"
            report(Damage(entry.header_offset, message, entry.name))
            continue
        members[split[1]] = (entry.offset, entry.length)
    if members and key not in spoilt:
        yield key, [(extension, *place) for extension, place in members.items()]


def _refuse(damage: Damage) -> None:
    raise FormatError(f"tar is damaged at byte {damage.offset}: {damage.message}")
