"""Scan one sample: probe or decode its media and take the statistics. Runs inside the sandbox.

Each medium is read once and decoded once, however many statistics look at it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mmdata.errors import DecompressionBomb, EmptyMedia, MediaError, UnreadableMedia
from mmdata.operators.chain import HEAD_BYTES, STATISTIC_FRAMES, Setup, Source, as_bytes, final_fields, load, named
from mmdata.operators.registry import Context, catalog_column
from mmdata.recipe import Limits
from mmdata.schema import ANIMATED, Kind, MediaInfo, MediaRef, SourceSample


def measure(item: tuple[str, SourceSample], setup: Setup) -> dict[str, Any]:
    """Probe or decode every medium of a (leaf, sample) pair and take its statistics.

    Returns `{"media": [dict of MediaRef, MediaInfo, size_bytes, digest], "stats": {column: value}}`. A statistic of a
    sample with several media of its modality is their mean; text statistics see the text after the text transforms.
    Raises MediaError for the first medium that is bad.
    """
    leaf, sample = item
    rows = []
    values: dict[str, list[Any]] = {}
    for ref in sample.media:
        row, stats = _measure_medium(ref, setup)
        rows.append(row)
        for name, value in stats.items():
            values.setdefault(name, []).append(value)
    context = Context(setup.seed, leaf, 0, sample.key)
    text = main_text(final_fields(sample.fields, context, setup))
    if text is not None:
        values["text_chars"] = [len(text)]
        for statistic in setup.statistics.get("text", ()):
            for name, value in named(statistic, lambda each=statistic: each.measure(text)).items():
                values[catalog_column(name)] = [value]
    return {"media": rows, "stats": {name: _mean(found) for name, found in values.items()}}


def main_text(fields: Mapping[str, Any]) -> str | None:
    """The text of a sample that lengths are counted on: its `txt`, else the words of its conversation, else None."""
    if isinstance(fields.get("txt"), str):
        return str(fields["txt"])
    document = fields.get("json")
    if isinstance(document, Mapping) and isinstance(document.get("messages"), Sequence):
        return "\n".join(_spoken(message) for message in document["messages"] if isinstance(message, Mapping))
    return None


def _spoken(message: Mapping[str, Any]) -> str:
    """The text parts of one message in OpenAI's form."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, Sequence) else ()
    return "".join(str(part.get("text", "")) for part in parts if isinstance(part, Mapping))


def _mean(values: list[Any]) -> Any:
    present = [value for value in values if value is not None]
    if len(present) <= 1:
        return present[0] if present else None
    mean = sum(present) / len(present)
    return round(mean) if all(isinstance(value, int) for value in present) else mean


def _measure_medium(ref: MediaRef, setup: Setup) -> tuple[dict[str, Any], dict[str, Any]]:
    kind: Kind = ref.kind
    whole = setup.check == "decode" or setup.digest or bool(setup.statistics.get(kind))
    source, size, digest = load(ref, setup, whole=whole)
    info = MediaInfo()
    stats: dict[str, Any] = {}
    if kind == "video" and ref.field.rpartition(".")[2] in ANIMATED and not _moves(source, ref, setup):
        kind = "image"
    if kind == "image":
        info = _probe_image(source, ref, setup)
        if whole and (setup.check == "decode" or setup.statistics.get("image")):
            info, stats = _decode_image(as_bytes(source), info, setup)
    elif kind == "video":
        try:
            info, stats = _measure_video(source, setup)
        except EmptyMedia as no_picture:  # a .webm or .mp4 may hold sound alone
            try:
                info, stats = _measure_audio(source, setup)
            except MediaError:
                raise no_picture from None
            kind = "audio"
    elif kind == "audio":
        info, stats = _measure_audio(source, setup)
    _within(info, setup.limits)
    _storable(info)
    row = _values(ref) | _values(info) | {"kind": kind, "size_bytes": size, "digest": digest}
    row["length"] = size if ref.length is None else ref.length
    return row, stats


