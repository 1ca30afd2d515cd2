"""``kernelbox doctor``: what works on this machine, and what to do about the rest."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Literal

from kernelbox.box import Box
from kernelbox.cli import exits
from kernelbox.cli.printing import say
from kernelbox.cli.progress import working
from kernelbox.config import Settings
from kernelbox.errors import BoxError
from kernelbox.keeper.home import Home, locate

_LEAST_PYTHON = (3, 11)
_CLONE_NEWUSER = 0x10000000
_SCOPES_FROM = 6
_MB = 1 << 20
_PATIENCE = 20.0

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at. ``warn``: something does without it; ``fail``: nothing does.
    ``do`` says what to do about it."""

    check: str
    status: Status
    found: str
    do: str | None = None


def doctor(options: Namespace) -> int:
    with working("looking at this machine"):
        checks = list(checked(kernel=not options.no_kernel))
    healthy = all(check.status != "fail" for check in checks)
    if options.human:
        from kernelbox.cli.human import show_checks

        show_checks(asdict(check) for check in checks)
    else:
        say({"ok": healthy, "checks": [asdict(check) for check in checks]})
    return exits.DONE if healthy else exits.CODE_FAILED


def checked(*, kernel: bool) -> Iterator[Check]:
    """All checks, in the order in which one needs the other."""
    yield python()
    yield system()
    yield forking()
    yield from packages()
    yield bash()
    try:
        settings = Settings.from_environment()
    except BoxError as error:
        yield Check("settings", "fail", error.message, "kernelbox config shows all settings")
    else:
        yield Check("settings", "ok", "every KERNELBOX_ variable can be used")
        home = locate(settings)
        yield folder("home", home.registry_path or home.runtime_dir, _HOME_ADVICE)
        yield folder("socket folder", home.rundir, _SOCKETS_ADVICE)
        yield disk(home)
    yield free_memory()
    yield open_files()
    yield landlock()
    yield user_namespaces()
    yield cgroups()
    yield walls()
    yield gvisor()
    yield kvm()
    if kernel:
        yield real_kernel()


_HOME_ADVICE = "point KERNELBOX_HOME at a folder that you own"
_SOCKETS_ADVICE = "remove it if it is not yours, or give yourself the right to write there"


def python() -> Check:
    words = f"{platform.python_implementation()} {platform.python_version()} ({sys.executable})"
    if sys.implementation.name != "cpython" or sys.version_info < _LEAST_PYTHON:
        return Check("python", "fail", words, "install CPython 3.11 or newer")
    return Check("python", "ok", words)


def system() -> Check:
    words = f"{platform.system()} {platform.release()} {platform.machine()}"
    if not sys.platform.startswith("linux"):
        advice = "only kernels of KERNELBOX_KERNEL_TYPE may work here; use Linux, or Docker"
        return Check("system", "fail", words, advice)
    return Check("system", "ok", words)


def forking() -> Check:
    try:
        works = _in_a_fork(lambda: True)
    except OSError as error:
        advice = "raise the limit on processes (ulimit -u, pids.max of the container)"
        return Check("fork", "fail", f"fork failed: {error.strerror}", advice)
    return Check("fork", "ok" if works else "fail", "processes can be forked")


def packages() -> Iterator[Check]:
    """What must be installed, and what more there is to install."""
    for name in ("ipython", "pyzmq", "cloudpickle", "prompt_toolkit", "rich"):
        version = _version(name)
        advice = None if version else f"pip install {name}"
        yield Check(name, "ok" if version else "fail", version or "not installed", advice)
    extras = {
        "foreign": ("kernels of other languages", ("jupyter_client",)),
        "install": ("packages for kernels", ("packaging", "uv")),
        "server": ("the HTTP service", ("fastapi", "uvicorn")),
    }
    for extra, (what, names) in extras.items():
        missing = [name for name in names if _version(name) is None]
        if missing:
            found = f"{what}: not installed ({', '.join(missing)})"
            yield Check(f"extra {extra}", "warn", found, f'pip install "./kernelbox[{extra}]"')
        else:
            versions = ", ".join(f"{name} {_version(name)}" for name in names)
            yield Check(f"extra {extra}", "ok", f"{what}: {versions}")


