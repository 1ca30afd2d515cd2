"""A secret that is bound to a domain goes there, in headers, under TLS, and nowhere else.

The gate with real clients and real servers, all on loopback; a resolver of the test leads there.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gc
import http.client
import os
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("cryptography", reason="secrets need the package 'cryptography'")

from tls_servers import Origin, origin

from kernelbox.walls import gate, vault
from kernelbox.walls.authority import certificate_for
from kernelbox.walls.gate import Denial, Policy

VALUE = "the-real-value-9f3c"
STAND = "kbx-secret-0123456789abcdef"
BOUND, OTHER = "bound.example", "other.example"


class Gate:
    """A gate with a secret, in a thread of its own."""

    def __init__(self, folder: Path, bound_port: int, bundle: str, allow: tuple[str, ...]) -> None:
        self.denials: list[Denial] = []
        made = certificate_for([BOUND])
        self.authority = str(folder / "sandbox-authority.pem")
        Path(self.authority).write_text(made.authority)
        bindings = [vault.Binding(STAND, VALUE, BOUND, bound_port)]
        near, far = socket.socketpair()
        with near:
            near.sendall(vault.write(bindings, chain=made.chain, key=made.key, bundle=bundle))
        opened = vault.receive(far.detach())
        listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = listener.getsockname()[1]
        policy = Policy(allow, private=True)
        ready = threading.Event()

        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            limits = gate.Limits(hello=3, keep_alive=5, idle=10)
            self._serving = asyncio.ensure_future(
                gate.serve(listener, policy, self.denials.append, resolve=_resolve, limits=limits,
                           secrets=opened)
            )  # fmt: skip
            ready.set()
            with contextlib.suppress(asyncio.CancelledError):
                await self._serving

        self._thread = threading.Thread(target=lambda: asyncio.run(serve()))
        self._thread.start()
        ready.wait()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._serving.cancel)
        self._thread.join(10)
        assert not self._thread.is_alive()

    def reasons(self, count: int = 1) -> list[str]:
        deadline = time.monotonic() + 10
        while len(self.denials) < count:
            assert time.monotonic() < deadline, self.denials
            time.sleep(0.01)
        return [denial.reason for denial in self.denials]

    def https(self, host: str, port: int, trust: str | None = None) -> http.client.HTTPSConnection:
        """A client in the sandbox: it trusts the sandbox's authority."""
        context = ssl.create_default_context(cafile=trust or self.authority)
        client = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=10, context=context)
        client.set_tunnel(host, port)
        return client

    def tls(self, port: int) -> ssl.SSLSocket:
        """The inside of TLS with the bound domain, to say anything in."""
        raw = socket.create_connection(("127.0.0.1", self.port), timeout=10)
        raw.sendall(f"CONNECT {BOUND}:{port} HTTP/1.1\r\nHost: {BOUND}:{port}\r\n\r\n".encode())
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += raw.recv(1)
        assert head.startswith(b"HTTP/1.1 200")
        context = ssl.create_default_context(cafile=self.authority)
        return context.wrap_socket(raw, server_hostname=BOUND)


async def _resolve(name: str, port: int) -> list[str]:
    return ["127.0.0.1"]


def read_all(client: socket.socket) -> bytes:
    data = b""
    with contextlib.suppress(ConnectionResetError, ssl.SSLError):
        while piece := client.recv(65536):
            data += piece
    return data


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Origin]:
    with origin(tmp_path, BOUND, OTHER) as made:
        yield made


Open = Callable[..., Gate]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Open]:
    gates: list[Gate] = []
    before = len(os.listdir("/proc/self/fd"))

    def opened(server: Origin, *allow: str, bundle: str = "") -> Gate:
        patterns = allow or (f"{BOUND}:{server.port}", f"{OTHER}:{server.port}")
        gates.append(Gate(tmp_path, server.port, bundle or server.authority, patterns))
        return gates[-1]

    yield opened
    for made in gates:
        made.close()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before, "descriptors are left open"


def header(server: Origin, name: str, number: int = -1) -> str:
    headers = server.heard[number]["headers"]
    assert isinstance(headers, dict)
    return str(headers[name])


