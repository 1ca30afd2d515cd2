"""The gate lets through what the policy allows, and nothing else, whatever a client tries.

All of it on loopback, with real sockets, real clients and real servers; names are led there by a
resolver of the test.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import gc
import hashlib
import http.client
import http.server
import json
import logging
import os
import select
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kernelbox.walls import gate
from kernelbox.walls.gate import Denial, Limits, Policy

MEGABYTE = 1 << 20
Talk = Callable[[socket.socket], None]


class Running:
    """A gate in a thread of its own, and what it said."""

    def __init__(self, policy: Policy, limits: Limits, names: dict[str, list[str]]) -> None:
        self.denials: list[Denial] = []
        self.looked_up: list[str] = []
        self.lost: list[object] = []
        self._names = names
        listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = listener.getsockname()[1]
        self._ready = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(listener, policy, limits))
        )
        self._thread.start()
        self._ready.wait()

    async def _serve(self, listener: socket.socket, policy: Policy, limits: Limits) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(lambda _, context: self.lost.append(context))
        self._serving = asyncio.ensure_future(
            gate.serve(listener, policy, self.denials.append, resolve=self._resolve, limits=limits)
        )
        self._ready.set()
        with contextlib.suppress(asyncio.CancelledError):
            await self._serving
        await asyncio.sleep(0)
        self.tasks_left = len(asyncio.all_tasks()) - 1

    async def _resolve(self, name: str, port: int) -> list[str]:
        self.looked_up.append(name)
        if name not in self._names:
            raise OSError("no such name")
        return self._names[name]

    def close(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._serving.cancel)
        self._thread.join(10)
        assert not self._thread.is_alive()

    @property
    def reasons(self) -> list[str]:
        return [denial.reason for denial in self.denials]

    def wait_for_denials(self, count: int = 1) -> list[str]:
        deadline = time.monotonic() + 10
        while len(self.denials) < count:
            assert time.monotonic() < deadline, self.denials
            time.sleep(0.005)
        return self.reasons

    def dial(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=10)

    def say(self, *pieces: bytes) -> bytes:
        """All that comes back to these bytes, until the gate closes."""
        with self.dial() as client:
            for piece in pieces:
                client.sendall(piece)
            return read_all(client)

    def opener(self, *handlers: urllib.request.BaseHandler) -> urllib.request.OpenerDirector:
        proxy = f"http://127.0.0.1:{self.port}"
        return urllib.request.build_opener(
            urllib.request.ProxyHandler({"http": proxy, "https": proxy}), *handlers
        )

    def tunnel(self, host: str, port: int) -> socket.socket:
        """A connection through which CONNECT was answered with 200."""
        client = self.dial()
        client.sendall(f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
        answer = read_head(client)
        assert answer.startswith(b"HTTP/1.1 200"), answer
        return client


def read_all(client: socket.socket) -> bytes:
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := client.recv(65536):
            data += piece
    return data


def read_head(client: socket.socket) -> bytes:
    data = b""
    while not data.endswith(b"\r\n\r\n"):
        piece = client.recv(1)
        if not piece:
            break
        data += piece
    return data


def descriptors() -> dict[str, str]:
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found[fd] = os.readlink(f"/proc/self/fd/{fd}")
    return found


Open = Callable[..., Running]

NAMES = {
    name: ["127.0.0.1"]
    for name in ("example.com", "www.example.com", "example.org", "localhost", "xn--bcher-kva.de")
}


@pytest.fixture
def start(caplog: pytest.LogCaptureFixture) -> Iterator[Open]:
    """Opens gates; afterwards nothing of them is open, running, or was swallowed."""
    gc.collect()
    before = set(descriptors().values())
    running: list[Running] = []

    def opened(
        *allow: str,
        limits: Limits | None = None,
        private: bool = True,
        names: dict[str, list[str]] | None = None,
        ports: frozenset[int] = frozenset({80, 443}),
    ) -> Running:
        policy = Policy(allow, ports, private)
        made = Running(policy, limits or Limits(), NAMES if names is None else names)
        running.append(made)
        return made

    with caplog.at_level(logging.WARNING):
        yield opened
        for made in running:
            made.close()
            assert made.tasks_left == 0
            assert made.lost == []
    assert [record for record in caplog.records if record.name.startswith("kernelbox")] == []
    gc.collect()
    assert [what for what in descriptors().values() if what not in before] == []


class Origin(http.server.BaseHTTPRequestHandler):
    """A server on the other side; what it does depends on the path."""

    protocol_version = "HTTP/1.1"
    timeout = 10  # (of the socket) so that no test can hang on it

    def log_message(self, *_: object) -> None:
        pass

    def _reply(self, body: bytes, status: int = 200, **fields: str) -> None:
        self.send_response(status)
        for name, value in fields.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self) -> None:
        what = self.path.partition("?")[0]
        if what == "/chunked":
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for piece in (b"one ", b"two ", b"three"):
                self.wfile.write(b"%x;ext=1\r\n%b\r\n" % (len(piece), piece))
            self.wfile.write(b"0\r\nX-Trailer: dropped\r\n\r\n")
        elif what == "/until-close":
            self.close_connection = True
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"till the end")
        elif what == "/empty":
            self.send_response(204)
            self.end_headers()
        elif what == "/big":
            self.send_response(200)
            self.send_header("Content-Length", str(64 * MEGABYTE))
            self.end_headers()
            for _ in range(64):
                self.wfile.write(bytes(MEGABYTE))
        elif what == "/meet":
            self.server.meeting.wait(30)  # type: ignore[attr-defined]
            self._reply(b"met")
        elif what == "/hop":
            self._reply(
                b"hop", Connection="close, X-Private", X_Private="1", Keep_Alive="9", X_Kept="1"
            )
        else:
            told = {"path": self.path, "method": self.command, "fields": self.headers.items()}
            self._reply(json.dumps(told).encode())

    do_HEAD = do_DELETE = do_OPTIONS = do_GET  # noqa: N815

    def do_POST(self) -> None:
        digest = hashlib.sha256()
        size = 0
        for piece in self._body():
            digest.update(piece)
            size += len(piece)
        self._reply(json.dumps({"size": size, "sha256": digest.hexdigest()}).encode())

    do_PUT = do_POST  # noqa: N815

    def _body(self) -> Iterator[bytes]:
        if self.headers["Transfer-Encoding"] == "chunked":
            while size := int(self.rfile.readline(), 16):
                yield self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return
        left = int(self.headers["Content-Length"] or 0)
        while left:
            piece = self.rfile.read(min(left, 65536))
            left -= len(piece)
            yield piece


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = False
    request_queue_size = 256
    meeting = threading.Barrier(100)

    def handle_error(self, *_: object) -> None:
        pass  # a client that goes away is part of some tests


@contextlib.contextmanager
def serving(server: Server) -> Iterator[int]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def origin() -> Iterator[int]:
    with serving(Server(("127.0.0.1", 0), Origin)) as port:
        yield port


@contextlib.contextmanager
def raw_origin(talk: Talk, connections: int = 1) -> Iterator[int]:
    """A server that is one function."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)

        def accept() -> None:
            for _ in range(connections):
                connection, _ = listener.accept()
                with connection:
                    connection.settimeout(10)
                    talk(connection)

        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(accept)
            yield listener.getsockname()[1]
            done.result(10)


