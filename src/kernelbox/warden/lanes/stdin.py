"""``input()`` over the stdin channel: the question to the client, and its answer."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass

from kernelbox.reactor import Reactor, Timer
from kernelbox.warden.execution import Execution, InputRequest
from kernelbox.warden.kernel import Kernel
from kernelbox.warden.lanes.broadcast import Request
from kernelbox.warden.lanes.messages import BadMessage, Session
from kernelbox.warden.lanes.zeromq import Channel, ZSocket

_PATIENCE = 1.0
_RETRY = 0.02


@dataclass(slots=True, eq=False)
class Prompt:
    """A question that waits for its answer."""

    request: Request
    execution: Execution
    asked: InputRequest
    deadline: float
    name: str
    """Of the message that asks; clients that are careful say which one they answer."""


class Prompts:
    """At most one question is open: only one cell runs at a time."""

    def __init__(
        self, reactor: Reactor, socket: ZSocket, kernel: Kernel, *, session: Session
    ) -> None:
        self._reactor = reactor
        self._kernel = kernel
        self._session = session
        self._channel = Channel(reactor, socket, on_message=self._arrived)
        self._open: Prompt | None = None
        self._retry: Timer | None = None

    def ask(self, request: Request, execution: Execution, asked: InputRequest) -> None:
        deadline = time.monotonic() + _PATIENCE
        self._open = Prompt(request, execution, asked, deadline, uuid.uuid4().hex)
        self._send(self._open)

    def withdraw(self, execution: Execution) -> None:
        """The cell has ended; an answer that still comes is nobody's."""
        if self._open is not None and self._open.execution is execution:
            self._forget()

    def client_left(self, connection: int) -> None:
        """A client that is gone will not answer: the cell gets an EOFError instead."""
        if self._open is not None and self._open.request.connection == connection:
            self._give_up(self._open)

    def close(self, linger: float) -> None:
        self._forget()
        self._channel.close(linger)

    def _send(self, prompt: Prompt) -> None:
        if prompt is not self._open:
            return
        message = prompt.request.message
        content = {"prompt": prompt.asked.prompt, "password": prompt.asked.password}
        frames = self._session.pack(
            "input_request",
            content,
            parent=message.header,
            identities=message.identities,
            msg_id=prompt.name,
        )
        if self._channel.send(frames):
            return
        # Its stdin connection may be a moment behind its shell connection.
        if time.monotonic() < prompt.deadline:
            self._retry = self._reactor.call_later(_RETRY, lambda: self._send(prompt))
        else:
            self._give_up(prompt)

    def _arrived(self, frames: list[bytes], _: int) -> None:
        try:
            message = self._session.unpack(frames)
        except BadMessage:
            return
        prompt = self._open
        if prompt is None or message.msg_type != "input_reply":
            return
        if message.identities != prompt.request.message.identities:
            return
        parent = message.parent_header
        if parent.get("msg_type") == "input_request" and parent.get("msg_id") != prompt.name:
            return  # to an earlier question, which was interrupted
        self._forget()
        value = message.content.get("value")
        answer = None if value is None else str(value)
        self._kernel.answer_input(prompt.execution, prompt.asked.number, answer)

    def _give_up(self, prompt: Prompt) -> None:
        self._forget()
        self._kernel.answer_input(prompt.execution, prompt.asked.number, None)

    def _forget(self) -> None:
        self._open = None
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
