"""KERNELBOX_KERNEL_IDLE_TIMEOUT really ends idle kernels, and only idle ones."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelbox import Box, KernelLost, KernelRecord, Settings
from kernelbox.wire import Decoder, Frame, encode

Waiting = Callable[..., None]

LIMIT = 1.0


@pytest.fixture(autouse=True, scope="module")
def anchor(shared_box: Box) -> None:
    """Keeps the module's keeper (and its warm root) from leaving between two tests."""
    shared_box.get_or_create("anchor")


@pytest.fixture
def hasty(shared_box: Box) -> Box:
    """A Box on the same home whose kernels are ended early."""
    wire = {**shared_box.settings.to_wire(), "kernel_idle_timeout": LIMIT}
    return Box(Settings.from_wire(wire))


def names(box: Box) -> set[str]:
    return {record.name for record in box.list_kernels()}


def test_an_idle_kernel_is_ended_and_not_forgotten_silently(
    shared_box: Box, hasty: Box, waiting: Waiting, gone: Callable[[list[int]], bool]
) -> None:
    with hasty as box:
        record = box.get_or_create("idle")
        box.execute(record, "x = 1")
        pids = [entry["pid"] for entry in box.status(record)["processes"]]
        waiting(lambda: "idle" not in names(shared_box), what="the kernel to be ended")
        waiting(lambda: gone(pids), what="its processes to end")
        assert not Path(record.connection_file).exists()
        for which in (record, "idle", record.kernel_id):
            with pytest.raises(KernelLost) as caught:
                box.execute(which, "x")
            assert "idle for 1 s (KERNELBOX_KERNEL_IDLE_TIMEOUT)" in str(caught.value)
            assert caught.value.details["cause"].startswith("idle for")
            assert caught.value.details["epoch"] == 2
        again = shared_box.get_or_create("idle")
        assert (again.state, again.epoch) == ("lost", 2)
        assert "idle for 1 s" in (again.cause or "")
        first = shared_box.execute(again, "'new'")
        assert (first.ok, first.state, first.epoch) == (True, "lost", 2)
        assert "idle for 1 s" in (first.cause or "")
        second = shared_box.execute(again, "1")
        assert (second.state, second.cause, second.epoch) == ("kept", None, 2)
        shared_box.destroy(again)


def test_kernels_that_are_not_idle_are_kept(
    shared_box: Box, hasty: Box, waiting: Waiting, tmp_path: Path
) -> None:
    """All at once, since each must be watched for longer than the limit."""
    with hasty as box:

        def make(name: str) -> KernelRecord:
            return box.get_or_create(name, cwd=str(tmp_path))

        running = make("a running cell")
        thread = threading.Thread(
            target=lambda: shared_box.execute(running, "import time; time.sleep(60)")
        )
        thread.start()
        box.execute(make("a bash job"), "sleep 300 & echo $!", language="bash")
        box.execute(make("a subprocess"), "import subprocess as s; p = s.Popen(['sleep', '300'])")
        box.execute(
            make("a task"),
            "import asyncio\nasync def go():\n    while True: await asyncio.sleep(0.05)\n"
            "task = asyncio.create_task(go())",
        )
        box.execute(
            make("a pool at work"),
            "import concurrent.futures, threading\nover = threading.Event()\n"
            "pool = concurrent.futures.ThreadPoolExecutor(2)\nwork = pool.submit(over.wait)",
        )
        box.execute(
            make("a thread"),
            "import threading\nover = threading.Event()\n"
            "threading.Thread(target=over.wait, daemon=True).start()",
        )
        parent = make("a parent")
        box.execute(parent, "x = 'of the parent'")
        shared_box.branch(parent, "a live branch")  # whose own limit is half an hour
        box.execute(make("used now and then"), "x = 1")
        make("nothing at all")
        expected = {
            "a running cell", "a bash job", "a subprocess", "a task", "a parent", "a live branch",
            "used now and then", "a pool at work", "a thread",
        }  # fmt: skip

        deadline = time.monotonic() + 3 * LIMIT
        while time.monotonic() < deadline or "nothing at all" in names(shared_box):
            assert box.execute("used now and then", "x").return_value == "1"
            time.sleep(0.1)
            assert time.monotonic() < deadline + 20
        kept = names(shared_box) - {"anchor"}
        assert kept == expected
        assert box.execute(parent, "x").return_value == "'of the parent'"

        # And once the reason is gone, so are they.
        shared_box.destroy("a live branch")
        shared_box.interrupt(running)
        thread.join(10)
        box.execute("a bash job", "kill %1", language="bash")
        box.execute("a subprocess", "p.kill(); p.wait()")
        box.execute("a task", "task.cancel()")
        box.execute("a pool at work", "over.set()")  # its workers stay, and wait
        box.execute("a thread", "over.set()")
        waiting(lambda: names(shared_box) == {"anchor"}, what="all of them to be ended")


