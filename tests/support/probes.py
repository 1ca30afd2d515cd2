"""Attacks, as cells: each one runs into a wall, and is also run where there is none."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest

from kernelbox import Box, ExecutionResult, KernelRecord
from kernelbox.walls import cgroups, ways
from kernelbox.walls.profiles import Profile, named

BREACH = "BREACH"
"""What a probe prints when it got what it wanted."""


class _Offered(dict[str, Profile]):
    """Whoever takes one that cannot be had here is skipped."""

    def __getitem__(self, name: str) -> Profile:
        offered(name)
        return super().__getitem__(name)


PROFILES = _Offered(
    {
        "restrictive": named("restrictive"),
        "moderate": named("moderate").but(network="off"),
        "permissive": named("permissive").but(network="off"),
    }
)
WAY = ways.look()
LOCKED = WAY.kind == "locks"
"""Whether user namespaces are closed here, so that there are locks alone."""

ALL = tuple(name for name, profile in PROFILES.items() if not ways.cannot_offer(profile, WAY))
WITHOUT_CWD = ("restrictive", "moderate")

# Errors with which a wall answers. Anything else (NameError, …) is a mistake in the probe.
_REFUSALS = {
    "OSError", "PermissionError", "FileNotFoundError", "ProcessLookupError", "BlockingIOError",
    "ConnectionRefusedError", "NotADirectoryError", "TimeoutError", "ConnectionError", "gaierror",
    "FileExistsError", "IsADirectoryError", "InterruptedError", "ConnectionResetError",
}  # fmt: skip

PRELUDE = '''
import ctypes, errno, fcntl, os, signal, socket, stat, struct, subprocess, sys, time
_libc = ctypes.CDLL(None, use_errno=True)
OPEN = @open@
def breach(what=""):
    print("BREACH", what)
def denied(what=""):
    print("denied", what)
def call(name, *arguments):
    """A system call: its answer, and the error."""
    from kernelbox.walls.syscalls import numbers
    ctypes.set_errno(0)
    wide = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    done = _libc.syscall(ctypes.c_long(numbers(os.uname().machine)[name]), *wide)
    return done, ctypes.get_errno()
def attempt(name, *arguments):
    """A breach, unless it is refused for want of rights: bad arguments come after that."""
    done, error = call(name, *arguments)
    if done >= 0 or error not in (errno.EPERM, errno.EACCES, errno.ENOSYS):
        breach(f"{name}: {done}, {errno.errorcode.get(error, error)}")
    else:
        denied(f"{name}: {errno.errorcode[error]}")
    return done
def in_child(act, *, spare=0):
    """Act in a process that is thrown away; where there are no walls, in namespaces of its own,
    so that nothing of the host is changed."""
    child = os.fork()
    if child == 0:
        try:
            if OPEN and spare:
                assert _libc.unshare(spare) == 0
                _libc.mount(b"none", b"/", None, ctypes.c_ulong((1 << 18) | 16384), None)
            act()
        except OSError as error:
            denied(error)
        except BaseException as error:
            print("PROBE FAILED", repr(error))
        finally:
            sys.stdout.flush()
            os._exit(0)
    os.waitpid(child, 0)
def read(path, wanted):
    with open(path, "rb") as file:
        breach(path) if wanted.encode() in file.read(1 << 20) else denied(path)
'''


@dataclass(frozen=True)
class Probe:
    """``code`` prints BREACH when it gets through. ``control`` is what is run without walls, if
    the same thing would be harmful there or cannot be had; None: nothing is."""

    name: str
    code: str
    language: str = "python"
    profiles: tuple[str, ...] = ALL
    control: str | None = ""
    deadly: bool = False
    """It may cost the interpreter its life."""
    leak: str = ""
    """What it finds out where there are locks alone, and what the notes then tell of."""

    def __str__(self) -> str:
        return self.name


def offered(profile: str) -> None:
    """Skips the test where there are no such walls."""
    if profile not in (*ALL, "open"):
        pytest.skip(f"no walls but restrictive here: {WAY.why}")


def hole(reason: str) -> Any:
    """An attack that gets through today; the day it fails, this mark must go."""
    return pytest.mark.xfail(reason=f"hole: {reason}", strict=True, raises=AssertionError)


def has_groups() -> bool:
    """Whether limits are kept by control groups here; if not, somebody watches."""
    return not isinstance(cgroups.find(), str)


def groups_of(kernel_ids: Iterable[str]) -> list[str]:
    """The folders of these kernels' control groups that are there."""
    hierarchy = cgroups.find()
    if isinstance(hierarchy, str):
        return []
    paths = {
        path for each in kernel_ids for path in hierarchy.folders(f"kernelbox-{each}").values()
    }
    return sorted(filter(os.path.isdir, paths))


