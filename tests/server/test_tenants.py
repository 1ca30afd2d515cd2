"""Tenants: each has kernels of their own behind walls, and neither the service nor its kernels lead
one to another, or to the machine. Anna is at home here; Bert attacks."""

from __future__ import annotations

import ast
import json
import re
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx
import pytest
from http_service import PATIENCE, Service, Start
from kernel_sockets import talking
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect
from wheels import Shop

from kernelbox import Box, Settings
from kernelbox.audit import read as read_audit
from kernelbox.client import sessionfile
from kernelbox.walls import ways

pytestmark = pytest.mark.skipif(
    bool(ways.look().why), reason=f"not all walls can be had here: {ways.look().why}"
)

ANNA, BERT = "token-of-anna", "token-of-bert"
SECRET = "a-secret-of-the-operator"


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("operator") / "tokens"
    path.write_text(f"# {SECRET}\nanna:{ANNA}\nbert:{BERT}\n")
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    shop = Shop(tmp_path_factory.mktemp("shop"))
    shop.offer("kbx-plain", "1.0")
    return shop


@pytest.fixture(scope="module")
def tenants(
    shared_start: Start, tokens: Path, shop: Shop, tmp_path_factory: pytest.TempPathFactory
) -> Service:
    folder = tmp_path_factory.mktemp("service-of-tenants")
    return shared_start(
        env={"OPERATORS_VARIABLE": SECRET, "MY_API_KEY": SECRET},
        server={"tokens_file": str(tokens)},
        settings={
            "audit_log": str(folder / "audit" / "audit.log"),
            "install_cache": str(folder / "packages"),
            "install_indexes": [shop.address],
        },
    )


@pytest.fixture
def anna(tenants: Service) -> Iterator[httpx.Client]:
    with tenants.client(ANNA) as http:
        yield http
        http.delete("/kernels")


@pytest.fixture
def bert(tenants: Service) -> Iterator[httpx.Client]:
    with tenants.client(BERT) as http:
        yield http
        http.delete("/kernels")


@pytest.fixture
def operator(tenants: Service) -> Iterator[Box]:
    """The home of the service, as its operator has it on the machine itself."""
    settings = Settings.from_environment(
        {}, home=str(tenants.home), spares=0, keeper_linger=0.1, profile="open"
    )
    with Box(settings) as box:
        yield box


def run(http: httpx.Client, kernel: str, code: str, **fields: Any) -> dict[str, Any]:
    reply = http.post(f"/kernels/{kernel}/execute", json={"code": code, **fields})
    assert reply.status_code == 200, reply.text
    result: dict[str, Any] = reply.json()
    return result


def value(http: httpx.Client, kernel: str, code: str) -> str:
    result = run(http, kernel, code)
    assert result["status"] == "success", result
    return str(result["return_value"])


def make(http: httpx.Client, name: str, **fields: Any) -> dict[str, Any]:
    reply = http.post("/kernels", json={"name": name, **fields})
    assert reply.status_code == 201, reply.text
    record: dict[str, Any] = reply.json()
    return record


# -- every door has walls -----------------------------------------------------------------------


def test_whatever_door_a_tenant_takes_there_are_walls(anna: httpx.Client) -> None:
    code = {"code": "1"}
    make(anna, "plain")
    for path, body in (
        ("/sessions/session", {}),
        ("/sessions/executed", None),
        ("/sessions/executed/execute", code),
        ("/sessions/repeated/execute_with_retry", code),
        ("/kernels/plain/branch", {"names": ["branch", "twig"]}),
        ("/kernels/plain/branch", {"name": "copied", "method": "copy"}),
        ("/kernels/plain/save", {"name": "saved"}),
        ("/saved/saved/load", {"name": "loaded"}),
        ("/api/kernels", {}),
        ("/api/kernels", {"name": "kernelbox.spec"}),
        ("/api/sessions", {"path": "a.ipynb", "kernel": {"name": "python3"}}),
        ("/api/sessions", {"path": "b.ipynb", "kernel": {"name": "kernelbox.document"}}),
    ):
        reply = anna.post(path, json=body)
        assert reply.status_code in (200, 201), (path, reply.text)
    streamed = anna.post(
        "/sessions/streamed/execute", json=code, headers={"accept": "text/event-stream"}
    )
    assert streamed.status_code == 200
    found = {each["name"]: each["profile"] for each in anna.get("/kernels").json()["kernels"]}
    named = {name for name in found if not name.startswith("jupyter-")}
    assert named == {
        *("plain", "session", "executed", "repeated", "branch", "twig", "copied", "loaded"),
        *("spec", "document", "streamed"),
    }
    assert len(found) == len(named) + 2
    assert set(found.values()) == {"moderate"}


