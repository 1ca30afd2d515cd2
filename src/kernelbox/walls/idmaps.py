"""Showing root's files to an ordinary uid: a mount in which what root owns is the sandbox's own.

Only root can make one, and only root needs it: everybody else's sandbox has the caller's own uid.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import struct

from kernelbox.walls import kernelcalls
from kernelbox.walls.kernelfiles import tell

_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442  # the same on every architecture
_AT_FDCWD, _AT_EMPTY_PATH, _AT_RECURSIVE = -100, 0x1000, 0x8000
_OPEN_TREE_CLONE, _OPEN_TREE_CLOEXEC = 1, os.O_CLOEXEC
_MOVE_MOUNT_F_EMPTY_PATH = 4
_ATTR_IDMAP = 0x00100000

_libc = ctypes.CDLL(None, use_errno=True)


class IdMap:
    """Makes mounts in which files of root belong to ``uid``. To be made in the host's own pid
    namespace, where a child that lends us a user namespace has a pid that we know.

    ``others``: what becomes of everybody else, as lines of a map; without it, they are nobody.
    """

    def __init__(self, uid: int, others: str = "") -> None:
        self.uid = uid
        self._lender, self._namespace = _user_namespace(uid, others)

    def close(self) -> None:
        """What was mounted stays as it is."""
        os.close(self._namespace)
        with contextlib.suppress(ChildProcessError):  # a fork of ours, whose child it is not
            os.waitpid(self._lender, 0)

    def bind(self, source: str, target: str) -> bool:
        """False where the file system cannot do it; nothing has been mounted then."""
        tree = self.take(source)
        return tree is not None and put(tree, target)

    def take(self, source: str) -> int | None:
        """A mount that is nowhere yet, for :func:`put`; None where the file system cannot do it."""
        flags = _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC | _AT_RECURSIVE
        tree: int = _libc.syscall(_OPEN_TREE, _AT_FDCWD, os.fsencode(source), flags)
        if tree < 0:
            return None
        attributes = struct.pack("QQQQ", _ATTR_IDMAP, 0, 0, self._namespace)
        flags = _AT_EMPTY_PATH | _AT_RECURSIVE
        size = ctypes.c_size_t(len(attributes))
        if _libc.syscall(_MOUNT_SETATTR, tree, b"", flags, attributes, size) == 0:
            return tree
        os.close(tree)
        return None


def put(tree: int, target: str) -> bool:
    """Mount what was taken, and let go of it; whether that worked."""
    where = os.fsencode(target)
    moved = _libc.syscall(_MOVE_MOUNT, tree, b"", _AT_FDCWD, where, _MOVE_MOUNT_F_EMPTY_PATH)
    os.close(tree)
    return bool(moved == 0)


def _user_namespace(uid: int, others: str) -> tuple[int, int]:
    """A child that is about to end, to be waited for, and a descriptor of the user namespace that
    it has lent us, which knows root by this uid."""
    parent = os.getpid()
    try:
        child = kernelcalls.clone(kernelcalls.CLONE_NEWUSER)
    except kernelcalls.StepFailed as error:
        words = f"making a user namespace for mounts: {os.strerror(error.errno or 0)}"
        raise kernelcalls.StepFailed(error.errno or 0, words) from None
    if child == 0:
        try:
            kernelcalls.end_with_parent()
            if os.getppid() == parent:  # if not, it has ended before we could ask for that
                signal.pause()
        finally:
            os._exit(1)
    try:
        for name in ("uid_map", "gid_map"):
            tell(f"/proc/{child}/{name}", f"0 {uid} 1\n{others}")
        namespace = os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    except BaseException:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    os.kill(child, signal.SIGKILL)
    return child, namespace
