"""Tools of the caller that cells call: approved, rejected, edited, waited for."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from contextlib import aclosing
from typing import Any

import pytest

from kernelbox.gateway import ApprovalRequest, ExecutionError, ExecutionResult, ToolRejected

PATIENCE = 30.0


def add(a: int, b: int = 2) -> int:
    """Add two numbers."""
    return a + b


async def fetch(url: str) -> dict[str, Any]:
    """Fetch a page."""
    await asyncio.sleep(0)
    return {"url": url, "status": 200}


async def test_sync_and_async_tools_are_called_as_functions(connected: Any) -> None:
    async with connected(tools=[add, fetch]) as client:
        assert (await client.execute("import tools\ntools.add(1)")).text == "3"
        assert (await client.execute("from tools import add\nadd(1, b=10)")).text == "11"
        assert (await client.execute("tools.fetch('x')['status']")).text == "200"


async def test_a_tool_runs_in_the_callers_process(connected: Any) -> None:
    seen: list[Any] = []
    async with connected(tools={"tell": seen.append}) as client:
        await client.execute("import tools\nfor n in range(3): tools.tell([n, 'é'])")
    assert seen == [[0, "é"], [1, "é"], [2, "é"]]


async def test_a_tool_may_have_any_kind_of_parameter(connected: Any) -> None:
    unset = object()

    def many(a: int, /, b: int = 1, *rest: int, c: Any = unset, **more: int) -> list[Any]:
        return [a, b, list(rest), c is unset, more]

    async with connected(tools=[many]) as client:
        await client.execute("from tools import many")
        assert (await client.execute("print(many(1))")).text == "[1, 1, [], True, {}]"
        result = await client.execute("print(many(1, 2, 3, 4, c=5, d=6))")
        assert result.text == "[1, 2, [3, 4], False, {'d': 6}]"


async def test_what_a_tool_raises_is_an_error_in_the_cell(connected: Any) -> None:
    def fail() -> None:
        raise KeyError("no such thing")

    async with connected(tools=[fail]) as client:
        with pytest.raises(ExecutionError, match=r"ToolError.*KeyError: 'no such thing'"):
            await client.execute("import tools\ntools.fail()")
        code = (
            "try:\n    tools.fail()\nexcept tools.ToolError as error:\n    print('caught', error)"
        )
        assert "caught KeyError" in (await client.execute(code)).text


async def test_however_a_tool_ends_its_call_is_answered(connected: Any) -> None:
    class Wordless:
        def __str__(self) -> str:
            raise RuntimeError("no words")

    class WordlessError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    async def cancels_itself() -> None:
        raise asyncio.CancelledError

    async def cancels_a_part() -> None:
        part = asyncio.create_task(asyncio.sleep(600))
        part.cancel()
        await part

    async def leaves() -> None:
        sys.exit(3)

    def raises_wordless() -> None:
        raise WordlessError

    tools = {
        "cancels_itself": cancels_itself,
        "cancels_a_part": cancels_a_part,
        "exits": lambda: sys.exit(3),
        "leaves": leaves,
        "wordless": Wordless,
        "raises_wordless": raises_wordless,
    }
    async with connected(tools=tools) as client:
        for name in tools:
            async with asyncio.timeout(PATIENCE):
                with pytest.raises(ExecutionError, match="ToolError"):
                    await client.execute(f"import tools\ntools.{name}()")
        assert (await client.execute("print('alive')")).text == "alive"


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError()])
async def test_however_an_approver_ends_its_call_is_answered(
    connected: Any, error: BaseException
) -> None:
    async def approve(request: ApprovalRequest) -> None:
        raise error

    async with connected(tools=[add], approve=approve) as client, asyncio.timeout(PATIENCE):
        with pytest.raises(ExecutionError, match="PermissionError"):
            await client.execute("import tools\ntools.add(1)")


async def test_what_is_no_json_comes_back_as_text(connected: Any) -> None:
    async with connected(tools={"now": lambda: {1, 2}}) as client:
        assert (await client.execute("import tools\nprint(tools.now())")).text == "{1, 2}"


async def test_output_before_and_after_a_call_keeps_its_order(connected: Any) -> None:
    async with connected(tools=[add]) as client:
        result = await client.execute("import tools\nprint('a')\nprint(tools.add(1))\nprint('b')")
    assert result.text == "a\n3\nb"


async def test_hundreds_of_calls_in_one_cell(connected: Any) -> None:
    async with connected(tools=[add]) as client:
        code = "import tools\nprint(sum(tools.add(n, 0) for n in range(300)))"
        assert (await client.execute(code)).text == str(sum(range(300)))


async def test_a_tool_may_use_the_client_of_another_kernel(connected: Any) -> None:
    async with connected() as other:

        async def run(code: str) -> str | None:
            result: ExecutionResult = await other.execute(code)
            return result.text

        async with connected(tools=[run]) as client:
            assert (await client.execute("import tools\nprint(tools.run('6*7'))")).text == "42"


# -- approval -----------------------------------------------------------------------------------


async def test_a_call_that_is_approved_runs(connected: Any) -> None:
    asked: list[ApprovalRequest] = []

    async def approve(request: ApprovalRequest) -> None:
        asked.append(request)
        request.accept()

    async with connected(tools=[add, fetch], approve=approve) as client:
        assert (await client.execute("import tools\nprint(tools.add(1, 1))")).text == "2"
        assert (await client.execute("print(tools.fetch('u')['url'])")).text == "u"
    assert [(request.tool, request.arguments) for request in asked] == [
        ("add", {"a": 1, "b": 1}),
        ("fetch", {"url": "u"}),
    ]


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_call_that_is_rejected_does_not_run(connected: Any, kind: str) -> None:
    ran: list[int] = []

    def plain(n: int) -> None:
        ran.append(n)

    async def awaited(n: int) -> None:
        ran.append(n)

    tool = plain if kind == "sync" else awaited
    async with connected(tools={"tool": tool}, approve=lambda r: r.reject("not today")) as client:
        with pytest.raises(ExecutionError, match="PermissionError: not today"):
            await client.execute("import tools\ntools.tool(1)")
        code = "try:\n    tools.tool(1)\nexcept PermissionError as error:\n    print(error)"
        assert (await client.execute(code)).text == "not today"
    assert ran == []


async def test_a_call_can_be_edited(connected: Any) -> None:
    def approve(request: ApprovalRequest) -> None:
        request.accept({**request.arguments, "b": 100})

    async with connected(tools=[add], approve=approve) as client:
        assert (await client.execute("import tools\nprint(tools.add(1))")).text == "101"


async def test_an_edit_that_does_not_fit_is_an_error_and_no_call(connected: Any) -> None:
    async with connected(tools=[add], approve=lambda r: r.accept({"c": 1})) as client:
        with pytest.raises(ExecutionError, match="TypeError"):
            await client.execute("import tools\ntools.add(1)")


@pytest.mark.parametrize("verdict", [True, False])
async def test_a_verdict_may_be_a_bool(connected: Any, verdict: bool) -> None:
    async with connected(tools=[add], approve=lambda request: verdict) as client:
        code = "import tools\ntry: print(tools.add(1))\nexcept PermissionError: print('no')"
        assert (await client.execute(code)).text == ("3" if verdict else "no")


@pytest.mark.parametrize("error", [ToolRejected("by an error"), RuntimeError("approver broke")])
async def test_an_approver_that_raises_approves_nothing(connected: Any, error: Exception) -> None:
    def approve(request: ApprovalRequest) -> None:
        raise error

    async with connected(tools=[add], approve=approve) as client:
        with pytest.raises(ExecutionError, match=f"PermissionError.*{error}"):
            await client.execute("import tools\ntools.add(1)")


async def test_the_first_word_counts_and_may_come_from_a_thread(connected: Any) -> None:
    def approve(request: ApprovalRequest) -> None:
        def decide() -> None:
            request.accept({"a": 5, "b": 5})
            request.reject()

        threading.Thread(target=decide).start()

    async with connected(tools=[add], approve=approve) as client:
        assert (await client.execute("import tools\nprint(tools.add(1))")).text == "10"


async def test_an_approver_that_blocks_blocks_nobody_else(connected: Any) -> None:
    decided = threading.Event()
    threads: list[threading.Thread] = []

    def approve(request: ApprovalRequest) -> bool:
        threads.append(threading.current_thread())
        return decided.wait(PATIENCE)

    async with connected(tools=[add], approve=approve) as client, connected() as other:
        running = asyncio.create_task(client.execute("import tools\nprint(tools.add(1))"))
        assert (await other.execute("print('free')")).text == "free"
        async with asyncio.timeout(PATIENCE):
            while not threads:  # noqa: ASYNC110 - it is in a thread
                await asyncio.sleep(0.01)
        assert not running.done()
        decided.set()
        assert (await running).text == "3"
    assert threads[0] is not threading.main_thread()


async def test_nobody_is_asked_about_a_call_that_cannot_be_made(connected: Any) -> None:
    asked: list[ApprovalRequest] = []
    async with connected(tools=[add], approve=asked.append) as client:
        call = "from kernelbox.inside import host_tools\nhost_tools.call('add', {'nonsense': 1})"
        with pytest.raises(ExecutionError, match="TypeError"):
            await client.execute(call)
    assert asked == []


async def test_requests_come_with_the_stream(connected: Any) -> None:
    code = "import tools\nprint('before')\nprint(tools.add(1))\nprint(tools.add(2))"
    async with connected(tools=[add], approve="stream") as client:
        items: list[Any] = []
        async for item in client.stream(code):
            items.append(item)
            if isinstance(item, ApprovalRequest):
                item.accept({"a": 10, "b": item.arguments["a"]})
        kinds = [type(item) for item in items]
        assert kinds == [str, ApprovalRequest, str, ApprovalRequest, str, ExecutionResult]
        assert items[-1].text == "before\n11\n12"
        with pytest.raises(RuntimeError, match=r"stream\(\)"):
            await client.execute("1")


# -- time ---------------------------------------------------------------------------------------


async def test_time_spent_waiting_for_approval_is_not_counted(connected: Any) -> None:
    async def approve(request: ApprovalRequest) -> None:
        await asyncio.sleep(2.2)
        request.accept()

    async with connected(tools=[add], approve=approve) as client:
        await client.execute("import tools")
        assert (await client.execute("print(tools.add(1))", timeout=2)).text == "3"


async def test_time_counts_again_after_the_approval(connected: Any) -> None:
    async with connected(tools=[add], approve=lambda request: True) as client:
        with pytest.raises(TimeoutError):
            await client.execute("import time, tools\ntools.add(1)\ntime.sleep(600)", timeout=0.5)
        assert (await client.execute("print(tools.add(1))")).text == "3"


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_tool_that_takes_too_long_times_out(connected: Any, kind: str) -> None:
    release = threading.Event()
    cancelled: list[bool] = []

    async def awaited() -> None:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    tool = (lambda: release.wait(PATIENCE)) if kind == "sync" else awaited
    async with connected(tools={"slow": tool, "add": add}) as client:
        await client.execute("x = 1")
        with pytest.raises(TimeoutError):
            await client.execute("import tools\ntools.slow()", timeout=1.5)
        release.set()
        assert (await client.execute("print(x, tools.add(1))")).text == "1 3"
    assert cancelled == ([True] if kind == "async" else [])


async def test_tools_that_hang_hold_up_no_timeout(connected: Any) -> None:
    """Neither those in threads, however many, nor one that heeds no cancellation."""
    release = threading.Event()

    async def stubborn() -> None:
        while not release.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.1)

    most = (os.cpu_count() or 1) + 4  # the threads of asyncio's own pool
    tools = {"hang": lambda: release.wait(PATIENCE * 4), "stubborn": stubborn}
    try:
        async with connected(tools=tools) as client:
            await client.execute("import tools")
            loop = asyncio.get_running_loop()
            for name in [*["hang"] * (min(most, 32) + 2), "stubborn"]:
                began = loop.time()
                with pytest.raises(TimeoutError):
                    await client.execute(f"tools.{name}()", timeout=0.3)
                assert loop.time() - began < PATIENCE / 2
            assert (await client.execute("print('free')")).text == "free"
    finally:
        release.set()


async def test_an_approval_that_never_comes_can_be_left(connected: Any) -> None:
    async with connected(tools=[add], approve="stream") as client:
        async with aclosing(client.stream("import tools\ntools.add(1)", timeout=5)) as items:
            async for item in items:
                assert isinstance(item, ApprovalRequest)
                break
        item.accept()  # too late: nothing runs, and nothing breaks
        items = [item async for item in client.stream("print('free')")]
        assert items[-1].text == "free"


async def test_an_approval_that_never_comes_outlasts_the_timeout_and_can_be_cancelled(
    connected: Any,
) -> None:
    asked = asyncio.Event()

    async def approve(request: ApprovalRequest) -> None:
        asked.set()

    async with connected(tools=[add], approve=approve) as client:
        running = asyncio.create_task(client.execute("import tools\ntools.add(1)", timeout=2))
        async with asyncio.timeout(PATIENCE):
            await asked.wait()
            await asyncio.sleep(2.2)
            assert not running.done()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
        assert (await client.execute("print('free')")).text == "free"


# -- registration -------------------------------------------------------------------------------


def test_tools_need_names_of_their_own() -> None:
    from kernelbox.gateway.tools import collect

    with pytest.raises(ValueError, match="give the tool a name"):
        collect([lambda x: x])
    with pytest.raises(ValueError, match="two tools named 'add'"):
        collect([add, add])
    for name in ("not a name", "class", "_hidden", ""):
        with pytest.raises(ValueError, match="name"):
            collect({name or "-": add})
    with pytest.raises(TypeError, match="a tool is a function"):
        collect({"x": 3})  # type: ignore[dict-item]
