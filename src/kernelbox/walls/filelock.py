"""Landlock: a domain in which only named trees of files can be read, and fewer be written.

(`Landlock <https://docs.kernel.org/userspace-api/landlock.html>`_ needs no rights, cannot be left,
and holds for all that is started in it. It decides at open(), so what is open stays usable. It has
no rule for stat(), chdir(), and changes of mode, owner, times and extended attributes: where there
are no namespaces, :func:`kernelbox.walls.callfilters.allow_list` must forbid the latter. And who
has CAP_PERFMON can look into processes outside all the same, so capabilities go first.)
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

# The same numbers on every architecture.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION = 1
_PATH_BENEATH = 1
_PR_SET_NO_NEW_PRIVS = 38

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REMOVE_DIR, _REMOVE_FILE = 1 << 4, 1 << 5
_MAKE_CHAR, _MAKE_DIR, _MAKE_FILE, _MAKE_SOCKET = 1 << 6, 1 << 7, 1 << 8, 1 << 9
_MAKE_FIFO, _MAKE_BLOCK, _MAKE_SYMLINK = 1 << 10, 1 << 11, 1 << 12
_REFER, _TRUNCATE, _IOCTL_DEVICE, _RESOLVE_SOCKET = 1 << 13, 1 << 14, 1 << 15, 1 << 16

# What each version brought; a right that is not handled is not restricted.
_RIGHTS_FROM = {
    1: (1 << 13) - 1,
    2: _REFER,  # before it, nothing can be moved from folder to folder at all
    3: _TRUNCATE,
    5: _IOCTL_DEVICE,
    9: _RESOLVE_SOCKET,  # Unix sockets with a path, of somebody outside: one's own need no right
}
_TCP_FROM, _SCOPES_FROM, _SOCKETS_FROM = 4, 6, 9

_READ = _EXECUTE | _READ_FILE | _READ_DIR
_MAKE = _MAKE_DIR | _MAKE_FILE | _MAKE_SOCKET | _MAKE_FIFO | _MAKE_SYMLINK
# Never granted: _MAKE_CHAR and _MAKE_BLOCK, as a device node is a way around every path. And to
# connect to a socket of somebody outside only where it is named.
_WRITE = (
    _READ
    | (_WRITE_FILE | _TRUNCATE | _IOCTL_DEVICE)
    | (_MAKE | _REMOVE_DIR | _REMOVE_FILE | _REFER)
)
# The kernel takes a rule for a file only without what makes sense in folders alone.
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEVICE | _RESOLVE_SOCKET

_BIND_TCP, _CONNECT_TCP = 1, 2
_SCOPE_ABSTRACT_SOCKET, _SCOPE_SIGNAL = 1, 2

_libc = ctypes.CDLL(None, use_errno=True)


def abi() -> int:
    """The version that this machine has; 0: none."""
    return max(0, int(_libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION)))


def can_scope() -> bool:
    """Whether ``scope`` of :func:`enter` does anything here."""
    return abi() >= _SCOPES_FROM


def can_deny_tcp() -> bool:
    """Whether ``tcp=False`` of :func:`enter` does anything here."""
    return abi() >= _TCP_FROM


def can_deny_sockets() -> bool:
    """Whether ``sockets`` of :func:`enter` does anything here."""
    return abi() >= _SOCKETS_FROM


def enter(
    readable: Sequence[str],
    writable: Sequence[str],
    *,
    listed: Sequence[str] = (),
    sockets: Sequence[str] = (),
    scope: bool,
    tcp: bool | None = None,
) -> None:
    """From now on, and for all we start, only these files and what is below these folders.

    ``readable`` can be read and executed; in ``writable`` files can also be written, made, removed
    and moved; of folders that are ``listed`` names can be read, and no more. Of Unix sockets with a
    path that somebody outside has bound, now or later, only these ``sockets`` can be connected to.
    With ``scope`` no signal, and no connection to an abstract socket, leads out; with ``tcp=False``
    no TCP port can be bound or connected to. The last three only where the machine can: ask
    :func:`can_deny_sockets`, :func:`can_scope` and :func:`can_deny_tcp` when it matters. Only in a
    process of one thread, as a fork is: others stay outside.
    """
    version = _version()
    files = _handled(version)
    ports = _BIND_TCP | _CONNECT_TCP if tcp is False and version >= _TCP_FROM else 0
    scopes = _SCOPE_ABSTRACT_SOCKET | _SCOPE_SIGNAL if scope and version >= _SCOPES_FROM else 0
    with _ruleset(files, ports, scopes) as ruleset:
        for path in readable:
            _allow(ruleset, path, _READ & files)
        for path in writable:
            _allow(ruleset, path, _WRITE & files)
        for path in listed:
            _allow(ruleset, path, _READ_DIR)
        for path in sockets if files & _RESOLVE_SOCKET else ():
            _allow(ruleset, path, _RESOLVE_SOCKET)
        if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
            raise _failure("prctl(PR_SET_NO_NEW_PRIVS)")
        if _libc.syscall(_RESTRICT_SELF, ruleset, 0) != 0:
            raise _failure("landlock_restrict_self")


def obstacle() -> str:
    """Why this process cannot enter such a domain; empty if it can."""
    try:
        with _ruleset(_handled(_version()), 0, 0) as ruleset:
            _allow(ruleset, "/", _READ)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _version() -> int:
    version = abi()
    if version < 1:
        cause = os.strerror(ctypes.get_errno())
        raise OSError(
            errno.EOPNOTSUPP,
            f"this kernel has no Landlock ({cause}), so files cannot be locked by path. Use Linux "
            "5.13 or later with 'landlock' in its list of security modules (lsm=), or a profile "
            "and driver that keep files apart by mounts.",
        )
    return version


def _handled(version: int) -> int:
    """All rights over files that this version can withhold."""
    return sum(rights for since, rights in _RIGHTS_FROM.items() if version >= since)


@contextmanager
def _ruleset(files: int, ports: int, scopes: int) -> Iterator[int]:
    # A kernel that knows fewer fields takes the others as long as they are zero.
    attributes = struct.pack("QQQ", files, ports, scopes)
    ruleset = _libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0)
    if ruleset < 0:
        raise _failure("landlock_create_ruleset")
    try:
        yield ruleset
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            rights &= _OF_FILES
        rule = struct.pack("=Qi", rights, fd)
        if _libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0) != 0:
            raise _failure(f"landlock_add_rule for {path!r}")
    finally:
        os.close(fd)


def _failure(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}")
