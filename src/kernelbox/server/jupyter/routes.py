"""Jupyter's REST routes: the kernels of the box, as Jupyter clients know them.

They are not in our schema: Jupyter's own documentation is theirs.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import uuid
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response
from starlette.websockets import WebSocket, WebSocketDisconnect

from kernelbox import __version__
from kernelbox.errors import KernelNotFound
from kernelbox.result import KernelRecord
from kernelbox.server.answers import answer
from kernelbox.server.errors import Refused
from kernelbox.server.jupyter.lines import Line, Lines
from kernelbox.server.jupyter.wire import V1, BadFrame, Packet, decode, encode
from kernelbox.server.reception import Guest, Reception

router = APIRouter(include_in_schema=False)

SPEC = {
    "name": "python3",
    "spec": {
        "argv": ["kernelbox", "-f", "{connection_file}"],
        "env": {},
        "display_name": "Python 3 (KernelBox)",
        "language": "python",
        "interrupt_mode": "message",
        "metadata": {"debugger": False},
    },
    "resources": {},
}
_LEFT_FOR_GOOD = (1000,)


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
            "connections": sum(_lines(request).connections(r.kernel_id) for r in records),
            "kernels": len(records),
        }
    )


@router.get("/api/me")
async def me() -> Response:
    identity = {"username": "kernelbox", "name": "kernelbox", "display_name": "kernelbox"}
    return answer({"identity": identity, "permissions": {}})


@router.get("/api/kernelspecs")
async def kernelspecs() -> Response:
    return answer({"default": "python3", "kernelspecs": {"python3": SPEC}})


@router.get("/api/kernelspecs/{name}")
async def kernelspec(name: str) -> Response:
    if name != "python3":
        raise Refused(404, "KernelspecNotFound", f"there is no kernelspec {name[:100]!r}")
    return answer(SPEC)


# -- kernels ----------------------------------------------------------------------------------


@router.get("/api/kernels")
async def list_kernels(request: Request) -> Response:
    records = await request.app.state.reception.guest(request).kernels()
    return answer([_model(request, record) for record in records])


@router.post("/api/kernels")
async def start_kernel(request: Request) -> Response:
    body = await _body(request)
    record = await _start(request, body)
    return answer(
        _model(request, record),
        status=201,
        headers={"location": f"/api/kernels/{record.kernel_id}"},
    )


@router.get("/api/kernels/{kernel}")
async def show_kernel(request: Request, kernel: str) -> Response:
    return answer(_model(request, await _record(request, kernel)))


@router.delete("/api/kernels/{kernel}")
async def end_kernel(request: Request, kernel: str) -> Response:
    record = await _record(request, kernel)
    await request.app.state.reception.box.destroy(record)
    return Response(status_code=204)


@router.post("/api/kernels/{kernel}/restart")
async def restart_kernel(request: Request, kernel: str) -> Response:
    record = await _record(request, kernel)
    return answer(_model(request, await request.app.state.reception.box.restart(record)))


@router.post("/api/kernels/{kernel}/interrupt")
async def interrupt_kernel(request: Request, kernel: str) -> Response:
    await request.app.state.reception.box.interrupt(await _record(request, kernel))
    return Response(status_code=204)


async def _start(request: Request, body: dict[str, Any]) -> KernelRecord:
    """A kernel under a name of its own; whoever knows the name shares it."""
    reception: Reception = request.app.state.reception
    guest = reception.guest(request)
    wanted = body.get("name") or "python3"
    if wanted != "python3":
        raise Refused(
            404,
            "KernelspecNotFound",
            f"there is no kernelspec {str(wanted)[:100]!r}",
            hint="GET /api/kernelspecs lists them",
        )
    env = body.get("env") or {}
    if not isinstance(env, dict):
        raise Refused(422, "BadInput", "env maps names to values")
    given = {str(name): str(value) for name, value in env.items()}
    folder = body.get("cwd") or given.get("KERNEL_WORKING_DIR")
    name = f"jupyter-{secrets.token_hex(4)}"
    cwd = await asyncio.to_thread(_folder, guest, name, folder)
    async with guest.making([name]) as (full,):
        return await reception.box.get_or_create(
            full, cwd=cwd, environ={**os.environ, **given} if given else None
        )


def _folder(guest: Guest, name: str, wanted: object) -> str | None:
    """Where it starts: where the client wants it, if that is a folder here; a client on another
    machine may name one of its own."""
    if guest.tenant is None and isinstance(wanted, str) and os.path.isdir(wanted):
        return wanted
    return guest.folder(name)


async def _record(request: Request | WebSocket, kernel: str) -> KernelRecord:
    guest: Guest = request.app.state.reception.guest(request)
    wanted = await guest.kernel(kernel)
    for record in await guest.records():
        if wanted in (record.kernel_id, record.name):
            return record
    raise KernelNotFound(f"there is no kernel {kernel[:100]!r}")


def _model(request: Request, record: KernelRecord) -> dict[str, Any]:
    return {
        "id": record.kernel_id,
        "name": "python3",
        "last_activity": _date(record.last_used_at),
        "execution_state": record.status if record.status in ("idle", "busy") else "unknown",
        "connections": _lines(request).connections(record.kernel_id),
        "kernelbox_name": record.name,
    }


def _date(seconds: float) -> str:
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _lines(request: Request | WebSocket) -> Lines:
    reception: Reception = request.app.state.reception
    return reception.lines


async def _body(request: Request) -> dict[str, Any]:
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


# -- sessions: which document uses which kernel -------------------------------------------------


@router.get("/api/sessions")
async def list_sessions(request: Request) -> Response:
    return answer(await _sessions(request))


@router.post("/api/sessions")
async def start_session(request: Request) -> Response:
    body = await _body(request)
    path = str(body.get("path") or "")
    for session in await _sessions(request):
        if session["path"] == path and path:
            return answer(session, status=201)
    wanted = body.get("kernel") or {}
    if not isinstance(wanted, dict):
        raise Refused(422, "BadInput", "kernel is an object with a name or an id")
    if wanted.get("id"):
        record = await _record(request, str(wanted["id"]))
    else:
        record = await _start(request, {"name": wanted.get("name")})
    reception: Reception = request.app.state.reception
    session = {
        "id": str(uuid.uuid4()),
        "path": path,
        "name": str(body.get("name") or ""),
        "type": str(body.get("type") or "notebook"),
        "tenant": reception.guest(request).tenant,
        "kernel_id": record.kernel_id,
    }
    reception.sessions[session["id"]] = session
    return answer(_shown_session(request, session, record), status=201)


@router.get("/api/sessions/{session}")
async def show_session(request: Request, session: str) -> Response:
    return answer(await _session(request, session))


@router.patch("/api/sessions/{session}")
async def change_session(request: Request, session: str) -> Response:
    await _session(request, session)
    stored = request.app.state.reception.sessions[session]
    body = await _body(request)
    for name in ("path", "name", "type"):
        if body.get(name):
            stored[name] = str(body[name])
    if isinstance(body.get("kernel"), dict):
        wanted = body["kernel"]
        if wanted.get("id"):
            record = await _record(request, str(wanted["id"]))
        else:
            record = await _start(request, {"name": wanted.get("name")})
        stored["kernel_id"] = record.kernel_id
    return answer(await _session(request, session))


@router.delete("/api/sessions/{session}")
async def end_session(request: Request, session: str) -> Response:
    shown = await _session(request, session)
    reception: Reception = request.app.state.reception
    del reception.sessions[session]
    await reception.box.destroy(shown["kernel"]["id"])
    return Response(status_code=204)


async def _sessions(request: Request) -> list[dict[str, Any]]:
    """Those whose kernels live; the others are forgotten."""
    reception: Reception = request.app.state.reception
    guest = reception.guest(request)
    live = {record.kernel_id: record for record in await guest.records()}
    found = []
    for session in list(reception.sessions.values()):
        if session["tenant"] != guest.tenant:
            continue
        record = live.get(session["kernel_id"])
        if record is None:
            reception.sessions.pop(session["id"], None)
        else:
            found.append(_shown_session(request, session, record))
    return found


async def _session(request: Request, session: str) -> dict[str, Any]:
    for shown in await _sessions(request):
        if shown["id"] == session:
            return shown
    raise Refused(404, "SessionNotFound", f"there is no session {session[:100]!r}")


def _shown_session(
    request: Request, session: dict[str, Any], record: KernelRecord
) -> dict[str, Any]:
    shown = {name: session[name] for name in ("id", "path", "name", "type")}
    notebook = {"path": session["path"], "name": session["name"]}
    return {**shown, "kernel": _model(request, record), "notebook": notebook}


# -- channels -----------------------------------------------------------------------------------


@router.websocket("/api/kernels/{kernel}/channels")
async def channels(socket: WebSocket, kernel: str) -> None:
    """All channels of a kernel over one WebSocket. Who comes back with the same ``session_id`` is
    told what it has missed."""
    try:
        record = await _record(socket, kernel)
    except KernelNotFound:
        await socket.close(1008, "no such kernel")
        return
    v1 = V1 in socket.scope.get("subprotocols", ())
    session = socket.query_params.get("session_id", "")
    lines = _lines(socket)
    line = await lines.take(record, session or uuid.uuid4().hex)
    await socket.accept(V1 if v1 else None)
    code = 1006
    try:
        code = await _talk(socket, line, v1=v1, limit=_limit(socket))
    finally:
        lines.leave(line, for_good=code in _LEFT_FOR_GOOD or not session)


def _limit(socket: WebSocket) -> int:
    reception: Reception = socket.app.state.reception
    return reception.server.max_body


async def _talk(socket: WebSocket, line: Line, *, v1: bool, limit: int) -> int:
    """Pass messages both ways until one side ends; the code that the client closed with."""

    async def tell(packet: Packet) -> None:
        frame = encode(packet, v1=v1)
        if isinstance(frame, str):
            await socket.send_text(frame)
        else:
            await socket.send_bytes(frame)

    listening = asyncio.ensure_future(_listen(socket, line, v1=v1, limit=limit))
    ended = asyncio.ensure_future(line.ended.wait())
    try:
        await line.attach(tell)
        await asyncio.wait({listening, ended}, return_when=asyncio.FIRST_COMPLETED)
        if listening.done():
            return listening.result()
        # The word of its death goes out first.
        await asyncio.wait({listening}, timeout=0.2)
        if not listening.done():
            await socket.close(1001, "the kernel has ended")
        return 1000
    except (RuntimeError, WebSocketDisconnect):
        return 1006
    finally:
        line.detach(tell)
        listening.cancel()
        ended.cancel()


async def _listen(socket: WebSocket, line: Line, *, v1: bool, limit: int) -> int:
    while True:
        message = await socket.receive()
        if message["type"] == "websocket.disconnect":
            code: int = message.get("code") or 1006
            return code
        text = message.get("text")
        data: str | bytes = message["bytes"] if text is None else text
        if limit and len(data) > limit:
            await socket.close(1009, "a message is too long")
            return 1000
        try:
            packet = decode(data, v1=v1)
        except BadFrame as error:
            await socket.close(1003, str(error)[:120])
            return 1000
        await line.send(packet)
