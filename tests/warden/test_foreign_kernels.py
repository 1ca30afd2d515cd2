"""Kernels that are not ours keep the same promises, but for what needs fork; and that they say."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from kernelbox import (
    Box,
    ExecutionResult,
    KernelLost,
    KernelRecord,
    OutputItem,
    StartupFailed,
    Unsupported,
)
from kernelbox.keeper.home import locate
from kernelbox.warden.kernelspecs import Kernelspec

pytestmark = pytest.mark.foreign
pytest.importorskip("ipykernel")

PATIENCE = 60  # of a cell; a start of ipykernel alone takes seconds on a busy machine
Waiting = Callable[..., None]


def write_kernelspec(folder: Path, name: str, argv: list[str], **more: object) -> dict[str, str]:
    """A kernelspec of that name, and the environment in which it is found."""
    place = folder / "kernels" / name
    place.mkdir(parents=True)
    spec = {"argv": argv, "display_name": name, "language": "python", **more}
    (place / "kernel.json").write_text(json.dumps(spec))
    return {**os.environ, "JUPYTER_PATH": str(folder)}


def foreign(shared: Box, kernel_type: str, **settings: object) -> Box:
    """A Box on the module's home (which proves that nothing is left) for another kernel type."""
    return Box(dataclasses.replace(shared.settings, kernel_type=kernel_type, **settings))


@pytest.fixture(scope="module")
def box(shared_box: Box) -> Iterator[Box]:
    with foreign(shared_box, "ipykernel") as made:
        yield made


@pytest.fixture(scope="module")
def shared_kernel(box: Box, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KernelRecord]:
    """One ipykernel for all tests that leave it as they found it."""
    record = box.get_or_create("shared", cwd=str(tmp_path_factory.mktemp("work")))
    yield record
    box.destroy(record)


@pytest.fixture
def run(box: Box, shared_kernel: KernelRecord) -> Callable[..., ExecutionResult]:
    def run_cell(code: str, **options: object) -> ExecutionResult:
        return box.execute(shared_kernel, code, **{"timeout": PATIENCE, **options})  # type: ignore[arg-type]

    return run_cell


Run = Callable[..., ExecutionResult]


def pid_of(box: Box, kernel: KernelRecord, role: str = "kernel") -> int:
    return next(int(p["pid"]) for p in box.status(kernel)["processes"] if p["role"] == role)


# -- what works as with our own ---------------------------------------------------------------


def test_ipykernel_needs_no_kernelspec_and_its_record_says_what_it_is(
    box: Box, shared_kernel: KernelRecord
) -> None:
    assert shared_kernel.kernel_type == "ipykernel"
    assert [k.kernel_type for k in box.list_kernels(refresh=True)] == ["ipykernel"]
    result = box.execute(shared_kernel, "type(get_ipython()).__name__")
    assert result.return_value == "'ZMQInteractiveShell'"


def test_state_persists_between_calls(run: Run) -> None:
    assert run("x = 40").ok
    result = run("print('printed')\nx + 2")
    assert (result.status, result.return_value, result.output) == ("success", "42", "printed\n")
    assert (result.state, result.epoch) == ("kept", 1)


def test_a_new_kernel_starts_quietly_in_the_callers_folder_with_its_environment(
    box: Box, tmp_path: Path
) -> None:
    # A caller that is itself a Jupyter kernel has these; they are about its own parent.
    environ = {**os.environ, "GREETING": "hello", "JPY_PARENT_PID": "1"}
    kernel = box.get_or_create("settled", cwd=str(tmp_path), environ=environ)
    code = "import os; print(os.getcwd(), os.environ['GREETING'], os.environ.get('JPY_PARENT_PID'))"
    result = box.execute(kernel, code, timeout=PATIENCE)
    assert result.output == f"{tmp_path} hello None\n"
    assert [item.kind for item in result.outputs] == ["stream"]
    assert box.destroy(kernel)


