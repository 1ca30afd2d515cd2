"""How long an import takes: whole interpreters, with and without it, in turns."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from records import Record


def time_imports(
    programs: dict[str, tuple[Path, str]], *, rounds: int, env: dict[str, str]
) -> dict[str, Record]:
    """Run `python -c` of each program, going round them, after one round that is not counted."""
    records = {lane: Record() for lane in programs}
    for number in range(rounds + 1):
        for lane, (python, program) in programs.items():
            start = time.perf_counter()
            done = subprocess.run(
                [str(python), "-c", program],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                env=env,
                cwd=env["TMPDIR"],
                check=False,
            )
            elapsed = time.perf_counter() - start
            if done.returncode != 0:
                words = done.stderr.strip().splitlines() or ["it failed without a word"]
                records[lane].add({"problem": words[-1]})
            elif number > 0:
                records[lane].add({"samples": [elapsed]})
    return records
