"""Numbers for Prometheus."""

from __future__ import annotations

import os

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from kernelbox.keeper.home import locate
from kernelbox.server.errors import documented
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
    reception: Reception = request.app.state.reception
    # Nobody is started just to be counted.
    kernels = busy = 0
    if os.access(locate(reception.settings).keeper_address, os.F_OK):
        records = await reception.box.list_kernels()
        kernels = len(records)
        busy = sum(record.status == "busy" for record in records)
    gauges = {
        "kernels": ("Kernels of this home.", float(kernels)),
        "kernels_busy": ("Kernels that were last known to run a cell.", float(busy)),
        "executions_running": (
            "Executions that clients of this service wait for.",
            float(len(reception.underway)),
        ),
    }
    text = request.app.state.numbers.text(gauges)
    return Response(text, headers={"content-type": _FORMAT, "cache-control": "no-store"})
