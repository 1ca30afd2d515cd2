"""Numbers for Prometheus."""

from __future__ import annotations

import os

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from kernelbox.keeper.home import locate
from kernelbox.server.errors import documented
from kernelbox.server.observing import Numbers, gauges_text
from kernelbox.server.reception import Reception

router = APIRouter(tags=["Service"])

_FORMAT = "text/plain; version=0.0.4; charset=utf-8"


@router.get(
    "/metrics",
    summary="Numbers for Prometheus",
    response_class=Response,
    responses={
        200: {
            "description": "In the text format of Prometheus",
            "content": {"text/plain": {"schema": {"type": "string"}}},
        },
        **documented(),
    },
)
async def metrics(request: Request) -> Response:
    """Of a tenant, how many kernels they have, and nothing that others do."""
    reception: Reception = request.app.state.reception
    guest = reception.guest(request)
    # Nobody is started just to be counted.
    kernels = busy = 0
    if os.access(locate(reception.settings).keeper_address, os.F_OK):
        records = await guest.records()
        kernels = len(records)
        busy = sum(record.status == "busy" for record in records)
    gauges = {
        "kernels": ("Kernels of this home.", float(kernels)),
        "kernels_busy": ("Kernels that were last known to run a cell.", float(busy)),
    }
    numbers: Numbers = request.app.state.numbers
    if guest.tenant is None:
        running = float(len(reception.underway))
        words = "Executions that clients of this service wait for."
        gauges["executions_running"] = (words, running)
        text = numbers.text(gauges)
    else:
        text = gauges_text(gauges)
    return Response(text, headers={"content-type": _FORMAT, "cache-control": "no-store"})