@pytest.fixture
def silent() -> Iterator[tuple[int, list[bytes]]]:
    """A server that must not be spoken to, and what was said to it all the same."""
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def listen() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        connection.settimeout(10)
                        heard.append(read_all(connection))

        thread = threading.Thread(target=listen)
        thread.start()
        yield listener.getsockname()[1], heard
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For example.com and localhost, signed by itself."""
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    try:
        path.write_bytes(made_by_cryptography())
    except ImportError:
        names = "subjectAltName=DNS:example.com,DNS:www.example.com,DNS:localhost"
        command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
        more = ["-subj", "/CN=example.com", "-addext", names, "-keyout", "-", "-out", "-"]
        done = subprocess.run([*command.split(), *more], check=True, capture_output=True)
        path.write_bytes(done.stdout)
    return path


def made_by_cryptography() -> bytes:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "example.com")])
    names = [x509.DNSName(text) for text in ("example.com", "www.example.com", "localhost")]
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return private + made.public_bytes(serialization.Encoding.PEM)


@pytest.fixture
def secure(certificate: Path) -> Iterator[int]:
    """The same origin behind TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server = Server(("127.0.0.1", 0), Origin)
    # The handshake in the connection's own thread, not while others wait to be accepted.
    server.socket = context.wrap_socket(
        server.socket, server_side=True, do_handshake_on_connect=False
    )
    with serving(server) as port:
        yield port


def trusting(certificate: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificate))


def get(path: str, host: str, *fields: str, method: str = "GET", version: str = "1.1") -> bytes:
    """A request as bytes; ``host`` with its port."""
    lines = [f"{method} http://{host}{path} HTTP/{version}", f"Host: {host}", *fields, "", ""]
    return "\r\n".join(lines).encode("latin-1")


# What works.


def test_urllib_gets_through(start: Open, origin: int) -> None:
    running = start(f"example.com:{origin}")
    with running.opener().open(f"http://example.com:{origin}/a?b=c") as answer:
        told = json.load(answer)
    fields = {name.lower(): value for name, value in told["fields"]}
    assert told["path"] == "/a?b=c"
    assert fields["host"] == f"example.com:{origin}"
    assert fields["connection"] == "close"
    assert running.denials == []
    assert running.looked_up == ["example.com"]


def test_a_connection_is_kept_for_the_next_request(start: Open, origin: int) -> None:
    running = start(f"example.com:{origin}", f"example.org:{origin}")
    client = http.client.HTTPConnection("127.0.0.1", running.port, timeout=10)
    with contextlib.closing(client):
        kept = None
        for path, body in [
            ("/chunked", b"one two three"),
            ("/empty", b""),
            ("/hop", b"hop"),
            ("/x", None),
        ]:
            for host in (f"example.com:{origin}", f"example.org:{origin}"):
                client.request("GET", f"http://{host}{path}", headers={"Host": host})
                answer = client.getresponse()
                data = answer.read()
                assert body is None or data == body
                assert kept in (None, client.sock), "it was closed in between"
                kept = client.sock
        client.request("HEAD", f"http://{host}/big", headers={"Host": host})
        answer = client.getresponse()
        assert answer.headers["Content-Length"] == str(64 * MEGABYTE)
        assert answer.read() == b""
        assert client.sock is kept


def test_an_answer_that_ends_with_its_connection_does_so_here_too(start: Open, origin: int) -> None:
    running = start(f"example.com:{origin}")
    answer = running.say(get("/until-close", f"example.com:{origin}"))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"Connection: close" in head
    assert body == b"till the end"


def test_an_old_client_gets_a_plain_body(start: Open, origin: int) -> None:
    running = start(f"example.com:{origin}")
    answer = running.say(get("/chunked", f"example.com:{origin}", version="1.0"))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"chunked" not in head.lower()
    assert body == b"one two three"


def test_requests_sent_ahead_are_answered_in_order(start: Open, origin: int) -> None:
    running = start(f"example.com:{origin}")
    host = f"example.com:{origin}"
    last = get("/empty", host, "Connection: close")
    answer = running.say(get("/chunked", host) + get("/hop", host) + last)
    assert [part[:12] for part in answer.split(b"HTTP/1.1")[1:]] == [
        b" 200 OK\r\nSer",
        b" 200 OK\r\nSer",
        b" 204 No Cont",
    ]
    assert b"five" not in answer


def test_what_is_between_two_neighbours_stays_there(start: Open, origin: int) -> None:
    running = start(f"example.com:{origin}")
    host = f"example.com:{origin}"
    fields = (
        "Proxy-Connection: keep-alive",
        "Proxy-Authorization: Basic c2VjcmV0",
        "Connection: close, X-Mine, Content-Length, Host",
        "X-Mine: 1",
        "TE: trailers",
        "Keep-Alive: 5",
        "Upgrade: h2c",
        "HTTP2-Settings: x",
        "X-Kept: 1",
    )
    body = running.say(get("/", host, *fields)).partition(b"\r\n\r\n")[2]
    told = {name.lower(): value for name, value in json.loads(body)["fields"]}
    assert told == {"host": host, "http2-settings": "x", "x-kept": "1", "connection": "close"}
    head = running.say(get("/hop", host, "Connection: close")).partition(b"\r\n\r\n")[0].lower()
    assert b"x-kept" in head
    assert b"x-private" not in head
    assert b"keep-alive" not in head


def test_bodies_of_both_kinds_arrive_whole(start: Open, origin: int) -> None:
    running = start(f"example.com:{origin}")
    host = f"example.com:{origin}"
    data = os.urandom(3 * MEGABYTE)
    expected = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    client = http.client.HTTPConnection("127.0.0.1", running.port, timeout=10)
    with contextlib.closing(client):
        client.request("POST", f"http://{host}/", body=data, headers={"Host": host})
        assert json.load(client.getresponse()) == expected
        pieces = [data[at : at + 50_001] for at in range(0, len(data), 50_001)]
        client.request(
            "PUT", f"http://{host}/", body=iter(pieces), headers={"Host": host}, encode_chunked=True
        )
        assert json.load(client.getresponse()) == expected


