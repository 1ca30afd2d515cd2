"""Seccomp: what the filters refuse, each shown to be answered otherwise without them, and that
ordinary programs do not notice."""

from __future__ import annotations

import ctypes
import errno
import itertools
import json
import mmap
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernelbox.inside import linux
from kernelbox.walls import bpf, callfilters, seccomp, syscalls

pytestmark = [
    pytest.mark.skipif(seccomp.obstacle() != "", reason=seccomp.obstacle()),
    # The children below do nothing that a lock of another thread could hinder.
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),
]

MACHINE = os.uname().machine
NUMBERS = syscalls.numbers(MACHINE)
BAD = 1  # no address of anything
SIGCHLD = int(signal.SIGCHLD)

libc = ctypes.CDLL(None, use_errno=True)


def child_says(act: Callable[[], Any], program: bpf.Program | None = None) -> Any:
    """What ``act`` returns in a child, under ``program``; if it was killed, by which signal."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reader)
            os.setsid()  # nothing that is tried is about our terminal
            if program is not None:
                seccomp.install(program)
            try:
                said = act()
            except BaseException as error:  # noqa: BLE001 (a fork must not return)
                said = repr(error)
            os.write(writer, json.dumps(said).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as answer:
        words = answer.read()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return json.loads(words) if words else f"killed by {signal.Signals(-status).name}"


def call(name: str | int, *arguments: Any) -> int:
    """The errno of a raw system call; 0 when it was done."""
    number = NUMBERS[name] if isinstance(name, str) else name
    given = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *given)
    if result == 0 and number == NUMBERS["clone"]:
        os._exit(0)  # the copy, if there is one
    return ctypes.get_errno() if result == -1 else 0


NEW = {
    "mount": 0x00020000,
    "cgroup": 0x02000000,
    "uts": 0x04000000,
    "ipc": 0x08000000,
    "user": 0x10000000,
    "pid": 0x20000000,
    "network": 0x40000000,
}
NEW_TIME = 0x80
HIGH = 1 << 40  # a bit that the kernel does not look at, where it takes 32

# (system call, arguments): all harmless, even for root and even if they were done.
FORBIDDEN: list[tuple[Any, ...]] = [
    ("mount", BAD, BAD, BAD, 0, 0),
    ("umount2", BAD, 0),
    ("pivot_root", BAD, BAD),
    ("move_mount", -1, BAD, -1, BAD, 0),
    ("open_tree", -1, BAD, 0),
    ("open_tree_attr", -1, BAD, 0, 0, 0),
    ("fsopen", BAD, 0),
    ("fsconfig", -1, 0, 0, 0, 0),
    ("fsmount", -1, 0, 0),
    ("fspick", -1, BAD, 0),
    ("mount_setattr", -1, BAD, 0, BAD, 32),
    ("chroot", b"/"),
    ("unshare", 0),
    ("unshare", NEW["user"]),
    ("unshare", NEW_TIME),
    ("setns", -1, 0),
    *(("clone", flag | SIGCHLD, 0, 0, 0, 0) for flag in NEW.values()),
    ("clone", NEW["user"] | HIGH | SIGCHLD, 0, 0, 0, 0),
    ("ptrace", 0, 0, 0, 0),  # PTRACE_TRACEME
    ("process_vm_readv", -1, 0, 0, 0, 0, 0),
    ("process_vm_writev", -1, 0, 0, 0, 0, 0),
    ("kcmp", -1, -1, 99, 0, 0),
    ("pidfd_getfd", -1, 0, 0),
    ("bpf", 9999, 0, 0),
    ("perf_event_open", 0, 0, -1, -1, 0),
    ("keyctl", 0, -3, 0, 0, 0),  # KEYCTL_GET_KEYRING_ID of the session
    ("add_key", BAD, BAD, 0, 0, 0),
    ("request_key", BAD, BAD, 0, 0),
    ("userfaultfd", 0),
    ("io_uring_setup", 1, 0),
    ("io_uring_enter", -1, 0, 0, 0, 0, 0),
    ("io_uring_register", -1, 0, 0, 0),
    ("kexec_load", 0, 999, 0, 0xFFFF),
    ("kexec_file_load", -1, -1, 0, 0, 0xFFFF),
    ("init_module", BAD, 0, BAD),
    ("finit_module", -1, BAD, 0),
    ("delete_module", BAD, 0),
    ("reboot", 0, 0, 0, 0),
    ("swapon", BAD, 0),
    ("swapoff", BAD),
    ("acct", BAD),
    ("quotactl", 0x800001 << 8, 0, 0, 0),  # Q_SYNC
    ("quotactl_fd", -1, 0, 0, 0),
    ("nfsservctl", 0, 0, 0),
    ("lookup_dcookie", 0, 0, 0),
    ("settimeofday", 0, 0),
    ("clock_settime", 0, BAD),
    ("adjtimex", BAD),
    ("clock_adjtime", 0, BAD),
    ("iopl", 0),
    ("ioperm", 0, 0, 0),
    ("modify_ldt", 0, 0, 0),
    ("syslog", 10, 0, 0),  # the size of the buffer
    ("vhangup",),
    ("name_to_handle_at", -1, BAD, BAD, BAD, 0),
    ("open_by_handle_at", -1, BAD, 0),
    ("fanotify_init", 0xFFFF, 0),
    ("personality", 0x0040000),  # ADDR_NO_RANDOMIZE
    ("personality", 0x0040000 | HIGH),
    ("mknod", BAD, stat.S_IFBLK | 0o600, 0),
    ("mknod", BAD, stat.S_IFCHR | 0o600, 0),
    ("mknodat", -1, BAD, stat.S_IFBLK | 0o600, 0),
    ("mknodat", -1, BAD, stat.S_IFCHR | 0o600 | HIGH, 0),
    ("ioctl", -1, 0x5412, BAD),  # TIOCSTI
    ("ioctl", -1, 0x5412 | HIGH, BAD),
    ("ioctl", -1, 0x541C, BAD),  # TIOCLINUX
    ("ioctl", -1, 0x5423, BAD),  # TIOCSETD
    ("prctl", 35, 0, 0, 0, 1),  # PR_SET_MM
    ("prctl", 35 | HIGH, 0, 0, 0, 1),
    ("prctl", 0x59616D61, 0, 0, 0, 0),  # PR_SET_PTRACER
    ("prctl", 67, 0, 0, 0, 1),  # PR_SET_MEMORY_MERGE
    ("memfd_secret", 0),
    ("socket", 16, 3, 9),  # AF_NETLINK: audit
    ("socket", 16, 3, 15),  # AF_NETLINK: events of devices
    ("socket", 17, 3, 0),  # AF_PACKET
    ("socket", 17, 2, 0),
    ("socket", 15, 3, 2),  # AF_KEY
    ("socket", 31, 3, 0),  # AF_BLUETOOTH
    ("socket", 38, 5, 0),  # AF_ALG
    ("socket", 40, 1, 0),  # AF_VSOCK
    ("socket", 40 | HIGH, 1, 0),
    ("socket", 44, 3, 0),  # AF_XDP
    ("socket", 30, 1, 0),  # AF_TIPC
    ("socket", 2, 3, 1),  # raw ICMP
    ("socket", 2, 3 | socket.SOCK_CLOEXEC, 255),
    ("socket", 10, 3, 58),
    ("socket", 2, 10, 0x0300),  # SOCK_PACKET: another name of AF_PACKET
    ("socketpair", 30, 1, 0, BAD),
]


def title(probe: tuple[Any, ...]) -> str:
    words = [hex(each) if isinstance(each, int) and each > 9 else str(each) for each in probe]
    return f"{words[0]}({','.join(words[1:])})"


PROGRAMS = {
    "deny_list": callfilters.deny_list(),
    "allow_list": callfilters.allow_list(sockets=True),
    "allow_list_without_sockets": callfilters.allow_list(sockets=False),
}


@pytest.fixture(params=PROGRAMS.values(), ids=PROGRAMS.keys())
def program(request: pytest.FixtureRequest) -> bpf.Program:
    return request.param


# What is refused.


@pytest.mark.parametrize("probe", FORBIDDEN, ids=title)
def test_it_is_forbidden_by_every_list_and_by_nothing_else(probe: tuple[Any, ...]) -> None:
    if probe[0] not in NUMBERS:
        pytest.skip(f"{MACHINE} has no {probe[0]}")
    for name, program in PROGRAMS.items():
        assert child_says(lambda: call(*probe), program) == errno.EPERM, name
    if child_says(lambda: call(*probe)) == errno.EPERM:
        pytest.skip("forbidden; but this user on this machine may not do it anyway")


def test_clone3_is_answered_as_by_a_kernel_that_has_none(program: bpf.Program) -> None:
    assert child_says(lambda: call("clone3", BAD, 0)) == errno.EINVAL
    assert child_says(lambda: call("clone3", BAD, 0), program) == errno.ENOSYS


def test_a_call_younger_than_our_table_is_answered_as_by_an_older_kernel(
    program: bpf.Program,
) -> None:
    assert child_says(lambda: call(syscalls.newest(MACHINE) + 1), program) == errno.ENOSYS
    assert child_says(lambda: call(2000), program) == errno.ENOSYS


@pytest.mark.skipif(MACHINE != "x86_64", reason="x86_64 has a second set of numbers")
def test_the_second_set_of_numbers_of_x86_64_is_death(program: bpf.Program) -> None:
    def try_x32() -> int:
        return call(0x40000000 | NUMBERS["getpid"])

    assert child_says(try_x32) in (0, errno.ENOSYS)
    assert child_says(try_x32, program) == "killed by SIGSYS"


@pytest.mark.skipif(MACHINE != "x86_64", reason="a 32-bit call, in machine code of x86_64")
def test_a_32_bit_call_is_death(program: bpf.Program) -> None:
    def getpid_of_i386() -> bool:
        page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        page.write(b"\x53\xb8\x14\x00\x00\x00\xcd\x80\x5b\xc3")  # eax = 20; int 0x80
        address = ctypes.addressof(ctypes.c_char.from_buffer(page))
        return bool(ctypes.CFUNCTYPE(ctypes.c_int)(address)() == os.getpid())

    if child_says(getpid_of_i386) is not True:
        pytest.skip("this kernel has no 32-bit calls")
    assert child_says(getpid_of_i386, program) == "killed by SIGSYS"


def test_what_is_not_named_is_forbidden_by_the_allow_list_alone() -> None:
    def link_a_pipe() -> int:
        return call("vmsplice", -1, 0, 0, 0)

    assert child_says(link_a_pipe, PROGRAMS["deny_list"]) == child_says(link_a_pipe) != errno.EPERM
    assert child_says(link_a_pipe, PROGRAMS["allow_list"]) == errno.EPERM


# (family, type, protocol) → which lists let it be made.
SOCKETS = {
    (socket.AF_UNIX, socket.SOCK_STREAM, 0): ("deny_list", "allow_list"),
    (socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK, 0): ("deny_list", "allow_list"),
    (socket.AF_UNIX, socket.SOCK_SEQPACKET, 0): ("deny_list", "allow_list"),
    (socket.AF_INET, socket.SOCK_STREAM, 0): ("deny_list", "allow_list"),
    (socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC, 6): ("deny_list", "allow_list"),
    (socket.AF_INET, socket.SOCK_DGRAM, 17): ("deny_list", "allow_list"),
    (socket.AF_INET6, socket.SOCK_STREAM, 0): ("deny_list", "allow_list"),
    (socket.AF_NETLINK, socket.SOCK_RAW, 0): ("deny_list", "allow_list"),
    (socket.AF_INET, socket.SOCK_STREAM, 262): ("deny_list",),  # multipath TCP
    (socket.AF_INET, socket.SOCK_DGRAM, 1): ("deny_list",),  # ping
}


@pytest.mark.parametrize(("wanted", "lists"), SOCKETS.items(), ids=str)
def test_a_socket_can_be_made_where_the_list_says_so(
    wanted: tuple[int, int, int], lists: tuple[str, ...]
) -> None:
    without = child_says(lambda: call("socket", *map(int, wanted)))
    assert without != errno.EPERM
    for name, program in PROGRAMS.items():
        expected = without if name in lists else errno.EPERM
        assert child_says(lambda: call("socket", *map(int, wanted)), program) == expected, name


def test_without_sockets_a_pair_is_all_there_is_and_has_no_way_out(tmp_path: Path) -> None:
    outside = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    outside.bind(str(tmp_path / "outside"))

    def talk() -> str:
        a, b = socket.socketpair()
        a.sendall(b"hello")
        return b.recv(5).decode()

    def send_out() -> int:
        a, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        return a.sendto(b"out", str(tmp_path / "outside"))

    def bind() -> None:
        socket.socketpair()[0].bind(str(tmp_path / "inside"))

    with outside:
        alone = PROGRAMS["allow_list_without_sockets"]
        assert child_says(talk, alone) == "hello"
        assert child_says(send_out) == 3
        assert "PermissionError" in child_says(send_out, alone)
        assert child_says(bind) is None
        assert "PermissionError" in child_says(bind, alone)


def test_without_namespaces_modes_owners_and_times_of_files_stay(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    alone = callfilters.allow_list(sockets=False, namespaces=False)

    for change in (
        lambda: os.chmod(file, 0o600),
        lambda: os.chown(file, -1, -1),
        lambda: os.utime(file),
    ):
        assert child_says(change) is None
        assert child_says(change, PROGRAMS["allow_list"]) is None
        assert "PermissionError" in child_says(change, alone)


# Of a process that is not there, or of nothing at all.
NOT_ALONE: list[tuple[Any, ...]] = [
    ("sched_setaffinity", -1, 8, BAD),
    ("sched_setscheduler", -1, 5, BAD),
    ("sched_setparam", -1, BAD),
    ("sched_setattr", -1, BAD, 0),
    ("setpriority", 0, -1, 0),
    ("setpriority", 2, -1, 0),
    ("ioprio_set", 1, -1, 0),
    ("shmget", 0, 0, 0),
    ("semget", 0, -1, 0),
    ("msgget", 99, 0),
    ("mq_open", BAD, 0, 0, 0),
    ("inotify_add_watch", -1, BAD, 0),
]


@pytest.mark.parametrize("probe", NOT_ALONE, ids=title)
def test_without_namespaces_nobody_else_can_be_tampered_with(probe: tuple[Any, ...]) -> None:
    alone = callfilters.allow_list(sockets=False, namespaces=False)
    assert child_says(lambda: call(*probe)) != errno.EPERM
    assert child_says(lambda: call(*probe), PROGRAMS["allow_list"]) != errno.EPERM
    assert child_says(lambda: call(*probe), alone) == errno.EPERM


def test_without_namespaces_ordinary_programs_still_work() -> None:
    alone = callfilters.allow_list(sockets=False, namespaces=False)
    code = """
