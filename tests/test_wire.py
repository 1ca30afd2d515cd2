"""Frames: bytes in pieces become the same frames, and garbage is called garbage."""

from __future__ import annotations

import os
import random
import struct

import pytest

from kernelbox import wire
from kernelbox.wire import Decoder, GarbledFrame, build_id, encode

FRAMES = [
    {},
    {"op": "x", "id": 1},
    {"text": "Ünïcödé \0 \ud800 \U0001f600", "n": -1.5e300, "deep": [[{"a": [None, True]}]]},
    {"big": "x" * 300_000},
]


def test_frames_come_back_as_they_went() -> None:
    decoder = Decoder()
    assert decoder.feed(b"".join(map(encode, FRAMES))) == FRAMES
    assert decoder.pending == 0


@pytest.mark.parametrize("seed", range(5))
def test_frames_come_back_however_the_bytes_are_cut(seed: int) -> None:
    chance = random.Random(seed)
    data = b"".join(map(encode, FRAMES[:3] * 3))
    decoder, found = Decoder(), []
    while data:
        piece, data = data[: (n := chance.randint(1, 9))], data[n:]
        found += decoder.feed(piece)
    assert found == FRAMES[:3] * 3


def test_half_a_frame_waits_for_the_rest() -> None:
    data = encode({"a": 1})
    decoder = Decoder()
    assert decoder.feed(data[:-1]) == []
    assert decoder.pending == len(data) - 1
    assert decoder.feed(data[-1:]) == [{"a": 1}]


@pytest.mark.parametrize(
    "body",
    [b"{", b"[1]", b'"x"', b"\xff\xfe", b"", b"[" * 100_000, b'{"a":1}}'],
    ids=["half", "list", "string", "not-utf-8", "empty", "too-deep", "too-much"],
)
def test_what_is_no_frame_is_garbled(body: bytes) -> None:
    with pytest.raises(GarbledFrame):
        Decoder().feed(struct.pack("!I", len(body)) + body)


def test_a_length_past_reason_is_refused_before_it_is_waited_for() -> None:
    with pytest.raises(GarbledFrame, match="over the limit"):
        Decoder().feed(b"\xff\xff\xff\xff")
    with pytest.raises(GarbledFrame):
        Decoder().feed(b"GET / HTTP/1.1\r\n\r\n")


def test_a_frame_that_is_too_big_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_FRAME", 1000)
    with pytest.raises(GarbledFrame, match="1012 bytes"):
        encode({"text": "x" * 1001})


def test_what_json_does_not_know_is_sent_as_text() -> None:
    (frame,) = Decoder().feed(encode({"path": os.path, "set": {1}}))
    assert frame["set"] == "{1}"


def test_a_build_is_comparable_and_the_same_for_the_same_files() -> None:
    assert build_id() == build_id()
    version, newest = build_id()
    assert version >= [0, 2]
    assert newest > 1_600_000_000 * 10**9
    assert [[0, 1, 9], newest] < build_id() < [[99], 0]
