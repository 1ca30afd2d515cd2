"""Control groups: bombs that go off in real groups of this machine, and what is said where it has
none."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kernelbox.walls import cgroups, hierarchies
from kernelbox.walls.cgroups import Group, GroupFailed, Hierarchy
from kernelbox.walls.hierarchies import Mount
from kernelbox.walls.watcher import Watcher, _resident, _share

ORDINARY = 65534
MB = 1 << 20

FOUND = cgroups.find()
needs_groups = pytest.mark.skipif(isinstance(FOUND, str), reason=str(FOUND))
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can hand out groups and uids")

Start = Callable[..., subprocess.Popen[str]]
Make = Callable[..., Group]


@pytest.fixture
def hierarchy() -> Hierarchy:
    assert isinstance(FOUND, Hierarchy)
    return FOUND


@pytest.fixture
def make(hierarchy: Hierarchy) -> Iterator[Make]:
    """Groups that are gone when the test is over."""
    made: list[Group] = []

    def make(
        memory: int | None = None, cpus: float | None = None, processes: int | None = None
    ) -> Group:
        name = f"test-{os.getpid()}-{time.monotonic_ns()}"
        group = Group.create(hierarchy, name, memory=memory, cpus=cpus, processes=processes)
        made.append(group)
        return group

    yield make
    for group in made:
        assert group.kill()
        group.remove()
        assert not any(os.path.exists(folder) for folder in group.folders.values())


@pytest.fixture
def start() -> Iterator[Start]:
    """Interpreters that wait for a line (``go``) before they run their code."""
    started: list[subprocess.Popen[str]] = []

    def start(code: str, *groups: Group) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", "import os, sys, time\nsys.stdin.readline()\n" + code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        for group in groups:
            group.add(process.pid)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):  # not read to the end: children may hold it
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def forked(function: Callable[[], str], *, uid: int | None = None) -> str:
    """What a function says in a child, as another user if asked for."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            if uid is not None:
                os.setgroups([])
                os.setgid(uid)
                os.setuid(uid)
            words = function()
        except BaseException as error:  # noqa: BLE001 - the child has nobody else to tell
            words = f"{type(error).__name__}: {error}"
        os.write(writer, words.encode())
        os._exit(0)
    os.close(writer)
    with open(reader) as answer:
        words = answer.read()
    os.waitpid(pid, 0)
    return words


HOLD = "held = bytearray(b'x') * ({} << 20)\nprint('held', flush=True)\nsys.stdin.readline()\n"
BOMB = "kept = []\nwhile True: kept.append(bytearray(b'x') * (1 << 20))\n"


# ------------------------------------------------------------------------------ limits


@needs_groups
def test_a_memory_bomb_is_killed_at_the_limit_and_the_group_says_so(
    make: Make, start: Start
) -> None:
    group = make(memory=64 * MB)
    bomb = start(BOMB, group)
    assert group.oom_kills() == 0
    go(bomb)
    assert bomb.wait(60) == -9
    assert group.oom_kills() == 1
    peak = group.peak()
    assert peak is not None
    assert 60 * MB <= peak <= 64 * MB


@needs_groups
def test_members_share_one_limit(make: Make, start: Start) -> None:
    group = make(memory=64 * MB)
    one, other = start(HOLD.format(40), group), start(HOLD.format(40), group)
    go(one)
    assert line(one) == "held"  # alone it is well within the limit
    assert group.oom_kills() == 0
    go(other)
    deadline = time.monotonic() + 30
    while one.poll() is None and other.poll() is None:
        assert time.monotonic() < deadline, group.facts()
        time.sleep(0.01)
    assert group.oom_kills() == 1
    assert {one.poll(), other.poll()} == {None, -9}


@needs_groups
def test_a_bomb_in_one_group_spares_the_other(make: Make, start: Start) -> None:
    noisy, quiet = make(memory=48 * MB), make(memory=64 * MB)
    neighbour = start(HOLD.format(30), quiet)
    go(neighbour)
    assert line(neighbour) == "held"
    bomb = start(BOMB, noisy)
    go(bomb)
    assert bomb.wait(60) == -9
    assert (noisy.oom_kills(), quiet.oom_kills()) == (1, 0)
    assert neighbour.poll() is None


