"""The inner half of a family in gVisor: pid 1 there, a Python that was started for it alone.

It becomes what a fork of the root is elsewhere: a warm interpreter with a stub around it. It is
root in the sandbox, so that user code can neither end nor read it, and makes ordinary users of all
that it starts. On the host it is nobody.
"""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable
from typing import NoReturn

from kernelbox.inside import ferry, linux, preload, root
from kernelbox.inside.interpreter import Interpreter
from kernelbox.inside.stub import FIRST, Stub
from kernelbox.walls import bpf, callfilters, kernelcalls, rlimits, seccomp, trees
from kernelbox.walls.plan import INSIDE_UID, Plan
from kernelbox.wire import READ_SIZE, Decoder, Frame, encode

_MOST_FDS = 6
"""The control socket, the channel of the first interpreter, and the way to the gate."""
_COVER = kernelcalls.MS_RDONLY | kernelcalls.MS_NOSUID | kernelcalls.MS_NODEV
_FILTERS: dict[str, Callable[[], bpf.Program | None]] = {
    "all": lambda: None,
    "deny-list": callfilters.deny_list,
    "allow-list": lambda: callfilters.allow_list(sockets=True),
}


def main() -> NoReturn:
    """Be the stub of a family until its control socket closes."""
    linux.set_dumpable(False)
    order, fds = _first_order()
    control = socket.socket(fileno=fds.pop(0))
    # Orders that come before it is warm wait in the socket.
    control.sendall(encode({"op": "walled"}))
    plan = Plan.from_wire(order["plan"])
    ours = [os.getpid()]
    if plan.network == "on":
        ours.append(ferry.start(socket.socket(fileno=fds.pop())))
    _tidy_up(plan)
    preload.install()
    folder = tempfile.mkdtemp(prefix="kernelbox-")
    interpreter, _ = root.build(folder, order["preload"])
    shutil.rmtree(folder, ignore_errors=True)
    root.freeze()
    gc.enable()
    _be_silent()
    _hide(ours)
    linux.set_name("kb-stub")
    linux.adopt_orphans()
    stub = FreshStub(control, interpreter, plan)
    stub.start_first(order["token"], fds)
    stub.run()


def _first_order() -> tuple[Frame, list[int]]:
    """What we are here for, and the descriptors: they came with our standard input."""
    decoder = Decoder()
    taken: list[int] = []
    start = socket.socket(fileno=os.dup(0))
    while True:
        data, fds, _, _ = socket.recv_fds(start, READ_SIZE, _MOST_FDS)
        if not data:
            os._exit(0)  # nobody wants this one any more
        taken += fds
        for frame in decoder.feed(data):
            start.close()
            return frame, taken


def _be_silent() -> None:
    """Until now it was runsc's streams that we had, for what goes wrong; user code might find them
    in our folder of /proc."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    os.close(null)


def _hide(pids: list[int]) -> None:
    """What gVisor tells of these in /proc to whoever asks: variables, maps, descriptors. Nothing of
    anybody's is among that, so a runsc that will not have it covered is no reason to stop."""
    for pid in pids:
        with contextlib.suppress(OSError):
            kernelcalls.mount("none", f"/proc/{pid}", "tmpfs", _COVER, "mode=0555")
    kernelcalls.give_up(kernelcalls.CAP_SYS_ADMIN)


def _tidy_up(plan: Plan) -> None:
    """What gVisor has put there and nobody needs; and folders that it has made on the way to what
    is shown, which everybody could write to."""
    with contextlib.suppress(OSError):
        os.unlink("/dev/fuse")
    shutil.rmtree("/dev/net", ignore_errors=True)
    shown = [*plan.shown, *(target for _, target, _ in plan.mounts)]
    above = {parent for path in shown for parent in _parents(path)}
    for folder in above - {"/", "/tmp", "/home"}:
        if not trees.inside(folder, shown):
            with contextlib.suppress(OSError):  # one of the root's, that cannot be changed anyway
                os.chmod(folder, 0o755)


def _parents(path: str) -> list[str]:
    parts = path.strip("/").split("/")
    return ["/" + "/".join(parts[:count]) for count in range(1, len(parts))]


