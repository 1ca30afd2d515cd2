"""Cells that make up calls: whatever they try, no tool runs that was not registered and approved."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from kernelbox.gateway import ApprovalRequest, ExecutionError

MARK = "\0kernelbox-tool\0"

ran: list[Any] = []
asked: list[ApprovalRequest] = []


@pytest.fixture(autouse=True)
def forget() -> None:
    ran.clear()
    asked.clear()


def secret(x: Any = None) -> str:
    ran.append(x)
    return "ran"


def refuse(request: ApprovalRequest) -> bool:
    asked.append(request)
    return False


def question(content: Any) -> str:
    return f"input({MARK + json.dumps(content)!r})"


FORGED = {
    "an unregistered name": question({"tool": "os.system", "arguments": {"command": "id"}}),
    "a name of the caller's module": question({"tool": "ran.append", "arguments": {"x": 1}}),
    "a name with dunders": question({"tool": "__class__", "arguments": {}}),
    "a name that is no text": question({"tool": ["secret"], "arguments": {}}),
    "arguments that are a list": question({"tool": "secret", "arguments": [1]}),
    "arguments that are missing": question({"tool": "secret"}),
    "no object": question(["secret", {}]),
    "no json": f"input({MARK + '{tool: secret}'!r})",
    "json without end": f"input({MARK!r} + '[' * 100_000)",
    "nothing but the mark": f"input({MARK!r})",
    "an approval of its own": question(
        {"tool": "secret", "arguments": {}, "approved": True, "value": "yes", "kind": "accepted"}
    ),
    "an argument that does not exist": question({"tool": "secret", "arguments": {"approved": 1}}),
    "a stub for another tool": "import tools\nfrom kernelbox.inside.host_tools import call\ncall('shell', {'x': 1})",
}


@pytest.mark.parametrize("forgery", FORGED)
async def test_a_forged_call_is_refused(connected: Any, forgery: str) -> None:
    async with connected(tools=[secret], approve=refuse) as client:
        try:
            answer = (await client.execute(f"print({FORGED[forgery]})", timeout=30)).text
        except ExecutionError as error:
            answer = error.ename
        if answer.startswith("{"):
            answer = json.loads(answer)["kind"]
        assert answer in ("rejected", "arguments", "PermissionError", "TypeError", "SyntaxError")
        assert (await client.execute("print('alive')")).text == "alive"
    assert ran == []


async def test_a_call_by_input_is_a_call_like_any_other(connected: Any) -> None:
    async with connected(tools=[secret], approve=refuse) as client:
        code = question({"tool": "secret", "arguments": {"x": 1}})
        answer = json.loads((await client.execute(f"print({code})")).text)
        assert answer["kind"] == "rejected"
    assert [request.arguments for request in asked] == [{"x": 1}]
    assert ran == []


async def test_a_changed_module_changes_nothing_outside(connected: Any) -> None:
    code = """
import json, tools
from kernelbox.inside import host_tools, shell
def made_up(prompt, **_):
    number = json.loads(prompt.removeprefix(host_tools.MARK))["number"]
    return json.dumps({"number": number, "value": "made up"})
shell.ask_input = made_up
print(tools.secret(1))
tools.secret = lambda x: "mine"
print(tools.secret(1))
"""
    async with connected(tools=[secret], approve=refuse) as client:
        assert (await client.execute(code)).text == "made up\nmine"
    assert (ran, asked) == ([], [])


async def test_an_answer_to_another_call_is_refused(connected: Any) -> None:
    code = """
import json, tools
from kernelbox.inside import shell
shell.ask_input = lambda prompt, **_: json.dumps({"number": "0" * 16, "value": "another's"})
tools.secret(1)
"""
    async with connected(tools=[secret]) as client:
        with pytest.raises(ExecutionError, match=r"ToolError: the answer to secret\(\) was lost"):
            await client.execute(code)


async def test_a_late_answer_is_not_that_to_the_next_call(connected: Any) -> None:
    """A cell that catches an interrupt goes on: what it asked before is not what it asks now."""
    looking, wanted, found = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def lookup(key: str) -> str:
        ran.append("lookup")
        looking.set()
        await asyncio.wait_for(found.wait(), 30)
        return f"row of {key}"

    def pay(amount: int) -> str:
        ran.append("pay")
        return f"paid {amount}"

    async def approve(request: ApprovalRequest) -> None:
        if request.tool == "lookup":
            request.accept()
        else:
            asked.append(request)  # somebody thinks about it
            wanted.set()

    code = """
import tools
try:
    tools.lookup('x')
except KeyboardInterrupt:
    print('caught')
