"""Whether the service is there, and where to read more."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from kernelbox import __version__
from kernelbox.server.answers import answer
from kernelbox.server.models import Health, Root

router = APIRouter(tags=["Service"])

_LINKS = {
    "swagger": ("/docs", "Try the routes in a browser"),
    "redoc": ("/redoc", "Read about the routes"),
    "openapi": ("/openapi.json", "The routes for programs"),
    "kernels": ("/kernels", "The kernels of this home"),
    "metrics": ("/metrics", "Numbers for Prometheus"),
}


@router.get("/", summary="Where to go", responses={200: {"model": Root}})
async def root() -> Response:
    links = {name: {"href": href, "description": words} for name, (href, words) in _LINKS.items()}
    return answer({"service": "kernelbox", "version": __version__, "links": links})


@router.get("/health", summary="Whether the service is there", responses={200: {"model": Health}})
async def health() -> Response:
    """Needs no token, and is answered however busy the service is."""
    return answer({"status": "ok", "service": "kernelbox", "version": __version__})