def test_the_domain_it_is_bound_to_gets_the_value(start: Open, server: Origin) -> None:
    client = start(server).https(BOUND, server.port)
    for _ in range(3):  # over one connection
        client.request("GET", "/x", headers={"Authorization": f"Bearer {STAND}", "X-Key": STAND})
        assert client.getresponse().read() == b"{}"
    client.close()
    assert [header(server, "authorization", n) for n in range(3)] == [f"Bearer {VALUE}"] * 3
    assert header(server, "x-key") == VALUE
    assert header(server, "host") == f"{BOUND}:{server.port}"


def test_a_password_in_basic_authorization_is_swapped_too(start: Open, server: Origin) -> None:
    client = start(server).https(BOUND, server.port)
    hidden = base64.b64encode(f"me:{STAND}".encode()).decode()
    client.request("GET", "/", headers={"Authorization": f"Basic {hidden}"})
    assert client.getresponse().status == 200
    client.close()
    kind, _, told = header(server, "authorization").partition(" ")
    assert (kind, base64.b64decode(told)) == ("Basic", f"me:{VALUE}".encode())


def test_only_headers_are_swapped(start: Open, server: Origin) -> None:
    client = start(server).https(BOUND, server.port)
    client.request("POST", f"/{STAND}?q={STAND}", body=STAND, headers={STAND: "name"})
    assert client.getresponse().status == 200
    client.close()
    assert VALUE not in str(server.heard)
    assert server.heard[0]["path"] == f"/{STAND}?q={STAND}"
    assert server.heard[0]["body"] == STAND


def test_another_domain_gets_the_placeholder_and_its_tls_is_its_own(
    start: Open, server: Origin
) -> None:
    # It is the server's own certificate that the client sees: the gate ends nothing here.
    client = start(server).https(OTHER, server.port, trust=server.authority)
    client.request("GET", "/", headers={"Authorization": f"Bearer {STAND}"})
    assert client.getresponse().status == 200
    client.close()
    assert header(server, "authorization") == f"Bearer {STAND}"


def test_another_port_of_the_domain_gets_the_placeholder(
    start: Open, server: Origin, tmp_path: Path
) -> None:
    with origin(tmp_path, BOUND) as elsewhere:
        allow = (f"{BOUND}:{server.port}", f"{BOUND}:{elsewhere.port}")
        client = start(server, *allow).https(BOUND, elsewhere.port, trust=elsewhere.authority)
        client.request("GET", "/", headers={"Authorization": STAND})
        assert client.getresponse().status == 200
        client.close()
        assert header(elsewhere, "authorization") == STAND


def test_without_tls_the_domain_gets_the_placeholder(
    start: Open, server: Origin, tmp_path: Path
) -> None:
    with origin(tmp_path) as plain:
        made = start(server, f"{BOUND}:{server.port}", f"{BOUND}:{plain.port}")
        client = http.client.HTTPConnection("127.0.0.1", made.port, timeout=10)
        url = f"http://{BOUND}:{plain.port}/"
        client.request("GET", url, headers={"Host": f"{BOUND}:{plain.port}", "X-Key": STAND})
        assert client.getresponse().status == 200
        client.close()
        assert header(plain, "x-key") == STAND


def test_a_redirect_takes_the_placeholder_along_and_not_the_value(
    start: Open, server: Origin
) -> None:
    made = start(server)
    client = made.https(BOUND, server.port)
    client.request("GET", f"/redirect?https://{OTHER}/", headers={"Authorization": STAND})
    answer = client.getresponse()
    assert (answer.status, answer.headers["Location"]) == (302, f"https://{OTHER}/")
    client.close()
    client = made.https(OTHER, server.port, trust=server.authority)
    client.request("GET", "/", headers={"Authorization": STAND})
    assert client.getresponse().status == 200
    client.close()
    assert [header(server, "authorization", n) for n in (0, 1)] == [VALUE, STAND]


