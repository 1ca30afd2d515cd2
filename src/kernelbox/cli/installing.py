"""The command that gives a kernel packages."""

from __future__ import annotations

from argparse import Namespace

from kernelbox.box import Box
from kernelbox.cli import exits
from kernelbox.cli.parser import UsageError
from kernelbox.cli.printing import say
from kernelbox.cli.progress import working


def install(options: Namespace) -> int:
    if not options.words:
        raise UsageError(
            "kernelbox install needs the names of packages",
            "kernelbox install --help shows examples",
        )
    with Box() as box, working(f"installing {', '.join(options.words)}"):
        report = box.install(options.kernel, *options.words, upgrade=options.upgrade)
    if options.human:
        from kernelbox.cli.human import tell_line

        tell_line(str(report))
    else:
        say(report.to_dict())
    return exits.DONE
