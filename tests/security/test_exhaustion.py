"""Promise: whoever eats all there is eats only his own, and the host and the others go on."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import psutil
import pytest
from probes import LOCKED, Sandboxes, has_groups
from processes import wait_until

from kernelbox import Box, BoxError, ExecutionResult, KernelRecord

COUNTED = has_groups() or not LOCKED or os.geteuid() == 0
"""Whether processes are counted when they are made. Where user namespaces are closed, for an
ordinary user without control groups, somebody looks four times a second, and a bomb ends at a few
hundred."""
MANY = 64 if COUNTED else 64 * 5

PATIENCE = 10.0
"""Seconds: for a neighbour's 1+1. What it really takes is for a benchmark."""


@pytest.fixture
def eater(sandboxes: Sandboxes, request: pytest.FixtureRequest) -> Iterator[KernelRecord]:
    name = f"eats-{request.node.name[5:60]}".replace("/", "-")
    record = sandboxes.box.get_or_create(name, profile="restrictive")
    yield record
    sandboxes.box.destroy(record)


@pytest.fixture
def neighbour(sandboxes: Sandboxes) -> Iterator[list[float]]:
    """Answers all the while; how long each answer took."""
    took: list[float] = []
    failed: list[BaseException] = []
    over = threading.Event()
    sandboxes.box.get_or_create("neighbour", profile="restrictive")

    def ask() -> None:
        try:
            with Box(sandboxes.box.settings) as box:
                while not over.wait(0.02):
                    began = time.monotonic()
                    assert box.execute("neighbour", "1+1").return_value == "2"
                    took.append(time.monotonic() - began)
        except BaseException as error:  # noqa: BLE001 - told to the test
            failed.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    wait_until(lambda: took or failed, what="the first answer")
    yield took
    over.set()
    asking.join()
    assert failed == []
    assert took, "it was asked"
    assert max(took) < PATIENCE


Run = Callable[..., ExecutionResult]


def assert_out_of_memory(result: ExecutionResult) -> None:
    assert result.error is not None
    assert "out of memory" in result.error.evalue
    if has_groups():  # a watcher's kill is called KernelDied, which is a pity
        assert result.error.ename == "OutOfMemory"


WATCHED = "hole: without control groups nobody counts memory that no process has mapped"


@pytest.fixture
def run(sandboxes: Sandboxes, eater: KernelRecord, neighbour: list[float]) -> Run:
    def run(code: str, **options: object) -> ExecutionResult:
        return sandboxes.box.execute(eater, code, **{"timeout": 30, **options})  # type: ignore[arg-type]

    return run


BOMBS = {
    "python": "import os, time\nwhile True:\n    try: os.fork()\n    except OSError: time.sleep(0.01)",
    "bash": "f() { f | f & }; f; sleep 0.5",
}


@pytest.mark.parametrize("language", BOMBS)
def test_a_fork_bomb(run: Run, sandboxes: Sandboxes, eater: KernelRecord, language: str) -> None:
    before = len(psutil.pids())
    result = run(BOMBS[language], language=language, timeout=1)
    assert len(psutil.pids()) < before + MANY + 86
    assert result.status in ("timeout", "error", "success")
    began = time.monotonic()
    sandboxes.box.destroy(eater)
    assert time.monotonic() - began < PATIENCE
    again = sandboxes.box.get_or_create(eater.name, profile="restrictive")
    assert sandboxes.box.execute(again, "1+1").return_value == "2"


# One that is deaf to interrupts, and one that is not, but for those who were just born.
PYTHON_BOMBS = {
    "deaf": "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n" + BOMBS["python"],
    "plain": BOMBS["python"],
}


@pytest.mark.slow
@pytest.mark.parametrize("bomb", PYTHON_BOMBS)
def test_a_kernel_with_a_fork_bomb_in_it_is_restarted_soon(
    run: Run, sandboxes: Sandboxes, eater: KernelRecord, bomb: str
) -> None:
    run(PYTHON_BOMBS[bomb], timeout=0.5)
    with Box(sandboxes.box.settings) as other, ThreadPoolExecutor(1) as pool:
        restarted = pool.submit(other.restart, eater)
        done, _ = wait([restarted], timeout=PATIENCE)
        if not done:
            sandboxes.box.destroy(eater)
            with contextlib.suppress(BoxError):
                restarted.result(30)
    assert done
    assert restarted.result().epoch > 1
    assert run("1+1").return_value == "2"


