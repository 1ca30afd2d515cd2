"""Seccomp: from a moment on, the kernel asks a filter about each system call of a process."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import signal

from kernelbox.walls import syscalls
from kernelbox.walls.bpf import Program
from kernelbox.walls.callfilters import deny_list

_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 22, 38
_SET_MODE_FILTER, _ALL_THREADS = 1, 1
_MODE_FILTER = 2

_libc = ctypes.CDLL(None, use_errno=True)


class _SockFprog(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def install(program: Program) -> None:
    """From now on, for all threads and all we start, the kernel asks ``program``. For good.

    Sets no_new_privs, without which only root may do this, and should not: a setuid program that
    is refused a call it relies on can be led astray.
    """
    if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise _failure("prctl(PR_SET_NO_NEW_PRIVS)")
    argument = ctypes.byref(_SockFprog(len(program.instructions), program.packed))
    number = syscalls.numbers(os.uname().machine)["seccomp"]
    left_out = _libc.syscall(number, _SET_MODE_FILTER, _ALL_THREADS, argument)
    if left_out == 0:
        return
    if left_out > 0:
        raise OSError(
            errno.EBUSY,
            f"seccomp: thread {left_out} has a filter of its own, so none was installed. "
            "Install ours before any thread is started.",
        )
    if ctypes.get_errno() not in (errno.ENOSYS, errno.EINVAL):
        raise _failure("seccomp")
    # The old way, which reaches only the thread that asks.
    if len(os.listdir("/proc/self/task")) > 1:
        raise OSError(
            errno.EBUSY,
            "seccomp: this kernel cannot filter all threads of a process at once, and there is "
            "more than one. Install the filter before any thread is started.",
        )
    if _libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, argument, 0, 0) != 0:
        raise _failure("prctl(PR_SET_SECCOMP)")


@functools.cache
def obstacle() -> str:
    """Why this process cannot filter system calls; empty if it can. Found out by trying, in a
    child."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        words = b""
        try:
            _prove()
        except BaseException as error:  # noqa: BLE001 (a fork must not return)
            words = str(error).encode(errors="replace")[:1000] or repr(error).encode()
        try:
            os.write(writer, words)
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as answer:
        said = answer.read().decode(errors="replace")
    try:
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    except ChildProcessError:  # whoever ignores SIGCHLD has nothing to wait for
        status = 0
    if status < 0:
        return f"a child with a seccomp filter was killed by {signal.Signals(-status).name}"
    return said


def _prove() -> None:
    """Install a filter, and see it refuse what is harmless without it."""
    install(deny_list())
    ctypes.set_errno(0)
    done = _libc.personality(ctypes.c_ulong(0x0040000))  # ADDR_NO_RANDOMIZE, which anybody may ask
    if done != -1 or ctypes.get_errno() != errno.EPERM:
        raise OSError(errno.ENOSYS, "a seccomp filter was accepted here, and is not obeyed")


def _failure(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}")
