"""A keeper that is started for a kernel starts what the kernel comes from before it is asked."""

from __future__ import annotations

import os

import psutil
import pytest
from processes import such

from kernelbox import Box
from kernelbox.keeper.home import locate
from kernelbox.keeper.launch import ensure_keeper
from kernelbox.keeper.rootprocess import announce, announced, facts_for


def keeper_of(box: Box) -> psutil.Process:
    rundir = locate(box.settings).rundir
    (keeper,) = such(lambda p: "kernelbox.keeper" in p.cmdline() and rundir in p.cmdline())
    return keeper


def roots_of(box: Box) -> list[psutil.Process]:
    return [child for child in keeper_of(box).children() if "kernelbox.warden" in child.cmdline()]


def test_the_root_that_was_started_ahead_is_the_one_that_is_used(box: Box) -> None:
    kernel = box.get_or_create("a")
    (root,) = roots_of(box)
    warden = next(p["pid"] for p in box.status(kernel)["processes"] if p["role"] == "warden")
    assert psutil.Process(warden).ppid() == root.pid
    box.get_or_create("b")
    assert roots_of(box) == [root]


def test_who_only_looks_starts_no_root(box: Box) -> None:
    assert box.list_kernels() == []
    assert roots_of(box) == []


def test_another_environment_still_means_another_root(box: Box) -> None:
    box.get_or_create("a")
    environ = {**os.environ, "PYTHONHASHSEED": "7"}
    kernel = box.get_or_create("b", environ=environ)
    assert len(roots_of(box)) == 2
    seen = box.execute(kernel, "import sys; sys.flags.hash_randomization, hash('a')").return_value
    again = box.execute(
        kernel,
        "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(hash(\"a\"))'])",
    )
    assert seen is not None
    assert again.output.strip() in seen


def test_a_first_error_is_as_good_as_any(box: Box) -> None:
    """What a traceback needs is imported when nobody waits, or by the first one that is there."""
    result = box.execute(box.get_or_create("a"), "def f():\n    return 1 / 0\nf()")
    assert result.error is not None
    assert result.error.ename == "ZeroDivisionError"
    assert any("return 1 / 0" in line for line in result.error.traceback)


def test_a_root_that_cannot_be_started_ahead_keeps_nobody_from_another(box: Box) -> None:
    ensure_keeper(locate(box.settings), facts_for("/no/such/python", "/src", {}, None))
    assert box.execute(box.get_or_create("a"), "1+1").return_value == "2"


def test_what_is_announced_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = facts_for("/usr/bin/python3", "/src", {"PYTHONPATH": "/ä b", "HOME": "/x"}, ["numpy"])
    assert facts["start_environ"] == [["PYTHONPATH", "/ä b"]]
    for name, value in announce(facts).items():
        monkeypatch.setenv(name, value)
    assert announced() == facts
    assert announced() is None
