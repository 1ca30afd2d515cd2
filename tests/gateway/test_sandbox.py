"""A gateway with ``sandbox=True``: every kernel is behind walls, and host tools lead out of them."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from kernelbox.gateway import KernelClient, KernelGateway
from kernelbox.walls import ways

PROBES = """
import os, socket
def attempt(action):
    try:
        return action()
    except OSError as error:
        return type(error).__name__
print(os.getuid(), attempt(lambda: open({secret!r}).read()))
print(attempt(lambda: socket.create_connection(('127.0.0.1', {port}), 5)))
server = socket.create_server(('127.0.0.1', 0))
print(bool(socket.create_connection(server.getsockname(), 5)))
"""
LOCKED = ways.look().kind == "locks"
needs_namespaces = pytest.mark.skipif(LOCKED, reason=f"no such walls here: {ways.look().why}")


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret.txt"
    path.write_text("a secret of the host")
    return path


@needs_namespaces
async def test_code_sees_neither_files_nor_network_of_the_host(secret: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as service:
        code = PROBES.format(secret=str(secret), port=service.getsockname()[1])
        made = KernelGateway(port=0, sandbox=True)
        async with made as gateway, KernelClient(port=gateway.port) as client:
            result = await client.execute(code)
        assert result.text == "1000 FileNotFoundError\nConnectionRefusedError\nTrue"
        async with KernelGateway(port=0) as gateway, KernelClient(port=gateway.port) as client:
            result = await client.execute(code)
        assert result.text is not None
        assert result.text.startswith(f"{os.getuid()} a secret of the host\n<socket.socket")


async def test_without_namespaces_it_sees_neither_and_has_no_loopback(secret: Path) -> None:
    if not LOCKED:
        pytest.skip("user namespaces are open here")
    code = f"try: open({str(secret)!r})\nexcept OSError as error: print(type(error).__name__)"
    made = KernelGateway(port=0, sandbox=True)
    async with made as gateway, KernelClient(port=gateway.port) as client:
        assert (await client.execute(code)).text == "PermissionError"
        code = "import socket\ntry: socket.socket()\nexcept OSError as error: print(error.errno)"
        assert (await client.execute(code)).text == "1"


async def test_a_host_tool_is_the_way_out(secret: Path) -> None:
    def read_secret(path: str) -> str:
        """Read a file of the host."""
        return Path(path).read_text()

    made = KernelGateway(port=0, sandbox=True)
    async with made as gateway, KernelClient(port=gateway.port, tools=[read_secret]) as client:
        result = await client.execute(f"import tools\nprint(tools.read_secret({str(secret)!r}))")
    assert result.text == "a secret of the host"


@needs_namespaces
async def test_a_file_says_which_walls(tmp_path: Path, secret: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    ours = tmp_path / "kernelbox.toml"
    ours.write_text(
        '[security]\nprofile = "restrictive"\n\n'
        f'[[mounts]]\nsource = "{out}"\ntarget = "/out"\nmode = "rw"\n'
    )
    made = KernelGateway(port=0, sandbox=True, sandbox_config=ours)
    async with made as gateway, KernelClient(port=gateway.port) as client:
        await client.execute("open('/out/x', 'w').write('written')")
    assert (out / "x").read_text() == "written"
    others = tmp_path / "settings.json"
    others.write_text(
        json.dumps({"network": {"allowedDomains": []}, "filesystem": {"allowWrite": [str(out)]}})
    )
    made = KernelGateway(port=0, sandbox=True, sandbox_config=others)
    async with made as gateway, KernelClient(port=gateway.port) as client:
        await client.execute(f"open({str(out / 'y')!r}, 'w').write('written')")
    assert (out / "y").read_text() == "written"


async def test_what_is_given_reaches_the_code_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NOT_GIVEN", "a secret of the caller")
    code = "import os\nprint([os.environ.get(n) for n in ('OF_GATEWAY', 'OF_CLIENT', 'NOT_GIVEN')])"
    made = KernelGateway(port=0, sandbox=True, env={"OF_GATEWAY": "1"})
    async with made as gateway, KernelClient(port=gateway.port, env={"OF_CLIENT": "2"}) as client:
        assert (await client.execute(code)).text == "['1', '2', None]"
