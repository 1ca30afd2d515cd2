"""Walls by locks alone, for machines on which user namespaces are closed."""

from __future__ import annotations

import encodings.idna  # noqa: F401 (a socket imports it when it is used, which is too late)
import errno
import fcntl
import json
import os
import secrets
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import closed
import psutil
import pytest
from processes import alive, below, wait_until

from kernelbox import Box, KernelRecord, Mount, Unsupported
from kernelbox.walls import callfilters, entry, locks, ownfolder, seccomp, ways
from kernelbox.walls.profiles import PROFILES, named

WAY = ways.look()
RESTRICTIVE = named("restrictive")

pytestmark = [
    pytest.mark.skipif(locks.obstacle() != "", reason=locks.obstacle()),
    # The children below do nothing that a lock of another thread could hinder.
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),
]


def child_says(act: Callable[[], Any], *before: Callable[[], object]) -> Any:
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
                said = errno.errorcode[error.errno or 0]
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


# -- which way ------------------------------------------------------------------------------------


@pytest.mark.skipif(WAY.kind == "locks", reason="user namespaces are closed here anyway")
@pytest.mark.parametrize(("how", "words"), [("unshare", "namespace"), ("mount", "mounting")])
def test_closed_namespaces_are_found_out_by_trying(how: str, words: str) -> None:
    def look() -> list[str]:
        found = ways._look()
        return [found.kind, found.why]

    assert child_says(look)[0] == "namespaces"
    kind, why = child_says(look, lambda: closed.close(how))
    assert kind == "locks"
    assert words in why


