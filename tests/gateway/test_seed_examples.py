"""The examples of seed 003, as printed there but for the imports and the port."""

from __future__ import annotations

import asyncio
import inspect
import socket
import textwrap
from pathlib import Path
from typing import Any

import pytest
from processes import wait_until

from kernelbox.gateway import ExecutionError, ExecutionResult, KernelClient, KernelGateway

GATEWAY = """
async with KernelGateway(host="localhost", port=8888) as gateway:
    # Gateway is running, connect with KernelClient
    await gateway.join()  # Wait until gateway stops
"""

CLIENT = """
async with KernelClient(host="localhost", port=8888) as client:
    # Simple execution
    result = await client.execute("print('hello')")
    print(result.text)

    # Streaming execution
    async for item in client.stream("print('hello')"):
        match item:
            case str():
                print(f"Chunk: {item}")
            case ExecutionResult():
                print(f"Result: {item}")
"""


async def play(example: str, port: int, names: dict[str, Any]) -> None:
    """Run an example in a function, with another port than everybody's."""
    body = textwrap.indent(example.replace("8888", str(port)), "    ")
    exec(f"async def example():\n{body}", names)
    await names["example"]()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def test_the_examples_run_as_printed(capsys: pytest.CaptureFixture[str]) -> None:
    port = free_port()
    made: list[KernelGateway] = []

    class Known(KernelGateway):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            made.append(self)

    serving = asyncio.create_task(play(GATEWAY, port, {"KernelGateway": Known}))
    names = {"KernelClient": KernelClient, "ExecutionResult": ExecutionResult}
    await play(CLIENT, port, names)
    assert not serving.done()
    await made[0].stop()
    await serving
    printed = capsys.readouterr().out
    assert printed.startswith(
        "hello\nChunk: hello\n\nResult: ExecutionResult(text='hello', images=[]"
    )


def parameters(function: Any) -> list[str]:
    """Those that can be given by position, in order, with their defaults."""
    return [
        str(parameter).partition(":")[0]
        + ("" if parameter.default is parameter.empty else f"={parameter.default!r}")
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind is not parameter.KEYWORD_ONLY
    ]


def test_signatures_are_those_of_the_seed() -> None:
    assert parameters(KernelGateway) == [
        "host='localhost'",
        "port=8888",
        "sandbox=False",
        "sandbox_config=None",
        "log_level='INFO'",
        "log_to_stderr=False",
        "env=None",
    ]
    assert parameters(KernelClient) == [
        "host='localhost'",
        "port=8888",
        "images_dir=None",
        "ping_interval=10",
    ]
    assert parameters(KernelGateway.stop) == ["self", "timeout=10"]
    assert parameters(KernelClient.connect) == ["self", "retries=10", "retry_interval=1.0"]
    for method in (KernelClient.execute, KernelClient.stream):
        assert parameters(method) == ["self", "code", "timeout=120"]
    assert parameters(ExecutionResult)[:2] == ["text", "images"]
    assert issubclass(ExecutionError, Exception)


async def test_a_kernel_id_needs_a_connection() -> None:
    with pytest.raises(RuntimeError, match=r"connect\(\)"):
        KernelClient().kernel_id
    with pytest.raises(RuntimeError, match="connect"):
        await KernelClient().execute("1")


async def test_a_client_waits_for_a_gateway_that_comes_later(place: Path) -> None:
    port = free_port()
    client = KernelClient(port=port)
    connecting = asyncio.create_task(client.connect(retries=600, retry_interval=0.1))
    async with KernelGateway(port=port):
        await connecting
        assert (await client.execute("1+1")).text == "2"
        await client.disconnect()
    wait_until(lambda: not list(place.iterdir()), what="the folder to be removed")


async def test_a_client_gives_up_where_no_gateway_is() -> None:
    port = free_port()
    with pytest.raises(RuntimeError, match=f"no gateway answers at localhost:{port}"):
        await KernelClient(port=port).connect(retries=2, retry_interval=0.01)
