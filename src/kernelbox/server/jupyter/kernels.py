"""Jupyter's REST routes: the service, and the kernels of the box as Jupyter clients know them.

They are not in our schema: Jupyter's own documentation is theirs.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
from datetime import UTC, datetime
from typing import Any

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from kernelbox import __version__
from kernelbox.errors import BoxError, KernelNotFound
from kernelbox.result import KernelRecord
from kernelbox.server.answers import answer
from kernelbox.server.errors import Refused
from kernelbox.server.plainrouter import PlainRouter
from kernelbox.server.reception import Guest, Reception

router = PlainRouter()

MADE_HERE = "jupyter-"
"""How the names of kernels begin that Jupyter clients have started."""
_OURS = "python3"
_NAMED = "kernelbox."
"""How the kernelspec of a kernel that has a name begins. A client that starts it gets that very
kernel. JupyterLab behind a gateway knows kernels by their specs only, and can share it so."""
_SPEC_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")


# -- the service ------------------------------------------------------------------------------


@router.get("/api")
async def version() -> Response:
    return answer({"version": __version__})


@router.get("/api/status")
async def status(request: Request) -> Response:
    reception: Reception = request.app.state.reception
    records = await reception.guest(request).kernels()
    latest = max((record.last_used_at for record in records), default=reception.started_at)
    return answer(
        {
            "started": _date(reception.started_at),
            "last_activity": _date(latest),
            "connections": sum(reception.lines.connections(r.kernel_id) for r in records),
            "kernels": len(records),
        }
    )


@router.get("/api/me")
async def me() -> Response:
    identity = {"username": "kernelbox", "name": "kernelbox", "display_name": "kernelbox"}
    return answer({"identity": identity, "permissions": {}})


@router.get("/api/kernelspecs")
async def kernelspecs(request: Request) -> Response:
    return answer({"default": _OURS, "kernelspecs": await _specs(request)})


@router.get("/api/kernelspecs/{name}")
async def kernelspec(request: Request, name: str) -> Response:
    specs = await _specs(request)
    if name not in specs:
        raise _no_spec(name)
    return answer(specs[name])


async def _specs(request: Request) -> dict[str, Any]:
    specs = {_OURS: _spec(_OURS, "Python 3 (KernelBox)")}
    for record in await request.app.state.reception.guest(request).kernels():
        if _SPEC_NAME.fullmatch(record.name) and not record.name.startswith(MADE_HERE):
            name = _NAMED + record.name
            specs[name] = _spec(name, f"KernelBox: {record.name}")
    return specs


def _spec(name: str, title: str) -> dict[str, Any]:
    spec = {
        "argv": ["kernelbox", "-f", "{connection_file}"],
        "env": {},
        "display_name": title,
        "language": "python",
        "interrupt_mode": "message",
        "metadata": {"debugger": False},
    }
    return {"name": name, "spec": spec, "resources": {}}


def _no_spec(name: object) -> Refused:
    return Refused(
        404,
        "KernelspecNotFound",
        f"there is no kernelspec {str(name)[:100]!r}",
        hint="GET /api/kernelspecs lists them",
    )


# -- kernels ----------------------------------------------------------------------------------


@router.get("/api/kernels")
async def list_kernels(request: Request) -> Response:
    # Asked of each: clients show who is busy, and end those that have been idle for long.
    records = await request.app.state.reception.guest(request).kernels(refresh=True)
    return answer([model(request, record) for record in records])


@router.post("/api/kernels")
async def start_kernel(request: Request) -> Response:
    record = await start(request, await read_body(request))
    return answer(
        model(request, record),
        status=201,
        headers={"location": f"/api/kernels/{record.kernel_id}"},
    )


@router.get("/api/kernels/{kernel}")
async def show_kernel(request: Request, kernel: str) -> Response:
    record = await find(request, kernel)
    shown = model(request, record)
    try:
        running = (await request.app.state.reception.box.status(record))["running"]
    except BoxError:
        shown["execution_state"] = (
            "unknown"  # it does not answer; if it is gone, the next call tells
        )
    else:
        shown["execution_state"] = "busy" if running else "idle"
    return answer(shown)


@router.delete("/api/kernels/{kernel}")
async def end_kernel(request: Request, kernel: str) -> Response:
    record = await find(request, kernel)
    await request.app.state.reception.box.destroy(record)
    return Response(status_code=204)


@router.post("/api/kernels/{kernel}/restart")
async def restart_kernel(request: Request, kernel: str) -> Response:
    record = await find(request, kernel)
    return answer(model(request, await request.app.state.reception.box.restart(record)))


@router.post("/api/kernels/{kernel}/interrupt")
async def interrupt_kernel(request: Request, kernel: str) -> Response:
    await request.app.state.reception.box.interrupt(await find(request, kernel))
    return Response(status_code=204)


# -- what the other routes of this dialect need too ---------------------------------------------


async def start(request: Request, body: dict[str, Any]) -> KernelRecord:
    """The kernel that a client wants started: a new one, or the one whose name the spec has."""
    reception: Reception = request.app.state.reception
    guest = reception.guest(request)
    wanted = body.get("name") or _OURS
    if wanted == _OURS:
        name, fresh = MADE_HERE + secrets.token_hex(4), True
    elif isinstance(wanted, str) and wanted.startswith(_NAMED):
        name, fresh = wanted.removeprefix(_NAMED), False
        if not _SPEC_NAME.fullmatch(name):
            raise _no_spec(wanted)
    else:
        raise _no_spec(wanted)
    given = {**reception.env, **_environment(body.get("env"))}
    folder = body.get("cwd") or given.get("KERNEL_WORKING_DIR")
    cwd = await asyncio.to_thread(_folder, guest, folder)
    async with guest.making([name], fresh=fresh) as (full,):
        if not fresh:
            live = {record.name: record for record in await guest.records()}
            if full in live:
                return live[full]
        return await guest.make(full, cwd=cwd, given=given)


async def find(connection: HTTPConnection, kernel: str) -> KernelRecord:
    """The guest's kernel of an id or a name, as the home has it."""
    guest: Guest = connection.app.state.reception.guest(connection)
    wanted = await guest.kernel(kernel)
    for record in await guest.records():
        if wanted in (record.kernel_id, record.name):
            return record
    raise KernelNotFound(f"there is no kernel {kernel[:100]!r}")


