"""Interpreters that are not anybody's yet: a spare, and the copy of a fork until it has come."""

from __future__ import annotations

from collections.abc import Callable

from kernelbox.reactor import Reactor, Timer
from kernelbox.warden.exits import Exit
from kernelbox.warden.landlord import CopyAnswer
from kernelbox.warden.member import Member
from kernelbox.warden.python_member import PythonMember
from kernelbox.warden.roster import Roster
from kernelbox.wire import Frame


class Nobody:
    """Owns an interpreter that nobody has asked for."""

    def __init__(self, on_primed: Callable[[], None] = lambda: None) -> None:
        self._on_primed = on_primed

    def member_started(self, member: Member) -> None:
        pass

    def member_said(self, member: Member, frame: Frame) -> None:
        if frame.get("op") == "primed":
            self._on_primed()

    def member_printed(self, member: Member, name: str, text: str) -> None:
        pass

    def member_ended(self, member: Member, exit: Exit) -> None:
        pass


class Newcomer(Nobody):
    """Owns the copy of a fork until it has said hello and its parent has told of the fork."""

    def __init__(self) -> None:
        super().__init__()
        self._greeted = False
        self._ended: str | None = None
        self._arrived: Callable[[], None] | None = None
        self._failed: Callable[[str], None] | None = None

    def expect(self, arrived: Callable[[], None], failed: Callable[[str], None]) -> None:
        if self._ended is not None:
            failed(self._ended)
        elif self._greeted:
            arrived()
        else:
            self._arrived, self._failed = arrived, failed

    def member_said(self, member: Member, frame: Frame) -> None:
        if frame.get("op") == "hello":
            self._greeted = True
            if self._arrived is not None:
                self._arrived()

    def member_ended(self, member: Member, exit: Exit) -> None:
        self._ended = exit.cause
        self.give_up(exit.cause)

    def give_up(self, why: str) -> None:
        """Unless it has arrived."""
        if self._failed is not None and not self._greeted:
            failed, self._failed, self._arrived = self._failed, None, None
            failed(why)


def expect_copy(
    reactor: Reactor,
    roster: Roster,
    *,
    arrived: Callable[[PythonMember], None],
    failed: Callable[[str], None],
    patience: float,
) -> tuple[PythonMember, CopyAnswer]:
    """A member that a fork elsewhere is to become, and what to call with the word of who was to
    fork it: its failure, or None. One of ``arrived`` and ``failed`` follows (after a failure that
    is to be ``quiet``, none)."""
    newcomer = Newcomer()
    copy = roster.new_interpreter(newcomer)
    copy.is_copy, copy.hands = True, roster.hands
    deadlines: list[Timer] = []

    def here() -> None:
        for deadline in deadlines:
            deadline.cancel()  # or it would keep all of this alive until then
        if roster.enter(copy):
            arrived(copy)
        else:
            gone("the copy said that it was another")

    def gone(why: str) -> None:
        for deadline in deadlines:
            deadline.cancel()
        copy.channel.close_far()
        copy.kill(why)
        copy.close()
        failed(why)

    def answer(error: str | None, *, quiet: bool = False) -> None:
        if error is not None:
            if quiet:
                copy.channel.close_far()
                copy.close()
            else:
                gone(error)
            return
        # The copy's hello may have come before its parent's word, or comes after it.
        deadlines.append(reactor.call_later(patience, never_came))
        newcomer.expect(here, gone)

    def never_came() -> None:
        newcomer.give_up(f"the copy said nothing for {patience:g} s")

    return copy, answer
