"""Decides when the first request of a new client may go: once its subscription is in place.

A client opens a shell and an iopub connection, and nothing says which belong together. Output that
is published before the subscription has arrived is lost to it, and older clients do not wait for
the welcome message. So new shell connections and new subscriptions are counted against each other.
"""

from __future__ import annotations

from collections import deque


class Arrivals:
    """Pairs shell connections with subscriptions; times are the caller's, in seconds."""

    def __init__(self, *, patience: float = 0.3, window: float = 1.0) -> None:
        """``patience``: how long a connection waits for its subscription; ``window``: how long a
        subscription waits for its connection (later it is taken for a mere listener)."""
        self._patience = patience
        self._window = window
        self._waiting: dict[int, float] = {}
        self._subscriptions: deque[float] = deque()

    def connected(self, connection: int, now: float) -> None:
        self._waiting[connection] = now

    def disconnected(self, connection: int) -> None:
        self._waiting.pop(connection, None)

    def subscribed(self, now: float) -> None:
        self._subscriptions.append(now)

    def ready(self, connection: int, now: float) -> bool:
        """Whether a request that came over this connection may go."""
        self._settle(now)
        return connection not in self._waiting

    @property
    def deadline(self) -> float | None:
        """When the next connection has waited long enough."""
        if not self._waiting:
            return None
        return min(self._waiting.values()) + self._patience

    def _settle(self, now: float) -> None:
        for connection, since in list(self._waiting.items()):
            if now >= since + self._patience:
                del self._waiting[connection]
        while self._subscriptions and now - self._subscriptions[0] > self._window:
            self._subscriptions.popleft()
        # All or none: with fewer subscriptions than connections, whose are they?
        if len(self._subscriptions) >= len(self._waiting):
            for _ in self._waiting:
                self._subscriptions.popleft()
            self._waiting.clear()
