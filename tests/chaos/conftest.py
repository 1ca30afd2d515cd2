"""What bad luck needs: who is who among the processes, and the proof that none of them is left."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from processes import alive, such

from kernelbox import Box, ExecutionResult, KernelRecord, Settings
from kernelbox.keeper.home import Home, locate
from kernelbox.keeper.launch import package_parent

HERE = Path(__file__).parent
MARK = "CHAOS_MARK"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "soak: long; only with KERNELBOX_SOAK=1 (scripts/soak)")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker("chaos")
            if item.get_closest_marker("soak") and not os.environ.get("KERNELBOX_SOAK"):
                item.add_marker(pytest.mark.skip(reason="a soak test: KERNELBOX_SOAK=1 runs it"))


def marked_processes(mark: str) -> list[psutil.Process]:
    """Programs that a cell started, wherever they went: they inherited its environment."""
    return such(lambda process: process.environ().get(MARK) == mark)


def wait_until(condition: Callable[[], object], *, what: str, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:g} s in vain: {what}"
        time.sleep(0.005)


class Stage:
    """The processes behind one home, by their roles."""

    def __init__(self, box: Box, folder: Path) -> None:
        self.box = box
        self.home: Home = locate(box.settings)
        self.folder = folder
        self._threads = ThreadPoolExecutor(64)

    def keepers(self) -> list[int]:
        """Pids of the keepers of this home; there should never be two for long."""

        def is_one(process: psutil.Process) -> bool:
            line = process.cmdline()
            return "kernelbox.keeper" in line and self.home.rundir in line

        return [process.pid for process in such(is_one)]

    def keeper(self) -> int:
        (pid,) = self.keepers()
        return pid

    def wait_until_written(self, kernel: KernelRecord) -> None:
        """A keeper writes its registry a few milliseconds after it has answered."""
        registry = Path(self.home.registry_path)
        wait_until(
            lambda: registry.exists() and kernel.kernel_id in registry.read_text(),
            what=f"{kernel.name} to be in the registry",
        )

    def root(self) -> int:
        """The one root of this home's keeper."""
        for child in psutil.Process(self.keeper()).children():
            with contextlib.suppress(psutil.Error):
                if child.name() == "kb-root":
                    return child.pid
        raise AssertionError("the keeper has no root")

    def pid(self, kernel: KernelRecord | str, role: str) -> int:
        """Of the keeper, the root, or a kernel's own interpreter, bash, stub or warden."""
        if role == "keeper":
            return self.keeper()
        if role == "root":
            return self.root()
        facts = self.box.status(kernel)["processes"]
        (pid,) = [fact["pid"] for fact in facts if fact["role"] == role]
        return int(pid)

    def kill(self, pid: int, number: int = signal.SIGKILL) -> None:
        """End a process and wait until it is gone."""
        os.kill(pid, number)
        self.gone(pid)

    def gone(self, *pids: int, seconds: float = 10) -> None:
        def still_there() -> list[int]:
            return [pid for pid in pids if alive(pid)]

        wait_until(lambda: not still_there(), what=f"the end of {pids}", seconds=seconds)

    def start(
        self, kernel: KernelRecord | str, code: str, *, first: str = "", **options: object
    ) -> Future:
        """Execute in a thread; when this returns, the cell is running and has done ``first``."""
        sign = self.folder / f"started-{uuid.uuid4().hex}"
        if options.get("language") == "bash":
            code = f"{first}\ntouch {sign}\n{code}"
        else:
            code = f"{first}\nopen({str(sign)!r}, 'w').close()\n{code}"
        future = self._threads.submit(self.box.execute, kernel, code, **options)
        wait_until(lambda: sign.exists() or future.done(), what="the cell to start", seconds=30)
        return future

    def submit(self, function: Callable[..., object], *args: object, **options: object) -> Future:
        return self._threads.submit(function, *args, **options)

    def complaints(self) -> str:
        """What our own processes had to say: a traceback here is a bug of ours."""
        words = ""
        for name in ("keeper.log", "root.log", "foreign.log"):
            with contextlib.suppress(OSError):
                words += Path(self.home.rundir, name).read_text(errors="replace")
        return words

    def close(self) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)


@pytest.fixture
def vacated() -> Iterator[list[Home]]:
    """Homes whose socket folders must be gone in the end, logs of failures included."""
    homes: list[Home] = []
    yield homes
    assert_vacated(homes)


