"""The commands about whole kernels: create, list, status, interrupt, restart, destroy, wipe."""

from __future__ import annotations

import os
from argparse import Namespace
from typing import Any

from kernelbox.box import Box
from kernelbox.cli import exits
from kernelbox.cli.printing import say
from kernelbox.cli.progress import working
from kernelbox.errors import BadInput, KernelNotFound
from kernelbox.result import KernelRecord


def create(options: Namespace) -> int:
    with Box() as box, working(f"creating {options.kernel}"):
        if options.name is None:
            record = KernelRecord.from_wire(box.status(options.kernel)["kernel"])
        else:
            record = box.get_or_create(
                options.name,
                session_name=options.session,
                tags=tags_of(options.tag),
                cwd=options.cwd,
                environ={**os.environ, **pairs_of("--env", options.env)} if options.env else None,
                template=options.template,
                profile=options.profile,
            )
    return show_record(record, options)


def listing(options: Namespace) -> int:
    with Box() as box, working("listing kernels"):
        records = box.list_kernels(refresh=options.refresh)
    if options.human:
        from kernelbox.cli.human import show_kernels

        show_kernels(records)
    else:
        say({"kernels": [record.to_dict() for record in records]})
    return exits.DONE


def status(options: Namespace) -> int:
    with Box() as box, working(f"asking {options.kernel}"):
        try:
            facts = box.status(options.kernel)
        except KernelNotFound:
            if not options.human:
                say({"alive": False, "kernel": None})
            raise  # the error and its exit code say whether there ever was one
    if options.human:
        from kernelbox.cli.human import show_status

        show_status(facts)
    else:
        first = {"alive": True, "kernel": facts["kernel"]}
        say(first | facts)
    return exits.DONE


def interrupt(options: Namespace) -> int:
    with Box() as box:
        if options.execution is None:
            done = box.interrupt(options.kernel)
        else:
            done = box.cancel(options.kernel, options.execution)
    return tell(options, "interrupted", done, "interrupted" if done else "nothing ran")


def restart(options: Namespace) -> int:
    with Box() as box, working(f"restarting {options.kernel}"):
        record = box.restart(options.kernel)
    return show_record(record, options)


def destroy(options: Namespace) -> int:
    with Box() as box, working(f"destroying {options.kernel}"):
        done = box.destroy(options.kernel)
    return tell(options, "destroyed", done, "destroyed" if done else "there was no such kernel")


def wipe(options: Namespace) -> int:
    with Box() as box, working("destroying all kernels"):
        gone = box.wipe()
    return tell(options, "destroyed", gone, f"{len(gone)} destroyed")


def show_record(record: KernelRecord, options: Namespace) -> int:
    if options.human:
        from kernelbox.cli.human import show_kernel

        show_kernel(record)
    else:
        say(record.to_dict())
    return exits.DONE


def tell(options: Namespace, key: str, value: Any, words: str) -> int:
    """One fact: as JSON, or in words."""
    if options.human:
        from kernelbox.cli.human import tell_line

        tell_line(words)
    else:
        say({key: value})
    return exits.DONE


def pairs_of(option: str, texts: list[str]) -> dict[str, str]:
    """``KEY=VALUE`` words as a dict."""
    for text in texts:
        if not text.partition("=")[0] or "=" not in text:
            raise BadInput(f"{option} takes KEY=VALUE, not {text!r}")
    return dict(text.split("=", 1) for text in texts)


def tags_of(texts: list[str]) -> dict[str, str] | list[str] | None:
    """Tags are pairs or words, not both at once."""
    if not texts:
        return None
    with_value = ["=" in text for text in texts]
    if any(with_value) and not all(with_value):
        raise BadInput("--tag takes KEY=VALUE each time, or a word each time, not a mixture")
    return pairs_of("--tag", texts) if all(with_value) else texts
