"""A router without FastAPI, for routes that are in nobody's schema.

Its handlers look as FastAPI's do, with the request and the parts of the path as parameters. FastAPI
takes its routes as they are, and so does a Starlette app, which can do without importing FastAPI:
that takes longer than the rest of a small service.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

Handler = TypeVar("Handler", bound=Callable[..., Awaitable[Any]])


class PlainRouter:
    """Collects routes by decorators: ``@router.get("/api/kernels/{kernel}")``."""

    def __init__(self) -> None:
        self.routes: list[BaseRoute] = []

    def get(self, path: str) -> Callable[[Handler], Handler]:
        return self._added(path, "GET")

    def post(self, path: str) -> Callable[[Handler], Handler]:
        return self._added(path, "POST")

    def put(self, path: str) -> Callable[[Handler], Handler]:
        return self._added(path, "PUT")

    def patch(self, path: str) -> Callable[[Handler], Handler]:
        return self._added(path, "PATCH")

    def delete(self, path: str) -> Callable[[Handler], Handler]:
        return self._added(path, "DELETE")

    def websocket(self, path: str) -> Callable[[Handler], Handler]:
        def add(handler: Handler) -> Handler:
            async def talk(socket: WebSocket) -> None:
                await handler(socket, **socket.path_params)

            self.routes.append(WebSocketRoute(path, talk))
            return handler

        return add

    def _added(self, path: str, method: str) -> Callable[[Handler], Handler]:
        def add(handler: Handler) -> Handler:
            takes_request = "request" in inspect.signature(handler).parameters

            async def answer(request: Request) -> Response:
                given = (request,) if takes_request else ()
                response: Response = await handler(*given, **request.path_params)
                return response

            route = Route(path, answer, methods=[method], include_in_schema=False)
            # Starlette answers HEAD along with GET, and FastAPI does not: one service, one answer.
            route.methods = {method}
            self.routes.append(route)
            return handler

        return add