def test_walls_stay_through_restarts_and_rewinds(anna: httpx.Client) -> None:
    make(anna, "stays", profile="restrictive")
    host = f"import os; os.path.exists({str(Path(__file__))!r})"
    anna.post("/kernels/stays/checkpoint", json={"label": "then"})
    anna.post("/kernels/stays/branch", json={"name": "stays-too"})
    for path, body in (("rewind", {"checkpoint": "then"}), ("restart", None)):
        assert value(anna, "stays", host) == "False"
        assert anna.post(f"/kernels/stays/{path}", json=body).status_code == 200
        assert value(anna, "stays", host) == "False"
    died = run(anna, "stays", "import os; os.kill(os.getpid(), 9)")
    assert died["state"] == "lost"
    for kernel in ("stays", "stays-too"):
        assert value(anna, kernel, host) == "False"
        shell = run(anna, kernel, f"ls {Path(__file__)}", language="bash")
        assert "No such file" in json.dumps(shell)
        assert anna.get(f"/kernels/{kernel}").json()["walls"]["profile"]["name"] == "restrictive"
    # A session is the kernel that is there, whatever walls it has.
    assert anna.post("/sessions/stays").json()["profile"] == "restrictive"
    assert anna.post("/sessions/stays/execute", json={"code": "1"}).status_code == 200


@pytest.mark.parametrize(
    ("profile", "words"),
    [
        ("open", "it has none"),
        ("permissive", "shows the home of the service's user"),
        ({"cwd": "ro"}, "shows a folder of the host"),
        ({"cwd": "rw"}, "shows a folder of the host"),
        ({"home": "ro"}, "shows the home of the service's user"),
        ({"environment": "filtered"}, "passes variables of the service on"),
        ({"mounts": [{"source": "/etc"}]}, "cannot be mounted"),
        ({"mounts": [{"source": "/no/such/place"}]}, "cannot be mounted"),
        ({"memory": None}, "memory may be 512,000,000 at most, and is no limit"),
        ({"memory": "600MB"}, "memory may be"),
        ({"cpus": 64}, "cpus may be 1.0 at most"),
        ({"processes": None, "network": "off"}, "processes may be 256 at most"),
        ({"disk": None}, "disk may be"),
        ({"profile": "permissive", "home": "none", "cwd": "none"}, "environment='filtered'"),
        (
            {
                "profile": "permissive",
                "home": "none",
                "cwd": "none",
                "environment": "minimal",
            },
            "memory may be",
        ),
    ],
    ids=str,
)
def test_walls_that_lead_out_are_refused_in_words(
    anna: httpx.Client, profile: Any, words: str
) -> None:
    reply = anna.post("/kernels", json={"name": "wide", "profile": profile})
    assert (reply.status_code, reply.json()["error"]) == (403, "NotAllowed"), reply.text
    assert words in reply.json()["message"]
    assert anna.get("/kernels/wide").status_code == 404


@pytest.mark.parametrize(
    "profile",
    [
        {"driver": "none"},
        {"network": "host"},
        {"network": "raw"},
        {"syscalls": "all"},
        {"environment": "caller"},
        {"secrets": [{"name": "MY_API_KEY", "domain": "example.com"}]},
        {"name": "open"},
        "/etc/passwd",
    ],
    ids=str,
)
def test_what_no_request_can_say_a_tenant_cannot_either(anna: httpx.Client, profile: Any) -> None:
    reply = anna.post("/kernels", json={"name": "wide", "profile": profile})
    assert (reply.status_code, reply.json()["error"]) == (422, "BadInput"), reply.text


def test_less_than_the_usual_walls_let_may_be_asked_for(anna: httpx.Client) -> None:
    for number, profile in enumerate(
        ("restrictive", "moderate", {"network": "off", "memory": "200MiB", "cpus": 0.5})
    ):
        record = make(anna, f"less-{number}", profile=profile)
        assert record["profile"] in ("restrictive", "moderate", "moderate, changed")
        assert value(anna, f"less-{number}", "1 + 1") == "2"


def test_a_tenant_chooses_neither_folder_nor_template(
    anna: httpx.Client, bert: httpx.Client, tmp_path: Path
) -> None:
    hers = make(anna, "mine")
    for cwd in ("/", str(tmp_path), "/no/such/folder"):
        reply = anna.post("/kernels", json={"name": "other", "cwd": cwd})
        assert (reply.status_code, reply.json()["error"]) == (403, "NotAllowed")
    reply = anna.post("/kernels", json={"name": "other", "template": "mine"})
    assert (reply.status_code, reply.json()["error"]) == (409, "Unsupported")
    for key in (hers["kernel_id"], "mine", "anna::mine"):
        reply = bert.post("/kernels", json={"name": "other", "template": key})
        assert (reply.status_code, reply.json()["error"]) == (404, "KernelNotFound")
    # A Jupyter client may name a folder of its own machine, which means nothing here.
    started = anna.post("/api/kernels", json={"cwd": str(tmp_path)}).json()
    assert value(anna, started["id"], "import os; os.getcwd()") != repr(str(tmp_path))


