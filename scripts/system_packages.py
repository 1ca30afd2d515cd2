"""Install the system packages the tests use, where we may; otherwise say which are missing.

Those of ``system-packages.txt``, or of the list that is named on the command line. Never fails: a
test whose program is missing skips and says so in pytest's summary.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

LIST = Path(__file__).with_name("system-packages.txt")


def main() -> int:
    """Install what is missing, or name it."""
    packages = missing(Path(sys.argv[1]) if sys.argv[1:] else LIST)
    if not packages:
        return 0
    names = " ".join(packages)
    if not allowed():
        say(f"missing system packages: {names} (what uses them will be skipped)")
        return 0
    say(f"installing system packages: {names}")
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-qq", "--yes", "--no-install-recommends", *packages]
    for command in (["apt-get", "update", "-qq"], install):
        try:
            # apt's chatter goes to stderr: stdout belongs to pytest, whose last line others read.
            subprocess.run(command, check=True, env=quiet, stdout=sys.stderr, timeout=600)
        except (OSError, subprocess.SubprocessError) as reason:
            say(f"could not: {reason} (what uses them will be skipped)")
            break
    return 0


def missing(names: Path) -> list[str]:
    """The packages whose command is not on PATH, in the order of the list."""
    pairs = [line.split() for line in names.read_text().splitlines() if line and line[0] != "#"]
    packages = [package for command, package in pairs if shutil.which(command) is None]
    if importlib.util.find_spec("ensurepip") is None:
        # Debian splits venv's pip off into a package named after the exact Python.
        packages.append(f"python{sys.version_info.major}.{sys.version_info.minor}-venv")
    return packages


def allowed() -> bool:
    """Only root may install, and only where nobody objected by KERNELBOX_TEST_APT=0."""
    objection = os.environ.get("KERNELBOX_TEST_APT") == "0"
    return not objection and os.geteuid() == 0 and shutil.which("apt-get") is not None


def say(text: str) -> None:
    """Tell the person who waits."""
    print(f"· {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
