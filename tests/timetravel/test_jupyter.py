"""A Jupyter client that is attached through fifty rewinds: it goes on, and misses nothing."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernelbox import Box, KernelRecord

jupyter_client = pytest.importorskip("jupyter_client")

pytestmark = pytest.mark.jupyter
REWINDS = 50


@pytest.fixture(autouse=True, scope="module")
def anchor(shared_box: Box) -> None:
    shared_box.get_or_create("anchor")


@pytest.fixture
def client(kernel: KernelRecord) -> Iterator[Any]:
    client = jupyter_client.BlockingKernelClient()
    client.load_connection_file(kernel.connection_file)
    client.start_channels()
    client.wait_for_ready(timeout=20)
    yield client
    client.stop_channels()


def run(client: Any, code: str) -> tuple[list[str], str, int]:
    """What a cell printed and showed, its status, and its number; waits as a notebook does: for
    the reply and for idle."""
    request = client.execute(code)
    shown: list[str] = []
    while True:
        message = client.get_iopub_msg(timeout=20)
        if message["parent_header"].get("msg_id") != request:
            continue
        kind, content = message["msg_type"], message["content"]
        if kind == "stream":  # text and newline of one print may come one by one
            shown[-1:] = ["".join([*shown[-1:], content["text"]])]
        elif kind == "execute_result":
            shown.append(content["data"]["text/plain"])
        elif kind == "status" and content["execution_state"] == "idle":
            break
    while True:
        reply = client.get_shell_msg(timeout=20)
        if reply["parent_header"].get("msg_id") == request:
            break
    return shown, reply["content"]["status"], reply["content"]["execution_count"]


def test_an_idle_client_goes_on_and_misses_nothing(
    shared_box: Box, kernel: KernelRecord, client: Any
) -> None:
    assert run(client, "x = 0") == ([], "ok", 1)
    point = shared_box.checkpoint(kernel)
    for number in range(REWINDS):
        assert run(client, f"x += {number}; print('at', x)") == ([f"at {number}\n"], "ok", 2)
        shared_box.rewind(kernel, point)
        assert run(client, "x") == (["0"], "ok", 2)
        shared_box.rewind(kernel, point)


def test_a_client_that_polls_all_the_while_hears_every_cell(
    shared_box: Box, kernel: KernelRecord, client: Any
) -> None:
    """As a JupyterLab does: it listens to iopub without end, whoever runs the cells."""
    point = shared_box.checkpoint(kernel)
    expected = [f"cell {number}" for number in range(REWINDS)]

    def go_back_and_forth() -> None:
        for text in expected:
            shared_box.execute(kernel, f"print({text!r})")
            shared_box.rewind(kernel, point)

    worker = threading.Thread(target=go_back_and_forth)
    worker.start()
    heard: list[str] = []
    deadline = time.monotonic() + 60
    while len([text for text in heard if text]) < len(expected) and time.monotonic() < deadline:
        try:
            message = client.get_iopub_msg(timeout=0.05)
        except queue.Empty:
            continue
        if message["msg_type"] == "stream":
            heard += message["content"]["text"].splitlines()
    worker.join()
    assert [text for text in heard if text] == expected


def test_a_cell_of_the_client_that_is_rewound_is_answered(
    shared_box: Box, kernel: KernelRecord, client: Any
) -> None:
    point = shared_box.checkpoint(kernel)
    for _ in range(5):
        request = client.execute("import time; time.sleep(60)")
        waiting = client.execute("1 + 1")
        deadline = time.monotonic() + 20
        while shared_box.status(kernel)["running"] is None and time.monotonic() < deadline:
            time.sleep(0.005)
        shared_box.rewind(kernel, point)
        replies = {}
        while len(replies) < 2:
            reply = client.get_shell_msg(timeout=20)
            replies[reply["parent_header"]["msg_id"]] = reply["content"]
        assert replies[request]["status"] == "error"
        assert "rewound" in replies[request]["evalue"]
        assert replies[waiting]["status"] in ("error", "aborted")
        assert run(client, "'time' in dir()") == (["False"], "ok", 1)
        shared_box.rewind(kernel, point)


def test_heartbeat_and_questions_are_answered_through_rewinds(
    shared_box: Box, kernel: KernelRecord, client: Any, tmp_path: Path
) -> None:
    run(client, "some_name = 1")
    point = shared_box.checkpoint(kernel)
    for _ in range(10):
        shared_box.rewind(kernel, point)
        client.complete("some_na")
        while True:
            reply = client.get_shell_msg(timeout=20)
            if reply["msg_type"] == "complete_reply":
                break
        assert reply["content"]["matches"] == ["some_name"]
        assert client.is_alive()
