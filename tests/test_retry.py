"""execute_with_retry: the rules alone, then over real kernels."""

from __future__ import annotations

import asyncio

import pytest

from kernelbox import AsyncBox, BadInput, Box, ErrorInfo, ExecutionResult, KernelRecord, Settings
from kernelbox.retry import Mend, Run, attempts, check_repair


def failure(number: int) -> ExecutionResult:
    return ExecutionResult("error", output=f"o{number}", error=ErrorInfo("E", str(number), []))


# -- the rules ------------------------------------------------------------------------------


def test_a_success_ends_it_at_once() -> None:
    rules = attempts("a", 5)
    assert next(rules) == Run("a")
    with pytest.raises(StopIteration) as end:
        rules.send(ExecutionResult("success"))
    result: ExecutionResult = end.value.value
    assert result.ok
    assert [(a.attempt, a.code, a.status) for a in result.attempts] == [(1, "a", "success")]


def test_code_is_replaced_and_none_means_the_same_again() -> None:
    rules = attempts("a", 5)
    next(rules)
    mend = rules.send(failure(1))
    assert isinstance(mend, Mend)
    assert mend.attempt == 1
    assert rules.send("b") == Run("b")
    assert rules.send(failure(2)) == Mend(failure_with_history(2, "a", "b"), 2)
    assert rules.send(None) == Run("b")


def failure_with_history(number: int, *codes: str) -> ExecutionResult:
    from kernelbox import AttemptSnapshot

    result = failure(number)
    for attempt, code in enumerate(codes, 1):
        past = failure(attempt)
        result.attempts.append(AttemptSnapshot(attempt, code, "error", past.output, "", past.error))
    return result


@pytest.mark.parametrize("most", [1, 2, 3])
def test_the_first_run_counts_and_nobody_is_asked_after_the_last(most: int) -> None:
    rules = attempts("a", most)
    step = next(rules)
    runs = asked = 0
    result: ExecutionResult | None = None
    while result is None:
        try:
            if isinstance(step, Run):
                runs += 1
                step = rules.send(failure(runs))
            else:
                asked += 1
                assert step.attempt == asked
                step = rules.send(None)
        except StopIteration as end:
            result = end.value
    assert (runs, asked) == (most, most - 1)
    assert result.status == "max_attempts_exceeded"
    assert result.output == f"o{most}"
    assert result.error == ErrorInfo("E", str(most), [])
    assert [a.attempt for a in result.attempts] == list(range(1, most + 1))


@pytest.mark.parametrize("most", [0, -1, 1.5, "3", None, True])
def test_a_bad_number_of_attempts_is_refused(most: object) -> None:
    with pytest.raises(BadInput, match="max_attempts"):
        next(attempts("a", most))  # type: ignore[arg-type]


def test_a_repair_that_is_no_code_is_refused() -> None:
    rules = attempts("a", 2)
    next(rules)
    rules.send(failure(1))
    with pytest.raises(BadInput, match="on_error_fn returns code or None, not int"):
        rules.send(7)  # type: ignore[arg-type]


@pytest.mark.parametrize("repair", [None, "x = 1", 7, ["x" * 10_000]])
def test_a_repair_that_cannot_be_called_is_refused(repair: object) -> None:
    check_repair(lambda result, attempt: None)
    with pytest.raises(BadInput, match="on_error_fn is a function") as caught:
        check_repair(repair)
    assert len(str(caught.value)) < 300


# -- over kernels ---------------------------------------------------------------------------


def test_a_repair_is_told_what_went_wrong_and_mends_it(
    shared_box: Box, kernel: KernelRecord
) -> None:
    told: list[tuple[str, str, int, int]] = []

    def repair(result: ExecutionResult, attempt: int) -> str:
        assert result.error is not None
        assert all(isinstance(line, str) for line in result.error.traceback)
        told.append((result.status, result.error.ename, attempt, len(result.attempts)))
        return "x = 41\nx + 1"

    result = shared_box.execute_with_retry(kernel, "print('try'); x + 1", repair)
    assert (result.status, result.return_value) == ("success", "42")
    assert told == [("error", "NameError", 1, 1)]
    first, second = result.attempts
    assert (first.attempt, first.code, first.status) == (1, "print('try'); x + 1", "error")
    assert first.output == "try\n"
    assert first.error is not None
    assert first.error.evalue == "name 'x' is not defined"
    assert (second.attempt, second.code, second.status) == (2, "x = 41\nx + 1", "success")
    assert second.error is None


def test_none_runs_the_same_code_with_the_state_as_it_is(
    shared_box: Box, kernel: KernelRecord
) -> None:
    shared_box.execute(kernel, "n = 0")
    result = shared_box.execute_with_retry(
        kernel, "n += 1\nassert n == 3\nn", lambda result, attempt: None
    )
    assert result.return_value == "3"
    assert len(result.attempts) == 3