@pytest.mark.parametrize(
    ("request_text", "reason"),
    [
        (f"GET / HTTP/1.1\r\nHost: {OTHER}\r\nX: {STAND}\r\n\r\n", "host-mismatch"),
        (f"GET / HTTP/1.1\r\nX: {STAND}\r\n\r\n", "bad-request"),
        (f"GET / HTTP/1.1\r\nHost: @host@\r\nHost: @host@\r\nX: {STAND}\r\n\r\n", "bad-request"),
        (f"GET https://{OTHER}/ HTTP/1.1\r\nHost: @host@\r\nX: {STAND}\r\n\r\n", "bad-request"),
        (f"CONNECT {OTHER}:443 HTTP/1.1\r\nHost: @host@\r\nX: {STAND}\r\n\r\n", "bad-request"),
        (f"POST / HTTP/1.1\r\nHost: @host@\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\nX: {STAND}\r\n\r\n", "bad-request"),
        (f"POST / HTTP/1.1\r\nHost: @host@\r\nContent-Length: 3\r\nContent-Length: 4\r\nX: {STAND}\r\n\r\nabc", "bad-request"),
        (f"POST / HTTP/1.1\r\nHost: @host@\r\nTransfer-Encoding: x, chunked\r\nX: {STAND}\r\n\r\n", "bad-request"),
        (f"GET / HTTP/1.1\r\nHost: @host@\r\nX: a\n\tGET / HTTP/1.1\r\nY: {STAND}\r\n\r\n", "bad-request"),
        (f"GET / HTTP/1.1\r\nHost: @host@\r\nX : {STAND}\r\n\r\n", "bad-request"),
        (f"GET / HTTP/1.1\r\nHost: @host@\r\nX: {STAND}\r\n continued\r\n\r\n", "bad-request"),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "bad-request"),
    ],
)  # fmt: skip
def test_a_request_that_can_be_read_two_ways_gets_nothing_swapped(
    start: Open, server: Origin, request_text: str, reason: str
) -> None:
    made = start(server)
    with made.tls(server.port) as client:
        client.sendall(request_text.replace("@host@", f"{BOUND}:{server.port}").encode())
        assert read_all(client).partition(b"\r\n")[0].split()[1] in (b"400", b"403")
    assert made.reasons() == [reason]
    assert server.heard == []


def test_what_follows_a_chunked_body_is_dropped(start: Open, server: Origin) -> None:
    with start(server).tls(server.port) as client:
        host = f"{BOUND}:{server.port}"
        client.sendall(
            f"POST / HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n"
            f"\r\n3\r\nabc\r\n0\r\nAuthorization: {STAND}\r\n\r\n".encode()
        )
        assert read_all(client).startswith(b"HTTP/1.1 200")
    assert server.heard[0]["body"] == "abc"
    assert VALUE not in str(server.heard)


def test_a_server_that_cannot_prove_who_it_is_gets_nothing(
    start: Open, server: Origin, tmp_path: Path
) -> None:
    stranger = tmp_path / "stranger.pem"
    stranger.write_text(certificate_for(["nobody.example"]).authority)
    made = start(server, bundle=str(stranger))
    client = made.https(BOUND, server.port)
    client.request("GET", "/", headers={"Authorization": STAND})
    answer = client.getresponse()
    assert answer.status == 502
    assert b"could not prove who it is" in answer.read()
    client.close()
    assert made.reasons() == ["certificate-not-trusted"]
    assert server.heard == []


def test_a_server_with_a_certificate_for_another_name_gets_nothing(
    start: Open, tmp_path: Path
) -> None:
    with origin(tmp_path, OTHER) as server:
        made = start(server)
        client = made.https(BOUND, server.port)
        client.request("GET", "/", headers={"Authorization": STAND})
        assert client.getresponse().status == 502
        client.close()
        assert made.reasons() == ["certificate-not-trusted"]
        assert server.heard == []


def test_a_hello_for_another_name_is_cut_also_where_everything_is_allowed(
    start: Open, server: Origin, tmp_path: Path
) -> None:
    made = start(server)
    with socket.create_connection(("127.0.0.1", made.port), timeout=10) as raw:
        raw.sendall(f"CONNECT {BOUND}:{server.port} HTTP/1.1\r\n\r\n".encode())
        assert raw.recv(100).startswith(b"HTTP/1.1 200")
        context = ssl.create_default_context(cafile=made.authority)
        with pytest.raises(ssl.SSLError):
            context.wrap_socket(raw, server_hostname=OTHER)
    assert made.reasons() == ["sni-mismatch"]


