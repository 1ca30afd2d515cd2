"""What a client promises about executions: text, order, errors, timeouts, state."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from kernelbox.gateway import ExecutionError, ExecutionResult, KernelGateway


async def test_a_thousand_fast_cells_lose_no_output(connected: Any) -> None:
    async with connected() as client:
        for number in range(1000):
            result = await client.execute(f"print('cell', {number})")
            assert result.text == f"cell {number}"


async def test_text_is_all_that_was_printed_and_the_value_in_order(connected: Any) -> None:
    code = "import sys\nprint('out')\nprint('err', file=sys.stderr)\nprint('again')\n6 * 7"
    async with connected() as client:
        assert (await client.execute(code)).text == "out\nerr\nagain\n42"


async def test_what_is_shown_has_lines_of_its_own(connected: Any) -> None:
    async with connected() as client:
        assert (await client.execute("display(1); display(2); print('x')\n3")).text == "1\n2\nx\n3"


async def test_text_is_stripped_and_none_if_nothing_was_printed(connected: Any) -> None:
    async with connected() as client:
        assert (await client.execute("print('\\n  a  \\n')")).text == "a"
        assert (await client.execute("x = 1")).text is None
        assert (await client.execute("")).text is None


async def test_chunks_come_as_they_are_printed_and_the_result_last(connected: Any) -> None:
    fifo = "import os, tempfile\npath = tempfile.mktemp()\nos.mkfifo(path)\nprint(path)"
    async with connected() as client:
        path = (await client.execute(fifo)).text
        code = (
            f"print('first', flush=True)\nopen({path!r}).read()\nos.unlink(path)\nprint('second')"
        )
        items: list[Any] = []
        async for item in client.stream(code):
            items.append(item)
            if items == ["first\n"]:
                # It cannot have gone on: it waits for this.
                await asyncio.to_thread(Path(path).write_text, "go")
    assert items[:2] == ["first\n", "second\n"]
    assert isinstance(items[-1], ExecutionResult)
    assert items[-1].text == "first\nsecond"
    assert len(items) == 3


async def test_state_is_kept_between_cells_and_gone_after_a_reset(connected: Any) -> None:
    async with connected() as client:
        await client.execute("x = 41")
        assert (await client.execute("x + 1")).text == "42"
        before = client.kernel_id
        await client.reset()
        assert client.kernel_id != before
        with pytest.raises(ExecutionError, match="NameError"):
            await client.execute("x")


async def test_two_clients_have_separate_kernels(connected: Any) -> None:
    async with connected() as one, connected() as two:
        assert one.kernel_id != two.kernel_id
        await one.execute("x = 'one'")
        await two.execute("x = 'two'")
        assert (await one.execute("print(x)")).text == "one"
        assert (await two.execute("print(x)")).text == "two"


async def test_executes_at_once_run_one_after_the_other_in_order(connected: Any) -> None:
    async with connected() as client:
        await client.execute("seen = []")
        code = "seen.append({0}); print({0})"
        results = await asyncio.gather(*(client.execute(code.format(n)) for n in range(50)))
        assert [result.text for result in results] == [str(n) for n in range(50)]
        assert (await client.execute("print(seen == list(range(50)))")).text == "True"


async def test_one_that_fails_does_not_stop_those_that_wait(connected: Any) -> None:
    async with connected() as client:
        results = await asyncio.gather(
            *(client.execute(code) for code in ("print('a')", "1/0", "print('b')")),
            return_exceptions=True,
        )
    assert [results[0].text, results[2].text] == ["a", "b"]
    assert isinstance(results[1], ExecutionError)


async def test_an_error_has_name_message_frames_and_the_output_before_it(connected: Any) -> None:
    code = """
def inner():
    raise ValueError("bad thing")
def outer():
    inner()
print("before")
outer()
"""
    async with connected() as client:
        with pytest.raises(ExecutionError) as caught:
            await client.execute(code)
        assert (await client.execute("print('alive')")).text == "alive"
    text = str(caught.value)
    assert all(word in text for word in ("ValueError", "bad thing", "inner", "outer"))
    assert "\x1b[" not in text
    assert (caught.value.ename, caught.value.evalue) == ("ValueError", "bad thing")
    assert caught.value.result.text == "before"


async def test_a_syntax_error_is_an_execution_error(connected: Any) -> None:
    async with connected() as client:
        with pytest.raises(ExecutionError, match="SyntaxError"):
            await client.execute("def (")


async def test_a_timeout_keeps_the_kernel_and_its_variables(connected: Any) -> None:
    async with connected() as client:
        await client.execute("x = 5")
        with pytest.raises(TimeoutError, match=r"longer than 0.2 s .*variables are kept"):
            await client.execute("import time\nwhile True: time.sleep(0.01)", timeout=0.2)
        assert (await client.execute("x")).text == "5"


@pytest.mark.slow
async def test_code_that_heeds_no_interrupt_is_ended_and_that_is_said(connected: Any) -> None:
    code = """