@pytest.mark.parametrize(
    "name",
    [
        *("LD_PRELOAD", "LD_LIBRARY_PATH", "GLIBC_TUNABLES", "PYTHONPATH", "PYTHONSTARTUP"),
        *("PIP_INDEX_URL", "UV_FIND_LINKS", "UV_CONFIG_FILE", "HTTPS_PROXY", "HOME", "PATH"),
        "MINE",
    ],
)
def test_a_tenant_gives_no_variables_that_matter_outside(anna: httpx.Client, name: str) -> None:
    """An interpreter is started with some of them, and an installer with others, by the service."""
    for path, body in (
        ("/api/kernels", {"env": {"KERNEL_ID": "x", name: "/tmp"}}),
        ("/api/kernels", {"name": "kernelbox.given", "env": {name: "/tmp"}}),
    ):
        reply = anna.post(path, json=body)
        assert (reply.status_code, reply.json()["error"]) == (403, "NotAllowed"), reply.text
        assert name in reply.json()["message"]
    assert anna.get("/kernels").json() == {"kernels": []}


def test_what_gateway_clients_send_unasked_is_taken(anna: httpx.Client) -> None:
    env = {"KERNEL_USERNAME": "anna", "KERNEL_WORKING_DIR": "/etc"}
    started = anna.post("/api/kernels", json={"env": env}).json()
    code = "import os; os.environ['KERNEL_USERNAME'], os.getcwd()"
    assert value(anna, started["id"], code).startswith("('anna', '/")
    assert "/etc" not in value(anna, started["id"], "os.getcwd()")


def test_files_over_http_do_not_lead_to_the_machine(anna: httpx.Client) -> None:
    make(anna, "desk")
    run(anna, "desk", "open('note', 'w').write('x')")
    for method, path in (
        ("GET", ""),
        ("GET", "?path=/"),
        ("GET", "/note"),
        ("GET", "/etc/passwd"),
        ("GET", "/..%2f..%2fetc/passwd"),
        ("PUT", "/note"),
        ("DELETE", "/note"),
    ):
        reply = anna.request(method, f"/kernels/desk/files{path}")
        assert (reply.status_code, reply.json()["error"]) == (409, "Unsupported"), reply.text
    assert value(anna, "desk", "open('note').read()") == "'x'"


# -- what code of a tenant can see --------------------------------------------------------------

LOOK = """
import os, socket, urllib.request
found = {{}}
def attempt(name, do):
    try:
        found[name] = do()
    except BaseException as error:
        found[name] = type(error).__name__
def fetch(url, **how):
    opener = urllib.request.build_opener(urllib.request.ProxyHandler(**how))
    with opener.open(urllib.request.Request(url), timeout=5) as reply:
        return reply.status
attempt("tokens", lambda: open({tokens!r}).read())
attempt("folder", lambda: os.listdir({folder!r}))
attempt("home", lambda: os.listdir({home!r}))
attempt("passwd", lambda: "/root" in open("/etc/shadow").read())
attempt("this file", lambda: open({here!r}).read())
attempt("service", lambda: socket.create_connection(("127.0.0.1", {port}), timeout=2) and "open")
attempt("by proxy", lambda: fetch("http://127.0.0.1:{port}/health"))
attempt("by name", lambda: fetch("http://localhost:{port}/health"))
attempt("processes", lambda: [
    pid for pid in os.listdir("/proc") if pid.isdigit()
    and {word!r}.encode() in open(f"/proc/{{pid}}/cmdline", "rb").read()])
everything = str(dict(os.environ))
for pid in os.listdir("/proc"):
    if pid.isdigit():
        try:
            everything += str(open(f"/proc/{{pid}}/environ", "rb").read())
        except OSError:
            pass
found["secret"] = {secret!r} in everything
import json
json.dumps(found)
"""


@pytest.mark.parametrize("profile", [None, "restrictive"])
def test_code_of_a_tenant_sees_nothing_of_the_machine(
    tenants: Service, tokens: Path, anna: httpx.Client, profile: str | None
) -> None:
    code = LOOK.format(
        tokens=str(tokens),
        folder=str(tokens.parent),
        home=str(tenants.home),
        here=__file__,
        port=tenants.port,
        word="launch.py",
        secret=SECRET,
    )
    make(anna, "nosy", profile=profile)
    seen = json.loads(ast.literal_eval(value(anna, "nosy", code)))
    missing = ("FileNotFoundError", "PermissionError")
    for name in ("tokens", "folder", "home", "passwd", "this file"):
        assert seen[name] in missing, (name, seen)
    for name in ("service", "by proxy", "by name"):
        assert str(seen[name]).endswith(("Error", "Refused")), (name, seen)
    assert seen["processes"] == []
    assert seen["secret"] is False


def test_without_walls_the_same_code_sees_it_all(
    tenants: Service, tokens: Path, operator: Box
) -> None:
    """Or the test before would prove nothing."""
    kernel = operator.get_or_create("operators-own")
    code = f"open({str(tokens)!r}).read()"
    assert SECRET in str(operator.execute(kernel, code).return_value)
    probe = f"import socket; bool(socket.create_connection(('127.0.0.1', {tenants.port})))"
    assert operator.execute(kernel, probe).return_value == "True"
    operator.destroy(kernel)


