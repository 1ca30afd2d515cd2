"""A web server with a certificate of its own authority, which says back what it heard."""

from __future__ import annotations

import contextlib
import http.server
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from kernelbox.walls.authority import certificate_for


class Echo(http.server.BaseHTTPRequestHandler):
    """What came, as JSON; some paths answer in other ways."""

    protocol_version = "HTTP/1.1"
    timeout = 10

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self) -> None:
        size = int(self.headers["Content-Length"] or 0)
        body = self.rfile.read(size)
        if self.headers["Transfer-Encoding"] == "chunked":
            while length := int(self.rfile.readline(), 16):
                body += self.rfile.read(length)
                self.rfile.readline()
            self.rfile.readline()
        told = {
            "path": self.path,
            "method": self.command,
            "headers": {name.lower(): value for name, value in self.headers.items()},
            "body": body.decode("latin-1"),
        }
        self.server.heard.append(told)  # type: ignore[attr-defined]
        if self.path == "/until-close":
            self.close_connection = True
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"till the end")
            return
        if self.path.startswith("/redirect"):
            self.send_response(302)
            self.send_header("Location", self.path.partition("?")[2])
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        reply = bytes(4 << 20) if self.path == "/big" else b"{}"
        self.send_response(200)
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    do_GET = do_POST = do_PUT = _answer  # noqa: N815


class _Server(http.server.ThreadingHTTPServer):
    request_queue_size = 64

    def handle_error(self, *_: object) -> None:
        pass


@dataclass
class Origin:
    """``heard`` is what it was asked, ``authority`` the file that trusts it; none: plain HTTP."""

    port: int
    authority: str = ""
    heard: list[dict[str, object]] = field(default_factory=list)


@contextlib.contextmanager
def origin(
    folder: Path,
    *names: str,
    address: str = "127.0.0.1",
    port: int = 0,
    heard: list[dict[str, object]] | None = None,
) -> Iterator[Origin]:
    """One that proves to be ``names``; without any, one that speaks plain HTTP."""
    server = _Server((address, port), Echo)
    made = Origin(server.server_address[1], heard=[] if heard is None else heard)
    server.heard = made.heard  # type: ignore[attr-defined]
    if names:
        certificate = certificate_for(names)
        made.authority = str(folder / f"authority-{made.port}.pem")
        chain = folder / f"chain-{made.port}.pem"
        Path(made.authority).write_text(certificate.authority)
        chain.write_text(certificate.chain + certificate.key)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(chain)
        server.socket = context.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
