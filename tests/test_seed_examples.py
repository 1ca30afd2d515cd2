"""Every Python example of seeds 001 and 002, run as printed, each in a fresh home."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Play = Callable[[str], list[str]]


@pytest.fixture
def play(environment: Path, tmp_path: Path) -> Play:
    """Run a program as a user would: a new folder, a new home, nothing else set or running."""

    def run(program: str) -> list[str]:
        ended = subprocess.run(
            [sys.executable, "-c", program],
            cwd=tmp_path,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(tmp_path),
                "KERNELBOX_HOME": str(environment),
                "KERNELBOX_KEEPER_LINGER": "0.1",
            },
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert ended.returncode == 0, ended.stderr
        assert ended.stderr == ""
        return ended.stdout.splitlines()

    return run


def test_seed_001_thirty_second_demo(play: Play) -> None:
    program = """
from kernelbox import get_or_create, execute, destroy

# Agentic AI: give your agent a named, persistent execution kernel
kernel = get_or_create("agent-sandbox")

# Step 1 — agent sends first code block
result = execute(kernel, "x = [1, 2, 3]\\nsum(x)")
print(result.status) # success
print(result.return_value) # 6

# Step 2 — kernel remembers x. No context re-serialisation needed.
result = execute(kernel, "x.append(4)\\nsum(x)")
print(result.return_value) # 10

destroy("agent-sandbox")
"""
    assert play(program) == ["success", "6", "10"]


def test_seed_001_four_functions(play: Play) -> None:
    program = """
from kernelbox import get_or_create, execute, execute_with_retry, destroy

kernel = get_or_create("data-pipeline")

result = execute(kernel, "import pandas as pd\\ndf = pd.DataFrame({'a': [1,2,3]})")

result.status # "success" | "error" | "timeout"
result.output # stdout as string
result.stderr # stderr as string
result.return_value # last expression value as string
result.duration_ms # wall-clock time in milliseconds
result.truncated # True if output was cut at KERNELBOX_OUTPUT_CHAR_LIMIT

print(repr((result.status, result.output, result.stderr, result.return_value, result.truncated)))
print(type(result.duration_ms).__name__, result.duration_ms > 0)

result = execute(kernel, "echo $HOME", language="bash")

import os
print(result.output == os.environ["HOME"] + "\\n")

destroy("data-pipeline")
"""
    assert play(program) == ["('success', '', '', None, False)", "int True", "True"]


def test_seed_001_retry(play: Play) -> None:
    program = """
from kernelbox import execute_with_retry, get_or_create

kernel = get_or_create("agent")

def fix_code(result, attempt):
    # result.error has: .ename, .evalue, .traceback
    # Return new code to retry, or None to retry the same code
    return f"# attempt {attempt}\\nx = 41\\nx + 1"

result = execute_with_retry(kernel, "x + 1", on_error_fn=fix_code)

result.status # "success"
result.return_value # "42"
len(result.attempts) # number of attempts made

print(repr(result.status), repr(result.return_value), len(result.attempts))
print(repr(result.attempts[1].code))
"""
    assert play(program) == ["'success' '42' 2", r"'# attempt 1\nx = 41\nx + 1'"]


START = """
from kernelbox import destroy, execute, get_or_create
kernel = get_or_create("demo")
"""


def test_seed_002_a_kernel_id_is_a_kernel(play: Play) -> None:
    program = (
        START
        + """
print(execute(kernel.kernel_id, "6 * 7").return_value)
print(get_or_create("demo").kernel_id == kernel.kernel_id)
print(destroy("demo"), destroy("demo"))
"""
    )
    assert play(program) == ["42", "True", "True False"]


def test_seed_002_reading_all_fields(play: Play) -> None:
    program = (
        START
        + """
result = execute(kernel, "print('hello')\\n2 + 2")

print(result.status) # success
print(result.ok) # True
print(result.output) # hello
print(result.return_value) # 4
print(result.duration_ms) # e.g. 12
print(result.truncated) # False
"""
    )
    status, ok, output, _, value, duration, truncated = play(program)
    assert [status, ok, output, value, truncated] == ["success", "True", "hello", "4", "False"]
    assert 0 <= int(duration) < 5000


def test_seed_002_handling_an_error(play: Play) -> None:
    program = (
        START
        + """
result = execute(kernel, "1 / 0")
if not result.ok:
    print(result.error.ename) # ZeroDivisionError
    print(result.error.evalue) # division by zero
"""
    )
    assert play(program) == ["ZeroDivisionError", "division by zero"]


def test_seed_002_bash_execution(play: Play) -> None:
    program = (
        START
        + """
result = execute(kernel, "echo hello from bash", language="bash")
print(result.output)
"""
    )
    assert play(program) == ["hello from bash", ""]


def test_seed_002_retry(play: Play) -> None:
    program = """
from kernelbox import execute_with_retry, get_or_create

kernel = get_or_create("agent")

def fix(result, attempt):
    print(f"Attempt {attempt} failed: {result.error.evalue}")
    # Ask your LLM for a fix, or hardcode one:
    return "x = 41\\nx + 1"

result = execute_with_retry(kernel, "x + 1", on_error_fn=fix)
print(result.status) # success
print(result.return_value) # 42
print(len(result.attempts)) # 2 — the failed attempt and the fixed one
"""
    assert play(program) == ["Attempt 1 failed: name 'x' is not defined", "success", "42", "2"]


def test_seed_002_the_signature_of_retry(play: Play) -> None:
    program = (
        START
        + """
from kernelbox import execute_with_retry
code = "'spelled out'"
on_error_fn = lambda result, attempt: None

result = execute_with_retry(
    kernel,
    code,
    on_error_fn,
    max_attempts=None, # defaults to KERNELBOX_MAX_RETRIES (5)
    language="python",
    timeout=None,
)
print(result.return_value)
"""
    )
    assert play(program) == ["'spelled out'"]


def test_seed_002_stateful_sessions_in_practice(play: Play, tmp_path: Path) -> None:
    columns = ",".join(f"c{n}" for n in range(12))
    whole = ",".join("1" for _ in range(12))
    holey = "," + ",".join("1" for _ in range(11))
    rows = [columns, *[whole] * 1000, *[holey] * 77, *[whole] * 823]
    (tmp_path / "data.csv").write_text("\n".join(rows) + "\n")
    program = """
from kernelbox import destroy, execute, get_or_create

kernel = get_or_create("pipeline")

execute(kernel, "import pandas as pd")
execute(kernel, "df = pd.read_csv('data.csv')")
execute(kernel, "df = df.dropna()")

result = execute(kernel, "df.shape")
print(result.return_value) # (1823, 12)

execute(kernel, "df.to_parquet('clean.parquet')")
destroy("pipeline")
"""
    assert play(program) == ["(1823, 12)"]
    import pandas

    assert pandas.read_parquet(tmp_path / "clean.parquet").shape == (1823, 12)
