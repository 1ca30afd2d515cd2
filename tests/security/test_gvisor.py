"""Promise: what fails behind our own walls fails in gVisor, too. The same attacks, the other driver.

One sandbox for the strictest profile and one for the widest: what lies between has no wall of its
own. That each probe works where there are no walls is shown where it is written.
"""

from __future__ import annotations

import os
import runpy
import signal
import socket
from pathlib import Path
from typing import Any

import psutil
import pytest
from probes import PROFILES, Probe, Sandboxes, groups_of, hole, walled
from processes import below, living, wait_until

from kernelbox import Box, KernelRecord, StartupFailed
from kernelbox.walls import drivers, gvisor

TRIED = ("restrictive", "permissive")
WALLS = {name: PROFILES[name].but(driver="gvisor", name=f"{name}-gvisor") for name in TRIED}

FILES = ("host_files", "kernel_surface", "network", "processes", "writing_outside")


def module(name: str) -> dict[str, Any]:
    return runpy.run_path(str(Path(__file__).with_name(f"test_{name}.py")))


PROBES: list[Probe] = [probe for name in FILES for probe in module(name)["PROBES"]]
COPIES = module("branches_and_checkpoints")


KNOWN = {
    "a safer place from the OOM killer": "gVisor takes the word, and does nothing",
}
"""What is different in gVisor, and why it leads nowhere."""
IN_OLD_ONES = {
    "calls by another table of numbers": "runsc of 2022 has one table: int 0x80 is answered by the "
    "numbers of x86-64, and those are filtered",
}
"""The same, and a newer runsc is not different."""


class InGvisor(Sandboxes):
    """The same sandboxes, by the other driver."""

    def kernel(self, profile: str) -> KernelRecord:
        if profile not in self._kernels:
            if words := drivers.cannot_enforce(WALLS[profile]):
                pytest.skip(words)
            self._kernels[profile] = self.box.get_or_create(
                f"{profile}-gvisor", cwd=self.folder, profile=WALLS[profile]
            )
        return self._kernels[profile]


@pytest.fixture(scope="module")
def caged(sandboxes: Sandboxes) -> InGvisor:
    if obstacle := gvisor.obstacle():
        pytest.skip(f"no sandbox of gVisor can be had here: {obstacle}")
    sandboxes.words["mark"] = "gvisor"
    return InGvisor(sandboxes.box, sandboxes.folder, sandboxes.words)


def attacks() -> list[Any]:
    found = [each for each in walled(PROBES) if each.values[1] in TRIED]
    marks = {name: hole(reason) for name, reason in KNOWN.items()}
    marks |= {name: pytest.mark.xfail(reason=reason) for name, reason in IN_OLD_ONES.items()}
    return [
        pytest.param(*each.values, id=each.id, marks=marks.get(each.values[0].name, ()))
        for each in found
    ]


@pytest.mark.parametrize(("probe", "profile"), attacks())
def test_it_fails_in_gvisor_too(caged: InGvisor, probe: Probe, profile: str) -> None:
    caged.must_fail(probe, profile)