def test_giving_up_keeps_the_last_output_and_error(shared_box: Box, kernel: KernelRecord) -> None:
    asked: list[int] = []

    def hopeless(result: ExecutionResult, attempt: int) -> str:
        asked.append(attempt)
        return f"print('try {attempt + 1}')\nraise ValueError({attempt + 1})"

    result = shared_box.execute_with_retry(kernel, "1/0", hopeless, max_attempts=3)
    assert result.status == "max_attempts_exceeded"
    assert not result.ok
    assert result.output == "try 3\n"
    assert result.error is not None
    assert (result.error.ename, result.error.evalue) == ("ValueError", "3")
    assert asked == [1, 2]
    assert [attempt.status for attempt in result.attempts] == ["error"] * 3


def test_one_attempt_asks_nobody(shared_box: Box, kernel: KernelRecord) -> None:
    def never(result: ExecutionResult, attempt: int) -> str:
        raise AssertionError("asked after the last failure")

    result = shared_box.execute_with_retry(kernel, "1/0", never, max_attempts=1)
    assert result.status == "max_attempts_exceeded"
    assert len(result.attempts) == 1


def test_the_setting_is_the_default(shared_box: Box, kernel: KernelRecord) -> None:
    wire = {**shared_box.settings.to_wire(), "max_retries": 2}
    with Box(Settings.from_wire(wire)) as impatient:
        result = impatient.execute_with_retry(kernel, "1/0", on_error_fn=lambda r, n: None)
    assert len(result.attempts) == 2
    assert len(shared_box.execute_with_retry(kernel, "1/0", lambda r, n: None).attempts) == 5


def test_a_timeout_and_a_death_are_failures_to_repair(
    shared_box: Box, kernel: KernelRecord
) -> None:
    told: list[tuple[str, str]] = []
    codes = ["import os; os._exit(1)", "'back'"]

    def repair(result: ExecutionResult, attempt: int) -> str:
        assert result.error is not None
        told.append((result.status, result.state))
        return codes.pop(0)

    result = shared_box.execute_with_retry(
        kernel, "while True: pass", repair, timeout=0.2, max_attempts=3
    )
    assert result.return_value == "'back'"
    assert told == [("timeout", "kept"), ("error", "lost")]


def test_a_repair_that_has_run_out_is_not_taken_for_a_result(
    shared_box: Box, kernel: KernelRecord
) -> None:
    codes = iter(["2/0"])
    with pytest.raises(RuntimeError) as caught:
        shared_box.execute_with_retry(kernel, "1/0", lambda result, attempt: next(codes))
    assert isinstance(caught.value.__cause__, StopIteration)


def test_bash_is_repaired_too(shared_box: Box, kernel: KernelRecord) -> None:
    result = shared_box.execute_with_retry(
        kernel, "exit_with() { return 3; }; exit_with", lambda r, n: "echo ok", language="bash"
    )
    assert (result.output, result.exit_code, len(result.attempts)) == ("ok\n", 0, 2)


def test_what_a_repair_raises_is_the_callers(shared_box: Box, kernel: KernelRecord) -> None:
    def broken(result: ExecutionResult, attempt: int) -> str:
        raise RuntimeError("the model is down")

    with pytest.raises(RuntimeError, match="the model is down"):
        shared_box.execute_with_retry(kernel, "1/0", broken)
    assert shared_box.execute(kernel, "1").ok


def test_a_bad_number_of_attempts_runs_nothing(shared_box: Box, kernel: KernelRecord) -> None:
    with pytest.raises(BadInput):
        shared_box.execute_with_retry(kernel, "ran = 1", lambda r, n: None, max_attempts=0)
    assert not shared_box.execute(kernel, "ran").ok


def test_a_repair_that_cannot_be_called_runs_nothing(shared_box: Box, kernel: KernelRecord) -> None:
    with pytest.raises(BadInput, match="on_error_fn is a function"):
        shared_box.execute_with_retry(kernel, "ran = 1", "x = 1")  # type: ignore[arg-type]

    async def main() -> None:
        async with AsyncBox(shared_box.settings) as box:
            await box.execute_with_retry(kernel, "ran = 1", None)  # type: ignore[arg-type]

    with pytest.raises(BadInput, match="on_error_fn is a function"):
        asyncio.run(main())
    assert not shared_box.execute(kernel, "ran").ok


@pytest.mark.parametrize("asynchronous", [False, True])
def test_async_repairs_may_be_plain_or_coroutines(
    shared_box: Box, kernel: KernelRecord, asynchronous: bool
) -> None:
    async def coroutine(result: ExecutionResult, attempt: int) -> str:
        await asyncio.sleep(0)
        return "42"

    def plain(result: ExecutionResult, attempt: int) -> str:
        return "42"

    async def main() -> ExecutionResult:
        async with AsyncBox(shared_box.settings) as box:
            return await box.execute_with_retry(kernel, "1/0", coroutine if asynchronous else plain)

    result = asyncio.run(main())
    assert result.return_value == "42"
    assert len(result.attempts) == 2