def bash() -> Check:
    path = shutil.which("bash")
    if path is None:
        return Check("bash", "warn", "not found: exec --bash cannot work", "install bash")
    return Check("bash", "ok", path)


def folder(what: str, path: str, advice: str) -> Check:
    """Whether a folder, or what would have to be made for it, can be written."""
    existing = _existing(path)
    if not os.path.isdir(existing):
        return Check(what, "fail", f"{existing} is no folder", advice)
    if not os.access(existing, os.W_OK | os.X_OK):
        return Check(what, "fail", f"{existing} cannot be written", advice)
    return Check(what, "ok", path)


def disk(home: Home) -> Check:
    path = _existing(home.runtime_dir)
    try:
        free = shutil.disk_usage(path).free
    except OSError as error:
        return Check("disk", "warn", f"{path}: {error.strerror}")
    status: Status = "fail" if free < 20 * _MB else "warn" if free < 1024 * _MB else "ok"
    advice = None if status == "ok" else "make room, or point KERNELBOX_HOME at another disk"
    return Check("disk", status, f"{free // _MB:,} MB free at {path}", advice)


def free_memory() -> Check:
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            facts = dict(line.split(":", 1) for line in file)
        free = int(facts["MemAvailable"].split()[0]) // 1024
    except (OSError, KeyError, ValueError):
        return Check("memory", "warn", "not known: /proc/meminfo cannot be read")
    if limit := _cgroup_number("memory.max"):
        free = min(free, (limit - (_cgroup_number("memory.current") or 0)) // _MB)
    status: Status = "warn" if free < 512 else "ok"
    advice = None if status == "ok" else "destroy kernels that you do not need: kernelbox top"
    return Check("memory", status, f"{free:,} MB can be had", advice)


def open_files() -> Check:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    words = f"{soft:,} (could be {hard:,})" if soft != hard else f"{soft:,}"
    if soft < 1024:
        return Check("open files", "warn", words, f"ulimit -n {min(hard, 4096)}")
    return Check("open files", "ok", words)


def landlock() -> Check:
    from kernelbox.inside.landlock import abi

    version = abi()
    if version >= _SCOPES_FROM:
        return Check("landlock", "ok", f"version {version}")
    found = f"version {version}" if version else "none"
    advice = "branches cannot be kept from signalling each other; Linux 6.12 or newer can"
    return Check("landlock", "warn", found, advice)


def user_namespaces() -> Check:
    def enter() -> bool:
        import ctypes

        return int(ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWUSER)) == 0

    if _in_a_fork(enter):
        return Check("user namespaces", "ok", "can be made")
    advice = (
        "walls other than restrictive need them. sysctl kernel.unprivileged_userns_clone=1, "
        "kernel.apparmor_restrict_unprivileged_userns=0, or a looser profile of the container"
    )
    return Check("user namespaces", "warn", "cannot be made", advice)


def cgroups() -> Check:
    """Whether the kernel can keep the limits of a profile, by trying: that a group can be written
    does not tell, since in v2 one with processes in it has no limited groups below."""
    from kernelbox.walls.cgroups import find

    found = find()
    if isinstance(found, str):
        advice = (
            "without one, memory and processes of a sandbox are looked at now and then, and its "
            "share of the processor is not limited"
        )
        return Check("cgroups", "warn", found, advice)
    return Check("cgroups", "ok", f"limits are kept by {found.describe()}")


