"""The reactor and its peers, over real pipes and sockets."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from kernelbox.reactor import Peer, Reactor, remaining
from kernelbox.wire import Decoder, Frame, encode


@pytest.fixture
def reactor() -> Iterator[Reactor]:
    made = Reactor()
    yield made
    made.close()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    near, far = socket.socketpair()
    far.settimeout(10)
    yield near, far
    near.close()
    far.close()


def turn_until(reactor: Reactor, condition: Callable[[], object], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the reactor never got there"
        reactor.turn(0.05)


class Diary:
    """What a peer was told."""

    def __init__(self, reactor: Reactor, sock: socket.socket, **options: int) -> None:
        self.frames: list[Frame] = []
        self.closed = 0
        self.drained = 0
        self.peer = Peer(
            reactor,
            sock,
            on_frame=self.frames.append,
            on_close=self._closed,
            on_drain=self._drained,
            **options,  # type: ignore[arg-type]
        )

    def _closed(self) -> None:
        self.closed += 1

    def _drained(self) -> None:
        self.drained += 1


def test_timers_come_in_the_order_they_are_due(reactor: Reactor) -> None:
    seen: list[str] = []
    reactor.call_later(0.03, lambda: seen.append("later"))
    reactor.call_later(0.01, lambda: seen.append("sooner"))
    reactor.call_later(0.0, lambda: seen.append("at once"))
    reactor.call_later(0.0, lambda: seen.append("at once, second"))
    turn_until(reactor, lambda: len(seen) == 4)
    assert seen == ["at once", "at once, second", "sooner", "later"]


def test_a_cancelled_timer_does_not_come_and_keeps_nobody_waiting(reactor: Reactor) -> None:
    seen: list[int] = []
    reactor.call_later(0.0, lambda: seen.append(1)).cancel()
    far_away = reactor.call_later(60, lambda: seen.append(2))
    reactor.call_later(0.01, far_away.cancel)
    reactor.call_later(0.02, reactor.stop)
    reactor.run()
    assert seen == []


def test_soon_is_after_this_and_before_the_next_wait(reactor: Reactor) -> None:
    seen: list[int] = []

    def first() -> None:
        reactor.call_soon(lambda: seen.append(2))
        seen.append(1)

    reactor.call_soon(first)
    reactor.turn()
    assert seen == [1]
    started = time.monotonic()
    reactor.turn()
    assert seen == [1, 2]
    assert time.monotonic() - started < 1


def test_work_that_goes_on_and_on_keeps_nobody_from_their_turn(reactor: Reactor) -> None:
    seen: list[str] = []

    def work() -> None:
        reactor.call_soon(work)

    def readable() -> None:
        seen.append(os.read(read, 1).decode())
        reactor.forget(read)

    read, write = os.pipe()
    reactor.watch(read, readable)
    reactor.call_soon(work)
    reactor.call_later(0.01, lambda: seen.append("timer"))
    os.write(write, b"x")
    turn_until(reactor, lambda: len(seen) == 2, seconds=2)
    assert sorted(seen) == ["timer", "x"]
    os.close(read)
    os.close(write)


def test_a_descriptor_that_is_forgotten_is_not_called_in_the_same_turn(reactor: Reactor) -> None:
    pipes = [os.pipe() for _ in range(2)]
    seen: list[int] = []

    def readable(mine: int, other: int) -> None:
        seen.append(mine)
        reactor.forget(other)

    for (read, write), (other, _) in zip(pipes, reversed(pipes), strict=True):
        os.write(write, b"x")
        reactor.watch(read, lambda read=read, other=other: readable(read, other))  # type: ignore[misc]
    reactor.turn(0)
    assert len(seen) == 1
    for read, write in pipes:
        reactor.forget(read)
        os.close(read)
        os.close(write)


def test_the_end_of_a_pipe_is_readable(reactor: Reactor) -> None:
    read, write = os.pipe()
    seen: list[bytes] = []
    reactor.watch(read, lambda: seen.append(os.read(read, 1)))
    os.close(write)
    turn_until(reactor, lambda: seen)
    assert seen[0] == b""
    reactor.watch(read, None)
    os.close(read)


def test_a_peer_hears_frames_and_then_the_end(
    reactor: Reactor, pair: tuple[socket.socket, socket.socket]
) -> None:
    near, far = pair
    diary = Diary(reactor, near)
    far.sendall(encode({"n": 1}) + encode({"n": 2})[:3])
    turn_until(reactor, lambda: diary.frames)
    far.sendall(encode({"n": 2})[3:])
    far.close()
    turn_until(reactor, lambda: diary.closed)
    assert diary.frames == [{"n": 1}, {"n": 2}]
    assert diary.closed == 1
    assert diary.peer.closed
    diary.peer.send({"too": "late"})  # harmless


def test_a_peer_that_talks_garbage_is_hung_up_on(
    reactor: Reactor, pair: tuple[socket.socket, socket.socket]
) -> None:
    near, far = pair
    diary = Diary(reactor, near)
    far.sendall(b"GET / HTTP/1.1\r\n\r\n")
    turn_until(reactor, lambda: diary.closed)
    assert diary.frames == []
    assert far.recv(1) == b""


def test_closing_a_peer_tells_nobody_twice(
    reactor: Reactor, pair: tuple[socket.socket, socket.socket]
) -> None:
    diary = Diary(reactor, pair[0])
    diary.peer.close()
    diary.peer.close()
    reactor.turn(0)
    assert diary.closed == 0


def test_a_slow_reader_gets_everything_and_nobody_waits(
    reactor: Reactor, pair: tuple[socket.socket, socket.socket]
) -> None:
    near, far = pair
    diary = Diary(reactor, near)
    sent = [{"n": n, "text": "x" * 100_000} for n in range(40)]
    started = time.monotonic()
    for frame in sent:
        diary.peer.send(frame)
    assert time.monotonic() - started < 2
    assert diary.peer.backlog > 1_000_000
    far.setblocking(False)
    decoder = Decoder()
    got: list[Frame] = []
    deadline = time.monotonic() + 10
    while len(got) < len(sent) and time.monotonic() < deadline:
        reactor.turn(0.01)
        try:
            got += decoder.feed(far.recv(1 << 16))
        except BlockingIOError:
            continue
    assert got == sent
    turn_until(reactor, lambda: diary.drained)
    assert diary.peer.backlog == 0


def test_descriptors_travel_with_their_frame_though_the_sender_closes_them(
    reactor: Reactor, pair: tuple[socket.socket, socket.socket]
) -> None:
    near, far = pair
    sender = Diary(reactor, far)
    receiver = Diary(reactor, near, ancillary=True)
    sender.peer.send({"big": "x" * 2_000_000})  # does not fit at once: what follows must wait
    read, write = os.pipe()
    sender.peer.send({"here": "is a pipe"}, [write])
    os.close(write)
    turn_until(reactor, lambda: len(receiver.frames) == 2)
    (arrived,) = receiver.peer.fds
    os.write(arrived, b"through")
    assert os.read(read, 10) == b"through"
    receiver.peer.close()  # closes what nobody took
    assert os.read(read, 10) == b""
    os.close(read)


def test_the_sender_is_known_by_its_pid(
    reactor: Reactor, pair: tuple[socket.socket, socket.socket]
) -> None:
    near, far = pair
    near.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    diary = Diary(reactor, near, ancillary=True)
    child = os.fork()
    if child == 0:
        far.sendall(encode({"n": 1}))
        os._exit(0)
    os.waitpid(child, 0)
    turn_until(reactor, lambda: diary.frames)
    assert diary.peer.sender_pid == child


def test_polling_handles_what_has_arrived_once(
    reactor: Reactor, pair: tuple[socket.socket, socket.socket]
) -> None:
    near, far = pair
    diary = Diary(reactor, near)
    far.sendall(encode({"n": 1}))
    diary.peer.poll()
    diary.peer.poll()
    reactor.turn(0)
    assert diary.frames == [{"n": 1}]


def test_polling_comes_to_an_end_though_the_sender_does_not(
    reactor: Reactor, pair: tuple[socket.socket, socket.socket]
) -> None:
    near, far = pair
    stop = threading.Event()
    diary = Diary(reactor, near)

    def flood() -> None:
        frames = encode({}) * 20_000
        with contextlib.suppress(OSError):
            while not stop.is_set():
                far.sendall(frames)

    writer = threading.Thread(target=flood)
    writer.start()
    try:
        turn_until(reactor, lambda: diary.frames)
        before = len(diary.frames)
        diary.peer.poll()
        assert len(diary.frames) - before < 200_000
    finally:
        stop.set()
        diary.peer.close()
        writer.join()


def test_a_paused_peer_reads_nothing_but_still_sends(
    reactor: Reactor, pair: tuple[socket.socket, socket.socket]
) -> None:
    near, far = pair
    diary = Diary(reactor, near)
    diary.peer.pause(True)
    far.sendall(encode({"n": 1}))
    big = {"text": "x" * 2_000_000}
    diary.peer.send(big)  # does not fit at once
    decoder = Decoder()
    got: list[Frame] = []
    far.setblocking(False)
    deadline = time.monotonic() + 10
    while not got and time.monotonic() < deadline:
        reactor.turn(0.01)
        with contextlib.suppress(BlockingIOError):
            got += decoder.feed(far.recv(1 << 16))
    assert got == [big]
    reactor.turn(0.01)
    assert diary.frames == []
    diary.peer.pause(False)
    turn_until(reactor, lambda: diary.frames)
    assert diary.frames == [{"n": 1}]


def test_descriptors_that_nobody_wants_are_not_taken(
    reactor: Reactor, pair: tuple[socket.socket, socket.socket]
) -> None:
    near, far = pair
    near.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    diary = Diary(reactor, near, ancillary=True, most_fds=0)
    read, write = os.pipe()
    socket.send_fds(far, [encode({"n": 1})], [write])
    os.close(write)
    turn_until(reactor, lambda: diary.frames)
    assert diary.peer.fds == []
    assert diary.peer.sender_pid == os.getpid()
    assert os.read(read, 1) == b"", "the system has closed it"
    os.close(read)


def test_a_frame_may_close_the_peer_and_the_rest_is_not_delivered(
    reactor: Reactor, pair: tuple[socket.socket, socket.socket]
) -> None:
    near, far = pair
    seen: list[Frame] = []

    def told(frame: Frame) -> None:
        seen.append(frame)
        peer.close()

    peer = Peer(reactor, near, on_frame=told, on_close=lambda: None)
    far.sendall(encode({"n": 1}) + encode({"n": 2}))
    turn_until(reactor, lambda: seen)
    assert seen == [{"n": 1}]


def test_no_descriptor_is_left_open() -> None:
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(20):
        reactor = Reactor()
        near, far = socket.socketpair()
        peer = Peer(reactor, near, on_frame=lambda frame: None, on_close=lambda: None)
        peer.send({"n": "x" * 1_000_000}, [0])
        peer.close()
        far.close()
        reactor.close()
    assert set(os.listdir("/proc/self/fd")) == before


def test_what_remains_is_never_negative() -> None:
    assert remaining(time.monotonic() - 5) == 0.0
    assert 4 < remaining(time.monotonic() + 5) <= 5


def test_a_callback_that_fails_is_told_and_survived(
    reactor: Reactor, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise ValueError("a bug")

    reactor.call_soon(fail)
    reactor.call_later(0.01, fail)
    reactor.call_later(0.02, reactor.stop)
    reactor.run()
    assert capfd.readouterr().err.count("ValueError: a bug") == 2


def test_a_callback_that_fails_for_ever_is_not(
    reactor: Reactor, capfd: pytest.CaptureFixture[str]
) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"never read")

    def fail() -> None:
        raise ValueError("again")

    reactor.watch(reader, fail)
    with pytest.raises(ValueError, match="again"):
        reactor.run()
    assert 1 < capfd.readouterr().err.count("survived") < 100
    reactor.forget(reader)
    os.close(reader)
    os.close(writer)
