"""A kernel with a Jupyter client attached, and a kernelspec that Jupyter finds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from jupyter_clients import Client, assert_home_is_deserted, attached

from kernelbox import KernelRecord, Settings
from kernelbox.keeper.home import locate
from kernelbox.kernelspec import install


@pytest.fixture
def client(kernel: KernelRecord) -> Iterator[Client]:
    with attached(kernel) as made:
        yield made


@pytest.fixture(scope="module")
def kernelspec_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder where Jupyter finds our kernelspec and keeps its files, and a home in it."""
    folder = tmp_path_factory.mktemp("jupyter")
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("KERNELBOX_")]:
            patch.delenv(name)
        patch.setenv("JUPYTER_PATH", str(folder / "share" / "jupyter"))
        patch.setenv("JUPYTER_RUNTIME_DIR", str(folder / "runtime"))
        patch.setenv("KERNELBOX_HOME", str(folder / "home"))
        patch.setenv("KERNELBOX_SPARES", "0")
        patch.setenv("KERNELBOX_KEEPER_LINGER", "2")
        install(prefix=str(folder))
        yield folder
        assert_home_is_deserted(locate(Settings.from_environment()))
