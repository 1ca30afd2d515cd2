"""The pages /docs and /redoc, served with all that they need: they work without internet."""

from __future__ import annotations

import importlib.util
import os

from fastapi import APIRouter
from starlette.responses import FileResponse, HTMLResponse, Response

from kernelbox.server.errors import Refused

router = APIRouter(include_in_schema=False)

_OURS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "static")
_ASSETS = {
    "swagger.js": "text/javascript",
    "redoc.js": "text/javascript",
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
    "redoc.standalone.js": "text/javascript",
    "favicon.png": "image/png",
}
# Scripts only from files of ours. Both pages put their style into the page while they run, and
# ReDoc searches in a worker that it makes itself.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; font-src 'self' data:; connect-src 'self'; worker-src blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>KernelBox: {title}</title>
<link rel="icon" href="/docs/assets/favicon.png">
{style}
</head>
<body>
<div id="page"></div>
<script src="/docs/assets/{library}"></script>
<script src="/docs/assets/{start}"></script>
</body>
</html>
"""
_STYLE = '<link rel="stylesheet" href="/docs/assets/swagger-ui.css">'


@router.get("/docs")
async def swagger() -> Response:
    page = _PAGE.format(
        title="try it", style=_STYLE, library="swagger-ui-bundle.js", start="swagger.js"
    )
    return HTMLResponse(page, headers=_HEADERS)


@router.get("/redoc")
async def redoc() -> Response:
    page = _PAGE.format(
        title="reference", style="", library="redoc.standalone.js", start="redoc.js"
    )
    return HTMLResponse(page, headers=_HEADERS)


@router.get("/docs/assets/{name}")
async def asset(name: str) -> Response:
    path = _path(name)
    if path is None:
        raise Refused(404, "FileNotFound", f"the documentation has no file {name[:100]!r}")
    return FileResponse(path, media_type=_ASSETS[name], headers=_HEADERS)


def _path(name: str) -> str | None:
    """Where a file is: ours, or of the package that carries both pages' scripts."""
    if name not in _ASSETS:
        return None
    folders = [_OURS]
    package = importlib.util.find_spec("fastapi_offline")
    if package is not None and package.submodule_search_locations:
        folders.append(os.path.join(package.submodule_search_locations[0], "static"))
    for folder in folders:
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            return path
    return None
