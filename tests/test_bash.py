"""Bash as people mean it, end to end: one real shell per kernel, by execute(language="bash")."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from processes import alive

from kernelbox import Box, ExecutionResult, KernelRecord, OutputItem, Settings

Waiting = Callable[..., None]
Bash = Callable[..., ExecutionResult]


@pytest.fixture(autouse=True, scope="module")
def anchor(shared_box: Box) -> None:
    """Keeps the module's keeper (and its warm root) from leaving between two tests."""
    shared_box.get_or_create("anchor")


@pytest.fixture
def bash(shared_box: Box, kernel: KernelRecord) -> Bash:
    def run(code: str, **options: object) -> ExecutionResult:
        return shared_box.execute(kernel, code, language="bash", **{"timeout": 20, **options})  # type: ignore[arg-type]

    return run


# -- one session ----------------------------------------------------------------------------


def test_cd_exports_variables_functions_and_aliases_survive(bash: Bash, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    assert bash("cd sub; export E=exported; v=plain; f() { echo f:$1; }; alias hi='echo hello'").ok
    result = bash("pwd; env | grep ^E=; echo $v; f 1; hi")
    assert result.output == f"{tmp_path}/sub\nE=exported\nplain\nf:1\nhello\n"


def test_background_jobs_survive_and_go_on(bash: Bash, waiting: Waiting, tmp_path: Path) -> None:
    pid = int(bash("(sleep 0.3; echo done > mark; sleep 300) & echo $!").output)
    assert "sleep" in bash("jobs").output
    waiting((tmp_path / "mark").exists, what="the background job to go on")
    assert alive(pid)
    assert bash("kill %1; wait; jobs").output == ""
    waiting(lambda: not alive(pid), what="the job to end")


def test_what_a_job_prints_between_calls_comes_with_the_next_result(
    bash: Bash, waiting: Waiting, tmp_path: Path
) -> None:
    assert bash("(sleep 0.1; echo late; touch mark) &").ok
    waiting((tmp_path / "mark").exists, what="the job to print")
    result = bash("echo mine")
    assert "".join(item.text or "" for item in result.outputs) == "late\nmine\n"


def test_each_kernel_has_a_shell_of_its_own(shared_box: Box, bash: Bash) -> None:
    bash("mine=1; cd /")
    other = shared_box.get_or_create("another shell")
    try:
        result = shared_box.execute(other, 'echo "[$mine]"; pwd', language="bash")
        assert result.output == f"[]\n{os.getcwd()}\n"
    finally:
        shared_box.destroy(other)


def test_it_is_the_same_process_each_time_and_a_real_bash(bash: Bash) -> None:
    first, second = bash("echo $$").output, bash("echo $$").output
    assert first == second
    assert psutil.Process(int(first)).name() == "bash"
    result = bash('[[ abc =~ b ]] && a=(1 2 3) && echo "${a[@]:1}" <(:) >/dev/null && echo ok')
    assert result.output == "ok\n"


def test_the_shell_starts_where_python_is(
    shared_box: Box, kernel: KernelRecord, bash: Bash, tmp_path: Path
) -> None:
    (tmp_path / "there").mkdir()
    shared_box.execute(kernel, "import os; os.chdir('there')")
    assert bash("pwd").output == f"{tmp_path}/there\n"


def test_the_callers_environment_reaches_the_shell(
    shared_box: Box, tmp_path: Path, waiting: Waiting
) -> None:
    environ = {**os.environ, "OF_THE_CALLER": "a b\nc"}
    record = shared_box.get_or_create("with environ", environ=environ, cwd=str(tmp_path))
    try:
        result = shared_box.execute(record, 'echo "$OF_THE_CALLER"; pwd', language="bash")
        assert result.output == f"a b\nc\n{tmp_path}\n"
    finally:
        shared_box.destroy(record)


# -- input and output -----------------------------------------------------------------------


def test_cat_cannot_eat_the_next_command(bash: Bash) -> None:
    result = bash("cat; echo after; read x; echo $?\nhead -c1; echo end")
    assert result.output == "after\n1\nend\n"
    assert bash("echo next").output == "next\n"
    assert bash("readlink /proc/self/fd/0").output == "/dev/null\n"


def test_output_streams(shared_box: Box, kernel: KernelRecord, tmp_path: Path) -> None:
    code = "echo one; until [ -e go ]; do sleep 0.01; done; echo two >&2"
    seen: list[str] = []
    for item in shared_box.stream(kernel, code, language="bash", timeout=20):
        if isinstance(item, OutputItem):
            seen.append(f"{item.name}:{item.text}")
            (tmp_path / "go").touch()  # the command waits for this: we saw the first in time
        else:
            assert item.ok
    assert seen == ["stdout:one\n", "stderr:two\n"]


def test_stdout_and_stderr_are_kept_apart(bash: Bash) -> None:
    result = bash("echo out; echo err >&2; printf 'no newline'")
    assert result.output == "out\nno newline"
    assert result.stderr == "err\n"
    assert result.return_value is None


def test_long_output_keeps_head_and_tail(shared_box: Box, kernel: KernelRecord, bash: Bash) -> None:
    result = bash("seq 1 100000")
    assert result.truncated
    assert result.output.startswith("1\n2\n3\n")
    assert result.output.endswith("99999\n100000\n")
    assert len(result.output) <= shared_box.settings.output_char_limit
    matches = shared_box.search_output(kernel, result.execution_id, "^54321$")
    assert [match.text for match in matches] == ["54321"]


def test_odd_code_runs_as_written(bash: Bash) -> None:
    assert bash("").ok
    assert bash("# only a comment").ok
    assert bash("cat <<'E'\n$x `y` \\ \"q\"\nE").output == '$x `y` \\ "q"\n'
    assert bash("echo Ünïcödé 名前 😀").output == "Ünïcödé 名前 😀\n"
    assert bash("for i in 1 2\ndo\n echo $i\ndone").output == "1\n2\n"


@pytest.mark.parametrize("code", ["echo a\0b", "echo \ud800"], ids=["nul", "surrogate"])
def test_what_bash_cannot_be_given_is_an_error_and_nothing_runs(
    bash: Bash, code: str, tmp_path: Path
) -> None:
    result = bash(f"touch ran; {code}")
    assert result.status == "error"
    assert result.error is not None
    assert result.error.ename == "ValueError"
    assert not (tmp_path / "ran").exists()
    assert bash("echo lives").output == "lives\n"


def test_a_megabyte_of_code_runs(bash: Bash) -> None:
    assert bash("x=1\n" * 250_000 + "echo $x").output == "1\n"


# -- exit codes -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [("false", 1), ("true; (exit 7)", 7), ("no-such-command", 127), ("echo 'open", 2),
     ("/etc/passwd", 126), ("f() { return 42; }; f", 42), ("kill -9 $BASHPID & wait $!", 137)],
)  # fmt: skip
def test_a_non_zero_exit_is_an_error_with_its_code(bash: Bash, code: str, exit_code: int) -> None:
    result = bash(code)
    assert (result.status, result.exit_code) == ("error", exit_code)
    assert result.error is not None
    assert str(exit_code) in result.error.evalue
    assert result.error.traceback
    assert result.state == "kept"
    assert bash("echo $?; echo lives").output == f"{exit_code}\nlives\n"


