"""The Jupyter lane."""

from __future__ import annotations
from typing import Any


class JupyterDoor:
    def __init__(self, reactor: Any, kernel: Any, ports: Any, *, on_shutdown: Any) -> None:
        self._ports = ports

    def close(self) -> None:
        self._ports.close()
