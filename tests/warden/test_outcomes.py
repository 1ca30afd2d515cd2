"""What a result says of how an execution ended: decided by pure functions, so all in tables."""

from __future__ import annotations

from typing import Any

import pytest

from kernelbox.warden import outcomes
from kernelbox.warden.execution import Execution
from kernelbox.warden.exits import Exit
from kernelbox.warden.truth import Loss, Truth

BAD = {"ename": "ValueError", "evalue": "no", "traceback": ["line 1", "ValueError: no"]}
STOPPED = {"ename": "KeyboardInterrupt", "evalue": "", "traceback": ["KeyboardInterrupt"]}
LATE = "timed out after 2 s; interrupted after 2 s"


def job(**fields: Any) -> Execution:
    """An execution that has come this far."""
    made = Execution("e", "code", timeout=2.0)
    if fields.get("timed_out"):
        made.steps.append("interrupted after 2 s")
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def said(outcome: outcomes.Outcome) -> tuple[Any, ...]:
    error = outcome["error"] or {}
    return outcome["status"], error.get("ename"), error.get("evalue")


@pytest.mark.parametrize(
    ("fields", "reply", "expected"),
    [
        ({}, {"ok": True}, ("success", None, None)),
        ({}, {"ok": False, "error": BAD}, ("error", "ValueError", "no")),
        ({"error": BAD}, {"ok": False}, ("error", "ValueError", "no")),
        ({}, {"ok": False}, ("error", "Error", "")),
        ({}, {"ok": False, "error": "text"}, ("error", "Error", "")),
        ({"cancelled": "cancelled"}, {"ok": True}, ("success", None, None)),
        (
            {"cancelled": "cancelled"},
            {"ok": False, "error": STOPPED},
            ("error", "KeyboardInterrupt", "cancelled"),
        ),
        ({"cancelled": "cancelled"}, {"ok": False, "error": BAD}, ("error", "ValueError", "no")),
        ({"timed_out": True}, {"ok": True}, ("timeout", "TimeoutError", LATE)),
        (
            {"timed_out": True},
            {"ok": False, "error": STOPPED},
            ("timeout", "TimeoutError", LATE),
        ),
    ],
)
def test_the_end_of_a_cell(fields: dict[str, Any], reply: Any, expected: tuple[Any, ...]) -> None:
    assert said(outcomes.of_cell(job(**fields), reply)) == expected


def test_a_timeout_shows_where_the_cell_was() -> None:
    where = {**STOPPED, "traceback": ["in f", "in g", "KeyboardInterrupt"]}
    outcome = outcomes.of_cell(job(timed_out=True), {"ok": False, "error": where})
    assert outcome["error"]["traceback"] == ["in f", "in g", f"TimeoutError: {LATE}"]


@pytest.mark.parametrize(
    ("fields", "code", "expected"),
    [
        ({}, 0, ("success", None, None)),
        ({}, 3, ("error", "BashError", "the command ended with exit code 3")),
        ({"cancelled": "interrupted"}, 130, ("error", "KeyboardInterrupt", "interrupted")),
        ({"cancelled": "interrupted"}, 0, ("success", None, None)),
        ({"timed_out": True}, 0, ("timeout", "TimeoutError", LATE)),
        ({"timed_out": True}, 130, ("timeout", "TimeoutError", LATE)),
    ],
)
def test_the_end_of_a_command(fields: dict[str, Any], code: int, expected: tuple[Any, ...]) -> None:
    outcome = outcomes.of_command(job(language="bash", **fields), code)
    assert said(outcome) == expected
    assert outcome["exit_code"] == code


def test_a_command_that_fails_shows_what_it_said() -> None:
    failing = job(language="bash")
    failing.digest.add({"kind": "stream", "name": "stderr", "text": "no such file\n"})
    lines = outcomes.of_command(failing, 1)["error"]["traceback"]
    assert "no such file" in lines[0]
    assert lines[1] == "BashError: the command ended with exit code 1"


@pytest.mark.parametrize(
    ("fields", "status", "expected"),
    [
        ({}, 0, ("success", None, None, 0)),
        ({}, 4 << 8, ("error", "BashExited", "the shell ended with exit code 4", 4)),
        ({}, 9, ("error", "BashExited", "the shell ended with exit code 137", 137)),
        ({"timed_out": True}, 9, ("timeout", "TimeoutError", LATE, 137)),
    ],
)
def test_the_end_of_a_shell(fields: dict[str, Any], status: int, expected: tuple[Any, ...]) -> None:
    outcome = outcomes.of_shell(job(language="bash", **fields), Exit(status, "it ended"))
    assert (*said(outcome), outcome["exit_code"]) == expected


@pytest.mark.parametrize(
    ("fields", "loss", "expected"),
    [
        (
            {},
            Loss("lost", "died of SIGSEGV"),
            ("error", "KernelDied", "died of SIGSEGV; the kernel's state is lost"),
        ),
        (
            {},
            Loss("lost", "out of memory", "OutOfMemory"),
            ("error", "OutOfMemory", "out of memory; the kernel's state is lost"),
        ),
        (
            {},
            Loss("rewound", "aborted: rewound to checkpoint 'a'", "Aborted"),
            ("error", "Aborted", "aborted: rewound to checkpoint 'a'"),
        ),
        ({"timed_out": True}, Loss("lost", "killed"), ("timeout", "TimeoutError", LATE)),
    ],
)
def test_a_loss_under_what_runs(
    fields: dict[str, Any], loss: Loss, expected: tuple[Any, ...]
) -> None:
    assert said(outcomes.of_loss(job(**fields), loss)) == expected


def test_what_waits_is_told_that_it_was_not_run() -> None:
    outcome = outcomes.not_run(Loss("lost", "the kernel was restarted"))
    words = "not run: the kernel was restarted while this waited in the queue"
    assert said(outcome) == ("error", "Aborted", words)


def test_a_cell_that_was_undone_says_so_unless_there_is_worse_to_tell() -> None:
    truth = Truth("k", 4)
    failed = outcomes.failed("ValueError", "no")
    outcome = outcomes.undone(failed, "the cell failed", truth)
    assert (outcome["state"], outcome["cause"], outcome["epoch"]) == (
        "rewound",
        "the cell failed",
        4,
    )
    truth.lost(Loss("lost", "died of SIGKILL"))
    outcome = outcomes.undone(failed, "the cell failed", truth)
    assert (outcome["state"], outcome["epoch"]) == ("lost", 5)
    assert outcome["cause"] == "died of SIGKILL; besides, the cell failed"


def test_the_truth_counts_losses_and_forgets_those_that_were_told() -> None:
    truth = Truth("k", 1)
    kept = {"state": "kept", "cause": None, "epoch": 1, "kernel_id": "k"}
    assert truth.facts() == kept
    truth.lost(Loss("lost", "why"))
    assert truth.facts() == {**kept, "state": "lost", "cause": "why", "epoch": 2}
    truth.told()
    assert truth.facts() == {**kept, "epoch": 2}