def test_what_passes_is_not_taken_for_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many processes, no memory: then walls are refused, and not built lower."""
    for number in (errno.EAGAIN, errno.ENOMEM, errno.EMFILE):
        monkeypatch.setattr(entry, "attempt", lambda number=number: (number, "for a moment"))
        found = ways._look()
        assert (found.kind, found.settled) == ("namespaces", False)


@pytest.mark.parametrize("name", ["permissive", "moderate"])
def test_other_profiles_are_refused_with_the_reason(name: str) -> None:
    way = ways.Way("locks", "mounting none on /: Operation not permitted")
    said = ways.cannot_offer(PROFILES[name], way)
    assert "mounting none on /" in said
    assert "Use 'restrictive'" in said
    assert ways.cannot_offer(PROFILES[name], ways.Way("namespaces")) == ""


def test_restrictive_with_other_limits_is_restrictive() -> None:
    way = ways.Way("locks", "closed")
    assert ways.cannot_offer(RESTRICTIVE.but(memory=300 << 20, processes=32), way) == ""
    more = RESTRICTIVE.but(mounts=(Mount("/srv", "/data"),))
    assert "another mounts" in ways.cannot_offer(more, way)
    assert "another soft_memory" in ways.cannot_offer(RESTRICTIVE.but(soft_memory=99 << 20), way)


# -- the locks ------------------------------------------------------------------------------------


@pytest.fixture
def locked() -> Iterator[locks.Locks]:
    uid = locks.uid_for(os.getpid())
    folder, lock = ownfolder.make(uid)
    private = os.path.join(folder, "workspace")
    yield locks.locks_for(RESTRICTIVE, folder=folder, shown=(), private=(private,), uid=uid)
    ownfolder.remove(folder)
    os.close(lock)
    assert not os.path.exists(folder)


def test_its_own_folder_is_all_that_can_be_written(locked: locks.Locks, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    secret = tmp_path / "secret"
    secret.write_text("secret")
    secret.chmod(0o666)
    unheard_of = f"kernelbox-{secrets.token_hex(8)}"  # what is there already may answer EISDIR

    def act() -> list[str]:
        said = []
        for path in (
            f"{locked.folder}/tmp/x",
            f"{locked.folder}/x",
            str(secret),
            f"/tmp/{unheard_of}",
            f"/dev/shm/{unheard_of}",
        ):
            try:
                os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
                said.append("written")
            except OSError as error:
                said.append(errno.errorcode[error.errno or 0])
        return said

    assert child_says(act, lambda: locks.enter(locked)) == ["written", *["EACCES"] * 4]
    assert secret.read_text() == "secret"


@pytest.mark.parametrize(
    ("act", "answer"),
    [
        (lambda: os.listdir("/"), "EACCES"),
        (lambda: os.listdir("/tmp"), "EACCES"),
        (lambda: open("/etc/passwd").close(), "EACCES"),
        (lambda: open("/proc/self/status").close(), "EACCES"),
        (lambda: open(f"/proc/{os.getppid()}/cmdline").close(), "EACCES"),
        (lambda: os.truncate("/etc/hostname", 0), "EACCES"),
        (lambda: os.chmod(".", 0o777), "EPERM"),
        (lambda: os.utime("."), "EPERM"),
        (lambda: os.chown(".", -1, -1), "EPERM"),
        (lambda: os.setxattr(".", "user.x", b"1"), "EPERM"),
        (lambda: socket.socket(socket.AF_UNIX), "EPERM"),
        (lambda: socket.socket(socket.AF_INET), "EPERM"),
        (lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM), "EPERM"),
        (lambda: [pair.close() for pair in socket.socketpair()] and "made", "made"),
        (lambda: Path("/proc/meminfo").read_text()[:3], "Mem"),
        (lambda: len(os.listdir("/proc/self/fd")) > 0, True),
        (lambda: os.kill(os.getpid(), 0), None),
        (lambda: os.access("/etc/passwd", os.F_OK), True),
    ],
    ids=lambda value: value.__code__.co_consts[-1] if callable(value) else str(value),
)  # fmt: skip
def test_what_is_locked(locked: locks.Locks, act: Callable[[], Any], answer: Any) -> None:
    assert child_says(act, lambda: locks.enter(locked)) == answer


def test_nobody_outside_can_be_signalled(locked: locks.Locks) -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        try:
            said = child_says(lambda: os.kill(other.pid, 9), lambda: locks.enter(locked))
            assert said == "EPERM"
            assert alive(other.pid)
        finally:
            other.kill()


@pytest.mark.parametrize(
    "act",
    [
        lambda pid: os.kill(pid, 9),
        lambda pid: signal.pidfd_send_signal(os.pidfd_open(pid), 9),
        lambda pid: fcntl.fcntl(0, fcntl.F_SETOWN, pid),
        lambda pid: os.kill(-1, 0),
    ],
    ids=["kill", "pidfd", "owner of a descriptor", "everybody"],
)
def test_an_older_landlock_keeps_signals_in_by_seccomp(act: Callable[[int], Any]) -> None:
    """Before Linux 6.12 it has no rule for them: then they can be sent to nobody else at all."""
    program = callfilters.allow_list(sockets=False, namespaces=False, signals=False)
    with subprocess.Popen(["sleep", "60"]) as other:
        try:
            said = child_says(lambda: act(other.pid), lambda: seccomp.install(program))
            assert said == "EPERM"
            assert alive(other.pid)
        finally:
            other.kill()
    own = [os.setsid, lambda: seccomp.install(program)]
    assert child_says(lambda: os.kill(0, 0), *own) is None


def test_root_is_never_root_inside(locked: locks.Locks) -> None:
    if os.geteuid() != 0:
        pytest.skip("for root")
    facts = child_says(lambda: [os.getresuid(), os.getresgid(), os.getgroups()],
                       lambda: locks.enter(locked))  # fmt: skip
    assert facts == [[locked.uid] * 3, [locked.uid] * 3, []]
    as_root = locks.Locks.from_wire({**locked.to_wire(), "uid": 0})
    assert "never root" in child_says(lambda: None, lambda: locks.enter(as_root))


def test_what_is_private_in_a_tree_is_not_opened(tmp_path: Path) -> None:
    for name in ("tree/.kernelbox", "tree/lib", "tree/other/deep/keys", "tree/other/deep/code"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "tree" / "link").symlink_to("/etc")
    tree = str(tmp_path / "tree")
    found = locks.readable([tree], [f"{tree}/other/deep/keys"])
    ours = {path.removeprefix(f"{tree}/") for path in found if path.startswith(str(tmp_path))}
    assert ours == {"lib", "other/deep/code"}
    assert not any(path.startswith("/etc/ssl/private") or path == "/etc/ssl" for path in found) or (
        not os.path.exists("/etc/ssl/private")
    )


# -- its folder -----------------------------------------------------------------------------------


def test_a_folder_goes_whatever_is_in_it() -> None:
    folder, lock = ownfolder.make(None)
    deep = os.path.join(folder, "tmp")
    aside = Path(folder).with_name(Path(folder).name + "-aside")
    aside.write_text("stays")
    os.symlink(aside, f"{deep}/link")
    os.symlink("/tmp", f"{deep}/folder")
    os.mkdir(f"{deep}/closed", 0)
    Path(f"{folder}/home/file").write_text("x")
    os.mkfifo(f"{folder}/home/pipe")
    where = os.open(deep, os.O_RDONLY)
    try:
        for _ in range(1500):  # deeper than Python recurses
            os.mkdir("d", dir_fd=where)
            inner = os.open("d", os.O_RDONLY, dir_fd=where)
            os.close(where)
            where = inner
    finally:
        os.close(where)
    ownfolder.remove(folder)
    os.close(lock)
    assert not os.path.exists(folder)
    assert aside.read_text() == "stays"
    aside.unlink()


def test_what_was_left_behind_is_swept_and_nothing_else() -> None:
    left, lock = ownfolder.make(None)
    used, in_use = ownfolder.make(None)
    os.close(lock)
    ownfolder.sweep()
    assert not os.path.exists(left)
    assert os.path.exists(used)
    ownfolder.remove(used)
    os.close(in_use)


# -- kernels --------------------------------------------------------------------------------------

with_kernels = pytest.mark.skipif(
    WAY.kind != "locks", reason="user namespaces are open here; test_elsewhere.py runs it"
)


@pytest.fixture
def walled(shared_box: Box, request: pytest.FixtureRequest) -> Iterator[KernelRecord]:
    record = shared_box.get_or_create(request.node.name[:80], profile="restrictive")
    yield record
    shared_box.destroy(record)


def _folder(box: Box, kernel: KernelRecord) -> str:
    asked = box.execute(kernel, "import os; print(os.environ['TMPDIR'])")
    return os.path.dirname(asked.output.strip())


def _pid(box: Box, kernel: KernelRecord, role: str) -> int:
    (pid,) = [p["pid"] for p in box.status(kernel)["processes"] if p["role"] == role]
    return int(pid)


@with_kernels
def test_the_record_and_the_status_tell_of_leaks(shared_box: Box, walled: KernelRecord) -> None:
    assert any("Landlock and seccomp alone" in note for note in walled.notes)
    walls = shared_box.status(walled)["walls"]
    assert walls["way"] == "locks"
    for leak in ("stat:", "the list of processes", "disk:"):
        assert any(leak in told for told in walls["leaks"])
        assert any(leak in note for note in walled.notes)


@with_kernels
@pytest.mark.parametrize("name", ["moderate", "permissive"])
def test_other_walls_are_not_lowered(shared_box: Box, name: str) -> None:
    with pytest.raises(Unsupported, match="user namespaces are closed"):
        shared_box.get_or_create("other", profile=name)
    assert "other" not in [record.name for record in shared_box.list_kernels()]


@with_kernels
def test_its_rights_as_they_are_seen_from_outside(shared_box: Box, walled: KernelRecord) -> None:
    branch = shared_box.branch(walled, f"{walled.name}-branch")
    shared_box.execute(walled, "sleep 60 &", language="bash")
    members = below(_pid(shared_box, walled, "stub"))
    assert len(members) >= 4
    for member in members:
        facts = dict(
            line.split(":\t", 1)
            for line in Path(f"/proc/{member.pid}/status").read_text().splitlines()
            if ":\t" in line
        )
        names = ["CapInh", "CapPrm", "CapEff", "CapAmb"]
        # An ordinary user has no right to give up what nobody could gain anyway.
        for name in [*names, "CapBnd"] if os.getuid() == 0 else names:
            assert int(facts[name], 16) == 0, name
        assert (facts["NoNewPrivs"], facts["Seccomp"]) == ("1", "2")
        uids = set(facts["Uid"].split())
        assert uids == {str(os.getuid())} or min(map(int, uids)) > 1_000_000_000
        assert "0" not in uids
    shared_box.destroy(branch)


@with_kernels
@pytest.mark.parametrize("role", ["stub", "warden"])
def test_ours_cannot_be_ended_or_read_from_inside(
    shared_box: Box, walled: KernelRecord, role: str
) -> None:
    pid = _pid(shared_box, walled, role)
    shared_box.execute(walled, "alive = 1")
    tries = [f"os.kill({pid}, {number})" for number in (signal.SIGKILL, signal.SIGSTOP, 0)]
    tries += [
        f"open('/proc/{pid}/{name}').read(1)" for name in ("mem", "environ", "cmdline", "maps")
    ]
    tries += [f"os.readlink('/proc/{pid}/{name}')" for name in ("cwd", "exe", "fd/3", "ns/mnt")]
    tries += [f"os.open('/proc/{pid}/{name}', 0)" for name in ("fd/3", "root", "cwd")]
    for code in tries:
        result = shared_box.execute(walled, f"import os; {code}")
        assert result.error is not None, code
        assert result.error.ename == "PermissionError"
    shared_box.execute(walled, f"kill -9 {pid}; kill -9 -1; true", language="bash")
    assert alive(pid)
    assert shared_box.execute(walled, "1+1").return_value == "2"


@with_kernels
def test_two_families_do_not_see_each_other(shared_box: Box, walled: KernelRecord) -> None:
    other = shared_box.get_or_create("other-family", profile="restrictive")
    folder = _folder(shared_box, other)
    shared_box.execute(other, "open('mine', 'w').write('mine')")
    pid = _pid(shared_box, other, "interpreter")
    for code in (
        f"open('{folder}/workspace/mine')",
        f"os.listdir('{folder}/workspace')",
        f"open('{folder}/workspace/yours', 'w')",
        f"os.kill({pid}, 9)",
        f"open('/proc/{pid}/environ')",
    ):
        result = shared_box.execute(walled, f"import os; {code}")
        assert result.error is not None, code
        assert result.error.ename == "PermissionError"
    assert shared_box.execute(other, "open('mine').read()").return_value == "'mine'"
    shared_box.destroy(other)


@with_kernels
def test_a_family_shares_its_folder_and_it_goes_with_the_last(shared_box: Box) -> None:
    kernel = shared_box.get_or_create("family", profile="restrictive")
    folder = _folder(shared_box, kernel)
    assert os.stat(folder).st_mode & 0o777 == 0o711
    assert os.stat(f"{folder}/workspace").st_mode & 0o777 == 0o700
    shared_box.execute(kernel, "open('a', 'w').write('a')")
    branch = shared_box.branch(kernel, "family-branch")
    assert shared_box.execute(branch, "open('a').read()").return_value == "'a'"
    assert shared_box.execute(kernel, "cat a", language="bash").output == "a"
    shared_box.restart(kernel)
    assert shared_box.execute(kernel, "open('a').read()").return_value == "'a'"
    shared_box.destroy(kernel)
    assert shared_box.execute(branch, "open('a').read()").return_value == "'a'"
    shared_box.destroy(branch)
    wait_until(lambda: not os.path.exists(folder), what="the folder to go")


@with_kernels
@pytest.mark.parametrize("role", ["warden", "stub"])
def test_if_one_of_ours_is_killed_the_folder_goes_too(shared_box: Box, role: str) -> None:
    kernel = shared_box.get_or_create(f"killed-{role}", profile="restrictive")
    folder = _folder(shared_box, kernel)
    everybody = below(_pid(shared_box, kernel, "warden"))
    psutil.Process(_pid(shared_box, kernel, role)).kill()
    wait_until(lambda: not os.path.exists(folder), what="the folder to go")
    wait_until(lambda: not any(p.is_running() for p in everybody), what="the family to end")


@with_kernels
def test_what_is_given_by_name_wins(shared_box: Box) -> None:
    environ = {**os.environ, "TMPDIR": "/nowhere", "MODE": "test"}
    kernel = shared_box.get_or_create("given", environ=environ, profile="restrictive")
    seen = shared_box.execute(kernel, "import os; os.environ['TMPDIR'], os.environ['MODE']")
    assert seen.return_value == "('/nowhere', 'test')"
    shared_box.destroy(kernel)


@with_kernels
def test_open_files_at_a_fork_are_read_on_their_own(shared_box: Box, walled: KernelRecord) -> None:
    """Which needs no look into /proc."""
    shared_box.execute(
        walled, "open('lines', 'w').write('1\\n2\\n3\\n'); f = open('lines', buffering=1)"
    )
    shared_box.execute(walled, "import os; os.read(f.fileno(), 2)")
    branch = shared_box.branch(walled, f"{walled.name}-branch")
    assert shared_box.execute(walled, "os.read(f.fileno(), 2)").return_value == "b'2\\n'"
    assert shared_box.execute(branch, "os.read(f.fileno(), 2)").return_value == "b'2\\n'"
    shared_box.destroy(branch)


@with_kernels
def test_a_python_that_only_root_can_read_is_refused_in_words(
    shared_box: Box, tmp_path: Path
) -> None:
    if os.geteuid() != 0:
        pytest.skip("an ordinary user's Python is that user's")
    uid = locks.uid_for(os.getpid())
    folder, lock = ownfolder.make(uid)
    try:
        made = locks.locks_for(RESTRICTIVE, folder=folder, shown=(), private=(), uid=uid)
        nothing = locks.Locks.from_wire({**made.to_wire(), "readable": ["/usr/share"]})
        assert "code behind walls is never root" in locks.proved(nothing)
    finally:
        ownfolder.remove(folder)
        os.close(lock)


@with_kernels
def test_a_folder_that_cannot_be_made_is_a_refusal(
    shared_box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownfolder, "_PLACES", ("/proc", "/no/such/place"))
    with pytest.raises(OSError, match="no folder for the sandbox could be made in /proc"):
        ownfolder.make(None)
