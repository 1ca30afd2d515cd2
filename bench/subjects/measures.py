"""What every subject is asked, asked the same way: one question per JSON line, one answer back.

Runs inside each subject's own environment, so it imports nothing but the standard library.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class Reply:
    """One executed cell as the caller saw it."""

    ok: bool
    value: str | None = None
    tail: str = ""
    problem: str = ""


class Subject(Protocol):
    """What a program under measurement has to be able to do; kernels are opaque to us."""

    def open(self, name: str) -> Any: ...

    def run(self, kernel: Any, code: str, *, timeout: float) -> Reply: ...

    def family(self, kernel: Any) -> list[int]: ...

    def close(self, kernel: Any) -> None: ...

    def settle(self) -> None: ...

    def branch(self, kernel: Any, name: str) -> Any: ...

    def end(self) -> None: ...


class Questions:
    """The questions, over one subject; kernels that later rounds need again stay open."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._kept: dict[str, Any] = {}
        self._names = (f"bench-{number}" for number in range(1_000_000))

    def first_result(self, *, samples: int, hold: bool = False) -> dict[str, Any]:
        """Ask for a kernel that does not exist and wait for the result of its first cell."""
        if hold:
            # Another kernel stays open, so that what makes kernels does not end between rounds.
            self._keep("held")
        taken = []
        for _ in range(samples):
            self._subject.settle()
            name = next(self._names)
            start = time.perf_counter()
            kernel = self._subject.open(name)
            reply = self._subject.run(kernel, "1+1", timeout=60)
            taken.append(time.perf_counter() - start)
            self._subject.close(kernel)
            _insist(reply, value="2")
        return {"samples": taken}

    def round_trips(self, *, samples: int, warm_up: int) -> dict[str, Any]:
        """Time `1+1` in one kernel that stays open from round to round."""
        kernel = self._keep("steady")
        failures = self._time_cells([kernel], samples=warm_up)[1]
        taken, more = self._time_cells([kernel], samples=samples)
        return {"samples": taken, "failures": failures + more}

    def flood(self, *, code: str, tail: str, cap: float) -> dict[str, Any]:
        """Run a cell that prints a lot, until its result is there."""
        kernel = self._keep("flooded")
        start = time.perf_counter()
        reply = self._subject.run(kernel, code, timeout=cap)
        taken = time.perf_counter() - start
        if not reply.ok:
            # Its backlog would be charged to whatever is measured next.
            self._drop("flooded")
            return {"capped": cap, "problem": reply.problem}
        if not reply.tail.endswith(tail):
            return {"samples": [taken], "problem": "the end of the output is missing"}
        return {"samples": [taken]}

    def noticed_death(self, *, cap: float) -> dict[str, Any]:
        """Kill the interpreter in the middle of a cell; time from the kill to the call's return."""
        kernel = self._subject.open(next(self._names))
        pid = int(_insist(self._subject.run(kernel, "import os; os.getpid()", timeout=60)))
        moment: list[float] = []
        with tempfile.TemporaryDirectory() as folder:
            started = Path(folder, "started")
            killer = threading.Thread(
                target=_kill_once_started, args=(pid, started, moment), daemon=True
            )
            killer.start()
            cell = f"import time; open({str(started)!r}, 'w').close(); time.sleep(60)"
            reply = self._subject.run(kernel, cell, timeout=cap)
            returned = time.perf_counter()
            killer.join()
        self._subject.close(kernel)
        if reply.ok:
            return {"problem": "a killed cell was reported as a success"}
        if not moment:
            return {"problem": "the cell never started"}
        waited = returned - moment[0]
        return {"capped": cap} if waited >= cap * 0.9 else {"samples": [waited]}

    def crowd(self, *, counts: list[int], samples: int) -> dict[str, Any]:
        """Grow a crowd of idle kernels; at each size weigh them and time executes among them."""
        crowd: list[Any] = []
        levels = []
        for count in counts:
            while len(crowd) < count:
                crowd.append(self._subject.open(next(self._names)))
                _insist(self._subject.run(crowd[-1], "1+1", timeout=60), value="2")
            self._subject.settle()
            levels.append(self._level(crowd, samples=samples))
        while len(crowd) > 1:
            self._subject.close(crowd.pop())
        self._subject.settle()
        # Alone again: a machine that drifted meanwhile would otherwise look like growth.
        levels.append(self._level(crowd, samples=samples))
        self._subject.close(crowd.pop())
        return {"levels": levels}

    def branches(self, *, samples: int, mebibytes: int) -> dict[str, Any]:
        """Branch a session that holds a numpy array of the given size, all of it touched."""
        kernel = self._subject.open(next(self._names))
        cell = f"import numpy; a = numpy.ones({mebibytes * MEBIBYTE // 8}); a.nbytes"
        _insist(self._subject.run(kernel, cell, timeout=120), value=str(mebibytes * MEBIBYTE))
        taken, until_result = [], []
        for _ in range(samples):
            name = next(self._names)
            start = time.perf_counter()
            copy = self._subject.branch(kernel, name)
            taken.append(time.perf_counter() - start)
            reply = self._subject.run(copy, "a[-1] == 1.0", timeout=60)
            until_result.append(time.perf_counter() - start)
            self._subject.close(copy)
            if reply.value not in ("True", "np.True_"):
                raise RuntimeError(f"the branch does not hold the array: {reply}")
        self._subject.close(kernel)
        return {"samples": taken, "until_result": until_result}

    def end(self) -> None:
        """Close what was kept open and let the subject end."""
        for name in list(self._kept):
            self._drop(name)
        self._subject.end()

    def _level(self, crowd: list[Any], *, samples: int) -> dict[str, Any]:
        weights = [weigh(self._subject.family(kernel)) for kernel in crowd]
        one, failures = self._time_cells(crowd[:1], samples=samples)
        all_of_them, more = self._time_cells(crowd, samples=max(samples, len(crowd)))
        return {
            "kernels": len(crowd),
            "private": sum(weight.private for weight in weights) / len(weights),
            "proportional": sum(weight.proportional for weight in weights) / len(weights),
            "processes": sum(weight.processes for weight in weights) / len(weights),
            "one": one,
            "all": all_of_them,
            "failures": failures + more,
        }

    def _time_cells(self, kernels: list[Any], *, samples: int) -> tuple[list[float], int]:
        """Time `1+1`, going round the given kernels; also how many cells did not answer 2."""
        taken, failures = [], 0
        for number in range(samples):
            kernel = kernels[number % len(kernels)]
            start = time.perf_counter()
            reply = self._subject.run(kernel, "1+1", timeout=10)
            elapsed = time.perf_counter() - start
            if reply.ok and reply.value == "2":
                taken.append(elapsed)
            else:
                failures += 1
                if failures > 3:
                    raise RuntimeError(f"`1+1` keeps failing: {reply}")
        return taken, failures

    def _keep(self, name: str) -> Any:
        if name not in self._kept:
            self._kept[name] = self._subject.open(next(self._names))
        return self._kept[name]

    def _drop(self, name: str) -> None:
        self._subject.close(self._kept.pop(name))


