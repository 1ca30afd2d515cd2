"""Clients that mean harm, or leave: nobody else notices, and nothing of them stays."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from http_service import LAUNCH, Service, Start
from processes import wait_until

from kernelbox import BadInput
from kernelbox.result import ExecutionResult, OutputItem
from kernelbox.server.answers import to_json
from kernelbox.server.observing import WithoutTokens, without_token
from kernelbox.server.peers import GONE, find_owner, owner_of
from kernelbox.server.settings import ServerSettings


@contextlib.contextmanager
def line_to(service: Service) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", service.port), timeout=60) as line:
        yield line


def request(method: str, path: str, body: Any = None, **headers: str) -> bytes:
    content = b"" if body is None else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "host: localhost", f"content-length: {len(content)}"]
    if body is not None:
        lines.append("content-type: application/json")
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + content


def read_answer(line: socket.socket) -> tuple[int, bytes]:
    """The status and the body of an answer that has a length."""
    file = line.makefile("rb")
    status = int(file.readline().split()[1])
    size = 0
    while (header := file.readline().strip()) != b"":
        name, _, value = header.partition(b":")
        if name.lower() == b"content-length":
            size = int(value)
    return status, file.read(size)


def hung_up(line: socket.socket) -> bool:
    """Waits until the other side ends the connection, whatever it says before."""
    try:
        while line.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return True


def running(service: Service, kernel: str) -> Any:
    return service.http.get(f"/kernels/{kernel}").json()["running"]


# -- connections ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hasty(shared_start: Start) -> Service:
    """A service with a token and little patience."""
    return shared_start(server={"body_timeout": 0.3, "api_token": "secret"})


def test_a_connection_without_a_request_is_not_kept_alive_by_bytes(hasty: Service) -> None:
    with line_to(hasty) as line:
        line.sendall(request("GET", "/health"))
        assert read_answer(line)[0] == 200
        line.sendall(b"\r\n")
        assert hung_up(line)
    with line_to(hasty) as line:
        head = b"PUT /kernels/a/files/b HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9999\r\n\r\n"
        line.sendall(head)
        assert read_answer(line)[0] == 401
        line.sendall(b"x")
        assert hung_up(line)


def test_a_connection_is_kept_for_the_next_request(hasty: Service) -> None:
    with line_to(hasty) as line:
        for _ in range(3):
            line.sendall(request("GET", "/health")[:20])
            line.sendall(request("GET", "/health")[20:])
            assert read_answer(line)[0] == 200


@pytest.mark.parametrize("streamed", [True, False])
def test_a_head_without_end_is_refused(service: Service, streamed: bool) -> None:
    many = b"GET / HTTP/1.1\r\nhost: localhost\r\n" + b"a: bcdefgh\r\n" * 9000
    one = b"GET / HTTP/1.1\r\nhost: localhost\r\na: " + b"b" * 100_000
    address = b"GET /" + b"a" * 100_000
    for head in (many, one, address):
        with line_to(service) as line:
            if streamed:
                with contextlib.suppress(OSError):  # it need not read to the end
                    for at in range(0, len(head), 1000):
                        line.sendall(head[at : at + 1000])
            else:
                line.sendall(head + b" HTTP/1.1\r\n\r\n" + b"\r\n\r\n")
            try:
                status, body = read_answer(line)
            except ConnectionResetError:
                continue  # what it did not read took its words along
            assert (status, json.loads(body)["error"]) == (431, "HeadTooLarge")
    with line_to(service) as line:  # and a large one that is not too large is fine
        line.sendall(request("GET", "/health", cookie="c" * 50_000))
        assert read_answer(line)[0] == 200


def test_what_is_no_http_is_told_so_in_our_shape(service: Service) -> None:
    with line_to(service) as line:
        line.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        status, body = read_answer(line)
        assert (status, json.loads(body)["error"]) == (400, "BadRequest")


def test_connections_leave_descriptors_for_the_rest(shared_start: Start) -> None:
    script = (
        "import resource, runpy, sys; sys.argv = sys.argv[1:]; "
        "resource.setrlimit(resource.RLIMIT_NOFILE, (120, 120)); "
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    small = shared_start(command=[sys.executable, "-c", script, str(LAUNCH), "{}"])
    with contextlib.ExitStack() as stack:
        lines = [stack.enter_context(line_to(small)) for _ in range(110)]
        assert hung_up(lines[-1])
        lines[0].sendall(request("POST", "/sessions/crowded/execute", {"code": "6 * 7"}))
        status, body = read_answer(lines[0])
        assert (status, json.loads(body)["return_value"]) == (200, "42")
    assert not any("Too many open files" in line for line in small.said)


# -- who leaves -------------------------------------------------------------------------------


def test_who_pipelines_and_leaves_interrupts_the_cell(service: Service) -> None:
    service.execute("piped", "state = 'before'")
    code = "import time\ntry:\n    time.sleep(60)\nfinally:\n    state = 'interrupted'"
    with line_to(service) as line:
        line.sendall(request("POST", "/kernels/piped/execute", {"code": code}))
        wait_until(lambda: running(service, "piped"), what="the cell to run")
        line.sendall(request("GET", "/health") * 3)
    assert service.execute("piped", "state")["return_value"] == "'interrupted'"


def test_pipelined_requests_are_answered_in_order(service: Service) -> None:
    service.execute("orderly", "1")
    with line_to(service) as line:
        for word in ("one", "two", "three"):
            line.sendall(request("POST", "/kernels/orderly/execute", {"code": f"'{word}'"}))
        file = line.makefile("rb")
        values: list[str] = []
        while len(values) < 3:
            size = 0
            while (header := file.readline().strip().lower()) != b"":
                if header.startswith(b"content-length:"):
                    size = int(header.split(b":")[1])
            values.append(json.loads(file.read(size))["return_value"])
    assert values == ["'one'", "'two'", "'three'"]


def test_a_download_ends_when_its_client_leaves(service: Service, tmp_path: Path) -> None:
    path = tmp_path / "endless"
    with open(path, "wb") as file:
        file.truncate(200 << 30)
    service.http.post("/kernels", json={"name": "endless", "cwd": str(tmp_path)})
    with line_to(service) as line:
        line.sendall(request("GET", "/kernels/endless/files/endless"))
        assert line.recv(1000)
    wait_until(lambda: str(path) not in opened(service), what="the service to close the file")
    service.http.delete("/kernels/endless")


def opened(service: Service) -> list[str]:
    return [file.path for file in psutil.Process(service.process.pid).open_files()]


def test_a_search_ends_when_its_client_leaves(shared_start: Start) -> None:
    patient = shared_start(server={"search_timeout": 600})
    result = patient.execute("searched", "print('a' * 200 + '!')")
    where = f"/kernels/searched/executions/{result['execution_id']}/output?search=(a%2B)%2B$"

    def searchers() -> list[psutil.Process]:
        children = psutil.Process(patient.process.pid).children()
        return [child for child in children if "searcher.py" in " ".join(child.cmdline())]

    most = os.cpu_count() or 1
    with contextlib.ExitStack() as stack:
        for _ in range(most + 3):
            stack.enter_context(line_to(patient)).sendall(request("GET", where))
        wait_until(lambda: len(searchers()) == most, what="as many searches as processors")
        assert patient.execute("searched", "1 + 1")["return_value"] == "2"
        assert len(searchers()) == most
    wait_until(lambda: not searchers(), what="the searches to end")


def test_an_upload_or_a_body_that_breaks_off_is_not_a_failure_of_ours(start: Start) -> None:
    service = start()
    service.execute("broken", "1")
    cut = {"content_length": "1000"}
    for method, path in (("PUT", "/kernels/broken/files/up"), ("POST", "/kernels/broken/execute")):
        head = request(method, path, content_type="application/json", **cut)
        head = head.replace(b"content-length: 0\r\n", b"")
        with line_to(service) as line:
            line.sendall(head + b"{")
            wait_until(lambda: inside(service) == 2, what="the request to be there")
        wait_until(lambda: inside(service) == 1, what="the request to end")
    service.stop()
    assert not any("Traceback" in line for line in service.said), service.said


def inside(service: Service) -> int:
    lines = service.http.get("/metrics").text.splitlines()
    (found,) = (line for line in lines if line.startswith("kernelbox_http_requests_inside "))
    return int(found.split()[1])


# -- what is stuck, or slow -------------------------------------------------------------------


def test_a_stuck_kernel_holds_up_nobody_elses_files(service: Service) -> None:
    for name in ("stuck", "free"):
        service.execute(name, "print('x')", execution_id=f"of-{name}")
    found = service.http.get("/kernels/stuck").json()["processes"]
    (warden,) = (
        one["pid"]
        for one in found
        if Path(f"/proc/{one['pid']}/comm").read_text().strip() == "kb-warden"
    )
    os.kill(warden, signal.SIGSTOP)
    try:
        with contextlib.ExitStack() as stack:
            for _ in range(40):
                line = stack.enter_context(line_to(service))
                line.sendall(request("GET", "/kernels/stuck/executions/of-stuck/output"))
            wait_until(lambda: inside(service) >= 41, what="all of them to wait")
            with service.client() as http:
                where = "/kernels/free/files/note"
                assert http.put(where, content=b"hi", timeout=20).status_code == 201
                page = http.get("/kernels/free/executions/of-free/output", timeout=20)
                assert page.json()["text"] == "x\n"
                http.delete(where)
    finally:
        os.kill(warden, signal.SIGCONT)


def test_the_first_stream_of_a_new_session_makes_its_kernel(start: Start) -> None:
    service = start()  # with no keeper yet, so that looking for the kernel takes its time
    reply = service.http.post(
        "/sessions/new/execute",
        json={"code": "6 * 7"},
        headers={"accept": "text/event-stream"},
    )
    assert '"return_value":"42"' in reply.text


# -- web pages and other users ----------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "PUT"])
def test_another_site_cannot_even_make_us_work(service: Service, method: str) -> None:
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}
    for path in ("/kernels", "/docs", "/kernels/a/executions/b/output?search=(a%2B)%2B"):
        reply = service.http.request(method, path, headers=headers)
        assert (reply.status_code, reply.json()["error"]) == (403, "ForeignOrigin")
    headers["sec-fetch-mode"] = "navigate"
    assert service.http.request(method, "/kernels", headers=headers).status_code == 403
    assert service.http.get("/docs", headers=headers).status_code == 200  # a link to the docs


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_of_the_machine_is_refused_without_a_token(
    service: Service, hasty: Service
) -> None:
    for address, expected in ((service, b"403"), (hasty, b"401")):
        script = (
            "import os, socket, sys; os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
            f"line = socket.socket(); line.connect(('127.0.0.1', {address.port}))\n"
            "line.sendall(b'GET /kernels HTTP/1.1\\r\\nhost: localhost\\r\\n\\r\\n')\n"
            "print(line.recv(1000))"
        )
        played = subprocess.run([sys.executable, "-c", script], capture_output=True)
        assert expected in played.stdout.split()[1], played


def test_the_owner_of_a_connection_is_found_while_it_is_there() -> None:
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        try:
            listening = socket.create_server((host, 0), family=family)
        except OSError:
            continue  # a machine without IPv6
        with listening:
            server = listening.getsockname()[:2]
            line = socket.create_connection(server)
            accepted, _ = listening.accept()
            with accepted:
                client = line.getsockname()[:2]
                assert owner_of(client, server) == os.geteuid()
                line.close()
                # Linux gives what nobody owns to root, who may come in.
                assert owner_of(client, server) == GONE


def test_the_owner_is_read_from_the_tables_of_proc() -> None:
    rest = "00000000:00000000 00:00000000 00000000"
    listens = f"   0: 0100007F:1F90 00000000:0000 0A {rest}  1000        0 77 1\n"
    client, server = ("127.0.0.1", 40000), ("127.0.0.1", 8080)
    theirs = f"   1: 0100007F:9C40 0100007F:1F90 01 {rest}  1001        0 78 1\n"
    orphan = f"   1: 0100007F:9C40 0100007F:1F90 05 {rest}     0        0 0 1\n"
    mapped = theirs.replace("0100007F", "0000000000000000FFFF00000100007F")
    if sys.byteorder == "little":
        assert find_owner(listens + theirs, client, server) == 1001
        assert find_owner(listens + mapped, client, server) == 1001
        assert find_owner(listens + orphan, client, server) == GONE
    assert find_owner(listens, client, server) == GONE
    assert find_owner("", client, server) is None


# -- secrets ----------------------------------------------------------------------------------


def test_secrets_are_in_no_log_and_in_no_kernel(
    start: Start, capfd: pytest.CaptureFixture[str]
) -> None:
    service = start(
        env={
            "KERNELBOX_API_TOKEN": "very-secret",
            "OTEL_EXPORTER_OTLP_HEADERS": "key=very-secret",
            "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "key=very-secret",
        },
        run={"access_log": True},
    )
    for query in ("token=very-secret", "a=b&tok%65n=very-secret"):
        assert service.http.get(f"/api/kernels?{query}").status_code == 200
    with service.client("very-secret") as http:
        code = {"code": "import os; 'very-secret' in str(os.environ)"}
        assert http.post("/sessions/nosy/execute", json=code).json()["return_value"] == "False"
    service.stop()
    logged = "".join([*service.said, capfd.readouterr().out])
    assert "/api/kernels?token=" in logged
    assert "very-secret" not in logged


def test_a_token_is_blanked_however_it_is_written() -> None:
    assert without_token("/api?token=a&b=c") == "/api?token=…&b=c"
    assert without_token("/api?b=c&%74oken=a") == "/api?b=c&%74oken=…"
    assert without_token("/api/token=a") == "/api/token=a"
    record = logging.LogRecord("x", 20, "f", 1, "%s %d", ("/a?token=b", 3), None)
    assert WithoutTokens().filter(record)
    assert record.getMessage() == "/a?token=… 3"


def test_a_bad_token_is_not_repeated() -> None:
    with pytest.raises(BadInput, match="KERNELBOX_API_TOKEN") as refused:
        ServerSettings.from_environment({"KERNELBOX_API_TOKEN": "my secret"})
    assert "my secret" not in str(refused.value)


# -- what is too much -------------------------------------------------------------------------


def test_tags_are_not_a_place_for_files(service: Service) -> None:
    for tags in ({"a": "t" * 70_000}, ["t" * 70_000]):
        for path in ("/kernels", "/sessions/tagged"):
            reply = service.http.post(path, json={"tags": tags})
            assert (reply.status_code, reply.json()["error"]) == (422, "BadInput")
            assert len(reply.content) < 2000


def test_what_is_nested_without_end_is_cut() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    shown = OutputItem("display_data", None, data={"application/json": deep, "text/plain": "x"})
    result = ExecutionResult("success", output="kept", outputs=[shown])
    read = json.loads(to_json(result))
    assert read["output"] == "kept"
    assert read["outputs"][0]["data"]["text/plain"] == "x"
    assert "nested too deeply" in to_json(result).decode()
