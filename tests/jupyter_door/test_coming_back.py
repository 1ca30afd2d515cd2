"""A client that leaves and comes back: nothing missed, nothing twice, and not without bounds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from http_service import Service, Start
from kernel_sockets import Talk, content_of, talking, text_of

from kernelbox import Box
from kernelbox.server.jupyter.backlog import Backlog
from kernelbox.server.jupyter.wire import Packet
from kernelbox.warden.lanes.messages import Session, to_json

WAITS = """
import os, time
print("begun", flush=True)
while not os.path.exists({sign!r}):
    time.sleep(0.005)
for number in range({count}):
    print("line", number, flush=True)
"""


def begin(talk: Talk, sign: Path, *, count: int = 100) -> str:
    """Start a cell that prints as soon as the file ``sign`` is there."""
    msg_id = talk.execute(WAITS.format(sign=str(sign), count=count))
    talk.wait_for_text("begun\n")
    return msg_id


def idle(service: Service, kernel: str) -> bool:
    state: str = service.http.get("/kernels", params={"refresh": "true"}).text
    (record,) = (k for k in json.loads(state)["kernels"] if k["kernel_id"] == kernel)
    return bool(record["status"] == "idle")


@pytest.mark.parametrize("v1", [False, True])
@pytest.mark.parametrize("how", ["goodbye", "vanish", "going-away"])
def test_who_comes_back_hears_all_it_missed_once_and_in_order(
    service: Service,
    kernel: str,
    tmp_path: Path,
    v1: bool,
    how: str,
    attached: Callable[[str], int],
    waiting: Callable[..., None],
) -> None:
    sign = tmp_path / "sign"
    with talking(service, kernel, v1=v1, session="the-same") as talk:
        msg_id = begin(talk, sign)
        if how == "vanish":
            talk.vanish()
        else:
            talk.line.close(1000 if how == "goodbye" else 1001)
    waiting(lambda: attached(kernel) == 0, what="the service to see it leave")
    sign.touch()
    waiting(lambda: idle(service, kernel), what="the cell to end")
    with talking(service, kernel, v1=v1, session="the-same") as talk:
        answers = talk.answers_to(msg_id)
        assert text_of(answers).splitlines() == [f"line {n}" for n in range(100)]
        assert content_of(answers, "execute_reply")["status"] == "ok"
        talk.ask("kernel_info_request")
        ids = [message["header"]["msg_id"] for message in talk.heard]
        assert len(ids) == len(set(ids))


def test_who_comes_back_twice_hears_each_part_once(
    service: Service,
    kernel: str,
    tmp_path: Path,
    attached: Callable[[str], int],
    waiting: Callable[..., None],
) -> None:
    heard: list[str] = []
    with talking(service, kernel, session="often") as talk:
        talk.ask("kernel_info_request")
    for number in range(5):
        waiting(lambda: attached(kernel) == 0, what="the service to see it leave")
        service.execute(kernel, f"print('away', {number})")
        with talking(service, kernel, session="often") as talk:
            talk.wait_for_text(f"away {number}\n")
            talk.ask("kernel_info_request")
            heard += text_of(talk.heard).splitlines()
    assert heard == [f"away {number}" for number in range(5)]


def test_another_session_is_not_told_what_it_did_not_ask(
    service: Service, kernel: str, tmp_path: Path, attached: Callable[[str], int], waiting: Any
) -> None:
    sign = tmp_path / "sign"
    with talking(service, kernel, session="one") as talk:
        begin(talk, sign)
    waiting(lambda: attached(kernel) == 0, what="the service to see it leave")
    sign.touch()
    waiting(lambda: idle(service, kernel), what="the cell to end")
    for session in ("two", ""):
        with talking(service, kernel, session=session) as talk:
            talk.ask("kernel_info_request")
            assert text_of(talk.heard) == ""


def test_a_session_that_is_still_connected_moves_to_its_new_connection(
    service: Service, kernel: str, tmp_path: Path, attached: Callable[[str], int]
) -> None:
    sign = tmp_path / "sign"
    with talking(service, kernel, session="moves") as old:
        msg_id = begin(old, sign)
        with talking(service, kernel, session="moves") as new:
            assert old.closed_with()[0] == 4000
            assert attached(kernel) == 1
            sign.touch()
            answers = new.answers_to(msg_id)
    assert text_of(answers).splitlines() == [f"line {n}" for n in range(100)]


def test_a_question_waits_for_its_client(
    service: Service, kernel: str, attached: Callable[[str], int], waiting: Callable[..., None]
) -> None:
    with talking(service, kernel, session="asked") as talk:
        msg_id = talk.execute("import time; time.sleep(0.2); print(input('? '))", allow_stdin=True)
        talk.wait_for_type("execute_input")
    waiting(lambda: attached(kernel) == 0, what="the service to see it leave")
    with talking(service, kernel, session="asked") as talk:
        question = talk.wait_for_type("input_request")
        talk.say("input_reply", {"value": "here"}, channel="stdin", parent=question["header"])
        assert "here" in text_of(talk.answers_to(msg_id))


def test_a_kernel_that_ended_meanwhile_is_gone(
    service: Service,
    kernel: str,
    tmp_path: Path,
    home: Box,
    attached: Callable[[str], int],
    waiting: Callable[..., None],
) -> None:
    process = psutil.Process(service.process.pid)
    with talking(service, kernel):
        pass  # what the first client of a service needs stays: ZeroMQ's context
    waiting(lambda: attached(kernel) == 0, what="the service to see it leave")
    before = process.num_fds()
    with talking(service, kernel, session="late") as talk:
        begin(talk, tmp_path / "never")
    waiting(lambda: attached(kernel) == 0, what="the service to see it leave")
    home.destroy(kernel)
    # A line has five sockets and more; the service's own connections to kernels come and go.
    waiting(lambda: process.num_fds() <= before + 2, what="the line of the dead kernel to close")


# -- within bounds -----------------------------------------------------------------------------------


def test_an_absent_client_costs_bounded_memory_and_is_told_what_was_dropped(
    start: Start, tmp_path: Path, waiting: Callable[..., None]
) -> None:
    service = start()
    kernel = service.http.post("/api/kernels", json={}).json()["id"]
    sign = tmp_path / "sign"
    code = f"""
