"""Heads of HTTP/1: parsed so strictly that nobody behind us can read them differently, and written
anew. Pure; bytes come and go by `streams`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from kernelbox.walls.domains import Host

Fields = Sequence[tuple[str, str]]

CHUNKED, UNTIL_CLOSE = -1, -2  # sizes of bodies that do not say their size

_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_REQUEST_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([\x21-\x7e\x80-\xff]+) HTTP/1\.([01])")
_STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([1-9][0-9]{2})(?: ([\t\x20-\x7e\x80-\xff]*))?")
_SIZE = re.compile(r"[0-9]{1,18}")
CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[\t\x20-\x7e\x80-\xff]*)?")

_HOP_BY_HOP = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization"),
        *("proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"),
    }
)


class Malformed(ValueError):
    """HTTP that could be read in more than one way."""


class TooLong(Malformed):
    """A head without an end."""


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    target: str
    minor: int  # of HTTP/1.x
    fields: Fields

    def all(self, name: str) -> list[str]:
        return values(self.fields, name)


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    phrase: str
    fields: Fields


def values(fields: Fields, name: str) -> list[str]:
    return [value for field, value in fields if field.lower() == name]


def _parse_fields(lines: Sequence[bytes]) -> Fields:
    fields = []
    for line in lines:
        name, colon, value = line.partition(b":")
        # Also refused by this: white space before the colon, and lines that continue another.
        if not colon or not _TOKEN.fullmatch(name):
            raise Malformed("a header line is not 'Name: value'")
        value = value.strip(b" \t")
        if _CONTROL.search(value):
            raise Malformed("a header has a control character in it")
        fields.append((name.decode("ascii"), value.decode("latin-1")))
    return fields


def parse_request(lines: Sequence[bytes]) -> Request:
    line = _REQUEST_LINE.fullmatch(lines[0]) if lines else None
    if line is None:
        raise Malformed("the request line is not 'METHOD target HTTP/1.1'")
    method, target = line[1].decode("ascii"), line[2].decode("latin-1")
    return Request(method, target, int(line[3]), _parse_fields(lines[1:]))


def parse_response(lines: Sequence[bytes]) -> Response:
    line = _STATUS_LINE.fullmatch(lines[0]) if lines else None
    if line is None:
        raise Malformed("the status line is not 'HTTP/1.1 200 OK'")
    return Response(int(line[1]), (line[2] or b"").decode("latin-1"), _parse_fields(lines[1:]))


def request_size(request: Request) -> int:
    """How the body ends, if there is only one opinion on it."""
    lengths, codings = request.all("content-length"), request.all("transfer-encoding")
    if codings:
        if lengths:
            raise Malformed("it has both Content-Length and Transfer-Encoding")
        if len(codings) > 1 or codings[0].lower() != "chunked" or request.minor == 0:
            raise Malformed("the only Transfer-Encoding is 'chunked', once, in HTTP/1.1")
        return CHUNKED
    if len(lengths) > 1:
        raise Malformed("it has several Content-Length headers")
    if lengths and not _SIZE.fullmatch(lengths[0]):
        raise Malformed("its Content-Length is no number")
    return int(lengths[0]) if lengths else 0


def response_size(response: Response, method: str) -> int:
    if method == "HEAD" or response.status in (204, 304):
        return 0
    if codings := values(response.fields, "transfer-encoding"):
        if len(codings) > 1 or codings[0].lower() != "chunked":
            raise Malformed("its Transfer-Encoding is not 'chunked'")
        return CHUNKED
    lengths = set(values(response.fields, "content-length"))
    if not lengths:
        return UNTIL_CLOSE
    length = lengths.pop()
    if lengths or not _SIZE.fullmatch(length):
        raise Malformed("its Content-Length is not one number")
    return int(length)


def end_to_end(fields: Fields, *, without: frozenset[str] = frozenset()) -> Fields:
    """The fields that are for whoever is at the other end, not for us."""
    named = {
        name.strip().lower() for value in values(fields, "connection") for name in value.split(",")
    }
    drop = _HOP_BY_HOP | named | without
    return [(name, value) for name, value in fields if name.lower() not in drop]


def wants_websocket(request: Request) -> bool:
    """The one upgrade that is carried; others (HTTP/2) are left out, as a server may do too."""
    tokens = {name.strip().lower() for v in request.all("connection") for name in v.split(",")}
    upgrades = [value.lower() for value in request.all("upgrade")]
    return "upgrade" in tokens and upgrades == ["websocket"] and request.method == "GET"


def write_head(first: str, fields: Fields) -> bytes:
    lines = (first, *(f"{name}: {value}" for name, value in fields), "", "")
    return "\r\n".join(lines).encode("latin-1")


def chunk(data: bytes) -> bytes:
    """Empty: the last one."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def outgoing(
    request: Request, *, host: Host, port: int, path: str, size: int, usual_port: int = 80
) -> bytes:
    """The head as the server gets it, Host and the body's length of our own making."""
    fields: list[tuple[str, str]] = [
        ("Host", host.with_port(port).removesuffix(f":{usual_port}")),
        *end_to_end(request.fields, without=frozenset({"host", "content-length"})),
    ]
    if size == CHUNKED:
        fields.append(("Transfer-Encoding", "chunked"))
    elif size or request.all("content-length"):
        fields.append(("Content-Length", str(size)))
    if wants_websocket(request):
        fields += [("Connection", "Upgrade"), ("Upgrade", "websocket")]
    else:
        fields.append(("Connection", "close"))
    return write_head(f"{request.method} {path} HTTP/1.1", fields)
