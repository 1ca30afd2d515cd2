"""The commands that go back and forth: branch, checkpoint(s), rewind, undo, save, load."""

from __future__ import annotations

from argparse import Namespace
from typing import TypeVar

from kernelbox.box import Box
from kernelbox.cli import exits
from kernelbox.cli.kernels import show_record, tell
from kernelbox.cli.parser import UsageError
from kernelbox.cli.printing import say
from kernelbox.cli.progress import working

_T = TypeVar("_T")


def branch(options: Namespace) -> int:
    names = _needed(options, options.to, "--to NAME, the name of the branch")
    with Box() as box, working(f"branching {options.kernel}"):
        records = box.branch(
            options.kernel,
            names=names,
            reseed=options.reseed,
            files=options.files,
            method=options.method,
        )
    if options.human:
        from kernelbox.cli.human import show_kernels

        show_kernels(records)
    else:
        say({"kernels": [record.to_dict() for record in records]})
    return exits.DONE


def checkpoint(options: Namespace) -> int:
    if options.drop is not None and options.label is not None:
        raise UsageError(
            "kernelbox checkpoint takes --label or --drop, not both",
            "kernelbox checkpoint --help shows examples",
        )
    with Box() as box, working(f"waiting for {options.kernel}"):
        if options.drop is not None:
            box.drop_checkpoint(options.kernel, options.drop)
            return tell(options, "dropped", options.drop, f"dropped {options.drop}")
        made = box.checkpoint(options.kernel, options.label)
    return tell(options, "checkpoint_id", made, made)


def checkpoints(options: Namespace) -> int:
    with Box() as box:
        found = box.checkpoints(options.kernel)
    if options.human:
        from kernelbox.cli.human import show_checkpoints

        show_checkpoints(found)
    else:
        say({"checkpoints": [point.to_dict() for point in found]})
    return exits.DONE


def rewind(options: Namespace) -> int:
    to = _needed(options, options.to, "--to ID, the checkpoint's id or label")
    with Box() as box, working(f"rewinding {options.kernel}"):
        record = box.rewind(options.kernel, to)
    return show_record(record, options)


def undo(options: Namespace) -> int:
    with Box() as box, working(f"rewinding {options.kernel}"):
        record = box.undo(options.kernel, options.cells)
    return show_record(record, options)


def save(options: Namespace) -> int:
    path = _needed(options, options.file, "-f FILE, where to write the session")
    with Box() as box, working(f"saving {options.kernel}"):
        report = box.save(options.kernel, path)
    if options.human:
        from kernelbox.cli.human import show_saved

        show_saved(report)
    else:
        say(report.to_dict())
    return exits.DONE


def load(options: Namespace) -> int:
    path = _needed(options, options.file, "-f FILE, the file that save wrote")
    with Box() as box, working(f"loading {options.kernel}"):
        record = box.load(options.name, path, trust=options.trust)
    return show_record(record, options)


def _needed(options: Namespace, value: _T, what: str) -> _T:
    if not value:
        raise UsageError(
            f"kernelbox {options.command} needs {what}",
            f"kernelbox {options.command} --help shows examples",
        )
    return value
