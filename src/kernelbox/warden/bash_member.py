"""A kernel's bash as the warden sees it: one real shell that lives on between commands."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from kernelbox.inside import bash, linux
from kernelbox.inside.outlets import MARK_TOKEN_LENGTH
from kernelbox.reactor import Reactor
from kernelbox.warden.exits import Exit, explain
from kernelbox.warden.hands import Hands
from kernelbox.warden.streams import Streams

_FDS = bash.Fds()

_LARGEST_SNAPSHOT = 16 << 20

Snapshot = Callable[[str | None], None]
"""Told what gives a new shell the state of another, or None if that cannot be had."""


class BashOwner(Protocol):
    """Who is told what a shell prints, when its command ends, and when it ends itself."""

    def bash_ready(self, code: str) -> None: ...
    def bash_printed(self, name: str, text: str) -> None: ...
    def bash_done(self, exit_code: int) -> None: ...
    def bash_ended(self, exit: Exit) -> None: ...


class _Nobody:
    """Owns a shell that was dismissed."""

    def bash_ready(self, code: str) -> None: ...
    def bash_printed(self, name: str, text: str) -> None: ...
    def bash_done(self, exit_code: int) -> None: ...
    def bash_ended(self, exit: Exit) -> None: ...


class BashMember:
    """Makes the pipes, talks the protocol of ``inside/bash.py`` over them, and can always kill."""

    role = "bash"

    def __init__(self, reactor: Reactor, owner: BashOwner, *, inside: bool = False) -> None:
        """``inside``: where its pid means something to the stub alone."""
        self._reactor = reactor
        self._owner = owner
        self._talk = bash.BashTalk()
        self.pid = 0
        self.inside = inside
        self.hands: Hands | None = None
        self._on_known: Callable[[], None] | None = None
        self.inner_pid = 0
        self._has_jobs = False
        self.ended: Exit | None = None
        self._killed_by_us: str | None = None
        self._waiting: str | None = None
        self._past: bytes | None = None
        self._taking_over = False
        self._on_snapshot: Snapshot | None = None
        self._up = False
        self._taken = False
        self._interrupt_due = False
        self._jobs: list[int] = []
        self._abandoned = False
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        code_read, self._code = os.pipe()
        self._status, status_write = os.pipe()
        self._text = os.memfd_create("kernelbox-bash")
        os.set_blocking(self._status, False)
        self._far = [out_write, err_write, code_read, self._text, status_write]
        self._streams = Streams(
            reactor,
            (out_read, err_read),
            secrets.token_hex(MARK_TOKEN_LENGTH // 2),  # nobody writes marks here
            on_text=self._printed,
        )
        reactor.watch(self._status, self._status_readable)

    def order(self, cwd: str, environ: Mapping[str, str]) -> tuple[dict[str, Any], list[int]]:
        """What the stub is to start, and the descriptors for it."""
        order = {
            "argv": bash.command(),
            "environ": bash.environment(environ, _FDS),
            "cwd": cwd,
            "targets": [1, 2, _FDS.code, _FDS.text, _FDS.status],
            "fds": len(self._far),
        }
        return order, self._far

    def handed_over(self) -> None:
        for fd in self._far:
            if fd != self._text:
                os.close(fd)
        self._far = []

    def started(self, pid: int) -> None:
        """The stub's word comes by another way than the shell's own, and may come after it."""
        self.pid = pid
        self._is_known()

    def started_inside(self, pid: int, hands: Hands) -> None:
        """The same, where pids mean something to the stub alone."""
        self.inner_pid, self.hands = pid, hands
        self._is_known()
        if self._on_known is not None:
            begin, self._on_known = self._on_known, None
            begin()

    def _is_known(self) -> None:
        if self._killed_by_us is not None:
            self.kill(self._killed_by_us)
        elif self._taken and self._interrupt_due:
            self.interrupt()

    def run(self, code: str) -> None:
        """Start a command, now or as soon as the shell is up. ValueError: bash cannot read it."""
        if not self._up:
            self._waiting = code
            return
        self._begin(code)

    def snapshot(self, done: Snapshot) -> None:
        """Read the shell's state, between commands: directory, variables, functions, options."""
        if self.ended is not None or self._on_snapshot is not None:
            done(None)
            return
        self._on_snapshot = done
        self.run(bash.snapshot_code(_FDS))

    def take_over(self, past: str) -> None:
        """Before its first command, take over the state of another shell."""
        self._past = past.encode("utf-8", "surrogateescape")

    def _begin(self, code: str | bytes) -> None:
        send = self._talk.begin(code)
        self._taken = self._interrupt_due = False
        # What earlier commands left running stays.
        if self.inside:
            self._note_jobs(send)
        else:
            self._jobs = linux.descendants(self.pid)
            self._go(send)

    def _note_jobs(self, send: bash.Send) -> None:
        """The stub knows them, or will as soon as it has told us whom to ask for."""
        if self.hands is None:
            self._on_known = lambda: self._note_jobs(send)
            return

        def noted(any_jobs: bool) -> None:
            self._has_jobs = any_jobs
            if self.ended is None:
                self._go(send)

        self.hands.note_jobs(self.inner_pid, noted)

    def _go(self, send: bash.Send) -> None:
        os.ftruncate(self._text, 0)
        os.pwrite(self._text, send.text, 0)
        self._wake(send.code)

    def interrupt(self, *, hard: bool = False) -> None:
        """Make the shell abandon its command; ``hard`` kills a program that ignores it.

        SIGURG is the shell's word for it, and SIGINT goes to what the command started: a SIGINT
        that reaches bash 5.2 just as it starts a program makes it signal itself for ever, so the
        shell itself gets one only when all else has failed.
        """
        if self.ended is not None:
            return
        if not (self.pid or self.inner_pid) or (not self._taken and not hard):
            self._interrupt_due = True  # the shell has not read the command yet
            return
        self._abandoned = True
        if self.hands is not None:
            self.hands.interrupt_shell(self.inner_pid, hard=hard)
            return
        linux.send_signal([self.pid], signal.SIGURG)
        fresh = [pid for pid in linux.descendants(self.pid) if pid not in self._jobs]
        linux.send_signal(fresh, signal.SIGINT)
        if hard:
            linux.kill_descendants(self.pid, spare=self._jobs)
            linux.send_signal([self.pid], signal.SIGINT)

    def kill(self, why: str, *, spare_jobs: bool = False) -> None:
        """End the shell and all that it runs."""
        if self.ended is not None:
            return
        self._killed_by_us = why
        if self.hands is not None:
            self.hands.kill_all(self.inner_pid, spare_jobs=spare_jobs)
        elif self.pid:
            linux.kill_descendants(self.pid, spare=self._jobs if spare_jobs else ())
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def dismiss(self, why: str, *, spare_jobs: bool = False) -> None:
        """End it, and hear of it no more. What earlier commands left running may run on."""
        self._owner = _Nobody()
        self._on_snapshot = None
        self.kill(why, spare_jobs=spare_jobs)

    @property
    def has_jobs(self) -> bool:
        """Whether something of what earlier commands left running still runs (in a sandbox that we
        do not see into: ran when the last command began)."""
        return self._has_jobs or any(map(linux.is_running, self._jobs))

    @property
    def is_asked(self) -> bool:
        """Whether it is being asked for its state, and has not answered yet."""
        return self._on_snapshot is not None

    def exited(self, status: int) -> None:
        if self.ended is not None:
            return
        self.ended = explain(status, killed_by_us=self._killed_by_us)
        self._streams.drain(last=True)
        self._streams.close()
        self._reactor.forget(self._status)
        for fd in (self._status, self._code, self._text):
            os.close(fd)
        if self._on_snapshot is not None:
            done, self._on_snapshot = self._on_snapshot, None
            done(None)
        self._owner.bash_ended(self.ended)

    def _wake(self, code: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):  # it has ended: the stub is about to say so
            os.write(self._code, code)

    def _printed(self, name: str, text: str) -> None:
        if self._abandoned and name == "stderr":
            # Bash ends the stderr of a command that it abandons with a newline of its own.
            text = text.rstrip("\n")
        if self._up:  # before that, bash complains that it has no terminal
            self._owner.bash_printed(name, text)

    def _status_readable(self) -> None:
        try:
            data = os.read(self._status, 1 << 12)
        except BlockingIOError:
            return
        if not data:
            self._reactor.forget(self._status)
            return
        for event in self._talk.feed(data):
            if isinstance(event, bash.Ready):
                if self._past is not None:
                    past, self._past = self._past, None
                    self._taking_over = True
                    self._begin(past)
                else:
                    self._is_up()
            elif isinstance(event, bash.Started):
                self._taken = True
                if self._interrupt_due:
                    self.interrupt()
            elif isinstance(event, bash.Again):
                self._wake(event.code)
            elif self._taking_over:
                self._taking_over = False
                self._is_up()
            else:
                self._streams.drain()
                self._abandoned = False
                if self._on_snapshot is not None:
                    done, self._on_snapshot = self._on_snapshot, None
                    done(self._read_snapshot())
                else:
                    self._owner.bash_done(event.exit_code)

    def _is_up(self) -> None:
        self._streams.drain()  # the noise of the start is older than this word
        self._up = True
        code, self._waiting = self._waiting, None
        if code is not None:
            self._owner.bash_ready(code)

    def _read_snapshot(self) -> str | None:
        size = os.fstat(self._text).st_size
        text = os.pread(self._text, min(size, _LARGEST_SNAPSHOT), 0)
        if not text.endswith(bash.SNAPSHOT_END):
            return None
        return text.decode("utf-8", "surrogateescape")