@pytest.mark.skipif(not COUNTED, reason="nobody counts them when they are made")
def test_children_are_counted(run: Run) -> None:
    result = run(
        "import os, signal\nchildren = []\ntry:\n    for n in range(500):\n"
        "        pid = os.fork()\n        if pid == 0: signal.pause()\n        children.append(pid)\n"
        "except BlockingIOError: print('no more')\n"
        "for pid in children: os.kill(pid, 9); os.waitpid(pid, 0)\nprint(len(children) <= 64)"
    )
    assert result.output == "no more\nTrue\n"
    assert run("import os\nif os.fork() == 0: os._exit(0)\nos.wait()[1]").return_value == "0"


def test_threads_are_counted(run: Run) -> None:
    result = run(
        "import threading\ngo = threading.Event()\nmade = []\ntry:\n    for n in range(500):\n"
        "        t = threading.Thread(target=go.wait); t.start(); made.append(t)\n"
        "except RuntimeError: print('no more')\nfinally: go.set()\nfor t in made: t.join()\nlen(made)"
    )
    assert "no more" in result.output
    assert int(result.return_value or 0) < MANY
    assert run("1+1").return_value == "2"


def test_a_memory_bomb(run: Run) -> None:
    available = psutil.virtual_memory().available
    result = run("kept = []\nwhile True: kept.append(bytearray(5_000_000))")
    assert (result.status, result.state) == ("error", "lost")
    assert_out_of_memory(result)
    assert psutil.virtual_memory().available > available - 1_000_000_000
    after = run("'kept' in globals()")
    assert (after.return_value, after.epoch) == ("False", 2)


def test_memory_that_is_shared_counts_too(run: Run) -> None:
    result = run(
        "import mmap\nkept = []\nwhile True:\n    m = mmap.mmap(-1, 5_000_000)\n"
        "    m.write(b'x' * 5_000_000); kept.append(m)"
    )
    assert_out_of_memory(result)
    assert run("1+1").return_value == "2"


@pytest.mark.xfail(not has_groups(), reason=WATCHED, strict=True)
def test_memory_in_files_without_a_name_counts_too(run: Run) -> None:
    result = run(
        "import os\nfds = []\nwhile len(fds) < 100:\n    fd = os.memfd_create('x'); fds.append(fd)\n"
        "    os.write(fd, bytes(5_000_000))"
    )
    assert_out_of_memory(result)
    assert run("1+1").return_value == "2"


# What has a folder of its own is full; where there are locks alone, a file is too large.
FULL = 27 if LOCKED else 28
PLACES = ["os.environ['TMPDIR']", "os.getcwd()", "os.environ['HOME']"]


@pytest.mark.parametrize("place", PLACES if LOCKED else [*PLACES, "'/dev/shm'"])
def test_a_disk_filler(run: Run, place: str) -> None:
    result = run(
        f"import os\npath = {place} + '/filler'\nfd = os.open(path, os.O_CREAT | os.O_WRONLY)\n"
        "size = 0\ntry:\n"
        "    while size < 1 << 30: size += os.write(fd, bytes(1 << 20))\n"
        "except OSError as error: print(error.errno)\n"
        "print(size <= 70_000_000)\nos.close(fd); os.unlink(path)"
    )
    assert result.output == f"{FULL}\nTrue\n", result
    assert run("open(path, 'w').write('fits again')").ok


def test_a_file_with_holes_takes_no_room_of_the_host(run: Run) -> None:
    result = run(
        "import os\nfd = os.open(os.environ['TMPDIR'] + '/holes', os.O_CREAT | os.O_WRONLY)\n"
        "try: os.ftruncate(fd, 1 << 40)\nexcept OSError as error: pass\n"
        "try: os.posix_fallocate(fd, 0, 1 << 30); print('allocated')\n"
        "except OSError as error: print(error.errno)"
    )
    assert result.output in ("28\n", "27\n")


FILL_INODES = (
    "import os\nn = 0\ntry:\n    while n < 300_000:\n"
    "        os.close(os.open(f'/tmp/{n}', os.O_CREAT)); n += 1\n"
    "except OSError as error: print(error.errno)\nprint(n < 300_000)"
)


