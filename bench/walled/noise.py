"""Noisy neighbours: a round trip beside a kernel that does its worst."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from kernelbox import Box, BoxError
from walled.figures import PATIENCE, SETTLE, WALLED

# Each is one cell that lasts SECONDS and returns how often it ran into its limit. What forks is a
# program of its own: it is the sandbox that has to bound it, not the session.
FORKS = """
import os, sys, time
end, refused = time.monotonic() + SECONDS, 0
first = os.getpid()
while time.monotonic() < end:
    try:
        os.fork()
    except OSError:
        refused += 1
if os.getpid() == first:
    print(refused, flush=True)
os._exit(0)
"""
HOARD = """
import mmap
hoard = []
while True:
    hoard.append(mmap.mmap(-1, 4 << 20))
    hoard[-1].write(b"x" * (4 << 20))
"""
SPIN = """
import time
end = time.monotonic() + SECONDS
while time.monotonic() < end:
    pass
"""
LOUD = {
    "nothing": "",
    "a fork bomb": f"""
import subprocess, sys
done = subprocess.run([sys.executable, "-c", {FORKS!r}], capture_output=True, text=True)
int(done.stdout or 0)
""",
    "a memory bomb, again and again": f"""
import subprocess, sys, time
end, times = time.monotonic() + SECONDS, 0
while time.monotonic() < end:
    done = subprocess.run([sys.executable, "-c", {HOARD!r}], capture_output=True)
    times += done.returncode != 0
times
""",
    "a disk filler": """
import os, time
end, times = time.monotonic() + SECONDS, 0
while time.monotonic() < end:
    try:
        with open("filler", "wb", buffering=0) as file:
            while file.write(bytes(1 << 20)) == 1 << 20:
                pass
    except OSError:
        pass
    times += 1
    os.unlink("filler")
times
""",
    "two busy processes": f"""
import subprocess, sys
busy = [subprocess.Popen([sys.executable, "-c", {SPIN!r}]) for _ in range(2)]
sum(process.wait() == 0 for process in busy)
""",
}
UNITS = {
    "a fork bomb": "forks refused",
    "a memory bomb, again and again": "times out of memory",
    "a disk filler": "times full",
    "two busy processes": "ended",
}
SLICE = 1.5


@dataclass
class Noise:
    """Latencies of the neighbours (ms), by profile, while one kernel does this; and how far that
    one came."""

    times: dict[str, list[float]] = field(default_factory=lambda: {"open": [], WALLED: []})
    hits: int = 0
    lost: Counter[str] = field(default_factory=Counter)


@contextlib.contextmanager
def making_noise(box: Box, what: str, noise: Noise) -> Iterator[None]:
    """A kernel that does it over and over until the end of the block, begun when this returns."""
    if not LOUD[what]:
        yield
        return
    kernel = box.get_or_create("noisy", profile=WALLED)
    begun, over = threading.Event(), threading.Event()
    code = LOUD[what].replace("SECONDS", str(SLICE))

    def repeat() -> None:
        try:
            while not over.is_set():
                result = box.execute(kernel, code, timeout=PATIENCE)
                if result.ok:
                    noise.hits += int(result.return_value or 0)
                else:
                    noise.lost[in_short(result.cause or result.error)] += 1
                begun.set()
        except BoxError as error:
            noise.lost[in_short(error)] += 1
        finally:
            begun.set()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        begun.wait(PATIENCE)
        yield
    finally:
        over.set()
        thread.join(PATIENCE)
        with contextlib.suppress(BoxError):
            box.destroy(kernel)


def in_short(words: object) -> str:
    return (str(words).strip().splitlines() or ["it failed"])[-1][:120]


def neighbours(box: Box, rounds: int, samples: int) -> dict[str, Noise]:
    found = {what: Noise() for what in LOUD}
    quiet = {name: box.get_or_create(f"quiet-{name}", profile=name) for name in ("open", WALLED)}
    for number in range(rounds):
        for what, noise in found.items():
            with making_noise(box, what, noise):
                for _ in range(samples):
                    for name, kernel in quiet.items():
                        began = time.perf_counter()
                        box.execute(kernel, "1+1", timeout=PATIENCE)
                        noise.times[name].append((time.perf_counter() - began) * 1000)
                        time.sleep(0.005)  # a caller that thinks, however little
            time.sleep(SETTLE)
        print(f"  neighbours {number + 1} of {rounds}", file=sys.stderr, flush=True)
    for kernel in quiet.values():
        box.destroy(kernel)
    return found
