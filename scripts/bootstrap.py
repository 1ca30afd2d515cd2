"""Set up a checkout for working on it: uv if it is missing, and ``.venv`` with all it takes.

    python scripts/bootstrap.py

Afterwards ``uv run pytest``, ``uv run mkdocs serve`` and the like work; all is in ``.venv/bin``.
``scripts/test`` needs none of this: it has an environment of its own, from our lock.

Runs on a bare Python (standard library only). Where uv is not on PATH, the version of our lock is
installed into ``.venv-uv``, beside the project and nowhere else.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OWN_UV = ROOT / ".venv-uv"
LEAST_PYTHON = (3, 11)


def main() -> int:
    """Do it, and say what to type next."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--extra", action="append", help="what to install besides the core (default: dev)"
    )
    asked = parser.parse_args()
    if sys.version_info < LEAST_PYTHON:
        found = sys.version.split()[0]
        say(f"KernelBox needs Python 3.11 or newer, and this is {found}.")
        say("Run this script with another one: python3.12 scripts/bootstrap.py")
        return 1
    try:
        uv = find_uv() or install_uv()
        sync(uv, asked.extra or ["dev"])
    except subprocess.CalledProcessError as failure:
        say(f"failed: {' '.join(map(str, failure.cmd))}")
        say("See the message above. A first run needs the network, or an index that uv is told of")
        say("(UV_INDEX_URL, UV_FIND_LINKS). scripts/test also works with a pip that is configured.")
        return 1
    tell_how_to_go_on(uv)
    return 0


def find_uv() -> str | None:
    """The uv on PATH, or the one that an earlier run has installed."""
    own = OWN_UV / "bin" / "uv"
    return shutil.which("uv") or (str(own) if own.exists() else None)


def install_uv() -> str:
    """uv as our lock has it, in an environment of its own."""
    say("uv is not on PATH; installing it into .venv-uv")
    maker = ROOT / "scripts" / "private_environment.py"
    run([sys.executable, str(maker), "--without-project", str(OWN_UV), "uv"])
    return str(OWN_UV / "bin" / "uv")


def sync(uv: str, extras: list[str]) -> None:
    """Make ``.venv`` with this Python, unless it is there, and bring it up to date."""
    say("bringing .venv up to date")
    wanted = [f"--extra={extra}" for extra in extras]
    run([uv, "sync", "--python", sys.executable, *wanted])


def tell_how_to_go_on(uv: str) -> None:
    name = "uv" if shutil.which("uv") else os.path.relpath(uv, ROOT)
    say("ready. From here:")
    for command in ("pytest tests/test_api.py", "ruff check .", "mkdocs serve"):
        say(f"  {name} run {command}")


def run(command: list[str]) -> None:
    """In the checkout, and without a virtual environment that happens to be active: uv would
    complain that it is not ours."""
    environ = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    subprocess.run(command, check=True, cwd=ROOT, env=environ)


def say(text: str) -> None:
    """Tell the person who waits."""
    print(f"· {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
