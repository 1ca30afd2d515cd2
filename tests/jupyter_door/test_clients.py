"""Programs that others wrote for Jupyter's servers, against ours."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from http_service import Service, Start
from kernel_sockets import content_of, talking, text_of
from processes import wait_until

pytestmark = pytest.mark.jupyter

TOKEN = "a-token-for-clients"
PNG = b"\x89PNG\r\n\x1a\n"
PLOT = "%matplotlib inline\nimport matplotlib.pyplot as plt\nplt.plot([1, 4, 9])\nplt.show()"
RUN_NOTEBOOK = Path(__file__).parent / "run_notebook.py"


@pytest.fixture(scope="module")
def guarded(shared_start: Start) -> Service:
    """A service that wants a token."""
    started = shared_start(server={"api_token": TOKEN})
    started.http.headers["authorization"] = f"Bearer {TOKEN}"
    started.execute("anchor", "1")
    return started


# -- jupyter_kernel_client -------------------------------------------------------------------------


def test_jupyter_kernel_client_runs_code(guarded: Service) -> None:
    from jupyter_kernel_client import JupyterKernelClient

    # It may not see that it has closed its connection itself, and waits for its thread so long.
    patience = {"timeout": 3}
    with JupyterKernelClient(server_url=guarded.url, token=TOKEN, client_kwargs=patience) as client:
        done = client.execute("print('out')\nx = 6 * 7\nx")
        assert done["status"] == "ok"
        stream, result = done["outputs"]
        assert (stream["name"], stream["text"]) == ("stdout", "out\n")
        assert result["data"]["text/plain"] == "42"
        assert client.get_variable("x") == 42
        failed = client.execute("1 / 0")
        assert failed["status"] == "error"
        assert failed["outputs"][-1]["ename"] == "ZeroDivisionError"
        client.restart()
        assert client.execute("'x' in globals()")["outputs"][0]["data"]["text/plain"] == "False"
        kernel = client.id
        assert guarded.http.get(f"/api/kernels/{kernel}").status_code == 200
    assert guarded.http.get(f"/api/kernels/{kernel}").status_code == 404


def test_jupyter_kernel_client_joins_a_kernel_with_a_name(guarded: Service) -> None:
    from jupyter_kernel_client import JupyterKernelClient

    guarded.execute("shared", "x = 5")
    model = guarded.http.get("/api/kernels/shared").json()
    with JupyterKernelClient(server_url=guarded.url, token=TOKEN, kernel_id=model["id"]) as client:
        assert client.execute("x += 1; x")["outputs"][0]["data"]["text/plain"] == "6"
        assert guarded.execute("shared", "x")["return_value"] == "6"
        # A connection that we close is one that it does see.
        guarded.http.delete("/api/kernels/shared")


# -- AutoGen ---------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what AutoGen imports, not of ours
def test_autogen_executes_code_blocks(guarded: Service, tmp_path: Path) -> None:
    from autogen_core import CancellationToken
    from autogen_core.code_executor import CodeBlock
    from autogen_ext.code_executors.docker_jupyter import DockerJupyterCodeExecutor
    from autogen_ext.code_executors.docker_jupyter._jupyter_server import JupyterConnectionInfo

    address = JupyterConnectionInfo("127.0.0.1", use_https=False, port=guarded.port, token=TOKEN)

    async def work() -> None:
        async def run(*codes: str) -> Any:
            blocks = [CodeBlock(code=code, language="python") for code in codes]
            return await executor.execute_code_blocks(blocks, CancellationToken())

        async with DockerJupyterCodeExecutor(address, output_dir=tmp_path, timeout=60) as executor:
            done = await run("x = 41", "print('out')\nx + 1")
            assert (done.exit_code, done.output.split()) == (0, ["out", "42"])
            done = await run(PLOT)
            (picture,) = done.output_files
            assert picture.read_bytes().startswith(PNG)
            done = await run("1 / 0")
            assert done.exit_code == 1
            assert "ZeroDivisionError" in done.output
            await executor.restart()
            done = await run("print('x' in globals())")
            assert done.output.strip() == "False"

    asyncio.run(work())


# -- Jupyter Server behind which we are the gateway ------------------------------------------------


@dataclass
class JupyterServer:
    """A Jupyter Server, or JupyterLab, whose kernels are ours."""

    url: str
    http: httpx.Client
    root: Path


@contextmanager
def jupyter_server(service: Service, folder: Path, *, program: str) -> Iterator[JupyterServer]:
    root = folder / "notebooks"
    root.mkdir()
    environ = {
        **{name: value for name, value in os.environ.items() if "JUPYTER" not in name},
        "HOME": str(folder),
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
        "JUPYTER_CONFIG_DIR": str(folder / "config"),
        "JUPYTER_DATA_DIR": str(folder / "data"),
        "JUPYTER_PLATFORM_DIRS": "1",
    }
    with (
        open(folder / "log", "wb") as log,
        subprocess.Popen(
            [
                *(sys.executable, "-m", program, "--no-browser", "--allow-root", "--port=0"),
                f"--gateway-url={service.url}",
                f"--GatewayClient.auth_token={TOKEN}",
                f"--IdentityProvider.token={TOKEN}",
                f"--ServerApp.root_dir={root}",
            ],
            env=environ,
            cwd=folder,
            stdout=log,
            stderr=log,
        ) as process,
    ):
        try:
            pattern = f"jpserver-{process.pid}.json"

            def announced() -> bool:
                assert process.poll() is None, (folder / "log").read_text()
                return bool(list((folder / "runtime").glob(pattern)))

            wait_until(announced, what=f"{program} to start", seconds=60)
            url = json.loads((folder / "runtime" / pattern).read_text())["url"].rstrip("/")
            headers = {"authorization": f"token {TOKEN}"}
            with httpx.Client(base_url=url, headers=headers, timeout=60) as http:
                wait_until(lambda: _answers(http), what=f"{program} to answer", seconds=60)
                yield JupyterServer(url, http, root)
        finally:
            process.terminate()


def _answers(http: httpx.Client) -> bool:
    try:
        return http.get("/api/status").status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.slow
def test_jupyter_server_has_its_kernels_from_us(guarded: Service, tmp_path: Path) -> None:
    with jupyter_server(guarded, tmp_path, program="jupyter_server") as server:
        assert "python3" in server.http.get("/api/kernelspecs").json()["kernelspecs"]
        made = server.http.post(
            "/api/sessions",
            json={"path": "a.ipynb", "type": "notebook", "kernel": {"name": "python3"}},
        )
        assert made.status_code == 201, made.text
        kernel = made.json()["kernel"]["id"]
        assert guarded.http.get(f"/api/kernels/{kernel}").status_code == 200
        auth = {"authorization": f"token {TOKEN}"}
        with talking(server, kernel, headers=auth) as talk:  # type: ignore[arg-type]
            talk.ask("kernel_info_request")
            answers = talk.run("import os; print(os.getcwd()); 6 * 7")
            assert text_of(answers) == f"{server.root}\n"
            assert content_of(answers, "execute_result")["data"]["text/plain"] == "42"
            msg_id = talk.execute("print('begun', flush=True)\nimport time\ntime.sleep(600)")
            talk.wait_for_text("begun\n")
            assert server.http.post(f"/api/kernels/{kernel}/interrupt").status_code == 204
            reply = content_of(talk.answers_to(msg_id), "execute_reply")
            assert reply["ename"] == "KeyboardInterrupt"
            assert server.http.post(f"/api/kernels/{kernel}/restart").status_code == 200
        guarded.execute("with-a-name", "y = 8")
        shared = server.http.post("/api/kernels", json={"name": "kernelbox.with-a-name"}).json()
        with talking(server, shared["id"], headers=auth) as talk:  # type: ignore[arg-type]
            talk.ask("kernel_info_request")
            assert talk.printed("print(y)") == "8\n"
        assert server.http.delete(f"/api/kernels/{kernel}").status_code == 204
        assert guarded.http.get(f"/api/kernels/{kernel}").status_code == 404


@pytest.mark.slow
def test_nbclient_runs_a_notebook_on_our_kernels(service: Service, tmp_path: Path) -> None:
    import nbformat
    from nbformat.v4 import new_code_cell, new_notebook

    path = tmp_path / "a.ipynb"
    cells = [
        new_code_cell("x = 20"),
        new_code_cell("print('out')\nx * 2 + 2"),
        new_code_cell("from IPython.display import HTML\nHTML('<b>bold</b>')"),
        new_code_cell("raise ValueError('meant')", metadata={"tags": ["raises-exception"]}),
    ]
    nbformat.write(new_notebook(cells=cells), path)
    before = {kernel["id"] for kernel in service.http.get("/api/kernels").json()}
    ran = subprocess.run(
        [sys.executable, str(RUN_NOTEBOOK), service.url, str(path)],
        env={**os.environ, "HOME": str(tmp_path), "JUPYTER_PLATFORM_DIRS": "1"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert ran.returncode == 0, ran.stderr
    found = [cell.outputs for cell in nbformat.read(path, as_version=4).cells]
    assert found[0] == []
    assert (found[1][0].text, found[1][1].data["text/plain"]) == ("out\n", "42")
    assert found[2][0].data["text/html"] == "<b>bold</b>"
    assert found[3][0].ename == "ValueError"
    assert {kernel["id"] for kernel in service.http.get("/api/kernels").json()} == before


# -- JupyterLab in a browser -----------------------------------------------------------------------


def _made(response: httpx.Response) -> None:
    assert response.is_success, response.text


@pytest.mark.slow
def test_jupyterlab_shows_a_plot_and_goes_on_through_fifty_rewinds(
    guarded: Service, tmp_path: Path
) -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed: apt-get install chromium")
    from nbformat.v4 import new_code_cell, new_notebook, writes
    from playwright.sync_api import expect, sync_playwright

    cells = [PLOT, "marker = 6 * 7\nmarker", "print('turn', globals().get('turn', 'none'))"]
    spec = {"name": "python3", "display_name": "Python 3 (KernelBox)", "language": "python"}
    notebook = writes(
        new_notebook(cells=list(map(new_code_cell, cells)), metadata={"kernelspec": spec})
    )
    with jupyter_server(guarded, tmp_path, program="jupyterlab") as lab, sync_playwright() as play:
        (lab.root / "plot.ipynb").write_text(notebook)
        browser = play.chromium.launch(
            executable_path=chromium,
            args=["--no-sandbox", "--disable-background-networking", "--disable-gpu"],
        )
        try:
            page = browser.new_page()
            page.set_default_timeout(60_000)
            page.goto(f"{lab.url}/lab/tree/plot.ipynb?reset&token={TOKEN}")
            panel = page.locator(".jp-NotebookPanel")
            # Not before the kernel is there: it would ask which one to take.
            ready = page.get_by_role("button", name="Python 3 (KernelBox) | Idle")
            expect(ready).to_be_visible(timeout=60_000)
            page.get_by_role("menuitem", name="Run", exact=True).click()
            page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
            picture = panel.locator(".jp-OutputArea-output img").first
            expect(picture).to_be_visible(timeout=60_000)
            source = picture.get_attribute("src") or ""
            kind, _, data = source.partition(";base64,")
            assert kind == "data:image/png"
            assert base64.b64decode(data).startswith(PNG)
            assert picture.evaluate("image => image.naturalWidth") > 100
            result = panel.locator(".jp-OutputArea-executeResult .jp-OutputArea-output")
            expect(result).to_contain_text("42")
            # The same kernel, by the name that our own doors know it by.
            (kernel,) = lab.http.get("/api/kernels").json()
            name = guarded.http.get(f"/api/kernels/{kernel['id']}").json()["kernelbox_name"]
            assert guarded.execute(name, "marker")["return_value"] == "42"
            # It is rewound behind the browser's back, again and again, and every cell is answered.
            _made(guarded.http.post(f"/kernels/{name}/checkpoint", json={"label": "here"}))
            printed = panel.locator(".jp-Cell").nth(2).locator(".jp-OutputArea-output")
            for turn in range(5):
                for _ in range(10):
                    _made(guarded.http.post(f"/kernels/{name}/rewind", json={"checkpoint": "here"}))
                guarded.execute(name, f"turn = {turn}")
                page.get_by_role("menuitem", name="Run", exact=True).click()
                page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
                expect(printed).to_have_text(f"turn {turn}", timeout=30_000)
        finally:
            browser.close()