def test_two_tenants_do_not_meet_in_their_sandboxes(anna: httpx.Client, bert: httpx.Client) -> None:
    make(anna, "sandbox")
    make(bert, "sandbox")
    run(anna, "sandbox", "open('/tmp/shared', 'w').write('of anna')\nsecret = 'of anna' * 3")
    for path in ("/tmp/shared", "/workspace/shared", "/dev/shm/shared"):
        assert value(bert, "sandbox", f"import os; os.path.exists({path!r})") == "False"
    assert run(bert, "sandbox", "secret")["error"]["ename"] == "NameError"


# -- another's kernels --------------------------------------------------------------------------

BODIES: dict[str, Any] = {
    "execute": {"code": "1"},
    "execute/retry": {"code": "1"},
    "branch": {"name": "stolen"},
    "checkpoint": {"label": "theirs"},
    "rewind": {"checkpoint": "mark"},
    "undo": {},
    "complete": {"code": "sec"},
    "install": {"packages": ["kbx-plain"]},
    "save": {"name": "stolen"},
}


def routes_of_kernels(http: httpx.Client) -> list[tuple[str, str]]:
    """Every method and path of the schema that is about one kernel."""
    schema = http.get("/openapi.json").json()
    found = [
        (method.upper(), path)
        for path, operations in schema["paths"].items()
        for method in operations
        if "{kernel}" in path
    ]
    assert len(found) > 20
    return found


def test_every_route_to_anothers_kernel_is_404(
    anna: httpx.Client, bert: httpx.Client, operator: Box
) -> None:
    hers = make(anna, "private", tags={"note": "of anna"})
    run(anna, "private", "secret = 'of anna'; print(secret)", execution_id="hers")
    anna.post("/kernels/private/checkpoint", json={"label": "mark"})
    operators = operator.get_or_create("operators")
    before = anna.get("/kernels/private").json()
    keys = [hers["kernel_id"], "private", "anna::private", "operators", operators.kernel_id]
    keys += ["bert::private", f"anna::{hers['kernel_id']}", "anna%3A%3Aprivate"]
    for method, path in routes_of_kernels(bert):
        action = path.split("{kernel}")[1].lstrip("/")
        for key in keys:
            where = path.format(kernel=key, execution_id="hers", checkpoint="mark", path="note")
            body = BODIES.get(action) if method == "POST" else None
            ways_to_ask: list[dict[str, str]] = [{}]
            if action == "execute":
                ways_to_ask += [{"accept": "text/event-stream"}, {"idempotency-key": "hers"}]
            for headers in ways_to_ask:
                reply = bert.request(method, where, json=body, headers=headers)
                assert reply.status_code == 404, (method, where, reply.text)
                told = reply.text.replace(unquote(key), "")
                assert "anna" not in told, told
                assert "operators" not in told, told
    for query in ("search=anna", "stream=stderr"):
        for key in keys:
            reply = bert.get(f"/kernels/{key}/executions/hers/output?{query}")
            assert reply.status_code == 404
    after = anna.get("/kernels/private").json()
    for name in ("epoch", "attempt_count", "name"):
        assert before["kernel"][name] == after["kernel"][name]
    assert value(anna, "private", "secret") == "'of anna'"
    assert bert.get("/kernels").json() == {"kernels": []}
    assert bert.get("/kernels?refresh=true").json() == {"kernels": []}
    assert bert.delete("/kernels").json() == {"destroyed": []}
    assert bert.get("/saved").json()["saved"] == []
    operator.destroy(operators)


def test_anothers_executions_and_keys_mean_nothing_in_ones_own_kernel(
    anna: httpx.Client, bert: httpx.Client
) -> None:
    for http, word in ((anna, "anna"), (bert, "bert")):
        make(http, "demo")
        reply = http.post(
            "/kernels/demo/execute",
            json={"code": f"print('{word}')\n'{word}'"},
            headers={"idempotency-key": "the-same"},
        )
        assert reply.json()["return_value"] == f"'{word}'"
    hers = run(anna, "demo", "print('secret')", execution_id="only-hers")["execution_id"]
    for method, action in (
        ("GET", "events"),
        ("GET", "output"),
        ("GET", "output?search=secret"),
    ):
        reply = bert.request(method, f"/kernels/demo/executions/{hers}/{action}")
        assert (reply.status_code, reply.json()["error"]) == (404, "ExecutionNotFound")
    cancelled = bert.post(f"/kernels/demo/executions/{hers}/cancel")
    assert cancelled.json() == {"cancelled": False}


