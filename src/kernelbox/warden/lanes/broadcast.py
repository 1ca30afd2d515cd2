"""What every Jupyter client sees: the iopub channel, whoever's code it is that runs."""

from __future__ import annotations

import time
import uuid
from base64 import b64decode
from collections.abc import Callable, Sequence
from typing import Any

from kernelbox.reactor import Reactor
from kernelbox.spool import Event
from kernelbox.warden.execution import Execution, Result
from kernelbox.warden.jobs import Question
from kernelbox.warden.kernel import Kernel
from kernelbox.warden.lanes.messages import Header, Message, Session
from kernelbox.warden.lanes.outgoing import Outgoing, Publication
from kernelbox.warden.lanes.zeromq import Channel, Comings, ZSocket

Job = Execution | Question


class Request:
    """A message of a client that is being answered; the ``origin`` of the jobs it leads to."""

    __slots__ = ("aborted", "channel", "connection", "message", "started")

    def __init__(self, message: Message, channel: Channel, *, connection: int) -> None:
        self.message = message
        self.channel = channel
        self.connection = connection
        self.started = False
        self.aborted = False

    @property
    def header(self) -> Header:
        return self.message.header


class Broadcast:
    """Publishes what happens in the kernel; an observer of it."""

    def __init__(
        self,
        reactor: Reactor,
        socket: ZSocket,
        kernel: Kernel,
        *,
        session: Session,
        on_subscription: Callable[[float], None],
    ) -> None:
        self._kernel = kernel
        self._session = session
        self._on_subscription = on_subscription
        # Connections, not subscriptions: of those a peer can take back more than it made.
        self._listeners: set[int] = set()
        self._channel = Channel(reactor, socket, on_message=self._subscribed)
        self._outgoing = Outgoing(reactor, self._channel, self._pack)
        self._comings = Comings(reactor, socket, on_open=self._came, on_close=self._left)
        self._topic = f"kernel.{kernel.identity.kernel_id}"
        # Cells of our own lane appear as if another Jupyter client had sent them.
        self._neighbour = uuid.uuid4().hex
        self._latest_parent: Header = {}
        self._count: tuple[int, int] | None = None

    def check(self) -> None:
        self._channel.check()

    def close(self, linger: float) -> None:
        self._outgoing.close()
        self._comings.close()
        self._channel.close(linger)

    # -- publishing -------------------------------------------------------------------------

    def publish(
        self,
        msg_type: str,
        content: dict[str, Any],
        parent: Header,
        *,
        metadata: dict[str, Any] | None = None,
        buffers: Sequence[bytes] = (),
    ) -> None:
        if self._listeners:
            self._outgoing.put(Publication(msg_type, content, parent, metadata, buffers))

    def _pack(self, publication: Publication) -> list[bytes]:
        msg_type, topic = publication.msg_type, publication.topic
        return self._session.pack(
            msg_type,
            publication.content,
            parent=publication.parent,
            metadata=publication.metadata,
            buffers=publication.buffers,
            identities=[f"{self._topic}.{msg_type}".encode() if topic is None else topic],
        )

    def status(self, state: str, parent: Header) -> None:
        self.publish("status", {"execution_state": state}, parent)

    def begin(self, request: Request) -> None:
        request.started = True
        self.status("busy", request.header)

    def end(self, request: Request) -> None:
        """Idle, as far as this request goes; what runs meanwhile keeps the kernel busy."""
        self.status("idle", request.header)
        self._still_busy()

    def error(self, error: dict[str, Any], parent: Header) -> None:
        content = {key: error.get(key) for key in ("ename", "evalue", "traceback")}
        self.publish("error", content, parent)

    def _came(self, connection: int) -> None:
        self._listeners.add(connection)
        self._outgoing.subscribers_changed()

    def _left(self, connection: int) -> None:
        self._listeners.discard(connection)
        self._outgoing.subscribers_changed()

    def _subscribed(self, frames: list[bytes], _: int) -> None:
        if frames[0][:1] != b"\x01":
            return
        topic = frames[0][1:]
        content = {"subscription": topic.decode("utf-8", "replace")}
        self._outgoing.put(Publication("iopub_welcome", content, {}, topic=topic))
        self._still_busy()
        self._on_subscription(time.monotonic())

    def _still_busy(self) -> None:
        """Say again that a cell runs, lest the latest word be another request's "idle"."""
        job = self._kernel.current
        if isinstance(job, Execution) and not job.internal and not job.finished:
            self.status("busy", self._parent(job))

    # -- the kernel's observer --------------------------------------------------------------

    def started(self, job: Job) -> None:
        if isinstance(job.origin, Request):
            self.begin(job.origin)
        elif isinstance(job, Question) or job.internal:
            return
        else:
            self.status("busy", self._parent(job))
        if not isinstance(job, Execution) or job.silent:
            return
        parent = self._parent(job)
        code = job.code if job.language == "python" else f"%%{job.language}\n{job.code}"
        self.publish(
            "execute_input", {"code": code, "execution_count": self.execution_count}, parent
        )
        if isinstance(job.origin, Request) and self._kernel.truth.loss is not None:
            words = f"The kernel's variables are gone: {self._kernel.truth.loss.cause}.\n"
            self.publish("stream", {"name": "stderr", "text": words}, parent)

    def happened(self, job: Job | None, event: Event) -> None:
        if not self._listeners or (isinstance(job, Execution) and job.internal):
            return
        parent = self._parent(job)
        kind = event["kind"]
        if kind == "stream":
            self.publish("stream", {"name": event["name"], "text": event["text"]}, parent)
        elif kind in ("display_data", "update_display_data", "execute_result"):
            content = {"data": event["data"], "metadata": event["metadata"]}
            if kind == "execute_result":
                content["execution_count"] = event.get("execution_count")
            else:
                content["transient"] = event.get("transient", {})
            self.publish(kind, content, parent)
        elif kind == "error":
            self.error(event["data"], parent)
        elif kind == "clear_output":
            self.publish(kind, {"wait": event["metadata"]["wait"]}, parent)
        elif kind == "comm":
            self.publish(
                str(event["msg_type"]),
                event["content"] or {},
                parent,
                metadata=event["metadata"] or {},
                buffers=[b64decode(part) for part in event["buffers"] or ()],
            )

    def finished(self, job: Job) -> None:
        """Requests of Jupyter clients are concluded with their replies, not here."""
        if not isinstance(job, Execution) or job.internal:
            return
        self._counted(job)
        if not isinstance(job.origin, Request) and job.result is not None:
            self.explain(job, job.result)
            self.status("idle", self._parent(job))

    def explain(self, job: Execution, result: Result) -> None:
        """The error of a cell that could not show it itself: the interpreter died, it timed out."""
        parent = self._parent(job)
        if result["status"] != "success" and job.error is None and result.get("error"):
            self.error(result["error"], parent)
        if job.started_at and self._kernel.member is None and not self._kernel.ending:
            # After the error: some clients forget the cell when they hear of a restart.
            self.status("restarting", parent)

    def _parent(self, job: Job | None) -> Header:
        """The request that a job belongs to. What belongs to none (a thread that prints while the
        keeper asks something) is shown with the latest."""
        if job is not None and isinstance(job.origin, Request):
            self._latest_parent = job.origin.header
        elif isinstance(job, Execution) and job.id != self._latest_parent.get("msg_id"):
            header = self._session.header("execute_request", msg_id=job.id)
            self._latest_parent = {**header, "session": self._neighbour}
        return self._latest_parent

    # -- counting ---------------------------------------------------------------------------

    @property
    def execution_count(self) -> int:
        """The number of the cell that runs next; the interpreter tells only afterwards."""
        if self._count is None:
            self._count = self._kernel.truth.epoch, 1
            job = self._kernel.last_job
            if isinstance(job, Execution) and job.reply.get("execution_count") is not None:
                self._counted(job)
            elif latest := self._kernel.history.tail(1):
                self._count = self._kernel.truth.epoch, latest[0][0] + 1
        epoch, count = self._count
        return count if epoch == self._kernel.truth.epoch else 1

    def _counted(self, job: Execution) -> None:
        count = job.reply.get("execution_count")
        if isinstance(count, int) and job.result is not None:
            stored = job.store_history and not job.silent
            self._count = job.result["epoch"], count + 1 if stored else count
