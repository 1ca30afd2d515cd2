"""A host with secrets, services and processes, and sandboxes that must not get at any of them."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from probes import Sandboxes, groups_of
from processes import wait_until

from kernelbox import Box
from kernelbox.keeper.home import locate

_REACH = r"""
import socket, sys, threading
def serve(sock):
    while True:
        try: sock.accept()[0].sendall(b"HELLO FROM THE HOST")
        except OSError: pass
for path in sys.argv[1:]:
    sock = socket.socket(socket.AF_UNIX)
    sock.bind("\0" + path[1:] if path.startswith("@") else path)
    sock.listen()
    threading.Thread(target=serve, args=[sock], daemon=True).start()
tcp = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=serve, args=[tcp], daemon=True).start()
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind(("127.0.0.1", 0))
print(tcp.getsockname()[1], udp.getsockname()[1], flush=True)
while True:
    _, who = udp.recvfrom(100)
    udp.sendto(b"HELLO FROM THE HOST", who)
"""


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What there is to get at: files, a home, services, a process, a variable; each with a word
    that is nowhere else."""
    base = Path(tmp_path_factory.mktemp("host"))
    home, work, aside = base / "user", base / "work", base / "aside"
    for folder in (home / ".ssh", home / ".config" / "gh", work / ".kernelbox", aside):
        folder.mkdir(parents=True)
    words = {name: f"word-{uuid.uuid4().hex}" for name in ("file", "key", "variable", "process")}
    (aside / "secret.txt").write_text(words["file"])
    (home / ".ssh" / "id_ed25519").write_text(words["key"])
    (home / ".config" / "gh" / "hosts.yml").write_text(words["key"])
    (home / "notes.txt").write_text("notes")
    (work / ".kernelbox" / "private").write_text(words["key"])
    (work / "shared.txt").write_text("shared")
    (work / "link").symlink_to(aside / "secret.txt")
    abstract = f"kernelbox-test-{uuid.uuid4().hex}"
    server = subprocess.Popen(
        [sys.executable, "-c", _REACH, str(aside / "host.sock"), f"@{abstract}"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PROCESS_SECRET": words["process"]},
    )
    with pytest.MonkeyPatch.context() as patch, server:
        for name in [name for name in os.environ if name.startswith("KERNELBOX_")]:
            patch.delenv(name)
        patch.setenv("HOME", str(home))
        patch.setenv("CALLERS_SECRET", words["variable"])
        patch.setenv("CALLERS_PLAIN", "plain-word")
        patch.chdir(work)
        try:
            assert server.stdout is not None
            tcp, udp = server.stdout.readline().split()
            yield {
                "base": str(base),
                "home": str(home),
                "work": str(work),
                "aside": str(aside),
                "socket": str(aside / "host.sock"),
                "abstract": abstract,
                "tcp": tcp,
                "udp": udp,
                "pid": str(server.pid),
                **{f"{name}_word": word for name, word in words.items()},
            }
        finally:
            server.kill()


@pytest.fixture(scope="module")
def sandboxes(host: dict[str, str], shared_box: Box) -> Iterator[Sandboxes]:
    """A home with one kernel per profile; at the end no control group of theirs is left."""
    place = locate(shared_box.settings)
    words = {
        **host,
        "runtime": place.runtime_dir,
        "rundir": place.rundir,
        "sockets": os.path.dirname(place.rundir),
    }
    yield Sandboxes(shared_box, host["work"], words)
    known = [record.kernel_id for record in shared_box.list_kernels()]
    shared_box.wipe()
    wait_until(lambda: not groups_of(known), what="the control groups to be removed")
