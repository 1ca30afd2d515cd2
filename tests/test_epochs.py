"""Honest state: every result says what became of the namespace, and a caller can insist on it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelbox import Box, EpochMismatch, KernelLost, KernelNotFound, KernelRecord

Waiting = Callable[..., None]


@pytest.fixture(autouse=True, scope="module")
def anchor(shared_box: Box) -> None:
    """Keeps the module's keeper (and its warm root) from leaving between two tests."""
    shared_box.get_or_create("anchor")


def pid_of(box: Box, kernel: KernelRecord, role: str) -> int:
    (pid,) = [p["pid"] for p in box.status(kernel)["processes"] if p["role"] == role]
    return int(pid)


def test_the_right_epoch_runs_and_counts_nothing_up(shared_box: Box, kernel: KernelRecord) -> None:
    for _ in range(3):
        result = shared_box.execute(kernel, "1/0", expect_epoch=1)
        assert (result.epoch, result.state) == (1, "kept")
    assert shared_box.execute(kernel, "1", expect_epoch=1).ok
    *_, last = shared_box.stream(kernel, "2", expect_epoch=1)
    assert last.return_value == "2"


def test_a_wrong_epoch_is_refused_before_anything_runs(
    shared_box: Box, kernel: KernelRecord
) -> None:
    with pytest.raises(EpochMismatch) as caught:
        shared_box.execute(kernel, "ran = 1", expect_epoch=7)
    assert caught.value.details["expected"] == 7
    assert caught.value.details["epoch"] == 1
    assert "Nothing was run" in str(caught.value)
    assert repr(kernel.name) in str(caught.value)
    with pytest.raises(EpochMismatch):
        list(shared_box.stream(kernel, "ran = 1", expect_epoch=0))
    with pytest.raises(EpochMismatch):
        shared_box.execute(kernel, "touch ran", language="bash", expect_epoch=2)
    result = shared_box.execute(kernel, "ran")
    assert result.error is not None
    assert result.error.ename == "NameError"


def test_an_epoch_that_changes_while_the_cell_waits_is_seen_too(
    shared_box: Box, kernel: KernelRecord, tmp_path: Path, waiting: Waiting
) -> None:
    import threading

    def doomed() -> None:
        shared_box.execute(
            kernel,
            "import pathlib, time, os\npathlib.Path('up').touch()\n"
            "while not pathlib.Path('go').exists(): time.sleep(0.01)\nos._exit(1)",
        )

    raised: list[object] = []

    def waits() -> None:
        try:
            raised.append(shared_box.execute(kernel, "ran = 1", expect_epoch=1))
        except EpochMismatch as error:
            raised.append(error)

    first = threading.Thread(target=doomed)
    first.start()
    waiting((tmp_path / "up").exists, what="the first cell")
    second = threading.Thread(target=waits)
    second.start()
    waiting(lambda: shared_box.status(kernel)["queued"], what="the second to queue")
    (tmp_path / "go").touch()
    first.join(10)
    second.join(10)
    (outcome,) = raised
    if isinstance(outcome, EpochMismatch):
        assert outcome.details["epoch"] == 2
    else:  # answered with the queue, which did not run either
        assert outcome.state == "lost"  # type: ignore[attr-defined]
        assert not outcome.ok  # type: ignore[attr-defined]
    assert not shared_box.execute(kernel, "ran").ok


def test_a_death_in_a_cell_is_told_by_that_cell_and_only_by_it(
    shared_box: Box, kernel: KernelRecord
) -> None:
    died = shared_box.execute(kernel, "import os; os._exit(1)")
    assert (died.state, died.epoch) == ("lost", 2)
    after = shared_box.execute(kernel, "'fresh'")
    assert (after.state, after.cause, after.epoch) == ("kept", None, 2)
    with pytest.raises(EpochMismatch) as caught:
        shared_box.execute(kernel, "1", expect_epoch=1)
    assert caught.value.details["epoch"] == 2