import asyncio, concurrent.futures, os, resource, sqlite3, subprocess
try: import zmq
except ImportError: pass
else: zmq.Context().socket(zmq.PAIR).bind("inproc://x")
resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); os.nice(1)
os.sched_setaffinity(0, os.sched_getaffinity(0))
with concurrent.futures.ThreadPoolExecutor(4) as pool: assert sum(pool.map(abs, range(9))) == 36
asyncio.run(asyncio.sleep(0)); sqlite3.connect(":memory:").execute("select 1")
print(subprocess.check_output(["bash", "-c", "ulimit -c; echo $((1 + 1)) | cat"]))
"""
    assert python(code, alone) == "b'0\\n2\\n'\n"


def test_a_fork_and_a_new_program_are_still_filtered() -> None:
    script = (
        "import ctypes; print(ctypes.CDLL(None, use_errno=True).unshare(0), ctypes.get_errno())"
    )
    run = f"import subprocess, sys; print(subprocess.check_output([sys.executable, '-c', {script!r}]))"
    assert python(run, PROGRAMS["deny_list"]) == f"b'-1 {errno.EPERM}\\n'\n"


def test_threads_that_are_there_already_are_filtered_too() -> None:
    def other_thread() -> int:
        answers: list[int] = []
        start = threading.Event()

        def wait_and_try() -> None:
            start.wait()
            answers.append(call("unshare", 0))

        thread = threading.Thread(target=wait_and_try)
        thread.start()
        seccomp.install(PROGRAMS["deny_list"])
        start.set()
        thread.join()
        return answers[0]

    assert child_says(other_thread) == errno.EPERM


def test_a_filter_cannot_be_loosened_but_be_tightened() -> None:
    def tighten() -> list[int]:
        seccomp.install(PROGRAMS["deny_list"])
        before = call("vmsplice", -1, 0, 0, 0)
        seccomp.install(PROGRAMS["allow_list"])
        seccomp.install(PROGRAMS["deny_list"])
        return [before, call("vmsplice", -1, 0, 0, 0)]

    assert child_says(tighten) == [errno.EBADF, errno.EPERM]


def test_a_user_without_rights_can_install_it(program: bpf.Program) -> None:
    def as_nobody() -> int:
        if os.getuid() == 0:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
        seccomp.install(program)
        return call("personality", 0x0040000)

    assert child_says(as_nobody) == errno.EPERM


# What is not noticed.


def run(
    command: list[str], program: bpf.Program, **options: Any
) -> subprocess.CompletedProcess[str]:
    def enter() -> None:
        seccomp.install(program)

    return subprocess.run(
        command, preexec_fn=enter, capture_output=True, text=True, timeout=60, **options
    )


def python(code: str, program: bpf.Program) -> str:
    done = run([sys.executable, "-c", code], program)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_standard_library_works(program: bpf.Program) -> None:
    code = """
