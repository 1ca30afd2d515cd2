"""Kernels: made, listed, looked at, restarted, interrupted, destroyed."""

from __future__ import annotations

import asyncio
import os
import secrets
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from kernelbox.errors import KernelNotFound, Unsupported, in_short
from kernelbox.result import KernelRecord
from kernelbox.server.answers import answer
from kernelbox.server.errors import Refused, documented
from kernelbox.server.models import (
    AllDestroyed,
    Complete,
    CreateKernel,
    Destroyed,
    Interrupted,
    Kernel,
    KernelPath,
    Kernels,
    KernelStatus,
    Matches,
)
from kernelbox.server.reception import Guest, Reception
from kernelbox.server.running import unless_gone
from kernelbox.server.walls_body import walls_for

router = APIRouter(tags=["Kernels"])

RefreshQuery = Annotated[bool, Query(description="Ask each kernel instead of the registry")]


@router.post(
    "/kernels",
    status_code=201,
    summary="Make a kernel",
    responses={201: {"model": Kernel}, **documented(400, 404, 409, 410)},
)
async def create(request: Request, body: CreateKernel) -> Response:
    """409 if there is one of that name; `POST /sessions/{name}` takes it as it is instead.

    A tenant's kernel is always behind walls: what would lead out of them is 403, in words.
    """
    reception: Reception = request.app.state.reception
    guest = reception.guest(request)
    name = body.name or f"kernel-{secrets.token_hex(4)}"
    template = None if body.template is None else await guest.kernel(body.template)
    if template is not None and not reception.secured:
        raise Refused(
            409,
            "TokenNeeded",
            "a copy of a template must not reach the template, but it could call this service, "
            "which needs no token, and so run code there",
            hint="start the service with KERNELBOX_API_TOKEN set; or POST /kernels/{id}/branch",
        )
    walls = walls_for(guest, body.profile)
    if template is not None and walls not in (None, "open"):
        raise Unsupported("a template's copy has the walls of its template; leave profile out")
    if body.cwd is not None:
        await asyncio.to_thread(_check_folder, guest, body.cwd)
    async with guest.making([name]) as (wanted,):
        record = await guest.make(
            wanted,
            session_name=body.session_name,
            tags=body.tags,
            cwd=body.cwd,
            template=template,
            profile=walls,
        )
    return answer(guest.record(record), status=201)


def _check_folder(guest: Guest, cwd: str) -> None:
    if guest.tenant is not None:
        raise Refused(403, "NotAllowed", "a tenant's kernel starts in a folder of its own, not cwd")
    if not os.path.isdir(cwd) or not os.access(cwd, os.X_OK):
        raise Refused(
            404,
            "FolderNotFound",
            f"cwd={in_short(cwd)} is not a folder that a kernel can start in",
            hint="make it first, or leave cwd out",
        )


@router.get(
    "/kernels",
    summary="List the kernels",
    responses={200: {"model": Kernels}, **documented()},
)
async def list_kernels(request: Request, refresh: RefreshQuery = False) -> Response:
    guest = request.app.state.reception.guest(request)
    records = await guest.kernels(refresh=refresh)
    return answer({"kernels": [guest.record(record) for record in records]})


@router.delete(
    "/kernels",
    summary="Destroy all kernels",
    responses={200: {"model": AllDestroyed}, **documented()},
)
async def wipe(request: Request) -> Response:
    """Of a tenant, those that are theirs."""
    reception: Reception = request.app.state.reception
    guest = reception.guest(request)
    if guest.tenant is None:
        return answer({"destroyed": await reception.box.wipe()})
    records = await guest.records()
    gone = await asyncio.gather(*map(reception.box.destroy, records))
    ended = [record.kernel_id for record, ended in zip(records, gone, strict=True) if ended]
    return answer({"destroyed": ended})


@router.get(
    "/kernels/{kernel}",
    summary="What a kernel is doing",
    responses={200: {"model": KernelStatus}, **documented(404, 410)},
)
async def status(request: Request, kernel: KernelPath) -> Response:
    """Does not wait for the running cell; of that, it says what and where it is."""
    reception: Reception = request.app.state.reception
    guest = reception.guest(request)
    facts = await reception.box.status(await guest.kernel(kernel))
    record = guest.record(KernelRecord.from_wire(facts["kernel"]))
    return answer({**facts, "kernel": record})


@router.delete(
    "/kernels/{kernel}",
    summary="Destroy a kernel",
    responses={200: {"model": Destroyed}, **documented(404, 410)},
)
async def destroy(request: Request, kernel: KernelPath) -> Response:
    """Ends it and all its processes, and answers when they are gone."""
    reception: Reception = request.app.state.reception
    guest = reception.guest(request)
    wanted = await guest.kernel(kernel)
    for record in await guest.records():
        if wanted in (record.name, record.kernel_id) and await reception.box.destroy(record):
            return answer({"destroyed": True})
    # One that ended by itself need not be told of any more; one that never was is not found.
    await reception.box.destroy(wanted)
    raise KernelNotFound(f"there is no kernel {in_short(kernel)} to destroy", kernel=kernel[:200])


@router.post(
    "/kernels/{kernel}/restart",
    summary="Start a kernel afresh",
    responses={200: {"model": Kernel}, **documented(404, 410)},
)
async def restart(request: Request, kernel: KernelPath) -> Response:
    """Same name and id; variables are gone, and the epoch goes up by one."""
    reception: Reception = request.app.state.reception
    guest = reception.guest(request)
    record = await reception.box.restart(await guest.kernel(kernel))
    return answer(guest.record(record))


@router.post(
    "/kernels/{kernel}/interrupt",
    summary="Interrupt what runs",
    responses={200: {"model": Interrupted}, **documented(404, 410)},
)
async def interrupt(request: Request, kernel: KernelPath) -> Response:
    """Variables are kept, and cells that wait go on."""
    reception: Reception = request.app.state.reception
    wanted = await reception.guest(request).kernel(kernel)
    return answer({"interrupted": await reception.box.interrupt(wanted)})


@router.post(
    "/kernels/{kernel}/complete",
    summary="What a word could become",
    responses={200: {"model": Matches}, **documented(400, 404, 410)},
)
async def complete(request: Request, kernel: KernelPath, body: Complete) -> Response:
    """Asks the live interpreter, so it waits for the running cell."""
    reception: Reception = request.app.state.reception
    wanted = await reception.guest(request).kernel(kernel)
    cursor = None if body.cursor is None else min(body.cursor, len(body.code))
    found = reception.box.complete(wanted, body.code, cursor=cursor)
    return answer({"matches": await unless_gone(request, found)})
