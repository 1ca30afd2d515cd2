"""Both halves of the output path over real pipes: whatever the timing, the order is the writer's."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from kernelbox.inside.interrupts import Interrupts
from kernelbox.inside.lifeline import Lifeline, LifelineClosed
from kernelbox.inside.outlets import Outlets
from kernelbox.reactor import Peer, Reactor
from kernelbox.warden.streams import Streams

TOKEN = "0123456789abcdef"
NAMES = ("stdout", "stderr")


class Line:
    """A writer as the interpreter has it, a reader as the warden has it, and what was read."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []
        self.reactor = Reactor()
        pipes = [os.pipe(), os.pipe()]
        self.ends = [pipe[1] for pipe in pipes]
        near, far = socket.socketpair()
        self.outlets = Outlets(self.ends[0], self.ends[1], TOKEN)
        self.lifeline = Lifeline(far, self.outlets, Interrupts())
        self.peer = Peer(
            self.reactor,
            near,
            on_frame=self._arrived,
            on_close=lambda: None,
        )
        self.streams = Streams(
            self.reactor,
            (pipes[0][0], pipes[1][0]),
            TOKEN,
            on_text=lambda name, text: self.heard.append((name, text)),
            on_frame=lambda frame: self.heard.append(("frame", str(frame["is"]))),
            poll_frames=self.peer.poll,
            pause_frames=self.peer.pause,
        )

    def _arrived(self, frame: dict[str, object]) -> None:
        self.streams.take_frame(frame)

    def write(self, which: int, text: str) -> None:
        self.outlets.write(which, text.encode())

    def send(self, n: object) -> None:
        self.lifeline.send({"is": n})

    def read_until(self, frame: object, *, seconds: float = 5) -> None:
        deadline = time.monotonic() + seconds
        while ("frame", str(frame)) not in self.heard:
            assert time.monotonic() < deadline, f"frame {frame} did not come: {self.heard}"
            self.reactor.turn(0.01)

    def close(self) -> None:
        self.streams.close()
        self.peer.close()
        self.lifeline.detach()
        self.reactor.close()
        for end in self.ends:
            os.close(end)


@pytest.fixture
def line() -> Iterator[Line]:
    made = Line()
    yield made
    made.close()


def joined(log: list[tuple[str, str]]) -> list[tuple[str, str]]:
    result: list[tuple[str, str]] = []
    for name, text in log:
        if result and result[-1][0] == name != "frame":
            result[-1] = (name, result[-1][1] + text)
        else:
            result.append((name, text))
    return result


@pytest.mark.parametrize("eagerness", [0.0, 0.1, 0.5, 1.0])
def test_the_order_is_the_writers_whatever_the_timing(eagerness: float) -> None:
    """Prints to both streams, C-level writes and frames, read now and then or all the time."""
    for seed in range(12):
        chance = random.Random(seed)
        line = Line()
        try:
            said: list[tuple[str, str]] = []
            last = 0
            for n in range(120):
                match chance.randint(0, 4):
                    case 0 | 1 | 2:
                        last = chance.randint(0, 1)
                        text = f"{n} ü\n" * chance.choice([1, 1, 1, 40])
                        line.write(last, text)
                        said.append((NAMES[last], text))
                    case 3 if said and said[-1][0] == NAMES[last]:
                        # Like a subprocess, right after our own write to the same stream.
                        os.write(line.ends[last], f"{n} raw\n".encode())
                        said.append((NAMES[last], f"{n} raw\n"))
                    case _:
                        line.send(n)
                        said.append(("frame", str(n)))
                if chance.random() < eagerness:
                    line.reactor.turn(chance.choice([0, 0, 0.003]))
            line.send("last")
            said.append(("frame", "last"))
            line.read_until("last")
            assert joined(line.heard) == joined(said), f"seed {seed}"
        finally:
            line.close()


def test_a_reader_in_another_thread_hears_the_same(line: Line) -> None:
    """The real thing: writer and reader run at the same time."""
    said: list[tuple[str, str]] = []

    def talk() -> None:
        chance = random.Random(1)
        for n in range(3000):
            which = chance.randint(0, 2)
            if which == 2:
                line.send(n)
                said.append(("frame", str(n)))
            else:
                line.write(which, f"{n}\n")
                said.append((NAMES[which], f"{n}\n"))
        line.send("last")
        said.append(("frame", "last"))

    writer = threading.Thread(target=talk)
    writer.start()
    line.read_until("last", seconds=20)
    writer.join()
    assert joined(line.heard) == joined(said)


