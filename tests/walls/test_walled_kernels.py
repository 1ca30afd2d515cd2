"""What every kernel can do, behind every kind of walls: one contract, all drivers and profiles."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from processes import wait_until

from kernelbox import (
    BadInput,
    Box,
    BoxError,
    ExecutionResult,
    KernelRecord,
    Mount,
    Profile,
    Settings,
)
from kernelbox.keeper.home import locate
from kernelbox.walls import cgroups, drivers, gvisor, locks, ways
from kernelbox.walls.profiles import PROFILES, named

WAY = ways.look()
LOCKED = WAY.kind == "locks"
WALLED = {
    name: profile
    for name, profile in PROFILES.items()
    if profile.walled and not ways.cannot_offer(profile, WAY)
}
DRIVERS = ("process", "gvisor")
OBSTACLES = {
    "process": lambda: locks.attempt() if LOCKED else WAY.why,
    "gvisor": lambda: WAY.why if LOCKED else gvisor.obstacle(),
}
only_with_namespaces = pytest.mark.skipif(LOCKED, reason=f"no walls but restrictive: {WAY.why}")
Run = Callable[..., ExecutionResult]
Walls = Callable[..., Profile]


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if obstacle := OBSTACLES[name]():
        pytest.skip(f"no walls of the driver {name!r} can be built here: {obstacle}")
    return name


@pytest.fixture
def walls(driver: str) -> Walls:
    """A profile by its name, with what is to be different, enforced by the driver of this test."""

    def around(name: str, **different: object) -> Profile:
        profile = named(name).but(driver=driver, name=name, **different)
        if words := drivers.cannot_enforce(profile):
            pytest.skip(words)
        return profile

    return around


@pytest.fixture(params=WALLED)
def walled(
    request: pytest.FixtureRequest,
    walls: Walls,
    shared_box: Box,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[KernelRecord]:
    profile = walls(request.param)
    # One of gVisor's takes seconds to start: there the tests share it, and each begins anew.
    shared = profile.driver == "gvisor"
    name = f"gvisor-{profile.name}" if shared else request.node.name[:90].replace("/", "_")
    folder = tmp_path_factory.getbasetemp() if shared else tmp_path
    kernel = shared_box.get_or_create(name, cwd=str(folder), profile=profile)
    yield kernel
    if not shared:
        shared_box.destroy(kernel)
        return
    for moment in shared_box.checkpoints(kernel):
        shared_box.drop_checkpoint(kernel, moment)
    shared_box.restart(kernel)


@pytest.fixture
def ran(shared_box: Box, walled: KernelRecord) -> Run:
    def run_well(code: str, **options: object) -> ExecutionResult:
        result = shared_box.execute(walled, code, **{"timeout": 30, **options})  # type: ignore[arg-type]
        assert result.ok, f"{result.error}\n{result.stderr}"
        return result

    return run_well


def test_the_record_says_which_walls(walled: KernelRecord, shared_box: Box) -> None:
    assert walled.profile in WALLED
    listed = {record.name: record.profile for record in shared_box.list_kernels()}
    assert listed[walled.name] == walled.profile


def test_cells_keep_their_state(ran: Run) -> None:
    ran("x = [1, 2, 3]")
    assert ran("sum(x)").return_value == "6"
    assert ran("print('out'); import sys; print('err', file=sys.stderr)").output == "out\n"


def test_packages_work(ran: Run) -> None:
    assert (
        ran("import numpy as np, pandas as pd; int(pd.Series(np.arange(5)).sum())").return_value
        == "10"
    )
    result = ran("import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show()")
    assert result.images


def test_bash_keeps_its_state(ran: Run) -> None:
    ran("cd $TMPDIR; export A=5; f() { echo f$A; }", language="bash")
    assert ran("[[ $(pwd) == $TMPDIR ]]; echo $?; f", language="bash").output == "0\nf5\n"
    if not LOCKED:
        assert ran("id -un", language="bash").output == "sandbox\n"


def test_files_are_listed_as_everywhere(ran: Run) -> None:
    module = ran("import os; print(os.__file__)").output.strip()
    for ask in (
        lambda code: ran(code, language="bash"),
        lambda code: ran(f"!{code}"),
    ):
        assert ask("ls -l /usr | head -1").output.startswith("total ")
        assert "os.py" in ask(f"ls {module}").output
        assert ask("stat -c %F /usr").output == "directory\n"
        assert "No such file" in ask("ls -l /nonexistent 2>&1 || true").output
    assert ran("import os, stat; stat.S_ISDIR(os.stat('/usr').st_mode)").return_value == "True"


def test_subprocesses_threads_and_async(ran: Run) -> None:
    assert ran("!echo hello").output == "hello\n"
    assert (
        ran(
            "from concurrent.futures import ThreadPoolExecutor\n"
            "with ThreadPoolExecutor(2) as pool: r = list(pool.map(abs, [-1, -2]))\nr"
        ).return_value
        == "[1, 2]"
    )
    assert ran("import asyncio\nawait asyncio.sleep(0, 7)").return_value == "7"
    if LOCKED:  # semaphores are files in /dev/shm, which is the host's
        return
    assert (
        ran(
            "import multiprocessing as mp\n"
            "with mp.get_context('fork').Pool(2) as pool: r = pool.map(abs, [-3])\nr"
        ).return_value
        == "[3]"
    )


def test_time_travel(ran: Run, shared_box: Box, walled: KernelRecord) -> None:
    ran("x = 1")
    moment = shared_box.checkpoint(walled)
    ran("x = 2")
    shared_box.rewind(walled, moment)
    assert ran("x").return_value == "1"
    undone = shared_box.execute(walled, "x = 3\n1/0", atomic=True)
    assert undone.state == "rewound"
    assert ran("x").return_value == "1"
    branch = shared_box.branch(walled, f"{walled.name[:80]}-b")
    assert branch.profile == walled.profile
    assert shared_box.execute(branch, "x += 10; x").return_value == "11"
    assert ran("x").return_value == "1"
    assert shared_box.destroy(branch)


def test_timeouts_interrupts_and_restarts(ran: Run, shared_box: Box, walled: KernelRecord) -> None:
    ran("x = 1")
    late = shared_box.execute(walled, "while True: pass", timeout=0.3)
    assert (late.status, late.state) == ("timeout", "kept")
    assert ran("x").return_value == "1"
    interrupted = threading.Timer(0.3, lambda: shared_box.interrupt(walled))
    interrupted.start()
    result = shared_box.execute(walled, "import time; time.sleep(30)", timeout=20)
    interrupted.join()
    assert result.error is not None
    assert result.error.ename == "KeyboardInterrupt"
    shared_box.restart(walled)
    assert not shared_box.execute(walled, "x").ok
    assert ran("import os; os.getuid() != 0").return_value == "True"


def test_deaths_are_told(ran: Run, shared_box: Box, walled: KernelRecord) -> None:
    died = shared_box.execute(walled, "print('last words'); import os; os._exit(3)")
    assert (died.state, died.output) == ("lost", "last words\n")
    assert "exit code 3" in (died.cause or "")
    killed = shared_box.execute(walled, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert "SIGKILL" in (killed.cause or "")
    assert ran("1+1").return_value == "2"


@only_with_namespaces
def test_it_is_somebody_else_in_another_world(ran: Run) -> None:
    assert ran("import os; os.getuid(), os.getgid(), os.uname().nodename").return_value == (
        "(1000, 1000, 'sandbox')"
    )
    assert int(ran("len([p for p in os.listdir('/proc') if p.isdigit()])").return_value or "") < 5


def test_save_and_load_work_through_the_walls(
    ran: Run, shared_box: Box, walled: KernelRecord, tmp_path: Path
) -> None:
    ran("x = {'a': [1, 2]}")
    shared_box.save(walled, str(tmp_path / "s.kbs"))
    loaded = shared_box.load(f"{walled.name[:80]}-l", str(tmp_path / "s.kbs"))
    assert shared_box.execute(loaded, "x").return_value == "{'a': [1, 2]}"
    shared_box.destroy(loaded)


# -- what differs ---------------------------------------------------------------------------------


@only_with_namespaces
def test_folders_are_those_of_the_profile(shared_box: Box, walls: Walls, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    for name, where in (("permissive", str(tmp_path)), ("moderate", "/workspace")):
        kernel = shared_box.get_or_create(f"folders-{name}", cwd=str(tmp_path), profile=walls(name))
        assert shared_box.execute(kernel, "import os; os.getcwd()").return_value == repr(where)
        seen = shared_box.execute(kernel, "os.path.exists('mine.txt')").return_value
        assert seen == str(name == "permissive")
        shared_box.execute(kernel, f"open('{name}.txt', 'w').write('x')")
        assert (tmp_path / f"{name}.txt").exists() == (name == "permissive")
        shared_box.destroy(kernel)


@only_with_namespaces
def test_the_environment_is_that_of_the_profile(
    shared_box: Box, walls: Walls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_API_TOKEN", "secret")
    monkeypatch.setenv("MY_COLOUR", "blue")
    for name, colour in (("permissive", "'blue'"), ("moderate", "None")):
        kernel = shared_box.get_or_create(f"environment-{name}", profile=walls(name))
        code = "import os; os.environ.get('MY_COLOUR'), os.environ.get('MY_API_TOKEN')"
        assert shared_box.execute(kernel, code).return_value == f"({colour}, None)"
        shared_box.destroy(kernel)


def test_what_is_given_by_name_comes_along(shared_box: Box, walls: Walls) -> None:
    environ = {**os.environ, "MODE": "test"}
    kernel = shared_box.get_or_create("given", environ=environ, profile=walls("restrictive"))
    assert shared_box.execute(kernel, "import os; os.environ['MODE']").return_value == "'test'"
    shared_box.destroy(kernel)


@only_with_namespaces
def test_a_kernel_with_other_walls_is_not_taken_for_it(shared_box: Box, walls: Walls) -> None:
    shared_box.get_or_create("taken", profile=walls("permissive"))
    with pytest.raises(BadInput, match="walls are others: permissive, and not restrictive"):
        shared_box.get_or_create("taken", profile=walls("restrictive"))
    assert shared_box.get_or_create("taken", profile=walls("permissive")).profile == "permissive"
    assert shared_box.get_or_create("taken").profile == "permissive"
    shared_box.destroy("taken")


def test_one_that_is_just_being_made_with_other_walls_is_not_taken_for_it(
    shared_box: Box, walls: Walls
) -> None:
    rundir = Path(locate(shared_box.settings).rundir)
    slow = {**shared_box.settings.to_wire(), "startup_code": "import time; time.sleep(1)"}
    before = set(rundir.glob("*-*.sock"))
    with Box(Settings.from_wire(slow)) as other:
        making = threading.Thread(target=lambda: other.get_or_create("being made"))
        making.start()
        wait_until(lambda: set(rundir.glob("*-*.sock")) - before, what="its warden to listen")
        with pytest.raises(BadInput, match="walls are others: open, and not restrictive"):
            shared_box.get_or_create("being made", profile=walls("restrictive"))
        making.join(20)
    assert shared_box.get_or_create("being made").profile == "open"
    shared_box.destroy("being made")


def test_what_was_saved_behind_walls_is_loaded_behind_them(
    shared_box: Box, walls: Walls, tmp_path: Path
) -> None:
    """A pickle runs whatever it likes when it is read."""
    kernel = shared_box.get_or_create("saved", profile=walls("restrictive"))
    shared_box.execute(
        kernel,
        "class Trap:\n    def __reduce__(self): return (eval, (\"__import__('os').getuid()\",))\n"
        "who = Trap()",
    )
    shared_box.save(kernel, str(tmp_path / "s"))
    loaded = shared_box.load("loaded", str(tmp_path / "s"))
    assert loaded.profile == "restrictive"
    who = shared_box.execute(kernel, "__import__('os').getuid()").return_value
    loaded_as = shared_box.execute(loaded, "who").return_value
    assert loaded_as == who or (LOCKED and int(loaded_as or 0) > 1_000_000_000)
    assert loaded_as != "0"
    for name in ("saved", "loaded"):
        shared_box.destroy(name)


@only_with_namespaces
def test_a_folder_that_holds_more_than_a_project_is_not_shown(
    shared_box: Box, walls: Walls
) -> None:
    for folder in ("/", "/etc", "/usr/lib", os.path.expanduser("~")):
        with pytest.raises(BoxError, match="more than a project"):
            shared_box.get_or_create("too-much", cwd=folder, profile=walls("permissive"))
    assert shared_box.destroy("too-much") is False


@only_with_namespaces
def test_no_set_uid_file_is_left_on_the_host(shared_box: Box, walls: Walls, tmp_path: Path) -> None:
    kernel = shared_box.get_or_create("setuid", cwd=str(tmp_path), profile=walls("permissive"))
    result = shared_box.execute(
        kernel,
        "import os\nopen('f', 'w').close()\n"
        "for make in (lambda: os.chmod('f', 0o4755), lambda: os.open('g', os.O_CREAT, 0o4755),\n"
        "             lambda: os.chmod('f', 0o2755)):\n"
        "    try: make()\n    except PermissionError: print('refused')\n"
        "os.chmod('f', 0o755)",
    )
    assert result.output == "refused\n" * 3
    assert result.ok
    assert [path.stat().st_mode & 0o7000 for path in tmp_path.iterdir()] == [0]
    shared_box.destroy(kernel)


@only_with_namespaces
def test_a_mount_of_ones_own(shared_box: Box, walls: Walls, tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    out.mkdir()
    (data / "in.txt").write_text("hello")
    profile = walls(
        "restrictive",
        mounts=(
            Mount(str(data), "/data"),
            Mount(str(out), "/out", "rw"),
        ),
    )
    kernel = shared_box.get_or_create("mounts", profile=profile)
    result = shared_box.execute(
        kernel,
        "open('/out/copy.txt', 'w').write(open('/data/in.txt').read())\n"
        "try: open('/data/new', 'w')\nexcept OSError as error: print(error.strerror)",
    )
    assert result.output == "Read-only file system\n"
    assert (out / "copy.txt").read_text() == "hello"
    shared_box.destroy(kernel)


def test_memory_that_is_not_allowed_is_a_clear_death(shared_box: Box, walls: Walls) -> None:
    kernel = shared_box.get_or_create("hungry", profile=walls("restrictive"))
    result = shared_box.execute(kernel, "x = bytearray(600 << 20); import time; time.sleep(5)")
    assert result.state == "lost"
    assert "out of memory" in (result.cause or "")
    assert shared_box.execute(kernel, "1+1").return_value == "2"
    shared_box.destroy(kernel)


@only_with_namespaces
def test_a_soft_limit_is_an_error_that_variables_survive(shared_box: Box, walls: Walls) -> None:
    profile = walls("moderate", soft_memory=200 << 20)
    kernel = shared_box.get_or_create("soft", profile=profile)
    shared_box.execute(kernel, "x = 'still here'; held = []")
    code = "while True: held.append(bytearray(10 << 20))"
    result = shared_box.execute(kernel, code, timeout=30)
    assert result.error is not None
    assert (result.error.ename, result.state) == ("MemoryError", "kept")
    assert "200 MiB" in result.error.evalue
    assert shared_box.execute(kernel, "held.clear(); x").return_value == "'still here'"
    again = shared_box.execute(kernel, "y = bytearray(50 << 20); len(y)")
    assert again.return_value == str(50 << 20)
    shared_box.destroy(kernel)


@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize("driver", ["process"], indirect=True)
def test_walls_by_the_settings(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELBOX_PROFILE", "restrictive")
    with Box() as box:
        kernel = box.get_or_create("a")
        assert kernel.profile == "restrictive"
        assert box.execute(kernel, "open('/etc/shadow')").error is not None
        assert box.get_or_create("b", profile="open").profile == "open"
        box.wipe()


# -- the network ----------------------------------------------------------------------------------


@only_with_namespaces
def test_what_the_gate_refuses_is_in_the_notes(shared_box: Box, walls: Walls) -> None:
    profile = walls("moderate", allow=("example.com",))
    kernel = shared_box.get_or_create("gate", profile=profile)
    result = shared_box.execute(
        kernel,
        "import urllib.request\n"
        "try: urllib.request.urlopen('http://example.org/', timeout=10)\n"
        "except Exception as error: print(error.code, error.read().decode())",
        timeout=30,
    )
    assert "403 kernelbox: the sandbox's profile does not allow example.org:80" in result.output
    assert any("refused example.org:80" in note for note in result.notes)
    shared_box.destroy(kernel)


# -- ends -----------------------------------------------------------------------------------------


def groups_of(kernel: KernelRecord, hierarchy: cgroups.Hierarchy) -> list[str]:
    parents = {*hierarchy.parents.values()}
    return [f for parent in parents for f in os.listdir(parent) if kernel.kernel_id in f]


def test_nothing_is_left_of_a_sandbox(box: Box, walls: Walls) -> None:
    kernel = box.get_or_create("k", profile=walls([*WALLED][-1]))
    (warden,) = (p["pid"] for p in box.status(kernel)["processes"] if p["role"] == "warden")
    box.execute(
        kernel, "import subprocess; subprocess.Popen(['sleep', '1000'], start_new_session=True)"
    )
    everybody = [psutil.Process(warden), *psutil.Process(warden).children(recursive=True)]
    assert len(everybody) >= (4 if LOCKED else 5)
    assert box.destroy(kernel)
    wait_until(lambda: not any(p.is_running() for p in everybody), what="all of them to end")
    hierarchy = cgroups.find()
    if not isinstance(hierarchy, str):
        assert groups_of(kernel, hierarchy) == []


def test_a_sandbox_ends_with_its_warden(box: Box, walls: Walls) -> None:
    kernel = box.get_or_create("k", profile=walls("restrictive"))
    (warden,) = (p["pid"] for p in box.status(kernel)["processes"] if p["role"] == "warden")
    others = psutil.Process(warden).children(recursive=True)
    psutil.Process(warden).kill()
    wait_until(lambda: not any(p.is_running() for p in others), what="the sandbox to end")
    hierarchy = cgroups.find()
    if not isinstance(hierarchy, str):
        wait_until(lambda: not groups_of(kernel, hierarchy), what="its groups to go")


@only_with_namespaces
def test_walls_that_fail_are_an_error_and_leave_nothing(
    box: Box, walls: Walls, tmp_path: Path
) -> None:
    from kernelbox import StartupFailed

    gone = tmp_path / "gone"
    gone.mkdir()
    profile = Profile.from_wire(walls("restrictive", mounts=(Mount(str(gone), "/data"),)).to_wire())
    gone.rmdir()
    began = time.monotonic()
    with pytest.raises(StartupFailed, match=r"walls could not be built.*/data"):
        box.get_or_create("k", profile=profile)
    assert time.monotonic() - began < 30
    assert box.list_kernels() == []