def model(request: Request, record: KernelRecord) -> dict[str, Any]:
    """A kernel in Jupyter's words, with our own name for it besides."""
    reception: Reception = request.app.state.reception
    name = record.name.removeprefix(reception.guest(request).prefix)
    return {
        "id": record.kernel_id,
        "name": record.kernel_type,
        "last_activity": _date(record.last_used_at),
        "execution_state": record.status if record.status in ("idle", "busy") else "unknown",
        "connections": reception.lines.connections(record.kernel_id),
        "kernelbox_name": name,
    }


async def read_body(request: Request) -> dict[str, Any]:
    """JSON, if there is anything at all."""
    raw = await request.body()
    if not raw:
        return {}
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        raise Refused(400, "BadInput", "the body is no JSON") from None
    if body is None:
        return {}
    if not isinstance(body, dict):
        raise Refused(422, "BadInput", "the body is a JSON object")
    return body


def _environment(env: object) -> dict[str, str]:
    """What a client wants in its kernel's environment."""
    if env is None:
        return {}
    if not isinstance(env, dict):
        raise Refused(422, "BadInput", "env maps names to values")
    given = {name: str(value) for name, value in env.items()}
    for name, value in given.items():
        if not name or "=" in name or "\0" in name + value:
            raise Refused(
                422, "BadInput", f"{name[:100]!r} cannot be set in a kernel's environment"
            )
    return given


def _folder(guest: Guest, wanted: object) -> str | None:
    """Where it starts: where the client wants it, if that is a folder here; a client on another
    machine may name one of its own. A tenant's name is not even looked for."""
    if guest.tenant is None and isinstance(wanted, str) and _is_folder(wanted):
        return os.path.abspath(wanted)
    return None


def _is_folder(path: str) -> bool:
    try:
        return os.path.isdir(path) and os.access(path, os.X_OK)
    except ValueError:  # a NUL in it
        return False


def _date(seconds: float) -> str:
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