@needs_groups
def test_a_fork_bomb_is_bounded(make: Make, start: Start) -> None:
    group = make(processes=16)
    bomb = start(
        """
born = 0
try:
    while True:
        if os.fork() == 0:
            time.sleep(600)
        born += 1
except BlockingIOError:
    print(born, flush=True)
time.sleep(600)
""",
        group,
    )
    go(bomb)
    assert line(bomb) == "15"
    facts = group.facts()
    assert facts["processes"] == 16
    assert facts["processes_refused"] == 1
    assert len(group.members()) == 16


@needs_groups
def test_a_cpu_hog_gets_its_share_and_no_more(make: Make, start: Start) -> None:
    spin = """
before, end = time.process_time(), time.monotonic() + 1
while time.monotonic() < end: pass
print(time.process_time() - before, flush=True)
"""
    # A tenth, so that it is less than what a busy machine leaves to the one without a limit.
    free, held = make(), make(cpus=0.1)
    cpu_seconds = []
    for group in (free, held):
        hog = start(spin, group)
        go(hog)
        cpu_seconds.append(float(line(hog)))
    assert cpu_seconds[1] < 0.7 * cpu_seconds[0]
    assert not free.facts()["throttled_seconds"]
    assert held.facts()["throttled_seconds"]


@needs_groups
def test_limits_can_be_set_when_a_member_is_already_in(make: Make, start: Start) -> None:
    group = make()
    bomb = start(BOMB, group)
    group.limit(memory=64 * MB, cpus=1.0, processes=8)
    go(bomb)
    assert bomb.wait(60) == -9
    assert group.oom_kills() == 1


@needs_groups
def test_children_are_counted_with_their_parents(make: Make, start: Start) -> None:
    group = make()
    parent = start("os.fork(), os.write(1, b'here\\n')\nsys.stdin.readline()", group)
    go(parent)
    assert [line(parent), line(parent)] == ["here", "here"]
    assert len(group.members()) == 2
    assert group.facts()["processes"] == 2


@needs_groups
def test_a_group_tells_its_figures(make: Make, start: Start) -> None:
    group = make(memory=256 * MB, cpus=0.5, processes=64)
    process = start(HOLD.format(30), group)
    go(process)
    assert line(process) == "held"
    facts = group.facts()
    assert facts["memory"] is not None
    assert facts["memory_peak"] is not None
    assert 30 * MB <= facts["memory"] <= facts["memory_peak"] <= 256 * MB
    assert facts["oom_kills"] == 0
    assert facts["processes"] == 1
    assert facts["processes_refused"] == 0
    assert facts["throttled_seconds"] is not None
    assert json.loads(json.dumps(facts)) == facts
    assert group.describe() in (
        "cgroup v1 (memory, cpu, pids)",
        "cgroup v2 (memory, cpu, pids)",
    )


@needs_groups
def test_a_process_can_join_by_itself_and_is_in_every_hierarchy(make: Make) -> None:
    group = make(memory=32 * MB, processes=3)

    def join() -> str:
        group.join()
        everywhere = [
            str(os.getpid()) in Path(folder, "cgroup.procs").read_text().split()
            for folder in group.folders.values()
        ]
        bomb = os.fork()
        if bomb == 0:
            kept = []
            while True:
                kept.append(bytearray(b"x") * MB)
        return f"{everywhere} {os.waitpid(bomb, 0)[1]}"

    assert forked(join) == "[True, True, True] 9"
    assert group.oom_kills() == 1


@needs_groups
def test_a_process_with_threads_does_not_join_in_parts(make: Make, start: Start) -> None:
    group = make()
    process = start(
        f"""
import threading
from kernelbox.walls.cgroups import Group, Hierarchy
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
Group({group.hierarchy!r}, {group.name!r}).join()
os.write(1, b'in\\n')
time.sleep(600)
"""
    )
    go(process)
    assert line(process) == "in"
    assert group.members() == {process.pid}
    assert group.facts()["processes"] == 2


# ------------------------------------------------------------------------------ the end


@needs_groups
def test_kill_ends_a_tree_that_forks_all_the_time(make: Make, start: Start) -> None:
    group = make(processes=100)
    bomb = start(
        """
import signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
end = time.monotonic() + 60   # should nobody kill us
while time.monotonic() < end:
    try:
        if os.fork() == 0:
            os.setsid()
            if os.getpid() % 3 == 0: os._exit(0)
    except BlockingIOError:
        os.write(1, b"full\\n")
        time.sleep(0.001)
""",
        group,
    )
    go(bomb)
    assert line(bomb) == "full"
    assert group.kill()
    assert group.members() == set()
    assert bomb.wait(10) == -9
    group.remove()
    assert not any(os.path.exists(folder) for folder in group.folders.values())


