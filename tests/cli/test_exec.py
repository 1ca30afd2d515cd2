"""``kernelbox exec``: what it takes, what it prints, how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from processes import wait_until

from kernelbox import Box, ExecutionResult


def test_a_result_is_one_json_line_that_begins_with_what_matters(shell: Any, name: str) -> None:
    done = shell("exec", "--name", name, "print('hi')\n6 * 7")
    assert (done.code, done.stderr) == (0, b"")
    assert list(done.json)[:3] == ["status", "output", "return_value"]
    assert (done.json["status"], done.json["output"], done.json["return_value"]) == (
        "success",
        "hi\n",
        "42",
    )
    assert set(done.json) == set(ExecutionResult("success").to_dict())


def test_variables_stay_between_calls(shell: Any, name: str) -> None:
    assert shell("exec", "--name", name, "x = [1, 2, 3]").code == 0
    assert shell("exec", "--name", name, "sum(x)").json["return_value"] == "6"


def test_code_that_fails_exits_1_and_says_why(shell: Any, name: str) -> None:
    done = shell("exec", "--name", name, "1 / 0")
    assert done.code == 1
    assert done.json["error"]["ename"] == "ZeroDivisionError"
    assert done.stderr == b""


def test_code_that_takes_too_long_exits_1(shell: Any, name: str) -> None:
    done = shell("exec", "--name", name, "--timeout", "0.2", "import time; time.sleep(60)")
    assert (done.code, done.json["status"]) == (1, "timeout")


def test_code_that_kills_its_kernel_is_a_result(shell: Any, name: str) -> None:
    done = shell("exec", "--name", name, "import os; os._exit(3)")
    assert (done.code, done.json["status"], done.json["state"]) == (1, "error", "lost")


def test_bash_keeps_its_session(shell: Any, name: str) -> None:
    assert shell("exec", "--name", name, "--bash", "word=hello").code == 0
    done = shell("exec", "--name", name, "--bash", "echo $word; exit 3")
    assert (done.json["output"], done.json["exit_code"], done.code) == ("hello\n", 3, 1)


@pytest.mark.parametrize("words", [(), ("-",), ("-f", "-")], ids=["none", "dash", "file-dash"])
def test_code_comes_from_standard_input(shell: Any, name: str, words: tuple[str, ...]) -> None:
    done = shell("exec", "--name", name, *words, stdin="'gr\u00fcn' * 2".encode())
    assert done.json["return_value"] == "'gr\u00fcngr\u00fcn'"


def test_code_comes_from_a_file(shell: Any, name: str, tmp_path: Path) -> None:
    path = tmp_path / "code.py"
    path.write_bytes("# -*- coding: latin-1 -*-\n'gr\u00fcn'".encode("latin-1"))
    assert shell("exec", "--name", name, "-f", str(path)).json["return_value"] == "'gr\u00fcn'"


def test_code_that_begins_with_a_dash_is_code_after_two_dashes(shell: Any, name: str) -> None:
    assert shell("exec", "--name", name, "-1").json["return_value"] == "-1"
    assert shell("exec", "--name", name, "--atomic", "--", "-int('7')").json["return_value"] == "-7"


def test_what_is_no_unicode_arrives_all_the_same(shell: Any, name: str) -> None:
    code = "print(chr(0x1F600)); print('\\udc80', '\\u2028'); '\\ud800'"
    done = shell("exec", "--name", name, "--atomic", code, LC_ALL="C", PYTHONUTF8="0")
    assert done.code == 0
    assert "\U0001f600" in done.stdout.decode()
    assert done.json["output"].startswith("\U0001f600\n")


def test_a_file_that_is_no_text_is_refused(shell: Any, name: str, tmp_path: Path) -> None:
    path = tmp_path / "code.py"
    path.write_bytes(b"\xff\xfe\x00")
    done = shell("exec", "--name", name, "-f", str(path))
    assert (done.code, done.error["error"]) == (6, "BadInput")
    assert str(path) in done.error["message"]


def test_a_file_that_is_not_there_is_not_found(shell: Any, name: str) -> None:
    done = shell("exec", "--name", name, "-f", "nowhere.py")
    assert (done.code, done.error["error"]) == (3, "FileNotFoundError")
    assert shell("status", "--name", name).json["alive"] is False, "a kernel was made for nothing"


def test_an_id_means_that_kernel(shell: Any, name: str) -> None:
    record = shell("create", "--name", name).json
    done = shell("exec", "--id", record["kernel_id"], "1")
    assert done.json["kernel_id"] == record["kernel_id"]


def test_an_unknown_id_is_not_made(shell: Any) -> None:
    done = shell("exec", "--id", "nobody", "1")
    assert (done.code, done.stdout, done.error["error"]) == (3, b"", "KernelNotFound")


def test_another_epoch_runs_nothing(shell: Any, name: str) -> None:
    shell("exec", "--name", name, "x = 1")
    done = shell("exec", "--name", name, "--expect-epoch", "7", "x = 2")
    assert (done.code, done.error["error"], done.stdout) == (5, "EpochMismatch", b"")
    assert "--expect-epoch 1" in done.error["hint"]
    assert done.error["details"]["epoch"] == 1
    assert shell("exec", "--name", name, "--expect-epoch", "1", "x").json["return_value"] == "1"


def test_an_atomic_cell_that_fails_changes_nothing(shell: Any, name: str) -> None:
    shell("exec", "--name", name, "x = 1")
    done = shell("exec", "--name", name, "--atomic", "x = 2; 1 / 0")
    assert (done.code, done.json["state"]) == (1, "rewound")
    assert shell("exec", "--name", name, "x").json["return_value"] == "1"


def test_the_same_key_runs_once(shell: Any, name: str) -> None:
    shell("exec", "--name", name, "n = 0")
    words = ("exec", "--name", name, "--idempotency-key", "a", "n += 1; n")
    assert [shell(*words).json["return_value"] for _ in range(2)] == ["1", "1"]
    done = shell("exec", "--name", name, "--idempotency-key", "a", "n += 2; n")
    assert (done.code, done.error["error"]) == (6, "KeyReused")


def test_a_stream_is_a_json_object_per_line_and_the_result_last(shell: Any, name: str) -> None:
    code = "import sys; print('out'); print('err', file=sys.stderr); 5"
    done = shell("exec", "--name", name, "--stream", "--execution-id", "mine", code)
    *items, result = done.lines
    assert [(item["kind"], item["name"], item["text"]) for item in items] == [
        ("stream", "stdout", "out\n"),
        ("stream", "stderr", "err\n"),
        ("execute_result", None, "5"),
    ]
    assert (result["status"], result["return_value"], result["execution_id"]) == (
        "success",
        "5",
        "mine",
    )


def test_a_stream_comes_as_it_happens(shell: Any, name: str, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    code = f"""
import os, time
print('first', flush=True)
while not os.path.exists({str(gate)!r}): time.sleep(0.01)
print('second')
"""
    with shell.started("exec", "--name", name, "--stream", code) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["text"] == "first\n"
        gate.touch()
        assert json.loads(process.stdout.readline())["text"] == "second\n"
        assert process.wait() == 0


def test_for_people_the_streams_stay_apart(shell: Any, name: str) -> None:
    code = "import sys; print('out'); print('err', file=sys.stderr); {'a': 1}"
    assert b"is new" in shell("exec", "--name", name, "--human", "1").stderr
    for words in (("--human",), ("--human", "--stream")):
        done = shell("exec", "--name", name, *words, code)
        assert (done.stdout, done.stderr) == (b"out\n{'a': 1}\n", b"err\n")


def test_for_people_an_error_is_a_traceback(shell: Any, name: str) -> None:
    for words in (("--human",), ("--human", "--stream")):
        done = shell("exec", "--name", name, *words, "1 / 0")
        assert (done.code, done.stdout) == (1, b"")
        assert b"ZeroDivisionError: division by zero" in done.stderr
        assert b"\x1b" not in done.stderr, "no colours on a pipe"


def test_for_people_a_timeout_is_told(shell: Any, name: str) -> None:
    code = "import time; time.sleep(60)"
    done = shell("exec", "--name", name, "--human", "--timeout", "0.2", code)
    assert done.code == 1
    assert b"TimeoutError: timed out after 0.2 s" in done.stderr


def test_for_people_a_picture_is_saved_where_it_cannot_be_shown(shell: Any, name: str) -> None:
    code = """
