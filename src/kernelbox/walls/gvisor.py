"""gVisor: a kernel of its own between a sandbox and Linux, by the program ``runsc``.

What is inside speaks to that kernel, which is a program of ours to end, and not to the host's. This
module knows what ``runsc`` is called with and what it cannot do; who calls it is elsewhere.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile

from kernelbox.walls.plan import Plan
from kernelbox.walls.profiles import Profile

PROGRAM = "runsc"
PACKAGE = "runsc"
_HOW = f"install it (Debian, Ubuntu: apt-get install {PACKAGE}), or use driver='process'"
_PATIENCE = 30


def cannot_enforce(profile: Profile) -> str:
    """What of a profile gVisor does not hold, in words; empty if all of it is."""
    if shutil.which(PROGRAM) is None:
        return f"the driver 'gvisor' needs the program {PROGRAM}, which is not here; {_HOW}"
    if profile.network == "raw":
        return "gVisor has no raw network here: use network='on' or 'off', or driver='process'"
    if profile.soft_memory is not None:
        return "gVisor does not count what a process reserves: leave soft_memory out"
    writable = profile.cwd == "rw" or any(mount.mode == "rw" for mount in profile.mounts)
    if writable and os.geteuid() != 0:
        return (
            "without root, gVisor cannot give the sandbox a folder that it writes to: use "
            "cwd='none' or 'ro' and mounts that are read-only, or driver='process'"
        )
    return ""


def command(folder: str, plan: Plan, name: str) -> list[str]:
    """For the bundle in ``folder``. The state that runsc keeps of it is there, too."""
    options = [f"--root={folder}/state", "--network=none", "--ignore-cgroups", "--host-uds=none"]
    if os.geteuid() != 0:
        options.append("--rootless")
    if not plan.mounts:
        # Nobody but the system's packages changes what is shown then: it need not look each time.
        options.append("--file-access-mounts=exclusive")
    if plan.overlay:
        # As root, all that may be changed in a copy is a part of the root; see walls/bundle.py.
        options.append(f"--overlay2={'root' if os.geteuid() == 0 else 'all'}:memory")
    return [PROGRAM, *options, "run", f"--bundle={folder}", name]


@functools.cache
def obstacle() -> str:
    """Why no sandbox of gVisor can be had here; empty if one can: by trying."""
    if shutil.which(PROGRAM) is None:
        return f"there is no program {PROGRAM}; {_HOW}"
    options = ["--network=none", "--ignore-cgroups"]
    if os.geteuid() != 0:
        options.append("--rootless")
    with tempfile.TemporaryDirectory(prefix="kernelbox-") as folder:
        command = [PROGRAM, f"--root={folder}", *options, "do", "true"]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=_PATIENCE,
                check=False,
                cwd="/",
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{PROGRAM} cannot be run: {error}"
    if done.returncode == 0:
        return ""
    return f"{PROGRAM} failed: {last_words(done.stdout) or f'exit code {done.returncode}'}"


def version() -> str:
    """What the program calls itself."""
    done = subprocess.run(
        [PROGRAM, "--version"], capture_output=True, timeout=_PATIENCE, check=False, text=True
    )
    return done.stdout.partition("\n")[0] or PROGRAM


def last_words(output: bytes) -> str:
    """Of what runsc has printed: the line that says why."""
    lines = output.decode("utf-8", "replace").strip().splitlines()
    return lines[-1][-500:] if lines else ""
