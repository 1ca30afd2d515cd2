"""The channels of a kernel over a WebSocket: both forms, several clients, and rough company."""

from __future__ import annotations

import json
import os
import signal
import struct
from collections.abc import Callable
from itertools import groupby
from typing import Any

import psutil
import pytest
from http_service import Service
from kernel_sockets import PATIENCE, Talk, content_of, talking, text_of
from websockets.exceptions import InvalidStatus

from kernelbox import Box

COMM = """
from comm import create_comm
comm = create_comm(target_name="t", data={"n": 1}, buffers=[b"\\x00\\xff" * 3, b"", b"second"])
got = []
comm.on_msg(lambda message: got.append((message["content"]["data"], [bytes(b) for b in message["buffers"]])))
"""


def warden_of(box: Box, kernel: str) -> int:
    (pid,) = (p["pid"] for p in box.status(kernel)["processes"] if p["role"] == "warden")
    return int(pid)


# -- both forms ----------------------------------------------------------------------------------


@pytest.mark.parametrize("v1", [False, True])
def test_a_cell_is_run_and_its_messages_come_in_order(
    service: Service, kernel: str, v1: bool
) -> None:
    with talking(service, kernel, v1=v1) as talk:
        assert talk.v1 is v1
        answers = talk.run("print('out'); 6 * 7")
    assert content_of(answers, "execute_reply")["status"] == "ok"
    assert text_of(answers) == "out\n"
    assert content_of(answers, "execute_result")["data"]["text/plain"] == "42"
    published = [m["header"]["msg_type"] for m in answers if m["channel"] == "iopub"]
    # Text may come in pieces.
    assert [kind for kind, _ in groupby(published)] == [
        "status",
        "execute_input",
        "stream",
        "execute_result",
        "status",
    ]


@pytest.mark.parametrize("v1", [False, True])
def test_buffers_travel_both_ways_in_binary_frames(service: Service, kernel: str, v1: bool) -> None:
    with talking(service, kernel, v1=v1) as talk:
        opened = next(m for m in talk.run(COMM) if m["header"]["msg_type"] == "comm_open")
        assert [bytes(b) for b in opened["buffers"]] == [b"\x00\xff" * 3, b"", b"second"]
        talk.say(
            "comm_msg",
            {"comm_id": opened["content"]["comm_id"], "data": {"x": 2}},
            buffers=[b"\xfe\x00", b"", b"abc"],
        )
        result = content_of(talk.run("got"), "execute_result")
    assert result["data"]["text/plain"] == "[({'x': 2}, [b'\\xfe\\x00', b'', b'abc'])]"


def test_the_default_form_names_type_and_id_at_the_top(talk: Talk) -> None:
    for message in talk.run("1"):
        assert message["msg_type"] == message["header"]["msg_type"]
        assert message["msg_id"] == message["header"]["msg_id"]


def test_text_of_all_kinds_survives(service: Service, kernel: str) -> None:
    for v1 in (False, True):
        with talking(service, kernel, v1=v1) as talk:
            assert talk.printed("print('naïve ☃ 𝄞 \\x00 \\\\ \"')") == 'naïve ☃ 𝄞 \x00 \\ "\n'


def test_large_output_arrives_whole(talk: Talk) -> None:
    assert talk.printed("print('x' * 10_000_000)") == "x" * 10_000_000 + "\n"


# -- company ---------------------------------------------------------------------------------------


def test_everybody_hears_what_is_published_and_only_the_asker_its_reply(
    service: Service, kernel: str
) -> None:
    with (
        talking(service, kernel) as first,
        talking(service, kernel, v1=True) as second,
        talking(service, kernel) as third,
    ):
        msg_id = first.execute("print('for all')")
        first.answers_to(msg_id)
        for other in (second, third):
            other.wait_for_text("for all\n")
            other.wait_for_type("status", execution_state="idle")
            assert all(message["channel"] == "iopub" for message in other.heard)


def test_many_clients_at_once_each_get_their_own_answers(service: Service, kernel: str) -> None:
    from contextlib import ExitStack

    with ExitStack() as stack:
        talks = [stack.enter_context(talking(service, kernel, v1=bool(n % 2))) for n in range(8)]
        asked = [
            [talk.execute(f"print({n}, {i})") for i in range(5)] for n, talk in enumerate(talks)
        ]
        for n, talk in enumerate(talks):
            texts = {i: [] for i in range(5)}  # type: dict[int, list[str]]
            replies = set()
            while len(replies) < 5 or not all(texts.values()):
                message = talk.next()
                parent = message["parent_header"].get("msg_id")
                if parent in asked[n]:
                    if message["header"]["msg_type"] == "stream":
                        texts[asked[n].index(parent)].append(message["content"]["text"])
                    if message["channel"] == "shell":
                        replies.add(parent)
            assert {i: "".join(t) for i, t in texts.items()} == {i: f"{n} {i}\n" for i in range(5)}


def test_the_box_and_a_jupyter_client_share_a_kernel(
    service: Service, home: Box, kernel: str, talk: Talk
) -> None:
    talk.run("x = 20")
    assert home.execute(kernel, "x += 1; x * 2").return_value == "42"
    assert "x += 1" in talk.wait_for_type("execute_input", code="x += 1; x * 2")["content"]["code"]
    assert talk.printed("print(x)") == "21\n"


