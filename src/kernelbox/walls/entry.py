"""Walking into the walls: what a stub does before it runs anybody's code, in this order.

Each step is named, and one that fails ends the whole: a sandbox has all its walls or is none. The
order matters. Namespaces come first, because all else is built in them. The house is built while
there are capabilities, and these are dropped right after. System calls are filtered last, since
the steps before need many that are forbidden then.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable

from kernelbox.walls import callfilters, filelock, house, kernelcalls as calls, rlimits, seccomp
from kernelbox.walls.bpf import Program
from kernelbox.walls.idmaps import IdMap
from kernelbox.walls.kernelfiles import tell
from kernelbox.walls.plan import HOME, INSIDE_UID, WORKSPACE, Plan, host_uid_for, plan_for
from kernelbox.walls.profiles import named

Step = Callable[[], None]
Planned = Callable[[], Plan]

_NAMESPACES = (
    calls.CLONE_NEWNS
    | calls.CLONE_NEWPID
    | calls.CLONE_NEWNET
    | calls.CLONE_NEWIPC
    | calls.CLONE_NEWUTS
)
_UNSHARED, _MAPPED = b"u", b"m"
_HOST = "sandbox"


def _nothing() -> None:
    pass


def enter(
    planned: Planned, ids: IdMap | None, furnished: Step = _nothing, ordinary: Step = _nothing
) -> int:
    """Fork a process that goes on inside; 0 there, when all walls stand, and its pid here.

    ``planned`` is called inside, where its plan is needed first: it may wait for it, and join
    control groups. ``ids`` is for the plan's uid on the host, if it has one; it can be made ahead.
    ``furnished`` is called inside, before anything is locked, and ``ordinary`` after that, when it
    has its last uid, and rights over its own network.
    :class:`~kernelbox.walls.kernelcalls.StepFailed` inside means that it must end. Only where there
    is one thread.
    """
    if ids is None:
        return _enter_as_caller(planned, furnished, ordinary)
    return _enter_as_somebody_else(planned, ids, furnished, ordinary)


def _enter_as_caller(planned: Planned, furnished: Step, ordinary: Step) -> int:
    """Whoever is not root gets the rights to build a house from a user namespace of their own."""
    uid, gid = os.geteuid(), os.getegid()
    pid = calls.clone(_NAMESPACES | calls.CLONE_NEWUSER)
    if pid:
        return pid
    calls.end_with_parent()
    _write_maps("self", uid, gid, deny_groups=True)
    plan = _furnish(planned, None)
    furnished()
    _become_ordinary()
    ordinary()
    _lock_down(plan)
    return 0


def _enter_as_somebody_else(planned: Planned, ids: IdMap, furnished: Step, ordinary: Step) -> int:
    """Root's sandbox has a uid that nobody has. It builds as root, so that it can lend root's files
    to that uid, and leaves for a user namespace of its own when that is done: over what it has
    built it has no rights there."""
    with _Pipe() as word, _Pipe() as answer:
        pid = calls.clone(_NAMESPACES)
        if pid:
            word.close_writer()
            answer.close_reader()
            if word.read() == _UNSHARED:
                _write_maps(str(pid), ids.uid, ids.uid, deny_groups=False)
                answer.write(_MAPPED)
            return pid
        word.close_reader()
        answer.close_writer()
        calls.end_with_parent()
        plan = _furnish(planned, ids)
        furnished()
        os.setgroups([])
        # A network that is attached to something belongs to the sandbox and not to root, so that
        # who attaches it needs no rights of root's.
        network = calls.CLONE_NEWNET if plan.network == "raw" else 0
        calls.unshare(calls.CLONE_NEWUSER | network)
        word.write(_UNSHARED)
        if answer.read() != _MAPPED:
            raise calls.StepFailed(0, "becoming an ordinary user: nobody has mapped the ids")
    _become_ordinary()
    ordinary()
    _lock_down(plan)
    return 0


def _furnish(planned: Planned, ids: IdMap | None) -> Plan:
    calls.raise_loopback()
    calls.set_hostname(_HOST)
    plan = planned()
    calls.unshare(calls.CLONE_NEWCGROUP)  # now that it is in its last: what is above is not there
    house.build(plan, ids)
    return plan


def _become_ordinary() -> None:
    os.setresgid(INSIDE_UID, INSIDE_UID, INSIDE_UID)
    os.setresuid(INSIDE_UID, INSIDE_UID, INSIDE_UID)
    calls.end_with_parent()  # again: it is forgotten now


def _lock_down(plan: Plan) -> None:
    calls.drop_capabilities()
    calls.gain_no_privileges()
    own = [WORKSPACE, HOME, "/tmp", "/dev", "/proc"]
    writable = ["/"] if plan.overlay else [*own, *(to for _, to, rw in plan.mounts if rw)]
    filelock.enter(["/"], writable, sockets=_named_sockets(plan), scope=True, tcp=None)
    rlimits.apply(plan.limits)
    os.chdir(plan.cwd)
    for name, program in (("deny-list", callfilters.deny_list), ("allow-list", _allow_list)):
        if plan.syscalls == name:
            seccomp.install(program())


def _named_sockets(plan: Plan) -> list[str]:
    """Those of the host that the profile mounts one by one."""
    if not plan.mounts or not filelock.can_deny_sockets():
        return []
    return [target for _, target, _ in plan.mounts if stat.S_ISSOCK(os.stat(target).st_mode)]


def _allow_list() -> Program:
    return callfilters.allow_list(sockets=True)


def _write_maps(process: str, uid: int, gid: int, *, deny_groups: bool) -> None:
    """Inside, everybody is the same; outside, that one is somebody."""
    texts = {"uid_map": f"{INSIDE_UID} {uid} 1", "gid_map": f"{INSIDE_UID} {gid} 1"}
    if deny_groups:
        texts = {"setgroups": "deny", **texts}
    for name, text in texts.items():
        try:
            tell(f"/proc/{process}/{name}", text)
        except OSError as error:
            words = f"becoming an ordinary user ({name}): {error.strerror}"
            raise calls.StepFailed(error.errno or 0, words) from None


def obstacle() -> str:
    """Why no walls can be built here; empty if they can."""
    return attempt()[1]


def attempt() -> tuple[int, str]:
    """The error, by its number and in words, that ends the building of walls here; empty if they
    can be built. By trying, in a process that is thrown away: some systems let a namespace be made
    and then refuse every mount in it."""
    with _Pipe() as told:
        child = os.fork()
        if child == 0:
            number, words = 0, ""
            try:
                told.close_reader()
                _try_out()
            except BaseException as error:  # noqa: BLE001 - whatever it is, it is the answer
                number, words = getattr(error, "errno", None) or 0, _said(error)
            finally:
                with contextlib.suppress(OSError):
                    told.write(f"{number} {words}".encode()[:4000])
                os._exit(0)
        told.close_writer()
        said, _, words = told.read().decode("utf-8", "replace").partition(" ")
    with contextlib.suppress(ChildProcessError):
        os.waitpid(child, 0)
    return int(said or 0), words if said else "the process that tried it ended without a word"


def _try_out() -> None:
    """The strictest there are, around nothing."""
    uid = host_uid_for(os.getpid())
    plan, _ = plan_for(named("restrictive"), shown=(), cwd="/", private=(), host_uid=uid)
    with _Pipe() as told:
        try:
            inside = enter(lambda: plan, None if uid is None else IdMap(uid)) == 0
        except OSError as error:
            if os.getpid() != 1:
                raise
            told.write(f"{error.errno or 0} {_said(error)}".encode())
            inside = True
        if inside:
            os._exit(0)
        told.close_writer()
        if words := told.read().decode("utf-8", "replace"):
            number, _, words = words.partition(" ")
            raise calls.StepFailed(int(number), words)


def _said(error: BaseException) -> str:
    return getattr(error, "strerror", None) or str(error) or repr(error)


class _Pipe:
    """Both ends of a pipe, closed whatever happens."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()

    def __enter__(self) -> _Pipe:
        return self

    def __exit__(self, *_: object) -> None:
        self.close_reader()
        self.close_writer()

    def read(self) -> bytes:
        """One message, or all there is until the other end is closed."""
        return os.read(self._reader, 4096)

    def write(self, data: bytes) -> None:
        os.write(self._writer, data)

    def close_reader(self) -> None:
        if self._reader >= 0:
            os.close(self._reader)
            self._reader = -1

    def close_writer(self) -> None:
        if self._writer >= 0:
            os.close(self._writer)
            self._writer = -1
