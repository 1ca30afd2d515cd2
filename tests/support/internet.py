"""A network of our own with an Internet in it: a process whose network namespace leads, by a pair of
virtual interfaces, to another in which servers listen at public addresses.

Sandboxes refuse this machine and its network, so what they may reach has to be elsewhere. The
process runs what tests tell it, line by line; keeper, wardens and gates are its children. Needs
root, and `ip` and `unshare`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import environments

SERVER, HERE = "11.22.33.44", "11.22.33.45"
PRIVATE = "10.98.76.54"
"""Of the same server, on a network that is nobody's business."""
BOUND, OTHER = "bound.example", "other.example"


def obstacle() -> str:
    """Why there can be none here; empty if there can."""
    if os.geteuid() != 0:
        return "an Internet of our own needs root"
    for program in ("ip", "unshare"):
        if shutil.which(program) is None:
            return f"there is no program {program!r}"
    tried = subprocess.run(
        ["unshare", "-nm", "sh", "-c", "ip link add kb0 type veth peer name kb1"],
        capture_output=True,
        text=True,
    )
    return f"no virtual interfaces: {tried.stderr.strip()}" if tried.returncode else ""


def python_of(uid: int) -> tuple[str, dict[str, str]] | None:
    """A Python of our version that this user can run, with our packages, and its environment: root's
    own may be in a folder of root's."""
    if not uid:
        return sys.executable, {}
    program = environments.interpreter(uid)
    own = {"PYTHONPATH": environments.environ("/")["PYTHONPATH"]}
    return (program, own) if program else None


class Internet:
    """Tests' end of it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, code: str, /, **names: Any) -> Any:
        """Run a statement or more over there, with these names; what it leaves in ``result``."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([code, names]) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline() or '{"error": "it has ended"}')
        if "error" in answer:
            raise AssertionError(answer["error"])
        return answer["result"]

    def execute(self, kernel: str, code: str) -> dict[str, Any]:
        """Run a cell; its output, value, error and notes."""
        answer: dict[str, Any] = self.run(
            "r = box.execute(kernel, code, timeout=40)\n"
            "result = {'output': r.output, 'value': r.return_value, 'notes': r.notes,\n"
            "          'error': str(r.error) if r.error else ''}",
            kernel=kernel,
            code=code,
        )
        return answer

    def heard(self) -> list[dict[str, Any]]:
        """All that the servers were asked."""
        told: list[dict[str, Any]] = self.run(
            "result = [json.loads(l) for l in (folder / 'heard').read_text().splitlines()]"
        )
        return told