def test_two_tenants_have_a_kernel_of_one_name(anna: httpx.Client, bert: httpx.Client) -> None:
    hers, his = make(anna, "demo"), make(bert, "demo")
    assert hers["name"] == his["name"] == "demo"
    assert hers["kernel_id"] != his["kernel_id"]
    for http, word in ((anna, "anna"), (bert, "bert")):
        run(http, "demo", f"who = '{word}'")
    for http, word in ((anna, "anna"), (bert, "bert")):
        assert value(http, "demo", "who") == f"'{word}'"
        assert http.post("/kernels", json={"name": "demo"}).status_code == 409
        (listed,) = http.get("/kernels").json()["kernels"]
        assert listed["name"] == "demo"
        assert listed["connection_file"] == listed["address"] == ""
    assert bert.delete("/kernels/demo").json() == {"destroyed": True}
    assert bert.get("/kernels/demo").status_code == 404
    assert value(anna, "demo", "who") == "'anna'"


@contextmanager
def line_to(tenants: Service, kernel: str, token: str) -> Iterator[ClientConnection]:
    address = f"{tenants.url.replace('http', 'ws')}/kernels/{kernel}/ws"
    headers = {"Authorization": f"Bearer {token}"}
    with connect(address, additional_headers=headers, proxy=None) as line:
        yield line


def test_a_websocket_does_not_lead_to_anothers_kernel(
    tenants: Service, anna: httpx.Client, bert: httpx.Client
) -> None:
    hers = make(anna, "talks")
    run(anna, "talks", "x = 1; print('secret')", execution_id="hers")
    for key in (hers["kernel_id"], "talks", "anna::talks"):
        with line_to(tenants, key, BERT) as line:
            for message in (
                {"op": "execute", "code": "x = 2"},
                {"op": "attach", "execution_id": "hers"},
                {"op": "interrupt"},
                {"op": "interrupt", "execution_id": "hers"},
            ):
                line.send(json.dumps(message))
                heard = {"type": "accepted"}
                while heard["type"] == "accepted":
                    heard = json.loads(line.recv(timeout=PATIENCE))
                assert (heard["type"], heard.get("error")) == ("error", "KernelNotFound"), heard
                assert "anna" not in json.dumps(heard).replace(key, "")
    assert value(anna, "talks", "x") == "1"
    with line_to(tenants, "talks", ANNA) as line:
        line.send(json.dumps({"op": "execute", "code": "x"}))
        while (heard := json.loads(line.recv(timeout=PATIENCE)))["type"] != "result":
            continue
        assert heard["result"]["return_value"] == "1"


def test_jupyters_routes_do_not_lead_to_anothers_kernel(
    tenants: Service, anna: httpx.Client, bert: httpx.Client
) -> None:
    made = anna.post(
        "/api/sessions", json={"path": "a.ipynb", "kernel": {"name": "kernelbox.lab"}}
    ).json()
    assert anna.get("/api/kernelspecs").json()["kernelspecs"].keys() == {"python3", "kernelbox.lab"}
    assert bert.get("/api/kernelspecs").json()["kernelspecs"].keys() == {"python3"}
    assert bert.get("/api/kernelspecs/kernelbox.lab").status_code == 404
    for key in (made["kernel"]["id"], "lab", "anna::lab", "kernelbox.lab"):
        for method, action in (
            ("GET", ""),
            ("DELETE", ""),
            ("POST", "/restart"),
            ("POST", "/interrupt"),
        ):
            reply = bert.request(method, f"/api/kernels/{key}{action}")
            assert (reply.status_code, reply.json()["error"]) == (404, "KernelNotFound")
        with (
            pytest.raises(InvalidStatus) as refused,
            talking(tenants, key, headers={"Authorization": f"token {BERT}"}),
        ):
            pass
        assert refused.value.response.status_code == 404
        reply = bert.post("/api/sessions", json={"path": "b", "kernel": {"id": key}})
        assert reply.status_code == 404
    for method, body in (("GET", None), ("PATCH", {"path": "c"}), ("DELETE", None)):
        reply = bert.request(method, f"/api/sessions/{made['id']}", json=body)
        assert (reply.status_code, reply.json()["error"]) == (404, "SessionNotFound")
    # The same document, and the same spec, of another tenant are others.
    his = bert.post(
        "/api/sessions", json={"path": "a.ipynb", "kernel": {"name": "kernelbox.lab"}}
    ).json()
    assert his["id"] != made["id"]
    assert his["kernel"]["id"] != made["kernel"]["id"]
    assert [each["id"] for each in anna.get("/api/sessions").json()] == [made["id"]]
    assert [each["id"] for each in bert.get("/api/kernels").json()] == [his["kernel"]["id"]]
    assert bert.get("/api/status").json()["kernels"] == 1
    with talking(tenants, "lab", headers={"Authorization": f"token {ANNA}"}) as talk:
        assert talk.printed("print(6 * 7)") == "42\n"


