"""A WebSocket for one kernel: code, answers to input() and interrupts go in, what happens comes
out."""

from __future__ import annotations

import asyncio
import json
import re
from collections import deque
from typing import Any, NamedTuple

from fastapi import APIRouter
from pydantic import ValidationError
from starlette.websockets import WebSocket, WebSocketDisconnect

from kernelbox.errors import BoxError
from kernelbox.result import Event, ExecutionResult
from kernelbox.server.answers import to_json
from kernelbox.server.errors import (
    Refused,
    error_content,
    failure_content,
    status_of,
    turn_away,
)
from kernelbox.server.models import Execute
from kernelbox.server.reception import Guest, Reception
from kernelbox.server.running import Order, follow

router = APIRouter()

_MOST_WAITING = 1000
_KEY = re.compile("[!-~]{1,255}")
_LOOK_AGAIN = 0.5
"""Seconds between looks at whether a cell still waits for its answer."""


@router.websocket("/kernels/{kernel}/ws")
async def websocket(socket: WebSocket, kernel: str) -> None:
    """See docs/http.md for the messages."""
    reception: Reception = socket.app.state.reception
    guest = reception.guest(socket)
    try:
        wanted = await guest.kernel(kernel)
    except BoxError as error:
        shown = guest.error(error)
        await turn_away(socket, Refused(status_of(error), shown["error"], shown["message"]))
        return
    await socket.accept()
    talk = Talk(socket, guest, wanted)
    try:
        await talk.listen()
    except WebSocketDisconnect:
        pass
    finally:
        await talk.end()


class _Question(NamedTuple):
    number: int
    answer: asyncio.Future[str | None]


