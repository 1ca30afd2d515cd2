"""The Jupyter lane: who gets in, who is thrown out, and what it costs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
import zmq
from jupyter_clients import Client, attached, contents, text, warden_pid

from kernelbox import Box, KernelRecord
from kernelbox.errors import BoxError

pytestmark = pytest.mark.jupyter

Connect = Callable[..., zmq.Socket[bytes]]

HOLDS_THE_GIL = "import re; re.match('(a+)+$', 'a' * 60 + 'b')"


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def threads(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


@pytest.fixture
def connect(client: Client) -> Iterator[Connect]:
    """Opens a bare ZeroMQ socket to a channel of the client's kernel."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    opened = []

    def connect(kind: int, channel: str, *, identity: bytes = b"") -> zmq.Socket[bytes]:
        socket = context.socket(kind)
        opened.append(socket)
        if identity:
            socket.set(zmq.IDENTITY, identity)
        socket.connect(client.raw._make_url(channel))
        return socket

    yield connect
    for socket in opened:
        socket.close(linger=0)
    context.term()


# -- while a cell runs --------------------------------------------------------------------------


def test_heartbeat_and_control_are_answered_while_a_cell_holds_the_gil(
    client: Client, connect: Connect
) -> None:
    msg_id = client.start(HOLDS_THE_GIL)
    heart = connect(zmq.REQ, "hb")
    for _ in range(20):
        began = time.monotonic()
        heart.send(b"ping")
        assert heart.poll(2000)
        assert heart.recv() == b"ping"
        assert client.control("kernel_info_request", timeout=2)["status"] == "ok"
        assert time.monotonic() - began < 1
    assert client.ask("kernel_info_request")["status"] == "ok"
    assert client.control("interrupt_request")["status"] == "ok"
    assert client.reply_to(msg_id)["content"]["ename"] == "KeyboardInterrupt"


def test_the_latest_status_is_busy_as_long_as_a_cell_runs(client: Client) -> None:
    msg_id = client.start("import time; time.sleep(30)")
    info = client.send("control", "kernel_info_request", {})
    client.published_until(info)
    message = client.next_published("status")
    assert message["content"]["execution_state"] == "busy"
    assert message["parent_header"]["msg_id"] == msg_id
    client.control("interrupt_request")
    client.published_until(msg_id)


def test_who_attaches_during_a_cell_hears_that_the_kernel_is_busy(
    kernel: KernelRecord, client: Client
) -> None:
    msg_id = client.start("import time; time.sleep(30)")
    with attached(kernel, wait=False) as other:
        other.published_until(msg_id, state="busy")
    client.control("interrupt_request")
    client.published_until(msg_id)


def test_an_interrupt_of_an_idle_kernel_does_nothing(client: Client) -> None:
    assert client.control("interrupt_request")["status"] == "ok"
    assert client.value("1 + 1") == "2"


# -- who is believed ----------------------------------------------------------------------------


def test_bad_messages_are_dropped_without_harm(client: Client) -> None:
    session, channels = client.raw.session, client.raw
    client.run("runs = 0")
    message = session.msg("execute_request", {"code": "runs += 1", "silent": False})
    good = session.serialize(message)
    wrong_signature = [good[0], b"0" * 64, *good[2:]]
    other_content = [*good[:-1], good[-1].replace(b"+= 1", b"+= 9")]
    for channel in ("shell", "control", "stdin"):
        socket = getattr(channels, f"{channel}_channel").socket
        for frames in (
            wrong_signature,
            other_content,
            good[1:],
            good[:3],
            [b""],
            [b"", b""],
            [b"\xff" * 1000] * 20,
        ):
            socket.send_multipart(frames)
    assert client.silence()
    shell = channels.shell_channel.socket
    shell.send_multipart(good)
    assert client.reply_to(message["header"]["msg_id"])["content"]["status"] == "ok"
    shell.send_multipart(good)  # a replay
    assert client.silence()
    assert client.value("runs") == "1"