def test_a_number_that_is_lost_holds_nothing_back(line: Line) -> None:
    """An interrupt may hit between the count and the write."""
    line.write(0, "a")
    line.outlets._number += 5
    line.write(1, "b")
    line.outlets._number += 1
    line.send("done")
    line.read_until("done")
    assert joined(line.heard) == [("stdout", "a"), ("stderr", "b"), ("frame", "done")]


def test_a_frame_that_cannot_be_sent_holds_nothing_back(line: Line) -> None:
    line.write(0, "a")
    with pytest.raises(TypeError):
        line.lifeline.send({"is": {(1, 2): 3}})
    line.write(0, "b")
    line.write(1, "c")
    line.send("done")
    line.read_until("done")
    assert joined(line.heard) == [("stdout", "ab"), ("stderr", "c"), ("frame", "done")]


def test_forged_marks_disorder_only_their_own_output(line: Line) -> None:
    for number in range(3000, 0, -1):
        forged = b"\x1e\x00" + TOKEN.encode() + b"%012x\x1e" % (number * 10**9)
        os.write(line.ends[number % 2], b"x" + forged)
        if number % 500 == 0:
            line.reactor.turn(0)
    line.write(1, "honest")
    line.send("done")
    line.read_until("done")

    def heard() -> str:
        return "".join(text for name, text in line.heard if name != "frame")

    # What is marked as later may come later, on a busy machine also after that frame.
    deadline = time.monotonic() + 5
    while heard().count("x") < 3000 and time.monotonic() < deadline:
        line.reactor.turn(0.01)
    assert heard().count("x") == 3000
    assert heard().count("honest") == 1


def test_a_writer_that_never_stops_does_not_keep_the_reader_from_its_frames(line: Line) -> None:
    stop = threading.Event()

    def flood() -> None:
        while not stop.is_set():
            os.write(line.ends[0], b"y\n" * 8192)

    def talk() -> None:
        line.write(1, "mine")
        line.send("done")

    writers = [threading.Thread(target=flood), threading.Thread(target=talk)]
    for writer in writers:
        writer.start()
    try:
        line.read_until("done", seconds=10)
    finally:
        stop.set()
        while any(writer.is_alive() for writer in writers):
            line.reactor.turn(0.01)
    assert ("stderr", "mine") in line.heard


def test_a_flood_of_frames_is_left_in_the_socket_while_we_cannot_keep_up() -> None:
    line = Line()
    stop = threading.Event()
    handled = 0

    def slow(frame: dict[str, object]) -> None:
        nonlocal handled
        handled += 1
        time.sleep(0.0005)

    line.streams._on_frame = slow
    most_held = 0

    def flood() -> None:
        number = 0
        with contextlib.suppress(LifelineClosed):
            while not stop.is_set():
                number += 1
                line.send(number)

    writer = threading.Thread(target=flood)
    writer.start()
    timers: list[float] = []
    try:
        deadline = time.monotonic() + 1.5
        while time.monotonic() < deadline:
            started = time.monotonic()
            line.reactor.turn(0.01)
            timers.append(time.monotonic() - started)
            most_held = max(most_held, len(line.streams._frames))
    finally:
        stop.set()
        line.peer.close()
        writer.join()
        line.streams.close()
        line.close()
    assert handled > 100
    assert max(timers) < 0.5, "somebody else has had to wait"
    assert most_held < 60_000, "two looks' worth of the smallest frames"


def test_what_fails_on_one_frame_is_no_end_for_the_next(line: Line) -> None:
    heard: list[object] = []

    def told(frame: dict[str, object]) -> None:
        if frame["is"] == "bad":
            raise ValueError("a bug")
        heard.append(frame["is"])

    line.streams._on_frame = told
    for word in ("bad", "good"):
        line.send(word)
    line.write(0, "text")
    with pytest.raises(ValueError, match="a bug"):
        line.read_until("never")
    deadline = time.monotonic() + 5
    while (heard, line.heard) != (["good"], [("stdout", "text")]):
        assert time.monotonic() < deadline, (heard, line.heard)
        line.reactor.turn(0.01)
