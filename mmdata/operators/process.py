"""Build one sample: run the transforms over its media and fields and encode the members. Runs inside the sandbox.

A medium is decoded once for the whole chain. A chain that changes nothing copies the bytes, after one decode that
proves them where the scan has not.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import xxhash

from mmdata.errors import EmptyMedia, InvalidSample, MediaError
from mmdata.media.prove import prove
from mmdata.operators.chain import Setup, Source, as_bytes, final_fields, load, named, steps
from mmdata.operators.registry import Context
from mmdata.recipe import Encode
from mmdata.schema import MediaInfo, MediaRef

if TYPE_CHECKING:
    from mmdata.media.audio_encode import AudioFormat
    from mmdata.media.image import Format
    from mmdata.media.video_write import Codec

IMAGE_EXTENSIONS = {"jpeg": "jpg", "png": "png", "webp": "webp", "avif": "avif"}
VIDEO_EXTENSIONS = {"h264": "mp4", "av1": "mp4", "vp9": "webm"}
AUDIO_EXTENSIONS = {"flac": "flac", "wav": "wav", "opus": "opus"}


@dataclass(frozen=True, slots=True)
class BuildItem:
    """One sample to process: the catalog's account of it, and what the plan decided."""

    key: str
    leaf: str
    media: tuple[tuple[MediaRef, MediaInfo, str | None], ...]
    """Each medium with its catalog digest (None when the scan took none)."""
    fields: dict[str, Any]
    check: bool
    """Whether media that are copied must be decoded once to prove that they can be."""
    target: tuple[int, int] | None = None
    frames: int | None = None
    duration: float | None = None


@dataclass(frozen=True, slots=True)
class Built:
    """The finished members of a sample, and kind, geometry and source digest of each stored medium."""

    members: tuple[tuple[str, bytes], ...]
    media: tuple[tuple[str, MediaInfo, str], ...]
    fields: dict[str, Any]


def process(item: BuildItem, setup: Setup) -> Built:
    """Transform and encode one sample. Raises MediaError when a medium is bad or an operator fails on it."""
    context = _context(item, setup)
    members, media = [], []
    for ref, info, digest in item.media:
        member, stored, found = _process_medium(ref, info, digest, item.check, context, setup)
        members.append(member)
        media.append((ref.kind, stored, found))
    return _finish(members, media, item, context, setup)


def is_copy(item: BuildItem, setup: Setup) -> bool:
    """Whether `process` would only copy bytes, without decoding: then no sandbox is needed."""
    context = _context(item, setup)
    try:
        return not item.check and all(unchanged(ref.kind, info, context, setup) for ref, info, _ in item.media)
    except MediaError:
        return False  # `process` fails on it where a failure costs one sample


def copy(item: BuildItem, setup: Setup) -> Built:
    """What `process` gives for a sample for which `is_copy` holds."""
    members, media = [], []
    for ref, info, digest in item.media:
        source, found = _fetch(ref, digest, setup)
        members.append((ref.field, as_bytes(source)))
        media.append((ref.kind, info, found))
    return _finish(members, media, item, _context(item, setup), setup)


def unchanged(kind: str, info: MediaInfo, context: Context, setup: Setup) -> bool:
    """Whether the medium is stored as it came: no transform changes it and its format is the one asked for."""
    if kind not in ("image", "video", "audio"):
        return True
    if stored_format(kind, info, setup.encode, changed=False) is not None:
        return False
    chain = steps(kind, context, setup)
    return all(named(transform, lambda t=transform, c=its: t.is_noop(info, c)) for transform, its in chain)


def stored_format(kind: str, info: MediaInfo, encode: Encode, *, changed: bool) -> str | None:
    """Format (video: codec) that a medium is encoded in; None when it keeps its bytes.

    `keep` encodes a changed medium in its own format where that can be written, else as JPEG, H.264 or FLAC.
    """
    wanted, own, writable, default = {
        "image": (encode.image.format, info.format, IMAGE_EXTENSIONS, "jpeg"),
        "video": (encode.video.codec, info.codec, VIDEO_EXTENSIONS, "h264"),
        "audio": (encode.audio.format, info.codec if info.codec == "opus" else info.format, AUDIO_EXTENSIONS, "flac"),
    }[kind]
    if wanted == "keep":
        return None if not changed else own if own in writable else default
    return wanted if changed or wanted != own else None


def stored_field(field: str, kind: str, format: str) -> str:
    """Member extension of a re-encoded medium: `0.png` written as JPEG becomes `0.jpg`."""
    extension = {"image": IMAGE_EXTENSIONS, "video": VIDEO_EXTENSIONS, "audio": AUDIO_EXTENSIONS}[kind][format]
    head, dot, last = field.rpartition(".")
    same = {"jpeg": "jpg", "jpe": "jpg", "jfif": "jpg", "oga": "opus"}.get(last, last) == extension
    return field if same else f"{head}{dot}{extension}"


def possible_fields(field: str, kind: str, info: MediaInfo, encode: Encode, *, transformed: bool) -> set[str]:
    """The member extensions under which a medium of this format may be stored: as it came, or re-encoded."""
    if kind not in ("image", "video", "audio"):
        return {field}
    converted = stored_format(kind, info, encode, changed=False)
    names = {field if converted is None else stored_field(field, kind, converted)}
    if transformed:
        format = stored_format(kind, info, encode, changed=True)
        assert format is not None, "a changed medium has a format"
        names.add(stored_field(field, kind, format))
    return names


def encode_fields(fields: Mapping[str, Any]) -> list[tuple[str, bytes]]:
    """Members that are not media, as WebDataset's decoders read them: JSON for mappings and lists, text otherwise."""
    members = []
    for name, value in fields.items():
        if value is None:
            continue
        plain = isinstance(value, str) and name.rpartition(".")[2] not in ("json", "jsn")
        text = value if plain else json.dumps(value, ensure_ascii=False)
        members.append((name, text.encode("utf-8", "surrogatepass")))
    return members


