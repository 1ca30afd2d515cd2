"""The few REST calls that a client of the gateway makes."""

from __future__ import annotations

import http.client
import json
from typing import Any

from kernelbox.gateway.apart import in_thread


class NobodyThere(Exception):
    """Nothing answers at that address."""


class Refused(RuntimeError):
    """The gateway answered with an error; ``error`` is its kind and ``message`` its own words."""

    def __init__(self, request: str, status: int, error: str, message: str) -> None:
        super().__init__(f"{request}: {status}: {message}")
        self.status = status
        self.error = error
        self.message = message


class Service:
    """Where a gateway is, and the token it wants."""

    def __init__(self, host: str, port: int, token: str | None) -> None:
        self._host = host
        self._port = port
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}

    async def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """The answer's JSON; None if it has none."""
        return await in_thread(self._ask, method, path, body)

    def _ask(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=120)
        headers = {**self.headers, "Content-Type": "application/json"}
        try:
            connection.request(method, path, json.dumps(body or {}), headers)
            answer = connection.getresponse()
            raw = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise NobodyThere(str(error) or type(error).__name__) from None
        finally:
            connection.close()
        try:
            content = json.loads(raw) if raw else None
        except ValueError:
            content = None
        if answer.status >= 400:
            told = content if isinstance(content, dict) else {}
            words = str(told.get("message") or raw[:200].decode(errors="replace"))
            raise Refused(f"{method} {path}", answer.status, str(told.get("error")), words)
        return content
