"""The service behind a gateway: Jupyter's routes and nothing else, so that it is there at once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from kernelbox.config import Settings
from kernelbox.server import errors
from kernelbox.server.answers import answer
from kernelbox.server.jupyter import routes as jupyter
from kernelbox.server.plainrouter import PlainRouter
from kernelbox.server.reception import Reception
from kernelbox.server.safety import Safety
from kernelbox.server.settings import ServerSettings
from kernelbox.server.tokens import read_tokens

router = PlainRouter()


@router.get("/kernels/{kernel}")
async def status(request: Request, kernel: str) -> Response:
    """What a kernel is doing, or why it has ended, which Jupyter's routes do not say; the whole
    service has the same route."""
    reception: Reception = request.app.state.reception
    guest = reception.guest(request)
    return answer(await reception.box.status(await guest.kernel(kernel)))


def create_app(
    server: ServerSettings, settings: Settings, env: Mapping[str, str] | None = None
) -> Starlette:
    """An app for :func:`kernelbox.server.run.run_app`; the same door as the whole service's.
    ``env`` is for its kernels."""
    tokens = read_tokens(server)
    reception = Reception(settings, server)
    reception.env = env or {}
    routes = [*jupyter.ROUTES, *router.routes]

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await reception.box.wipe()
            await reception.close()

    app = Starlette(routes=routes, lifespan=lifespan)
    app.router.redirect_slashes = False
    app.state.reception = reception
    app.state.routes = [route for route in routes if getattr(route, "methods", None)]
    errors.install_plain(app)
    app.add_middleware(Safety, settings=server, tokens=tokens, routes=routes)
    return app
