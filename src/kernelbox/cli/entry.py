"""Where the program starts: a short way for a plain ``exec``, all else for the rest."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # importing typing for it would cost more than the rest of this module
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line (this process's own by default) and return its exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    from kernelbox.cli import quick

    code = quick.attempt(words)
    if code is not None:
        return code
    from kernelbox.cli.commands import run

    return run(words)