def test_an_error_is_a_result_without_colour_codes(run: Run) -> None:
    result = run("def broken():\n    1 / 0\nbroken()")
    assert result.status == "error"
    assert result.error is not None
    assert (result.error.ename, result.error.evalue) == ("ZeroDivisionError", "division by zero")
    text = "\n".join(result.error.traceback)
    assert "broken" in text
    assert "\x1b" not in text
    assert run("1").ok


def test_no_output_is_lost_however_fast_the_cell(run: Run) -> None:
    for number in range(100):
        result = run(f"print({number}); {number}")
        assert (result.output, result.return_value) == (f"{number}\n", str(number))


def test_pictures_and_html_arrive(run: Run) -> None:
    result = run(
        "from IPython.display import HTML, Image, display\n"
        r"display(Image(b'\x89PNG\r\n\x1a\n' + bytes(16), format='png', width=1, height=1))"
        "\ndisplay(HTML('<b>bold</b>'))"
    )
    assert result.ok, result.error
    assert [image.mime for image in result.images] == ["image/png"]
    assert result.images[0].data.startswith(b"\x89PNG")
    assert result.outputs[-1].data["text/html"] == "<b>bold</b>"


def test_output_streams_while_the_cell_runs(box: Box, shared_kernel: KernelRecord) -> None:
    code = "import time\nprint('first', flush=True)\nfor _ in range(400): time.sleep(0.05)"
    for item in box.stream(shared_kernel, code, timeout=PATIENCE):
        assert isinstance(item, OutputItem)
        assert item.text.startswith("first")  # ipykernel may send the end of a line later
        break  # leaving interrupts the cell
    assert box.execute(shared_kernel, "'free again'", timeout=10).ok


def test_long_output_keeps_head_and_tail_and_can_be_paged(
    box: Box, shared_kernel: KernelRecord, run: Run
) -> None:
    result = run("for i in range(10_000): print('line', i)")
    assert result.truncated
    assert len(result.output) <= box.settings.output_char_limit
    assert result.output.startswith("line 0\n")
    assert result.output.endswith("line 9999\n")
    found = box.search_output(shared_kernel, result.execution_id, r"^line 5000$")
    assert len(found) == 1


def test_a_timeout_interrupts_and_the_state_is_kept(run: Run) -> None:
    run("kept = 'still here'")
    started = time.monotonic()
    result = run("while True: pass", timeout=0.5)
    assert result.status == "timeout"
    assert result.error is not None
    assert result.steps[0] == "interrupted after 0.5 s"
    assert time.monotonic() - started < 10
    after = run("kept")
    assert (after.return_value, after.state) == ("'still here'", "kept")


def test_an_interrupt_stops_the_running_cell_and_no_other(
    box: Box, shared_kernel: KernelRecord, waiting: Waiting
) -> None:
    results: list[ExecutionResult] = []
    code = "import time\nwhile True: time.sleep(0.05)"
    thread = threading.Thread(
        target=lambda: results.append(box.execute(shared_kernel, code, timeout=PATIENCE))
    )
    thread.start()
    waiting(lambda: box.status(shared_kernel)["running"], what="the cell to run")
    assert box.interrupt(shared_kernel)
    thread.join(20)
    assert results[0].error is not None
    assert results[0].error.ename == "KeyboardInterrupt"
    assert box.execute(shared_kernel, "1").ok


def test_input_is_refused_in_words_when_nobody_answers(run: Run) -> None:
    result = run("input('name? ')")
    assert result.error is not None
    assert result.error.ename == "StdinNotImplementedError"


def test_input_is_answered_by_the_caller(box: Box, shared_kernel: KernelRecord) -> None:
    result = box.execute(
        shared_kernel, "input('name? ') + '!'", on_input=lambda prompt: f"{prompt}Ada"
    )
    assert result.return_value == "'name? Ada!'"


def test_completion_is_asked_of_the_kernel(box: Box, shared_kernel: KernelRecord) -> None:
    box.execute(shared_kernel, "%config Completer.use_jedi = False\nforty_two = 42")  # jedi is slow
    assert box.complete(shared_kernel, "forty_t") == ["forty_two"]


