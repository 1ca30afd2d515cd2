"""AsyncBox: the same calls, awaited; many kernels in one loop; cancelling interrupts the cell."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from kernelbox import (
    AsyncBox,
    BadInput,
    Box,
    EpochMismatch,
    ExecutionResult,
    KernelNotFound,
    KernelRecord,
    OutputItem,
)

Play = Callable[[Callable[[AsyncBox], Coroutine[Any, Any, None]]], None]


@pytest.fixture(autouse=True, scope="module")
def anchor(shared_box: Box) -> None:
    """Keeps the module's keeper (and its warm root) from leaving between two tests."""
    shared_box.get_or_create("anchor")


@pytest.fixture
def play(shared_box: Box) -> Play:
    """Run a coroutine function with an AsyncBox on the module's home."""

    def run(story: Callable[[AsyncBox], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            async with AsyncBox(shared_box.settings) as box:
                await asyncio.wait_for(story(box), 60)

        asyncio.run(main())

    return run


async def until(condition: Callable[[], Awaitable[object]], what: str) -> None:
    deadline = time.monotonic() + 20
    while not await condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        await asyncio.sleep(0.005)


def test_every_call_works_awaited(play: Play, tmp_path: Path) -> None:
    async def story(box: AsyncBox) -> None:
        record = await box.get_or_create("awaited", cwd=str(tmp_path), tags={"a": 1})
        assert isinstance(record, KernelRecord)
        assert record.tags == {"a": 1}
        for which in (record, record.name, record.kernel_id):
            result = await box.execute(which, "print('out'); x = 6\nx * 7", expect_epoch=1)
            assert isinstance(result, ExecutionResult)
            assert (result.output, result.return_value) == ("out\n", "42")
        assert (await box.execute(record, "echo $0", language="bash")).exit_code == 0
        page = await box.output(record, result.execution_id)
        assert page.text == "out\n"
        assert len(await box.search_output(record, result.execution_id, "o.t")) == 1
        assert await box.complete(record, "x.re")
        assert await box.interrupt(record) is False
        assert await box.cancel(record, "nothing") is False
        assert (await box.status(record))["alive"] is True
        listed = {r.name for r in await box.list_kernels(refresh=True)}
        assert "awaited" in listed
        branch = await box.branch(record, "awaited branch")
        assert (await box.execute(branch, "x")).return_value == "6"
        assert (await box.restart(record)).epoch == 2
        retried = await box.execute_with_retry(record, "x", lambda r, n: "x = 1\nx")
        assert (retried.return_value, len(retried.attempts)) == ("1", 2)
        assert await box.destroy(branch) is True
        assert await box.destroy(record.name) is True
        assert await box.destroy(record.name) is False

    play(story)


def test_refusals_are_the_same(play: Play, kernel: KernelRecord) -> None:
    async def story(box: AsyncBox) -> None:
        with pytest.raises(KernelNotFound, match="no kernel named 'no such'"):
            await box.execute("no such", "1")
        with pytest.raises(BadInput):
            await box.get_or_create("")
        with pytest.raises(BadInput):
            await box.execute(kernel, "1", language="ruby")
        with pytest.raises(EpochMismatch):
            await box.execute(kernel, "1", expect_epoch=9)
        with pytest.raises(BadInput):
            await box.search_output(kernel, "x", "(")
        assert (await box.execute(kernel, "1/0")).error is not None

    play(story)


def test_bad_input_is_refused_by_the_call_not_by_its_first_item(
    play: Play, kernel: KernelRecord
) -> None:
    async def story(box: AsyncBox) -> None:
        with pytest.raises(BadInput, match="code is a string"):
            box.stream(kernel, 7)  # type: ignore[arg-type]
        with pytest.raises(BadInput, match="code is a string"):
            box.events(kernel, 7)  # type: ignore[arg-type]

    play(story)


def test_wipe_is_awaited_too(environment: Path) -> None:
    async def main() -> None:
        async with AsyncBox() as box:
            first = await box.get_or_create("a")
            second = await box.get_or_create("b")
            assert set(await box.wipe()) == {first.kernel_id, second.kernel_id}

    asyncio.run(main())


def test_items_are_streamed_as_they_happen(
    play: Play, kernel: KernelRecord, tmp_path: Path
) -> None:
    async def story(box: AsyncBox) -> None:
        code = (
            "import pathlib, time\nprint('one')\n"
            "while not pathlib.Path('go').exists(): time.sleep(0.001)\nprint('two')\n3"
        )
        text = ""
        async for item in box.stream(kernel, code):
            if isinstance(item, OutputItem):
                text += item.text or ""
                (tmp_path / "go").touch()  # only now can the cell go on
        assert text == "one\ntwo\n3"
        assert isinstance(item, ExecutionResult)
        assert item.return_value == "3"

    play(story)


def test_an_abandoned_stream_interrupts_its_cell(play: Play, kernel: KernelRecord) -> None:
    async def story(box: AsyncBox) -> None:
        before = await box.execute(kernel, "x = 'kept'")
        assert before.status == "success", before
        items = box.stream(kernel, "print('up')\nimport time; time.sleep(60)")
        async for _ in items:
            break
        await items.aclose()  # type: ignore[attr-defined]

        async def stopped() -> bool:
            return (await box.status(kernel))["running"] is None

        await until(stopped, "the cell to stop")
        after = await box.execute(kernel, "x")
        assert (after.state, after.cause, after.return_value) == ("kept", None, "'kept'")

    play(story)


def test_a_cell_that_times_out_over_its_question_has_a_result(
    play: Play, kernel: KernelRecord
) -> None:
    async def never(prompt: str) -> str:
        await asyncio.sleep(1000)
        return prompt

    async def story(box: AsyncBox) -> None:
        result = await box.execute(kernel, "input('name? ')", on_input=never, timeout=0.3)
        assert result.status == "timeout"

        async def soon(prompt: str) -> str:
            await asyncio.sleep(0.01)
            return f"{prompt}ada"

        result = await box.execute(kernel, "input('name? ')", on_input=soon)
        assert result.return_value == "'name? ada'"

    play(story)


def test_an_answer_that_fails_is_the_callers_error_at_once(
    play: Play, kernel: KernelRecord
) -> None:
    async def leave(prompt: str) -> str:
        await asyncio.sleep(0.01)
        raise RuntimeError("the user left")

    async def story(box: AsyncBox) -> None:
        running = box.execute(kernel, "x = 5\ninput('name? ')", on_input=leave)
        with pytest.raises(RuntimeError, match="the user left"):
            await asyncio.wait_for(running, 20)
        items = box.stream(kernel, "input('name? ')", on_input=leave)
        with pytest.raises(RuntimeError, match="the user left"):
            await asyncio.wait_for(anext(items), 20)
        assert (await box.execute(kernel, "x", timeout=10)).return_value == "5"

    play(story)


def test_cancelling_a_call_interrupts_its_cell(play: Play, kernel: KernelRecord) -> None:
    async def story(box: AsyncBox) -> None:
        await box.execute(kernel, "x = 'kept'")
        task = asyncio.create_task(box.execute(kernel, "import time; time.sleep(60)"))

        async def running() -> object:
            return (await box.status(kernel))["running"]

        await until(running, "the cell to run")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        async def stopped() -> bool:
            return (await box.status(kernel))["running"] is None

        await until(stopped, "the cell to stop")
        result = await box.execute(kernel, "x")
        assert (result.return_value, result.state) == ("'kept'", "kept")

    play(story)


def test_a_deadline_of_the_caller_works_like_any_other(play: Play, kernel: KernelRecord) -> None:
    async def story(box: AsyncBox) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await box.execute(kernel, "while True: pass")
        assert (await box.execute(kernel, "1")).return_value == "1"

    play(story)


def test_a_cancelled_call_that_waits_does_not_run(
    play: Play, kernel: KernelRecord, tmp_path: Path
) -> None:
    async def story(box: AsyncBox) -> None:
        code = "import pathlib, time\nwhile not pathlib.Path('go').exists(): time.sleep(0.01)"
        first = asyncio.create_task(box.execute(kernel, code))

        async def queued(wanted: int) -> bool:
            status = await box.status(kernel)
            return bool(status["running"]) and status["queued"] == wanted

        await until(lambda: queued(0), "the first to run")
        second = asyncio.create_task(box.execute(kernel, "ran = 1"))
        await until(lambda: queued(1), "the second to queue")
        second.cancel()
        await until(lambda: queued(0), "the second to leave the queue")
        (tmp_path / "go").touch()
        assert (await first).ok
        assert not (await box.execute(kernel, "ran")).ok

    play(story)


def test_twenty_kernels_work_side_by_side_in_one_loop(play: Play) -> None:
    async def story(box: AsyncBox) -> None:
        names = [f"side by side {n}" for n in range(20)]
        records = await asyncio.gather(*(box.get_or_create(name) for name in names))
        assert len({record.kernel_id for record in records}) == 20
        started = time.monotonic()
        await asyncio.gather(
            *(box.execute(record, "import time; time.sleep(0.5)") for record in records)
        )
        assert time.monotonic() - started < 5  # 10 s one after the other

        async def work(number: int) -> None:
            await box.execute(records[number], f"n = {number}")
            for _ in range(5):
                await box.execute(records[number], "n += 100")
            result = await box.execute(records[number], "n")
            assert result.return_value == str(number + 500)

        await asyncio.gather(*(work(number) for number in range(20)))
        await asyncio.gather(*(box.destroy(record) for record in records))

    play(story)


def test_the_same_name_at_once_is_one_kernel(play: Play) -> None:
    async def story(box: AsyncBox) -> None:
        records = await asyncio.gather(*(box.get_or_create("the one") for _ in range(20)))
        assert len({record.kernel_id for record in records}) == 1
        await box.destroy("the one")

    play(story)


def test_calls_on_one_kernel_queue_in_order(play: Play, kernel: KernelRecord) -> None:
    async def story(box: AsyncBox) -> None:
        await box.execute(kernel, "n = 0")
        results = await asyncio.gather(
            *(box.execute(kernel, f"n += 1\nprint({i})\n{i}") for i in range(20))
        )
        for number, result in enumerate(results):
            assert (result.output, result.return_value) == (f"{number}\n", str(number))
        assert (await box.execute(kernel, "n")).return_value == "20"

    play(story)


def test_input_is_answered(play: Play, kernel: KernelRecord) -> None:
    async def story(box: AsyncBox) -> None:
        result = await box.execute(kernel, "input('who? ')", on_input=lambda prompt: prompt * 2)
        assert result.return_value == "'who? who? '"

    play(story)


def test_a_box_may_be_used_in_one_loop_after_another(shared_box: Box, kernel: KernelRecord) -> None:
    box = AsyncBox(shared_box.settings)
    for number in range(3):
        result = asyncio.run(box.execute(kernel, str(number)))
        assert result.return_value == str(number)
    asyncio.run(box.close())


def test_two_kinds_of_box_share_their_kernels(
    play: Play, shared_box: Box, kernel: KernelRecord
) -> None:
    shared_box.execute(kernel, "x = 'of Box'")

    async def story(box: AsyncBox) -> None:
        assert (await box.execute(kernel.name, "x")).return_value == "'of Box'"

    play(story)


def test_a_dying_kernel_gives_a_result(play: Play, kernel: KernelRecord) -> None:
    async def story(box: AsyncBox) -> None:
        result = await box.execute(kernel, "import os; os._exit(1)")
        assert (result.status, result.state) == ("error", "lost")
        items = [item async for item in box.stream(kernel, "import os; os._exit(1)")]
        assert items[-1].state == "lost"

    play(story)
