"""How executions end, in the words of their results.

Pure: what is known of an end goes in, the part of a result that says it comes out.
"""

from __future__ import annotations

from typing import Any

from kernelbox.warden.digest import bounded, bounded_error, bounded_lines
from kernelbox.warden.events import clean_error
from kernelbox.warden.execution import Execution
from kernelbox.warden.exits import Exit
from kernelbox.warden.truth import Loss, Truth
from kernelbox.wire import Frame

Outcome = dict[str, Any]


def succeeded() -> Outcome:
    return {"status": "success", "error": None}


def failed(ename: str, evalue: str, *, status: str = "error") -> Outcome:
    """The outcome of an execution that our side ended, not the code's own exception."""
    return {
        "status": status,
        "error": {"ename": ename, "evalue": evalue, "traceback": [f"{ename}: {evalue}"]},
    }


def timed_out(job: Execution) -> Outcome:
    words = f"timed out after {job.timeout:g} s; " + ", ".join(job.steps)
    return failed("TimeoutError", words, status="timeout")


def of_cell(job: Execution, reply: Frame) -> Outcome:
    """An interpreter has come to the end of its cell."""
    if not job.timed_out and reply.get("ok"):
        return succeeded()
    error = clean_error(reply.get("error") or job.error or {})
    if job.timed_out:
        outcome = timed_out(job)
        where, lines = error["traceback"][:-1], outcome["error"]["traceback"]
        outcome["error"]["traceback"] = bounded_lines([*where, *lines], job.limit)
        return outcome
    error = bounded_error(error, job.limit)
    if job.cancelled and error["ename"] == "KeyboardInterrupt":
        error["evalue"] = error["evalue"] or job.cancelled
    return {"status": "error", "error": error}


def of_command(job: Execution, exit_code: int) -> Outcome:
    """A shell has come back to its prompt."""
    if job.timed_out:
        outcome = timed_out(job)
    elif job.cancelled and exit_code:
        outcome = failed("KeyboardInterrupt", job.cancelled)
    elif exit_code:
        outcome = failed("BashError", f"the command ended with exit code {exit_code}")
        if said := job.digest.stderr_tail():
            # What a model that is to repair it wants to read.
            outcome["error"]["traceback"].insert(0, bounded(said, job.limit))
    else:
        outcome = succeeded()
    return {**outcome, "exit_code": exit_code}


def of_shell(job: Execution, exit: Exit) -> Outcome:
    """The shell itself has ended with its command: by ``exit`` in it, or it was killed."""
    if job.timed_out:
        outcome = timed_out(job)
    elif exit.code == 0:
        outcome = succeeded()
    else:
        outcome = failed("BashExited", f"the shell ended with exit code {exit.code}")
    return {**outcome, "exit_code": exit.code}


def of_death(job: Execution, ename: str, words: str) -> Outcome:
    """The process that ran it is gone. If that was for its time, its time is what is told."""
    return timed_out(job) if job.timed_out else failed(ename, words)


def of_loss(job: Execution, loss: Loss) -> Outcome:
    """The namespace is gone under an execution that ran."""
    lost = "" if loss.state == "rewound" else "; the kernel's state is lost"
    return of_death(job, loss.ename, loss.cause + lost)


def not_run(loss: Loss) -> Outcome:
    return failed("Aborted", f"not run: {loss.cause} while this waited in the queue")


def undone(outcome: Outcome, cause: str, truth: Truth) -> Outcome:
    """The same of a cell that was undone; a loss before it, not told yet, is worse."""
    state = "rewound"
    if truth.loss is not None:
        state, cause = truth.loss.state, f"{truth.loss.cause}; besides, {cause}"
    return {**outcome, "state": state, "cause": cause, "epoch": truth.epoch}
