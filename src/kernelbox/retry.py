"""Self-correcting execution: run, and on failure ask the caller for better code.

The rules are one generator that is told results and asks for runs and repairs; the blocking and
the asyncio entrance drive the same one.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator
from dataclasses import dataclass

from kernelbox.config.checks import check_attempts
from kernelbox.errors import BadInput, in_short
from kernelbox.result import AttemptSnapshot, ExecutionResult


@dataclass(frozen=True, slots=True)
class Run:
    """Run this code and send the result back."""

    code: str


@dataclass(frozen=True, slots=True)
class Mend:
    """Ask ``on_error_fn(result, attempt)`` and send its answer back."""

    result: ExecutionResult
    attempt: int


def check_repair(on_error_fn: object) -> None:
    """Refuse what cannot be asked, before any code has run."""
    if not callable(on_error_fn):
        raise BadInput(
            f"on_error_fn is a function of (result, attempt) that returns code or None, "
            f"not {in_short(on_error_fn)}"
        )


def attempts(
    code: str, max_attempts: int
) -> Generator[Run | Mend, ExecutionResult | str | None, ExecutionResult]:
    """The rules: attempts count from 1, the first run included; after the last failure nobody is
    asked any more, and the result keeps the last output and error."""
    last = check_attempts(max_attempts)
    history: list[AttemptSnapshot] = []
    for attempt in itertools.count(1):
        result = yield Run(code)
        assert isinstance(result, ExecutionResult)
        history.append(
            AttemptSnapshot(
                attempt, code, result.status, result.output, result.stderr, result.error
            )
        )
        result.attempts = history
        if result.ok:
            return result
        if attempt == last:
            result.status = "max_attempts_exceeded"
            return result
        better = yield Mend(result, attempt)
        if better is not None:
            if not isinstance(better, str):
                raise BadInput(f"on_error_fn returns code or None, not {type(better).__name__}")
            code = better
    raise AssertionError("attempts are counted to the last")