def test_a_kernel_without_walls_is_no_tenants_whatever_it_is_called(
    tenants: Service, anna: httpx.Client, operator: Box, tmp_path: Path
) -> None:
    """The operator, or an older service, may have made one under a tenant's name."""
    marker = tmp_path / "marker"
    planted = operator.get_or_create("anna::planted")
    code = {"code": f"open({str(marker)!r}, 'w')"}
    for key in ("planted", planted.kernel_id, "anna::planted"):
        for method, path in routes_of_kernels(anna):
            action = path.split("{kernel}")[1].lstrip("/")
            where = path.format(kernel=key, execution_id="x", checkpoint="x", path="x")
            body = code if action.startswith("execute") else BODIES.get(action)
            reply = anna.request(method, where, json=body if method == "POST" else None)
            assert reply.status_code == 404, (method, where, reply.text)
        assert anna.get(f"/api/kernels/{key}").status_code == 404
        with pytest.raises(InvalidStatus) as refused, line_to(tenants, "planted", ANNA):
            pass
        assert refused.value.response.status_code == 404
    assert anna.post("/sessions/planted/execute", json=code).status_code == 404
    assert anna.post("/sessions/planted").status_code == 422
    assert anna.post("/api/kernels", json={"name": "kernelbox.planted"}).status_code == 422
    assert anna.post("/kernels", json={"name": "planted"}).status_code == 409
    assert anna.get("/kernels").json() == {"kernels": []}
    assert anna.delete("/kernels").json() == {"destroyed": []}
    assert not marker.exists()
    assert operator.destroy(planted)


# -- saved sessions -----------------------------------------------------------------------------


def changed(path: Path, **changes: Any) -> bytes:
    """A saved session with another manifest; its signature fits no more."""
    data = path.read_bytes()
    head = data[: sessionfile.START]
    pieces, contents = struct.unpack("!QQ", head[-16:])
    body = data[sessionfile.START :]
    manifest = json.loads(body[pieces : pieces + contents])
    encoded = json.dumps({**manifest, **changes}).encode()
    sizes = struct.pack("!QQ", pieces, len(encoded))
    return head[:-16] + sizes + body[:pieces] + encoded + b"\0" * 32


def test_a_session_that_is_loaded_runs_behind_walls_whatever_it_says(
    anna: httpx.Client, operator: Box, tmp_path: Path
) -> None:
    marker, path = tmp_path / "marker", tmp_path / "session"
    kernel = operator.get_or_create("evil")
    code = (
        "import os\nclass Touch:\n    def __reduce__(self):\n"
        f"        return os.system, ('touch {marker}; touch /tmp/inside',)\nx = Touch()"
    )
    assert operator.execute(kernel, code).status == "success"
    operator.save(kernel, str(path))
    operator.destroy(kernel)
    walls = {"name": "mine", "driver": "process"}
    for number, (profile, status) in enumerate(
        (
            (None, 201),
            ({**walls, "network": "off", "allow": []}, 201),
            ({"name": "open", "driver": "none"}, 409),
            ("open", 409),
            ("/etc/passwd", 409),
            ({**walls, "mounts": [{"source": "/etc", "target": "/data"}]}, 403),
            ({**walls, "home": "ro"}, 403),
            ({**walls, "cwd": "rw"}, 403),
            ({**walls, "environment": "filtered"}, 403),
            ({**walls, "syscalls": "all"}, 403),
            ({**walls, "network": "raw", "allow": []}, 403),
            ({**walls, "memory": None}, 403),
            ({**walls, "name": "open"}, 403),
            ({**walls, "secrets": [{"name": "MY_API_KEY", "domain": "example.com"}]}, 403),
            ({**walls, "strange": 1}, 409),
        )
    ):
        name = f"forged-{number}"
        data = changed(path, profile=profile, cwd=str(tmp_path))
        assert anna.put(f"/saved/{name}", content=data).status_code == 201
        reply = anna.post(f"/saved/{name}/load", json={"name": name})
        assert reply.status_code in (409, 403), reply.text
        reply = anna.post(f"/saved/{name}/load", json={"name": name, "trust": True})
        assert reply.status_code == status, (profile, reply.text)
        assert not marker.exists()
        if status == 201:
            assert reply.json()["profile"] == ("moderate" if profile is None else "mine")
            assert value(anna, name, "import os; os.path.exists('/tmp/inside')") == "True"
            assert value(anna, name, f"os.path.exists({str(tmp_path)!r})") == "False"
        else:
            assert anna.get(f"/kernels/{name}").status_code == 404
        assert anna.delete(f"/saved/{name}").status_code == 200
    assert not marker.exists()


