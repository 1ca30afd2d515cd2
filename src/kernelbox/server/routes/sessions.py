"""Sessions: kernels that are made when they are first needed."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from kernelbox.errors import KernelNotFound
from kernelbox.result import ExecutionResult, KernelRecord
from kernelbox.server.answers import answer
from kernelbox.server.errors import documented
from kernelbox.server.models import CreateSession, Execute, ExecuteWithRetry, Kernel, NamePath, Tags
from kernelbox.server.reception import Guest
from kernelbox.server.routes.executions import (
    EXECUTED,
    KeyHeader,
    executed,
    wants_events,
    with_result,
)
from kernelbox.server.running import Order, execute_until_it_works, refuse_key, unless_gone

router = APIRouter(tags=["Sessions"])


@router.post(
    "/sessions/{name}",
    summary="Get a kernel, or make it",
    responses={200: {"model": Kernel}, **documented(400)},
)
async def session(request: Request, name: NamePath, body: CreateSession | None = None) -> Response:
    guest = request.app.state.reception.guest(request)
    return answer(guest.record(await _made(guest, name, body.tags if body else None)))


@router.post("/sessions/{name}/execute", summary="Run code in a session", responses=EXECUTED)
async def execute(
    request: Request, name: NamePath, body: Execute, idempotency_key: KeyHeader = None
) -> Response:
    """As `POST /kernels/{id}/execute`, in a kernel that is made if need be."""
    guest = request.app.state.reception.guest(request)
    order = Order.of(guest, await guest.kernel(name), body, key=idempotency_key)
    try:
        if wants_events(request):
            # Once a stream has begun it is too late to make anything.
            await unless_gone(request, guest.reception.box.status(order.kernel))
        return await executed(request, order)
    except KernelNotFound:  # seldom: asking first would double the way of every other request
        await _made(guest, name, None)
        return await executed(request, order)


@router.post(
    "/sessions/{name}/execute_with_retry",
    summary="Run code in a session until it works",
    responses={200: {"model": ExecutionResult}, **documented(400, 409)},
)
async def execute_with_retry(request: Request, name: NamePath, body: ExecuteWithRetry) -> Response:
    """After a failure `on_error_code` is run, up to `max_attempts` runs in all. An interrupt ends
    all of it; it takes no `Idempotency-Key`."""
    refuse_key(request)
    guest: Guest = request.app.state.reception.guest(request)
    record = await _made(guest, name, None)
    running = execute_until_it_works(
        guest, record.kernel_id, body, lambda attempt: body.on_error_code
    )
    return with_result(await unless_gone(request, running))


async def _made(guest: Guest, name: str, tags: Tags | None) -> KernelRecord:
    async with guest.making([name], fresh=False) as (wanted,):
        return await guest.make(wanted, session_name=name, tags=tags)