def test_a_zero_exit_is_success(bash: Bash) -> None:
    result = bash("false; true")
    assert (result.status, result.exit_code, result.error) == ("success", 0, None)
    assert result.state == "kept"


def test_a_broken_pipe_is_quiet_as_in_a_terminal(bash: Bash) -> None:
    result = bash("set -o pipefail; yes | head -1; echo $?; set +o pipefail")
    assert (result.output, result.stderr) == ("y\n141\n", "")


def test_programs_are_started_with_ordinary_signals(bash: Bash) -> None:
    blocked, ignored = (
        int(line.split()[1], 16)
        for line in bash("grep -E 'Sig(Ign|Blk)' /proc/self/status").output.splitlines()
    )
    # Signals 32 and 33 are libc's own: nobody can reset them, and who runs the tests may ignore them.
    assert (blocked, ignored & ~(3 << 31)) == (0, 0)


# -- timeouts, interrupts, exits ------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    ["sleep 100", "while :; do :; done", "for i in 1 2 3; do sleep 100; done",
     "cat <(sleep 100)", "(sleep 100)", "sleep 100 | cat", "x=$(sleep 100)"],
)  # fmt: skip
def test_a_timeout_interrupts_the_command_and_the_shell_lives(bash: Bash, code: str) -> None:
    shell = bash("v=kept; echo $$").output
    result = bash(f"echo before; {code}; echo after", timeout=0.3)
    assert result.status == "timeout"
    assert result.error is not None
    assert result.error.ename == "TimeoutError"
    assert result.output == "before\n"
    assert result.steps == ["interrupted after 0.3 s"]
    assert result.state == "kept"
    assert bash("echo $v; echo $$").output == f"kept\n{shell}"


def test_background_jobs_survive_a_timeout(bash: Bash) -> None:
    pid = int(bash("sleep 300 & echo $!").output)
    assert bash("sleep 100", timeout=0.2).status == "timeout"
    assert alive(pid)
    assert "Running" in bash("jobs").output


def test_interrupt_ends_the_command_and_the_shell_lives(
    shared_box: Box, kernel: KernelRecord, bash: Bash, waiting: Waiting, tmp_path: Path
) -> None:
    bash("v=kept")
    results: list[ExecutionResult] = []
    thread = threading.Thread(target=lambda: results.append(bash("touch up; sleep 100; echo no")))
    thread.start()
    waiting((tmp_path / "up").exists, what="the command to run")
    assert shared_box.interrupt(kernel) is True
    thread.join(10)
    (result,) = results
    assert (result.status, result.output) == ("error", "")
    assert result.error is not None
    assert result.error.ename == "KeyboardInterrupt"
    assert result.exit_code == 130
    assert bash("echo $v").output == "kept\n"


