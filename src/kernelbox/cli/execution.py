"""``kernelbox exec``: run code in a kernel and print what came of it."""

from __future__ import annotations

import sys
import uuid
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import asdict

from kernelbox.box import Box
from kernelbox.cli import exits
from kernelbox.cli.parser import UsageError
from kernelbox.cli.printing import say
from kernelbox.cli.progress import is_terminal, working
from kernelbox.cli.signals import Interrupting
from kernelbox.client.meaning import KernelLike, OnInput
from kernelbox.errors import BadInput
from kernelbox.result import ExecutionResult, OutputItem

_MORE = "kernelbox exec --help shows examples"


def execute(options: Namespace) -> int:
    code = _code(options)
    execution_id = options.execution_id
    if execution_id is None:
        execution_id = options.execution_id = uuid.uuid4().hex
    with Box() as box:
        kernel, new = _kernel(box, options)
        with Interrupting(lambda: box.cancel(kernel, execution_id)) as interrupting:
            if options.stream:
                result = _streamed(box, kernel, code, options, interrupting)
            else:
                result = _whole(box, kernel, code, options)
    if new:
        # So is one whose name was mistyped, or that was looked for in another folder.
        result.notes.append(f"there was no kernel {options.name!r}: this one is new")
    if options.human:
        from kernelbox.cli.rendering import Rendering

        Rendering(box.settings).show_result(result, shown=options.stream)
    else:
        say(result.to_dict())
    if result.ok:
        return exits.DONE
    return interrupting.code or exits.CODE_FAILED


def _kernel(box: Box, options: Namespace) -> tuple[KernelLike, bool]:
    """The kernel that is meant, and whether it was made for this."""
    if options.name is None:
        return str(options.kernel), False  # an id cannot be made
    with working(f"finding {options.name}"):
        known = any(record.name == options.name for record in box.list_kernels())
        return box.get_or_create(options.name), not known


def _events(
    box: Box,
    kernel: KernelLike,
    code: str,
    options: Namespace,
    *,
    on_input: OnInput | None = None,
) -> Iterator[OutputItem | ExecutionResult]:
    events = box.events(
        kernel,
        code,
        language="bash" if options.bash else "python",
        timeout=options.timeout,
        expect_epoch=options.expect_epoch,
        execution_id=options.execution_id,
        atomic=options.atomic,
        on_input=on_input,
        on_disconnect="interrupt",
        idempotency_key=options.idempotency_key,
    )
    return (event.item for event in events)


def _streamed(
    box: Box, kernel: KernelLike, code: str, options: Namespace, interrupting: Interrupting
) -> ExecutionResult:
    """Print what happens when it happens. Who closes the pipe ends the cell."""
    show, on_input = _say_item, None
    if options.human:
        from kernelbox.cli.rendering import Rendering

        show = Rendering(box.settings).show_item
        # The terminal can answer input() unless the code itself came from there.
        if options.from_argument and sys.stdin is not None and sys.stdin.isatty():
            on_input = interrupting.ask
    for item in _events(box, kernel, code, options, on_input=on_input):
        if isinstance(item, ExecutionResult):
            return item
        show(item)
    raise AssertionError("a stream ends with a result")


def _whole(box: Box, kernel: KernelLike, code: str, options: Namespace) -> ExecutionResult:
    """The result, when it is there. Only if somebody watches are the events asked for."""
    if not is_terminal():
        return box.execute(
            kernel,
            code,
            language="bash" if options.bash else "python",
            timeout=options.timeout,
            expect_epoch=options.expect_epoch,
            execution_id=options.execution_id,
            atomic=options.atomic,
            on_disconnect="interrupt",
            idempotency_key=options.idempotency_key,
        )
    with working(f"running in {options.kernel}") as progress:
        for item in _events(box, kernel, code, options):
            if isinstance(item, ExecutionResult):
                return item
            progress.note(item.text or "")
    raise AssertionError("a stream ends with a result")


def _say_item(item: OutputItem) -> None:
    say(asdict(item))


def _code(options: Namespace) -> str:
    """The code: an argument, a file or standard input."""
    words = options.words
    if len(words) > 1:
        raise UsageError(
            f"kernelbox exec takes one piece of code, not {len(words)} words",
            "put quotes around the code; a kernel is named by --name",
        )
    if words and options.file is not None:
        raise UsageError("kernelbox exec takes code or -f FILE, not both", _MORE)
    options.from_argument = bool(words and words[0] != "-") or options.file is not None
    if options.file not in (None, "-"):
        return _decoded(_contents(options.file), options.file, bash=options.bash)
    if options.from_argument and options.file is None:
        return str(words[0])
    if sys.stdin is None:
        raise UsageError("kernelbox exec: there is no code, and standard input is closed", _MORE)
    if sys.stdin.isatty():
        sys.stderr.write("reading code from the terminal; Ctrl-D ends it\n")
    return _decoded(sys.stdin.buffer.read(), "standard input", bash=options.bash)


def _contents(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        kind = FileNotFoundError if isinstance(error, FileNotFoundError) else BadInput
        raise kind(f"the code in {path!r} cannot be read: {error.strerror}") from None


def _decoded(raw: bytes, source: str, *, bash: bool) -> str:
    """Source text as Python itself reads it: UTF-8, unless a first line says otherwise."""
    import io
    import tokenize

    try:
        encoding = "utf-8-sig" if bash else tokenize.detect_encoding(io.BytesIO(raw).readline)[0]
        return raw.decode(encoding)
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        raise BadInput(f"the code in {source} is not text that can be read: {error}") from None
