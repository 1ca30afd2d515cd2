"""Promise: with the network on, the only way out is our proxy, and it leads to nothing of the host."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from probes import LOCKED, PROFILES, Probe, Sandboxes, named

from kernelbox import KernelRecord
from kernelbox.walls import gvisor

# What a service of the host's loopback would be called by somebody who tries: addresses in every
# spelling, and names that mean one. None of it is ever asked of a name server.
NAMES = [
    "127.0.0.1", "localhost", "127.1", "0.0.0.0", "0", "[::1]", "[::ffff:127.0.0.1]", "2130706433",
    "0x7f000001", "0177.0.0.1", "[::]", "169.254.169.254", "10.0.0.1",
]  # fmt: skip
ODD_NAMES = [
    "127.0.0.1.", "LOCALHOST.", "localhost.localdomain", "ip6-localhost", "user@127.0.0.1",
    "127.0.0.1%00.example.com", "localhost#.example.com", "localhost\\t.example.com",
]  # fmt: skip

PROXY = """
import os, socket, urllib.parse
def ask(text):
    where = urllib.parse.urlsplit(os.environ.get('http_proxy') or os.environ.get('HTTP_PROXY') or 'http://127.0.0.1:3128')
    s = socket.create_connection((where.hostname, where.port), 3)
    s.settimeout(0.5)
    s.sendall(text.replace('\\n', '\\r\\n').encode())
    got = b''
    try:
        while len(got) < 4000 and (piece := s.recv(4000)): got += piece
    except OSError: pass
    return got
"""


SOME = "some domains"
IN_GVISOR = f"{SOME} in gvisor"


@pytest.fixture(scope="module", params=["permissive", SOME, IN_GVISOR])
def online(sandboxes: Sandboxes, request: pytest.FixtureRequest) -> Iterator[KernelRecord]:
    if LOCKED:
        pytest.skip("where there are locks alone, there is no network")
    if request.param == IN_GVISOR and (obstacle := gvisor.obstacle()):
        pytest.skip(f"no sandbox of gVisor can be had here: {obstacle}")
    if request.param.startswith(SOME):
        driver = "gvisor" if request.param == IN_GVISOR else "process"
        profile = named("restrictive").but(network="on", allow=("*.example.com",), driver=driver)
    else:
        profile = named(request.param)
    record = sandboxes.box.get_or_create(
        f"online-{request.param.replace(' ', '-')}", cwd=sandboxes.folder, profile=profile
    )
    assert sandboxes.box.execute(record, PROXY).ok
    yield record
    sandboxes.box.destroy(record)


@pytest.mark.parametrize("name", [*NAMES, *ODD_NAMES])
def test_no_name_leads_to_a_service_of_the_host(
    sandboxes: Sandboxes, host: dict[str, str], online: KernelRecord, name: str
) -> None:
    if name in ODD_NAMES and SOME.replace(" ", "-") not in online.name:
        pytest.skip("where every domain is allowed, it might be asked of a name server")
    port = host["tcp"]
    for text in (
        f"CONNECT {name}:{port} HTTP/1.1\nHost: {name}:{port}\n\nhello",
        f"GET http://{name}:{port}/ HTTP/1.1\nHost: {name}:{port}\nConnection: close\n\n",
        f"GET http://{name}:{port} HTTP/1.0\n\n",
    ):
        result = sandboxes.box.execute(online, f"ask({text!r})", timeout=20)
        assert result.error is None, result.error
        answer = result.return_value or ""
        assert "HELLO FROM THE HOST" not in answer
        assert " 200 " not in answer.partition("\\r\\n")[0], answer


@pytest.mark.parametrize(
    "text",
    [
        "GET unix:///run/docker.sock HTTP/1.1\n\n",
        "GET file:///etc/shadow HTTP/1.1\n\n",
        "CONNECT /run/docker.sock HTTP/1.1\n\n",
        "GET ftp://localhost/ HTTP/1.1\n\n",
        "GET / HTTP/1.1\nHost: localhost\n\n",
        "\x05\x01\x00",
        "x" * 100_000,
        "GET http://127.0.0.1/ HTTP/1.1\nA: " + "b" * 200_000 + "\n\n",
    ],
    ids=["unix", "file", "path", "ftp", "itself", "socks", "garbage", "headers"],
)
def test_the_proxy_speaks_http_to_names_and_nothing_else(
    sandboxes: Sandboxes, online: KernelRecord, text: str
) -> None:
    result = sandboxes.box.execute(online, f"ask({text!r})", timeout=20)
    if result.error is not None:
        assert result.error.ename in ("BrokenPipeError", "ConnectionResetError", "TimeoutError")
    assert "root:" not in (result.return_value or "")
    assert " 200 " not in (result.return_value or "")
    assert sandboxes.box.execute(online, "1+1").return_value == "2"


DIRECT = [
    Probe("loopback", "socket.create_connection(('127.0.0.1', @tcp@), 2); breach()"),
    Probe("a Unix socket", "socket.socket(socket.AF_UNIX).connect('@socket@'); breach()"),
    Probe("an abstract one", "socket.socket(socket.AF_UNIX).connect(b'\\0' + b'@abstract@'); breach()"),
    Probe("a way out", "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\ns.connect(('192.0.2.1', 9)); breach()"),
    Probe("interfaces", "names = [n for _, n in socket.if_nameindex()]\nbreach(names) if names != ['lo'] else denied()"),
    Probe("raw sockets", "socket.socket(socket.AF_INET, socket.SOCK_RAW, 1); breach()"),
    Probe("a secret", "read('@aside@/secret.txt', '@file_word@')"),
    Probe("a secret of the caller", "breach() if 'CALLERS_SECRET' in os.environ else denied()"),
]  # fmt: skip


@pytest.mark.parametrize("probe", DIRECT, ids=str)
def test_there_is_no_way_around_it(
    sandboxes: Sandboxes, online: KernelRecord, probe: Probe
) -> None:
    assert online.name not in PROFILES
    sandboxes.must_fail(probe, "permissive", kernel=online.name)
