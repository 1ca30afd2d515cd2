"""A box whose packages come from an index in a folder, so that no test needs a network."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from wheels import Shop

from kernelbox import Box, ExecutionResult, KernelRecord, Settings
from kernelbox.keeper.home import locate
from kernelbox.walls import entry

Run = Callable[..., ExecutionResult]


@pytest.fixture(scope="session", autouse=True)
def uv() -> None:
    try:
        import uv
    except ImportError:
        if shutil.which("uv") is None:
            pytest.skip("uv is not installed: pip install uv packaging")
    else:
        assert uv


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """What most tests install: two versions of a package, one with a dependency, a tool."""
    shop = Shop(tmp_path_factory.mktemp("shop"))
    shop.offer("kbx-plain", "1.0")
    shop.offer("kbx-plain", "2.0")
    shop.offer("kbx-needs", "1.0", requires=["kbx-plain>=1"])
    shop.offer("kbx-old", "1.0", requires=["kbx-plain<2"])
    return shop


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory, shop: Shop) -> Iterator[Settings]:
    folder = tmp_path_factory.mktemp("installs")
    made = Settings(
        registry_path=str(folder / "home" / "registry.json"),
        runtime_dir=str(folder / "home" / "runtime"),
        install_cache=str(folder / "cache"),
        install_indexes=(shop.address,),
        install_timeout=60,
        spares=0,
        keeper_linger=0.1,
    )
    yield made
    if any(Path(locate(made).rundir).glob("*.sock")):  # of a test that failed
        with Box(made) as box:
            box.wipe()
    families = folder / "cache" / "families"
    assert not families.exists() or list(families.iterdir()) == []


@pytest.fixture(scope="module")
def shared_box(settings: Settings) -> Iterator[Box]:
    with Box(settings) as made:
        yield made
        made.wipe()


@pytest.fixture(params=["open", "restrictive"])
def either(
    request: pytest.FixtureRequest, shared_box: Box, tmp_path: Path
) -> Iterator[KernelRecord]:
    """A kernel without walls, and one without a network."""
    if request.param != "open" and (obstacle := entry.obstacle()):
        pytest.skip(f"no walls can be built here: {obstacle}")
    name = request.node.name[:90].replace("/", "_")
    kernel = shared_box.get_or_create(name, cwd=str(tmp_path), profile=request.param)
    yield kernel
    shared_box.destroy(kernel)


@pytest.fixture
def ran(shared_box: Box) -> Run:
    def run_well(kernel: KernelRecord | str, code: str, **options: object) -> ExecutionResult:
        result = shared_box.execute(kernel, code, **{"timeout": 30, **options})  # type: ignore[arg-type]
        assert result.ok, f"{result.error}\n{result.stderr}"
        return result

    return run_well