def test_a_client_that_asks_first_is_told_to_go_on(start: Open, origin: int) -> None:
    running = start(f"example.com:{origin}")
    host = f"example.com:{origin}"
    with running.dial() as client:
        client.sendall(get("/", host, "Expect: 100-continue", "Content-Length: 4", method="POST"))
        assert read_head(client).startswith(b"HTTP/1.1 100 Continue")
        client.sendall(b"data")
        assert b'"size": 4' in read_head(client) + client.recv(65536)


def test_a_server_that_wants_no_body_is_heard(start: Open) -> None:
    def refuse(server: socket.socket) -> None:
        read_head(server)
        server.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig")
        read_all(server)

    with raw_origin(refuse) as port:
        running = start(f"example.com:{port}")
        size = 8 * MEGABYTE
        with running.dial() as client:
            client.sendall(
                get("/", f"example.com:{port}", f"Content-Length: {size}", method="POST")
            )
            sender = threading.Thread(target=_send_what_is_taken, args=(client, size))
            sender.start()
            answer = read_all(client)
            sender.join()
        assert answer.startswith(b"HTTP/1.1 413")
        assert answer.endswith(b"\r\n\r\nbig")
        assert b"Connection: close" in answer


def _send_what_is_taken(client: socket.socket, size: int) -> None:
    with contextlib.suppress(OSError):
        client.sendall(bytes(size))


def test_a_websocket_is_carried(start: Open) -> None:
    def talk(server: socket.socket) -> None:
        head = read_head(server).lower()
        assert b"upgrade: websocket" in head
        assert b"connection: upgrade" in head
        server.sendall(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: x\r\n\r\nhello"
        )
        while data := server.recv(100):
            server.sendall(data.upper())

    with raw_origin(talk) as port:
        running = start(f"example.com:{port}")
        with running.dial() as client:
            client.sendall(
                get("/", f"example.com:{port}", "Connection: Upgrade", "Upgrade: websocket")
            )
            head = read_head(client)
            assert head.startswith(b"HTTP/1.1 101")
            assert b"Sec-WebSocket-Accept: x" in head
            client.sendall(b"more")
            client.shutdown(socket.SHUT_WR)
            assert read_all(client) == b"helloMORE"


