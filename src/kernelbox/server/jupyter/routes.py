"""The routes of Jupyter's dialect, all of them."""

from __future__ import annotations

from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import Receive, Scope, Send

from kernelbox.server.jupyter import channels, kernels, sessions


def _named(route: BaseRoute) -> BaseRoute:
    """Have a route say which one it is, as FastAPI's do: metrics and traces go by it."""
    if isinstance(route, Route | WebSocketRoute):
        app = route.app

        async def named(scope: Scope, receive: Receive, send: Send) -> None:
            scope["route"] = route
            await app(scope, receive, send)

        route.app = named
    return route


ROUTES: list[BaseRoute] = [
    _named(route) for part in (kernels, channels, sessions) for route in part.router.routes
]
