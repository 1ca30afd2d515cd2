"""Reading again what an execution printed, from the files of its spool."""

from __future__ import annotations

from kernelbox.client.calls import Calls
from kernelbox.client.effects import Call, Work
from kernelbox.client.meaning import KernelLike
from kernelbox.client.spoolreader import SpoolReader, compiled
from kernelbox.config.checks import check_whole
from kernelbox.errors import BadInput
from kernelbox.result import OutputMatch, OutputPage


def output(
    calls: Calls, kernel: KernelLike, execution_id: str, *, stream: str, start: int, length: int
) -> Call[OutputPage]:
    check_whole("start", start)
    check_whole("length", length, least=1)
    reader = yield from _reader(calls, kernel, execution_id, stream)
    page: OutputPage = yield Work(lambda: reader.page(stream, start=start, length=length))
    return page


def search_output(
    calls: Calls, kernel: KernelLike, execution_id: str, pattern: str, *, stream: str, limit: int
) -> Call[list[OutputMatch]]:
    compiled(pattern)
    check_whole("limit", limit, least=1)
    reader = yield from _reader(calls, kernel, execution_id, stream)
    found: list[OutputMatch] = yield Work(
        lambda: reader.search(pattern, stream=stream, limit=limit)
    )
    return found


def _reader(calls: Calls, kernel: KernelLike, execution_id: str, stream: str) -> Call[SpoolReader]:
    if stream not in ("stdout", "stderr"):
        raise BadInput(f"stream is 'stdout' or 'stderr', not {stream!r}")
    manifest = yield from calls.kernel(kernel, {"op": "spool", "execution_id": execution_id})
    return SpoolReader(manifest)
