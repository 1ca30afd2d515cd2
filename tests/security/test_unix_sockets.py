"""Promise: a Unix socket of the host that lies in what a sandbox is shown leads nowhere."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from probes import LOCKED, PROFILES, Probe, Sandboxes, controlled, hole

from kernelbox import Box, BoxError
from kernelbox.walls.mounts import Mount

pytestmark = pytest.mark.skipif(LOCKED, reason="no folders are shown here, and no sockets made")

HELLO = "HELLO FROM THE HOST"

# Binds in ways that leave another name in the kernel's list than the file has, then says so.
_SERVER = r"""
import os, socket, sys
how, path = sys.argv[1:]
sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM if how == "datagrams" else socket.SOCK_STREAM)
folder, name = os.path.split(path)
if how == "relative":
    os.chdir(folder)
    sock.bind(name)
elif how == "relative, and left":
    os.chdir(folder)
    sock.bind(name)
    os.chdir("/")
elif how == "moved":
    sock.bind(path + ".new")
    os.rename(path + ".new", path)
elif how == "linked":
    sock.bind(path + ".new")
    os.link(path + ".new", path)
    os.unlink(path + ".new")
elif how == "two names":
    sock.bind(path + ".new")
    os.link(path + ".new", path)
elif how == "by a link":
    os.symlink(folder, folder + "-link")
    sock.bind(os.path.join(folder + "-link", name))
elif how == "with dots":
    sock.bind(os.path.join(folder, "..", os.path.basename(folder), ".", name))
elif how == "another network":
    from kernelbox.walls import kernelcalls
    kernelcalls.unshare(kernelcalls.CLONE_NEWNET | (kernelcalls.CLONE_NEWUSER if os.geteuid() else 0))
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(path)
elif how == "another view":
    from kernelbox.walls import kernelcalls as calls
    calls.unshare(calls.CLONE_NEWNET | calls.CLONE_NEWNS)
    calls.mount("none", "/", flags=calls.MS_REC | calls.MS_PRIVATE)
    calls.bind(folder, "/mnt")
    sock = socket.socket(socket.AF_UNIX)
    sock.bind("/mnt/" + name)
else:
    sock.bind(path)
os.chmod(path, 0o777)
if how != "datagrams":
    sock.listen()
print("bound", flush=True)
while True:
    if how == "datagrams":
        data, who = sock.recvfrom(100)
        sock.sendto(b"HELLO FROM THE HOST", who)
    else:
        sock.accept()[0].sendall(b"HELLO FROM THE HOST")
"""

_CONNECT = """
s = socket.socket(socket.AF_UNIX)
s.settimeout(2)
s.connect(@where@)
breach(s.recv(100))
"""
_SEND = """
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.settimeout(2)
s.bind('@base@/work/answers-' + os.urandom(4).hex())
os.chmod(s.getsockname(), 0o777)
try:
    s.sendto(b'hello', @where@)
    breach(s.recv(100))
finally: os.unlink(s.getsockname())
"""


class Place(NamedTuple):
    """How a socket is bound where, and by which path code gets to it."""

    how: str
    path: str

    @property
    def probe(self) -> Probe:
        where = repr(self.path).replace("{", "@").replace("}", "@")
        code = (_SEND if self.how == "datagrams" else _CONNECT).replace("@where@", where)
        return Probe(f"{self.how}, {self.path}", code)


PLACES = [
    Place("plainly", "{work}/plain.sock"),
    Place("datagrams", "{work}/datagrams.sock"),
    Place("plainly", "{work}/deep/er/plain.sock"),
    Place("plainly", "{home}/deep/er/plain.sock"),
    Place("plainly", "{home}/.config/deep/plain.sock"),
    Place("plainly", "{work}/odd/a b\\012c\nd\té\u20ac.sock"),
    Place("plainly", "{work}/odd/\udcff.sock"),
    Place("plainly", "{work}/odd/a\n0: 00000002 00000000 00010000 0001 01 7 x"),
    Place("relative", "{work}/relative/r.sock"),
    Place("relative, and left", "{work}/left/r.sock"),
    Place("moved", "{work}/moved/m.sock"),
    Place("linked", "{work}/linked/l.sock"),
    Place("two names", "{work}/two/t.sock"),
    Place("by a link", "{work}/real/l.sock"),
    Place("with dots", "{work}/dots/d.sock"),
    Place("another network", "{work}/network/n.sock"),
    Place("another view", "{work}/view/v.sock"),
]


@pytest.fixture(scope="module")
def services(host: dict[str, str]) -> Iterator[None]:
    """One of the host's for each, before any sandbox is made."""
    running: list[subprocess.Popen[str]] = []
    with contextlib.ExitStack() as stack:
        for how, pattern in PLACES:
            path = pattern.format(**host)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            server = subprocess.Popen(
                [sys.executable, "-c", _SERVER, how, path], stdout=subprocess.PIPE, text=True
            )
            stack.enter_context(server)
            stack.callback(server.kill)
            running.append(server)
        for (how, _), server in zip(PLACES, running, strict=True):
            assert server.stdout is not None
            if server.stdout.readline() != "bound\n" and how != "another view":
                pytest.fail(f"nobody could be bound so: {how}")
        yield


