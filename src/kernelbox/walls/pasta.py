"""Raw TCP and UDP for a sandbox: pasta, a program that carries packets of a network namespace to
ordinary sockets of the host, and of no more rights than it needs.

What may be reached is not its business: it knows no destinations. That is decided in a namespace
between the sandbox and pasta, see `rawnet`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import struct
import time
from collections.abc import Iterable
from typing import NoReturn

from kernelbox.walls import kernelcalls as calls, rawnet
from kernelbox.walls.plan import INSIDE_UID, RAW_RESOLVER

_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
_TUN = "/dev/net/tun"
_PATIENCE = 10.0
_LOOK_EVERY = 0.002
_READY = b"ready"
_NETNS, _USERNS = 10, 11
"""Descriptors of pasta; its standard error is ours."""
_OPTIONS = (
    *("--foreground", "--quiet", "--stderr", "--ipv4-only"),
    # Nothing of the host's loopback, in neither direction.
    *("--no-map-gw", "-t", "none", "-u", "none", "-T", "none", "-U", "none"),
    # Addresses are set by us.
    *("--no-dhcp", "--no-dhcpv6", "--no-ndp", "--no-ra", "--no-icmp"),
    *("--ns-ifname", rawnet.OUTWARD, "--address", rawnet.ADDRESS, "--netmask", "32"),
    *("--gateway", rawnet.GATEWAY, "--dns-forward", RAW_RESOLVER),
)
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE = 47, 2
_CAPABILITY_VERSION_3 = 0x20080522
_RIGHTS = (6, 7, 10, 12, 21)
"""To set ids, bind low ports, set up networks and enter namespaces: what pasta does not drop."""


def missing() -> str:
    """Why there can be no raw sockets here, in words; empty if there can."""
    if shutil.which("pasta", path=_PATH) is None:
        return (
            "raw TCP and UDP need the program 'pasta', which is not installed: install the "
            "package passt, or use network='on' for HTTP and HTTPS"
        )
    if not os.path.exists(_TUN):
        return f"raw TCP and UDP need {_TUN}, which this machine does not have"
    if os.geteuid() != 0 and not os.access(_TUN, os.R_OK | os.W_OK):
        return (
            f"raw TCP and UDP need {_TUN}, which this user may not open: let its mode be 0666, "
            "as it is on most systems, or use network='on' for HTTP and HTTPS"
        )
    return ""


class Line:
    """From a sandbox that is being built to the network: made outside, attached inside."""

    def __init__(self) -> None:
        """Forks who will be pasta, while it can still be anybody."""
        unreachable = rawnet.own_addresses()
        self._near, far = socket.socketpair()
        self._words, said = os.pipe()
        # Full, it must not stop whoever has something to complain of.
        os.set_blocking(said, False)
        self.pid = os.fork()
        if self.pid == 0:
            try:
                # What else is open leads to others, and must end when they do.
                _close_all_but({0, 1, 2, far.fileno(), said})
                _become_pasta(far, said, unreachable)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
                _say(far, error)
            finally:
                os._exit(70)
        far.close()
        os.close(said)

    def attach(self) -> None:
        """Inside, as whoever may configure this network namespace."""
        with contextlib.ExitStack() as opened:
            fds = [os.open(f"/proc/self/ns/{kind}", os.O_RDONLY) for kind in ("net", "user")]
            for fd in fds:
                opened.callback(os.close, fd)
            with contextlib.suppress(OSError):
                socket.send_fds(self._near, [b"1"], fds)
        self._near.settimeout(2 * _PATIENCE)
        try:
            word = self._near.recv(1000)
        except OSError as error:
            word = str(error).encode()
        if word != _READY:
            words = "; ".join(filter(None, (word.decode("utf-8", "replace"), self._last_words())))
            raise calls.StepFailed(0, f"attaching pasta: {words or 'it ended'}")
        rawnet.furnish()

    def _last_words(self) -> str:
        os.set_blocking(self._words, False)
        try:
            said = os.read(self._words, 4096).decode("utf-8", "replace")
        except BlockingIOError:
            said = ""
        lines = [line for line in said.splitlines() if line and "syslog" not in line]
        return "; ".join(lines[-3:])

    def let_go(self) -> None:
        """Outside, of what only the inside needs."""
        self._near.close()

    def close(self) -> None:
        """Inside, when it is attached."""
        self._near.close()
        os.close(self._words)

    def hang_up(self) -> None:
        """Outside, when the sandbox has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def _become_pasta(far: socket.socket, said: int, unreachable: list[str]) -> NoReturn:
    """Wait for the namespaces of the sandbox, have one built between it and us, and be pasta there,
    with rights over these and over nothing else."""
    as_root = os.geteuid() == 0
    if as_root:
        _lend_tun()
    data, fds, _, _ = socket.recv_fds(far, 1, 2)
    if not data or len(fds) != 2:
        os._exit(0)  # there will be no sandbox
    sandbox, owner = fds
    between = _build_between(far, sandbox, owner, unreachable, as_root=as_root)
    far.close()
    null = os.open(os.devnull, os.O_RDWR)
    sources = (null, null, said, between, owner)
    lifted = [os.dup2(fd, 100 + number) for number, fd in enumerate(sources)]
    for fd, target in zip(lifted, (0, 1, 2, _NETNS, _USERNS), strict=True):
        os.dup2(fd, target, inheritable=True)
    _close_all_but({0, 1, 2, _NETNS, _USERNS})
    # It takes an ignored signal for a mistake.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    program = shutil.which("pasta", path=_PATH) or "pasta"
    argv = [program, *_OPTIONS, "--netns", f"/proc/self/fd/{_NETNS}"]
    if as_root:
        _become_insider(_USERNS, as_root=True)
        _keep_rights()
        argv += ["--netns-only"]
    else:
        argv += ["--userns", f"/proc/self/fd/{_USERNS}"]
    os.execve(program, argv, {"PATH": _PATH})