import time
while True:
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        pass
"""
    async with connected() as client:
        await client.execute("x = 5")
        with pytest.raises(TimeoutError, match="variables are gone"):
            await client.execute(code, timeout=0.2)
        with pytest.raises(ExecutionError, match="NameError"):
            await client.execute("x")


async def test_no_timeout_is_none(connected: Any) -> None:
    async with connected() as client:
        assert (await client.execute("1", timeout=None)).text == "1"


async def test_an_abandoned_stream_interrupts_its_cell(connected: Any) -> None:
    code = "import time\nprint('on')\ntry:\n    time.sleep(600)\nexcept KeyboardInterrupt:\n    left = True"
    async with connected() as client:
        async for item in client.stream(code):
            assert item == "on\n"
            break
        assert (await client.execute("left")).text == "True"


async def test_a_cancelled_execute_interrupts_its_cell(connected: Any) -> None:
    async with connected() as client:
        running = asyncio.create_task(client.execute("import time\ntime.sleep(600)"))
        await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert (await client.execute("1")).text == "1"


async def test_interrupt_stops_what_runs(connected: Any) -> None:
    async with connected() as client:
        await client.execute("import time")
        stream = client.stream("print('on', flush=True)\ntime.sleep(600)")
        assert await anext(stream) == "on\n"
        await client.interrupt()
        with pytest.raises(ExecutionError, match="KeyboardInterrupt"):
            await anext(stream)


async def test_ten_thousand_lines_of_code_run(connected: Any) -> None:
    code = "\n".join(f"x{n} = {n}" for n in range(10_000)) + "\nprint(x0 + x9999)"
    async with connected() as client:
        assert (await client.execute(code)).text == "9999"


async def test_half_a_megabyte_of_output_arrives_whole(connected: Any) -> None:
    async with connected() as client:
        result = await client.execute("for n in range(50_000): print(f'{n:09d}')")
    assert result.text == "\n".join(f"{n:09d}" for n in range(50_000))


async def test_megabytes_in_one_line_and_of_code_pass(connected: Any) -> None:
    async with connected() as client:
        assert (await client.execute("print('a' * 3_000_000)")).text == "a" * 3_000_000
        assert (await client.execute(f"print(len({'b' * 3_000_000!r}))")).text == "3000000"


async def test_any_text_passes(connected: Any) -> None:
    odd = "ünïcode \u2028 \U0001f600 \x01 \ud800"
    async with connected() as client:
        assert (await client.execute(f"x = {odd!r}; print(ascii(x))")).text == ascii(odd)


async def test_await_works_at_the_top_and_tasks_go_on_between_cells(connected: Any) -> None:
    async with connected() as client:
        assert (
            await client.execute("import asyncio\nprint(await asyncio.sleep(0, 'x'))")
        ).text == "x"
        await client.execute("done = asyncio.create_task(asyncio.sleep(0.01, 'y'))")
        assert (await client.execute("print(await done)")).text == "y"


async def test_input_has_nobody_to_answer_it(connected: Any) -> None:
    async with connected() as client:
        with pytest.raises(ExecutionError, match=r"input\(\) was called"):
            await client.execute("input('name? ')", timeout=30)
    async with connected(tools=[len]) as client:
        with pytest.raises(ExecutionError, match="EOFError"):
            await client.execute("input('name? ')", timeout=30)


async def test_pings_keep_a_quiet_connection(connected: Any) -> None:
    async with connected(ping_interval=0.05) as client:
        code = "import time\ntime.sleep(0.5)\nprint('done')"
        assert (await client.execute(code)).text == "done"


async def test_a_client_connects_once(connected: Any) -> None:
    async with connected() as client:
        with pytest.raises(RuntimeError, match="already connected"):
            await client.connect()
        await client.disconnect()
        await client.disconnect()
        with pytest.raises(RuntimeError, match="connect"):
            await client.execute("1")
        await client.connect()
        assert (await client.execute("2")).text == "2"


async def test_disconnecting_ends_what_runs(connected: Any) -> None:
    async with connected() as client:
        stream = client.stream("import time\nprint('on', flush=True)\ntime.sleep(600)")
        assert await anext(stream) == "on\n"
        await client.disconnect()
        with pytest.raises(ExecutionError, match="disconnected"):
            await anext(stream)


async def test_many_clients_at_once(gateway: KernelGateway, connected: Any) -> None:
    async def one(number: int) -> str | None:
        async with connected() as client:
            await client.execute(f"x = {number}")
            result: ExecutionResult = await client.execute("x * 2")
            return result.text

    assert await asyncio.gather(*map(one, range(8))) == [str(2 * n) for n in range(8)]
