"""The machine's only program: hands out control groups as systemd would, and runs tests in each.

It is pid 1 there, unless that is systemd. What it has to say goes to the console, where ``host.py``
reads it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import platform
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TOP = Path("/sys/fs/cgroup")
NOBODY = 65534
_CONTROLLERS = "+memory +cpu +pids"
_RESTART = 0x01234567  # which ends the machine: QEMU is told not to restart


@dataclass(frozen=True)
class Place:
    """Who runs the tests, and in which unit; ``delegated``: with a leaf of it to be in."""

    uid: int
    unit: str
    delegated: bool


PLACES = {
    # Delegate=yes and DelegateSubgroup=main of a service, and of a user's service.
    "root": Place(0, "system.slice/kernelbox.service", True),
    "user": Place(
        NOBODY, f"user.slice/user-{NOBODY}.slice/user@{NOBODY}.service/kernelbox.service", True
    ),
    # What one has after a login: a group with processes in it that is nobody's to divide.
    "session": Place(0, "user.slice/user-0.slice/session-1.scope", False),
}


def main() -> None:
    """Run what was ordered in every place, and say how each ended."""
    order = json.loads(os.environ["KERNELBOX_VM_ORDER"])
    print(f"vm: Linux {platform.release()}, {os.cpu_count()} processors", flush=True)
    for name in order["places"]:
        began = time.monotonic()
        if name == "systemd":
            _move_into(_leaf_of_ours())
            code = _wait_for(_start(name, 0, order))
        else:
            code = _wait_for(_start(name, PLACES[name].uid, order, _delegate(PLACES[name])))
        took = time.monotonic() - began
        print(f"vm: {name}: exit {code} after {took:.0f} s", flush=True)


def _start(name: str, uid: int, order: dict[str, Any], leaf: Path | None = None) -> int:
    """Fork pytest, as ``uid`` if that is another, in ``leaf`` if there is one."""
    home = Path(f"/tmp/home-of-{name}")
    home.mkdir(mode=0o755)
    pid = os.fork()
    if pid:
        return pid
    try:
        if leaf is not None:
            _move_into(leaf)
        if uid:
            os.chown(home, uid, uid)
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
        os.chdir(order["project"])
        pytest = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-o", "timeout=600"]
        words = [*pytest, "-v", "--color=no", f"--basetemp={home}/tmp", *order["words"]]
        os.execve(sys.executable, words, _environ(str(home)))
    except BaseException:  # noqa: BLE001 - told on the console
        traceback.print_exc()
    finally:
        os._exit(70)


def _move_into(group: Path) -> None:
    (group / "cgroup.procs").write_text("0")


def _leaf_of_ours() -> Path:
    """What DelegateSubgroup=main does, where systemd does not know it yet."""
    path = Path("/proc/self/cgroup").read_text().strip().removeprefix("0::/")
    leaf = TOP / path / "main"
    leaf.mkdir()
    return leaf


def _delegate(place: Place) -> Path:
    """Make the unit's group as systemd does; the one for its processes to be in."""
    folder = TOP
    for part in place.unit.split("/"):
        (folder / "cgroup.subtree_control").write_text(_CONTROLLERS)
        folder /= part
        folder.mkdir(exist_ok=True)
    if not place.delegated:
        return folder
    leaf = folder / "main"
    leaf.mkdir()
    for group in (folder, leaf):
        os.chown(group, place.uid, place.uid)
        for file in Path("/sys/kernel/cgroup/delegate").read_text().split():
            with contextlib.suppress(FileNotFoundError):
                os.chown(group / file, place.uid, place.uid)
    for attribute in ("trusted.delegate", "user.delegate"):
        os.setxattr(folder, attribute, b"1")
    return leaf


def _environ(home: str) -> dict[str, str]:
    binaries = os.path.dirname(sys.executable)
    return {
        "PATH": f"{binaries}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "VIRTUAL_ENV": os.path.dirname(binaries),
        "LANG": "C.UTF-8",
        "HOME": home,
        "TMPDIR": home,
        "PYTHONDONTWRITEBYTECODE": "1",
        "HYPOTHESIS_STORAGE_DIRECTORY": f"{home}/hypothesis",  # the checkout may not be ours
    }


def _wait_for(pid: int) -> int:
    """Pid 1 is the parent of all who have lost theirs."""
    while True:
        ended, status = os.wait()
        if ended == pid:
            return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    try:
        main()
    except BaseException:  # noqa: BLE001 - there is nobody else to tell, and pid 1 must not end
        traceback.print_exc()
    finally:
        if os.getpid() == 1:
            ctypes.CDLL(None).reboot(_RESTART)