import asyncio, concurrent.futures, json, multiprocessing, os, selectors, signal, sqlite3, ssl
import subprocess, sys, tempfile, threading, shutil, time, mmap, fcntl, pty, tty, logging
from multiprocessing import shared_memory

def square(x): return x * x

with tempfile.TemporaryDirectory() as folder:
    base = sqlite3.connect(folder + "/db")
    base.execute("pragma journal_mode=wal")
    base.execute("create table t (x)"); base.execute("insert into t values (1)"); base.commit()
    assert base.execute("select x from t").fetchall() == [(1,)]
    base.close()
    with open(folder + "/a", "w") as file: file.write("x" * 100000)
    shutil.copy2(folder + "/a", folder + "/b")
    os.makedirs(folder + "/c/d"); os.rename(folder + "/b", folder + "/c/d/b")
    os.symlink("a", folder + "/l"); os.link(folder + "/a", folder + "/h"); os.mkfifo(folder + "/f")
    assert sorted(os.listdir(folder)) == ["a", "c", "db", "f", "h", "l"], os.listdir(folder)

with concurrent.futures.ThreadPoolExecutor(8) as pool:
    assert list(pool.map(square, range(20))) == [x * x for x in range(20)]
with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.map(square, range(5)) == [0, 1, 4, 9, 16]
memory = shared_memory.SharedMemory(create=True, size=100)
memory.close(); memory.unlink()

