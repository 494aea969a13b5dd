"""Reading a tar's headers: every regular member with its byte range, from old, ustar, GNU and pax archives.

Payloads are skipped by seeking. Damage is reported and never costs more than the members it touches: reading goes on at
the next block whose header checksum is right. Formats: POSIX.1-2001 `pax`, and GNU tar's manual, "Basic Tar Format".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

import xxhash

from mmdata.formats.tar import BLOCK, Damage, TarMember, split_name

_SCAN = 1 << 20
_MAX_EXTENDED = 1 << 20
"""Largest pax or GNU long-name record that is believed, in bytes."""
_REGULAR = b"0\x007"
_LINKS = {b"1": "hard link", b"2": "symbolic link"}
_ARCHIVES = (".tar", ".tgz", ".tar.gz", ".tar.zst", ".tar.xz", ".tar.bz2")
_PAX_RECORD = re.compile(rb"(\d{1,7}) ([^=]+)=")
_ZERO = bytes(BLOCK)
_TYPES = frozenset(b"\x0001234567ALKSDNVMxgX")


def index_tar(fileobj: BinaryIO) -> Iterator[TarMember | Damage]:
    """Every regular file of the (seekable, uncompressed) tar in archive order, with Damage records in between.

    Directories and devices are skipped. Links, sparse files, repeated names and cut payloads are reported as Damage and
    not yielded. Memory: about 70 bytes a member, to know repeated names.
    """
    size = fileobj.seek(0, 2)
    walk = _Walk(fileobj, size)
    seen: set[int] = set()
    for entry in walk.entries():
        if isinstance(entry, TarMember):
            name = xxhash.xxh3_64_intdigest(entry.name.encode())
            if name in seen:
                message = f"{entry.name!r} occurs before in this tar; the first is kept"
                yield Damage(entry.header_offset, message, entry.name)
                continue
            seen.add(name)
        yield entry


class _Header(NamedTuple):
    name: str
    type: bytes
    offset: int
    length: int
    header_offset: int
    next: int
    link: str
    sparse: bool


class _BadHeader(Exception):
    def __init__(self, offset: int, message: str, name: str = "", extended: bool = False) -> None:
        """`extended`: what is bad names the member whose header follows, so that one is lost too."""
        super().__init__(message)
        self.offset, self.message, self.name, self.extended = offset, message, name, extended


class _Walk:
    def __init__(self, file: BinaryIO, size: int) -> None:
        self.file, self.size = file, size
        self.pax_globals: dict[str, str] = {}

    def entries(self) -> Iterator[TarMember | Damage]:
        """A member is held back until the header after it proved right: a wrong one may mean a cut payload."""
        position, held = 0, None
        ended = self.size == 0
        while position < self.size:
            try:
                header = self._header(position)
            except _BadHeader as bad:
                early = self._cut_short(held)
                if held is not None and early is not None:
                    yield _cut(held, early)
                    position, held = early, None
                    continue
                if held is not None:
                    yield held
                    held = None
                position = self._find(bad.offset + 1)
                if bad.extended:
                    position = self._find(position + 1)
                skipped = f"{position - bad.offset} bytes skipped" if position < self.size else "no header follows"
                yield Damage(bad.offset, f"{bad.message}; {skipped}", bad.name, bool(bad.name))
                ended = position >= self.size
                continue
            if held is not None:
                yield held
                held = None
            if header is None:
                ended = True
                position, damage = self._after_end(position)
                if damage:
                    yield damage
                continue
            member = TarMember(header.name, header.offset, header.length, header.header_offset)
            if header.type in _REGULAR and not header.sparse and member.offset + member.length > self.size:
                early = self._cut_short(member)
                yield _cut(member, early if early is not None else self.size)
                position, ended = (self.size, True) if early is None else (early, False)
                continue
            position = header.next
            held, damage = _sort_out(header, member)
            if damage:
                yield damage
        if held is not None:
            yield held
        if not ended:
            yield Damage(self.size, "the tar has no end-of-archive blocks: it may have been cut between two members")

    def _header(self, position: int) -> _Header | None:
        """The member whose headers begin at `position`; None at a zero block."""
        start, long_name, long_link = position, None, None
        pax: dict[str, str] = dict(self.pax_globals)
        while True:
            block = self._read(position, BLOCK)
            if block == _ZERO and position == start:
                return None
            if not _valid(block):
                extended = block[156:157] in (b"x", b"L", b"K") or block[:100].startswith((b"././@", b"PaxHeader"))
                name = self._extended_hint(position) if extended else _name_hint(block)
                raise _BadHeader(position, "a tar header is damaged", name, extended)
            kind, size = block[156:157], _number(block[124:136])
            if kind not in (b"x", b"g", b"X", b"L", b"K"):
                break
            payload = self._extended(position, size)
            if kind == b"L":
                long_name = _text(payload)
            elif kind == b"K":
                long_link = _text(payload)
            else:
                records = _pax_records(payload, position)
                (self.pax_globals if kind == b"g" else pax).update(records)
                pax.update(records)
            position += BLOCK + _padded(size)
        size = int(pax["size"]) if pax.get("size", "").isdecimal() else size
        name = pax.get("GNU.sparse.name") or pax.get("path") or long_name or _ustar_name(block)
        link = pax.get("linkpath") or long_link or _text(block[157:257])
        sparse = kind == b"S" or any(word.startswith("GNU.sparse") for word in pax)
        payload_at = position + BLOCK + self._sparse_map(block, position, kind)
        stored = size if kind in _REGULAR or kind not in b"123456" else 0
        if kind in b"0\0" and name.endswith("/"):
            kind, stored = b"5", 0
        return _Header(name, kind, payload_at, size, start, payload_at + _padded(stored), link, sparse)

    def _read(self, position: int, length: int) -> bytes:
        self.file.seek(position)
        data = self.file.read(length)
        if len(data) < length:
            raise _BadHeader(position, f"the file ends inside a header: {len(data)} of {length} bytes")
        return data

    def _extended(self, position: int, size: int) -> bytes:
        if size > _MAX_EXTENDED:
            raise _BadHeader(position, f"an extended header declares {size} bytes")
        return self._read(position + BLOCK, size)

    def _extended_hint(self, position: int) -> str:
        """The name in the pax or GNU long-name record that follows a damaged header, if it can still be read."""
        self.file.seek(position + BLOCK)
        payload = self.file.read(2 * BLOCK)
        try:
            name = _pax_records(payload, position).get("path", "")
        except _BadHeader:
            name = _text(payload)
        return name if name.isprintable() and split_name(name) else ""

    def _sparse_map(self, block: bytes, position: int, kind: bytes) -> int:
        """Bytes of old GNU sparse extension blocks after the header."""
        extra = 0
        more = kind == b"S" and block[482] == 1
        while more:
            extra += BLOCK
            more = self._read(position + extra, BLOCK)[504] == 1
        return extra

    def _cut_short(self, held: TarMember | None) -> int | None:
        """Offset of a header before the end of `held`: bytes of it are missing. None for archives in archives."""
        if held is None or held.name.lower().endswith(_ARCHIVES):
            return None
        stop = min(held.offset + _padded(held.length), self.size)
        found = self._find(held.offset, stop)
        return found if held.offset <= found < stop else None

    def _after_end(self, position: int) -> tuple[int, Damage | None]:
        """Looks behind a zero block: nothing but zeros, or members that a plain reader would not see."""
        found = self._find(position)
        if found < self.size:
            return found, Damage(position, f"zero blocks inside the archive; a header follows at byte {found}")
        for at in range(position, self.size, _SCAN):
            self.file.seek(at)
            if self.file.read(min(_SCAN, self.size - at)).strip(b"\0"):
                return self.size, Damage(position, "bytes that are no tar header follow the end-of-archive blocks")
        return self.size, None

    def _find(self, start: int, stop: int | None = None) -> int:
        """First offset in [start, stop) of a valid header: at a block boundary, or anywhere by ustar's magic."""
        stop = self.size if stop is None else stop
        for base in range(start, stop, _SCAN):
            self.file.seek(base)
            chunk = self.file.read(_SCAN + BLOCK - 1)
            aligned = range(-base % BLOCK, len(chunk), BLOCK)
            candidates = {at for at in aligned if chunk[at] and at + 156 < len(chunk) and chunk[at + 156] in _TYPES}
            candidates.update(match.start() - 257 for match in re.finditer(rb"ustar", chunk))
            for at in sorted(candidates):
                if 0 <= at < _SCAN and base + at < stop and _valid(chunk[at : at + BLOCK]):
                    return base + at
        return stop


