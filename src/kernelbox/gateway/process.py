"""KernelGateway: a service in a process of its own, whose kernels inherit next to nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from kernelbox.keeper.launch import importable, package_parent

# What any program needs to run and to speak to people; everything else is the caller's own.
_INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "LD_LIBRARY_PATH")
_START_PATIENCE = 60.0


class KernelGateway:
    """Serves kernels at ``host:port`` until it is stopped, and takes all of them along then.

    - ``env``: variables for the kernels, which inherit nothing else but ``PATH`` and the like
    - ``working_dir``: the folder that kernels start in (default: the current one)
    - ``token``: what clients have to show (default: ``KERNELBOX_API_TOKEN``; none on loopback)
    - ``sandbox``: refused until there are walls
    - ``log_to_stderr``, ``log_level``: where the service's log goes, and how much of it
    """

    def __init__(
        self,
        host: str = "localhost",
        port: int = 8888,
        sandbox: bool = False,
        sandbox_config: Path | None = None,
        log_level: str = "INFO",
        log_to_stderr: bool = False,
        env: dict[str, str] | None = None,
        *,
        working_dir: str | os.PathLike[str] | None = None,
        token: str | None = None,
    ) -> None:
        if sandbox or sandbox_config is not None:
            raise NotImplementedError(
                "sandbox=True is refused: this version has no walls yet, and a sandbox without "
                "them would be a lie. Run the gateway in a container (docs/docker.md), or without."
            )
        self.host = host
        self.port = port
        self._log_level = log_level
        self._log_to_stderr = log_to_stderr
        self._env: Mapping[str, str] = dict(env or {})
        self._working_dir = os.fspath(working_dir) if working_dir is not None else None
        self._token = token or os.environ.get("KERNELBOX_API_TOKEN")
        self._process: asyncio.subprocess.Process | None = None
        self._home = ""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start the gateway; when this returns it can be connected to.

        ``RuntimeError`` if it runs already, or cannot: the message says why.
        """
        if self._process is not None:
            raise RuntimeError("the gateway is already running")
        self._home = tempfile.mkdtemp(prefix="kernelbox-gateway-")
        environ = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        wanted = {
            "host": self.host,
            "port": self.port,
            "home": self._home,
            "token": self._token,
            "env": dict(self._env),
            "log_level": self._log_level,
        }
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "kernelbox.gateway.serving",
            env=importable(environ, package_parent()),
            cwd=self._working_dir,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=None if self._log_to_stderr else asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            await self._hear_that_it_is_ready(self._process, wanted)
        except BaseException:
            await self.stop()
            raise

    async def _hear_that_it_is_ready(
        self, process: asyncio.subprocess.Process, wanted: dict[str, object]
    ) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(wanted).encode() + b"\n")
        try:
            await process.stdin.drain()
            line = await asyncio.wait_for(process.stdout.readline(), _START_PATIENCE)
        except (TimeoutError, ConnectionError):
            line = b""
        said = json.loads(line) if line.startswith(b"{") else {}
        if "port" not in said:
            words = said.get("error") or "it ended without a word; try log_to_stderr=True"
            raise RuntimeError(f"the gateway could not be started: {words}")
        self.port = int(said["port"])

    async def stop(self, timeout: float = 10) -> None:
        """End the gateway, its kernels and all that they started; what does not go within
        ``timeout`` seconds is killed."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), timeout)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        await asyncio.to_thread(_end_kernels, self._home)

    async def join(self) -> None:
        """Wait until the gateway has ended."""
        if self._process is None:
            raise RuntimeError("the gateway is not running")
        await self._process.wait()


def _end_kernels(home: str) -> None:
    """Whatever the service could not end itself: it may have been killed."""
    from kernelbox.box import Box
    from kernelbox.config import Settings
    from kernelbox.keeper.home import locate

    settings = Settings(home=home, keeper_linger=0.0)
    if os.path.exists(locate(settings).keeper_address):
        with Box(settings) as box:
            box.wipe()
    shutil.rmtree(home, ignore_errors=True)
