"""Requests of our own lane that only a keeper has: families, spares, and who is idle."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from kernelbox.errors import BoxError
from kernelbox.wire import Frame, build_id

if TYPE_CHECKING:
    from kernelbox.warden.lanes.native.client import NativeClient


def _watch(client: NativeClient, request: Any, frame: Frame) -> None:
    """A keeper introduces itself; it is told of every end from now on."""
    family = client.family
    family.watchers.add(client)
    client.reply(
        request,
        {
            "records": [house.kernel.record() for house in family.households.values()],
            "warden": os.getpid(),
            "build": build_id(),
            "settings": family.settings.to_wire() if family.settings else None,
        },
    )


def _check_keeper(client: NativeClient) -> None:
    if client not in client.family.watchers:
        raise BoxError("only a keeper may ask that")


def _prime(client: NativeClient, request: Any, frame: Frame) -> None:
    _check_keeper(client)
    client.family.prime(frame, lambda content: client.reply(request, content))


def _become(client: NativeClient, request: Any, frame: Frame) -> None:
    _check_keeper(client)
    client.family.become(frame, lambda content: client.reply(request, content))


def _branch(client: NativeClient, request: Any, frame: Frame) -> None:
    _check_keeper(client)
    kernel = client.target({"kernel_id": frame["source"]})
    client.family.branch(kernel, frame, lambda content: client.reply(request, content))


def _retire(client: NativeClient, request: Any, frame: Frame) -> None:
    _check_keeper(client)
    kernel, idle = client.target(frame), float(frame["idle"])
    client.family.retire_if_idle(kernel, idle, lambda content: client.reply(request, content))


REQUESTS = {
    "watch": _watch,
    "prime": _prime,
    "become": _become,
    "branch": _branch,
    "retire": _retire,
}
