"""A real HTTP service in a process of its own, in a home of its own, and clients for it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from jupyter_clients import assert_home_is_deserted

from kernelbox import Box, Settings
from kernelbox.keeper.home import Home, locate

LAUNCH = Path(__file__).parents[1] / "server" / "launch.py"
PATIENCE = 60.0


class Service:
    """A service that runs, and how to talk to it."""

    def __init__(self, process: subprocess.Popen[bytes], home: Path, folder: Path) -> None:
        self.process = process
        self.home = home
        self.folder = folder
        self.said: list[str] = []
        self.url = ""
        self._told = False
        listening = threading.Event()

        def read() -> None:
            assert process.stderr is not None
            for line in process.stderr:
                text = line.decode(errors="replace")
                self.said.append(text)
                if found := re.search(r"(?:listens|running) on (https?://\S+:\d+)", text):
                    self.url = found.group(1)
                    listening.set()
            listening.set()

        self._reader = threading.Thread(target=read, daemon=True)
        self._reader.start()
        assert listening.wait(PATIENCE), f"it does not listen: {self.said}"
        assert self.url, f"it ended: {''.join(self.said)}"
        self.http = self.client()

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def client(self, token: str | None = None, **options: Any) -> httpx.Client:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        limits = httpx.Limits(max_connections=None)
        return httpx.Client(
            base_url=self.url, headers=headers, timeout=PATIENCE, limits=limits, **options
        )

    def execute(self, kernel: str, code: str, **fields: Any) -> dict[str, Any]:
        reply = self.http.post(f"/sessions/{kernel}/execute", json={"code": code, **fields})
        assert reply.status_code == 200, reply.text
        result: dict[str, Any] = reply.json()
        return result

    def tell_to_end(self, how: int = signal.SIGTERM) -> None:
        """Once: a second signal would not find anybody to handle it any more."""
        if not self._told and self.process.poll() is None:
            self._told = True
            self.process.send_signal(how)

    def stop(self, how: int = signal.SIGTERM) -> int:
        """Tell it to end, and wait until it has."""
        self.http.close()
        self.tell_to_end(how)
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code


Start = Callable[..., Service]


@contextmanager
def services(folder: Path) -> Iterator[Start]:
    """Starts services in one home; at the end they are stopped and the home is wiped."""
    home = folder / "home"
    work = folder / "work"
    work.mkdir(exist_ok=True)
    environ = {name: value for name, value in os.environ.items() if "KERNELBOX_" not in name}
    environ |= {
        "KERNELBOX_HOME": str(home),
        "KERNELBOX_SPARES": "0",
        "KERNELBOX_KEEPER_LINGER": "0.1",
    }
    started: list[Service] = []

    def start(
        *,
        env: dict[str, str] | None = None,
        command: list[str] | None = None,
        cwd: Path = work,
        **wanted: Any,
    ) -> Service:
        arguments = command or [sys.executable, str(LAUNCH), json.dumps(wanted)]
        process = subprocess.Popen(
            arguments, cwd=cwd, env=environ | (env or {}), stderr=subprocess.PIPE
        )
        started.append(Service(process, home, work))
        return started[-1]

    try:
        yield start
    finally:
        for service in started:
            service.stop()
        place: Home = locate(
            Settings(registry_path=str(home / "registry.json"), runtime_dir=str(home / "runtime"))
        )
        if any(Path(place.rundir).glob("*.sock")):
            settings = Settings.from_environment(environ, home=str(home))
            with Box(settings) as box:
                box.wipe()
        assert_home_is_deserted(place)