@pytest.mark.skipif(LOCKED, reason="its folder is not bounded as a whole, which the notes tell")
def test_an_inode_filler(run: Run, sandboxes: Sandboxes, eater: KernelRecord) -> None:
    """It runs into a limit, and what comes after it is answered, or told what is wrong."""
    result = run(FILL_INODES, timeout=20)
    if result.error is None:
        assert result.output == "28\nTrue\n"
    else:
        assert result.error.ename in ("OutOfMemory", "MemoryError"), result
    after = run("1+1")
    said = str(after.error)
    assert after.return_value == "2" or "out of memory" in said or "was killed" in said, after
    with contextlib.suppress(BoxError):
        sandboxes.box.destroy(eater)
    again = sandboxes.box.get_or_create(eater.name, profile="restrictive")
    assert sandboxes.box.execute(again, "1+1").return_value == "2"


@pytest.mark.skipif(LOCKED, reason="its folder is not bounded as a whole, which the notes tell")
def test_files_have_a_limit_of_their_own(run: Run) -> None:
    found = run("import os; print(os.statvfs('/tmp').f_files < 300_000)")
    assert found.output == "True\n"


def test_a_filler_of_descriptors(run: Run) -> None:
    result = run(
        "import os\nfds = []\ntry:\n    while len(fds) < 100_000: fds.append(os.open('/dev/null', 0))\n"
        "except OSError as error: print(error.errno)\n"
        "print(len(fds) < 2000)\nfor fd in fds: os.close(fd)"
    )
    assert result.output == "24\nTrue\n", result
    assert run("open('/dev/null').close()").ok


def test_descriptors_that_are_never_given_back(run: Run) -> None:
    """The kernel still answers, or says what is wrong."""
    run("import os\ntry:\n    while True: os.open('/dev/null', 0)\nexcept OSError: pass")
    result = run("1+1")
    assert result.return_value == "2" or result.error is not None
    assert run("echo here", language="bash").output == "here\n"


@pytest.mark.xfail(
    not has_groups(),
    reason="hole: no share of the processor without groups",
    strict=False,  # where others are at work, it gets no more than its share all the same
)
def test_a_hog_of_processors_gets_its_share(
    run: Run, sandboxes: Sandboxes, eater: KernelRecord
) -> None:
    def used() -> float:
        facts = sandboxes.box.status(eater)["processes"]
        return max(process.get("cpu_seconds", 0.0) for process in facts)

    before, began = used(), time.monotonic()
    result = run("while True: pass", timeout=1.5)
    took = time.monotonic() - began
    assert result.status == "timeout"
    assert used() - before < 0.5 * took + 0.3


@pytest.mark.skipif(LOCKED, reason="its folder is on the host's disk, and goes with the kernel")
def test_the_hosts_disk_is_as_full_as_before(run: Run) -> None:
    before = os.statvfs("/").f_bavail * os.statvfs("/").f_frsize
    for place in ("/tmp", "/workspace"):
        run(f"open('{place}/big', 'wb').write(bytes(60_000_000))")
    assert os.statvfs("/").f_bavail * os.statvfs("/").f_frsize > before - 50_000_000
    assert Path("/tmp/big").exists() is False


def test_keys_semaphores_and_shared_segments_are_its_own(run: Run) -> None:
    """System V objects outlive processes; these end with the sandbox."""
    before = Path("/proc/sysvipc/shm").read_text()
    result = run(
        "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "ids = [libc.shmget(0x4b42 + n, 4096, 0o1666) for n in range(20)]\nprint(min(ids) >= 0)"
    )
    assert result.output == ("False\n" if LOCKED else "True\n"), "there are none with locks alone"
    assert Path("/proc/sysvipc/shm").read_text() == before


@pytest.mark.xfail(not has_groups() and not LOCKED, reason=WATCHED, strict=True)
def test_segments_that_nobody_has_attached_count_too(run: Run) -> None:
    result = run(
        "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\nlibc.shmat.restype = ctypes.c_void_p\n"
        "for n in range(60):\n    segment = libc.shmget(0, 10_000_000, 0o1600)\n"
        "    if segment < 0: raise OSError(ctypes.get_errno(), 'no more')\n"
        "    at = libc.shmat(segment, None, 0)\n    ctypes.memset(at, 1, 10_000_000)\n"
        "    libc.shmdt(ctypes.c_void_p(at))"
    )
    assert result.error is not None


def test_output_without_end_is_bounded(run: Run) -> None:
    result = run("while True: print('x' * 1000)", timeout=1)
    assert result.status == "timeout"
    assert len(result.output) < 10_000_000
    assert run("1+1").return_value == "2"
