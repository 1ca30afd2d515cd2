"""Calls that collide: each gets a clear answer, and all agree on what there is."""

from __future__ import annotations

import threading
import time

import pytest
from psutil import pid_exists

from kernelbox import Box, BoxError, KernelLost, KernelNotFound, KernelRecord, Settings

LONG = "import time; time.sleep(100)"


def test_concurrent_calls_for_one_name_get_one_kernel(shared_stage, threads) -> None:
    records = threads(lambda _: shared_stage.box.get_or_create("one"), 50)
    assert len({record.kernel_id for record in records}) == 1
    assert [k.name for k in shared_stage.box.list_kernels()] == ["one"]
    shared_stage.box.destroy("one")


def test_destroy_answers_what_runs_and_what_waits(
    shared_stage, kernel: KernelRecord, stopwatch
) -> None:
    running = shared_stage.start(kernel, LONG)
    waiting = [shared_stage.submit(shared_stage.box.execute, kernel, "1") for _ in range(5)]
    while shared_stage.box.status(kernel)["queued"] < 5:
        time.sleep(0.005)
    watch = stopwatch()
    assert shared_stage.box.destroy(kernel) is True
    for future in (running, *waiting):
        result = future.result(10)
        assert (result.status, result.state) == ("error", "lost")
        assert "destroyed" in str(result.cause)
    watch.within(3)
    with pytest.raises(KernelNotFound):
        shared_stage.box.execute(kernel, "1")


def test_destroying_twice_at_once_is_one_end(shared_stage, threads, stopwatch) -> None:
    for _ in range(5):
        record = shared_stage.box.get_or_create("twice")
        watch = stopwatch()
        answers = threads(lambda _: shared_stage.box.destroy("twice"), 8)
        watch.within(5)
        assert True in answers
        assert shared_stage.box.destroy(record) is False


def test_a_kernel_asked_for_while_its_namesake_is_destroyed_is_a_new_one(shared_stage) -> None:
    box: Box = shared_stage.box
    for _ in range(10):
        old = box.get_or_create("phoenix")
        box.execute("phoenix", "x = 1")
        destroying = shared_stage.submit(box.destroy, old)
        while not destroying.done():
            record = box.get_or_create("phoenix")
            if record.kernel_id != old.kernel_id:
                break
        assert destroying.result(10) is True
        fresh = box.get_or_create("phoenix")
        assert fresh.kernel_id != old.kernel_id
        assert box.execute("phoenix", "'x' in globals()").return_value == "False"
        assert box.destroy(fresh) is True
        assert box.list_kernels() == []


def test_destroying_many_answers_only_when_their_processes_are_gone(shared_stage, threads) -> None:
    box: Box = shared_stage.box
    pids = {}
    for number in range(6):
        box.get_or_create(f"many-{number}")
        facts = box.status(f"many-{number}")["processes"]
        # The warden is the one that says so, and ends last.
        pids[number] = [fact["pid"] for fact in facts if fact["role"] != "warden"]

    def destroy(number: int) -> list[int]:
        assert box.destroy(f"many-{number}") is True
        return [pid for pid in pids[number] if pid_exists(pid)]

    assert threads(destroy, 6) == [[]] * 6


@pytest.mark.parametrize("end", [lambda box: box.wipe(), lambda box: box.destroy("coming")])
def test_a_kernel_that_is_just_being_made_ends_too(stage, waiting, end) -> None:
    """The first kernel of a home waits for its root; whoever wanted it may be gone by then."""
    making = stage.submit(stage.box.get_or_create, "coming")
    waiting(stage.keepers, what="the keeper to start")
    with Box() as other:
        while not end(other):  # its request may not have arrived yet
            time.sleep(0.001)
        assert other.list_kernels() == []
    assert making.result(10).name == "coming"
    with pytest.raises(KernelNotFound):
        stage.box.execute("coming", "1")


def test_an_execution_that_races_with_idleness_is_run_or_told_that_the_kernel_is_lost(
    environment, monkeypatch, stopwatch
) -> None:
    monkeypatch.setenv("KERNELBOX_KERNEL_IDLE_TIMEOUT", "0.2")
    monkeypatch.setenv("KERNELBOX_KEEPER_LINGER", "30")
    outcomes = {"ran": 0, "lost": 0}
    with Box() as box:
        for round in range(25):
            record = box.get_or_create("idler")
            # Around the moment at which the keeper asks and the warden decides.
            time.sleep(0.15 + 0.01 * round)
            watch = stopwatch()
            words = None
            try:
                result = box.execute(record, "6*7")
            except KernelLost as error:
                words = str(error)
            else:
                if not result.ok:
                    assert result.state in ("lost", "unknown")
                    words = str(result.cause)
                else:
                    assert result.return_value == "42"
            assert words is None or "idle" in words
            outcomes["ran" if words is None else "lost"] += 1
            watch.within(5)
    monkeypatch.setenv("KERNELBOX_KEEPER_LINGER", "0.1")
    assert outcomes["ran"] > 0
    assert outcomes["lost"] > 0