def test_a_named_kernel_is_found_by_its_name(service: Service, home: Box) -> None:
    home.execute(home.get_or_create("by-name"), "secret = 7")
    with talking(service, "by-name") as talk:
        assert talk.printed("print(secret)") == "7\n"


def test_input_asks_the_client_whose_cell_it_is(service: Service, kernel: str) -> None:
    with talking(service, kernel) as other, talking(service, kernel) as asker:
        msg_id = asker.execute("print('hello ' + input('name? '))", allow_stdin=True)
        question = asker.wait_for_type("input_request")
        assert question["channel"] == "stdin"
        assert question["content"] == {"prompt": "name? ", "password": False}
        asker.say("input_reply", {"value": "ada"}, channel="stdin", parent=question["header"])
        assert "hello ada" in text_of(asker.answers_to(msg_id))
        other.wait_for_type("execute_input")
        other.ask("kernel_info_request")
        assert "input_request" not in {m["header"]["msg_type"] for m in other.heard}


# -- interrupt, restart, death ---------------------------------------------------------------------


@pytest.mark.parametrize("way", ["rest", "message"])
def test_an_interrupt_ends_a_cell(service: Service, kernel: str, talk: Talk, way: str) -> None:
    msg_id = talk.execute("print('begun', flush=True)\nimport time\ntime.sleep(600)")
    talk.wait_for_text("begun\n")
    assert service.http.get(f"/api/kernels/{kernel}").json()["execution_state"] == "busy"
    states = {k["id"]: k["execution_state"] for k in service.http.get("/api/kernels").json()}
    assert states[kernel] == "busy"
    if way == "rest":
        assert service.http.post(f"/api/kernels/{kernel}/interrupt").status_code == 204
    else:
        talk.say("interrupt_request", {}, channel="control")
    reply = content_of(talk.answers_to(msg_id), "execute_reply")
    assert (reply["status"], reply["ename"]) == ("error", "KeyboardInterrupt")
    assert talk.printed("print('well')") == "well\n"
    assert service.http.get(f"/api/kernels/{kernel}").json()["execution_state"] == "idle"


def test_a_restart_renews_the_kernel_under_the_same_connection(
    service: Service, kernel: str, talk: Talk
) -> None:
    talk.run("x = 1")
    reply = service.http.post(f"/api/kernels/{kernel}/restart")
    assert (reply.status_code, reply.json()["id"]) == (200, kernel)
    assert talk.printed("print('x' in globals())") == "False\n"


def test_a_restart_during_a_cell_answers_it(service: Service, kernel: str, talk: Talk) -> None:
    msg_id = talk.execute("print('begun', flush=True)\nimport time\ntime.sleep(600)")
    talk.wait_for_text("begun\n")
    service.http.post(f"/api/kernels/{kernel}/restart")
    assert content_of(talk.answers_to(msg_id), "execute_reply")["status"] == "error"
    assert talk.printed("print('new')") == "new\n"


def test_a_cell_that_kills_its_interpreter_is_told_at_once(talk: Talk) -> None:
    answers = talk.run("print('last words', flush=True)\nimport os\nos._exit(7)")
    assert text_of(answers) == "last words\n"
    assert content_of(answers, "execute_reply")["ename"] == "KernelDied"
    states = [m["content"].get("execution_state") for m in answers]
    assert "restarting" in states
    assert talk.printed("print('again')") == "again\n"


def test_a_killed_warden_is_told_as_a_dead_kernel_to_every_client(
    service: Service, home: Box, kernel: str
) -> None:
    with talking(service, kernel) as first, talking(service, kernel, v1=True) as second:
        first.execute("print('begun', flush=True)\nimport time\ntime.sleep(600)")
        first.wait_for_text("begun\n")
        os.kill(warden_of(home, kernel), signal.SIGKILL)
        for talk in (first, second):
            talk.wait_for_type("status", execution_state="dead")
            assert talk.closed_with() == (1001, "the kernel has ended")
    assert service.http.get(f"/api/kernels/{kernel}").status_code == 404


def test_a_shutdown_request_is_answered_before_the_end_is_told(talk: Talk) -> None:
    talk.say("shutdown_request", {"restart": False}, channel="control")
    talk.wait_for_type("status", execution_state="dead")
    assert "shutdown_reply" in {m["header"]["msg_type"] for m in talk.heard}


def test_a_deleted_kernel_is_told_as_dead(service: Service, kernel: str, talk: Talk) -> None:
    assert service.http.delete(f"/api/kernels/{kernel}").status_code == 204
    talk.wait_for_type("status", execution_state="dead")


def test_fifty_rewinds_lose_no_message(service: Service, home: Box, kernel: str) -> None:
    with talking(service, kernel) as talk, talking(service, kernel, v1=True) as listener:
        talk.run("x = 0")
        moment = home.checkpoint(kernel)
        for number in range(50):
            assert talk.printed(f"x += 1; print('n', {number}, x)") == f"n {number} 1\n"
            home.rewind(kernel, moment)
        listener.ask("kernel_info_request")
        heard = text_of(listener.heard).splitlines()
    assert heard == [f"n {number} 1" for number in range(50)]


