"""The user's event loop: it runs while the kernel is idle, so that background tasks go on."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Coroutine
from typing import Any

_plain_create_task = asyncio.create_task


class UserLoop:
    """Owns the loop that ``await`` at top level, and tasks left behind by cells, run in."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Made on first use: most kernels never await anything."""
        if self._loop is None or self._loop.is_closed():
            self._loop = asyncio.new_event_loop()
        return self._loop

    def before_cell(self) -> None:
        """Make the loop current again; ``asyncio.run`` in an earlier cell took it away."""
        if self._loop is not None:
            asyncio.set_event_loop(self.loop)

    def give_up(self) -> None:
        """In the root, after a rehearsal: forks make their own, and only those that need one."""
        if self._loop is not None:
            asyncio.set_event_loop(None)
            self._loop.close()  # its selector would be shared by every fork
            self._loop = None

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run an async cell to its end."""
        asyncio.set_event_loop(self.loop)
        return self.loop.run_until_complete(coroutine)

    @property
    def busy(self) -> bool:
        """Whether tasks, timers or watched sockets are waiting for the loop to run."""
        loop = self._loop
        if loop is None or loop.is_closed():
            return False
        if getattr(loop, "_ready", True) or getattr(loop, "_scheduled", True):
            return True
        if asyncio.all_tasks(loop):
            return True
        selector = getattr(loop, "_selector", None)
        return selector is None or len(selector.get_map()) > 1  # one is the loop's own wake-up

    @property
    def wanted(self) -> bool:
        """Whether it has to run while the kernel is idle: a thread may hand it work at any time."""
        loop = self._loop
        threads = threading.active_count() > 1
        return self.busy or (threads and loop is not None and not loop.is_closed())

    def run_until_readable(self, fd: int) -> None:
        """Let background tasks run until ``fd`` can be read."""
        loop = self.loop
        asyncio.set_event_loop(loop)
        loop.add_reader(fd, loop.stop)
        try:
            loop.run_forever()
        finally:
            loop.remove_reader(fd)

    def install(self) -> None:
        """Let ``asyncio.create_task`` work in a cell without ``await``, as notebooks expect.

        The loop does not run during such a cell (``asyncio.run`` must work in it), so the task
        starts when the cell has ended. ``asyncio.get_event_loop`` finds it there, too.
        """
        owner = self
        policy: Any = asyncio.get_event_loop_policy()
        plain_get_event_loop = policy.get_event_loop

        def get_event_loop() -> asyncio.AbstractEventLoop:
            if (
                threading.current_thread() is threading.main_thread()
                and getattr(policy._local, "_loop", None) is None
            ):
                asyncio.set_event_loop(owner.loop)
            loop: asyncio.AbstractEventLoop = plain_get_event_loop()
            return loop

        policy.get_event_loop = get_event_loop

        @functools.wraps(_plain_create_task)
        def create_task(coro: Any, **options: Any) -> Any:
            try:
                asyncio.get_running_loop()
            except RuntimeError:
                asyncio.set_event_loop(owner.loop)
                return owner.loop.create_task(coro, **options)
            return _plain_create_task(coro, **options)

        _replace_everywhere("create_task", create_task)

    def descriptors(self) -> set[int]:
        """Those of the loop itself, which a copy makes anew."""
        loop = self._loop
        if loop is None or loop.is_closed():
            return set()
        ends = (getattr(loop, name, None) for name in ("_ssock", "_csock"))
        return {end.fileno() for end in ends if end is not None}

    def renew_after_fork(self) -> None:
        """Give the copy of a fork a selector of its own: epoll descriptors are shared by a fork."""
        loop = self._loop
        if loop is None or loop.is_closed():
            return
        old = getattr(loop, "_selector", None)
        if old is None:
            self._loop = None
            return
        import selectors

        fresh = selectors.DefaultSelector()
        for key in list(old.get_map().values()):
            if key.fd != loop._ssock.fileno():  # type: ignore[attr-defined]
                fresh.register(key.fileobj, key.events, key.data)
        loop._selector = fresh  # type: ignore[attr-defined]
        # The wake-up socketpair is shared with the parent too: a byte meant for one would wake
        # the other.
        loop._ssock.close()  # type: ignore[attr-defined]
        loop._csock.close()  # type: ignore[attr-defined]
        loop._internal_fds -= 1  # type: ignore[attr-defined]
        loop._make_self_pipe()  # type: ignore[attr-defined]
        old.close()


def _replace_everywhere(name: str, function: Callable[..., Any]) -> None:
    setattr(asyncio, name, function)
    setattr(asyncio.tasks, name, function)