def test_a_busy_kernel_is_never_reaped_as_idle(environment, monkeypatch) -> None:
    monkeypatch.setenv("KERNELBOX_KERNEL_IDLE_TIMEOUT", "0.3")
    with Box() as box:
        box.get_or_create("a")
        assert box.execute("a", "import time; time.sleep(1.5); 42").return_value == "42"
        assert box.execute("a", "42").return_value == "42"


def test_interrupts_and_cancels_that_come_too_late_hit_nobody(
    shared_stage, kernel: KernelRecord
) -> None:
    box: Box = shared_stage.box
    stop = threading.Event()

    def pester() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            box.cancel(kernel, f"run-{number - 1}")

    pest = shared_stage.submit(pester)
    try:
        for number in range(200):
            result = box.execute(kernel, f"{number}*2", execution_id=f"other-{number}")
            assert result.return_value == str(number * 2)
    finally:
        stop.set()
        pest.result(10)


def test_a_storm_of_interrupts_leaves_a_kernel_that_works(
    shared_stage, kernel: KernelRecord
) -> None:
    box: Box = shared_stage.box
    box.execute(kernel, "x = 42")
    stop = threading.Event()

    def pester() -> None:
        while not stop.is_set():
            box.interrupt(kernel)

    pest = shared_stage.submit(pester)
    try:
        for number in range(100):
            result = box.execute(kernel, f"print({number}); {number}*2", timeout=10)
            if result.ok:
                assert result.return_value == str(number * 2)
                assert result.output == f"{number}\n"
            else:
                assert result.error is not None
                assert result.error.ename == "KeyboardInterrupt", result.error
            assert result.state == "kept"
    finally:
        stop.set()
        pest.result(10)
    assert box.execute(kernel, "x").return_value == "42"


def test_restarts_that_collide_with_cells_leave_a_kernel_that_works(
    shared_stage, kernel: KernelRecord, threads
) -> None:
    box: Box = shared_stage.box

    def collide(number: int) -> bool:
        if number % 4 == 0:
            box.restart(kernel)
            return True
        result = box.execute(kernel, f"{number}*2", timeout=20)
        return result.return_value == str(number * 2) or result.state == "lost"

    assert all(threads(collide, 24))
    assert box.execute(kernel, "1+1").return_value == "2"


def test_branches_that_collide_with_cells_and_death_are_made_or_refused(
    shared_stage, kernel: KernelRecord, threads
) -> None:
    box: Box = shared_stage.box

    def collide(number: int) -> object:
        if number == 0:
            return box.execute(kernel, "import os; os._exit(1)").state
        try:
            copy = box.branch(kernel, f"{kernel.name}-{number}")
        except BoxError as error:
            return str(error)
        return box.execute(copy, f"{number}*2").return_value == str(number * 2)

    outcomes = threads(collide, 8)
    assert outcomes[0] == "lost"
    for outcome in outcomes[1:]:
        assert outcome is True or "could not be made" in str(outcome), outcome
    for record in box.list_kernels():
        if record.name.startswith(kernel.name):
            assert box.destroy(record)


def test_a_killed_keeper_and_a_hundred_callers_end_in_one_keeper(stage, threads) -> None:
    """The first call of a hundred threads, each with a Box of its own, finds no keeper."""
    settings = Settings.from_environment()

    def call(number: int) -> str | None:
        with Box(settings) as box:
            record = box.get_or_create(f"k{number % 4}")
            return box.execute(record, f"{number}*2").return_value

    for _ in range(2):
        assert threads(call, 100) == [str(number * 2) for number in range(100)]
        assert len(stage.keepers()) == 1
        assert len(stage.box.list_kernels()) == 4
        stage.kill(stage.keeper())


def test_creating_while_the_keeper_is_killed_again_and_again_makes_every_kernel_once(
    stage, threads
) -> None:
    stop = threading.Event()

    def chaos() -> int:
        kills = 0
        while not stop.is_set():
            for pid in stage.keepers():
                try:
                    stage.kill(pid)
                    kills += 1
                except ProcessLookupError:
                    continue
            stop.wait(0.7)
        return kills

    killer = stage.submit(chaos)
    made: dict[str, str] = {}
    refused: list[str] = []
    try:
        deadline = time.monotonic() + 6
        number = 0
        while time.monotonic() < deadline:
            number += 1
            try:
                record = stage.box.get_or_create(f"k{number}")
            except BoxError as error:
                refused.append(str(error))
                continue
            made[record.name] = record.kernel_id
            result = stage.box.execute(record, f"{number}*2")
            assert result.return_value == str(number * 2)
    finally:
        stop.set()
        assert killer.result(10) >= 3
    assert all("keeper" in words for words in refused)
    listed = {record.name: record.kernel_id for record in stage.box.list_kernels()}
    assert {name: listed.get(name) for name in made} == made
    assert len(stage.keepers()) == 1
