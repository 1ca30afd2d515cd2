"""Finding the families of an earlier keeper by their wardens' sockets."""

from __future__ import annotations

import os
import socket
import struct
import time
from typing import TYPE_CHECKING, Any

from kernelbox.errors import BoxError
from kernelbox.keeper.home import remove_files, remove_workspace
from kernelbox.keeper.families import FamilyLink

if TYPE_CHECKING:
    from kernelbox.keeper.keeper import Keeper

_PATIENCE = 5.0
_PEER_CREDENTIALS = struct.Struct("3i")
_GONE = "it was gone when a new keeper looked for it (killed, or the machine restarted)"


def adopt(keeper: Keeper) -> None:
    """Take over every kernel that has a warden; bury the registered ones that have none.

    A warden that does not answer in time is not given up: its answer is taken when it comes.
    """
    links = _connect_all(keeper)
    waiting = set(links)

    def answered(link: FamilyLink, content: dict[str, Any] | BoxError) -> None:
        waiting.discard(link)
        if not isinstance(content, BoxError):
            _take_over(keeper, link, content)

    for link in links:
        link.ask({"op": "watch"}, lambda content, link=link: answered(link, content))  # type: ignore[misc]
    deadline = time.monotonic() + _PATIENCE
    while waiting and (left := deadline - time.monotonic()) > 0:
        keeper.reactor.turn(left)
    seen = {kernel_id for link in links for kernel_id in link.kernel_ids}
    for kernel_id in [key for key in keeper.registry.kernels if key not in seen]:
        remove_files(keeper.home, kernel_id)
        remove_workspace(keeper.home, kernel_id)
        keeper.registry.bury(kernel_id, cause=_GONE)
    keeper._plan_idle_check()


def _take_over(keeper: Keeper, link: FamilyLink, content: dict[str, Any]) -> None:
    limit = (content.get("settings") or {}).get("kernel_idle_timeout", 1800.0)
    known, link.kernel_ids = link.kernel_ids, set()
    for record in content["records"]:
        kernel_id = record["kernel_id"]
        keeper.families.house(kernel_id, link)
        keeper.registry.add(record)
        keeper._idle_limits[kernel_id] = limit
    for kernel_id in known - link.kernel_ids:
        keeper._kernel_ended(kernel_id, _GONE, None)


def _connect_all(keeper: Keeper) -> list[FamilyLink]:
    """A link to each warden that listens. A family has a socket per kernel, but one link: the
    warden tells its news to the last that asked for them."""
    links: dict[int, FamilyLink] = {}
    for name in sorted(os.listdir(keeper.home.rundir)):
        kernel_id = name.removesuffix(".sock")
        if kernel_id in (name, "keeper"):
            continue
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.connect(os.path.join(keeper.home.rundir, name))
        except ConnectionRefusedError:
            sock.close()
            remove_files(keeper.home, kernel_id)  # nobody listens any more: a killed warden
            continue
        except OSError:
            sock.close()
            continue
        pid = _listener_pid(sock)
        if pid in links:
            sock.close()
        else:
            links[pid] = keeper.families.connect(sock)
            links[pid].pid = pid
            links[pid].adopted = True
        keeper.families.house(kernel_id, links[pid])
    return list(links.values())


def _listener_pid(sock: socket.socket) -> int:
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
    pid: int = _PEER_CREDENTIALS.unpack(raw)[0]
    return pid
