"""Jupyter's sessions: which document uses which kernel."""

from __future__ import annotations

import uuid
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from kernelbox.result import KernelRecord
from kernelbox.server.answers import answer
from kernelbox.server.errors import Refused
from kernelbox.server.jupyter.kernels import MADE_HERE, find, model, read_body, start
from kernelbox.server.plainrouter import PlainRouter
from kernelbox.server.reception import Reception

router = PlainRouter()

_MOST = 10_000
_MOST_OF_A_TENANT = 1_000
_LONGEST = 4096


@router.get("/api/sessions")
async def list_sessions(request: Request) -> Response:
    return answer(await _sessions(request))


@router.post("/api/sessions")
async def start_session(request: Request) -> Response:
    """A session for a document; if it has one already, that one."""
    body = await read_body(request)
    path = _text(body, "path")
    known = await _sessions(request)
    for session in known:
        if session["path"] == path and path:
            return answer(session, status=201)
    reception: Reception = request.app.state.reception
    tenant = reception.guest(request).tenant
    if len(known) >= (_MOST if tenant is None else _MOST_OF_A_TENANT):
        raise Refused(
            429,
            "TooManySessions",
            f"there are {len(known):,} sessions already",
            hint="DELETE /api/sessions/{id} ends one, and its kernel",
        )
    record = await _kernel(request, body.get("kernel") or {})
    session = {
        "id": str(uuid.uuid4()),
        "path": path,
        "name": _text(body, "name"),
        "type": _text(body, "type") or "notebook",
        "tenant": tenant,
        "kernel_id": record.kernel_id,
    }
    reception.sessions[session["id"]] = session
    return answer(_shown(request, session, record), status=201)


@router.get("/api/sessions/{session}")
async def show_session(request: Request, session: str) -> Response:
    return answer(await _session(request, session))


@router.patch("/api/sessions/{session}")
async def change_session(request: Request, session: str) -> Response:
    """Another name or place of the document, or another kernel for it."""
    before = await _session(request, session)
    reception: Reception = request.app.state.reception
    body = await read_body(request)
    changed = {name: text for name in ("path", "name", "type") if (text := _text(body, name))}
    if body.get("kernel"):
        changed["kernel_id"] = (await _kernel(request, body["kernel"])).kernel_id
    stored = reception.sessions.get(session)
    if stored is None:
        raise _no_session(session)
    stored.update(changed)
    await _end_if_unused(reception, before["kernel"])
    return answer(await _session(request, session))


@router.delete("/api/sessions/{session}")
async def end_session(request: Request, session: str) -> Response:
    shown = await _session(request, session)
    reception: Reception = request.app.state.reception
    reception.sessions.pop(session, None)
    await reception.box.destroy(shown["kernel"]["id"])
    return Response(status_code=204)


async def _kernel(request: Request, wanted: object) -> KernelRecord:
    if not isinstance(wanted, dict):
        raise Refused(422, "BadInput", "kernel is an object with a name or an id")
    if wanted.get("id"):
        return await find(request, str(wanted["id"]))
    return await start(request, {"name": wanted.get("name")})


async def _end_if_unused(reception: Reception, kernel: dict[str, Any]) -> None:
    """A document has changed its kernel: the old one goes, if it was made for it alone."""
    used = any(session["kernel_id"] == kernel["id"] for session in reception.sessions.values())
    if not used and kernel["kernelbox_name"].startswith(MADE_HERE):
        await reception.box.destroy(kernel["id"])


async def _sessions(request: Request) -> list[dict[str, Any]]:
    """Those whose kernels live; the others are forgotten."""
    reception: Reception = request.app.state.reception
    guest = reception.guest(request)
    # Which sessions there are is looked at first: a kernel of a later one may not be listed yet.
    known = [
        session for session in reception.sessions.values() if session["tenant"] == guest.tenant
    ]
    live = {record.kernel_id: record for record in await guest.records()}
    found = []
    for session in known:
        record = live.get(session["kernel_id"])
        if record is None:
            reception.sessions.pop(session["id"], None)
        else:
            found.append(_shown(request, session, record))
    return found


async def _session(request: Request, session: str) -> dict[str, Any]:
    for shown in await _sessions(request):
        if shown["id"] == session:
            return shown
    raise _no_session(session)


def _no_session(session: str) -> Refused:
    return Refused(
        404,
        "SessionNotFound",
        f"there is no session {session[:100]!r}",
        hint="GET /api/sessions lists them; a session ends with its kernel",
    )


def _shown(request: Request, session: dict[str, Any], record: KernelRecord) -> dict[str, Any]:
    shown = {name: session[name] for name in ("id", "path", "name", "type")}
    notebook = {"path": session["path"], "name": session["name"]}
    return {**shown, "kernel": model(request, record), "notebook": notebook}


def _text(body: dict[str, Any], name: str) -> str:
    return str(body.get(name) or "")[:_LONGEST]