class Talk:
    """One connection: its executions run one after the other, in the order they came."""

    def __init__(self, socket: WebSocket, guest: Guest, kernel: str) -> None:
        self._socket = socket
        self._guest = guest
        self._kernel = kernel
        self._box = guest.reception.box
        self._waiting: deque[Order] = deque()
        self._arrived = asyncio.Event()
        self._questions: dict[str, _Question] = {}
        self._asked = 0
        self._running: str | None = None
        self._tasks: set[asyncio.Task[None]] = {asyncio.ensure_future(self._run_in_order())}

    async def listen(self) -> None:
        """Take what the client says until it leaves."""
        limit = self._guest.reception.server.max_body
        while True:
            text = await self._socket.receive_text()
            if len(text) > limit:
                await self._socket.close(1009, "a message is too long")
                return
            try:
                await self._take(json.loads(text))
            except (ValueError, RecursionError, KeyError):
                await self._complain("BadInput", "a message is a JSON object with an 'op'")
            except BoxError as error:
                await self._say("error", **self._guest.error(error))
            except Refused as refusal:
                await self._complain(refusal.error, refusal.detail)

    async def end(self) -> None:
        """The client has left: what runs is treated as it asked, what waits is not run."""
        for question in self._questions.values():
            question.answer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)

    # -- what the client says -------------------------------------------------------------------

    async def _take(self, message: Any) -> None:
        if not isinstance(message, dict):
            raise ValueError("not an object")
        fields = dict(message)
        op = fields.pop("op", None)
        if op == "execute":
            await self._execute(fields)
        elif op == "input":
            execution_id = str(fields.get("execution_id", self._running))
            self._answer(execution_id, fields.get("value"), fields.get("number"))
        elif op == "interrupt":
            await self._interrupt(fields.get("execution_id"))
        elif op == "attach":
            await self._attach(fields)
        else:
            await self._complain(
                "BadInput", f"no op {str(op)[:50]!r}; there are execute, input, interrupt, attach"
            )

    async def _execute(self, fields: dict[str, Any]) -> None:
        key = fields.pop("idempotency_key", None)
        if not (key is None or (isinstance(key, str) and _KEY.fullmatch(key))):
            words = "an idempotency_key has 1 to 255 characters of printable ASCII, without spaces"
            await self._complain("BadInput", words)
            return
        try:
            body = Execute.model_validate(fields)
        except ValidationError as error:
            problems = "; ".join(f"{p['loc']}: {p['msg']}" for p in error.errors()[:3])
            await self._complain("BadInput", f"this cannot be executed: {problems}")
            return
        if len(self._waiting) >= _MOST_WAITING:
            await self._complain("TooManyRequests", f"{_MOST_WAITING} cells wait already")
            return
        most = 2 * self._guest.reception.server.max_body
        if sum(len(order.body.code) for order in self._waiting) + len(body.code) > most:
            await self._complain("TooManyRequests", f"{most:,} characters of code wait already")
            return
        order = Order.of(self._guest, self._kernel, body, key=key)
        self._waiting.append(order)
        self._arrived.set()
        await self._say("accepted", execution_id=order.execution_id, ahead=len(self._waiting) - 1)

    def _answer(self, execution_id: str, value: object, number: object = None) -> None:
        question = self._questions.get(execution_id)
        if question is None or number not in (None, question.number):
            return  # it was interrupted, and its answer is no other's
        del self._questions[execution_id]
        if not question.answer.done():
            question.answer.set_result(value if isinstance(value, str) else None)

    async def _interrupt(self, execution_id: object) -> None:
        """One execution of this connection, or, without an id, whatever runs in the kernel."""
        if execution_id is None:
            done = await self._box.interrupt(self._kernel)
        else:
            done = await self._take_back(str(execution_id))
        if done and execution_id in (None, self._running) and self._running is not None:
            self._answer(self._running, None)  # it does not wait for an answer any more
        await self._say("interrupted", interrupted=done, execution_id=execution_id)

    async def _take_back(self, execution_id: str) -> bool:
        for order in self._waiting:
            if order.execution_id == execution_id:
                self._waiting.remove(order)
                content = error_content("Cancelled", "it was cancelled before it was run")
                await self._say("error", **content, execution_id=execution_id)
                return True
        return await self._box.cancel(self._kernel, execution_id)

    async def _attach(self, fields: dict[str, Any]) -> None:
        execution_id, start = fields.get("execution_id"), fields.get("start", 0)
        if not isinstance(execution_id, str) or not isinstance(start, int) or start < 0:
            await self._complain("BadInput", "attach takes an execution_id and a start from 0 on")
            return
        if len(self._tasks) > _MOST_WAITING:
            await self._complain("TooManyRequests", "too many executions are attached to")
            return
        task = asyncio.ensure_future(self._follow(execution_id, start))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- what happens ---------------------------------------------------------------------------

    async def _run_in_order(self) -> None:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._waiting:
                order = self._waiting.popleft()
                self._running = order.execution_id
                await self._pass_on(
                    order.execution_id,
                    order.events(lambda prompt, order=order: self._ask(order, prompt)),  # type: ignore[misc]
                )

    async def _ask(self, order: Order, prompt: str) -> str | None:
        self._asked = number = self._asked + 1
        answer: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._questions[order.execution_id] = _Question(number, answer)
        await self._say("input", execution_id=order.execution_id, number=number, prompt=prompt)
        while not answer.done():
            await asyncio.wait({answer}, timeout=_LOOK_AGAIN)
            if not answer.done() and not await self._runs(order.execution_id):
                return None  # it timed out or died over the question
        return answer.result()

    async def _runs(self, execution_id: str) -> bool:
        try:
            running = (await self._box.status(self._kernel))["running"]
        except BoxError:
            return False
        return bool(running) and running["execution_id"] == execution_id

    async def _follow(self, execution_id: str, start: int) -> None:
        events = follow(self._guest.reception, self._kernel, execution_id, start=start)
        await self._pass_on(execution_id, events)

    async def _pass_on(self, execution_id: str, events: Any) -> None:
        try:
            async for event in events:
                await self._tell(execution_id, event)
        except Exception as error:  # noqa: BLE001 - the cells that wait are to run nevertheless
            content = failure_content(error, self._guest.error)
            await self._say("error", **content, execution_id=execution_id)
        finally:
            await events.aclose()

    async def _tell(self, execution_id: str, event: Event) -> None:
        number, item = event.number, event.item
        if isinstance(item, ExecutionResult):
            await self._say("result", execution_id=execution_id, number=number, result=item)
        else:
            await self._say("event", execution_id=execution_id, number=number, item=item)

    async def _complain(self, error: str, message: str) -> None:
        await self._say("error", **error_content(error, message))

    async def _say(self, kind: str, **content: Any) -> None:
        try:
            await self._socket.send_text(to_json({"type": kind, **content}).decode("ascii"))
        except (RuntimeError, WebSocketDisconnect):
            pass  # it has left; listen() hears of it
