"""What Jupyter clients ask for, and how it is answered."""

from __future__ import annotations

import platform
import sys
import time
import uuid
from base64 import b64encode
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from kernelbox import __version__
from kernelbox.reactor import Reactor
from kernelbox.warden.execution import Execution, InputRequest, Result
from kernelbox.warden.kernel import Kernel
from kernelbox.warden.lanes.broadcast import Broadcast, Request
from kernelbox.warden.lanes.messages import VERSION, Session
from kernelbox.warden.lanes.stdin import Prompts
from kernelbox.wire import MAX_FRAME

_SESSION_NUMBER = 1
_ROOM = 1 << 20
_FACTS = ("state", "cause", "epoch", "execution_id", "mismatch")

Content = dict[str, Any]


class Desk:
    """Answers requests; each is enclosed by "busy" and "idle" and ends in exactly one reply."""

    def __init__(
        self,
        reactor: Reactor,
        kernel: Kernel,
        *,
        session: Session,
        broadcast: Broadcast,
        prompts: Prompts,
        connection_info: dict[str, Any],
        on_failure: Callable[[Request], None],
        on_shutdown: Callable[[bool], None],
    ) -> None:
        """``on_failure``: a cell failed, and what its client has sent after it is not to be run;
        ``on_shutdown(restart)``: a client wants the kernel to end."""
        self._reactor = reactor
        self._kernel = kernel
        self._session = session
        self._broadcast = broadcast
        self._prompts = prompts
        self._info = connection_info
        self._on_failure = on_failure
        self._on_shutdown = on_shutdown
        self._waiting: dict[Request, Execution] = {}

    def handle(self, request: Request) -> None:
        """Answer a request, now or when the kernel gets to it; never raise."""
        kind = request.message.msg_type
        handler = getattr(self, f"_on_{kind}", None)
        try:
            if handler is not None:
                _check_size(request)
                handler(request, request.message.content)
            elif kind.endswith("_request"):
                words = f"this kernel does not know {kind!r}"
                self._at_once(request, _failure("NotImplementedError", words))
        except Exception as error:  # noqa: BLE001
            # Whatever a client sends, the kernel lives on and the client gets an answer.
            self._at_once(request, _failure(type(error).__name__, str(error)))

    def abort(self, request: Request) -> None:
        """Answer that this will not be run."""
        self._at_once(request, {"status": "aborted"})

    # -- replies ----------------------------------------------------------------------------

    def _at_once(self, request: Request, content: Content) -> None:
        if not request.started:
            self._broadcast.begin(request)
        self._reply(request, content)
        self._broadcast.end(request)

    def _reply(self, request: Request, content: Content, **metadata: Any) -> None:
        kind = request.message.msg_type
        if not kind.endswith("_request"):
            return  # comm messages are not answered
        frames = self._session.pack(
            kind.removesuffix("_request") + "_reply",
            content,
            parent=request.header,
            metadata=metadata,
            identities=request.message.identities,
        )
        request.channel.send(frames)

    def _ask(
        self, request: Request, what: str, *, when_lost: Content | None = None, **fields: Any
    ) -> None:
        """Let the interpreter answer, when it is its turn."""
        lost = when_lost or _failure("KernelDied", "the kernel died before it could answer")

        def answered(content: Content | None) -> None:
            self._at_once(request, lost if content is None else content)

        self._kernel.ask(what, fields, on_answer=answered, origin=request)

    # -- execution --------------------------------------------------------------------------

    def _on_execute_request(self, request: Request, content: Content) -> None:
        silent = bool(content.get("silent", False))
        stop_on_error = bool(content.get("stop_on_error", True))
        expressions = content.get("user_expressions")
        stdin = bool(content.get("allow_stdin", True))

        def finished(result: Result) -> None:
            self._waiting.pop(request, None)
            self._prompts.withdraw(execution)
            failed = result["status"] != "success" and not request.aborted
            doomed: list[Request] = []
            if failed and stop_on_error:
                # Chosen before the reply leaves: what is sent in answer to it is not meant.
                doomed = self._later_cells_of(request)
                self._on_failure(request)
            self._concluded(request, execution, result)
            for later in doomed:
                later.aborted = True
                self._kernel.cancel(self._waiting[later].id)

        def wants_input(asked: InputRequest) -> None:
            self._prompts.ask(request, execution, asked)

        execution = Execution(
            id=uuid.uuid4().hex,
            code=_text(content, "code"),
            stdin=stdin,
            face="jupyter",
            silent=silent,
            store_history=bool(content.get("store_history", not silent)) and not silent,
            user_expressions=expressions if isinstance(expressions, dict) else {},
            origin=request,
            finishers=[finished],
            on_input=wants_input if stdin else None,
            expect_epoch=_expected_epoch(request),
        )
        self._waiting[request] = execution
        self._kernel.submit(execution)

    def _concluded(self, request: Request, execution: Execution, result: Result) -> None:
        if request.aborted:
            self.abort(request)
            return
        if not request.started:
            self._broadcast.begin(request)
        count = result.get("execution_count")
        reply: Content = {
            "execution_count": self._broadcast.execution_count if count is None else count,
            "user_expressions": execution.reply.get("user_expressions") or {},
            "payload": execution.reply.get("payload") or [],
        }
        if result["status"] == "success":
            reply["status"] = "ok"
        elif result.get("mismatch"):
            words = "not run: the interpreter that this was meant for is gone"
            reply |= _failure("EpochMismatch", words)
        else:
            reply |= {"status": "error", **result["error"]}
            self._broadcast.explain(execution, result)
        self._reply(
            request,
            reply,
            started=_started(execution),
            kernelbox={key: result.get(key) for key in _FACTS},
        )
        self._broadcast.end(request)

    def _later_cells_of(self, failed: Request) -> list[Request]:
        """The executions of the same client that wait in the kernel's queue."""
        client = failed.message.identities
        return [
            request
            for request in self._waiting
            if request.message.identities == client and not request.started
        ]

    # -- questions to the interpreter -------------------------------------------------------

    def _on_complete_request(self, request: Request, content: Content) -> None:
        code = _text(content, "code")
        self._ask(request, "complete", code=code, cursor_pos=_cursor(content, code))

    def _on_inspect_request(self, request: Request, content: Content) -> None:
        code = _text(content, "code")
        detail = int(content.get("detail_level") or 0)
        self._ask(
            request, "inspect", code=code, cursor_pos=_cursor(content, code), detail_level=detail
        )

    def _on_is_complete_request(self, request: Request, content: Content) -> None:
        self._ask(
            request, "is_complete", when_lost={"status": "unknown"}, code=_text(content, "code")
        )

    def _on_comm_info_request(self, request: Request, content: Content) -> None:
        self._ask(request, "comm_info", target_name=content.get("target_name"))

    def _on_comm_open(self, request: Request, content: Content) -> None:
        message = request.message
        packed = {
            "header": message.header,
            "parent_header": message.parent_header,
            "metadata": message.metadata,
            "content": content,
            "buffers": [b64encode(part).decode("ascii") for part in message.buffers],
        }
        self._ask(request, message.msg_type, message=packed)

    _on_comm_msg = _on_comm_open
    _on_comm_close = _on_comm_open

    # -- answered by the warden, also while a cell runs --------------------------------------

    def _on_kernel_info_request(self, request: Request, content: Content) -> None:
        self._at_once(request, kernel_info(self._kernel.identity.name))

    def _on_connect_request(self, request: Request, content: Content) -> None:
        ports = {name: port for name, port in self._info.items() if name.endswith("_port")}
        self._at_once(request, {"status": "ok", **ports})

    def _on_history_request(self, request: Request, content: Content) -> None:
        history = self._kernel.history
        n = content.get("n")
        match content.get("hist_access_type"):
            case "tail":
                entries = history.tail(int(n or 0))
            case "search":
                pattern = str(content.get("pattern") or "*")
                unique = bool(content.get("unique"))
                entries = history.search(pattern, n=None if n is None else int(n), unique=unique)
            case "range" if int(content.get("session") or 0) in (0, _SESSION_NUMBER):
                stop = content.get("stop")
                start = int(content.get("start") or 0)
                entries = history.range(start, None if stop is None else int(stop))
            case _:
                entries = []
        with_output = bool(content.get("output"))
        listed = [
            (_SESSION_NUMBER, count, (code, output) if with_output else code)
            for count, code, output in entries
        ]
        self._at_once(request, {"status": "ok", "history": listed})

    def _on_interrupt_request(self, request: Request, content: Content) -> None:
        self._kernel.interrupt()
        self._at_once(request, {"status": "ok"})

    def _on_shutdown_request(self, request: Request, content: Content) -> None:
        restart = bool(content.get("restart", False))
        reply = {"status": "ok", "restart": restart}
        self._broadcast.begin(request)
        self._reply(request, reply)
        self._broadcast.publish("shutdown_reply", reply, request.header)
        self._broadcast.end(request)
        # Later: the kernel's end takes this door with it.
        self._reactor.call_soon(lambda: self._on_shutdown(restart))

    def _on_debug_request(self, request: Request, content: Content) -> None:
        words = "this kernel has no debugger (it is not among its supported_features)"
        reply = {
            "type": "response",
            "request_seq": content.get("seq", 0),
            "success": False,
            "command": content.get("command", ""),
            "message": words,
        }
        self._at_once(request, {**_failure("NotImplementedError", words), **reply})