async def main():
    process = await asyncio.create_subprocess_exec("echo", "hi", stdout=subprocess.PIPE)
    out, _ = await process.communicate()
    await asyncio.to_thread(time.sleep, 0.001)
    return out
assert asyncio.run(main()) == b"hi\\n"
assert subprocess.check_output("cat | tr a-z A-Z", shell=True, input=b"abc") == b"ABC"
assert subprocess.run(["true"], close_fds=False).returncode == 0  # vfork
ssl.create_default_context()
near, far = pty.openpty(); tty.setraw(far); os.write(near, b"x"); assert os.read(far, 1) == b"x"
signal.setitimer(signal.ITIMER_REAL, 0.01); signal.sigwait([signal.SIGALRM]) if signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM]) is not None else None
os.nice(1); os.sched_getaffinity(0); os.getloadavg(); os.urandom(4); os.cpu_count(); os.getlogin
json.dump("done", sys.stdout)
"""
    assert python(code, program) == '"done"'


def test_the_scientific_packages_work(program: bpf.Program, tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    code = f"""
import os; os.environ["MPLCONFIGDIR"] = {str(tmp_path)!r}
import numpy, pandas, matplotlib
matplotlib.use("agg")
import matplotlib.pyplot as plt
a = numpy.random.default_rng(0).random((300, 300)); (a @ a).sum(); numpy.linalg.svd(a)
frame = pandas.DataFrame({{"x": range(1000)}}); frame.to_csv({str(tmp_path / "t.csv")!r})
assert pandas.read_csv({str(tmp_path / "t.csv")!r}).x.sum() == 499500
numpy.save({str(tmp_path / "a.npy")!r}, a); numpy.load({str(tmp_path / "a.npy")!r}, mmap_mode="r")
plt.plot([1, 2]); plt.savefig({str(tmp_path / "p.png")!r})
print("done")
"""
    assert python(code, program) == "done\n"


@pytest.mark.slow
def test_packages_with_thread_pools_of_their_own_work(program: bpf.Program, tmp_path: Path) -> None:
    for name in ("polars", "duckdb", "pyarrow", "sklearn"):
        pytest.importorskip(name)
    code = f"""