def test_exit_is_reported_and_the_next_call_gets_a_new_shell(
    shared_box: Box, kernel: KernelRecord, bash: Bash, tmp_path: Path
) -> None:
    shared_box.execute(kernel, "python = 'kept'")
    first = bash("v=1; cd /; echo $$").output
    result = bash("echo bye; exit 4")
    assert (result.status, result.exit_code, result.output) == ("error", 4, "bye\n")
    assert result.error is not None
    assert result.error.ename == "BashExited"
    assert (result.state, result.cause) == ("kept", None)
    assert "bash session ended" in result.notes[0]
    second = bash('echo $$; echo "[$v]"; pwd')
    assert second.state == "kept"
    pid, rest = second.output.split("\n", 1)
    assert pid != first.strip()
    assert rest == f"[]\n{tmp_path}\n"
    assert shared_box.execute(kernel, "python").return_value == "'kept'"


def test_exit_zero_is_a_success_that_says_the_shell_is_gone(bash: Bash) -> None:
    result = bash("v=1; exit")
    assert (result.status, result.exit_code) == ("success", 0)
    assert result.state == "kept"
    assert "bash session ended" in result.notes[0]
    assert bash('echo "[$v]"').output == "[]\n"


def test_a_killed_shell_is_reported_and_replaced(bash: Bash) -> None:
    started = time.monotonic()
    result = bash("echo last words; kill -9 $$; sleep 100")
    assert time.monotonic() - started < 5
    assert (result.status, result.exit_code, result.output) == ("error", 137, "last words\n")
    assert result.error is not None
    assert bash("echo new").output == "new\n"


def test_a_wedged_command_is_killed(shared_box: Box, kernel: KernelRecord, bash: Bash) -> None:
    wire = {**shared_box.settings.to_wire(), "interrupt_grace": 0.2, "kill_grace": 0.5}
    with Box(Settings.from_wire(wire)) as hasty:
        result = hasty.execute(
            kernel, "trap '' INT URG; echo $BASHPID; while :; do :; done", language="bash",
            timeout=0.2,
        )  # fmt: skip
    assert result.status == "timeout"
    assert result.error is not None
    assert [step.split()[0] for step in result.steps] == ["interrupted", "interrupted", "killed"]
    assert not alive(int(result.output))
    assert bash("echo a new shell").output == "a new shell\n"
    assert shared_box.execute(kernel, "1 + 1").return_value == "2"


def test_a_program_that_ignores_interrupts_is_killed_and_the_shell_lives(
    shared_box: Box, kernel: KernelRecord, bash: Bash
) -> None:
    bash("v=kept")
    wire = {**shared_box.settings.to_wire(), "interrupt_grace": 0.2, "kill_grace": 8}
    with Box(Settings.from_wire(wire)) as hasty:
        code = "(trap '' INT; echo $BASHPID; while :; do sleep 1; done)"
        result = hasty.execute(kernel, code, language="bash", timeout=0.3)
    assert result.status == "timeout"
    assert not alive(int(result.output))
    assert bash("echo $v").output == "kept\n"


def test_destroying_the_kernel_ends_its_jobs(
    shared_box: Box, waiting: Waiting, tmp_path: Path
) -> None:
    record = shared_box.get_or_create("jobs to end", cwd=str(tmp_path))
    code = (
        "sleep 300 & echo $!; setsid sleep 300 & echo $!; (sleep 300 &) ; nohup sleep 300 & echo $!"
    )
    pids = shared_box.execute(record, code, language="bash").output.split()
    assert len(pids) == 3
    assert shared_box.destroy(record)
    waiting(lambda: not any(alive(int(pid)) for pid in pids), what="every job to end")


def test_restart_gives_a_new_shell_too(
    shared_box: Box, kernel: KernelRecord, bash: Bash, waiting: Waiting
) -> None:
    first = bash("v=1; echo $$").output
    shared_box.restart(kernel)
    assert bash('echo "[$v]"').output == "[]\n"
    waiting(lambda: not alive(int(first)), what="the old shell to end")


def test_python_and_bash_take_turns(shared_box: Box, kernel: KernelRecord, bash: Bash) -> None:
    order: list[str] = []

    def python() -> None:
        shared_box.execute(kernel, "import time; time.sleep(0.3)")
        order.append("python")

    thread = threading.Thread(target=python)
    thread.start()
    deadline = time.monotonic() + 10
    while shared_box.status(kernel)["running"] is None and time.monotonic() < deadline:
        time.sleep(0.005)
    bash("true")
    order.append("bash")
    thread.join()
    assert order == ["python", "bash"]


def test_a_branch_has_a_shell_of_its_own(shared_box: Box, kernel: KernelRecord, bash: Bash) -> None:
    first = bash("echo $$").output
    branch = shared_box.branch(kernel, "branch with bash")
    try:
        second = shared_box.execute(branch, "echo $$", language="bash")
        assert second.ok
        assert second.output != first
    finally:
        shared_box.destroy(branch)
    assert bash("echo $$").output == first


def test_status_shows_the_shell(shared_box: Box, kernel: KernelRecord, bash: Bash) -> None:
    pid = int(bash("echo $$").output)
    roles = {entry["role"]: entry["pid"] for entry in shared_box.status(kernel)["processes"]}
    assert roles["bash"] == pid
