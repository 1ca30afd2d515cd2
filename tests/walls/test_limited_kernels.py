"""Real kernels in real control groups, of whichever version this machine has: what a profile allows
is what a family gets, its branches and checkpoints included, and nothing is left of it.

``scripts/vm`` runs these on a stock kernel with cgroup v2, for who has v1 or none.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from processes import below, wait_until

from kernelbox import Box, ExecutionResult, KernelRecord
from kernelbox.walls import cgroups, locks, ways
from kernelbox.walls.cgroups import Group, Hierarchy
from kernelbox.walls.profiles import PROFILES

FOUND = cgroups.find()
WAY = ways.look()
OBSTACLE = locks.attempt() if WAY.kind == "locks" else WAY.why
LIMITED = [
    name for name in ("restrictive", "moderate") if not ways.cannot_offer(PROFILES[name], WAY)
]
PATIENCE = 120.0
"""Seconds, for a cell: an emulated machine is twenty times as slow."""

needs_groups = pytest.mark.skipif(isinstance(FOUND, str), reason=str(FOUND))
pytestmark = [
    pytest.mark.skipif(bool(OBSTACLE), reason=f"no walls can be built here: {OBSTACLE}"),
    pytest.mark.timeout(300),
]

Run = Callable[..., ExecutionResult]
Start = Callable[[str], KernelRecord]


@pytest.fixture(scope="module", autouse=True)
def resident(shared_box: Box) -> Iterator[None]:
    """Keeps the keeper here between two tests: to start it takes an emulated machine half a minute."""
    kernel = shared_box.get_or_create("resident", profile="open")
    yield
    shared_box.destroy(kernel)


@pytest.fixture
def start(shared_box: Box, tmp_path: Path) -> Iterator[Start]:
    """Kernels that are gone when the test is over, with their groups."""
    made: list[KernelRecord] = []

    def start(profile: str) -> KernelRecord:
        name = f"{profile}-{time.monotonic_ns()}"
        made.append(shared_box.get_or_create(name, cwd=str(tmp_path), profile=profile))
        return made[-1]

    yield start
    for kernel in made:
        shared_box.destroy(kernel)
        assert groups_of(kernel) == []


@pytest.fixture(params=LIMITED)
def kernel(request: pytest.FixtureRequest, start: Start) -> KernelRecord:
    return start(request.param)


@pytest.fixture
def run(shared_box: Box, kernel: KernelRecord) -> Run:
    def run(code: str, **options: object) -> ExecutionResult:
        return shared_box.execute(kernel, code, **{"timeout": PATIENCE, **options})  # type: ignore[arg-type]

    return run


def group_of(kernel: KernelRecord) -> Group:
    assert isinstance(FOUND, Hierarchy)
    return Group(FOUND, kernel.kernel_id)


def groups_of(kernel: KernelRecord) -> list[str]:
    if isinstance(FOUND, str):
        return []
    return [folder for folder in group_of(kernel).folders.values() if os.path.exists(folder)]


def members(box: Box, kernel: KernelRecord) -> set[int]:
    """Those of a kernel's processes that user code has been in, or may be."""
    ours = ("warden", "stub")
    return {p["pid"] for p in box.status(kernel)["processes"] if p["role"] not in ours}


@needs_groups
def test_a_kernel_says_what_limits_it(shared_box: Box, kernel: KernelRecord, run: Run) -> None:
    assert isinstance(FOUND, Hierarchy)
    assert run("1+1").return_value == "2"
    assert f"limits: {FOUND.describe()}" in kernel.notes
    walls = shared_box.status(kernel)["walls"]
    assert walls["limited_by"] == f"cgroup v{FOUND.version} (memory, cpu, pids)"
    assert 0 < walls["memory"] <= walls["memory_peak"]
    assert walls["processes"] > 0
    assert (walls["oom_kills"], walls["processes_refused"]) == (0, 0)


@needs_groups
def test_the_limits_of_its_group_are_those_of_the_profile(kernel: KernelRecord) -> None:
    profile, group = PROFILES[kernel.profile], group_of(kernel)
    assert profile.memory is not None
    assert profile.cpus is not None
    wanted = cgroups.settings(
        group.hierarchy.version,
        memory=profile.memory,
        cpus=profile.cpus,
        processes=profile.processes,
    )
    for setting in wanted:
        path = Path(group.folders[setting.controller], setting.file)
        if setting.optional and not path.exists():
            continue
        value = path.read_text().strip()
        if setting.controller == "memory" and setting.value != "0":  # it counts in pages
            assert 0 <= int(setting.value) - int(value) < 4096, setting
        else:
            assert value == setting.value, setting


@needs_groups
def test_a_memory_bomb_is_a_result_that_says_so(
    shared_box: Box, kernel: KernelRecord, run: Run
) -> None:
    limit = PROFILES[kernel.profile].memory
    assert limit is not None
    result = run("kept = []\nwhile True: kept.append(bytearray(b'x') * 5_000_000)")
    assert (result.status, result.state) == ("error", "lost")
    assert result.error is not None
    assert result.error.ename == "OutOfMemory"
    assert (result.cause or "").startswith("out of memory: the kernel's OOM killer ended")
    allowed = f"its profile {kernel.profile!r} allows {limit >> 20} MiB"
    assert (result.cause or "").endswith(allowed)
    if group_of(kernel).peak() is not None:
        assert re.search(r"; the sandbox had \d+ MiB, and its profile", result.cause or "")
    walls = shared_box.status(kernel)["walls"]
    assert walls["oom_kills"] == 1
    assert 0.95 * limit < walls["memory_peak"] < 1.02 * limit
    after = run("'kept' in globals()")
    assert (after.return_value, after.epoch) == ("False", 2)


