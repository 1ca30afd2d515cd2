"""Ending kernels because somebody said so: answered when their processes are gone."""

from __future__ import annotations

from kernelbox.errors import BoxError
from kernelbox.keeper.beginnings import Beginnings
from kernelbox.keeper.callers import Request
from kernelbox.keeper.endings import Endings
from kernelbox.keeper.families import Answer, Families, FamilyLink, Reply
from kernelbox.keeper.kernels import Kernels
from kernelbox.keeper.registry import Record
from kernelbox.reactor import Reactor

_PATIENCE = 10.0


class Destruction:
    """Of one kernel, or of all; also of those that are just being made."""

    def __init__(
        self,
        reactor: Reactor,
        *,
        kernels: Kernels,
        families: Families,
        beginnings: Beginnings,
        endings: Endings,
    ) -> None:
        self._reactor = reactor
        self._kernels = kernels
        self._families = families
        self._beginnings = beginnings
        self._endings = endings

    def destroy(self, request: Request) -> None:
        wanted = str(request.frame["kernel"])
        record = self._kernels.find(wanted) or self._kernels.registry.find(wanted)
        if record is not None:
            self.end(record, request.reply)
        elif wanted in self._beginnings:
            self._end_when_made(wanted, request.reply)
        else:
            self._kernels.forget(wanted)
            request.reply({"destroyed": False})

    def wipe(self, request: Request) -> None:
        """Destroy all that there are by now."""
        records = list(self._kernels.registry.kernels.values())
        names = list(self._beginnings)
        answers: list[Answer] = []
        if not records and not names:
            request.reply({"destroyed": []})
            return

        def gone(answer: Answer) -> None:
            answers.append(answer)
            if len(answers) == len(records) + len(names):
                ended = [a for a in answers if not isinstance(a, BoxError) and a["destroyed"]]
                request.reply({"destroyed": [a["kernel_id"] for a in ended]})

        for record in records:
            self.end(record, gone)
        for name in names:
            self._end_when_made(name, gone)

    def end(self, record: Record, reply: Reply) -> None:
        """Answered when the kernel's processes are gone; what does not go is killed."""
        kernel_id = record["kernel_id"]
        link = self._families.of(kernel_id)
        if not self._endings.begin(kernel_id, link, reply):
            return
        if link is None or link.closed:
            self._kernels.ended(kernel_id, "destroyed")
            self._endings.finish(kernel_id)
            return
        # Its word of the end, or its own end, is the answer.
        link.ask({"op": "end", "kernel_id": kernel_id, "cause": "destroyed"}, lambda _: None)
        self._reactor.call_later(_PATIENCE, lambda: self._force(kernel_id, link))

    def _force(self, kernel_id: str, link: FamilyLink) -> None:
        if kernel_id in self._endings.of(link):
            link.kill()

    def _end_when_made(self, name: str, reply: Reply) -> None:
        """It is being made for somebody right now, who may be gone: it ends when it is there."""

        def made(content: Answer) -> None:
            if isinstance(content, BoxError):
                reply({"destroyed": False})
            else:
                self.end(content["record"], reply)

        self._beginnings.join(name, made)
