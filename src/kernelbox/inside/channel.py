"""A channel: the lifeline and the pipes between a warden and an interpreter, both ends of them."""

from __future__ import annotations

import os
import secrets
import socket
from dataclasses import dataclass

from kernelbox.inside.outlets import MARK_TOKEN_LENGTH


@dataclass(slots=True)
class Channel:
    """The near ends stay with the warden; the far ones go to the interpreter, with the token."""

    lifeline: socket.socket
    stdout: int
    stderr: int
    dump: int
    far: list[int]
    token: str

    def close_far(self) -> None:
        """The interpreter has them now; ours must close, or its end is never seen."""
        for fd in self.far:
            os.close(fd)
        self.far = []

    def close_near(self) -> None:
        """In the fork that is to become the interpreter, or the parent of one."""
        self.lifeline.close()
        for fd in (self.stdout, self.stderr, self.dump):
            if fd >= 0:
                os.close(fd)
        self.stdout = self.stderr = self.dump = -1


def open_channel() -> Channel:
    near, far = socket.socketpair()
    # The kernel tells the warden who writes: a host pid, whatever namespace the sender is in.
    near.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    out_read, out_write = os.pipe()
    err_read, err_write = os.pipe()
    dump_read, dump_write = os.pipe()
    os.set_blocking(dump_read, False)
    return Channel(
        lifeline=near,
        stdout=out_read,
        stderr=err_read,
        dump=dump_read,
        far=[far.detach(), out_write, err_write, dump_write],
        token=secrets.token_hex(MARK_TOKEN_LENGTH // 2),
    )
