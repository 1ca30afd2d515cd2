"""Every program in the README and the guides runs as printed, prints what its comments say, and
type-checks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import kernelbox

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", ROOT / "docs" / "time-travel.md")
PROGRAMS = [
    program
    for page in PAGES
    for program in re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
]
_PRINT = re.compile(r"^ *print\(.*$", re.MULTILINE)
_SAID = re.compile(r"\)  # (.+)$")


def said(program: str) -> list[str]:
    """The lines that the comments behind ``print(…)`` promise, in order.

    ``# this, then that`` is two lines of a loop; ``# this; because`` goes on to explain.
    """
    lines: list[str] = []
    for call in _PRINT.findall(program):
        comment = _SAID.search(call)
        assert comment, f"the README does not say what this prints: {call.strip()}"
        lines += comment[1].partition("; ")[0].split(", then ")
    return lines


def test_there_are_programs_to_run() -> None:
    assert len(PROGRAMS) >= 5


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.splitlines()[0][:50])
def test_a_program_prints_what_it_says(program: str, environment: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == said(program)


def test_the_programs_pass_a_type_checker(tmp_path: Path) -> None:
    names = [f"program_{number}.py" for number in range(len(PROGRAMS))]
    for name, program in zip(names, PROGRAMS, strict=True):
        (tmp_path / name).write_text(program)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--check-untyped-defs", "--no-error-summary", *names],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(Path(kernelbox.__file__).parent.parent)},
    )
    assert done.stdout == ""
    assert done.returncode == 0, done.stderr
