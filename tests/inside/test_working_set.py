"""Pages that a fork claims at once, learned from a fork that wrote to them one by one."""

from __future__ import annotations

import mmap
import os
import resource
import signal
from collections.abc import Callable, Iterator

import pytest

from kernelbox.inside import linux
from kernelbox.inside.workingset import Lesson, WorkingSet

_PAGE = mmap.PAGESIZE
_PAGES = 4000


@pytest.fixture
def memory() -> Iterator[mmap.mmap]:
    """Pages that are there in this process, and shared with every fork of it."""
    with mmap.mmap(-1, _PAGES * _PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as area:
        for page in range(_PAGES):
            area[page * _PAGE] = 1
        yield area


def write_to(memory: mmap.mmap) -> None:
    """To every second page, so that no two make a range."""
    for page in range(0, _PAGES, 2):
        memory[page * _PAGE] = 2


def learned_from(play: Callable[[], None]) -> WorkingSet:
    heard, said = os.pipe()

    def player() -> None:
        play()
        os.write(said, b".")
        signal.pause()

    def direct() -> None:
        os.close(said)
        os.read(heard, 1)

    try:
        return Lesson(player, direct).finish()
    finally:
        os.close(heard)
        os.close(said)


def faults_in_a_fork(before: Callable[[], object], play: Callable[[], None]) -> int:
    """How many pages ``play`` had to wait for, one by one, after ``before``."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            before()
            started = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            play()
            faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - started
            os.write(writer, str(faults).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as file:
        said = int(file.read())
    os.waitpid(child, 0)
    return said


def test_what_was_claimed_is_not_waited_for(memory: mmap.mmap) -> None:
    pages = learned_from(lambda: write_to(memory))
    if not faults_in_a_fork(lambda: None, lambda: pages.claim() or os.abort()):
        pytest.skip("this kernel cannot populate our own pages (it came with Linux 6.13)")
    assert faults_in_a_fork(lambda: None, lambda: write_to(memory)) >= _PAGES // 2
    assert faults_in_a_fork(pages.claim, lambda: write_to(memory)) < _PAGES // 20


def test_a_claim_changes_nothing_that_is_written_there(memory: mmap.mmap) -> None:
    pages = learned_from(lambda: write_to(memory))

    def check() -> None:
        assert all(memory[page * _PAGE] == 1 for page in range(_PAGES))

    faults_in_a_fork(pages.claim, check)
    check()


def test_only_what_was_written_to_is_learned(memory: mmap.mmap) -> None:
    pages = learned_from(lambda: None)
    untouched = faults_in_a_fork(pages.claim, lambda: write_to(memory))
    assert untouched >= _PAGES // 2


@pytest.mark.parametrize("fork", [os.fork, linux.bare_fork])
def test_a_player_that_dies_teaches_nothing_and_keeps_nobody(
    fork: Callable[[], int], capfd: pytest.CaptureFixture[str]
) -> None:
    pages = Lesson(lambda: os._exit(9), signal.pause, fork=fork).finish()
    assert not pages.claim()
    assert "no pages were learned" in capfd.readouterr().err
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_memory_that_is_not_there_cannot_be_claimed() -> None:
    assert not WorkingSet([_PAGE]).claim()


def test_a_bare_fork_is_a_fork() -> None:
    child = linux.bare_fork()
    if child == 0:
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