def remove_groups(kernel_ids: Iterable[str]) -> None:
    for path in groups_of(kernel_ids):
        os.rmdir(path)


def bash(name: str, code: str, **options: Any) -> Probe:
    return Probe(name, code, language="bash", **options)


def walled(probes: Iterable[Probe]) -> list[Any]:
    """Each probe under each profile that it must fail under."""
    return [
        pytest.param(probe, profile, id=f"{probe.name}-{profile}")
        for probe in probes
        for profile in probe.profiles
        if profile in ALL
    ]


def controlled(probes: Iterable[Probe]) -> list[Any]:
    return [pytest.param(probe, id=probe.name) for probe in probes if probe.control is not None]


@dataclass
class Sandboxes:
    """One kernel of each profile, and one in the open, all in the same home and folder."""

    box: Box
    folder: str
    words: dict[str, str] = field(default_factory=dict)
    """What ``@name@`` in a probe stands for."""

    _kernels: dict[str, KernelRecord] = field(default_factory=dict)
    _ready: set[str] = field(default_factory=set)
    _own: dict[str, str] = field(default_factory=dict)

    def kernel(self, profile: str) -> KernelRecord:
        """The one that the probes of a module share."""
        offered(profile)
        if profile not in self._kernels:
            walls = None if profile == "open" else PROFILES[profile]
            self._kernels[profile] = self.box.get_or_create(profile, cwd=self.folder, profile=walls)
        return self._kernels[profile]

    def run(self, probe: Probe, profile: str, *, kernel: str | None = None) -> ExecutionResult:
        target = self.kernel(profile) if kernel is None else kernel
        code = probe.control if profile == "open" and probe.control else probe.code
        if probe.language == "python" and (kernel is not None or profile not in self._ready):
            self.box.execute(target, PRELUDE.replace("@open@", str(profile == "open")))
            self._ready |= {profile} if kernel is None else set()
        if LOCKED and profile != "open":
            code = self._at_its_own_places(target, code)
        for name, value in self.words.items():
            code = code.replace(f"@{name}@", value)
        result = self.box.execute(target, code, language=probe.language, timeout=20)
        if result.state != "kept":
            self._ready.discard(profile)
        return result

    def _at_its_own_places(self, target: KernelRecord | str, code: str) -> str:
        """Where there are locks alone, its folders are elsewhere."""
        name = target if isinstance(target, str) else target.name
        if name not in self._own:
            asked = self.box.execute(target, "import os; print(os.environ['TMPDIR'])")
            self._own[name] = os.path.dirname(asked.output.strip())
        folder = self._own[name]
        for usual, here in (
            ("/tmp", "tmp"),
            ("/workspace", "workspace"),
            ("/home/sandbox", "home"),
        ):
            code = code.replace(f"'{usual}", f"'{folder}/{here}")
        return code

    def must_fail(self, probe: Probe, profile: str, *, kernel: str | None = None) -> None:
        result = self.run(probe, profile, kernel=kernel)
        told = f"{profile}: {result.output} {result.error} {result.cause}"
        if LOCKED and probe.leak and BREACH in result.output:
            pytest.xfail(f"a leak that is told of: {probe.leak}")
        assert BREACH not in result.output, told
        assert "PROBE FAILED" not in result.output, told
        if result.error is not None and not (probe.deadly and result.state == "lost"):
            assert probe.language == "bash" or result.error.ename in _REFUSALS, told
        assert probe.deadly or result.state == "kept", told

    def must_succeed(self, probe: Probe) -> None:
        result = self.run(probe, "open")
        if BREACH in result.output:
            return
        if "ENOSYS" in result.output or "No such" in f"{result.output} {result.error}":
            pytest.skip(f"this machine has no such thing: {probe}")
        if LOCKED:
            pytest.skip(f"whoever closes namespaces refuses this, with or without walls: {probe}")
        if os.geteuid() != 0:
            pytest.skip(f"the caller has no right to it, with or without walls: {probe}")
        raise AssertionError(f"the probe is no good: {result.output} {result.error}")