def test_a_death_between_cells_is_told_by_the_next_one(
    shared_box: Box, kernel: KernelRecord, waiting: Waiting
) -> None:
    shared_box.execute(kernel, "x = 1")
    os.kill(pid_of(shared_box, kernel, "interpreter"), signal.SIGKILL)
    waiting(lambda: shared_box.status(kernel)["kernel"]["epoch"] == 2, what="the death to be seen")
    record = shared_box.status(kernel)["kernel"]
    assert record["state"] == "lost"
    assert "SIGKILL" in record["cause"]
    with pytest.raises(EpochMismatch) as caught:
        shared_box.execute(kernel, "x", expect_epoch=1)
    assert "SIGKILL" in str(caught.value)
    assert caught.value.details["state"] == "lost"
    assert "SIGKILL" in caught.value.details["cause"]
    first = shared_box.execute(kernel, "x", expect_epoch=2)
    assert first.error is not None
    assert first.error.ename == "NameError"
    assert (first.state, first.epoch) == ("lost", 2)
    assert "SIGKILL" in (first.cause or "")
    second = shared_box.execute(kernel, "1")
    assert (second.state, second.cause, second.epoch) == ("kept", None, 2)


def test_a_restart_counts_up(shared_box: Box, kernel: KernelRecord) -> None:
    assert shared_box.restart(kernel).epoch == 2
    assert shared_box.restart(kernel).epoch == 3
    result = shared_box.execute(kernel, "1", expect_epoch=3)
    assert (result.state, result.epoch) == ("kept", 3)


def test_a_timeout_that_only_interrupts_keeps_the_epoch(
    shared_box: Box, kernel: KernelRecord
) -> None:
    result = shared_box.execute(kernel, "while True: pass", timeout=0.2)
    assert (result.status, result.state, result.epoch) == ("timeout", "kept", 1)


@pytest.mark.parametrize("role", ["warden", "stub"])
def test_a_killed_family_is_lost_with_its_cause(
    shared_box: Box, kernel: KernelRecord, role: str, waiting: Waiting
) -> None:
    shared_box.execute(kernel, "x = 1")
    os.kill(pid_of(shared_box, kernel, role), signal.SIGKILL)

    def lost() -> bool:
        try:
            shared_box.execute(kernel.name, "x", timeout=5)
        except KernelLost:
            return True
        return False

    waiting(lost, what="the kernel to be lost")
    for which in (kernel, kernel.name, kernel.kernel_id):
        with pytest.raises(KernelLost) as caught:
            shared_box.execute(which, "x")
        assert "killed" in caught.value.details["cause"]
        assert f"get_or_create({kernel.name!r})" in str(caught.value)
        assert "state is lost" in str(caught.value)
    again = shared_box.get_or_create(kernel.name)
    assert again.kernel_id != kernel.kernel_id
    assert again.state == "lost"
    assert "killed" in (again.cause or "")
    assert again.epoch == 2
    first = shared_box.execute(again, "'new'")
    assert (first.status, first.state, first.epoch) == ("success", "lost", 2)
    assert "killed" in (first.cause or "")
    second = shared_box.execute(again, "1")
    assert (second.state, second.cause) == ("kept", None)
    shared_box.destroy(again)


def test_a_warden_killed_under_a_cell_gives_a_result_at_once(
    shared_box: Box, kernel: KernelRecord
) -> None:
    warden = pid_of(shared_box, kernel, "warden")
    result = shared_box.execute(kernel, f"import os, time; os.kill({warden}, 9); time.sleep(60)")
    assert (result.status, result.state) == ("error", "lost")
    assert result.error is not None
    assert result.error.ename == "KernelDied"
    assert "SIGKILL" in (result.cause or "")
    assert result.epoch == 2


def test_what_was_destroyed_on_purpose_is_not_lost(shared_box: Box) -> None:
    record = shared_box.get_or_create("ended on purpose")
    shared_box.destroy(record)
    with pytest.raises(KernelNotFound) as caught:
        shared_box.execute(record, "1")
    assert not isinstance(caught.value, KernelLost)
    again = shared_box.get_or_create("ended on purpose")
    assert (again.state, again.epoch) == ("kept", 1)
    shared_box.destroy(again)


def test_destroying_what_is_lost_forgets_it(
    shared_box: Box, kernel: KernelRecord, waiting: Waiting
) -> None:
    os.kill(pid_of(shared_box, kernel, "warden"), signal.SIGKILL)
    waiting(
        lambda: kernel.name not in {r.name for r in shared_box.list_kernels()}, what="the burial"
    )
    assert shared_box.destroy(kernel.name) is False
    with pytest.raises(KernelNotFound) as caught:
        shared_box.execute(kernel.name, "1")
    assert not isinstance(caught.value, KernelLost)
    again = shared_box.get_or_create(kernel.name)
    assert again.state == "kept"
    shared_box.destroy(again)
