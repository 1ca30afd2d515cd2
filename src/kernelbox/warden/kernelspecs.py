"""Kernelspecs: how a foreign kernel is started, as its kernel.json says."""

from __future__ import annotations

import importlib.util
import os
import re
import string
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from glob import escape, glob

from kernelbox.errors import Unsupported

OURS = "python3"
IPYKERNEL = "ipykernel"

# A kernel that finds these would watch the process that the *caller* is a kernel of.
_OF_THE_CALLER = ("JPY_PARENT_PID", "JPY_SESSION_NAME")
_A_PYTHON = {"python", "python3", f"python3.{sys.version_info.minor}"}


@dataclass(frozen=True, slots=True)
class Kernelspec:
    """What a kernel.json says, as far as starting and interrupting a kernel needs it."""

    name: str
    argv: tuple[str, ...]
    language: str
    interrupt_mode: str = "signal"
    folder: str = ""
    env: Mapping[str, str] = field(default_factory=dict)

    def command(self, connection_file: str) -> list[str]:
        """The command line, with its placeholders filled in."""
        known = {
            "connection_file": connection_file,
            "prefix": sys.prefix,
            "resource_dir": self.folder,
        }
        command = [
            re.sub(r"\{(\w+)\}", lambda found: known.get(found[1], found[0]), word)
            for word in self.argv
        ]
        if command and command[0] in _A_PYTHON:
            # Meant is the Python that the kernelspec was installed with: the caller's.
            command[0] = sys.executable
        return command

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """The caller's environment with what the kernelspec adds to it."""
        added = {
            name: string.Template(value).safe_substitute(environ)
            for name, value in self.env.items()
        }
        kept = {name: value for name, value in environ.items() if name not in _OF_THE_CALLER}
        return kept | added


def find(name: str) -> Kernelspec:
    """The kernelspec of that name, looked for where this process's environment says.

    ``ipykernel`` needs none: it is the launcher in this Python.
    """
    if name == IPYKERNEL:
        return _ipykernel()
    try:
        from jupyter_client import kernelspec
    except ImportError:
        installed = _installed(os.environ)
        known = name in installed
        what = f"kernel type {name!r} is not ours." if known else _none_named(name, installed)
        raise Unsupported(
            f"{what} Kernels of others need jupyter_client, which {sys.executable!r} does not have."
            ' From next to KernelBox\'s repository: pip install "./kernelbox[foreign]"'
        ) from None
    # Without a native kernel of its own: `python3` is ours.
    manager = kernelspec.KernelSpecManager(ensure_native_kernel=False)
    try:
        spec = manager.get_kernel_spec(name)
    except (kernelspec.NoSuchKernel, ValueError, OSError):
        raise Unsupported(
            f"{_none_named(name, manager.find_kernel_specs())} "
            "`jupyter kernelspec list` shows where they are."
        ) from None
    provisioner = (spec.metadata.get("kernel_provisioner") or {}).get("provisioner_name")
    if provisioner not in (None, "local-provisioner"):
        raise Unsupported(
            f"kernelspec {name!r} is started by {provisioner!r}; only kernels that run here as a "
            "process (local-provisioner) can be kept"
        )
    return Kernelspec(
        name=name,
        argv=tuple(spec.argv),
        language=str(spec.language),
        interrupt_mode=str(spec.interrupt_mode),
        folder=str(spec.resource_dir),
        env={str(key): str(value) for key, value in spec.env.items()},
    )


def _none_named(name: str, installed: Iterable[str]) -> str:
    ours = {IPYKERNEL} if _has_ipykernel() else set()
    listed = ", ".join(repr(other) for other in sorted({*installed, *ours} - {OURS}))
    others = f" or one of: {listed}" if listed else "; there are no others here"
    return (
        f"no kernelspec named {name!r} is installed. KERNELBOX_KERNEL_TYPE may be "
        f"{OURS!r} (our own kernel){others}."
    )


def _installed(environ: Mapping[str, str]) -> set[str]:
    """Names of kernelspecs, looked for where Jupyter would if it were here."""
    share = environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    folders = [
        *filter(None, environ.get("JUPYTER_PATH", "").split(os.pathsep)),
        environ.get("JUPYTER_DATA_DIR") or os.path.join(share, "jupyter"),
        os.path.join(sys.prefix, "share", "jupyter"),
        "/usr/local/share/jupyter",
        "/usr/share/jupyter",
    ]
    specs = (path for folder in folders for path in glob(f"{escape(folder)}/kernels/*/kernel.json"))
    return {os.path.basename(os.path.dirname(path)).lower() for path in specs}


def _has_ipykernel() -> bool:
    return importlib.util.find_spec("ipykernel_launcher") is not None


def _ipykernel() -> Kernelspec:
    if not _has_ipykernel():
        raise Unsupported(
            f"kernel type 'ipykernel' needs ipykernel in {sys.executable!r}: pip install ipykernel"
        )
    argv = (sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}")
    return Kernelspec(IPYKERNEL, argv, "python")
