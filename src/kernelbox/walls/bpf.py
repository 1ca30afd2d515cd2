"""Rules about system calls, as data and as a program that the kernel runs. Nothing acts here."""

from __future__ import annotations

import errno
import functools
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kernelbox.walls import syscalls

# What a filter answers.

ALLOW = 0x7FFF0000
KILL = 0x80000000
"""The whole process, not only the thread."""


def refuse(number: int) -> int:
    """The call is not made, and its caller sees this errno."""
    return 0x00050000 | number


EPERM, ENOSYS = refuse(errno.EPERM), refuse(errno.ENOSYS)

# Rules.

_WHOLE = 0xFFFFFFFF


class Check(NamedTuple):
    """Holds when the low 32 bits of an argument, masked, are one of ``values``.

    Only of arguments that the kernel itself takes as 32 bits (or fewer): there a number that
    differs in its high half is the same number, and a filter that looked at it could be fooled.
    """

    argument: int
    values: Sequence[int]
    mask: int = _WHOLE


class Case(NamedTuple):
    """The answer when all checks hold."""

    checks: Sequence[Check]
    answer: int


class Rule(NamedTuple):
    """The answer of the first case that fits, or else the last word."""

    cases: Sequence[Case]
    otherwise: int


Verdict = int | Rule

# The assembler.


class Instruction(NamedTuple):
    """``struct sock_filter``: a jump counts the instructions that it skips."""

    code: int
    jump_true: int
    jump_false: int
    operand: int


@dataclass(frozen=True)
class Program:
    """A filter, ready to be installed."""

    instructions: tuple[Instruction, ...]

    @functools.cached_property
    def packed(self) -> bytes:
        """As the kernel reads it."""
        return b"".join(struct.pack("=HBBI", *each) for each in self.instructions)


_LOAD, _AND, _RETURN = 0x20, 0x54, 0x06  # LD|W|ABS, ALU|AND|K, RET|K
_JUMP, _JUMP_EQUAL, _JUMP_AT_LEAST = 0x05, 0x15, 0x35  # JMP|JA, JMP|JEQ|K, JMP|JGE|K
_FARTHEST = 255
# Offsets in struct seccomp_data. Arguments are 64 bits wide, the low half first.
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
_X32 = 0x40000000

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


def assemble(machine: str, verdicts: Mapping[int, Verdict], default: Verdict) -> Program:
    """The filter that answers each call by number, with ``default`` for what is not named, and
    ENOSYS for what is younger than our table: programs expect that of a call they probe for.

    Another architecture's numbers mean other calls, so whoever uses them is killed. Then the
    number is searched for by halves: nine comparisons for three hundred calls. Where a number alone
    decides that a call is allowed, Linux (5.11 and later) finds that out when the filter is
    installed, and does not run the filter for it again; so nothing but the architecture and the
    number may be looked at before.
    """
    code = [
        Instruction(_LOAD, 0, 0, _ARCHITECTURE),
        Instruction(_JUMP_EQUAL, 1, 0, _AUDIT_ARCH[machine]),
        Instruction(_RETURN, 0, 0, KILL),
        Instruction(_LOAD, 0, 0, _NUMBER),
    ]
    if machine == "x86_64":
        code.append(Instruction(_JUMP_AT_LEAST, 0, 1, _X32))
        code.append(Instruction(_RETURN, 0, 0, KILL))
    code += _search(_spans(verdicts, default, newest=syscalls.newest(machine)))
    return Program(tuple(code))


def _spans(
    verdicts: Mapping[int, Verdict], default: Verdict, *, newest: int
) -> list[tuple[int, Verdict]]:
    """``(first number, verdict)`` of each run of numbers that are answered alike."""
    spans: list[tuple[int, Verdict]] = []
    for number in range(newest + 1):
        verdict = verdicts.get(number, default)
        if not spans or spans[-1][1] != verdict:
            spans.append((number, verdict))
    spans.append((newest + 1, ENOSYS))
    return spans


def _search(spans: Sequence[tuple[int, Verdict]]) -> list[Instruction]:
    if len(spans) == 1:
        return _judge(spans[0][1])
    middle = len(spans) // 2
    below, above = _search(spans[:middle]), _search(spans[middle:])
    first = spans[middle][0]
    if len(below) <= _FARTHEST:
        return [Instruction(_JUMP_AT_LEAST, len(below), 0, first), *below, *above]
    far = Instruction(_JUMP, 0, 0, len(below))  # a conditional jump does not reach that far
    return [Instruction(_JUMP_AT_LEAST, 0, 1, first), far, *below, *above]


def _judge(verdict: Verdict) -> list[Instruction]:
    if isinstance(verdict, int):
        return [Instruction(_RETURN, 0, 0, verdict)]
    code: list[Instruction] = []
    for case in verdict.cases:
        code += _try_case(case)
    return [*code, Instruction(_RETURN, 0, 0, verdict.otherwise)]


def _try_case(case: Case) -> list[Instruction]:
    """Ends with the answer; is jumped out of, to what follows it, when a check does not hold."""
    code = [Instruction(_RETURN, 0, 0, case.answer)]
    for check in reversed(case.checks):
        *others, last = check.values
        steps = [Instruction(_LOAD, 0, 0, _ARGUMENTS + 8 * check.argument)]
        if check.mask != _WHOLE:
            steps.append(Instruction(_AND, 0, 0, check.mask))
        for index, value in enumerate(others):
            steps.append(Instruction(_JUMP_EQUAL, len(others) - index, 0, value))
        steps.append(Instruction(_JUMP_EQUAL, 0, len(code), last))
        code = [*steps, *code]
    return code
