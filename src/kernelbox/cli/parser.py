"""An argument parser whose complaints are errors with a hint, and which takes no half words."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from kernelbox.config import nearest


class UsageError(Exception):
    """The command line cannot be understood; ``hint`` is what to type instead."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class Parser(argparse.ArgumentParser):
    """For one command."""

    def __init__(self, command: str, **options: Any) -> None:
        super().__init__(
            prog=f"kernelbox {command}",
            allow_abbrev=False,  # or a new option would change what an old script means
            formatter_class=argparse.RawDescriptionHelpFormatter,
            **options,
        )
        self.command = command

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"kernelbox {self.command}: {message}", self.more)

    @property
    def more(self) -> str:
        return f"kernelbox {self.command} --help shows examples"

    def read(self, words: list[str]) -> tuple[argparse.Namespace, list[str]]:
        """The options, and words that belong to none of them; an unknown option is refused."""
        found, rest = self.parse_known_args(words)
        for word in rest:
            if word.startswith("-") and word != "-":
                self._refuse_option(word)
        return found, rest

    def options(self) -> dict[str, str]:
        """Every option with its help, as completion shows them."""
        return {
            word: action.help or ""
            for word, action in self._option_string_actions.items()
            if action.help != argparse.SUPPRESS
        }

    def choices(self, option: str) -> tuple[str, ...] | None:
        """The values that an option can have if they can be listed; None if it takes none."""
        action = self._option_string_actions.get(option)
        if action is None or action.nargs == 0:
            return None
        return tuple(str(choice) for choice in action.choices or ())

    def _refuse_option(self, word: str) -> NoReturn:
        name = word.partition("=")[0]
        near = nearest(name, [option for option in self.options() if option.startswith("--")])
        raise UsageError(
            f"kernelbox {self.command} has no option {name}",
            f"did you mean {near[0]}?" if near else self.more,
        )
