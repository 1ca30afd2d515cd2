"""scripts/bootstrap.py asks uv for the right thing, and says what to do when that fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent.parent / "scripts" / "bootstrap.py"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkout with nothing in it but the script, and a place for programs."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "bin").mkdir()
    (tmp_path / "scripts" / "bootstrap.py").write_text(SCRIPT.read_text())
    return tmp_path


def a_uv(folder: Path, body: str) -> None:
    """A stand-in for uv, which would need a network."""
    program = folder / "bin" / "uv"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)


def bootstrap(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join((str(folder / "bin"), "/usr/bin", "/bin"))
    return subprocess.run(
        [sys.executable, "-S", str(folder / "scripts" / "bootstrap.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PATH": path, "VIRTUAL_ENV": "/somebody/elses"},
    )


def test_the_environment_is_synced_with_what_developing_takes(folder: Path) -> None:
    a_uv(folder, 'echo "$@" in "$PWD" with "[$VIRTUAL_ENV]" > asked')
    done = bootstrap(folder)
    assert done.returncode == 0, done.stderr
    wanted = f"sync --python {sys.executable} --extra=dev in {folder} with []\n"
    assert (folder / "asked").read_text() == wanted
    assert "uv run pytest" in done.stderr


def test_other_extras_can_be_named(folder: Path) -> None:
    a_uv(folder, 'echo "$@" > asked')
    assert bootstrap(folder, "--extra", "docs", "--extra", "server").returncode == 0
    assert (folder / "asked").read_text().endswith(" --extra=docs --extra=server\n")


def test_a_failure_says_what_to_do_next(folder: Path) -> None:
    a_uv(folder, "echo no route to the index >&2; exit 2")
    done = bootstrap(folder)
    assert done.returncode == 1
    assert "no route to the index" in done.stderr
    assert "UV_INDEX_URL" in done.stderr
    assert "Traceback" not in done.stderr