@needs_groups
def test_kill_spares_who_is_not_in_the_group(make: Make, start: Start) -> None:
    group = make()
    inside, outside = start("time.sleep(600)", group), start("print('well', flush=True)")
    assert group.kill()
    assert inside.wait(10) == -9
    go(outside)
    assert line(outside) == "well"


@needs_groups
def test_who_was_killed_leaves_a_group_that_can_be_used_again(make: Make, start: Start) -> None:
    group = make(processes=5)
    start("time.sleep(600)", group)
    assert group.kill()
    process = start("os.fork(), os.write(1, b'born\\n')", group)
    go(process)
    assert [line(process), line(process)] == ["born", "born"]


@needs_groups
def test_a_group_with_members_is_not_removed_and_says_who_is_in_it(
    make: Make, start: Start
) -> None:
    group = make()
    process = start("time.sleep(600)", group)
    with pytest.raises(GroupFailed, match=rf"still in it: {process.pid}; kill\(\) it first"):
        group.remove(patience=0.05)
    assert all(os.path.isdir(folder) for folder in group.folders.values())
    assert process.poll() is None


@needs_groups
def test_removing_twice_is_fine(make: Make) -> None:
    group = make()
    group.remove()
    group.remove()
    assert group.kill()
    assert group.oom_kills() == 0
    assert group.peak() is None


@needs_groups
def test_a_process_that_has_ended_cannot_be_added(make: Make) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    group = make()
    with pytest.raises(GroupFailed, match=f"cannot move process {ended.pid}.*it may have ended"):
        group.add(ended.pid)


# ------------------------------------------------------------------------------ all or nothing


@needs_groups
@needs_root
def test_a_group_whose_limit_is_refused_leaves_nothing_behind(
    hierarchy: Hierarchy, make: Make
) -> None:
    if hierarchy.version != 1:
        pytest.skip("v2 takes more CPU than the group above has, and keeps to the lower of the two")
    above = make(cpus=0.1)
    below = Hierarchy(1, {**hierarchy.parents, "cpu": above.folders["cpu"]})
    greedy = f"greedy-{os.getpid()}"
    with pytest.raises(GroupFailed) as caught:
        Group.create(below, greedy, memory=64 * MB, cpus=1.0, processes=10)
    assert caught.value.path == f"{above.folders['cpu']}/kernelbox-{greedy}/cpu.cfs_quota_us"
    assert "Invalid argument" in str(caught.value)
    assert "ask for no more than the group above it has" in str(caught.value)
    assert not any(map(os.path.exists, below.folders(f"kernelbox-{greedy}").values()))


@needs_groups
def test_a_name_that_is_taken_in_one_hierarchy_is_refused_and_left_alone(
    hierarchy: Hierarchy, make: Make
) -> None:
    group = make(processes=7)
    with pytest.raises(GroupFailed, match="File exists; remove it, or choose another name"):
        Group.create(hierarchy, group.name, memory=None, cpus=None, processes=9)
    if hierarchy.version == 1:
        os.rmdir(group.folders["memory"])  # taken in the others only: this one must not come back
        with pytest.raises(GroupFailed, match="File exists"):
            Group.create(hierarchy, group.name, memory=None, cpus=None, processes=9)
        assert not os.path.exists(group.folders["memory"])
    assert Path(group.folders["pids"], "pids.max").read_text() == "7\n"


@pytest.mark.parametrize("name", ["", ".", "..", "../up", "a/b", "-a", "a\n", "x" * 201])
def test_a_name_that_leads_elsewhere_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="cannot name a control group"):
        Group(Hierarchy(2, {"memory": "/nowhere"}), name)


# ------------------------------------------------------------------------------ sweep


@needs_groups
def test_sweep_removes_what_is_gone_and_empty_and_nothing_else(
    hierarchy: Hierarchy, make: Make, start: Start
) -> None:
    gone, alive, inhabited, half = make(), make(), make(), make()
    start("time.sleep(600)", inhabited)
    if hierarchy.version == 1:  # in v2 there are no halves
        os.rmdir(half.folders["pids"])
    ours = {group.name for group in (gone, alive, inhabited, half)}
    asked = []

    def is_alive(name: str) -> bool:
        asked.append(name)
        return name not in ours or name == alive.name

    assert sorted(cgroups.sweep(hierarchy, is_alive)) == sorted([gone.name, half.name])
    assert ours <= set(asked)
    for group, is_there in ((gone, False), (half, False), (alive, True), (inhabited, True)):
        assert all(os.path.isdir(folder) == is_there for folder in group.folders.values())


