"""Gateways with a folder of their own, async tests, and the proof that nothing is left behind."""

from __future__ import annotations

import asyncio
import inspect
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from processes import alive, below, living, such, wait_until

from kernelbox.gateway import KernelClient, KernelGateway


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Tests that are coroutines run in the loop of their module."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    given = {name: pyfuncitem.funcargs[name] for name in names}
    pyfuncitem.funcargs["runner"].run(pyfuncitem.obj(**given))
    return True


@pytest.fixture(scope="module", autouse=True)
def runner() -> Iterator[asyncio.Runner]:
    """One loop for a module, so that its tests can share a gateway."""
    with asyncio.Runner() as made:
        yield made


@pytest.fixture(scope="module", autouse=True)
def shared_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where gateways have their folders; nothing may be left there. Nobody's settings apply."""
    folder = tmp_path_factory.mktemp("gateways")
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith("KERNELBOX_"):
                patch.delenv(name)
        patch.setattr(tempfile, "tempdir", str(folder))
        yield folder
    wait_until(lambda: not processes_of(folder), what=f"processes of {folder} to end")
    assert list(folder.iterdir()) == []


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The same for the gateways of one test."""
    folder = tmp_path / "gateways"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    wait_until(lambda: not processes_of(folder), what=f"processes of {folder} to end")
    assert list(folder.iterdir()) == []


@pytest.fixture(scope="module")
def gateway(runner: asyncio.Runner, shared_place: Path) -> Iterator[KernelGateway]:
    """One gateway for a module of small tests that each have a kernel of their own."""
    made = KernelGateway(port=0)
    runner.run(made.start())
    yield made
    seen = Seen(shared_place)
    runner.run(made.stop())
    seen.assert_gone()


@pytest.fixture
def connected(gateway: KernelGateway, tmp_path: Path) -> Any:
    """Makes clients of the module's gateway."""

    @asynccontextmanager
    async def connect(**options: Any) -> AsyncIterator[KernelClient]:
        options.setdefault("images_dir", tmp_path / "images")
        async with KernelClient(port=gateway.port, **options) as client:
            yield client

    return connect


def processes_of(folder: Path) -> list[psutil.Process]:
    """The keepers of gateways in this folder, and all below them."""
    keepers = such(lambda process: str(folder) in " ".join(process.cmdline()))
    return living({*keepers, *(child for keeper in keepers for child in below(keeper.pid))})


def words_of(process: psutil.Process) -> list[str]:
    """Its command line; nothing, if it ends while one looks."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


class Seen:
    """What a gateway consists of right now."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes = processes_of(folder)
        self.sockets = {
            argument
            for process in self.processes
            for argument in words_of(process)
            if "kernelbox" in argument and os.path.isfile(os.path.join(argument, "keeper.lock"))
        }
        assert self.processes
        assert self.sockets

    def assert_gone(self, *, folder: bool = True) -> None:
        wait_until(
            lambda: not [process for process in self.processes if alive(process.pid)],
            what=f"these to end: {self.processes}",
        )
        assert [path for path in self.sockets if os.path.exists(path)] == []
        if folder:
            assert list(self.folder.iterdir()) == []

    def named(self, name: str) -> list[psutil.Process]:
        """Those of a name; one may end while we look, as the kernel that warmed up does."""
        found = such(lambda process: process.name() == name)
        return [process for process in self.processes if process in found]


@pytest.fixture
def seen() -> type[Seen]:
    return Seen