def test_garbage_on_the_ports_does_no_harm(client: Client) -> None:
    import socket

    for _ in range(20):
        for channel in ("shell", "iopub", "stdin", "control", "hb"):
            port = getattr(client.raw, f"{channel}_port")
            with socket.create_connection(("127.0.0.1", port)) as sock, suppress(OSError):
                sock.sendall(b"GET / HTTP/1.1\r\n\r\n" + os.urandom(5000))
        assert client.value("1 + 1") == "2"


@pytest.mark.parametrize(
    ("request_type", "content"),
    [
        ("execute_request", {}),
        ("execute_request", {"code": 5}),
        ("complete_request", {"code": "x", "cursor_pos": "far"}),
        ("inspect_request", {"code": None}),
        ("is_complete_request", {}),
        ("history_request", {"hist_access_type": "tail", "n": "many"}),
        ("no_such_request", {}),
        ("debug_request", {"seq": 4, "type": "request", "command": "attach"}),
    ],
)
def test_a_bad_request_gets_an_error_and_the_kernel_lives(
    client: Client, request_type: str, content: dict[str, object]
) -> None:
    msg_id = client.send("shell", request_type, content)
    assert client.reply_to(msg_id)["content"]["status"] == "error"
    states = contents(client.published_until(msg_id), "status")
    assert states == [{"execution_state": "busy"}, {"execution_state": "idle"}]
    assert client.value("1 + 1") == "2"


def test_the_debugger_is_declined_clearly(client: Client) -> None:
    reply = client.control("debug_request", seq=4, type="request", command="attach")
    assert reply["success"] is False
    assert reply["request_seq"] == 4
    assert "no debugger" in reply["message"]


def test_bad_comm_messages_do_no_harm(client: Client) -> None:
    for content in ({}, {"comm_id": "nobody", "data": {}}, {"comm_id": 7}):
        for kind in ("comm_open", "comm_msg", "comm_close"):
            client.published_until(client.send("shell", kind, content))
    assert client.value("1 + 1") == "2"


# -- coming and going ---------------------------------------------------------------------------


def test_a_door_that_nobody_knocks_at_costs_nothing(
    shared_box: Box, kernel: KernelRecord, waiting: Callable[..., None]
) -> None:
    pid = warden_pid(shared_box, kernel)
    assert threads(pid) == 1
    with attached(kernel):
        assert threads(pid) > 1


def test_every_subscription_is_welcomed(client: Client, connect: Connect) -> None:
    for topic in (b"", b"kernel.", b"some topic"):
        listener = connect(zmq.SUB, "iopub")
        listener.subscribe(topic)
        assert listener.poll(5000)
        identities, frames = client.raw.session.feed_identities(listener.recv_multipart())
        message = client.raw.session.deserialize(frames)
        assert identities == [topic]
        assert message["msg_type"] == "iopub_welcome"
        assert message["content"] == {"subscription": topic.decode()}
        assert message["parent_header"] == {}


@pytest.mark.slow
def test_the_first_output_is_never_lost(kernel: KernelRecord) -> None:
    for number in range(200):
        with attached(kernel, wait=False) as newcomer:
            _, published = newcomer.run(f"print({number})")
            assert text(published) == f"{number}\n"


@pytest.mark.slow
def test_clients_that_come_at_once_all_see_their_first_output(kernel: KernelRecord) -> None:
    for _ in range(10):
        with ExitStack() as leaving:
            visitors = [leaving.enter_context(attached(kernel, wait=False)) for _ in range(8)]
            sent = [
                visitor.raw.execute(f"print({number})") for number, visitor in enumerate(visitors)
            ]
            for number, visitor in enumerate(visitors):
                assert text(visitor.published_until(sent[number])) == f"{number}\n"


def test_a_client_that_does_not_listen_is_served_all_the_same(
    client: Client, connect: Connect
) -> None:
    deaf = connect(zmq.DEALER, "shell")
    message = client.raw.session.msg("execute_request", {"code": "heard = 1"})
    began = time.monotonic()
    deaf.send_multipart(client.raw.session.serialize(message))
    assert deaf.poll(5000)
    assert time.monotonic() - began < 2
    assert client.value("heard") == "1"