def test_zero_turns_it_off(shared_box: Box, waiting: Waiting) -> None:
    wire = {**shared_box.settings.to_wire(), "kernel_idle_timeout": 0}
    with Box(Settings.from_wire(wire)) as box:
        record = box.get_or_create("for ever")
        assert box.settings.kernel_idle_timeout == 0
        time.sleep(2 * LIMIT)
        assert box.execute(record, "1").state == "kept"
        box.destroy(record)


def test_the_limit_is_that_of_the_latest_caller(
    shared_box: Box, hasty: Box, waiting: Waiting
) -> None:
    record = shared_box.get_or_create("limit changed")
    with hasty as box:
        assert box.get_or_create("limit changed").kernel_id == record.kernel_id
    waiting(lambda: "limit changed" not in names(shared_box), what="the kernel to be ended")
    with pytest.raises(KernelLost):
        shared_box.execute(record, "1")
    shared_box.destroy("limit changed")


def test_streaming_and_status_do_not_wake_the_dead(
    shared_box: Box, hasty: Box, waiting: Waiting
) -> None:
    with hasty as box:
        record = box.get_or_create("gone soon")
    waiting(lambda: "gone soon" not in names(shared_box), what="the kernel to be ended")
    for call in (
        lambda: list(shared_box.stream(record, "1")),
        lambda: shared_box.status(record),
        lambda: shared_box.restart(record),
        lambda: shared_box.branch(record, "no"),
        lambda: shared_box.interrupt(record),
    ):
        with pytest.raises(KernelLost, match="idle"):
            call()
    assert shared_box.destroy(record) is False


def test_a_cell_that_dies_was_in_use_until_then(shared_box: Box) -> None:
    """Or the kernel of a long one would be idle, by the clock, in the moment it had died."""
    kernel = shared_box.get_or_create("dying")
    began = time.time()
    shared_box.execute(kernel, "import os, time; time.sleep(1); os._exit(1)")
    assert shared_box.status(kernel)["kernel"]["last_used_at"] >= began + 1
    shared_box.destroy(kernel)


def test_to_be_asked_whether_it_is_idle_is_no_use(shared_box: Box) -> None:
    kernel = shared_box.get_or_create("asked")
    shared_box.execute(kernel, "import asyncio; task = asyncio.create_task(asyncio.sleep(60))")
    used_at = shared_box.status(kernel)["kernel"]["last_used_at"]
    with socket.socket(socket.AF_UNIX) as keeper:
        keeper.settimeout(20)
        keeper.connect(kernel.address)
        decoder = Decoder()
        for number, order in enumerate(({"op": "watch"}, {"op": "retire", "idle": 0.0})):
            keeper.sendall(encode({"id": number, "kernel_id": kernel.kernel_id, **order}))
            answers: list[Frame] = []
            while not answers:
                answers = [frame for frame in decoder.feed(keeper.recv(1 << 16)) if "id" in frame]
    assert answers[0]["reply"] == {"retired": False}
    assert shared_box.status(kernel)["kernel"]["last_used_at"] == used_at
    shared_box.destroy(kernel)