@needs_groups
def test_sweep_removes_the_trials_of_a_process_that_was_killed(hierarchy: Hierarchy) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    parent = hierarchy.parents["pids"]
    left, used = (
        f"{parent}/kernelbox.trial-{ended.pid}-1",
        f"{parent}/kernelbox.trial-{os.getpid()}-1",
    )
    os.mkdir(left)
    os.mkdir(used)
    try:
        cgroups.sweep(hierarchy, lambda name: True)
        assert not os.path.exists(left)
        assert os.path.exists(used)
    finally:
        os.rmdir(used)


# ------------------------------------------------------------------------------ who may


@needs_groups
def test_looking_leaves_nothing_behind(hierarchy: Hierarchy) -> None:
    assert cgroups.find() == hierarchy
    for folder in hierarchy.parents.values():
        assert not [name for name in os.listdir(folder) if f".trial-{os.getpid()}-" in name]


@needs_groups
@needs_root
def test_an_ordinary_user_is_told_why_there_is_no_group(hierarchy: Hierarchy) -> None:
    words = forked(lambda: str(cgroups.find()), uid=ORDINARY)
    assert words.startswith("no control group can be used (v2: ")
    assert "Permission denied" in words or "may not be written" in words
    assert "Delegate=yes" in words
    assert words.endswith(", or as root") == (hierarchy.version == 1)


@needs_groups
@needs_root
def test_an_ordinary_user_has_groups_where_they_were_handed_out(
    hierarchy: Hierarchy, make: Make
) -> None:
    handed = make()
    # In v2 there are processes in the leaves only: who is handed a group gets one to be in as well.
    leaves = [f"{handed.folders['pids']}/main"] if hierarchy.version == 2 else []
    for leaf in leaves:
        os.mkdir(leaf)
        os.setxattr(os.path.dirname(leaf), "user.delegate", b"1")
    for folder in (*handed.folders.values(), *leaves):
        for name in ("", "cgroup.procs", "cgroup.subtree_control"):
            with contextlib.suppress(FileNotFoundError):
                os.chown(f"{folder}/{name}", ORDINARY, ORDINARY)

    def bomb_in_a_group_of_its_own() -> str:
        for leaf in leaves:
            Path(leaf, "cgroup.procs").write_text("0")
        if not leaves:
            handed.join()
        os.setgroups([])
        os.setgid(ORDINARY)
        os.setuid(ORDINARY)
        found = cgroups.find()
        if isinstance(found, str):
            return found
        group = Group.create(found, "mine", memory=32 * MB, cpus=0.5, processes=10)
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.read(reader, 1)
            kept = []
            while True:
                kept.append(bytearray(b"x") * MB)
        group.add(pid)
        os.write(writer, b"!")
        _, status = os.waitpid(pid, 0)
        words = f"{found.parents == handed.folders} {status} {group.oom_kills()} {group.kill()}"
        group.remove()
        return words

    assert forked(bomb_in_a_group_of_its_own) == "True 9 1 True"
    for leaf in leaves:
        os.rmdir(leaf)


# ------------------------------------------------------------------------------ v2, for real
#
# Where memory, cpu and pids are v1's, v2 has none of them, wherever it is mounted. What does not
# depend on the controller is tested with one that v2 has there as well (hugetlb). All tests above are
# run for v2 by scripts/vm.


