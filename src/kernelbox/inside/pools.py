"""Threads at a fork, which copies only the one that forks: what to do about the others.

Pools that can be made safe are: OpenMP's (they end, and come back when they are next used), those
of ThreadPoolExecutor and asyncio (in the copy they forget their dead workers), tqdm's monitor (it
starts again with the next bar). OpenBLAS, pyarrow and duckdb look after themselves. What cannot be
made safe is known by its threads or its libraries, and never gambled with.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import re
import sys
import threading
import time
import types
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, thread as executor_module
from dataclasses import dataclass, field
from typing import Any

_OPENMP = re.compile(r"/lib(?:gomp|omp|iomp5)[-.\w]*$")
_PAUSE_HARD = 2

_BY_THREAD = (
    ("polars", "polars"),
    ("rayon", "a Rust thread pool (rayon)"),
    ("tokio", "a Rust runtime (tokio)"),
    ("grpc", "gRPC"),
    ("event_engine", "gRPC"),
    ("resolver-execut", "gRPC"),
    ("default-executo", "gRPC"),
    ("ZMQbg", "ZeroMQ"),
    ("cuda", "CUDA"),
)
"""What the names of a library's threads begin with, and what people call it."""
_BY_MODULE = (
    ("polars", "polars"),
    ("tokenizers", "a Rust thread pool (rayon)"),
    ("grpc", "gRPC"),
)
"""The same, where the names of threads cannot be read."""
_BY_LIBRARY = (
    (re.compile(r"/libcuda\.so"), "CUDA"),
    (re.compile(r"/libjvm\.so"), "a Java virtual machine"),
)
"""Libraries that keep state in a device or a runtime of their own, threads or not."""

_executors: weakref.WeakSet[ThreadPoolExecutor] = weakref.WeakSet()
_paused: dict[str, Any] = {}
_seen_tasks: set[str] = set()
_FIRST_TURN = 0.002


def track_executors() -> None:
    """Once, in the root. (Looking for them in the heap later would un-share all of it.)"""
    plain = ThreadPoolExecutor.__init__
    if hasattr(plain, "__wrapped__"):
        return

    @functools.wraps(plain)
    def tracked(self: ThreadPoolExecutor, *args: Any, **options: Any) -> None:
        plain(self, *args, **options)
        _executors.add(self)

    ThreadPoolExecutor.__init__ = tracked  # type: ignore[method-assign]