def assert_vacated(homes: list[Home]) -> None:
    for home in homes:
        folder = Path(home.rundir)
        wait_until(lambda folder=folder: not folder.exists(), what=f"{folder} to go")


@pytest.fixture
def environment(vacated: list[Home], environment: Path) -> Iterator[Path]:
    """The home of a test; in the end its keeper has left, and has taken its folder along."""
    yield environment
    vacated.append(locate(Settings.from_environment()))


@pytest.fixture(scope="module")
def shared_vacated() -> Iterator[list[Home]]:
    homes: list[Home] = []
    yield homes
    assert_vacated(homes)


@pytest.fixture(scope="module")
def shared_box(shared_vacated: list[Home], shared_box: Box) -> Iterator[Box]:
    """The home of a module, with the same promise."""
    yield shared_box
    shared_vacated.append(locate(shared_box.settings))


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> str:
    value = uuid.uuid4().hex
    monkeypatch.setenv(MARK, value)
    return value


@pytest.fixture
def stage(environment: Path, mark: str, tmp_path: Path) -> Iterator[Stage]:
    """A home of its own; at the end nothing that any cell has started is left."""
    with Box(Settings.from_environment()) as box:
        made = Stage(box, tmp_path)
        yield made
        words = made.complaints()
        box.wipe()
        made.close()
    wait_until(lambda: not marked_processes(mark), what="what cells started to be gone", seconds=10)
    assert "Traceback" not in words, words


@pytest.fixture(scope="module")
def shared_stage(shared_box: Box, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """The same for the home that a module's tests share."""
    made = Stage(shared_box, tmp_path_factory.mktemp("stage"))
    yield made
    made.close()
    words = made.complaints()
    assert "Traceback" not in words, words


@pytest.fixture
def kernel(shared_box: Box, tmp_path: Path) -> Iterator[KernelRecord]:
    """A fresh kernel in the module's home; names of these tests are no names for kernels."""
    record = shared_box.get_or_create(f"kernel-{uuid.uuid4().hex[:8]}", cwd=str(tmp_path))
    yield record
    shared_box.destroy(record)


Client = Callable[..., subprocess.Popen]


@pytest.fixture
def client(environment: Path, tmp_path: Path) -> Iterator[Client]:
    """Start a program that uses kernelbox in a process of its own."""
    started: list[subprocess.Popen] = []

    def start(code: str, *, source: str | None = None, **options: object) -> subprocess.Popen:
        environ = {**os.environ, "PYTHONPATH": source or package_parent()}
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            **options,  # type: ignore[call-overload]
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of two megabytes, empty."""
    if os.geteuid() != 0 or not shutil.which("mount"):
        pytest.skip("a small file system can only be mounted by root")
    folder = tmp_path / "disk"
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", "size=2m,mode=0700", "tmpfs", str(folder)]
    if subprocess.run(["mount", *options], capture_output=True).returncode:
        pytest.skip("this machine does not let us mount a file system")
    yield folder
    for _ in range(100):
        if not subprocess.run(["umount", str(folder)], capture_output=True).returncode:
            return
        time.sleep(0.05)
    raise AssertionError(f"{folder} is still in use by a process of ours")


class Stopwatch:
    """Asserts that something took no longer than it may."""

    def __init__(self) -> None:
        self.start = time.monotonic()

    def within(self, seconds: float) -> None:
        took = time.monotonic() - self.start
        assert took < seconds, f"took {took:.1f} s, {seconds:g} s were allowed"


@pytest.fixture
def stopwatch() -> Callable[[], Stopwatch]:
    return Stopwatch


@pytest.fixture
def threads() -> Callable[..., list]:
    """Run one function in many threads at once and give back all results, in order."""

    def run(function: Callable[[int], object], count: int, *, seconds: float = 60) -> list:
        gate = threading.Barrier(count)

        def enter(number: int) -> object:
            gate.wait(seconds)
            return function(number)

        with ThreadPoolExecutor(count) as pool:
            futures = [pool.submit(enter, number) for number in range(count)]
            return [future.result(seconds) for future in futures]

    return run


def well(result: ExecutionResult) -> ExecutionResult:
    assert result.ok, f"{result.error}\n{result.stderr}"
    return result