def kernel_info(name: str) -> Content:
    """Who we are."""
    version = platform.python_version()
    series = f"{sys.version_info.major}.{sys.version_info.minor}"
    return {
        "status": "ok",
        "protocol_version": VERSION,
        "implementation": "kernelbox",
        "implementation_version": __version__,
        "language_info": {
            "name": "python",
            "version": version,
            "mimetype": "text/x-python",
            "codemirror_mode": {"name": "ipython", "version": sys.version_info.major},
            "pygments_lexer": "ipython3",
            "nbconvert_exporter": "python",
            "file_extension": ".py",
        },
        "banner": f"Python {version} in KernelBox {__version__}, kernel {name!r}",
        "help_links": [
            {"text": "Python Reference", "url": f"https://docs.python.org/{series}"},
            {"text": "IPython Reference", "url": "https://ipython.readthedocs.io/en/stable"},
        ],
        "debugger": False,
        "supported_features": [],
    }


def _failure(ename: str, evalue: str) -> Content:
    return {"status": "error", "ename": ename, "evalue": evalue, "traceback": []}


def _text(content: Content, name: str) -> str:
    value = content.get(name)
    if not isinstance(value, str):
        raise ValueError(f"{name!r} must be a string")
    return value


def _expected_epoch(request: Request) -> int | None:
    """Clients of our own say which interpreter they have prepared."""
    wanted = request.message.metadata.get("kernelbox")
    found = wanted.get("expect_epoch") if isinstance(wanted, dict) else None
    return found if isinstance(found, int) else None


def _cursor(content: Content, code: str) -> int:
    position = content.get("cursor_pos")
    return len(code) if position is None else max(0, min(int(position), len(code)))


def _check_size(request: Request) -> None:
    """Refuse what does not fit into a frame to the interpreter: ASCII JSON, buffers in base64."""
    message = request.message
    size = 6 * message.size + 4 * sum(len(part) for part in message.buffers) // 3 + _ROOM
    if size > MAX_FRAME:
        raise ValueError(f"the message is too large ({size >> 20} MB on its way to the kernel)")


def _started(execution: Execution) -> str:
    """When a cell began, in the words of a header; clients show it as its timing."""
    age = time.monotonic() - execution.started_at if execution.started_at else 0.0
    began = datetime.fromtimestamp(time.time() - age, UTC)
    return began.isoformat(timespec="microseconds").replace("+00:00", "Z")
