"""Going back: checkpoints of a kernel, rewinding to them, and cells that undo themselves."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kernelbox.errors import BadInput, BoxError, CheckpointNotFound, Unsupported
from kernelbox.warden import portrait
from kernelbox.warden.checkpoint import Checkpoint
from kernelbox.warden.execution import Execution, Result
from kernelbox.warden.jobs import ForkOrder
from kernelbox.warden.parked import Parked

if TYPE_CHECKING:
    from kernelbox.warden.kernel import Kernel
    from kernelbox.warden.python_member import PythonMember
    from kernelbox.wire import Frame

Reply = Callable[[dict[str, Any] | BoxError], None]

_SMALL_AGAIN = 0.5
"""Automatic checkpoints come back when the session is down to this part of what was too much."""
_PATIENCE = 60.0
_LONGEST_WAIT = 10.0
"""Seconds for a parked process to do its part; it takes milliseconds."""


class TimeTravel:
    """The checkpoints of one kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._kept: dict[str, Checkpoint] = {}
        self._making: set[Checkpoint] = set()
        self._guards: dict[Execution, Checkpoint] = {}
        self._too_large: int | None = None
        """How much memory it had when automatic checkpoints became too dear."""

    # -- checkpoints that somebody asked for ------------------------------------------------

    def take(self, frame: Frame, reply: Reply) -> None:
        """A checkpoint between two cells; what runs now is waited for."""
        label = frame.get("label")
        most = int(frame.get("most") or 20)
        named = [point for point in self._kept.values() if not point.automatic]
        named += self._making
        if label is not None and any(label in (point.label, point.id) for point in named):
            raise BadInput(f"there is a checkpoint labelled {label!r} already; drop it first")
        if len(named) >= most:
            raise BadInput(
                f"there are {len(named)} checkpoints already (KERNELBOX_MAX_CHECKPOINTS); drop one "
                f"with drop_checkpoint(kernel, {named[0].label or named[0].id!r}), or allow more"
            )
        kernel = self._kernel
        point = self._new(label, automatic=False)
        self._making.add(point)
        patience = float(frame.get("patience") or _PATIENCE)

        def fail(why: str) -> None:
            self._making.discard(point)
            point.parked.drop()
            reply(
                Unsupported(
                    f"no checkpoint could be made: {why}. End what is named and try again; "
                    "branch(…) copies any session"
                )
            )

        def forked(error: str | None, facts: Frame) -> None:
            if error is not None:
                fail(error)
                return
            self._date(point)
            point.notes = list(facts.get("notes") or ())
            point.bash, point.knows_bash = order.bash, True
            self._when_there(point, arrived)

        def arrived(error: str | None) -> None:
            if error is not None:
                fail(error)
                return
            self._making.discard(point)
            self._keep(point, most)
            if kernel.audit is not None:
                kernel.audit.checkpointed(point.id, point.label)
            reply({"checkpoint_id": point.id})

        order = ForkOrder(
            {"op": "checkpoint"}, point.parked.far, forked, patience=patience, with_bash=True
        )

        def too_late() -> None:
            if kernel.withdraw(order):
                fail(f"the running cell did not end within {patience:g} s")

        order.deadline = kernel.family.reactor.call_later(patience, too_late)
        kernel.submit(order)

    def listed(self) -> list[dict[str, Any]]:
        return [point.facts() for point in self._kept.values()]

    def drop(self, wanted: str) -> None:
        self._forget(self._find(wanted))

    def rewind(self, wanted: str, reply: Reply) -> None:
        """Go back: what runs or waits is answered first, and does not come along."""
        self._go_back_to(self._find(wanted), reply)

    def undo(self, cells: int, reply: Reply) -> None:
        """Go back to before the last cells."""
        automatic = [point for point in self._kept.values() if point.automatic]
        wanted = self._kernel.cells - cells
        for point in automatic:
            if point.cells == wanted:
                self._go_back_to(point, reply)
                return
        number = "the last cell" if cells == 1 else f"the last {cells} cells"
        possible = [self._kernel.cells - point.cells for point in automatic]
        if self._too_large is not None:
            why = "undo is off, because this session is too large for it (KERNELBOX_UNDO_COST)"
        elif possible:
            why = (
                f"undo(kernel, {min(possible)}) is possible; KERNELBOX_UNDO says how many cells are"
                " kept, and a cell that was run without it, or with threads alive, is not"
            )
        else:
            why = "no cell was run with KERNELBOX_UNDO set (to 10, say), which is what keeps them"
        raise CheckpointNotFound(f"{number} cannot be undone: {why}")

    def end(self) -> None:
        """With the kernel, all of it goes."""
        for point in [*self._kept.values(), *self._guards.values(), *self._making]:
            point.parked.drop()
        self._kept.clear()
        self._guards.clear()

    def restarted(self) -> None:
        """Nobody means to undo cells of before that."""
        for point in [point for point in self._kept.values() if point.automatic]:
            self._forget(point)

    @property
    def processes(self) -> list[dict[str, Any]]:
        return [
            {**point.parked.facts(), "checkpoint_id": point.id, "label": point.label}
            for point in self._kept.values()
            if point.parked.pid
        ]

    def _go_back_to(self, point: Checkpoint, reply: Reply) -> None:
        kernel = self._kernel

        def failed(why: str) -> None:
            reply(BoxError(f"{point.words} cannot be gone back to: {why}; nothing has changed"))

        def arrived(member: PythonMember, facts: Frame) -> None:
            kernel.history = point.history.copy()
            kernel.execution_count, kernel.cells = point.execution_count, point.cells
            if point.knows_bash:
                kernel.bash.renew(point.bash)
            # What came after that moment has not been; nor is it the past of another.
            for other in [other for other in self._kept.values() if other.automatic]:
                if other.id not in point.past:
                    self._forget(other)
            kernel.succession.rewind(member, f"rewound to {point.words}")
            reply({"record": kernel.record()})

        def go(problem: str | None) -> None:
            # A start that failed is no reason not to go back to better times.
            self._succeed(point, arrived, failed)

        if kernel.succession.is_down:
            go(None)
        else:
            kernel.when_ready(go)

    # -- cells that may have to be undone ---------------------------------------------------

    def before_cell(self, job: Execution) -> tuple[Frame, list[int]]:
        """What the order to run a cell says in addition, and the descriptors for it."""
        if not job.atomic and not self._undo_wanted(job):
            return {}, []
        guard = self._new(None, automatic=True)
        self._guards[job] = guard
        order: Frame = {"atomic": job.atomic, "fds": len(guard.parked.far)}
        if job.atomic:
            order["not_watched"] = self._kernel.not_watched
        return order, guard.parked.far

    def sent(self, job: Execution) -> None:
        """The order is under way."""
        if (guard := self._guards.get(job)) is not None:
            guard.parked.handed_over()

    def not_sent(self, job: Execution) -> None:
        """The order could not be given."""
        if (guard := self._guards.pop(job, None)) is not None:
            self._kernel.cells = guard.cells
            guard.parked.drop()

    def guarded(self, job: Execution, facts: Frame) -> None:
        """The interpreter has parked a copy before the cell, or could not."""
        guard = self._guards.get(job)
        if guard is None:
            return
        seconds = float(facts.get("seconds") or 0.0)
        if refusal := facts.get("refused"):
            self._guards.pop(job).parked.drop()
            if job.atomic:
                self._kernel.cells = guard.cells  # it does not count
                words = f"the cell was not run: it cannot be atomic, because {refusal}"
                self._kernel.refuse(job, Unsupported(words))
            else:
                job.notes.append(f"this cell cannot be undone: {refusal}")
        elif job.undo and seconds > job.undo_cost:
            self._too_large = portrait.memory(self._kernel)
            job.notes.append(
                f"undo is switched off: a checkpoint took {seconds * 1000:.0f} ms in this session "
                f"of {self._too_large >> 20:,} MB (KERNELBOX_UNDO_COST); checkpoint() works as ever"
            )

    def cell_done(self, job: Execution) -> None:
        """It needs no undoing now. It may later, if the caller wants that."""
        guard = self._guards.pop(job, None)
        if guard is None:
            return
        if job.undo and self._too_large is None and not guard.parked.ended:
            guard.history = self._kernel.history.copy()  # the cell is not in it yet
            self._keep(guard, job.most_checkpoints)
            automatic = [point for point in self._kept.values() if point.automatic]
            for point in automatic[: -job.undo]:
                self._forget(point)
        else:
            guard.parked.drop()

    def is_guarded(self, job: object) -> bool:
        """Whether the kernel can be as it was before this cell."""
        return isinstance(job, Execution) and job.atomic and job in self._guards

    def undo_cell(self, job: Execution, outcome: Result) -> None:
        """Put the kernel back to before an atomic cell, and only then answer for the cell."""
        kernel = self._kernel
        guard = self._guards.pop(job)

        def arrived(member: PythonMember, facts: Frame) -> None:
            guard.parked.drop()
            cause = "the cell failed, and was undone"
            changed = list(facts.get("changed") or ())
            kernel.cells, kernel.execution_count = guard.cells, guard.execution_count
            if changed:
                job.notes.append(f"files are not undone; changed meanwhile: {', '.join(changed)}")
            kernel.succession.undone(job, member, outcome, cause)

        def failed(why: str) -> None:
            guard.parked.drop()
            kernel.succession.lost_its_past(job, outcome, f"the cell could not be undone: {why}")

        self._succeed(guard, arrived, failed)

    def _undo_wanted(self, job: Execution) -> bool:
        if not job.undo or job.silent or job.internal:
            return False
        if self._too_large is not None:
            if portrait.memory(self._kernel) > self._too_large * _SMALL_AGAIN:
                return False
            self._too_large = None
        return True

    # -- how ----------------------------------------------------------------------------------

    def _new(self, label: str | None, *, automatic: bool) -> Checkpoint:
        kernel = self._kernel
        point = Checkpoint(
            id=uuid.uuid4().hex[:12],
            label=label,
            automatic=automatic,
            created_at=time.time(),
            execution_count=kernel.execution_count,
            cells=kernel.cells,
            past=frozenset(other.id for other in self._kept.values() if other.automatic),
            parked=Parked(kernel.family.reactor, kernel.family.hands),
        )
        point.parked.on_arrival = kernel.family.parked_arrived
        return point

    def _date(self, point: Checkpoint) -> None:
        """It is of this moment, and not of when it was asked for."""
        kernel = self._kernel
        point.created_at = time.time()
        point.execution_count, point.cells = kernel.execution_count, kernel.cells
        point.history = kernel.history.copy()
        point.past = frozenset(other.id for other in self._kept.values() if other.automatic)

    def _when_there(self, point: Checkpoint, answer: Callable[[str | None], None]) -> None:
        """As the copy does, within reason: a hook of the user's may hang in its fork, or a cell
        may have stopped it."""

        def too_late() -> None:
            point.parked.drop()

        deadline = self._kernel.family.reactor.call_later(_LONGEST_WAIT, too_late)

        def answered(error: str | None) -> None:
            deadline.cancel()
            answer(error)

        point.parked.when_there(answered)

    def _keep(self, point: Checkpoint, most: int) -> None:
        """The oldest automatic one makes room; one that was asked for never does."""
        automatic = [other for other in self._kept.values() if other.automatic]
        while len(self._kept) >= most and automatic:
            self._forget(automatic.pop(0))
        if point.automatic and len(self._kept) >= most:
            point.parked.drop()
            return
        self._kept[point.id] = point
        point.parked.on_end = lambda: self._kept.pop(point.id, None)

    def _forget(self, point: Checkpoint) -> None:
        self._kept.pop(point.id, None)
        point.parked.drop()

    def _find(self, wanted: str) -> Checkpoint:
        for point in self._kept.values():
            if wanted in (point.id, point.label):
                return point
        known = ", ".join(repr(point.label or point.id) for point in self._kept.values())
        raise CheckpointNotFound(
            f"kernel {self._kernel.identity.name!r} has no checkpoint {wanted!r}. "
            + (f"There are: {known}." if known else "It has none.")
        )

    def _succeed(
        self,
        point: Checkpoint,
        arrived: Callable[[PythonMember, Frame], None],
        failed: Callable[[str], None],
    ) -> None:
        """Have a checkpoint fork a live successor."""
        family = self._kernel.family
        told: Frame = {}
        copy, answer = family.expect_copy(
            lambda member: arrived(member, told), failed, patience=_PATIENCE
        )

        def there(error: str | None) -> None:
            if error is not None:
                copy.channel.close_far()
                answer(error)
            else:
                point.parked.fork(copy.channel, forked)

        def too_late() -> None:
            point.parked.drop()  # which answers

        deadline = family.reactor.call_later(_LONGEST_WAIT, too_late)

        def forked(error: str | None, facts: Frame) -> None:
            deadline.cancel()
            told.update(facts)
            answer(error)

        self._when_there(point, there)
