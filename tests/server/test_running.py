"""The service under load, in all the ways it is started, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import signal
import ssl
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from http_service import PATIENCE, Service, Start
from processes import wait_until
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from kernelbox import BadInput
from kernelbox.server.run import serve
from kernelbox.server.settings import VARIABLES, ServerSettings


def test_two_hundred_at_once_without_an_error(service: Service) -> None:
    for number in range(4):
        service.execute(f"load-{number}", "n = 0")

    async def play() -> list[dict[str, Any]]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=service.url, timeout=PATIENCE, limits=limits) as http:
            replies = await asyncio.gather(
                *(
                    http.post(f"/kernels/load-{i % 4}/execute", json={"code": "n += 1"})
                    for i in range(200)
                )
            )
        assert {reply.status_code for reply in replies} == {200}
        return [reply.json() for reply in replies]

    assert {result["status"] for result in asyncio.run(play())} == {"success"}
    counts = [service.execute(f"load-{number}", "n")["return_value"] for number in range(4)]
    assert counts == ["50"] * 4


def test_a_long_cell_delays_nobody_else(service: Service) -> None:
    service.execute("long", "1")
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(service.execute, "long", "import time\ntime.sleep(60)")
        wait_until(lambda: service.http.get("/kernels/long").json()["running"], what="it to run")
        assert service.execute("quick", "6 * 7")["return_value"] == "42"
        status = service.http.get("/kernels/long").json()
        assert "time.sleep(60)" in status["running"]["code"]
        assert service.http.post("/kernels/long/interrupt").json() == {"interrupted": True}
        assert running.result()["error"]["ename"] == "KeyboardInterrupt"


def test_one_of_many_waiting_cells_is_cancelled(service: Service) -> None:
    service.execute("queue", "done = []")
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(service.execute, "queue", "import time\ntime.sleep(60)")
        wait_until(lambda: service.http.get("/kernels/queue").json()["running"], what="it to run")
        second = pool.submit(service.execute, "queue", "done.append(1)", execution_id="second")
        wait_until(lambda: service.http.get("/kernels/queue").json()["queued"], what="it to wait")
        cancel = service.http.post("/kernels/queue/executions/second/cancel").json()
        assert cancel == {"cancelled": True}
        assert second.result()["status"] == "error"
        service.http.post("/kernels/queue/interrupt")
        first.result()
    assert service.execute("queue", "done")["return_value"] == "[]"


# -- how it ends ----------------------------------------------------------------------------------


def test_kernels_outlive_the_service(start: Start) -> None:
    first = start()
    first.execute("stays", "x = 42")
    assert first.stop() == 0
    second = start()
    assert second.execute("stays", "x")["return_value"] == "42"


def test_kernels_go_with_the_service_if_that_is_wanted(start: Start) -> None:
    first = start(server={"on_exit": "wipe"})
    first.execute("goes", "1")
    assert first.stop(signal.SIGINT) == 0
    second = start()
    assert second.http.get("/kernels").json() == {"kernels": []}


def test_a_running_cell_is_waited_for(start: Start) -> None:
    service = start(server={"drain": 60})
    service.execute("drained", "1")
    code = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\n'done'"
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(service.execute, "drained", code)
        wait_until(lambda: service.http.get("/kernels/drained").json()["running"], what="it to run")
        service.tell_to_end()
        wait_until(lambda: refused(service), what="new connections to be refused")
        (service.folder / "go").touch()
        assert running.result()["return_value"] == "'done'"
    assert service.stop() == 0


def refused(service: Service) -> bool:
    try:
        with service.client() as http:
            http.get("/health")
    except httpx.TransportError:
        return True
    return False


def test_a_cell_that_takes_too_long_is_interrupted_and_told(start: Start) -> None:
    service = start(server={"drain": 0.2})
    service.execute("late", "x = 1")
    goes_on = {"code": "import time; time.sleep(1); y = 2", "on_disconnect": "continue"}
    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(service.execute, "late", "import time; time.sleep(60)")
        other = pool.submit(service.http.post, "/sessions/other/execute", json=goes_on)
        for name in ("late", "other"):
            wait_until(lambda name=name: runs(service, name), what="it to run")
        service.tell_to_end()
        assert running.result()["error"]["ename"] == "KeyboardInterrupt"
        assert (other.result().status_code, other.result().json()["error"]) == (503, "GoingAway")
    assert service.stop() == 0
    after = start()
    assert after.execute("late", "x")["return_value"] == "1"
    assert after.execute("other", "y")["return_value"] == "2"


def test_a_websocket_is_drained_as_well(start: Start) -> None:
    service = start(server={"drain": 60})
    service.execute("talked", "1")
    code = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\n'done'"
    with connect(f"{service.url.replace('http', 'ws')}/kernels/talked/ws") as line:
        line.send(json.dumps({"op": "execute", "code": code}))
        wait_until(lambda: runs(service, "talked"), what="it to run")
        line.send(json.dumps({"op": "execute", "code": "never = 1", "execution_id": "late"}))
        while json.loads(line.recv(PATIENCE)).get("execution_id") != "late":
            pass
        service.tell_to_end()
        wait_until(lambda: refused(service), what="new connections to be refused")
        (service.folder / "go").touch()
        said = []
        with contextlib.suppress(ConnectionClosed):
            while True:
                said.append(json.loads(line.recv(PATIENCE)))
    assert [one["result"]["return_value"] for one in said if one["type"] == "result"] == ["'done'"]
    (left,) = (one for one in said if one["type"] == "error")
    assert (left["error"], left["execution_id"]) == ("GoingAway", "late")
    assert service.stop() == 0
    assert start().execute("talked", "'never' in globals()")["return_value"] == "False"


def test_streams_and_retries_are_told_that_the_service_ends(start: Start) -> None:
    service = start(server={"drain": 0.2})
    for name in ("streamed", "retried"):
        service.execute(name, "1")
    body = {"code": "import time; time.sleep(1); y = 2", "on_disconnect": "continue"}
    retry = {"code": "import time; time.sleep(60)", "replacement_codes": ["ran = 1"]}
    events = {"accept": "text/event-stream"}
    with ThreadPoolExecutor(2) as pool:
        stream = pool.submit(
            service.http.post, "/kernels/streamed/execute", json=body, headers=events
        )
        retried = pool.submit(service.http.post, "/kernels/retried/execute/retry", json=retry)
        for name in ("streamed", "retried"):
            wait_until(lambda name=name: runs(service, name), what="it to run")
        service.tell_to_end()
        last = stream.result().text.strip().split("\n\n")[-1]
        assert last.startswith("event: error\n")
        assert '"error":"GoingAway"' in last
        result = retried.result().json()
        assert (result["error"]["ename"], len(result["attempts"])) == ("KeyboardInterrupt", 1)
    assert service.stop() == 0
    after = start()
    assert after.execute("streamed", "y")["return_value"] == "2"
    assert after.execute("retried", "'ran' in globals()")["return_value"] == "False"


def runs(service: Service, name: str) -> bool:
    return bool(service.http.get(f"/kernels/{name}").json().get("running"))


# -- how it is started ----------------------------------------------------------------------------


def test_uvicorn_runs_the_app(start: Start) -> None:
    command = [sys.executable, "-m", "uvicorn", "kernelbox.server.app:app", "--port", "0"]
    service = start(command=command)
    assert service.execute("plain", "6 * 7")["return_value"] == "42"


@pytest.mark.slow
def test_uvicorn_reloads_the_app(start: Start) -> None:
    command = [sys.executable, "-m", "uvicorn", "kernelbox.server.app:app", "--port=0", "--reload"]
    service = start(command=command)
    wait_until(lambda: not refused(service), what="the app to be loaded", seconds=PATIENCE)
    assert service.execute("reloaded", "6 * 7")["return_value"] == "42"


@pytest.mark.slow
@pytest.mark.parametrize("how", ["run", "dev"])
def test_fastapi_runs_the_app_from_the_checkout(start: Start, how: str) -> None:
    checkout = Path(__file__).parents[2]
    if "[tool.fastapi]" not in (checkout / "pyproject.toml").read_text():
        pytest.skip("pyproject.toml has no [tool.fastapi] entrypoint")
    program = shutil.which("fastapi", path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip("the program fastapi (fastapi-cli) is not installed")
    service = start(command=[program, how, "--port=0", "--host=127.0.0.1"], cwd=checkout)
    wait_until(lambda: not refused(service), what="the app to be loaded", seconds=PATIENCE)
    assert service.execute("checkout", "6 * 7")["return_value"] == "42"


def test_it_speaks_tls(start: Start, tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed, to make a certificate with")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-keyout", str(key), "-out", str(cert), "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
    )
    service = start(run={"tls_cert": str(cert), "tls_key": str(key)})
    assert service.url.startswith("https://")
    trust = ssl.create_default_context(cafile=str(cert))
    with httpx.Client(base_url=service.url, verify=trust) as http:
        assert http.get("/health").json()["status"] == "ok"


def test_a_port_that_is_taken_is_told_of(service: Service) -> None:
    with pytest.raises(BadInput, match=f":{service.port} cannot be listened on"):
        serve(port=service.port)
    with pytest.raises(BadInput, match="both a certificate and a key"):
        serve(port=0, tls_cert="cert.pem")


def test_without_the_extra_the_message_is_the_line_that_installs_it() -> None:
    script = (
        "import sys; sys.modules['fastapi'] = None\n"
        "try:\n    import kernelbox.server.app\nexcept ImportError as error:\n    print(error)"
    )
    played = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert 'pip install ".[server]"' in played.stdout, played.stderr


# -- settings -----------------------------------------------------------------------------------


def test_settings_are_read_from_the_environment() -> None:
    settings = ServerSettings.from_environment(
        {
            "KERNELBOX_API_TOKEN": "abc",
            "KERNELBOX_CORS_ORIGINS": "https://A.example, http://b:80",
            "KERNELBOX_HTTP_MAX_BODY": "5000",
            "KERNELBOX_HTTP_DRAIN": "",
        },
        on_exit="wipe",
    )
    assert settings.api_token == "abc"
    assert settings.cors_origins == ("https://a.example", "http://b:80")
    assert (settings.max_body, settings.drain, settings.on_exit) == (5000, 10.0, "wipe")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("KERNELBOX_API_TOKEN", "two words"),
        ("KERNELBOX_CORS_ORIGINS", "*"),
        ("KERNELBOX_HTTP_MAX_BODY", "lots"),
        ("KERNELBOX_HTTP_ON_EXIT", "maybe"),
        ("KERNELBOX_HTTP_DRAIN", "-1"),
        ("KERNELBOX_HTTP_BODY_TIMEOUT", "nan"),
    ],
)
def test_a_bad_setting_is_refused(name: str, text: str) -> None:
    with pytest.raises(BadInput, match=name):
        ServerSettings.from_environment({name: text})


def test_every_setting_is_in_the_table_with_its_default() -> None:
    defaults = ServerSettings()
    assert [variable.field for variable in VARIABLES] == list(ServerSettings.__slots__)
    for variable in VARIABLES:
        if variable.default:
            assert variable.parse(variable.default) == getattr(defaults, variable.field)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("api_token", 7),
        ("tokens_file", Path("tokens")),
        ("hosts", (7,)),
        ("cors_origins", "https://example.org"),
        ("mounts", (7,)),
        ("mounts", (("/srv", "wr"),)),
        ("drain", 10**400),
        ("max_body", "1024"),
    ],
)
def test_a_setting_of_the_wrong_type_is_refused_by_its_name(field: str, value: object) -> None:
    with pytest.raises(BadInput, match=f"the setting {field} of the HTTP service takes "):
        ServerSettings(**{field: value})  # type: ignore[arg-type]


def test_a_token_that_cannot_be_used_is_in_no_message() -> None:
    with pytest.raises(BadInput) as caught:
        ServerSettings(api_token="a secret with spaces")
    assert "secret" not in str(caught.value)


# -- traces ---------------------------------------------------------------------------------------


def test_traces_are_sent_where_the_environment_says(start: Start) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    from http.server import BaseHTTPRequestHandler, HTTPServer
    from threading import Thread

    got: list[tuple[str, bytes]] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Collector) as collector:
        thread = Thread(target=collector.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        address = f"http://127.0.0.1:{collector.server_address[1]}"
        service = start(
            env={"OTEL_EXPORTER_OTLP_ENDPOINT": address, "OTEL_BSP_SCHEDULE_DELAY": "50"}
        )
        parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        service.http.get("/kernels", headers={"traceparent": parent})
        assert service.stop() == 0
        collector.shutdown()
        thread.join()
    assert got
    assert got[0][0] == "/v1/traces"
    sent = b"".join(body for _, body in got)
    assert b"GET /kernels" in sent
    assert bytes.fromhex("0af7651916cd43dd8448eb211c80319c") in sent  # it is part of the caller's


def test_a_token_is_not_logged(start: Start) -> None:
    service = start(env={"KERNELBOX_API_TOKEN": "very-secret-token"})
    service.stop()
    assert "very-secret-token" not in json.dumps(service.said)


def test_of_many_who_make_the_same_kernel_one_does(service: Service) -> None:
    with ThreadPoolExecutor(12) as pool:
        replies = list(
            pool.map(lambda _: service.http.post("/kernels", json={"name": "same"}), range(12))
        )
    assert sorted(reply.status_code for reply in replies) == [201] + [409] * 11