@pytest.fixture
def spare() -> Iterator[tuple[str, str]]:
    """A v2 group of ours, and the controller that it has."""
    mounts = hierarchies.parse_mounts(Path("/proc/self/mountinfo").read_text())
    points = [mount.point for mount in mounts if mount.version == 2 and mount.root == "/"]
    if not points or os.geteuid() != 0:
        pytest.skip("no cgroup v2 is mounted here, or we are not root")
    top = points[0]
    kinds = [k for k in Path(top, "cgroup.controllers").read_text().split() if k == "hugetlb"]
    if not kinds or not os.path.exists("/sys/kernel/mm/hugepages/hugepages-2048kB"):
        pytest.skip("cgroup v2 has no controller here that is free to try")
    # The switch is the machine's: another run of these tests must wait until it is as it was.
    turn = os.open(top, os.O_RDONLY)
    fcntl.flock(turn, fcntl.LOCK_EX)
    switch = Path(top, "cgroup.subtree_control")
    was_on = "hugetlb" in switch.read_text()
    if not was_on:
        switch.write_text("+hugetlb")
    folder = f"{top}/kernelbox.test-{os.getpid()}-{time.monotonic_ns()}"
    os.mkdir(folder)
    try:
        yield folder, "hugetlb"
    finally:
        for inner in (entry.path for entry in os.scandir(folder) if entry.is_dir()):
            os.rmdir(inner)
        os.rmdir(folder)
        if not was_on:
            switch.write_text("-hugetlb")
        os.close(turn)


def tried(folder: str, kind: str) -> str:
    return hierarchies.try_unified(folder, [kind], knobs={"hugetlb": "hugetlb.2MB.max"})


def test_v2_switches_its_controllers_on_in_a_group_without_processes(
    spare: tuple[str, str],
) -> None:
    folder, kind = spare
    assert tried(folder, kind) == ""
    assert Path(folder, "cgroup.subtree_control").read_text().split() == [kind]
    assert [entry for entry in os.scandir(folder) if entry.is_dir()] == []
    assert tried(folder, kind) == ""  # and once it is on


def test_v2_is_refused_in_a_group_with_processes_and_taken_when_they_are_in_a_leaf(
    spare: tuple[str, str], start: Start
) -> None:
    folder, kind = spare
    process = start("time.sleep(600)")
    Path(folder, "cgroup.procs").write_text(str(process.pid))
    assert "has processes of its own" in tried(folder, kind)
    os.mkdir(f"{folder}/main")
    Path(folder, "main/cgroup.procs").write_text(str(process.pid))
    assert tried(folder, kind) == ""
    process.kill()
    process.wait()


def test_v2_uses_the_group_above_only_where_systemd_has_marked_it_as_delegated(
    spare: tuple[str, str],
) -> None:
    folder, _ = spare
    assert not hierarchies._is_delegated(folder)
    os.setxattr(folder, "user.delegate", b"1")
    assert hierarchies._is_delegated(folder)


def test_v2_says_which_controllers_are_missing(spare: tuple[str, str]) -> None:
    folder, kind = spare
    os.mkdir(f"{folder}/inner")
    assert hierarchies.try_unified(f"{folder}/inner") == (
        f"{folder}/inner has no memory, cpu, pids (it has: nothing)"
    )
    Path(folder, "cgroup.subtree_control").write_text(f"+{kind}")
    assert f"(it has: {kind})" in hierarchies.try_unified(f"{folder}/inner")


def test_v2_kills_all_at_once_and_leaves_nothing(spare: tuple[str, str], start: Start) -> None:
    folder, _ = spare
    group = Group.create(
        Hierarchy(2, {"hugetlb": folder}), "v2", memory=None, cpus=None, processes=None
    )
    parent = start("os.fork(), os.write(1, b'here\\n')\ntime.sleep(600)", group)
    go(parent)
    assert [line(parent), line(parent)] == ["here", "here"]
    assert len(group.members()) == 2
    assert group.kill()
    assert parent.wait(10) == -9
    group.remove()
    assert not os.path.exists(group.folders["hugetlb"])


# ------------------------------------------------------------------------------ v2, on paper
#
# Fakes: plain files with the names and contents of a v2 kernel's, for machines whose kernel has no v2
# with memory, cpu and pids. They prove what we write and read, not what the kernel makes of it: that
# does scripts/vm.


@pytest.fixture
def paper(tmp_path: Path) -> Group:
    group = Group(Hierarchy(2, dict.fromkeys(hierarchies.CONTROLLERS, str(tmp_path))), "paper")
    folder = tmp_path / "kernelbox-paper"
    folder.mkdir()
    for name, text in {
        "memory.max": "max\n",
        "memory.swap.max": "max\n",
        "memory.current": "31457280\n",
        "memory.peak": "67104768\n",
        "memory.events": "low 0\nhigh 0\nmax 12\noom 2\noom_kill 1\noom_group_kill 0\n",
        "cpu.max": "max 100000\n",
        "cpu.stat": "usage_usec 5000\nnr_periods 9\nnr_throttled 8\nthrottled_usec 1500000\n",
        "pids.max": "max\n",
        "pids.current": "3\n",
        "pids.events": "max 4\n",
        "cgroup.procs": "",
    }.items():
        (folder / name).write_text(text)
    return group


