"""The door: what web pages, strangers, tenants and bad clients are refused."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from http_service import Service, Start

from kernelbox import BadInput
from kernelbox.server.safety import Safety, host_name, is_loopback, is_same_origin
from kernelbox.server.settings import ServerSettings
from kernelbox.server.tokens import Tokens, read_tokens


def send(service: Service, *lines: str, body: bytes = b"") -> tuple[int, dict[str, Any]]:
    """A request exactly as given; its status and its JSON."""
    with socket.create_connection(("127.0.0.1", service.port), timeout=60) as line:
        line.sendall("\r\n".join([*lines, "connection: close", "", ""]).encode() + body)
        answer = line.makefile("rb").read()
    head, _, content = answer.partition(b"\r\n\r\n")
    status = int(head.split()[1])
    return status, json.loads(content) if content.startswith(b"{") else {}


# -- web pages ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8080",
        "127.0.0.1.evil.example",
        "localhost.evil",
        "[::1].evil.example",
        "[::1]evil",
        "localhost:80@evil.example",
        "localhost,evil.example",
        "",
    ],
)
def test_a_foreign_host_is_refused_on_loopback(service: Service, host: str) -> None:
    for path in ("/kernels", "/health", "/docs"):
        status, content = send(service, f"GET {path} HTTP/1.1", f"host: {host}")
        assert (status, content["error"]) == (403, "ForeignHost")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1", "127.1.2.3", "[::1]:9"])
def test_names_of_this_machine_are_served(service: Service, host: str) -> None:
    status, _ = send(service, "GET /kernels HTTP/1.1", f"host: {host}")
    assert status == 200


def test_two_hosts_are_one_too_many(service: Service) -> None:
    status, _ = send(service, "GET /kernels HTTP/1.1", "host: localhost", "host: evil.example")
    assert status in (400, 403)


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://localhost:1", "https://127.0.0.1", "file://"]
)
def test_a_foreign_origin_is_refused(service: Service, origin: str) -> None:
    for method in ("GET", "POST", "DELETE"):
        reply = service.http.request(method, "/kernels", headers={"origin": origin}, json={})
        assert (reply.status_code, reply.json()["error"]) == (403, "ForeignOrigin")
        assert "access-control-allow-origin" not in reply.headers
    asked = service.http.options(
        "/kernels", headers={"origin": origin, "access-control-request-method": "POST"}
    )
    assert asked.status_code == 403


def test_pages_of_our_own_may_call_us(service: Service) -> None:
    reply = service.http.get("/kernels", headers={"origin": service.url})
    assert reply.status_code == 200


def test_another_site_without_an_origin_is_refused(service: Service) -> None:
    reply = service.http.post("/kernels", json={}, headers={"sec-fetch-site": "cross-site"})
    assert (reply.status_code, reply.json()["error"]) == (403, "ForeignOrigin")


@pytest.mark.parametrize(
    "kind",
    [
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "text/plain",
        "text/plain; application/json",
        "",
    ],
)
def test_a_form_is_refused(service: Service, kind: str) -> None:
    service.execute("form", "x = 1")
    body = json.dumps({"code": "x = 2"}).encode()
    headers = {"content-type": kind} if kind else {}
    reply = service.http.post("/kernels/form/execute", content=body, headers=headers)
    assert (reply.status_code, reply.json()["error"]) == (415, "NotJson")
    assert service.execute("form", "x")["return_value"] == "1"


def test_cors_is_for_those_who_are_listed(shared_start: Start) -> None:
    service = shared_start(server={"cors_origins": ["https://good.example"]})
    reply = service.http.get("/kernels", headers={"origin": "https://good.example"})
    assert reply.headers["access-control-allow-origin"] == "https://good.example"
    asked = service.http.options(
        "/kernels",
        headers={
            "origin": "https://good.example",
            "access-control-request-method": "POST",
            "access-control-request-headers": "content-type",
        },
    )
    assert asked.status_code == 200
    reply = service.http.post("/kernels", json={}, headers={"origin": "https://bad.example"})
    assert reply.status_code == 403


# -- tokens -----------------------------------------------------------------------------------


def test_a_token_is_needed_where_there_is_one(shared_start: Start) -> None:
    service = shared_start(env={"KERNELBOX_API_TOKEN": "right-token"})
    for headers in (
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": "Bearer right-token2"},
        {"authorization": "Bearer"},
        {"authorization": "Basic right-token"},
        {"authorization": "right-token"},
    ):
        for path in ("/kernels", "/metrics", "/saved", "/kernels/a/files/b"):
            reply = service.http.get(path, headers=headers)
            assert (reply.status_code, reply.json()["error"]) == (401, "Unauthorized")
            assert reply.headers["www-authenticate"] == "Bearer"
            assert "right-token" not in reply.text
    for path in ("/", "/health", "/docs", "/openapi.json"):
        assert service.http.get(path).status_code == 200
    with service.client("right-token") as http:
        assert http.get("/kernels").status_code == 200
        # What opens the service is not told to the code that it runs.
        reply = http.post(
            "/sessions/nosy/execute", json={"code": "import os; 'right-token' in str(os.environ)"}
        )
        assert reply.json()["return_value"] == "False"
        security = http.get("/openapi.json").json()["paths"]["/kernels"]["get"]["security"]
        assert security == [{"token": []}]


def through_the_door(
    address: str | None, *, tokens: Tokens | None = None, headers: dict[str, str] | None = None
) -> int:
    """The status of a request that arrived at a local address of this machine."""
    sent: list[dict[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/kernels",
        "server": None if address is None else (address, 80),
        "headers": [(name.encode(), value.encode()) for name, value in (headers or {}).items()],
    }
    door = Safety(app, settings=ServerSettings(), tokens=tokens or Tokens({}, tenants=False))
    asyncio.run(door(scope, receive, send))
    return int(sent[0]["status"])


@pytest.mark.parametrize("address", ["192.168.1.5", "10.0.0.1", "::", "2001:db8::1", "/sock", None])
def test_beyond_loopback_nobody_is_served_without_a_token(address: str | None) -> None:
    assert through_the_door(address, headers={"host": "127.0.0.1"}) == 401
    tokens = read_tokens(ServerSettings(api_token="abc"))
    good = {"host": "box.example", "authorization": "Bearer abc"}
    assert through_the_door(address, tokens=tokens, headers=good) == 200
    bad = {**good, "authorization": "Bearer abd"}
    assert through_the_door(address, tokens=tokens, headers=bad) == 401


def test_bound_elsewhere_a_token_is_made_and_printed(shared_start: Start) -> None:
    import sys

    script = "from kernelbox.server.run import serve; serve('0.0.0.0', 0)"
    service = shared_start(command=[sys.executable, "-c", script])
    service.url = f"http://127.0.0.1:{service.port}"
    with service.client() as http:
        assert http.get("/health").status_code == 200
        assert http.get("/kernels").status_code == 401
    token = service.said[1].strip()
    with service.client(token) as http:
        assert http.get("/kernels").status_code == 200


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.0.1", False),
        ("localhost", False),
        ("", False),
    ],
)
def test_which_addresses_are_loopback(address: str, local: bool) -> None:
    assert is_loopback(address) is local


def test_names_and_origins_are_taken_apart() -> None:
    assert host_name("Localhost:80") == "localhost"
    assert host_name("[::1]:80") == "::1"
    assert is_same_origin("http://a:80", "A:80")
    assert not is_same_origin("http://a:81", "a:80")
    assert not is_same_origin("null", "null")


# -- the file of tenants (what they get is in test_tenants.py) ------------------------------------


@pytest.mark.parametrize(
    "text", ["", "nocolon", "a b:token", "a:", "a:one\nb:one", "a:x\na:y", "{", '{"a": 1}', "a:ü"]
)
def test_a_bad_tokens_file_is_refused_in_words(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tokens"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(BadInput, match="tokens"):
        read_tokens(ServerSettings(tokens_file=str(path)))


# -- limits -------------------------------------------------------------------------------------


def test_a_body_that_is_too_large_is_refused(shared_start: Start) -> None:
    service = shared_start(server={"max_body": 2000, "max_upload": 5000})
    service.execute("small", "1")
    reply = service.http.post("/kernels/small/execute", json={"code": "#" * 3000})
    assert (reply.status_code, reply.json()["error"]) == (413, "BodyTooLarge")
    declared, content = send(
        service,
        "POST /kernels HTTP/1.1",
        "host: localhost",
        "content-type: application/json",
        "content-length: 99999999999",
    )
    assert (declared, content["error"]) == (413, "BodyTooLarge")
    chunked, content = send(
        service,
        "POST /kernels HTTP/1.1",
        "host: localhost",
        "content-type: application/json",
        "transfer-encoding: chunked",
        body=b"bb8\r\n" + b" " * 3000 + b"\r\n0\r\n\r\n",
    )
    assert (chunked, content["error"]) == (413, "BodyTooLarge")
    upload = service.http.put("/kernels/small/files/big", content=b"x" * 6000)
    assert upload.status_code == 413
    assert service.http.put("/kernels/small/files/fits", content=b"x" * 4000).status_code == 201
    names = [one["name"] for one in service.http.get("/kernels/small/files").json()["files"]]
    assert "fits" in names
    assert "big" not in names


def test_a_body_that_is_too_slow_is_given_up(shared_start: Start) -> None:
    service = shared_start(server={"body_timeout": 0.3})
    service.execute("slow", "1")
    for line in ("POST /kernels/slow/execute HTTP/1.1", "PUT /kernels/slow/files/late HTTP/1.1"):
        status, content = send(
            service,
            line,
            "host: localhost",
            "content-type: application/json",
            "content-length: 100",
            body=b'{"code',
        )
        assert (status, content["error"]) == (408, "BodyTooSlow")
    names = [one["name"] for one in service.http.get("/kernels/slow/files").json()["files"]]
    assert "late" not in names
    for beginning in (b"", b"GET /kernels HTTP/1.1\r\nhost: loc"):
        with socket.create_connection(("127.0.0.1", service.port), timeout=60) as line_:
            line_.sendall(beginning)
            assert line_.recv(100) == b""  # it hangs up


@pytest.fixture
def held() -> Callable[[Service, str, str], socket.socket]:
    """Holds a request open: a cell that waits."""

    def hold(service: Service, kernel: str, token: str) -> socket.socket:
        body = json.dumps({"code": "import time; time.sleep(60)"}).encode()
        line = socket.create_connection(("127.0.0.1", service.port), timeout=60)
        head = [
            f"POST /kernels/{kernel}/execute HTTP/1.1",
            "host: localhost",
            f"authorization: Bearer {token}",
            "accept: text/event-stream",
            "content-type: application/json",
            f"content-length: {len(body)}",
        ]
        line.sendall("\r\n".join([*head, "", ""]).encode() + body)
        assert b"200" in line.recv(20)
        return line

    return hold


def test_too_many_requests_at_once(
    shared_start: Start, held: Callable[[Service, str, str], socket.socket]
) -> None:
    service = shared_start(server={"max_concurrency": 2})
    service.execute("crowd", "1")
    lines = [held(service, "crowd", "-") for _ in range(2)]
    reply = service.http.get("/kernels")
    assert (reply.status_code, reply.json()["error"]) == (503, "TooManyRequests")
    assert reply.headers["retry-after"] == "1"
    assert service.http.get("/health").status_code == 200
    for line in lines:
        line.close()


def test_too_many_kernels(shared_start: Start, service: Service) -> None:
    service.execute("anchor", "1")
    there = len(service.http.get("/kernels").json()["kernels"])
    full = shared_start(server={"max_kernels": there})
    for path, body in (
        ("/kernels", {"name": "one-more"}),
        ("/sessions/one-more/execute", {"code": "1"}),
        ("/kernels/anchor/branch", {"name": "one-more"}),
    ):
        reply = full.http.post(path, json=body)
        assert (reply.status_code, reply.json()["error"]) == (429, "TooManyKernels")
        assert f"there are {there} kernels" in reply.json()["message"]
    assert full.http.post("/sessions/anchor").status_code == 200  # it is there already


def test_a_pattern_that_takes_for_ever_delays_nobody(shared_start: Start) -> None:
    service = shared_start(server={"search_timeout": 2})
    result = service.execute("regex", "print('a' * 200 + '!')")
    where = f"/kernels/regex/executions/{result['execution_id']}/output"
    with ThreadPoolExecutor(1) as pool:
        search = pool.submit(service.http.get, where, params={"search": "(a+)+$"})
        assert service.execute("other", "1 + 1")["return_value"] == "2"
        reply = search.result()
    assert (reply.status_code, reply.json()["error"]) == (409, "SearchTooSlow")
