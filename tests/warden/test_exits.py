"""Deaths in words."""

from __future__ import annotations

import pytest

from kernelbox.warden.exits import explain


@pytest.mark.parametrize(
    ("known", "ename", "cause"),
    [
        ({}, "KernelDied", "died of SIGKILL (SIGKILL: something killed the process)"),
        (
            {"oom_kills": 1},
            "OutOfMemory",
            "out of memory: the kernel's OOM killer ended the process",
        ),
        (
            {"oom_kills": 1, "limit": "its profile 'p' allows 16 MiB"},
            "OutOfMemory",
            "out of memory: the kernel's OOM killer ended the process; its profile 'p' allows 16 MiB",
        ),
        ({"oom_kills": 1, "killed_by_us": "restarted"}, "KernelDied", "restarted"),
    ],
)
def test_a_kill_says_what_is_known_of_it(known: dict[str, object], ename: str, cause: str) -> None:
    exit = explain(9, **known)  # type: ignore[arg-type]
    assert (exit.ename, exit.cause, exit.code) == (ename, cause, 137)
