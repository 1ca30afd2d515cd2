"""The few Linux calls that Python does not have: prctl, signalfd, and a walk over descendants."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import select
import signal
import struct
import time
from collections.abc import Callable, Collection, Iterable, Sequence

_libc = ctypes.CDLL(None, use_errno=True)
_fork = ctypes.PyDLL(None, use_errno=True).fork  # keeps the GIL, as a fork must

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36

_SIGNALFD_SIGINFO = 128
_SYS_PROCESS_MADVISE = 440  # the same number on every architecture
MADV_POPULATE_READ, MADV_POPULATE_WRITE = 22, 23


# Sizes of what is looked for between the pieces of the heap: coarsely, then one by one.
_LARGEST_HOLE, _FINE, _SMALLEST_HOLE = 1 << 16, 1040, 24

_malloc, _free, _sbrk = _libc.malloc, _libc.free, _libc.sbrk
_malloc.argtypes, _malloc.restype = (ctypes.c_size_t,), ctypes.c_void_p
_free.argtypes, _free.restype = (ctypes.c_void_p,), None
_sbrk.argtypes, _sbrk.restype = (ctypes.c_ssize_t,), ctypes.c_void_p


class _HeapFacts(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


class _Range(ctypes.Structure):
    _fields_ = (("start", ctypes.c_void_p), ("length", ctypes.c_size_t))


Ranges = ctypes.Array[_Range]


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl({option}): {os.strerror(error)}")


def die_with_parent() -> None:
    """Be killed when the parent ends, however it ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def die_with(parent: int) -> None:
    """In a fork of ``parent``: the same, also if that has ended before we could ask for it."""
    die_with_parent()
    if os.getppid() != parent:
        os._exit(0)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def set_dumpable(value: bool) -> None:
    """Whether others of our user may read our memory."""
    _prctl(_PR_SET_DUMPABLE, int(value))


def set_name(name: str) -> None:
    """The name that ``ps`` and ``top`` show."""
    _libc.prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()[:15]), 0, 0, 0)


def bare_fork(*, alone: bool = False) -> int:
    """Fork without what Python does around it: locks made anew, generators reseeded, hooks run.

    Only for a fork that runs nobody's code but ours, or runs it later. It spares the child some two
    hundred page faults, half a millisecond before it does anything at all. With a second thread (a
    preloaded module may have started one) the locks it holds would stay locked: then it is
    Python's own fork. ``alone``: there is none, as in the child of a fork.
    """
    if not alone and len(os.listdir("/proc/self/task")) > 1:
        return os.fork()
    pid: int = _fork()
    if pid < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"fork: {os.strerror(error)}")
    return pid


def address_ranges(ranges: Sequence[Sequence[int]]) -> Ranges:
    """``(start, length)`` of parts of our memory, as the kernel reads them."""
    return (_Range * len(ranges))(*[_Range(start, length) for start, length in ranges])


def populate(advice: int, ranges: Ranges) -> bool:
    """Map pages of files, or make pages that a fork shares our own, all at once; False where the
    kernel cannot (< 6.13, or a sandbox that does not let us)."""
    try:
        ourselves = os.pidfd_open(os.getpid())
    except OSError:
        return False
    try:
        done = _libc.syscall(_SYS_PROCESS_MADVISE, ourselves, ranges, len(ranges), advice, 0)
    finally:
        os.close(ourselves)
    return bool(done >= 0)


def fill_holes() -> None:
    """Take all free memory between what libc has handed out, for good: what a fork asks for then
    comes from the end of the heap, piece beside piece, and not from a hole here and there, each in
    a page that it would have to copy. It costs some hundred kilobytes, which all forks share."""
    try:
        _libc.mallinfo2.restype = _HeapFacts
        facts = _libc.mallinfo2()
    except AttributeError:  # not glibc, or one before 2.33
        return
    end = _sbrk(0) - facts.keepcost
    size = _LARGEST_HOLE
    while size >= _SMALLEST_HOLE:
        while (piece := _malloc(size)) and piece < end:
            pass
        _free(piece)
        size = size // 2 if size > _FINE else size - 16


def flush_c_buffers() -> None:
    """Write out what C code printed and libc still holds."""
    _libc.fflush(None)


