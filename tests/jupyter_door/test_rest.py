"""Jupyter's REST routes: kernels, kernelspecs, sessions, and tokens as Jupyter's clients send them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from http_service import Service, Start
from kernel_sockets import talking
from websockets.exceptions import InvalidStatus

import kernelbox
from kernelbox import Box
from kernelbox.walls import ways

DATE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


def test_the_service_says_who_it_is(service: Service, kernel: str) -> None:
    assert service.http.get("/api").json() == {"version": kernelbox.__version__}
    status = service.http.get("/api/status").json()
    assert status["kernels"] >= 2
    assert DATE.fullmatch(status["started"])
    assert DATE.fullmatch(status["last_activity"])
    assert status["connections"] == 0
    assert service.http.get("/api/me").json()["identity"]["username"]


def test_kernelspecs(service: Service) -> None:
    found = service.http.get("/api/kernelspecs").json()
    spec = found["kernelspecs"][found["default"]]
    assert spec["name"] == "python3"
    assert spec["spec"]["language"] == "python"
    assert service.http.get("/api/kernelspecs/python3").json() == spec
    missing = service.http.get("/api/kernelspecs/cobol")
    assert (missing.status_code, missing.json()["error"]) == (404, "KernelspecNotFound")


# -- kernels ---------------------------------------------------------------------------------------


def test_the_life_of_a_kernel(service: Service) -> None:
    made = service.http.post("/api/kernels", json={"name": "python3"})
    assert made.status_code == 201
    model = made.json()
    assert made.headers["location"] == f"/api/kernels/{model['id']}"
    assert (model["name"], model["execution_state"]) == ("python3", "idle")
    assert DATE.fullmatch(model["last_activity"])
    assert model["connections"] == 0
    address = f"/api/kernels/{model['id']}"
    assert service.http.get(address).json()["id"] == model["id"]
    assert model["id"] in {k["id"] for k in service.http.get("/api/kernels").json()}
    with talking(service, model["id"]) as talk:
        talk.ask("kernel_info_request")
        assert service.http.get(address).json()["connections"] == 1
    assert service.http.delete(address).status_code == 204
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/restart"), ("POST", "/interrupt")):
        reply = service.http.request(method, address + path)
        assert (reply.status_code, reply.json()["error"]) == (404, "KernelNotFound")


def test_a_kernel_gets_the_environment_and_the_folder_it_was_given(
    service: Service, tmp_path: Path
) -> None:
    env = {"GIVEN": "this", "KERNEL_WORKING_DIR": str(tmp_path)}
    for body in ({"env": env}, {"env": {"GIVEN": "this"}, "cwd": str(tmp_path)}):
        kernel = service.http.post("/api/kernels", json=body).json()["id"]
        with talking(service, kernel) as talk:
            said = talk.printed("import os; print(os.environ['GIVEN'], os.getcwd())")
        assert said == f"this {tmp_path}\n"
        service.http.delete(f"/api/kernels/{kernel}")


def test_a_folder_of_another_machine_is_no_obstacle(service: Service) -> None:
    for folder in ("/of/another/machine", "nul\0", 5):
        reply = service.http.post("/api/kernels", json={"cwd": folder})
        assert reply.status_code == 201
        service.http.delete(reply.headers["location"])


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"[]", 422),
        (b"{", 400),
        (b'{"name": "cobol"}', 404),
        (b'{"name": 5}', 404),
        (b'{"name": "kernelbox."}', 404),
        (b'{"name": "kernelbox.a/b"}', 404),
        (b'{"env": []}', 422),
        (b'{"env": {"": "x"}}', 422),
        (b'{"env": {"A=B": "x"}}', 422),
        (b'{"env": {"A": "\\u0000"}}', 422),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(
    service: Service, body: bytes, status: int
) -> None:
    before = len(service.http.get("/api/kernels").json())
    reply = service.http.post(
        "/api/kernels", content=body, headers={"content-type": "application/json"}
    )
    assert reply.status_code == status, reply.text
    assert reply.json()["message"]
    assert len(service.http.get("/api/kernels").json()) == before


def test_an_empty_body_starts_a_kernel(service: Service) -> None:
    reply = service.http.post("/api/kernels")
    assert reply.status_code == 201
    service.http.delete(reply.headers["location"])


def test_named_kernels_are_in_the_list(service: Service, home: Box) -> None:
    record = home.get_or_create("listed")
    listed = {k["id"]: k for k in service.http.get("/api/kernels").json()}
    assert listed[record.kernel_id]["kernelbox_name"] == "listed"
    assert service.http.get("/api/kernels/listed").json()["id"] == record.kernel_id


def test_the_command_line_and_a_jupyter_client_share_a_kernel(
    service: Service, kernel: str
) -> None:
    name = service.http.get(f"/api/kernels/{kernel}").json()["kernelbox_name"]
    with talking(service, kernel) as talk:
        talk.run("x = 41")
        ran = subprocess.run(
            [sys.executable, "-m", "kernelbox", "exec", "--name", name, "x += 1; print(x)"],
            env={"KERNELBOX_HOME": str(service.home), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
        )
        assert ran.returncode == 0, ran.stderr
        assert '"42\\n"' in ran.stdout
        talk.wait_for_text("42\n")
        assert talk.printed("print(x)") == "42\n"


def test_a_kernel_with_a_name_has_a_spec_that_leads_to_it(service: Service, home: Box) -> None:
    record = home.get_or_create("with-spec")
    specs = service.http.get("/api/kernelspecs").json()["kernelspecs"]
    assert specs["kernelbox.with-spec"]["spec"]["display_name"] == "KernelBox: with-spec"
    assert service.http.get("/api/kernelspecs/kernelbox.with-spec").status_code == 200
    reply = service.http.post("/api/kernels", json={"name": "kernelbox.with-spec"})
    assert (reply.status_code, reply.json()["id"]) == (201, record.kernel_id)
    made = service.http.post("/api/kernels", json={"name": "kernelbox.not-yet"}).json()
    assert made["kernelbox_name"] == "not-yet"


def test_kernels_of_jupyter_clients_have_no_spec(service: Service, kernel: str) -> None:
    assert not [
        name
        for name in service.http.get("/api/kernelspecs").json()["kernelspecs"]
        if "jupyter-" in name
    ]


# -- sessions --------------------------------------------------------------------------------------


def session(service: Service, **fields: Any) -> Any:
    reply = service.http.post("/api/sessions", json=fields)
    assert reply.status_code == 201, reply.text
    return reply.json()


def test_the_life_of_a_session(service: Service) -> None:
    made = session(service, path="a.ipynb", name="a", type="notebook", kernel={"name": "python3"})
    assert made["path"] == made["notebook"]["path"] == "a.ipynb"
    assert made["type"] == "notebook"
    again = session(service, path="a.ipynb", kernel={"name": "python3"})
    assert (again["id"], again["kernel"]["id"]) == (made["id"], made["kernel"]["id"])
    assert made["id"] in {s["id"] for s in service.http.get("/api/sessions").json()}
    address = f"/api/sessions/{made['id']}"
    renamed = service.http.patch(address, json={"path": "b.ipynb"}).json()
    assert (renamed["path"], renamed["kernel"]["id"]) == ("b.ipynb", made["kernel"]["id"])
    assert service.http.delete(address).status_code == 204
    assert service.http.get(address).status_code == 404
    assert service.http.get(f"/api/kernels/{made['kernel']['id']}").status_code == 404


def test_a_session_on_a_kernel_that_is_there(service: Service, kernel: str) -> None:
    made = session(service, path="c.ipynb", kernel={"id": kernel})
    assert made["kernel"]["id"] == kernel


def test_a_session_ends_with_its_kernel(service: Service) -> None:
    made = session(service, path="d.ipynb")
    service.http.delete(f"/api/kernels/{made['kernel']['id']}")
    assert service.http.get(f"/api/sessions/{made['id']}").status_code == 404
    assert session(service, path="d.ipynb")["id"] != made["id"]


def test_a_session_that_changes_its_kernel_leaves_none_behind(service: Service, home: Box) -> None:
    made = session(service, path="e.ipynb")
    first = made["kernel"]["id"]
    address = f"/api/sessions/{made['id']}"
    named = home.get_or_create("for-a-session").kernel_id
    changed = service.http.patch(address, json={"kernel": {"id": named}}).json()
    assert changed["kernel"]["id"] == named
    assert service.http.get(f"/api/kernels/{first}").status_code == 404
    service.http.patch(address, json={"kernel": {"name": "python3"}})
    # It has a name of its own, so it was not made for this document.
    assert service.http.get(f"/api/kernels/{named}").status_code == 200
    service.http.delete(address)


def test_sessions_that_make_no_sense_are_refused(service: Service) -> None:
    assert service.http.post("/api/sessions", json={"kernel": 5}).status_code == 422
    assert service.http.post("/api/sessions", json={"kernel": {"id": "no"}}).status_code == 404
    assert service.http.get("/api/sessions/none").status_code == 404
    assert service.http.patch("/api/sessions/none", json={}).status_code == 404


# -- tokens ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(shared_start: Start) -> Service:
    return shared_start(server={"api_token": "sesame"})


@pytest.mark.parametrize(
    ("headers", "query"),
    [
        ({"Authorization": "token sesame"}, {}),
        ({"Authorization": "Bearer sesame"}, {}),
        ({}, {"token": "sesame"}),
    ],
)
def test_a_token_opens_routes_and_channels(
    guarded: Service, headers: dict[str, str], query: dict[str, str]
) -> None:
    reply = guarded.http.post("/api/kernels", headers=headers, params=query, json={})
    assert reply.status_code == 201
    kernel = reply.json()["id"]
    with talking(guarded, kernel, headers=headers, **query) as talk:
        assert talk.printed("print(1)") == "1\n"
    reply = guarded.http.delete(f"/api/kernels/{kernel}", headers=headers, params=query)
    assert reply.status_code == 204


@pytest.mark.parametrize(
    ("headers", "query"),
    [
        ({}, {}),
        ({"Authorization": "token wrong"}, {}),
        ({"Authorization": "Basic sesame"}, {"token": "sesame"}),
        ({}, {"token": "wrong"}),
        ({}, {"token": ""}),
    ],
)
def test_without_the_token_nothing_opens(
    guarded: Service, headers: dict[str, str], query: dict[str, str]
) -> None:
    for path in ("/api", "/api/kernels", "/api/kernelspecs", "/api/sessions", "/api/status"):
        assert guarded.http.get(path, headers=headers, params=query).status_code == 401
    with (
        pytest.raises(InvalidStatus) as refused,
        talking(guarded, "any", headers=headers, **query),
    ):
        pass
    assert refused.value.response.status_code == 401


def test_a_token_in_the_query_opens_jupyters_routes_only(guarded: Service) -> None:
    assert guarded.http.get("/api/kernels", params={"token": "sesame"}).status_code == 200
    for path in ("/kernels", "/metrics", "/apis", "/api-keys"):
        reply = guarded.http.get(path, params={"token": "sesame"})
        assert (reply.status_code, reply.json()["error"]) == (401, "Unauthorized")
    reply = guarded.http.get("/kernels", headers={"Authorization": "token sesame"})
    assert reply.status_code == 401


@pytest.mark.skipif(bool(ways.look().why), reason="not all walls can be had here")
def test_tenants_see_their_own_kernels_only(start: Start, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("ann:a-token-of-some-length-1\nbob:a-token-of-some-length-2\n")
    tokens.chmod(0o600)
    service = start(server={"tokens_file": str(tokens)})
    ann = {"Authorization": "token a-token-of-some-length-1"}
    bob = {"Authorization": "token a-token-of-some-length-2"}
    made = service.http.post("/api/kernels", headers=ann, json={}).json()
    assert made["kernelbox_name"].startswith("jupyter-")
    assert [k["id"] for k in service.http.get("/api/kernels", headers=ann).json()] == [made["id"]]
    assert service.http.get("/api/kernels", headers=bob).json() == []
    with talking(service, made["id"], headers=ann) as talk:
        assert talk.printed("print(1)") == "1\n"
    for key in (made["id"], made["kernelbox_name"], "ann::" + made["kernelbox_name"]):
        assert service.http.get(f"/api/kernels/{key}", headers=bob).status_code == 404
        with pytest.raises(InvalidStatus) as refused, talking(service, key, headers=bob):
            pass
        assert refused.value.response.status_code == 404
    reply = service.http.post("/api/sessions", headers=bob, json={"kernel": {"id": made["id"]}})
    assert reply.status_code == 404


def test_metrics_know_these_routes_too(service: Service, kernel: str) -> None:
    service.http.get(f"/api/kernels/{kernel}")
    said = service.http.get("/metrics").text
    assert 'method="GET",route="/api/kernels/{kernel}",status="200"' in said
    assert kernel not in said
