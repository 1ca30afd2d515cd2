"""One subject's process: started in its own environment, asked in JSON lines, always ended."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

HERE = Path(__file__).resolve().parent


class SubjectFailed(Exception):
    """A subject did not answer; the message is its last words, or that it took too long."""


class Conversation:
    """A running subject. Use it as a context manager, so that it ends whatever happens."""

    def __init__(
        self, python: Path, program: str, *, arguments: tuple[str, ...], env: dict[str, str]
    ) -> None:
        self.home = Path(env["TMPDIR"])
        self._log = Path(self.home, f"{program}-{time.monotonic_ns()}.log")
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [str(python), str(HERE / "subjects" / f"{program}.py"), *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=env,
                cwd=env["TMPDIR"],
                # A group of its own: Ctrl-C reaches compare.py only, which ends it in order.
                start_new_session=True,
            )
        self._unread = b""
        self._ended = False
        try:
            self._answer(timeout=60)
        except BaseException:
            self._kill()
            raise

    def __enter__(self) -> Conversation:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if not self._ended:
                self.ask("end", timeout=60)
                self._process.wait(timeout=20)
        except (SubjectFailed, subprocess.TimeoutExpired):
            pass
        finally:
            self._kill()

    def ask(self, question: str, *, timeout: float, **details: Any) -> dict[str, Any]:
        """Ask and wait for the answer; a subject that fails once is not asked again."""
        if self._ended:
            raise SubjectFailed("it had already failed")
        assert self._process.stdin is not None
        line = json.dumps({"ask": question, "with": details}) + "\n"
        try:
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()
            return self._answer(timeout=timeout)
        except (SubjectFailed, OSError) as failure:
            self._ended = True
            raise SubjectFailed(str(failure)) from failure

    def _answer(self, *, timeout: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        deadline = time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                left = deadline - time.monotonic()
                if left <= 0 or not selector.select(left):
                    raise SubjectFailed(f"no answer within {timeout:.0f} s")
                piece = os.read(self._process.stdout.fileno(), 1 << 16)
                if not piece:
                    raise SubjectFailed(self._last_words())
                self._unread += piece
        line, _, self._unread = self._unread.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it ended without a word"

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
