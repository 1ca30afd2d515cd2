"""Executions: run, repaired, streamed, come back to, cancelled, and read in full."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from kernelbox.result import ExecutionResult
from kernelbox.server.answers import answer
from kernelbox.server.errors import documented
from kernelbox.server.eventstream import EventStream
from kernelbox.server.models import (
    Absent,
    Cancelled,
    Execute,
    ExecuteRetry,
    ExecutionPath,
    Found,
    KernelPath,
    Page,
    StreamQuery,
)
from kernelbox.server.plainroute import PlainRoute
from kernelbox.server.reception import Guest, Reception
from kernelbox.server.running import (
    Order,
    execute_until_it_works,
    follow,
    refuse_key,
    unless_gone,
)
from kernelbox.server.searching import search

router = APIRouter(tags=["Executions"])
hot = APIRouter(tags=["Executions"], route_class=PlainRoute)

KeyHeader = Annotated[
    Annotated[str, Field(min_length=1, max_length=255, pattern="^[!-~]+$")] | Absent,
    Header(
        alias="Idempotency-Key",
        description="The same key runs once within 24 hours, however often it is sent",
    ),
]
_EVENTS = "text/event-stream"
EVENT_CONTENT: dict[str, Any] = {
    _EVENTS: {
        "schema": {
            "type": "object",
            "description": "Each event. First `execution` with its id, then every output by its"
            " kind, each with a number as `id`, and `result` last; `error` if it is refused late",
            "properties": {
                "event": {"type": "string"},
                "id": {"type": "string"},
                "data": {"type": "string", "description": "JSON"},
            },
            "required": ["event", "data"],
        }
    }
}
_EXECUTION_ID: dict[str, Any] = {
    "X-Execution-Id": {
        "description": "By which it can be come back to, cancelled, and read in full",
        "schema": {"type": "string"},
    }
}
EXECUTED: dict[int | str, dict[str, Any]] = {
    200: {
        "model": ExecutionResult,
        "description": "The result, also of code that failed; or its events, if the client accepts"
        f" {_EVENTS}",
        "headers": _EXECUTION_ID,
        "content": EVENT_CONTENT,
    },
    **documented(400, 404, 409, 410),
}


@hot.post("/kernels/{kernel}/execute", summary="Run code", responses=EXECUTED)
async def execute(
    request: Request, kernel: KernelPath, body: Execute, idempotency_key: KeyHeader = None
) -> Response:
    """Waits for the result, or with `Accept: text/event-stream` tells what happens as it happens.

    Code that fails, crashes or takes too long is a result with status 200: look at `status`.
    """
    guest = request.app.state.reception.guest(request)
    order = Order.of(guest, await guest.kernel(kernel), body, key=idempotency_key)
    return await executed(request, order)


async def executed(request: Request, order: Order) -> Response:
    """The answer to an order: its events if they are wanted, or its result."""
    if wants_events(request):
        opening = {"execution_id": order.execution_id, "on_disconnect": order.on_disconnect}
        return await EventStream.of(order.events(), guest=order.guest, opening=opening)
    return with_result(await unless_gone(request, order.execute()))


def with_result(result: ExecutionResult) -> Response:
    headers = {"x-execution-id": result.execution_id} if result.execution_id else None
    return answer(result, headers=headers)


def wants_events(request: Request) -> bool:
    return _EVENTS in request.headers.get("accept", "")


@router.post(
    "/kernels/{kernel}/execute/retry",
    summary="Run code until it works",
    responses={200: {"model": ExecutionResult}, **documented(400, 404, 409, 410)},
)
async def execute_retry(request: Request, kernel: KernelPath, body: ExecuteRetry) -> Response:
    """After each failure the next of `replacement_codes` is run, then the last one again. An
    interrupt ends all of it; it takes no `Idempotency-Key`."""
    refuse_key(request)
    guest = request.app.state.reception.guest(request)
    left = [None, *body.replacement_codes]
    running = execute_until_it_works(
        guest,
        await guest.kernel(kernel),
        body,
        lambda attempt: left[attempt] if attempt < len(left) else None,
    )
    return with_result(await unless_gone(request, running))


@router.get(
    "/kernels/{kernel}/executions/{execution_id}/events",
    summary="Come back to an execution",
    response_class=Response,
    responses={
        200: {
            "description": "Its events from a number on, and its result last",
            "headers": _EXECUTION_ID,
            "content": EVENT_CONTENT,
        },
        **documented(404, 410),
    },
)
async def events(
    request: Request,
    kernel: KernelPath,
    execution_id: ExecutionPath,
    start: Annotated[
        Annotated[int, Field(ge=0, le=2**53)] | Absent, Query(description="The first number")
    ] = None,
    last_event_id: Annotated[
        Annotated[str, Field(pattern="^[0-9]{1,15}$")] | Absent,
        Header(description="As browsers send it: the last number that came"),
    ] = None,
) -> Response:
    """Of an execution that runs or has ended; nothing is missed that is kept. Leaving again does
    not end it."""
    reception: Reception = request.app.state.reception
    guest = reception.guest(request)
    if start is None:
        start = 0 if last_event_id is None else int(last_event_id) + 1
    found = follow(reception, await guest.kernel(kernel), execution_id, start=start)
    opening = {"execution_id": execution_id, "start": start}
    return await EventStream.of(found, guest=guest, opening=opening)


@router.post(
    "/kernels/{kernel}/executions/{execution_id}/cancel",
    summary="Cancel one execution",
    responses={200: {"model": Cancelled}, **documented(404, 410)},
)
async def cancel(request: Request, kernel: KernelPath, execution_id: ExecutionPath) -> Response:
    """Interrupts it if it runs, takes it out of the queue if it waits; no other is touched."""
    reception: Reception = request.app.state.reception
    wanted = await reception.guest(request).kernel(kernel)
    return answer({"cancelled": await reception.box.cancel(wanted, execution_id)})


@router.get(
    "/kernels/{kernel}/executions/{execution_id}/output",
    summary="Read all that an execution printed",
    responses={
        200: {
            "description": "A page of it, or with `search` the lines that match",
            "content": {
                "application/json": {
                    "schema": {
                        "anyOf": [
                            {"$ref": "#/components/schemas/Page"},
                            {"$ref": "#/components/schemas/Found"},
                        ]
                    }
                }
            },
        },
        **documented(404, 410),
    },
)
async def output(
    request: Request,
    kernel: KernelPath,
    execution_id: ExecutionPath,
    stream: StreamQuery = "stdout",
    start: Annotated[
        int, Query(ge=-(2**53), le=2**53, description="The first character; below 0: from the end")
    ] = 0,
    length: Annotated[int, Query(ge=1, le=1_000_000, description="How many characters")] = 10_000,
    search_for: Annotated[
        Annotated[str, Field(min_length=1, max_length=1000)] | Absent,
        Query(
            alias="search",
            description="A regular expression; what is none is looked for as it stands",
        ),
    ] = None,
    limit: Annotated[int, Query(ge=1, le=1000, description="Most lines of a search")] = 20,
) -> Response:
    """Also what a result left out; while the cell runs, what there is so far."""
    reception: Reception = request.app.state.reception
    guest: Guest = reception.guest(request)
    wanted = await guest.kernel(kernel)
    if search_for is not None:
        searching = search(
            reception.settings,
            wanted,
            execution_id=execution_id,
            pattern=search_for,
            stream=stream,
            limit=limit,
            patience=reception.server.search_timeout,
            turns=reception.turns(guest.tenant),
        )
        return answer({"matches": await unless_gone(request, searching)})
    reading = reception.box.output(wanted, execution_id, stream=stream, start=start, length=length)
    return answer(await unless_gone(request, reading))


ANSWERS = (Page, Found)
"""Documented by reference above; the app makes sure that the schema has them."""
