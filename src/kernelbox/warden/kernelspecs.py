"""Kernelspecs: how a foreign kernel is started, as its kernel.json says."""

from __future__ import annotations

import importlib.util
import re
import string
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

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
        raise Unsupported(
            f"kernel type {name!r} is not ours, and foreign kernels need jupyter_client. "
            'From KernelBox\'s repository: pip install "kernelbox[foreign]"'
        ) from None
    # Without a native kernel of its own: `python3` is ours.
    manager = kernelspec.KernelSpecManager(ensure_native_kernel=False)
    try:
        spec = manager.get_kernel_spec(name)
    except (kernelspec.NoSuchKernel, ValueError, OSError):
        installed = {IPYKERNEL, *manager.find_kernel_specs()} - {OURS}
        listed = ", ".join(repr(other) for other in sorted(installed))
        raise Unsupported(
            f"no kernelspec named {name!r} is installed. KERNELBOX_KERNEL_TYPE may be "
            f"{OURS!r} (our own kernel) or one of: {listed}. "
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


def _ipykernel() -> Kernelspec:
    if importlib.util.find_spec("ipykernel_launcher") is None:
        raise Unsupported(
            f"kernel type 'ipykernel' needs ipykernel in {sys.executable!r}: pip install ipykernel"
        )
    argv = (sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}")
    return Kernelspec(IPYKERNEL, argv, "python")