def test_on_paper_v2_limits_are_written_as_the_kernel_reads_them(paper: Group) -> None:
    names = ("memory.max", "memory.swap.max", "cpu.max", "pids.max")
    for name in names:
        Path(paper.folders["memory"], name).write_text("")  # the kernel's are replaced, not kept
    paper.limit(memory=64 * MB, cpus=0.25, processes=16)
    written = {name: Path(paper.folders["memory"], name).read_text() for name in names}
    assert written == {
        "memory.max": "67108864",
        "memory.swap.max": "0",
        "cpu.max": "25000 100000",
        "pids.max": "16",
    }


def test_on_paper_a_kernel_without_swap_needs_no_limit_on_it(paper: Group) -> None:
    os.unlink(f"{paper.folders['memory']}/memory.swap.max")
    paper.limit(memory=64 * MB)
    assert not os.path.exists(f"{paper.folders['memory']}/memory.swap.max")
    os.unlink(f"{paper.folders['memory']}/memory.max")
    with pytest.raises(GroupFailed, match="cannot limit memory"):
        paper.limit(memory=64 * MB)


def test_on_paper_v2_figures_are_read(paper: Group) -> None:
    assert paper.facts() == {
        "memory": 30 * MB,
        "memory_peak": 67104768,
        "oom_kills": 1,
        "throttled_seconds": 1.5,
        "processes": 3,
        "processes_refused": 4,
    }
    os.unlink(f"{paper.folders['memory']}/memory.peak")  # before Linux 5.19
    assert paper.peak() is None
    assert paper.describe() == "cgroup v2 (memory, cpu, pids)"


def test_on_paper_the_least_cpu_share_is_what_the_kernel_takes() -> None:
    least = cgroups.settings(1, memory=None, cpus=0.0001, processes=None)
    assert [(one.file, one.value) for one in least] == [
        ("cpu.cfs_period_us", "100000"),
        ("cpu.cfs_quota_us", "1000"),
    ]


MOUNTS = r"""23 1 8:1 / / rw - ext4 /dev/vda rw
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 master:1 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 /docker/abc /a\040place/memory rw,relatime - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw,nsdelegate
"""


def test_mounts_are_found_wherever_they_are() -> None:
    assert hierarchies.parse_mounts(MOUNTS) == [
        Mount(1, "/", "/sys/fs/cgroup/cpu,cpuacct", frozenset({"rw", "cpu", "cpuacct"})),
        Mount(1, "/docker/abc", "/a place/memory", frozenset({"rw", "memory"})),
        Mount(2, "/", "/sys/fs/cgroup/unified", frozenset()),
    ]


def test_our_group_is_known_for_each_controller() -> None:
    text = "4:memory:/a:b\n2:cpu,cpuacct:/x\n1:name=systemd:/s\n0::/user.slice\n"
    assert hierarchies.parse_groups(text) == {
        "memory": "/a:b",
        "cpu": "/x",
        "cpuacct": "/x",
        "name=systemd": "/s",
        "": "/user.slice",
    }


@pytest.mark.parametrize(
    ("path", "root", "expected"),
    [
        ("/", "/", ""),
        ("/one/two", "/", "one/two"),
        ("/docker/abc", "/docker/abc", ""),
        ("/docker/abc/one", "/docker/abc", "one"),
        ("/docker/abcd", "/docker/abc", None),  # another group whose name begins alike
        ("/", "/docker/abc", None),  # above what is mounted
        ("/../other", "/", None),  # outside of our cgroup namespace
        ("/gone (deleted)", "/", None),
    ],
)
def test_our_group_is_found_where_it_is_mounted(
    tmp_path: Path, path: str, root: str, expected: str | None
) -> None:
    (tmp_path / "one/two").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    found = hierarchies.own_folder(path, [Mount(2, root, str(tmp_path), frozenset())])
    assert found == (None if expected is None else str(tmp_path / expected).rstrip("/"))


