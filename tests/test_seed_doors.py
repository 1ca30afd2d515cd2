"""Every shell example of seed 001, as printed, and the examples of seed 002 over HTTP."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHECKOUT = Path(__file__).parents[1]
Shell = Callable[[str], subprocess.CompletedProcess[str]]


def user_environ(environment: Path) -> dict[str, str]:
    bin_folder = os.path.dirname(sys.executable)
    return {
        "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(environment.parent),
        "KERNELBOX_HOME": str(environment),
        "KERNELBOX_KEEPER_LINGER": "0.1",
    }


@pytest.fixture
def shell(environment: Path) -> Shell:
    """Runs a line as a user would type it."""

    def run(line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", line],
            env=user_environ(environment),
            cwd=environment.parent,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=100,
        )

    return run


def told(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.count("\n") == 1
    return json.loads(done.stdout)


def test_the_quick_command_line_test(shell: Shell) -> None:
    done = shell("""kernelbox exec --name test "print('KernelBox is working!')" """)
    shown = '{"status": "success", "output": "KernelBox is working!\\n", "return_value": null'
    assert done.stdout.startswith(shown)
    assert told(done)["status"] == "success"


def test_the_reference_of_the_command_line(shell: Shell) -> None:
    record = told(shell("kernelbox create --name my-kernel"))
    assert record["name"] == "my-kernel"
    for line in ("kernelbox list", "kernelbox list --refresh"):
        (listed,) = told(shell(line))["kernels"]
        assert listed["kernel_id"] == record["kernel_id"]
    status = told(shell("kernelbox status --name my-kernel"))
    assert (status["alive"], status["kernel"]["name"]) == (True, "my-kernel")
    assert told(shell('kernelbox exec --name my-kernel "print(1 + 1)"'))["output"] == "2\n"
    assert told(shell('kernelbox exec --name my-kernel --bash "echo hello"'))["output"] == "hello\n"
    assert told(shell('kernelbox exec --name my-kernel "def some_long_call(): return 7"'))
    long = told(shell('kernelbox exec --name my-kernel --timeout 30 "some_long_call()"'))
    assert long["return_value"] == "7"
    restarted = told(shell("kernelbox restart --name my-kernel"))
    assert restarted["kernel_id"] == record["kernel_id"]
    gone = shell('kernelbox exec --name my-kernel "some_long_call()"')
    assert gone.returncode == 1
    assert json.loads(gone.stdout)["error"]["ename"] == "NameError"
    assert told(shell("kernelbox destroy --name my-kernel")) == {"destroyed": True}
    other = told(shell("kernelbox create --name other"))
    assert told(shell("kernelbox wipe")) == {"destroyed": [other["kernel_id"]]}


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed")
def test_piping_into_jq(shell: Shell) -> None:
    done = shell('kernelbox exec --name demo "2 ** 10" | jq .return_value')
    assert done.stdout == '"1024"\n'


# -- the service --------------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def service(line: str, environment: Path) -> Iterator[str]:
    """The service as a shell line of the seed starts it, on a free port; its address."""
    port = free_port()
    log = environment.parent / "service.log"
    with open(log, "w") as output:
        process = subprocess.Popen(
            ["bash", "-c", f"exec {line.replace('8080', str(port))}"],
            env=user_environ(environment),
            cwd=CHECKOUT,
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    base = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                ask(f"{base}/health")
                break
            except OSError:
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.05)
        yield base
        ask(f"{base}/kernels", method="DELETE")
    finally:
        # A reloader is a family of its own.
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(30)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def ask(url: str, body: dict[str, Any] | None = None, *, method: str | None = None) -> Any:
    request = urllib.request.Request(
        url,
        method=method or ("GET" if body is None else "POST"),
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        raw = answer.read()
        return json.loads(raw) if "json" in answer.headers["Content-Type"] else raw.decode()


@pytest.mark.parametrize(
    "line",
    [
        "uvicorn kernelbox.server.app:app --port 8080 --reload",
        "fastapi dev --port 8080",
        "fastapi run --host 127.0.0.1 --port 8080",
        "kernelbox serve --port 8080",
    ],
)
def test_every_way_to_start_the_service(environment: Path, line: str) -> None:
    with service(line, environment) as base:
        assert ask(f"{base}/health")["status"] == "ok"
        assert "swagger" in ask(f"{base}/docs").lower()
        assert "redoc" in ask(f"{base}/redoc").lower()
        assert "/kernels" in ask(f"{base}/openapi.json")["paths"]
        record = ask(f"{base}/kernels", {"name": "k"})
        result = ask(f"{base}/kernels/{record['kernel_id']}/execute", {"code": "6 * 7"})
        assert result["return_value"] == "42"


def test_the_examples_of_seed_002_over_http(environment: Path, tmp_path: Path) -> None:
    """In the order of the page, in one service; each kernel by its name, as the page has it."""
    (tmp_path / "data.csv").write_text("a,b\n1,2\n3,\n5,6\n")
    with service("kernelbox serve --port 8080", environment) as base:
        made = ask(f"{base}/kernels", {"name": "demo"})
        execute = f"{base}/kernels/{made['name']}/execute"
        # reading all fields
        result = ask(execute, {"code": "print('hello')\n2 + 2"})
        assert (result["status"], result["output"]) == ("success", "hello\n")
        assert (result["return_value"], result["truncated"]) == ("4", False)
        assert result["duration_ms"] >= 0
        assert ask(f"{base}/kernels/{made['kernel_id']}")["alive"] is True
        # handling an error
        error = ask(execute, {"code": "1 / 0"})["error"]
        assert (error["ename"], error["evalue"]) == ("ZeroDivisionError", "division by zero")
        # bash execution
        bash = ask(execute, {"code": "echo $((40 + 2))", "language": "bash"})
        assert bash["output"] == "42\n"
        # self-correcting execution: over HTTP the repairs are sent along
        retry = {"code": "y + 1", "replacement_codes": ["y = 41\ny + 1"]}
        mended = ask(f"{execute}/retry", retry)
        assert (mended["status"], mended["return_value"]) == ("success", "42")
        assert len(mended["attempts"]) == 2
        ask(f"{base}/sessions/agent", {"tags": {}})
        retry = {"code": "z + 1", "on_error_code": "z = 41\nz + 1", "max_attempts": 3}
        mended = ask(f"{base}/sessions/agent/execute_with_retry", retry)
        assert (mended["status"], mended["return_value"]) == ("success", "42")
        # stateful sessions in practice
        pipeline = f"{base}/sessions/pipeline/execute"
        for code in (
            f"import os, pandas as pd; os.chdir({str(tmp_path)!r})",
            "df = pd.read_csv('data.csv')",
            "df = df.dropna()",
        ):
            assert ask(pipeline, {"code": code})["status"] == "success"
        assert ask(pipeline, {"code": "df.shape"})["return_value"] == "(2, 2)"
        assert ask(pipeline, {"code": "df.to_parquet('clean.parquet')"})["status"] == "success"
        # clean up
        assert ask(f"{base}/kernels/demo", method="DELETE") == {"destroyed": True}
        with pytest.raises(urllib.error.HTTPError) as caught:
            ask(f"{base}/kernels/demo")
        assert caught.value.code == 404
        caught.value.close()
