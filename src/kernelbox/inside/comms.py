"""Comms: the side channel that widgets use, over the lifeline."""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any

from comm.base_comm import BaseComm, CommManager

from kernelbox.inside.lifeline import Lifeline


class LifelineComm(BaseComm):
    """A comm whose messages go to the warden, which hands them to the Jupyter clients."""

    lifeline: Lifeline | None = None

    def publish_msg(
        self,
        msg_type: str,
        data: Any = None,
        metadata: Any = None,
        buffers: Any = None,
        **keys: Any,
    ) -> None:
        if self.lifeline is None or not self.lifeline.open:
            return
        content = {"data": data or {}, "comm_id": self.comm_id, **keys}
        self.lifeline.send(
            {
                "op": "comm",
                "msg_type": msg_type,
                "content": content,
                "metadata": metadata or {},
                "buffers": [b64encode(bytes(part)).decode("ascii") for part in buffers or ()],
            }
        )


class Comms:
    """The comm manager of this interpreter, installed where libraries look for it."""

    def __init__(self) -> None:
        self.manager = CommManager()

    def install(self) -> None:
        import comm

        comm.create_comm = LifelineComm
        comm.get_comm_manager = lambda: self.manager

    def attach(self, lifeline: Lifeline) -> None:
        LifelineComm.lifeline = lifeline

    def handle(self, msg_type: str, message: dict[str, Any]) -> None:
        """A client opened, closed or wrote to a comm."""
        message = {**message, "buffers": [b64decode(part) for part in message.get("buffers", ())]}
        getattr(self.manager, msg_type)(None, None, message)

    def info(self, target: str | None) -> dict[str, Any]:
        return {
            comm_id: {"target_name": comm.target_name}
            for comm_id, comm in self.manager.comms.items()
            if target in (None, "", comm.target_name)
        }