@dataclass(slots=True)
class Pools:
    """The threads of this process, just before a fork."""

    danger: str = ""
    """Why a fork would not be safe, in words; empty if it is."""
    notes: list[str] = field(default_factory=list)
    _openmp: list[str] = field(default_factory=list)

    @classmethod
    def look(cls) -> Pools:
        found = cls()
        libraries = _libraries(_loads())
        found._openmp = [path for path in libraries if _OPENMP.search(path)]
        reasons = [
            f"{name} is loaded" for test, name in _BY_LIBRARY if any(map(test.search, libraries))
        ]
        _let_newborn_threads_begin()
        frames = sys._current_frames()
        others = _user_threads(set(frames))
        if others:
            reasons.append(f"threads are running ({_few(others)})")
        if at_work := sum(_at_work(executor, frames) for executor in list(_executors)):
            reasons.append(f"a ThreadPoolExecutor is at work ({at_work} threads)")
        reasons += [f"{name} has threads that no fork can carry" for name in _native_pools()]
        if reasons:
            found.danger = "; ".join(reasons)
            found.notes.append(f"threads were not carried: {found.danger}")
        return found

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Around the fork."""
        for path in self._openmp:
            _pause_openmp(path)
        _end_tqdm_monitor()
        yield

    def revive(self) -> None:
        """In the copy: executors think that their workers, which were not copied, are waiting."""
        for executor in list(_executors):
            for worker in executor._threads:
                executor_module._threads_queues.pop(worker, None)  # type: ignore[attr-defined]
            executor._threads.clear()  # type: ignore[attr-defined]
            executor._idle_semaphore = threading.Semaphore(0)


class _ObjectInfo(ctypes.Structure):
    """``struct dl_phdr_info``."""

    _fields_ = (
        ("address", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("headers", ctypes.c_void_p),
        ("count", ctypes.c_uint16),
        ("loads", ctypes.c_ulonglong),
        ("unloads", ctypes.c_ulonglong),
    )


_Visit = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(_ObjectInfo), ctypes.c_size_t, ctypes.c_void_p
)
_dl_iterate_phdr = ctypes.CDLL(None).dl_iterate_phdr


def _loads() -> int:
    """How many shared libraries have been loaded so far, as the loader counts them."""
    seen = 0

    def visit(info: Any, size: int, data: Any) -> int:
        nonlocal seen
        seen = info.contents.loads
        return 1  # the first one will do

    _dl_iterate_phdr(_Visit(visit), None)
    return seen


@functools.lru_cache(maxsize=1)
def _libraries(loads: int) -> list[str]:
    """The shared libraries of this process; looked up again when another has been loaded."""
    try:
        with open("/proc/self/maps") as file:
            paths = {line.split(maxsplit=5)[5].rstrip("\n") for line in file if ".so" in line}
    except PermissionError:  # locked: the loader knows them by the names that they were asked for
        paths = _loaded()
    return sorted(paths)


def _loaded() -> set[str]:
    paths: set[str] = set()

    def visit(info: Any, size: int, data: Any) -> int:
        paths.add(os.fsdecode(info.contents.name or b""))
        return 0

    _dl_iterate_phdr(_Visit(visit), None)
    return paths


def _let_newborn_threads_begin() -> None:
    """One that a cell has started a moment ago is nowhere to be seen until it has had a turn."""
    tasks = set(os.listdir("/proc/self/task"))
    if tasks - _seen_tasks:
        if len(tasks) > 1:
            time.sleep(_FIRST_TURN)
        _seen_tasks.clear()
        _seen_tasks.update(tasks)


def threads_at_work() -> bool:
    """Whether a thread of the user's does something; workers of a pool that wait do not."""
    frames = sys._current_frames()
    if len(frames) == 1:
        return False
    working = any(_at_work(executor, frames) for executor in list(_executors))
    return working or bool(_user_threads(set(frames)))


def _user_threads(running: set[int]) -> list[str]:
    workers = {worker for executor in list(_executors) for worker in executor._threads}
    known = {thread.ident: thread for thread in threading.enumerate()}
    names = [
        thread.name
        for thread in known.values()
        if thread is not threading.main_thread()
        and thread.is_alive()
        and thread not in workers
        and type(thread).__name__ != "TMonitor"
    ]
    names += ["one that the threading module does not know"] * len(running - known.keys())
    return names


def _at_work(executor: ThreadPoolExecutor, frames: dict[int, types.FrameType]) -> int:
    """How many of its threads run somebody's function right now. One that waits for work is in
    ``_worker`` itself; its own counts cannot be relied on."""
    if executor._work_queue.qsize():
        return len(executor._threads)
    waiting = executor_module._worker.__code__
    return sum(
        worker.ident in frames and frames[worker.ident].f_code is not waiting
        for worker in executor._threads
    )


def _native_pools() -> list[str]:
    """Libraries whose threads are known by name to be beyond help."""
    tasks = os.listdir("/proc/self/task")
    if len(tasks) == 1:
        return []
    found: list[str] = []
    for task in tasks:
        try:
            with open(f"/proc/self/task/{task}/comm") as file:
                name = file.read().strip()
        except PermissionError:  # locked: whoever could have threads is taken to have some
            return [library for module, library in _BY_MODULE if module in sys.modules]
        except OSError:
            continue
        found += [library for start, library in _BY_THREAD if name.startswith(start)]
    return sorted(set(found))


def _pause_openmp(path: str) -> None:
    library = _paused.get(path)
    if library is None:
        try:
            library = _paused[path] = ctypes.CDLL(path)
        except OSError:
            return
    with contextlib.suppress(AttributeError):  # older than OpenMP 5
        library.omp_pause_resource_all(_PAUSE_HARD)


def _end_tqdm_monitor() -> None:
    """It wakes up every ten seconds to refresh bars; the next bar starts a new one."""
    module = sys.modules.get("tqdm.std")
    monitor = getattr(getattr(module, "tqdm", None), "monitor", None)
    if monitor is not None:
        with contextlib.suppress(Exception):
            monitor.exit()
            module.tqdm.monitor = None  # type: ignore[union-attr]


def _few(names: list[str]) -> str:
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"
