"""Errors over HTTP: one shape, ``{"error", "message", "hint"?, "details"}``, and one table that
says which status each of them has."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.websockets import WebSocket

from kernelbox.errors import (
    BadInput,
    BoxError,
    CheckpointNotFound,
    EpochMismatch,
    ExecutionNotFound,
    InstallFailed,
    KeeperUnavailable,
    KernelLost,
    KernelNotFound,
    KeyReused,
    StartupFailed,
    Unsupported,
)
from kernelbox.server.answers import answer

STATUSES: dict[type[BoxError], int] = {
    BadInput: 422,
    KernelNotFound: 404,
    KernelLost: 410,
    CheckpointNotFound: 404,
    ExecutionNotFound: 404,
    KeyReused: 422,
    EpochMismatch: 409,
    StartupFailed: 503,
    # Of this index and this kernel as they are; another time, or another kernel, it may work.
    InstallFailed: 409,
    # Of this kernel as it is (its threads, its type), not of the service: another can do it.
    Unsupported: 409,
    KeeperUnavailable: 503,
    BoxError: 500,
}

_HINTS: dict[str, str] = {
    "KernelNotFound": "POST /sessions/{name} makes a kernel, or finds it; GET /kernels lists them",
    "KernelLost": "its variables are gone; POST /sessions/{name} makes a new one",
    "CheckpointNotFound": "GET /kernels/{id}/checkpoints lists those that there are",
    "ExecutionNotFound": "only the latest executions are kept (KERNELBOX_SPOOL_KEEP)",
    "KeyReused": "send another Idempotency-Key with another request",
    "EpochMismatch": "nothing was run; details has the true epoch. Rebuild what was lost, then "
    "send that epoch",
    "InstallFailed": "nothing was changed; details has the reason as one word",
    "KeeperUnavailable": "try again; the message says what is in the way",
}

MEANINGS: dict[int, str] = {
    400: "The body cannot be read",
    401: "The token is missing or wrong",
    403: "Refused: a foreign Host or Origin, a place that is not yours, walls that are not enough",
    404: "There is no such thing",
    405: "This path does not know the method",
    408: "The body took too long to arrive",
    409: "It does not fit the state of things; `details` has the truth",
    410: "The kernel ended by itself; the message says when and why",
    413: "The body is too large",
    415: "The body is not JSON",
    416: "The file has no such range",
    422: "The request is understood but cannot be used; `details` says where",
    429: "Too many at once, or too many kernels",
    500: "A failure of the service itself",
    503: "Not now; try again later",
    507: "The disk is full",
}


class Refused(HTTPException):
    """An error of the service itself, with all that its answer says.

    It is an HTTPException because FastAPI lets only those through while it reads a body.
    """

    def __init__(
        self,
        status: int,
        error: str,
        message: str,
        *,
        hint: str | None = None,
        details: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, dict(headers) if headers else None)
        self.error = error
        self.hint = hint
        self.details = dict(details or {})

    def content(self) -> dict[str, Any]:
        return error_content(self.error, self.detail, hint=self.hint, details=self.details)

    def response(self) -> Response:
        return answer(self.content(), status=self.status_code, headers=self.headers)


def error_content(
    error: str, message: str, *, hint: str | None = None, details: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The one shape."""
    hint = hint or _HINTS.get(error)
    shown = {"error": error, "message": message}
    return {**shown, **({"hint": hint} if hint else {}), "details": dict(details or {})}


def content_of(error: BoxError) -> dict[str, Any]:
    return error_content(type(error).__name__, error.message, details=error.details)


def status_of(error: BoxError) -> int:
    for cls in type(error).__mro__:
        if cls in STATUSES:
            return STATUSES[cls]
    return 500


async def turn_away(socket: WebSocket, refusal: Refused) -> None:
    """Refuse a WebSocket before it is one: by a status, where the server can."""
    if "websocket.http.response" in socket.scope.get("extensions", {}):
        await socket.send_denial_response(refusal.response())
    else:
        await socket.close(1008, refusal.error)


def failure_content(
    error: Exception, shown: Callable[[BoxError], dict[str, Any]]
) -> dict[str, Any]:
    """Any failure as it is told in the middle of a stream, where there is no status any more;
    ``shown`` has it for an error of the box."""
    if isinstance(error, BoxError):
        return shown(error)
    if isinstance(error, Refused):
        return error.content()
    logging.getLogger("kernelbox.server").error("a stream failed", exc_info=error)
    return internal_content(error)


def internal_content(error: Exception) -> dict[str, Any]:
    """The client is told what kind it was and no more; the log has the rest."""
    return error_content(
        "InternalError",
        f"the service failed at this request ({type(error).__name__}); its log says more",
        hint="if it happens again, report it with the request",
    )


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """These errors, and those that every route has, for OpenAPI."""
    from kernelbox.server.schema_errors import ErrorBody

    always = (401, 403, 408, 413, 415, 422, 429, 500, 503)
    return {
        status: {"model": ErrorBody, "description": MEANINGS[status]}
        for status in sorted({*always, *statuses})
    }


def install(app: Starlette) -> None:
    """Have every error of the app answered in the one shape."""
    from fastapi.exceptions import RequestValidationError

    from kernelbox.server.schema_errors import invalid

    app.add_exception_handler(RequestValidationError, invalid)
    install_plain(app)


def install_plain(app: Starlette) -> None:
    """The same for an app without models of requests, which need not import FastAPI: that takes
    longer than all the rest of a small service."""
    app.add_exception_handler(BoxError, _box_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _failure)


async def _box_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, BoxError)
    status = status_of(error)
    headers = {"retry-after": "1"} if status == 503 else None
    guest = request.app.state.reception.guest(request)
    return answer(guest.error(error), status=status, headers=headers)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if isinstance(error, Refused):
        return error.response()
    path = request.url.path
    if error.status_code == 404:
        content = error_content(
            "RouteNotFound", f"there is no route {path!r}", hint="/docs lists the routes"
        )
        return answer(content, status=404)
    if error.status_code == 405:
        allowed = ", ".join(sorted(_methods(request)))
        content = error_content(
            "MethodNotAllowed", f"{path!r} does not know {request.method}; it knows {allowed}"
        )
        return answer(content, status=405, headers={"allow": allowed})
    content = error_content("BadRequest", str(error.detail))
    return answer(content, status=error.status_code, headers=error.headers)


async def _failure(request: Request, error: Exception) -> Response:
    # The server logs the traceback itself.
    logging.getLogger("kernelbox.server").error(
        "%s %s failed: %r", request.method, request.url.path, error
    )
    return answer(internal_content(error), status=500)


def _methods(request: Request) -> set[str]:
    """Every method that the path knows: several routes may share it."""
    found: set[str] = set()
    for route in request.app.state.routes:
        if route.matches(request.scope)[0] != Match.NONE:
            found |= route.methods or set()
    return found
