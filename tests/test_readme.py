"""Every program in the README runs as printed, and prints what its comments say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"
PROGRAMS = re.findall(r"^```python\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)
_SAID = re.compile(r"^ *print\(.*\)  # (.+)$", re.MULTILINE)


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
    printed = done.stdout.splitlines()
    for comment in _SAID.findall(program):
        # A comment may go on after what is printed: "idle; of a busy kernel also …".
        said = re.split(r"[;,] ", comment)[0] if "; " in comment else comment
        if said.startswith("output"):
            continue  # it describes, and does not quote
        assert said in printed, f"the README says {said!r}, the program printed {printed}"
