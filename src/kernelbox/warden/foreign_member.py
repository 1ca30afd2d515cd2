"""A foreign kernel's process as the warden sees it: frames become Jupyter messages, and back."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kernelbox.inside import linux
from kernelbox.inside.bundles import plain
from kernelbox.inside.outlets import MARK_TOKEN_LENGTH
from kernelbox.reactor import Reactor, Timer
from kernelbox.warden.exits import Exit, explain
from kernelbox.warden.foreign_channels import ForeignChannels
from kernelbox.warden.foreign_words import broadcast, done, failure, pages
from kernelbox.warden.kernelspecs import Kernelspec
from kernelbox.warden.lanes.messages import Message
from kernelbox.warden.member import MemberOwner
from kernelbox.warden.streams import Streams
from kernelbox.wire import Frame

Connect = Callable[..., ForeignChannels]
Spawn = Callable[["ForeignMember", Frame, Sequence[int]], None]
"""The seam to the operating system: start this command, with these two output pipes."""

_ASK_AGAIN = 0.03
_DEAF_PATIENCE = 5.0
_IDLE_PATIENCE = 5.0
_START_PATIENCE = 1.0
_ANSWER_PATIENCE = 30.0  # the first completion of a Python kernel reads the whole of typeshed
_LAST_WORDS = 2_000

_QUESTIONS = {
    "complete": ("code", "cursor_pos"),
    "inspect": ("code", "cursor_pos", "detail_level"),
    "is_complete": ("code",),
}


@dataclass(slots=True)
class _Cell:
    """A request to execute that is under way: done when its reply *and* its idle have come."""

    request: str
    reply: dict[str, Any] | None = None
    idle: bool = False
    interrupted: bool = False
    started: bool = False
    """Whether the kernel has said that it runs it. An interrupt that comes before that meets a
    kernel which has nothing to interrupt, and is lost."""
    input_request: Message | None = None
    heard_at: float = field(default_factory=time.monotonic)


class ForeignMember:
    """Speaks to a kernel as :class:`PythonMember` does to our interpreter."""

    role = "kernel"

    def __init__(
        self,
        reactor: Reactor,
        owner: MemberOwner,
        *,
        spec: Kernelspec,
        connection_file: str,
        connect: Connect,
        spawn: Spawn,
        patience: float,
    ) -> None:
        self._reactor = reactor
        self._owner = owner
        self._spec = spec
        self._connection_file = connection_file
        self._connect = connect
        self._spawn = spawn
        self._patience = patience
        self.pid = 0
        self.inner_pid = 0
        self.forked = False  # a process is not enough: it has to answer
        self.ended: Exit | None = None
        self.oom_before = 0
        self.busy = False  # also with what other Jupyter clients sent
        self.own_processes: frozenset[int] = frozenset()
        self._killed_by_us: str | None = None
        self._channels: ForeignChannels | None = None
        self._streams: Streams | None = None
        self._raw = ""
        self._deadline: Timer | None = None  # of the start, a question or an idle: one at a time
        self._begun = False
        self._heard = False
        self._answered_at = 0.0
        self._cell: _Cell | None = None
        self._question: str | None = None

    # -- what a kernel wants of its member --------------------------------------------------

    def catch_up(self) -> None:
        """Its messages come one by one, each with its request; there is nothing to fetch."""

    def give_to(self, owner: MemberOwner) -> None:
        self._owner = owner

    def send(self, frame: Frame, fds: list[int] | None = None) -> None:
        match frame["op"]:
            case "begin":
                self._begin(frame)
            case "run":
                self._run(frame)
            case "ask":
                self._ask(frame)
            case "input":
                self._answer_input(frame.get("question"), frame.get("value"))

    def interrupt(self) -> None:
        """As the kernelspec wants it: a message, or SIGINT to the process and what it runs."""
        if not self.pid or self.ended is not None:
            return
        cell = self._cell
        if cell is None or cell.started:
            self._interrupt_now()
        elif not cell.interrupted:
            self._reactor.call_later(_START_PATIENCE, lambda: self._started(cell))
        if cell is not None:
            cell.interrupted = True

    def _started(self, cell: _Cell) -> None:
        """The kernel runs it, or has had the time to; some never say so."""
        if self._cell is cell and not cell.started:
            cell.started = True
            if cell.interrupted:
                self._interrupt_now()

    def _interrupt_now(self) -> None:
        if not self.pid or self.ended is not None:
            return
        if self._spec.interrupt_mode == "message" and self._channels is not None:
            self._channels.request("control", "interrupt_request", {})
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGINT)

    def kill(self, why: str | None) -> None:
        """SIGKILL, what it runs included; ``why`` becomes the cause of its death."""
        if self.ended is not None:
            return
        self._killed_by_us = why or "killed"
        if self.pid:
            linux.kill_descendants(self.pid)
            linux.send_signal([self.pid], signal.SIGKILL)

    def request_stack(self) -> bool:
        """Only our own interpreter can be asked where it is."""
        return False

    def read_stack(self) -> str:
        return ""

    # -- its process ------------------------------------------------------------------------

    def started(self, pid: int) -> None:
        self.pid = pid
        if self._killed_by_us is not None:
            self.kill(self._killed_by_us)

    def exited(self, status: int, *, oom_kills: int = 0) -> None:
        """It has been reaped. What it said last is still on the way: take that first."""
        if self.ended is not None:
            return
        if self.pid:
            # A child that it forked holds its listening ports; the next kernel needs them.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        if self._channels is not None:
            self._channels.drain()
        self.ended = explain(status, killed_by_us=self._killed_by_us, oom_kills=oom_kills)
        if self._streams is not None:
            self._streams.drain(last=True)
        self.close()
        words = self._raw.strip()
        if words and not self._begun:
            cause = f"{self.ended.cause}; it said: {words}"
            self.ended = Exit(self.ended.status, cause, self.ended.ename)
        elif words and self._cell is not None:
            self._owner.member_printed(self, "stderr", words + "\n")
        self._owner.member_ended(self, self.ended)

    def close(self) -> None:
        self._set_deadline(None)
        if self._channels is not None:
            self._channels.close()
        if self._streams is not None:
            self._streams.close()

    # -- starting ---------------------------------------------------------------------------

    def _begin(self, frame: Frame) -> None:
        order = {
            "argv": self._spec.command(self._connection_file),
            "environ": self._spec.environment(frame["environ"]),
            "cwd": frame["cwd"],
            "targets": [1, 2],
            "fds": 2,
        }
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        self._streams = Streams(
            self._reactor,
            (out_read, err_read),
            secrets.token_hex(MARK_TOKEN_LENGTH // 2),  # nobody writes marks here
            on_text=self._said_raw,
            poll_frames=lambda: None,
        )
        self._spawn(self, order, (out_write, err_write))

    def spawned(self) -> None:
        """The order is given: knock until the kernel answers."""
        self._channels = self._connect(
            on_shell=self._from_shell, on_iopub=self._from_iopub, on_stdin=self._from_stdin
        )
        words = f"the kernel did not answer in {self._patience:.1f} s"
        self._set_deadline(self._patience, lambda: self.kill(words))
        self._knock()

    def _knock(self) -> None:
        if self._channels is not None and self.ended is None:
            self._channels.request("shell", "kernel_info_request", {})

    def _answered_knock(self) -> None:
        """Ready when it has answered and we have heard its broadcasts, or output would be lost."""
        if self._begun:
            return
        self._answered_at = self._answered_at or time.monotonic()
        deaf = time.monotonic() - self._answered_at > _DEAF_PATIENCE
        if not self._heard and not deaf:
            self._reactor.call_later(_ASK_AGAIN, self._knock)
            return
        self._begun = True
        self._set_deadline(None)
        self._raw = ""
        self.own_processes = frozenset(linux.descendants(self.pid))
        self._owner.member_said(self, {"op": "begun"})

    def _said_raw(self, name: str, text: str) -> None:
        """What the process writes past Jupyter: nobody's output, but its last words if it dies."""
        self._raw = (self._raw + text)[-_LAST_WORDS:]

    # -- requests ---------------------------------------------------------------------------

    def _run(self, frame: Frame) -> None:
        content = {
            "code": frame["code"],
            "silent": bool(frame.get("silent")),
            "store_history": bool(frame.get("store_history", True)),
            "user_expressions": frame.get("user_expressions") or {},
            "allow_stdin": bool(frame.get("stdin")),
            # The queue is ours: what comes after a failed cell is for us to decide.
            "stop_on_error": False,
        }
        assert self._channels is not None
        self._cell = _Cell(self._channels.request("shell", "execute_request", content))

    def _ask(self, frame: Frame) -> None:
        what = str(frame["what"])
        if what == "background":
            self._answer({"status": "ok", "background": self.busy})
            return
        fields = _QUESTIONS.get(what)
        if fields is None:
            words = f"a foreign kernel cannot be asked {what!r}"
            self._answer(failure("Unsupported", words))
            return
        content = {name: frame[name] for name in fields if name in frame}
        assert self._channels is not None
        request = self._channels.request("shell", f"{what}_request", content)
        self._question = request
        words = f"the kernel did not answer in {_ANSWER_PATIENCE:g} s"
        late = failure("TimeoutError", words)
        self._set_deadline(_ANSWER_PATIENCE, lambda: self._give_answer(request, late))

    def _give_answer(self, request: str, content: dict[str, Any]) -> None:
        if self._question == request:
            self._question = None
            self._set_deadline(None)
            self._owner.member_said(self, {"op": "answer", "content": content})

    def _answer(self, content: dict[str, Any]) -> None:
        # Not from within the question: the kernel has not finished asking it.
        answer = {"op": "answer", "content": content}
        self._reactor.call_soon(lambda: self._owner.member_said(self, answer))

    def _answer_input(self, number: Any, value: str | None) -> None:
        request = self._cell.input_request if self._cell is not None else None
        if request is None or self._channels is None or request.header["msg_id"] != number:
            return
        if value is None:
            self.interrupt()  # Jupyter has no word for "nobody answers"
        else:
            self._channels.answer_input(request, value)

    # -- replies and broadcasts -------------------------------------------------------------

    def _from_shell(self, message: Message) -> None:
        parent = message.parent_header.get("msg_id", "")
        content = message.content
        if message.msg_type == "kernel_info_reply":
            self._answered_knock()
        elif message.msg_type == "execute_reply":
            if self._cell is not None and parent == self._cell.request:
                self._cell.reply = content
                self._cell.heard_at = time.monotonic()
                self._check_done(self._cell)
        else:
            if isinstance(data := content.get("data"), dict):  # an inspection, in colours
                text = {mime: plain(str(data[mime])) for mime in data if mime == "text/plain"}
                content = {**content, "data": {**data, **text}}
            self._give_answer(parent, content)

    def _from_stdin(self, message: Message) -> None:
        if message.msg_type != "input_request" or self._cell is None:
            return
        self._cell.input_request = message
        self._owner.member_said(
            self,
            {
                "op": "input_request",
                "question": message.header["msg_id"],
                "prompt": str(message.content.get("prompt", "")),
                "password": bool(message.content.get("password")),
            },
        )

    def _from_iopub(self, message: Message) -> None:
        self._heard = True
        parent, content = message.parent_header, message.content
        cell = self._cell
        mine = cell is not None and parent.get("msg_id") == cell.request
        if mine and cell is not None:
            cell.heard_at = time.monotonic()
        if message.msg_type == "status":
            self._status(str(content.get("execution_state")), parent)
            return
        assert self._channels is not None
        if parent and parent.get("session") != self._channels.session.id:
            self._owner.member_said(self, {"op": "used"})  # another client's output
        elif message.msg_type == "stream":
            name = "stderr" if content.get("name") == "stderr" else "stdout"
            text = str(content.get("text", ""))
            if not self._begun or parent.get("msg_type") == "kernel_info_request":
                self._said_raw(name, text)  # the noise of a start
            else:
                self._owner.member_printed(self, name, text)
        elif mine and cell is not None and message.msg_type == "execute_input":
            self._started(cell)
        elif mine and (frame := broadcast(message.msg_type, content)) is not None:
            self._owner.member_said(self, frame)

    def _status(self, state: str, parent: dict[str, Any]) -> None:
        self.busy = state == "busy"
        assert self._channels is not None
        if parent and parent.get("session") != self._channels.session.id:
            self._owner.member_said(self, {"op": "used"})
        cell = self._cell
        if cell is not None and state == "idle" and parent.get("msg_id") == cell.request:
            cell.idle = True
            self._check_done(cell)

    def _check_done(self, cell: _Cell) -> None:
        if self._cell is not cell or cell.reply is None:
            return
        if not cell.idle:
            silent = time.monotonic() - cell.heard_at
            if silent < _IDLE_PATIENCE:
                wait = _IDLE_PATIENCE - silent + 0.01
                self._set_deadline(wait, lambda: self._check_done(cell))
                return
            words = "[kernelbox: the kernel never said that it was idle; output may be missing]\n"
            self._owner.member_printed(self, "stderr", words)
        for page in pages(cell.reply):
            self._owner.member_said(self, page)
        self._cell = None
        self._set_deadline(None)
        self._owner.member_said(self, done(cell.reply, interrupted=cell.interrupted))

    def _set_deadline(
        self, delay: float | None, callback: Callable[[], None] | None = None
    ) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if delay is not None and callback is not None:
            self._deadline = self._reactor.call_later(delay, callback)