import polars, duckdb, pyarrow, pyarrow.parquet, numpy
from sklearn.cluster import KMeans
assert polars.DataFrame({{"x": range(1000)}}).lazy().select(polars.col("x").sum()).collect().item() == 499500
assert duckdb.sql("select sum(x) from range(1000) t(x)").fetchall() == [(499500,)]
pyarrow.parquet.write_table(pyarrow.table({{"x": range(9)}}), {str(tmp_path / "t.parquet")!r})
assert pyarrow.parquet.read_table({str(tmp_path / "t.parquet")!r}).num_rows == 9
KMeans(2, n_init=1).fit(numpy.arange(20.0).reshape(10, 2))
print("done")
"""
    assert python(code, program) == "done\n"


def test_bash_and_coreutils_work(program: bpf.Program, tmp_path: Path) -> None:
    script = """
set -e
for i in 1 2; do (sleep 0.01) & done; wait
set -m; sleep 5 & kill %1; wait %1 || true
cat <(echo substituted) <<< unused
echo a > x; cp -p x y; mv y z; ln -s z l; mkdir -p d/e; touch -d 2020-01-01 d/e/f; chmod 700 d
ls -lR > /dev/null; find . -name f; tail -n 1 z; head -c 100000 /dev/zero | wc -c; seq 3 | sort -r | tr '\\n' ' '
tar cf t.tar d; rm -r d; tar xf t.tar; grep -c a x; sed -i s/a/b/ x; cat x; date +%Y > /dev/null; df . > /dev/null
timeout 5 true; nohup true 2> /dev/null; stat x > /dev/null; mktemp -p . > /dev/null; env > /dev/null; id > /dev/null
"""
    done = run(["bash", "-c", script], program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "substituted\n./d/e/f\na\n100000\n3 2 1 1\nb\n"


def test_sockets_work_where_they_are_allowed() -> None:
    code = """