def _context(item: BuildItem, setup: Setup) -> Context:
    return Context(setup.seed, item.leaf, 0, item.key, item.target, item.frames, item.duration, setup.decode.alpha)


def _finish(
    members: list[tuple[str, bytes]],
    media: Sequence[tuple[str, MediaInfo, str]],
    item: BuildItem,
    context: Context,
    setup: Setup,
) -> Built:
    fields = final_fields(item.fields, context, setup)
    members = members + encode_fields(fields)
    twice = [name for name, count in Counter(name for name, _ in members).items() if count > 1]
    if twice:
        raise InvalidSample(f"two members would be named '{twice[0]}'; rename one in the source")
    if not members:
        raise InvalidSample("the sample has no member: neither media nor text")
    return Built(tuple(members), tuple(media), fields)


def _fetch(ref: MediaRef, digest: str | None, setup: Setup) -> tuple[Source, str]:
    source, size, found = load(ref, setup, whole=True)
    if found is None:
        found = xxhash.xxh3_128_hexdigest(as_bytes(source))
    same = found == digest if digest is not None else ref.length in (None, size) and _unchanged_since_scan(ref, setup)
    if not same:
        raise InvalidSample(f"{ref.uri}: the bytes are not those that were scanned; scan again")
    return source, found


def _unchanged_since_scan(ref: MediaRef, setup: Setup) -> bool:
    """Whether a local file still has the size and time that the scan saw. What lies in a container and objects are held
    to their length alone: the container may be a spooled copy, and a stamp would be one more request a sample."""
    local = setup.storage.local_path(ref.uri) if ref.offset is None else None
    return local is None or not ref.stamp or setup.storage.stat(local).stamp == ref.stamp


def _process_medium(
    ref: MediaRef, info: MediaInfo, digest: str | None, check: bool, context: Context, setup: Setup
) -> tuple[tuple[str, bytes], MediaInfo, str]:
    source, found = _fetch(ref, digest, setup)
    if unchanged(ref.kind, info, context, setup):
        data = as_bytes(source)
        if check:
            limits = setup.limits
            prove(
                ref.kind,
                source,
                max_pixels=limits.max_pixels,
                alpha=setup.decode.alpha,
                truncated=limits.truncated,
            )
        return (ref.field, data), info, found
    format = stored_format(ref.kind, info, setup.encode, changed=True)
    assert format is not None, "a changed medium has a format"
    data, stored = {"image": _image, "video": _video, "audio": _audio}[ref.kind](source, info, format, context, setup)
    return (stored_field(ref.field, ref.kind, format), data), stored, found


def _image(source: Source, info: MediaInfo, format: str, context: Context, setup: Setup) -> tuple[bytes, MediaInfo]:
    from mmdata.media import image

    limits, chain = setup.limits, steps("image", context, setup)
    first = chain[0] if chain else None
    at_least = first[0].at_least(info, first[1]) if first and hasattr(first[0], "at_least") else None
    picture = image.decode(
        as_bytes(source),
        alpha=setup.decode.alpha,
        max_pixels=limits.max_pixels,
        truncated=limits.truncated,
        at_least=at_least,
    )
    for transform, its in chain:
        picture = named(transform, lambda t=transform, c=its, p=picture: t.apply(p, c))
    options = setup.encode.image
    data = image.encode(
        picture,
        cast("Format", format),
        quality=options.quality,
        lossless=options.lossless,
        subsampling=options.subsampling,
    )
    return data, MediaInfo(
        format=format, codec=format, width=picture.width, height=picture.height, frames=1, rotation=0
    )


def _audio(source: Source, info: MediaInfo, format: str, context: Context, setup: Setup) -> tuple[bytes, MediaInfo]:
    from mmdata.media import audio

    sound = audio.decode(source, max_seconds=setup.limits.max_seconds, truncated=setup.limits.truncated)
    for transform, its in steps("audio", context, setup):
        sound = named(transform, lambda t=transform, c=its, s=sound: t.apply(s, c))
    if sound.samples.shape[1] == 0:
        raise EmptyMedia("no sound is left after the transforms")
    options = setup.encode.audio
    data = audio.encode(sound, cast("AudioFormat", format), bits=options.bits, bitrate=options.bitrate)
    channels, samples = sound.samples.shape
    stored = MediaInfo(
        format="ogg" if format == "opus" else format,
        codec=format,
        duration=samples / sound.sample_rate,
        sample_rate=audio.encoded_rate(cast("AudioFormat", format), sound.sample_rate),
        channels=channels,
    )
    return data, stored


def _video(source: Source, info: MediaInfo, format: str, context: Context, setup: Setup) -> tuple[bytes, MediaInfo]:
    from mmdata.media import video

    chain = steps("video", context, setup)
    times = video.frame_times(source)
    indices = np.arange(len(times), dtype=np.int64)
    for transform, its in chain:
        chosen = named(transform, lambda t=transform, c=its, left=indices: t.select(times[left], info, c))
        indices = indices if chosen is None else indices[chosen]
    if not len(indices):
        raise EmptyMedia("no frame is left after the transforms")

    def spatial(frame: np.ndarray) -> np.ndarray:
        for transform, its in chain:
            frame = named(transform, lambda t=transform, c=its, f=frame: t.frame(f, c))
        return frame

    options = setup.encode.video
    data = video.transcode(
        source,
        indices=indices,
        codec=cast("Codec", format),
        spatial=spatial,
        crf=options.crf,
        keyframe_interval=options.keyframe_interval,
        audio=options.audio,
    )
    return data, video.probe(data)