import os, time
print("begun", flush=True)
while not os.path.exists({str(sign)!r}):
    time.sleep(0.005)
for number in range(150):
    print(number, "x" * 1_000_000, flush=True)
"""
    with talking(service, kernel, session="absent") as talk:
        msg_id = talk.execute(code)
        talk.wait_for_text("begun\n")
    waiting(
        lambda: service.http.get(f"/api/kernels/{kernel}").json()["connections"] == 0,
        what="the service to see it leave",
    )
    process = psutil.Process(service.process.pid)
    before = process.memory_info().rss
    sign.touch()
    waiting(lambda: idle(service, kernel), what="the cell to end", seconds=60)
    grown = process.memory_info().rss - before
    assert grown < 120 << 20, f"{grown >> 20} MB"
    with talking(service, kernel, session="absent") as talk:
        answers = talk.answers_to(msg_id)
    assert content_of(answers, "execute_reply")["status"] == "ok"
    assert "messages were dropped while this client was away" in text_of(answers, "stderr")
    assert text_of(answers).splitlines()[-1].startswith("149 ")


def test_a_slow_client_does_not_fill_the_service(start: Start) -> None:
    service = start()
    kernel = service.http.post("/api/kernels", json={}).json()["id"]
    process = psutil.Process(service.process.pid)
    with talking(service, kernel) as slow, talking(service, kernel) as quick:
        slow.ask("kernel_info_request")
        slow.line.recv_messages.pause()  # nothing is taken from its socket any more
        before = process.memory_info().rss
        answers = quick.run("for n in range(60): print('x' * 1_000_000, flush=True)")
        assert len(text_of(answers)) == 60 * 1_000_001
        assert process.memory_info().rss - before < 40 << 20
        slow.line.recv_messages.resume()
        slow.ask("kernel_info_request")
        assert len(text_of(slow.heard)) == 60 * 1_000_001


def packet(msg_type: str, size: int = 1000, *, parent: str = "p") -> Packet:
    header = json.dumps({"msg_id": "1", "msg_type": msg_type}).encode()
    parts = [header, json.dumps({"msg_id": parent}).encode(), b"{}", b'"' + b"x" * size + b'"']
    return Packet("iopub", parts)


def types_in(backlog: Backlog) -> list[str]:
    found = []
    while backlog:
        found.append(backlog.first().msg_type)
        backlog.pop()
    assert backlog.size == 0
    return found


def test_the_oldest_output_goes_first_and_leaves_a_word() -> None:
    backlog = Backlog()
    backlog.add(packet("status"))
    for _ in range(10):
        backlog.add(packet("stream"))
    backlog.add(packet("execute_reply"))
    backlog.thin(backlog.size // 2)
    found = types_in(backlog)
    assert found[:2] == ["status", "stream"]
    assert found[-1] == "execute_reply"
    assert 3 <= found.count("stream") <= 6
    assert backlog.dropped == 10 - (found.count("stream") - 1)


def test_what_is_no_output_goes_too_if_there_is_nothing_else() -> None:
    backlog = Backlog()
    for _ in range(100):
        backlog.add(packet("status"))
    backlog.thin(10_000)
    assert backlog.size < 11_500
    assert backlog.dropped > 90
    assert types_in(backlog)[0] == "stream"


def test_what_fits_is_not_touched() -> None:
    backlog = Backlog()
    backlog.add(packet("stream"))
    backlog.thin(1_000_000)
    assert (len(backlog), backlog.dropped) == (1, 0)


def test_lines_that_wait_are_joined_and_nothing_else_is() -> None:
    backlog = Backlog()
    session = Session(b"")

    def said(kind: str, content: dict[str, Any], parent: str = "cell") -> None:
        parts = [session.header(kind), {"msg_id": parent}, {}, content]
        backlog.add(Packet("iopub", [to_json(part) for part in parts]))

    said("status", {"execution_state": "busy"})
    for text in ("a\n", 'b"\\\n', "ü\n"):
        said("stream", {"name": "stdout", "text": text})
    said("stream", {"name": "stderr", "text": "e"})
    said("stream", {"name": "stderr", "text": "f"}, parent="another cell")
    said("display_data", {"name": "stdout", "text": "no stream"})
    said("status", {"execution_state": "idle"})
    told = []
    while backlog:
        told.append(json.loads(backlog.first().parts[3]))
        backlog.pop()
    assert told == [
        {"execution_state": "busy"},
        {"name": "stdout", "text": 'a\nb"\\\nü\n'},
        {"name": "stderr", "text": "e"},
        {"name": "stderr", "text": "f"},
        {"name": "stdout", "text": "no stream"},
        {"execution_state": "idle"},
    ]
    assert backlog.size == 0
