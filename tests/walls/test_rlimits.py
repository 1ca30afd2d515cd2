"""Limits that a process takes on itself: real children that run into each of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kernelbox.walls import rlimits

ORDINARY = 65534
MB = 1 << 20

SOFTLY = """
import json, os, resource, sys
from kernelbox.walls import rlimits
MB = 1 << 20
def used():
    return rlimits._data()[1]
def fill(kept, size=10 * MB, most=1000):
    try:
        while len(kept) < most:
            kept.append(bytearray(size))
    except MemoryError:
        return True
    return False
"""


def child(code: str) -> Any:
    """What a fresh interpreter prints as JSON."""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def applied(limits: dict[str, int], code: str) -> Any:
    start = (
        f"import json, os, resource\nfrom kernelbox.walls import rlimits\nrlimits.apply({limits})\n"
    )
    return child(start + code)


# ------------------------------------------------------------------------------ apply


def test_a_process_that_opens_too_many_files_is_refused() -> None:
    code = """
held = []
try:
    while True:
        held.append(os.open("/dev/null", os.O_RDONLY))
except OSError as error:
    number = error.errno
for fd in held:
    os.close(fd)
print(json.dumps([len(held), number]))
"""
    count, number = applied({"open_files": 40}, code)
    assert number == 24  # EMFILE
    assert 20 < count < 40


def test_a_file_cannot_grow_beyond_its_size(tmp_path: Path) -> None:
    code = f"""
with open({str(tmp_path / "big")!r}, "wb", buffering=0) as file:
    try:
        while True:
            file.write(b"x" * 65536)
    except OSError as error:
        number = error.errno
print(json.dumps(number))
"""
    assert applied({"file_size": MB}, code) == 27  # EFBIG
    assert (tmp_path / "big").stat().st_size == MB


def test_no_core_files_and_little_locked_memory_unless_asked_for() -> None:
    code = """
kinds = (resource.RLIMIT_CORE, resource.RLIMIT_MEMLOCK)
print(json.dumps([resource.getrlimit(kind) for kind in kinds]))
"""
    assert applied({}, code) == [[0, 0], [64 << 10, 64 << 10]]
    assert applied({"memlock": 4096}, code) == [[0, 0], [4096, 4096]]


def test_the_stack_is_left_alone() -> None:
    code = "print(json.dumps(resource.getrlimit(resource.RLIMIT_STACK)))"
    before = child("import json, resource\n" + code)
    assert applied({"open_files": 64, "processes": 64}, code) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user who runs nothing else")
def test_an_ordinary_user_with_a_uid_of_its_own_cannot_fork_without_end() -> None:
    code = """
import time
os.setgroups([]); os.setgid(54321); os.setuid(54321)
pids = []
try:
    while len(pids) < 100:
        pid = os.fork()
        if pid == 0:
            time.sleep(600)
        pids.append(pid)
except BlockingIOError:
    pass
for pid in pids:
    os.kill(pid, 9)
    os.waitpid(pid, 0)
print(json.dumps(len(pids)))
"""
    assert applied({"processes": 8}, code) == 7


def test_limits_are_handed_down_and_cannot_be_raised_again() -> None:
    code = f"""
import subprocess, sys
ask = '''
import resource
print(resource.getrlimit(resource.RLIMIT_NOFILE))
try:
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
except ValueError:
    print("refused")
'''
def drop():
    if os.geteuid() == 0:
        os.setgroups([]); os.setgid({ORDINARY}); os.setuid({ORDINARY})
pid = os.fork()
if pid == 0:
    drop()
    exec(ask)
    import sys; sys.stdout.flush()
    os._exit(0)
os.waitpid(pid, 0)
"""
    start = "import json, os, resource\nfrom kernelbox.walls import rlimits\nrlimits.apply({'open_files': 50})\n"
    ran = subprocess.run(
        [sys.executable, "-c", start + code], capture_output=True, text=True, timeout=60
    )
    assert ran.stdout.splitlines() == ["(50, 50)", "refused"], ran.stderr


def test_a_limit_is_never_above_the_hard_limit_that_was_there() -> None:
    code = """
import json, resource
from kernelbox.walls import rlimits
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 128))
rlimits.apply({"open_files": 4096})
print(json.dumps(resource.getrlimit(resource.RLIMIT_NOFILE)))
"""
    assert child(code) == [128, 128]


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"memory": 5}, "there is no limit named 'memory'; there are: open_files"),
        ({"open_files": -1}, "'open_files' must be a whole number from 0 up, not -1"),
        ({"open_files": True}, "not True"),
        ({"open_files": 2.5}, "not 2.5"),
        ({"core": 0, "file_size": "1G"}, "not '1G'"),
    ],
)
def test_what_is_no_limit_is_refused_in_words_before_anything_is_set(
    limits: dict[str, Any], words: str
) -> None:
    code = f"""
import json, resource
from kernelbox.walls import rlimits
kinds = sorted(rlimits._KINDS.values())
before = [resource.getrlimit(kind) for kind in kinds]
try:
    rlimits.apply({{"file_size": 1000, **{limits!r}}})
except ValueError as error:
    words = str(error)
