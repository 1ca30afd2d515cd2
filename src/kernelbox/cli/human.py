"""Records, settings and checks as tables for people."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich import box as lines
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kernelbox.cli.progress import harmless
from kernelbox.result import Checkpoint, KernelRecord, SaveReport

STATUS_COLOURS = {"idle": "green", "busy": "yellow", "unreachable": "red"}
_CHECK_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}
_WIDE = 1 << 16


def console() -> Console:
    """Standard output. On a pipe nothing is cut: whoever reads it has no right edge."""
    made = Console(highlight=False, emoji=False)
    return made if made.is_terminal else Console(highlight=False, emoji=False, width=_WIDE)


def table(*columns: str, right: Sequence[str] = ()) -> Table:
    made = Table(box=lines.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return made


def tell_line(words: str) -> None:
    console().print(Text(words))


def show_kernels(records: Iterable[KernelRecord]) -> None:
    rows = list(records)
    if not rows:
        tell_line("no kernels here; kernelbox create --name demo makes one")
        return
    made = table("name", "status", "epoch", "cells", "used", "made by", "id", right=("cells",))
    for record in rows:
        made.add_row(
            Text(record.name, style="bold"),
            status_text(record.status),
            str(record.epoch),
            str(record.attempt_count),
            f"{ago(record.last_used_at)} ago",
            record.made_by,
            record.kernel_id,
        )
    console().print(made)


def show_kernel(record: KernelRecord) -> None:
    show_kernels([record])
    for note in record.notes:
        tell_line(f"note: {note}")
    if record.state == "lost":
        tell_line(f"the kernel of that name before it was lost: {record.cause}")


def show_status(facts: Mapping[str, Any]) -> None:
    show_kernel(KernelRecord.from_wire(facts["kernel"]))
    running = facts.get("running")
    if running:
        tell_line(f"runs for {running['seconds']:.1f} s ({running['language']}):")
        tell_line(f"{running['code']}\n")
    tell_line(f"{facts['queued']} waiting · in {facts.get('cwd')}")
    made = table("process", "role", "own memory", "processor", right=("own memory", "processor"))
    for process in facts["processes"]:
        made.add_row(
            str(process["pid"]),
            process["role"],
            memory(process.get("private_kb") or 0),
            f"{process.get('cpu_seconds') or 0:.1f} s",
        )
    console().print(made)
    if facts.get("stack"):
        tell_line(facts["stack"])


def show_checkpoints(found: Sequence[Checkpoint]) -> None:
    if not found:
        tell_line("no checkpoints; kernelbox checkpoint --name … makes one")
        return
    made = table("id", "label", "cells", "made", "own memory", right=("cells", "own memory"))
    for point in found:
        made.add_row(
            point.checkpoint_id,
            Text(point.label or ("(before a cell)" if point.automatic else "")),
            str(point.execution_count),
            f"{ago(point.created_at)} ago",
            memory(point.private_kb),
        )
    console().print(made)


def show_saved(report: SaveReport) -> None:
    tell_line(
        f"saved {len(report.variables)} variables and {report.cells} cells to {report.path} "
        f"({memory(report.size // 1024)})"
    )
    for name, reason in report.failures.items():
        tell_line(f"not saved: {name}: {reason}")


def show_settings(facts: Mapping[str, Mapping[str, Any]]) -> None:
    made = table("setting", "value", "source", "what it is")
    for fact in facts.values():
        set_by_hand = fact["source"] != "default"
        value = fact["value"]
        made.add_row(
            fact["variable"],
            Text("" if value in (None, ()) else str(value), style="bold" if set_by_hand else ""),
            fact["source"],
            Text(fact.get("problem", fact["help"]), style="red" if "problem" in fact else ""),
        )
    console().print(made)


def show_checks(checks: Iterable[Mapping[str, Any]]) -> None:
    made = table("", "what", "found", "what to do")
    for check in checks:
        made.add_row(
            Text(check["status"], style=_CHECK_COLOURS[check["status"]]),
            check["check"],
            Text(check["found"]),
            Text(check.get("do") or ""),
        )
    console().print(made)


def status_text(status: str) -> Text:
    return Text(status, style=STATUS_COLOURS.get(status, ""))


def one_line(code: str) -> str:
    """Code as one line that cannot disturb a table."""
    return harmless(" ⏎ ".join(line.strip() for line in code.strip().splitlines()))


def ago(moment: float, now: float | None = None) -> str:
    """How long ago, in the largest unit that says enough."""
    seconds = max(0, int((time.time() if now is None else now) - moment))
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"


def memory(kilobytes: int) -> str:
    size = float(kilobytes)
    for unit in ("kB", "MB", "GB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if size >= 10 or unit == "kB" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TB"
