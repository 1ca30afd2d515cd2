"""The keeper itself: answers clients, hands out families, notices ends, writes the registry."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
import uuid
from typing import Any

from kernelbox.config import Settings, check_name
from kernelbox.errors import (
    BadInput,
    BoxError,
    KernelLost,
    KernelNotFound,
    StartupFailed,
    to_wire,
)
from kernelbox.inside import linux
from kernelbox.keeper import adoption, decisions
from kernelbox.keeper.endings import Endings
from kernelbox.keeper.exits import Exits
from kernelbox.keeper.families import Families, FamilyLink, Reply, WardenGone
from kernelbox.keeper.foreign import start_foreign
from kernelbox.keeper.home import Home, remove_files, remove_workspace, vacate
from kernelbox.keeper.nursery import Nursery
from kernelbox.keeper.obituaries import Obituaries
from kernelbox.keeper.registry import Grave, Record, Registry
from kernelbox.keeper.rootprocess import RootProcess
from kernelbox.reactor import Peer, Reactor, Timer
from kernelbox.wire import PROTOCOL, Frame, build_id

_EXIT_STATUS_PATIENCE = 0.05
_TRIES = 3
_END_PATIENCE = 10.0
_SWEEP_AGAIN = 0.3
_TAKE_DOWN = 1.0
_SAVE_SOON = 0.008
_SAVE_AGAIN = 5.0


class Keeper:
    """One per home. Everything happens in one thread, so nothing here needs a lock."""

    def __init__(
        self,
        home: Home,
        listener: socket.socket,
        registry: Registry,
        first_root: RootProcess | None = None,
    ) -> None:
        """``first_root`` was started ahead, for who is going to ask for a kernel first."""
        self.reactor = Reactor()
        self.home = home
        self.registry = registry
        self.build = build_id()
        self._listener = listener
        self.families = Families(
            self.reactor, on_event=self._family_said, on_close=self._family_closed
        )
        self._exits = Exits(self.reactor)
        self._nursery = Nursery(self.reactor, home, families=self.families, exits=self._exits)
        self._creating: dict[str, list[Reply]] = {}
        self._ending = Endings()
        self._save_timer: Timer | None = None
        self._closing = False
        self._address = os.stat(home.keeper_address).st_ino
        self._idle_limits: dict[str, float] = {}
        self._obituaries = Obituaries()
        self._idle_timer: Timer | None = None
        self._settings = Settings()
        self._settings_told: Frame | None = None  # that they were read from
        self._used_at = time.monotonic()
        self._clients: set[Peer] = set()
        if first_root is not None:
            self._nursery.adopt(first_root, self.build)
        listener.setblocking(False)

    def run(self) -> None:
        # Nobody is answered before it is known what there is.
        adoption.adopt(self)
        self.reactor.watch(self._listener.fileno(), self._accept)
        self._save()
        if self.home.owner:
            self._watch_owner(self.home.owner)
        self.reactor.call_later(1.0, self._consider_leaving)
        self.reactor.run()

    # -- clients ----------------------------------------------------------------------------

    def _accept(self) -> None:
        for _ in range(64):
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self._welcome(sock)

    def _welcome(self, sock: socket.socket) -> None:
        def asked(frame: Frame) -> None:
            self._asked(peer, frame)

        peer = Peer(
            self.reactor, sock, on_frame=asked, on_close=lambda: self._clients.discard(peer)
        )
        self._clients.add(peer)

    def _asked(self, peer: Peer, frame: Frame) -> None:
        self._used_at = time.monotonic()
        request = frame.get("id")

        def reply(content: dict[str, Any] | BoxError) -> None:
            if isinstance(content, BoxError):
                peer.send({"id": request, **to_wire(content)})
            else:
                peer.send({"id": request, "reply": content})

        try:
            if "settings" in frame and frame["settings"] != self._settings_told:
                self._settings = Settings.from_wire(frame["settings"])
                self._settings_told = frame["settings"]
            handler = getattr(self, f"_op_{frame.get('op')}", None)
            if handler is None:
                raise BoxError(f"the keeper does not know the request {frame.get('op')!r}")
            handler(frame, reply)
        except BoxError as error:
            reply(error)
        except Exception as error:  # noqa: BLE001 - our own bug must not end the keeper
            reply(BoxError(f"internal error in the keeper: {error!r}"))

    def _op_hello(self, frame: Frame, reply: Reply) -> None:
        reply(
            {
                "build": self.build,
                "protocol": PROTOCOL,
                "pid": os.getpid(),
                "warm": self._nursery.warm,
            }
        )

    def _op_hand_over(self, frame: Frame, reply: Reply) -> None:
        """A newer build takes over: leave, and let every family live."""
        reply({})
        self.reactor.call_soon(self._leave)

    # -- making kernels ---------------------------------------------------------------------

    def _op_get_or_create(self, frame: Frame, reply: Reply) -> None:
        name = check_name(frame["name"])
        known = self._find(name)
        if frame.get("fresh") and (known is not None or name in self._creating):
            raise BadInput(
                f"there is a kernel named {name!r} already; destroy it or choose another name"
            )
        if known is not None and frame.get("profile") and not self._has_walls(known, frame):
            raise BadInput(
                f"kernel {name!r} is there already, and its walls are others: "
                f"{known.get('profile', 'open')}, and not {frame['profile']['name']}. Destroy it, "
                "or choose another name"
            )
        if known is not None:
            self._idle_limits[known["kernel_id"]] = self._settings.kernel_idle_timeout
            self._plan_idle_check()
            reply({"record": known, "created": False})
            return
        if name in self._creating:
            self._creating[name].append(reply)
            return
        if frame.get("template"):
            source = self._known(str(frame["template"]))
            self._creating[name] = [reply]
            self._branch(source, name, {**frame, **frame.get("given", {}), "reseed": True})
            return
        self._creating[name] = [reply]
        self._create(frame, name, tries=_TRIES)

    def _has_walls(self, known: Record, frame: Frame) -> bool:
        """Whether a kernel that is there has the walls that are asked for."""
        return bool(known.get("walls") == decisions.digest(frame["profile"]))

    def _create(self, frame: Frame, name: str, *, tries: int) -> None:
        grave = self.registry.grave(name)
        request = {
            **frame,
            "op": "become",
            "settings": self._settings_here(frame),
            "created_at": time.time(),
            "walls": decisions.digest(frame["profile"]) if frame.get("profile") else None,
            "mortal": bool(self.home.owner),
            "epoch": grave.epoch if grave else 1,
            "lost": _loss_words(grave) if grave else None,
        }
        try:
            link = self._family_for(request)
        except BoxError as error:
            self._created(name, error)
            return
        kernel_id = request["kernel_id"]
        link.kernel_ids.add(kernel_id)
        if link.warm and decisions.nothing_can_fail(request) and self._publish(kernel_id):
            # Its answer would tell us nothing new, and it may come while the caller goes on.
            connection_file = self.home.connection_file(kernel_id)
            record = decisions.first_record(request, connection_file, link.notes)
            link.ask(request, lambda content: self._became(link, kernel_id, content))
            record = self._register(link, record, frame)
            self._created(name, {"record": record, "created": True})
            return

        def answered(content: dict[str, Any] | BoxError) -> None:
            if deadline.callback is None:
                return  # it came too late, and was told so
            deadline.cancel()
            if isinstance(content, BoxError):
                remove_files(self.home, kernel_id)
            # A sandbox that was made ahead may be dying unnoticed.
            gone = isinstance(content, WardenGone | StartupFailed if link.walls else WardenGone)
            if gone and tries > 1:
                self._create(frame, name, tries=tries - 1)
                return
            if isinstance(content, BoxError):
                self._created(name, self._explained(content, frame))
                return
            link.pid = content["warden"]
            record = self._register(link, content["record"], frame)
            self._created(name, {"record": record, "created": True})

        def too_late() -> None:
            deadline.cancel()
            words = f"kernel {name!r} did not come up within {limit:g} s (KERNELBOX_START_TIMEOUT)"
            advice = "look at its startup code, or allow more"
            if not link.pid:  # it has not even been forked
                advice = self._nursery.look_after_root(frame, limit, otherwise=advice)
            link.kernel_ids.discard(kernel_id)
            link.kill()
            remove_files(self.home, kernel_id)
            self._created(name, StartupFailed(f"{words}; {advice}"))

        limit = self._settings.start_timeout
        deadline = self.reactor.call_later(limit, too_late)
        link.ask(request, answered)

    def _became(self, link: FamilyLink, kernel_id: str, content: dict[str, Any] | BoxError) -> None:
        """What a warm spare had to say after all."""
        if kernel_id not in self.registry.kernels or isinstance(content, WardenGone):
            return  # its end is told as every warden's is
        if isinstance(content, BoxError):
            link.kernel_ids.discard(kernel_id)
            self._kernel_ended(kernel_id, str(content), None)
        else:
            self.registry.add(content["record"])
            self._registry_changed()

    def _family_for(self, request: Frame) -> FamilyLink:
        """Who will run the kernel; its id and address, and what is to be noted, are filled in."""
        if request["settings"].get("kernel_type", "python3") != "python3":
            self._give_address(request, str(uuid.uuid4()))
            return start_foreign(request, self.families, rundir=self.home.rundir)
        build = request.get("build") or self.build
        link, request["notes"] = self._nursery.take(request, build, spares=self._settings.spares)
        self._give_address(request, link.reserved or str(uuid.uuid4()))
        return link

    def _publish(self, kernel_id: str) -> bool:
        """The spare's connection file gets the name that the record says."""
        try:
            os.rename(self.home.draft(kernel_id), self.home.connection_file(kernel_id))
        except OSError:
            return False  # whatever it is, the warden will come upon it, and say so
        return True

    def _give_address(self, request: Frame, kernel_id: str) -> None:
        request["kernel_id"] = kernel_id
        request["address"] = self.home.kernel_address(kernel_id)

    def _settings_here(self, frame: Frame) -> Frame:
        """The caller's settings; files of the memory store are where they go with the process."""
        return {**frame["settings"], "runtime_dir": self.home.runtime_dir}

    def _created(self, name: str, content: dict[str, Any] | BoxError) -> None:
        first = True
        for reply in self._creating.pop(name, ()):
            if isinstance(content, BoxError) or first:
                reply(content)
            else:
                reply({**content, "created": False})
            first = False

    def _register(self, link: FamilyLink, record: Record, frame: Frame) -> Record:
        kernel_id = record["kernel_id"]
        if self.registry.set_aside:
            record["notes"] = [*record.get("notes", ()), self.registry.set_aside]
            self.registry.set_aside = None
        self.registry.forget_graves(record["name"])
        self.registry.add(record)
        self.families.house(kernel_id, link)
        self._idle_limits[kernel_id] = float(frame["settings"]["kernel_idle_timeout"])
        self._obituaries.remember(kernel_id, frame["settings"])
        self._plan_idle_check()
        self._registry_changed()
        if self._closing:
            self.reactor.call_soon(self._close)
        return record

    def _explained(self, error: BoxError, frame: Frame) -> BoxError:
        """An error about a family that never came up says what its root had to say."""
        if isinstance(error, WardenGone):
            words = self._nursery.last_words_for(frame)
            return StartupFailed(
                f"no kernel could be started with {frame['executable']!r}. {words}".strip()
            )
        return error

    def _op_branch(self, frame: Frame, reply: Reply) -> None:
        names = [check_name(name) for name in frame["names"]]
        source = self._known(str(frame["kernel"]))
        for name in names:
            if names.count(name) > 1:
                raise BadInput(f"{name!r} is twice among the names; each branch needs its own")
            if self._find(name) is not None or name in self._creating:
                raise BadInput(
                    f"there is a kernel named {name!r} already; destroy it or choose another name"
                )
        answers: dict[str, dict[str, Any] | BoxError] = {}

        def answered(name: str, content: dict[str, Any] | BoxError) -> None:
            answers[name] = content
            if len(answers) < len(names):
                return
            failures = [answer for answer in answers.values() if isinstance(answer, BoxError)]
            records = [
                answer["record"] for answer in answers.values() if not isinstance(answer, BoxError)
            ]
            if not failures:
                reply({"records": [answers[name]["record"] for name in names]})  # type: ignore[index]
                return
            left = len(records)

            def gone(_: object) -> None:
                nonlocal left
                left -= 1
                if not left:
                    reply(failures[0])

            for record in records:  # all of them or none
                self._destroy(record, gone)
            if not records:
                reply(failures[0])

        for name in names:
            self._creating[name] = [lambda content, name=name: answered(name, content)]  # type: ignore[misc]
            self._branch(source, name, frame)

    def _branch(self, source: Record, name: str, frame: Frame) -> None:
        """One branch; whoever waits in ``_creating`` is answered."""
        link = self.families.of(source["kernel_id"])
        if link is None:
            self._created(name, StartupFailed(f"kernel {source['name']!r} cannot be reached"))
            return
        kernel_id = str(uuid.uuid4())
        carried = ("session_name", "tags", "method", "reseed", "cwd", "environ", "template")
        request = {
            **{field: frame.get(field) for field in carried},
            "op": "branch",
            "source": source["kernel_id"],
            "kernel_id": kernel_id,
            "name": name,
            "address": self.home.kernel_address(kernel_id),
            "workspace": self.home.workspace(kernel_id) if frame.get("files") == "copy" else None,
            "settings": self._settings_here(frame),
        }

        def answered(content: dict[str, Any] | BoxError) -> None:
            if isinstance(content, BoxError):
                remove_files(self.home, kernel_id)
                remove_workspace(self.home, kernel_id)
            else:
                self._register(link, content["record"], frame)
            self._created(name, content)

        link.ask(request, answered)

    # -- ends -------------------------------------------------------------------------------

    def _family_said(self, link: FamilyLink, frame: Frame) -> None:
        if frame["event"] == "changed":
            record = frame["record"]
            if record["kernel_id"] in self.registry.kernels:
                self.registry.add(record)
                if not frame.get("minor"):  # what it is doing is no reason to write a file
                    self._registry_changed()
        elif frame["event"] == "ended":
            kernel_id = str(frame["kernel_id"])
            self._kernel_ended(kernel_id, str(frame["cause"]), frame.get("epoch"))
            link.kernel_ids.discard(kernel_id)
            if link.kernel_ids:
                # The last kernel takes its family along; that one's end is the end of the warden.
                self._ending.finish(kernel_id)

    def _family_closed(self, link: FamilyLink) -> None:
        """A warden is gone. Its root may be about to say how; give it a moment."""
        self.families.discard(link)
        self._nursery.forget(link)
        if link.reserved and not link.kernel_ids:
            remove_files(self.home, link.reserved)  # a spare that was killed could not
        if link.kernel_ids & self.registry.kernels.keys():
            self._bury_family(link)
            self._sweep()
            self.reactor.call_later(_SWEEP_AGAIN, self._sweep)
        for kernel_id in self._ending.of(link):
            self._ending.finish(kernel_id)

    def _bury_family(self, link: FamilyLink) -> None:
        # Nobody may be told that the kernel lives, so there is no going on until it is buried.
        # (An adopted warden's status goes to somebody else.)
        patience = 0.0 if link.adopted else _EXIT_STATUS_PATIENCE
        deadline = time.monotonic() + patience
        while self._exits.status(link.pid) is None and time.monotonic() < deadline:
            self._nursery.poll()
            self._exits.reap()
            time.sleep(0.001)
        cause = decisions.warden_cause(self._exits.status(link.pid))
        for kernel_id in list(link.kernel_ids):
            if self.registry.kernels.get(kernel_id, {}).get("profile", "open") != "open":
                _take_down(kernel_id)
            known = self.registry.kernels.get(kernel_id)
            self._obituaries.write(known, cause, latest=self._settings)
            self._kernel_ended(kernel_id, cause, None)
            remove_workspace(self.home, kernel_id)

    def _kernel_ended(self, kernel_id: str, cause: str, epoch: int | None) -> None:
        self.families.vacate(kernel_id)
        self._idle_limits.pop(kernel_id, None)
        self._obituaries.forget(kernel_id)
        if kernel_id in self.registry.kernels:
            remove_files(self.home, kernel_id)  # a warden that was killed could not
        if kernel_id in self._ending or cause == "destroyed":
            self.registry.remove(kernel_id)
        else:
            self.registry.bury(kernel_id, cause=cause, epoch=epoch)
        self._registry_changed()

    def _sweep(self) -> None:
        """What user code left running, when stub and warden were both killed, is ours by now."""
        wardens = {link.pid for link in self.families if not link.closed}
        if 0 in wardens:
            return  # one is just being forked, and is not known by its pid yet
        for pid in linux.children(os.getpid()):
            if pid not in wardens | self._exits.roots:
                linux.kill_descendants(pid)
                linux.send_signal([pid], signal.SIGKILL)

    # -- finding, listing, destroying -------------------------------------------------------

    def _find(self, wanted: str) -> Record | None:
        """A kernel by id or name; one that is being destroyed does not count any more."""
        found = self.registry.find(wanted, besides=self._ending)
        link = self.families.of(found["kernel_id"]) if found else None
        if link is not None:
            link.poll()  # its warden may have told of a change that we have not read yet
            found = self.registry.find(wanted, besides=self._ending)
        return found

    def _known(self, wanted: str) -> Record:
        record = self._find(wanted)
        if record is not None:
            return record
        grave = self.registry.grave(wanted)
        if grave is not None:
            raise KernelLost(
                f"kernel {grave.name!r} {_loss_words(grave)}. Its state is lost. "
                f"get_or_create({grave.name!r}) makes a new one.",
                kernel_id=grave.kernel_id,
                name=grave.name,
                cause=grave.cause,
                ended_at=grave.ended_at,
                epoch=grave.epoch,
            )
        raise KernelNotFound(
            decisions.not_found_words(wanted, [r["name"] for r in self.registry.kernels.values()])
        )

    def _op_find(self, frame: Frame, reply: Reply) -> None:
        reply({"record": self._known(str(frame["kernel"]))})

    def _op_list(self, frame: Frame, reply: Reply) -> None:
        for family in self.families:
            family.poll()
        records = sorted(self.registry.kernels.values(), key=lambda record: record["created_at"])
        if not frame.get("refresh") or not records:
            reply({"kernels": records, "problem": self.registry.problem})
            return
        fresh: dict[str, Record] = {}

        def finish() -> None:
            timer.cancel()
            listed = [fresh.get(r["kernel_id"], {**r, "status": "unreachable"}) for r in records]
            self.registry.kernels.update(
                {key: value for key, value in fresh.items() if key in self.registry.kernels}
            )
            reply({"kernels": listed, "problem": self.registry.problem})

        def described(kernel_id: str, content: dict[str, Any] | BoxError) -> None:
            waiting.discard(kernel_id)
            if not isinstance(content, BoxError):
                fresh[kernel_id] = content["record"]
            if not waiting and timer.callback is not None:
                finish()

        timer = self.reactor.call_later(5.0, finish)
        waiting = {record["kernel_id"] for record in records}
        for kernel_id in list(waiting):
            link = self.families.of(kernel_id)
            if link is None:
                described(kernel_id, KernelNotFound("gone"))
                continue
            link.ask(
                {"op": "describe", "kernel_id": kernel_id},
                lambda content, kernel_id=kernel_id: described(kernel_id, content),  # type: ignore[misc]
            )

    def _op_destroy(self, frame: Frame, reply: Reply) -> None:
        wanted = str(frame["kernel"])
        record = self._find(wanted) or self.registry.find(wanted)
        if record is None and wanted in self._creating:
            self._destroy_when_made(wanted, reply)
            return
        if record is None:
            # What died by itself is gone: destroying it means that nobody needs to hear of it.
            grave = self.registry.grave(wanted)
            if grave is not None:
                self.registry.forget_graves(grave.name)
                self._registry_changed()
            reply({"destroyed": False})
            return
        self._destroy(record, reply)

    def _op_wipe(self, frame: Frame, reply: Reply) -> None:
        records = list(self.registry.kernels.values())
        names = list(self._creating)
        answers: list[dict[str, Any] | BoxError] = []
        if not records and not names:
            reply({"destroyed": []})
            return

        def gone(answer: dict[str, Any] | BoxError) -> None:
            answers.append(answer)
            if len(answers) == len(records) + len(names):
                ended = [a for a in answers if not isinstance(a, BoxError) and a["destroyed"]]
                reply({"destroyed": [a["kernel_id"] for a in ended]})

        for record in records:
            self._destroy(record, gone)
        for name in names:
            self._destroy_when_made(name, gone)

    def _destroy_when_made(self, name: str, reply: Reply) -> None:
        """It is being made for somebody right now, who may be gone: it ends when it is there."""

        def made(content: dict[str, Any] | BoxError) -> None:
            if isinstance(content, BoxError):
                reply({"destroyed": False})
            else:
                self._destroy(content["record"], reply)

        self._creating[name].append(made)

    def _destroy(self, record: Record, reply: Reply) -> None:
        """Answered when the kernel's processes are gone; what does not go is killed."""
        kernel_id = record["kernel_id"]
        link = self.families.of(kernel_id)
        if not self._ending.begin(kernel_id, link, reply):
            return
        if link is None or link.closed:
            self._kernel_ended(kernel_id, "destroyed", None)
            self._ending.finish(kernel_id)
            return
        # Its word of the end, or its own end, is the answer.
        link.ask({"op": "end", "kernel_id": kernel_id, "cause": "destroyed"}, lambda _: None)
        self.reactor.call_later(_END_PATIENCE, lambda: self._force(kernel_id, link))

    def _force(self, kernel_id: str, link: FamilyLink) -> None:
        if kernel_id in self._ending.of(link):
            link.kill()

    # -- idle kernels -----------------------------------------------------------------------

    def _plan_idle_check(self) -> None:
        delay = decisions.next_idle_check(self.registry.kernels, self._idle_limits, time.time())
        if delay is None:
            return
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._idle_timer = self.reactor.call_later(delay, self._check_idle)

    def _check_idle(self) -> None:
        for kernel_id in decisions.maybe_idle(
            self.registry.kernels, self._idle_limits, time.time()
        ):
            link = self.families.of(kernel_id)
            if link is None or kernel_id in self._ending:
                continue

            def answered(content: dict[str, Any] | BoxError, kernel_id: str = kernel_id) -> None:
                record = self.registry.kernels.get(kernel_id)
                if record is not None and not isinstance(content, BoxError):
                    used = content.get("last_used_at")
                    if used is None and not content.get("retired"):
                        used = time.time() - self._idle_limits.get(kernel_id, 0) * 0.5
                    record["last_used_at"] = used or record["last_used_at"]

            idle = self._idle_limits[kernel_id]
            link.ask({"op": "retire", "kernel_id": kernel_id, "idle": idle}, answered)
        self._idle_timer = self.reactor.call_later(
            decisions.idle_period(self._idle_limits), self._check_idle
        )

    # -- leaving ----------------------------------------------------------------------------

    def _consider_leaving(self) -> None:
        """With nothing to keep and nobody asking, a keeper is only a process too many."""
        quiet = time.monotonic() - self._used_at
        linger = 0.0 if self._closing else self._settings.keeper_linger
        if self._evicted():
            # Its folder was removed: neither we nor our kernels can be found ever again.
            self._close()
        busy = self.registry.kernels or self._creating or self._ending
        if not busy and quiet >= linger:
            self._leave()
            return
        wait = max(0.05, min(linger - quiet if not busy else linger, 5.0))
        self.reactor.call_later(wait, self._consider_leaving)

    def _leave(self) -> None:
        self._nursery.close()
        if not self._evicted():
            # Saved before the address is free: the next keeper reads and writes it too.
            self.registry.save()
            with contextlib.suppress(OSError):
                os.unlink(self.home.keeper_address)
            # One that is just coming up is found by its socket, by the keeper that takes over.
            if not self.registry.kernels and not self._creating:
                vacate(self.home)
        self.reactor.stop()

    def _evicted(self) -> bool:
        """Whether somebody has taken our address away; another keeper may have its own there."""
        try:
            return os.stat(self.home.keeper_address).st_ino != self._address
        except OSError:
            return True

    def _close(self) -> None:
        """End every kernel, also those that are just being made, and leave."""
        self._closing = True
        self._op_wipe({}, lambda _: None)

    def _watch_owner(self, pid: int) -> None:
        """Memory store: kernels end with the process that made them, however it ends."""
        try:
            owner = os.pidfd_open(pid)
        except ProcessLookupError:
            self._owner_ended(None)
        else:
            self.reactor.watch(owner, lambda: self._owner_ended(owner))

    def _owner_ended(self, owner: int | None) -> None:
        if owner is not None:
            self.reactor.forget(owner)
        self._close()
        self.reactor.call_soon(self._consider_leaving)

    def _registry_changed(self) -> None:
        """Write it in a moment: once for many changes, and not while a new kernel and its caller
        want the processor. Should we be killed before, the kernel is found by its socket."""
        if self._save_timer is None:
            self._save_timer = self.reactor.call_later(_SAVE_SOON, self._save)

    def _save(self) -> None:
        self._save_timer = None
        if not self._evicted():
            self.registry.save()
        if self.registry.problem:
            # A disk that is full now may have room later.
            self._save_timer = self.reactor.call_later(_SAVE_AGAIN, self._save)


def _take_down(kernel_id: str) -> None:
    """The control group of a sandbox whose warden was killed."""
    from kernelbox.walls import cgroups

    hierarchy = cgroups.find()
    if not isinstance(hierarchy, str):
        group = cgroups.Group(hierarchy, kernel_id)
        with contextlib.suppress(cgroups.GroupFailed, OSError):
            group.kill(patience=_TAKE_DOWN)
            group.remove(patience=_TAKE_DOWN)


def _loss_words(grave: Grave) -> str:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(grave.ended_at))
    return f"ended at {when}: {grave.cause}"
