"""Making kernels: have a family become what the caller asked for, in time, or say why not."""

from __future__ import annotations

import errno
import os
import time
import uuid

from kernelbox.config import Settings, check_name
from kernelbox.errors import BadInput, BoxError, StartupFailed
from kernelbox.keeper import decisions
from kernelbox.keeper.beginnings import Beginnings
from kernelbox.keeper.branching import Branching
from kernelbox.keeper.callers import Request
from kernelbox.keeper.families import Answer, Families, FamilyLink, WardenGone
from kernelbox.keeper.foreign import start_foreign
from kernelbox.keeper.home import Home, remove_files
from kernelbox.keeper.kernels import Kernels
from kernelbox.keeper.nursery import Nursery
from kernelbox.keeper.registry import Record
from kernelbox.keeper.roots import Build
from kernelbox.reactor import Reactor
from kernelbox.wire import Frame

_TRIES = 3


class Creation:
    """``get_or_create``: by name, once, however many ask."""

    def __init__(
        self,
        reactor: Reactor,
        home: Home,
        *,
        build: Build,
        kernels: Kernels,
        families: Families,
        nursery: Nursery,
        beginnings: Beginnings,
        branching: Branching,
    ) -> None:
        self._reactor = reactor
        self._home = home
        self._build = build
        self._kernels = kernels
        self._families = families
        self._nursery = nursery
        self._beginnings = beginnings
        self._branching = branching

    def get_or_create(self, request: Request) -> None:
        frame = request.frame
        name = check_name(frame["name"])
        known = self._kernels.find(name)
        if frame.get("fresh") and (known is not None or name in self._beginnings):
            raise BadInput(
                f"there is a kernel named {name!r} already; destroy it or choose another name"
            )
        if known is not None:
            if refusal := _other_walls(known, frame):
                raise refusal
            self._kernels.wanted(known["kernel_id"], request.settings)
            request.reply({"record": known, "created": False})
            return
        if name in self._beginnings:
            self._beginnings.join(name, lambda content: _share(content, request))
            return
        self._beginnings.begin(name, request.reply)
        try:
            if frame.get("template"):
                source = self._kernels.known(str(frame["template"]))
                copied = {**frame, **frame.get("given", {}), "reseed": True}
                self._branching.begin(source, name, frame=copied, settings=request.settings)
            else:
                self._create(request, tries=_TRIES)
        except Exception:
            self._beginnings.abandon(name)  # or nobody could ever have a kernel of that name
            raise

    def _create(self, request: Request, *, tries: int) -> None:
        name = request.frame["name"]
        order = decisions.become_order(
            request.frame,
            self._kernels.registry.grave(name),
            now=time.time(),
            runtime_dir=self._home.runtime_dir,
            mortal=bool(self._home.owner),
        )
        try:
            link = self._family_for(order, request.settings)
        except BoxError as error:
            self._beginnings.finish(name, error)
            return
        except OSError as error:
            self._beginnings.finish(name, StartupFailed(_no_room(name, error)))
            return
        kernel_id = order["kernel_id"]
        link.kernel_ids.add(kernel_id)
        if order["walls"]:
            link.sandbox = kernel_id
        if link.warm and decisions.nothing_can_fail(order) and self._publish(kernel_id):
            # Its answer would tell us nothing new, and it may come while the caller goes on.
            record = decisions.first_record(
                order, self._home.connection_file(kernel_id), link.notes
            )
            link.ask(order, lambda content: self._became(link, kernel_id, content))
            self._made(request, link, record)
        else:
            self._have_it_become(link, order, request=request, tries=tries)

    def _family_for(self, order: Frame, settings: Settings) -> FamilyLink:
        """Who will run the kernel; its id and address, and what is to be noted, are filled in."""
        if order["settings"].get("kernel_type", "python3") != "python3":
            self._give_address(order, str(uuid.uuid4()))
            return start_foreign(order, self._families, rundir=self._home.rundir)
        build = order.get("build") or self._build
        link, order["notes"] = self._nursery.take(order, build, spares=settings.spares)
        self._give_address(order, link.reserved or str(uuid.uuid4()))
        return link

    def _give_address(self, order: Frame, kernel_id: str) -> None:
        order["kernel_id"] = kernel_id
        order["address"] = self._home.kernel_address(kernel_id)

    def _publish(self, kernel_id: str) -> bool:
        """The spare's connection file gets the name that the record says."""
        try:
            os.rename(self._home.draft(kernel_id), self._home.connection_file(kernel_id))
        except OSError:
            return False  # whatever it is, the warden will come upon it, and say so
        return True

    def _became(self, link: FamilyLink, kernel_id: str, content: Answer) -> None:
        """What a warm spare had to say after all."""
        if kernel_id not in self._kernels.registry.kernels or isinstance(content, WardenGone):
            return  # its end is told as every warden's is
        if isinstance(content, BoxError):
            link.kernel_ids.discard(kernel_id)
            self._kernels.ended(kernel_id, str(content))
        else:
            self._kernels.changed(content["record"])

    def _have_it_become(
        self, link: FamilyLink, order: Frame, *, request: Request, tries: int
    ) -> None:
        """Whichever comes first counts: its answer, its end or the deadline."""
        name, kernel_id = order["name"], order["kernel_id"]
        limit = request.settings.start_timeout

        def answered(content: Answer) -> None:
            if deadline.callback is None:
                return  # it came too late, and was told so
            deadline.cancel()
            if not isinstance(content, BoxError):
                link.pid = content["warden"]
                self._made(request, link, content["record"])
                return
            remove_files(self._home, kernel_id)
            if not isinstance(content, WardenGone):
                link.kernel_ids.discard(kernel_id)  # it can still clean up itself
            # A sandbox that was made ahead may be dying unnoticed.
            gone = isinstance(content, WardenGone | StartupFailed if link.walls else WardenGone)
            if gone and tries > 1:
                self._create(request, tries=tries - 1)
            else:
                self._beginnings.finish(name, self._explained(content, request.frame))

        def too_late() -> None:
            deadline.cancel()
            words = f"kernel {name!r} did not come up within {limit:g} s (KERNELBOX_START_TIMEOUT)"
            advice = "look at its startup code, or allow more"
            if not link.pid:  # it has not even been forked
                advice = self._nursery.look_after_root(request.frame, limit, otherwise=advice)
            link.kill()
            remove_files(self._home, kernel_id)
            self._beginnings.finish(name, StartupFailed(f"{words}; {advice}"))

        deadline = self._reactor.call_later(limit, too_late)
        link.ask(order, answered)

    def _made(self, request: Request, link: FamilyLink, record: Record) -> None:
        record = self._kernels.add(record, link, settings=request.settings)
        self._beginnings.finish(record["name"], {"record": record, "created": True})

    def _explained(self, error: BoxError, frame: Frame) -> BoxError:
        """An error about a family that never came up says what its root had to say."""
        if not isinstance(error, WardenGone):
            return error
        words = self._nursery.last_words_for(frame)
        return StartupFailed(
            f"no kernel could be started with {frame['executable']!r}. {words}".strip()
        )


def _no_room(name: str, error: OSError) -> str:
    advice = "destroy kernels that nobody needs, or allow more open files (ulimit -n)"
    if error.errno not in (errno.EMFILE, errno.ENFILE):
        advice = "try again"
    return f"the keeper cannot make kernel {name!r}: {error.strerror}; {advice}"


def _share(content: Answer, request: Request) -> None:
    """For who has waited for a kernel that was being made for somebody else."""
    if not isinstance(content, BoxError):
        content = _other_walls(content["record"], request.frame) or content
    request.reply(content)


def _other_walls(known: Record, frame: Frame) -> BadInput | None:
    """Whoever asks for walls does not get a kernel that has others, or none."""
    if not frame.get("profile") or decisions.has_walls(known, frame["profile"]):
        return None
    return BadInput(
        f"kernel {known['name']!r} is there already, and its walls are others: "
        f"{known.get('profile', 'open')}, and not {frame['profile']['name']}. Destroy it, "
        "or choose another name"
    )