def test_on_paper_words_say_why_there_is_no_group(tmp_path: Path) -> None:
    point = tmp_path / "a place"
    (point / "ours").mkdir(parents=True)
    escaped = str(point).replace(" ", r"\040")
    process = tmp_path / "proc"
    process.mkdir()
    (process / "cgroup").write_text("0::/ours\n")
    (process / "mountinfo").write_text(f"41 31 0:38 / {escaped} rw - cgroup2 cgroup2 rw\n")
    (point / "ours/cgroup.controllers").write_text("cpu io memory\n")
    assert f"{point}/ours has no pids (it has: cpu, io, memory)" in str(cgroups.find(str(process)))
    (point / "ours/cgroup.controllers").write_text("cpu io memory pids\n")
    assert "cgroup.subtree_control: No such file" in str(cgroups.find(str(process)))
    (point / "ours/cgroup.subtree_control").write_text("memory cpu pids\n")
    assert "cgroup.procs may not be written" in str(cgroups.find(str(process)))
    (point / "ours/cgroup.procs").write_text("")
    # Only a kernel puts files into a folder that is made.
    words = str(cgroups.find(str(process)))
    assert "has no memory.max that we may write" in words
    assert "v1: there is no memory controller" in words
    assert "or as root" not in words  # whom v2 would refuse it in the same words
    assert sorted(os.listdir(point / "ours")) == [
        "cgroup.controllers",
        "cgroup.procs",
        "cgroup.subtree_control",
    ]


def test_on_paper_a_process_without_any_control_group_is_told_so(tmp_path: Path) -> None:
    words = str(cgroups.find(str(tmp_path)))
    assert "v2: not in this kernel; v1: there is no memory controller" in words


# ------------------------------------------------------------------------------ the watcher


def family(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *map(int, children)]


FAMILY = """
import mmap
kept = [bytearray(b'x') * (60 << 20)]
inlet, outlet = os.pipe()
for n in range(4):
    if os.fork() == 0:
        os.read(inlet, 1)
        kept.append(bytearray(b'x') * (80 << 20))
        os.write(1, b'more\\n')
        time.sleep(600)
print('ready', flush=True)
sys.stdin.readline()
os.write(outlet, b'!')
sys.stdin.readline()
"""


@contextlib.contextmanager
def ended_with_children(process: subprocess.Popen[str]) -> Iterator[None]:
    try:
        yield
    finally:
        for pid in family(process.pid)[1:]:
            os.kill(pid, 9)


def test_pages_that_members_share_are_counted_once(start: Start) -> None:
    parent = start(FAMILY)
    go(parent)
    assert line(parent) == "ready"
    with ended_with_children(parent):
        watcher = Watcher(lambda: family(parent.pid), 120 * MB)
        assert sum(_resident(pid) for pid in family(parent.pid)) > 300 * MB
        assert watcher.over() is None
        go(parent)  # one of the copies takes memory of its own
        assert line(parent) == "more"
        found = watcher.over()
        assert found is not None
        pid, total = found
        assert pid in family(parent.pid)[1:]
        assert 140 * MB < total < 180 * MB


def test_shared_memory_without_a_file_is_counted(start: Start) -> None:
    process = start(
        "import mmap\nheld = mmap.mmap(-1, 50 << 20)\nheld.write(b'x' * (50 << 20))\n"
        "print('held', flush=True)\nsys.stdin.readline()"
    )
    go(process)
    assert line(process) == "held"
    found = Watcher(lambda: [process.pid], 50 * MB).over()
    assert found is not None
    assert found[0] == process.pid
    assert Watcher(lambda: [process.pid], 90 * MB).over() is None


@needs_root
def test_a_member_that_may_not_be_looked_into_is_counted_all_the_same(start: Start) -> None:
    process = start(HOLD.format(50))
    go(process)
    assert line(process) == "held"

    def look() -> str:
        watcher = Watcher(lambda: [process.pid], 40 * MB)
        return f"{_share(process.pid)} {watcher.over() is not None}"

    assert forked(look, uid=ORDINARY) == "None True"


def test_a_member_that_has_ended_counts_nothing() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    watcher = Watcher(lambda: [ended.pid], 0)
    assert watcher.over() is None
    assert watcher.processes_over(0) is None


def test_processes_are_counted_with_their_threads(start: Start) -> None:
    process = start(
        "import threading\n"
        "for _ in range(5): threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
        "print('ready', flush=True)\nsys.stdin.readline()"
    )
    go(process)
    assert line(process) == "ready"
    watcher = Watcher(lambda: [process.pid], MB)
    assert watcher.processes_over(6) is None
    assert watcher.processes_over(5) == 6
