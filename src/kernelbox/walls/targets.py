"""Where a request wants to go, if there is only one way to read that, and what is said to a client
that cannot go there."""

from __future__ import annotations

import re
from http import HTTPStatus

from kernelbox.walls import domains
from kernelbox.walls.domains import BadHost, Host, Refusal
from kernelbox.walls.heads import Request

_LONGEST_PHRASE = 300
_UNPRINTABLE = re.compile(r"[^\x20-\x7e]")
_URL = re.compile(r"http://([^/?#\\]*)([/?][^#]*)?", re.IGNORECASE)


class Answer(Exception):
    """What the client is told instead of a server's answer. ``reason``: and it is a denial."""

    def __init__(
        self, status: int, words: str, *, reason: str = "", host: str = "", port: int = 0
    ) -> None:
        super().__init__(words)
        self.status, self.words, self.reason = status, words, reason
        self.host, self.port = host, port

    def message(self, *, with_body: bool) -> bytes:
        words = _UNPRINTABLE.sub("?", f"kernelbox: {self.words}")
        # Clients in a tunnel's way show the phrase and nothing else ("Tunnel connection failed:
        # 403 ..."), so the words are in it.
        phrase = f"{HTTPStatus(self.status).phrase}: {words}"[:_LONGEST_PHRASE]
        body = f"{words}\n".encode("ascii")
        denied = f"X-KernelBox-Denied: {self.reason}\r\n" if self.reason else ""
        head = (
            f"HTTP/1.1 {self.status} {phrase}\r\nContent-Type: text/plain\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n{denied}\r\n"
        )
        return head.encode("ascii") + (body if with_body else b"")


def bad_request(words: str, *, host: Host | None = None, port: int = 0) -> Answer:
    name = host.text if host else ""
    words = f"this request could be read in two ways, or in none: {words}"
    return Answer(400, words, reason="bad-request", host=name, port=port)


def refused(refusal: Refusal, host: Host, port: int) -> Answer:
    return Answer(403, refusal.words, reason=refusal.reason, host=host.text, port=port)


def refuse(refusal: Refusal | None, host: Host, port: int) -> None:
    if refusal is not None:
        raise refused(refusal, host, port)


def _authority(text: str, default_port: int | None) -> tuple[Host, int]:
    try:
        decoded = text.encode("latin-1").decode("utf-8")
        return domains.parse_authority(decoded, default_port=default_port)
    except (BadHost, UnicodeDecodeError) as error:
        words = str(error) if isinstance(error, BadHost) else "the host is not UTF-8"
        shown = text[:255].encode("ascii", "backslashreplace").decode("ascii")
        raise Answer(403, words, reason="bad-host", host=shown) from None


def _check_host_field(request: Request, host: Host, port: int, *, default: int = 80) -> None:
    """The target and the Host header say the same, or one of them is there to deceive."""
    values = request.all("host")
    if len(values) != 1 and (values or request.minor == 1):
        words = "it must have one Host header"
        raise bad_request(words, host=host, port=port)
    # Behind CONNECT many leave the port out.
    default = port if request.method == "CONNECT" else default
    if values and _authority(values[0], default) != (host, port):
        words = "its Host header names another host than its target"
        raise Answer(403, words, reason="host-mismatch", host=host.text, port=port)


def target(request: Request) -> tuple[Host, int, str]:
    url = _URL.fullmatch(request.target)
    if url is None:
        words = "this is a proxy: it takes 'GET http://host/path' and 'CONNECT host:443'"
        if request.target.lower().startswith("https://"):
            words += "; https goes through CONNECT"
        raise Answer(400, words, reason="bad-request")
    host, port = _authority(url[1], 80)
    _check_host_field(request, host, port)
    path = url[2] or "/"
    if request.method == "OPTIONS" and url[2] is None:
        path = "*"
    return host, port, path if path[0] in "/*" else f"/{path}"


def target_within(request: Request, host: Host, port: int) -> str:
    """The path of a request inside of TLS with ``host``, which it must be for."""
    asterisk = request.target == "*" and request.method == "OPTIONS"
    if request.method == "CONNECT" or not (asterisk or request.target.startswith("/")):
        raise bad_request("inside TLS it takes 'GET /path'", host=host, port=port)
    _check_host_field(request, host, port, default=443)
    return request.target


def connect_target(request: Request) -> tuple[Host, int]:
    host, port = _authority(request.target, None)
    if request.all("host"):  # nothing is sent on that it could contradict
        _check_host_field(request, host, port)
    if request.all("content-length") or request.all("transfer-encoding"):
        raise bad_request("CONNECT has no body", host=host, port=port)
    return host, port
