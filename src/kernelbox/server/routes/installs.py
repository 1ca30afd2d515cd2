"""Packages for kernels."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from kernelbox.errors import BadInput
from kernelbox.server.answers import answer
from kernelbox.server.errors import Refused, documented
from kernelbox.server.models import Install, Installed, KernelPath
from kernelbox.server.reception import Reception

router = APIRouter(tags=["Packages"])


@router.post(
    "/kernels/{kernel}/install",
    summary="Give a kernel packages",
    responses={200: {"model": Installed}, **documented(400, 404, 409, 410)},
)
async def install(request: Request, kernel: KernelPath, body: Install) -> Response:
    """Importable at once, also where the kernel's network is off: the service downloads them, under
    its own policy (`KERNELBOX_INSTALL_…`). No environment on disk changes; they go with the kernel.
    To ask again for the same changes nothing."""
    reception: Reception = request.app.state.reception
    wanted = await reception.guest(request).kernel(kernel)
    try:
        report = await reception.box.install(wanted, *body.packages, upgrade=body.upgrade)
    except BadInput as error:  # a text that looks like a requirement, and is none
        details = {**error.details, "reason": "bad_request"}
        raise Refused(409, "InstallFailed", error.message, details=details) from None
    return answer(report)
