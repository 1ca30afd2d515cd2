"""The root's heap as a file: nothing is lost, forks are apart, and nobody can change what is shared."""

from __future__ import annotations

import struct
import subprocess
import sys
import textwrap

import pytest

from kernelbox.inside.imprint import written_pages
from kernelbox.walls import seccomp

_BEFORE = """
import fcntl, gc, hashlib, os, re, sys
from kernelbox.inside.imprint import imprint
things = {number: [str(number) * 7, (number,), {number}] for number in range(60_000)}
large = bytearray(os.urandom(5 << 20))
def seen():
    digest = hashlib.sha256(large)
    for number, parts in things.items():
        digest.update(repr((number, parts)).encode())
    return digest.hexdigest()
def of_the_file():
    lines = [line for line in open('/proc/self/maps') if 'memfd:kernelbox-root' in line]
    return sum(int(b, 16) - int(a, 16) for a, b in (line.split()[0].split('-') for line in lines))
def in_a_fork(work):
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.close(reader)
        try:
            os.write(writer, str(work()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader) as answer:
        return answer.read()
before = seen()
"""


def _play(code: str) -> None:
    """Run it behind ``_BEFORE``; at its end it says that it went well."""
    program = _BEFORE + textwrap.dedent(code)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "well"


def test_everything_is_as_it_was_and_comes_from_the_file() -> None:
    _play(
        """
        assert imprint()
        assert of_the_file() > 10 << 20, of_the_file()
        assert seen() == before
        things.clear(); gc.collect()
        things.update({number: [str(number)] for number in range(90_000)})
        assert sum(len(parts[0]) for parts in things.values()) == 438_890
        print("well")
        """
    )


def test_forks_share_it_and_do_not_see_each_others_changes() -> None:
    _play(
        """
        assert imprint()
        def change():
            large[:] = bytes(len(large))
            things[5] = None
            return seen()
        changed = in_a_fork(change)
        assert changed and changed != before
        assert in_a_fork(seen) == before == seen()
        things.pop(1)
        assert in_a_fork(seen) == seen() != before
        print("well")
        """
    )


def test_nobody_can_write_to_the_file() -> None:
    """Not even root, who can open it by its mapping: it is sealed."""
    _play(
        """
        import mmap
        assert imprint()
        assert 'memfd' not in os.popen(f'ls -l /proc/{os.getpid()}/fd').read()
        (first, *_) = [line.split()[0] for line in open('/proc/self/maps') if 'memfd:kern' in line]
        try:
            fd = os.open(f'/proc/self/map_files/{first}', os.O_RDWR)
        except PermissionError:
            print("well")
            raise SystemExit
        for attempt in (lambda: os.pwrite(fd, b'x', 0), lambda: mmap.mmap(fd, 4096),
                        lambda: os.ftruncate(fd, 0)):
            try:
                attempt()
            except PermissionError:
                continue
            raise SystemExit('it was written to')
        print("well")
        """
    )


def test_with_a_second_thread_it_is_left_alone() -> None:
    _play(
        """
        import threading
        done = threading.Event()
        threading.Thread(target=done.wait).start()
        assert not imprint() and not of_the_file()
        done.set()
        assert seen() == before
        print("well")
        """
    )


@pytest.mark.skipif(bool(seccomp.obstacle()), reason=seccomp.obstacle() or "")
def test_where_nobody_may_stop_us_it_is_left_alone() -> None:
    _play(
        """
        from kernelbox.walls import callfilters, kernelcalls, seccomp
        kernelcalls.gain_no_privileges()
        seccomp.install(callfilters.deny_list())
        assert not imprint() and not of_the_file()
        assert seen() == before
        print("well")
        """
    )


_PRESENT, _SWAPPED, _SOFT_DIRTY = 1 << 63, 1 << 62, 1 << 55


@pytest.mark.parametrize(
    ("pages", "written"),
    [
        ([], []),
        ([0, _SOFT_DIRTY, 0], []),
        ([_PRESENT], [(0, 1)]),
        ([0, _PRESENT, _PRESENT, 0, 0, _PRESENT | _SOFT_DIRTY], [(1, 3), (5, 6)]),
        # A root that nobody has asked for a while: part of its heap is on disk, and counts as well.
        ([_PRESENT, _SWAPPED, 0, _SWAPPED, 0], [(0, 2), (3, 4)]),
    ],
)
def test_pages_that_were_swapped_out_are_not_taken_for_empty_ones(
    pages: list[int], written: list[tuple[int, int]]
) -> None:
    assert list(written_pages(struct.pack(f"={len(pages)}Q", *pages))) == written
