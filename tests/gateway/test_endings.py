"""However a kernel, a gateway or its caller ends: it is said at once, and nothing is left."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import pytest
from processes import alive, wait_until

from kernelbox.gateway import ExecutionError, KernelClient, KernelDied, KernelGateway

PATIENCE = 30.0


async def pid_of(client: KernelClient) -> int:
    return int((await client.execute("import os\nprint(os.getpid())")).text or 0)


def warden_of(pid: int) -> psutil.Process:
    """The warden above an interpreter."""
    for process in psutil.Process(pid).parents():
        if process.name() == "kb-warden":
            return process
    raise AssertionError("there is no warden")


async def begun(client: KernelClient, code: str) -> Any:
    """A stream whose cell runs."""
    stream = client.stream(f"print('on\\n', end='', flush=True)\n{code}")  # in one piece
    assert await anext(stream) == "on\n"
    return stream


# -- kernels ------------------------------------------------------------------------------------


async def test_an_interpreter_that_exits_raises_at_once_and_is_replaced(connected: Any) -> None:
    async with connected() as client:
        await client.execute("x = 1")
        with pytest.raises(KernelDied, match="7") as caught:
            await client.execute("print('last words', flush=True)\nimport os\nos._exit(7)")
        assert caught.value.result.text == "last words"
        with pytest.raises(ExecutionError, match="NameError"):
            await client.execute("x")


async def test_an_interpreter_that_is_killed_raises_at_once_with_the_cause(connected: Any) -> None:
    async with connected() as client:
        pid = await pid_of(client)
        stream = await begun(client, "import time\ntime.sleep(600)")
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(KernelDied, match="SIGKILL"):
            async with asyncio.timeout(PATIENCE):
                await anext(stream)
        assert (await client.execute("print('again')")).text == "again"


async def test_tools_and_folder_come_back_with_a_new_interpreter(
    connected: Any, tmp_path: Path
) -> None:
    async with connected(tools={"double": lambda x: 2 * x}, working_dir=tmp_path) as client:
        with pytest.raises(KernelDied):
            await client.execute("import os\nos._exit(1)")
        result = await client.execute("import os, tools\nprint(tools.double(4), os.getcwd())")
        assert result.text == f"8 {tmp_path}"


async def test_a_kernel_whose_warden_is_killed_raises_at_once_and_stays_dead(
    connected: Any,
) -> None:
    async with connected() as client:
        pid = await pid_of(client)
        stream = await begun(client, "import time\ntime.sleep(600)")
        warden_of(pid).kill()
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(KernelDied, match=r"reset\(\)") as caught:
                await anext(stream)
            assert "SIGKILL" in str(caught.value) or "killed" in str(caught.value)
            with pytest.raises(KernelDied):
                await client.execute("1")
            await client.reset()
            assert (await client.execute("2")).text == "2"
        wait_until(lambda: not alive(pid), what="the interpreter to end with its warden")


async def test_a_kernel_that_dies_while_nothing_runs_is_told_with_the_next_cell(
    connected: Any,
) -> None:
    async with connected() as client:
        pid = await pid_of(client)
        await client.execute("x = 1")
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not alive(pid), what="it to end")
        result = await client.execute("print('x' in globals())")
        assert "variables are gone" in result.text
        assert result.text.endswith("False")


async def killed(client: KernelClient) -> None:
    """Kill the interpreter; returns when its kernel has another, and not only when it is gone."""
    pid, kernel = await pid_of(client), f"/kernels/{client.kernel_id}"
    before = (await client._service.ask("GET", kernel))["kernel"]["epoch"]
    os.kill(pid, signal.SIGKILL)
    async with asyncio.timeout(20):
        while (await client._service.ask("GET", kernel))["kernel"]["epoch"] == before:
            pass  # each question takes a moment


async def test_tools_and_folder_are_there_after_a_death_while_nothing_ran(
    connected: Any, tmp_path: Path
) -> None:
    async with connected(tools={"double": lambda x: 2 * x}, working_dir=tmp_path) as client:
        for _ in range(2):
            await killed(client)
            result = await client.execute("import os, tools\nprint(tools.double(4), os.getcwd())")
            told, said = result.text.split("\n")
            assert "variables are gone" in told
            assert "SIGKILL" in told
            assert said == f"8 {tmp_path}"
            assert (await client.execute("print(tools.double(1))")).text == "2"  # told once
        await killed(client)
        items = [item async for item in client.stream("print('on')")]
        assert "variables are gone" in items[0]
        assert "".join(items[1:-1]) == "on\n"


async def test_those_that_wait_hear_of_the_end_too(connected: Any) -> None:
    async with connected() as client:
        pid = await pid_of(client)
        codes = ["import time\ntime.sleep(600)", "1", "2"]
        running = [asyncio.create_task(client.execute(code)) for code in codes]
        await asyncio.sleep(0)
        warden_of(pid).kill()
        async with asyncio.timeout(PATIENCE):
            found = await asyncio.gather(*running, return_exceptions=True)
        assert [type(one) for one in found] == [KernelDied] * 3


# -- connections --------------------------------------------------------------------------------


class Way:
    """A way to a gateway that can be cut, as a network can."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._writers: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server | None = None
        self.port = 0

    async def __aenter__(self) -> Way:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._to)
        self._writers += [writer, far_writer]
        await asyncio.gather(_pass(reader, far_writer), _pass(far_reader, writer))


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


