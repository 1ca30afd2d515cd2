"""IPython's shell, with its output sent over the lifeline instead of printed."""

from __future__ import annotations

import builtins
import getpass
import os
import re
import signal
import subprocess
import sys
import threading
import traceback
from base64 import b64encode
from types import TracebackType
from typing import Any

from IPython.core.alias import default_aliases
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from kernelbox.inside import interrupts
from kernelbox.inside.comms import Comms
from kernelbox.inside.faces import Face, compact
from kernelbox.inside.formatting import QuickFormatter
from kernelbox.inside.lifeline import Lifeline
from kernelbox.inside.plaincode import PlainCode

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


class StdinNotImplementedError(RuntimeError):
    """``input()`` was called, and nobody is there to answer."""


def _jsonable(data: dict[str, Any]) -> dict[str, Any]:
    """Images may come as bytes; on the wire they are base64."""
    return {
        mime: b64encode(value).decode("ascii") if isinstance(value, bytes) else value
        for mime, value in data.items()
    }


def _message(error: Any) -> str:
    """The words of an exception, whose ``__str__`` is user code like any other."""
    try:
        return str(error)
    except Exception:
        return "<unprintable exception>"


class Outbox:
    """Where displays, results and errors of the running cell go; shared by all hooks below."""

    def __init__(self) -> None:
        self.lifeline: Lifeline | None = None
        self.face: Face = "text"
        self.turn: int | None = None
        """Of the cell that runs; its value belongs to that turn and to no other."""
        self.stdin_allowed = False
        self.questions = 0
        """How many have been asked; an answer names its question."""
        self.error: dict[str, Any] | None = None

    def send(self, frame: dict[str, Any]) -> bool:
        """False where there is no lifeline (a child that user code forked): print instead."""
        if self.lifeline is None or not self.lifeline.open:
            return False
        self.lifeline.send(frame)
        return True

    def error_of(self, failure: BaseException) -> dict[str, Any]:
        """The error as it was shown, or as it would be if IPython never got that far."""
        if self.error is not None:
            return self.error
        ename, evalue = type(failure).__name__, _message(failure)
        return {"ename": ename, "evalue": evalue, "traceback": [f"{ename}: {evalue}"]}

    def bundle(
        self, data: dict[str, Any], metadata: dict[str, Any] | None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        data = _jsonable(data)
        metadata = metadata or {}
        return compact(data, metadata) if self.face == "text" else (data, metadata)


outbox = Outbox()


class Publisher(DisplayPublisher):
    """``display()``, ``update_display()`` and ``clear_output()``."""

    def publish(  # type: ignore[override]
        self,
        data: dict[str, Any],
        metadata: dict[str, Any] | None = None,
        *,
        transient: dict[str, Any] | None = None,
        update: bool = False,
        **_: Any,
    ) -> None:
        data, metadata = outbox.bundle(data, metadata)
        if not data:
            return  # it only loads a script into a notebook page
        content = {"data": data, "metadata": metadata, "transient": transient or {}}
        message: Any = {
            "header": {"msg_type": "update_display_data" if update else "display_data"},
            "content": content,
        }
        for hook in getattr(self, "_hooks", ()):
            message = hook(message)
            if message is None:
                return
        if not outbox.send({"op": "display", "update": update, **message["content"]}):
            print(data.get("text/plain", ""))

    def clear_output(self, wait: bool = False) -> None:
        outbox.send({"op": "clear", "wait": bool(wait)})

    def register_hook(self, hook: Any) -> None:
        """ipywidgets' Output and others see each display before it is sent."""
        if not hasattr(self, "_hooks"):
            self._hooks: list[Any] = []
        self._hooks.append(hook)

    def unregister_hook(self, hook: Any) -> bool:
        if hook in getattr(self, "_hooks", ()):
            self._hooks.remove(hook)
            return True
        return False


class KernelFacade:
    """What libraries ask of ``get_ipython().kernel``: comms, and the request that runs."""

    def __init__(self, comms: Comms) -> None:
        self.comm_manager = comms.manager
        self.parent: dict[str, Any] = {}

    def get_parent(self, channel: str | None = None) -> dict[str, Any]:
        return self.parent

    @property
    def _parent_header(self) -> dict[str, Any]:
        return self.parent


class ResultHook(DisplayHook):
    """The value of a cell's last expression."""

    def write_output_prompt(self) -> None:
        """The count travels with the result."""

    def write_format_data(
        self, format_dict: dict[str, Any], md_dict: dict[str, Any] | None = None
    ) -> None:
        data, metadata = outbox.bundle(format_dict, md_dict)
        frame = {
            "op": "result",
            "turn": outbox.turn,
            "data": data,
            "metadata": metadata,
            "execution_count": self.prompt_count,
        }
        if not outbox.send(frame):
            print(data.get("text/plain", ""))

    def finish_displayhook(self) -> None:
        self._is_active = False

    @staticmethod
    def semicolon_at_end_of_expression(expression: str) -> bool:
        """Not worth tokenizing the cell where there is none at all."""
        return ";" in expression and DisplayHook.semicolon_at_end_of_expression(expression)


class Shell(InteractiveShell):
    """The shell as agents see it; see ``faces.py`` for its notebook twin."""

    kernel: KernelFacade
    displayhook_class = ResultHook
    display_pub_class = Publisher

    def init_history(self) -> None:
        # The warden keeps the history. A database here would mean a thread, and no fork.
        self.config.HistoryManager.enabled = False
        super().init_history()

    def init_hooks(self) -> None:
        super().init_hooks()
        from IPython.core import payloadpage

        def show(shell: Any, data: Any, start: int = 0, screen_lines: int = 0, **_: Any) -> None:
            if outbox.face == "jupyter":
                payloadpage.page(data, start, screen_lines)
            else:
                text = data["text/plain"] if isinstance(data, dict) else data
                print(_ANSI.sub("", text))

        def edit(shell: Any, *_: Any, **__: Any) -> None:
            raise UsageError("%edit needs a terminal; write the file with %%writefile instead.")

        self.set_hook("show_in_pager", show, 99)
        self.set_hook("editor", edit, 0)

    def init_display_formatter(self) -> None:
        self.display_formatter = QuickFormatter(parent=self)
        self.configurables.append(self.display_formatter)  # type: ignore[arg-type]

    def init_prefilter(self) -> None:
        super().init_prefilter()
        self._plain_code = PlainCode(self)

    def transform_cell(self, raw_cell: str) -> str:
        """As IPython does it, or not at all where there is nothing to do."""
        plain = self._plain_code
        if not plain.is_whole(raw_cell):
            return str(super().transform_cell(raw_cell))
        cell = raw_cell if raw_cell.endswith("\n") else f"{raw_cell}\n"
        if len(cell.splitlines()) == 1 and not plain.is_no_word(cell):
            assert self.prefilter_manager is not None
            with self.builtin_trap:  # ``ls`` is a magic without its %, ``exit`` calls itself
                cell = f"{self.prefilter_manager.prefilter_lines(cell)}\n"
        return cell

    def init_io(self) -> None:
        """The streams are set up by the interpreter."""

    def enable_gui(self, gui: Any = None) -> None:
        """There is no screen; ``%gui`` and ``%matplotlib`` must not fail for that."""

    def ask_exit(self) -> None:
        """``exit`` and ``quit``: a notebook is asked to close; an agent is told how it is done."""
        if outbox.face == "jupyter":
            self._payload({"source": "ask_exit", "keepkernel": True})
        else:
            raise SystemExit("exit was called; the kernel goes on. destroy() ends it.")

    def set_next_input(self, s: str, replace: bool = False) -> None:
        """``%load`` and its like fill the next cell of a notebook; an agent is shown the text."""
        if outbox.face == "text":
            print(s)
            return
        self._payload({"source": "set_next_input", "text": s, "replace": replace})

    def _payload(self, content: dict[str, Any]) -> None:
        if self.payload_manager is not None:
            self.payload_manager.write_payload(content)

    def system(self, cmd: str) -> None:
        """``!command``: the command writes straight into our pipes, so its output streams."""
        sys.stdout.flush()
        line = self.var_expand(cmd, depth=1)
        if "pip" in line and "install" in line and self._installed(line):
            return
        shell = os.environ.get("SHELL") or "/bin/sh"
        with subprocess.Popen([shell, "-c", line], stdin=subprocess.DEVNULL) as process:
            try:
                process.wait()
            except KeyboardInterrupt:
                # The signal went to the whole group. A command that ignores it gets a moment.
                try:
                    process.wait(1)
                except subprocess.TimeoutExpired:
                    process.send_signal(signal.SIGKILL)
                    process.wait()
                raise
        self.user_ns["_exit_code"] = process.returncode

    def _installed(self, line: str) -> bool:
        """``!pip install``: the host does it, as for ``%pip``. False: it is something else."""
        from kernelbox.inside import pip_lines

        if (words := pip_lines.of_shell(line)) is None:
            return False
        self.user_ns["_exit_code"] = 0 if pip_lines.run(words) else 1
        return True

    def getoutput(self, cmd: str, split: bool = True, depth: int = 0) -> Any:
        """``lines = !command``."""
        if "pip" in cmd and "install" in cmd:
            from IPython.utils.text import LSString, SList

            from kernelbox.inside import pip_lines

            words = pip_lines.of_shell(self.var_expand(cmd, depth=depth + 1))
            if words is not None:
                said = pip_lines.said(words)
                return SList(said.splitlines()) if split else LSString(said)
        return super().getoutput(cmd, split=split, depth=depth + 1)

    def debugger(self, force: bool = False) -> None:
        """``%debug`` and ``%pdb``: a debugger that nobody answers is refused before it starts."""
        if outbox.stdin_allowed or not (force or self.call_pdb):
            super().debugger(force=force)
        elif self.call_pdb:
            print("%pdb is on, but this client answers no questions.", file=sys.stderr)
        else:
            raise StdinNotImplementedError(
                "%debug asks questions, but the client does not answer any. Look at the traceback, "
                "or print what you want to know (or pass on_input=… to execute)."
            )

    def showtraceback(
        self,
        exc_tuple: Any = None,
        filename: str | None = None,
        tb_offset: int | None = None,
        exception_only: bool = False,
        running_compiled_code: bool = False,
    ) -> None:
        """As IPython does it, and exception groups, which it only prints, in the same way."""
        try:
            etype, value, tb = self._get_exc_info(exc_tuple)
        except ValueError:
            etype = value = tb = None
        if isinstance(value, KeyboardInterrupt):
            _trim(tb)
        if exception_only or not _is_or_follows_group(value):
            super().showtraceback(
                exc_tuple, filename, tb_offset, exception_only, running_compiled_code
            )
            return
        lines = traceback.format_exception(etype, value, tb and (tb.tb_next or tb))
        self._showtraceback(etype, value, [line.rstrip("\n") for line in lines])
        if self.call_pdb:
            self.debugger(force=True)

    def _format_exception_for_storage(self, exception: Any, *_: Any, **__: Any) -> dict[str, Any]:
        """IPython formats each traceback again for a history file; we have none, but have this."""
        return dict(outbox.error or {})

    def _showtraceback(self, etype: Any, evalue: Any, stb: list[str]) -> None:
        lines = list(stb)
        if outbox.face == "text":
            lines = [_ANSI.sub("", line) for line in lines]
        error = {
            "ename": getattr(etype, "__name__", str(etype)),
            "evalue": _message(evalue),
            "traceback": lines,
        }
        outbox.error = error
        if not outbox.send({"op": "error", **error}):
            print("\n".join(lines), file=sys.stderr)


def _trim(tb: TracebackType | None) -> None:
    """Off with our own last frames: a traceback of an interrupt ends in the line that it hit."""
    last = None
    while tb is not None:
        if tb.tb_frame.f_code.co_filename != interrupts.__file__:
            last = tb
        tb = tb.tb_next
    if last is not None:
        last.tb_next = None


def _is_or_follows_group(error: BaseException | None) -> bool:
    for _ in range(100):
        if error is None or isinstance(error, BaseExceptionGroup):
            break
        error = error.__context__
    return isinstance(error, BaseExceptionGroup)


def ask_input(prompt: str = "", *, password: bool = False) -> str:
    """``input()`` and ``getpass()``: ask the client, or say clearly that nobody will answer."""
    if not outbox.stdin_allowed or outbox.lifeline is None or not outbox.lifeline.open:
        raise StdinNotImplementedError(
            "input() was called, but the client does not answer questions. "
            "Pass the value in the code instead (or on_input=… to execute)."
        )
    if threading.current_thread() is not threading.main_thread():
        # After its cell it would take the next one from the lifeline, for an answer.
        raise StdinNotImplementedError(
            "input() was called in a thread; only the cell itself can ask. "
            "Ask first, and give the answer to the thread."
        )
    outbox.questions = number = outbox.questions + 1
    outbox.lifeline.send(
        {"op": "input_request", "question": number, "prompt": str(prompt), "password": password}
    )
    while True:
        outbox.lifeline.wait()
        frame, _ = outbox.lifeline.receive()
        # The answer to a question that was interrupted may come late; it answers no other.
        if frame.get("op") == "input" and frame.get("question") == number:
            if frame.get("error"):
                raise EOFError(frame["error"])
            return str(frame.get("value", ""))


def _input(prompt: object = "", /) -> str:
    return ask_input(str(prompt))


def _getpass(prompt: str = "Password: ", stream: object = None) -> str:
    return ask_input(prompt, password=True)


def _pip(line: str) -> None:
    """Install packages into this kernel (``%pip install pandas``), or ask pip something else."""
    from kernelbox.inside import pip_lines

    pip_lines.magic(line)


def _uv(line: str) -> None:
    """Install packages into this kernel (``%uv pip install pandas``), or run uv."""
    from kernelbox.inside import pip_lines

    pip_lines.uv_magic(line)


def make_shell(ipython_dir: str) -> Shell:
    """The one shell of this process, with everything a first cell would have to import."""
    config = Config()
    config.HistoryManager.enabled = False
    config.Completer.use_jedi = False  # namespace completion is milliseconds; jedi is seconds
    config.InteractiveShell.autocall = 0
    config.InteractiveShell.banner1 = ""
    # IPython's `ls` forces colours on, which only a terminal wants.
    plain = [(name, command.replace(" --color", "")) for name, command in default_aliases()]
    config.AliasManager.default_aliases = plain
    shell: Shell = Shell.instance(config=config, ipython_dir=ipython_dir)
    assert shell.magics_manager is not None
    shell.magics_manager.register_function(_pip, magic_name="pip")
    shell.magics_manager.register_function(_uv, magic_name="uv")
    builtins.input = _input
    getpass.getpass = _getpass
    return shell