@contextlib.contextmanager
def internet(uid: int = 0, **environ: str) -> Iterator[Internet]:
    """``uid``: whose sandboxes they are."""
    program, own = python_of(uid) or (sys.executable, {})
    with tempfile.TemporaryDirectory(prefix="kernelbox-internet-") as folder:
        process = subprocess.Popen(
            ["unshare", "-nm", program, __file__, "here", folder, str(uid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                **own,
                "KERNELBOX_HOME": f"{folder}/home",
                "KERNELBOX_KEEPER_LINGER": "0.1",
                "KERNELBOX_SPARES": "0",  # one that is made ahead has a line of its own
                **environ,
            },
            cwd=folder,
        )
        try:
            made = Internet(process)
            made.run("result = None")
            yield made
        finally:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.close()
            status = process.wait(30)
            process.stdout.close()
        assert status == 0, "it did not end well, and may have left something behind"


def _ip(words: str) -> None:
    subprocess.run(["ip", *words.split()], check=True)


def _become(uid: int, folder: Path) -> None:
    """An ordinary user, who may use tun devices, as on most systems."""
    if os.path.exists("/dev/net/tun"):
        device = os.stat("/dev/net/tun").st_rdev
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/dev/net"], check=True)
        os.mknod("/dev/net/tun", 0o020666, device)
        os.chmod("/dev/net/tun", 0o666)
    home = folder / "user"
    home.mkdir()
    for place in (folder, home):
        os.chown(place, uid, uid)
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    os.environ["HOME"] = str(home)


def _here(folder: Path, uid: int) -> None:
    """The side of sandboxes: set up, then do as told until nobody tells."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    _ip("link set lo up")
    # It ends with its input, and not by a signal: as an ordinary user we may send it none.
    words = ["unshare", "-n", sys.executable, __file__, "there", str(folder), "0"]
    there = subprocess.Popen(words, stdin=subprocess.PIPE)
    assert there.stdin is not None
    while os.readlink(f"/proc/{there.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
        time.sleep(0.005)
    _ip(f"link add kb0 type veth peer name kb1 netns {there.pid}")
    _ip(f"addr add {HERE}/24 dev kb0")
    _ip("link set kb0 up")
    _ip(f"route add default via {SERVER}")
    hosts = folder / "hosts"
    hosts.write_text(f"127.0.0.1 localhost\n{SERVER} {BOUND} {OTHER}\n")
    names = folder / "resolv.conf"
    names.write_text(f"nameserver {SERVER}\n")
    for source, target in ((hosts, "/etc/hosts"), (names, "/etc/resolv.conf")):
        subprocess.run(["mount", "--bind", str(source), target], check=True)
    (folder / "ready").touch()
    deadline = time.monotonic() + 10
    while not (folder / "listening").exists():
        assert time.monotonic() < deadline, "the servers did not come up"
        time.sleep(0.01)

    if uid:
        _become(uid, folder)
    from kernelbox import Box, Profile, Secret

    os.environ["SSL_CERT_FILE"] = str(folder / "authority.pem")
    names: dict[str, Any] = {"Box": Box, "Profile": Profile, "Secret": Secret, "folder": folder}
    names |= {"box": Box(), "json": json, "os": os, "subprocess": subprocess}
    try:
        for line in sys.stdin:
            code, given = json.loads(line)
            try:
                names |= given | {"result": None}
                exec(code, names)
                answer = {"result": names["result"]}
            except Exception as error:  # noqa: BLE001 - the test's to judge
                answer = {"error": f"{type(error).__name__}: {error}"}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
    finally:
        names["box"].wipe()
        there.stdin.close()
        there.wait(10)


def _answer_to(question: bytes) -> bytes:
    """A name server's: every name is the server's."""
    import socket

    head = question[:2] + b"\x81\x80\0\1\0\1\0\0\0\0"
    asked = question[12 : question.index(b"\0", 12) + 5]
    if asked[-4:-2] != b"\0\1":  # not of version 4
        return question[:2] + b"\x81\x80\0\1\0\0\0\0\0\0" + asked
    return head + asked + b"\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4" + socket.inet_aton(SERVER)


def _there(folder: Path, uid: int) -> None:
    """The Internet's side: one server with TLS, one without, one that echoes TCP and UDP."""
    import socket
    import threading

    from tls_servers import origin

    while not (folder / "ready").exists():
        time.sleep(0.005)
    addresses = (f"addr add {SERVER}/24 dev kb1", f"addr add {PRIVATE}/32 dev kb1")
    for words in ("link set lo up", *addresses, "link set kb1 up"):
        _ip(words)
    heard = (folder / "heard").open("a")

    class Heard(list[dict[str, object]]):
        def append(self, told: dict[str, object]) -> None:
            heard.write(json.dumps(told) + "\n")
            heard.flush()

    def echo_tcp() -> None:
        with socket.create_server(("", 7)) as listener:
            while True:
                connection, (who, _) = listener.accept()
                with connection:
                    connection.sendall(b"from " + who.encode() + b": " + connection.recv(1000))

    def echo_udp() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.bind((SERVER, 7))
            while True:
                data, who = sock.recvfrom(1000)
                sock.sendto(b"echo " + data, who)

    def name() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.bind((SERVER, 53))
            while True:
                data, who = sock.recvfrom(1000)
                sock.sendto(_answer_to(data), who)

    for echo in (echo_tcp, echo_udp, name):
        threading.Thread(target=echo, daemon=True).start()
    with (
        origin(folder, BOUND, OTHER, address=SERVER, port=443, heard=Heard()) as secure,
        origin(folder, address=SERVER, port=80, heard=Heard()),
    ):
        os.rename(secure.authority, folder / "authority.pem")
        (folder / "listening").touch()
        sys.stdin.read()


if __name__ == "__main__":
    {"here": _here, "there": _there}[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]))
