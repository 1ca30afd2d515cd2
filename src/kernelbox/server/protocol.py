"""HTTP/1.1 as uvicorn speaks it, but with a limit on how long a request's head may take.

A connection that sends its headers byte by byte, or nothing at all, would otherwise stay for ever.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class PatientProtocol(HttpToolsProtocol):
    """Hangs up on who does not say what they want within ``patience`` seconds."""

    patience = 30.0
    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._wait_for_head()

    def on_headers_complete(self) -> None:
        self._stop_waiting()
        super().on_headers_complete()

    def _wait_for_head(self) -> None:
        self._stop_waiting()
        self._waiting = self.loop.call_later(self.patience, self._give_up)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _give_up(self) -> None:
        self.transport.close()


def patient_for(seconds: float) -> type[HttpToolsProtocol]:
    """The protocol with another patience."""
    return type("PatientProtocol", (PatientProtocol,), {"patience": seconds})
