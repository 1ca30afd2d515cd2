"""Branches of live kernels: several at once, all of them or none."""

from __future__ import annotations

import uuid
from functools import partial

from kernelbox.config import Settings, check_name
from kernelbox.errors import BadInput, BoxError, StartupFailed
from kernelbox.keeper import decisions
from kernelbox.keeper.beginnings import Beginnings
from kernelbox.keeper.callers import Request
from kernelbox.keeper.destruction import Destruction
from kernelbox.keeper.families import Answer, Families, WardenGone
from kernelbox.keeper.home import Home, remove_files, remove_workspace
from kernelbox.keeper.kernels import Kernels
from kernelbox.keeper.registry import Record
from kernelbox.wire import Frame


class Branching:
    """Asks the family of a kernel for copies of it, under names of their own."""

    def __init__(
        self,
        home: Home,
        *,
        kernels: Kernels,
        families: Families,
        beginnings: Beginnings,
        destruction: Destruction,
    ) -> None:
        self._home = home
        self._kernels = kernels
        self._families = families
        self._beginnings = beginnings
        self._destruction = destruction

    def branch(self, request: Request) -> None:
        frame = request.frame
        names = [check_name(name) for name in frame["names"]]
        source = self._kernels.known(str(frame["kernel"]))
        if not names:
            raise BadInput("names is empty; give each branch a name: names=['a', 'b']")
        for name in names:
            if names.count(name) > 1:
                raise BadInput(f"{name!r} is twice among the names; each branch needs its own")
            if self._kernels.find(name) is not None or name in self._beginnings:
                raise BadInput(
                    f"there is a kernel named {name!r} already; destroy it or choose another name"
                )
        answers: dict[str, Answer] = {}

        def answered(name: str, content: Answer) -> None:
            answers[name] = content
            if len(answers) == len(names):
                self._answer(request, [answers[name] for name in names])

        try:
            for name in names:
                self._beginnings.begin(name, partial(answered, name))
                self.begin(source, name, frame=frame, settings=request.settings)
        except Exception:
            self._beginnings.abandon(*names)
            raise

    def begin(self, source: Record, name: str, *, frame: Frame, settings: Settings) -> None:
        """One branch; whoever waits for the name is answered."""
        link = self._families.of(source["kernel_id"])
        if link is None:
            failure = StartupFailed(f"kernel {source['name']!r} cannot be reached")
            self._beginnings.finish(name, failure)
            return
        kernel_id = str(uuid.uuid4())
        # Who branches wants something new; who has a kernel by its name may have lost one.
        grave = self._kernels.registry.grave(name) if frame.get("template") else None
        order = decisions.branch_order(
            frame,
            source,
            grave=grave,
            name=name,
            kernel_id=kernel_id,
            address=self._home.kernel_address(kernel_id),
            workspace=self._home.workspace(kernel_id),
            runtime_dir=self._home.runtime_dir,
        )

        def answered(content: Answer) -> None:
            if isinstance(content, BoxError):
                remove_files(self._home, kernel_id)
                remove_workspace(self._home, kernel_id)
                if isinstance(content, WardenGone):
                    words = f"kernel {source['name']!r} ended before branch {name!r} was made"
                    content = StartupFailed(words)
            else:
                self._kernels.add(content["record"], link, settings=settings)
            self._beginnings.finish(name, content)

        link.ask(order, answered)

    def _answer(self, request: Request, answers: list[Answer]) -> None:
        """All of them or none: where one could not be made, the others go again first."""
        records = [answer["record"] for answer in answers if not isinstance(answer, BoxError)]
        failures = [answer for answer in answers if isinstance(answer, BoxError)]
        if not failures:
            request.reply({"records": records})
            return
        if not records:
            request.reply(failures[0])
            return
        left = len(records)

        def gone(_: object) -> None:
            nonlocal left
            left -= 1
            if not left:
                request.reply(failures[0])

        for record in records:
            self._destruction.end(record, gone)
