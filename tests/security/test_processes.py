"""Promise: no process of the host is seen, signalled or read, and none of the sandbox outlives it."""

from __future__ import annotations

import contextlib
import os
import signal

import psutil
import pytest
from probes import (
    ALL,
    PROFILES,
    Probe,
    Sandboxes,
    bash,
    controlled,
    groups_of,
    remove_groups,
    walled,
)
from processes import below, living, wait_until

PROBES = [
    Probe("a process of the host by its pid", "os.kill(@pid@, 0); breach()"),
    Probe("a process of the host by its folder", "os.stat('/proc/@pid@'); breach()", leak="the list of processes"),
    bash("processes of the host by ps", "ps -e -o args= | grep -v grep | grep -q 'kernelbox-test-' && echo BREACH", control="ps -e -o args= | grep -q kernelbox && echo BREACH"),
    Probe("more processes than its own", "pids = [int(p) for p in os.listdir('/proc') if p.isdigit()]\nbreach(pids) if len(pids) > 12 else denied(pids)", leak="the list of processes"),
    Probe("signals to all pids there could be", """
for pid in [*range(3, 4000), *range(@pid@ - 50, @pid@ + 50)]:
    if pid == os.getpid(): continue
    try:
        os.kill(pid, 0)
        line = open(f'/proc/{pid}/stat').read()
        if OPEN or 'kb-' not in line and 'bash' not in line and 'python' not in line: breach(line)
    except OSError: pass
"""),
    Probe("the memory of pid 1", "open('/proc/1/mem', 'rb').close(); breach()", control="open(f'/proc/{os.getppid()}/mem', 'rb').close(); breach()"),
    Probe("the maps of pid 1", "breach() if open('/proc/1/maps').read() else denied()", control="breach() if open(f'/proc/{os.getppid()}/maps').read() else denied()"),
    Probe("the variables of pid 1", "breach() if open('/proc/1/environ').read() else denied()", control="breach() if open(f'/proc/{os.getppid()}/environ').read() else denied()"),
    Probe("the descriptors of pid 1", "breach(os.listdir('/proc/1/fd'))", control="breach(os.listdir(f'/proc/{os.getppid()}/fd'))"),
    Probe("the control socket of pid 1, by its number", """
for number in range(40):
    for path in (f'/proc/1/fd/{number}', f'/proc/1/task/1/fd/{number}'):
        try: os.open(path, os.O_RDWR); breach(path)
        except OSError: pass
""", control="os.listdir(f'/proc/{os.getppid()}/task/{os.getppid()}/fd'); breach()"),
    Probe("a descriptor of pid 1", "fd = os.pidfd_open(1)\nfor n in range(10): attempt('pidfd_getfd', fd, n, 0)",
          control="fd = os.pidfd_open(os.getppid())\nattempt('pidfd_getfd', fd, 0, 0)"),
    Probe("tracing pid 1", "attempt('ptrace', 16, 1, 0, 0)",
          control="child = subprocess.Popen(['sleep', '9'])\nattempt('ptrace', 0x4206, child.pid, 0, 0); child.kill(); child.wait()"),
    Probe("tracing a child", "child = subprocess.Popen(['sleep', '9'])\nattempt('ptrace', 0x4206, child.pid, 0, 0); child.kill(); child.wait()"),
    Probe("the memory of pid 1 by process_vm_readv", """
buffer = ctypes.create_string_buffer(8)
vector = struct.pack('QQ', ctypes.addressof(buffer), 8)
attempt('process_vm_readv', 1, vector, 1, vector, 1, 0)
""", control="""
buffer = ctypes.create_string_buffer(8)
vector = struct.pack('QQ', ctypes.addressof(buffer), 8)
attempt('process_vm_readv', os.getpid(), vector, 1, vector, 1, 0)
"""),
    Probe("the memory of a child by process_vm_writev", """
buffer = ctypes.create_string_buffer(8)
vector = struct.pack('QQ', ctypes.addressof(buffer), 8)
attempt('process_vm_writev', os.getpid(), vector, 1, vector, 1, 0)
"""),
    Probe("comparing descriptors with pid 1", "attempt('kcmp', 1, os.getpid(), 0, 0, 0)", control="attempt('kcmp', os.getpid(), os.getpid(), 0, 0, 0)"),
    Probe("the group it is limited by", """
for path in ('/sys/fs/cgroup', '/cgroup'):
    try: breach(os.listdir(path)) if os.listdir(path) else denied()
    except OSError as error: denied(error)
breach() if any(line.strip().split(':')[2] != '/' for line in open('/proc/self/cgroup')) else denied()
"""),
]  # fmt: skip


