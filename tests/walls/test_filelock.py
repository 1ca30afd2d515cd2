"""Landlock: what cannot be reached from within a domain of files, and can be without it."""

from __future__ import annotations

import ctypes
import encodings.idna  # noqa: F401 (a socket imports it when it is used, which is too late)
import errno
import json
import os
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kernelbox.walls import bpf, callfilters, filelock, seccomp

pytestmark = [
    pytest.mark.skipif(filelock.obstacle() != "", reason=filelock.obstacle()),
    # The children below do nothing that a lock of another thread could hinder.
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),
]

SYSTEM = [path for path in ("/usr", "/lib", "/lib64", "/bin", "/etc") if os.path.exists(path)]

Enter = Callable[[], None]


def child_says(act: Callable[[], Any], *before: Enter) -> Any:
    """What ``act`` returns in a child, after ``before``; of an OSError, the errno."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reader)
            for step in before:
                step()
            try:
                said = act()
            except OSError as error:
                said = f"{errno.errorcode[error.errno or 0]}"
            os.write(writer, json.dumps(said).encode())
        except BaseException as error:  # noqa: BLE001 (a fork must not return)
            os.write(writer, json.dumps(repr(error)).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as answer:
        words = answer.read()
    os.waitpid(pid, 0)
    return json.loads(words)


class Trees:
    """A folder that can be read, two that can be written, and one that is outside."""

    def __init__(self, base: Path) -> None:
        self.readable, self.outside = base / "readable", base / "outside"
        self.writable, self.other = base / "writable", base / "other"
        for folder in (self.readable, self.writable, self.other, self.outside):
            folder.mkdir()
            (folder / "file").write_text(folder.name)
            (folder / "program").write_text("#!/bin/sh\nexit 0\n")
            (folder / "program").chmod(0o755)
            folder.chmod(0o777)
            (folder / "file").chmod(0o666)

    def enter(self, *, scope: bool = False, tcp: bool | None = None) -> None:
        readable = [*SYSTEM, str(self.readable)]
        filelock.enter(readable, [str(self.writable), str(self.other)], scope=scope, tcp=tcp)


@pytest.fixture
def trees() -> Iterator[Trees]:
    # pytest's own folders are closed to others, and a test below becomes somebody else.
    with tempfile.TemporaryDirectory(prefix="kernelbox-test-") as folder:
        os.chmod(folder, 0o755)
        yield Trees(Path(folder))


# Files.


def test_a_file_outside_cannot_be_read(trees: Trees) -> None:
    read = (trees.outside / "file").read_text
    assert child_says(read) == "outside"
    assert child_says(read, trees.enter) == "EACCES"


def test_a_folder_outside_cannot_be_listed(trees: Trees) -> None:
    look = partial(os.listdir, trees.outside)
    assert sorted(child_says(look)) == ["file", "program"]
    assert child_says(look, trees.enter) == "EACCES"


def test_nothing_outside_can_be_executed(trees: Trees) -> None:
    def run_in(folder: Path) -> int:
        program = str(folder / "program")
        return os.waitstatus_to_exitcode(os.waitpid(os.posix_spawn(program, [program], {}), 0)[1])

    assert child_says(lambda: run_in(trees.outside)) == 0
    assert child_says(lambda: run_in(trees.outside), trees.enter) == "EACCES"
    assert child_says(lambda: run_in(trees.readable), trees.enter) == 0


def test_no_link_and_no_dots_lead_outside(trees: Trees) -> None:
    (trees.writable / "link").symlink_to(trees.outside / "file")
    ways = [
        trees.writable / "link",
        trees.writable / ".." / "outside" / "file",
        Path("/proc/self/root") / str(trees.outside / "file").lstrip("/"),
    ]
    for way in ways:
        assert child_says(way.read_text) == "outside"
        assert child_says(way.read_text, trees.enter) == "EACCES", way

    def link_in() -> str:
        os.link(trees.outside / "file", trees.writable / "hard")
        return (trees.writable / "hard").read_text()

    assert child_says(link_in, trees.enter) in ("EACCES", "EXDEV")
    assert child_says(link_in) == "outside"


def test_what_is_readable_can_be_read_and_no_more(trees: Trees) -> None:
    here = trees.readable
    assert child_says((here / "file").read_text, trees.enter) == "readable"
    assert sorted(child_says(partial(os.listdir, here), trees.enter)) == ["file", "program"]
    changes: list[Callable[[], Any]] = [
        partial((here / "file").write_text, "other"),
        partial(os.truncate, here / "file", 0),
        partial((here / "new").write_text, "new"),
        partial(os.mkdir, here / "folder"),
        partial(os.symlink, "file", here / "link"),
        partial(os.mkfifo, here / "fifo"),
        partial(os.unlink, here / "file"),
    ]
    for change in changes:
        assert child_says(change, trees.enter) == "EACCES", change
    assert sorted(os.listdir(here)) == ["file", "program"]
    assert (here / "file").read_text() == "readable"
    for change in changes:
        assert child_says(change) != "EACCES", change
    assert sorted(os.listdir(here)) == ["fifo", "folder", "link", "new", "program"]


def test_what_is_writable_can_be_changed_in_every_way(trees: Trees) -> None:
    def change() -> str:
        here = trees.writable
        (here / "file").write_text("changed")
        os.truncate(here / "file", 3)
        with open(here / "file", "a") as file:
            file.truncate(2)
        os.makedirs(here / "a" / "b")
        os.symlink("file", here / "link")
        os.mkfifo(here / "fifo")
        os.link(here / "file", here / "hard")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(here / "socket"))
            listener.listen()
            with socket.socket(socket.AF_UNIX) as caller:
                caller.connect(str(here / "socket"))
        for name in ("link", "fifo", "hard", "socket"):
            os.unlink(here / name)
        os.removedirs(here / "a" / "b")
        return (here / "file").read_text()

    assert child_says(change, trees.enter) == "ch"


def test_a_file_can_be_moved_between_writable_folders(trees: Trees) -> None:
    def move() -> list[str]:
        os.rename(trees.writable / "file", trees.other / "moved")
        return sorted(os.listdir(trees.other))

    if filelock.abi() < 2:
        pytest.skip("Landlock of this machine forbids all moves between folders")
    assert child_says(move, trees.enter) == ["file", "moved", "program"]


def test_a_file_cannot_be_moved_out(trees: Trees) -> None:
    def move() -> None:
        os.rename(trees.writable / "file", trees.outside / "moved")

    assert child_says(move, trees.enter) in ("EACCES", "EXDEV")
    assert child_says(move) is None


def test_a_path_may_be_a_single_file(trees: Trees) -> None:
    def enter() -> None:
        filelock.enter(
            [str(trees.readable / "file")], ["/dev/null", str(trees.writable / "file")], scope=False
        )

    def use() -> list[Any]:
        (trees.writable / "file").write_text("changed")
        Path("/dev/null").write_text("x")
        return [(trees.readable / "file").read_text(), (trees.writable / "file").read_text()]

    assert child_says(use, enter) == ["readable", "changed"]
    assert child_says((trees.readable / "program").read_text, enter) == "EACCES"
    assert child_says(partial((trees.readable / "file").write_text, "x"), enter) == "EACCES"


def test_what_was_open_stays_usable(trees: Trees) -> None:
    with open(trees.outside / "file") as file:
        assert child_says(file.read, trees.enter) == "outside"


def test_no_device_can_be_made_even_where_all_else_can(trees: Trees) -> None:
    def make() -> None:
        os.mknod(trees.writable / "device", stat.S_IFBLK | 0o600, os.makedev(7, 99))

    assert child_says(make, trees.enter) == "EACCES"
    if child_says(make) == "EPERM":
        pytest.skip("forbidden; but only root may do it anyway")


def test_nothing_can_be_mounted(trees: Trees) -> None:
    libc = ctypes.CDLL(None, use_errno=True)

    def mount() -> str:
        if libc.unshare(0x10020000) != 0:  # a user and a mount namespace of its own
            return "no namespaces"
        words = (b"tmpfs", os.fsencode(trees.writable), b"tmpfs")
        done = libc.mount(*words, ctypes.c_ulong(0), None)
        return "mounted" if done == 0 else errno.errorcode[ctypes.get_errno()]

    if child_says(mount) != "mounted":
        pytest.skip("nobody can mount here")
    assert child_says(mount, trees.enter) == "EPERM"


def test_a_program_started_inside_is_inside(trees: Trees) -> None:
    def cat() -> list[int]:
        paths = [trees.readable / "file", trees.outside / "file"]
        return [
            subprocess.run(["/bin/cat", path], stdin=-1, capture_output=True).returncode
            for path in paths
        ]

    assert child_says(cat) == [0, 0]
    assert child_says(cat, trees.enter) == [0, 1]


def test_a_second_domain_can_only_narrow(trees: Trees) -> None:
    def widen() -> str:
        filelock.enter(["/"], ["/"], scope=False)
        return (trees.outside / "file").read_text()

    assert child_says(widen) == "outside"
    assert child_says(widen, trees.enter) == "EACCES"


def test_a_path_that_is_missing_is_named(trees: Trees) -> None:
    with pytest.raises(FileNotFoundError, match="no-such-folder"):
        filelock.enter([str(trees.outside / "no-such-folder")], [], scope=False)


def test_a_user_without_rights_can_enter(trees: Trees) -> None:
    def become_nobody() -> None:
        if os.getuid() == 0:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)

    read = (trees.outside / "file").read_text
    assert child_says(read, become_nobody) == "outside"
    assert child_says(read, become_nobody, trees.enter) == "EACCES"
    assert (
        child_says(partial((trees.writable / "file").write_text, "x"), become_nobody, trees.enter)
        == 1
    )


def test_seccomp_can_follow(trees: Trees) -> None:
    for program in (callfilters.deny_list(), callfilters.allow_list(sockets=False)):
        lock = partial(seccomp.install, program)
        assert child_says((trees.outside / "file").read_text, trees.enter, lock) == "EACCES"
        assert child_says((trees.readable / "file").read_text, trees.enter, lock) == "readable"


def test_a_domain_can_be_entered_after_seccomp(trees: Trees) -> None:
    """As a kernel does that is made from a template."""
    for program in (callfilters.deny_list(), callfilters.allow_list(sockets=False)):
        lock = partial(seccomp.install, program)
        assert child_says((trees.outside / "file").read_text, lock, trees.enter) == "EACCES"


# Signals and sockets.

needs_scope = pytest.mark.skipif(not filelock.can_scope(), reason="needs Landlock ABI 6")
needs_tcp = pytest.mark.skipif(not filelock.can_deny_tcp(), reason="needs Landlock ABI 4")


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with process:
        yield process
        process.kill()


@needs_scope
def test_nobody_outside_can_be_signalled(trees: Trees, bystander: subprocess.Popen[bytes]) -> None:
    poke = partial(os.kill, bystander.pid, 0)
    assert child_says(poke) is None
    assert child_says(poke, trees.enter) is None  # only with the scope
    assert child_says(poke, partial(trees.enter, scope=True)) == "EPERM"


@needs_scope
def test_a_child_inside_can_be_signalled(trees: Trees) -> None:
    def kill_own() -> int:
        child = os.fork()
        if child == 0:
            signal.pause()
        os.kill(child, signal.SIGKILL)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert child_says(kill_own, partial(trees.enter, scope=True)) == -signal.SIGKILL


def test_the_memory_of_nobody_outside_can_be_read(
    trees: Trees, bystander: subprocess.Popen[bytes]
) -> None:
    # Not maps or environ: since Linux 6.14 CAP_PERFMON, which root has, reads those in any domain.
    def look() -> bool:
        with open(f"/proc/{bystander.pid}/mem", "rb"):
            return True

    def enter() -> None:
        filelock.enter(["/proc"], [], scope=False)

    assert child_says(look) is True
    assert child_says(look, enter) == "EACCES"


@needs_scope
def test_an_abstract_socket_outside_cannot_be_reached(trees: Trees) -> None:
    name = f"\0kernelbox-test-{uuid.uuid4()}"

    def connect() -> None:
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect(name)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(name)
        listener.listen()
        assert child_says(connect) is None
        assert child_says(connect, trees.enter) is None  # only with the scope
        assert child_says(connect, partial(trees.enter, scope=True)) == "EPERM"


@needs_tcp
def test_tcp_is_denied_when_asked(trees: Trees) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()

        def connect() -> None:
            socket.create_connection(address, timeout=5).close()

        def bind() -> None:
            with socket.socket() as fresh:
                fresh.bind(("127.0.0.1", 1 + address[1] % 60000))

        for tcp in (None, True):
            assert child_says(connect, partial(trees.enter, tcp=tcp)) is None
        assert child_says(connect) is None
        assert child_says(connect, partial(trees.enter, tcp=False)) == "EACCES"
        assert child_says(bind) in (None, "EADDRINUSE")
        assert child_says(bind, partial(trees.enter, tcp=False)) == "EACCES"


# The machine.


def test_each_version_handles_what_it_knows() -> None:
    bits = [(version, filelock._handled(version).bit_count()) for version in (1, 2, 3, 4, 5, 6, 9)]
    assert bits == [(1, 13), (2, 14), (3, 15), (4, 15), (5, 16), (6, 16), (9, 17)]


def test_a_kernel_without_landlock_is_refused_in_words() -> None:
    """Where a filter answers as such a kernel does."""
    numbers = dict.fromkeys((444, 445, 446), bpf.refuse(errno.ENOSYS))
    without = bpf.assemble(os.uname().machine, numbers, bpf.ALLOW)

    def ask() -> list[Any]:
        seccomp.install(without)
        try:
            filelock.enter(["/"], [], scope=True)
        except OSError as error:
            return [filelock.abi(), filelock.obstacle(), error.strerror]
        return ["entered"]

    version, obstacle, words = child_says(ask)
    assert version == 0
    assert obstacle == words
    assert "no Landlock (Function not implemented)" in words


class _Newest:
    """A Landlock of version 9 that grants all that it is asked for, and writes it down."""

    def __init__(self) -> None:
        self.granted: dict[str, int] = {}

    def prctl(self, *_: object) -> int:
        return 0

    def syscall(self, number: int, *arguments: Any) -> int:
        if number == filelock._CREATE_RULESET:
            return 9 if arguments[0] is None else os.open("/", os.O_PATH)
        if number == filelock._ADD_RULE:
            rights, fd = struct.unpack("=Qi", arguments[2])
            self.granted[os.readlink(f"/proc/self/fd/{fd}")] = rights
        return 0


def test_sockets_of_others_are_granted_by_name_and_never_with_a_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One's own need no right. (Where there is such a Landlock, attacks prove it.)"""
    newest = _Newest()
    monkeypatch.setattr(filelock, "_libc", newest)
    (tmp_path / "a.sock").touch()
    named = str(tmp_path / "a.sock")
    filelock.enter(["/usr"], [str(tmp_path)], sockets=[named], scope=True)
    assert {path for path, rights in newest.granted.items() if rights & (1 << 16)} == {named}
    assert newest.granted[named] == 1 << 16
