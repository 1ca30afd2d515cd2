"""The client's end of a foreign kernel's ZeroMQ sockets, in the reactor."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import zmq

from kernelbox.reactor import Reactor
from kernelbox.warden.lanes.messages import BadMessage, Message, Session
from kernelbox.warden.lanes.zeromq import Channel, ZContext

OnMessage = Callable[[Message], None]

_RECONNECT_MS = 10
_LAST_WORDS_MS = 5


class ForeignChannels:
    """Shell, control, stdin and iopub of one kernel process, signed with its key."""

    def __init__(
        self,
        reactor: Reactor,
        context: ZContext,
        info: dict[str, Any],
        *,
        on_shell: OnMessage,
        on_iopub: OnMessage,
        on_stdin: OnMessage,
    ) -> None:
        self.session = Session(info["key"].encode(), scheme=info["signature_scheme"])
        self._iopub = context.socket(zmq.SUB)
        self._iopub.set(zmq.SUBSCRIBE, b"")
        handlers: dict[str, OnMessage] = {
            "iopub": on_iopub,  # first, so that nothing of the first request is missed
            "shell": on_shell,
            "control": lambda message: None,
            "stdin": on_stdin,
        }
        self._channels: dict[str, Channel] = {}
        for name, handler in handlers.items():
            socket = self._iopub if name == "iopub" else context.socket(zmq.DEALER)
            if name != "iopub":
                # The kernel asks for input where the request came from: the same identity.
                socket.set(zmq.IDENTITY, self.session.id.encode())
            # Unbounded: what waits here is not lost, what ZeroMQ drops is.
            socket.set(zmq.RCVHWM, 0)
            socket.set(zmq.SNDHWM, 0)
            socket.set(zmq.LINGER, 0)
            socket.set(zmq.RECONNECT_IVL, _RECONNECT_MS)
            socket.connect(f"{info['transport']}://{info['ip']}:{info[f'{name}_port']}")
            self._channels[name] = Channel(reactor, socket, on_message=partial(self._take, handler))

    def request(self, channel: str, msg_type: str, content: dict[str, Any]) -> str:
        """Send a request; its id is what replies and output name as their parent."""
        frames = self.session.pack(msg_type, content)
        self._channels[channel].send(frames)
        return str(json.loads(frames[2])["msg_id"])

    def answer_input(self, request: Message, value: str) -> None:
        frames = self.session.pack("input_reply", {"value": value}, parent=request.header)
        self._channels["stdin"].send(frames)

    def drain(self) -> None:
        """Take the last words of a process that has died: what the system still delivers."""
        while not self._iopub.closed and self._iopub.poll(_LAST_WORDS_MS):
            self._channels["iopub"].check()

    def close(self) -> None:
        for channel in self._channels.values():
            channel.close(0)

    def _take(self, handler: OnMessage, frames: list[bytes], _: int) -> None:
        try:
            message = self.session.unpack(frames)
        except BadMessage:
            return
        handler(message)