def _sort_out(header: _Header, member: TarMember) -> tuple[TarMember | None, Damage | None]:
    """A regular member, or the reason why it cannot be one, or neither (directories, devices)."""
    if header.sparse:
        message = f"{header.name!r} is a GNU sparse file, which is not supported: repack it without --sparse"
        return None, Damage(header.header_offset, message, header.name, True)
    if header.type in _LINKS:
        message = f"{header.name!r} is a {_LINKS[header.type]} to {header.link!r}, which is not followed"
        return None, Damage(header.header_offset, message, header.name, True)
    return (member if header.type in _REGULAR else None), None


def _cut(member: TarMember, end: int) -> Damage:
    message = f"{member.name!r} holds {max(0, end - member.offset)} of its {member.length} bytes"
    return Damage(member.header_offset, message, member.name, True)


def _valid(block: bytes) -> bool:
    """Checksum right? It is the sum of the header's bytes with its own field as spaces; some old tars summed signed."""
    if len(block) < BLOCK or not block[0]:
        return False
    field = block[148:156].strip(b"\0 ")
    if not field.isdigit():
        return False
    try:
        declared = int(field, 8)
    except ValueError:
        return False
    total = sum(block) - sum(block[148:156]) + 256
    return declared == total or declared == total - 256 * sum(byte > 127 for byte in block[:148] + block[156:])


