"""The stub of a walled family: it waits for its plan, walks into the walls, and is pid 1 there.

One process of it stays outside, the parent of the one inside: it holds nothing, waits for the end,
and is what the warden knows as the stub. If the sandbox has a way out to the network, the gate that
watches it is a child of that one, too.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import TYPE_CHECKING, NoReturn

from kernelbox.inside import linux, stub
from kernelbox.inside.channel import Channel
from kernelbox.walls import cgroups, entry, ways
from kernelbox.walls.idmaps import IdMap
from kernelbox.walls.plan import GATE_PORT, Plan, host_uid_for
from kernelbox.wire import Decoder, Frame, GarbledFrame, encode

if TYPE_CHECKING:
    from kernelbox.inside.interpreter import Interpreter
    from kernelbox.walls.pasta import Line

_MAX_FDS = 4
_NOBODY = 65534
_BACKLOG = 128


def main(
    control: socket.socket,
    interpreter: Interpreter,
    first: Channel,
    *,
    not_ours: stub.NotOurs,
    ahead: bool,
) -> NoReturn:
    """Be the stub of a walled family until the control socket closes. ``ahead``: its namespaces
    can be made before it is said what for, which takes the warden some milliseconds."""
    stub.close(*not_ours)
    first.close_near()
    linux.set_name("kb-wall")
    if ways.known().kind == "locks":
        from kernelbox.inside import locked

        locked.main(control, interpreter, first, {**next_order(control)[0], **_plan(control)})
    try:
        uid = host_uid_for(os.getpid())
        ids = None if uid is None else IdMap(uid)
        site = _Site(control)
        if not ahead:
            site.read()
            site.join_group()
        if site.driver == "gvisor":
            if ids is not None:
                ids.close()  # it lends in its own way
            _be_in_gvisor(control, interpreter, first, site)
        line = _raw_line() if site.network == "raw" else None
        outside, inside = socket.socketpair()
        pid = entry.enter(
            site.plan,
            ids,
            lambda: _open_way_out(site, inside),
            line.attach if line else lambda: None,
        )
        if ids is not None:
            ids.close()
    except BaseException as error:
        refuse(control, str(error) or repr(error))
    inside.close()
    if pid:
        control.close()
        first.close_far()
        _stay_outside(pid, outside, line)
    outside.close()
    if line is not None:
        line.close()
    linux.set_dumpable(False)  # before there is anybody who might look
    control.sendall(encode({"op": "walled"}))
    stub.serve(control, interpreter, first)


class _Site:
    """Where the walls are to stand: what the warden says first. It is read outside, or inside."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self.order: Frame = {}
        self.fds: list[int] = []
        """Where the gate tells of denials, and learns secrets; none if there is no gate."""

    def read(self) -> None:
        self.order, self.fds = next_order(self._control)

    def plan(self) -> Plan:
        """In the sandbox that is to be, from which the way back is still open."""
        if not self.order:
            self.read()
            self.join_group()
        return Plan.from_wire(_plan(self._control)["plan"])

    def join_group(self) -> None:
        join_group(self.order)

    @property
    def driver(self) -> str:
        return str(self.order.get("driver", "process"))

    @property
    def network(self) -> str:
        return str(self.order.get("network", "off"))


def _be_in_gvisor(
    control: socket.socket, interpreter: Interpreter, first: Channel, site: _Site
) -> NoReturn:
    from kernelbox.inside import gvisor

    order = {**site.order, **_plan(control)}
    gvisor.keep(
        control,
        first,
        order,
        interpreter.preload,
        lambda listener: _watch_way_out(order, listener, *site.fds),
    )


def look() -> None:
    """In the root: which way our forks are to go."""
    if ways.look().kind == "locks":
        from kernelbox.inside import locked

        locked.prepare()


def refuse(control: socket.socket, words: str) -> NoReturn:
    """The walls do not stand, so nobody's code is run."""
    with contextlib.suppress(OSError):
        control.sendall(encode({"op": "refused", "error": words}))
    os._exit(70)


def join_group(order: Frame) -> None:
    """The control group that the warden has made for us, if it has."""
    if group := order.get("group"):
        hierarchy = cgroups.Hierarchy(group["version"], group["parents"])
        cgroups.Group(hierarchy, order["kernel_id"]).join()


def next_order(control: socket.socket) -> tuple[Frame, list[int]]:
    """The first says where it is to be: the driver, the group, the network, and comes with where
    the gate tells of denials, if there is one. The second is the plan."""
    frame, fds = _one_frame(control)
    if not frame:
        os._exit(0)  # nobody wanted this one
    return frame, fds


def _one_frame(sock: socket.socket) -> tuple[Frame, list[int]]:
    """And nothing of what follows, which somebody else may have to read; empty at the end."""
    decoder = Decoder()
    taken: list[int] = []
    while True:
        try:
            data, fds, _, _ = socket.recv_fds(sock, decoder.missing, _MAX_FDS)
            frames = decoder.feed(data)
        except (OSError, GarbledFrame):
            data, fds, frames = b"", [], []
        taken += fds
        if not data:
            stub.close(*taken)
            return {}, []
        for frame in frames:
            return frame, taken


def _plan(control: socket.socket) -> Frame:
    return next_order(control)[0]


def _open_way_out(site: _Site, outside: socket.socket) -> None:
    """Inside, where the network is nothing but loopback: a socket that somebody outside listens
    to, with what that one has to know."""
    if site.network == "on":
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", GATE_PORT))
            listener.listen(_BACKLOG)
            socket.send_fds(outside, [encode(site.order)], [listener.fileno(), *site.fds])
    stub.close(*site.fds)


def _raw_line() -> Line:
    from kernelbox.walls.pasta import Line

    return Line()


def _stay_outside(pid: int, inside: socket.socket, line: Line | None) -> NoReturn:
    if line is not None:
        line.let_go()
    order, fds = _one_frame(inside)  # of _open_way_out; none if there is none
    if order and os.fork() == 0:
        inside.close()
        _watch_way_out(order, socket.socket(fileno=fds[0]), *fds[1:])
    inside.close()
    stub.close(*fds)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)
    if line is not None:
        line.hang_up()
    os._exit(0)


def _watch_way_out(
    order: Frame, listener: socket.socket, denials: int, secrets: int | None = None
) -> NoReturn:
    """What it reads comes from the sandbox, so it has no more rights than it needs: nobody's. And
    it works for the sandbox alone, within what that one is allowed to use."""
    try:
        # All of it now: as nobody it may not be able to read where we are installed.
        import encodings.idna  # noqa: F401
        import stringprep  # noqa: F401

        from kernelbox.walls import gate, vault
        from kernelbox.walls.domains import Policy

        linux.set_name("kb-gate")
        join_group(order)
        linux.unblock_signals()
        linux.set_dumpable(False)  # before it knows anything that is worth to look for
        opened = None if secrets is None else vault.receive(secrets)
        if os.geteuid() == 0:
            os.setgroups([])
            os.setresgid(_NOBODY, _NOBODY, _NOBODY)
            os.setresuid(_NOBODY, _NOBODY, _NOBODY)
        linux.die_with_parent()
        gate.run(listener, Policy(tuple(order["allow"])).to_wire(), denials, opened)
    finally:
        os._exit(70)
