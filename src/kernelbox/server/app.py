"""The app: ``kernelbox.server.app:app`` for any ASGI server, ``create_app`` for a tailored one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from kernelbox import __version__
from kernelbox.config import Settings
from kernelbox.server import errors, pages
from kernelbox.server.jupyter import routes as jupyter
from kernelbox.server.observing import Numbers, Observing, Traces, WithoutTokens
from kernelbox.server.reception import Reception
from kernelbox.server.routes import ROUTERS, executions
from kernelbox.server.running import Gone
from kernelbox.server.safety import PUBLIC, Safety
from kernelbox.server.settings import ServerSettings, forget_secrets
from kernelbox.server.tenancy import Tenancy
from kernelbox.server.tokens import read_tokens

_SUMMARY = "Persistent Python kernels for agents, over HTTP."
_DESCRIPTION = """
Kernels keep their variables between requests, can be branched and rewound, and tell the truth about
their state. `{kernel}` is a kernel's id or name. Code that fails is a *result* (200); errors of the
service have one shape: `{"error", "message", "hint"?, "details"}`. Where tenants have a token each,
names are a tenant's own, nobody hears of others' kernels, and every kernel is behind walls.
"""


def create_app(
    server: ServerSettings | None = None, *, settings: Settings | None = None
) -> FastAPI:
    """A service for the home that ``settings`` mean; both settings default to the environment."""
    server = server or ServerSettings.from_environment()
    settings = settings or Settings.from_environment()
    tokens = read_tokens(server)
    tenancy = Tenancy(settings, server) if tokens.tenants else None
    reception = Reception(settings, server, tenancy=tenancy)
    numbers, traces = Numbers(), Traces()
    routes = [route for router in (*ROUTERS, pages.router) for route in router.routes]
    routes += jupyter.ROUTES

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        traces.start()
        forget_secrets()
        WithoutTokens.install()
        try:
            yield
        finally:
            if server.on_exit == "wipe":
                await reception.box.wipe()
            await reception.close()
            await asyncio.to_thread(traces.stop)

    app = FastAPI(
        title="KernelBox",
        summary=_SUMMARY,
        description=_DESCRIPTION,
        version=__version__,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        redirect_slashes=False,
        # Flat, with the busiest first: a router within a router costs every request its search.
        routes=routes,
    )
    app.state.reception = reception
    app.state.numbers = numbers
    app.state.routes = [route for route in routes if getattr(route, "methods", None)]
    app.openapi = lambda: _openapi(app, secured=bool(tokens))  # type: ignore[method-assign]
    errors.install(app)
    app.add_exception_handler(Gone, _nobody_there)
    app.add_exception_handler(ClientDisconnect, _nobody_there)
    # The last one added is the first to see a request.
    app.add_middleware(Safety, settings=server, tokens=tokens, routes=routes)
    if server.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(server.cors_origins),
            allow_methods=["GET", "POST", "PUT", "PATCH", "DELETE"],
            allow_headers=["authorization", "content-type", "idempotency-key", "last-event-id"],
            expose_headers=["x-execution-id"],
        )
    app.add_middleware(Observing, numbers=numbers, traces=traces)
    return app


async def _nobody_there(request: Request, error: Exception) -> Response:
    return Response(status_code=499)  # as nginx has it in its logs; the client has left


def _openapi(app: FastAPI, *, secured: bool) -> dict[str, Any]:
    """The schema, with the token only where one is needed."""
    if app.openapi_schema is None:
        schema = get_openapi(
            title=app.title,
            version=app.version,
            summary=app.summary,
            description=app.description,
            routes=app.routes,
        )
        _add_answers(schema)
        if secured:
            schema["components"]["securitySchemes"] = {
                "token": {"type": "http", "scheme": "bearer"}
            }
        for path, operations in schema["paths"].items():
            for operation in operations.values():
                if secured and path not in PUBLIC:
                    operation["security"] = [{"token": []}]
        app.openapi_schema = schema
    return app.openapi_schema


def _add_answers(schema: dict[str, Any]) -> None:
    """Put in what routes refer to by name."""
    for answer in executions.ANSWERS:
        made = TypeAdapter(answer).json_schema(ref_template="#/components/schemas/{model}")
        schema["components"]["schemas"].update(made.pop("$defs", {}))
        schema["components"]["schemas"][answer.__name__] = made


app = create_app()
