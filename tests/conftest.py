"""A home of its own for each test, and the proof that nothing of it is left behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from processes import below, living, such, wait_until

from kernelbox import Box, Settings
from kernelbox.keeper.home import Home, locate

# Whoever runs the tests with nohup or in the background has us, and all we start, ignore these.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

_RERUN_LINES = 25


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Why a test was run twice: the words of its first failure are where to begin with a race."""
    reports = terminalreporter.stats.get("rerun", [])
    if reports:
        terminalreporter.section("failed at first, and tried again")
    for report in reports:
        terminalreporter.line(f"{report.nodeid} ({report.when})")
        terminalreporter.line("\n".join(report.longreprtext.splitlines()[-_RERUN_LINES:]))


@pytest.fixture
def waiting() -> Callable[..., None]:
    return wait_until


def processes_of(home: Home) -> list[psutil.Process]:
    """Every process that belongs to a home: its keeper and all below it, and what names it."""
    found = such(lambda process: home.rundir in " ".join(process.cmdline()))
    return living({*found, *(child for process in found for child in below(process.pid))})


def assert_nothing_left(home: Home) -> None:
    """Wait for the keeper to end by itself, then look for leftovers."""
    wait_until(lambda: not processes_of(home), what=f"processes of {home.rundir} to end")
    left = sorted(path.name for path in Path(home.rundir).glob("*.sock"))
    assert left == [], f"sockets left behind: {left}"
    runtime = Path(home.runtime_dir)
    if runtime.is_dir():
        assert sorted(path.name for path in runtime.iterdir()) == [], "runtime files left behind"


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A fresh home through the environment, as a user would have it."""
    for name in list(os.environ):
        if name.startswith("KERNELBOX_"):
            monkeypatch.delenv(name)
    home = tmp_path / "home"
    monkeypatch.setenv("KERNELBOX_HOME", str(home))
    monkeypatch.setenv("KERNELBOX_SPARES", "0")
    monkeypatch.setenv("KERNELBOX_KEEPER_LINGER", "0.1")
    monkeypatch.chdir(tmp_path)
    yield home
    place = locate(Settings.from_environment())
    # Starting a keeper only to hear that there is nothing to wipe would cost a second per test.
    if any(Path(place.rundir).glob("*.sock")):
        with Box() as box:
            box.wipe()
    assert_nothing_left(place)


@pytest.fixture
def box(environment: Path) -> Iterator[Box]:
    with Box(Settings.from_environment()) as made:
        yield made
        made.wipe()


@pytest.fixture(scope="module")
def shared_box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    """One home for a module of small tests that each use a kernel of their own name."""
    folder = tmp_path_factory.mktemp("shared")
    settings = Settings(
        registry_path=str(folder / "home" / "registry.json"),
        runtime_dir=str(folder / "home" / "runtime"),
        spares=0,
        keeper_linger=0.1,
    )
    with Box(settings) as made:
        yield made
        made.wipe()
        assert_nothing_left(locate(settings))


@pytest.fixture
def kernel(shared_box: Box, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[object]:
    """A fresh kernel in the module's home, in a folder of its own."""
    name = request.node.name[:100].replace("/", "_")
    record = shared_box.get_or_create(name, cwd=str(tmp_path))
    yield record
    shared_box.destroy(record)
