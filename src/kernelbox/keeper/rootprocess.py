"""Starting a root, and what must be the same for two kernels to be forked from one.

Imports next to nothing (not even ``signal`` and ``socket``, only what is below them): a new keeper
starts its first root before it has imported itself.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
import marshal
import os

from kernelbox.places import importable

TYPE_CHECKING = False  # importing typing would take longer than all the rest
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_FIRST_ROOT = "KERNELBOX_FIRST_ROOT"
# No garbage is collected while all is imported: there is none, and to look for it takes time.
_PROGRAM = "import gc; gc.disable(); from kernelbox.warden.rootprogram import main; main()"

_START_ONLY = ("PYTHON", "LD_", "MALLOC_")
_START_ONLY_NAMES = {"GLIBC_TUNABLES"}
_POOLS = ("OMP_", "MKL_", "OPENBLAS_", "KMP_", "GOMP_", "NUMEXPR_", "BLIS_")
_PASSED = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "USER", "TZ")


def facts_for(
    executable: str,
    package_parent: str,
    environ: Mapping[str, str],
    preload: list[str] | tuple[str, ...] | None,
) -> dict[str, Any]:
    """The root that a kernel with this environment needs, as plain JSON.

    Variables that only matter when a process starts cannot take effect in a fork, so another value
    means another root; thread-pool ones only where a library that reads them may be preloaded.
    """
    names = _START_ONLY + (_POOLS if preload else ())
    return {
        "executable": executable,
        "package_parent": package_parent,
        "start_environ": sorted(
            [name, value]
            for name, value in environ.items()
            if name.startswith(names) or name in _START_ONLY_NAMES
        ),
        "preload": list(preload or ()),
    }


def announce(facts: Mapping[str, Any]) -> dict[str, str]:
    """For the environment of a new keeper, where nobody else can read it: the root that it is to
    start at once. (Not JSON, which it would have to import first.)"""
    return {_FIRST_ROOT: marshal.dumps(dict(facts)).hex()}


def announced() -> dict[str, Any] | None:
    """What has been announced to this process."""
    text = os.environ.pop(_FIRST_ROOT, None)
    return None if text is None else marshal.loads(bytes.fromhex(text))


class RootProcess:
    """A root that has been started; it may still be warming up."""

    def __init__(self, facts: Mapping[str, Any], rundir: str) -> None:
        """``OSError`` if there is no such interpreter. ``control`` is a descriptor, our end of its
        socket."""
        self.facts = facts
        self.log_path = os.path.join(rundir, "root.log")
        environ = {name: os.environ[name] for name in _PASSED if name in os.environ}
        environ |= dict(facts["start_environ"])
        log = os.open(self.log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.log_start = os.fstat(log).st_size
        ours, theirs = _socket.socketpair()
        os.set_inheritable(theirs.fileno(), True)
        # Not -m, for which Python would import some modules more; people see the name all the same.
        command = [facts["executable"], "-P", "-c", _PROGRAM, "kernelbox.warden"]
        command += [str(theirs.fileno()), os.path.join(rundir, "ipython"), *facts["preload"]]
        try:
            # Whoever starts a root is in / and ignores what a program must not inherit ignored.
            self.pid = os.posix_spawn(
                facts["executable"],
                command,
                importable(environ, facts["package_parent"]),
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, log, 1),
                    (os.POSIX_SPAWN_DUP2, log, 2),
                ],
                setsigdef=[_signal.SIGPIPE, _signal.SIGXFSZ],
            )
            self.control = ours.detach()
        finally:
            ours.close()
            theirs.close()
            os.close(log)
