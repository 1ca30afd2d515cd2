"""Saved sessions: written by one kernel, read by another, kept in a folder of the service's."""

from __future__ import annotations

import asyncio
import os
import time

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from kernelbox.errors import BadInput
from kernelbox.server.answers import answer
from kernelbox.server.errors import Refused, documented
from kernelbox.server.folder import Folder, Start
from kernelbox.server.models import (
    Deleted,
    Kernel,
    KernelPath,
    Load,
    Save,
    Saved,
    SavedFiles,
    SavedPath,
    Written,
)
from kernelbox.server.reception import Guest, Reception
from kernelbox.server.routes.files import RAW_BODY, SENT, RangeHeader
from kernelbox.server.running import unless_gone
from kernelbox.server.transfer import Download, upload

router = APIRouter(tags=["Saved sessions"])


def _place(guest: Guest) -> str:
    """The folder of the guest's saved sessions, made if need be."""
    whose = "all" if guest.tenant is None else f"tenant-{guest.tenant}"
    folder = os.path.join(guest.reception.data_dir, "saved", whose)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    return folder


async def _folder(request: Request) -> Folder:
    guest = request.app.state.reception.guest(request)
    return Folder(await asyncio.to_thread(lambda: Start.at(_place(guest))))


@router.post(
    "/kernels/{kernel}/save",
    status_code=201,
    summary="Save a session",
    responses={201: {"model": Saved}, **documented(400, 404, 409, 410)},
)
async def save(request: Request, kernel: KernelPath, body: Save | None = None) -> Response:
    """Every variable that can be pickled, and the source of all cells. It waits for the running
    cell; one of that name is replaced. `GET /saved/{name}` downloads it."""
    reception: Reception = request.app.state.reception
    guest = reception.guest(request)
    wanted = await guest.kernel(kernel)
    name = (body.name if body else None) or time.strftime("session-%Y%m%d-%H%M%S", time.gmtime())
    path = os.path.join(await asyncio.to_thread(_place, guest), name)
    report = await unless_gone(request, reception.box.save(wanted, path))
    return answer({**report.to_dict(), "path": f"/saved/{name}", "name": name}, status=201)


@router.get(
    "/saved", summary="List saved sessions", responses={200: {"model": SavedFiles}, **documented()}
)
async def list_saved(request: Request) -> Response:
    folder = await _folder(request)
    found = await asyncio.to_thread(folder.entries, "")
    return answer(
        {
            "saved": [
                {"name": entry.name, "size": entry.size, "saved_at": entry.modified_at}
                for entry in found
                if entry.kind == "file" and not entry.name.startswith(".")
            ]
        }
    )


@router.get(
    "/saved/{name}",
    summary="Download a saved session",
    response_class=Response,
    responses={**SENT, **documented(404, 409, 416)},
)
async def download(request: Request, name: SavedPath, byte_range: RangeHeader = None) -> Response:
    folder = await _folder(request)
    file, facts = await asyncio.to_thread(folder.read, name)
    return Download(request, file, facts)


@router.put(
    "/saved/{name}",
    status_code=201,
    summary="Upload a saved session",
    openapi_extra=RAW_BODY,
    responses={201: {"model": Written}, **documented(404, 409, 507)},
)
async def put(request: Request, name: SavedPath) -> Response:
    """It is looked at when it is loaded."""
    size = await upload(request, await _folder(request), name)
    return answer({"path": f"/saved/{name}", "size": size}, status=201)


@router.delete(
    "/saved/{name}",
    summary="Delete a saved session",
    responses={200: {"model": Deleted}, **documented(404, 409)},
)
async def delete(request: Request, name: SavedPath) -> Response:
    folder = await _folder(request)
    await asyncio.to_thread(folder.delete, name)
    return answer({"deleted": True})


@router.post(
    "/saved/{name}/load",
    status_code=201,
    summary="Make a kernel of a saved session",
    responses={201: {"model": Kernel}, **documented(400, 404, 409)},
)
async def load(request: Request, name: SavedPath, body: Load) -> Response:
    """What another home saved, or was changed since, is refused without `trust`: loading runs code
    that is in it."""
    reception: Reception = request.app.state.reception
    guest = reception.guest(request)
    place = await asyncio.to_thread(_place, guest)
    path = os.path.join(place, name)
    if not await asyncio.to_thread(os.path.isfile, path):
        raise Refused(404, "FileNotFound", f"there is no saved session {name!r}")
    async with guest.making([body.name]) as (wanted,):
        try:
            record = await guest.load(wanted, path, trust=body.trust)
        except BadInput as error:  # the file: cut off, changed, or of another Python
            message = error.message.replace(path, name)
            raise Refused(409, "SessionRefused", message) from None
    return answer(guest.record(record), status=201)