async def test_a_connection_that_breaks_is_made_again_and_nothing_is_lost(
    gateway: KernelGateway, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    code = f"""
import os, time
print('on', flush=True)
while not os.path.exists({str(go)!r}):
    time.sleep(0.01)
for n in range(100):
    print(n, flush=True)
"""
    async with (
        Way(gateway.port) as way,
        KernelClient(host="127.0.0.1", port=way.port, tools={"double": lambda x: 2 * x}) as client,
        asyncio.timeout(PATIENCE * 2),
    ):
        await client.execute("x = 1")
        stream = client.stream(code)
        assert await anext(stream) == "on\n"
        way.cut()
        go.touch()
        items = [item async for item in stream]
        assert items[-1].text == "\n".join(["on", *map(str, range(100))])
        # While nothing runs, and what was sent into a connection that is not known to be broken.
        for n in range(3):
            way.cut()
            result = await client.execute(f"import tools\nx += 1\nprint(x, tools.double({n}))")
            assert result.text == f"{n + 2} {2 * n}"


async def test_an_answer_to_a_call_is_not_lost_with_the_connection(gateway: KernelGateway) -> None:
    ran: list[int] = []
    way = Way(gateway.port)

    async def cut(n: int) -> int:
        ran.append(n)
        way.cut()
        return n

    async with (
        way,
        KernelClient(host="127.0.0.1", port=way.port, tools=[cut]) as client,
        asyncio.timeout(PATIENCE * 2),
    ):
        code = "import tools\nprint([tools.cut(n) for n in range(3)])"
        assert (await client.execute(code)).text == "[0, 1, 2]"
    assert ran == [0, 1, 2]


# -- gateways -----------------------------------------------------------------------------------


async def test_stop_leaves_no_process_no_file_and_no_socket(place: Path, seen: Any) -> None:
    gateway = KernelGateway(port=0)
    await gateway.start()
    async with KernelClient(port=gateway.port) as client:
        await client.execute("import subprocess\nchild = subprocess.Popen(['sleep', '600'])")
        child = int((await client.execute("print(child.pid)")).text or 0)
        there = seen(place)
        await gateway.stop()
        there.assert_gone()
        assert not alive(child)
        with pytest.raises(KernelDied):
            await client.execute("1")
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", gateway.port)) != 0


async def test_stop_ends_cells_that_run(place: Path, seen: Any) -> None:
    gateway = KernelGateway(port=0)
    await gateway.start()
    client = KernelClient(port=gateway.port)
    await client.connect()
    stream = await begun(client, "import time\ntime.sleep(600)")
    there = seen(place)
    async with asyncio.timeout(PATIENCE):
        await gateway.stop()
        with pytest.raises(KernelDied):
            await anext(stream)
    there.assert_gone()
    await client.disconnect()


async def test_a_killed_gateway_is_told_at_once_and_takes_its_kernels_along(
    place: Path, seen: Any
) -> None:
    gateway = KernelGateway(port=0)
    await gateway.start()
    client = KernelClient(port=gateway.port)
    await client.connect()
    stream = await begun(client, "import time\ntime.sleep(600)")
    there = seen(place)
    service = process_of(gateway)
    service.kill()
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(KernelDied, match="connection"):
            await anext(stream)
        await gateway.join()
    there.assert_gone(folder=False)
    await client.disconnect()
    await gateway.stop()
    there.assert_gone()


async def test_a_gateway_whose_keeper_is_killed_is_stopped_all_the_same(
    place: Path, seen: Any
) -> None:
    gateway = KernelGateway(port=0)
    await gateway.start()
    async with KernelClient(port=gateway.port) as client:
        await client.execute("1")
        there = seen(place)
        for keeper in there.named("kb-keeper"):
            keeper.kill()
        await gateway.stop()
        there.assert_gone()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_when_its_caller_dies_a_gateway_goes_too(place: Path, seen: Any, how: int) -> None:
    program = f"""
import asyncio, tempfile
from kernelbox.gateway import KernelClient, KernelGateway
tempfile.tempdir = {str(place)!r}
async def main():
    async with KernelGateway(port=0) as gateway, KernelClient(port=gateway.port) as client:
        await client.execute("x = 1")
        print("ready", flush=True)
        await gateway.join()
asyncio.run(main())
"""
    with subprocess.Popen(  # noqa: ASYNC220 - it has to die by itself
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True
    ) as caller:
        assert caller.stdout is not None
        assert await asyncio.to_thread(caller.stdout.readline) == "ready\n"
        there = seen(place)
        caller.send_signal(how)
    wait_until(lambda: not list(place.iterdir()), what="the folder to be removed")
    there.assert_gone()


async def test_a_port_that_is_taken_is_said(place: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        gateway = KernelGateway(host="127.0.0.1", port=port)
        with pytest.raises(RuntimeError, match=f"127.0.0.1:{port} .*[Aa]ddress already in use"):
            await gateway.start()
    wait_until(lambda: not list(place.iterdir()), what="the folder to be removed")
    await gateway.start()  # and it can be tried again
    await gateway.stop()


async def test_a_host_that_is_not_ours_is_said() -> None:
    with pytest.raises(RuntimeError, match=r"192\.0\.2\.1"):
        await KernelGateway(host="192.0.2.1", port=0).start()


async def test_start_twice_is_an_error_and_stop_twice_is_not(place: Path) -> None:
    gateway = KernelGateway(port=0)
    with pytest.raises(RuntimeError, match="not running"):
        await gateway.join()
    await gateway.start()
    with pytest.raises(RuntimeError, match="already running"):
        await gateway.start()
    await gateway.stop()
    await gateway.stop()
    assert os.listdir(place) == []
    both = await asyncio.gather(gateway.start(), gateway.start(), return_exceptions=True)
    assert sorted(type(one).__name__ for one in both) == ["NoneType", "RuntimeError"]
    async with KernelClient(port=gateway.port) as client:
        assert (await client.execute("1")).text == "1"
    await gateway.stop()


async def test_a_start_that_is_cancelled_leaves_nothing(place: Path) -> None:
    gateway = KernelGateway(port=0)
    starting = asyncio.create_task(gateway.start())
    await asyncio.sleep(0.05)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    wait_until(lambda: not list(place.iterdir()), what="the folder to be removed")


async def kernels_of(gateway: KernelGateway) -> int:
    def ask() -> int:
        with urllib.request.urlopen(f"http://127.0.0.1:{gateway.port}/api/kernels") as answer:
            return len(json.load(answer))

    return await asyncio.to_thread(ask)


async def test_a_connect_that_is_cancelled_leaves_no_kernel(place: Path) -> None:
    async with KernelGateway(port=0) as gateway:
        for delay in (0.0, 0.002, 0.005, 0.01, 0.02, 0.05):
            client = KernelClient(port=gateway.port)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(client.connect(), delay)
            await client.disconnect()
            assert await kernels_of(gateway) == 0


async def test_a_disconnect_that_is_cancelled_leaves_no_kernel(place: Path) -> None:
    async with KernelGateway(port=0) as gateway:
        client = KernelClient(port=gateway.port)
        await client.connect()
        ending = asyncio.create_task(client.disconnect())
        await asyncio.sleep(0)
        ending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ending
        assert await kernels_of(gateway) == 0


async def test_a_large_cell_that_is_cancelled_on_its_way_does_not_run_on(connected: Any) -> None:
    code = "import time\ntime.sleep(600)\n#" + "z" * 20_000_000
    async with connected() as client:
        await client.execute("x = 1")
        for delay in (0.0, 0.1):
            running = asyncio.create_task(client.execute(code))
            await asyncio.sleep(0)  # it begins
            await asyncio.sleep(delay)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert (await client.execute("x", timeout=PATIENCE)).text == "1"


async def test_join_returns_when_the_gateway_ends() -> None:
    gateway = KernelGateway(port=0)
    await gateway.start()
    waiting = asyncio.create_task(gateway.join())
    await asyncio.sleep(0)
    await gateway.stop()
    async with asyncio.timeout(PATIENCE):
        await waiting


async def test_two_gateways_know_nothing_of_each_other() -> None:
    async with (
        KernelGateway(port=0) as one,
        KernelGateway(port=0) as two,
        KernelClient(port=one.port) as client,
        KernelClient(port=two.port) as other,
    ):
        assert one.port != two.port
        await one.stop()
        with pytest.raises(KernelDied):
            await client.execute("1")
        assert (await other.execute("2")).text == "2"


def process_of(gateway: KernelGateway) -> psutil.Process:
    """The gateway's process: the one of our children that listens on its port."""
    for child in psutil.Process().children():
        if any(one.laddr.port == gateway.port for one in child.net_connections("tcp")):
            return child
    raise AssertionError("there is no such process")
