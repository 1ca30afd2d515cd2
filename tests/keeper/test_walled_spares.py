"""Walls take some milliseconds to build: the next sandbox of a kind stands when it is wanted."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from processes import alive, wait_until

from kernelbox import Box, Settings
from kernelbox.installs.places import cache_root
from kernelbox.keeper.home import locate
from kernelbox.walls import cgroups, entry
from kernelbox.walls.profiles import named

MODERATE, RESTRICTIVE = named("moderate"), named("restrictive")


@pytest.fixture
def box(environment: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Box]:
    if obstacle := entry.obstacle():
        pytest.skip(f"no walls can be built here: {obstacle}")
    monkeypatch.setenv("KERNELBOX_SPARES", "1")
    with Box() as made:
        yield made
        made.wipe()


def ahead(box: Box) -> set[str]:
    """The ids that are reserved for kernels to come."""
    runtime = Path(locate(box.settings).runtime_dir)
    known = {record.kernel_id for record in box.list_kernels()}
    return {path.name.removeprefix("spool-") for path in runtime.glob("spool-*")} - known


def spare_of(box: Box) -> str:
    wait_until(lambda: ahead(box), what="a sandbox ahead", seconds=20)
    (spare,) = ahead(box)
    return spare


@pytest.mark.parametrize("profile", [RESTRICTIVE, MODERATE], ids=lambda profile: profile.name)
def test_the_next_sandbox_stands_already(box: Box, profile: object) -> None:
    box.get_or_create("one", profile=profile)
    spare = spare_of(box)
    two = box.get_or_create("two", profile=profile)
    assert two.kernel_id == spare
    where = box.execute(two, "import os; os.getuid(), os.getcwd(), os.environ['HOME']")
    assert where.return_value == "(1000, '/workspace', '/home/sandbox')"
    assert box.execute(two, "echo $HOME", language="bash").output == "/home/sandbox\n"
    branch = box.branch(two, "three")
    assert box.execute(branch, "os.getuid()").return_value == "1000"
    assert any(note.startswith("limits") for note in two.notes), two.notes


def test_its_walls_hold(box: Box, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    profile = RESTRICTIVE.but(memory=256 << 20, processes=20)
    box.get_or_create("one", profile=profile)
    spare = spare_of(box)
    two = box.get_or_create("two", profile=profile)
    assert two.kernel_id == spare
    for code in (
        f"open({str(secret)!r})",
        f"__import__('os').listdir({box.settings.runtime_dir!r})",
        "open('/usr/x', 'w')",
        f"__import__('os').kill({os.getpid()}, 0)",
        "__import__('socket').create_connection(('192.0.2.1', 80), timeout=2)",
        "import subprocess\nfor _ in range(40): subprocess.Popen(['sleep', '60'])",
        "'x' * (1 << 30)",
    ):
        assert not box.execute(two, code).ok, code


def test_it_has_the_environment_of_who_gets_it(box: Box) -> None:
    box.get_or_create("one", environ={"MINE": "first"}, profile=RESTRICTIVE)
    spare = spare_of(box)
    two = box.get_or_create("two", environ={"MINE": "second"}, profile=RESTRICTIVE)
    assert two.kernel_id == spare
    assert box.execute(two, "import os; os.environ['MINE']").return_value == "'second'"


def test_other_walls_are_not_taken_for_it(box: Box) -> None:
    box.get_or_create("one", profile=RESTRICTIVE)
    spare = spare_of(box)
    other = box.get_or_create("two", profile=RESTRICTIVE.but(memory=300 << 20))
    assert other.kernel_id != spare
    wait_until(lambda: ahead(box) - {spare}, what="the one of the new kind", seconds=20)
    assert len(ahead(box)) == 1  # the old kind made room for it


def test_one_for_another_cache_of_packages_is_not_taken(
    box: Box, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    box.get_or_create("one", profile=RESTRICTIVE)
    spare = spare_of(box)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    with Box() as other:
        assert other.get_or_create("two", profile=RESTRICTIVE).kernel_id != spare


def groups_of(kernel_id: str) -> list[Path]:
    hierarchy = cgroups.find()
    folders = [] if isinstance(hierarchy, str) else hierarchy.parents.values()
    return [path for folder in folders for path in Path(folder).glob(f"*{kernel_id}*")]


def warden_at(box: Box, kernel_id: str) -> psutil.Process:
    """Who listens there, for a kernel that is or will be."""
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(locate(box.settings).kernel_address(kernel_id))
        who = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return psutil.Process(struct.unpack("3i", who)[0])


def assert_nothing_left_of(box: Box, kernel_id: str) -> None:
    home = locate(box.settings)
    folders = (Path(home.rundir), Path(home.runtime_dir))

    def left() -> list[Path]:
        files = [path for folder in folders for path in folder.glob(f"*{kernel_id}*")]
        return files + groups_of(kernel_id)

    wait_until(lambda: not left(), what=f"{left()} to be removed", seconds=20)


def test_one_that_was_killed_is_not_handed_out_and_leaves_nothing(box: Box) -> None:
    box.get_or_create("one", profile=RESTRICTIVE)
    spare = spare_of(box)
    warden_at(box, spare).kill()
    two = box.get_or_create("two", profile=RESTRICTIVE)
    assert two.kernel_id != spare
    assert box.execute(two, "1+1").return_value == "2"
    assert_nothing_left_of(box, spare)


def test_one_that_is_killed_while_it_is_made_leaves_nothing(box: Box) -> None:
    slow = {**box.settings.to_wire(), "spares": 0, "startup_code": "import time; time.sleep(1)"}
    runtime = Path(locate(box.settings).runtime_dir)
    with Box(Settings.from_wire(slow)) as other:
        made: list[str] = []

        def make() -> None:
            made.append(other.get_or_create("one", profile=RESTRICTIVE).kernel_id)

        making = threading.Thread(target=make)
        making.start()
        wait_until(lambda: list(runtime.glob("kernel-*.json")), what="its files", seconds=20)
        (first,) = (path.stem.removeprefix("kernel-") for path in runtime.glob("kernel-*.json"))
        address = Path(locate(box.settings).kernel_address(first))
        wait_until(address.exists, what="its warden to listen", seconds=20)
        warden_at(box, first).kill()
        making.join(30)
    assert made, "it is tried again"
    assert made != [first]
    assert_nothing_left_of(box, first)


def test_the_walls_go_with_the_last_branch(box: Box) -> None:
    one = box.get_or_create("one", profile=RESTRICTIVE)
    branch = box.branch(one, "two")
    box.destroy(one)
    warden_at(box, branch.kernel_id).kill()
    wait_until(lambda: "two" not in {r.name for r in box.list_kernels()}, what="its burial")
    assert_nothing_left_of(box, branch.kernel_id)
    assert_nothing_left_of(box, one.kernel_id)


def test_nothing_of_it_is_left_when_the_keeper_is_killed(box: Box) -> None:
    one = box.get_or_create("one", profile=RESTRICTIVE)
    (warden,) = (p["pid"] for p in box.status(one)["processes"] if p["role"] == "warden")
    root = psutil.Process(warden).parent()
    assert root is not None
    keeper = root.parent()
    assert keeper is not None
    assert keeper.name() == "kb-keeper"
    spare = spare_of(box)
    below = [p for p in root.children(recursive=True) if p.is_running()]
    hers = {p.pid for p in psutil.Process(warden).children(recursive=True)} | {warden}
    keeper.kill()
    spares = [process for process in below if process.pid not in hers]
    assert spares
    wait_until(
        lambda: not any(alive(process.pid) for process in spares), what="its end", seconds=20
    )
    assert not groups_of(spare)
    caches = cache_root(box.settings.install_cache, os.environ)
    assert not list(Path(caches).glob(f"families/*{spare}*"))
    assert box.execute(one, "1+1").return_value == "2"  # the family of a kernel lives on


def test_none_is_made_that_shows_a_folder(box: Box, tmp_path: Path) -> None:
    box.get_or_create("shown", profile="permissive", cwd=str(tmp_path))
    box.get_or_create("one", profile=RESTRICTIVE)
    spare_of(box)  # by now the other's, which was asked for first, would have been there
    assert len(ahead(box)) == 1