def walls() -> Check:
    """Whether a kernel can have any (``create --profile``), by building them around nothing."""
    from kernelbox.walls import kernelcalls, locks, ways

    if not kernelcalls.supported():
        found = f"not for {platform.machine()}: x86_64 and aarch64 have them"
        return Check("walls", "warn", found, "profiles other than open are refused")
    way = ways.look()
    if way.kind == "locks":
        if words := locks.attempt():
            advice = f"profiles other than open are refused; allow user namespaces ({way.why})"
            return Check("walls", "warn", f"cannot be built: {words}", advice)
        found = f"restrictive alone, by Landlock and seccomp ({way.why}); open remain "
        leaks = "; ".join(locks.leaks(disk=True))
        advice = "for all profiles, and walls without these leaks, allow user namespaces"
        return Check("walls", "warn", found + leaks, advice)
    if way.why:
        advice = "profiles other than open are refused; allow user namespaces, or run as root"
        return Check("walls", "warn", f"cannot be built: {way.why}", advice)
    return Check("walls", "ok", "can be built: permissive, moderate, restrictive and your own")


def gvisor() -> Check:
    """Whether a profile may name the driver ``gvisor``, by running nothing in it."""
    from kernelbox.walls import gvisor as driver

    if words := driver.obstacle():
        return Check("gvisor", "warn", words, "profiles with driver='gvisor' are refused")
    return Check("gvisor", "ok", f"{driver.version()} works: profiles may have driver='gvisor'")


def kvm() -> Check:
    if os.access("/dev/kvm", os.R_OK | os.W_OK):
        return Check("kvm", "ok", "/dev/kvm can be used")
    if os.path.exists("/dev/kvm"):
        return Check("kvm", "warn", "/dev/kvm is not for you", "join the group kvm")
    advice = "nothing of today needs it; sandboxes in virtual machines will"
    return Check("kvm", "warn", "there is no /dev/kvm", advice)


def real_kernel() -> Check:
    """Start one in a home of its own, run a cell, branch it, and leave nothing behind."""
    with tempfile.TemporaryDirectory(prefix="kernelbox-doctor-", ignore_cleanup_errors=True) as tmp:
        try:
            settings = Settings.from_environment(home=tmp, spares=0, keeper_linger=0.0)
            with Box(settings) as box:
                try:
                    words = _exercise(box)
                finally:
                    box.wipe()
            _wait_for_the_end(locate(settings))
        except (BoxError, OSError) as error:
            advice = "kernelbox logs shows what was said; check the points above first"
            return Check("a real kernel", "fail", f"{type(error).__name__}: {error}", advice)
    return Check("a real kernel", "ok", words)


def _exercise(box: Box) -> str:
    clock = time.perf_counter
    moments = [clock()]
    record = box.get_or_create("doctor")
    moments.append(clock())
    result = box.execute(record, "6 * 7")
    moments.append(clock())
    if result.return_value != "42":
        raise BoxError(f"6 * 7 is {result.return_value!r}: {result.error}")
    words = ["started cold in {:.0f} ms", "ran a cell in {:.1f} ms"]
    if record.kernel_type == "python3":
        box.branch(record, "branch")
        moments.append(clock())
        words.append("branched in {:.1f} ms")
    took = [1000 * (after - before) for before, after in pairwise(moments)]
    return ", ".join(word.format(ms) for word, ms in zip(words, took, strict=True))


def _wait_for_the_end(home: Home) -> None:
    """Its keeper leaves by itself; only then can its folder be removed."""
    from kernelbox.keeper.launch import is_listening

    deadline = time.monotonic() + _PATIENCE
    while is_listening(home.keeper_address) and time.monotonic() < deadline:
        time.sleep(0.02)


def _in_a_fork(attempt: Callable[[], bool]) -> bool:
    pid = os.fork()
    if pid == 0:
        works = False
        try:
            works = attempt()
        finally:
            os._exit(0 if works else 1)
    return os.waitpid(pid, 0)[1] == 0


def _existing(path: str) -> str:
    """The nearest folder above that is there."""
    path = os.path.dirname(path)
    while not os.path.lexists(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    return path


def _own_cgroup() -> str | None:
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            lines = file.read().splitlines()
    except OSError:
        return None
    own = next((line[3:] for line in lines if line.startswith("0::")), None)
    return None if own is None else f"/sys/fs/cgroup{own}".rstrip("/")


def _cgroup_number(name: str) -> int | None:
    try:
        with open(f"{_own_cgroup()}/{name}", encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


def _version(name: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return None
