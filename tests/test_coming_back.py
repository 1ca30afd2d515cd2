"""Coming back to an execution, and asking for the same thing twice."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from processes import wait_until

from kernelbox import (
    AsyncBox,
    BadInput,
    Box,
    Event,
    ExecutionNotFound,
    ExecutionResult,
    KernelRecord,
    KeyReused,
)

COUNT = "open('runs', 'a').write('x'); n = len(open('runs').read()); n"


def texts(events: list[Event]) -> str:
    return "".join(
        event.item.text or "" for event in events if not isinstance(event.item, ExecutionResult)
    )


def result_of(events: list[Event]) -> ExecutionResult:
    last = events[-1].item
    assert isinstance(last, ExecutionResult)
    return last


class Tardy:
    """A keeper that has yet to notice that a kernel is not where it was."""

    def __init__(self, box: Box | AsyncBox, nowhere: str, *, times: int) -> None:
        self.nowhere, self.times = nowhere, times
        self.find = box._calls.find
        box._calls.find = self.late  # type: ignore[method-assign]

    def late(self, kernel: Any) -> Any:
        record = yield from self.find(kernel)
        self.times -= 1
        return record if self.times < 0 else replace(record, address=self.nowhere)


def test_events_wait_until_the_keeper_knows_where_the_kernel_is(
    shared_box: Box, kernel: KernelRecord, tmp_path: Path
) -> None:
    gone = replace(kernel, address=str(tmp_path / "nobody.sock"))
    with Box(shared_box.settings) as box:
        Tardy(box, gone.address, times=3)
        assert result_of(list(box.events(gone, "6 * 7"))).return_value == "42"

    async def story() -> list[Event]:
        async with AsyncBox(shared_box.settings) as box:
            Tardy(box, gone.address, times=3)
            return [event async for event in box.events(gone, "6 * 7")]

    assert result_of(asyncio.run(story())).return_value == "42"


# -- attach -------------------------------------------------------------------------------------


def test_events_are_numbered_and_the_result_is_last(shared_box: Box, kernel: KernelRecord) -> None:
    events = list(shared_box.events(kernel, "print('one'); display('two'); 3"))
    numbers = [event.number for event in events]
    assert numbers == sorted(set(numbers))
    assert result_of(events).return_value == "3"


def test_a_finished_execution_can_be_followed_again_from_any_event(
    shared_box: Box, kernel: KernelRecord
) -> None:
    code = "for n in range(5): display(n)"
    first = list(shared_box.events(kernel, code, execution_id="five"))
    for start in range(len(first)):
        again = list(shared_box.attach(kernel, "five", start=first[start].number))
        assert again == first[start:]


def test_who_leaves_and_comes_back_misses_nothing(
    shared_box: Box, kernel: KernelRecord, tmp_path: Path
) -> None:
    code = (
        "import pathlib, time\nprint('before', flush=True)\n"
        "while not pathlib.Path('go').exists(): time.sleep(0.001)\nprint('after'); 'done'"
    )
    events = shared_box.events(kernel, code, execution_id="left", on_disconnect="continue")
    first = next(events)
    events.close()  # type: ignore[attr-defined]
    (tmp_path / "go").touch()
    rest = list(shared_box.attach(kernel, "left", start=first.number + 1))
    assert texts([first, *rest]) == "before\nafter\n'done'"
    assert result_of(rest).return_value == "'done'"


def test_an_execution_that_waits_in_the_queue_can_be_attached_to(
    shared_box: Box, kernel: KernelRecord, tmp_path: Path
) -> None:
    gate = "import pathlib, time\nwhile not pathlib.Path('go').exists(): time.sleep(0.001)"
    holder = threading.Thread(target=shared_box.execute, args=(kernel, gate))
    holder.start()
    wait_until(lambda: shared_box.status(kernel)["running"] is not None, what="the gate to run")
    waiting = shared_box.events(kernel, "print('mine')", execution_id="queued")
    reader = threading.Thread(target=lambda: list(waiting))
    reader.start()
    wait_until(lambda: shared_box.status(kernel)["queued"] == 1, what="the cell to be queued")
    found: list[Event] = []
    attached = threading.Thread(target=lambda: found.extend(shared_box.attach(kernel, "queued")))
    attached.start()
    (tmp_path / "go").touch()
    for thread in (holder, reader, attached):
        thread.join(30)
    assert texts(found) == "mine\n"


def test_the_one_who_asked_may_leave_and_the_one_who_attached_hears_the_end(
    shared_box: Box, kernel: KernelRecord, tmp_path: Path
) -> None:
    code = (
        "import pathlib, time\nprint('up', flush=True)\n"
        "while not pathlib.Path('go').exists(): time.sleep(0.001)\n7"
    )
    asked = shared_box.events(kernel, code, execution_id="shared", on_disconnect="interrupt")
    next(asked)
    attached = shared_box.attach(kernel, "shared")
    next(attached)
    asked.close()  # type: ignore[attr-defined]
    shared_box.status(kernel)  # the warden has seen it leave by now
    (tmp_path / "go").touch()
    assert result_of(list(attached)).return_value == "7"


def test_an_unknown_execution_is_refused(shared_box: Box, kernel: KernelRecord) -> None:
    with pytest.raises(ExecutionNotFound, match="no execution 'nonsense'"):
        list(shared_box.attach(kernel, "nonsense"))
    with pytest.raises(BadInput, match="start"):
        shared_box.attach(kernel, "nonsense", start=-1)


def test_a_reader_past_the_spool_is_told_of_the_gap(environment: Path, box: Box) -> None:
    from kernelbox import Settings

    with Box(Settings.from_environment(spool_limit=1 << 16)) as small:
        kernel = small.get_or_create("small")
        code = "for n in range(3000): display('y' * 100 + str(n))"
        small.execute(kernel, code, execution_id="long")
        events = list(small.attach(kernel, "long"))
        gaps = [e.item for e in events if getattr(e.item, "kind", "") == "gap"]
        assert len(gaps) == 1
        assert gaps[0].data["events"] > 0  # type: ignore[union-attr]
        assert "missing" in (gaps[0].text or "")  # type: ignore[union-attr]
        small.destroy(kernel)


# -- idempotency keys ---------------------------------------------------------------------------


def test_the_same_key_runs_once(shared_box: Box, kernel: KernelRecord) -> None:
    first = shared_box.execute(kernel, COUNT, idempotency_key="k")
    again = shared_box.execute(kernel, COUNT, idempotency_key="k")
    assert again == first
    assert first.return_value == "1"
    assert shared_box.execute(kernel, COUNT, idempotency_key="other").return_value == "2"


def test_large_results_are_kept_too(shared_box: Box, kernel: KernelRecord) -> None:
    code = "print('y' * 9000); open('runs', 'a').write('x')"
    first = shared_box.execute(kernel, code, idempotency_key="k")
    assert shared_box.execute(kernel, code, idempotency_key="k") == first
    assert len(first.output) == 9001


def test_another_request_under_the_same_key_is_refused(
    shared_box: Box, kernel: KernelRecord
) -> None:
    shared_box.execute(kernel, "x = 1", idempotency_key="k")
    for changed in ({"code": "x = 2"}, {"timeout": 5}, {"language": "bash"}, {"atomic": True}):
        with pytest.raises(KeyReused, match="Nothing was run"):
            shared_box.execute(kernel, **{"code": "x = 1", "idempotency_key": "k", **changed})  # type: ignore[arg-type]
    assert shared_box.execute(kernel, "x").return_value == "1"


def test_a_duplicate_that_comes_meanwhile_joins_the_first(
    shared_box: Box, kernel: KernelRecord, tmp_path: Path
) -> None:
    code = (
        "import pathlib, time\nprint('once')\n"
        "while not pathlib.Path('go').exists(): time.sleep(0.001)\n" + COUNT
    )

    async def story() -> list[ExecutionResult]:
        async with AsyncBox(shared_box.settings) as box:
            tasks = [
                asyncio.create_task(box.execute(kernel, code, idempotency_key="k"))
                for _ in range(10)
            ]
            stream = box.events(kernel, code, idempotency_key="k")
            assert (await anext(stream)).item.text == "once\n"  # type: ignore[union-attr]
            tasks[0].cancel()  # somebody else still waits, so nothing is interrupted
            (tmp_path / "go").touch()
            events = [event async for event in stream]
            return [*await asyncio.gather(*tasks[1:]), result_of(events)]

    results = asyncio.run(story())
    assert {result.return_value for result in results} == {"1"}
    assert len({result.execution_id for result in results}) == 1
    assert (tmp_path / "runs").read_text() == "x"


def test_a_key_means_its_own_execution_though_another_has_the_same_id(
    shared_box: Box, kernel: KernelRecord
) -> None:
    shared_box.execute(kernel, "print('ONE'); 'one'", idempotency_key="k", execution_id="x")
    shared_box.execute(kernel, "print('TWO'); 'two'", execution_id="x")
    again = list(shared_box.events(kernel, "print('ONE'); 'one'", idempotency_key="k"))
    assert result_of(again).return_value == "'one'"
    assert "TWO" not in texts(again)


@pytest.mark.parametrize("first", [0, 1], ids=["the first leaves first", "the second leaves first"])
def test_when_all_who_asked_are_gone_the_cell_is_interrupted(
    shared_box: Box, kernel: KernelRecord, first: int
) -> None:
    code = "import time\nprint('up', flush=True)\ntime.sleep(60)"

    def ask() -> Any:
        events = shared_box.events(kernel, code, idempotency_key="k", on_disconnect="interrupt")
        next(events)
        return events

    both = [ask(), ask()]
    both[first].close()
    assert shared_box.status(kernel)["running"] is not None
    both[1 - first].close()
    wait_until(lambda: shared_box.status(kernel)["running"] is None, what="the cell to stop")


@pytest.mark.parametrize("event", ["rewind", "restart", "crash"])
def test_a_key_outlives(shared_box: Box, kernel: KernelRecord, event: str) -> None:
    moment = shared_box.checkpoint(kernel)
    first = shared_box.execute(kernel, COUNT, idempotency_key="k")
    if event == "rewind":
        shared_box.rewind(kernel, moment)
    elif event == "restart":
        shared_box.restart(kernel)
    else:
        shared_box.execute(kernel, "import os; os._exit(1)")
    with Box(shared_box.settings) as another:
        assert another.execute(kernel, COUNT, idempotency_key="k") == first


def test_what_did_not_run_may_be_asked_for_again(
    shared_box: Box, kernel: KernelRecord, tmp_path: Path
) -> None:
    gate = "import pathlib, time\nwhile not pathlib.Path('go').exists(): time.sleep(0.001)"
    holder = threading.Thread(target=shared_box.execute, args=(kernel, gate))
    holder.start()
    wait_until(lambda: shared_box.status(kernel)["running"] is not None, what="the gate to run")
    results: list[ExecutionResult] = []

    def ask() -> None:
        results.append(shared_box.execute(kernel, COUNT, idempotency_key="k", execution_id="waits"))

    asking = threading.Thread(target=ask)
    asking.start()
    wait_until(lambda: shared_box.status(kernel)["queued"] == 1, what="the cell to be queued")
    assert shared_box.cancel(kernel, "waits")
    asking.join(30)
    (tmp_path / "go").touch()
    holder.join(30)
    assert results[0].error is not None
    assert results[0].error.ename == "Cancelled"
    assert shared_box.execute(kernel, COUNT, idempotency_key="k").return_value == "1"


def test_a_failure_is_a_result_too(shared_box: Box, kernel: KernelRecord) -> None:
    code = "open('runs', 'a').write('x'); 1/0"
    first = shared_box.execute(kernel, code, idempotency_key="k")
    assert shared_box.execute(kernel, code, idempotency_key="k") == first
    assert first.status == "error"


@pytest.mark.parametrize(
    "key", ["", "a\nb", "y" * 256, 7], ids=["empty", "two lines", "long", "a number"]
)
def test_keys_that_cannot_be_kept_are_refused(
    shared_box: Box, kernel: KernelRecord, key: str
) -> None:
    with pytest.raises(BadInput, match="idempotency key"):
        shared_box.execute(kernel, "1", idempotency_key=key)


def test_a_caller_that_is_killed_leaves_its_cell_as_it_said(
    shared_box: Box, kernel: KernelRecord, tmp_path: Path
) -> None:
    code = "import time\nopen('up', 'w').close()\ntime.sleep(60)"
    program = (
        "import kernelbox, sys\n"
        f"kernelbox.execute({kernel.kernel_id!r}, {code!r}, on_disconnect='interrupt')"
    )
    environ = {**os.environ, "KERNELBOX_HOME": os.path.dirname(shared_box.settings.registry_path)}
    caller = subprocess.Popen([sys.executable, "-c", program], env=environ)
    try:
        wait_until((tmp_path / "up").exists, what="the cell to run")
    finally:
        caller.kill()
        caller.wait()
    wait_until(lambda: shared_box.status(kernel)["running"] is None, what="the cell to stop")


@pytest.mark.parametrize("how", ["its id is used again", "it makes room", "the kernel ends"])
def test_a_slow_reader_of_what_is_thrown_away_keeps_nobody_waiting(
    environment: Path, how: str
) -> None:
    from kernelbox import Settings

    with Box(Settings.from_environment(spool_keep=2)) as box, Box() as other:
        kernel = box.get_or_create("slow")
        # Far more than a connection holds, so that the reader is behind when it is over.
        code = "for n in range(60_000): print('x' * 100)"
        slow = box.stream(kernel, code, execution_id="long")
        next(slow)
        for number in range(1 if how == "its id is used again" else 4):
            name = "long" if how == "its id is used again" else f"next-{number}"
            assert other.execute(kernel, "1 + 1", execution_id=name, timeout=20).ok
        if how == "the kernel ends":
            assert other.destroy(kernel)
        else:
            assert other.execute(kernel, "2 + 2", timeout=20).return_value == "4"
        shown = list(slow)
        assert any(getattr(item, "kind", "") == "gap" for item in shown) or how == "the kernel ends"
        if how != "the kernel ends":
            assert other.execute(kernel, "3 + 3", timeout=20).return_value == "6"
        box.wipe()