def _build_between(
    far: socket.socket, sandbox: int, owner: int, unreachable: list[str], *, as_root: bool
) -> int:
    """A network namespace of the sandbox's owner, made by a process that ends when it is ready and
    has told the sandbox so. Its descriptor."""
    near, child_end = socket.socketpair()
    parent = os.getpid()
    if os.fork() == 0:
        try:
            _become_insider(owner, as_root=as_root)
            calls.unshare(calls.CLONE_NEWNET)
            mine = os.open("/proc/self/ns/net", os.O_RDONLY)
            rawnet.open_door(sandbox)
            socket.send_fds(child_end, [b"1"], [mine])
            _await_interface(parent)
            rawnet.guard(unreachable)
            far.sendall(_READY)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
            _say(far, error)
        finally:
            os._exit(0)
    child_end.close()
    with near:
        data, fds, _, _ = socket.recv_fds(near, 1, 1)
    if not data or not fds:
        os._exit(70)  # and the child has said why
    return fds[0]


def _await_interface(pasta: int) -> None:
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            socket.if_nametoindex(rawnet.OUTWARD)
            return
        if os.getppid() != pasta:
            raise OSError("pasta has ended")
        time.sleep(_LOOK_EVERY)
    raise OSError(f"pasta made no interface within {_PATIENCE:g} s")


def _say(far: socket.socket, error: Exception) -> None:
    with contextlib.suppress(OSError):
        far.sendall((str(error) or repr(error)).encode()[:900])


def _lend_tun() -> None:
    """Root's device may be root's only; whom we become is nobody."""
    calls.unshare(calls.CLONE_NEWNS)
    calls.mount("none", "/", flags=calls.MS_REC | calls.MS_PRIVATE)
    device = os.stat(_TUN).st_rdev
    calls.mount("tmpfs", os.path.dirname(_TUN), "tmpfs", calls.MS_NOSUID, "mode=0755")
    os.mknod(_TUN, 0o020666, device)
    os.chmod(_TUN, 0o666)


def _become_insider(user_namespace: int, *, as_root: bool) -> None:
    """From root, or the caller, to the sandbox's own uid, with rights over its namespaces alone."""
    if as_root:
        os.setgroups([])
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(user_namespace, calls.CLONE_NEWUSER) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"entering the user namespace: {os.strerror(number)}")
    os.setresgid(INSIDE_UID, INSIDE_UID, INSIDE_UID)
    os.setresuid(INSIDE_UID, INSIDE_UID, INSIDE_UID)


def _keep_rights() -> None:
    """Over the namespaces, also as another program."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
    every = sum(1 << number for number in _RIGHTS)
    if libc.capset(header, struct.pack("6I", every, every, every, 0, 0, 0)) != 0:
        raise OSError(ctypes.get_errno(), "keeping rights over the namespace")
    for number in _RIGHTS:
        libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, number, 0, 0)


def _close_all_but(keep: Iterable[int]) -> None:
    kept = set(keep)
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with contextlib.suppress(OSError):
                os.close(int(name))