print(json.dumps([words, before == [resource.getrlimit(kind) for kind in kinds]]))
"""
    said, unchanged = child(code)
    assert words in said
    assert unchanged


def test_a_number_too_large_for_the_kernel_is_refused_in_words() -> None:
    code = f"""
import json
from kernelbox.walls import rlimits
try:
    rlimits.apply({{"file_size": {1 << 70}}})
except OSError as error:
    print(json.dumps(str(error)))
"""
    assert "'file_size' cannot be set to" in child(code)


# ------------------------------------------------------------------------------ soft memory


def test_memory_runs_out_softly_near_the_mark_and_variables_survive() -> None:
    limit = 220 * MB
    code = f"""
before = {{"answer": 42}}
kept = []
rlimits.soft_memory({limit})
start = used()
failed = fill(kept)
full = start + len(kept) * 10 * MB
del kept[len(kept) // 2:]
half = len(kept)
rlimits.soft_memory({limit})   # as before the next cell
again = fill(kept, most=half + 3)
rlimits.lift_soft_memory()
print(json.dumps([failed, full, before["answer"], again, len(kept) - half, sum(kept[0])]))
"""
    failed, full, answer, again, more, first = child(SOFTLY + code)
    assert failed, "no MemoryError"
    assert limit - rlimits.SOFT_MEMORY_ROOM - 20 * MB <= full <= limit
    assert (answer, first) == (42, 0)
    assert not again, "what was freed cannot be used again"
    assert more == 3


def test_numpy_runs_out_softly_too() -> None:
    pytest.importorskip("numpy")
    code = """
import numpy as np
small = np.arange(1000)
rlimits.soft_memory(used() + 150 * MB)
kept = []
try:
    while len(kept) < 100:
        kept.append(np.ones(10 * MB // 8))
except MemoryError as error:
    words = str(error)
print(json.dumps([words, len(kept), int(small.sum())]))
"""
    words, count, total = child(SOFTLY + code)
    assert "Unable to allocate" in words
    assert 10 <= count <= 14
    assert total == 499500


def test_many_small_things_run_out_softly_and_the_mark_can_be_lifted_when_nothing_is_left() -> None:
    code = """
kept, names = [], {}
rlimits.soft_memory(used() + 60 * MB)
try:
    n = 0
    while True:
        kept.append([n])
        n += 1
except MemoryError:
    rlimits.lift_soft_memory()
    full = used()
more = [bytearray(10 * MB) for _ in range(10)]
print(json.dumps([len(kept) > 100_000, kept[77], len(more), resource.getrlimit(resource.RLIMIT_DATA)[0]]))
"""
    many, item, more, soft = child(SOFTLY + code)
    assert many
    assert item == [77]
    assert more == 10
    unlimited = child(
        "import json, resource\nprint(json.dumps(resource.getrlimit(resource.RLIMIT_DATA)[0]))"
    )
    assert soft == unlimited


def test_a_process_over_its_mark_can_still_free_and_report() -> None:
    code = """
kept = [bytearray(10 * MB) for _ in range(10)]
rlimits.soft_memory(20 * MB)    # far less than it has
failed = fill(kept)
text = "".join(str(n) for n in range(10000))   # a traceback's worth
kept.clear()
rlimits.soft_memory(used() + 100 * MB)
again = fill(kept, most=5)
print(json.dumps([failed, len(text), again, len(kept)]))
"""
    assert child(SOFTLY + code) == [True, 38890, False, 5]


def test_what_is_reserved_but_not_in_use_does_not_count() -> None:
    code = """
import mmap
flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
reserved = mmap.mmap(-1, 1000 * MB, flags=flags)   # a library's pool, never touched
rlimits.soft_memory(used() + 150 * MB)
kept = []
failed = fill(kept, most=50)
print(json.dumps([failed, len(kept)]))
"""
    failed, count = child(SOFTLY + code)
    assert failed
    assert 10 <= count <= 14


def test_lifting_a_mark_gives_back_the_limit_that_was_there_before() -> None:
    code = """
resource.setrlimit(resource.RLIMIT_DATA, (2000 * MB, 3000 * MB))
rlimits.lift_soft_memory()     # nothing to lift yet
rlimits.soft_memory(200 * MB)
rlimits.soft_memory(100 * MB)
marked = resource.getrlimit(resource.RLIMIT_DATA)
rlimits.lift_soft_memory()
print(json.dumps([marked[0] < 2000 * MB, marked[1], resource.getrlimit(resource.RLIMIT_DATA)]))
"""
    assert child(SOFTLY + code) == [True, 3000 * MB, [2000 * MB, 3000 * MB]]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to become an ordinary user")
def test_a_mark_works_for_an_ordinary_user_even_when_user_code_lowered_the_hard_limit() -> None:
    code = f"""
os.setgroups([]); os.setgid({ORDINARY}); os.setuid({ORDINARY})
rlimits.soft_memory(used() + 100 * MB)
kept = []
failed = fill(kept)
kept.clear()
resource.setrlimit(resource.RLIMIT_DATA, (900 * MB, 1000 * MB))   # user code
rlimits.lift_soft_memory()
print(json.dumps([failed, resource.getrlimit(resource.RLIMIT_DATA)]))
"""
    assert child(SOFTLY + code) == [True, [1000 * MB, 1000 * MB]]
