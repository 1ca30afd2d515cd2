"""KernelGateway: a service in a process of its own, whose kernels inherit next to nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kernelbox.errors import BoxError
from kernelbox.keeper.home import Home
from kernelbox.keeper.launch import ensure_keeper, is_listening
from kernelbox.keeper.rootprocess import facts_for
from kernelbox.places import home_path, importable, package_parent, socket_folder
from kernelbox.walls.drivers import cannot_enforce
from kernelbox.walls.profiles import resolve

# What any program needs to run and to speak to people; everything else is the caller's own.
_INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "LD_LIBRARY_PATH")
_START_PATIENCE = 60.0


class KernelGateway:
    """Serves kernels at ``host:port`` until it is stopped, and takes all of them along then.

    - ``port``: 0 takes any free one, which :attr:`port` then says
    - ``env``: variables for the kernels, which inherit nothing else but ``PATH`` and the like
    - ``working_dir``: the folder that kernels start in (default: the current one)
    - ``token``: what clients have to show (default: ``KERNELBOX_API_TOKEN``; none on loopback)
    - ``sandbox``: walls around every kernel: no network but its own loopback, no files of the host
      but an interpreter to read; or those of ``sandbox_config``, a file with a profile
    - ``log_to_stderr``, ``log_level``: where the service's log goes, and how much of it: from
      ``"INFO"`` on down every request has a line
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
        self._profile = _profile(sandbox, sandbox_config)
        level = logging.getLevelNamesMapping().get(log_level.upper())
        if level is None:
            raise ValueError(f"log_level is a name like 'INFO' or 'WARNING', not {log_level!r}")
        self.host = host
        self.port = port
        self._access_log = log_to_stderr and level <= logging.INFO
        self._log_to_stderr = log_to_stderr
        self._env = _checked(env or {})
        self._working_dir = os.fspath(working_dir) if working_dir is not None else None
        self._token = token or os.environ.get("KERNELBOX_API_TOKEN")
        self._process: Process | None = None
        self._turn = asyncio.Lock()
        self._folder = ""

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
        async with self._turn:
            if self._process is not None and self._process.returncode is None:
                raise RuntimeError(f"the gateway is already running at {self.host}:{self.port}")
            await self._clear(10)
            self._folder = tempfile.mkdtemp(prefix="kernelbox-gateway-")
            try:
                self._process = await self._spawn()
                await self._hear_that_it_is_ready(self._process)
            except BaseException:
                await self._clear(10)
                raise

    async def _spawn(self) -> Process:
        try:
            return await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                "-m",
                "kernelbox.gateway.serving",
                env=importable(_inherited(), package_parent()),
                cwd=self._working_dir,
                stdin=PIPE,
                stdout=PIPE,
                stderr=None if self._log_to_stderr else DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            what = f"in {self._working_dir!r}: " if self._working_dir else ""
            raise RuntimeError(f"the gateway could not be started {what}{error}") from None

    async def _hear_that_it_is_ready(self, process: Process) -> None:
        # Its keeper, and what kernels are forked from, take as long to come up as it does itself,
        # and need not wait for it.
        root = facts_for(sys.executable, package_parent(), _inherited() | self._env, None)
        keeper = asyncio.ensure_future(asyncio.to_thread(_start_keeper, self._home(process), root))
        wanted = {
            "host": self.host,
            "port": self.port,
            "home": self._folder,
            "token": self._token,
            "env": self._env,
            "access_log": self._access_log,
            "profile": self._profile,
        }
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(wanted).encode() + b"\n")
        try:
            await process.stdin.drain()
            line = await asyncio.wait_for(process.stdout.readline(), _START_PATIENCE)
        except (TimeoutError, ConnectionError):
            line = b""
        finally:
            await asyncio.wait({keeper})
        said = json.loads(line) if line.startswith(b"{") else {}
        if "port" not in said:
            words = said.get("error") or "it ended without a word; try log_to_stderr=True"
            raise RuntimeError(f"the gateway could not be started: {words}")
        self.port = int(said["port"])

    async def stop(self, timeout: float = 10) -> None:
        """End the gateway, its kernels and all that they started; what does not go within
        ``timeout`` seconds is killed."""
        async with self._turn:
            await self._clear(timeout)

    async def join(self) -> None:
        """Wait until the gateway has ended."""
        if self._process is None:
            raise RuntimeError("the gateway is not running")
        await self._process.wait()

    def _home(self, process: Process) -> Home:
        """The home of the service's kernels: theirs by their owner, which is the service."""
        registry, runtime = (
            os.path.realpath(home_path(field, default, self._folder))
            for field, default in (
                ("registry_path", ".kernelbox/registry.json"),
                ("runtime_dir", ".kernelbox/runtime"),
            )
        )
        return Home("", runtime, socket_folder(registry, runtime, process.pid), process.pid)

    async def _clear(self, timeout: float) -> None:
        """Nothing is left afterwards, whatever there was and however it ended."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            try:
                await asyncio.wait_for(process.wait(), timeout)
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
            if process.stdin is not None:
                process.stdin.close()
            # The service is the keeper's owner, and its end is the word for the kernels to go.
            await asyncio.to_thread(_see_off, self._home(process), timeout)
        folder, self._folder = self._folder, ""
        if folder:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


def _profile(sandbox: bool, config: Path | None) -> str:
    """What KERNELBOX_PROFILE would say; looked at here, where somebody can be told."""
    if not sandbox:
        if config is not None:
            raise ValueError("sandbox_config is for sandbox=True; give both or none")
        return "open"
    if config is not None and not Path(config).is_file():
        raise ValueError(f"sandbox_config is the path of a file; there is no {str(config)!r}")
    chosen = "restrictive" if config is None else os.path.abspath(config)
    found = resolve(chosen)
    if words := cannot_enforce(found):
        raise NotImplementedError(f"the profile {found.name!r} cannot be had: {words}")
    return chosen


def _inherited() -> dict[str, str]:
    return {name: os.environ[name] for name in _INHERITED if name in os.environ}


def _start_keeper(home: Home, first_root: dict[str, Any]) -> None:
    # The service starts it if this fails, and has somebody to tell.
    with contextlib.suppress(BoxError, OSError):
        ensure_keeper(home, first_root)


def _see_off(home: Home, timeout: float) -> None:
    """Wait until the keeper has ended the kernels and left; what a killed one left is removed. The
    folder is this gateway's alone, whose service is gone: nobody starts a keeper there any more."""
    deadline = time.monotonic() + timeout
    while is_listening(home.keeper_address) and time.monotonic() < deadline:
        time.sleep(0.005)
    while os.path.exists(home.rundir):
        # Again, if need be: those that are just ending may still make files there.
        shutil.rmtree(home.rundir, ignore_errors=True)
        if time.monotonic() > deadline:
            break


def _checked(env: Mapping[Any, Any]) -> dict[str, str]:
    for name, value in env.items():
        fine = isinstance(name, str) and isinstance(value, str)
        if not fine or not name or "=" in name or "\0" in name + value:
            raise ValueError(f"env maps names of variables to strings; {name!r} does not fit")
    return dict(env)
