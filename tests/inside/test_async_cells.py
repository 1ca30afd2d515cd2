"""``await`` in cells, and tasks that go on when the cell has ended."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kernelbox import ExecutionResult

Run = Callable[..., ExecutionResult]

COUNTING = """
import asyncio
hits = []
async def count(n=100_000):
    for i in range(n):
        hits.append(i)
        await asyncio.sleep(0.001)
"""


def test_await_at_top_level(ran: Run) -> None:
    assert ran("import asyncio\nawait asyncio.sleep(0.001, 'slept')").return_value == "'slept'"


def test_async_for_and_async_with(ran: Run) -> None:
    ran(
        "import contextlib\n"
        "async def numbers():\n    for i in range(3): yield i\n"
        "@contextlib.asynccontextmanager\n"
        "async def room():\n    print('in'); yield 7; print('out')\n"
    )
    assert ran("[n async for n in numbers()]").return_value == "[0, 1, 2]"
    assert ran("async for n in numbers(): print(n)").output == "0\n1\n2\n"
    result = ran("async with room() as number:\n    print(number)")
    assert result.output == "in\n7\nout\n"


@pytest.mark.parametrize(
    "start",
    [
        "task = asyncio.create_task(count())",
        "task = asyncio.create_task(count()); await asyncio.sleep(0)",
    ],
    ids=["without await", "with await"],
)
def test_a_task_goes_on_between_cells(ran: Run, waiting: Callable[..., None], start: str) -> None:
    ran(COUNTING + start)
    seen: list[int] = []

    def has_grown() -> bool:
        seen.append(int(ran("len(hits)").return_value or 0))
        return seen[-1] > 20

    waiting(has_grown, what="the task to run between cells")
    assert ran("task.cancel()").return_value == "True"


@pytest.mark.parametrize(
    "start", ["asyncio.ensure_future(count())", "asyncio.get_event_loop().create_task(count())"]
)
def test_older_ways_to_start_a_task_work_too(
    ran: Run, waiting: Callable[..., None], start: str
) -> None:
    ran(COUNTING + f"task = {start}")
    waiting(lambda: int(ran("len(hits)").return_value or 0) > 3, what="the task to run")


def test_a_sync_cell_stops_the_loop(ran: Run) -> None:
    ran(COUNTING + "task = asyncio.create_task(count()); await asyncio.sleep(0.01)")
    result = ran("import time; before = len(hits); time.sleep(0.05); len(hits) - before")
    assert result.return_value == "0"


def test_asyncio_run_works_also_after_an_await(ran: Run) -> None:
    ran("import asyncio\nasync def seven(): return 7")
    assert ran("asyncio.run(seven())").return_value == "7"
    assert ran("await seven()").return_value == "7"
    assert ran("asyncio.run(seven())").return_value == "7"
    assert ran("asyncio.get_event_loop().run_until_complete(seven())").return_value == "7"


def test_asyncio_run_leaves_background_tasks_alone(ran: Run, waiting: Callable[..., None]) -> None:
    ran(COUNTING + "task = asyncio.create_task(count())")
    ran("asyncio.run(asyncio.sleep(0.01))")
    waiting(lambda: int(ran("len(hits)").return_value or 0) > 5, what="the task to go on")


def test_what_a_task_prints_between_cells_is_not_lost(
    ran: Run, waiting: Callable[..., None], tmp_path
) -> None:
    done = tmp_path / "done"
    ran(
        "import asyncio, pathlib\n"
        "async def talk():\n"
        "    await asyncio.sleep(0.02); print('from the task')\n"
        f"    pathlib.Path({str(done)!r}).touch()\n"
        "task = asyncio.create_task(talk())"
    )
    waiting(done.exists, what="the task")
    (item,) = ran("pass").outputs
    assert (item.text, item.metadata) == ("from the task\n", {"background": True})


def test_a_task_that_fails_says_so_and_harms_nothing(
    ran: Run, run: Run, waiting: Callable[..., None]
) -> None:
    ran("import asyncio\nasync def fail(): raise ValueError('in the task')")
    ran("task = asyncio.create_task(fail())")
    waiting(lambda: ran("task.done()").return_value == "True", what="the task to fail")
    result = run("await task")
    assert result.error is not None
    assert (result.error.ename, result.error.evalue) == ("ValueError", "in the task")
    assert result.state == "kept"


@pytest.mark.parametrize("error", ["SystemExit(4)", "KeyboardInterrupt()"])
def test_a_task_that_exits_ends_only_itself(
    ran: Run, waiting: Callable[..., None], error: str
) -> None:
    ran(
        f"import asyncio; x = 5\nasync def leave(): raise {error}\n"
        "task = asyncio.create_task(leave())"
    )
    waiting(lambda: ran("task.done()").return_value == "True", what="the task to leave")
    assert ran("x").return_value == "5"


def test_an_exit_in_an_awaiting_cell_ends_only_the_cell(run: Run, ran: Run) -> None:
    ran("x = 5")
    result = run("async def leave(): raise SystemExit(4)\nawait leave()")
    assert result.error is not None
    assert result.error.ename == "SystemExit"
    assert ran("x").return_value == "5"


def test_gathering_timing_out_and_subprocesses(ran: Run, run: Run) -> None:
    ran("import asyncio, sys")
    assert (
        ran("await asyncio.gather(*[asyncio.sleep(0.001, i) for i in range(3)])").return_value
        == "[0, 1, 2]"
    )
    late = run("async with asyncio.timeout(0.01):\n    await asyncio.sleep(5)")
    assert late.error is not None
    assert late.error.ename == "TimeoutError"
    started = "await asyncio.create_subprocess_exec('echo', 'sub', stdout=-1)"
    assert (
        ran(f"process = {started}\nawait process.communicate()").return_value == "(b'sub\\n', None)"
    )
    assert ran("await asyncio.to_thread(sum, [1, 2])").return_value == "3"


def test_a_thread_can_hand_work_to_the_loop_between_cells(
    ran: Run, waiting: Callable[..., None], tmp_path
) -> None:
    done = tmp_path / "done"
    ran("import asyncio\nawait asyncio.sleep(0)\nloop = asyncio.get_running_loop()")
    ran(
        "import pathlib, threading, time\nanswers = []\n"
        "async def seven(): return 7\n"
        "def ask():\n"
        "    time.sleep(0.05)\n"  # by now the cell is over, and the loop was idle
        "    answers.append(asyncio.run_coroutine_threadsafe(seven(), loop).result(5))\n"
        f"    pathlib.Path({str(done)!r}).touch()\n"
        "threading.Thread(target=ask).start()"
    )
    waiting(done.exists, what="the loop's answer")
    assert ran("answers").return_value == "[7]"


def test_a_server_answers_between_cells(ran: Run, waiting: Callable[..., None], tmp_path) -> None:
    import socket

    path = str(tmp_path / "s")
    ran(
        "import asyncio\n"
        "async def hello(reader, writer):\n"
        "    writer.write(b'hello'); await writer.drain(); writer.close()\n"
        f"server = await asyncio.start_unix_server(hello, {path!r})"
    )
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(10)
        sock.connect(path)
        assert sock.recv(100) == b"hello"
    ran("server.close(); await server.wait_closed()")


def test_a_closed_or_broken_loop_is_replaced(ran: Run) -> None:
    ran("import asyncio\nawait asyncio.sleep(0); loop = asyncio.get_running_loop()")
    ran("loop.close()")
    assert ran("await asyncio.sleep(0.001, 3)").return_value == "3"


def test_a_loop_that_cannot_run_does_not_shut_the_kernel_off(ran: Run) -> None:
    ran("import asyncio\nawait asyncio.sleep(0); loop = asyncio.get_running_loop()")
    ran(
        "def broken(*a): raise RuntimeError('broken')\nloop._run_once = broken\nloop.call_soon(print)"
    )
    assert ran("1 + 1").return_value == "2"
    ran("del loop._run_once")
    assert ran("await asyncio.sleep(0.001, 3)").return_value == "3"