def test_code_with_half_a_surrogate_pair_hangs_nobody(run: Run) -> None:
    assert run("'\ud800'").status in ("success", "error")
    assert run("1").ok


def test_a_jupyter_client_attaches_to_the_kernel_itself(
    box: Box, shared_kernel: KernelRecord, run: Run
) -> None:
    from jupyter_client.blocking.client import BlockingKernelClient

    assert os.stat(shared_kernel.connection_file).st_mode & 0o777 == 0o600
    run("ours = 20")
    client = BlockingKernelClient(connection_file=shared_kernel.connection_file)
    client.load_connection_file()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=30)
        reply = client.execute_interactive(
            "theirs = ours + 1; print('not yours')", timeout=30, output_hook=lambda message: None
        )
        assert reply["content"]["status"] == "ok"
    finally:
        client.stop_channels()
    result = run("theirs")
    assert result.return_value == "21"
    assert "not yours" not in str(result.outputs)


# -- what it cannot do, it says ---------------------------------------------------------------


def test_branching_a_foreign_kernel_is_refused_in_words(
    box: Box, shared_kernel: KernelRecord
) -> None:
    with pytest.raises(Unsupported, match=r"'shared' is a foreign kernel \(ipykernel\); branching"):
        box.branch(shared_kernel, "copy")
    assert box.execute(shared_kernel, "1").ok


def test_bash_beside_a_kernel_of_another_language_is_refused_in_words(run: Run) -> None:
    with pytest.raises(Unsupported, match="needs our own python3 kernel"):
        run("echo", language="bash")


def test_an_unknown_kernelspec_is_refused_and_the_installed_ones_are_named(
    shared_box: Box, tmp_path: Path, waiting: Waiting
) -> None:
    environ = write_kernelspec(tmp_path, "klingon", ["true"])
    before = wardens(shared_box)
    with (
        foreign(shared_box, "cobol-74") as box,
        pytest.raises(Unsupported, match=r"named 'cobol-74'.*'ipykernel'.*'klingon'"),
    ):
        box.get_or_create("nothing", environ=environ)
    waiting(lambda: wardens(shared_box) == before, what="a warden of no use to anybody to leave")


def wardens(box: Box) -> int:
    """How many wardens of foreign kernels, with their stubs, there are in this home."""
    rundir = locate(box.settings).rundir
    commands = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    return sum("kernelbox.warden.foreign" in command and rundir in command for command in commands)


def test_a_missing_jupyter_client_is_told_with_the_line_that_installs_it(
    shared_box: Box, tmp_path: Path
) -> None:
    (tmp_path / "jupyter_client.py").write_text("raise ImportError('not installed')")
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    with (
        foreign(shared_box, "ir") as box,
        pytest.raises(Unsupported, match=r'pip install "\./kernelbox\[foreign\]"'),
    ):
        box.get_or_create("nothing", environ=environ)


def test_a_kernel_that_does_not_come_up_is_told_with_its_last_words(
    shared_box: Box, tmp_path: Path
) -> None:
    environ = write_kernelspec(tmp_path, "broken", ["sh", "-c", "echo no such luck >&2; exit 3"])
    with (
        foreign(shared_box, "broken") as box,
        pytest.raises(StartupFailed, match="exit code 3; it said: no such luck"),
    ):
        box.get_or_create("broken", environ=environ)


def test_a_kernel_that_never_answers_is_given_up_in_time(shared_box: Box, tmp_path: Path) -> None:
    environ = write_kernelspec(tmp_path, "mute", ["sleep", "1000"])
    with (
        foreign(shared_box, "mute", start_timeout=5.0) as box,
        pytest.raises(StartupFailed, match="did not answer in"),
    ):
        box.get_or_create("mute", environ=environ)


def test_startup_code_that_fails_is_reported(shared_box: Box) -> None:
    with (
        foreign(shared_box, "ipykernel", startup_code="raise RuntimeError('bad start')") as box,
        pytest.raises(StartupFailed, match="RuntimeError: bad start"),
    ):
        box.get_or_create("badly started")


# -- bad luck ---------------------------------------------------------------------------------


