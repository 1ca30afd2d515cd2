"""Runs a command where user namespaces are closed, as some containers and distributions do it, and
perhaps as an ordinary user: ``python closed.py HOW UID COMMAND...``. UID 0: whoever we are."""

from __future__ import annotations

import errno
import os
import signal
import sys

from kernelbox.walls import bpf, seccomp, syscalls

_NAMESPACES = 0x7E020000
_MOUNTS = """mount umount2 pivot_root move_mount open_tree open_tree_attr fsopen fsconfig fsmount
fspick mount_setattr"""


def verdicts(how: str) -> dict[str, bpf.Verdict]:
    """``unshare``: as Docker's default profile. ``mount``: as Ubuntu 24.04, where a namespace can
    be made and nothing can be done in it. ``nothing``: as the first, and without Landlock. ``open``:
    nothing is closed."""
    refused = bpf.refuse(errno.EPERM)
    if how == "open":
        return {}
    closed: dict[str, bpf.Verdict] = dict.fromkeys(_MOUNTS.split(), refused)
    if how == "nothing":
        landlock = ("landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self")
        closed |= dict.fromkeys(landlock, bpf.refuse(errno.ENOSYS))
    if how in ("unshare", "nothing"):
        plain = bpf.Check(0, (0,), mask=_NAMESPACES)
        clone = bpf.Rule((bpf.Case((plain,), bpf.ALLOW),), refused)
        closed |= {"clone": clone, "clone3": bpf.refuse(errno.ENOSYS)}
        closed |= dict.fromkeys(("unshare", "setns"), refused)
    return closed


def close(how: str) -> None:
    machine = os.uname().machine
    numbers = syscalls.numbers(machine)
    named = {numbers[name]: verdict for name, verdict in verdicts(how).items()}
    if named:
        seccomp.install(bpf.assemble(machine, named, bpf.ALLOW))


def become(uid: int) -> None:
    if uid and os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)


if __name__ == "__main__":
    how, uid, *command = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    close(how)
    become(int(uid))
    os.execvp(command[0], command)
