"""Where a home's files are: what the settings name, and a short private folder for sockets."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from dataclasses import dataclass

from kernelbox.config import Settings
from kernelbox.errors import BadInput, KeeperUnavailable
from kernelbox.places import HIDDEN, sign, socket_folder

_SOCKET_PATH_LIMIT = 107


@dataclass(frozen=True, slots=True)
class Home:
    """The places of one home. Two callers with the same settings have the same home."""

    registry_path: str
    runtime_dir: str
    rundir: str
    owner: int | None = None  # memory store: the process that its kernels end with

    @property
    def keeper_address(self) -> str:
        return os.path.join(self.rundir, "keeper.sock")

    @property
    def lock_path(self) -> str:
        return os.path.join(self.rundir, "keeper.lock")

    @property
    def log_path(self) -> str:
        return os.path.join(self.rundir, "keeper.log")

    def connection_file(self, kernel_id: str) -> str:
        return os.path.join(self.runtime_dir, f"kernel-{kernel_id}.json")

    def spool(self, kernel_id: str) -> str:
        return os.path.join(self.runtime_dir, f"spool-{kernel_id}")

    def draft(self, kernel_id: str) -> str:
        """The connection file of a spare, before it is anybody's."""
        return os.path.join(self.runtime_dir, f".spare-{kernel_id}.json")

    def workspace(self, kernel_id: str) -> str:
        """The folder of a branch that has files of its own."""
        return os.path.join(self.runtime_dir, f"files-{kernel_id}")

    def walls(self, kernel_id: str) -> str:
        """What the driver of a sandbox has built in files."""
        return os.path.join(self.runtime_dir, f"walls-{kernel_id}")

    def kernel_address(self, kernel_id: str) -> str:
        return os.path.join(self.rundir, f"{kernel_id}.sock")


def locate(settings: Settings) -> Home:
    """The home that the settings mean. Nothing is made yet."""
    registry = os.path.realpath(settings.registry_path)
    runtime = os.path.realpath(settings.runtime_dir)
    owner = os.getpid() if settings.store_backend == "memory" else None
    rundir = socket_folder(registry, runtime, owner)
    return Home("" if owner else registry, runtime, rundir, owner)


def prepare(home: Home) -> None:
    """Make the folders, private to us; say clearly where that is not possible."""
    if os.path.exists(os.path.join(home.runtime_dir, HIDDEN)):
        raise KeeperUnavailable(
            "a kernel that was made from a template does not reach the kernels of its own home. "
            "Point KERNELBOX_HOME at another folder to make some of its own."
        )
    _private_folder(os.path.dirname(home.rundir))
    _private_folder(home.rundir)
    if home.registry_path and os.path.isdir(home.registry_path):
        raise BadInput(
            f"the registry {home.registry_path!r} is a folder. KERNELBOX_REGISTRY_PATH names a "
            "file; KERNELBOX_HOME names a folder.",
            path=home.registry_path,
        )
    sign(home.rundir, home.registry_path, home.runtime_dir)
    for folder in filter(None, (os.path.dirname(home.registry_path), home.runtime_dir)):
        try:
            if not os.path.isdir(folder):
                _make_private(folder)
            if not os.access(folder, os.W_OK | os.X_OK):
                raise PermissionError(13, "Permission denied")
        except OSError as error:
            raise BadInput(
                f"the folder {folder!r} cannot be written: {error.strerror}. Point KERNELBOX_HOME "
                "(or KERNELBOX_REGISTRY_PATH and KERNELBOX_RUNTIME_DIR) at a folder you own.",
                path=folder,
            ) from None


def remove_files(home: Home, kernel_id: str) -> None:
    """Take away what a kernel left: its socket, its connection file if it is ours, its spool."""
    for path in (
        home.kernel_address(kernel_id),
        home.connection_file(kernel_id),
        home.draft(kernel_id),
    ):
        with contextlib.suppress(OSError):
            os.unlink(path)
    _remove_tree(home.spool(kernel_id))


def remove_workspace(home: Home, kernel_id: str) -> None:
    """Where no warden is left to do it."""
    _remove_tree(home.workspace(kernel_id))
    _remove_tree(home.walls(kernel_id))


def vacate(home: Home) -> None:
    """Remove the socket folder, unless somebody is about to start a keeper in it, or one that
    failed has left words there."""
    try:
        lock = os.open(home.lock_path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.getsize(home.log_path):
            _remove_tree(home.rundir)
    except OSError:
        pass
    finally:
        os.close(lock)


def _remove_tree(path: str) -> None:
    from shutil import rmtree  # callers only want to know where a home is

    rmtree(path, ignore_errors=True)


def _make_private(folder: str) -> None:
    made = []
    path = folder
    while path and not os.path.isdir(path):
        made.append(path)
        path = os.path.dirname(path)
    for path in reversed(made):
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            continue
        if os.path.basename(path) == ".kernelbox":
            # Nobody wants a registry of live processes in their history.
            with open(os.path.join(path, ".gitignore"), "w") as file:
                file.write("*\n")


def _private_folder(path: str) -> None:
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        facts = os.lstat(path)
    except OSError as error:
        raise KeeperUnavailable(f"the socket folder {path!r} cannot be made: {error}") from None
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid():
        raise KeeperUnavailable(
            f"{path!r} is not a folder of yours; somebody may be trying to listen in. Remove it."
        )
    if facts.st_mode & 0o077:
        os.chmod(path, 0o700)
    if len(path) + 45 > _SOCKET_PATH_LIMIT:
        raise KeeperUnavailable(f"the socket folder {path!r} is too long for Unix sockets")
