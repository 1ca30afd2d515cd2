"""How a process ended is known by its pid, which another may have had before."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os, time
from kernelbox.keeper.exits import Exits
from kernelbox.reactor import Reactor

reactor = Reactor()
exits = Exits(reactor)
assert exits.status(12345) is None
exits.told(12345, 9)
assert exits.status(12345) == 9
exits.started(12345)
assert exits.status(12345) is None, "that was the one before"
child = os.fork()
if not child:
    os._exit(7)
exits.roots.add(child)
deadline = time.monotonic() + 10
while exits.status(child) is None and time.monotonic() < deadline:
    reactor.turn(1)
assert os.waitstatus_to_exitcode(exits.status(child)) == 7
assert exits.roots == set()
for pid in range(2_000_000, 2_005_000):
    exits.told(pid, 0)
assert exits.status(2_000_000) is None, "not all are kept for ever"
assert exits.status(2_004_999) == 0
"""


def test_what_is_known_of_a_pid_is_about_its_latest_process() -> None:
    # In a process of its own: whoever collects exits blocks a signal and reaps every child.
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