import asyncio, socket
async def main():
    async def answer(reader, writer):
        writer.write(await reader.read(2)); await writer.drain(); writer.close()
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(b"hi"); said = await reader.read(2)
    writer.close(); server.close()
    return said
assert asyncio.run(main()) == b"hi"
socket.getaddrinfo("localhost", 80); socket.if_nameindex(); socket.gethostname()
print("done")
"""
    for name in ("deny_list", "allow_list"):
        assert python(code, PROGRAMS[name]) == "done\n", name


def test_what_stub_and_interpreters_do_works(program: bpf.Program) -> None:
    def work() -> str:
        linux.set_name("kb-test")
        linux.die_with_parent()
        linux.adopt_orphans()
        linux.set_dumpable(False)
        linux.set_dumpable(True)
        signals = linux.child_signal_fd()
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("500")
        near, far = socket.socketpair()
        reader, writer = os.pipe()
        socket.send_fds(near, [b"fd"], [writer])
        _, (passed, *_), _, _ = socket.recv_fds(far, 2, 8)
        os.write(passed, b"x")
        assert os.read(reader, 1) == b"x"

        # A copy as a branch makes it: forked twice, in a session of its own.
        first = linux.bare_fork()
        if first == 0:
            if os.fork() == 0:
                os.setsid()
                linux.unblock_signals()
                os.write(writer, str(os.getppid() != first).encode())
                signal.pause()
            os._exit(3)
        os.waitpid(first, 0)
        assert os.read(reader, 4) == b"True"
        (orphan,) = linux.children(os.getpid())
        linux.send_signal([orphan], signal.SIGKILL)
        linux.wait_for_end(orphan)
        linux.drain_signal_fd(signals)
        assert linux.reap() == [(orphan, signal.SIGKILL)]
        return "done"

    assert child_says(work) == "done"
    assert child_says(work, program) == "done"


# Calls that must get past the filter to the kernel: each is answered as it is without.
NEEDED: list[tuple[Any, ...]] = [
    ("process_madvise", -1, 0, 0, 23, 0),
    ("pidfd_open", -1, 0),
    ("pidfd_send_signal", -1, 0, 0, 0),
    ("seccomp", 99, 0, 0),
    ("prctl", 22, 99, 0, 0, 0),  # PR_SET_SECCOMP
    ("landlock_create_ruleset", 0, 0, 1),
    ("landlock_add_rule", -1, 0, 0, 0),
    ("landlock_restrict_self", -1, 0),
    ("epoll_create1", 0),
    ("eventfd2", 0, 0),
    ("timerfd_create", 1, 0),
    ("inotify_init1", 0),
    ("inotify_add_watch", -1, BAD, 0),
    ("getrandom", 0, 0, 0),
    ("memfd_create", b"x", 0),
    ("shmget", 0, 4096, 0o600),
    ("sched_yield",),
    ("membarrier", 0, 0, 0),
    ("rseq", 0, 0, 0, 0),
    ("prlimit64", 0, 7, 0, 0),
    ("close_range", 900, 1000, 0),
    ("copy_file_range", -1, 0, -1, 0, 0, 0),
    ("sendfile", -1, -1, 0, 0),
    ("splice", -1, 0, -1, 0, 1, 0),
    ("futex", 0, 99, 0, 0, 0, 0),
    ("futex_waitv", 0, 0, 0, 0, 0),
    ("futex_wake", 0, 0, 0, 0),
    ("set_robust_list", 0, 0),
    ("get_robust_list", -1, 0, 0),
    ("statx", -1, BAD, 0, 0, BAD),
    ("personality", 0xFFFFFFFF),
    ("personality", 0),
    ("mknodat", -1, BAD, stat.S_IFIFO | 0o600, 0),
    ("ioctl", -1, 0x5401, BAD),  # TCGETS
    ("clone", SIGCHLD, 0, 0, 0, 0),
    ("clone", NEW_TIME, 0, 0, 0, 0),  # no namespace here: a signal without a meaning
    ("setuid", -1),
]


@pytest.mark.parametrize("probe", NEEDED, ids=title)
def test_it_is_answered_as_by_a_filter_that_allows_all(
    probe: tuple[Any, ...], program: bpf.Program
) -> None:
    nothing = bpf.Program((bpf.Instruction(0x06, 0, 0, bpf.ALLOW),))
    assert child_says(lambda: call(*probe), program) == child_says(lambda: call(*probe), nothing)


# The filter itself.


def answer_of(program: bpf.Program, arch: int, number: int, *arguments: int) -> int:
    """What the kernel would compute, step by step."""
    words = {0: number, 4: arch}
    for index, value in enumerate([*arguments, *[0] * (6 - len(arguments))]):
        words[16 + 8 * index] = value & 0xFFFFFFFF
        words[20 + 8 * index] = value >> 32 & 0xFFFFFFFF
    at, held = 0, 0
    while True:
        code, yes, no, operand = program.instructions[at]
        at += 1
        if code == 0x20:
            held = words[operand]
        elif code == 0x54:
            held &= operand
        elif code == 0x05:
            at += operand
        elif code == 0x15:
            at += yes if held == operand else no
        elif code == 0x35:
            at += yes if held >= operand else no
        else:
            assert code == 0x06
            return operand


ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7, "i386": 0x40000003}


@pytest.mark.parametrize("machine", syscalls.MACHINES)
def test_the_filter_of_each_machine_forbids_the_same(machine: str) -> None:
    numbers, arch = syscalls.numbers(machine), ARCHITECTURES[machine]
    refused = bpf.refuse(errno.EPERM)
    lists = (
        callfilters.deny_list(machine=machine),
        callfilters.allow_list(sockets=True, machine=machine),
        callfilters.allow_list(sockets=False, machine=machine),
    )
    for program, (name, *arguments) in itertools.product(lists, FORBIDDEN):
        if name in numbers:
            given = [each if isinstance(each, int) else BAD for each in arguments]
            assert answer_of(program, arch, numbers[name], *given) == refused, (name, *given)
    for program, (name, *arguments) in itertools.product(lists, NEEDED):
        if name in numbers:
            given = [each if isinstance(each, int) else BAD for each in arguments]
            assert answer_of(program, arch, numbers[name], *given) == bpf.ALLOW, (name, *given)
    for program in lists:
        for other in {*ARCHITECTURES.values()} - {arch}:
            assert answer_of(program, other, numbers["read"]) == bpf.KILL
        assert answer_of(program, arch, numbers["clone3"]) == bpf.refuse(errno.ENOSYS)


@pytest.mark.parametrize("machine", syscalls.MACHINES)
def test_every_number_is_answered_as_its_verdict_says(machine: str) -> None:
    """Also with so many runs of numbers that conditional jumps do not reach."""
    verdicts = {number: bpf.refuse(number % 3 + 1) for number in range(0, 460, 2)}
    program = bpf.assemble(machine, verdicts, bpf.ALLOW)
    assert len(program.instructions) > 512
    for number in range(syscalls.newest(machine) + 1):
        expected = verdicts.get(number, bpf.ALLOW)
        assert answer_of(program, ARCHITECTURES[machine], number) == expected, number
    younger = answer_of(program, ARCHITECTURES[machine], syscalls.newest(machine) + 1)
    assert younger == bpf.refuse(errno.ENOSYS)


def test_an_unknown_machine_is_refused_in_words() -> None:
    with pytest.raises(OSError, match=r"'riscv64'.*x86_64 and aarch64"):
        callfilters.deny_list(machine="riscv64")


HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}


@pytest.mark.parametrize("machine", syscalls.MACHINES)
def test_the_table_is_that_of_the_kernels_headers(machine: str) -> None:
    if not HEADERS[machine].exists():
        pytest.skip("no kernel headers are installed")
    numbers = syscalls.numbers(machine)
    found = re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)$", HEADERS[machine].read_text(), re.M)
    theirs = {name: int(number) for name, number in found if int(number) <= max(numbers.values())}
    # The generic header has words that are no calls, and calls that only 32-bit machines have.
    others = {"syscalls", "arch_specific_syscall", "sync_file_range2", "fstatat"}
    theirs = {
        name: number
        for name, number in theirs.items()
        if name not in others and not (machine == "aarch64" and 403 <= number <= 423)
    }
    assert len(theirs) > 300
    assert {name: numbers.get(name) for name in theirs} == theirs


def test_no_name_in_the_lists_is_misspelt() -> None:
    known = {name for machine in syscalls.MACHINES for name in syscalls.numbers(machine)}
    lists = (callfilters._DENIED, callfilters._ALLOWED, callfilters._SHARED, callfilters._PROBED)
    named = [name for words in lists for name in words.split()]
    assert set(named) <= known
    assert len(named) == len(set(named))
    assert {*callfilters._CHECKED, *callfilters._ALONE} <= known
