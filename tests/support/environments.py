"""Other places to run tests in: where user namespaces are closed, and as an ordinary user."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
PROJECT = HERE.parent.parent
NOBODY = 65534
_NEEDED = (
    "import kernelbox, pytest, pytest_timeout, psutil, IPython, zmq, numpy, pandas, matplotlib"
)
_PATIENCE = 30.0


@functools.cache
def interpreter(uid: int) -> str:
    """A Python that this user can run with all that the tests need; empty if there is none."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    ours = [sys.executable, *(f"{folder}/{version}" for folder in ("/usr/bin", "/usr/local/bin"))]
    for python in ours:
        if shutil.which(python) and _works(python, uid):
            return python
    return ""


def _works(python: str, uid: int) -> bool:
    try:
        done = subprocess.run(
            [*_entered("open", uid), python, "-c", _NEEDED],
            env=environ("/"),
            cwd="/",
            capture_output=True,
            timeout=_PATIENCE,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def _entered(how: str, uid: int) -> list[str]:
    return [sys.executable, str(HERE / "closed.py"), how, str(uid)]


def environ(home: str) -> dict[str, str]:
    """What a user has, with this project and its packages on the path."""
    import kernelbox

    paths = [str(Path(kernelbox.__file__).parent.parent), sysconfig.get_paths()["purelib"]]
    return {
        "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
        "LANG": "C.UTF-8",
        "HOME": home,
        "TMPDIR": home,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


@dataclass
class Outcome:
    """What pytest said at its end."""

    code: int
    text: str
    counts: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        said = ", ".join(f"{count} {what}" for what, count in self.counts.items())
        return f"{said or 'nothing was counted'}\n{self.text[-6000:]}"


def run(how: str, uid: int, home: Path, words: Sequence[str], *, seconds: float) -> Outcome:
    """Run tests of ours elsewhere: ``how`` is one of :mod:`closed`, ``uid`` 0 is whoever we are."""
    home.mkdir()
    home.chmod(0o755)
    if uid and os.geteuid() == 0:
        os.chown(home, uid, uid)
    pytest = [interpreter(uid or NOBODY), "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command = [*_entered(how, uid), *pytest, f"--basetemp={home}/tmp", *words]
    try:
        done = subprocess.run(
            command,
            env=environ(str(home)),
            cwd=PROJECT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired as late:
        said = late.stdout or b""
        text = said.decode(errors="replace") if isinstance(said, bytes) else said
        return Outcome(-1, f"it took more than {seconds:g} s\n{text}")
    counts = {what: int(n) for n, what in re.findall(r"(\d+) (\w+)", done.stdout.splitlines()[-1])}
    return Outcome(done.returncode, done.stdout, counts)
