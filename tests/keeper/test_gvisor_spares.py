"""A sandbox of gVisor takes a second to start: the next of its kind is there when it is wanted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from processes import wait_until

from kernelbox import Box
from kernelbox.keeper.home import locate
from kernelbox.walls import gvisor
from kernelbox.walls.profiles import named

PROFILE = named("restrictive").but(driver="gvisor")


@pytest.fixture
def box(environment: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Box]:
    if obstacle := gvisor.obstacle():
        pytest.skip(f"no sandbox of gVisor can be had here: {obstacle}")
    monkeypatch.setenv("KERNELBOX_SPARES", "1")
    with Box() as made:
        yield made
        made.wipe()


def sandboxes(box: Box) -> set[str]:
    """The ids of all that are there, spares too."""
    runtime = Path(locate(box.settings).runtime_dir)
    return {path.name.removeprefix("walls-") for path in runtime.glob("walls-*")}


def spare_of(box: Box) -> str:
    known = {record.kernel_id for record in box.list_kernels()}
    wait_until(lambda: sandboxes(box) - known, what="a sandbox ahead", seconds=20)
    (spare,) = sandboxes(box) - known
    return spare


def test_the_next_sandbox_is_there_already(box: Box) -> None:
    box.get_or_create("one", profile=PROFILE)
    spare = spare_of(box)
    two = box.get_or_create("two", profile=PROFILE)
    assert two.kernel_id == spare
    assert box.execute(two, "import os; os.getuid(), os.getcwd()").return_value == (
        "(1000, '/workspace')"
    )
    assert box.execute(two, "echo $HOME", language="bash").output == "/home/sandbox\n"
    branch = box.branch(two, "three")
    assert box.execute(branch, "os.getuid()").return_value == "1000"


def test_it_has_the_environment_of_who_gets_it(box: Box) -> None:
    box.get_or_create("one", environ={"MINE": "first"}, profile=PROFILE)
    spare_of(box)
    two = box.get_or_create("two", environ={"MINE": "second"}, profile=PROFILE)
    assert box.execute(two, "import os; os.environ['MINE']").return_value == "'second'"


def test_other_walls_are_not_taken_for_it(box: Box) -> None:
    box.get_or_create("one", profile=PROFILE)
    spare = spare_of(box)
    other = box.get_or_create("two", profile=PROFILE.but(memory=300 << 20))
    assert other.kernel_id != spare


def test_one_that_was_killed_is_not_handed_out(box: Box) -> None:
    box.get_or_create("one", profile=PROFILE)
    spare = spare_of(box)

    def running() -> list[psutil.Process]:
        return [
            p
            for p in psutil.process_iter(["cmdline"])
            if f"kb-{spare}" in (p.info["cmdline"] or ())
        ]

    wait_until(running, what="it to be started", seconds=20)
    for process in running():
        process.kill()
    wait_until(lambda: spare not in sandboxes(box), what="its folder to go", seconds=10)
    two = box.get_or_create("two", profile=PROFILE)
    assert two.kernel_id != spare
    assert box.execute(two, "1+1").return_value == "2"