@needs_groups
def test_a_fork_bomb_ends_at_what_is_allowed(
    shared_box: Box, kernel: KernelRecord, run: Run
) -> None:
    limit = PROFILES[kernel.profile].processes
    assert limit is not None
    result = run(
        "import os, signal\nchildren = []\ntry:\n    while True:\n"
        "        pid = os.fork()\n        if pid == 0: signal.pause()\n        children.append(pid)\n"
        "except BlockingIOError: print('no more')\n"
    )
    assert result.output == "no more\n", result.error
    # Who has refused the next one may as well be the rlimit, which is the same number.
    assert shared_box.status(kernel)["walls"]["processes"] == limit
    well = run("for pid in children: os.kill(pid, 9); os.waitpid(pid, 0)\n1+1")
    assert well.return_value == "2", well.error


@needs_groups
def test_a_hog_of_processors_is_held_to_its_share(
    shared_box: Box, kernel: KernelRecord, run: Run
) -> None:
    share = PROFILES[kernel.profile].cpus
    assert share is not None
    # Two at a time, so that a whole processor is less than what they want.
    result = run(
        "import os, time\npid = os.fork()\n"
        "began, cpu, end = time.monotonic(), time.process_time(), time.monotonic() + 3\n"
        "while time.monotonic() < end: pass\n"
        "used, took = time.process_time() - cpu, time.monotonic() - began\n"
        "if pid == 0: os._exit(0)\n"
        "os.waitpid(pid, 0)\nended = os.times()\n"
        "print((used + ended.children_user + ended.children_system) / took)"
    )
    got = float(result.output)
    assert got < share * 1.2 + 0.1, result  # a period more or less at either end
    if got > 0.9 * share:  # a busy machine leaves it less
        assert shared_box.status(kernel)["walls"]["throttled_seconds"] > 0


@needs_groups
def test_branches_checkpoints_and_bash_are_counted_with_the_family(
    shared_box: Box, kernel: KernelRecord, run: Run
) -> None:
    run("x = bytearray(b'x') * 1_000_000")
    shared_box.checkpoint(kernel)
    run("echo hello", language="bash")
    branch = shared_box.branch(kernel, f"{kernel.name}-branch")
    assert run("import subprocess; p = subprocess.Popen(['sleep', '600']); p.poll()").ok
    inside = members(shared_box, kernel) | members(shared_box, branch)
    assert len(inside) == 4  # the interpreter, its checkpoint, bash, the branch
    held = group_of(kernel).members()
    assert inside <= held
    assert [p for p in held if psutil.Process(p).name() == "sleep"]
    assert groups_of(branch) in ([], groups_of(kernel))  # it has none of its own
    status = shared_box.status(branch)["walls"]
    assert status["processes"] >= len(held)
    shared_box.destroy(branch)


@needs_groups
@pytest.mark.skipif("moderate" not in LIMITED, reason="no walls with a network here")
def test_the_gate_works_within_the_limits_of_its_sandbox(shared_box: Box, start: Start) -> None:
    kernel = start("moderate")
    (warden,) = (p["pid"] for p in shared_box.status(kernel)["processes"] if p["role"] == "warden")

    def gates() -> set[int]:
        return {p.pid for p in below(warden) if p.name() == "kb-gate"}

    wait_until(lambda: gates() and gates() <= group_of(kernel).members(), what="the gate to join")


@needs_groups
def test_all_that_was_forked_dies_of_one_limit(shared_box: Box, kernel: KernelRecord) -> None:
    limit = PROFILES[kernel.profile].memory
    assert limit is not None
    branches = [kernel, *(shared_box.branch(kernel, f"{kernel.name}-{n}") for n in range(2))]
    fill = f"data = bytearray(b'x') * {limit * 2 // 5}"
    for one in branches:
        shared_box.execute(one, fill, timeout=PATIENCE)
    answers = [
        shared_box.execute(one, "'data' in globals()", timeout=PATIENCE).return_value
        for one in branches
    ]
    assert answers.count("True") == 2
    assert shared_box.status(kernel)["walls"]["oom_kills"] == 1
    for one in branches[1:]:
        shared_box.destroy(one)


@needs_groups
def test_a_kernel_that_is_destroyed_leaves_no_group(shared_box: Box, start: Start) -> None:
    for profile in LIMITED:
        kernel = start(profile)
        shared_box.execute(
            kernel, "import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True)"
        )
        there = groups_of(kernel)
        assert there
        assert shared_box.destroy(kernel)
        assert groups_of(kernel) == []


@needs_groups
@pytest.mark.skipif(WAY.kind == "locks", reason="it cannot read of /proc at all")
def test_what_is_inside_sees_nothing_of_the_groups_of_the_host(
    kernel: KernelRecord, run: Run
) -> None:
    said = run("print(open('/proc/self/cgroup').read())").output
    paths = {line.split(":", 2)[2] for line in said.split()}
    assert not [path for path in paths if "kernelbox" in path], said
    if isinstance(FOUND, Hierarchy) and FOUND.version == 2:
        assert paths == {"/"}


@pytest.mark.skipif(not isinstance(FOUND, str), reason="there are control groups here")
def test_where_no_group_can_be_had_a_kernel_says_why_and_what_counts_instead(
    kernel: KernelRecord, run: Run
) -> None:
    assert run("1+1").return_value == "2"
    (note,) = [note for note in kernel.notes if note.startswith("limits")]
    assert note.startswith(
        "limits without a control group: memory is looked at four times a second"
    )
    assert str(FOUND) in note
    result = run("kept = []\nwhile True: kept.append(bytearray(b'x') * 5_000_000)")
    assert (result.cause or "").startswith("out of memory: the sandbox used")