def test_a_domain_that_is_not_allowed_is_refused_before_anything(
    start: Open, server: Origin
) -> None:
    made = start(server, f"{OTHER}:{server.port}")
    with socket.create_connection(("127.0.0.1", made.port), timeout=10) as raw:
        raw.sendall(f"CONNECT {BOUND}:{server.port} HTTP/1.1\r\n\r\n".encode())
        assert read_all(raw).startswith(b"HTTP/1.1 403")
    assert made.reasons() == ["domain-not-allowed"]


def test_a_client_that_does_not_trust_the_sandbox_is_told_and_noted(
    start: Open, server: Origin
) -> None:
    made = start(server)
    client = made.https(BOUND, server.port, trust=server.authority)
    with pytest.raises(ssl.SSLCertVerificationError):
        client.request("GET", "/")
    client.close()
    assert made.reasons() == ["tls-failed"]


def test_much_is_carried_both_ways(start: Open, server: Origin) -> None:
    made = start(server)
    client = made.https(BOUND, server.port)
    client.request("GET", "/big", headers={"X-Key": STAND})
    assert len(client.getresponse().read()) == 4 << 20
    client.request("PUT", "/", body=b"x" * (2 << 20))
    assert client.getresponse().read() == b"{}"
    client.request("PUT", "/", body=iter([b"x" * 70000, b"y"]), encode_chunked=True)
    assert client.getresponse().read() == b"{}"
    client.close()
    assert [len(str(told["body"])) for told in server.heard] == [0, 2 << 20, 70001]


def test_an_answer_that_ends_with_its_connection_is_whole(start: Open, server: Origin) -> None:
    client = start(server).https(BOUND, server.port)
    client.request("GET", "/until-close")
    assert client.getresponse().read() == b"till the end"
    client.close()


def test_a_websocket_is_carried_and_ends_when_the_server_ends(start: Open, tmp_path: Path) -> None:
    heard: list[bytes] = []
    made = certificate_for([BOUND])
    (tmp_path / "own.pem").write_text(made.authority)
    (tmp_path / "chain.pem").write_text(made.chain + made.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "chain.pem")

    def talk(listener: socket.socket) -> None:
        raw, _ = listener.accept()
        raw.settimeout(10)
        with context.wrap_socket(raw, server_side=True) as connection:
            heard.append(connection.recv(65536))
            connection.sendall(
                b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n"
                b"Upgrade: websocket\r\n\r\n"
            )
            heard.append(connection.recv(100))
            connection.sendall(b"echo: " + heard[-1])

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)
        thread = threading.Thread(target=talk, args=[listener])
        thread.start()
        port = listener.getsockname()[1]
        server = Origin(port, str(tmp_path / "own.pem"))
        with start(server).tls(port) as client:
            client.sendall(
                f"GET /socket HTTP/1.1\r\nHost: {BOUND}:{port}\r\nConnection: Upgrade\r\n"
                f"Upgrade: websocket\r\nAuthorization: {STAND}\r\n\r\n".encode()
            )
            assert client.recv(65536).startswith(b"HTTP/1.1 101")
            client.sendall(f"a message with {STAND}".encode())
            assert read_all(client) == f"echo: a message with {STAND}".encode()
        thread.join(10)
    assert f"Authorization: {VALUE}".encode() in heard[0]


def test_curl_just_works(start: Open, server: Origin) -> None:
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("there is no curl")
    made = start(server)
    for path in ("/", "/until-close"):
        done = subprocess.run(
            [curl, "-sS", "--max-time", "10", "-H", f"Authorization: Bearer {STAND}", "-x",
             f"http://127.0.0.1:{made.port}", f"https://{BOUND}:{server.port}{path}"],
            env={"PATH": os.environ["PATH"], "CURL_CA_BUNDLE": made.authority},
            capture_output=True, text=True,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        assert header(server, "authorization") == f"Bearer {VALUE}"
    assert made.denials == []


def test_a_vault_does_not_show_its_values(server: Origin) -> None:
    binding = vault.Binding(STAND, VALUE, BOUND, 443)
    assert VALUE not in repr(binding)
    assert VALUE not in f"{binding}"