def test_an_upgrade_nobody_asked_for_is_no_answer(start: Open) -> None:
    def talk(server: socket.socket) -> None:
        assert b"h2c" not in read_head(server)
        server.sendall(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\n\r\n")

    with raw_origin(talk) as port:
        running = start(f"example.com:{port}")
        answer = running.say(get("/", f"example.com:{port}", "Connection: Upgrade", "Upgrade: h2c"))
        assert answer.startswith(b"HTTP/1.1 502")


def test_https_gets_through_by_its_own_name(start: Open, secure: int, certificate: Path) -> None:
    running = start(f"example.com:{secure}", f"*.example.com:{secure}")
    for host in ("example.com", "www.example.com", "EXAMPLE.com"):
        client = http.client.HTTPSConnection(
            "127.0.0.1", running.port, timeout=10, context=trusting(certificate)
        )
        with contextlib.closing(client):
            client.set_tunnel(host, secure)
            for _ in range(3):
                client.request("GET", "/x")
                assert json.load(client.getresponse())["path"] == "/x"
    handler = urllib.request.HTTPSHandler(context=trusting(certificate))
    with running.opener(handler).open(f"https://example.com:{secure}/y") as answer:
        assert json.load(answer)["path"] == "/y"
    assert running.denials == []


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_gets_through(start: Open, origin: int, secure: int, certificate: Path) -> None:
    running = start(f"example.com:{origin}", f"example.com:{secure}")
    environment = {
        **gate.environment(f"http://127.0.0.1:{running.port}"),
        "PATH": os.environ["PATH"],
    }

    def curl(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = ["curl", "-sS", "--max-time", "10", "--cacert", str(certificate), *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True)

    assert '"/a"' in curl(f"http://example.com:{origin}/a").stdout
    assert '"/b"' in curl(f"https://example.com:{secure}/b").stdout
    assert '"size": 5' in curl("-d", "hello", f"https://example.com:{secure}/").stdout
    big = curl("-H", "Expect: 100-continue", "-d", "x" * 100_000, f"http://example.com:{origin}/")
    assert '"size": 100000' in big.stdout
    denied = curl(f"http://example.org:{origin}/")
    assert denied.stdout.startswith("kernelbox: the sandbox's profile does not allow example.org")
    assert "403" in curl(f"https://example.org:{secure}/").stderr
    wrong = curl(
        "--connect-to",
        f"example.org:{secure}:example.com:{secure}",
        "-k",
        f"https://example.org:{secure}/",
    )
    assert wrong.returncode != 0
    assert running.reasons == ["domain-not-allowed", "domain-not-allowed", "sni-mismatch"]


@pytest.mark.parametrize("allow", ["*:{port}", "*"])
def test_a_hello_in_small_pieces_is_waited_for(
    start: Open, secure: int, certificate: Path, allow: str
) -> None:
    running = start(allow.format(port=secure), ports=frozenset({secure}))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = trusting(certificate).wrap_bio(incoming, outgoing, server_hostname="example.com")
    with running.tunnel("example.com", secure) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with pytest.raises(ssl.SSLWantReadError):
            tls.do_handshake()
        # Each byte a segment, and the message in four records.
        message = outgoing.read()[5:]
        for at in range(0, len(message), -(-len(message) // 4)):
            piece = message[at : at + -(-len(message) // 4)]
            for byte in struct.pack("!BHH", 22, 0x0301, len(piece)) + piece:
                client.sendall(bytes([byte]))
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                client.sendall(outgoing.read())
                data = client.recv(65536)
                assert data
                incoming.write(data)
        assert tls.version() == "TLSv1.3"
    assert running.denials == []


def test_a_tunnel_may_be_closed_on_one_side(start: Open) -> None:
    def talk(server: socket.socket) -> None:
        assert read_all(server) == b"all I have to say"
        server.sendall(b"and the answer" * 10_000)

    with raw_origin(talk) as port:
        running = start("*", ports=frozenset({port}))
        with running.tunnel("example.com", port) as client:
            client.sendall(b"all I have to say")
            client.shutdown(socket.SHUT_WR)
            assert read_all(client) == b"and the answer" * 10_000


def test_a_tunnel_to_everywhere_may_speak_anything(start: Open) -> None:
    def talk(server: socket.socket) -> None:
        server.sendall(b"SSH-2.0-server\r\n")
        assert server.recv(100) == b"SSH-2.0-client\r\n"

    with raw_origin(talk) as port:
        running = start("*", ports=frozenset({port}))
        with running.tunnel("example.com", port) as client:
            assert client.recv(100) == b"SSH-2.0-server\r\n"
            client.sendall(b"SSH-2.0-client\r\n")
            assert read_all(client) == b""


def test_the_next_address_is_tried_when_one_is_dead(start: Open, origin: int) -> None:
    running = start(
        "*", ports=frozenset({origin}), names={"two.example": ["127.0.0.2", "127.0.0.1"]}
    )
    with running.opener().open(f"http://two.example:{origin}/") as answer:
        assert answer.status == 200


# What is refused.


def test_a_refusal_says_what_to_do(start: Open, origin: int) -> None:
    running = start("example.com", "*.b.com")
    with pytest.raises(urllib.error.HTTPError) as caught:
        running.opener().open("http://example.org/")
    words = "kernelbox: the sandbox's profile does not allow example.org:80; allowed: example.com, *.b.com"
    with caught.value as error:
        assert error.code == 403
        assert error.headers["X-KernelBox-Denied"] == "domain-not-allowed"
        assert error.read().decode() == words + "\n"
        assert words in str(error)
    with pytest.raises(urllib.error.URLError, match=r"not allow example\.org:443; allowed: exa"):
        running.opener().open("https://example.org/")
    assert [(d.host, d.port, d.reason) for d in running.denials] == [
        ("example.org", 80, "domain-not-allowed"),
        ("example.org", 443, "domain-not-allowed"),
    ]
    assert abs(running.denials[0].when - time.time()) < 60
    assert running.looked_up == [], "a name that is not allowed was told to the name server"


def test_a_refusal_is_heard_by_who_sends_a_large_body(start: Open) -> None:
    running = start("example.com")
    request = urllib.request.Request("http://example.org/", data=bytes(4 * MEGABYTE), method="POST")
    with pytest.raises(urllib.error.HTTPError) as caught:
        running.opener().open(request)
    with caught.value as error:
        assert error.code == 403


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("example.org:443", "domain-not-allowed"),
        ("example.com:22", "port-not-allowed"),
        ("127.0.0.1:443", "ip-literal"),
        ("0x7f.1:443", "ip-literal"),
        ("2130706433:443", "ip-literal"),
        ("017700000001:443", "ip-literal"),
        ("[::1]:443", "ip-literal"),
        ("[::ffff:127.0.0.1]:443", "ip-literal"),
        ("93.184.215.14:443", "ip-literal"),
        ("[fe80::1%25lo]:443", "bad-host"),
        ("example.com%00.example.org:443", "bad-host"),
        ("example%2ecom:443", "bad-host"),
        ("user@example.com:443", "bad-host"),
        ("example.com:443@example.org:443", "bad-host"),
        ("example..com:443", "bad-host"),
        ("example.com", "bad-host"),
        ("example.com:", "bad-host"),
        ("example.com:0", "bad-host"),
        ("example.com:443:443", "bad-host"),
        ("http://example.com/", "bad-host"),
        ("example.com/:443", "bad-host"),
        ("fa\xc3\x9f.de:443", "bad-host"),
        ("\xff.example.com:443", "bad-host"),
        ("/", "bad-host"),
        ("\xef\xbc\x91\xef\xbc\x92\xef\xbc\x97.0.0.1:443", "ip-literal"),
    ],
)
def test_a_tunnel_elsewhere_is_refused(start: Open, target: str, reason: str) -> None:
    running = start("example.com")
    answer = running.say(f"CONNECT {target} HTTP/1.1\r\n\r\n".encode("latin-1"))
    assert answer.startswith(b"HTTP/1.1 403 Forbidden: kernelbox: ")
    assert f"X-KernelBox-Denied: {reason}\r\n".encode() in answer
    assert running.reasons == [reason]
    assert running.looked_up == []
    assert answer.isascii()


def test_a_name_in_unicode_is_the_one_it_means(start: Open, origin: int) -> None:
    running = start(f"bücher.de:{origin}")
    answer = running.say(get("/", f"B\xc3\xbccher.de.:{origin}", "Connection: close"))
    assert answer.startswith(b"HTTP/1.1 200")
    assert running.looked_up == ["xn--bcher-kva.de"]


@pytest.mark.parametrize(
    "addresses",
    [
        ["127.0.0.1"],
        ["::1"],
        ["0.0.0.0"],
        ["10.1.2.3", "192.168.0.1", "172.16.0.1"],
        ["169.254.169.254"],
        ["168.63.129.16"],
        ["100.100.100.200"],
        ["fd00:ec2::254"],
        ["::ffff:8.8.8.8"],
        ["64:ff9b::7f00:1"],
        ["2002:7f00:1::"],
        ["224.0.0.1"],
        ["fe80::1%lo"],
    ],
)
def test_a_name_that_leads_home_is_refused(start: Open, addresses: list[str]) -> None:
    running = start("example.com", private=False, names={"example.com": addresses})
    for request in (b"CONNECT example.com:443 HTTP/1.1\r\n\r\n", get("/", "example.com")):
        answer = running.say(request)
        assert b"X-KernelBox-Denied: address-not-public" in answer
    assert running.reasons == ["address-not-public"] * 2


@pytest.mark.parametrize("literal", ["127.0.0.1", "0x7f.1", "[::1]", "0", "[::ffff:7f00:1]"])
def test_even_everything_does_not_include_home(start: Open, literal: str) -> None:
    running = start("*", private=False)
    answer = running.say(f"CONNECT {literal}:443 HTTP/1.1\r\n\r\n".encode())
    assert b"X-KernelBox-Denied: address-not-public" in answer


def test_a_name_is_looked_up_once(start: Open, origin: int) -> None:
    """Otherwise the second answer could be another address than the one that was vetted."""
    running = start("*", ports=frozenset({origin}))
    with running.opener().open(f"http://example.com:{origin}/"):
        pass
    assert running.looked_up == ["example.com"]


def test_a_name_or_server_that_is_not_there_is_an_error_and_no_denial(start: Open) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    running = start("*", ports=frozenset({port}))
    assert b"no connection to nowhere.example" in running.say(get("/", f"nowhere.example:{port}"))
    assert running.say(get("/", f"example.com:{port}")).startswith(b"HTTP/1.1 502")
    assert running.denials == []


def tls_through(
    running: Running, host: str, port: int, context: ssl.SSLContext, sni: str | None
) -> None:
    with (
        running.tunnel(host, port) as client,
        context.wrap_socket(client, server_hostname=sni),
    ):
        pass


def careless() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


@pytest.mark.parametrize(
    ("sni", "reason"),
    [
        ("example.org", "sni-mismatch"),
        ("www.example.com", "sni-mismatch"),
        ("evil.example.com", "sni-mismatch"),
        (None, "sni-missing"),
    ],
)
def test_the_hello_must_name_the_host_that_was_asked_for(
    start: Open, silent: tuple[int, list[bytes]], sni: str | None, reason: str
) -> None:
    port, heard = silent
    running = start(f"example.com:{port}", f"*.example.com:{port}")
    with pytest.raises(ssl.SSLError, match=r"(?i)access.denied"):
        tls_through(running, "example.com", port, careless(), sni)
    assert [(d.host, d.port, d.reason) for d in running.denials] == [("example.com", port, reason)]
    running.close()
    assert heard in ([], [b""]), "the server was told something all the same"


def encrypted_hello() -> bytes:
    """A hello of OpenSSL with the extension of an encrypted one added."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = careless().wrap_bio(incoming, outgoing, server_hostname="example.com")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    body = outgoing.read()[9:]
    at = 34 + 1 + body[34]
    at += 2 + int.from_bytes(body[at : at + 2], "big")
    at += 1 + body[at]
    content = b"\0\0\x01\0\x01\x07" + b"\0\x20" + bytes(32) + b"\0\x40" + bytes(64)
    extensions = body[at + 2 :] + struct.pack("!HH", 0xFE0D, len(content)) + content
    body = body[:at] + struct.pack("!H", len(extensions)) + extensions
    message = b"\x01" + len(body).to_bytes(3, "big") + body
    return struct.pack("!BHH", 22, 0x0301, len(message)) + message


def http_request() -> bytes:
    return b"GET / HTTP/1.1\r\nHost: evil.org\r\n\r\n"


def endless_hello() -> bytes:
    record = struct.pack("!BHH", 22, 0x0301, 1)
    return record + b"\x01" + record + b"\x00" + record + b"\x3f" + (record + b"\x00") * 4000


@pytest.mark.parametrize(
    ("opening", "reason"),
    [
        (encrypted_hello, "ech"),
        (http_request, "not-tls"),
        (endless_hello, "not-tls"),
        (lambda: b"SSH-2.0-x\r\n", "not-tls"),
        (lambda: b"\x16\x03\x01\x02\x00\x01", "not-tls"),
        (lambda: b"", "not-tls"),
    ],
)
def test_a_tunnel_to_a_name_speaks_tls_that_can_be_read(
    start: Open, silent: tuple[int, list[bytes]], opening: Callable[[], bytes], reason: str
) -> None:
    port, heard = silent
    running = start(f"example.com:{port}", limits=Limits(hello=0.3))
    with running.tunnel("example.com", port) as client:
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            client.sendall(opening())
        assert read_all(client) in (b"", b"\x15\x03\x03\x00\x02\x02\x31")
    assert running.wait_for_denials() == [reason]
    running.close()
    assert heard in ([], [b""]), "the server was told something all the same"


HOST = "Host: example.com\r\n"


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(b"GET http://example.com/ HTTP/1.1\nHost: example.com\n\n", id="bare LF"),
        pytest.param(
            f"GET http://example.com/ HTTP/1.1\r\n{HOST}X: a\nY: b\r\n\r\n",
            id="bare LF in a header",
        ),
        pytest.param(f"GET http://example.com/ HTTP/1.1\r\n{HOST}X: a\rY: b\r\n\r\n", id="bare CR"),
        pytest.param(f"GET http://example.com/ HTTP/1.1\r\n{HOST}X: a\0b\r\n\r\n", id="NUL"),
        pytest.param(
            f"GET http://example.com/ HTTP/1.1\r\n{HOST}X: a\r\n b\r\n\r\n", id="obs-fold"
        ),
        pytest.param(
            f"GET http://example.com/ HTTP/1.1\r\n {HOST}\r\n", id="fold of the first line"
        ),
        pytest.param(
            f"GET http://example.com/ HTTP/1.1\r\n{HOST}X : a\r\n\r\n", id="space before the colon"
        ),
        pytest.param(
            f"GET http://example.com/ HTTP/1.1\r\n{HOST}X\t: a\r\n\r\n", id="tab before the colon"
        ),
        pytest.param(f"GET http://example.com/ HTTP/1.1\r\n{HOST}: a\r\n\r\n", id="no name"),
        pytest.param(f"GET http://example.com/ HTTP/1.1\r\n{HOST}nonsense\r\n\r\n", id="no colon"),
        pytest.param(
            f"GET http://example.com/ HTTP/1.1\r\n{HOST}X\xe9: a\r\n\r\n", id="a name in latin"
        ),
        pytest.param(
            f"POST http://example.com/ HTTP/1.1\r\n{HOST}Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            id="two framings",
        ),
        pytest.param(
            f"POST http://example.com/ HTTP/1.1\r\n{HOST}Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
            id="two lengths",
        ),
        pytest.param(
            f"POST http://example.com/ HTTP/1.1\r\n{HOST}Content-Length: 3, 3\r\n\r\nabc",
            id="a list of lengths",
        ),
        pytest.param(
            f"POST http://example.com/ HTTP/1.1\r\n{HOST}Content-Length: +3\r\n\r\nabc",
            id="a length with a sign",
        ),
        pytest.param(
            f"POST http://example.com/ HTTP/1.1\r\n{HOST}Content-Length: 0x3\r\n\r\nabc",
            id="a length in hex",
        ),
        pytest.param(
            f"POST http://example.com/ HTTP/1.1\r\n{HOST}Content-Length: 3_0\r\n\r\nabc",
            id="a length as Python reads it",
        ),
        pytest.param(
            f"POST http://example.com/ HTTP/1.1\r\n{HOST}Content-Length: -1\r\n\r\nabc",
            id="a length below zero",
        ),
        pytest.param(
            f"POST http://example.com/ HTTP/1.1\r\n{HOST}Content-Length:\r\n\r\nabc",
            id="an empty length",
        ),
        pytest.param(
            f"POST http://example.com/ HTTP/1.1\r\n{HOST}Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
            id="two codings",
        ),
        pytest.param(
            f"POST http://example.com/ HTTP/1.1\r\n{HOST}Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
            id="nearly chunked",
        ),
        pytest.param(
            f"POST http://example.com/ HTTP/1.1\r\n{HOST}Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
            id="chunked twice",
        ),
        pytest.param(
            f"POST http://example.com/ HTTP/1.0\r\n{HOST}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            id="chunked before its time",
        ),
        pytest.param("GET http://example.com/ HTTP/1.1\r\n\r\n", id="no Host"),
        pytest.param(f"GET http://example.com/ HTTP/1.1\r\n{HOST}{HOST}\r\n", id="two Hosts"),
        pytest.param(f"GET http://example.com/ HTTP/2.0\r\n{HOST}\r\n", id="another version"),
        pytest.param(f"GET http://example.com/  HTTP/1.1\r\n{HOST}\r\n", id="two spaces"),
        pytest.param(f"GET\thttp://example.com/ HTTP/1.1\r\n{HOST}\r\n", id="a tab"),
        pytest.param(
            f"GET http://example.com/\x0b HTTP/1.1\r\n{HOST}\r\n", id="a control character"
        ),
        pytest.param(f"GET http://example.com/ HTTP/1.1 \r\n{HOST}\r\n", id="a space at the end"),
        pytest.param(f"G(T http://example.com/ HTTP/1.1\r\n{HOST}\r\n", id="a method that is none"),
        pytest.param(
            f"\r\nGET http://example.com/ HTTP/1.1\r\n{HOST}\r\n", id="an empty line first"
        ),
        pytest.param(f"GET / HTTP/1.1\r\n{HOST}\r\n", id="no proxy's request"),
        pytest.param(
            f"GET https://example.com/ HTTP/1.1\r\n{HOST}\r\n", id="https without CONNECT"
        ),
        pytest.param(f"GET ftp://example.com/ HTTP/1.1\r\n{HOST}\r\n", id="ftp"),
        pytest.param(f"GET file:///etc/passwd HTTP/1.1\r\n{HOST}\r\n", id="file"),
        pytest.param(f"GET http:\\\\example.com/ HTTP/1.1\r\n{HOST}\r\n", id="backslashes"),
        pytest.param(
            f"GET http://example.com\\@example.org/ HTTP/1.1\r\n{HOST}\r\n",
            id="a backslash in the host",
        ),
        pytest.param(
            f"GET http://example.com#@example.org/ HTTP/1.1\r\n{HOST}\r\n", id="a fragment"
        ),
        pytest.param(
            "CONNECT example.com:443 HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello",
            id="CONNECT with a body",
        ),
        pytest.param(
            "CONNECT example.com:443 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
            id="CONNECT with chunks",
        ),
    ],
)
def test_a_request_that_can_be_read_two_ways_is_refused(start: Open, request_: str | bytes) -> None:
    running = start("example.com")
    data = request_ if isinstance(request_, bytes) else request_.encode("latin-1")
    answer = running.say(data)
    assert answer.startswith(b"HTTP/1.1 400 Bad Request: kernelbox: ")
    assert answer.count(b"\r\n\r\n") == 1
    assert running.reasons == ["bad-request"]
    assert running.looked_up == []


@pytest.mark.parametrize(
    ("target", "host", "reason"),
    [
        ("http://example.com/", "example.org", "host-mismatch"),
        ("http://example.com/", "example.com:443", "host-mismatch"),
        ("http://example.com:443/", "example.com", "host-mismatch"),
        ("http://example.com/", "www.example.com", "host-mismatch"),
        ("http://example.com/", "example.com, example.org", "bad-host"),
        ("http://example.com/", "", "bad-host"),
        ("http://user@example.com/", "example.com", "bad-host"),
        ("http://example.org@example.com/", "example.com", "bad-host"),
        ("http://example.com:80@example.org/", "example.com", "bad-host"),
        ("http://example.com%2f@example.org/", "example.com", "bad-host"),
        ("http:///", "example.com", "bad-host"),
        ("http://127.0.0.1/", "127.0.0.1", "ip-literal"),
        ("http://0x7f.1/", "0x7f.1", "ip-literal"),
        ("http://[::1]/", "[::1]", "ip-literal"),
    ],
)
def test_the_target_and_the_host_header_are_one(
    start: Open, target: str, host: str, reason: str
) -> None:
    running = start("example.com", "example.org")
    answer = running.say(f"GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    assert f"X-KernelBox-Denied: {reason}".encode() in answer
    assert running.reasons == [reason]
    assert running.looked_up == []


def test_a_connect_whose_host_header_differs_is_refused(start: Open) -> None:
    running = start("example.com", "example.org")
    answer = running.say(b"CONNECT example.com:443 HTTP/1.1\r\nHost: example.org:443\r\n\r\n")
    assert b"X-KernelBox-Denied: host-mismatch" in answer


@pytest.mark.parametrize(
    "body",
    [
        *("x\r\n", "-1\r\na\r\n0\r\n\r\n", "0x1\r\na\r\n0\r\n\r\n", "1\na\r\n0\r\n\r\n"),
        *("1\r\nab\r\n0\r\n\r\n", "\r\n", "1 1\r\na\r\n", "1" * 16 + "\r\n", "1_0\r\n"),
        *(
            "0\r\nfold\r\n\r\n folded\r\n\r\n"[:3] + "X: a\nb\r\n\r\n",
            "1;" + "e" * 5000 + "\r\na\r\n",
        ),
    ],
)
def test_chunks_that_can_be_read_two_ways_end_the_request(start: Open, body: str) -> None:
    heard: list[bytes] = []

    def talk(server: socket.socket) -> None:
        heard.append(read_all(server))

    with raw_origin(talk) as port:
        running = start(f"example.com:{port}")
        head = get("/", f"example.com:{port}", "Transfer-Encoding: chunked", method="POST")
        assert running.say(head + body.encode()).startswith(b"HTTP/1.1 400")
        assert running.reasons == ["bad-request"]
    assert b"\r\n0\r\n\r\n" not in heard[0], "the server took it for a whole request"


def test_a_second_request_hidden_in_a_body_stays_a_body(start: Open, origin: int) -> None:
    running = start(f"example.com:{origin}")
    host = f"example.com:{origin}"
    hidden = b"GET http://example.org/ HTTP/1.1\r\nHost: example.org\r\n\r\n"
    length = f"Content-Length: {len(hidden)}"
    answer = running.say(get("/", host, length, "Connection: close", method="POST") + hidden)
    assert f'"size": {len(hidden)}'.encode() in answer
    assert answer.count(b"HTTP/1.1 ") == 1
    assert running.denials == []


@pytest.mark.parametrize(
    "answer",
    [
        b"nonsense\r\n\r\n",
        b"",
        b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: two\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 70_000 + b"\r\n\r\n",
        b"HTTP/1.1 20\r\n\r\n",
    ],
)
def test_an_answer_that_is_none_is_reported_as_such(start: Open, answer: bytes) -> None:
    def talk(server: socket.socket) -> None:
        read_head(server)
        with contextlib.suppress(OSError):
            server.sendall(answer)

    with raw_origin(talk) as port:
        running = start(f"example.com:{port}")
        got = running.say(get("/", f"example.com:{port}"))
        assert got.startswith(b"HTTP/1.1 502 Bad Gateway: kernelbox: example.com:")
        assert running.denials == []


def test_an_answer_that_breaks_off_breaks_off_here_too(start: Open) -> None:
    def talk(server: socket.socket) -> None:
        read_head(server)
        server.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")

    with raw_origin(talk) as port:
        running = start(f"example.com:{port}")
        client = http.client.HTTPConnection("127.0.0.1", running.port, timeout=10)
        with contextlib.closing(client):
            host = f"example.com:{port}"
            client.request("GET", f"http://{host}/", headers={"Host": host})
            with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
                client.getresponse().read()


# What is bounded.


@pytest.mark.parametrize(
    "head",
    [
        get("/", "example.com", "X: " + "a" * 70_000),
        get("/" + "a" * 70_000, "example.com"),
        get("/", "example.com", *(f"X-{n}: {'a' * 50}" for n in range(2000))),
        b"a" * 200_000,
    ],
)
def test_a_head_without_end_is_refused(start: Open, head: bytes) -> None:
    running = start("example.com")
    assert running.say(head).startswith(b"HTTP/1.1 431")


def test_a_head_just_within_the_limit_is_taken(start: Open, origin: int) -> None:
    running = start(f"example.com:{origin}")
    fields = [f"X-{n}: {'a' * 1000}" for n in range(60)]
    answer = running.say(get("/", f"example.com:{origin}", "Connection: close", *fields))
    assert answer.startswith(b"HTTP/1.1 200")


def test_a_slow_head_runs_out_of_time(start: Open) -> None:
    running = start("example.com", limits=Limits(head=0.2))
    began = time.monotonic()
    assert running.say(b"GET http://exa").startswith(b"HTTP/1.1 408")
    assert time.monotonic() - began < 5
    with running.dial() as client:
        while not select.select([client], [], [], 0.01)[0]:
            client.sendall(b"a")  # bytes that keep coming don't help
            assert time.monotonic() - began < 10
        assert read_all(client).startswith(b"HTTP/1.1 408")


def test_who_says_nothing_is_let_go(start: Open) -> None:
    running = start("example.com", limits=Limits(keep_alive=0.1))
    assert running.say() == b""


def test_a_tunnel_in_which_nothing_moves_is_closed(start: Open) -> None:
    def talk(server: socket.socket) -> None:
        assert read_all(server) == b"." * 6

    with raw_origin(talk) as port:
        running = start("*", ports=frozenset({port}), limits=Limits(idle=0.4))
        with running.tunnel("example.com", port) as client:
            began = time.monotonic()
            for _ in range(6):  # as long as something does, it stays
                client.sendall(b".")
                time.sleep(0.1)
            assert read_all(client) == b""
            assert 0.8 < time.monotonic() - began < 5


def test_a_server_that_never_answers_is_given_up(start: Open) -> None:
    with raw_origin(lambda server: (read_all(server), None)[1]) as port:
        running = start(f"example.com:{port}", limits=Limits(idle=0.2))
        answer = running.say(get("/", f"example.com:{port}"))
        assert answer.startswith(b"HTTP/1.1 504")
        assert b"nothing moved for 0.2 s" in answer


def test_a_name_server_that_hangs_is_given_up(start: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(_self: Running, _name: str, _port: int) -> list[str]:
        await asyncio.Event().wait()
        return []

    monkeypatch.setattr(Running, "_resolve", hang)
    running = start("example.com", limits=Limits(connect=0.1))
    answer = running.say(get("/", "example.com"))
    assert answer.startswith(b"HTTP/1.1 504")
    assert b"did not answer within 0.1 s" in answer


def test_more_clients_than_there_is_room_for_wait(start: Open, origin: int) -> None:
    running = start(f"example.com:{origin}", limits=Limits(connections=3))
    host = f"example.com:{origin}"
    with contextlib.ExitStack() as stack:
        holders = [stack.enter_context(running.dial()) for _ in range(3)]
        for holder in holders:  # each is inside, and has been answered
            holder.sendall(get("/empty", host))
            assert read_head(holder).startswith(b"HTTP/1.1 204")
        late = stack.enter_context(running.dial())
        late.sendall(get("/empty", host))
        late.settimeout(0.2)
        with pytest.raises(TimeoutError):
            late.recv(1)
        holders[0].close()
        late.settimeout(10)
        assert read_head(late).startswith(b"HTTP/1.1 204")


def test_a_hundred_at_once(start: Open, origin: int, secure: int, certificate: Path) -> None:
    running = start(f"example.com:{origin}", f"example.com:{secure}")
    Server.meeting = threading.Barrier(100)  # none is answered before all have asked
    context = trusting(certificate)

    def ask(number: int) -> bytes:
        client: http.client.HTTPConnection
        if number % 2:
            client = http.client.HTTPSConnection(
                "127.0.0.1", running.port, timeout=30, context=context
            )
            client.set_tunnel("example.com", secure)
            path, headers = "/meet", {}
        else:
            client = http.client.HTTPConnection("127.0.0.1", running.port, timeout=30)
            host = f"example.com:{origin}"
            path, headers = f"http://{host}/meet", {"Host": host}
        with contextlib.closing(client):
            client.request("GET", path, headers=headers)
            return client.getresponse().read()

    with ThreadPoolExecutor(100) as pool:
        assert list(pool.map(ask, range(100))) == [b"met"] * 100
    assert running.denials == []


def test_closing_ends_what_is_under_way(start: Open) -> None:
    taken = threading.Event()

    def talk(server: socket.socket) -> None:
        read_head(server)
        taken.set()
        with contextlib.suppress(ConnectionResetError):
            assert server.recv(1) == b""

    with raw_origin(talk) as port:
        running = start(f"example.com:{port}")
        with contextlib.ExitStack() as stack:
            asking = stack.enter_context(running.dial())
            asking.sendall(get("/", f"example.com:{port}"))
            others = [stack.enter_context(running.dial()) for _ in range(5)]
            others[0].sendall(b"GET http")
            assert taken.wait(10)
            running.close()
            for client in (asking, *others):
                with contextlib.suppress(ConnectionResetError):
                    assert client.recv(1) == b""


# As a process of its own.

PROGRAM = """
import json, socket, sys
from kernelbox.walls import gate
listener = socket.socket(fileno=int(sys.argv[1]))
gate.run(listener, json.loads(sys.argv[3]), int(sys.argv[2]))
"""


@contextlib.contextmanager
def gate_process(policy: Policy) -> Iterator[tuple[subprocess.Popen[bytes], int, int]]:
    """A gate by `run`: its process, its port, and where its reports are read."""
    reader, writer = os.pipe()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                PROGRAM,
                str(listener.fileno()),
                str(writer),
                json.dumps(policy.to_wire()),
            ],
            pass_fds=(listener.fileno(), writer),
        )
    os.close(writer)
    try:
        yield process, port, reader
    finally:
        with contextlib.suppress(OSError):
            os.close(reader)
        process.kill()
        process.wait(10)


def peak(process: subprocess.Popen[bytes]) -> int:
    """The most memory it ever had, in bytes."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if "VmHWM" in line) * 1024


def test_64_megabytes_each_way_need_little_memory(
    origin: int, secure: int, certificate: Path
) -> None:
    policy = Policy((f"localhost:{origin}", f"localhost:{secure}"), private=True)
    with gate_process(policy) as (process, port, _):
        host = f"localhost:{origin}"

        def plain() -> tuple[http.client.HTTPConnection, str]:
            return http.client.HTTPConnection("127.0.0.1", port, timeout=60), f"http://{host}"

        def tunnelled() -> tuple[http.client.HTTPConnection, str]:
            client = http.client.HTTPSConnection(
                "127.0.0.1", port, timeout=60, context=trusting(certificate)
            )
            client.set_tunnel("localhost", secure)
            return client, ""

        client, prefix = plain()
        with contextlib.closing(client):
            client.request("GET", f"{prefix}/warm", headers={"Host": host})
            client.getresponse().read()
        before = peak(process)
        for kind in (plain, tunnelled):
            client, prefix = kind()
            headers = {"Host": host} if prefix else {}
            with contextlib.closing(client):
                client.request("GET", f"{prefix}/big", headers=headers)
                answer = client.getresponse()
                assert answer.length == 64 * MEGABYTE
                time.sleep(0.3)  # a slow reader must slow the server down, not fill the gate
                size = 0
                while piece := answer.read(MEGABYTE):
                    size += len(piece)
                assert size == 64 * MEGABYTE
                for headers_ in (headers | {"Content-Length": str(64 * MEGABYTE)}, headers):
                    body = (bytes(MEGABYTE) for _ in range(64))
                    client.request(
                        "POST",
                        f"{prefix}/",
                        body=body,
                        headers=headers_,
                        encode_chunked="Content-Length" not in headers_,
                    )
                    assert json.load(client.getresponse())["size"] == 64 * MEGABYTE
        assert peak(process) - before < 8 * MEGABYTE


def test_reports_are_lines_of_json() -> None:
    with gate_process(Policy(("example.com",))) as (process, port, reader):
        for host in ("example.org", "a" * 300):
            with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
                client.sendall(get("/", host))
                assert read_all(client).startswith(b"HTTP/1.1 403")
        first, second = (json.loads(line) for line in os.read(reader, 65536).splitlines())
        assert first.keys() == {"when", "host", "port", "reason"}
        assert (first["host"], first["port"], first["reason"]) == (
            "example.org",
            80,
            "domain-not-allowed",
        )
        assert second["reason"] == "bad-host"
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


def test_a_reader_that_does_not_read_stops_nothing() -> None:
    with gate_process(Policy(())) as (_, port, reader):
        request = get("/", "a" * 60 + ".example.org")
        asked = 1000  # more than a pipe holds
        for _ in range(asked):
            with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
                client.sendall(request)
                assert read_head(client).startswith(b"HTTP/1.1 403")
        lines = os.read(reader, 1 << 20).splitlines()
        assert len(lines) < asked
        with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
            client.sendall(request)
            read_head(client)
        assert json.loads(os.read(reader, 1 << 20).splitlines()[-1])["lost"] == asked - len(lines)


def test_the_gate_ends_when_nobody_hears_its_reports() -> None:
    with gate_process(Policy(("example.com",))) as (process, port, reader):
        with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
            client.sendall(get("/", "example.org"))
            assert read_all(client)
        os.close(reader)
        assert process.wait(10) == 0


def test_a_policy_that_is_none_ends_it_before_it_begins() -> None:
    reader, writer = os.pipe()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                PROGRAM,
                str(listener.fileno()),
                str(writer),
                '{"allow": ["a b"]}',
            ],
            pass_fds=(listener.fileno(), writer),
            capture_output=True,
        )
    os.close(reader)
    os.close(writer)
    assert done.returncode == 1
    assert b"is no pattern" in done.stderr


# In networks of their own, so that public addresses lead nowhere else: a machine (with the gate)
# and a server, joined by a cable.
CABLE = r"""
set -e
ip link set lo up
unshare --net sleep 60 & peer=$!
trap "kill $peer" EXIT
until [ "$(readlink /proc/$peer/ns/net)" != "$(readlink /proc/$$/ns/net)" ]; do :; done
ip link add near type veth peer name far
ip link set far netns $peer
ip addr add 93.184.215.1/24 dev near
ip addr add 93.184.215.2/24 dev near
ip link set near up
nsenter --net=/proc/$peer/ns/net sh -c '
    ip link set lo up; ip addr add 93.184.215.14/24 dev far; ip link set far up'
peer=$peer "$@"
"""
ON_THE_CABLE = r"""
import asyncio, contextlib, ctypes, os, socket, threading
from kernelbox.walls import gate

# The server: a socket made in the network at the other end.
here = os.open("/proc/self/ns/net", os.O_RDONLY)
there = os.open(f"/proc/{os.environ['peer']}/ns/net", os.O_RDONLY)
libc = ctypes.CDLL(None, use_errno=True)
assert libc.setns(there, 0) == 0
far = socket.create_server(("0.0.0.0", 80))
listener = socket.create_server(("127.0.0.1", 3128))  # as if the sandbox were there
assert libc.setns(here, 0) == 0
near = socket.create_server(("0.0.0.0", 80))

def answer():
    while True:
        connection, _ = far.accept()
        with connection:
            connection.recv(1000)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nfar")
threading.Thread(target=answer, daemon=True).start()

addresses = {"far.example": "93.184.215.14", "near.example": "93.184.215.1", "second.example": "93.184.215.2"}
async def resolve(name, port):
    return [addresses[name]]

def ask(host):
    assert libc.setns(there, 0) == 0  # of this thread
    with socket.create_connection(("127.0.0.1", 3128), timeout=10) as client:
        client.sendall(f"GET http://{host}/ HTTP/1.0\r\n\r\n".encode())
        data = b""
        while piece := client.recv(1000):
            data += piece
    return data.decode().splitlines()[0][:30] + " " + data.decode().splitlines()[-1]

async def main():
    denials = []
    serving = asyncio.ensure_future(gate.serve(listener, gate.Policy(("*",)), denials.append, resolve=resolve))
    for host in ("far.example", "93.184.215.14", "near.example", "second.example", "93.184.215.2"):
        print(host, await asyncio.to_thread(ask, host))
    serving.cancel()
    near.setblocking(False)
    try:
        near.accept()
        print("somebody knocked")
    except BlockingIOError:
        print("nobody knocked")
asyncio.run(main())
"""


def test_public_addresses_are_reached_but_not_those_of_this_machine() -> None:
    if any(shutil.which(name) is None for name in ("ip", "unshare", "nsenter")):
        pytest.skip("needs ip, unshare and nsenter")
    command = [
        "unshare",
        "--user",
        "--map-root-user",
        "--net",
        "--kill-child",
        "--fork",
        "sh",
        "-c",
        CABLE,
        "sh",
    ]
    done = subprocess.run(
        [*command, sys.executable, "-c", ON_THE_CABLE], capture_output=True, text=True, timeout=60
    )
    if "RTNETLINK" in done.stderr or "unshare:" in done.stderr:
        pytest.skip(f"no networks of our own here: {done.stderr.strip()}")
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0] == "far.example HTTP/1.1 200 OK far"
    assert lines[1] == "93.184.215.14 HTTP/1.1 200 OK far"
    for line in lines[2:5]:
        assert "403" in line
        assert "is this machine, whose services are closed" in line
    assert lines[5] == "nobody knocked"
