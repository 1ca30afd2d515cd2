"""A Landlock domain of our own: no signal and no look into memory leads out of it.

(`Landlock <https://docs.kernel.org/userspace-api/landlock.html>`_: who is in a domain cannot
ptrace, or read the memory of, who is not; with the *signal scope* of ABI 6 it cannot signal them.)
"""

from __future__ import annotations

import ctypes
import functools
import os
import struct

_CREATE_RULESET, _RESTRICT_SELF = 444, 446  # the same numbers on every architecture
_VERSION = 1
_SCOPES_FROM = 6
_SCOPE_ABSTRACT_SOCKET, _SCOPE_SIGNAL = 1, 2
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
    attributes = struct.pack("QQQ", 0, 0, _SCOPE_ABSTRACT_SOCKET | _SCOPE_SIGNAL)
    ruleset = _libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0)
    if ruleset < 0:
        raise _failure("landlock_create_ruleset")
    try:
        if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
            raise _failure("prctl(PR_SET_NO_NEW_PRIVS)")
        if _libc.syscall(_RESTRICT_SELF, ruleset, 0) != 0:
            raise _failure("landlock_restrict_self")
    finally:
        os.close(ruleset)


def _failure(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}")
