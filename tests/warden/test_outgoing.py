"""What waits for subscribers who are slower than the kernel, on real sockets."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import zmq

from kernelbox.reactor import Reactor
from kernelbox.warden.lanes import outgoing, zeromq
from kernelbox.warden.lanes.outgoing import Outgoing, Publication
from kernelbox.warden.lanes.zeromq import Channel


@dataclass
class Desk:
    """A publisher and the way to its subscribers; nothing happens but in :meth:`run`."""

    reactor: Reactor
    outgoing: Outgoing
    subscribe: Callable[[], zmq.Socket[bytes]]

    def say(self, text: str, *, name: str = "stdout") -> None:
        self.outgoing.put(Publication("stream", {"name": name, "text": text}, {}))

    def state(self, state: str) -> None:
        self.outgoing.put(Publication("status", {"execution_state": state}, {}))

    def run(self, until: Callable[[], bool], seconds: float = 20) -> None:
        deadline = time.monotonic() + seconds

        def look() -> None:
            if until() or time.monotonic() > deadline:
                self.reactor.stop()
            else:
                self.reactor.call_later(0.002, look)

        look()
        self.reactor.run()
        assert until(), "it has not come to that"


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    monkeypatch.setattr(zeromq, "_MOST_QUEUED", 10)
    context: zeromq.ZContext = zmq.Context()
    publisher = zeromq.publisher(context)
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    zeromq.listen(publisher, listener)
    reactor = Reactor()
    subscribed: list[bytes] = []
    channel = Channel(reactor, publisher, on_message=lambda frames, _: subscribed.append(frames[0]))
    made = Outgoing(
        reactor, channel, lambda one: [one.msg_type.encode(), str(one.content).encode()]
    )
    subscribers: list[zmq.Socket[bytes]] = []

    def subscribe() -> zmq.Socket[bytes]:
        one = context.socket(zmq.SUB)
        one.set(zmq.RCVHWM, 10)
        one.set(zmq.RCVBUF, 4096)
        one.connect(f"tcp://127.0.0.1:{port}")
        one.set(zmq.SUBSCRIBE, b"")
        subscribers.append(one)
        count = len(subscribers)
        found.run(lambda: len(subscribed) == count)
        return one

    found = Desk(reactor, made, subscribe)
    yield found
    made.close()
    channel.close(0)
    context.destroy(linger=0)


def taken(subscriber: zmq.Socket[bytes]) -> list[bytes]:
    found = []
    while subscriber.poll(200):
        found.append(subscriber.recv_multipart()[1])
    return found


def test_a_subscriber_that_reads_late_misses_nothing(desk: Desk) -> None:
    late = desk.subscribe()
    for number in range(5000):
        desk.say(f"{number} " * 100, name=("stdout", "stderr")[number % 2])
    desk.state("idle")
    heard: list[bytes] = []

    def all_of_it() -> bool:
        while late.poll(0):
            heard.append(late.recv_multipart()[1])
        return bool(heard) and b"idle" in heard[-1]

    desk.run(all_of_it)
    assert len(heard) == 5001
    assert all(f"{number} ".encode() in heard[number] for number in range(5000))


def test_lines_are_joined_while_they_wait(desk: Desk) -> None:
    late = desk.subscribe()
    for number in range(100_000):
        desk.say(f"{number}\n")
    desk.state("idle")
    heard: list[bytes] = []

    def all_of_it() -> bool:
        while late.poll(0):
            heard.append(late.recv_multipart()[1])
        return bool(heard) and b"idle" in heard[-1]

    desk.run(all_of_it)
    assert len(heard) < 5000
    assert b"".join(heard).count(b"\\n") == 100_000


def test_what_is_too_much_is_left_out_in_words_but_for_the_state(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outgoing, "MOST_WAITING", 1 << 20)
    late = desk.subscribe()
    for number in range(3000):
        desk.say("x" * 10_000, name=("stdout", "stderr")[number % 2])
    desk.state("idle")
    heard: list[bytes] = []

    def all_of_it() -> bool:
        while late.poll(0):
            heard.append(late.recv_multipart()[1])
        return bool(heard) and b"idle" in heard[-1]

    desk.run(all_of_it)
    assert len(heard) < 3000
    assert b"messages of output were left out here" in heard[-2]


def test_one_who_takes_nothing_holds_the_others_up_for_a_while_only(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outgoing, "_STUCK", 0.5)
    monkeypatch.setattr(outgoing, "_AT_ONCE", 2)
    desk.subscribe()
    quick = desk.subscribe()
    for number in range(500):
        desk.say(f"{number} " * 1000, name=("stdout", "stderr")[number % 2])
    desk.state("idle")
    heard: list[bytes] = []

    def the_end() -> bool:
        while quick.poll(0):
            heard.append(quick.recv_multipart()[1])
        return bool(heard) and b"idle" in heard[-1]

    began = time.monotonic()
    desk.run(the_end, seconds=20)
    assert time.monotonic() - began > 0.4, "it was waited for"
    assert len(heard) == 501, "who is quick misses nothing"