def _values(record: MediaRef | MediaInfo) -> dict[str, Any]:
    """Fields and values: `dataclasses.asdict` without its copies, since every value is a plain one."""
    return {name: getattr(record, name) for name in record.__slots__}


def _within(info: MediaInfo, limits: Limits) -> None:
    if limits.max_seconds is not None and (info.duration or 0) > limits.max_seconds:
        raise DecompressionBomb(f"lasts {info.duration:.1f} s, over limits.max_seconds {limits.max_seconds:g}")


_LARGEST = {"width": 31, "height": 31, "frames": 31, "sample_rate": 31, "channels": 15, "bits": 15}
"""Bits of the catalog's columns, without the sign."""


def _storable(info: MediaInfo) -> None:
    """Refuse what only a lying header says: four thousand million frames."""
    for name, bits in _LARGEST.items():
        if not 0 <= (getattr(info, name) or 0) < 1 << bits:
            raise UnreadableMedia(f"the header declares {name} {getattr(info, name)}, which cannot be")


def _probe_image(source: Source, ref: MediaRef, setup: Setup) -> MediaInfo:
    from mmdata.media import image

    data, limits = as_bytes(source), setup.limits
    head = len(data) == HEAD_BYTES and len(data) != ref.length
    try:
        return image.probe(data, max_pixels=limits.max_pixels, truncated="reject" if head else limits.truncated)
    except MediaError:
        if not head:
            raise
    rest = (
        setup.storage.read(ref.uri)
        if ref.offset is None
        else setup.storage.read_range(ref.uri, ref.offset, ref.length or 0)
    )
    return image.probe(rest, max_pixels=limits.max_pixels, truncated=limits.truncated)


def _moves(source: Source, ref: MediaRef, setup: Setup) -> bool:
    """Whether a GIF, WebP, PNG or AVIF that the recipe takes for a video has more than one frame."""
    return (_probe_image(source, ref, setup).frames or 1) > 1


def _decode_image(data: bytes, info: MediaInfo, setup: Setup) -> tuple[MediaInfo, dict[str, Any]]:
    from mmdata.media import image

    picture = image.decode(
        data, alpha=setup.decode.alpha, max_pixels=setup.limits.max_pixels, truncated=setup.limits.truncated
    )
    stats: dict[str, Any] = {}
    for statistic in setup.statistics.get("image", ()):
        stats |= _columns(named(statistic, lambda each=statistic: each.measure(picture)))
    return replace(info, width=picture.width, height=picture.height), stats


def _measure_video(source: Source, setup: Setup) -> tuple[MediaInfo, dict[str, Any]]:
    from mmdata.media import video

    limits = setup.limits
    if setup.check == "decode":
        info = video.decode_all(source, max_pixels=limits.max_pixels, truncated=limits.truncated)
    else:
        info = video.probe(source, exact=setup.exact_frames, max_pixels=limits.max_pixels, truncated=limits.truncated)
    stats: dict[str, Any] = {}
    if setup.statistics.get("video"):
        times = video.frame_times(source)
        chosen = video.sample_indices(times, count=min(STATISTIC_FRAMES, len(times)))
        frames = list(video.read_frames(source, chosen))
        for statistic in setup.statistics["video"]:
            stats |= _columns(named(statistic, lambda each=statistic: each.measure(frames)))
    return info, stats


def _measure_audio(source: Source, setup: Setup) -> tuple[MediaInfo, dict[str, Any]]:
    from mmdata.media import audio

    limits = setup.limits
    if setup.check == "decode":
        info = audio.decode_all(source, max_seconds=limits.max_seconds, truncated=limits.truncated)
    else:
        info = audio.probe(source, truncated=limits.truncated)
    stats: dict[str, Any] = {}
    if setup.statistics.get("audio"):
        _within(info, setup.limits)
        sound = audio.decode(source, max_seconds=limits.max_seconds, truncated=limits.truncated)
        for statistic in setup.statistics["audio"]:
            stats |= _columns(named(statistic, lambda each=statistic: each.measure(sound)))
    return info, stats


def _columns(values: Mapping[str, Any]) -> dict[str, Any]:
    return {catalog_column(name): value for name, value in values.items()}
