"""Running uv: found, given a clean environment, watched, and ended in time."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence

from kernelbox.inside import linux
from kernelbox.installs.complaints import understood
from kernelbox.installs.failing import Failed

_LOOK_EVERY = 0.5
_LEAST_FREE = 128 << 20
_MUCH = 4 << 30
_LONGEST_WORDS = 1 << 20


def find(path: str | None) -> str:
    """The program: of the ``uv`` package of this Python, or on ``path``."""
    try:
        from uv import find_uv_bin

        return os.fspath(find_uv_bin())
    except (ImportError, OSError):
        found = shutil.which("uv", path=path)
    if found is None:
        raise Failed(
            "no_uv",
            "packages are installed by uv, which this Python does not have: "
            "pip install uv packaging on the host, or put uv on its PATH",
        )
    return found


class Uv:
    """One uv with one environment, for as many commands as it takes until the deadline."""

    def __init__(
        self,
        environ: Mapping[str, str],
        *,
        folder: str,
        cache: str,
        deadline: float,
        largest: int,
        earlier: list[str],
    ) -> None:
        """``folder``: where drafts are made. ``largest``: bytes that may be written there."""
        self._program = find(environ.get("PATH"))
        self._environ = {
            **environ,
            "UV_CACHE_DIR": cache,
            "UV_NO_PROGRESS": "1",
            "UV_PYTHON_DOWNLOADS": "never",
            "UV_HTTP_RETRIES": environ.get("UV_HTTP_RETRIES", "2"),
            "NO_COLOR": "1",
        }
        self._folder = folder
        self._deadline = deadline
        self._largest = largest
        self._earlier = earlier

    def run(self, *arguments: str) -> None:
        """:class:`Failed` says why it did not work."""
        with subprocess.Popen(
            [self._program, *arguments],
            cwd="/",  # no project's settings apply
            env=self._environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            preexec_fn=self._limit,  # noqa: PLW1509 - an installer has one thread
        ) as process:
            try:
                said = self._watch(process, arguments)
            finally:
                process.kill()
        if process.returncode != 0:
            raise understood(said, earlier=self._earlier)

    def _limit(self) -> None:
        linux.die_with_parent()
        resource.setrlimit(resource.RLIMIT_FSIZE, (self._largest, self._largest))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # an error, and not its death

    def _watch(self, process: subprocess.Popen[bytes], arguments: Sequence[str]) -> str:
        free = self._free()
        while True:
            left = self._deadline - time.monotonic()
            try:
                _, said = process.communicate(timeout=max(0.0, min(_LOOK_EVERY, left)))
                return said[-_LONGEST_WORDS:].decode("utf-8", "replace")
            except subprocess.TimeoutExpired:
                pass
            if left <= 0:
                raise Failed(
                    "timeout",
                    "it took longer than KERNELBOX_INSTALL_TIMEOUT allows; what was downloaded is "
                    "kept, so asking again goes on from there",
                )
            now = self._free()
            # Also what a small archive may unfold to, which nobody knows before. Others write to
            # the same disk, so this is no exact measure; the finished layer is measured.
            if now < _LEAST_FREE or free - now > max(3 * self._largest, _MUCH):
                raise Failed("disk_full", "it would fill the host's disk, and was stopped")

    def _free(self) -> int:
        facts = os.statvfs(self._folder)
        return facts.f_bavail * facts.f_frsize
