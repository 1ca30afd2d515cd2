"""Events as they happen: over server-sent events and over a WebSocket, with nothing missed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from http_service import PATIENCE, Service, Start
from processes import wait_until
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

EVENTS = {"accept": "text/event-stream"}
Message = dict[str, Any]


class Told:
    """One server-sent event."""

    def __init__(self, kind: str, number: int | None, data: Any) -> None:
        self.kind, self.number, self.data = kind, number, data


def told(reply: httpx.Response) -> Iterator[Told]:
    """The events of a stream, as they come."""
    kind, number = "", None
    for line in reply.iter_lines():
        name, _, value = line.partition(": ")
        if name == "event":
            kind = value
        elif name == "id":
            number = int(value)
        elif name == "data":
            yield Told(kind, number, json.loads(value))
            kind, number = "", None


def text_of(events: list[Told]) -> str:
    return "".join(event.data["text"] for event in events if event.kind == "stream")


def test_output_comes_while_the_cell_runs_and_the_result_last(service: Service) -> None:
    service.execute("sse", "1")
    code = "print('one', flush=True)\nimport os, time\nwhile not os.path.exists('go'): time.sleep(0.005)\nprint('two')\n6 * 7"
    with service.http.stream(
        "POST", "/kernels/sse/execute", json={"code": code}, headers=EVENTS
    ) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        events = told(reply)
        first = next(events)
        assert first.kind == "execution"
        assert first.data["execution_id"] == reply.headers["x-execution-id"]
        seen = []
        while "one" not in text_of(seen):
            seen.append(next(events))
        assert service.http.put("/kernels/sse/files/go", content=b"").status_code == 201
        seen += events
    service.http.delete("/kernels/sse/files/go")
    assert text_of(seen) == "one\ntwo\n"
    assert [event.kind for event in seen][-2:] == ["execute_result", "result"]
    assert seen[-1].data["return_value"] == "42"
    numbers = [event.number for event in seen]
    assert numbers == sorted(set(numbers))


def test_a_refusal_is_a_status_and_not_a_stream(service: Service) -> None:
    service.execute("refuse", "1")
    for path, body, status in (
        ("/kernels/nobody/execute", {"code": "1"}, 404),
        ("/kernels/refuse/execute", {"code": "1", "expect_epoch": 7}, 409),
        ("/kernels/refuse/execute", {"code": 1}, 422),
    ):
        reply = service.http.post(path, json=body, headers=EVENTS)
        assert reply.status_code == status
        assert reply.json()["message"]
    reply = service.http.get("/kernels/refuse/executions/none/events")
    assert (reply.status_code, reply.json()["error"]) == (404, "ExecutionNotFound")


def test_who_comes_back_misses_nothing(service: Service) -> None:
    service.execute("again", "1")
    code = "import os, time\nfor i in range(50):\n    print(i, flush=True)\n    if i == 20:\n        while not os.path.exists('on'): time.sleep(0.005)"
    body = {"code": code, "on_disconnect": "continue", "execution_id": "come-back"}
    seen: list[Told] = []
    with service.http.stream("POST", "/kernels/again/execute", json=body, headers=EVENTS) as reply:
        for event in told(reply):
            if event.kind == "stream":
                seen.append(event)
            if "\n10\n" in text_of(seen):
                break  # and hang up
    assert service.http.put("/kernels/again/files/on", content=b"").status_code == 201
    where = "/kernels/again/executions/come-back/events"
    last = seen[-1].number
    assert last is not None
    rest = list(told(service.http.get(where, params={"start": last + 1})))
    assert text_of(seen + rest) == "".join(f"{i}\n" for i in range(50))
    assert rest[-1].kind == "result"
    assert rest[-1].data["status"] == "success"
    same = list(told(service.http.get(where, headers={"last-event-id": str(last)})))
    assert [event.number for event in same] == [event.number for event in rest]
    whole = list(told(service.http.get(where)))
    assert text_of(whole) == text_of(seen + rest)
    service.http.delete("/kernels/again/files/on")


@pytest.mark.parametrize("streamed", [True, False])
def test_a_client_that_leaves_interrupts_its_cell(service: Service, streamed: bool) -> None:
    name = f"leave-{streamed}"
    service.execute(name, "state = 'before'")
    code = "state = 'running'\nimport time\ntry:\n    time.sleep(60)\nfinally:\n    state = 'interrupted'"
    leave(service, name, {"code": code}, streamed=streamed)
    assert service.execute(name, "state")["return_value"] == "'interrupted'"


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("by_key", [True, False])
def test_a_cell_goes_on_without_its_client_if_that_was_asked_for(
    service: Service, streamed: bool, by_key: bool
) -> None:
    name = f"go-on-{streamed}-{by_key}"
    service.execute(name, "state = 'before'")
    body: Message = {
        "code": f"import os, time\nwhile not os.path.exists('{name}'): time.sleep(0.005)\nstate = 'done'"
    }
    headers = {"idempotency-key": name} if by_key else {}
    if not by_key:
        body["on_disconnect"] = "continue"
    leave(service, name, body, streamed=streamed, headers=headers)
    assert service.http.put(f"/kernels/{name}/files/{name}", content=b"").status_code == 201
    assert service.execute(name, "state")["return_value"] == "'done'"
    service.http.delete(f"/kernels/{name}/files/{name}")


def leave(
    service: Service,
    kernel: str,
    body: Message,
    *,
    streamed: bool,
    headers: dict[str, str] | None = None,
) -> None:
    """Send code, and hang up when it runs."""
    import socket

    content = json.dumps(body).encode()
    lines = [
        f"POST /kernels/{kernel}/execute HTTP/1.1",
        f"host: 127.0.0.1:{service.port}",
        "content-type: application/json",
        f"content-length: {len(content)}",
        f"accept: {EVENTS['accept'] if streamed else '*/*'}",
        *(f"{name}: {value}" for name, value in (headers or {}).items()),
    ]
    with socket.create_connection(("127.0.0.1", service.port)) as line:
        line.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + content)
        where = f"/kernels/{kernel}"
        wait_until(lambda: service.http.get(where).json()["running"], what="the cell to run")


def test_a_silent_stream_is_kept_alive(shared_start: Start, service: Service) -> None:
    quick = shared_start(server={"keep_alive": 0.05})
    service.execute("silent", "1")
    code = "import os, time\nwhile not os.path.exists('loud'): time.sleep(0.005)"
    with quick.http.stream(
        "POST", "/kernels/silent/execute", json={"code": code}, headers=EVENTS
    ) as reply:
        lines = reply.iter_lines()
        while not next(lines).startswith(":"):
            continue
        service.http.put("/kernels/silent/files/loud", content=b"")
        assert any('"status":"success"' in line for line in lines)
    service.http.delete("/kernels/silent/files/loud")


# -- the WebSocket ------------------------------------------------------------------------------


@contextmanager
def talk(service: Service, kernel: str, **options: Any) -> Iterator[ClientConnection]:
    address = f"{service.url.replace('http', 'ws')}/kernels/{kernel}/ws"
    with connect(address, **options) as line:
        yield line


def say(line: ClientConnection, **message: Any) -> None:
    line.send(json.dumps(message))


def hear(line: ClientConnection, *kinds: str) -> Message:
    """The next message of one of these kinds."""
    while True:
        message: Message = json.loads(line.recv(timeout=PATIENCE))
        if message["type"] in kinds:
            return message
        assert message["type"] != "error", message


def test_a_websocket_runs_cells_in_order(service: Service) -> None:
    service.execute("ws", "seen = []")
    with talk(service, "ws") as line:
        for number in range(10):
            say(line, op="execute", code=f"seen.append({number}); print({number})")
        results = [hear(line, "result") for _ in range(10)]
        assert [message["result"]["output"] for message in results] == [f"{n}\n" for n in range(10)]
        say(line, op="execute", code="print('a')\nseen", execution_id="mine")
        assert hear(line, "accepted")["execution_id"] == "mine"
        assert hear(line, "event")["item"]["text"].startswith("a")
        result = hear(line, "result")
        assert result["result"]["return_value"] == str(list(range(10)))
        say(line, op="attach", execution_id="mine", start=0)
        assert hear(line, "event")["number"] == 0
        assert hear(line, "result")["result"]["execution_id"] == "mine"


def test_a_websocket_answers_input(service: Service) -> None:
    service.execute("asks", "1")
    with talk(service, "asks") as line:
        say(line, op="execute", code="name = input('who? ')\nname * 2")
        asked = hear(line, "input")
        assert asked["prompt"] == "who? "
        say(line, op="input", execution_id=asked["execution_id"], value="ab")
        assert hear(line, "result")["result"]["return_value"] == "'abab'"
        say(line, op="execute", code="input()")
        asked = hear(line, "input")
        say(line, op="interrupt", execution_id=asked["execution_id"])
        assert hear(line, "result")["result"]["error"]["ename"] == "KeyboardInterrupt"
        say(line, op="execute", code="input()", timeout=0.2)
        assert hear(line, "result")["result"]["status"] == "timeout"
    assert service.execute("asks", "name")["return_value"] == "'ab'"


def test_a_websocket_interrupts_and_takes_back(service: Service) -> None:
    service.execute("stop", "x = 1")
    with talk(service, "stop") as line:
        say(line, op="execute", code="print('on', flush=True)\nimport time; time.sleep(60)")
        say(line, op="execute", code="x = 2", execution_id="never")
        hear(line, "event")
        say(line, op="interrupt", execution_id="never")
        cancelled = hear_error(line)
        assert (cancelled["error"], cancelled["execution_id"]) == ("Cancelled", "never")
        say(line, op="interrupt")
        messages = [hear(line, "interrupted", "result") for _ in range(3)]
        (result,) = (message for message in messages if message["type"] == "result")
        assert result["result"]["error"]["ename"] == "KeyboardInterrupt"
    assert service.execute("stop", "x")["return_value"] == "1"


def hear_error(line: ClientConnection) -> Message:
    while True:
        message: Message = json.loads(line.recv(timeout=PATIENCE))
        if message["type"] == "error":
            return message


def test_a_websocket_says_what_is_wrong(service: Service) -> None:
    service.execute("wrong", "1")
    with talk(service, "wrong") as line:
        for text in ("no json", "[]", '{"op": "fly"}', '{"op": "execute"}', '{"op": "attach"}'):
            line.send(text)
            assert hear_error(line)["error"] == "BadInput"
        say(line, op="attach", execution_id="none")
        assert hear_error(line)["error"] == "ExecutionNotFound"
        say(line, op="execute", code="1", expect_epoch=99)
        assert hear_error(line)["error"] == "EpochMismatch"
        say(line, op="execute", code="1 + 1")
        assert hear(line, "result")["result"]["return_value"] == "2"
    with talk(service, "nobody") as line:
        say(line, op="execute", code="1")
        assert hear_error(line)["error"] == "KernelNotFound"


def test_leaving_a_websocket_interrupts_its_cell(service: Service) -> None:
    service.execute("left", "state = 'before'")
    with talk(service, "left") as line:
        say(
            line,
            op="execute",
            code="try:\n    print('on', flush=True)\n    import time; time.sleep(60)\nfinally:\n    state = 'interrupted'",
        )
        hear(line, "event")
    assert service.execute("left", "state")["return_value"] == "'interrupted'"


def test_a_web_page_of_another_site_gets_no_websocket(service: Service) -> None:
    with (
        pytest.raises(InvalidStatus) as refused,
        talk(service, "any", origin="http://evil.example"),
    ):
        pass
    assert refused.value.response.status_code == 403
    assert json.loads(refused.value.response.body)["error"] == "ForeignOrigin"


def test_a_refused_websocket_is_no_failure_of_the_app(shared_start: Start) -> None:
    strict = shared_start(server={"api_token": "secret"})
    with pytest.raises(InvalidStatus), talk(strict, "any"):
        pass
    strict.stop()
    assert not any("handshake" in line for line in strict.said), strict.said


def test_a_websocket_takes_only_so_much_code(shared_start: Start, service: Service) -> None:
    small = shared_start(server={"max_body": 2000})
    service.execute("full", "1")
    with talk(small, "full") as line:
        say(line, op="execute", code="print('on', flush=True)\nimport time; time.sleep(60)")
        hear(line, "event")
        for _ in range(2):
            say(line, op="execute", code="#" * 1800)
            hear(line, "accepted")
        say(line, op="execute", code="#" * 1800)
        assert hear_error(line)["error"] == "TooManyRequests"
        say(line, op="execute", code="1")
        hear(line, "accepted")


def test_a_websocket_says_what_a_key_is(service: Service) -> None:
    service.execute("keyed", "1")
    with talk(service, "keyed") as line:
        for key in ("", "a b", "x" * 256, 3):
            say(line, op="execute", code="1", idempotency_key=key)
            assert "idempotency_key" in hear_error(line)["message"]


def test_a_websocket_survives_a_display_that_no_json_can_hold(service: Service) -> None:
    service.execute("deep", "1")
    code = (
        "from IPython.display import display\nx = []\nfor _ in range({}): x = [x]\n"
        "display({{'application/json': x}}, raw=True)\n'end'"
    )
    with talk(service, "deep", max_size=None) as line:
        for depth in (900, 960, 980, 990):
            say(line, op="execute", code=code.format(depth))
            # As text: some of it is too deep for our own reader, and some for the kernel itself.
            while not (text := str(line.recv(PATIENCE))).startswith('{"type":"result"'):
                assert not text.startswith('{"type":"error"'), text[:500]
        say(line, op="execute", code="'after'")
        assert hear(line, "result")["result"]["return_value"] == "'after'"