@pytest.mark.parametrize(("probe", "profile"), walled(PROBES))
def test_no_process_of_the_host_is_reached(
    sandboxes: Sandboxes, probe: Probe, profile: str
) -> None:
    sandboxes.must_fail(probe, profile)


@pytest.mark.parametrize("probe", controlled(PROBES))
def test_without_walls_one_is(sandboxes: Sandboxes, probe: Probe) -> None:
    sandboxes.must_succeed(probe)


@pytest.mark.parametrize("profile", ALL)
def test_pid_1_cannot_be_ended_from_inside(sandboxes: Sandboxes, profile: str) -> None:
    kernel = sandboxes.kernel(profile)
    before = sandboxes.box.execute(kernel, "import os, signal; alive = 1; os.getpid()").return_value
    result = sandboxes.box.execute(
        kernel,
        "for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV, 64):\n"
        "    os.kill(1, number)\n"
        "fd = os.pidfd_open(1)\nsignal.pidfd_send_signal(fd, signal.SIGKILL)\nos.close(fd)\n"
        "try: os.kill(-1, signal.SIGKILL)\nexcept OSError: pass",
    )
    assert result.state == "kept", result
    after = sandboxes.box.execute(kernel, "assert alive; os.getpid()")
    assert after.return_value == before
    sandboxes.box.execute(kernel, "true", language="bash")  # a shell may have been killed
    assert sandboxes.box.execute(kernel, "echo here", language="bash").output == "here\n"


LEAVE = """
import os, signal, subprocess, sys, time
wait = 'import os, signal, time\\nfor n in range(1, 32):\\n    try: signal.signal(n, signal.SIG_IGN)\\n    except (OSError, ValueError): pass\\nos.setsid() if os.getpgrp() != os.getpid() else 0\\nopen(os.environ["TMPDIR"] + f"/up-{os.getpid()}", "w").close()\\ntime.sleep(600)'
subprocess.Popen([sys.executable, '-c', wait])
subprocess.Popen(['nohup', 'sleep', '600'], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
subprocess.Popen(['setsid', 'sh', '-c', 'sleep 600 & sleep 600'], start_new_session=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for n in range(1, 32):
            try: signal.signal(n, signal.SIG_IGN)
            except (OSError, ValueError): pass
        for n in range(3, 600):
            try: os.close(n)
            except OSError: pass
        time.sleep(600)
    os._exit(0)
os.wait()
deadline = time.monotonic() + 10
while not any(name.startswith('up-') for name in os.listdir(os.environ['TMPDIR'])) and time.monotonic() < deadline: time.sleep(0.01)
"""


def _warden(sandboxes: Sandboxes, kernel: object) -> int:
    status = sandboxes.box.status(kernel)  # type: ignore[arg-type]
    (pid,) = [each["pid"] for each in status["processes"] if each["role"] == "warden"]
    return int(pid)


