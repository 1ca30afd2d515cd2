"""Searching an execution's output in a process of its own.

A regular expression can take for ever on the wrong text, and Python does not let anything else run
meanwhile. So it runs beside the service, and is ended when it takes too long.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from typing import Any

from kernelbox.config import Settings
from kernelbox.errors import BoxError, from_wire
from kernelbox.places import package_parent
from kernelbox.server.errors import Refused

_SEARCHER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "searcher.py")


async def search(
    settings: Settings,
    kernel: str,
    *,
    execution_id: str,
    pattern: str,
    stream: str,
    limit: int,
    patience: float,
    turns: asyncio.Semaphore,
) -> list[dict[str, Any]]:
    """The lines that match, each as JSON; ``turns`` bounds how many searches there are at once."""
    if settings.store_backend == "memory":
        raise Refused(
            403, "NotAllowed", "kernels in memory (KERNELBOX_STORE_BACKEND) cannot be searched"
        )
    request = {
        "settings": settings.to_wire(),
        "kernel": kernel,
        "execution_id": execution_id,
        "pattern": pattern,
        "stream": stream,
        "limit": limit,
    }
    async with turns:
        said = await _ask_searcher(request, patience)
    try:
        reply = json.loads(said)
    except ValueError:
        raise BoxError("the search ended without an answer; the service's log says why") from None
    if "error" in reply:
        raise from_wire(reply)
    matches: list[dict[str, Any]] = reply["matches"]
    return matches


async def _ask_searcher(request: dict[str, Any], patience: float) -> bytes:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",  # the folder of the file is no place to import from
        _SEARCHER,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": package_parent()},
    )
    try:
        async with asyncio.timeout(patience):
            said, _ = await process.communicate(json.dumps(request).encode("ascii"))
    except TimeoutError:
        raise Refused(
            409,
            "SearchTooSlow",
            f"the search did not end within {patience:g} s",
            hint="use a simpler pattern; nested repetitions like (a+)+ take for ever",
        ) from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    return said
