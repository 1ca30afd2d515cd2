"""``kernelbox repl``: a prompt in a kernel, which is there before and stays after."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import uuid
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from types import FrameType

from prompt_toolkit.application import Application

from kernelbox.box import Box
from kernelbox.cli import exits
from kernelbox.cli.colours import painted, wanted_on
from kernelbox.cli.printing import say_text
from kernelbox.cli.prompt import Questions, new_session
from kernelbox.cli.rendering import Rendering
from kernelbox.cli.signals import Interrupting, Stopped
from kernelbox.errors import BadInput, BoxError, KernelNotFound, Unsupported
from kernelbox.result import ExecutionResult, KernelRecord

_NO_TIMEOUT = 365 * 86_400.0  # a person has Ctrl-C
COMMANDS = {
    ":help": "what can be typed here",
    ":undo": "[N] go back to before the last cells (KERNELBOX_UNDO)",
    ":checkpoint": "[LABEL] remember the kernel as it is now",
    ":checkpoints": "what there is to go back to",
    ":rewind": "ID-OR-LABEL go back to a checkpoint",
    ":branch": "NAME copy the kernel under another name; you stay in this one",
    ":bash": "COMMAND run it in the kernel's bash session",
    ":restart": "a fresh interpreter; variables are gone",
    ":status": "what the kernel is doing",
    ":quit": "leave; the kernel stays (so does Ctrl-D)",
}


def repl(options: Namespace) -> int:
    if not (sys.stdin and sys.stdin.isatty() and sys.stdout and sys.stdout.isatty()):
        raise Unsupported(
            "kernelbox repl needs a terminal",
            hint="kernelbox exec --name NAME runs code from a pipe or a file",
        )
    with Box() as box:
        if options.name is None:
            record = KernelRecord.from_wire(box.status(options.kernel)["kernel"])
        else:
            record = box.get_or_create(options.name)
        return Repl(box, record).run()


class Repl:
    """A conversation with one kernel, until its user leaves."""

    def __init__(self, box: Box, kernel: KernelRecord) -> None:
        self._box = box
        self._kernel = kernel
        self._questions = Questions(box.settings, kernel)
        self._colour = wanted_on(sys.stdout)
        self._rendering = Rendering(box.settings)
        self._commands: dict[str, Callable[[str], None]] = {
            ":help": self._help,
            ":undo": self._undo,
            ":checkpoint": self._checkpoint,
            ":checkpoints": self._checkpoints,
            ":rewind": self._rewind,
            ":branch": self._branch,
            ":bash": partial(self._execute, language="bash"),
            ":restart": self._restart,
            ":status": self._status,
        }

    def run(self) -> int:
        session = new_session(
            self._questions,
            folder=os.path.dirname(self._box.settings.registry_path),
            commands=COMMANDS,
        )
        self._greet()
        before = {
            number: signal.signal(number, partial(_leave, session.app))
            for number in (signal.SIGTERM, signal.SIGHUP)
        }
        try:
            while True:
                name = self._kernel.name
                try:
                    text = session.prompt(
                        f"{name}> ", prompt_continuation=lambda width, *_: "· ".rjust(width)
                    )
                except KeyboardInterrupt:
                    continue  # a line that its author gave up
                except EOFError:
                    break
                if text.strip() in (":quit", ":q", "exit", "exit()", "quit", "quit()"):
                    break
                if text.strip():
                    self._answer(text)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self._questions.close()
        name = shlex.quote(self._kernel.name)
        self._tell(f"the kernel stays; kernelbox destroy --name {name} ends it")
        return exits.DONE

    def _answer(self, text: str) -> None:
        try:
            if text.startswith(":"):
                self._command(text)
            else:
                self._execute(text)
        except KernelNotFound as error:
            self._complain(error)
            self._find_again()
        except BoxError as error:
            self._complain(error)

    def _command(self, text: str) -> None:
        word, _, rest = text.strip().partition(" ")
        command = self._commands.get(word)
        if command is None:
            raise BadInput(f"there is no command {word}; :help lists them")
        command(rest.strip())

    def _execute(self, code: str, language: str = "python") -> None:
        execution_id = uuid.uuid4().hex

        def cancel() -> bool:
            return self._box.cancel(self._kernel, execution_id)

        with Interrupting(cancel, patient=True) as interrupting:
            events = self._box.events(
                self._kernel,
                code,
                language=language,
                timeout=_NO_TIMEOUT,
                execution_id=execution_id,
                on_input=interrupting.ask,
            )
            for event in events:
                if isinstance(event.item, ExecutionResult):
                    self._rendering.show_result(event.item, shown=True)
                else:
                    self._rendering.show_item(event.item)

    def _find_again(self) -> None:
        """The kernel ended under us: go on in a new one of its name."""
        self._kernel = self._questions.kernel = self._box.get_or_create(self._kernel.name)
        self._tell(f"a new kernel {self._kernel.name!r} was made; its variables are gone")

    def _help(self, _: str) -> None:
        width = max(map(len, COMMANDS))
        for name, about in COMMANDS.items():
            say_text(f"  {name:<{width}}  {about}\n")
        say_text(
            "Tab completes; Ctrl-C interrupts; everything else is Python (and IPython's !, %)\n"
        )

    def _undo(self, rest: str) -> None:
        if rest and not rest.isdecimal():
            raise BadInput(f":undo takes a number of cells, not {rest!r}")
        self._box.undo(self._kernel, int(rest or 1))
        self._tell("went back")

    def _checkpoint(self, rest: str) -> None:
        self._tell(f"checkpoint {self._box.checkpoint(self._kernel, rest or None)}")

    def _checkpoints(self, _: str) -> None:
        from kernelbox.cli.human import show_checkpoints

        show_checkpoints(self._box.checkpoints(self._kernel))

    def _rewind(self, rest: str) -> None:
        self._box.rewind(self._kernel, rest)
        self._tell("went back")

    def _branch(self, rest: str) -> None:
        record = self._box.branch(self._kernel, rest)
        self._tell(f"branch {record.name!r} was made")

    def _restart(self, _: str) -> None:
        self._box.restart(self._kernel)
        self._tell("restarted")

    def _status(self, _: str) -> None:
        from kernelbox.cli.human import show_status

        show_status(self._box.status(self._kernel))

    def _greet(self) -> None:
        self._tell(
            f"kernel {self._kernel.name!r}, epoch {self._kernel.epoch} · :help · Ctrl-D leaves"
        )
        if self._kernel.state == "lost":
            self._tell(f"the kernel of that name before it was lost: {self._kernel.cause}")

    def _tell(self, words: str) -> None:
        say_text(painted(words, "dim", on=self._colour) + "\n")

    def _complain(self, error: BoxError) -> None:
        words = painted(type(error).__name__, "bold red", on=self._colour)
        say_text(f"{words}: {error.message}\n", error=True)


def _leave(app: Application[str], number: int, _: FrameType | None) -> None:
    """The prompt gives the terminal back before it goes. An exception out of nowhere would be
    caught by its event loop, which asks the user to press a key."""
    if app.is_running and app.loop is not None:
        app.loop.call_soon_threadsafe(partial(app.exit, exception=Stopped(number)))
    else:
        raise Stopped(number)
