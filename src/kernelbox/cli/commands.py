"""From the words of a command line to an exit code; every failure ends here, in words."""

from __future__ import annotations

import sys
import warnings
from argparse import Namespace
from collections.abc import Callable
from importlib import import_module
from itertools import pairwise
from typing import Any, TextIO

from kernelbox.cli import exits
from kernelbox.cli.grammar import COMMANDS, Command, long_help, short_help
from kernelbox.cli.parser import UsageError
from kernelbox.cli.printing import abandon_output, complain, say_text
from kernelbox.cli.signals import Stopped
from kernelbox.config import nearest
from kernelbox.errors import BoxError
from kernelbox.wire import GarbledFrame

_HIDDEN = "__complete"


def run(words: list[str]) -> int:
    """Do what a command line says, and return its exit code."""
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        return _run(words)


def _run(words: list[str]) -> int:
    human = "--human" in words
    try:
        code = _dispatch(words)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except SystemExit as end:  # argparse has shown the help of a command
        return int(end.code or 0)
    except UsageError as error:
        return _fail("UsageError", error.message, error.hint, human=human, code=exits.USAGE)
    except BrokenPipeError:
        abandon_output()
        return exits.PIPE_CLOSED
    except (Stopped, KeyboardInterrupt) as error:
        code = error.code if isinstance(error, Stopped) else exits.INTERRUPTED
        return _fail(
            "Interrupted",
            "left before there was an answer",
            "kernelbox list shows what became of the kernels",
            human=human,
            code=code,
        )
    except GarbledFrame as error:
        hint = "keep large data in a file, and read it in the kernel"
        return _fail("BadInput", str(error), hint, human=human, code=exits.BAD_INPUT)
    except (BoxError, OSError) as error:
        return _failed(error, words, human=human)
    except Exception as error:  # noqa: BLE001 - a bug of ours; who reads JSON gets JSON
        import traceback

        return _fail(
            "InternalError",
            f"a bug in KernelBox: {type(error).__name__}: {error}",
            "kernels are not touched by it; please report it with its details",
            human=human,
            code=exits.FAILED,
            details={"traceback": traceback.format_exc()},
        )


def _dispatch(words: list[str]) -> int:
    words = list(words)
    human = bool(words) and words[0] == "--human"
    if human:
        words.pop(0)
    if words[1:] and words[0] == "help":
        say_text(_chosen(words[1]).parser().format_help())
        return exits.DONE
    if not words or words[0] in ("-h", "--help", "help"):
        say_text(long_help() if words else short_help())
        return exits.DONE
    if words[0] in ("-V", "--version"):
        from kernelbox import __version__

        say_text(f"kernelbox {__version__}\n")
        return exits.DONE
    if words[0] == _HIDDEN:
        from kernelbox.cli.completion import answer

        return answer(words[1:])
    options = understood(words)
    options.human = human or getattr(options, "human", False)
    return _handler(COMMANDS[options.command])(options)


def _chosen(word: str) -> Command:
    command = COMMANDS.get(word)
    if command is not None:
        return command
    near = nearest(word, COMMANDS)
    raise UsageError(
        f"kernelbox has no {'option' if word.startswith('-') else 'command'} {word!r}",
        f"did you mean kernelbox {near[0]}?" if near else "kernelbox --help lists the commands",
    )


def understood(words: list[str]) -> Namespace:
    """A command and its options; :class:`UsageError` says what is wrong with them."""
    command = _chosen(words[0])
    options, rest = command.parser().read(words[1:])
    options.words = [*options.words, *rest]
    options.command = command.name
    if not command.words and options.words:
        raise _reserved(command, options.words[0])
    if command.means != "nothing":
        _check_kernel(command, options)
    return options


def _check_kernel(command: Command, options: Namespace) -> None:
    """A kernel is meant by its name or its id, and by one of them only."""
    options.kernel_id = getattr(options, "id", None)
    options.kernel = options.name if options.name is not None else options.kernel_id
    how = f"kernelbox {command.name} --name NAME"
    if options.name is not None and options.kernel_id is not None:
        raise UsageError(
            f"kernelbox {command.name} takes --name or --id, not both", f"leave out one: {how} …"
        )
    if options.kernel is None and command.means != "perhaps a kernel":
        if options.words and not _looks_like_code(options.words[0]):
            raise _reserved(command, *options.words)
        also = "" if command.means == "a new kernel" else " or --id"
        raise UsageError(f"kernelbox {command.name} needs --name{also}: which kernel?", f"{how} …")


def _reserved(command: Command, word: str, *others: str) -> UsageError:
    """A bare name will mean a sandbox, under these same verbs; taking it for a kernel today would
    make it mean something else tomorrow."""
    from shlex import join

    if command.means == "nothing":
        return UsageError(
            f"kernelbox {command.name} takes no {word!r}", f"kernelbox {command.name} --help"
        )
    return UsageError(
        f"kernelbox {command.name}: {word!r} is no option. A bare name is reserved for sandboxes; "
        "a kernel is named by --name",
        join(["kernelbox", command.name, "--name", word, *others]),
    )


def _looks_like_code(word: str) -> bool:
    return not word.replace("-", "_").isidentifier()


def _handler(command: Command) -> Callable[[Namespace], int]:
    module, _, function = command.handler.partition(":")
    handler: Callable[[Namespace], int] = getattr(
        import_module(f"kernelbox.cli.{module}"), function
    )
    return handler


def _failed(error: BoxError | OSError, words: list[str], *, human: bool) -> int:
    command = next((word for word in words if word in COMMANDS), "")
    names = [after for word, after in pairwise(words) if word == "--name"]
    names += [word.removeprefix("--name=") for word in words if word.startswith("--name=")]
    hint = exits.hint_for(error, command=command, name=names[0] if names else None)
    code = exits.code_of(error)
    if isinstance(error, BoxError):
        kind, message, details = type(error).__name__, error.message, error.details
    else:
        kind, message, details = type(error).__name__, str(error), {}
    return _fail(kind, message, hint, human=human, code=code, details=details)


def _fail(
    kind: str,
    message: str,
    hint: str,
    *,
    human: bool,
    code: int,
    details: dict[str, Any] | None = None,
) -> int:
    if human:
        say_text(f"{kind}: {message}\n  → {hint}\n", error=True)
    else:
        error: dict[str, Any] = {"error": kind, "message": message, "hint": hint}
        complain(error | ({"details": details} if details else {}))
    return code


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """A warning of ours, as data; where in our source it was raised is nothing to the user."""
    complain({"warning": str(message)})