@pytest.mark.parametrize("profile", TRIED)
def test_nothing_is_told_of_pid_1(caged: InGvisor, profile: str) -> None:
    probe = Probe(
        "what is told of pid 1",
        "for folder in ('/proc/1', '/proc/1/task', '/proc/1/task/1', '/proc/1/fd'):\n"
        "    try: breach(folder) if os.listdir(folder) else denied(folder)\n"
        "    except OSError as error: denied(error)\n"
        "for act in (lambda: os.mkdir('/proc/1/x'), lambda: open('/proc/1/x', 'w')):\n"
        "    try: act(); breach()\n"
        "    except OSError as error: denied(error)",
    )
    caged.must_fail(probe, profile)


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="machine code of x86_64")
@pytest.mark.parametrize("profile", TRIED)
def test_a_call_by_the_old_gate_meets_the_same_filter(caged: InGvisor, profile: str) -> None:
    """There is one table of numbers, and what is forbidden in it is forbidden by this gate, too;
    or, with a newer runsc, whoever takes this gate dies."""
    probe = Probe(
        "forbidden calls by int 0x80",
        """
import mmap
from kernelbox.walls.syscalls import numbers
page = mmap.mmap(-1, 4096, prot=7)
page.write(b'\\x89\\xf8\\xcd\\x80\\xc3')  # mov eax, edi; int 0x80; ret
by_old_gate = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(
    ctypes.addressof(ctypes.c_char.from_buffer(page)))
def act():
    if by_old_gate(numbers('x86_64')['getpid']) != os.getpid(): breach('another table')
    for name in ('ptrace', 'mount', 'unshare', 'bpf', 'keyctl', 'io_uring_setup', 'userfaultfd'):
        done = by_old_gate(numbers('x86_64')[name])
        denied(name) if done == -errno.EPERM else breach(f'{name}: {done}')
in_child(act)
""",
    )
    caged.must_fail(probe, profile)


@pytest.mark.parametrize("profile", TRIED)
def test_pid_1_and_the_ferry_cannot_be_ended_from_inside(caged: InGvisor, profile: str) -> None:
    kernel = caged.kernel(profile)
    caged.box.execute(kernel, "alive = 1")
    result = caged.box.execute(
        kernel,
        "import os, signal\nfor pid in (p for p in map(int, filter(str.isdigit, os.listdir('/proc')))"
        " if p != os.getpid()):\n"
        "    for number in (signal.SIGTERM, signal.SIGSTOP, signal.SIGSEGV, signal.SIGKILL):\n"
        "        try: os.kill(pid, number); print(open(f'/proc/{pid}/comm').read())\n"
        "        except OSError: pass",
    )
    assert "kb-stub" not in result.output
    assert "kb-ferry" not in result.output
    assert caged.box.execute(kernel, "alive").return_value == "1"


def test_a_sandbox_that_hangs_is_ended(caged: InGvisor) -> None:
    """If its whole kernel stands still, nobody in it can be told to end anything."""
    box = caged.box
    kernel = box.get_or_create("hangs", profile=WALLS["restrictive"])
    assert box.execute(kernel, "1+1").return_value == "2"
    (warden,) = [p["pid"] for p in box.status(kernel)["processes"] if p["role"] == "warden"]
    everybody = below(warden)
    for process in psutil.Process(warden).children(recursive=True):
        if "boot" in process.cmdline():
            process.suspend()
    result = box.execute(kernel, "1+1", timeout=1)
    assert result.state == "lost"
    assert "did not answer" in (result.cause or ""), result
    wait_until(lambda: not living(everybody), what="the sandbox to end", seconds=8)


def test_copies_stay_behind_the_same_walls(caged: InGvisor) -> None:
    """One sandbox, and in it one step after the other: branches, rewinds, restarts, deaths."""
    name, box = "steps-gvisor", caged.box
    box.get_or_create(name, cwd=caged.folder, profile=WALLS["restrictive"])
    for step in COPIES["STEPS"].values():
        box.execute(name, "x = 'first'")
        copy = step(box, name)
        for probe in COPIES["TELLING"]:
            caged.must_fail(probe, "restrictive", kernel=copy)
        if copy != name:
            box.destroy(copy)
    box.destroy(name)


@pytest.mark.parametrize("who", ["warden", "stub"])
def test_if_one_of_ours_is_killed_all_of_it_ends(caged: InGvisor, who: str) -> None:
    """The stub that the warden knows is the process that has started runsc."""
    box = caged.box
    kernel = box.get_or_create(f"orphaned-{who}", profile=WALLS["restrictive"])
    assert box.execute(kernel, "import subprocess; subprocess.Popen(['sleep', '600'])").ok
    pids = {each["role"]: each["pid"] for each in box.status(kernel)["processes"]}
    everybody = below(pids["warden"])
    os.kill(pids[who], signal.SIGKILL)
    wait_until(lambda: not living(everybody), what="the sandbox to end", seconds=8)
    folder = Path(caged.words["runtime"]) / f"walls-{kernel.kernel_id}"
    wait_until(lambda: not folder.exists(), what="its folder to go", seconds=8)
    wait_until(lambda: not groups_of([kernel.kernel_id]), what="its groups to go", seconds=8)


