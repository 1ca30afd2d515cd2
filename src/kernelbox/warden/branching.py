"""Branches: a live kernel goes on under a second name, by fork or, if that is unsafe, by copy."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING, Any

from kernelbox.config import Settings
from kernelbox.errors import BoxError, StartupFailed, Unsupported
from kernelbox.inside import scope
from kernelbox.warden.jobs import ForkOrder, Question
from kernelbox.warden.truth import Loss

if TYPE_CHECKING:
    from kernelbox.warden.family import Family
    from kernelbox.warden.kernel import Kernel
    from kernelbox.warden.python_member import PythonMember
    from kernelbox.warden.warden import Reply
    from kernelbox.wire import Frame

_MOST_NAMED = 20


class Branching:
    """One branch in the making. ``reply`` is called exactly once."""

    def __init__(self, family: Family, kernel: Kernel, frame: Frame, reply: Reply) -> None:
        self._family = family
        self._kernel = kernel
        self._frame = frame
        self._reply = reply
        self._settings = Settings.from_wire(frame["settings"])
        self._scoped = bool(frame.get("template"))
        self._method = str(frame.get("method") or "auto")

    def start(self) -> None:
        if obstacle := self._obstacle():
            self._reply(Unsupported(obstacle))
            return
        if self._method == "copy":
            self._copy(why=None)
        else:
            self._fork()

    def _scope(self) -> Frame | None:
        if not self._scoped:
            return None
        return scope.around(self._settings.runtime_dir, str(self._frame["address"]))

    def _obstacle(self) -> str:
        """Why what is asked for cannot be had of this kernel here; empty if it can."""
        identity = self._kernel.identity
        if identity.profile != "open" and self._scoped:
            return (
                f"kernel {identity.name!r} is no template, because it is behind walls "
                f"({identity.profile}); branch({identity.name!r}, …) makes a copy behind the same"
            )
        if identity.profile != "open" and self._frame.get("workspace"):
            return (
                f"kernel {identity.name!r} is behind walls ({identity.profile}), where branches "
                "share their folder; use files='share'"
            )
        if identity.scoped and self._frame.get("workspace"):
            return (
                f"kernel {identity.name!r} was made from a template and does not see the folder "
                "that a copy of its files would go to; use files='share'"
            )
        if not self._scoped:
            return ""
        if identity.workspace:
            return (
                f"kernel {identity.name!r} is no template, because its files are a copy of their "
                "own (files='copy') that no other kernel sees; use a kernel that shares its folder"
            )
        if words := scope.obstacle():
            return (
                f"no kernel can be made from the template {identity.name!r} here, because nothing "
                f"would keep it away from the template: {words}. branch({identity.name!r}, …) "
                "makes a copy that is not kept away."
            )
        return ""

    def _fail(self, why: str) -> None:
        self._reply(StartupFailed(f"branch {self._frame['name']!r} could not be made: {why}"))

    # -- by fork ----------------------------------------------------------------------------

    def _fork(self) -> None:
        kernel, settings = self._kernel, self._settings
        told: Frame = {}

        def forked(error: str | None, facts: Frame) -> None:
            told.update(facts)
            if error is not None and facts.get("danger") and self._method == "auto":
                answer(error, quiet=True)
                self._copy(why=error)
            else:
                answer(error)

        def arrived(copy: PythonMember) -> None:
            made_by = "template" if self._scoped else "fork"
            child = self._settle(made_by, list(told.get("notes") or ()), order.bash)
            if child is None:
                copy.kill("its kernel could not be set up")
                copy.close()
                return
            child.succession.adopt(copy)
            self._reply({"record": child.record(), "warden": os.getpid()})

        copy, answer = self._family.expect_copy(
            arrived, self._fail, patience=settings.start_timeout
        )
        fields = ("cwd", "environ", "reseed", "workspace")
        order = ForkOrder(
            {
                "op": "branch",
                "token": copy.channel.token,
                "force": self._method == "fork",
                "scope": self._scope(),
                **{name: self._frame[name] for name in fields if self._frame.get(name)},
            },
            copy.channel.far,
            forked,
            patience=settings.fork_timeout,
            with_bash=not self._scoped,
        )

        def too_late() -> None:
            if kernel.withdraw(order):
                answer(f"the running cell did not end within {settings.fork_timeout:g} s")

        order.deadline = self._family.reactor.call_later(settings.fork_timeout, too_late)
        kernel.submit(order)

    # -- by copy ----------------------------------------------------------------------------

    def _copy(self, *, why: str | None) -> None:
        """The session as bytes, into a fresh interpreter."""
        if self._frame.get("workspace"):
            self._reply(Unsupported("files='copy' needs a branch by fork, which this cannot be"))
            return
        store = os.memfd_create("kernelbox-session")

        def saved(manifest: dict[str, Any] | None) -> None:
            if manifest is None or manifest.get("status") != "ok":
                os.close(store)
                self._fail((manifest or {}).get("evalue") or "the kernel died meanwhile")
                return
            notes = [f"branched by copy, because {why}"] if why else ["branched by copy"]
            notes += left_behind(manifest["failures"], "carried")
            child = self._settle("copy", notes, question.bash)
            if child is None:
                os.close(store)
                return
            child.beginning.skip_startup = True
            child.when_ready(lambda failure: started(child, manifest, failure))
            child.succession.start()

        def started(child: Kernel, manifest: dict[str, Any], failure: str | None) -> None:
            if failure is not None:
                os.close(store)
                self._give_up(child, failure)
                return
            where = {"start": 0, "pieces": manifest["pieces"], "manifest": manifest["manifest"]}
            child.ask(
                "load",
                {**where, "reseed": bool(self._frame.get("reseed"))},
                on_answer=lambda content: loaded(child, content),
                fds=[store],
            )

        def loaded(child: Kernel, content: dict[str, Any] | None) -> None:
            if content is None or content.get("status") != "ok":
                self._give_up(child, (content or {}).get("evalue") or "the copy died")
                return
            for note in (*content["notes"], *left_behind(content["failures"], "carried")):
                child.identity.note(note)
            # Nothing runs in it but this very question.
            self._reply({"record": {**child.record(), "status": "idle"}, "warden": os.getpid()})

        patience = self._settings.fork_timeout
        question = Question(
            "save",
            {"start": 0, "whole": True},
            saved,
            fds=[os.dup(store)],
            with_bash=True,
            patience=patience,
        )

        def too_late() -> None:
            if self._kernel.withdraw(question):
                os.close(store)
                self._fail(f"the running cell did not end within {patience:g} s")

        question.deadline = self._family.reactor.call_later(patience, too_late)
        self._kernel.submit(question)

    # -- either way -------------------------------------------------------------------------

    def _settle(self, made_by: str, notes: list[str], bash: str | None) -> Kernel | None:
        """A kernel of its own for the copy; None: the caller has been told why not."""
        kernel = self._kernel
        identity = {
            "cwd": kernel.identity.cwd,
            "environ": kernel.identity.environ,
            **{name: value for name, value in self._frame.items() if value is not None},
            "parent": kernel.identity.kernel_id,
            "made_by": made_by,
            "scoped": self._scoped or kernel.identity.scoped,
            "profile_name": kernel.identity.profile,
            "walls": kernel.identity.walls,
            "soft_memory": kernel.identity.soft_memory,
            "notes": notes,
        }
        if workspace := self._frame.get("workspace"):
            # Whatever starts here later, starts there.
            identity["cwd"] = workspace
            if bash is not None:
                bash += f"builtin cd -- {shlex.quote(workspace)}\n"
        try:
            epoch = max(kernel.truth.epoch, int(self._frame.get("epoch") or 1))
            child = self._family.add_kernel(identity, self._settings, epoch=epoch)
        except BoxError as error:
            self._reply(error)
            return None
        if self._frame.get("lost"):
            child.truth.loss = Loss("lost", str(self._frame["lost"]))
        child.history = kernel.history.copy()
        child.packages = kernel.packages.copy()
        child.execution_count = kernel.execution_count
        if not self._scoped:
            child.bash.renew(bash)
        return child

    def _give_up(self, child: Kernel, why: str) -> None:
        self._family.end_kernel(child, why)
        self._fail(why)


def left_behind(failures: dict[str, str], verb: str) -> list[str]:
    """Variables that did not come along, each with the reason; of many, the first."""
    notes = [f"not {verb}: {name} ({why})" for name, why in failures.items()]
    if len(notes) > _MOST_NAMED:
        notes[_MOST_NAMED:] = [f"not {verb}: {len(notes) - _MOST_NAMED} more variables"]
    return notes