@pytest.mark.parametrize("profile", ALL)
def test_nothing_that_runs_on_outlives_the_kernel(sandboxes: Sandboxes, profile: str) -> None:
    box = sandboxes.box
    kernel = box.get_or_create(f"leaves-{profile}", cwd=sandboxes.folder, profile=PROFILES[profile])
    assert box.execute(kernel, LEAVE, timeout=30).error is None
    bash = "nohup sleep 600 & disown; (trap '' TERM HUP INT; exec sleep 600) & disown"
    box.execute(kernel, bash, language="bash")
    first = below(_warden(sandboxes, kernel))
    assert len(first) >= 8
    box.restart(kernel)
    assert box.execute(kernel, LEAVE, timeout=30).error is None
    left = {*first, *below(_warden(sandboxes, kernel))}
    box.destroy(kernel)
    wait_until(lambda: not living(left), what="what was left running to end", seconds=8)


@pytest.mark.parametrize("who", ["warden", "stub"])
def test_if_one_of_ours_is_killed_all_of_it_ends(sandboxes: Sandboxes, who: str) -> None:
    """The stub that the warden knows is the process that has stayed outside."""
    box = sandboxes.box
    kernel = box.get_or_create(f"orphaned-{who}", profile="restrictive")
    assert box.execute(kernel, LEAVE, timeout=30).error is None
    processes = below(_warden(sandboxes, kernel))
    (pid,) = [p["pid"] for p in box.status(kernel)["processes"] if p["role"] == who]
    psutil.Process(pid).kill()
    try:
        wait_until(lambda: not living(processes), what="the sandbox to end", seconds=8)
    finally:
        remove_groups([kernel.kernel_id])


def test_a_killed_warden_leaves_no_control_group(sandboxes: Sandboxes) -> None:
    kernel = sandboxes.box.get_or_create("killed", profile="restrictive")
    if not groups_of([kernel.kernel_id]):
        pytest.skip("there is no control group to leave")
    os.kill(_warden(sandboxes, kernel), signal.SIGKILL)
    try:
        wait_until(lambda: not groups_of([kernel.kernel_id]), what="its groups", seconds=5)
    finally:
        remove_groups([kernel.kernel_id])


def test_the_limits_of_pid_1_are_its_own(sandboxes: Sandboxes) -> None:
    kernel = sandboxes.box.get_or_create("limits", profile="restrictive")
    sandboxes.must_fail(
        Probe(
            "prlimit",
            "import resource\nfor kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC, resource.RLIMIT_AS):\n"
            "    resource.prlimit(1, kind, (5, 5)); breach()",
        ),
        "restrictive",
        kernel=kernel.name,
    )


@pytest.mark.parametrize("profile", ALL)
def test_a_restart_ends_what_the_session_had_started_but_for_what_left_it(
    sandboxes: Sandboxes, profile: str
) -> None:
    box = sandboxes.box
    kernel = box.get_or_create(f"restarts-{profile}", profile=PROFILES[profile])
    python, shell = (f"60{digit}.{os.getpid()}" for digit in (0, 1))  # nobody else's
    start = (
        "import subprocess, sys\nfor left in (False, True):\n"
        f"    subprocess.Popen([sys.executable, '-c', 'import time; time.sleep({python})'],"
        " start_new_session=left)"
    )
    box.execute(kernel, start)
    box.execute(kernel, f"sleep {shell} & disown", language="bash")
    before = {int(pid) for pid in psutil.pids()}
    assert [_sleepers(before, word) for word in (python, shell)] == [2, 1]
    box.restart(kernel)
    wait_until(lambda: _sleepers(before, python) == 1, what="the end of one program")
    assert _sleepers(before, shell) == 0, "bash is another session, and is renewed, too"
    assert box.execute(kernel, "1+1").return_value == "2"
    box.destroy(kernel)
    wait_until(lambda: _sleepers(before, python) == 0, what="the end of the other")


def _sleepers(pids: set[int], seconds: str) -> int:
    """How many of these sleep for so long."""
    found = 0
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            command = " ".join(process.cmdline())
            found += command.endswith((f"time.sleep({seconds})", f"sleep {seconds}"))
    return found
