"""The short way of ``exec``: the same in every respect as the long way, but for the time it takes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from processes import wait_until

from kernelbox import Box, ExecutionResult, KernelRecord, OutputItem, Settings
from kernelbox.cli import quick
from kernelbox.client.calls import Calls
from kernelbox.client.executing import execute_request

VARYING = ("execution_id", "duration_ms", "execution_count", "kernel_id")


def plain_environ(box: Box) -> dict[str, str]:
    """Nothing of ours but the home, which is what lets the short way be taken."""
    environ = {name: value for name, value in os.environ.items() if "KERNELBOX" not in name}
    return {**environ, "KERNELBOX_HOME": os.path.dirname(box.settings.registry_path)}


def command(box: Box, *words: str, long: bool = False, **given: Any) -> subprocess.Popen[bytes]:
    environ = plain_environ(box)
    if long:
        environ["KERNELBOX_MAX_RETRIES"] = "5"  # the default, but the short way cannot know
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **given}
    return subprocess.Popen([sys.executable, "-m", "kernelbox", *words], env=environ, **options)


def run(box: Box, *words: str, long: bool = False, text: bytes = b"") -> tuple[int, Any, bytes]:
    process = command(box, *words, long=long, stdin=subprocess.PIPE)
    out, err = process.communicate(text, timeout=60)
    return process.returncode, json.loads(out) if out else None, err


def test_it_asks_for_what_the_box_asks_for_by_default() -> None:
    request = execute_request(Calls(Settings()), "1", on_disconnect="interrupt")
    assert {
        name: value for name, value in request.items() if name not in ("code", "execution_id")
    } == quick.DEFAULTS


def test_it_prints_what_a_result_is() -> None:
    result = ExecutionResult("error").to_dict()
    assert result == {**quick.RESULT, "status": "error"}
    assert list(quick.RESULT) == list(result)
    item = OutputItem("stream")
    assert {name: getattr(item, name) for name in quick.ITEM} == {**quick.ITEM, "kind": "stream"}
    assert list(quick.ITEM) == list(OutputItem.__dataclass_fields__)


@pytest.mark.parametrize(
    "words",
    [
        ["2 ** 10"],
        ["print('a'); print('ü', '\\ud800')"],
        ["1/0"],
        ["raise KeyboardInterrupt"],
        ["display({'a': 1}); float('nan')"],
        ["print('y' * 50_000)"],
        ["--bash", "echo hello; exit 3"],
        ["--timeout", "0.3", "import time; time.sleep(30)"],
        ["--timeout=nonsense", "1"],
        ["--timeout", "0", "1"],
        ["1", "2"],
        ["--nonsense", "1"],
        [""],
        ["-"],
    ],
    ids=lambda words: re.sub(r"\W+", " ", words[-1], flags=re.A).strip()[:12] or "empty",
)
def test_both_ways_give_the_same(shared_box: Box, kernel: KernelRecord, words: list[str]) -> None:
    answers = []
    for long in (False, True):
        code, result, err = run(
            shared_box,
            "exec",
            "--name",
            kernel.name,
            *words,
            long=long,
            text=b"print('from stdin')",
        )
        for field in VARYING if result else ():
            result.pop(field)
        if result and result["error"]:
            result["error"].pop("traceback")
            for item in result["outputs"]:
                item["data"].pop("traceback", None)
        answers.append((code, list(result or ()), str(result).replace("In[", "")[:2000], err))
    short, whole = answers
    assert short[0] == whole[0]
    assert short[1] == whole[1]
    assert short[3] == whole[3]


@pytest.mark.parametrize("which", ["--name", "--id"])
def test_nothing_heavy_is_imported(shared_box: Box, kernel: KernelRecord, which: str) -> None:
    meant = kernel.name if which == "--name" else kernel.kernel_id
    program = (
        "import sys; from kernelbox.cli.entry import main\n"
        f"code = main(['exec', {which!r}, {meant!r}, '6 * 7'])\n"
        "print(code, sorted(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=plain_environ(shared_box),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert json.loads(done.stdout)["return_value"] == "42"
    assert done.stderr.startswith("0 ")
    for heavy in ("argparse", "asyncio", "dataclasses", "kernelbox.config", "threading", "typing"):
        assert f"'{heavy}'" not in done.stderr, heavy


def test_a_kernel_that_is_not_there_is_made_by_the_long_way(shared_box: Box) -> None:
    code, result, _ = run(shared_box, "exec", "--name", "made by exec", text=b"'made'")
    assert (code, result["return_value"]) == (0, "'made'")
    assert shared_box.destroy("made by exec")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_interrupts_the_cell(
    shared_box: Box, kernel: KernelRecord, tmp_path: Path, number: signal.Signals
) -> None:
    shared_box.execute(kernel, "x = 'kept'")
    code = "open('up', 'w').close()\nimport time; time.sleep(60)"
    process = command(shared_box, "exec", "--name", kernel.name, code)
    wait_until((tmp_path / "up").exists, what="the cell to run")
    process.send_signal(number)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert json.loads(out)["error"]["ename"] == "KeyboardInterrupt"
    assert shared_box.execute(kernel, "x").return_value == "'kept'"


def test_a_killed_client_leaves_no_cell_behind(
    shared_box: Box, kernel: KernelRecord, tmp_path: Path
) -> None:
    code = "open('up', 'w').close()\nimport time; time.sleep(60)"
    process = command(shared_box, "exec", "--name", kernel.name, code)
    wait_until((tmp_path / "up").exists, what="the cell to run")
    process.kill()
    process.communicate()
    wait_until(lambda: shared_box.status(kernel)["running"] is None, what="the cell to stop")


def test_a_kernel_that_dies_with_its_warden_is_told_of(
    shared_box: Box, kernel: KernelRecord, tmp_path: Path
) -> None:
    status = shared_box.status(kernel)
    warden = next(p["pid"] for p in status["processes"] if p["role"] == "warden")
    code = "open('up', 'w').close()\nimport time; time.sleep(60)"
    process = command(shared_box, "exec", "--name", kernel.name, code)
    wait_until((tmp_path / "up").exists, what="the cell to run")
    os.kill(warden, signal.SIGKILL)
    out, _ = process.communicate(timeout=30)
    result = json.loads(out)
    assert process.returncode == 1
    assert (result["state"], result["error"]["ename"]) == ("lost", "KernelDied")


def test_a_reader_that_leaves_is_no_disaster(shared_box: Box, kernel: KernelRecord) -> None:
    process = command(shared_box, "exec", "--name", kernel.name, "import time; time.sleep(0.2)")
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(30) == 141
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
