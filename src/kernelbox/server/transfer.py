"""Bytes in and out of files, in pieces and in threads, so that no size of file delays anybody."""

from __future__ import annotations

import asyncio
import os
import re
from typing import BinaryIO

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from kernelbox.server.errors import Refused
from kernelbox.server.folder import Folder
from kernelbox.server.running import disconnected

_PIECE = 1 << 20
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


class Download(Response):
    """A file, or the part of it that a Range header asks for."""

    media_type = "application/octet-stream"

    def __init__(self, request: Request, file: BinaryIO, facts: os.stat_result) -> None:
        etag = f'"{facts.st_mtime_ns:x}-{facts.st_size:x}"'
        if_range = request.headers.get("if-range")
        asked = request.headers.get("range") if if_range in (None, etag) else None
        try:
            part = part_of(asked, facts.st_size)
        except BaseException:
            file.close()
            raise
        headers = {
            "accept-ranges": "bytes",
            "etag": etag,
            "cache-control": "no-store",
            # Whatever a cell wrote, no browser shall run it as a page of ours.
            "content-disposition": "attachment",
            "x-content-type-options": "nosniff",
        }
        self._file = file
        self._start, self._end = part or (0, facts.st_size)
        if part is not None:
            headers["content-range"] = f"bytes {part[0]}-{part[1] - 1}/{facts.st_size}"
        super().__init__(status_code=206 if part else 200, headers=headers)
        self.headers["content-length"] = str(self._end - self._start)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        leaving = asyncio.ensure_future(disconnected(receive))
        try:
            await send(
                {
                    "type": "http.response.start",
                    "status": self.status_code,
                    "headers": self.raw_headers,
                }
            )
            at = self._start
            # What is sent to a client who has left goes nowhere, and says nothing.
            while at < self._end and not leaving.done():
                size = min(_PIECE, self._end - at)
                piece = await asyncio.to_thread(os.pread, self._file.fileno(), size, at)
                if not piece:
                    # It was cut meanwhile: ending the connection is the only honest way left.
                    raise OSError("the file became shorter while it was sent")
                at += len(piece)
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            if not leaving.done():
                await send({"type": "http.response.body", "body": b""})
        finally:
            leaving.cancel()
            self._file.close()


def part_of(asked: str | None, size: int) -> tuple[int, int] | None:
    """Which bytes a Range header means, end not included; None: all of them.

    A header that is none, or means several parts, may be passed over, and is.
    """
    match = _RANGE.fullmatch(asked.strip()) if asked else None
    if match is None or match.group(1) == match.group(2) == "":
        return None
    first, last = match.groups()
    if first == "":
        start, end = max(0, size - int(last)), size
    else:
        start, end = int(first), min(size, int(last) + 1 if last else size)
        if last and int(last) < start:
            return None
    if start >= end:
        raise Refused(
            416,
            "NoSuchRange",
            f"the file has {size} bytes, and nothing at {asked!r}",
            headers={"content-range": f"bytes */{size}"},
        )
    return start, end


async def upload(request: Request, folder: Folder, path: str) -> int:
    """Write a request's body to a file, which is there whole or not at all; its size."""
    begun = await asyncio.to_thread(folder.begin, path)
    try:
        held = bytearray()
        async for piece in request.stream():
            held += piece
            if len(held) >= _PIECE:
                await asyncio.to_thread(begun.write, bytes(held))
                held.clear()
        await asyncio.to_thread(begun.write, bytes(held))
        await asyncio.to_thread(begun.finish)
    finally:
        await asyncio.to_thread(begun.close)
    return begun.size
