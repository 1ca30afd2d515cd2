"""Where a kernel does not know a flag of ``ls`` and ``stat``: here a filter plays that kernel."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from kernelbox.inside import preload
from kernelbox.walls import bpf, seccomp, syscalls

MACHINE = os.uname().machine
AT_NO_AUTOMOUNT = 0x800

pytestmark = [
    pytest.mark.skipif(MACHINE != "x86_64", reason="a library in machine code of x86_64"),
    pytest.mark.skipif(shutil.which("ls") is None, reason="there is no ls here"),
    pytest.mark.skipif(seccomp.obstacle() != "", reason=seccomp.obstacle()),
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),
]


def without_flag() -> bpf.Program:
    """What runsc of 2022 answers, to libc's first way and to its second."""
    numbers = syscalls.numbers(MACHINE)

    def invalid(argument: int) -> bpf.Rule:
        check = bpf.Check(argument, (AT_NO_AUTOMOUNT,), mask=AT_NO_AUTOMOUNT)
        case = bpf.Case((check,), bpf.refuse(errno.EINVAL))
        return bpf.Rule((case,), bpf.ALLOW)

    verdicts = {numbers["statx"]: invalid(2), numbers["newfstatat"]: invalid(3)}
    return bpf.assemble(MACHINE, verdicts, bpf.ALLOW)


def said(command: list[str], *, loading: Path | None, old: bool) -> tuple[int, str, str]:
    program = without_flag()
    environ = {"PATH": os.defpath} | ({} if loading is None else {"LD_PRELOAD": str(loading)})
    done = subprocess.run(
        command,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=(lambda: seccomp.install(program)) if old else None,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def library(tmp_path: Path) -> Path:
    path = tmp_path / "statx.so"
    path.write_bytes(preload.library())
    return path


@pytest.mark.parametrize(
    "command",
    [
        ["ls", "-l", "/usr"],
        ["ls", "/usr/lib"],
        ["ls", "-ldi", "/etc/passwd", "/lib", "/dev/null"],
        ["stat", "/etc/passwd"],
        ["stat", "--dereference", "/proc/self/exe", "--format=%F %a %U"],
        ["ls", "-l", "/nonexistent"],
        ["stat", "/etc/passwd/below"],
    ],
    ids=" ".join,
)
def test_programs_say_what_they_say_elsewhere(command: list[str], library: Path) -> None:
    expected = said(command, loading=None, old=False)
    assert said(command, loading=library, old=True) == expected


def test_without_it_they_fail() -> None:
    """Or all of it would be for nothing."""
    code, _, words = said(["ls", "-l", "/usr"], loading=None, old=True)
    if code == 0:
        pytest.skip("this ls does not use the flag")
    assert "Invalid argument" in words


def test_other_programs_load_it_without_a_word(library: Path) -> None:
    for command in (["true"], ["bash", "-c", "echo hello"], ["python3", "-c", "print('hello')"]):
        if shutil.which(command[0]) is not None:
            assert said(command, loading=library, old=True) == said(
                command, loading=None, old=False
            )


def test_nothing_is_put_anywhere_where_the_flag_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preload, "PRELOADED", str(tmp_path / "preload"))
    monkeypatch.setattr(preload, "_LIBRARY", str(tmp_path / "statx.so"))
    preload.install()
    assert list(tmp_path.iterdir()) == []
