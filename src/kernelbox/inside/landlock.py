"""A Landlock domain of our own: no signal and no look into memory leads out of it, and what is
mounted stays mounted.

(`Landlock <https://docs.kernel.org/userspace-api/landlock.html>`_: who is in a domain cannot
ptrace, or read the memory of, who is not; with the *signal scope* of ABI 6 it cannot signal them;
and a domain that has anything to say about files forbids all mounting.)
"""

from __future__ import annotations

import ctypes
import functools
import os
import struct

# The same numbers on every architecture.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION = 1
_SCOPES_FROM = 6
_SCOPE_ABSTRACT_SOCKET, _SCOPE_SIGNAL = 1, 2
_PATH_BENEATH = 1
_MAKE_BLOCK, _REFER = 1 << 11, 1 << 13
_PR_SET_NO_NEW_PRIVS = 38

_libc = ctypes.CDLL(None, use_errno=True)


@functools.cache
def abi() -> int:
    """The version that this machine has; 0: none."""
    return max(0, int(_libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION)))


def can_scope() -> bool:
    return abi() >= _SCOPES_FROM


def enter_scope() -> None:
    """From now on, and for all we start: neither signal nor read whoever is outside."""
    # Of files it forbids nothing (moving between folders it would, were it not named): it must
    # only handle something for mounts to be fixed.
    files = _MAKE_BLOCK | _REFER
    attributes = struct.pack("QQQ", files, 0, _SCOPE_ABSTRACT_SOCKET | _SCOPE_SIGNAL)
    ruleset = _libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0)
    if ruleset < 0:
        raise _failure("landlock_create_ruleset")
    root = os.open("/", os.O_PATH | os.O_CLOEXEC)
    try:
        rule = struct.pack("=Qi", files, root)
        if _libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0) != 0:
            raise _failure("landlock_add_rule")
        if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
            raise _failure("prctl(PR_SET_NO_NEW_PRIVS)")
        if _libc.syscall(_RESTRICT_SELF, ruleset, 0) != 0:
            raise _failure("landlock_restrict_self")
    finally:
        os.close(ruleset)
        os.close(root)


def _failure(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}")