_PROBES = [place.probe for place in PLACES]
_LEFT = "whoever has bound it by a name that begins where it stood, and stands elsewhere now"


@pytest.mark.parametrize(
    "probe",
    [
        pytest.param(probe, marks=hole(_LEFT) if "and left" in probe.name else (), id=probe.name)
        for probe in _PROBES
    ],
)
def test_a_socket_that_was_there_before_leads_nowhere(
    services: None, sandboxes: Sandboxes, probe: Probe
) -> None:
    sandboxes.must_fail(probe, "permissive")


@pytest.mark.parametrize("probe", controlled(_PROBES))
def test_without_walls_the_probe_gets_through(
    services: None, sandboxes: Sandboxes, probe: Probe
) -> None:
    sandboxes.must_succeed(probe)


_AROUND = {
    "it is moved away": "os.rename('@work@/deep/er/plain.sock', '@work@/moved.sock')\nwhere = '@work@/moved.sock'",
    "it is linked to": "os.link('@work@/deep/er/plain.sock', '@work@/another.sock')\nwhere = '@work@/another.sock'",
    "its folder is moved": "os.rename('@work@/deep', '@work@/shallow')\nwhere = '@work@/shallow/er/plain.sock'",
    "a folder is put over it": "os.unlink('@work@/deep/er/plain.sock')\nwhere = '@work@/deep/er/plain.sock'",
    "by /proc": "where = '/proc/self/root@work@/deep/er/plain.sock'",
    "by a descriptor of its folder": "where = f\"/proc/self/fd/{os.open('@work@/deep/er', os.O_RDONLY)}/plain.sock\"",
}


@pytest.mark.parametrize("how", _AROUND)
def test_there_is_no_way_around_it(
    services: None, sandboxes: Sandboxes, host: dict[str, str], how: str
) -> None:
    code = f"{_AROUND[how]}\n{_CONNECT.replace('@where@', 'where')}"
    try:
        sandboxes.must_fail(Probe(how, code), "permissive")
    finally:
        shallow = Path(host["work"]) / "shallow"
        if shallow.exists():
            shallow.rename(Path(host["work"]) / "deep")