@pytest.fixture
def kernel(box: Box, tmp_path: Path) -> Iterator[KernelRecord]:
    """An ipykernel to be cruel to."""
    record = box.get_or_create("victim", cwd=str(tmp_path))
    yield record
    box.destroy("victim")


def test_a_kernel_killed_in_a_cell_is_noticed_at_once_and_told(
    box: Box, kernel: KernelRecord
) -> None:
    box.execute(kernel, "x = 1")
    started = time.monotonic()
    result = box.execute(kernel, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert time.monotonic() - started < 5
    assert (result.status, result.state, result.epoch) == ("error", "lost", 2)
    assert result.error is not None
    assert "SIGKILL" in result.error.evalue
    after = box.execute(kernel, "'x' in globals()", timeout=PATIENCE)
    assert (after.return_value, after.state, after.epoch) == ("False", "kept", 2)


def test_a_kernel_killed_between_cells_is_told_by_the_next_result(
    box: Box, kernel: KernelRecord, waiting: Waiting
) -> None:
    os.kill(pid_of(box, kernel), signal.SIGKILL)
    waiting(
        lambda: box.status(kernel)["kernel"]["epoch"] == 2,
        what="the death to be noticed",
        seconds=5,
    )
    result = box.execute(kernel, "1 + 1", timeout=PATIENCE)
    assert (result.return_value, result.state, result.epoch) == ("2", "lost", 2)
    assert result.cause is not None
    assert "SIGKILL" in result.cause


def test_a_restart_brings_a_fresh_namespace_on_the_same_ports(
    box: Box, kernel: KernelRecord
) -> None:
    box.execute(kernel, "import os; x = 1; child = os.fork() or __import__('time').sleep(1000)")
    before = Path(kernel.connection_file).read_text()
    record = box.restart(kernel)
    assert (record.kernel_id, record.epoch) == (kernel.kernel_id, 2)
    assert box.execute(kernel, "'x' in globals()").return_value == "False"
    assert Path(kernel.connection_file).read_text() == before


def test_a_kernel_that_ends_itself_gets_its_connection_file_back(
    box: Box, kernel: KernelRecord
) -> None:
    result = box.execute(kernel, "import os; os._exit(7)")
    assert result.cause is not None
    assert "exit code 7" in result.cause
    assert box.execute(kernel, "1", timeout=PATIENCE).ok
    assert Path(kernel.connection_file).exists()


def test_destroying_a_busy_kernel_leaves_nothing(
    box: Box, tmp_path: Path, waiting: Waiting
) -> None:
    record = box.get_or_create("doomed", cwd=str(tmp_path))
    code = "import subprocess; subprocess.Popen(['sleep', '1000'], start_new_session=True).pid"
    child = int(box.execute(record, code).return_value or 0)
    pids = [int(process["pid"]) for process in box.status(record)["processes"]] + [child]
    thread = threading.Thread(target=lambda: box.execute(record, "while True: pass"))
    thread.start()
    assert box.destroy(record)
    thread.join(20)
    assert not thread.is_alive()
    # The keeper may still be about to bury the warden.
    waiting(lambda: not any(map(psutil.pid_exists, pids)), what="all of it to be gone", seconds=1)
    assert not os.path.exists(record.connection_file)
    assert not os.path.exists(record.address)


def test_a_killed_warden_takes_its_kernel_along(
    box: Box, kernel: KernelRecord, waiting: Waiting
) -> None:
    process = pid_of(box, kernel)
    os.kill(pid_of(box, kernel, "warden"), signal.SIGKILL)
    waiting(lambda: not psutil.pid_exists(process), what="the kernel to end with its warden")
    with pytest.raises(KernelLost, match="SIGKILL"):
        box.execute(kernel, "1")


def test_a_killed_keeper_loses_no_foreign_kernel(box: Box, kernel: KernelRecord) -> None:
    box.execute(kernel, "x = 'survived'")
    warden = psutil.Process(pid_of(box, kernel, "warden"))
    keeper = warden.parent()
    assert keeper is not None
    os.kill(keeper.pid, signal.SIGKILL)
    again = box.get_or_create("victim")
    assert again.kernel_id == kernel.kernel_id
    assert again.kernel_type == "ipykernel"
    assert box.execute("victim", "x").return_value == "'survived'"


# -- other kernelspecs ------------------------------------------------------------------------


def test_an_interrupt_goes_by_message_where_the_kernelspec_wants_that(
    shared_box: Box, tmp_path: Path
) -> None:
    argv = ["python", "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    more = {"interrupt_mode": "message", "env": {"FROM_SPEC": "${GREETING} there"}}
    environ = write_kernelspec(tmp_path, "by-message", argv, **more)
    with foreign(shared_box, "by-message") as box:
        kernel = box.get_or_create("polite", environ={**environ, "GREETING": "hello"})
        result = box.execute(kernel, "import os; os.environ['FROM_SPEC']", timeout=PATIENCE)
        assert result.return_value == "'hello there'"
        result = box.execute(kernel, "import time; time.sleep(1000)", timeout=0.5)
        assert (result.status, result.state) == ("timeout", "kept")
        assert box.destroy(kernel)


def test_bash_kernel_runs_like_any_other(shared_box: Box, tmp_path: Path) -> None:
    pytest.importorskip("bash_kernel")
    argv = [sys.executable, "-m", "bash_kernel", "-f", "{connection_file}"]
    environ = write_kernelspec(tmp_path, "bash", argv, language="bash", env={"PS1": "$"})
    with foreign(shared_box, "bash") as box:
        kernel = box.get_or_create("shell", environ=environ, cwd=str(tmp_path))
        assert kernel.kernel_type == "bash"
        assert box.execute(kernel, "X=41; mkdir sub; cd sub", timeout=PATIENCE).ok
        result = box.execute(kernel, "echo $((X + 1)) in ${PWD##*/}", language="bash")
        assert result.output == "42 in sub\n"
        failed = box.execute(kernel, "(exit 3)")
        assert (failed.status, str(failed.error)) == ("error", "Error: 3")
        late = box.execute(kernel, "sleep 1000", timeout=0.5)
        assert (late.status, late.state) == ("timeout", "kept")
        assert box.execute(kernel, "echo $X").output == "41\n"
        with pytest.raises(Unsupported, match=r"'shell' is a foreign kernel \(bash\)"):
            box.branch(kernel, "copy")
        assert box.destroy(kernel)


@pytest.mark.slow
def test_an_idle_foreign_kernel_is_ended_though_it_is_made_of_several_processes(
    shared_box: Box, tmp_path: Path, waiting: Waiting
) -> None:
    pytest.importorskip("bash_kernel")
    argv = [sys.executable, "-m", "bash_kernel", "-f", "{connection_file}"]
    environ = write_kernelspec(tmp_path, "bash", argv, language="bash")
    with foreign(shared_box, "bash", kernel_idle_timeout=2.0) as box:
        kernel = box.get_or_create("sleepy", environ=environ, cwd=str(tmp_path))
        box.execute(kernel, "sleep 6 & sleep 0.1", timeout=PATIENCE)
        started = time.monotonic()
        waiting(
            lambda: "sleepy" not in {other.name for other in box.list_kernels()},
            what="the idle kernel to be ended",
            seconds=40,
        )
        assert time.monotonic() - started > 4, "a background job is not idleness"
    with foreign(shared_box, "bash") as box:
        with pytest.raises(KernelLost, match="idle for 2 s"):
            box.execute("sleepy", "1")
        box.destroy("sleepy")


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (("python", "-f", "{connection_file}"), [sys.executable, "-f", "/c.json"]),
        (("julia", "{resource_dir}/start.jl"), ["julia", "/spec/start.jl"]),
        (("R", "-e", "f({x: 1}, {unknown})"), ["R", "-e", "f({x: 1}, {unknown})"]),
    ],
)
def test_a_command_line_keeps_what_is_no_placeholder(
    argv: tuple[str, ...], expected: list[str]
) -> None:
    assert Kernelspec("any", argv, "any", folder="/spec").command("/c.json") == expected
