"""Finding the families of an earlier keeper by their wardens' sockets."""

from __future__ import annotations

import os
import socket
import struct
import time
from functools import partial
from typing import Any

from kernelbox.errors import BoxError
from kernelbox.keeper.families import Answer, Families, FamilyLink
from kernelbox.keeper.home import Home, remove_files, remove_workspace
from kernelbox.keeper.kernels import Kernels
from kernelbox.reactor import Reactor

_PATIENCE = 5.0
_PEER_CREDENTIALS = struct.Struct("3i")
_GONE = "it was gone when a new keeper looked for it (killed, or the machine restarted)"


def adopt(reactor: Reactor, home: Home, *, families: Families, kernels: Kernels) -> None:
    """Take over every kernel that has a warden; bury the registered ones that have none.

    A warden that does not answer in time is not given up: its answer is taken when it comes.
    """
    links = _connect_all(home, families)
    waiting = set(links)

    def answered(link: FamilyLink, content: Answer) -> None:
        waiting.discard(link)
        if not isinstance(content, BoxError):
            _take_over(link, content, kernels=kernels)

    for link in links:
        link.ask({"op": "watch"}, partial(answered, link))
    deadline = time.monotonic() + _PATIENCE
    while waiting and (left := deadline - time.monotonic()) > 0:
        reactor.turn(left)
    seen = {kernel_id for link in links for kernel_id in link.kernel_ids}
    for kernel_id in [key for key in kernels.registry.kernels if key not in seen]:
        remove_workspace(home, kernel_id)
        kernels.ended(kernel_id, _GONE)


def _take_over(link: FamilyLink, content: dict[str, Any], *, kernels: Kernels) -> None:
    limit = (content.get("settings") or {}).get("kernel_idle_timeout", 1800.0)
    known, link.kernel_ids = link.kernel_ids, set()
    kernels.adopt(content["records"], link, idle_limit=limit)
    for kernel_id in known - link.kernel_ids:
        kernels.ended(kernel_id, _GONE)


def _connect_all(home: Home, families: Families) -> list[FamilyLink]:
    """A link to each warden that listens. A family has a socket per kernel, but one link: the
    warden tells its news to the last that asked for them."""
    links: dict[int, FamilyLink] = {}
    for name in sorted(os.listdir(home.rundir)):
        kernel_id = name.removesuffix(".sock")
        if kernel_id in (name, "keeper"):
            continue
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.connect(os.path.join(home.rundir, name))
        except ConnectionRefusedError:
            sock.close()
            remove_files(home, kernel_id)  # nobody listens any more: a killed warden
            continue
        except OSError:
            sock.close()
            continue
        pid = _listener_pid(sock)
        if pid in links:
            sock.close()
        else:
            links[pid] = families.connect(sock)
            links[pid].pid = pid
            links[pid].adopted = True
        families.house(kernel_id, links[pid])
    return list(links.values())


def _listener_pid(sock: socket.socket) -> int:
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
    pid: int = _PEER_CREDENTIALS.unpack(raw)[0]
    return pid