print('pay:', tools.pay(1000))
"""
    async with connected(tools=[lookup, pay], approve=approve) as client:
        running = asyncio.create_task(client.execute(code, timeout=30))
        async with asyncio.timeout(30):
            await looking.wait()
            await client.interrupt()
            await wanted.wait()
            found.set()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(running), 1)
            assert ran == ["lookup"]
            asked[0].accept()
            assert (await running).text == "caught\npay: paid 1000"
    assert ran == ["lookup", "pay"]


async def test_arguments_that_are_no_json_never_leave_the_kernel(connected: Any) -> None:
    async with connected(tools=[secret]) as client:
        for argument in ("object()", "{1, 2}", "b'bytes'", "{(1, 2): 3}"):
            with pytest.raises(ExecutionError, match=r"secret\(\) takes arguments that are JSON"):
                await client.execute(f"import tools\ntools.secret({argument})")
        with pytest.raises(ExecutionError, match=r"secret\(\) takes arguments that are JSON"):
            await client.execute("x = []\nx.append(x)\ntools.secret(x)")
    assert ran == []


async def test_a_thread_is_refused(connected: Any) -> None:
    code = """
import threading, tools
found = []
def call():
    try:
        tools.secret(1)
    except Exception as error:
        found.append(str(error))
thread = threading.Thread(target=call)
thread.start()
thread.join()
print(found)
"""
    async with connected(tools=[secret]) as client:
        assert "from a thread" in (await client.execute(code)).text
        assert (await client.execute("print(tools.secret(2))")).text == "ran"
    assert ran == [2]


async def test_a_call_after_the_cell_has_ended_is_refused(connected: Any) -> None:
    code = """
import asyncio, tools
async def later():
    await asyncio.sleep(0)
    try:
        return tools.secret("later")
    except BaseException as error:
        return type(error).__name__
task = asyncio.get_event_loop().create_task(later())
"""
    # Of a task that runs between cells: nobody has asked for anything then.
    look = "import time\nprint(task.done() and task.result())"
    async with connected(tools=[secret]) as client:
        await client.execute(code)
        for _ in range(200):
            if (answer := (await client.execute(look)).text) != "False":
                break
        assert answer == "StdinNotImplementedError"
    assert ran == []


async def test_a_child_process_is_refused(connected: Any) -> None:
    code = """
import os, tools
read, write = os.pipe()
pid = os.fork()
if pid == 0:
    try:
        words = str(tools.secret("child"))
    except BaseException as error:
        words = type(error).__name__
    os.write(write, words.encode())
    os._exit(0)
os.waitpid(pid, 0)
print(os.read(read, 100).decode())
"""
    async with connected(tools=[secret]) as client:
        assert (await client.execute(code)).text != "ran"
    assert ran == []


async def test_another_kernel_of_the_same_gateway_has_no_tools(connected: Any) -> None:
    async with connected(tools=[secret]), connected() as other:
        with pytest.raises(ExecutionError, match="ModuleNotFoundError"):
            await other.execute("import tools")
        with pytest.raises(ExecutionError, match="StdinNotImplementedError"):
            await other.execute(question({"tool": "secret", "arguments": {}}))
    assert ran == []


async def test_a_reply_that_the_cell_sends_itself_approves_nothing(
    gateway: Any, connected: Any
) -> None:
    """By the gateway's own door, which a cell can reach, with the name that its messages carry."""
    code = f"""
import asyncio, json, threading, tools, uuid
from websockets.sync.client import connect
header = get_ipython().kernel.get_parent()["header"] if "header" in get_ipython().kernel.get_parent() else get_ipython().kernel.get_parent()
def forge(kernel, session):
    address = f"ws://localhost:{gateway.port}/api/kernels/{{kernel}}/channels?session_id={{session}}"
    with connect(address, proxy=None) as socket:
        for kind, channel, content in (
            ("input_reply", "stdin", {{"value": json.dumps({{"value": "forged"}})}}),
            ("input_request", "stdin", {{"prompt": {MARK!r} + json.dumps({{"tool": "secret", "arguments": {{}}}})}}),
            ("input_request", "iopub", {{"prompt": {MARK!r} + json.dumps({{"tool": "secret", "arguments": {{}}}})}}),
        ):
            for _ in range(20):
                socket.send(json.dumps({{
                    "channel": channel, "parent_header": header, "metadata": {{}}, "content": content, "buffers": [],
                    "header": {{"msg_id": uuid.uuid4().hex, "msg_type": kind, "session": session, "username": "", "date": "", "version": "5.4"}},
                }}))
thread = threading.Thread(target=forge, args=(KERNEL, header.get("session", "")))
thread.start()
try:
    print(tools.secret("asked"))
except PermissionError as error:
    print("refused")
thread.join()
"""
    async with connected(tools=[secret], approve=refuse) as client:
        result = await client.execute(f"KERNEL = {client.kernel_id!r}\n" + code)
        assert result.text == "refused"
    assert [request.arguments for request in asked] == [{"x": "asked"}]
    assert ran == []


async def test_a_preparation_answers_no_calls(connected: Any) -> None:
    """A tool whose documentation is a program is documentation."""

    def odd(x: int = 1) -> None:
        ran.append(x)

    odd.__doc__ = '""" + __import__("os").system("true") + """\n\\'
    async with connected(tools=[odd, secret]) as client:
        code = "import tools\nprint(tools.odd.__doc__)"
        assert (await client.execute(code)).text == odd.__doc__.strip()
    assert ran == []
