"""A view of the file system in which our own folders are empty.

Sockets and connection files are the doors to every kernel of a home; who cannot see them cannot
knock. In the Landlock domain that is entered after it, no mount can be undone, and no other
process's view be borrowed.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from collections.abc import Sequence

_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_MS_NOSUID, _MS_NODEV, _MS_REC, _MS_SLAVE = 2, 4, 16384, 1 << 19

_libc = ctypes.CDLL(None, use_errno=True)


def hide(folders: Sequence[str]) -> None:
    """From now on, and for all we start, ``folders`` are empty and our own.

    Only in a process of one thread, as a fork is.
    """
    here = os.getcwd()
    _leave_view()
    for folder in folders:
        _mount("tmpfs", folder, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=0700,size=16m")
    try:
        os.chdir(here)  # what we stood in may be covered by now
    except OSError:
        os.chdir("/")


@functools.cache
def obstacle() -> str:
    """Why this process cannot hide anything from its children; empty if it can."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        words = b""
        try:
            hide(["/tmp"])
        except BaseException as error:
            words = str(error).encode()[:1000]
        with contextlib.suppress(OSError):
            os.write(writer, words)
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as answer:
        words = answer.read()
    with contextlib.suppress(ChildProcessError):
        os.waitpid(child, 0)
    return words.decode(errors="replace")


def _leave_view() -> None:
    """A mount namespace of our own; what is mounted outside later appears in it, not vice versa."""
    uid, gid = os.geteuid(), os.getegid()
    if _libc.unshare(_CLONE_NEWNS) != 0:
        # Whoever is not root may do so in a user namespace, where everybody is who they were.
        if _libc.unshare(_CLONE_NEWNS | _CLONE_NEWUSER) != 0:
            raise _failure("unshare")
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{uid} {uid} 1"),
            ("gid_map", f"{gid} {gid} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    _mount("none", "/", "", _MS_REC | _MS_SLAVE, "")


def _mount(source: str, target: str, kind: str, flags: int, options: str) -> None:
    words = [word.encode("utf-8", "surrogateescape") for word in (source, target, kind, options)]
    if _libc.mount(words[0], words[1], words[2], ctypes.c_ulong(flags), words[3]) != 0:
        raise _failure(f"mount on {target!r}")


def _failure(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}")