import base64
from IPython.display import Image, display
display(Image(base64.b64decode(
    'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII=')))
"""
    done = shell("exec", "--name", name, "--human", code)
    said = done.stdout.decode()
    assert said.startswith("[image/png 1\u00d71, saved as ")
    saved = Path(said.strip().removesuffix("]").rpartition("saved as ")[2])
    assert saved.read_bytes().startswith(b"\x89PNG")
    assert saved.stat().st_mode & 0o077 == 0


# -- signals and pipes --------------------------------------------------------------------------

STUCK = "import time\nx = 'kept'\nprint('begun', flush=True)\nwhile True: time.sleep(0.01)"
DEAF = """
import time
print('begun', flush=True)
while True:
    try: time.sleep(0.01)
    except KeyboardInterrupt: print('deaf', flush=True)
"""
WAYS = {"plain": (), "long": ("--execution-id", "mine"), "stream": ("--stream",)}


def printed(kernels: Box, name: str, word: str) -> bool:
    """Whether what runs there has printed a word."""
    try:
        running = kernels.status(name)["running"]
        return running is not None and word in kernels.output(name, running["execution_id"]).text
    except LookupError:
        return False


@pytest.mark.parametrize(
    ("way", "number", "code"),
    [
        ("plain", signal.SIGINT, 130),
        ("long", signal.SIGINT, 130),
        ("stream", signal.SIGINT, 130),
        ("long", signal.SIGTERM, 143),
        ("stream", signal.SIGHUP, 129),
    ],
)
def test_a_signal_interrupts_the_cell_and_its_result_is_printed(
    shell: Any, kernels: Box, name: str, way: str, number: int, code: int
) -> None:
    with shell.started("exec", "--name", name, *WAYS[way], STUCK) as process:
        wait_until(lambda: printed(kernels, name, "begun"), what="the cell to begin")
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (code, b"")
    result = json.loads(stdout.splitlines()[-1])
    assert result["error"]["ename"] == "KeyboardInterrupt"
    assert kernels.execute(name, "x").return_value == "'kept'"


@pytest.mark.parametrize("way", WAYS)
def test_a_second_signal_leaves_at_once(shell: Any, kernels: Box, name: str, way: str) -> None:
    with shell.started("exec", "--name", name, *WAYS[way], DEAF) as process:
        wait_until(lambda: printed(kernels, name, "begun"), what="the cell to begin")
        process.send_signal(signal.SIGINT)
        wait_until(lambda: printed(kernels, name, "deaf"), what="the interrupt to arrive")
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in stderr
    kernels.destroy(name)


def test_a_cell_that_waits_is_taken_out_of_the_queue(shell: Any, kernels: Box, name: str) -> None:
    with shell.started("exec", "--name", name, STUCK) as first:
        wait_until(lambda: printed(kernels, name, "begun"), what="the first cell to begin")
        with shell.started("exec", "--name", name, "--stream", "x = 'ran'") as second:
            wait_until(lambda: kernels.status(name)["queued"] == 1, what="the second cell to wait")
            second.send_signal(signal.SIGINT)
            stdout, _ = second.communicate(timeout=60)
        assert second.returncode == 130
        assert json.loads(stdout)["error"]["ename"] == "Cancelled"
        assert kernels.status(name)["running"] is not None, "the first cell was not meant"
        first.send_signal(signal.SIGINT)
        first.communicate(timeout=60)
    assert kernels.execute(name, "x").return_value == "'kept'"


def test_a_background_job_that_ignores_ctrl_c_goes_on(shell: Any, kernels: Box, name: str) -> None:
    gate = shell.folder / "gate-of-the-job"
    code = (
        "import os, time; print('begun', flush=True)\n"
        f"while not os.path.exists({str(gate)!r}): time.sleep(0.01)"
    )
    with shell.started("exec", "--name", name, code, ignores=signal.SIGINT) as process:
        wait_until(lambda: printed(kernels, name, "begun"), what="the cell to begin")
        process.send_signal(signal.SIGINT)
        gate.touch()
        stdout, _ = process.communicate(timeout=60)
    assert (process.returncode, json.loads(stdout)["status"]) == (0, "success")


def test_who_closes_the_pipe_of_a_stream_ends_the_cell(shell: Any, kernels: Box, name: str) -> None:
    code = (
        "import itertools, time\nfor n in itertools.count(): print(n, flush=True); time.sleep(0.01)"
    )
    with shell.started("exec", "--name", name, "--stream", code) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 141
    wait_until(lambda: kernels.status(name)["running"] is None, what="the cell to end")


def test_a_closed_pipe_gives_no_traceback(shell: Any) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [*shell.program, "list"], stdout=writing, stderr=subprocess.PIPE, env=shell.environ
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_full_disk_is_an_error_and_no_traceback(shell: Any) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*shell.program, "list"], stdout=full, stderr=subprocess.PIPE, env=shell.environ
        )
    assert done.returncode == 10
    assert json.loads(done.stderr)["error"] == "OSError"


def test_a_client_that_is_killed_ends_its_cell(shell: Any, kernels: Box, name: str) -> None:
    with shell.started("exec", "--name", name, STUCK) as process:
        wait_until(lambda: printed(kernels, name, "begun"), what="the cell to begin")
        process.kill()
    wait_until(lambda: kernels.status(name)["running"] is None, what="the cell to end")
    assert kernels.execute(name, "x").return_value == "'kept'"
