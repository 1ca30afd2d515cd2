"""The process that searches an execution's output for ``searching.py``; run as a file, so that it
need not wait for the web framework to be imported."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import asdict
from typing import Any

from kernelbox.box import Box
from kernelbox.config import Settings
from kernelbox.errors import BoxError, to_wire


def main() -> None:
    """A request on standard input, a reply on standard output."""
    request = json.load(sys.stdin)
    pattern = request["pattern"]
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError):
        pattern = re.escape(pattern)
    try:
        with Box(Settings.from_wire(request["settings"])) as box:
            found = box.search_output(
                request["kernel"],
                request["execution_id"],
                pattern,
                stream=request["stream"],
                limit=request["limit"],
            )
        reply: dict[str, Any] = {"matches": [asdict(match) for match in found]}
    except BoxError as error:
        reply = to_wire(error)
    sys.stdout.write(json.dumps(reply))


if __name__ == "__main__":
    main()
