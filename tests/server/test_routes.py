"""Every route does what its counterpart in Python does, and answers in the shapes it documents."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from http_service import Service, Start
from processes import wait_until


def says(reply: httpx.Response, status: int, error: str) -> dict[str, Any]:
    """The reply is an error of the one shape."""
    content: dict[str, Any] = reply.json()
    assert (reply.status_code, content["error"]) == (status, error), content
    assert content["message"]
    assert isinstance(content["details"], dict)
    assert set(content) <= {"error", "message", "hint", "details"}
    return content


def test_health_and_the_way_to_the_rest(service: Service) -> None:
    health = service.http.get("/health").json()
    assert health["status"] == "ok"
    assert health["service"] == "kernelbox"
    assert set(health) == {"status", "service", "version"}
    assert service.http.get("/").json()["links"]["swagger"]["href"] == "/docs"


def test_the_life_of_a_kernel(service: Service) -> None:
    http = service.http
    made = http.post("/kernels", json={"name": "life", "session_name": "s", "tags": {"a": "b"}})
    assert made.status_code == 201
    record = made.json()
    for field in ("connection_file", "created_at", "last_used_at", "attempt_count", "age_seconds"):
        assert field in record
    assert (record["name"], record["session_name"], record["tags"]) == ("life", "s", {"a": "b"})

    says(http.post("/kernels", json={"name": "life"}), 409, "NameTaken")
    by_id = f"/kernels/{record['kernel_id']}"
    result = http.post(f"{by_id}/execute", json={"code": "x = 41\nx + 1", "timeout": 30}).json()
    assert (result["status"], result["return_value"], result["state"]) == ("success", "42", "kept")
    assert list(result)[:3] == ["status", "output", "return_value"]

    status = http.get("/kernels/life").json()
    assert status["alive"] is True
    assert status["kernel"]["kernel_id"] == record["kernel_id"]
    for query in ("", "?refresh=true"):
        listed = http.get(f"/kernels{query}").json()["kernels"]
        assert "life" in [kernel["name"] for kernel in listed]

    again = http.post("/kernels/life/restart").json()
    assert again["epoch"] == record["epoch"] + 1
    failed = http.post("/kernels/life/execute", json={"code": "x"}).json()
    assert failed["error"]["ename"] == "NameError"

    assert http.delete("/kernels/life").json() == {"destroyed": True}
    says(http.get("/kernels/life"), 404, "KernelNotFound")
    says(http.delete("/kernels/life"), 404, "KernelNotFound")


def test_a_template_is_copied_where_the_copy_cannot_call_the_service(
    service: Service, shared_start: Start
) -> None:
    service.execute("mould", "rows = [1, 2, 3]")
    refused = service.http.post("/kernels", json={"name": "cast", "template": "mould"})
    assert "token" in says(refused, 409, "TokenNeeded")["message"]
    with shared_start(server={"api_token": "secret"}).client("secret") as http:
        made = http.post("/kernels", json={"name": "cast", "template": "mould"}).json()
        assert made["made_by"] == "template"
    assert service.execute("cast", "rows")["return_value"] == "[1, 2, 3]"


def test_a_kernel_without_a_name_gets_one(service: Service) -> None:
    made = service.http.post("/kernels", json={}).json()
    assert service.execute(made["name"], "1 + 1")["return_value"] == "2"
    folder = service.http.post("/kernels", json={"cwd": "/no/such/folder"})
    says(folder, 404, "FolderNotFound")


def test_bash_runs_in_the_same_kernel(service: Service) -> None:
    result = service.execute("shell", "echo $((6 * 7)); exit_code=3", language="bash")
    assert (result["output"], result["exit_code"]) == ("42\n", 0)


def test_code_that_fails_is_a_result_and_not_an_error(service: Service) -> None:
    result = service.execute("fails", "1 / 0")
    assert (result["status"], result["error"]["ename"]) == ("error", "ZeroDivisionError")
    late = service.execute("fails", "while True: pass", timeout=0.2)
    assert (late["status"], late["state"]) == ("timeout", "kept")
    dead = service.execute("fails", "import os; os._exit(3)")
    assert (dead["status"], dead["state"]) == ("error", "lost")


def test_odd_output_survives_the_way(service: Service) -> None:
    result = service.execute("odd", "print('a\\ud800b', 'é', '\\x00')")
    assert result["output"] == "a\\ud800b é \x00\n"
    shown = service.execute(
        "odd",
        "from IPython.display import display\n"
        "display({'application/json': {'a': float('nan')}}, raw=True)",
    )
    assert shown["outputs"][0]["data"]["application/json"] == {"a": None}


def test_retry_takes_one_replacement_after_the_other(service: Service) -> None:
    service.execute("retry", "1")
    body = {"code": "a", "replacement_codes": ["b", "c = 5; c"], "max_attempts": 3}
    result = service.http.post("/kernels/retry/execute/retry", json=body).json()
    assert (result["status"], result["return_value"]) == ("success", "5")
    assert [attempt["code"] for attempt in result["attempts"]] == ["a", "b", "c = 5; c"]


def test_an_interrupt_ends_a_retry(service: Service) -> None:
    service.execute("halted", "1")
    body = {"code": "import time; time.sleep(60)", "replacement_codes": ["ran = 1"]}
    session = {"code": "import time; time.sleep(60)", "on_error_code": "ran = 1"}
    for path, sent in (
        ("/kernels/halted/execute/retry", body),
        ("/sessions/halted/execute_with_retry", session),
    ):
        with ThreadPoolExecutor(1) as pool:
            retry = pool.submit(service.http.post, path, json=sent)
            wait_until(
                lambda: service.http.get("/kernels/halted").json()["running"], what="it to run"
            )
            service.http.post("/kernels/halted/interrupt")
            result = retry.result().json()
        assert (result["status"], result["error"]["ename"]) == ("error", "KeyboardInterrupt")
        assert len(result["attempts"]) == 1
    assert service.execute("halted", "'ran' in globals()")["return_value"] == "False"


def test_a_retry_takes_no_key(service: Service) -> None:
    service.execute("keyless", "n = 0")
    for path in ("/kernels/keyless/execute/retry", "/sessions/keyless/execute_with_retry"):
        reply = service.http.post(path, json={"code": "n = 1"}, headers={"idempotency-key": "k"})
        says(reply, 422, "KeyNotSupported")
    assert service.execute("keyless", "n")["return_value"] == "0"


def test_a_session_is_made_when_it_is_needed(service: Service) -> None:
    http = service.http
    record = http.post("/sessions/lazy", json={"tags": {"n": 1}}).json()
    assert (record["name"], record["session_name"], record["tags"]) == ("lazy", "lazy", {"n": 1})
    assert http.post("/sessions/lazy").json()["kernel_id"] == record["kernel_id"]
    assert service.execute("lazier", "6 * 7")["return_value"] == "42"
    body = {"code": "q + 1", "on_error_code": "q = 1\nq + 1", "max_attempts": 2}
    result = http.post("/sessions/laziest/execute_with_retry", json=body).json()
    assert (result["status"], len(result["attempts"])) == ("success", 2)
    body = {"code": "w", "max_attempts": 2}
    result = http.post("/sessions/laziest/execute_with_retry", json=body).json()
    assert (result["status"], len(result["attempts"])) == ("max_attempts_exceeded", 2)


def test_expect_epoch_is_refused_with_the_truth(service: Service) -> None:
    service.execute("epochs", "x = 1")
    reply = service.http.post("/kernels/epochs/execute", json={"code": "x = 2", "expect_epoch": 9})
    assert says(reply, 409, "EpochMismatch")["details"]["epoch"] == 1
    assert service.execute("epochs", "x", expect_epoch=1)["return_value"] == "1"


def test_going_back(service: Service) -> None:
    http = service.http
    service.execute("back", "rows = [3, 1, 2]")
    made = http.post("/kernels/back/checkpoint", json={"label": "start"})
    assert made.status_code == 201
    says(http.post("/kernels/back/checkpoint", json={"label": "start"}), 409, "CheckpointRefused")
    service.execute("back", "rows.clear()")
    (listed,) = http.get("/kernels/back/checkpoints").json()["checkpoints"]
    assert (listed["checkpoint_id"], listed["label"]) == (made.json()["checkpoint_id"], "start")

    rewound = http.post("/kernels/back/rewind", json={"checkpoint": "start"}).json()
    assert rewound["epoch"] == 2
    assert service.execute("back", "rows")["return_value"] == "[3, 1, 2]"
    atomic = service.execute("back", "rows.clear(); 1 / 0", atomic=True)
    assert atomic["state"] == "rewound"

    assert http.delete("/kernels/back/checkpoints/start").json() == {"dropped": True}
    says(http.post("/kernels/back/rewind", json={"checkpoint": "no"}), 404, "CheckpointNotFound")
    says(http.post("/kernels/back/undo"), 404, "CheckpointNotFound")


def test_undo_where_it_is_switched_on(shared_start: Any, service: Service) -> None:
    other = shared_start(settings={"undo": 3})
    other.execute("undo", "x = 1")
    other.execute("undo", "x = 2")
    assert other.http.post("/kernels/undo/undo", json={"n": 1}).status_code == 200
    assert other.execute("undo", "x")["return_value"] == "1"


def test_branches(service: Service) -> None:
    http = service.http
    service.execute("trunk", "x = 1")
    one = http.post("/kernels/trunk/branch", json={"name": "twig"})
    assert [kernel["name"] for kernel in one.json()["kernels"]] == ["twig"]
    many = http.post("/kernels/trunk/branch", json={"names": ["left", "right"]})
    assert [kernel["name"] for kernel in many.json()["kernels"]] == ["left", "right"]
    service.execute("left", "x = 2")
    assert service.execute("trunk", "x")["return_value"] == "1"
    says(http.post("/kernels/trunk/branch", json={"name": "twig"}), 409, "NameTaken")
    says(http.post("/kernels/trunk/branch", json={"names": ["p", "p"]}), 409, "NameTaken")


def test_a_session_is_saved_downloaded_uploaded_and_loaded(service: Service) -> None:
    http = service.http
    service.execute("saver", "data = list(range(5)); import math")
    saved = http.post("/kernels/saver/save", json={"name": "first"})
    assert saved.status_code == 201
    report = saved.json()
    assert "data" in report["variables"]
    assert str(service.home) not in saved.text  # where it is is nobody's business
    assert [one["name"] for one in http.get("/saved").json()["saved"]] == ["first"]

    content = http.get("/saved/first").content
    assert len(content) == report["size"]
    assert http.put("/saved/second", content=content).status_code == 201
    loaded = http.post("/saved/second/load", json={"name": "loaded"})
    assert loaded.status_code == 201, loaded.text
    assert service.execute("loaded", "data, math.pi")["return_value"].startswith("([0, 1, 2, 3, 4]")

    says(http.post("/saved/second/load", json={"name": "loaded"}), 409, "NameTaken")
    http.put("/saved/forged", content=content[:-1] + bytes([content[-1] ^ 1]))
    forged = http.post("/saved/forged/load", json={"name": "forged"})
    assert str(service.home) not in says(forged, 409, "SessionRefused")["message"]
    says(http.post("/saved/none/load", json={"name": "none"}), 404, "FileNotFound")
    assert http.delete("/saved/first").json() == {"deleted": True}
    says(http.get("/saved/first"), 404, "FileNotFound")


def test_all_of_a_long_output_by_range_and_by_search(service: Service) -> None:
    result = service.execute("long", "for i in range(5000): print('line', i)")
    assert result["truncated"]
    where = f"/kernels/long/executions/{result['execution_id']}/output"
    page = service.http.get(where, params={"start": -10}).json()
    assert (page["text"], page["total"]) == ("line 4999\n", 48890)
    page = service.http.get(where, params={"start": 0, "length": 7}).json()
    assert page["text"] == "line 0\n"
    found = service.http.get(where, params={"search": "432[01]$"}).json()["matches"]
    assert [match["text"] for match in found] == ["line 4320", "line 4321"]
    assert service.http.get(where, params={"search": "(no"}).json() == {"matches": []}
    assert service.http.get(where, params={"stream": "stderr"}).json()["total"] == 0
    nothing = service.http.get("/kernels/long/executions/none/output")
    says(nothing, 404, "ExecutionNotFound")
    nothing = service.http.get("/kernels/long/executions/none/output", params={"search": "a"})
    says(nothing, 404, "ExecutionNotFound")


def test_completion_asks_the_live_kernel(service: Service) -> None:
    service.execute("words", "remarkable = 1")
    reply = service.http.post("/kernels/words/complete", json={"code": "remark"})
    assert reply.json()["matches"] == ["remarkable"]


def test_metrics_are_prometheus_text(service: Service) -> None:
    service.execute("counted", "1")
    reply = service.http.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = reply.text.splitlines()
    (counted,) = (line for line in lines if 'route="/sessions/{name}/execute",status="200"' in line)
    assert int(counted.rpartition(" ")[2]) >= 1
    assert any(line.startswith("kernelbox_kernels ") and line[-1] != "0" for line in lines)
    assert "kernelbox_executions_running 0" in lines
    assert "counted" not in reply.text  # names are no labels


@pytest.mark.parametrize("page", ["/docs", "/redoc"])
def test_the_pages_bring_all_that_they_need(service: Service, page: str) -> None:
    import re

    reply = service.http.get(page)
    policy = reply.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "//" not in re.sub(r"<!.*?>", "", reply.text)  # nothing from elsewhere
    assets = re.findall(r'(?:src|href)="([^"]+)"', reply.text)
    assert len(assets) >= 3
    for asset in assets:
        found = service.http.get(asset)
        assert found.status_code == 200, asset
        assert found.content
    assert service.http.get("/docs/assets/other.js").status_code == 404


def test_errors_of_the_framework_have_the_same_shape(service: Service) -> None:
    http = service.http
    says(http.get("/no/such/route"), 404, "RouteNotFound")
    wrong = http.request("PATCH", "/kernels")
    says(wrong, 405, "MethodNotAllowed")
    assert wrong.headers["allow"] == "DELETE, GET, POST"
    missing = says(http.post("/kernels/a/execute", json={"cod": "1"}), 422, "BadInput")
    assert [problem["where"] for problem in missing["details"]["problems"]] == [
        "body.code",
        "body.cod",
    ]
    as_json = {"content-type": "application/json"}
    says(http.post("/kernels", content=b"{no json", headers=as_json), 422, "BadInput")
    deep = b'{"tags":' + b"[" * 100_000
    reply = http.post("/kernels", content=deep, headers=as_json)
    assert reply.status_code in (400, 422)
    assert "error" in reply.json()
    says(http.post("/kernels", json={"name": "../up"}), 422, "BadInput")
    says(http.get("/kernels?refresh=perhaps"), 422, "BadInput")


def test_wipe_destroys_them_all(start: Any) -> None:
    service = start()
    ids = {service.http.post("/kernels", json={}).json()["kernel_id"] for _ in range(2)}
    assert set(service.http.delete("/kernels").json()["destroyed"]) == ids
    assert service.http.get("/kernels").json() == {"kernels": []}
