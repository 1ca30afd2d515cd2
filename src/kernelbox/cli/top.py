"""``kernelbox top``: the kernels, live: what they hold, what they use, what they run."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import time
import tty
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from kernelbox.box import Box
from kernelbox.cli import exits
from kernelbox.cli.printing import say
from kernelbox.cli.signals import Stopped
from kernelbox.client.blocking import BlockingDriver
from kernelbox.client.calls import Calls
from kernelbox.errors import BadInput, BoxError
from kernelbox.result import KernelRecord

_PATIENCE = 2.0
_BETWEEN_TWO = 0.2
_AT_ONCE = 16
_FAMILY = ("warden", "stub")

Look = list[dict[str, Any]]


def top(options: Namespace) -> int:
    if not options.interval > 0:
        raise BadInput(f"--interval is a number of seconds above 0, not {options.interval}")
    live = sys.stdout is not None and sys.stdout.isatty() and not options.once
    with Box() as box, Watch(box) as watch:
        if live and sys.stdin is not None and sys.stdin.isatty():
            _watch(watch, options.interval)
            return exits.DONE
        watch.look()
        time.sleep(_BETWEEN_TWO)  # a share of the processor is what happened between two looks
        kernels = watch.look()
    if options.human or live:
        from kernelbox.cli.human import console

        console().print(_table(kernels))
    else:
        say({"kernels": kernels})
    return exits.DONE


class Watch:
    """Looks at all kernels, and remembers the last look to tell what happened since."""

    def __init__(self, box: Box) -> None:
        self._box = box
        self._calls = Calls(box.settings)
        self._driver = BlockingDriver()
        self._before: dict[int, float] = {}
        self._looked_at = time.monotonic()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self._driver.lines.close()

    def look(self) -> Look:
        from concurrent.futures import ThreadPoolExecutor

        records = self._box.list_kernels()
        with ThreadPoolExecutor(max(1, min(_AT_ONCE, len(records)))) as pool:
            statuses = list(pool.map(self._status, records))
        now = time.monotonic()
        kernels = [
            facts_of(record, status, self._before, now - self._looked_at)
            for record, status in zip(records, statuses, strict=True)
        ]
        self._looked_at = now
        self._before = {
            process["pid"]: process["cpu_seconds"] or 0.0
            for status in statuses
            if status is not None
            for process in status["processes"]
        }
        return kernels

    def _status(self, record: KernelRecord) -> dict[str, Any] | None:
        request = {"op": "status"}
        try:
            return self._driver.run(self._calls.kernel(record, request, patience=_PATIENCE))
        except BoxError:
            return None  # gone since it was listed, or too busy to answer


def facts_of(
    record: KernelRecord,
    status: Mapping[str, Any] | None,
    before: Mapping[int, float],
    elapsed: float,
) -> dict[str, Any]:
    """A row: memory and processor of what is the kernel's own, without what a family shares."""
    facts: dict[str, Any] = {
        "name": record.name,
        "kernel_id": record.kernel_id,
        "status": "unreachable" if status is None else status["kernel"]["status"],
        "memory_kb": None,
        "cpu_percent": None,
        "running": None,
        "queued": 0,
        "last_used_at": record.last_used_at,
        "epoch": record.epoch,
    }
    if status is None:
        return facts
    own = [process for process in status["processes"] if process["role"] not in _FAMILY]
    known = [process for process in own if process["pid"] in before]
    used = sum((process["cpu_seconds"] or 0.0) - before[process["pid"]] for process in known)
    facts["memory_kb"] = sum(process["private_kb"] or 0 for process in own)
    if known and elapsed > 0:
        facts["cpu_percent"] = round(max(0.0, 100 * used / elapsed), 1)
    facts["running"] = status["running"]
    facts["queued"] = status["queued"]
    facts["last_used_at"] = status["kernel"]["last_used_at"]
    facts["epoch"] = status["kernel"]["epoch"]
    return facts


def _table(kernels: Sequence[Mapping[str, Any]]) -> Any:
    from rich.text import Text

    from kernelbox.cli.human import ago, memory, one_line, status_text, table

    made = table(
        "name", "status", "memory", "cpu", "waiting", "since", "runs", right=("memory", "cpu")
    )
    # Those at work first: a screen may be too short for all.
    for kernel in sorted(
        kernels, key=lambda kernel: (kernel["running"] is None, -(kernel["memory_kb"] or 0))
    ):
        running = kernel["running"]
        cpu = kernel["cpu_percent"]
        made.add_row(
            Text(kernel["name"], style="bold"),
            status_text(kernel["status"]),
            "" if kernel["memory_kb"] is None else memory(kernel["memory_kb"]),
            "" if cpu is None else f"{cpu:.0f} %",
            str(kernel["queued"] or ""),
            f"{running['seconds']:.0f} s" if running else f"{ago(kernel['last_used_at'])} ago",
            Text(one_line(running["code"]) if running else "", overflow="ellipsis", no_wrap=True),
        )
    return made


def _watch(watch: Watch, interval: float) -> None:
    """Look again and again, until q or Ctrl-C."""
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    from kernelbox.cli.human import console

    with _keys() as key, Live(console=console(), screen=True, auto_refresh=False) as live:
        try:
            while True:
                kernels = watch.look()
                busy = sum(kernel["running"] is not None for kernel in kernels)
                head = Text(f"{len(kernels)} kernels, {busy} busy · q leaves", style="dim")
                live.update(Group(head, _table(kernels)), refresh=True)
                if key(interval) in ("q", "Q", "\x04", "\x1b"):
                    return
        except KeyboardInterrupt:
            return


@contextmanager
def _keys() -> Iterator[Any]:
    """Keys as they are pressed. The terminal is put back however this ends."""
    fd = sys.stdin.fileno()

    def pressed(patience: float) -> str:
        ready, _, _ = select.select([fd], [], [], patience)
        return os.read(fd, 1).decode("latin-1") if ready else ""

    def leave(number: int, _: object) -> None:
        raise Stopped(number)

    before = termios.tcgetattr(fd)
    handlers = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        tty.setcbreak(fd)
        yield pressed
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)
