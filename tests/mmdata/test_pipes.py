"""Records and rings: what goes in comes out, in order, whatever the sizes and however it is cut up on the way."""

from __future__ import annotations

import os
import threading

from hypothesis import given, settings
from hypothesis import strategies as st

from mmdata.pipes import PIPE_BYTES, Receiver, Record, Ring, Sender, frame, pack, pickled_error, pipe

SIZES = st.lists(st.sampled_from([0, 1, 27, 28, 1000, 65536, PIPE_BYTES - 29, PIPE_BYTES - 28, PIPE_BYTES, 2_000_001]))


@settings(max_examples=30, deadline=None)
@given(sizes=SIZES)
def test_records_arrive_whole_and_in_order(sizes: list[int]) -> None:
    read, write = pipe()
    try:
        sender, receiver = Sender(write), Receiver(read)
        payloads = [bytes([i % 251]) * size for i, size in enumerate(sizes)]
        for i, payload in enumerate(payloads):
            sender.put(frame(i, [payload[:100], payload[100:]], kind=i % 3, seconds=i / 7))
        records: list[Record] = []
        while len(records) < len(sizes):
            sender.pump()
            records += receiver.read(100_000)
        assert sender.pending == 0
        assert [bytes(r.payload) for r in records] == payloads
        assert [(r.tag, r.kind, r.seconds) for r in records] == [(i, i % 3, i / 7) for i in range(len(sizes))]
        assert not receiver.ended
    finally:
        os.close(read)
        os.close(write)


def test_a_record_cut_by_its_writers_death_is_dropped() -> None:
    read, write = pipe()
    receiver = Receiver(read)
    whole = b"".join(frame(1, [b"whole"]) + frame(2, [b"cut off"]))
    os.write(write, whole[:-1])
    os.close(write)
    assert [(r.tag, r.payload) for r in receiver.read(1000)] == [(1, b"whole")]
    assert receiver.ended
    os.close(read)


def test_pump_does_not_block_and_survives_a_reader_that_is_gone() -> None:
    read, write = pipe()
    sender = Sender(write)
    sender.put([bytes(3 * PIPE_BYTES)])
    done = threading.Event()
    threading.Thread(target=lambda: (sender.pump(), done.set()), daemon=True).start()
    assert done.wait(5)
    assert sender.pending > 0
    os.close(read)
    sender.pump()
    os.close(write)


def test_large_bytes_are_pickled_without_a_copy() -> None:
    media = bytes(100_000)
    assert any(chunk is media for chunk in pack({"key": "a", "media": media}))


@settings(max_examples=100, deadline=None)
@given(sizes=st.lists(st.integers(0, 120), max_size=60), lag=st.integers(0, 5))
def test_a_ring_never_overwrites_what_was_not_read(sizes: list[int], lag: int) -> None:
    ring = Ring(memoryview(bytearray(100)))
    unread: list[tuple[int, bytes]] = []
    for i, size in enumerate(sizes):
        payload = bytes([i % 256]) * size
        position = ring.put([payload[: size // 2], payload[size // 2 :]], size)
        assert position is not None or size > 100 or unread
        if position is not None:
            unread.append((position, payload))
        assert all(bytes(ring.get(at, len(data))) == data for at, data in unread)
        while len(unread) > lag:
            at, data = unread.pop(0)
            ring.free(at + len(data))


def test_a_ring_with_all_read_takes_a_payload_of_its_whole_size() -> None:
    ring = Ring(memoryview(bytearray(100)))
    for _ in range(5):
        position = ring.put([bytes(60)], 60)
        assert position is not None
        ring.free(position + 60)
    assert ring.put([bytes(100)], 100) is not None
    assert ring.put([b"x"], 1) is None


def test_an_error_that_cannot_be_read_back_is_not_sent_as_itself() -> None:
    class Local(Exception):
        pass

    assert pickled_error(ValueError("a")) is not None
    assert pickled_error(Local()) is None