class FreshStub(Stub):
    """A stub whose children have yet to walk into the last of their walls, and whose warden cannot
    reach them: it signals them at the warden's word."""

    def __init__(self, control: socket.socket, interpreter: Interpreter, plan: Plan) -> None:
        super().__init__(control, interpreter)
        self._plan = plan
        self._filter = _FILTERS[plan.syscalls]()
        self._jobs: dict[int, list[int]] = {}
        """Of each shell: what earlier commands left running."""

    def start_first(self, token: str, fds: list[int]) -> None:
        """The one interpreter that every family needs."""
        self._obey({"op": "interpreter", "tag": FIRST, "token": token}, fds)
        for fd in fds:
            os.close(fd)

    def _lock_in(self) -> None:
        """In a member, before it runs anybody's code. The system calls are filtered last: the
        steps before need some that are forbidden then."""
        kernelcalls.hand_down_no_capabilities()
        os.setgroups([])
        os.setresgid(INSIDE_UID, INSIDE_UID, INSIDE_UID)
        os.setresuid(INSIDE_UID, INSIDE_UID, INSIDE_UID)  # and no capability is left
        linux.die_with_parent()  # again: who becomes somebody else forgets it
        linux.set_dumpable(True)
        kernelcalls.gain_no_privileges()
        rlimits.apply(self._plan.limits)
        os.chdir(self._plan.cwd)
        if self._filter is not None:
            seccomp.install(self._filter)

    def _obey(self, frame: Frame, fds: list[int]) -> None:
        match frame["op"]:
            case "signal":
                send = os.killpg if frame["group"] else os.kill
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    send(frame["pid"], frame["signal"])
            case "jobs":
                jobs = self._jobs[frame["pid"]] = linux.descendants(frame["pid"])
                self._say({"op": "jobs", "pid": frame["pid"], "jobs": len(jobs)})
            case "interrupt_shell":
                self._interrupt_shell(frame["pid"], hard=frame["hard"])
            case "kill":
                spare = self._jobs.get(frame["pid"], ()) if frame.get("spare_jobs") else ()
                linux.kill_descendants(frame["pid"], spare=spare)
                linux.send_signal([frame["pid"]], signal.SIGKILL)
            case "census":
                below = [child for pid in frame["pids"] for child in linux.children(pid)]
                self._say({"op": "census", "busy": any(map(linux.is_running, below))})
            case "weigh":
                self._say({"op": "weight", "bytes": _memory_in_use()})
            case "shed":
                self._shed(frame["why"])
                self._say({"op": "shed"})
            case _:
                super()._obey(frame, fds)

    def _interrupt_shell(self, shell: int, *, hard: bool) -> None:
        """As ``warden/bash_member.py`` does where it can reach the shell, with the reasons."""
        jobs = self._jobs.get(shell, [])
        linux.send_signal([shell], signal.SIGURG)
        fresh = [pid for pid in linux.descendants(shell) if pid not in jobs]
        linux.send_signal(fresh, signal.SIGINT)
        if hard:
            linux.kill_descendants(shell, spare=jobs)
            linux.send_signal([shell], signal.SIGINT)

    def _shed(self, why: str) -> None:
        """End the process that has most memory, and tell of it first."""
        sizes = {pid: _memory(pid) for pid in _everybody()}
        largest = max(sizes, key=lambda pid: sizes[pid], default=0)
        if largest:
            self._say({"op": "shedding", "pid": largest, "why": why})
            linux.send_signal([largest], signal.SIGKILL)


def _memory_in_use() -> int:
    """Bytes of all that is in the sandbox: what gVisor says of a machine is said of that."""
    with open("/proc/meminfo") as file:
        sizes = {line.split(":")[0]: int(line.split()[1]) for line in file if line.count(":") == 1}
    return (sizes["MemTotal"] - sizes["MemFree"]) << 10


def _everybody() -> list[int]:
    """All processes of the sandbox but ourselves."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) > 1]


def _memory(pid: int) -> int:
    """In kB; nothing of a process that is one of ours."""
    found = {"Uid": 0, "VmRSS": 0}
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/status") as file:
        for line in file:
            name, _, rest = line.partition(":")
            if name in found:
                found[name] = int(rest.split()[0])
    return found["VmRSS"] if found["Uid"] == INSIDE_UID else 0