@dataclass(frozen=True)
class Weight:
    """Memory of a kernel, over all its processes, in bytes."""

    private: int
    proportional: int
    processes: int


def weigh(pids: list[int]) -> Weight:
    """Sum what the kernel says about these processes."""
    private = proportional = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            field, _, rest = line.partition(":")
            if field in ("Private_Clean", "Private_Dirty"):
                private += int(rest.split()[0]) * 1024
            elif field == "Pss":
                proportional += int(rest.split()[0]) * 1024
    return Weight(private=private, proportional=proportional, processes=len(pids))


def with_descendants(pid: int) -> list[int]:
    """The process and everything below it, as /proc shows it now."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
        except OSError:
            continue
        # The name in parentheses may hold spaces and parentheses of its own.
        parent = int(stat.rpartition(")")[2].split()[1])
        children.setdefault(parent, []).append(int(entry.name))
    found = [pid]
    for member in found:
        found.extend(children.get(member, []))
    return found


def serve(make: Callable[[], Subject]) -> None:
    """Answer questions from stdin until it closes."""
    answers = _claim_stdout()
    questions = Questions(make())
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        try:
            answer = getattr(questions, question["ask"])(**question["with"])
        except Exception as problem:  # noqa: BLE001 (any failure of a subject is an answer)
            answer = {"problem": f"{type(problem).__name__}: {problem}"}
        print(json.dumps(answer or {}), file=answers, flush=True)
        if question["ask"] == "end":
            return


def _claim_stdout() -> Any:
    """Keep stdout for answers: whatever a subject or its kernels print goes nowhere."""
    answers = os.fdopen(os.dup(1), "w")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    return answers


def _kill_once_started(pid: int, started: Path, moment: list[float]) -> None:
    deadline = time.monotonic() + 30
    while not started.exists():
        if time.monotonic() > deadline:
            return
        time.sleep(0.005)
    time.sleep(0.1)
    moment.append(time.perf_counter())
    os.kill(pid, signal.SIGKILL)


def _insist(reply: Reply, *, value: str | None = None) -> str:
    if not reply.ok or reply.value is None or value not in (None, reply.value):
        raise RuntimeError(f"expected {value or 'a value'}, got {reply}")
    return reply.value
