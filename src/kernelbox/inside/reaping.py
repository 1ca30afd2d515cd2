"""Children of the interpreter that are ours and not the user's: they end by themselves, unseen.

The process between an interpreter and its parked copy takes a few milliseconds to end, and nobody
should have to wait for that. Until it is reaped, ``os.wait()`` in a cell must not come upon it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import time
from collections.abc import Callable
from typing import Any

PAUSE = 5
"""Milliseconds between two looks."""
_MOST_PAUSES = 200
_LONGEST_END = 10.0
_ours: dict[int, float] = {}


def leave_to_end(pid: int) -> None:
    """It will be reaped later."""
    _ours[pid] = time.monotonic()


def collect() -> None:
    """Reap those that have ended."""
    for pid, since in list(_ours.items()):
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG)[0] == 0:
                if time.monotonic() - since > _LONGEST_END:
                    os.kill(pid, signal.SIGKILL)  # a hook of the user's hangs in it
                continue
        _ours.pop(pid, None)


def collect_until(wanted: Callable[[], bool]) -> None:
    """Reap what ends within milliseconds; no more than that, and nothing once we are ``wanted``."""
    for _ in range(_MOST_PAUSES):
        collect()
        if not _ours or wanted():
            return


def forget() -> None:
    """In a copy: they are not its children."""
    _ours.clear()


def install() -> None:
    """Once, in the root: let waits for any child pass over ours."""
    for name in ("wait", "wait3"):
        setattr(os, name, _passing_over(getattr(os, name), any_child=lambda *_: True))
    for name in ("waitpid", "wait4"):
        setattr(os, name, _passing_over(getattr(os, name), any_child=lambda pid, *_: pid <= 0))
    os.waitid = _waitid_passing_over(os.waitid)


def _waitid_passing_over(plain: Any) -> Any:
    if hasattr(plain, "__wrapped__"):
        return plain

    @functools.wraps(plain)
    def waitid(kind: int, which: int, options: int) -> Any:
        while True:
            found = plain(kind, which, options)
            if found is None or kind == os.P_PID or found.si_pid not in _ours:
                return found
            with contextlib.suppress(ChildProcessError):
                os.waitpid(found.si_pid, os.WNOHANG)  # it may have been asked to leave it be
            _ours.pop(found.si_pid, None)

    return waitid


def _passing_over(plain: Any, *, any_child: Callable[..., bool]) -> Any:
    if hasattr(plain, "__wrapped__"):
        return plain

    @functools.wraps(plain)
    def wait(*arguments: Any, **named: Any) -> Any:
        while True:
            ended = plain(*arguments, **named)
            if ended[0] not in _ours or not any_child(*arguments, *named.values()):
                return ended
            _ours.pop(ended[0], None)

    return wait