def child_signal_fd() -> int:
    """A descriptor that is readable when a child has ended: no handler, nothing to interrupt."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    mask = struct.pack("Q", 1 << (signal.SIGCHLD - 1))
    fd: int = _libc.signalfd(-1, ctypes.c_char_p(mask), os.O_NONBLOCK | os.O_CLOEXEC)
    if fd < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"signalfd: {os.strerror(error)}")
    return fd


def drain_signal_fd(fd: int) -> None:
    """Forget the signals that were told; what they meant is asked of waitpid."""
    with contextlib.suppress(BlockingIOError):
        while os.read(fd, _SIGNALFD_SIGINFO * 16):
            pass


def unblock_signals() -> None:
    """Undo :func:`child_signal_fd` in a fork that runs other code."""
    signal.pthread_sigmask(signal.SIG_SETMASK, set())


def default_signals() -> None:
    """Ignore nothing that our own processes ignore: a program that is exec'ed would, too."""
    ignored = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM, signal.SIGPIPE)
    for number in (*ignored, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)


def reap() -> list[tuple[int, int]]:
    """``(pid, wait status)`` of every child that has ended."""
    ended: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended.append((pid, status))


def children(pid: int) -> list[int]:
    """The direct children of a process."""
    if not _tells_children():
        return _children_of_all().get(pid, [])
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    found: list[int] = []
    for thread in threads:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children") as file:
            found += [int(word) for word in file.read().split()]
    return found


@functools.cache
def _tells_children() -> bool:
    """Whether each process has a list of its children: not in gVisor, nor in every Linux."""
    return os.path.exists("/proc/thread-self/children")


def _children_of_all() -> dict[int, list[int]]:
    """The same, of every process, by asking each for its parent."""
    found: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                with open(f"/proc/{name}/stat", "rb") as file:
                    parent = int(file.read().rpartition(b")")[2].split()[1])
                found.setdefault(parent, []).append(int(name))
    return found


def pid_inside(pid: int) -> int:
    """What a process is called in its own pid namespace; 0: there is no such process."""
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/status") as file:
        for line in file:
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
    return 0


def child_called(inside: int, parent: int) -> int:
    """The child of ``parent`` that is called so in its own namespace; 0 if there is none."""
    return next((child for child in children(parent) if pid_inside(child) == inside), 0)


def is_running(pid: int) -> bool:
    """Whether a process is there and has not ended: not a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2][:1] not in b"ZX"
    except OSError:
        return False


def wait_for_end(pid: int) -> None:
    """Sleep until a process, which need not be our child, has ended."""
    ends = os.pidfd_open(pid)
    try:
        waiting = select.poll()
        waiting.register(ends, select.POLLIN)
        waiting.poll()
    finally:
        os.close(ends)


def descendants(pid: int) -> list[int]:
    """Everything below a process, parents before their children."""
    found: list[int] = []
    known = None if _tells_children() else _children_of_all()

    def below(parent: int) -> list[int]:
        return children(parent) if known is None else known.get(parent, [])

    queue = below(pid)
    while queue:
        child = queue.pop()
        found.append(child)
        queue += below(child)
    return found


def send_signal(pids: Iterable[int], number: int) -> None:
    """Signal each process that is still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def kill_sessions(
    sessions: Collection[int], members: Callable[[], Iterable[int]], *, patience: float
) -> None:
    """Kill all among ``members`` that are in one of these sessions, also those that are forked
    meanwhile: until two looks have found nobody, since who loses a parent during one may be passed
    over."""
    deadline = time.monotonic() + patience
    killed: set[int] = set()
    clean = 0
    while clean < 2 and time.monotonic() < deadline:
        fresh = {pid for pid in members() if pid not in killed and _session_of(pid) in sessions}
        send_signal(fresh, signal.SIGKILL)
        killed |= fresh
        clean = 0 if fresh else clean + 1


def _session_of(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return 0


def kill_descendants(pid: int, *, spare: Iterable[int] = ()) -> None:
    """Kill everything below ``pid`` but ``spare``; stopped first, so that nothing forks away."""
    spared = set(spare)
    stopped: set[int] = set()
    while True:
        fresh = [child for child in descendants(pid) if child not in stopped | spared]
        if not fresh:
            break
        send_signal(fresh, signal.SIGSTOP)
        stopped.update(fresh)
    send_signal(stopped, signal.SIGKILL)
