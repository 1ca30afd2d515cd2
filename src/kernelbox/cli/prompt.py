"""The prompt of the REPL: keys, completion from the live kernel, history in the home."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from prompt_toolkit import PromptSession
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import completion_is_selected, has_focus
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.lexers import PygmentsLexer
from pygments.lexers.python import PythonLexer  # type: ignore[import-untyped]

from kernelbox.client.blocking import BlockingDriver
from kernelbox.client.calls import Calls
from kernelbox.config import Settings
from kernelbox.errors import BoxError
from kernelbox.result import KernelRecord

_PATIENCE = 2.0
_MOST_COMPLETIONS = 500


class Questions:
    """What to ask of the kernel while its user types. It may be busy for somebody else, and the
    prompt does not wait for that."""

    def __init__(self, settings: Settings, kernel: KernelRecord) -> None:
        self.kernel = kernel
        self._calls = Calls(settings)
        self._driver = BlockingDriver()

    def ask(self, what: str, **fields: Any) -> dict[str, Any]:
        request = {"op": "ask", "what": what, "fields": fields}
        try:
            return self._driver.run(self._calls.kernel(self.kernel, request, patience=_PATIENCE))
        except BoxError:
            return {}

    def close(self) -> None:
        self._driver.lines.close()

    def indent_of_more(self, code: str) -> str | None:
        """How the next line begins if the code needs one; None if it can be run."""
        reply = self.ask("is_complete", code=code)
        return str(reply.get("indent", "")) if reply.get("status") == "incomplete" else None


class KernelCompleter(Completer):
    """What the interpreter that holds the variables knows."""

    def __init__(self, questions: Questions, commands: Mapping[str, str]) -> None:
        self._questions = questions
        self._commands = commands

    def get_completions(self, document: Document, _: CompleteEvent) -> Iterable[Completion]:
        text, cursor = document.text, document.cursor_position
        if text.startswith(":"):
            for name, about in self._commands.items():
                if name.startswith(text):
                    yield Completion(name, start_position=-len(text), display_meta=about)
            return
        reply = self._questions.ask("complete", code=text, cursor_pos=cursor)
        start = int(reply.get("cursor_start", cursor)) - cursor
        for match in list(reply.get("matches", ()))[:_MOST_COMPLETIONS]:
            yield Completion(match, start_position=min(0, start))


def new_session(
    questions: Questions, *, folder: str, commands: Mapping[str, str]
) -> PromptSession[str]:
    """A prompt that goes on over lines until the code is whole."""
    keys = KeyBindings()

    @keys.add("enter", filter=has_focus("DEFAULT_BUFFER") & ~completion_is_selected)
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        text = buffer.document.text
        if buffer.document.text_after_cursor.strip():
            buffer.newline()
            return
        indent = None if text.startswith(":") else questions.indent_of_more(text)
        if indent is None:
            buffer.validate_and_handle()
        else:
            buffer.insert_text(f"\n{indent}")

    return PromptSession(
        history=_history(folder),
        completer=KernelCompleter(questions, commands),
        complete_in_thread=True,
        complete_while_typing=False,
        lexer=PygmentsLexer(PythonLexer),
        auto_suggest=AutoSuggestFromHistory(),
        multiline=True,
        key_bindings=keys,
        enable_open_in_editor=True,
    )


def _history(folder: str) -> History:
    """Private: what people type holds secrets. Where it cannot be kept, it is not."""
    path = os.path.join(folder, "repl_history")
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    except OSError:
        return InMemoryHistory()
    return FileHistory(path)