@pytest.mark.slow
def test_fifty_clients_come_and_go_and_leave_nothing(
    shared_box: Box, kernel: KernelRecord, waiting: Callable[..., None]
) -> None:
    pid = warden_pid(shared_box, kernel)
    with attached(kernel) as first:
        first.run("1")
    waiting(lambda: _calm(pid), what="the first client's connections to close")
    before = descriptors(pid)
    for number in range(50):
        with attached(kernel, wait=False) as visitor:
            visitor.run(f"{number}")
    waiting(lambda: descriptors(pid) <= before, what=f"descriptors to fall to {before}")
    assert threads(pid) <= 3


def _calm(pid: int) -> bool:
    first = descriptors(pid)
    time.sleep(0.05)
    return descriptors(pid) == first


def test_a_client_whose_connection_breaks_comes_back_under_its_name(
    client: Client, connect: Connect
) -> None:
    for _ in range(3):
        dealer = connect(zmq.DEALER, "shell", identity=b"the same")
        message = client.raw.session.msg("kernel_info_request", {})
        dealer.send_multipart(client.raw.session.serialize(message))
        assert dealer.poll(5000)
    assert client.value("1 + 1") == "2"


# -- ending -------------------------------------------------------------------------------------


def test_a_shutdown_request_ends_the_kernel_after_its_reply(
    shared_box: Box, tmp_path: Path, waiting: Callable[..., None]
) -> None:
    record = shared_box.get_or_create("to-be-shut-down", cwd=str(tmp_path))
    with attached(record) as client:
        pid = warden_pid(shared_box, record)
        msg_id = client.send("control", "shutdown_request", {"restart": False})
        assert client.control_reply_to(msg_id)["content"] == {"status": "ok", "restart": False}
        published = client.published_until(msg_id)
        assert contents(published, "shutdown_reply") == [{"status": "ok", "restart": False}]
    waiting(lambda: not os.path.exists(f"/proc/{pid}"), what="the warden to end")
    with pytest.raises(BoxError, match="Jupyter client asked it to shut down"):
        shared_box.execute(record.name, "1")


def test_a_cell_that_runs_at_shutdown_is_answered(shared_box: Box, tmp_path: Path) -> None:
    record = shared_box.get_or_create("shut-down-while-busy", cwd=str(tmp_path))
    with attached(record) as client:
        msg_id = client.start("import time; time.sleep(60)")
        assert client.control("shutdown_request", restart=False)["status"] == "ok"
        assert client.reply_to(msg_id)["content"]["ename"] == "KernelEnded"
        assert client.published_until(msg_id)[-1]["content"]["execution_state"] == "idle"


def test_a_restart_request_of_an_attached_client_renews_the_namespace(
    shared_box: Box, kernel: KernelRecord, client: Client
) -> None:
    client.run("x = 1")
    assert client.control("shutdown_request", restart=True) == {"status": "ok", "restart": True}
    assert client.value("'x' in globals()") == "False"
    assert shared_box.execute(kernel, "1").epoch == 2


def test_a_hung_listener_does_not_hold_up_the_end(
    shared_box: Box, tmp_path: Path, waiting: Callable[..., None]
) -> None:
    import signal
    import subprocess
    import sys

    record = shared_box.get_or_create("with-hung-listener", cwd=str(tmp_path))
    with attached(record) as client:
        url = client.raw._make_url("iopub")
        program = (
            "import sys, time, zmq; s = zmq.Context().socket(zmq.SUB); s.connect(sys.argv[1]);"
            "s.subscribe(b''); s.recv(); print('up', flush=True); time.sleep(600)"
        )
        with subprocess.Popen(
            [sys.executable, "-c", program, url], stdout=subprocess.PIPE
        ) as listener:
            try:
                assert listener.stdout is not None
                listener.stdout.readline()
                listener.send_signal(signal.SIGSTOP)
                reply, _ = client.run("for _ in range(300): print('x' * 100_000)")
                assert reply["status"] == "ok"
                pid = warden_pid(shared_box, record)
                assert shared_box.destroy(record)
                waiting(lambda: not os.path.exists(f"/proc/{pid}"), what="the end", seconds=5)
            finally:
                listener.kill()
