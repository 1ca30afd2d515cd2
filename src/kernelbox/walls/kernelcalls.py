"""The calls that build walls and that Python does not have: mounts, namespaces, capabilities."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import struct

_libc = ctypes.CDLL(None, use_errno=True)

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS = 0x00020000, 0x02000000, 0x04000000
CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID = 0x08000000, 0x10000000, 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_MOVE, MS_REC, MS_PRIVATE = 32, 4096, 8192, 16384, 1 << 18
MNT_DETACH = 2

_AT_FDCWD, _AT_RECURSIVE, _AT_SYMLINK_NOFOLLOW = -100, 0x8000, 0x100
_ATTR_RDONLY, _ATTR_NOSUID, _ATTR_NODEV = 1, 2, 4
_MOUNT_SETATTR = 442  # the same number on every architecture

_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_CLONE = {"x86_64": 56, "aarch64": 220}

_PR_SET_PDEATHSIG, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 1, 24, 38, 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_CAPABILITY_VERSION_3 = 0x20080522
_MOST_CAPABILITIES = 64
CAP_SYS_ADMIN = 21

_SIOCGIFFLAGS, _SIOCSIFFLAGS = 0x8913, 0x8914
_IFF_UP = 1


class StepFailed(OSError):
    """A wall could not be built; the words name the step, what it was about, and the cause."""


def _failed(step: str) -> StepFailed:
    number = ctypes.get_errno()
    return StepFailed(number, f"{step}: {os.strerror(number)}")


def supported() -> bool:
    """Whether the numbers of this machine's calls are known."""
    return platform.machine() in _CLONE


def clone(flags: int) -> int:
    """Fork into new namespaces; 0 in the child. Only where there is one thread."""
    number = ctypes.c_long(_CLONE[platform.machine()])
    pid: int = _pylibc.syscall(number, ctypes.c_ulong(flags | signal.SIGCHLD), 0, 0, 0, 0)
    if pid < 0:
        raise _failed("making namespaces")
    return pid


_pylibc = ctypes.PyDLL(None, use_errno=True)  # keeps the GIL, as a fork must


def end_with_parent() -> None:
    """Be killed when the parent ends. Who becomes somebody else forgets it."""
    if _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise _failed("asking to end with the parent")


def unshare(flags: int) -> None:
    if _libc.unshare(flags) != 0:
        raise _failed("leaving namespaces")


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    words = [os.fsencode(word) for word in (source, target, kind, options)]
    if _libc.mount(words[0], words[1], words[2], ctypes.c_ulong(flags), words[3]) != 0:
        raise _failed(f"mounting {kind or source} on {target}")


def bind(source: str, target: str) -> None:
    """With everything that is mounted below: what is locked to it cannot be left out."""
    mount(source, target, "", MS_BIND | MS_REC)


def restrict(target: str, *, read_only: bool) -> None:
    """Of a mount and all below it: no devices, no set-uid programs and, perhaps, no writing."""
    wanted = _ATTR_NOSUID | _ATTR_NODEV | (_ATTR_RDONLY if read_only else 0)
    attributes = struct.pack("QQQQ", wanted, 0, 0, 0)
    done = _libc.syscall(
        _MOUNT_SETATTR,
        _AT_FDCWD,
        os.fsencode(target),
        _AT_RECURSIVE | _AT_SYMLINK_NOFOLLOW,
        attributes,
        ctypes.c_size_t(len(attributes)),
    )
    if done != 0:
        raise _failed(f"restricting the mount {target}")


def unmount(target: str) -> None:
    if _libc.umount2(os.fsencode(target), MNT_DETACH) != 0:
        raise _failed(f"unmounting {target}")


def pivot_root(new: str, old: str) -> None:
    number = _PIVOT_ROOT[platform.machine()]
    if _libc.syscall(number, os.fsencode(new), os.fsencode(old)) != 0:
        raise _failed(f"making {new} the root")


def set_hostname(name: str) -> None:
    if _libc.sethostname(name.encode(), ctypes.c_size_t(len(name))) != 0:
        raise _failed("naming the host")


def raise_loopback() -> None:
    """A new network namespace has nothing but ``lo``, and that is down."""
    import fcntl
    import socket

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = struct.pack("16sH22x", b"lo", 0)
        flags = struct.unpack("16sH22x", fcntl.ioctl(sock, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", flags | _IFF_UP))


def hand_down_no_capabilities() -> None:
    """To whatever is started; what we have ourselves, we keep for now."""
    _libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    drop_bounding_set()


def drop_capabilities() -> None:
    """All of them, now and for whatever is started."""
    hand_down_no_capabilities()
    header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
    if _libc.capset(header, struct.pack("6I", *[0] * 6)) != 0:
        raise _failed("dropping capabilities")


def give_up(capability: int) -> None:
    """One that we have: for good, and for whatever is started."""
    _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
    had = ctypes.create_string_buffer(24)
    if _libc.capget(header, had) != 0:
        raise _failed("reading capabilities")
    words = list(struct.unpack("6I", had.raw))
    for kind in range(3):  # effective, permitted, inheritable: the low halves come first
        words[3 * (capability // 32) + kind] &= ~(1 << capability % 32)
    if _libc.capset(header, struct.pack("6I", *words)) != 0:
        raise _failed("giving up a capability")


def drop_bounding_set() -> None:
    """What no program could ever get again. Only who has the right to do so can, and whoever has
    not gains no privileges anyway."""
    for number in range(_MOST_CAPABILITIES):
        if _libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0) != 0:
            break  # past the last that there is


def gain_no_privileges() -> None:
    """No program that is started gets more rights than this process has."""
    if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise _failed("renouncing new privileges")
