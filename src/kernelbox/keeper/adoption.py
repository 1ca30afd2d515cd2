"""Finding the families of an earlier keeper by their wardens' sockets."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from typing import TYPE_CHECKING, Any

from kernelbox.keeper.home import remove_files
from kernelbox.keeper.roots import FamilyLink
from kernelbox.wire import Decoder, GarbledFrame, encode

if TYPE_CHECKING:
    from kernelbox.keeper.keeper import Keeper

_PATIENCE = 5.0


def adopt(keeper: Keeper) -> None:
    """Take over every kernel whose warden answers; bury the registered ones that have none."""
    found = _ask_all(keeper.home.rundir)
    seen: set[str] = set()
    wardens: set[int] = set()
    for sock, answer in found:
        # A family has a socket per kernel, all leading to the same warden: one link is enough.
        if answer["warden"] in wardens:
            sock.close()
            continue
        wardens.add(answer["warden"])
        link: FamilyLink = keeper._new_link(sock)
        link.pid = answer["warden"]
        limit = (answer.get("settings") or {}).get("kernel_idle_timeout", 1800.0)
        for record in answer["records"]:
            kernel_id = record["kernel_id"]
            seen.add(kernel_id)
            link.kernel_ids.add(kernel_id)
            keeper.registry.add(record)
            keeper._by_kernel[kernel_id] = link
            keeper._idle_limits[kernel_id] = limit
    for kernel_id in [key for key in keeper.registry.kernels if key not in seen]:
        cause = "it was gone when a new keeper looked for it (killed, or the machine restarted)"
        remove_files(keeper.home, keeper.registry.kernels[kernel_id])
        keeper.registry.bury(kernel_id, cause=cause)
    keeper._plan_idle_check()


def _ask_all(rundir: str) -> list[tuple[socket.socket, dict[str, Any]]]:
    asked: dict[int, tuple[socket.socket, Decoder]] = {}
    found = []
    for name in sorted(os.listdir(rundir)):
        path = os.path.join(rundir, name)
        if not name.endswith(".sock") or name == "keeper.sock":
            continue
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(_PATIENCE)
        try:
            sock.connect(path)
            sock.sendall(encode({"op": "watch", "id": 0}))
        except ConnectionRefusedError:
            sock.close()
            with contextlib.suppress(OSError):
                os.unlink(path)  # nobody listens any more: a warden that was killed
            continue
        except OSError:
            sock.close()
            continue
        asked[sock.fileno()] = (sock, Decoder())
    deadline = time.monotonic() + _PATIENCE
    while asked and time.monotonic() < deadline:
        readable, _, _ = select.select(list(asked), [], [], 0.5)
        for fd in readable:
            sock, decoder = asked[fd]
            try:
                data = sock.recv(1 << 16)
                frames = decoder.feed(data)
            except (OSError, GarbledFrame):
                data, frames = b"", []
            if frames and "reply" in frames[0]:
                found.append((sock, frames[0]["reply"]))
                del asked[fd]
            elif not data or frames:
                sock.close()
                del asked[fd]
    for sock, _ in asked.values():
        sock.close()
    return found