@contextlib.contextmanager
def _listening(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    path.chmod(0o777)
    server.listen()

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                with server.accept()[0] as one:
                    one.sendall(HELLO.encode())

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        path.unlink(missing_ok=True)


def _answer(box: Box, kernel: str, path: str) -> str:
    code = (
        f"import socket\ns = socket.socket(socket.AF_UNIX)\ns.connect({path!r})\n"
        "print(s.recv(100).decode())"
    )
    result = box.execute(kernel, code, timeout=20)
    assert result.state == "kept"
    return result.output.strip() or (result.error.ename if result.error else "")


@pytest.mark.parametrize("base", ["permissive", "restrictive"])
@pytest.mark.parametrize("mode", ["ro", "rw"])
def test_in_a_mount_it_leads_nowhere_unless_it_is_mounted_itself(
    sandboxes: Sandboxes, tmp_path: Path, base: str, mode: str
) -> None:
    folder = tmp_path / "shown"
    with _listening(folder / "in" / "a.sock"), _listening(folder / "named.sock"):
        named = Mount(str(folder / "named.sock"), "/data/named.sock", "ro")
        walls = PROFILES[base].but(mounts=(Mount(str(folder), "/data", mode), named))
        name = f"mounted-{base}-{mode}"
        sandboxes.box.get_or_create(name, cwd=sandboxes.folder, profile=walls)
        assert _answer(sandboxes.box, name, "/data/in/a.sock") == "ConnectionRefusedError"
        assert _answer(sandboxes.box, name, "/data/named.sock") == HELLO
        written = sandboxes.box.execute(name, "open('/data/in/new', 'w').write('beside it')")
        assert written.ok is (mode == "rw"), written
        sandboxes.box.destroy(name)
    assert (folder / "in" / "new").exists() is (mode == "rw")


@pytest.mark.parametrize("profile", ["restrictive", "moderate"])
def test_in_the_trees_of_the_interpreter_it_leads_nowhere(
    box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, profile: str
) -> None:
    """Such as a project that is on the path of its own Python."""
    path = [str(tmp_path / "project"), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    with _listening(tmp_path / "project" / "in" / "a.sock"):
        box.get_or_create("walled", profile=PROFILES[profile])
        box.get_or_create("open")
        place = str(tmp_path / "project" / "in" / "a.sock")
        assert _answer(box, "open", place) == HELLO
        seen = box.execute("walled", f"import os\nprint(os.listdir({os.path.dirname(place)!r}))")
        assert seen.output == "['a.sock']\n"
        assert _answer(box, "walled", place) == "ConnectionRefusedError"


def test_a_socket_of_its_own_works_also_in_what_is_shown(sandboxes: Sandboxes) -> None:
    result = sandboxes.box.execute(
        sandboxes.kernel("permissive"),
        "import os, socket\nfor path in ('/tmp/own.sock', 'own.sock'):\n"
        "    server = socket.socket(socket.AF_UNIX); server.bind(path); server.listen()\n"
        "    client = socket.socket(socket.AF_UNIX); client.connect(path)\n"
        "    server.accept()[0].send(b'own'); print(client.recv(9)); os.unlink(path)",
    )
    assert result.output == "b'own'\nb'own'\n", result


def test_one_that_vanishes_or_becomes_a_file_harms_nobody(
    sandboxes: Sandboxes, host: dict[str, str]
) -> None:
    """The list of the kernel has the name for as long as somebody has the socket."""
    path = Path(host["work"]) / "gone.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        path.unlink()
        path.write_text("a file")
        kernel = sandboxes.box.get_or_create(
            "gone", cwd=sandboxes.folder, profile=PROFILES["permissive"]
        )
        result = sandboxes.box.execute(kernel, "print(open('gone.sock').read())")
    assert result.output == "a file\n"
    sandboxes.box.destroy(kernel)


def test_too_many_are_refused_in_words(
    sandboxes: Sandboxes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = [socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(1001)]
    monkeypatch.chdir(tmp_path)
    try:
        for number, server in enumerate(servers):
            server.bind(f"s{number}")
        with pytest.raises(BoxError, match="1,001 Unix sockets") as error:
            sandboxes.box.get_or_create(
                "many", cwd=str(tmp_path), profile=PROFILES["permissive"].but(home="none")
            )
        assert "a smaller folder" in str(error.value)
    finally:
        for server in servers:
            server.close()


def test_the_home_of_another_keeper_is_hidden_wherever_it_is(
    sandboxes: Sandboxes, host: dict[str, str]
) -> None:
    """Keys of open kernels are in there, which is not to be read, however deep it is."""
    deep = Path(host["work"]) / "a" / "b" / ".kernelbox"
    other = replace(
        sandboxes.box.settings,
        registry_path=str(deep / "registry.json"),
        runtime_dir=str(deep / "runtime"),
    )
    with Box(other) as box:
        box.get_or_create("open")
        assert list((deep / "runtime").glob("kernel-*.json"))
        kernel = sandboxes.box.get_or_create(
            "neighbours", cwd=sandboxes.folder, profile=PROFILES["permissive"]
        )
        moved = PROFILES["permissive"].but(cwd="none", mounts=(Mount(host["work"], "/data", "ro"),))
        elsewhere = sandboxes.box.get_or_create("elsewhere", cwd=sandboxes.folder, profile=moved)
        code = "import os\nprint([names for _, _, names in os.walk({!r})])"
        for name, path in ((kernel, str(deep)), (elsewhere, "/data/a/b/.kernelbox")):
            seen = sandboxes.box.execute(name, code.format(path))
            assert seen.output in ("[]\n", "[[]]\n")
            sandboxes.box.destroy(name)
        box.wipe()
