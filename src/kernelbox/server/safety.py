"""The door: who may send what, looked at before any route sees a request.

On loopback no token is needed, so the door keeps web pages out instead: a page of another site can
make a browser send requests here, but not with our Host, without its own Origin, and with JSON.
Elsewhere a token is needed. In this order, cheapest and most telling first:

1. the Host, on loopback (a rebound DNS name gives itself away there)
2. the Origin, everywhere
3. the token; or, on loopback without one, whose connection it is
4. how many requests there are already
5. the body: what it is, how large, how slow
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from urllib.parse import parse_qs

from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kernelbox.errors import in_short
from kernelbox.server.errors import Refused
from kernelbox.server.peers import GONE, owner_of
from kernelbox.server.settings import ServerSettings
from kernelbox.server.tokens import Holder, Tokens

PUBLIC = frozenset({"/", "/health", "/openapi.json", "/docs", "/redoc"})
"""Paths that say nothing of anybody's kernels, and need no token."""
PUBLIC_FOLDER = "/docs/assets/"

_AUTHORITY = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::\d{0,5})?", re.ASCII)
_ANYBODY = Holder(None)
_CLOSE = {"connection": "close"}
_SIMULTANEOUS = {"retry-after": "1"}


@lru_cache(maxsize=64)
def is_loopback(address: str) -> bool:
    """Whether a local address is one that only this machine can reach; unknown ones are not."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return (mapped or found).is_loopback


@lru_cache(maxsize=256)
def host_name(authority: str) -> str:
    """The name in a Host header, without the port; nothing, if it is not a name and a port."""
    match = _AUTHORITY.fullmatch(authority)
    return (match[1] or match[2]).removesuffix(".").lower() if match else ""


def names_loopback(host: str) -> bool:
    return host == "localhost" or is_loopback(host)


def is_same_origin(origin: str, host: str) -> bool:
    """Whether a page of this origin was served by the host that it calls."""
    scheme, separator, authority = origin.partition("://")
    return bool(separator) and scheme in ("http", "https") and authority.lower() == host.lower()


class Safety:
    """Pure ASGI middleware that turns away what must not come in."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        settings: ServerSettings,
        tokens: Tokens,
        routes: Sequence[BaseRoute] = (),
    ) -> None:
        self._app = app
        self._routes = routes
        self._settings = settings
        self._tokens = tokens
        self._inside = 0
        self._inside_of: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        path = scope["path"]
        public = path in PUBLIC or path.startswith(PUBLIC_FOLDER)
        try:
            headers = _headers(scope)
            holder = self._admit(scope, headers, public=public)
            if scope["type"] == "http":
                receive = self._check_body(scope, headers, receive)
            if not public:
                self._take_place(holder)
        except Refused as refusal:
            await _refuse(refusal, scope, receive, send)
            return
        scope.setdefault("state", {})["tenant"] = holder.tenant
        if public:
            await self._app(scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        finally:
            self._inside -= 1
            if holder.tenant is not None:
                self._inside_of[holder.tenant] -= 1

    # -- who ----------------------------------------------------------------------------------

    def _admit(self, scope: Scope, headers: dict[bytes, bytes], *, public: bool) -> Holder:
        server = scope.get("server")
        local = server is not None and is_loopback(str(server[0]))
        host = headers.get(b"host", b"").decode("latin-1")
        if local:
            name = host_name(host)
            if not names_loopback(name) and name not in self._settings.hosts:
                raise Refused(
                    403,
                    "ForeignHost",
                    f"this service listens on loopback and does not go by {in_short(host)}",
                    hint="call it as 127.0.0.1 or localhost; KERNELBOX_HTTP_HOSTS names others",
                )
        self._check_origin(headers, host, public=public)
        if public:
            return _ANYBODY
        return self._check_token(scope, headers, local=local)

    def _check_origin(self, headers: dict[bytes, bytes], host: str, *, public: bool) -> None:
        origin = headers.get(b"origin")
        if origin is not None:
            text = origin.decode("latin-1")
            if text.lower() in self._settings.cors_origins or is_same_origin(text, host):
                return
        else:
            # Also what only reads: a page cannot see the answer, but it can have us work.
            followed = public and headers.get(b"sec-fetch-mode") == b"navigate"
            if headers.get(b"sec-fetch-site") != b"cross-site" or followed:
                return
            text = "another site"
        raise Refused(
            403,
            "ForeignOrigin",
            f"web pages of {in_short(text)} may not call this service",
            hint="KERNELBOX_CORS_ORIGINS lists the origins that may",
        )

    def _check_token(self, scope: Scope, headers: dict[bytes, bytes], *, local: bool) -> Holder:
        if not self._tokens:
            if local:
                _check_peer(scope, headers)
                return _ANYBODY
            raise Refused(
                401,
                "TokenNotSet",
                "this service is reached from beyond loopback and has no token, so it serves nobody"
                " here",
                hint="start it with KERNELBOX_API_TOKEN set, or with `kernelbox serve`, which makes"
                " one",
                headers={"www-authenticate": "Bearer"},
            )
        token = _token(scope, headers)
        holder = self._tokens.holder(token) if token else None
        if holder is None:
            raise Refused(
                401,
                "Unauthorized",
                "the token is wrong" if token else "a token is needed",
                hint="send the header 'Authorization: Bearer <token>'",
                headers={"www-authenticate": "Bearer"},
            )
        return holder

    def _take_place(self, holder: Holder) -> None:
        settings = self._settings
        if self._inside >= settings.max_concurrency:
            raise Refused(
                503,
                "TooManyRequests",
                f"{self._inside} requests are being served, as many as there may be",
                hint="come back in a second; KERNELBOX_HTTP_MAX_CONCURRENCY is the limit",
                headers=_SIMULTANEOUS,
            )
        if holder.tenant is not None:
            if self._inside_of[holder.tenant] >= settings.max_concurrency_per_token:
                raise Refused(
                    429,
                    "TooManyRequests",
                    f"{settings.max_concurrency_per_token} requests of yours are being served, as "
                    "many as one token may have",
                    hint="wait for one of them to end",
                    headers=_SIMULTANEOUS,
                )
            self._inside_of[holder.tenant] += 1
        self._inside += 1

    # -- what ---------------------------------------------------------------------------------

    def _check_body(self, scope: Scope, headers: dict[bytes, bytes], receive: Receive) -> Receive:
        method = scope["method"]
        length = headers.get(b"content-length")
        if length in (None, b"0") and b"transfer-encoding" not in headers:
            return receive
        settings = self._settings
        # Only PUT takes raw bytes, and no page can send a PUT here without asking first.
        if method == "PUT":
            limit, overall = settings.max_upload, False
        else:
            limit, overall = settings.max_body, True
            if (
                method == "POST"
                and not _is_json(headers.get(b"content-type", b""))
                and self._has_route(scope)
            ):
                kind = headers.get(b"content-type", b"").decode("latin-1")
                raise Refused(
                    415,
                    "NotJson",
                    f"the body is declared as {in_short(kind)}, and only JSON is read",
                    hint="send the header 'Content-Type: application/json'",
                    headers=_CLOSE,
                )
        if limit and length is not None and length.isdigit() and int(length) > limit:
            raise _too_large(limit)
        return Incoming(receive, limit=limit, patience=settings.body_timeout, overall=overall)

    def _has_route(self, scope: Scope) -> bool:
        """Whether somebody would read the body; if not, they say so."""
        return not self._routes or any(
            route.matches(scope)[0] == Match.FULL for route in self._routes
        )


class Incoming:
    """A body that is counted and timed while it arrives."""

    def __init__(self, receive: Receive, *, limit: int, patience: float, overall: bool) -> None:
        """``overall``: the whole body must arrive within ``patience`` seconds, not each piece."""
        self._receive = receive
        self._limit = limit
        self._patience = patience
        self._deadline = asyncio.get_running_loop().time() + patience if overall else None
        self._size = 0
        self._over = False

    async def __call__(self) -> Message:
        if self._over:
            return await self._receive()  # the end of the connection, which takes its time
        try:
            if self._deadline is not None:
                async with asyncio.timeout_at(self._deadline):
                    message = await self._receive()
            else:
                async with asyncio.timeout(self._patience):
                    message = await self._receive()
        except TimeoutError:
            raise Refused(
                408,
                "BodyTooSlow",
                f"the body did not arrive within {self._patience:g} s",
                hint="KERNELBOX_HTTP_BODY_TIMEOUT is the limit",
                headers=_CLOSE,
            ) from None
        self._size += len(message.get("body", b""))
        if self._limit and self._size > self._limit:
            raise _too_large(self._limit)
        self._over = message["type"] == "http.disconnect" or not message.get("more_body", False)
        return message


def _too_large(limit: int) -> Refused:
    return Refused(
        413,
        "BodyTooLarge",
        f"the body has more than {limit:,} bytes",
        hint="send less, or PUT it as a file (KERNELBOX_HTTP_MAX_BODY, KERNELBOX_HTTP_MAX_UPLOAD)",
        headers=_CLOSE,
    )


def _is_json(content_type: bytes) -> bool:
    kind = content_type.partition(b";")[0].strip().lower()
    return kind == b"application/json" or (
        kind.startswith(b"application/") and kind.endswith(b"+json")
    )


def _token(scope: Scope, headers: dict[bytes, bytes]) -> bytes:
    """What the client shows: a bearer's token, or one as Jupyter's clients have it."""
    scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
    jupyter = scope["path"] == "/api" or scope["path"].startswith("/api/")
    if scheme.lower() == b"bearer" or (jupyter and scheme.lower() == b"token"):
        return token.strip()
    if jupyter and not scheme:
        query: dict[bytes, list[bytes]] = parse_qs(scope.get("query_string", b""))
        return query.get(b"token", [b""])[0]
    return b""


def _headers(scope: Scope) -> dict[bytes, bytes]:
    """The headers by name. Two hosts, or two lengths, mean that somebody plays tricks."""
    headers: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        if name in headers and name in (b"host", b"origin", b"authorization", b"content-length"):
            raise Refused(
                403, "DoubleHeader", f"the header {name.decode('latin-1')!r} is there twice"
            )
        headers[name] = value
    return headers


def _check_peer(scope: Scope, headers: dict[bytes, bytes]) -> None:
    """Loopback is open to all users of this machine; without a token, the service is not."""
    # Our own server keeps this dict as long as the connection; under another, each request looks,
    # and whoever claims to be forwarded may claim to be anybody.
    known = scope.get("state", {}).get("connection")
    if known is None:
        forwarded = b"x-forwarded-for" in headers
        known = {"client": None if forwarded else scope.get("client")}
    if "owner" not in known:
        known["owner"] = owner_of(known["client"], scope["server"])
    if known["owner"] in (None, 0, os.geteuid()):
        return
    whose = "nobody that is known" if known["owner"] == GONE else f"the user {known['owner']}"
    raise Refused(
        403,
        "ForeignUser",
        f"this connection is of {whose}, and without a token the service is for its own user",
        hint="start the service with KERNELBOX_API_TOKEN set, and send that token",
    )


async def _refuse(refusal: Refused, scope: Scope, receive: Receive, send: Send) -> None:
    response = refusal.response()
    if scope["type"] == "http":
        await response(scope, receive, send)
    elif "websocket.http.response" in scope.get("extensions", {}):
        await send(
            {
                "type": "websocket.http.response.start",
                "status": response.status_code,
                "headers": response.raw_headers,
            }
        )
        await send({"type": "websocket.http.response.body", "body": response.body})
    else:
        await send({"type": "websocket.close", "code": 1008, "reason": refusal.error})
