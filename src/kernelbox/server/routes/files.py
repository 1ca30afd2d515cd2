"""The files of a kernel: listed, read, written and deleted below its folder."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from starlette.requests import Request
from starlette.responses import Response

from kernelbox.server.answers import answer
from kernelbox.server.errors import Refused, documented
from kernelbox.server.folder import Folder, Start
from kernelbox.server.models import Absent, Deleted, FilePath, Files, KernelPath, Written
from kernelbox.server.reception import Reception
from kernelbox.server.running import unless_gone
from kernelbox.server.transfer import Download, upload

router = APIRouter(tags=["Files"])

_MOST_REMEMBERED = 10_000

RAW: dict[str, Any] = {
    "application/octet-stream": {"schema": {"type": "string", "format": "binary"}}
}
# Not required: nothing is an empty file.
RAW_BODY: dict[str, Any] = {"requestBody": {"required": False, "content": RAW}}
RangeHeader = Annotated[
    str | Absent, Header(alias="Range", description="One part of it: bytes=0-99, bytes=100-, …")
]
SENT: dict[int | str, dict[str, Any]] = {
    200: {"description": "All of it", "content": RAW},
    206: {"description": "The part that was asked for", "content": RAW},
}


async def folder_of(request: Request, kernel: str) -> Folder:
    """The folder that a kernel was started in."""
    reception: Reception = request.app.state.reception
    guest = reception.guest(request)
    asking = reception.box.status(await guest.kernel(kernel))
    # Its body, if there is one, is still to be read: nobody else may listen.
    facts = await (asking if request.method == "PUT" else unless_gone(request, asking))
    walls = facts.get("walls")
    # A tenant's kernel has none that others see: no route leads a tenant to a file of this machine.
    if guest.tenant is not None or (walls is not None and walls["profile"]["cwd"] == "none"):
        raise Refused(
            409,
            "Unsupported",
            f"the folder of this kernel is behind walls ({facts['kernel']['profile']}), where only "
            "its own code sees it",
            hint="read and write files with code: POST /kernels/{id}/execute",
        )
    starts, key = reception.starts, (facts["kernel"]["kernel_id"], facts["kernel"]["epoch"])
    if key not in starts:
        if len(starts) > _MOST_REMEMBERED:
            starts.clear()
        starts[key] = await asyncio.to_thread(Start.at, facts["cwd"])
    return Folder(starts[key], reception.own_places, home=reception.home)


@router.get(
    "/kernels/{kernel}/files",
    summary="List a folder",
    responses={200: {"model": Files}, **documented(404, 409, 410)},
)
async def list_files(
    request: Request,
    kernel: KernelPath,
    path: Annotated[str, Query(description="A folder in the kernel's folder")] = "",
) -> Response:
    """409 where the folder is behind walls, as every tenant's is."""
    folder = await folder_of(request, kernel)
    found = await asyncio.to_thread(folder.entries, path)
    return answer({"path": path, "files": found})


@router.get(
    "/kernels/{kernel}/files/{path:path}",
    summary="Read a file",
    response_class=Response,
    responses={**SENT, **documented(404, 409, 410, 416)},
)
async def read(
    request: Request, kernel: KernelPath, path: FilePath, byte_range: RangeHeader = None
) -> Response:
    """Of any size; a `Range` header asks for a part."""
    folder = await folder_of(request, kernel)
    file, facts = await asyncio.to_thread(folder.read, path)
    return Download(request, file, facts)


@router.put(
    "/kernels/{kernel}/files/{path:path}",
    status_code=201,
    summary="Write a file",
    openapi_extra=RAW_BODY,
    responses={201: {"model": Written}, **documented(404, 409, 410, 507)},
)
async def write(request: Request, kernel: KernelPath, path: FilePath) -> Response:
    """The body is the file, of any size; who reads it meanwhile sees the old one."""
    size = await upload(request, await folder_of(request, kernel), path)
    return answer({"path": path, "size": size}, status=201)


@router.delete(
    "/kernels/{kernel}/files/{path:path}",
    summary="Delete a file",
    responses={200: {"model": Deleted}, **documented(404, 409, 410)},
)
async def delete(request: Request, kernel: KernelPath, path: FilePath) -> Response:
    """A file, a link (not what it points to) or an empty folder."""
    folder = await folder_of(request, kernel)
    await asyncio.to_thread(folder.delete, path)
    return answer({"deleted": True})