# -- who may come in -------------------------------------------------------------------------------


def refusal(service: Service, kernel: str, **options: Any) -> tuple[int, str]:
    with pytest.raises(InvalidStatus) as refused, talking(service, kernel, **options):
        pass
    response = refused.value.response
    return response.status_code, json.loads(response.body or b"{}").get("error", "")


def test_a_kernel_that_is_not_there_is_not_found(service: Service) -> None:
    assert refusal(service, "nobody") == (404, "KernelNotFound")


@pytest.mark.parametrize(
    ("headers", "error"),
    [({"Origin": "http://evil.example"}, "ForeignOrigin"), ({"Origin": "null"}, "ForeignOrigin")],
)
def test_a_page_of_another_site_is_refused(
    service: Service, kernel: str, headers: dict[str, str], error: str
) -> None:
    assert refusal(service, kernel, headers=headers) == (403, error)


def test_a_foreign_host_is_refused(service: Service, kernel: str) -> None:
    import socket

    with socket.create_connection(("127.0.0.1", service.port), timeout=PATIENCE) as raw:
        raw.sendall(
            f"GET /api/kernels/{kernel}/channels HTTP/1.1\r\nHost: evil.example\r\n"
            "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode()
        )
        assert raw.recv(12) == b"HTTP/1.1 403"


# -- rough company -----------------------------------------------------------------------------------

GARBAGE: dict[str, list[str | bytes]] = {
    "default": [
        "",
        "garbage",
        "[]",
        "null",
        "1",
        "{}",
        '{"header": []}',
        '{"header": {"msg_id": "1"}}',
        '{"channel": "shell", "header": {"msg_id": "", "msg_type": ""}}',
        '{"channel": "shell", "content": 5, "header": {"msg_id": "1", "msg_type": "x"}}',
        "[" * 100_000,
        b"",
        b"\x00",
        b"\xff" * 64,
        struct.pack("!I", 0),
        struct.pack("!3I", 2, 12, 4),
        struct.pack("!3I", 2, 12, 4_000_000_000),
        struct.pack("!2I", 1, 8) + b"\xff\xfe",
    ],
    "v1": [
        "",
        "garbage",
        b"",
        b"\x00" * 8,
        b"\xff" * 64,
        struct.pack("<Q", 2**63),
        struct.pack("<3Q", 2, 24, 24),
        struct.pack("<7Q", 6, 56, 61, 61, 61, 61, 61) + b"shell",
        struct.pack("<7Q", 6, 56, 61, 63, 65, 67, 69) + b"shell" + b"{}" * 4,
        struct.pack("<7Q", 6, 56, 61, 63, 65, 67, 69) + b"shell" + b"[]" * 4,
        struct.pack("<7Q", 6, 69, 67, 65, 63, 61, 56) + b"shell" + b"{}" * 4,
    ],
}


@pytest.mark.parametrize("form", ["default", "v1"])
def test_garbage_closes_its_connection_and_nobody_else_notices(
    service: Service, kernel: str, talk: Talk, form: str, attached: Callable[[str], int]
) -> None:
    for frame in GARBAGE[form]:
        with talking(service, kernel, v1=form == "v1") as rough:
            rough.line.send(frame)
            assert rough.closed_with()[0] == 1003, frame
    assert talk.printed("print('unmoved')") == "unmoved\n"
    assert "Traceback" not in "".join(service.said)


def test_messages_for_no_channel_are_ignored(talk: Talk) -> None:
    talk.say("execute_request", {"code": "1"}, channel="iopub")
    talk.say("execute_request", {"code": "1"}, channel="nowhere")
    talk.say("no_such_request", {}, channel="shell")
    assert talk.printed("print('fine')") == "fine\n"


def test_a_message_that_is_too_long_closes_its_connection(
    start: Callable[..., Service], tmp_path: object
) -> None:
    service = start(server={"max_body": 20_000})
    kernel = service.http.post("/api/kernels", json={}).json()["id"]
    with talking(service, kernel) as talk:
        talk.execute("x" * 30_000)
        assert talk.closed_with()[0] == 1009
    with talking(service, kernel) as talk:
        assert talk.printed("print(1)") == "1\n"


def test_two_hundred_connections_leave_nothing_open(
    service: Service,
    kernel: str,
    talk: Talk,
    attached: Callable[[str], int],
    waiting: Callable[..., None],
) -> None:
    process = psutil.Process(service.process.pid)
    talk.run("1")
    before = process.num_fds()
    threads = process.num_threads()
    for number in range(200):
        with talking(service, kernel, v1=bool(number % 2)) as visitor:
            if number % 20 == 0:
                visitor.run("1")
    waiting(lambda: attached(kernel) == 1, what="the visitors to be gone")
    waiting(lambda: process.num_fds() <= before + 2, what=f"descriptors to fall to {before}")
    assert process.num_threads() <= threads + 1
    assert talk.printed("print('here')") == "here\n"
