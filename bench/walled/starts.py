"""New kernel → first result, in turns with other ways to start something behind walls."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from kernelbox import Box, BoxError
from walled.figures import PATIENCE, PROFILES, SETTLE, WALLED, Unavailable


@dataclass
class Contender:
    """One way to start something behind walls; ``turn`` does it once and gives milliseconds."""

    name: str
    turn: Callable[[], float]
    ours: bool = False
    times: list[float] = field(default_factory=list)
    why_not: str = ""


def profile_turn(box: Box, profile: str) -> float:
    began = time.perf_counter()
    kernel = box.get_or_create("turn", profile=profile)
    try:
        result = box.execute(kernel, "1+1")
        took = (time.perf_counter() - began) * 1000
        if result.return_value != "2":
            raise Unavailable(f"{profile}: {result.error or result.cause}")
        return took
    finally:
        box.destroy(kernel)


def spare_turn(box: Box, profile: str) -> float:
    """A sandbox that was made ahead becomes the kernel; waiting for it is not counted."""
    runtime = Path(box.settings.runtime_dir)
    deadline = time.monotonic() + PATIENCE
    known = {record.kernel_id for record in box.list_kernels()}
    while not {path.name.removeprefix("spool-") for path in runtime.glob("spool-*")} - known:
        if time.monotonic() > deadline:
            raise Unavailable(f"no sandbox ahead within {PATIENCE:.0f} s")
        time.sleep(0.05)
    time.sleep(SETTLE)  # its place is there before its first cell was rehearsed
    return profile_turn(box, profile)


def command_turn(*command: str) -> float:
    """From the start of a program to its end."""
    if shutil.which(command[0]) is None:
        raise Unavailable("not installed")
    began = time.perf_counter()
    # Pipes, never a file: runsc writes to a file from its beginning, whatever is there.
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    took = (time.perf_counter() - began) * 1000
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip().splitlines()
        raise Unavailable((words or [f"exit code {done.returncode}"])[-1][:160])
    return took


def bubblewrap_turn(folder: Path) -> float:
    """ipykernel in bubblewrap. Without a network between them, they talk through sockets in a
    folder. It is asked for a value in the reply itself, as soon as its socket is there: quicker
    than ``wait_for_ready``, which waits for silence first."""
    from jupyter_client.blocking.client import BlockingKernelClient

    if shutil.which("bwrap") is None:
        raise Unavailable("not installed")
    place = Path(tempfile.mkdtemp(dir=folder))
    connection = place / "connection.json"
    facts: dict[str, Any] = {
        "transport": "ipc",
        "ip": str(place / "s"),
        "key": secrets.token_hex(16),
        "signature_scheme": "hmac-sha256",
    }
    names = ("shell", "iopub", "stdin", "control", "hb")
    facts |= {f"{name}_port": number for number, name in enumerate(names, 1)}
    connection.write_text(json.dumps(facts))
    began = time.perf_counter()
    kernel = subprocess.Popen(
        [*bubblewrap(place), sys.executable, "-m", "ipykernel_launcher", "-f", str(connection)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    client = BlockingKernelClient(connection_file=str(connection))
    try:
        while not (place / "s-1").exists():
            if kernel.poll() is not None:
                said = kernel.stderr.read() if kernel.stderr else ""
                raise Unavailable((said.strip().splitlines() or ["it ended"])[-1][:160])
            if time.perf_counter() - began > PATIENCE:
                raise Unavailable(f"no socket within {PATIENCE:.0f} s")
            time.sleep(0.001)
        client.load_connection_file()
        client.start_channels(iopub=False, stdin=False, hb=False, control=False)
        client.execute("", user_expressions={"value": "1+1"})
        reply = client.get_shell_msg(timeout=PATIENCE)
        took = (time.perf_counter() - began) * 1000
        value = reply["content"]["user_expressions"]["value"]["data"]["text/plain"]
        if value != "2":
            raise Unavailable(f"it answered {value}")
        return took
    finally:
        client.stop_channels()
        kernel.kill()
        kernel.communicate()
        shutil.rmtree(place, ignore_errors=True)


def bubblewrap(place: Path) -> list[str]:
    command = ["bwrap", "--unshare-all", "--die-with-parent", "--ro-bind", "/usr", "/usr"]
    for name in ("bin", "lib", "lib64", "sbin"):
        if os.path.islink(f"/{name}"):
            command += ["--symlink", os.readlink(f"/{name}"), f"/{name}"]
        elif os.path.isdir(f"/{name}"):
            command += ["--ro-bind", f"/{name}", f"/{name}"]
    command += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
    for prefix in sorted({sys.prefix, sys.base_prefix}):
        command += ["--ro-bind", prefix, prefix]
    return [*command, "--bind", str(place), str(place), "--setenv", "HOME", str(place)]


class Image:
    """A container image with one static program, made from nothing and removed at the end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._name = f"kernelbox-bench-walls:{secrets.token_hex(4)}"
        self._there = False

    def turn(self) -> float:
        if shutil.which("podman") is None:
            raise Unavailable("not installed")
        self._make()
        limits = [f"--ulimit={name}=1024:1024" for name in ("nofile", "nproc")]
        before = ["--runtime=runc", "--cgroup-manager=cgroupfs"] if os.geteuid() == 0 else []
        options = ["--rm", "--network=none", *limits]
        return command_turn("podman", *before, "run", *options, self._name, "true")

    def remove(self) -> None:
        if self._there:
            with contextlib.suppress(Unavailable):
                command_turn("podman", "rmi", "--force", self._name)

    def _make(self) -> None:
        if self._there:
            return
        busybox = shutil.which("busybox")
        if busybox is None:
            raise Unavailable("no busybox to make an image of")
        archive = self._folder / "image.tar"
        with tarfile.open(archive, "w") as tar:
            tar.add(busybox, "bin/true")
        command_turn("podman", "import", "--quiet", str(archive), self._name)
        self._there = True


def contenders(box: Box, with_spares: Box, folder: Path, image: Image) -> list[Contender]:
    found = [
        Contender(f"this project, `{name}`", partial(profile_turn, box, name), ours=True)
        for name in PROFILES
    ]
    warm = f"this project, `{WALLED}`, from a warm spare"
    found.append(Contender(warm, partial(spare_turn, with_spares, WALLED), ours=True))
    found.append(Contender("bubblewrap + ipykernel", partial(bubblewrap_turn, folder)))
    rows: list[tuple[str, ...]] = [("--rootless", "--network=none")]
    if os.geteuid() == 0:
        rows += [("--network=none",), ("--network=none", "--ignore-cgroups")]
    for options in rows:
        name = f"`runsc {' '.join(options)} do true`"
        found.append(Contender(name, partial(command_turn, "runsc", *options, "do", "true")))
    found.append(Contender("`podman run --rm --network=none … true`", image.turn))
    return found


def race(field_: list[Contender], rounds: int) -> None:
    """In turns; the first turn of each is not counted: it finds files that are in no cache yet."""
    for number in range(rounds + 1):
        for contender in field_:
            if contender.why_not:
                continue
            try:
                took = contender.turn()
            except (Unavailable, BoxError, subprocess.TimeoutExpired) as error:
                contender.why_not = str(error)
                continue
            if number:
                contender.times.append(took)
            time.sleep(SETTLE)
        print(f"  round {number} of {rounds}", file=sys.stderr, flush=True)
