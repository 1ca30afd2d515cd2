"""One execution, from the queue to its result."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from kernelbox.inside.changes import Folder
from kernelbox.spool import Event, Spool
from kernelbox.warden.digest import Digest, bounded
from kernelbox.wire import Frame

_MOST_LEFT = 100_000

Result = dict[str, Any]
Finisher = Callable[[Result], None]
Subscriber = Callable[[int, Event], None]
"""Told of each event, with its number."""


class InputRequest(NamedTuple):
    """A cell's ``input()``. Its answer names its ``number``: one to a question that was interrupted
    may come late, and answers no other."""

    number: Any
    prompt: str
    password: bool


@dataclass(slots=True, eq=False, weakref_slot=True)
class Execution:
    """A cell or a bash command: what was asked for, and what has become of it so far."""

    is_use: ClassVar[bool] = True

    id: str
    code: str
    language: str = "python"
    timeout: float | None = None
    limit: int = 10_000
    interrupt_grace: float = 2.0
    kill_grace: float = 5.0
    expect_epoch: int | None = None
    stdin: bool = False
    face: str = "text"
    silent: bool = False
    store_history: bool = True
    user_expressions: dict[str, str] = field(default_factory=dict)
    internal: bool = False
    atomic: bool = False
    undo: int = 0
    """How many cells back the caller wants to be able to go."""
    undo_cost: float = 0.05
    """Seconds that a checkpoint before the cell may take: people wait for it."""
    most_checkpoints: int = 20
    origin: Any = None
    parent: dict[str, Any] | None = None  # the Jupyter request, for libraries that look at it
    finishers: list[Finisher] = field(default_factory=list)
    """Whoever waits for the result; each is told once."""
    on_result: Finisher | None = None
    """Keeps the result for later, whether anybody waits or not."""
    on_input: Callable[[InputRequest], None] | None = None
    subscribers: list[Subscriber] = field(default_factory=list)

    digest: Digest = field(init=False)
    spool: Spool | None = None
    started_at: float = 0.0
    bash_before: str | None = None
    folder_before: Folder | None = None
    oom_before: int = 0
    steps: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    timed_out: bool = False
    cancelled: str | None = None
    asked: Any = None
    """The number of its latest ``input()``."""
    error: dict[str, Any] | None = None
    reply: dict[str, Any] = field(default_factory=dict)
    result: Result | None = None

    def __post_init__(self) -> None:
        self.digest = Digest(self.limit)

    @property
    def ran(self) -> bool:
        """Whether it left the queue: what did not may be asked for again."""
        return self.started_at > 0

    @property
    def awaited(self) -> bool:
        """Whether anybody waits for the result, or has had it."""
        return self.finished or bool(self.finishers)

    @property
    def finished(self) -> bool:
        return self.result is not None

    def request(self) -> Frame:
        """For the interpreter."""
        return {
            "op": "run",
            "code": self.code,
            "silent": self.silent,
            "store_history": self.store_history,
            "user_expressions": self.user_expressions,
            "stdin": self.stdin,
            "face": self.face,
            "parent": self.parent,
        }

    def add(self, event: Event) -> None:
        """Take in an event: into the spool, the digest, and to whoever follows it."""
        number = self.spool.append(event) if self.spool is not None else 0
        self.digest.add(event)
        for subscriber in self.subscribers:
            subscriber(number, event)

    def finish(self, outcome: Result) -> Result:
        """The result, from the outcome that the kernel decided on and the output collected here."""
        elapsed = time.monotonic() - self.started_at if self.started_at else 0.0
        digest = self.digest.finish()
        notes = list(self.notes)
        if self.digest.cut_stream:
            notes.append(f"output was cut; output(kernel, {self.id!r}) reads all of it")
        if self.digest.cut_error:
            notes.append("an error's text was cut")
        if self.digest.left_out:
            notes.append(f"{self.digest.left_out:,} displays were left out: too many, or too large")
        if self.digest.cut_value:
            notes.append("a value was cut; it is whole in the kernel (the last one is _)")
        if self.spool is not None and self.spool.failure:
            notes.append(self.spool.failure)
        self.result = {
            "execution_id": self.id,
            "duration_ms": round(elapsed * 1000),
            "execution_count": self.reply.get("execution_count"),
            "steps": self.steps,
            **digest,
            **outcome,
            "notes": notes,
        }
        finishers, self.finishers, self.on_input = self.finishers, [], None
        if self.on_result is not None:
            self.on_result(self.result)
            self.on_result = None
        for finisher in finishers:
            finisher(self.result)
        # Who asked for it refers to it, and it to them: thousands of such rings would wait for
        # the collector, which comes seldom.
        self.subscribers.clear()
        return self.result


def without_bulk(result: Result) -> Result:
    """A result that is too large to be sent at all, down to what surely is not."""
    return {
        **result,
        "output": bounded(str(result.get("output") or ""), _MOST_LEFT),
        "stderr": bounded(str(result.get("stderr") or ""), _MOST_LEFT),
        "return_value": bounded(str(result.get("return_value") or ""), _MOST_LEFT) or None,
        "outputs": [],
        "truncated": True,
        "notes": [*result.get("notes", ()), "the result was too large to be sent whole"],
    }
