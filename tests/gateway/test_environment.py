"""What kernels inherit, and where they are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kernelbox.gateway import KernelClient, KernelGateway

ALLOWED = {"PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "LD_LIBRARY_PATH"}


async def test_kernels_get_path_and_env_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET", "of the caller")
    monkeypatch.setenv("PYTHONPATH", "/of/the/caller")
    async with (
        KernelGateway(port=0, env={"GIVEN": "by the gateway"}) as gateway,
        KernelClient(port=gateway.port, env={"MORE": "by the client"}) as client,
    ):
        found = await client.execute("import os\nprint(sorted(os.environ))")
        names = set(eval(found.text or ""))
        values = await client.execute("print(os.environ['GIVEN'], os.environ['MORE'])")
        path = await client.execute("print(os.environ['PATH'])")
        shell = await client.execute("!echo $A_SECRET.$GIVEN")
        parents = """
pid, found = os.getpid(), False
while pid > 1:
    with open(f"/proc/{pid}/environ", "rb") as file:
        found = found or b"of the caller" in file.read()
    with open(f"/proc/{pid}/stat") as file:
        pid = int(file.read().rpartition(")")[2].split()[1])
    if b"kernelbox" not in open(f"/proc/{pid}/cmdline", "rb").read():
        break
print(found)
"""
        in_parents = await client.execute(parents)
    assert {"GIVEN", "MORE", "PATH"} <= names
    own = {name for name in names if name.startswith(("KERNELBOX_", "MPL", "JPY_"))}
    assert names - own - ALLOWED <= {"GIVEN", "MORE", *BY_IPYTHON}, names
    assert values.text == "by the gateway by the client"
    assert path.text == os.environ["PATH"]
    assert shell.text == ".by the gateway"
    assert in_parents.text == "False"


BY_IPYTHON = {"PWD", "SHLVL", "_", "PAGER", "GIT_PAGER", "CLICOLOR", "CLICOLOR_FORCE", "FORCE_COLOR", "TERM", "COLUMNS", "LINES"}  # fmt: skip


async def test_variables_that_count_at_the_start_count(tmp_path: Path) -> None:
    (tmp_path / "only_here.py").write_text("x = 7")
    async with (
        KernelGateway(port=0, env={"PYTHONPATH": str(tmp_path)}) as gateway,
        KernelClient(port=gateway.port) as client,
    ):
        assert (await client.execute("import only_here\nonly_here.x")).text == "7"


async def test_a_gateways_folder_is_where_its_kernels_start(tmp_path: Path) -> None:
    async with (
        KernelGateway(port=0, working_dir=tmp_path) as gateway,
        KernelClient(port=gateway.port) as client,
    ):
        assert (await client.execute("import os\nprint(os.getcwd())")).text == str(tmp_path)


async def test_without_a_working_dir_a_change_of_folder_persists(
    connected: Any, tmp_path: Path
) -> None:
    (tmp_path / "below").mkdir()
    async with connected() as client:
        await client.execute(f"import os\nos.chdir({str(tmp_path)!r})")
        assert (await client.execute("print(os.getcwd())")).text == str(tmp_path)
        await client.execute("%cd -q below")
        assert (await client.execute("print(os.getcwd())")).text == str(tmp_path / "below")


async def test_with_a_working_dir_every_cell_starts_there(connected: Any, tmp_path: Path) -> None:
    folder = tmp_path / "it's here"
    (folder / "below").mkdir(parents=True)
    async with connected(working_dir=folder) as client:
        assert (await client.execute("import os\nprint(os.getcwd())")).text == str(folder)
        await client.execute("os.chdir('below')")
        assert (await client.execute("print(os.getcwd())")).text == str(folder)
        with pytest.raises(Exception, match="ZeroDivisionError"):
            await client.execute("os.chdir('/')\n1/0")
        assert (await client.execute("print(os.getcwd())")).text == str(folder)
        await client.reset()
        assert (await client.execute("import os\nos.chdir('/')")).text is None
        assert (await client.execute("print(os.getcwd())")).text == str(folder)


async def test_nothing_of_the_preparation_is_seen(connected: Any, tmp_path: Path) -> None:
    async with connected(working_dir=tmp_path, tools=[len]) as client:
        names = await client.execute(
            "print([n for n in globals() if 'tool' in n or 'install' in n])"
        )
        assert names.text == "[]"
        assert (await client.execute("print(In[1][:5])")).text == "print"


async def test_a_working_dir_that_is_not_there_is_said(
    gateway: KernelGateway, connected: Any, tmp_path: Path
) -> None:
    with pytest.raises(RuntimeError, match=r"working_dir '.*nowhere' cannot be entered"):
        async with connected(working_dir=tmp_path / "nowhere"):
            pass
    made = KernelGateway(port=0, working_dir=tmp_path / "nowhere")
    with pytest.raises(RuntimeError, match=r"could not be started in '.*nowhere'"):
        await made.start()


def test_bad_settings_are_refused_in_words() -> None:
    with pytest.raises(ValueError, match="sandbox=True"):
        KernelGateway(sandbox_config=Path("sandbox.json"))
    with pytest.raises(ValueError, match=r"no 'sandbox\.json'"):
        KernelGateway(sandbox=True, sandbox_config=Path("sandbox.json"))
    with pytest.raises(ValueError, match="'LOUD'"):
        KernelGateway(log_level="LOUD")
    with pytest.raises(ValueError, match="'A=B'"):
        KernelGateway(env={"A=B": "c"})
    with pytest.raises(ValueError, match="strings"):
        KernelGateway(env={"A": 1})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="'ask'"):
        KernelClient(approve="ask")  # type: ignore[arg-type]


async def test_a_token_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async with KernelGateway(port=0, token="open-sesame") as gateway:
        with pytest.raises(RuntimeError, match="a token is needed"):
            await KernelClient(port=gateway.port).connect()
        with pytest.raises(RuntimeError, match="the token is wrong"):
            await KernelClient(port=gateway.port, token="open-barley").connect()
        async with KernelClient(port=gateway.port, token="open-sesame") as client:
            assert (
                await client.execute("import os\nprint('sesame' in str(os.environ))")
            ).text == "False"
        monkeypatch.setenv("KERNELBOX_API_TOKEN", "open-sesame")
        async with KernelClient(port=gateway.port) as client:
            assert (await client.execute("1")).text == "1"


async def test_the_log_goes_to_standard_error_as_much_as_wanted(
    capfd: pytest.CaptureFixture[str],
) -> None:
    for wanted, level in ((True, "INFO"), (True, "WARNING")):
        async with (
            KernelGateway(port=0, log_to_stderr=wanted, log_level=level) as gateway,
            KernelClient(port=gateway.port) as client,
        ):
            await client.execute("1")
        logged = "POST /api/kernels" in capfd.readouterr().err
        assert logged == (wanted and level == "INFO")


def test_importing_the_gateway_starts_nothing_and_imports_little() -> None:
    code = "import sys, kernelbox.gateway\nprint({'websockets', 'fastapi', 'asyncio'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "set()", done.stderr
