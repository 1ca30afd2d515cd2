"""A client of ``/api/kernels/{id}/channels``, with Jupyter Server's own code for the frames."""

from __future__ import annotations

import json
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from http_service import Service
from jupyter_server.services.kernels.connection.base import (
    deserialize_binary_message,
    deserialize_msg_from_ws_v1,
    serialize_binary_message,
    serialize_msg_to_ws_v1,
)
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

V1 = "v1.kernel.websocket.jupyter.org"
PATIENCE = 30.0

Message = dict[str, Any]


class Talk:
    """One connection."""

    def __init__(self, line: ClientConnection, *, session: str) -> None:
        self.line = line
        self.v1 = line.subprotocol == V1
        self.session = session
        self.heard: list[Message] = []
        """Everything, in the order in which it came."""
        self._unread: deque[Message] = deque()

    # -- saying ---------------------------------------------------------------------------------

    def say(
        self,
        msg_type: str,
        content: Message,
        *,
        channel: str = "shell",
        buffers: Sequence[bytes] = (),
        parent: Message | None = None,
    ) -> str:
        msg_id = uuid.uuid4().hex
        header = {
            "msg_id": msg_id,
            "msg_type": msg_type,
            "session": self.session,
            "username": "tester",
            "date": datetime.now(UTC).isoformat(),
            "version": "5.3",
        }
        message: Message = {
            "header": header,
            "parent_header": parent or {},
            "metadata": {},
            "content": content,
        }
        if self.v1:
            names = ("header", "parent_header", "metadata", "content")
            parts = [json.dumps(message[name]).encode() for name in names]
            self.line.send(serialize_msg_to_ws_v1([*parts, *buffers], channel))
        elif buffers:
            self.line.send(
                serialize_binary_message({**message, "channel": channel, "buffers": list(buffers)})
            )
        else:
            self.line.send(json.dumps({**message, "channel": channel, "buffers": []}))
        return msg_id

    def execute(self, code: str, **options: Any) -> str:
        content = {
            "code": code,
            "silent": False,
            "store_history": True,
            "user_expressions": {},
            "allow_stdin": False,
            "stop_on_error": True,
        }
        return self.say("execute_request", {**content, **options})

    # -- hearing --------------------------------------------------------------------------------

    def next(self, timeout: float = PATIENCE) -> Message:
        message = self._read(self.line.recv(timeout=timeout))
        self.heard.append(message)
        return message

    def wait_for(self, condition: Callable[[Message], object]) -> Message:
        """The next message that fits; it may have been heard while something else was waited for."""
        for message in list(self._unread):
            self._unread.remove(message)
            if condition(message):
                return message
        deadline = time.monotonic() + PATIENCE
        while not condition(message := self.next(max(0.0, deadline - time.monotonic()))):
            pass
        return message

    def wait_for_type(self, msg_type: str, **content: Any) -> Message:
        return self.wait_for(
            lambda message: (
                message["header"]["msg_type"] == msg_type
                and content.items() <= message["content"].items()
            )
        )

    def wait_for_text(self, text: str) -> None:
        """Until this has been printed, in however many pieces."""
        deadline = time.monotonic() + PATIENCE
        while text not in text_of(self.heard):
            self.next(max(0.0, deadline - time.monotonic()))

    def answers_to(self, msg_id: str) -> list[Message]:
        """All about a request, until its reply and its idle state have come."""
        found: list[Message] = []
        missing = {"reply", "idle"}
        while missing:
            message = self.next()
            if message["parent_header"].get("msg_id") != msg_id:
                self._unread.append(message)
                continue
            found.append(message)
            if message["header"]["msg_type"].endswith("_reply"):
                missing.discard("reply")
            if message["content"].get("execution_state") == "idle":
                missing.discard("idle")
        return found

    def run(self, code: str, **options: Any) -> list[Message]:
        return self.answers_to(self.execute(code, **options))

    def printed(self, code: str) -> str:
        return text_of(self.run(code))

    def ask(self, msg_type: str, content: Message | None = None, **options: Any) -> Message:
        answers = self.answers_to(self.say(msg_type, content or {}, **options))
        return content_of(answers, msg_type.replace("_request", "_reply"))

    def _read(self, frame: str | bytes) -> Message:
        if self.v1:
            assert isinstance(frame, bytes)
            channel, parts = deserialize_msg_from_ws_v1(frame)
            names = ("header", "parent_header", "metadata", "content")
            message: Message = {
                name: json.loads(part) for name, part in zip(names, parts[:4], strict=True)
            }
            return {**message, "channel": channel, "buffers": parts[4:]}
        if isinstance(frame, bytes):
            unpacked: Message = deserialize_binary_message(frame)
            return unpacked
        loaded: Message = json.loads(frame)
        return loaded

    def closed_with(self) -> tuple[int, str]:
        """The code and the reason that the service closes this connection with."""
        try:
            while True:
                self.next()
        except ConnectionClosed as closed:
            return (closed.rcvd.code, closed.rcvd.reason) if closed.rcvd else (1006, "")

    def vanish(self) -> None:
        """Be gone without a word, as when the network breaks."""
        self.line.socket.shutdown(2)
        self.line.close()


@contextmanager
def talking(
    service: Service,
    kernel: str,
    *,
    v1: bool = False,
    session: str | None = None,
    headers: dict[str, str] | None = None,
    **query: str,
) -> Iterator[Talk]:
    """Talk to a kernel over a WebSocket; ``session=""`` gives none."""
    name = uuid.uuid4().hex if session is None else session
    if name:
        query["session_id"] = name
    address = service.url.replace("http", "ws", 1)
    with connect(
        f"{address}/api/kernels/{kernel}/channels?{urlencode(query)}",
        subprotocols=[V1] if v1 else None,  # type: ignore[list-item]
        additional_headers=headers,
        max_size=None,
        max_queue=None,  # or what nobody reads would be in the way of the farewell
        proxy=None,
        close_timeout=5,
    ) as line:
        yield Talk(line, session=name)


def content_of(messages: list[Message], msg_type: str) -> Message:
    (found,) = (m["content"] for m in messages if m["header"]["msg_type"] == msg_type)
    content: Message = found
    return content


def text_of(messages: list[Message], name: str = "stdout") -> str:
    return "".join(
        message["content"]["text"]
        for message in messages
        if message["header"]["msg_type"] == "stream" and message["content"]["name"] == name
    )
