"""Many callers at once: every result is right, and in the end nothing is left."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from kernelbox import Box

WORKER = """
import sys
from kernelbox import Box
number = {number}
with Box() as box:
    record = box.get_or_create(f"process-{{number}}")
    for factor in (2, 3):
        result = box.execute(record, f"{{number}}*{{factor}}")
        assert result.return_value == str(number * factor), result
    assert box.destroy(record) is True
print("well")
"""


def test_two_hundred_threads_and_fifty_processes_all_get_their_own_results(
    stage, client, stopwatch
) -> None:
    """Threads share twenty kernels, processes make one each; six come up at a time, as on any
    machine with few processors, and all of it goes on at once."""
    watch = stopwatch()
    box: Box = stage.box
    failures: list[str] = []

    def thread(number: int) -> None:
        gate.wait(60)
        name = f"shared-{number % 20}"
        record = box.get_or_create(name)
        for factor in (2, 3):
            result = box.execute(record, f"{number}*{factor}", timeout=60)
            if result.return_value != str(number * factor):
                failures.append(f"{name}, {number}*{factor}: {result}")
        if number >= 180:  # nobody uses these but the one that makes them
            own = box.get_or_create(f"own-{number}")
            if box.execute(own, f"{number}*2").return_value != str(number * 2):
                failures.append(f"own-{number}")
            if box.destroy(own) is not True:
                failures.append(f"own-{number} was not destroyed")

    def process(number: int) -> None:
        out, _ = client(WORKER.format(number=number)).communicate(timeout=80)
        if out != "well\n":
            failures.append(out)

    gate = threading.Barrier(201)
    with ThreadPoolExecutor(200) as threads, ThreadPoolExecutor(6) as processes:
        calls = [threads.submit(thread, number) for number in range(200)]
        calls += [processes.submit(process, number) for number in range(50)]
        gate.wait(60)
        for call in calls:
            call.result(90)
    assert failures == []
    assert {record.name for record in box.list_kernels()} == {f"shared-{n}" for n in range(20)}
    assert len(stage.keepers()) == 1
    box.wipe()
    watch.within(90)


def test_a_hundred_processes_worth_of_first_calls_start_exactly_one_keeper(
    stage, client, tmp_path
) -> None:
    """Ten processes of ten threads each, let go at the same moment, where there is no keeper."""
    go = tmp_path / "go"
    code = (
        "import os, time, threading, json\nfrom kernelbox import Box\n"
        "pids = []\n"
        "def call():\n"
        f"    while not os.path.exists({str(go)!r}): time.sleep(0.001)\n"
        "    box = Box()\n"
        "    box.list_kernels()\n"
        "    pids.append(box._driver.run(box._calls.keeper({'op': 'hello'}))['pid'])\n"
        "threads = [threading.Thread(target=call) for _ in range(10)]\n"
        "print('ready', flush=True)\n"
        "[t.start() for t in threads]; [t.join() for t in threads]\n"
        "print(*pids)"
    )
    callers = [client(code) for _ in range(10)]
    for caller in callers:
        assert caller.stdout is not None
        assert caller.stdout.readline() == "ready\n"
    go.touch()
    pids: list[str] = []
    for caller in callers:
        out, _ = caller.communicate(timeout=60)
        pids += out.split()
    assert len(pids) == 100, pids
    assert len(set(pids)) == 1
    assert "Traceback" not in stage.complaints()


def test_a_killed_keeper_loses_none_of_twenty_running_cells(stage, tmp_path) -> None:
    box: Box = stage.box
    go_on = tmp_path / "go-on"
    code = (
        "import os, time\n"
        f"while not os.path.exists({str(go_on)!r}): time.sleep(0.02)\n"
        "print('done'); {0}*2"
    )
    records = [box.get_or_create(f"k{number}") for number in range(20)]
    running = [
        stage.start(record, code.format(number), timeout=60)
        for number, record in enumerate(records)
    ]
    stage.kill(stage.keeper())
    go_on.touch()
    for number, future in enumerate(running):
        result = future.result(20)
        assert (result.return_value, result.output) == (str(number * 2), "done\n")
        assert result.state == "kept"
    assert {k.kernel_id for k in box.list_kernels()} == {r.kernel_id for r in records}
    for number, record in enumerate(records):
        assert box.execute(record.name, f"{number}*3").return_value == str(number * 3)
    assert len(box.wipe()) == 20


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_crowd_that_comes_again_and_again(stage, client) -> None:
    for round in range(20):
        with ThreadPoolExecutor(40) as pool:

            def call(number: int, round: int = round) -> bool:
                name = f"k{(number + round) % 15}"
                try:
                    record = stage.box.get_or_create(name)
                    result = stage.box.execute(record, f"{number}*2", timeout=60)
                except LookupError:
                    return True  # destroyed by another of the crowd in between
                if number % 5 == 0:
                    stage.box.destroy(record)
                return result.return_value == str(number * 2) or result.state == "lost"

            assert all(pool.map(call, range(200)))