def test_saved_sessions_are_a_tenants_own(anna: httpx.Client, bert: httpx.Client) -> None:
    for http, word in ((anna, "anna"), (bert, "bert")):
        make(http, "desk", profile="restrictive")
        run(http, "desk", f"who = '{word}'")
        saved = http.post("/kernels/desk/save", json={"name": "desk"})
        assert saved.status_code == 201
        assert saved.json()["path"] == "/saved/desk"
    anna.post("/kernels/desk/save", json={"name": "only-hers"})
    for method, path, body in (
        ("GET", "", None),
        ("DELETE", "", None),
        ("POST", "/load", {"name": "stolen"}),
    ):
        reply = bert.request(method, f"/saved/only-hers{path}", json=body)
        assert (reply.status_code, reply.json()["error"]) == (404, "FileNotFound")
    for name in ("..%2ftenant-anna%2fdesk", "../tenant-anna/desk"):
        assert bert.get(f"/saved/{name}").status_code in (404, 422)
    for http, word in ((anna, "anna"), (bert, "bert")):
        loaded = http.post("/saved/desk/load", json={"name": "copy"})
        assert (loaded.status_code, loaded.json()["profile"]) == (201, "restrictive")
        assert value(http, "copy", "who") == f"'{word}'"
        for each in http.get("/saved").json()["saved"]:
            http.delete(f"/saved/{each['name']}")


@pytest.mark.parametrize(
    "said",
    [
        {"pieces": 1 << 39, "manifest": 2},
        {"pieces": 0, "manifest": 1 << 39},
        {"pieces": -1000, "manifest": 2},
        {"pieces": "many", "manifest": None},
        {"pieces": 1 << 41, "manifest": 2},
    ],
    ids=str,
)
def test_code_that_lies_about_what_it_saves_keeps_nobody_busy(
    anna: httpx.Client, said: dict[str, Any]
) -> None:
    make(anna, "liar")
    lie = (
        "from kernelbox.inside import session\n"
        "def dump(shell, file, whole=False):\n"
        "    file.truncate(1 << 40)\n"
        f"    return {said!r}\n"
        "session.dump = dump"
    )
    assert run(anna, "liar", lie)["status"] == "success"
    began = time.monotonic()
    reply = anna.post("/kernels/liar/save", json={"name": "lie"})
    assert (reply.status_code, reply.json()["error"]) == (409, "Unsupported"), reply.text
    assert time.monotonic() - began < 30
    assert anna.get("/saved").json()["saved"] == []


def test_what_was_saved_is_out_of_reach_of_the_code_that_wrote_it(anna: httpx.Client) -> None:
    make(anna, "keeps")
    keep = (
        "import os\nfrom kernelbox.inside import session\nx, kept = 6 * 7, []\n"
        "def dump(shell, file, whole=False, truth=session.dump):\n"
        "    kept.append(os.dup(file.fileno()))\n"
        "    return truth(shell, file, whole=whole)\n"
        "session.dump = dump"
    )
    assert run(anna, "keeps", keep)["status"] == "success"
    saved = anna.post("/kernels/keeps/save", json={"name": "kept"})
    assert saved.status_code == 201, saved.text
    spoil = "os.pwrite(kept[0], b'KERNELBOX', 0), os.ftruncate(kept[0], 1 << 40)"
    assert run(anna, "keeps", spoil)["status"] == "success"
    (listed,) = anna.get("/saved").json()["saved"]
    assert listed["size"] == saved.json()["size"]
    assert anna.post("/saved/kept/load", json={"name": "again"}).status_code == 201
    assert value(anna, "again", "x") == "42"
    anna.delete("/saved/kept")


# -- the rest of the service --------------------------------------------------------------------


def test_packages_are_a_tenants_own(
    tenants: Service, anna: httpx.Client, bert: httpx.Client, operator: Box
) -> None:
    pytest.importorskip("uv", reason="uv is not installed: pip install uv packaging")
    for http in (anna, bert):
        make(http, "wants")
    done = anna.post("/kernels/wants/install", json={"packages": ["kbx-plain"]})
    assert done.status_code == 200, done.text
    assert value(anna, "wants", "import kbx_plain; kbx_plain.version") == "'1.0'"
    assert run(bert, "wants", "import kbx_plain")["error"]["ename"] == "ModuleNotFoundError"
    mine = operator.get_or_create("of-the-environment")
    assert operator.execute(mine, "import kbx_plain").status == "error"
    operator.destroy(mine)
    refused = anna.post("/kernels/wants/install", json={"packages": ["kbx-nothing"]})
    assert refused.status_code == 409
    assert str(tenants.home) not in refused.text


def test_metrics_tell_a_tenant_nothing_of_others(
    anna: httpx.Client, bert: httpx.Client, operator: Box
) -> None:
    operators = operator.get_or_create("operators")
    make(anna, "counted")
    assert "kernelbox_kernels 1\n" in anna.get("/metrics").text
    seen = bert.get("/metrics").text
    assert "kernelbox_kernels 0\n" in seen
    for word in ("route", "running", "anna", "counted", "operators"):
        assert word not in seen
    operator.destroy(operators)


def test_the_audit_log_says_whose_kernel_it_was(tenants: Service, bert: httpx.Client) -> None:
    record = make(bert, "audited")
    run(bert, "audited", "1 + 1")
    bert.delete("/kernels/audited")
    log = read_audit(_audit_log(tenants))
    mine = [each for each in log if each.get("kernel_id") == record["kernel_id"]]
    assert {each["kernel"] for each in mine} == {"bert::audited"}
    assert {"kernel.created", "execution.started", "kernel.ended"} <= {e["event"] for e in mine}
    assert mine[0]["profile"] == "moderate"


