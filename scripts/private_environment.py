"""Make a private virtual environment from a lock; do nothing when it is as the lock says.

Runs on a bare Python (standard library only), because it is what installs everything else.
"""

import argparse
import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements"


def main() -> int:
    """Bring the environment named on the command line up to date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path, help="where the environment lives")
    parser.add_argument("lock", help="name of a lock in requirements/, without .txt")
    parser.add_argument("--without-project", action="store_true", help="install the lock alone")
    asked = parser.parse_args()

    directory = asked.directory.absolute()
    try:
        with sole_builder(directory):
            install_lock(directory, asked.lock)
            if not asked.without_project:
                install_project(directory)
    except subprocess.CalledProcessError as failure:
        say(f"failed: {' '.join(map(str, failure.cmd))}")
        say("See the message above. A first run needs the network (or a pip configured for it).")
        return 1
    return 0


@contextlib.contextmanager
def sole_builder(directory: Path) -> Iterator[None]:
    """Two scripts started at once must not build the same environment at once."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    with directory.with_name(directory.name + ".lock").open("w") as door:
        try:
            fcntl.flock(door, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another script that prepares {directory.name}")
            fcntl.flock(door, fcntl.LOCK_EX)
        yield


def install_lock(directory: Path, lock: str) -> None:
    """Create the environment afresh unless its stamp says that it came from this very lock."""
    stamp = directory / f"{lock}.stamp"
    wanted = fingerprint(REQUIREMENTS / "uv.txt", REQUIREMENTS / f"{lock}.txt")
    if is_stamped(stamp, wanted) and runs(python_of(directory)):
        return

    began = time.monotonic()
    say(f"preparing {directory.name} with Python {sys.version.split()[0]} (only this once)")
    create(directory)
    locked = ["--require-hashes", "--requirement", str(REQUIREMENTS / f"{lock}.txt")]
    python = str(python_of(directory))
    if lock == "uv":
        run([python, "-m", "pip", "install", "--quiet", *locked])
    elif not installed_with_uv(directory, locked):
        # uv ignores pip's configuration, and some machines reach an index only through that.
        run([python, "-m", "pip", "install", "--quiet", *locked])
    stamp.write_text(wanted)
    say(f"ready after {time.monotonic() - began:.0f} s")


def install_project(directory: Path) -> None:
    """Install the working copy itself, editable. Offline: the build backend was locked too."""
    stamp = directory / "project.stamp"
    wanted = fingerprint(ROOT / "pyproject.toml")
    if is_stamped(stamp, wanted):
        return
    python = str(python_of(directory))
    options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--editable"]
    run([python, "-m", "pip", "install", *options, str(ROOT)])
    stamp.write_text(wanted)


def create(directory: Path) -> None:
    """Make an empty environment with pip in it, in place of whatever was there."""
    if directory.exists() and not (directory / "pyvenv.cfg").exists() and any(directory.iterdir()):
        raise SystemExit(f"{directory} is not a virtual environment; I will not overwrite it.")
    shutil.rmtree(directory, ignore_errors=True)
    try:
        import ensurepip  # noqa: F401  (Debian ships Python without it)
    except ImportError:
        raise SystemExit(
            "This Python cannot make virtual environments. On Debian or Ubuntu:"
            " apt-get install python3-venv. Or name another one: PYTHON=python3.12 scripts/test"
        ) from None
    venv.create(directory, with_pip=True, symlinks=True)


def installed_with_uv(directory: Path, locked: list[str]) -> bool:
    """Try the fast way; False when this machine has no uv or uv finds no index."""
    python = str(python_of(directory))
    # Copies, not links into uv's cache: tests alter installed packages under a running kernel.
    environment = {"UV_LINK_MODE": "copy", "UV_HTTP_TIMEOUT": "180", "UV_NO_PROGRESS": "1"}
    fetch = ["--quiet", "--require-hashes", "--requirement", str(REQUIREMENTS / "uv.txt")]
    try:
        run([python, "-m", "pip", "install", *fetch])
        uv = [str(directory / "bin" / "uv"), "pip", "install", "--python", python]
        run([*uv, "--quiet", "--compile-bytecode", *locked], extra=environment)
    except (subprocess.CalledProcessError, OSError):
        say("going on with pip in place of uv; that takes a minute or two longer")
        return False
    return True


def fingerprint(*files: Path) -> str:
    """What an environment depends on: this interpreter and the content of these files."""
    digest = hashlib.sha256(f"{sys.version} {sys.base_prefix} {ROOT}".encode())
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()


def is_stamped(stamp: Path, wanted: str) -> bool:
    """Whether the stamp is there and says what is wanted."""
    return stamp.exists() and stamp.read_text() == wanted


def python_of(directory: Path) -> Path:
    """The environment's interpreter."""
    return directory / "bin" / "python"


def runs(python: Path) -> bool:
    """Whether the interpreter still starts (its base may have been uninstalled)."""
    try:
        return subprocess.run([python, "-c", ""], check=False, capture_output=True).returncode == 0
    except OSError:
        return False


def run(command: list[str], *, extra: dict[str, str] | None = None) -> None:
    """Run a command, its output on stderr so that a script's own stdout stays clean."""
    subprocess.run(command, check=True, stdout=sys.stderr, env={**os.environ, **(extra or {})})


def say(text: str) -> None:
    """Tell the person who waits."""
    print(f"· {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
