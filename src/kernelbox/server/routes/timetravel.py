"""Going back and going two ways: branches, checkpoints, rewind, undo."""

from __future__ import annotations

import secrets

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from kernelbox.errors import BadInput
from kernelbox.server.answers import answer
from kernelbox.server.errors import Refused, documented
from kernelbox.server.models import (
    Branch,
    Checkpoints,
    CheckpointTaken,
    Dropped,
    Kernel,
    KernelPath,
    Kernels,
    Rewind,
    TakeCheckpoint,
    Undo,
)
from kernelbox.server.reception import Reception

router = APIRouter(tags=["Going back"])


@router.post(
    "/kernels/{kernel}/branch",
    status_code=201,
    summary="Copy a live kernel",
    responses={201: {"model": Kernels}, **documented(400, 404, 409, 410)},
)
async def branch(request: Request, kernel: KernelPath, body: Branch) -> Response:
    """Same variables, separate from now on; with `names` many at once, all of them or none. A
    branch waits for the running cell. Without a name one is made up."""
    reception: Reception = request.app.state.reception
    guest = reception.guest(request)
    source = await guest.kernel(kernel)
    names = list(body.names or ())
    if body.name is not None or not names:
        names.insert(0, body.name or f"branch-{secrets.token_hex(4)}")
    async with guest.making(names) as wanted:
        records = await reception.box.branch(
            source, names=wanted, reseed=body.reseed, files=body.files, method=body.method
        )
    return answer({"kernels": [guest.record(record) for record in records]}, status=201)


@router.post(
    "/kernels/{kernel}/checkpoint",
    status_code=201,
    summary="Remember a kernel as it is",
    responses={201: {"model": CheckpointTaken}, **documented(400, 404, 409, 410)},
)
async def checkpoint(
    request: Request, kernel: KernelPath, body: TakeCheckpoint | None = None
) -> Response:
    """Takes milliseconds, whatever the size of the session."""
    reception: Reception = request.app.state.reception
    wanted = await reception.guest(request).kernel(kernel)
    try:
        made = await reception.box.checkpoint(wanted, body.label if body else None)
    except BadInput as error:  # the label is well-formed: it is taken, or there are too many
        raise Refused(409, "CheckpointRefused", error.message, details=error.details) from None
    return answer({"checkpoint_id": made}, status=201)


@router.get(
    "/kernels/{kernel}/checkpoints",
    summary="List the checkpoints",
    responses={200: {"model": Checkpoints}, **documented(404, 410)},
)
async def checkpoints(request: Request, kernel: KernelPath) -> Response:
    reception: Reception = request.app.state.reception
    wanted = await reception.guest(request).kernel(kernel)
    found = await reception.box.checkpoints(wanted)
    return answer({"checkpoints": found})


@router.delete(
    "/kernels/{kernel}/checkpoints/{checkpoint}",
    summary="Forget a checkpoint",
    responses={200: {"model": Dropped}, **documented(404, 410)},
)
async def drop(request: Request, kernel: KernelPath, checkpoint: str) -> Response:
    """By its id or label."""
    reception: Reception = request.app.state.reception
    wanted = await reception.guest(request).kernel(kernel)
    await reception.box.drop_checkpoint(wanted, checkpoint)
    return answer({"dropped": True})


@router.post(
    "/kernels/{kernel}/rewind",
    summary="Go back to a checkpoint",
    responses={200: {"model": Kernel}, **documented(400, 404, 410)},
)
async def rewind(request: Request, kernel: KernelPath, body: Rewind) -> Response:
    """As if nothing had been run since; the epoch goes up by one. Files stay as they are."""
    reception: Reception = request.app.state.reception
    guest = reception.guest(request)
    record = await reception.box.rewind(await guest.kernel(kernel), body.checkpoint)
    return answer(guest.record(record))


@router.post(
    "/kernels/{kernel}/undo",
    summary="Undo the last cells",
    responses={200: {"model": Kernel}, **documented(400, 404, 410)},
)
async def undo(request: Request, kernel: KernelPath, body: Undo | None = None) -> Response:
    """As many as KERNELBOX_UNDO says are kept."""
    reception: Reception = request.app.state.reception
    guest = reception.guest(request)
    record = await reception.box.undo(await guest.kernel(kernel), body.n if body else 1)
    return answer(guest.record(record))