def test_a_copy_that_gives_the_pid_of_another_harms_nobody(caged: InGvisor) -> None:
    """Outside, nobody sees who it is; so it can lie."""
    box, kernel = caged.box, caged.kernel("restrictive")
    lie = "import os; mine = os.getpid(); truth = os.getpid; os.getpid = lambda: mine"
    assert box.execute(kernel, lie).ok
    with pytest.raises(StartupFailed, match="it was another"):
        box.branch(kernel, "liar")
    box.checkpoint(kernel, "a lie")
    box.drop_checkpoint(kernel, "a lie")
    assert box.execute(kernel, "os.getpid = truth; os.getpid() == mine").return_value == "True"
    copy = box.branch(kernel, "honest")
    assert box.execute(copy, "os.getpid() == mine").return_value == "False"
    box.destroy(copy)


def test_a_unix_socket_in_a_folder_that_is_shown_is_out_of_reach(
    caged: InGvisor, host: dict[str, str]
) -> None:
    path = Path(host["work"]) / "host.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        probe = Probe("socket", f"socket.socket(socket.AF_UNIX).connect({str(path)!r}); breach()")
        caged.must_fail(probe, "permissive")
    path.unlink()


def test_our_home_inside_the_callers_folder_is_out_of_reach(
    caged: InGvisor, box: Box, tmp_path: Path
) -> None:
    """It is ``home`` in the caller's folder here, as ``.kernelbox`` is as a rule."""
    if words := drivers.cannot_enforce(WALLS["permissive"]):
        pytest.skip(words)
    kernel = box.get_or_create("walled", cwd=str(tmp_path), profile=WALLS["permissive"])
    opened = box.get_or_create("open")
    for code in (
        "import os; print(os.listdir('home'))",
        "os.rename('home', 'moved')",
        "os.rename('.', '../moved')",
        "os.link('home/registry.json', 'r')",
        "print(os.listdir('home/runtime'))",
        "print(open('home/registry.json').read())",
    ):
        result = box.execute(kernel, code)
        assert result.error is not None, result
        assert result.error.ename in ("PermissionError", "FileNotFoundError", "OSError"), result
    assert box.execute(kernel, "open('mine', 'w').write('x')").ok
    assert (tmp_path / "mine").read_text() == "x"
    assert box.execute(opened, "1+1").return_value == "2"
    for record in (opened, kernel):
        box.destroy(record)
    assert (tmp_path / "mine").exists()
    assert (tmp_path / "home").is_dir(), "what clears up must not come upon the caller's files"


def test_its_kernel_is_not_the_hosts(caged: InGvisor) -> None:
    kernel = caged.kernel("restrictive")
    seen = caged.box.execute(kernel, "print(open('/proc/version').read())").output
    assert seen.strip() != Path("/proc/version").read_text().strip()


def test_a_fork_bomb_ends_at_its_limit(caged: InGvisor) -> None:
    kernel = caged.kernel("restrictive")
    code = (
        "import os, time\nkids = []\n"
        "try:\n    while len(kids) < 200:\n        child = os.posix_spawn('/usr/bin/sleep', "
        "['sleep', '60'], {})\n        kids.append(child)\n"
        "except OSError as error: print(error.strerror)\n"
        "for kid in kids: os.kill(kid, 9)\nfor kid in kids: os.waitpid(kid, 0)\nprint(len(kids) < 65)"
    )
    result = caged.box.execute(kernel, code, timeout=60)
    assert result.output == "Resource temporarily unavailable\nTrue\n", result