def _audit_log(tenants: Service) -> str:
    command = Path(f"/proc/{tenants.process.pid}/cmdline").read_bytes().split(b"\0")
    path: str = json.loads(command[-2])["settings"]["audit_log"]
    return path


def test_no_place_of_the_machine_is_told(tenants: Service, anna: httpx.Client) -> None:
    make(anna, "quiet")
    told = [
        anna.get("/kernels").text,
        anna.get("/kernels/quiet").text,
        anna.post("/kernels/quiet/restart").text,
        anna.post("/kernels/quiet/branch", json={"name": "b", "files": "copy"}).text,
        anna.post("/kernels/quiet/save", json={"name": "quiet"}).text,
        anna.put("/saved/bad", content=b"no session").text,
        anna.post("/saved/bad/load", json={"name": "c"}).text,
        anna.post("/kernels/nobody/execute", json={"code": "1"}).text,
    ]
    for words in told:
        assert str(tenants.home) not in words
        assert str(tenants.folder) not in words
        assert "anna::" not in words
    for each in anna.get("/saved").json()["saved"]:
        anna.delete(f"/saved/{each['name']}")


# -- how much ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def crowded(shared_start: Start, tokens: Path) -> Service:
    return shared_start(
        server={
            "tokens_file": str(tokens),
            "max_concurrency_per_token": 3,
            "max_kernels": 3,
            "max_kernels_per_token": 2,
        }
    )


def test_one_tenant_does_not_use_up_all_kernels(crowded: Service) -> None:
    with crowded.client(ANNA) as anna, crowded.client(BERT) as bert:
        for name in ("k1", "k2"):
            make(anna, name)
        for path, body in (
            ("/kernels", {"name": "k3"}),
            ("/sessions/k3", {}),
            ("/sessions/k3/execute", {"code": "1"}),
            ("/kernels/k1/branch", {"name": "k3"}),
            ("/kernels/k1/branch", {"names": ["k3", "k4"]}),
            ("/api/kernels", {}),
            ("/api/sessions", {"path": "a", "kernel": {"name": "python3"}}),
        ):
            reply = anna.post(path, json=body)
            assert (reply.status_code, reply.json()["error"]) == (429, "TooManyKernels"), path
            assert "you have 2 kernels, and may have 2" in reply.json()["message"]
        assert anna.post("/sessions/k2").status_code == 200  # it is there already
        make(bert, "his")  # of the three, one is left
        reply = bert.post("/kernels", json={"name": "too-many"})
        assert (reply.status_code, reply.json()["error"]) == (429, "TooManyKernels")
        assert not re.search(r"\d", reply.json()["message"])  # not how many others there are
        for http in (anna, bert):
            http.delete("/kernels")


def test_one_tenant_does_not_use_up_all_requests(crowded: Service) -> None:
    with crowded.client(ANNA) as anna, crowded.client(BERT) as bert:
        make(anna, "busy")
        lines = [_held(crowded, "busy", ANNA) for _ in range(3)]
        reply = anna.get("/kernels")
        assert (reply.status_code, reply.json()["error"]) == (429, "TooManyRequests")
        assert bert.get("/kernels").status_code == 200
        for line in lines:
            line.close()
        while anna.delete("/kernels").status_code == 429:
            continue


def _held(service: Service, kernel: str, token: str) -> socket.socket:
    """A request that stays open: a cell that waits."""
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


def test_what_the_operator_allows_is_mounted_for_tenants_too(
    start: Start, tokens: Path, tmp_path: Path
) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    for folder in (data, out):
        folder.mkdir()
        folder.chmod(0o777)
    (data / "in.txt").write_text("hello")
    service = start(
        server={"tokens_file": str(tokens), "mounts": [[str(data), "ro"], [str(out), "ro"]]},
        settings={"profile": "restrictive"},
    )
    with service.client(ANNA) as anna:
        assert make(anna, "plain")["profile"] == "restrictive"
        mount = {"source": str(data), "target": "/data"}
        for refused in ({**mount, "mode": "rw"}, {**mount, "source": str(tmp_path)}):
            profile = {"profile": "restrictive", "mounts": [refused]}
            reply = anna.post("/kernels", json={"name": "m", "profile": profile})
            assert reply.status_code == 403
            assert "cannot be mounted" in reply.json()["message"]
        # What the operator has set is the most that there is.
        reply = anna.post("/kernels", json={"name": "m", "profile": "moderate"})
        assert reply.status_code == 403
        assert "the network may be 'off'" in reply.json()["message"]
        make(anna, "reads", profile={"profile": "restrictive", "mounts": [mount]})
        assert value(anna, "reads", "open('/data/in.txt').read()") == "'hello'"
        anna.delete("/kernels")