def _number(field: bytes) -> int:
    """Octal text, or GNU base-256 when the first bit is set."""
    if field[0] & 0x80:
        return int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
    digits = field.split(b"\0")[0].strip()
    return int(digits, 8) if digits else 0


def _padded(size: int) -> int:
    return size + -size % BLOCK


def _text(raw: bytes) -> str:
    """UTF-8 up to the first NUL; bytes that are not UTF-8 become `\\xNN`, so that every name can be stored."""
    return raw.split(b"\0", 1)[0].decode("utf-8", "backslashreplace")


def _ustar_name(block: bytes) -> str:
    name = _text(block[:100])
    if block[257:265] == b"ustar\x0000" and block[345]:
        return f"{_text(block[345:500])}/{name}"
    return name


def _name_hint(block: bytes) -> str:
    """The name in a damaged header, if what stands there still looks like a member's name."""
    name = _ustar_name(block)
    return name if name.isprintable() and "\\x" not in name and split_name(name) else ""


def _pax_records(payload: bytes, offset: int) -> dict[str, str]:
    """`LENGTH KEYWORD=VALUE\\n` records; LENGTH counts the whole record in bytes."""
    records: dict[str, str] = {}
    at = 0
    while at < len(payload) and payload[at]:
        match = _PAX_RECORD.match(payload, at)
        end = at + int(match.group(1)) if match else 0
        if match is None or not match.end() < end <= len(payload) or payload[end - 1 : end] != b"\n":
            raise _BadHeader(offset, "a pax header is damaged", extended=True)
        value = payload[match.end() : end - 1]
        records[match.group(2).decode("utf-8", "backslashreplace")] = value.decode("utf-8", "backslashreplace")
        at = end
    return records
