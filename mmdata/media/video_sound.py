"""The sound track of a video that is written anew: copied packet by packet, or cut to the clip and re-encoded, in sync.

Streams: holds one packet or one codec frame at a time, and hands out packets as far as the picture has come.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from mmdata.errors import UnreadableMedia, UnsupportedMedia
from mmdata.media.video_open import Source, best_stream, open_container, packets, translated

if TYPE_CHECKING:
    from av.audio.stream import AudioStream
    from av.container import OutputContainer
    from av.packet import Packet

COPYABLE = {"mp4": frozenset({"aac", "mp3", "ac3"}), "webm": frozenset({"opus", "vorbis"})}
"""Sound codecs that a container takes as they are."""

ENCODER = {"mp4": ("aac", 128_000), "webm": ("libopus", 96_000)}
"""Encoder and bit rate (two channels) of re-encoded sound."""

AAC_RATES = frozenset({7350, 8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000, 64000, 88200, 96000})
"""Rates that AAC knows (ISO/IEC 14496-3, table 1.18)."""

PREROLL_S = 0.5
"""Decoding begins this much before the clip: overlapped transforms need a frame or two before they are right."""

GAP_S = 0.02
"""A hole in the time stamps longer than this is silence; shorter ones are rounding."""


class Sound:
    """The sound between two moments of `source`, becoming a track of `output`. Close it after the last packet.

    `start` and `end` are seconds on the clock of the source. `whole`: the picture track is kept from end to end, so
    the sound may be copied. `track` is None when the source has no sound.
    """

    def __init__(
        self, source: Source, output: OutputContainer, container: str, start: float, end: float, *, whole: bool
    ) -> None:
        self._input = open_container(source)
        self._packets: Iterator[Packet[Any]] = iter(())
        self._waiting: Packet[Any] | None = None
        stream = best_stream(self._input, "audio")
        self.track: AudioStream | None = None
        if stream is None:
            return
        if stream.codec_context is None:
            raise UnsupportedMedia("no decoder is installed for the sound track")
        if whole and stream.codec_context.codec.canonical_name in COPYABLE[container]:
            self.track = output.add_stream_from_template(stream)
            self._packets = self._copied(stream, start)
        else:
            name, bit_rate = ENCODER[container]
            own = stream.codec_context.sample_rate
            rate = own if name == "aac" and own in AAC_RATES else 48_000
            channels = stream.codec_context.channels
            layout = {1: "mono", 6: "5.1"}.get(channels, "stereo")
            track: Any = output.add_stream(name, rate=rate, layout=layout)
            track.bit_rate = bit_rate * {"mono": 1, "stereo": 2, "5.1": 5}[layout] // 2
            track.codec_context.thread_count = 1
            self.track = track
            self._packets = self._encoded(stream, layout, rate, start, end)

    def close(self) -> None:
        """Free the decoder."""
        self._input.close()

    def before(self, seconds: float) -> Iterator[Packet[Any]]:
        """The packets not yet given that begin before `seconds` after the start of the clip."""
        while True:
            packet = self._waiting or next(self._packets, None)
            self._waiting = None
            if packet is None:
                return
            if packet.pts is not None and float(packet.pts * packet.time_base) >= seconds:
                self._waiting = packet
                return
            yield packet

    def _copied(self, stream: AudioStream, start: float) -> Iterator[Packet[Any]]:
        with translated():
            for packet in packets(self._input, stream):
                if packet.dts is None:
                    continue
                offset = round(start / packet.time_base)
                packet.dts -= offset
                packet.pts = packet.dts if packet.pts is None else packet.pts - offset
                assert self.track is not None
                packet.stream = self.track
                yield packet

    def _encoded(self, stream: AudioStream, layout: str, rate: int, start: float, end: float) -> Iterator[Packet[Any]]:
        from av.audio.frame import AudioFrame

        assert self.track is not None
        encoder = self.track.codec_context
        if not encoder.is_open:
            encoder.open()
        step, position, kept = encoder.frame_size or 1024, 0, np.empty((0, 0), np.float32)

        def frame(samples: np.ndarray) -> AudioFrame:
            made = AudioFrame.from_ndarray(np.ascontiguousarray(samples), format="fltp", layout=layout)
            made.sample_rate, made.pts, made.time_base = rate, position, Fraction(1, rate)
            return made

        for samples in self._resampled(stream, layout, rate, start, end):
            kept = samples if not kept.size else np.concatenate([kept, samples], axis=1)
            while kept.shape[1] >= step:
                yield from self.track.encode(frame(kept[:, :step]))
                kept, position = kept[:, step:], position + step
        if kept.size:
            yield from self.track.encode(frame(kept))
        yield from self.track.encode(None)

    def _resampled(self, stream: AudioStream, layout: str, rate: int, start: float, end: float) -> Iterator[np.ndarray]:
        from av.audio.frame import AudioFrame
        from av.audio.resampler import AudioResampler

        own = stream.codec_context.sample_rate
        resampler = AudioResampler(format="fltp", layout=layout, rate=rate) if own != rate else None
        position = 0
        for samples in self._clipped(stream, layout, own, start, end):
            if resampler is None:
                yield samples
                continue
            frame = AudioFrame.from_ndarray(np.ascontiguousarray(samples), format="fltp", layout=layout)
            frame.sample_rate, frame.pts, frame.time_base = own, position, Fraction(1, own)
            position += samples.shape[1]
            yield from (out.to_ndarray() for out in resampler.resample(frame))
        if resampler is not None and position:
            yield from (out.to_ndarray() for out in resampler.resample(None))

    def _clipped(self, stream: AudioStream, layout: str, rate: int, start: float, end: float) -> Iterator[np.ndarray]:
        """Samples [C, n] at the source's rate from exactly `start` to `end`, holes filled with silence."""
        position, total = 0, max(0, round((end - start) * rate))
        for frame, seconds in self._decoded(stream, layout, rate, start):
            samples = frame
            at = round((seconds - start) * rate)
            if at - position > GAP_S * rate:
                hole = min(at, total) - position
                yield np.zeros((samples.shape[0], hole), np.float32)
                position += hole
            elif position - at > GAP_S * rate or position == 0:
                samples = samples[:, max(0, position - at) :]
            samples = samples[:, : total - position]
            if samples.shape[1]:
                yield samples
                position += samples.shape[1]
            if position >= total:
                return

    def _decoded(self, stream: AudioStream, layout: str, rate: int, start: float) -> Iterator[tuple[np.ndarray, float]]:
        """Decoded chunks as float32 [C, n] with their time in seconds on the clock of the source."""
        import av

        resampler = av.AudioResampler(format="fltp", layout=layout, rate=rate)
        stream.codec_context.thread_count = 1
        with translated():
            if start > 2 * PREROLL_S:
                self._input.seek(int((start - PREROLL_S) * 1_000_000), backward=True)
            clock: float | None = None
            for packet in itertools.chain(packets(self._input, stream), [None]):
                for decoded in stream.decode(packet):
                    seconds = decoded.time if decoded.pts is not None else clock
                    if seconds is None:
                        raise UnreadableMedia("the sound track has no time stamps")
                    clock = seconds + decoded.samples / decoded.sample_rate
                    decoded.pts = None
                    for out in resampler.resample(decoded):
                        yield out.to_ndarray(), seconds
